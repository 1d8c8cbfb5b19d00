"""From a trace to the cut and back: revisions on spans, spans in notes, links to the cause."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from pydantic import BaseModel

import blackboard
from blackboard import Agent, Board, Context, run_agent, telemetry
from blackboard.archive.sql import archive_beside
from blackboard.core import access
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.service import Service
from tests.serving import serving
from tests.waiting import TIMEOUT_S, wait_until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Telemetry, on a provider of the program's own."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.start("tests", provider)
    yield exporter
    telemetry.stop()


@pytest.fixture(params=["embedded", "websocket"])
async def board(
    request: pytest.FixtureRequest, spans: InMemorySpanExporter, tmp_path: Path
) -> AsyncIterator[Board]:
    """A board in this process, or of a service."""
    if request.param == "embedded":
        async with blackboard.open(tmp_path) as client:
            yield client.board("main")
        return
    store, archive = await SqliteStore.at(tmp_path, "memory"), await archive_beside(tmp_path)
    async with (
        Service(store, archive=archive) as service,
        serving(service) as served,
        blackboard.connect(served.url, token=served.token(access.operator())) as client,
    ):
        yield client.board("main")


def made(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """The finished spans of a name."""
    return [span for span in spans.get_finished_spans() if span.name == name]


def about(span: ReadableSpan) -> dict[str, object]:
    """Its attributes."""
    return dict(span.attributes or {})


def mark_of(span: ReadableSpan) -> str:
    """How a note names it."""
    ids = span.get_span_context()
    assert ids is not None
    return f"trace {ids.trace_id:032x}-{ids.span_id:016x}"


def causes(span: ReadableSpan) -> list[str]:
    """What it has links to, as notes name it."""
    return [f"trace {c.context.trace_id:032x}-{c.context.span_id:016x}" for c in span.links]


def of_revision(spans: InMemorySpanExporter, revision: int) -> ReadableSpan:
    """The span by which a client made the commit of a revision."""
    found = [s for s in made(spans, "blackboard.commit") if s.kind.name == "CLIENT"]
    [span] = [s for s in found if about(s)["blackboard.revision"] == revision]
    return span


async def test_a_delivery_leads_to_the_commit(board: Board, spans: InMemorySpanExporter) -> None:
    async with board.watch("public/**") as watch:
        receipt = await board.put("public/plan", 1)
        revised = await asyncio.wait_for(anext(watch), TIMEOUT_S)
    commit = of_revision(spans, receipt.revision)
    [delivery] = made(spans, "blackboard.deliver")
    assert causes(delivery) == [mark_of(commit)] == [revised.note]
    for name in ("blackboard.board", "blackboard.revision", "blackboard.epoch"):
        assert about(delivery)[name] == about(commit)[name]
    [link] = telemetry.links_to(revised.note)
    assert link.context.trace_id == commit.context.trace_id


class Nothing(BaseModel):
    """No state."""


class Reader(Agent[Nothing]):
    """Waits until there is a plan."""

    async def step(self, ctx: Context[Nothing]) -> None:
        """Read it, and end."""
        if await ctx.get("public/plan"):
            ctx.put("public/read", 1)
            ctx.done()


async def test_a_step_leads_to_the_commit_that_woke_its_agent(
    board: Board, spans: InMemorySpanExporter
) -> None:
    """Steps before it had no cause; the note of its commit leads to its span."""

    async def rests() -> bool:
        return len(made(spans, "invoke_agent reader")) == 2

    running = asyncio.create_task(run_agent(Reader("reader"), board))
    await wait_until(rests)
    woke = await board.put("public/plan", 1)
    stepped = await asyncio.wait_for(running, TIMEOUT_S)
    *before, last = made(spans, "invoke_agent reader")
    assert [causes(step) for step in before] == [[], []]
    assert causes(last) == [mark_of(of_revision(spans, woke.revision))]
    assert stepped.receipt is not None
    assert about(last)["blackboard.revision"] == stepped.receipt.revision
    assert about(last)["blackboard.board"] == "main"
    assert about(last)["blackboard.epoch"] == (await board.head()).epoch.id
    [entry] = await board.log(after=stepped.receipt.revision - 1, limit=1)
    assert entry.note == f"step 2, {mark_of(last)}"


async def test_a_restore_leads_to_the_commit_that_came_back(
    board: Board, spans: InMemorySpanExporter
) -> None:
    """And its own log entry, which begins an epoch, leads to it. So does that of a checkpoint."""
    then = await board.put("public/plan", 1)
    await board.checkpoint("good")
    await board.put("public/plan", 2)
    restored = await board.restore(then.revision)
    served = [s for s in made(spans, "blackboard.restore") if s.kind.name == "SERVER"]
    [span] = served
    assert causes(span) == [mark_of(of_revision(spans, then.revision))]
    for each in made(spans, "blackboard.restore"):
        assert about(each)["blackboard.revision"] == restored.revision
        assert about(each)["blackboard.epoch"] == restored.epoch.id
    [entry] = await board.log(after=restored.revision - 1, limit=1)
    assert entry.note == mark_of(span)
    [checkpoint] = [c for c in await board.checkpoints() if c.name == "good"]
    [taken] = [s for s in made(spans, "blackboard.checkpoint") if s.kind.name == "SERVER"]
    assert checkpoint.note == mark_of(taken)
    assert about(taken)["blackboard.revision"] == checkpoint.revision


async def test_a_note_that_the_program_gave_stays(
    board: Board, spans: InMemorySpanExporter
) -> None:
    await board.put("public/plan", 1, note="mine")
    await board.put("public/plan", 2)
    async with board.lock("public/plan"):
        pass
    notes = [entry.note for entry in await board.log() if not entry.note.startswith("trace ")]
    assert notes[0] == "mine"
    assert set(notes[1:]) <= {""}


async def test_what_is_not_sampled_leaves_no_mark(tmp_path: Path) -> None:
    """The collector does not know that trace."""
    telemetry.start("tests", TracerProvider(sampler=ALWAYS_OFF))
    try:
        async with blackboard.open(tmp_path) as client:
            board = client.board("main")
            await board.put("public/plan", 1)
            assert [entry.note for entry in await board.log()] == [""]
    finally:
        telemetry.stop()


@pytest.mark.parametrize(
    "note",
    [
        "",
        "a trace of gold",
        f"trace {TRACE}",
        f"trace {TRACE}-{SPAN}, and more",
        f"retrace {TRACE}-{SPAN}",
        f"trace {'0' * 32}-{SPAN}",
        f"trace {TRACE}-{'0' * 16}",
        f"trace {TRACE.upper()}-{SPAN}",
        "trace " + "4" * 1_000,
    ],
)
def test_a_note_that_names_no_span_has_no_link(note: str) -> None:
    assert telemetry.links_to(note) == []
    assert telemetry.links_to(f"step 3, trace {TRACE}-{SPAN}")
