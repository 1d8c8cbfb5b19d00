"""Supervises an agent in this process: restarts it after a crash, and stops it properly.

    supervisor = Supervisor(Researcher("ada"), board)
    ended = await supervisor.run()          # until it is done, stopped, or crashes too often

In `run` this process is the agent (`run_agent`): the lease is its heartbeat, visible in
`Board.agents`. Another process that runs the same agent waits, and continues from the last commit
as soon as this process is gone.

Invariants
- an agent that crashed continues from its last commit, after a pause that grows with each crash;
  AGENT_CRASHES_MAX crashes without a commit in between are a crash loop: it is recorded on the
  board (`public/~supervision/<agent>`), and the agent is not restarted.
- An unrequested cancellation is a crash: only `stop` and the end of `run` stop the agent.
- losing the identity, or the board for a while, does not count as a crash: the agent attaches
  again, in the queue. The outage of another service, which a step uses, is one.
- When the client of the board is closed, nothing is tried again: `run` ends with the error.
- an agent that is asked to stop finishes its current step, or abandons it after `grace_ms`; either
  way the identity is released, and uncommitted work has no effect.

Sources: supervisors of Erlang/OTP, for the restart intensity; Kubernetes' CrashLoopBackOff.
"""

import asyncio
import logging
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio

from blackboard._lazy import need_posix
from blackboard.client.board import Board
from blackboard.core.path import identity_key
from blackboard.errors import (
    AccessDenied,
    AgentInterrupted,
    BlackboardError,
    BoardFrozen,
    Corrupt,
    Fenced,
    InvalidState,
    LeaseHeld,
    LeaseLost,
    MigrationFailed,
    OutcomeUnknown,
    SchemaTooNew,
    StaleEpoch,
    Unauthenticated,
    Unavailable,
    WorkspaceHeld,
    line_of,
)
from blackboard.limits import (
    AGENT_CRASHES_MAX,
    AGENT_ERROR_BYTES_MAX,
    AGENT_GRACE_MS,
    AGENT_PAUSE_MS,
    AGENT_PAUSE_MS_MAX,
    LEASE_TTL_MS,
)
from blackboard.runtime.agent import Agent
from blackboard.runtime.journal import Observer, StepPoint, unobserved
from blackboard.runtime.run import Rest, RunOptions, pause_s, run_until_crash
from blackboard.runtime.runner import Stepped
from blackboard.runtime.state import Status
from blackboard.units import Key, Milliseconds, Revision

