"""Trajectories from the log of a real board, and the same steps taken again."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

import blackboard
from blackboard import Board
from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.commit import Put
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.runtime.agent import Agent
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.calls import CallOptions
from blackboard.runtime.context import Context, Reference
from blackboard.runtime.models import Prices, Prompt, ScriptedModel
from blackboard.runtime.run import run_agent
from blackboard.runtime.runner import Runner
from blackboard.runtime.state import state_key
from blackboard.runtime.trajectories import Costs, Trajectory, replay, trajectories
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value

LARGE = 100_000


class Notes(BaseModel):
    """What a clerk knows."""

    heard: list[str] = []
    advice: str = ""


def price_of(name: str) -> int:
    """A tool."""
    return len(name)


def read_all(name: str) -> str:
    """A tool with a large result."""
    return name * LARGE


class Clerk(Agent[Notes]):
    """Reads letters and prices, asks a model, answers, and writes what it found."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.model = ScriptedModel(lambda _: "buy it now", prices=Prices(1, 1))

    async def step(self, ctx: Context[Notes]) -> None:
        """One letter a step; then advice; then done."""
        ctx.note("a letter")
        for letter in await ctx.inbox(limit=1):
            ctx.state.heard.append(letter.value)
            ctx.send(letter.sender, f"got {letter.value}")
            ctx.put("public/price", await ctx.tool(price_of, letter.value))
            return
        if not ctx.state.advice:
            factor = await ctx.get("public/factor")
            text = await ctx.tool(read_all, "x", terms=CallOptions(version="2"))
            reply = await ctx.model(self.model, Prompt.of(f"{factor} {len(text)}", seed=7))
            ctx.state.advice = reply.text
            ctx.delete("public/price")
            return
        ctx.done("bought")


class Hasty(Clerk):
    """Newer code of the same kind: does not read everything."""

    kind = "Clerk"

    async def step(self, ctx: Context[Notes]) -> None:
        """As before, but for the price."""
        for letter in await ctx.inbox(limit=1):
            ctx.state.heard.append(letter.value)
            ctx.send(letter.sender, f"got {letter.value}")
            ctx.put("public/price", 0)
            await ctx.tool(price_of, letter.value)
            return
        await super().step(ctx)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """An operator's client."""
    async with blackboard.open(tmp_path, level="memory") as client:
        yield client


@pytest.fixture
def board(client: Client) -> Board:
    """A board, as an operator has it."""
    return client.board("main")


@asynccontextmanager
async def serving(path: Path, *, archived: bool = True) -> AsyncIterator[Service]:
    """A service in this process, whose log we can cut."""
    archive = await archive_beside(path) if archived else None
    async with Service(await SqliteStore.at(path, "memory"), archive=archive) as service:
        yield service


def operated(service: Service) -> Board:
    """The board as its operator has it."""
    return Client(service.link(access.operator())).board("main")


async def history(board: Board) -> list[Trajectory]:
    """A clerk's work, and what there is of it, through JSON."""
    await board.put("public/factor", 3)
    for letter in ("tea", "coffee"):
        await board.as_agent("bob").append("inbox/clerk/messages", letter)
    await run_agent(Clerk("clerk"), board)
    lines = [found.model_dump_json() async for found in trajectories(board)]
    return [Trajectory.model_validate_json(line) for line in lines]


async def test_a_trajectory_has_all_that_a_step_was(board: Board) -> None:
    """Inputs, calls, what it wrote and sent, what it became, what it cost."""
    [found] = await history(board)
    assert (found.agent, found.kind, found.outcome, found.status) == (
        "clerk",
        "Clerk",
        "bought",
        "done",
    )
    first, _, third, last = found.steps
    assert [step.step for step in found.steps] == [1, 2, 3, 4]
    [letter] = first.inputs
    assert (letter.sender, letter.value) == ("bob", "tea")
    assert (first.written, first.sent) == ({"public/price": 3}, (("bob", "got tea"),))
    assert (first.before, first.after) == (None, {"heard": ["tea"], "advice": ""})
    assert [(call.name, call.arguments, call.result) for call in first.calls] == [
        ("price_of", ["tea"], 3)
    ]
    assert [entry.key for entry in third.inputs] == ["public/factor"]
    assert third.deleted == ("public/price",)
    assert third.calls[0].result == "x" * LARGE
    reply = third.calls[1].result
    assert (reply["seed"], reply["version"], reply["text"]) == (7, "scripted", "buy it now")
    assert last.unknown == ()
    assert found.costs == Costs(
        tool_calls=3, model_calls=1, prompt_tokens=2, completion_tokens=3, cost_microusd=5
    )


async def test_the_same_code_takes_the_same_steps(board: Board) -> None:
    """No tool is called: the record answers."""
    [found] = await history(board)
    clerk = Clerk("clerk")
    replayed = await replay(clerk, found)
    assert (replayed.steps, replayed.difference) == (4, None)
    assert clerk.model.prompts == []


