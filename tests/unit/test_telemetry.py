"""Spans as the program's own OpenTelemetry gets them, and what bounds them."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

import blackboard
from blackboard import telemetry
from blackboard.errors import OutcomeUnknown
from blackboard.limits import (
    TELEMETRY_COMMITS_ONE_IN,
    TELEMETRY_QUEUE_MAX,
    TRACEPARENT_CHARACTERS_MAX,
)
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from blackboard.wire.session import RequestReceived, ServerSession
from tests.otlp import receiving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Telemetry, on a provider of the program's own."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.start("tests", provider)
    yield exporter
    telemetry.stop()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """The finished spans of that name."""
    return [span for span in spans.get_finished_spans() if span.name == name]


def ids(span: ReadableSpan) -> SpanContext:
    """Its ids."""
    found = span.get_span_context()
    assert found is not None
    return found


def about(span: ReadableSpan) -> dict[str, object]:
    """Its attributes."""
    return dict(span.attributes or {})


def test_it_is_off_unless_it_is_asked_for() -> None:
    """Then every call returns the same block, which does nothing."""
    telemetry.start_if_asked({}, "tests")
    telemetry.start_if_asked({telemetry.VARIABLE: "false"}, "tests")
    assert not telemetry.is_on()
    assert telemetry.asking("commit", "main", "ada") is telemetry.step("ada", "main", 1)
    assert telemetry.commit("main", "ada", 1) is None
    assert telemetry.traceparent() == telemetry.mark() == ""


async def test_an_embedded_board_is_traced_into_the_engine(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    async with blackboard.open(tmp_path) as client:
        receipt = await client.board("main").put("public/plan", 1)
    [served, asked] = named(spans, "blackboard.commit")
    [engine] = named(spans, "engine commit")
    assert engine.parent is not None
    assert served.parent is not None
    assert asked.parent is None
    assert engine.parent.span_id == ids(served).span_id
    assert served.parent.span_id == ids(asked).span_id
    for span in (served, asked):
        assert about(span)["blackboard.revision"] == receipt.revision
        assert about(span)["blackboard.epoch"]
    assert about(served)["blackboard.operations"] == 1


def test_an_unknown_outcome_is_called_unknown(spans: InMemorySpanExporter) -> None:
    """Neither a success nor a refusal; and the reason, which may quote something, is not told."""
    unknown = OutcomeUnknown("ada", 0, "a1", 1, "a reason")
    with pytest.raises(OutcomeUnknown), telemetry.asking("commit", "main", "ada"):
        raise unknown
    [span] = named(spans, "blackboard.commit")
    assert about(span)["blackboard.outcome"] == "unknown"
    assert about(span)["error.type"] == "outcome_unknown"
    assert not span.status.is_ok
    assert "a reason" not in str(span.to_json())
    assert span.events == ()


async def test_a_cancelled_request_is_called_cancelled(spans: InMemorySpanExporter) -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        with telemetry.asking("restore", "main", "ada"):
            begun.set()
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    [span] = named(spans, "blackboard.restore")
    assert about(span)["blackboard.outcome"] == "cancelled"


@pytest.mark.parametrize(
    ("traceparent", "continues"),
    [
        (PARENT, True),
        ("", False),
        ("garbage", False),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", False),
        (f"01-{TRACE}-00f067aa0ba902b7-01".ljust(TRACEPARENT_CHARACTERS_MAX + 1, "-"), False),
    ],
)
def test_a_traceparent_continues_its_trace(
    traceparent: str, continues: bool, spans: InMemorySpanExporter
) -> None:
    """One that is none begins another, as the standard has it."""
    span = telemetry.commit("main", "ada", 1, traceparent)
    assert span is not None
    span.end()
    [found] = named(spans, "blackboard.commit")
    assert (f"{ids(found).trace_id:032x}" == TRACE) is continues


@pytest.mark.parametrize("encoding", [JSON, MSGPACK], ids=["json", "msgpack"])
@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (PARENT, PARENT),
        ("x" * TRACEPARENT_CHARACTERS_MAX, "x" * TRACEPARENT_CHARACTERS_MAX),
        ("x" * (TRACEPARENT_CHARACTERS_MAX + 1), ""),
        (7, ""),
        (None, ""),
    ],
)
def test_a_request_is_served_whatever_its_traceparent_is(
    given: object, taken: str, encoding: Encoding
) -> None:
    """A commit, which is read in one step, and any other request."""
    commit = {
        "board": "main",
        "id": {"lane": 0, "incarnation": "a1", "step": 1},
        "epoch": "e",
        "ops": [{"kind": "delete", "key": "public/plan"}],
    }
    for method, params in (("head", {"board": "main"}), ("commit", commit)):
        session = ServerSession.greeted(encoding)
        message = {"id": 1, "method": method, "params": params, "traceparent": given}
        [event] = session.receive(encoding.join([encoding.pack(message)]))
        assert isinstance(event, RequestReceived), event
        assert event.traceparent == taken


SAMPLED = """
import asyncio, os, tempfile
import blackboard
from blackboard import telemetry
from opentelemetry import trace

