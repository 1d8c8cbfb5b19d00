"""The text of a document that grows while a model talks, and what a crash leaves of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import blackboard
from blackboard import Agent, Board, Context, Model, Prompt, Reply, ScriptedModel
from blackboard.errors import AccessDenied
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.calls import CallOptions
from blackboard.runtime.journal import Observer, StepPoint, unobserved
from blackboard.runtime.models import TextSink
from blackboard.runtime.runner import Runner
from blackboard.runtime.trial import MemoryBoardPort
from tests.conformance.acting import Notes, runner
from tests.waiting import wait_until

MEMO = "public/memo"
PROMPT = Prompt.of("How much?")


class Nothing(BaseModel):
    """No state."""


class Writer(Agent[Nothing]):
    """An agent whose step asks for a memo."""

    def __init__(self, model: Model, then: Callable[[Context[Nothing]], Awaitable[None]]) -> None:
        super().__init__("ada")
        self.model = model
        self.then = then

    async def step(self, ctx: Context[Nothing]) -> None:
        """One memo."""
        reply = await ctx.model(self.model, PROMPT, into=MEMO)
        ctx.put("public/reply", reply.text)
        await self.then(ctx)


async def nothing(_: Context[Nothing]) -> None:
    """The step ends."""


async def interrupted(_: Context[Nothing]) -> None:
    """The process ends: the reply is recorded, and the step is not committed."""
    raise asyncio.CancelledError


@dataclass
class Slow:
    """A model that waits after each piece until the test has seen it."""

    pieces: tuple[str, ...]
    name: str = "slow"
    asked: int = 0
    go_on: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def complete(self, prompt: Prompt) -> Reply:
        """Is not what is asked for here."""
        raise AssertionError(prompt)

    async def stream(self, _: Prompt, into: TextSink) -> Reply:
        """Piece by piece."""
        self.asked += 1
        into.restart()
        for piece in self.pieces:
            into.append(piece)
            await self.go_on.acquire()
        return Reply(text="".join(self.pieces), model=self.name, version="1")


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board of the embedded engine."""
    async with blackboard.open(tmp_path) as client:
        yield client.board("main")


async def run(board: Board, agent: Writer, observe: Observer = unobserved) -> None:
    """One step of a process of its own."""
    await Runner(agent, LiveBoardPort(board.as_agent("ada")), observe=observe).step()


async def text(board: Board) -> str:
    """What a reader of the memo sees now."""
    entry = await board.document_entry(MEMO)
    return "" if entry is None else str(entry.value.get("text", ""))


async def seen(board: Board, wanted: str) -> None:
    """Wait until a reader sees `wanted`."""

    async def is_seen() -> bool:
        return await text(board) == wanted

    await wait_until(is_seen)


async def test_the_memo_grows_while_the_model_talks(board: Board) -> None:
    """Readers see each piece before the next one is asked for."""
    model = Slow(("A hundredth", " of its", " value."))
    running = asyncio.create_task(run(board, Writer(model, nothing)))
    for pieces in (1, 2, 3):
        await seen(board, "".join(model.pieces[:pieces]))
        assert await board.get("public/reply") is None
        model.go_on.release()
    await running
    assert await board.get("public/reply") == await text(board) == "A hundredth of its value."


async def test_a_process_that_dies_in_the_middle_leaves_half_a_text(board: Board) -> None:
    """And the next one begins it again: the memo is written once."""
    first = Slow(("A hundredth", " of"))
    running = asyncio.create_task(run(board, Writer(first, nothing)))
    await seen(board, "A hundredth")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    again = ScriptedModel(lambda _: "Two hundredths.", name="slow")
    await run(board, Writer(again, nothing))
    assert await text(board) == "Two hundredths."


async def test_a_recorded_answer_is_not_asked_for_again(board: Board) -> None:
    """What people have made of the text meanwhile stays."""
    model = ScriptedModel(lambda _: "A hundredth.")
    with pytest.raises(asyncio.CancelledError):
        await run(board, Writer(model, interrupted))
    async with board.document(MEMO) as document:
        document.text().append(" Agreed.")
    await run(board, Writer(model, nothing))
    assert len(model.prompts) == 1
    assert await text(board) == "A hundredth. Agreed."
    assert await board.get("public/reply") == "A hundredth."


async def test_a_recorded_answer_completes_a_text_that_was_taken_back(board: Board) -> None:
    """The process died when the answer was recorded, and its text had not been sent."""
    model = ScriptedModel(lambda _: "A hundredth of its value.")

    def dying(point: StepPoint, _: str) -> None:
        if point is StepPoint.RECORDED:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run(board, Writer(model, nothing), dying)
    async with board.document(MEMO) as document:
        memo = document.text()
        memo.delete(0, len(memo))
        memo.append("A hundredth")
    await run(board, Writer(model, nothing))
    assert len(model.prompts) == 1
    assert await text(board) == "A hundredth of its value."


async def test_a_reply_that_the_team_shares_replaces_an_older_text(board: Board) -> None:
    """Nobody is asked, and what stood there was of another call."""
    model = ScriptedModel(lambda _: "A hundredth.")
    shared = CallOptions(shared_ms=60_000)

    async def ask(ctx: Context[Notes]) -> None:
        await ctx.model(model, PROMPT, terms=shared)

    async def ask_for_the_memo(ctx: Context[Notes]) -> None:
        await ctx.model(model, PROMPT, into=MEMO, terms=shared)

    async with board.document(MEMO) as document:
        document.text().append("An older memo.")
    for call in (ask, ask_for_the_memo):
        await runner(board.as_agent("ada"), call).step()
    assert len(model.prompts) == 1
    assert await text(board) == "A hundredth."


async def test_a_reply_that_a_restore_kept_replaces_an_older_text(board: Board) -> None:
    """The restore brought the older one back."""
    model = ScriptedModel(lambda _: "A hundredth.")
    async with board.document(MEMO) as document:
        document.text().append("An older memo.")
    await board.checkpoint("before")
    await run(board, Writer(model, nothing))
    assert await text(board) == "A hundredth."
    await board.restore("before", keep_calls=True)
    await board.refresh()
    assert await text(board) == "An older memo."
    await run(board, Writer(model, nothing))
    assert len(model.prompts) == 1
    assert await text(board) == "A hundredth."


async def test_a_model_that_cannot_stream_writes_at_its_end(board: Board) -> None:
    """Any object with `complete` will do."""

    class Plain:
        name = "plain"

        async def complete(self, _: Prompt) -> Reply:
            return Reply(text="A hundredth.", model=self.name, version="1")

    await run(board, Writer(Plain(), nothing))
    assert await text(board) == "A hundredth."


async def test_the_model_is_not_asked_for_a_memo_that_may_not_be_written(board: Board) -> None:
    """The document is opened first, so that nothing is paid for in vain."""
    model = ScriptedModel(lambda _: "A hundredth.")

    class Trespasser(Writer):
        async def step(self, ctx: Context[Nothing]) -> None:
            await ctx.model(self.model, PROMPT, into="private/bob/memo")

    with pytest.raises(AccessDenied):
        await run(board, Trespasser(model, nothing))
    assert model.prompts == []


async def test_a_trial_needs_no_document() -> None:
    """A step is tried on a board in memory as before."""
    agent: Any = Writer(ScriptedModel(lambda _: "A hundredth."), nothing)
    port = MemoryBoardPort("ada")
    await Runner(agent, port).step()
    entry = await port.entry("public/reply")
    assert entry is not None
    assert entry.value == "A hundredth."