async def test_the_first_difference_is_reported(board: Board) -> None:
    """In what is written, in a call, in the state; and what the code raises now."""
    [found] = await history(board)
    hasty = (await replay(Hasty("clerk"), found)).difference
    assert hasty is not None
    assert (hasty.step, hasty.what, hasty.recorded) == (1, "written", {"public/price": 3})
    other = Clerk("clerk")
    other.model.name = "another"
    asked = (await replay(other, found)).difference
    assert asked is not None
    assert (asked.step, asked.what) == (3, "call")
    assert "another" in str(asked.replayed)
    plain = json.loads(found.model_dump_json())
    plain["steps"][1]["after"]["heard"] = ["tea", "milk"]
    state = (await replay(Clerk("clerk"), Trajectory.model_validate(plain))).difference
    assert state is not None
    assert (state.step, state.what) == (2, "state")


async def test_steps_that_were_taken_back_are_counted(board: Board) -> None:
    """As by a restore: the state is that of an earlier step, and the agent goes on from there."""
    [found] = await history(board)
    key = state_key("clerk")
    earlier: dict[str, Any] = {
        "kind": "Clerk",
        "version": 1,
        "step": 2,
        "state": found.steps[1].after,
    }
    await board.commit([Put(key, encode_value(earlier))])
    await run_agent(Clerk("clerk"), board)
    [again] = [one async for one in trajectories(board, agent="clerk")]
    assert again.abandoned == 2
    assert [step.step for step in again.steps] == [1, 2, 3, 4]
    assert (await replay(Clerk("clerk"), again)).difference is None


async def test_a_record_that_was_redacted_is_left_out(client: Client, board: Board) -> None:
    """And its key is named; the rest of the trajectory is there, and so are those of others."""
    await run_agent(Counter("ada"), board)
    [found] = [one for one in await history(board) if one.agent == "clerk"]
    log = await board.log(pattern="private/clerk/~journal/*")
    record = next(one.changes[0].key for one in log)
    await client.redact(record, board=board.name)
    ada, clerk = [one async for one in trajectories(board)]
    assert (ada.agent, clerk.outcome) == ("ada", "bought")
    first, *others = clerk.steps
    assert (first.calls, first.unknown) == ((), (record,))
    assert others == list(found.steps[1:])


async def test_a_state_that_cannot_be_read_is_no_step(board: Board) -> None:
    """Those after it are; the next one says that the state before it is not known."""
    key = state_key("ada")
    ada = board.as_agent("ada")
    for number, step in enumerate((1, "two", 3, 4)):
        state = Exact(pair=(number, b"")).model_dump(mode="json")
        value = {"kind": "Counter", "version": 1, "step": step, "state": state}
        await ada.commit([Put(key, encode_value(value))], note=f"step {step}")
    [found] = [one async for one in trajectories(board)]
    assert [(one.step, one.before is None, one.unknown) for one in found.steps] == [
        (1, True, ()),
        (3, True, (key,)),
        (4, False, ()),
    ]


class Cautious(Agent[Notes]):
    """Looks which calls a restore kept, and cannot do without `public/need`."""

    async def step(self, ctx: Context[Notes]) -> None:
        """One step."""
        ctx.state.heard.append(str(await ctx.get("system/kept_calls")))
        ctx.state.advice = {"public/need": "tea"}[self.need]
        ctx.done()

    def __init__(self, name: str, need: str = "public/need") -> None:
        super().__init__(name)
        self.need = need


async def test_a_record_of_the_service_is_an_input(board: Board) -> None:
    """Such as which calls a restore kept."""
    await board.checkpoint("one")
    await board.put("public/factor", 3)
    await board.restore("one", keep_calls=True)
    await board.refresh()
    await run_agent(Cautious("ada"), board)
    [found] = [one async for one in trajectories(board)]
    [read] = found.steps[0].inputs
    assert read.key == "system/kept_calls"
    assert (await replay(Cautious("ada"), found)).difference is None


async def test_what_the_code_raises_now_is_a_difference(board: Board) -> None:
    """Whatever it is."""
    await run_agent(Cautious("ada"), board)
    [found] = [one async for one in trajectories(board)]
    difference = (await replay(Cautious("ada", "public/other"), found)).difference
    assert difference is not None
    assert (difference.what, difference.replayed) == ("error", "KeyError: 'public/other'")


async def test_others_see_what_they_may_read(board: Board) -> None:
    """An agent sees its own trajectory only."""
    await history(board)
    assert [one async for one in trajectories(board.as_agent("bob"))] == []
    own = [one.agent async for one in trajectories(board.as_agent("clerk"))]
    assert own == ["clerk"]


async def test_what_the_log_no_longer_has_comes_from_the_archive(tmp_path: Path) -> None:
    """Trajectories are as long, and can be replayed."""
    async with serving(tmp_path) as service:
        board = operated(service)
        whole = await history(board)
        await board.history("public/factor")  # the archive has it all now
        await service.host.store.compact("main", (await board.head()).revision)
        assert [one async for one in trajectories(board)] == whole
        assert (await replay(Clerk("clerk"), whole[0])).difference is None


