"""Lives: restarts from the last commit, crash loops, stopping, taking over."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

import blackboard
from blackboard import Board
from blackboard.core.commit import Head
from blackboard.core.path import check_name, identity_key
from blackboard.errors import (
    AccessDenied,
    AgentInterrupted,
    BoardFrozen,
    CallFailed,
    Fenced,
    InvalidRequest,
    Unavailable,
)
from blackboard.limits import AGENT_CRASHES_MAX
from blackboard.runtime import run
from blackboard.runtime.context import Context
from blackboard.runtime.run import RunOptions, run_agent
from blackboard.runtime.supervisor import (
    AgentExit,
    Crashes,
    RestartPolicy,
    Supervisor,
    last_frame,
    stop_on_signals,
    supervise,
    supervision_key,
)
from tests.ports import free_port
from tests.unit.runtime.crew import Count, Counter, Hopeless, Patient, Slow, Stumbling
from tests.waiting import wait_until

PATIENCE_S = 60.0
QUICK = RestartPolicy(ttl_ms=60_000, grace_ms=50, pause_ms=1, pause_ms_max=4)


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board, as an operator has it."""
    async with blackboard.open(tmp_path, level="memory") as client:
        yield client.board("main")


async def count_of(board: Board, agent: str) -> Any:
    """How far `agent` told that it is."""
    return await board.get(f"public/counts/{agent}")


async def told(board: Board, agent: str) -> Any:
    """What the board says of the crashes of `agent`."""
    return await board.get(supervision_key(agent))


# --- crashing -------------------------------------------------------------------------------------


async def test_a_life_ends_with_what_the_agent_said(board: Board) -> None:
    """And every step was taken once."""
    assert await Supervisor(Counter("ada"), board, QUICK).run() == AgentExit(
        "ada", "done", "counted to 5"
    )
    assert await count_of(board, "ada") == 5
    assert await board.agents() == ()


async def test_a_crashed_agent_goes_on_from_its_last_commit(board: Board) -> None:
    """However often, as long as there is a step in between; the report is taken back."""
    ended = await Supervisor(Stumbling("ada"), board, replace(QUICK, crashes_max=2)).run()
    assert (ended.how, ended.crashes) == ("done", 2)
    assert ended.error == "RuntimeError: stumbled at 3"
    assert await count_of(board, "ada") == 5


async def test_a_crash_loop_is_reported_and_not_hidden(board: Board) -> None:
    """It is stopped; the state is that of the last commit."""
    ended = await Supervisor(Hopeless("ada"), board, QUICK).run()
    assert (ended.how, ended.crashes) == ("crash_loop", QUICK.crashes_max)
    wanted = {"state": "crash_loop", "crashes": QUICK.crashes_max}
    found = await told(board, "ada")
    at = found.pop("at")
    assert found == wanted | {"error": "RuntimeError: it is broken"}
    assert (at["file"], at["function"]) == ("runtime/crew.py", "Hopeless.step")
    assert type(at["line"]) is int
    assert await count_of(board, "ada") == 2
    assert await board.agents() == ()


