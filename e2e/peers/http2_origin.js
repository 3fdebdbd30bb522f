// An origin by Node that speaks HTTP/2 without TLS. `/watch` goes on until `/finish` is asked for, `/slow` for ever.
const http2 = require("node:http2");

const watching = new Set();
const server = http2.createServer((request, response) => {
  if (request.url === "/watch") {
    response.write("begun");
    watching.add(response);
  } else if (request.url === "/slow") {
    response.write("begun");
  } else {
    if (request.url === "/finish") watching.forEach((watch) => watch.end(" whole"));
    request.resume().on("end", () => response.end("ok"));
  }
});
server.on("sessionError", (error) => console.log(`a session failed: ${error.message}`));
server.listen(0, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
