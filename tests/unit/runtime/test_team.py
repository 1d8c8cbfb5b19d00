"""Teams: everybody ends, children are born and taken back, a roster decides."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import blackboard
from blackboard import Board, InvalidRequest
from blackboard.errors import BoardFrozen, LimitExceeded, Unavailable
from blackboard.limits import VALUE_BYTES_MAX, Limits
from blackboard.runtime import team as module
from blackboard.runtime.agent import Agent
from blackboard.runtime.context import Context
from blackboard.runtime.state import state_key
from blackboard.runtime.supervisor import AgentExit, RestartPolicy, Supervisor
from blackboard.runtime.team import MakeSupervisor, TeamMember, roster_key, run_team, spawn
from tests.unit.runtime.crew import Count, Counter, Hopeless, Parent, Patient, Prolific, Slow
from tests.unit.runtime.test_supervisor import QUICK
from tests.waiting import TIMEOUT_S, wait_until


@pytest.fixture
async def board(tmp_path: Path, limits: Limits) -> AsyncIterator[Board]:
    """A board, as an operator has it."""
    async with blackboard.open(tmp_path, level="memory", limits=limits) as client:
        yield client.board("main")


def quick(board: Board) -> MakeSupervisor:
    """Lives with short pauses."""
    return lambda agent: Supervisor(agent, board, QUICK)


async def test_a_team_ends_when_all_have(board: Board) -> None:
    """And tells how each ended; the roster does, too."""
    agents = [Counter("ada"), Counter("bob"), Hopeless("eve")]
    ended = await run_team(board, agents, make_supervisor=quick(board))
    assert {name: life.how for name, life in ended.items()} == {
        "ada": "done",
        "bob": "done",
        "eve": "crash_loop",
    }
    assert ended["ada"] == AgentExit("ada", "done", "counted to 5")
    told = await board.get(roster_key("ada"))
    assert (told["kind"], told["parent"], told["outcome"]) == ("Counter", None, "counted to 5")
    assert (await board.get(roster_key("eve")))["how"] == "crash_loop"


async def test_children_live_with_the_state_they_were_given(board: Board) -> None:
    """They know their place: the parent stands in the roster."""
    ended = await run_team(board, [Parent("ada")], kinds=[Counter], make_supervisor=quick(board))
    assert {name: life.outcome for name, life in ended.items()} == {
        "ada": "all are grown up",
        "ada.1": "counted to 2",
        "ada.2": "counted to 3",
    }
    assert (await board.get(roster_key("ada.1")))["parent"] == "ada"


async def test_a_kind_that_nobody_knows_is_left_alone(board: Board) -> None:
    """Nothing is imported by a name from the board."""
    await board.put(roster_key("mallory"), {"kind": "os.system"})
    await board.put(roster_key("nobody"), "no line of a roster")
    ended = await run_team(board, [Counter("ada")], make_supervisor=quick(board))
    assert ended.keys() == {"ada"}


async def test_a_second_run_goes_on_where_the_first_stopped(board: Board) -> None:
    """Children included, although the parent does not spawn them again."""
    stop = asyncio.Event()
    running = asyncio.create_task(_run(board, stop))
    await wait_until(lambda: _is_at_rest(board, "ada"))
    stop.set()
    assert (await running)["ada"].how == "stopped"
    assert await board.agents() == ()
    for _ in range(5):
        await board.append("inbox/ada/messages", "go on")
    assert (await _run(board, asyncio.Event()))["ada"].how == "done"


async def _run(board: Board, stop: asyncio.Event) -> Any:
    return await run_team(board, [Patient("ada")], make_supervisor=quick(board), stop=stop)


async def _is_at_rest(board: Board, agent: str) -> bool:
    return any(one.agent == agent and one.state == "idle" for one in await board.agents())


async def with_bob(board: Board, stop: asyncio.Event) -> asyncio.Task[Mapping[str, AgentExit]]:
    """A team of ada and her sub-agent bob, who lives."""
    await board.put(roster_key("bob"), {"kind": "Slow", "parent": "ada"})
    team = run_team(board, [Patient("ada")], kinds=[Slow], make_supervisor=quick(board), stop=stop)
    running = asyncio.create_task(team)
    await wait_until(lambda: _lives(board, "bob"))
    return running


async def test_who_is_taken_out_of_the_roster_stops_at_once(board: Board) -> None:
    """As a restore does with those that were born after the cut."""
    stop = asyncio.Event()
    running = await with_bob(board, stop)
    await board.delete(roster_key("bob"))
    await wait_until(lambda: _lives(board, "bob", wanted=False))
    stop.set()
    assert (await running).keys() == {"ada"}
    assert await board.get("public/counts/bob") is None


async def test_a_lease_at_a_line_of_the_roster_stops_nobody(board: Board) -> None:
    """Neither when it is taken nor when it is given back: the line is still there."""
    stop = asyncio.Event()
    running = await with_bob(board, stop)
    async with board.lock(roster_key("bob")):
        pass
    # What the team hears next, so that it has heard of the lease by then.
    await board.put(roster_key("eve"), {"kind": "Slow", "parent": "ada"})
    await wait_until(lambda: _lives(board, "eve"))
    assert await _lives(board, "bob")
    stop.set()
    assert (await running).keys() == {"ada", "bob", "eve"}


async def _lives(board: Board, agent: str, *, wanted: bool = True) -> bool:
    return any(one.agent == agent for one in await board.agents()) is wanted


async def test_who_has_ended_goes_on_from_another_state(board: Board) -> None:
    """As a restore does with those that ended after the cut."""
    stop = asyncio.Event()
    agents = [Counter("ada"), Patient("bob")]
    running = asyncio.create_task(run_team(board, agents, make_supervisor=quick(board), stop=stop))
    await wait_until(lambda: _has_ended(board, "ada"))
    key = state_key("ada")
    earlier = {"kind": "Counter", "version": 1, "step": 1, "state": {"n": 1, "goal": 3}}
    await board.put(key, earlier)
    await wait_until(lambda: _has_said(board, "ada", "counted to 3"))
    stop.set()
    await running
    assert await board.get("public/counts/ada") == 7


async def _has_ended(board: Board, agent: str) -> bool:
    return (await board.get(roster_key(agent)) or {}).get("how") is not None


async def _has_said(board: Board, agent: str, outcome: str) -> bool:
    return bool((await board.get(roster_key(agent)))["outcome"] == outcome)


async def test_two_agents_have_two_names(board: Board) -> None:
    """Else each would wait for the other one."""
    with pytest.raises(InvalidRequest, match="same name"):
        await run_team(board, [Counter("ada"), Counter("ada")])


async def test_a_cancelled_team_leaves_nothing_behind(board: Board) -> None:
    """No identity is held."""
    agent = Slow("ada")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await run_team(board, [agent], make_supervisor=quick(board))

            tasks.start_soon(run)
            await agent.begun.wait()
            scope.cancel()
    assert await board.leases("private/ada/*") == ()


# --- restores -------------------------------------------------------------------------------------


async def test_a_restore_takes_births_and_deaths_back(board: Board) -> None:
    """In place: nobody is started by hand. The board is what it was, and everybody goes on."""
    stop = asyncio.Event()
    agents = [Patient("ada"), Counter("bob")]
    team = run_team(board, agents, kinds=[Slow], make_supervisor=quick(board), stop=stop)
    running = asyncio.create_task(team)
    await wait_until(lambda: _is_at_rest(board, "ada"))
    cut = await _revision_of_step(board, "bob", 2)
    await wait_until(lambda: _has_ended(board, "bob"))
    await board.put(roster_key("eve"), {"kind": "Slow", "parent": "ada"})
    await wait_until(lambda: _lives(board, "eve"))
    await board.append("inbox/ada/messages", "taken back")
    await wait_until(lambda: _has_counted(board, "ada", 1))
    await board.restore(cut)
    await board.refresh()
    await wait_until(lambda: _lives(board, "eve", wanted=False))
    await wait_until(lambda: _has_counted(board, "bob", 5))
    assert await board.get(roster_key("eve")) is None
    assert await board.get("public/counts/ada") is None
    for _ in range(5):
        await board.append("inbox/ada/messages", "go on")
    await wait_until(lambda: _has_ended(board, "ada"))
    await wait_until(lambda: _has_ended(board, "bob"))
    stop.set()
    assert {name: life.how for name, life in (await running).items()} == {
        "ada": "done",
        "bob": "done",
    }
    assert await board.get("public/counts/ada") == 5


async def _revision_of_step(board: Board, agent: str, step: int) -> int:
    """Wait for that step, and return its revision."""
    async with board.watch(state_key(agent), after=0) as watch:
        async for revised in watch:
            if revised.changes[0].value["step"] == step:
                return revised.revision
    raise AssertionError("a watch has no end")


async def _has_counted(board: Board, agent: str, wanted: int) -> bool:
    return bool(await board.get(f"public/counts/{agent}") == wanted)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.limits(team_agents_max=2)
async def test_a_team_has_room_for_so_many(board: Board, more: int) -> None:
    """TEAM_AGENTS_MAX; one more is refused."""
    agents = [Counter(f"ada.{number}") for number in range(2 + more)]
    if not more:
        assert len(await run_team(board, agents, make_supervisor=quick(board))) == len(agents)
        return
    with pytest.raises(LimitExceeded) as refused:
        await run_team(board, agents, make_supervisor=quick(board))
    assert (refused.value.limit, refused.value.value) == ("TEAM_AGENTS_MAX", 3)


@pytest.mark.limits(team_agents_max=3)
async def test_a_parent_gets_an_error_when_there_is_no_room(board: Board) -> None:
    """In the step, by an error with a name; the team goes on."""
    ended = await run_team(board, [Prolific("eve")], kinds=[Counter], make_supervisor=quick(board))
    assert ended["eve"].outcome == "TEAM_AGENTS_MAX 4 eve.2"
    assert {life.how for life in ended.values()} == {"done"}
    assert sorted(ended) == ["eve", "eve.0", "eve.1"]


@pytest.mark.limits(team_agents_max=2)
async def test_of_those_born_at_once_some_find_no_room(board: Board) -> None:
    """They are refused, which the roster says, and nobody waits for them."""
    for name in ("ada", "bob", "cyd"):
        await board.put(roster_key(name), {"kind": "Counter"})
    ended = await run_team(board, [Counter("ada")], make_supervisor=quick(board))
    assert sorted(life.how for life in ended.values()) == ["done", "done", "refused"]
    [refused] = [life for life in ended.values() if life.how == "refused"]
    assert "TEAM_AGENTS_MAX" in refused.outcome
    told = await board.get(roster_key(refused.agent))
    assert (told["how"], told["outcome"]) == ("refused", refused.outcome)


async def test_a_team_knows_its_whole_roster(board: Board) -> None:
    """Also if it does not fit into one answer: somebody at its end is still waited for."""
    team = module._Team(board, [Counter("ada")], (), quick(board))
    await board.put(roster_key("ada"), {"kind": "Counter"})
    for name in ("bob", "cyd", "dan"):
        await board.put(roster_key(name), {"kind": "Other", "state": {"x": "x" * 900_000}})
    await board.put(roster_key("eve"), {"kind": "Counter"})
    team._living["ada"] = module._Seat(Counter("ada"), TeamMember(kind="Counter"))
    team.ended["ada"] = AgentExit("ada", "done")
    waiting = asyncio.create_task(team._all_ended())
    team._changed.set()
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    assert not waiting.done()
    team.ended["eve"] = AgentExit("eve", "done")
    team._changed.set()
    await waiting


async def test_how_a_team_is_stopped_is_an_event_or_signals(board: Board) -> None:
    """Any other word is refused before anybody runs."""
    with pytest.raises(InvalidRequest, match="on_signals"):
        await run_team(board, [Counter("ada")], stop="at_night")  # type: ignore[arg-type]


class Fertile(Slow):
    """Has a child in its first step, when it is let go."""

    kind = "Fertile"

    async def step(self, ctx: Context[Count]) -> None:
        """Count on, and have a child."""
        await super().step(ctx)
        await spawn(ctx, Patient(f"{self.name}.1"))


async def test_who_is_born_after_the_stop_does_not_begin_to_live(board: Board) -> None:
    """By the last step of its parent: the team ends, and the child lives in the next run."""
    ada, bob, stop = Fertile("ada"), Slow("bob"), asyncio.Event()
    policy = RestartPolicy(grace_ms=60_000)
    made: list[str] = []

    def make(agent: Agent[Any]) -> Supervisor:
        made.append(agent.name)
        return Supervisor(agent, board, policy)

    team = module._Team(board, [ada, bob], [Patient], make)
    running = asyncio.create_task(team.run(stop, "report"))
    for parent in (ada, bob):
        await parent.begun.wait()
    stop.set()
    await wait_until(lambda: _is_stopping(team))
    ada.go.set()
    await wait_until(lambda: _is_seated(team, "ada.1"))
    bob.go.set()
    with anyio.fail_after(TIMEOUT_S):
        ended = await running
    assert {name: one.how for name, one in ended.items()} == {
        "ada": "stopped",
        "bob": "stopped",
        "ada.1": "stopped",
    }
    assert made == ["ada", "bob"]


async def _is_stopping(team: module._Team) -> bool:
    return team._stopping


async def _is_seated(team: module._Team, name: str) -> bool:
    return name in team._living


async def test_a_team_that_is_stopped_does_not_wait_for_a_board_that_is_away(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose supervision was to begin is stopped, too."""
    failing = asyncio.Event()

    async def away() -> None:
        failing.set()
        raise Unavailable("the board", "it is away")

    team = module._Team(board, [Counter("ada")], (), quick(board))
    stop = asyncio.Event()
    monkeypatch.setattr(board, "refresh", away)
    running = asyncio.create_task(team.run(stop, "report"))
    await failing.wait()
    stop.set()
    with anyio.fail_after(TIMEOUT_S):
        assert (await running)["ada"].how == "stopped"


