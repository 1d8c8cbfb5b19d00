"""A receiver of OTLP over HTTP, of the tests' own: what a collector would get, decoded."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import MAX_WBITS, decompress

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

OK, UNKNOWN, ERROR = 1, 0, 2


@dataclass(frozen=True)
class ReceivedSpan:
    """A span that was received, and the service that sent it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    is_error: bool


@dataclass
class Receiver:
    """A collector at `url` that keeps what it gets. With `answers`, it answers that status."""

    url: str = ""
    answers: int = 200
    spans: list[ReceivedSpan] = field(default_factory=list)
    requests: int = 0
    raw: bytes = b""

    def take(self, body: bytes) -> None:
        """Decode one export."""
        self.requests += 1
        self.raw += body
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            about = {a.key: _plain(a.value) for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    found = ReceivedSpan(
                        about["service.name"],
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        {a.key: _plain(a.value) for a in span.attributes},
                        span.status.code == ERROR,
                    )
                    self.spans.append(found)

    def named(self, name: str) -> list[ReceivedSpan]:
        """The spans of a name."""
        return [span for span in list(self.spans) if span.name == name]

    def parent_of(self, span: ReceivedSpan) -> ReceivedSpan | None:
        """The parent of a span, if it was received."""
        return next((s for s in list(self.spans) if s.span_id == span.parent_id), None)


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind or "string_value")


@contextmanager
def receiving(answers: int = 200, hold: threading.Event | None = None) -> Iterator[Receiver]:
    """A receiver on a free port. With `hold`, it answers nothing until that is set."""
    receiver = Receiver(answers=answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = decompress(body, MAX_WBITS | 16)
            if hold is not None:
                hold.wait()
            receiver.take(body)
            self.send_response(receiver.answers)
            self.end_headers()
            self.wfile.write(b"" if receiver.answers == 200 else b"\xff garbage")

        def log_request(self, *_: object) -> None:
            """Nothing: the output of the tests is theirs."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
        running = threading.Thread(target=server.serve_forever, daemon=True)
        running.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            running.join()
