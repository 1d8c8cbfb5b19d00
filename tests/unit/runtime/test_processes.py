"""Agents in processes of their own that are really killed."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from blackboard import Board, InvalidRequest
from blackboard.client.contexts import TOKEN_VARIABLE
from blackboard.core import access
from blackboard.errors import Unavailable
from blackboard.integrity.tokens import issue
from blackboard.runtime.processes import (
    BoardAddress,
    ProcessSupervisor,
    _Stderr,
    in_processes,
    target_of,
)
from blackboard.runtime.state import StoredState, state_key
from blackboard.runtime.supervisor import AWAY_CODE, RestartPolicy, supervision_key
from blackboard.runtime.team import run_team
from blackboard.signals import send_signal
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.source_tree import ROOT
from tests.unit.runtime.crew import (
    Blocking,
    Count,
    Counter,
    Forebear,
    Hopeless,
    Mortal,
    Parent,
    Patient,
    Quitting,
    Slow,
)
from tests.waiting import wait_until

CALM = RestartPolicy(grace_ms=200, pause_ms=1, pause_ms_max=10, crashes_max=3)
QUICK = replace(CALM, ttl_ms=1_000)
"""For agents that die without releasing anything: others wait until the lease has expired."""
PATIENCE_S = 60.0


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceProcess]:
    """A service of the test's own; child processes find our modules."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    async with ServiceProcess("sqlite", tmp_path / "data") as running:
        yield running


@pytest.fixture
async def board(service: ServiceProcess) -> AsyncIterator[Board]:
    """A board of it, as an operator has it."""
    async with service.connect() as client:
        yield client.board("main")


def place(service: ServiceProcess) -> BoardAddress:
    """Each agent has a token of its own."""
    return BoardAddress(
        service.url, lambda name: issue(service.secret, access.agent(name), HOUR_MS)
    )


async def test_a_team_of_processes_ends_when_all_have(
    service: ServiceProcess, board: Board
) -> None:
    """Children in processes of theirs included; a crash loop is reported with its error."""
    ended = await run_team(
        board,
        [Parent("ada"), Hopeless("eve")],
        kinds=[Counter],
        make_supervisor=in_processes(board, place(service), CALM),
    )
    told = {name: (life.how, life.outcome or life.error) for name, life in ended.items()}
    assert told == {
        "ada": ("done", "all are grown up"),
        "ada.1": ("done", "counted to 2"),
        "ada.2": ("done", "counted to 3"),
        "eve": ("crash_loop", "RuntimeError: it is broken"),
    }
    assert await board.agents() == ()


async def test_a_killed_process_is_started_again(
    service: ServiceProcess, board: Board, tmp_path: Path
) -> None:
    """It kills itself after a call that was recorded: the call is not made again, nothing is lost.

    It dies until somebody lets it live, which is a crash loop; then a new life goes on.
    """
    ended = await ProcessSupervisor(Mortal("mortal"), board, place(service), QUICK).run()
    assert (ended.how, ended.crashes) == ("crash_loop", QUICK.crashes_max)
    assert ended.error == "killed by signal 9"
    told = await board.get(supervision_key("mortal"))
    assert (told["state"], told["error"]) == ("crash_loop", "killed by signal 9")
    assert await board.get("public/counts/mortal") == 2
    assert (tmp_path / "trace").read_text() == "called\n"
    await board.as_agent("mortal").put("private/mortal/died", True)
    ended = await ProcessSupervisor(Mortal("mortal"), board, place(service), QUICK).run()
    assert (ended.how, ended.crashes) == ("done", 0)
    assert await board.get("public/counts/mortal") == 5


async def test_what_a_process_left_running_does_not_keep_it_from_its_restart(
    service: ServiceProcess, board: Board, tmp_path: Path
) -> None:
    """A server that a tool started, for example. It has the stderr of the agent that died."""
    policy = replace(QUICK, crashes_max=2)
    try:
        with anyio.fail_after(PATIENCE_S):
            ended = await ProcessSupervisor(Forebear("ada"), board, place(service), policy).run()
    finally:
        left = [int(pid) for pid in (tmp_path / "trace").read_text().split()]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert (ended.how, ended.crashes, ended.error) == ("crash_loop", 2, "exit 3: last words")
    assert len(left) == policy.crashes_max


async def test_a_process_that_a_step_ends_is_started_again(
    service: ServiceProcess, board: Board
) -> None:
    """Nobody asked it to stop, though its exit code would say that all is well."""
    policy = replace(QUICK, crashes_max=2)
    ended = await ProcessSupervisor(Quitting("ada"), board, place(service), policy).run()
    assert (ended.how, ended.crashes) == ("crash_loop", policy.crashes_max)
    assert ended.error == "exit 1: its own code ended it: SystemExit: 0"


