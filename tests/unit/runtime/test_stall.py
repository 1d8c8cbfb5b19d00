"""A team with a dead member: the log says which agents wait for what, or the others are stopped."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

import blackboard
from blackboard import Board, InvalidRequest
from blackboard.client.views import RevisionEvent
from blackboard.runtime.approvals import answer, pending
from blackboard.runtime.context import Context
from blackboard.runtime.run import Rest
from blackboard.runtime.stall import STALLED, Lookout
from blackboard.runtime.supervisor import AgentExit, Supervisor
from blackboard.runtime.team import MakeSupervisor, run_team
from tests.unit.runtime.crew import Count, Counter, Hopeless
from tests.unit.runtime.test_supervisor import QUICK
from tests.waiting import wait_until

PATIENCE_S = 60.0


class Waiting(Counter):
    """Waits for what another one writes."""

    kind = "Waiting"
    timeout_ms: int | None = None

    async def step(self, ctx: Context[Count]) -> None:
        """Wait, then be done."""
        found = await ctx.wait("public/gdp", timeout_ms=self.timeout_ms)
        ctx.done("nothing came" if found is None else str(found.value))


class Hurried(Waiting):
    """Does not wait for ever."""

    kind = "Hurried"
    timeout_ms = 2_000


class Asking(Counter):
    """Asks a person."""

    kind = "Asking"

    async def step(self, ctx: Context[Count]) -> None:
        """Ask, then be done."""
        decision = await ctx.approve("go on?")
        ctx.done("yes" if decision else "no")


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board, as an operator has it."""
    async with blackboard.open(tmp_path, level="memory") as client:
        yield client.board("main")


def quick(board: Board) -> MakeSupervisor:
    """Lives with short pauses."""
    return lambda agent: Supervisor(agent, board, QUICK)


async def is_told(board: Board) -> bool:
    """Whether the team is reported as stuck."""
    return await board.get(STALLED) is not None


