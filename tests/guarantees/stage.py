"""What a chaos run breaks: services, their engine, proxies on every way, workers, lock masters.

Clients reach a service through its door, a service reaches Redis through its line; both are proxies
that a nemesis (nemesis.py) cuts, holds up or lets lose replies.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import blackboard
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.integrity.tokens import issue, new_secret
from tests.faults.tcp_proxy import FRAME, TcpProxy
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.guarantees.redis_failover import FailoverCluster
from tests.guarantees.redis_pair import RedisPair
from tests.guarantees.worker_process import WorkerProcess
from tests.lock_masters import lock_masters
from tests.redis_process import RedisProcess

EMBEDDED, REDIS, CLUSTER = "embedded", "redis", "cluster"
ENGINES = (REDIS, EMBEDDED, CLUSTER)
MAIN = "main"
"""The board with everybody's traffic; that of the workers is another one."""
WORKERS = 3
WORKER_TTL_MS = 1_000
MASTERS = 3
SERVICES = 2
"""Over Redis; the embedded engine belongs to one."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What to build: an engine of ENGINES, a Redis binary (for lock masters too), a directory.

    Only faults of `kinds` are inflicted; all that the engine has, if it is empty.
    """

    engine: str
    binary: Path
    directory: Path
    kinds: tuple[str, ...] = ()


class Stage:
    """`async with Stage(scene) as stage`: everything runs, and workers increment under a lock."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.secret = new_secret()
        self.redis: RedisPair | None = None
        """None with another engine."""
        self.cluster: FailoverCluster | None = None
        """None with another engine."""
        self.services: list[ServiceProcess] = []
        self.doors: list[TcpProxy] = []
        self.lines: list[TcpProxy] = []
        self.masters: Sequence[RedisProcess] = ()
        self.workers: list[WorkerProcess] = []
        """Those that work now; `retired` ones were killed."""
        self.retired: list[WorkerProcess] = []
        self._lives = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._stack = stack
            self.masters = await stack.enter_async_context(lock_masters(self.scene.binary, MASTERS))
            if self.scene.engine == REDIS:
                self.redis = await stack.enter_async_context(RedisPair(self.scene.binary))
            if self.scene.engine == CLUSTER:
                cluster = FailoverCluster(self.scene.binary, MAIN)
                self.cluster = await stack.enter_async_context(cluster)
            for number in range(1 if self.scene.engine == EMBEDDED else SERVICES):
                await self._add_service(number)
            for number in range(WORKERS):
                await self.hire(number)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _add_service(self, number: int) -> None:
        engine = "sqlite"
        if self.redis is not None:
            line = await self._stack.enter_async_context(TcpProxy(self.redis.primary.port))
            self.lines.append(line)
            engine = f"redis://127.0.0.1:{line.port}/0"
        if self.cluster is not None:
            engine = self.cluster.url
        service = ServiceProcess(
            engine,
            self.scene.directory / "data",  # with the archive, which services over Redis share
            secret=self.secret,
            archived=self.scene.engine != EMBEDDED,
            log=self.scene.directory / f"service{number}.log",
            lock_masters=tuple(master.url for master in self.masters),
        )
        self.services.append(await self._stack.enter_async_context(service))
        self.doors.append(await self._stack.enter_async_context(TcpProxy(service.port, FRAME)))

    async def hire(self, number: int) -> WorkerProcess:
        """Start a worker that comes through door `number` (any number)."""
        url, name = self._door(number), f"worker{self._lives}"
        self._lives += 1
        token = issue(self.secret, access.operator(), HOUR_MS)
        arguments = [url, token, name, str(WORKER_TTL_MS)]
        worker = WorkerProcess("tests.guarantees.lease_worker", arguments)
        await worker.start()
        self._stack.push_async_callback(worker.kill)
        self.workers.append(worker)
        return worker

    async def dismiss(self, worker: WorkerProcess) -> None:
        """Kill a worker."""
        self.workers.remove(worker)
        self.retired.append(worker)
        await worker.kill()

    def connect(self, principal: Principal, number: int) -> AbstractAsyncContextManager[Client]:
        """A client that comes through door `number` (any number)."""
        return blackboard.connect(self._door(number), token=issue(self.secret, principal, HOUR_MS))

    def _door(self, number: int) -> str:
        return f"ws://127.0.0.1:{self.doors[number % len(self.doors)].port}"
