"""Runs agents in separate processes, so that a crash of one does not affect the others.

    place = BoardAddress(url, token)
    await run_team(board, agents, make_supervisor=in_processes(board, place))

The process (`runtime/child.py`) supervises its agent with a `Supervisor`: errors of a step do not
end it. This side detects the death of the process and restarts it.

Invariants
- a process that dies is restarted after a growing pause; AGENT_CRASHES_MAX deaths without a commit
  in between are a crash loop, which is recorded on the board.
- Losing the board for a while ends nothing, and counts as no crash.
- A process whose parent is gone ends by itself: it reads from a pipe that only the parent holds.
- A process reports what its resting agent waits for through a pipe that only it holds.
- A token is passed in the environment of the process, and never in its arguments, which all users
  can see.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import anyio
from anyio.abc import Process
from pydantic import BaseModel, ConfigDict

from blackboard.client.board import Board
from blackboard.client.contexts import TOKEN_VARIABLE
from blackboard.errors import BlackboardError, InvalidRequest
from blackboard.limits import AGENT_ERROR_BYTES_MAX
from blackboard.runtime.agent import Agent
from blackboard.runtime.run import Rest
from blackboard.runtime.state import Status, state_key
from blackboard.runtime.supervisor import (
    AWAY,
    AWAY_CODE,
    CRASH_LOOP_CODE,
    AgentExit,
    Crashes,
    RestartPolicy,
    supervision_key,
)
from blackboard.runtime.team import MakeSupervisor
from blackboard.signals import send_signal
from blackboard.units import Revision

log = logging.getLogger(__name__)
_CHILD = "blackboard.runtime.child"
_PIPE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class BoardAddress:
    """The address of the board. `token`: an operator's, or a function of the agent."""

    url: str
    token: str | Callable[[str], str]

    def token_of(self, agent: str) -> str:
        """The token of `agent`."""
        return self.token if isinstance(self.token, str) else self.token(agent)


class Order(BaseModel):
    """The only argument of a process: the agent to run."""

    model_config = ConfigDict(frozen=True)

    target: str
    name: str
    url: str
    board: str
    policy: dict[str, int]
    rests: int | None = None
    """The file descriptor through which it reports what the agent waits for: `rest_line`."""


def rest_line(rest: Rest | None) -> bytes:
    """The line of JSON by which a process reports that its agent rests or (None) continues."""
    return json.dumps(rest and [rest.patterns, rest.since]).encode() + b"\n"


