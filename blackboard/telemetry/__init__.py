"""OpenTelemetry, as far as Blackboard is concerned: the only package that knows it.

Off unless BLACKBOARD_TELEMETRY asks for it (or `blackboard serve --telemetry`), and then a call
costs one comparison. Spans go to the tracer provider of the program, if it has set one, else to an
OTLP exporter over HTTP that this module starts and that the standard OTEL_ variables direct.

Invariants
- No value of a board, prompt, answer, token or key of a service is an attribute: names of boards
  and agents, revisions, counts and sizes are.
- Nothing waits for a collector: spans wait in a bounded queue, which drops what does not fit, and a
  thread of its own sends them.
- Steps, restores and whatever is rare are always traced, with their commits. Of commits that belong
  to no trace, one in TELEMETRY_COMMITS_ONE_IN is, as a span costs more than a commit.
- What ends with an unknown outcome is marked `unknown`, never as a success.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Self

from blackboard.errors import BlackboardError, InvalidRequest, OutcomeUnknown
from blackboard.limits import TELEMETRY_COMMITS_ONE_IN, TRACEPARENT_CHARACTERS_MAX
from blackboard.telemetry.sending import SCOPE, Signal, is_sent, span_provider

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as _Span, SpanContext, Tracer

VARIABLE: Final = "BLACKBOARD_TELEMETRY"
_ON: Final = frozenset({"1", "true", "yes", "on"})

_tracer: "Tracer | None" = None
_current_span: "Callable[..., _Span] | None" = None
"""Kept, because a commit asks for it, and an import costs a microsecond even when it is done."""
_one_in = 1
"""Of commits that belong to no trace, one in so many begins one."""
_lock: Final = threading.Lock()


def is_on() -> bool:
    """Whether spans are made."""
    return _tracer is not None


def start_if_asked(environ: Mapping[str, str], service: str) -> None:
    """As `start`, if BLACKBOARD_TELEMETRY is 1, true, yes or on. Errors: those of `start`."""
    if _tracer is None and environ.get(VARIABLE, "").strip().lower() in _ON:
        start(service)


def start(service: str, provider: "TracerProvider | None" = None) -> None:
    """Make spans from here on, by `provider`, else by the program's global one, else by one that
    sends them by OTLP, unless OTEL_TRACES_EXPORTER is `none`. `service` is the latter's
    `service.name` if no variable names it.

    Errors: InvalidRequest when the extra `telemetry` is not installed, or for a variable that
    cannot be used.
    """
    global _tracer, _current_span, _one_in
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError as error:
        reason = "it needs OpenTelemetry: pip install 'agent-blackboard[telemetry]'"
        raise InvalidRequest(field=VARIABLE, reason=reason) from error
    with _lock:
        if _tracer is not None:
            return
        if provider is None and not isinstance(trace.get_tracer_provider(), TracerProvider):
            if not is_sent(Signal.TRACES):
                return
            trace.set_tracer_provider(span_provider(service))
            _one_in = 1 if "OTEL_TRACES_SAMPLER" in os.environ else TELEMETRY_COMMITS_ONE_IN
        _current_span = trace.get_current_span
        _tracer = (provider or trace.get_tracer_provider()).get_tracer(SCOPE)


def stop() -> None:
    """Make no more spans. What was made is sent in the background."""
    global _tracer, _current_span, _one_in
    _tracer, _current_span, _one_in = None, None, 1


# --- spans ----------------------------------------------------------------------------------------


class OpenSpan:
    """A span that was begun; `end` it, once."""

    __slots__ = ("_span",)

    def __init__(self, span: "_Span") -> None:
        self._span = span

    def of_board(self, board: str, agent: str = "") -> Self:
        """Name the board, and the agent that acts on it."""
        self._span.set_attribute("blackboard.board", board)
        if agent:
            self._span.set_attribute("blackboard.agent", agent)
        return self

    def at(self, revision: int, epoch: str = "") -> None:
        """Name the revision that it led to, and its epoch: from a trace to the cut."""
        self._span.set_attribute("blackboard.revision", revision)
        if epoch:
            self._span.set_attribute("blackboard.epoch", epoch)

    def count(self, name: str, number: int) -> None:
        """A number of something, or a size."""
        self._span.set_attribute(f"blackboard.{name}", number)

    def used_model(self, version: str, finish: str, tokens: tuple[int, int]) -> None:
        """Which model answered, why it stopped, and the tokens of prompt and answer."""
        self._span.set_attribute("gen_ai.response.model", version)
        self._span.set_attribute("gen_ai.response.finish_reasons", [finish])
        self._span.set_attribute("gen_ai.usage.input_tokens", tokens[0])
        self._span.set_attribute("gen_ai.usage.output_tokens", tokens[1])

    def turn_away(self, status: int) -> None:
        """It was refused by this HTTP status."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("http.response.status_code", status)
        self._span.set_attribute("error.type", str(status))
        self._span.set_attribute("blackboard.outcome", "refused")
        self._span.set_status(Status(StatusCode.ERROR, "refused"))

    def fail(self, error: BaseException) -> None:
        """Give it the status of an error: its code, and no message, which may quote a value."""
        from opentelemetry.trace import Status, StatusCode

        code = error.code if isinstance(error, BlackboardError) else type(error).__name__
        self._span.set_attribute("error.type", code)
        outcome = "failed"
        if isinstance(error, OutcomeUnknown):
            outcome = "unknown"
        elif isinstance(error, BlackboardError):
            outcome = "refused"
        elif code == "CancelledError":
            outcome = "cancelled"
        self._span.set_attribute("blackboard.outcome", outcome)
        self._span.set_status(Status(StatusCode.ERROR, outcome))

    def end(self) -> None:
        """It is over."""
        self._span.end()

    def engine_call(self, took_s: float, commits: int, error: BaseException | None) -> None:
        """Add the call of the engine that has just ended, which decided this and other commits."""
        from opentelemetry import trace

        assert _tracer is not None
        now_ns = time.time_ns()
        began_ns = now_ns - round(took_s * 1e9)
        within = trace.set_span_in_context(self._span)
        call = OpenSpan(_tracer.start_span("engine commit", within, start_time=began_ns))
        call.count("batch.commits", commits)
        if error is not None:
            call.fail(error)
        call._span.end(now_ns)


