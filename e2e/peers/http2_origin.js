// An origin by Node without TLS, that speaks HTTP/2, or HTTP/1.1 for `node:http`. `/watch` goes on until `/finish` is asked for,
// `/slow` for ever.
const http = require(process.argv[2] ?? "node:http2");

const watching = new Set();
const server = http.createServer((request, response) => {
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
server.listen(0, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
