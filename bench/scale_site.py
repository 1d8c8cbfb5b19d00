"""What the curves of bench/scale.py run on: an engine, services, and what both of them use."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from bench.ours import WITHOUT_ARCHIVE, serve_ours
from bench.peers import serve_redis
from bench.rows import LOOPBACK
from bench.servers import Lab, Server
from blackboard import connect
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.integrity.tokens import issue, new_secret

SETTLE_S = 1.0
"""After something was made: what is freed at once is not counted."""
CURVE_S_MAX = 45.0
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Spent:
    """What `count` of something took: processor seconds and bytes of the services together and of
    Redis (0 where the engine is embedded), wall time, and descriptors of the services."""

    count: int
    service_s: float
    redis_s: float
    wall_s: float
    service_bytes: int
    redis_bytes: int
    descriptors: int

    @property
    def service_us(self) -> float:
        """Processor time of the services for one."""
        return 1e6 * self.service_s / self.count

    @property
    def redis_us(self) -> float:
        """Processor time of Redis for one."""
        return 1e6 * self.redis_s / self.count

    @property
    def service_kib(self) -> float:
        """Memory of the services for one."""
        return self.service_bytes / self.count / 1024

    @property
    def redis_kib(self) -> float:
        """Memory of Redis for one."""
        return self.redis_bytes / self.count / 1024

    @property
    def per_s(self) -> float:
        """So many in a second, on this machine as loaded as it was."""
        return self.count / self.wall_s


class Budget:
    """The time of one curve on one deployment: a size that would take longer is left out."""

    def __init__(self, s_max: float = CURVE_S_MAX) -> None:
        self._until_s = time.monotonic() + s_max
        self._one_s = 0.0

    def took(self, spent: Spent) -> None:
        """What the size before took."""
        self._one_s = spent.wall_s / spent.count

    def has_time_for(self, more: int) -> bool:
        """Whether so many more fit in."""
        return time.monotonic() + more * self._one_s < self._until_s


class Site:
    """Services over one engine. Connections go to the services in turn."""

    def __init__(self, services: list[Server], redis: Server | None, secret: str) -> None:
        self._services, self._redis, self._secret = services, redis, secret
        self._turns = itertools.cycle(services)
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def client(self, name: str | None = None) -> Client:
        """A connection until the end, as the operator or on the account of an agent."""
        principal = access.operator() if name is None else access.agent(name)
        url = f"ws://{LOOPBACK}:{next(self._turns).port}"
        connecting = connect(url, token=issue(self._secret, principal, HOUR_MS))
        return await self._stack.enter_async_context(connecting)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Let it run until the end."""
        self._tasks.append(asyncio.create_task(work))

    async def spent(self, count: int, work: Callable[[], Awaitable[None]]) -> Spent:
        """What `work` takes, which does something `count` times."""
        service, redis = self._cpu_s()
        memory, began_s = await self._memory(), time.monotonic()
        await work()
        wall_s = time.monotonic() - began_s
        services_after, redis_after = self._cpu_s()
        await asyncio.sleep(SETTLE_S)
        grown = await self._memory()
        return Spent(
            count,
            services_after - service,
            redis_after - redis,
            wall_s,
            max(0, grown[0] - memory[0]),
            max(0, grown[1] - memory[1]),
            sum(_descriptors(one) for one in self._services),
        )

    async def aclose(self) -> None:
        """End what runs, and hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def _memory(self) -> tuple[int, int]:
        services = sum(one.rss_bytes() for one in self._services)
        if self._redis is None:
            return services, 0
        async with Redis(port=self._redis.port) as redis:
            return services, int((await redis.info("memory"))["used_memory"])

    def _cpu_s(self) -> tuple[float, float]:
        services = sum(one.cpu_seconds() for one in self._services)
        return services, self._redis.cpu_seconds() if self._redis else 0.0


def _descriptors(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


@asynccontextmanager
async def site(services: int) -> AsyncIterator[Site]:
    """So many services over a Redis that syncs before each answer; 0: one, with its own engine.

    None keeps an archive.
    """
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), fetch=False)
        try:
            redis = await serve_redis(lab, "redis", "always") if services else None
            engine = () if redis is None else ("--engine", f"redis://{LOOPBACK}:{redis.port}")
            secret = new_secret()
            settings = (WITHOUT_ARCHIVE, f"BLACKBOARD_SECRET={secret}")
            started = [
                await serve_ours(lab, f"service-{number}", engine, archive=settings)
                for number in range(max(1, services))
            ]
            found = Site([server for server, _ in started], redis, secret)
            try:
                yield found
            finally:
                await found.aclose()
        finally:
            lab.close()
