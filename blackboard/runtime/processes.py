"""Lives in processes of their own: what one agent does to its process, no other one feels.

    place = Place(url, token)
    await run_team(board, agents, make_life=in_processes(board, place))

The process (`runtime/child.py`) looks after its agent as `Life` does: errors of a step do not end
it. This end notices when the process itself dies, and starts it again.

Invariants
- a process that dies is restarted after a growing pause; AGENT_CRASHES_MAX deaths without a step in
  between are a crash loop, which is recorded on the board.
- a process whose parent is gone ends on its own: it reads from a pipe that only the parent holds.
- what an agent waits for while it rests comes through a pipe that only its process holds.
- a token is in the environment of the process and never among its arguments, which all may see.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process
from pydantic import BaseModel, ConfigDict

from blackboard.client.board import Board
from blackboard.client.contexts import TOKEN_VARIABLE
from blackboard.errors import BlackboardError, InvalidRequest
from blackboard.limits import AGENT_ERROR_BYTES_MAX
from blackboard.runtime.agent import Agent
from blackboard.runtime.run import Rest
from blackboard.runtime.state import Status, state_key
from blackboard.runtime.supervisor import (
    CRASH_LOOP_CODE,
    AgentExit,
    Crashes,
    RestartPolicy,
    supervision_key,
)
from blackboard.runtime.team import MakeSupervisor

_CHILD = "blackboard.runtime.child"
_PIPE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class BoardAddress:
    """Where a process finds the board. `token`: an operator's, or a function of the agent."""

    url: str
    token: str | Callable[[str], str]

    def token_of(self, agent: str) -> str:
        """With what `agent` connects."""
        return self.token if isinstance(self.token, str) else self.token(agent)


class Order(BaseModel):
    """The only argument of a process: what to run."""

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
    """Takes the lines of `rest_line` in, however they are cut."""

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
def rests_of(agent: str, on_rest: Callable[[Rest | None], None]) -> Iterator[int]:
    """A pipe for the process of `agent`: the descriptor that it writes `rest_line`s to."""
    ours, theirs = os.pipe()
    lines, loop = _Lines(agent, on_rest), asyncio.get_running_loop()
    loop.add_reader(ours, lambda: lines.read(os.read(ours, _PIPE_BYTES)))
    try:
        yield theirs
    finally:
        loop.remove_reader(ours)
        os.close(ours)
        os.close(theirs)
        on_rest(None)


def target_of(kind: type[Agent[Any]]) -> str:
    """The name by which a process imports `kind`: `package.module:Class`.

    Errors: InvalidRequest when it cannot be imported: a class of a function, or of a script.
    """
    module = kind.__module__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec.name if spec else ""
    if not module or "<" in kind.__qualname__:
        reason = f"{kind.__qualname__} stands in no module that a process could import"
        raise InvalidRequest(field="agents", reason=reason)
    return f"{module}:{kind.__qualname__}"


def in_processes(
    board: Board, place: BoardAddress, policy: RestartPolicy | None = None
) -> MakeSupervisor:
    """For `run_team`: runs each agent in a separate process.

    The process makes the agent by its class and its name: it gets nothing else that the object has.
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
        self.pid: int | None = None
        """The process as it is now."""
        self.rest: Rest | None = None
        """What the agent waits for, while it has nothing to do."""
        self.on_rest: Callable[[], None] = lambda: None
        """Called when `rest` is another one."""

    def stop(self) -> None:
        """Ask the process to stop; it is killed if it does not."""
        self._stop.set()

    async def run(self) -> AgentExit:
        """As `Life.run`. Cancellation: the process is asked to end, and killed if it does not."""
        ended: AgentExit | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._crashes.take_back)
            ended = await self._live()
            tasks.cancel_scope.cancel()
        assert ended is not None
        return ended

    async def _live(self) -> AgentExit:
        step = await self._step()
        while not self._stop.is_set():
            epoch = (await self._board.head()).epoch.number
            code, error = await self._process()
            if code == 0:
                ended = await self._as_told()
                if ended.how == "done" or (await self._board.head()).epoch.number == epoch:
                    return ended
                continue  # it was done, and a restore took that back
            if code == CRASH_LOOP_CODE:
                told = await self._board.get(supervision_key(self.agent.name), {})
                return self._ended("crash_loop", error=str(told.get("error", error)))
            if self._stop.is_set():
                break
            now = await self._step()
            if now != step:
                self._crashes.progress()
            step = now
            if await self._crashes.add(error):
                return self._ended("crash_loop", error=error)
            with anyio.move_on_after(self._crashes.pause_s()):
                await self._stop.wait()
        return self._ended("stopped")

    async def _process(self) -> tuple[int, str]:
        """A process from its start to its end: its exit code, and what it said last."""
        with rests_of(self.agent.name, self._rests) as rests:
            order = self._order.model_copy(update={"rests": rests})
            process = await anyio.open_process(
                [sys.executable, "-m", _CHILD, order.model_dump_json()],
                env=os.environ | {TOKEN_VARIABLE: self._token},
                stdout=None,
                pass_fds=[rests],
            )
            self.pid = process.pid
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._end_when_told, process)
                    assert process.stderr is not None
                    said = await _last_said(process.stderr)
                    code = await process.wait()
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._end(process)
                    await process.aclose()
        return code, f"exit {code}: {said}" if code >= 0 else f"killed by signal {-code}"

    def _rests(self, rest: Rest | None) -> None:
        self.rest = rest
        self.on_rest()

    async def _end_when_told(self, process: Process) -> None:
        await self._stop.wait()
        await self._end(process)

    async def _end(self, process: Process) -> None:
        """Ask for an end, then make one."""
        if process.returncode is not None:
            return
        process.terminate()
        patience_ms = self._policy.grace_ms + self._board.limits.client.finish_timeout_ms
        with anyio.move_on_after(patience_ms / 1000):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()

    async def _step(self) -> Any:
        try:
            value = await self._board.get(state_key(self.agent.name))
        except BlackboardError:
            return None
        return value.get("step") if isinstance(value, dict) else None

    async def _as_told(self) -> AgentExit:
        """How it ended, by what the board has."""
        value = await self._board.get(state_key(self.agent.name))
        if isinstance(value, dict) and value.get("status") == Status.DONE:
            return self._ended("done", str(value.get("outcome", "")))
        return self._ended("stopped")

    def _ended(self, how: Any, outcome: str = "", error: str = "") -> AgentExit:
        crashes = self._crashes
        return AgentExit(self.agent.name, how, outcome, crashes.total, error or crashes.error)


async def _last_said(stream: ByteReceiveStream) -> str:
    """Hand on what a process writes to stderr, and return the end of it."""
    last = b""
    async for chunk in stream:
        sys.stderr.buffer.write(chunk)
        sys.stderr.flush()
        last = (last + chunk)[-AGENT_ERROR_BYTES_MAX:]
    lines = last.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