def commit(board: str, agent: str, operations: int, traceparent: str = "") -> OpenSpan | None:
    """Begin the span of a commit in the service; None if telemetry is off. Its parent is that of
    the `traceparent`, else the current one."""
    if _tracer is None or not (traceparent or _is_wanted()):
        return None
    from opentelemetry.trace import SpanKind

    begun = _tracer.start_span("blackboard.commit", _context(traceparent), kind=SpanKind.SERVER)
    span = OpenSpan(begun).of_board(board, agent)
    span.count("operations", operations)
    return span


def asking(method: str, board: str, agent: str) -> AbstractContextManager[OpenSpan | None]:
    """A block of a client that asks the service for `method`."""
    if _tracer is None or (method == "commit" and not _is_wanted()):
        return _NOTHING
    return _method(method, board, agent, "CLIENT")


def _is_wanted() -> bool:
    """Whether a commit gets a span: it belongs to a trace, or it is its turn to begin one."""
    if _one_in == 1 or _current_context() is not None:
        return True
    return random.random() * _one_in < 1


def serving(method: str, board: str, agent: str) -> AbstractContextManager[OpenSpan | None]:
    """A block of the service that carries out `method`."""
    return _NOTHING if _tracer is None else _method(method, board, agent, "SERVER")


@contextmanager
def _method(method: str, board: str, agent: str, kind: str) -> Iterator[OpenSpan]:
    from opentelemetry.trace import SpanKind

    with _current(f"blackboard.{method}", SpanKind[kind]) as span:
        yield span.of_board(board, agent)


def continuing(traceparent: str) -> AbstractContextManager[None]:
    """A block whose spans belong to the trace of another process; "" = to none."""
    if _tracer is None or not traceparent:
        return _NOTHING
    from opentelemetry.context import Context

    return _within(_context(traceparent) or Context())


def entering(traceparent: str | None) -> AbstractContextManager[None]:
    """A block that serves an HTTP request which came with that header; None = with none.

    As `continuing`; but a span of that trace that is current already stays the parent: something
    around us has begun it for the request. A header that is no traceparent changes nothing.
    """
    if _tracer is None:
        return _NOTHING
    found, now = _received(traceparent), _current_context()
    if now is None or not now.is_remote:
        is_begun = now is not None and found is not None and _trace_in(found) == now.trace_id
        return _NOTHING if found is None or is_begun else _within(found)
    # What an earlier request on the connection brought: asyncio keeps the context of the task that
    # last resumed a transport (CPython issue 140947).
    return apart() if found is None else _within(found)