SUPERVISION = "public/~supervision"
CRASH_LOOP_CODE = 70
"""Exit code of a process whose agent is in a crash loop: EX_SOFTWARE of sysexits.h."""
AWAY_CODE = 75
"""Exit code of a process that could not reach the board when it began: EX_TEMPFAIL."""
How = Literal["done", "stopped", "crash_loop", "refused"]
"""`refused`: it was never started, because the team is full."""
AWAY = (BoardFrozen, Unavailable, OutcomeUnknown)
"""The board cannot be reached, or takes no commits, for a while."""
_HOPELESS = (
    SchemaTooNew,
    MigrationFailed,
    InvalidState,
    Corrupt,
    AccessDenied,
    Unauthenticated,
)
"""Errors that another attempt of the same code with the same rights would only repeat."""
_OURS = Path(__file__).parents[1]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How an agent is supervised; see the limits of the same names in blackboard/limits.py."""

    ttl_ms: Milliseconds = LEASE_TTL_MS
    grace_ms: Milliseconds = AGENT_GRACE_MS
    crashes_max: int = AGENT_CRASHES_MAX
    pause_ms: Milliseconds = AGENT_PAUSE_MS
    pause_ms_max: Milliseconds = AGENT_PAUSE_MS_MAX

    def pause_s(self, crashes: int) -> float:
        """Seconds before the restart after that many crashes, shortened at random."""
        return pause_s(crashes, self.pause_ms, self.pause_ms_max)


@dataclass(frozen=True, slots=True)
class AgentExit:
    """How an agent ended. `outcome` is what it declared, `error` its last crash, which the board
    recorded at revision `crashed_at` (0: it did not)."""

    agent: str
    how: How
    outcome: str = ""
    crashes: int = 0
    error: str = ""
    crashed_at: Revision = field(default=0, compare=False)

    @property
    def exit_code(self) -> int:
        """With what a process ends that was for this agent alone: 0 unless it crashed in a loop."""
        return CRASH_LOOP_CODE if self.how == "crash_loop" else 0


def supervision_key(agent: str) -> Key:
    """The entry about crashes of `agent`: state, crashes without a step in between, error, and the
    line (`at`), if known."""
    return f"{SUPERVISION}/{agent}"


class Crashes:
    """Counts an agent's crashes, and records them on the board."""

    def __init__(self, agent: str, board: Board, policy: RestartPolicy) -> None:
        self.agent = agent
        self.total = 0
        self.error = ""
        self.recorded_at: Revision = 0
        """The revision of the last record; 0: there was none."""
        self._board = board
        self._policy = policy
        self._in_a_row = 0
        # Whether the board may have a record: an earlier process may have left one.
        self._recorded = True
        self._well = asyncio.Event()
        self._settled = asyncio.Event()
        """Whether the record of an agent that is well was removed, as far as it can be."""
        self._settled.set()

    async def add(self, crash: Exception | str, *, hopeless: bool = False) -> bool:
        """Count a crash, and record it; returns whether it is a crash loop now.

        The traceback of an error goes to the log, the line that raised it to the board.
        """
        self._in_a_row += 1
        self.total += 1
        raised = crash if isinstance(crash, Exception) else None
        error = line_of(raised) if raised is not None else str(crash)
        # Bounded in bytes, as it is stored; the cut may fall inside of a character.
        self.error = error.encode(errors="replace")[:AGENT_ERROR_BYTES_MAX].decode(errors="ignore")
        loop = hopeless or self._in_a_row >= self._policy.crashes_max
        count = self._in_a_row
        log.warning("agent %s crashed (%d): %s", self.agent, count, self.error, exc_info=raised)
        if loop:
            log.error("agent %s is given up after %d crashes in a row", self.agent, count)
        state = "crash_loop" if loop else "restarting"
        record: dict[str, Any] = {"state": state, "crashes": count, "error": self.error}
        at = raised and last_frame(raised)
        record |= {"at": at} if at else {}
        # `take_back` may not have run since the last progress, and would remove this record.
        self._well.clear()
        try:
            await self._board.refresh()  # the board may have been restored since
            put = self._board.put(supervision_key(self.agent), record, note=f"crashed: {state}")
            self.recorded_at = (await put).revision
            self._recorded = True
        except BlackboardError as failure:
            log.warning("agent %s: its crash could not be recorded: %s", self.agent, failure)
        return loop

    def progress(self) -> None:
        """The agent committed something: reset the count of crashes."""
        self._in_a_row = 0
        self.rested()

    def rested(self) -> None:
        """The agent rests: it is well, unless it crashed in this process and has committed nothing
        since. The count stays."""
        self._well.set()
        self._settled.clear()

    async def take_back(self) -> None:
        """Remove the record whenever the agent makes progress again, and that of an earlier process
        also when it rests; runs until cancelled."""
        while True:
            await self._well.wait()
            self._well.clear()
            attempts = 0
            # Until then the board calls the agent broken: tried again, unless it crashed again.
            while self._recorded and not self._in_a_row:
                self._recorded = False
                try:
                    await self._board.refresh()
                    if await self._board.entry(supervision_key(self.agent)) is not None:
                        await self._board.delete(supervision_key(self.agent))
                except AccessDenied as denied:  # none of this process's records is there either
                    log.debug("agent %s: no right to its record: %s", self.agent, denied)
                except BlackboardError as failure:
                    self._recorded = True
                    log.warning(
                        "agent %s: its recovery could not be recorded: %s", self.agent, failure
                    )
                    if not isinstance(failure, (*AWAY, StaleEpoch)):
                        break
                    attempts += 1
                    await asyncio.sleep(self._policy.pause_s(attempts))
            if not self._well.is_set():
                self._settled.set()

    async def settle(self) -> None:
        """Wait until `take_back` has nothing left to do, for at most the policy's `grace_ms`."""
        with anyio.move_on_after(self._policy.grace_ms / 1000):
            await self._settled.wait()

    def pause_s(self) -> float:
        """How long to wait before the next start."""
        return self._policy.pause_s(max(1, self._in_a_row))


