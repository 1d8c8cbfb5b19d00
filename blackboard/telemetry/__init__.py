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
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

from blackboard.errors import BlackboardError, InvalidRequest, OutcomeUnknown
from blackboard.limits import TELEMETRY_COMMITS_ONE_IN, TRACEPARENT_CHARACTERS_MAX
from blackboard.telemetry.sending import SCOPE, Signal, is_sent, span_provider

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span as _Span, SpanContext, Tracer

VARIABLE: Final = "BLACKBOARD_TELEMETRY"
_ON: Final = frozenset({"1", "true", "yes", "on"})
_MARK: Final = re.compile(r"(?:^|, )trace ([0-9a-f]{32})-([0-9a-f]{16})$")
"""The end of a note: the span that made the commit."""

OTHER_PROVIDER: Final = "_OTHER"
PROVIDERS: Final = {
    "anthropic": "anthropic",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "endpoint": "openai",  # what speaks OpenAI's protocol
    "google": "gcp.gen_ai",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "groq": "groq",
    "mistral": "mistral_ai",
    "openai": "openai",
    "xai": "x_ai",
}
"""Providers by the prefix of a model's name, as the conventions call them."""

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
            # A sampler that was asked for decides alone.
            _one_in = 1 if "OTEL_TRACES_SAMPLER" in os.environ else TELEMETRY_COMMITS_ONE_IN
        # Before `_tracer`: other threads read that without the lock, and then rely on the rest.
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

    def mark(self) -> str:
        """As the function `mark`, of this span."""
        return _marked(self._span.get_span_context())

    def committed(self, revision: int, epoch: str) -> None:
        """As `at`; the epoch is also that of the step which it belongs to."""
        self.at(revision, epoch)
        step = _taken.get()
        if step is not None and epoch:
            step._span.set_attribute("blackboard.epoch", epoch)

    def count(self, name: str, number: int) -> None:
        """A number of something, or a size."""
        self._span.set_attribute(f"blackboard.{name}", number)

    def used_model(self, version: str, finish: str, tokens: tuple[int, int]) -> None:
        """Which model answered, why it stopped, and the tokens of prompt and answer."""
        self._span.set_attribute("gen_ai.response.model", version)
        self._span.set_attribute("gen_ai.response.finish_reasons", [finish])
        if any(tokens):  # else the service has not counted
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
    # Decided before OpenTelemetry is asked for anything: a span costs more than a commit.
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


_taken: Final[ContextVar[OpenSpan | None]] = ContextVar("blackboard_step", default=None)
"""The span of the step that is being taken."""

# --- agents: https://github.com/open-telemetry/semantic-conventions-genai -------------------------


def step(
    agent: str, board: str, number: int, woken_by: str = ""
) -> AbstractContextManager[OpenSpan | None]:
    """A block in which an agent takes a step. `woken_by` is the note of the commit that ended its
    rest, to which the span has a link if that commit was traced."""
    return _NOTHING if _tracer is None else _step(agent, board, number, woken_by)


@contextmanager
def _step(agent: str, board: str, number: int, woken_by: str) -> Iterator[OpenSpan]:
    from opentelemetry.trace import SpanKind

    named = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": SCOPE,
        "gen_ai.agent.name": agent,
    }
    with _current(f"invoke_agent {agent}", SpanKind.INTERNAL, named, links_to(woken_by)) as span:
        span.count("step", number)
        token = _taken.set(span.of_board(board, agent))
        try:
            yield span
        finally:
            _taken.reset(token)


def call(kind: str, name: str) -> AbstractContextManager[OpenSpan | None]:
    """A block in which an agent makes a call: `kind` is "model" or "tool"."""
    return _NOTHING if _tracer is None else _call(kind, name)


@contextmanager
def _call(kind: str, name: str) -> Iterator[OpenSpan]:
    from opentelemetry.trace import SpanKind

    if kind == "model":
        prefix, _, rest = name.partition(":")
        model = rest if prefix in PROVIDERS and rest else name  # "llama3:8b" has no provider
        named = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDERS.get(prefix if model == rest else "", OTHER_PROVIDER),
            "gen_ai.request.model": model,
        }
        with _current(f"chat {model}", SpanKind.CLIENT, named) as span:
            yield span
    else:
        named = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
        }
        with _current(f"execute_tool {name}", SpanKind.INTERNAL, named) as span:
            yield span