async def main():
    async with blackboard.open(tempfile.mkdtemp(), level="memory") as client:
        board = client.board("main")
        with telemetry.step("ada", "main", 1):
            await board.put("public/plan", 1)
        for number in range(8000):
            await board.put("public/plan", number)
    trace.get_tracer_provider().force_flush()

asyncio.run(main())
"""


def test_few_commits_begin_a_trace_and_all_of_a_step_belong_to_it() -> None:
    """About one in TELEMETRY_COMMITS_ONE_IN of those that belong to none."""
    with receiving() as collector:
        environ = {telemetry.VARIABLE: "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        subprocess.run(
            [sys.executable, "-c", SAMPLED],
            env={**environ, "PATH": "/usr/bin:/bin"},
            check=True,
            timeout=120,
        )
        [step] = collector.named("invoke_agent ada")
        below = [s for s in collector.spans if s.trace_id == step.trace_id]
        assert len(below) == 4
        roots = [s for s in collector.named("blackboard.commit") if not s.parent_id]
        assert 0 < len(roots) < 10 * 8000 / TELEMETRY_COMMITS_ONE_IN


MAKES_SPANS = """
import os, sys
from blackboard import telemetry
telemetry.start_if_asked(os.environ, "tests")
for _ in range(int(sys.argv[1])):
    with telemetry.asking("commit", "main", "ada"):
        pass
print("made", flush=True)
sys.stdin.readline()
from opentelemetry import trace
trace.get_tracer_provider().force_flush()
"""
BATCH = 512
"""Spans that the exporter has taken out of the queue already (OTEL_BSP_MAX_EXPORT_BATCH_SIZE)."""


def test_the_queue_of_spans_is_bounded() -> None:
    """A collector that hangs gets TELEMETRY_QUEUE_MAX of them later, and no more."""
    hold = threading.Event()
    with receiving(hold=hold) as collector:
        environ = {
            telemetry.VARIABLE: "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_TRACES_SAMPLER": "always_on",
        }
        process = subprocess.Popen(
            [sys.executable, "-c", MAKES_SPANS, str(4 * TELEMETRY_QUEUE_MAX)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environ, "PATH": "/usr/bin:/bin"},
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "made\n"
            hold.set()
            process.communicate("go on\n", timeout=120)
        assert process.returncode == 0
        assert TELEMETRY_QUEUE_MAX <= len(collector.spans) <= TELEMETRY_QUEUE_MAX + BATCH


ENDS = """
import os, threading
from blackboard.telemetry.sending import flush_at_exit

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

flush_at_exit(lambda timeout_ms: print("sent", flush=True))
if os.fork() == 0:
    print("forked", flush=True)
else:
    os.wait()
threading.Thread.start = refuse
"""


def test_what_waits_is_sent_by_a_process_that_can_start_no_thread() -> None:
    """As Python 3.12 does in one that ends; also by one that was forked."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, check=True, timeout=120
    )
    # Python 3.12 warns of each fork of a process with threads.
    assert (ended.stdout.split(), "Error" in ended.stderr) == (["forked", "sent", "sent"], False)