@pytest.mark.parametrize(
    "line", [{"kind": ["Counter"]}, {"kind": "Counter", "state": "none"}, {"kind": {}}]
)
async def test_a_malformed_line_of_the_roster_ends_no_team(board: Board, line: Any) -> None:
    """Nor keeps it from its end: all may write there."""
    await board.put(roster_key("mallory"), line)
    with anyio.fail_after(TIMEOUT_S):
        ended = await run_team(board, [Counter("ada")], make_supervisor=quick(board))
    assert {name: one.how for name, one in ended.items()} == {"ada": "done"}


async def test_a_line_at_no_name_of_an_agent_ends_no_team(board: Board) -> None:
    """It is no member."""
    await board.put(roster_key("~nobody"), {"kind": "Counter"})
    with anyio.fail_after(TIMEOUT_S):
        ended = await run_team(board, [Counter("ada")], make_supervisor=quick(board))
    assert {name: one.how for name, one in ended.items()} == {"ada": "done"}


class Needy(Counter):
    """Cannot be made of a name alone."""

    kind = "Needy"

    def __init__(self, name: str, need: str) -> None:
        super().__init__(name)
        self.need = need


async def test_one_that_cannot_be_made_ends_no_team(board: Board) -> None:
    """It counts as a crash loop, with the error of its class; the others live."""
    await board.put(roster_key("eve"), {"kind": "Needy"})
    with anyio.fail_after(TIMEOUT_S):
        ended = await run_team(board, [Counter("ada")], kinds=[Needy], make_supervisor=quick(board))
    assert {name: one.how for name, one in ended.items()} == {"ada": "done", "eve": "crash_loop"}
    assert "need" in ended["eve"].error
    assert (await board.get(roster_key("eve")))["how"] == "crash_loop"