class _Lines:
    """Reassembles the lines of `rest_line` from chunks."""

    def __init__(self, agent: str, on_rest: Callable[[Rest | None], None]) -> None:
        self._agent = agent
        self._on_rest = on_rest
        self._begun = b""

    def read(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            match json.loads(line):
                case [patterns, since]:
                    self._on_rest(Rest(self._agent, tuple(patterns), since))
                case _:
                    self._on_rest(None)


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """A pipe between this process and a child: the end to read from, and the one to write to.

    With a pipe of asyncio's, `Process.wait` may wait for whatever the child started and left open.
    """
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


class _Stderr:
    """What a process says: forwarded, and the end of it kept."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._end = b""

    def read(self) -> None:
        """Take what is there."""
        # Read once more after the end of the process, when there may be nothing.
        with suppress(BlockingIOError):
            chunk = os.read(self._pipe, _PIPE_BYTES)
            self._end = (self._end + chunk)[-AGENT_ERROR_BYTES_MAX:]
            with suppress(OSError, ValueError):  # nobody reads what this process says
                if (buffer := getattr(sys.stderr, "buffer", None)) is not None:
                    buffer.write(chunk)
                else:  # of a notebook, for example
                    sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()

    @property
    def last_line(self) -> str:
        """The last line of it so far."""
        lines = self._end.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


@contextmanager
def _stderr_of_child() -> Iterator[tuple[_Stderr, int]]:
    """A pipe that a process writes to as its stderr, which is read meanwhile."""
    # This process keeps `theirs` open, as in `rests_of`.
    with _pipe() as (ours, theirs):
        said, loop = _Stderr(ours), asyncio.get_running_loop()
        loop.add_reader(ours, said.read)
        try:
            yield said, theirs
        finally:
            loop.remove_reader(ours)


@contextmanager
def rests_of(agent: str, on_rest: Callable[[Rest | None], None]) -> Iterator[int]:
    """A pipe for the process of `agent`: the descriptor that it writes `rest_line`s to."""
    # This process keeps `theirs` open as well: when the other one ends, `ours` would be readable at
    # once, for ever, without anything to read.
    lines, loop = _Lines(agent, on_rest), asyncio.get_running_loop()
    with _pipe() as (ours, theirs):
        loop.add_reader(ours, lambda: lines.read(os.read(ours, _PIPE_BYTES)))
        try:
            yield theirs
        finally:
            loop.remove_reader(ours)
            on_rest(None)


def target_of(kind: type[Agent[Any]]) -> str:
    """The name by which a process imports `kind`: `package.module:Class`.

    Errors: InvalidRequest when it cannot be imported: a class of a function, or of a script.
    """
    module = kind.__module__
    if module == "__main__":
        # What `python -m` runs can be imported by its name; a script cannot.
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec.name if spec else ""
    if not module or "<" in kind.__qualname__:
        reason = f"{kind.__qualname__} is in no module that a process can import"
        raise InvalidRequest(field="agents", reason=reason)
    return f"{module}:{kind.__qualname__}"


def in_processes(
    board: Board, place: BoardAddress, policy: RestartPolicy | None = None
) -> MakeSupervisor:
    """For `run_team`: runs each agent in a separate process.

    The process makes the agent from its class and its name; other attributes of the object are not
    passed on.
    """
    return lambda agent: ProcessSupervisor(agent, board, place, policy or RestartPolicy())


class ProcessSupervisor:
    """One agent in a separate process, which is restarted when it dies. `run` once."""

    def __init__(
        self, agent: Agent[Any], board: Board, place: BoardAddress, policy: RestartPolicy
    ) -> None:
        self.agent = agent
        self._board = board.as_agent(agent.name)
        self._policy = policy
        self._crashes = Crashes(agent.name, self._board, policy)
        self._stop = asyncio.Event()
        self._token = place.token_of(agent.name)
        self._order = Order(
            target=target_of(type(agent)),
            name=agent.name,
            url=place.url,
            board=board.name,
            policy=asdict(policy),
        )
        self._known: Revision | None = None
        self.pid: int | None = None
        """The running process."""
        self.rest: Rest | None = None
        """The present rest of the agent, with what it waits for; None while it works."""
        self.on_rest: Callable[[], None] = lambda: None
        """Called when `rest` changes."""

    def stop(self) -> None:
        """Ask the process to stop; it is killed if it does not."""
        self._stop.set()

    async def run(self) -> AgentExit:
        """As `Supervisor.run`. Cancellation: the process is asked to end, and killed if it does
        not."""
        ended: AgentExit | BlackboardError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._crashes.take_back)
            try:
                ended = await self._live()
            except BlackboardError as error:  # raised outside: the group would wrap it
                ended = error
            tasks.cancel_scope.cancel()
        if isinstance(ended, BlackboardError):
            raise ended
        assert ended is not None
        return ended

    async def _live(self) -> AgentExit:
        while not self._stop.is_set():
            try:
                ended = await self._once()
            except AWAY as error:
                if self._board.is_closed:
                    raise
                log.warning("agent %s cannot reach the board: %s", self.agent.name, error)
            else:
                if ended is not None:
                    return ended
            with anyio.move_on_after(self._crashes.pause_s()):
                await self._stop.wait()
        return self._ended("stopped")

    async def _once(self) -> AgentExit | None:
        """Run one process to its end: how the agent ended, or None if it is to be run again."""
        # Read before the process runs: a restore that comes while it ends is noticed below.
        epoch = (await self._board.head()).epoch.number
        if self._known is None:
            self._known = await self._last_commit()
        try:
            code, error = await self._process()
        except OSError as failure:  # no process, or no memory for one
            code, error = 1, f"it could not be started: {failure}"
        if code == 0:
            ended = await self._recorded_exit()
            if ended.how == "done" or (await self._board.head()).epoch.number == epoch:
                return ended
            return None  # it was done, and a restore undid that
        if code == CRASH_LOOP_CODE:
            # The supervisor of that process has counted and recorded its crashes.
            entry = await self._board.entry(supervision_key(self.agent.name))
            if entry is not None and isinstance(entry.value, dict):
                self._crashes.recorded_at = entry.mod_revision
                error = str(entry.value.get("error", error))
            return self._ended("crash_loop", error=error)
        # A process that did not stop in time was killed by `_end`: that is no crash.
        if self._stop.is_set():
            return self._ended("stopped")
        if code == AWAY_CODE:
            log.warning("agent %s cannot reach the board: %s", self.agent.name, error)
            return None
        now = await self._last_commit()
        # Commits in the other process are only seen by their trace on the board.
        if now != self._known:
            self._crashes.progress()
        self._known = now
        if await self._crashes.add(error):
            return self._ended("crash_loop", error=error)
        return None

    async def _process(self) -> tuple[int, str]:
        """Run one process to its end: its exit code, and the last line of its stderr.

        Processes that it started, and that have these open, too, are not waited for.
        """
        with (
            rests_of(self.agent.name, self._rests) as rests,
            _stderr_of_child() as (said, stderr),
            # Nothing is written to its stdin: when this process is gone, it ends.
            _pipe() as (stdin, _),
        ):
            order = self._order.model_copy(update={"rests": rests})
            process = await anyio.open_process(
                [sys.executable, "-m", _CHILD, order.model_dump_json()],
                env=os.environ | {TOKEN_VARIABLE: self._token},
                stdin=stdin,
                stdout=None,
                stderr=stderr,
                pass_fds=[rests],
            )
            self.pid = process.pid
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._end_when_stopped, process)
                    code = await process.wait()
                    tasks.cancel_scope.cancel()
            finally:
                # Shielded: a process that is left running goes on as the agent.
                with anyio.CancelScope(shield=True):
                    await self._end(process)
                    await process.aclose()
            said.read()  # what came last
        last = said.last_line
        return code, f"exit {code}: {last}" if code >= 0 else f"killed by signal {-code}"

    def _rests(self, rest: Rest | None) -> None:
        self.rest = rest
        self.on_rest()

    async def _end_when_stopped(self, process: Process) -> None:
        await self._stop.wait()
        await self._end(process)

    async def _end(self, process: Process) -> None:
        """Request termination, then kill."""
        if process.returncode is not None:
            return
        send_signal(process, signal.SIGTERM)
        # After its grace the process still has to release its identity.
        patience_ms = self._policy.grace_ms + self._board.limits.client.finish_timeout_ms
        with anyio.move_on_after(patience_ms / 1000):
            await process.wait()
        if process.returncode is None:
            send_signal(process, signal.SIGKILL)
            await process.wait()

    async def _last_commit(self) -> Revision:
        """The revision of the state: each step that is committed, or begins to wait, changes it."""
        entry = await self._board.entry(state_key(self.agent.name))
        return 0 if entry is None else entry.mod_revision

    async def _recorded_exit(self) -> AgentExit:
        """How the agent ended, according to the board."""
        value = await self._board.get(state_key(self.agent.name))
        if isinstance(value, dict) and value.get("status") == Status.DONE:
            return self._ended("done", str(value.get("outcome", "")))
        return self._ended("stopped")

    def _ended(self, how: Any, outcome: str = "", error: str = "") -> AgentExit:
        at, crashes = self._crashes.recorded_at, self._crashes
        return AgentExit(self.agent.name, how, outcome, crashes.total, error or crashes.error, at)