def last_frame(error: BaseException) -> dict[str, Any] | None:
    """The line where `error` was raised, as far as that is known: `file`, `line`, `function`.

    For an error raised in this package on behalf of a step, it is the step's last line. A file is
    given by its name and its folder's, because the entry is public, and full paths would reveal
    details of the machine.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return None
    theirs = [
        frame for frame in frames if not Path(frame[0].f_code.co_filename).is_relative_to(_OURS)
    ]
    frame, line = (theirs or frames)[-1]
    file = "/".join(Path(frame.f_code.co_filename).parts[-2:])
    return {"file": file, "line": line, "function": frame.f_code.co_qualname}


class Supervisor:
    """One agent, in this process. `run` once.

    `board` must permit acting as the agent: its own, or an operator's.
    """

    def __init__(
        self,
        agent: Agent[Any],
        board: Board,
        policy: RestartPolicy | None = None,
        *,
        observe: Observer = unobserved,
    ) -> None:
        self.agent = agent
        self._board = board.as_agent(agent.name)
        self._policy = policy or RestartPolicy()
        self._observe = observe
        self._crashes = Crashes(agent.name, self._board, self._policy)
        self._stop = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._attached = False
        self.rest: Rest | None = None
        """The present rest of the agent, with what it waits for; None while it works."""
        self.on_rest: Callable[[], None] = lambda: None
        """Called when `rest` is another one."""

    def stop(self) -> None:
        """Request a stop: after the current step, at most `grace_ms` from now."""
        self._stop.set()

    async def run(self) -> AgentExit:
        """Run and supervise the agent.

        Errors: none of the agent's; those are counted. Unavailable or OutcomeUnknown once the
        client of the board was closed. Cancellation: the current step is abandoned at once, and the
        identity released.
        """
        ended: AgentExit | None = None
        with ended_by_close(self._board):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end_in_time)
                tasks.start_soon(self._crashes.take_back)
                with self._scope:
                    ended = await self._live()
                if ended is not None and ended.how == "done":
                    # Nobody would take its record back later.
                    await self._crashes.settle()
                tasks.cancel_scope.cancel()
        return ended or self._ended("stopped")

    async def _end_in_time(self) -> None:
        await self._stop.wait()
        await anyio.sleep(self._policy.grace_ms / 1000)
        log.warning("agent %s: its current step is abandoned", self.agent.name)
        self._scope.cancel()

    async def _live(self) -> AgentExit:
        while not self._stop.is_set():
            try:
                return await self._once()
            except AWAY as error:
                if self._board.is_closed:
                    raise
                if await self._is_away(error):
                    log.warning("agent %s cannot reach the board: %s", self.agent.name, error)
                elif await self._crashes.add(error):
                    return self._ended("crash_loop")
            except Exception as error:  # noqa: BLE001 - every crash of an agent is recorded
                if _is_overtaken(self.agent.name, error):
                    log.info("agent %s waits for its identity: %s", self.agent.name, error)
                elif await self._crashes.add(error, hopeless=isinstance(error, _HOPELESS)):
                    return self._ended("crash_loop")
            # No pause with a closed client: the next attempt raises at once, and that ends it.
            with anyio.move_on_after(0 if self._board.is_closed else self._crashes.pause_s()):
                await self._stop.wait()
        return self._ended("stopped")

    async def _is_away(self, error: BlackboardError) -> bool:
        """Whether `error` may say that the agent's board is away; not if it names another service,
        which a step uses, and the board answers."""
        what = error.what if isinstance(error, Unavailable) else ""
        if "://" not in what or what == self._board.url:
            return True
        try:
            await self._board.head()
        except BlackboardError:
            return True
        return False

    async def _once(self) -> AgentExit:
        # A restore may have ended the last attempt: the writers still have the epoch before it.
        await self._board.refresh()
        stay = RunOptions(ttl_ms=self._policy.ttl_ms, stop=self._stop, on_rest=self._rests)
        stepped = await self._run(stay)
        if stepped is not None and stepped.status is Status.DONE:
            return self._ended("done", stepped.outcome)
        return self._ended("stopped")

    async def _run(self, stay: RunOptions) -> Stepped | None:
        """Run the agent; None when it was asked to stop while it waited for its identity."""
        self._attached = given_up = False
        running = asyncio.ensure_future(
            run_until_crash(self.agent, self._board, stay, observe=self._observed)
        )
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and not self._attached:
                # It still waits for its identity, so there is no step to finish.
                given_up = running.cancel()
            # Not `await running`: that would pass on each cancellation, also into the release.
            await asyncio.wait([running])
            if running.cancelled() and not given_up:
                raise AgentInterrupted(self.agent.name, "its task was cancelled without a request")
            return None if running.cancelled() else running.result()
        finally:
            for task in (running, stopping):
                task.cancel()
            with anyio.CancelScope(shield=True):  # the identity is released, in bounded time
                await asyncio.gather(running, stopping, return_exceptions=True)

    def _rests(self, rest: Rest | None) -> None:
        self.rest = rest
        if rest is not None:
            self._crashes.rested()
        self.on_rest()

    def _observed(self, point: StepPoint, about: str) -> None:
        self._attached = True
        if point in (StepPoint.COMMITTED, StepPoint.SUSPENDED):
            self._crashes.progress()
        self._observe(point, about)

    def _ended(self, how: How, outcome: str = "") -> AgentExit:
        at, crashes = self._crashes.recorded_at, self._crashes
        return AgentExit(self.agent.name, how, outcome, crashes.total, crashes.error, at)


def _is_overtaken(agent: str, error: Exception) -> bool:
    """Whether another process is the agent now, or ends its last step as the agent: attach again.

    A lock of the step's own is not the identity. Nor is a StaleEpoch that comes this far one of the
    agent's board, on which `run_agent` goes on by itself: it is of another board, or of another
    `Board` object, which the step itself has to refresh.
    """
    if isinstance(error, LeaseLost | LeaseHeld | Fenced):
        return error.key == identity_key(agent)
    return isinstance(error, WorkspaceHeld)


@contextmanager
def ended_by_close(board: Board) -> Iterator[None]:
    """For a block that runs a group of tasks on `board`: once its client was closed, several of
    them fail, and the first error stands for all."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if not board.is_closed or not isinstance(error, BlackboardError):
            raise
        raise error from None


async def supervise(
    agent: Agent[Any], board: Board, policy: RestartPolicy | None = None
) -> AgentExit:
    """Run `agent` as the purpose of this process; SIGTERM and SIGINT stop it properly.

        sys.exit((await supervise(Researcher("researcher"), client.board())).exit_code)

    Only in the main thread, where Python delivers signals. Errors and cancellation: as for
    `Supervisor.run`.
    """
    life = Supervisor(agent, board, policy)
    with ended_by_signals(life):
        return await life.run()


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Within the block SIGTERM and SIGINT set the event, instead of ending the process.

    Errors: ImportError on Windows, whose event loops handle no signals.
    """
    stop = asyncio.Event()
    with _on_signals(stop.set):
        yield stop


@contextmanager
def ended_by_signals(life: Supervisor) -> Iterator[None]:
    """As `stop_on_signals`, for one agent."""
    with _on_signals(life.stop):
        yield


@contextmanager
def _on_signals(stop: Callable[[], object]) -> Iterator[None]:
    need_posix("an agent that signals stop in an orderly way")
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            # This leaves Python's default handler, and not the one from before.
            loop.remove_signal_handler(number)
            if handler is not None:  # None: not installed from Python, which cannot put it back
                signal.signal(number, handler)
