"""A receiver of OTLP over HTTP, of the tests' own: what a collector would get, decoded."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import MAX_WBITS, decompress

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

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


@dataclass(frozen=True)
class ReceivedLine:
    """A line of a log that was received."""

    resource: dict[str, Any]
    logger: str
    body: str
    severity: str
    trace_id: str
    span_id: str
    attributes: dict[str, Any]


@dataclass
class Receiver:
    """A collector at `url` that keeps what it gets. With `answers`, it answers that status."""

    url: str = ""
    answers: int = 200
    spans: list[ReceivedSpan] = field(default_factory=list)
    lines: list[ReceivedLine] = field(default_factory=list)
    metrics: list[tuple[dict[str, Any], list[Metric]]] = field(default_factory=list)
    """Exports of metrics, in their order: who sent them, and what."""
    requests: int = 0
    held: int = 0
    """Exports that have come, answered or not."""
    raw: bytes = b""
    authorizations: set[str] = field(default_factory=set)
    """What the header of that name said."""

    def take(self, path: str, body: bytes) -> None:
        """Decode one export, which was sent to `path`."""
        self.requests += 1
        self.raw += body
        {
            "/v1/traces": self._take_spans,
            "/v1/metrics": self._take_metrics,
            "/v1/logs": self._take_lines,
        }[path](body)

    def _take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            found = [metric for scope in resource.scope_metrics for metric in scope.metrics]
            self.metrics.append((_about(resource.resource), found))

    def _take_lines(self, body: bytes) -> None:
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
            for scope in resource.scope_logs:
                self.lines += [
                    ReceivedLine(
                        _about(resource.resource),
                        scope.scope.name,
                        _plain(line.body),
                        line.severity_text,
                        line.trace_id.hex(),
                        line.span_id.hex(),
                        {a.key: _plain(a.value) for a in line.attributes},
                    )
                    for line in scope.log_records
                ]

    def _take_spans(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _about(resource.resource)
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


def _about(resource: Resource) -> dict[str, Any]:
    return {a.key: _plain(a.value) for a in resource.attributes}


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
            receiver.held += 1
            receiver.authorizations.add(self.headers.get("Authorization", ""))
            if hold is not None:
                hold.wait()
            receiver.take(self.path, body)
            with suppress(OSError):  # who sent it may be gone
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