async def test_the_log_shows_where_a_step_is_broken(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    """With the traceback of each crash; and that nobody tries any more."""
    await Supervisor(Hopeless("ada"), board, QUICK).run()
    assert caplog.text.count("raise RuntimeError") == QUICK.crashes_max
    assert "agent ada is given up after 5 crashes in a row" in caplog.text


def test_the_line_of_the_step_is_shown_for_an_error_of_our_tools() -> None:
    """And of a group of errors the first one; without a traceback, nothing is reported."""
    try:
        check_name("a/b")
    except InvalidRequest as error:
        group = ExceptionGroup("several", [error, ValueError("another")])
    at = last_frame(group)
    assert at is not None
    assert at["function"] == "test_the_line_of_the_step_is_shown_for_an_error_of_our_tools"
    assert last_frame(ValueError("never raised")) is None


class Torn(Slow):
    """Crashes in its first step once it may go on."""

    kind = "Torn"

    async def step(self, ctx: Context[Count]) -> None:
        """Crash, or count on."""
        is_first = not self.begun.is_set()
        await super().step(ctx)
        if is_first:
            raise RuntimeError("torn")


async def test_a_crash_after_a_restore_is_reported(board: Board) -> None:
    """Though the agent was in the epoch before it."""
    await board.put("public/plan", 1)
    await board.checkpoint("before")
    ada = Torn("ada")
    living = asyncio.create_task(Supervisor(ada, board, QUICK).run())
    with anyio.fail_after(PATIENCE_S):
        await ada.begun.wait()
        restored = await board.restore("before")
        ada.go.set()
        assert (await living).how == "done"
    log = await board.log(after=restored.revision, pattern=supervision_key("ada"))
    errors = [change.value["error"] for one in log for change in one.changes if change.value]
    assert errors == ["RuntimeError: torn"]


class Interrupted(Counter):
    """Awaits something that was cancelled, `times` times; nobody cancels the agent itself."""

    kind = "Interrupted"

    def __init__(self, name: str | None = None, times: int = 2) -> None:
        super().__init__(name)
        self.times = times

    async def step(self, ctx: Context[Count]) -> None:
        """Be torn out of the step, or count on."""
        if ctx.state.n == 2 and self.times:
            self.times -= 1
            nothing = asyncio.get_running_loop().create_future()
            nothing.cancel()
            await nothing
        await super().step(ctx)


class Suicidal(Counter):
    """Cancels the task that it runs in, once."""

    kind = "Suicidal"
    done = False

    async def step(self, ctx: Context[Count]) -> None:
        """End, or count on."""
        if ctx.state.n == 2 and not self.done:
            self.done = True
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await anyio.lowlevel.checkpoint()
        await super().step(ctx)


@pytest.mark.parametrize("kind", [Interrupted, Suicidal])
async def test_a_cancellation_that_nobody_asked_for_is_a_crash(
    board: Board, kind: type[Counter]
) -> None:
    """The agent goes on from its last commit, and nobody takes it for stopped."""
    ended = await Supervisor(kind("ada"), board, QUICK).run()
    assert ended.how == "done"
    assert "agent_interrupted" in ended.error
    assert await count_of(board, "ada") == 5
    assert await board.agents() == ()


@pytest.mark.parametrize("times", [AGENT_CRASHES_MAX - 1, AGENT_CRASHES_MAX])
async def test_an_agent_that_runs_alone_goes_on_after_it_too(
    board: Board, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """AGENT_CRASHES_MAX of them without a commit in between are an error."""
    monkeypatch.setattr(run, "pause_s", lambda crashes: 0.0)
    running = run_agent(Interrupted("ada", times), board)
    if times < AGENT_CRASHES_MAX:
        assert (await running).outcome == "counted to 5"
    else:
        with pytest.raises(AgentInterrupted):
            await running
    assert await board.leases() == ()


async def test_a_repaired_agent_is_reported_well(board: Board) -> None:
    """The next life goes on, and takes back the report of the last one."""
    life = Supervisor(
        Hopeless("ada"), board, RestartPolicy(pause_ms=1, pause_ms_max=1, crashes_max=10_000)
    )
    async with anyio.create_task_group() as tasks:
        ended: list[AgentExit] = []

        async def live() -> None:
            ended.append(await life.run())

        tasks.start_soon(live)
        await wait_until(lambda: _is(board, "restarting"))
        await board.put("public/repaired", True)
    assert ended[0].how == "done"
    assert ended[0].crashes > 0
    assert await told(board, "ada") is None


async def test_an_agent_that_has_ended_is_reported_well(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is over before the report of its crash is taken back."""
    policy = RestartPolicy(pause_ms=1, pause_ms_max=1, crashes_max=10_000)
    life = Supervisor(Hopeless("ada"), board, policy)
    as_ever = life._board.entry

    async def has_left() -> bool:
        return not await board.leases("private/ada/*")

    async def slow(key: str) -> Any:
        if key == supervision_key("ada"):
            await wait_until(has_left)
        return await as_ever(key)

    monkeypatch.setattr(life._board, "entry", slow)
    living = asyncio.create_task(life.run())
    await wait_until(lambda: _is(board, "restarting"))
    await board.put("public/repaired", True)
    assert (await living).how == "done"
    assert await told(board, "ada") is None


async def _is(board: Board, state: str) -> bool:
    return bool((await told(board, "ada") or {}).get("state") == state)


async def test_a_recovery_that_could_not_be_recorded_is_recorded_later(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the agent makes no more progress: it may rest for a day."""
    crashes, delete = Crashes("ada", board, QUICK), board.delete
    failures = [Unavailable("the board", "for a moment"), BoardFrozen("operator", "wait", 0, 1)]

    async def failing(key: str) -> bool:
        if failures:
            raise failures.pop()
        return await delete(key)

    async def is_well() -> bool:
        return await told(board, "ada") is None

    monkeypatch.setattr(board, "delete", failing)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(crashes.take_back)
        await crashes.add("it stumbled")
        assert not await is_well()
        crashes.progress()
        await wait_until(is_well)
        tasks.cancel_scope.cancel()
    assert failures == []


async def test_what_no_restart_changes_is_not_tried_again(board: Board) -> None:
    """The state is of a newer schema: one crash is a loop."""
    state = {"kind": "Counter", "version": 9, "state": {}}
    await board.as_agent("ada").put("private/ada/~state", state)
    ended = await Supervisor(Counter("ada"), board, QUICK).run()
    assert (ended.how, ended.crashes) == ("crash_loop", 1)
    assert ended.error.startswith("SchemaTooNew")
    assert await board.as_agent("ada").get("private/ada/~state") == state


def test_pauses_grow_up_to_a_limit() -> None:
    """Each is shortened at random by half at most."""
    policy = RestartPolicy(pause_ms=100, pause_ms_max=1_000)
    for crashes, longest_s in ((1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (5_000, 1.0)):
        assert longest_s / 2 <= policy.pause_s(crashes) <= longest_s


# --- stopping -------------------------------------------------------------------------------------


async def test_a_step_under_way_is_finished_before_a_stop(board: Board) -> None:
    """It commits, and the identity is given back."""
    agent = Slow("ada")
    life = Supervisor(agent, board, RestartPolicy(grace_ms=10_000))
    running = asyncio.create_task(life.run())
    await agent.begun.wait()
    life.stop()
    agent.go.set()
    assert (await running).how == "stopped"
    assert await count_of(board, "ada") == 1
    assert await board.leases("private/ada/*") == ()


async def test_a_step_that_does_not_end_is_abandoned(board: Board) -> None:
    """After the grace period nothing of it is there, and the identity is given back."""
    agent = Slow("ada")
    life = Supervisor(agent, board, QUICK)
    running = asyncio.create_task(life.run())
    await agent.begun.wait()
    life.stop()
    assert (await running).how == "stopped"
    assert await count_of(board, "ada") is None
    assert await board.leases("private/ada/*") == ()


async def test_a_resting_agent_stops_at_once(board: Board) -> None:
    """There is nothing to wait for."""
    life = Supervisor(Patient("ada"), board, RestartPolicy(grace_ms=60_000))
    running = asyncio.create_task(life.run())
    await wait_until(lambda: _reports(board, "ada", "idle"))
    life.stop()
    with anyio.fail_after(PATIENCE_S):
        assert (await running).how == "stopped"


async def _reports(board: Board, agent: str, state: str) -> bool:
    return any(one.agent == agent and one.state == state for one in await board.agents())


async def test_a_letter_wakes_a_resting_agent(board: Board) -> None:
    """It is alive for all to see meanwhile."""
    life = Supervisor(Patient("ada"), board, QUICK)
    running = asyncio.create_task(life.run())
    for _ in range(5):
        await wait_until(lambda: _reports(board, "ada", "idle"))
        await board.append("inbox/ada/messages", "go on")
        await wait_until(lambda: _inbox_is_empty(board))
    assert (await running).how == "done"


async def _inbox_is_empty(board: Board) -> bool:
    return not (await board.list("inbox/ada/**")).entries


# --- taking over ----------------------------------------------------------------------------------


async def test_a_second_life_waits_and_goes_on(board: Board) -> None:
    """Two hosts run the same agent: one lives, the other one is there when it is gone."""
    first, second = Slow("ada"), Slow("ada")
    one = Supervisor(first, board, QUICK)
    living = asyncio.create_task(one.run())
    await first.begun.wait()
    waiting = asyncio.create_task(Supervisor(second, board, QUICK).run())
    await wait_until(lambda: _is_queued(board))
    assert not second.begun.is_set()
    one.stop()
    await living
    second.go.set()
    assert (await waiting).how == "done"
    assert await count_of(board, "ada") == 5


async def _is_queued(board: Board) -> bool:
    return any(lease.waiters for lease in await board.leases("private/ada/*"))


async def test_a_life_that_waits_for_its_identity_can_be_stopped(board: Board) -> None:
    """It leaves the queue."""
    holder = asyncio.create_task(run_agent(Patient("ada"), board, RunOptions()))
    await wait_until(lambda: _reports(board, "ada", "idle"))
    life = Supervisor(Patient("ada"), board, RestartPolicy(grace_ms=60_000))
    waiting = asyncio.create_task(life.run())
    await wait_until(lambda: _is_queued(board))
    life.stop()
    with anyio.fail_after(PATIENCE_S):
        assert (await waiting).how == "stopped"
    assert not await _is_queued(board)
    holder.cancel()
    await asyncio.wait([holder])


async def test_who_is_taken_over_waits_in_turn(board: Board) -> None:
    """To lose the identity is no crash; what it had not committed did not happen."""
    agent = Slow("ada")
    # It finds out when it renews, after a third of the time.
    living = asyncio.create_task(Supervisor(agent, board, replace(QUICK, ttl_ms=3_000)).run())
    await agent.begun.wait()
    async with board.attach("ada", if_taken="take_over"):
        agent.begun.clear()
        await wait_until(lambda: _is_queued(board))
    agent.go.set()
    ended = await living
    assert (ended.how, ended.crashes) == ("done", 0)
    assert await count_of(board, "ada") == 5


class Grouped(Counter):
    """Its step does several things at once, which fail with `errors` the first time."""

    kind = "Grouped"

    def __init__(self, name: str, errors: Sequence[Exception]) -> None:
        super().__init__(name)
        self.errors = errors

    async def step(self, ctx: Context[Count]) -> None:
        """Fail, or count on."""
        errors, self.errors = self.errors, ()
        if errors:
            raise ExceptionGroup("unhandled errors in a TaskGroup", errors)
        await super().step(ctx)


@pytest.mark.parametrize(("also", "crashes"), [(Unavailable("it", "is away"), 0), (OSError(), 1)])
async def test_a_group_of_errors_of_the_board_is_no_crash(
    board: Board, also: Exception, crashes: int
) -> None:
    """As one of them alone is none; with another error among them, it is one."""
    errors = [also, Fenced(identity_key("ada"), 1, 2)]
    ended = await Supervisor(Grouped("ada", errors), board, QUICK).run()
    assert (ended.how, ended.crashes) == ("done", crashes)


async def test_a_refusal_in_a_group_is_as_hopeless_as_alone(board: Board) -> None:
    """Another attempt with the same rights would only repeat it."""
    denied = AccessDenied("ada", "write", "public/plan")
    ended = await Supervisor(Grouped("ada", [denied]), board, QUICK).run()
    assert (ended.how, ended.crashes) == ("crash_loop", 1)
    assert ended.error == f"AccessDenied: {denied}"


class UnspeakableError(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise AttributeError("it has no text")


class Speechless(Counter):
    """Fails without a text: first in a tool, then by itself."""

    kind = "Speechless"

    async def step(self, ctx: Context[Count]) -> None:
        """Fail."""
        with suppress(CallFailed):
            await ctx.tool(fail)
        raise UnspeakableError


def fail() -> None:
    """A tool."""
    raise UnspeakableError


async def test_an_error_without_a_text_is_a_crash_like_any_other(board: Board) -> None:
    """The board has the name of its class, also where a tool raised it."""
    with anyio.fail_after(PATIENCE_S):
        ended = await Supervisor(Speechless("ada"), board, QUICK).run()
    assert (ended.how, ended.error) == ("crash_loop", "UnspeakableError")
    log = await board.log(pattern="private/ada/~journal/*")
    records = [change.value for one in log for change in one.changes if change.kind == "put"]
    assert {one["reason"] for record in records for one in record["failures"]} == {ended.error}


@pytest.mark.parametrize(
    ("how", "code"), [("done", 0), ("stopped", 0), ("refused", 0), ("crash_loop", 70)]
)
def test_only_a_crash_loop_is_a_failure_of_the_process(how: Any, code: int) -> None:
    """So that who looks after processes starts it again, or not."""
    assert AgentExit("ada", how).exit_code == code


async def test_a_signal_ends_a_life_that_is_lived_alone(board: Board) -> None:
    """And signals are as before, afterwards."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with anyio.fail_after(PATIENCE_S):
        living = asyncio.create_task(supervise(Patient("ada"), board, QUICK))
        await wait_until(lambda: _rests(board))
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await living).how == "stopped"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert await board.agents() == ()


async def _rests(board: Board) -> bool:
    return any(one.state == "idle" for one in await board.agents())


async def test_a_handler_that_is_not_of_python_does_not_end_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that embeds Python may have installed it; it cannot be put back from here."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            with anyio.fail_after(PATIENCE_S):
                await stop.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def test_a_repaired_agent_is_reported_well_in_a_new_process(board: Board) -> None:
    """It takes back the report of a crash loop that the process before it has left."""
    ended = await Supervisor(Hopeless("ada"), board, QUICK).run()
    assert ended.how == "crash_loop"
    assert (await told(board, "ada"))["state"] == "crash_loop"
    await board.put("public/repaired", True)
    ended = await Supervisor(Hopeless("ada"), board, QUICK).run()
    assert ended.how == "done"
    assert await told(board, "ada") is None


class Locking(Counter):
    """Needs a lock of its own for each step, and does not wait for it."""

    kind = "Locking"

    def __init__(self, name: str, board: Board) -> None:
        super().__init__(name)
        self.board = board

    async def step(self, ctx: Context[Count]) -> None:
        """Count on, if nobody else has the lock."""
        async with self.board.lock("public/till", timeout_ms=0):
            await super().step(ctx)


async def test_a_lock_that_another_agent_has_is_not_the_identity(board: Board) -> None:
    """An agent that cannot go on without it crashes, and is not restarted for ever unnoticed."""
    held, free = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with board.as_agent("bob").lock("public/till"):
            held.set()
            await free.wait()

    holding = asyncio.create_task(hold())
    await held.wait()
    with anyio.fail_after(PATIENCE_S):
        ended = await Supervisor(Locking("ada", board.as_agent("ada")), board, QUICK).run()
    assert (ended.how, ended.crashes) == ("crash_loop", QUICK.crashes_max)
    assert ended.error.startswith("LeaseHeld")
    free.set()
    await holding


class Reporting(Counter):
    """Tells another board of each step, and does not notice that it was restored."""

    kind = "Reporting"

    def __init__(self, name: str, other: Board) -> None:
        super().__init__(name)
        self.other = other

    async def step(self, ctx: Context[Count]) -> None:
        """Count on, once that is told."""
        await self.other.put("public/told", True)
        await super().step(ctx)


async def test_a_restore_of_another_board_is_not_one_of_the_agents_board(
    board: Board, tmp_path: Path
) -> None:
    """Attaching again does not help: the step fails each time, which is a crash loop."""
    async with blackboard.open(tmp_path / "other", level="memory") as client:
        other = client.board("other")
        await other.checkpoint("one")
        await other.put("public/told", False)
        stale = client.board("other")
        await stale.refresh()
        await other.restore("one")
        with anyio.fail_after(PATIENCE_S):
            ended = await Supervisor(Reporting("ada", stale), board, QUICK).run()
    assert (ended.how, ended.crashes) == ("crash_loop", QUICK.crashes_max)
    assert ended.error.startswith("StaleEpoch")


class Calling(Counter):
    """Needs another service for each step, which is away as often as `away` says."""

    kind = "Calling"

    def __init__(self, name: str, away: int) -> None:
        super().__init__(name)
        self.url, self.away = f"ws://127.0.0.1:{free_port()}", away

    async def step(self, ctx: Context[Count]) -> None:
        """Count on, if it answers."""
        if self.away:
            self.away -= 1
            async with blackboard.connect(self.url, token="nobody", patience_ms=1):
                pass
        await super().step(ctx)


async def test_an_outage_of_another_service_is_not_one_of_the_board(board: Board) -> None:
    """An agent that cannot go on without it crashes, and is not restarted for ever unnoticed."""
    ada = Calling("ada", QUICK.crashes_max)
    with anyio.fail_after(PATIENCE_S):
        ended = await Supervisor(ada, board, QUICK).run()
    assert (ended.how, ended.crashes) == ("crash_loop", QUICK.crashes_max)
    assert ended.error.startswith(f"Unavailable: unavailable: what='{ada.url}")


async def test_an_outage_of_both_services_is_one_of_the_board(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be the same one, under two addresses."""
    ada, head = Calling("ada", QUICK.crashes_max), Board.head
    asked = [ada.away]

    async def away_after_a_step(of: Board) -> Head:
        if ada.away < asked[-1]:
            asked.append(ada.away)
            raise Unavailable("the board", "it is away")
        return await head(of)

    monkeypatch.setattr(Board, "head", away_after_a_step)
    with anyio.fail_after(PATIENCE_S):
        ended = await Supervisor(ada, board, QUICK).run()
    assert (ended.how, ended.crashes, len(asked)) == ("done", 0, QUICK.crashes_max + 1)
