"""What one board, agent, watcher, commit and delivery cost, for sums about large installations.

    python -m bench.scale

A service over a Redis of its own, without an archive. Memory is what both processes have more after
so many of a kind were made than before; processor time is theirs in a stretch of work, divided.
Everything is measured in one run, on connections as people make them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from bench.ours import serve_ours
from bench.peers import serve_redis
from bench.rows import LOOPBACK, Endpoint
from bench.servers import Lab, Server
from blackboard import connect
from blackboard.client.board import Board
from blackboard.client.client import Client

WRITERS = 32
COMMITS = 6_000
VALUE = "x" * 256
STATE = "x" * 1_024
WATCHED_COMMITS = 100
SETTLE_S = 1.0
"""After something was made: what is freed at once is not counted."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one of a kind: bytes in the service and in Redis; microseconds of both processors."""

    kind: str
    service_bytes: float = 0.0
    redis_bytes: float = 0.0
    service_us: float = 0.0
    redis_us: float = 0.0

    def row(self) -> str:
        """A line of the table; 0 is left out."""
        cells = (self.service_bytes, self.redis_bytes, self.service_us, self.redis_us)
        return f"| {self.kind} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |"


class Measured:
    """A service, its Redis, and connections to it."""

    def __init__(self, service: Server, redis: Server, endpoint: Endpoint) -> None:
        self._service, self._redis, self._endpoint = service, redis, endpoint
        self.stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Let it run until the end."""
        self._tasks.append(asyncio.create_task(work))

    async def aclose(self) -> None:
        """End what runs, and hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.stack.aclose()

    async def client(self) -> Client:
        """A connection of its own, until the end."""
        url = f"ws://{LOOPBACK}:{self._endpoint.port}"
        return await self.stack.enter_async_context(connect(url, token=self._endpoint.token))

    async def cost(self, kind: str, count: int, work: Callable[[], Awaitable[None]]) -> Cost:
        """What one of `count` costs that `work` makes."""
        before, cpu = await self._memory(), self._cpu_s()
        await work()
        spent = [after - was for after, was in zip(self._cpu_s(), cpu, strict=True)]
        await asyncio.sleep(SETTLE_S)
        grown = [after - was for after, was in zip(await self._memory(), before, strict=True)]
        per_one = [max(0, size) / count for size in grown] + [1e6 * s / count for s in spent]
        return Cost(kind, *per_one)

    async def _memory(self) -> tuple[int, int]:
        async with Redis(port=self._redis.port) as redis:
            used = int((await redis.info("memory"))["used_memory"])
        return self._service.rss_bytes(), used

    def _cpu_s(self) -> tuple[float, float]:
        return self._service.cpu_seconds(), self._redis.cpu_seconds()


async def measure(lab: Measured, many: int) -> list[Cost]:
    """All costs, each of so many."""
    client = await lab.client()
    board = client.board("scale")
    await _write(board, 500)  # what a first commit loads is nobody's cost
    watched = client.board("watched")

    async def make_boards() -> None:
        for number in range(many):
            await client.board(f"board-{number}").put("public/a", 1)

    async def attach_agents() -> None:
        there = asyncio.Semaphore(0)
        for number in range(many):
            lab.run(_be(board.as_agent(f"agent-{number}"), there))
            await there.acquire()

    async def make_connections() -> None:
        for _ in range(many):
            await (await lab.client()).board("watched").get("public/a")

    costs = [
        await lab.cost("board, with one key", many, make_boards),
        await lab.cost("agent that is there, with 1 KB of state", many, attach_agents),
        await lab.cost("connection", many, make_connections),
        await lab.cost("commit of 256 bytes", COMMITS, lambda: _write(board, COMMITS)),
    ]
    arrived = asyncio.Semaphore(0)
    costs.append(await lab.cost("watcher", many, lambda: _watch_all(lab, watched, many, arrived)))
    costs.append(
        await lab.cost(
            "delivery to a watcher",
            many * WATCHED_COMMITS,
            lambda: _deliver(watched, many, arrived),
        )
    )
    return costs


async def _be(board: Board, there: asyncio.Semaphore) -> None:
    """Be an agent, until the end."""
    async with board.attach(ttl_ms=3_600_000):
        await board.put(f"private/{board.agent}/state", STATE)
        there.release()
        await asyncio.Event().wait()


async def _write(board: Board, count: int) -> None:
    """So many commits over a hundred keys: what grows is the log."""
    numbers = iter(range(count))

    async def write() -> None:
        for number in numbers:
            await board.put(f"public/k/{number % 100}", VALUE)

    await asyncio.gather(*(write() for _ in range(WRITERS)))


async def _watch_all(lab: Measured, board: Board, many: int, arrived: asyncio.Semaphore) -> None:
    live = asyncio.Semaphore(0)

    async def watch() -> None:
        async with board.watch("public/**") as found:
            live.release()
            async for _ in found:
                arrived.release()

    for _ in range(many):
        lab.run(watch())
    for _ in range(many):
        await live.acquire()


async def _deliver(board: Board, many: int, arrived: asyncio.Semaphore) -> None:
    """One commit after the other, each delivered to everybody: its own cost is among it."""
    for number in range(WATCHED_COMMITS):
        await board.put("public/a", number)
        for _ in range(many):
            await arrived.acquire()


@asynccontextmanager
async def serving() -> AsyncIterator[Measured]:
    """A service over a Redis that syncs before each answer."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), fetch=False)
        try:
            redis = await serve_redis(lab, "redis-of-scale", "always")
            engine = ("--engine", f"redis://{LOOPBACK}:{redis.port}")
            service, endpoint = await serve_ours(lab, "scale", engine)
            found = Measured(service, redis, endpoint)
            try:
                yield found
            finally:
                await found.aclose()
        finally:
            lab.close()


async def run(many: int) -> None:
    """Measure, and print the table for docs/sizing.md."""
    async with serving() as lab:
        began_s = time.monotonic()
        costs = await measure(lab, many)
    print("| one | service bytes | Redis bytes | service us | Redis us |")
    print("| --- | ---: | ---: | ---: | ---: |")
    print("\n".join(cost.row() for cost in costs))
    print(f"\n{many} of each, {time.monotonic() - began_s:.0f} s")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--many", type=int, default=200, help="so many of each kind, at most 250")
    asyncio.run(run(parser.parse_args().many))
    return 0


if __name__ == "__main__":
    sys.exit(main())