async def test_one_that_cannot_be_supervised_ends_no_team(board: Board) -> None:
    """Nobody has a token for it, say."""

    def make(agent: Agent[Any]) -> Supervisor:
        return {"ada": Supervisor(agent, board, QUICK)}[agent.name]

    await board.put(roster_key("eve"), {"kind": "Counter"})
    with anyio.fail_after(TIMEOUT_S):
        ended = await run_team(board, [Counter("ada")], make_supervisor=make)
    assert {name: one.how for name, one in ended.items()} == {"ada": "done", "eve": "crash_loop"}
    assert ended["eve"].error == "KeyError: 'eve'"
    assert (await board.get(roster_key("eve")))["how"] == "crash_loop"


async def test_one_whose_first_state_is_refused_ends_no_team(board: Board) -> None:
    """It fits into the line of the roster, and is too large with what stands beside it."""
    state = {"text": "x" * (VALUE_BYTES_MAX - 60)}
    await board.put(roster_key("eve"), {"kind": "Counter", "state": state})
    with anyio.fail_after(TIMEOUT_S):
        ended = await run_team(board, [Counter("ada")], make_supervisor=quick(board))
    assert {name: one.how for name, one in ended.items()} == {"ada": "done", "eve": "crash_loop"}
    assert ended["eve"].error.startswith("LimitExceeded")


