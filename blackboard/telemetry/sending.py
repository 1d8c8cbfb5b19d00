"""What is sent by OTLP, and as whom: the standard OTEL_ variables decide.

Invariant: nothing waits for a collector, but for a process that ends, for TELEMETRY_FLUSH_MS.
"""

import atexit
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from blackboard.errors import InvalidRequest
from blackboard.limits import TELEMETRY_FLUSH_MS, TELEMETRY_QUEUE_MAX

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

PROTOCOL: Final = "http/protobuf"
SCOPE: Final = "blackboard"
INTERVAL_VARIABLE: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS: Final = 60_000  # as of the SDK
_DISTRIBUTIONS: Final = ("agent-blackboard", "agent-blackboard-client")


class Signal(StrEnum):
    """A kind of what is sent, as the OTEL_ variables call it."""

    TRACES = "TRACES"
    METRICS = "METRICS"
    LOGS = "LOGS"

    @property
    def exporter_variable(self) -> str:
        """The variable that says how it is sent: `otlp` or `none`."""
        return f"OTEL_{self}_EXPORTER"


def is_sent(signal: Signal, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a signal is sent by OTLP: unless its variable says `none`, or OTEL_SDK_DISABLED is
    true. `prometheus` is `none` for metrics: `/metrics` is always there.

    Errors: InvalidRequest for any other exporter, and for a protocol other than PROTOCOL.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    text = environ.get(signal.exporter_variable, "") or "otlp"
    chosen = {name.strip().lower() for name in text.split(",")}
    known = {"otlp", "none"} | ({"prometheus"} if signal is Signal.METRICS else set())
    if not chosen <= known:
        reason = f"{text!r:.100} is not one of {', '.join(sorted(known))}"
        raise InvalidRequest(field=signal.exporter_variable, reason=reason)
    if "otlp" not in chosen:
        return False
    # OpenTelemetry's rule: the variable of a signal goes before the one for all signals.
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environ.get(name, "").strip().lower()
        if protocol == PROTOCOL:
            break
        if protocol:
            reason = f"{protocol!r:.100} is not supported, only {PROTOCOL} (usually on port 4318)"
            raise InvalidRequest(field=name, reason=reason)
    return True


def address_of(signal: Signal, environ: Mapping[str, str] = os.environ) -> str:
    """The URL to which a signal is sent."""
    whole = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "").strip()
    if whole:
        return whole
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip() or "http://localhost:4318"
    return f"{base.rstrip('/')}/v1/{signal.lower()}"


def interval_ms(environ: Mapping[str, str] = os.environ) -> int:
    """How often metrics are sent. Errors: InvalidRequest unless it is a positive number."""
    text = environ.get(INTERVAL_VARIABLE, "").strip()
    if not text:
        return _INTERVAL_MS
    if not (text.isascii() and text.isdigit() and int(text)):
        raise InvalidRequest(field=INTERVAL_VARIABLE, reason=f"{text!r:.40} is no number of ms")
    return int(text)


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Errors: InvalidRequest when a service could not send what the variables ask for."""
    for signal in Signal:
        is_sent(signal, environ)
    interval_ms(environ)


@lru_cache(maxsize=8)
def resource(service: str) -> "Resource":
    """Who sends: the same for all signals of a process. What OTEL_SERVICE_NAME and
    OTEL_RESOURCE_ATTRIBUTES name is kept."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = {
        "service.name": service,
        "service.version": _version(),
        "service.instance.id": str(uuid.uuid4()),
    }
    given = OTELResourceDetector().detect().attributes
    return Resource.create({name: text for name, text in own.items() if name not in given})


def _version() -> str:
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def queue_max(variable: str) -> int | None:
    """How many of a kind wait at most; None to let the SDK read it from `variable`."""
    return None if os.environ.get(variable) else TELEMETRY_QUEUE_MAX


def span_provider(service: str) -> "TracerProvider":
    """A provider whose spans an OTLP exporter sends, in batches, from a thread of its own."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # `flush_at_exit` does that, for all signals at once and for a bounded time.
    provider = TracerProvider(resource=resource(service), shutdown_on_exit=False)
    queued = queue_max("OTEL_BSP_MAX_QUEUE_SIZE")
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=queued))
    flush_at_exit(provider.force_flush)
    return provider


# --- the end of the process -----------------------------------------------------------------------

_flushes: Final[list[Callable[[int], object]]] = []
_flushing: Final[list[threading.Thread]] = []
"""One for each of them. They wait from the beginning: some Pythons (3.12) start no thread in a
process that ends."""
_ending: Final = threading.Event()


def flush_at_exit(flush: Callable[[int], object]) -> None:
    """Call `flush` with TELEMETRY_FLUSH_MS as the process ends."""
    if not _flushes:
        atexit.register(_flush_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_wait_in_child)
    _flushes.append(flush)
    _wait_for_end(flush)


def _wait_for_end(flush: Callable[[int], object]) -> None:
    def send() -> None:
        _ending.wait()
        flush(TELEMETRY_FLUSH_MS)

    thread = threading.Thread(target=send, name="telemetry", daemon=True)
    thread.start()
    _flushing.append(thread)


def _wait_in_child() -> None:
    """A process that was forked has none of the threads."""
    _flushing.clear()
    for flush in _flushes:
        _wait_for_end(flush)


def _flush_all() -> None:
    """Send what waits, all kinds at once: a collector that does not answer keeps no process."""
    until_s = time.monotonic() + TELEMETRY_FLUSH_MS / 1000
    _ending.set()
    for thread in _flushing:
        thread.join(max(0.0, until_s - time.monotonic()))
