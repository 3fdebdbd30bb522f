"""An OpenTelemetry collector by the `opentelemetry-proto` library: takes spans by OTLP over HTTP, as protobuf.

Prints `listening PORT`, then a line of JSON for each span. Answers with the status in `FAIL_WITH`; unless that is 200, it takes
none.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def show(resource, span):
    return {
        "resource": resource,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "attributes": attributes(span.attributes),
        "events": [event.name for event in span.events],
        "status": Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        content = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces", self.path
        assert self.headers["content-type"] == "application/x-protobuf", self.headers
        status = int(os.environ["FAIL_WITH"])
        if status == 200:
            for batch in ExportTraceServiceRequest.FromString(content).resource_spans:
                resource = attributes(batch.resource.attributes)
                resource["authorization"] = self.headers["authorization"]
                for scope in batch.scope_spans:
                    for span in scope.spans:
                        # In one write, since requests are served at the same time.
                        print(json.dumps(show(resource, span)) + "\n", end="", flush=True)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"listening {server.server_address[1]}", flush=True)
server.serve_forever()