async def test_it_learns_who_left_and_what_others_wait_for(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    """The team waits on; when somebody goes on, that is taken back."""
    agents = [Hopeless("ada"), Waiting("bob")]
    running = asyncio.create_task(run_team(board, agents, make_supervisor=quick(board)))
    await wait_until(lambda: is_told(board))
    told = await board.get(STALLED)
    assert told == {
        "gone": {"ada": {"how": "crash_loop", "error": "RuntimeError: it is broken"}},
        "waits": {"bob": ["public/gdp"]},
    }
    assert caplog.text.count("the team cannot go on by itself") == 1
    await board.put("public/gdp", 1.1)
    ended = await running
    assert {name: life.how for name, life in ended.items()} == {"ada": "crash_loop", "bob": "done"}


async def test_what_was_announced_is_taken_back(board: Board) -> None:
    """As soon as one of them has something to do; also by the next run of the team."""
    await board.put(STALLED, {"gone": {}, "waits": {}})
    stop = asyncio.Event()
    agents = [Hopeless("ada"), Waiting("bob"), Waiting("eve")]
    running = asyncio.create_task(run_team(board, agents, make_supervisor=quick(board), stop=stop))
    await wait_until(lambda: _waits(board, "bob", "eve"))
    await board.put("public/repaired", True)
    await board.as_agent("ada").put("private/ada/~state", _state(1))
    await wait_until(lambda: _count_is(board, 6))
    await wait_until(lambda: _is_not_told(board))
    stop.set()
    await running


async def _waits(board: Board, *names: str) -> bool:
    return set((await board.get(STALLED) or {}).get("waits", ())) == set(names)


def _state(n: int) -> dict[str, Any]:
    return {"kind": "Hopeless", "version": 1, "step": n, "state": {"n": n, "goal": 5}}


async def _count_is(board: Board, count: int) -> bool:
    return bool(await board.get("public/counts/ada") == count)


async def _is_not_told(board: Board) -> bool:
    return not await is_told(board)


async def test_the_remaining_agents_are_stopped_on_request(board: Board) -> None:
    """And the board says why."""
    agents = [Hopeless("ada"), Waiting("bob"), Counter("eve")]
    with anyio.fail_after(PATIENCE_S):
        ended = await run_team(board, agents, make_supervisor=quick(board), on_dead="stop")
    assert {name: life.how for name, life in ended.items()} == {
        "ada": "crash_loop",
        "bob": "stopped",
        "eve": "done",
    }
    assert await is_told(board)


async def test_nobody_is_stopped_while_somebody_is_at_work_or_has_a_timer(board: Board) -> None:
    """Its time will be over by itself; then the one who has no timer is stopped, too."""
    with anyio.fail_after(PATIENCE_S):
        agents = [Hopeless("ada"), Hurried("bob"), Waiting("eve")]
        ended = await run_team(board, agents, make_supervisor=quick(board), on_dead="stop")
    assert (ended["bob"].how, ended["bob"].outcome) == ("done", "nothing came")
    assert ended["eve"].how == "stopped"


async def test_nobody_is_stopped_while_a_person_is_asked(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The team ends once that was answered, and not before."""
    looks: list[bool] = []
    looked = asyncio.Event()
    as_ever = Lookout.asks_somebody

    async def observed(self: Lookout, living: Mapping[str, Rest | None]) -> bool:
        looks.append(await as_ever(self, living))
        looked.set()
        return looks[-1]

    monkeypatch.setattr(Lookout, "asks_somebody", observed)
    agents = [Hopeless("ada"), Asking("bob"), Waiting("eve")]
    running = asyncio.create_task(
        run_team(board, agents, make_supervisor=quick(board), on_dead="stop")
    )
    with anyio.fail_after(PATIENCE_S):
        await looked.wait()
    assert (looks, await is_told(board)) == ([True], True)
    [asked] = await pending(board)
    await board.put("public/unrelated", 1)
    assert not running.done()
    await answer(board, asked, approved=True)
    with anyio.fail_after(PATIENCE_S):
        ended = await running
    assert {name: life.how for name, life in ended.items()} == {
        "ada": "crash_loop",
        "bob": "done",
        "eve": "stopped",
    }


async def test_a_team_without_dead_waits_in_silence(board: Board) -> None:
    """Nobody is gone: somebody else may write what it waits for."""
    stop = asyncio.Event()
    running = asyncio.create_task(
        run_team(board, [Waiting("bob")], make_supervisor=quick(board), stop=stop, on_dead="stop")
    )
    await wait_until(lambda: _rests(board, "bob"))
    assert not await is_told(board)
    await board.put("public/gdp", 1.1)
    assert (await running)["bob"].outcome == "1.1"


async def _rests(board: Board, agent: str) -> bool:
    return any(one.agent == agent and one.state == "waiting" for one in await board.agents())


async def test_another_way_to_end_is_refused(board: Board) -> None:
    """By name."""
    with pytest.raises(InvalidRequest, match="on_dead"):
        await run_team(board, [Counter("ada")], on_dead="explode")  # type: ignore[arg-type]


async def test_what_has_come_already_ends_a_rest(board: Board) -> None:
    """Its agent is on its way: the team is not stalled, nor told to be."""
    lookout = Lookout(board)
    ended = {"ada": AgentExit("ada", "crash_loop", error="it is broken")}
    rest = Rest("bob", ("public/gdp",), (await board.head()).revision)
    await board.put("public/unrelated", 1)
    assert await lookout.look(ended, {"bob": rest}) is not None
    await board.put("public/gdp", 1.1)
    assert await lookout.look(ended, {"bob": rest}) is None
    assert not await is_told(board)


class Busy(Board):
    """One that somebody commits to before each read of its log."""

    reads = 0

    async def log(  # type: ignore[override]
        self, *, after: int = 0
    ) -> tuple[RevisionEvent, ...]:
        """As of a board, with what came in between."""
        self.reads += 1
        assert self.reads < 9, "it goes on for ever"
        await self.increment("public/beats")
        return await super().log(after=after)


async def test_somebody_who_never_rests_holds_no_look_up(board: Board) -> None:
    """Who is not of the team, and does not end the wait."""
    busy = Busy(board._link, board.name)
    ended = {"ada": AgentExit("ada", "crash_loop", error="it is broken")}
    rest = Rest(board.agent, ("public/gdp",), (await board.head()).revision)
    await board.put("public/unrelated", 1)
    assert await Lookout(busy).look(ended, {board.agent: rest}) is not None
    assert busy.reads == 1
