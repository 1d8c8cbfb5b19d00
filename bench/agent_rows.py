"""What bench/agents.py measures: an agent that says 1 KB in each step; and our ways to keep it."""

from __future__ import annotations

import base64
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from bench.ours import embedded, serve_ours
from bench.peers import POWER_LOSS, serve_redis
from bench.rows import LOOPBACK, client_module
from bench.servers import TICKS_PER_SECOND, Lab, Server
from blackboard import Agent, Board, Context, LiveBoardPort, Runner, Step, run_agent
from blackboard.limits import OPERATIONS_MAX
from blackboard.ops import Put, encode_value

MESSAGE_BYTES = 1_000


def message(number: int) -> str:
    """A text of 1 KB that compression cannot shrink below three quarters."""
    return base64.b64encode(random.Random(number).randbytes(MESSAGE_BYTES)).decode()[:MESSAGE_BYTES]


def size_of(folder: Path) -> int:
    """Bytes of all files below it, whatever they hold."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def cpu_seconds(server: Server) -> float:
    """User and system time so far, of its ended children, too (fields 14 to 17 of its stat)."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_SECOND


class AgentRow(ABC):
    """A way to keep what an agent remembers."""

    name: ClassVar[str]
    survives: ClassVar[str] = POWER_LOSS
    servers: Sequence[Server] = ()
    """Those whose processor time can be told."""

    @abstractmethod
    async def start(self, lab: Lab) -> None:
        """Bring it up; `UnavailableError` if that cannot be."""

    @abstractmethod
    async def take(self, name: str, steps: int) -> float:
        """Let a new agent take so many steps; returns the seconds that they took, alone."""

    @abstractmethod
    def disk_bytes(self) -> int:
        """What all agents so far occupy."""


# --- ours -----------------------------------------------------------------------------------------


class Counted(BaseModel):
    """What ours has in mind; what it remembers stands in entries of its own."""

    n: int = 0


class Talker(Agent[Counted]):
    """Says something in every step."""

    def __init__(self, name: str, steps: int) -> None:
        super().__init__(name)
        self.steps = steps

    async def step(self, ctx: Context[Counted]) -> None:
        """Append a message."""
        said = {"role": "assistant", "id": ctx.state.n, "content": message(ctx.state.n)}
        ctx.append(f"private/{self.name}/messages", said)
        ctx.state.n += 1
        if ctx.state.n == self.steps:
            ctx.done()


async def talk(board: Board, name: str, steps: int) -> float:
    """All of it, from becoming the agent to giving that back."""
    began = time.monotonic()
    await run_agent(Talker(name, steps), board)
    return time.monotonic() - began


class OursRow(AgentRow):
    """A board of ours, wherever it is."""

    @abstractmethod
    def client(self) -> Any:
        """An async context manager: a client of the service, or of the engine."""

    async def take(self, name: str, steps: int) -> float:
        async with self.client() as client:
            return await talk(client.board("bench"), name, steps)

    async def hydrations(self, name: str, keys: int, times: int) -> list[float]:
        """Milliseconds that it takes a process, which knows a name, to have the agent's state.

        The agent has so many private keys. The process is connected already.
        """
        found = []
        async with self.client() as client:
            board = client.board("bench").as_agent(name)
            await board.run_step(name, lambda step: put_state(step, name))
            value = encode_value(message(0)[:100])
            for start in range(0, keys, OPERATIONS_MAX):
                some = range(start, min(keys, start + OPERATIONS_MAX))
                await board.commit([Put(f"private/{name}/notes/{n}", value) for n in some])
            for _ in range(times):
                fresh = client.board("bench").as_agent(name)
                began = time.monotonic()
                await Runner(Talker(name, 1), LiveBoardPort(fresh)).hydrate()
                found.append((time.monotonic() - began) * 1e3)
        return found


async def put_state(step: Step, name: str) -> None:
    """A state as the runtime keeps it."""
    stored = {"kind": Talker.kind, "version": 1, "step": 1, "state": {"n": 1}}
    step.put(f"private/{name}/~state", stored)


class OursInProcess(OursRow):
    """The embedded engine in the agent's own process, as LangGraph's savers are."""

    name: ClassVar[str] = "ours-in-process"

    async def start(self, lab: Lab) -> None:
        self._folder = lab.data_folder(f"agents-{self.name}")

    def client(self) -> Any:
        return embedded(self._folder)

    def disk_bytes(self) -> int:
        return size_of(self._folder)


class OursArchived(OursInProcess):
    """The same as it comes, with the archive: every version of every key, for ever, searchable."""

    name: ClassVar[str] = "ours-archived"

    def client(self) -> Any:
        return client_module("blackboard").open(self._folder)


class OursServed(OursRow):
    """Through the service, over a WebSocket, on the embedded engine."""

    name: ClassVar[str] = "ours-embedded"

    async def start(self, lab: Lab) -> None:
        await self._serve(lab, ())

    async def _serve(self, lab: Lab, engine: Sequence[str]) -> None:
        server, self._endpoint = await serve_ours(lab, f"agents-{self.name}", engine)
        self.servers = [server]
        self._folders = [lab.folder / f"agents-{self.name}"]

    def client(self) -> Any:
        url = f"ws://{LOOPBACK}:{self._endpoint.port}"
        return client_module("blackboard").connect(url, token=self._endpoint.token)

    def disk_bytes(self) -> int:
        return sum(map(size_of, self._folders))


class OursRedis(OursServed):
    """The same on a Redis that syncs before each answer."""

    name: ClassVar[str] = "ours-redis"

    async def start(self, lab: Lab) -> None:
        redis = await serve_redis(lab, "agents-redis", "always")
        await self._serve(lab, ("--engine", f"redis://{LOOPBACK}:{redis.port}"))
        self.servers = [*self.servers, redis]
        self._folders = [lab.folder / "agents-redis"]


OURS: tuple[type[AgentRow], ...] = (OursInProcess, OursArchived, OursServed, OursRedis)
