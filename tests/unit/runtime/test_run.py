"""The life of an agent in a process: when it stops, what wakes it, what it goes on from."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

import blackboard
from blackboard import Board
from blackboard.core.commit import Epoch
from blackboard.errors import LeaseHeld
from blackboard.limits import PATTERNS_MAX
from blackboard.runtime.context import Context
from blackboard.runtime.run import Rest, RunOptions, over, run_agent
from blackboard.runtime.runner import Stepped
from blackboard.runtime.state import Status, state_key
from tests.conformance.acting import Actor, Notes, notes_of

PATIENCE_S = 60.0


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board, as an operator has it."""
    async with blackboard.open(tmp_path, level="memory") as client:
        yield client.board("main")


async def count(ctx: Context[Notes]) -> None:
    """Three steps, then nothing to do."""
    if ctx.state.count < 3:
        ctx.state.count += 1


@pytest.mark.parametrize(("steps_max", "leaves", "expected"), [(2, False, 2), (None, True, 3)])
async def test_it_stays_as_it_was_set(
    board: Board, steps_max: int | None, expected: int, *, leaves: bool
) -> None:
    """For so many steps, or until there is nothing to do; then it is nobody any more."""
    with anyio.fail_after(PATIENCE_S):
        stay = RunOptions(leaves=leaves, steps_max=steps_max)
        stepped = await run_agent(Actor("ada", count), board, stay)
    assert (await notes_of(board.as_agent("ada"))).count == expected
    assert (stepped.agent, stepped.number, stepped.idle) == ("ada", expected, leaves)
    assert await board.agents() == ()


async def test_it_is_stopped_while_it_rests(board: Board) -> None:
    """At once, with all that it did on the board."""
    stop = asyncio.Event()
    with anyio.fail_after(PATIENCE_S):
        running = asyncio.create_task(run_agent(Actor("ada", count), board, RunOptions(stop=stop)))
        async with board.watch(state_key("ada"), after=0) as watch:
            while (await anext(watch)).changes[0].value["step"] < 3:
                pass
        stop.set()
        assert (await running).number == 3


async def test_an_identity_that_is_taken_is_refused_or_waited_for(board: Board) -> None:
    """As `if_taken` says."""
    attached, leave = asyncio.Event(), asyncio.Event()

    async def somebody() -> None:
        async with board.attach("ada"):
            attached.set()
            await leave.wait()

    with anyio.fail_after(PATIENCE_S):
        other = asyncio.create_task(somebody())
        await attached.wait()
        with pytest.raises(LeaseHeld):
            await run_agent(Actor("ada", count), board, RunOptions("refuse"))
        waiting = asyncio.create_task(
            run_agent(Actor("ada", count), board, RunOptions("wait", leaves=True))
        )
        assert await board.get(state_key("ada")) is None
        leave.set()
        assert (await waiting).idle
        await other


def of(stepped_at: int, *patterns: str, idle: bool = False) -> Stepped:
    """An agent that rests."""
    status = Status.RUNNING if idle else Status.WAITING
    return Stepped("ada", 1, status, idle=idle, patterns=patterns, since=stepped_at)


@pytest.mark.parametrize(
    ("idle", "key", "wakes"),
    [
        (False, "public/a", True),
        (False, "public/b", False),
        (False, "inbox/ada/messages/0000000000", False),
        (True, "inbox/ada/messages/0000000000", True),
        (True, "private/ada/notes", False),
    ],
)
async def test_it_is_woken_by_what_it_read_and_by_letters(
    board: Board, key: str, *, idle: bool, wakes: bool
) -> None:
    """Letters wake the idle only; `public/end` is what ends the wait of the others here."""
    resting = of(0, "public/a", "public/end", idle=idle)
    prefix, _, item = key.rpartition("/")
    with anyio.fail_after(PATIENCE_S):
        if item.isdigit():
            await board.append(prefix, 1)
        else:
            await board.put(key, 1)
        waiting = asyncio.create_task(over(Rest.after(resting), board))
        first = (await board.head()).revision
        if not wakes:
            await board.put("public/end", 1)
        await waiting
    assert (await board.head()).revision == first + (not wakes)


async def test_what_was_missed_wakes_at_once(board: Board) -> None:
    """A revision of a future that is gone, or more patterns than a watch has."""
    with anyio.fail_after(PATIENCE_S):
        await over(Rest.after(of(99, "public/a")), board)
        await board.put(f"public/many/{PATTERNS_MAX}", 1)
        many = [f"public/many/{number}" for number in range(PATTERNS_MAX + 1)]
        await over(Rest.after(of(0, *many)), board)


@pytest.mark.parametrize("key", ["public/last", "private/zoe/last", "inbox/zoe/last"])
async def test_what_is_in_the_last_of_many_namespaces_wakes(board: Board, key: str) -> None:
    """An agent may name more of them than a watch has patterns, and read few of them."""
    many = [f"{space}/a{n}/x" for space in ("private", "inbox") for n in range(PATTERNS_MAX)]
    await board.put(key, 1)
    with anyio.fail_after(PATIENCE_S):
        await over(Rest.after(of(0, *many, key)), board.as_agent("zoe"))


@pytest.mark.parametrize("pattern", ["**", "private/**", "*/zoe/*", "*"])
async def test_a_pattern_over_all_namespaces_can_be_one_of_many(board: Board, pattern: str) -> None:
    """Together they are still patterns."""
    many = [f"public/{n}" for n in range(PATTERNS_MAX)]
    await board.put("private/zoe/last", 1)
    with anyio.fail_after(PATIENCE_S):
        last = "private/zoe/last" if pattern == "*" else pattern
        await over(Rest.after(of(0, *many, pattern, last)), board.as_agent("zoe"))


async def test_a_restore_wakes_a_resting_agent(board: Board) -> None:
    """Whatever it waits for: it may have another state."""
    await board.put("public/a", 1)
    with anyio.fail_after(PATIENCE_S):
        resting = of((await board.head()).revision, "public/nothing")
        waiting = asyncio.create_task(over(Rest.after(resting), board))
        await board.restore(1)
        await waiting
    epoch: Epoch = (await board.head()).epoch
    assert epoch.number == 2


async def test_a_stop_begins_no_step(board: Board) -> None:
    """Of an agent at rest none is under way; what a step does may take long, or cost money."""
    stop, asked = asyncio.Event(), []

    async def waits(ctx: Context[Notes]) -> None:
        asked.append(ctx.run.number)
        await ctx.wait("public/never")

    def rests(rest: Rest | None) -> None:
        if rest is not None:
            stop.set()

    stay = RunOptions(stop=stop, on_rest=rests)
    stepped = await run_agent(Actor("ada", waits), board, stay)
    assert (stepped.status, asked) == (Status.WAITING, [1])
    assert await board.agents() == ()
