"""Breaks a stage, one fault after the other: which, for how long and to whom comes from one seed.

Each fault is inflicted, lasts a while, and is healed; then there is a short peace.
"""

import random
import resource
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.errors import BlackboardError
from tests.faults.tcp_proxy import TcpProxy
from tests.guarantees.lease_worker import BOARD as LEASES
from tests.guarantees.stage import MAIN, Stage
from tests.servers import ask
from tests.waiting import let_pass

LASTS_S = (0.05, 1.0)
"""How long a fault lasts: from, to."""
PEACE_S = (0.05, 0.5)
PATIENCE_S = 120.0
"""What healing never takes, on the slowest machine."""
RESTORED_FROM = 50
"""A restore goes back by up to so many revisions."""

Fault = Callable[[], AbstractAsyncContextManager[None]]


class Nemesis:
    """What it did is in `faults` (how often, by kind) and `kept`."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.faults: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        """Restores that were refused, and such: no fault, and no error either."""
        self.kept: dict[str, list[int]] = {MAIN: [], LEASES: []}
        """The last revision of each board that survived each promotion."""
        self._stage = stage
        self._dice = random.Random(f"nemesis {seed}")
        kinds = stage.scene.kinds
        self._kinds = {k: f for k, f in self._named().items() if not kinds or k in kinds}

    def _named(self) -> dict[str, Fault]:
        kinds: dict[str, Fault] = {
            "kill service": self._kill_service,
            "freeze service": self._freeze_service,
            "roll services": self._roll_services,
            "drop answer to client": lambda: self._drop(self._stage.doors),
            "cut clients": lambda: self._cut(self._stage.doors),
            "delay clients": lambda: self._delay(self._stage.doors),
            "swallow clients": lambda: self._swallow(self._stage.doors),
            "kill worker": self._kill_worker,
            "freeze worker": self._freeze_worker,
            "kill lock master": self._kill_master,
            "freeze lock master": self._freeze_master,
            "restore": self._restore,
        }
        if self._stage.cluster is not None:
            return kinds | {"move slot": self._move_slot, "fail over": self._fail_over}
        if self._stage.redis is None:
            return kinds | {"fill disk": self._fill_disk}
        return kinds | {
            "kill engine": self._kill_engine,
            "freeze engine": self._freeze_engine,
            "promote replica": self._promote,
            "fill memory": self._fill_memory,
            "drop answer of engine": lambda: self._drop(self._stage.lines),
            "cut engine": lambda: self._cut(self._stage.lines),
            "delay engine": lambda: self._delay(self._stage.lines),
            "swallow engine": lambda: self._swallow(self._stage.lines),
        }

    async def reign(self, seconds: float, tell: Callable[[], None]) -> None:
        """Fault after fault for `seconds`. All kinds come up before one does again.

        `tell` is called after each.
        """
        until = time.monotonic() + seconds
        waiting: list[str] = []
        while time.monotonic() < until:
            if not waiting:
                waiting = sorted(self._kinds)
                self._dice.shuffle(waiting)
            kind = waiting.pop()
            with anyio.fail_after(PATIENCE_S):
                async with self._kinds[kind]():
                    await let_pass(self._dice.uniform(*LASTS_S))
            self.faults[kind] += 1
            tell()
            await let_pass(self._dice.uniform(*PEACE_S))

    # --- services ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def _kill_service(self) -> AsyncIterator[None]:
        service = self._dice.choice(self._stage.services)
        await service.kill()
        yield
        await service.start()

    @asynccontextmanager
    async def _freeze_service(self) -> AsyncIterator[None]:
        service = self._dice.choice(self._stage.services)
        service.pause()
        yield
        service.resume()

    @asynccontextmanager
    async def _roll_services(self) -> AsyncIterator[None]:
        """As in an upgrade: each is asked to stop, and started again."""
        for service in self._stage.services:
            await service.stop()
            await service.start()
        yield

    @asynccontextmanager
    async def _fill_disk(self) -> AsyncIterator[None]:
        """No file of the service grows: every write fails as on a disk that is full."""
        pid = self._stage.services[0].pid
        usual = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, usual[1]))
        yield
        resource.prlimit(pid, resource.RLIMIT_FSIZE, usual)

    # --- the engine -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _kill_engine(self) -> AsyncIterator[None]:
        assert self._stage.redis is not None
        await self._stage.redis.primary.kill()
        yield
        await self._stage.redis.primary.restart()

    @asynccontextmanager
    async def _freeze_engine(self) -> AsyncIterator[None]:
        assert self._stage.redis is not None
        self._stage.redis.primary.pause()
        yield
        self._stage.redis.primary.resume()

    @asynccontextmanager
    async def _fill_memory(self) -> AsyncIterator[None]:
        assert self._stage.redis is not None
        server = self._stage.redis.primary
        await ask(server, "CONFIG", "SET", "maxmemory", 1)
        yield
        await ask(server, "CONFIG", "SET", "maxmemory", 0)

    @asynccontextmanager
    async def _promote(self) -> AsyncIterator[None]:
        """The replica falls behind, the primary dies, and the replica takes its place."""
        pair = self._stage.redis
        assert pair is not None
        pair.part()
        yield
        await pair.promote()
        for board, kept in self.kept.items():
            kept.append(await pair.holds(board))
        for line in self._stage.lines:
            line.lead_to(pair.primary.port)
        await pair.attach()

    @asynccontextmanager
    async def _move_slot(self) -> AsyncIterator[None]:
        assert self._stage.cluster is not None
        await self._stage.cluster.move_and_back()
        yield

    @asynccontextmanager
    async def _fail_over(self) -> AsyncIterator[None]:
        assert self._stage.cluster is not None
        await self._stage.cluster.fail_over()
        yield

    # --- the ways ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def _drop(self, proxies: list[TcpProxy]) -> AsyncIterator[None]:
        self._dice.choice(proxies).drop_replies(self._dice.randint(1, 3))
        yield

    @asynccontextmanager
    async def _cut(self, proxies: list[TcpProxy]) -> AsyncIterator[None]:
        proxy = self._dice.choice(proxies)
        proxy.hold()
        proxy.cut()
        yield
        proxy.release()

    @asynccontextmanager
    async def _delay(self, proxies: list[TcpProxy]) -> AsyncIterator[None]:
        proxy = self._dice.choice(proxies)
        proxy.delay_s = self._dice.uniform(0.001, 0.05)
        yield
        proxy.delay_s = 0.0

    @asynccontextmanager
    async def _swallow(self, proxies: list[TcpProxy]) -> AsyncIterator[None]:
        proxy = self._dice.choice(proxies)
        proxy.swallow()
        yield
        proxy.flow()

    # --- workers and lock masters -----------------------------------------------------------------

    @asynccontextmanager
    async def _kill_worker(self) -> AsyncIterator[None]:
        await self._stage.dismiss(self._dice.choice(self._stage.workers))
        yield
        await self._stage.hire(self._dice.randrange(10))

    @asynccontextmanager
    async def _freeze_worker(self) -> AsyncIterator[None]:
        """Up to twice as long as its lease lives."""
        worker = self._dice.choice(self._stage.workers)
        worker.send(signal.SIGSTOP)
        await let_pass(self._dice.random())
        yield
        worker.send(signal.SIGCONT)

    @asynccontextmanager
    async def _kill_master(self) -> AsyncIterator[None]:
        master = self._dice.choice(self._stage.masters)
        await master.kill()
        yield
        await master.restart()

    @asynccontextmanager
    async def _freeze_master(self) -> AsyncIterator[None]:
        master = self._dice.choice(self._stage.masters)
        master.pause()
        yield
        master.resume()

    # --- the past ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def _restore(self) -> AsyncIterator[None]:
        """Take the workers' board back a little, while they work."""
        back = self._dice.randint(1, RESTORED_FROM)
        async with self._stage.connect(access.operator(), self._dice.randrange(2)) as client:
            try:
                await self._take_back(client.board(LEASES), back)
            except BlackboardError as error:
                self.failed[f"restore: {error.code}"] += 1
        yield

    async def _take_back(self, board: Board, back: int) -> None:
        head = await board.head()
        first = max(head.epoch.revision, head.revision - back)
        if first < head.revision:
            await board.restore(first)