async def test_one_that_was_given_up_is_not_run_again_because_the_board_is_away(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its end is recorded again."""
    put, made = board.put, []
    failures: list[Exception] = [BoardFrozen("operator", "wait", 0, 1), Unavailable("it", "away")]

    def make(agent: Agent[Any]) -> Supervisor:
        made.append(agent.name)
        return Supervisor(agent, board, QUICK)

    async def failing(key: str, value: Any, **terms: Any) -> Any:
        if failures and key == roster_key("eve") and value["how"]:
            raise failures.pop()
        return await put(key, value, **terms)

    monkeypatch.setattr(board, "put", failing)
    with anyio.fail_after(TIMEOUT_S):
        ended = await run_team(board, [Hopeless("eve")], make_supervisor=make)
    assert (ended["eve"].how, made, failures) == ("crash_loop", ["eve"], [])
    assert (await board.get(roster_key("eve")))["how"] == "crash_loop"


async def test_an_end_that_the_board_has_no_room_for_ends_no_other_agent(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota that is used up is a matter for the log."""
    put = board.put

    async def full(key: str, value: Any, **terms: Any) -> Any:
        if key == roster_key("ada") and value["how"]:
            raise LimitExceeded("board_bytes", 2, 1, key)
        return await put(key, value, **terms)

    monkeypatch.setattr(board, "put", full)
    with anyio.fail_after(TIMEOUT_S):
        ended = await run_team(
            board, [Counter("ada"), Counter("bob")], make_supervisor=quick(board)
        )
    assert {name: one.how for name, one in ended.items()} == {"ada": "done", "bob": "done"}
    assert (await board.get(roster_key("bob")))["how"] == "done"


async def test_a_state_that_is_mended_at_once_is_noticed(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the team looks at it; else the agent would stay given up for ever."""
    put = board.put

    async def mending(key: str, value: Any, **terms: Any) -> Any:
        done = await put(key, value, **terms)
        if key == roster_key("ada") and value["how"] == "crash_loop":
            await put("public/repaired", True)
            state = await board.as_agent("ada").get(state_key("ada"))
            await board.as_agent("ada").put(state_key("ada"), state)
        return done

    monkeypatch.setattr(board, "put", mending)
    agents = [Hopeless("ada"), Patient("bob")]  # bob keeps the team from its end
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run_team, board, agents, make_supervisor=quick(board)))
        await wait_until(lambda: _ended_as(board, "ada", "done"))
        tasks.cancel_scope.cancel()


async def _ended_as(board: Board, name: str, how: str) -> bool:
    return bool((await board.get(roster_key(name)) or {}).get("how") == how)