async def test_another_host_takes_over_when_one_is_gone(
    service: ServiceProcess, board: Board
) -> None:
    """Killed, it cannot give its identity back: it runs out, and the next in turn goes on."""
    # It does not start it again while the other one takes over.
    rests = RestartPolicy(ttl_ms=1_000, pause_ms=HOUR_MS, pause_ms_max=HOUR_MS)
    first = ProcessSupervisor(Patient("ada"), board, place(service), rests)
    second = ProcessSupervisor(Patient("ada"), board, place(service), QUICK)
    living = asyncio.create_task(first.run())
    await wait_until(lambda: _reports(board, "ada", "idle"))
    waiting = asyncio.create_task(second.run())
    await wait_until(lambda: _is_queued(board))
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    for _ in range(5):
        await board.append("inbox/ada/messages", "go on")
    with anyio.fail_after(PATIENCE_S):
        assert (await waiting).how == "done"
    assert await board.get("public/counts/ada") == 5
    first.stop()
    assert (await living).how == "stopped"


async def _reports(board: Board, agent: str, state: str) -> bool:
    return any(one.agent == agent and one.state == state for one in await board.agents())


async def _is_queued(board: Board) -> bool:
    return any(lease.waiters for lease in await board.leases("private/ada/*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_process_in_order(
    service: ServiceProcess, board: Board, number: signal.Signals
) -> None:
    """Exit code 0 within the grace period; the step is abandoned, the identity given back."""
    life = ProcessSupervisor(Slow("ada"), board, place(service), CALM)
    living = asyncio.create_task(life.run())
    await wait_until(lambda: _is_attached(board))
    assert life.pid is not None
    os.kill(life.pid, number)
    with anyio.fail_after(PATIENCE_S):
        ended = await living
    assert (ended.how, ended.crashes) == ("stopped", 0)
    assert await board.leases("private/ada/*") == ()
    assert await board.get("public/counts/ada") is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_ready_agent_ends_in_order(
    service: ServiceProcess, board: Board, number: signal.Signals
) -> None:
    """As people start it: `python -m blackboard.agents.reviewer`, while it rests."""
    environment = {
        "BLACKBOARD_URL": service.url,
        "BLACKBOARD_TOKEN": issue(service.secret, access.agent("reviewer"), HOUR_MS),
        "BLACKBOARD_BOARD": board.name,
    }
    command = [sys.executable, "-m", "blackboard.agents.reviewer"]
    async with await anyio.open_process(command, env=os.environ | environment) as process:
        await wait_until(lambda: _reports(board, "reviewer", "idle"))
        process.send_signal(number)
        with anyio.fail_after(PATIENCE_S):
            assert await process.wait() == 0
    assert await board.leases("private/reviewer/*") == ()
    assert await board.agents() == ()


async def _is_attached(board: Board) -> bool:
    return bool(await board.agents())


async def test_processes_do_not_outlive_their_starter(
    service: ServiceProcess, board: Board
) -> None:
    """The starter is killed: its child notices, and gives the identity back."""
    token = issue(service.secret, access.operator(), HOUR_MS)
    command = [sys.executable, "-m", "tests.unit.runtime.starter", service.url, token]
    starter = await anyio.open_process(command, cwd=ROOT, stdout=None, stderr=None)
    await wait_until(lambda: _is_attached(board))
    starter.kill()
    await starter.wait()
    await wait_until(lambda: _nobody_is_there(board))
    assert await board.leases("private/ada/*") == ()
    await starter.aclose()


async def test_a_process_whose_step_blocks_does_not_outlive_its_starter_either(
    service: ServiceProcess, board: Board, tmp_path: Path
) -> None:
    """Nothing in it can be asked to stop: it is killed, as its starter would have done."""
    life = ProcessSupervisor(Blocking("ada"), board, place(service), CALM)
    command = [sys.executable, "-m", "blackboard.runtime.child", life._order.model_dump_json()]
    environment = os.environ | {TOKEN_VARIABLE: place(service).token_of("ada")}
    process = await anyio.open_process(command, env=environment, stdout=None, stderr=None)
    assert process.stdin is not None
    try:
        await wait_until(anyio.Path(tmp_path / "trace").exists)
        await process.stdin.aclose()  # as when the starter is gone
        with anyio.fail_after(PATIENCE_S):
            assert await process.wait() == -signal.SIGKILL
    finally:
        send_signal(process, signal.SIGKILL)
        await process.aclose()


async def _nobody_is_there(board: Board) -> bool:
    return not await board.agents()


async def test_a_token_is_among_no_arguments(service: ServiceProcess, board: Board) -> None:
    """Which everybody on the machine may see."""
    life = ProcessSupervisor(Patient("ada"), board, place(service), CALM)
    living = asyncio.create_task(life.run())
    await wait_until(lambda: _is_attached(board))
    arguments = await anyio.Path(f"/proc/{life.pid}/cmdline").read_text()
    assert "ada" in arguments
    assert not any(part.count(".") == 2 and "eyJ" in part for part in arguments.split("\0"))
    life.stop()
    assert (await living).how == "stopped"


def test_what_cannot_be_imported_is_refused() -> None:
    """When the life is made, and not by a process that dies."""

    class Local(Counter):
        async def step(self, ctx: Any) -> None:
            """Nothing."""

    with pytest.raises(InvalidRequest, match="Local"):
        target_of(Local)
    assert target_of(Counter) == "tests.unit.runtime.crew:Counter"


# --- when the board is away -----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["head", "entry", "get"])
async def test_a_board_that_is_away_ends_no_supervision(
    service: ServiceProcess, board: Board, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whatever it is asked, before the process and after it; that is no crash."""
    life = ProcessSupervisor(Counter("ada"), board, place(service), CALM)
    asked, failures = getattr(life._board, call), [Unavailable("the board", "it is away")] * 2

    async def failing(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return await asked(*arguments, **named)

    monkeypatch.setattr(life._board, call, failing)
    ended = await life.run()
    assert (ended.how, ended.crashes, failures) == ("done", 0, [])


async def test_a_closed_board_ends_it_with_its_own_error(
    service: ServiceProcess,
) -> None:
    """Not with a group of errors, which nobody expects."""
    async with service.connect() as client:
        life = ProcessSupervisor(Counter("ada"), client.board("main"), place(service), CALM)
    with pytest.raises(Unavailable):
        await life.run()


class _Scripted(ProcessSupervisor):
    """Its processes end as the test says."""

    deaths: list[tuple[int, str]]

    async def _process(self) -> tuple[int, str]:
        if not self.deaths:
            return await super()._process()
        await self.before_death(len(self.deaths))
        return self.deaths.pop()

    async def before_death(self, left: int) -> None:
        """What the process does."""


async def test_a_process_that_cannot_reach_the_board_has_not_crashed(
    service: ServiceProcess, board: Board
) -> None:
    """However often; it is tried again."""
    life = _Scripted(Counter("ada"), board, place(service), CALM)
    life.deaths = [(AWAY_CODE, "exit 75: unavailable")] * (CALM.crashes_max + 1)
    ended = await life.run()
    assert (ended.how, ended.crashes) == ("done", 0)


async def test_a_process_that_cannot_be_started_is_a_crash(
    service: ServiceProcess, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends no other agent of the team."""

    async def failing(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(11, "no more processes")

    monkeypatch.setattr(anyio, "open_process", failing)
    ended = await ProcessSupervisor(Counter("ada"), board, place(service), CALM).run()
    assert (ended.how, ended.crashes) == ("crash_loop", CALM.crashes_max)
    assert "no more processes" in ended.error


class _Waiting(_Scripted):
    """Its processes begin to wait for another thing each time."""

    async def before_death(self, left: int) -> None:
        """Commit that."""
        state = StoredState(kind="Counter", version=1, waiting=(f"public/{left}",), state={})
        await self._board.put(state_key("ada"), state.plain())


async def test_deaths_with_a_wait_in_between_are_no_crash_loop(
    service: ServiceProcess, board: Board
) -> None:
    """What a step waits for is a commit, too."""
    life = _Waiting(Counter("ada"), board, place(service), CALM)
    deaths = CALM.crashes_max + 1
    life.deaths = [(-9, "killed by signal 9")] * deaths
    ended = await life.run()
    assert (ended.how, ended.crashes) == ("done", deaths)


async def test_a_process_that_goes_on_takes_back_the_report_of_the_last_one(
    service: ServiceProcess, board: Board
) -> None:
    """Nobody is to see an agent as broken that works."""
    life = _Scripted(Counter("ada"), board, place(service), CALM)
    life.deaths = [(-9, "killed by signal 9")]
    ended = await life.run()
    assert (ended.how, ended.crashes) == ("done", 1)
    assert await board.get(supervision_key("ada")) is None


async def test_a_process_that_rests_again_takes_back_the_report_of_the_last_one(
    service: ServiceProcess, board: Board
) -> None:
    """It may rest for days before it commits anything."""
    await board.as_agent("ada").put(
        state_key("ada"), StoredState(kind="Patient", version=1, state=Count().model_dump()).plain()
    )
    life = _Scripted(Patient("ada"), board, place(service), CALM)
    life.deaths = [(-9, "killed by signal 9")]
    living = asyncio.create_task(life.run())
    await wait_until(lambda: _reports(board, "ada", "idle"))

    async def is_well() -> bool:
        return await board.get(supervision_key("ada")) is None

    await wait_until(is_well)
    life.stop()
    assert (await living).how == "stopped"


def test_a_stderr_that_is_gone_ends_no_supervision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last words of the process are known all the same."""
    ours, theirs = os.pipe()
    with open(ours, "rb"), open(theirs, "wb", buffering=0) as process:  # noqa: PTH123 - descriptors
        said = _Stderr(ours)
        process.write(b"last words\n")
        with open(os.devnull) as closed:  # noqa: PTH123 - it is not for writing
            monkeypatch.setattr(sys, "stderr", closed)
            said.read()
            monkeypatch.undo()
    assert said.last_line == "last words"