def connecting(traceparent: str | None, board: str = "") -> AbstractContextManager[OpenSpan | None]:
    """A block that serves the handshake of a WebSocket: a span, if it came with a traceparent.

    What is begun after the block belongs to no trace, as the connection may last for days.
    """
    found = None if _tracer is None else _received(traceparent)
    return _NOTHING if found is None else _connecting(found, board)


@contextmanager
def _connecting(found: "Context", board: str) -> Iterator[OpenSpan]:
    from opentelemetry.trace import SpanKind

    with _within(found), _current("blackboard.connect", SpanKind.SERVER) as span:
        yield span.of_board(board) if board else span


def apart() -> AbstractContextManager[None]:
    """A block that begins what may outlive the current span: it belongs to no trace."""
    if _tracer is None or _current_context() is None:
        return _NOTHING
    from opentelemetry.context import Context

    return _within(Context())


@contextmanager
def _within(found: "Context") -> Iterator[None]:
    from opentelemetry import context

    token = context.attach(found)
    try:
        yield
    finally:
        context.detach(token)


# --- agents: https://github.com/open-telemetry/semantic-conventions-genai -------------------------


def step(agent: str, board: str, number: int) -> AbstractContextManager[OpenSpan | None]:
    """A block in which an agent takes a step."""
    return _NOTHING if _tracer is None else _step(agent, board, number)


@contextmanager
def _step(agent: str, board: str, number: int) -> Iterator[OpenSpan]:
    from opentelemetry.trace import SpanKind

    named = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
    with _current(f"invoke_agent {agent}", SpanKind.INTERNAL, named) as span:
        span.count("step", number)
        yield span.of_board(board, agent)


def call(kind: str, name: str) -> AbstractContextManager[OpenSpan | None]:
    """A block in which an agent makes a call: `kind` is "model" or "tool"."""
    return _NOTHING if _tracer is None else _call(kind, name)


@contextmanager
def _call(kind: str, name: str) -> Iterator[OpenSpan]:
    from opentelemetry.trace import SpanKind

    if kind == "model":
        provider, divider, _ = name.partition(":")
        named = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider if divider else "_OTHER",
            "gen_ai.request.model": name,
        }
        with _current(f"chat {name}", SpanKind.CLIENT, named) as span:
            yield span
    else:
        named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        with _current(f"execute_tool {name}", SpanKind.INTERNAL, named) as span:
            yield span


# --- contexts -------------------------------------------------------------------------------------


def traceparent() -> str:
    """The current span for another process, as W3C Trace Context has it; "" if there is none."""
    found = _current_context()
    if found is None:
        return ""
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"


def trace_id() -> str:
    """The id of the current trace; "" if there is none, or if it is not sampled."""
    found = _current_context()
    return f"{found.trace_id:032x}" if found is not None and found.trace_flags.sampled else ""


def _current_context() -> "SpanContext | None":
    if _current_span is None:
        return None
    found = _current_span().get_span_context()
    return found if found.is_valid else None


def _context(text: str) -> "Context | None":
    """The context of a traceparent; None, the current one, if it is none."""
    if not text or len(text) > TRACEPARENT_CHARACTERS_MAX:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    from_peer = TraceContextTextMapPropagator()
    from opentelemetry.context import Context

    return from_peer.extract({"traceparent": text}, Context())


def _received(header: str | None) -> "Context | None":
    """The context of a header; None if it is no traceparent."""
    found = _context(header or "")
    return found if found is not None and _trace_in(found) else None


def _trace_in(found: "Context") -> int:
    """The id of the trace of a context; 0 = it has none."""
    assert _current_span is not None
    return _current_span(found).get_span_context().trace_id


@contextmanager
def _current(name: str, kind: Any, named: Mapping[str, str] | None = None) -> Iterator[OpenSpan]:
    """A block with a span that is the current one, and fails with the block."""
    assert _tracer is not None
    with _tracer.start_as_current_span(
        name, kind=kind, attributes=named, record_exception=False, set_status_on_exception=False
    ) as begun:
        span = OpenSpan(begun)
        try:
            yield span
        except BaseException as error:
            span.fail(error)
            raise


_NOTHING: Final[AbstractContextManager[None]] = nullcontext()
