"""A small OpenTelemetry collector: takes spans by OTLP, gRPC and HTTP, and writes each as a line.

`python -m lab.otlp GRPC_ADDRESS HTTP_ADDRESS FILE`; an address is host:port. For demos and tests,
where no real collector is: each line is one span with its resource, in the names of OTLP's JSON.
"""

from __future__ import annotations

import gzip
import json
import signal
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

BODY_BYTES_MAX = 64 << 20
PATH = "/v1/traces"


class Sink:
    """Appends spans to a file, whole lines, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def take(self, request: Any) -> None:
        """Every span of one ExportTraceServiceRequest."""
        lines = []
        for resource in request.resource_spans:
            about = MessageToDict(resource.resource).get("attributes", [])
            for scope in resource.scope_spans:
                for span in scope.spans:
                    told = MessageToDict(span)
                    told["traceId"], told["spanId"] = span.trace_id.hex(), span.span_id.hex()
                    told["parentSpanId"] = span.parent_span_id.hex()
                    lines.append(json.dumps({**told, "resource": about}) + "\n")
        with self._lock:
            self._file.writelines(lines)
            self._file.flush()


class _Grpc(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto's name
        self._sink.take(request)
        return trace_service_pb2.ExportTraceServiceResponse()


def _http(sink: Sink) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            if self.path != PATH or not 0 <= length <= BODY_BYTES_MAX:
                self.send_error(404)
                return
            body = self.rfile.read(length)
            packing = self.headers.get("Content-Encoding", "")
            try:
                if packing == "gzip":
                    body = gzip.decompress(body)
                elif packing == "deflate":
                    body = zlib.decompress(body)
                sink.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            except (DecodeError, OSError, zlib.error):
                self.send_error(400)
                return
            answer = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Nothing is told of a request."""

    return Handler


def main(grpc_address: str, http_address: str, path: str) -> None:
    """Serve until SIGTERM or SIGINT."""
    sink = Sink(Path(path))
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        _Grpc(sink), server
    )
    server.add_insecure_port(grpc_address)
    server.start()
    host, _, port = http_address.rpartition(":")
    web = ThreadingHTTPServer((host, int(port)), _http(sink))
    threading.Thread(target=web.serve_forever, daemon=True).start()
    print("serving", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    web.shutdown()
    server.stop(1).wait()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(*sys.argv[1:4])