async def test_without_an_archive_they_begin_where_the_log_does(tmp_path: Path) -> None:
    """And say of nothing that they know it."""
    async with serving(tmp_path, archived=False) as service:
        board = operated(service)
        [whole] = await history(board)
        third = whole.steps[2]
        await service.host.store.compact("main", third.revision)
        [short] = [one async for one in trajectories(board)]
        assert [step.step for step in short.steps] == [3, 4]
        assert short.steps[0].before is None
        assert "public/factor" in short.steps[0].unknown


class Patient(Agent[Notes]):
    """Waits after its first step."""

    async def step(self, ctx: Context[Notes]) -> None:
        """Two steps, with a pause between them."""
        if ctx.state.heard:
            await ctx.wait("public/go")
            ctx.done("gone")
        ctx.state.heard.append("hello")


async def test_a_wait_is_no_step(tmp_path: Path) -> None:
    """Also if it is the first that the log has of its agent."""
    async with serving(tmp_path, archived=False) as service:
        board = operated(service)
        runner = Runner(Patient("pat"), LiveBoardPort(board.as_agent("pat")))
        await runner.step()
        waits = await runner.step()
        assert waits.receipt is not None
        await service.host.store.compact("main", waits.receipt.revision)
        [found] = [one async for one in trajectories(board)]
        assert (found.steps, found.status) == ((), "waiting")
        await board.put("public/go", 1)
        await runner.step()
        [found] = [one async for one in trajectories(board)]
        assert [(step.step, step.before) for step in found.steps] == [
            (2, Notes(heard=["hello"]).model_dump())
        ]
        assert found.abandoned == 0


class Exact(BaseModel):
    """A state that is read from JSON in another way than from Python's types."""

    model_config = ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")

    pair: tuple[int, bytes] = (0, b"\xff")


class Counter(Agent[Exact]):
    """Counts to two."""

    async def step(self, ctx: Context[Exact]) -> None:
        """One more."""
        number, seen = ctx.state.pair
        ctx.state.pair = (number + 1, seen + b"\xfe")
        if number:
            ctx.done()


async def test_a_state_is_replayed_as_it_is_read(board: Board) -> None:
    """By a runner: strictly, and with bytes in base 64."""
    await run_agent(Counter("ada"), board)
    [found] = [one async for one in trajectories(board)]
    assert (await replay(Counter("ada"), found)).difference is None


class Reader(Agent[Notes]):
    """Reads a book, keeps it, and looks something up in it later."""

    async def step(self, ctx: Context[Notes]) -> None:
        """Three steps."""
        if not ctx.state.heard:
            book = await ctx.tool(read_all, "xyz" * 10)
            ctx.state.heard = [ctx.keep(book, "a book").model_dump_json()]
            return
        reference = Reference.model_validate_json(ctx.state.heard[0])
        if not ctx.state.advice:
            ctx.state.advice = str(len(await ctx.load(reference)))
            return
        ctx.drop(reference)
        ctx.done("read")


async def test_large_results_and_what_is_kept_of_them_are_replayed(board: Board) -> None:
    """Three megabytes, in parts; the trajectory has the result, and the state the digest."""
    await run_agent(Reader("reader"), board)
    lines = [found.model_dump_json() async for found in trajectories(board)]
    [found] = [Trajectory.model_validate_json(line) for line in lines]
    assert [call.result_bytes for call in found.steps[0].calls] == [30 * LARGE + 5]
    assert all(not step.written and not step.deleted for step in found.steps)
    assert (found.steps[1].after["advice"], found.outcome) == (str(30 * LARGE), "read")
    assert not [entry async for entry in board.scan("private/reader/~kept/**")]
    replayed = await replay(Reader("reader"), found)
    assert (replayed.steps, replayed.difference) == (3, None)


class Scanner(Agent[Notes]):
    """Works with bytes."""

    async def step(self, ctx: Context[Notes]) -> None:
        """Reads some, writes some, sends some."""
        page = await ctx.get("public/page")
        ctx.put("public/found", [await ctx.tool(reverse, page)])
        ctx.send("bob", {"page": page})
        ctx.done()


def reverse(page: bytes) -> bytes:
    """A tool."""
    return page[::-1]


async def test_bytes_go_through_json_and_back(board: Board) -> None:
    """As they do on the wire."""
    await board.put("public/page", b"\xff\x00")
    await run_agent(Scanner("scanner"), board)
    [found] = [one async for one in trajectories(board)]
    text = found.model_dump_json()
    assert '{"$bytes":"/wA="}' in text
    again = Trajectory.model_validate_json(text)
    assert again == found
    assert again.steps[0].written == {"public/found": [b"\x00\xff"]}
    assert (await replay(Scanner("scanner"), again)).difference is None
