"""An HTTP/2 client by the `h2` library that checks nothing it sends: `HOST:PORT`.

Reads steps, one JSON object on a line, takes them in order, and prints each event of the
connection as a JSON object. Unknown steps and events that do not come end it with an error.
"""

import json
import socket
import sys

import h2.config
import h2.connection
import h2.events
import h2.settings

LIMIT = 20


class Conversation:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), LIMIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.closed = False
        self.waiting = []
        self.flush()

    def flush(self):
        try:
            self.socket.sendall(self.h2.data_to_send())
        except OSError:
            self.close()

    def close(self):
        if not self.closed:
            self.closed = True
            self.report("Closed", 0)

    def report(self, name, stream, **facts):
        self.waiting.append((name, stream))
        print(json.dumps({"event": name, "stream": stream, **facts}), flush=True)

    def read(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self.close()
            return
        for event in self.h2.receive_data(data):
            self.on_event(event)
        self.flush()

    def on_event(self, event):
        facts = {}
        if getattr(event, "headers", None) is not None:
            facts["fields"] = [[str(name), str(value)] for name, value in event.headers]
        if isinstance(event, h2.events.DataReceived):
            facts["data"] = event.data.decode("utf-8", "replace")
            facts["hex"] = event.data.hex()
            if event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if getattr(event, "error_code", None) is not None:
            facts["code"] = int(event.error_code)
        self.report(type(event).__name__, getattr(event, "stream_id", None) or 0, **facts)

    def wait(self, name, stream):
        while True:
            for index, (seen, at) in enumerate(self.waiting):
                if seen == name and stream in (None, at):
                    del self.waiting[: index + 1]
                    return
            if self.closed:
                raise RuntimeError(f"the connection ended without {name}")
            self.read()

    def take(self, step):
        action, stream = step["do"], step.get("stream")
        if action == "headers":
            fields = [tuple(field) for field in step["fields"]]
            self.h2.send_headers(stream, fields, end_stream=step.get("end", False))
        elif action == "data":
            data = bytes.fromhex(step["hex"]) if "hex" in step else step.get("text", "").encode()
            self.h2.send_data(stream, data, end_stream=step.get("end", False))
        elif action == "reset":
            self.h2.reset_stream(stream, step.get("code", 8))
        elif action == "ping":
            self.h2.ping(b"12345678")
        elif action == "raw":
            self.flush()
            self.socket.sendall(bytes.fromhex(step["hex"]))
        elif action == "await":
            self.flush()
            self.wait(step["event"], stream)
        else:
            raise ValueError(f"unknown step {step}")
        self.flush()


conversation = Conversation(sys.argv[1])
for line in sys.stdin:
    if conversation.closed:
        break
    conversation.take(json.loads(line))