def asks_model(
    provider: str, settings: Mapping[str, float | None], *, is_structured: bool = False
) -> None:
    """Name the provider of the model that the current span asks, as the library that asks it calls
    it ("" = not known), and the settings of the request: `temperature`, `seed`, `max_tokens`."""
    if _current_span is None:
        return
    span = _current_span()
    if provider:
        span.set_attribute("gen_ai.provider.name", PROVIDERS.get(provider, provider))
    for name, setting in settings.items():
        if setting is not None:
            span.set_attribute(f"gen_ai.request.{name}", setting)
    if is_structured:
        span.set_attribute("gen_ai.output.type", "json")


# --- contexts -------------------------------------------------------------------------------------


def traceparent() -> str:
    """The current span for another process, as W3C Trace Context has it; "" if there is none."""
    found = _current_context()
    if found is None:
        return ""
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"


def mark() -> str:
    """The current span as the note of a commit names it, from the cut to the trace; "" if there is
    none, or if it is not sampled."""
    return _marked(_current_context())


def _marked(found: "SpanContext | None") -> str:
    if found is None or not found.trace_flags.sampled:
        return ""
    return f"trace {found.trace_id:032x}-{found.span_id:016x}"


def links_to(note: str) -> "list[Link]":
    """A link to the span that made a commit with that note; empty if the note names none.

    With it a span of yours that handles a change names its cause. Errors: ImportError without
    OpenTelemetry, if the note names one.
    """
    found = _MARK.search(note)
    if found is None:
        return []
    from opentelemetry.trace import Link, SpanContext, TraceFlags

    trace, span = (int(each, 16) for each in found.groups())
    made = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return [Link(made)] if made.is_valid else []


def follow(note: str) -> None:
    """Give the current span a link to the span that made a commit with that note."""
    if _current_span is not None:
        for link in links_to(note):
            _current_span().add_link(link.context)


def reached(revision: int, epoch: str = "") -> None:
    """Name the revision that the current span led to, and its epoch."""
    if _current_span is not None:
        OpenSpan(_current_span()).at(revision, epoch)


def delivered(board: str, agent: str, at: tuple[int, str], note: str) -> None:
    """A watcher got the revision of a traced commit, `at` = its number and epoch: a span of no
    length, with a link to that commit's. Nothing if the note names no span."""
    links = links_to(note) if _tracer is not None and note else None
    if not links:
        return
    from opentelemetry.trace import SpanKind

    assert _tracer is not None
    # A link, not a parent: the writer's trace would stay open as long as anybody reacts to it.
    begun = _tracer.start_span("blackboard.deliver", kind=SpanKind.CONSUMER, links=links)
    OpenSpan(begun).of_board(board, agent).at(*at)
    begun.end()


def _current_context() -> "SpanContext | None":
    if _current_span is None:
        return None
    found = _current_span().get_span_context()
    return found if found.is_valid else None


def _context(text: str) -> "Context | None":
    """The context of a traceparent; None, the current one, if it is none."""
    # W3C Trace Context: ignored. A broken header of a proxy must not cost a commit.
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
def _current(
    name: str, kind: Any, named: Mapping[str, str] | None = None, links: "Sequence[Link]" = ()
) -> Iterator[OpenSpan]:
    """A block with a span that is the current one, and fails with the block."""
    assert _tracer is not None
    with _tracer.start_as_current_span(
        name,
        kind=kind,
        attributes=named,
        links=links,
        # `fail` does both without the message of the error, which may quote a value.
        record_exception=False,
        set_status_on_exception=False,
    ) as begun:
        span = OpenSpan(begun)
        try:
            yield span
        except BaseException as error:
            span.fail(error)
            raise


_NOTHING: Final[AbstractContextManager[None]] = nullcontext()
