"""An origin by Python's http.server: answers each request with what it has read of it, in the field `x-read`.

The head is read by Python; the content by its fields, since http.server leaves that to its users.
"""

import http.server


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __getattr__(self, name):
        # Any method.
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def answer(self):
        read = f"{self.command} {self.path} {self.content().hex()}"
        self.send_response(200)
        self.send_header("x-read", read)
        self.send_header("content-length", "0")
        self.end_headers()

    def content(self):
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", "0")))
        content = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return content

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print("listening on", server.server_port, flush=True)
server.serve_forever()
