// An origin by Node: answers each request with what it has read of it, in the field `x-read`.
const http = require("node:http");

const server = http.createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const content = Buffer.concat(pieces).toString("hex");
    response.setHeader("x-read", `${request.method} ${request.url} ${content}`);
    response.setHeader("content-length", "0");
    response.end();
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
