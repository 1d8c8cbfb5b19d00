"""Leases under pauses, crashes and clock jumps: L1 to L6 hold, and no acknowledged step is lost.

Workers are processes that the kernel stops for longer than their leases live, just when they have
the lock; the service is killed and started again in the middle. BLACKBOARD_PAUSES=100 makes it
long. Redlock alone lost 140 of 1,824 acknowledged increments in such a run.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.commit import HeldFence
from blackboard.engines.redis.redlock import LockMasters
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Fenced, LeaseLost, Unavailable
from blackboard.integrity.tokens import issue
from blackboard.server.service import Service
from blackboard.wire.codec import decode_value, encode_value
from tests.guarantees.lease_checkers import check
from tests.guarantees.lease_history import Acquired, LeaseHistory, Relied, moments
from tests.guarantees.lease_record import acquired_of, relied_of, whole_log
from tests.guarantees.lease_worker import BOARD, COUNTER, LOCK
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.guarantees.worker_process import WorkerProcess
from tests.lock_masters import lock_masters
from tests.lowered import lowered
from tests.redis_process import RedisProcess
from tests.waiting import wait_until

PAUSES = int(os.environ.get("BLACKBOARD_PAUSES", "6"))
WORKERS = 4
TTL_MS = 500
VOTE_MS = 750
VOTED_MS = 20 * VOTE_MS
"""How long a lock master has to answer where one of three hangs; and a lease for which it has."""
PATIENCE_S = 90.0
"""What a hang would exceed."""
pytestmark = pytest.mark.timeout(4 * PATIENCE_S)


async def run_workers(
    service: ServiceProcess, dice: random.Random
) -> tuple[list[WorkerProcess], list[tuple[int, int]]]:
    """Let workers run, pause each holder that chance names, and kill the service once.

    Returns the workers and the stretches of time in which there was no service.
    """
    outages = []
    async with contextlib.AsyncExitStack() as stack:
        token = issue(service.secret, access.operator(), HOUR_MS)
        workers = []
        for number in range(WORKERS):
            arguments = [service.url, token, f"worker{number}", str(TTL_MS)]
            worker = WorkerProcess("tests.guarantees.lease_worker", arguments)
            await worker.start()
            stack.push_async_callback(worker.kill)
            workers.append(worker)
        for pause in range(PAUSES):
            await pause_a_holder(workers, dice)
            if pause == PAUSES // 2:
                gone_ms = time.time_ns() // 1_000_000
                await service.kill()
                await service.start()
                outages.append((gone_ms, time.time_ns() // 1_000_000))
        statuses = await asyncio.gather(*(worker.finish(PATIENCE_S) for worker in workers))
        assert statuses == [0] * WORKERS, [worker.lines[-3:] for worker in workers]
    return workers, outages


async def pause_a_holder(workers: list[WorkerProcess], dice: random.Random) -> None:
    """Stop a worker when it has the lock, until another one got it; then let it go on."""
    victim = dice.choice(workers)
    others = [worker for worker in workers if worker is not victim]
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(dice.randint(1, 5)):
            await hear([victim])
        victim.send(signal.SIGSTOP)
        try:
            await hear(others)
        finally:
            victim.send(signal.SIGCONT)


async def hear(workers: list[WorkerProcess]) -> None:
    """Wait until one of `workers` says that it has acquired the lock."""
    starts = [len(worker.lines) for worker in workers]
    while True:
        for worker in workers:
            worker.heard.clear()
        for worker, start in zip(workers, starts, strict=True):
            if any(line["said"] == "acquired" for line in worker.lines[start:]):
                return
        waits = [asyncio.ensure_future(worker.heard.wait()) for worker in workers]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def judge(
    board: Board,
    acquired: list[Acquired],
    relied: list[Relied],
    outages: list[tuple[int, int]],
) -> None:
    """Nothing acknowledged is lost, each step builds on the one before, and L1 to L6 hold."""
    log = await whole_log(board)
    history = LeaseHistory(moments(log), acquired, relied, outages, log[-1].time_ms)
    assert check(history) == {}
    written = [c.value for e in log for c in e.changes if c.key == COUNTER and c.value is not None]
    counts = [decode_value(value)["count"] for value in written]
    assert counts == list(range(1, len(counts) + 1))
    done = [one for one in relied if one.outcome == "done"]
    assert {one.value for one in done} <= set(written)
    told = f"{len(done)} increments done, {len(counts)} in the log, {len(relied)} asked for"
    sys.stdout.write(f"{told}, {PAUSES} faults\n")
    assert len(done) > PAUSES


async def run(service: ServiceProcess, seed: int) -> None:
    """A service, workers, pauses, a crash, and the judgement."""
    sys.stdout.write(f"seed {seed}\n")
    async with service:
        workers, outages = await run_workers(service, random.Random(seed))
        acquired = [one for worker in workers for one in acquired_of(worker)]
        relied = [one for worker in workers for one in relied_of(worker)]
        async with service.connect() as client:
            await judge(client.board(BOARD), acquired, relied, outages)


@pytest.mark.slow
async def test_no_acknowledged_increment_is_lost_on_the_embedded_engine(
    tmp_path: Path, seed: int
) -> None:
    await run(ServiceProcess("sqlite", tmp_path), seed)


@pytest.mark.slow
async def test_no_acknowledged_increment_is_lost_on_redis(
    redis_binary: Path, tmp_path: Path, seed: int
) -> None:
    """The server syncs each write, as a deployment does."""
    async with RedisProcess(redis_binary) as server:
        await run(ServiceProcess(server.url, tmp_path), seed)


# --- in this process: clocks and lock masters -----------------------------------------------------


class JumpingClock:
    """The engine's clock, which somebody sets forward and back; `jumps` are the ones forward."""

    def __init__(self) -> None:
        self._offset_ns = 0
        self.jumps: list[tuple[int, int]] = []

    def __call__(self) -> int:
        return time.time_ns() + self._offset_ns

    def jump(self, by_ms: int) -> None:
        """Set it forward, or back."""
        before_ms = self() // 1_000_000
        self._offset_ns += by_ms * 1_000_000
        if by_ms > 0:
            self.jumps.append((before_ms, self() // 1_000_000))


class Team:
    """Tasks that increment under a lock; `fault` happens between reading and writing.

    The writes do not hear of a loss: nothing but their fences can stop them.
    """

    def __init__(self, fault: Callable[[], Awaitable[None]], ttl_ms: int = TTL_MS) -> None:
        self.acquired: list[Acquired] = []
        self.relied: list[Relied] = []
        self.is_over = False
        self._fault = fault
        self._ttl_ms = ttl_ms

    async def run(self, service: Service) -> None:
        """Let them work until `is_over`."""
        boards = [Client(service.link(access.operator())).board(BOARD) for _ in range(WORKERS)]
        async with asyncio.timeout(2 * PATIENCE_S), asyncio.TaskGroup() as tasks:
            for number, board in enumerate(boards):
                tasks.create_task(self._work(board, f"task{number}"))

    async def somebody_else(self, meanwhile: Callable[[], None]) -> None:
        """Do `meanwhile` until another one has the lock, which is to be had only if it is lost."""
        before = len(self.acquired)

        async def is_taken() -> bool:
            meanwhile()
            return len(self.acquired) > before

        await wait_until(is_taken, timeout_s=PATIENCE_S)

    async def _work(self, board: Board, tag: str) -> None:
        for number in count():
            if self.is_over:
                return
            # A master that is alive and slow does not vote either: the lock is asked for again.
            with contextlib.suppress(LeaseLost, Unavailable):
                async with board.lock(LOCK, ttl_ms=self._ttl_ms) as lock:
                    [fence] = lock.fences
                    self.acquired.append(Acquired(LOCK, fence.holder, fence.fence))
                    section = asyncio.create_task(self._update(board, f"{tag}-{number}", fence))
                    try:
                        await asyncio.shield(section)
                    finally:
                        await asyncio.wait([section])

    async def _update(self, board: Board, tag: str, fence: HeldFence) -> None:
        found = await board.get(COUNTER, {"count": 0})
        await self._fault()
        value = {"count": found["count"] + 1, "by": tag}
        outcome, revision = "unknown", 0
        try:
            revision = (await board.put(COUNTER, value)).revision
            outcome = "done"
        except Fenced:
            outcome = "refused"
        finally:
            relied = Relied(encode_value(value), LOCK, fence.holder, fence.fence, outcome, revision)
            self.relied.append(relied)


async def test_leases_survive_an_engine_whose_clock_jumps(tmp_path: Path, seed: int) -> None:
    """Set forward, leases run out under their holders; set back, they live longer. Fences hold."""
    dice, clock = random.Random(seed), JumpingClock()
    faults = 0

    async def jump() -> None:
        nonlocal faults
        faults += 1
        team.is_over = faults >= 10 * PAUSES
        if faults % 10 == 5 and not team.is_over:
            # Again and again, for the holder renews a lease that ran out if nobody took it yet.
            await team.somebody_else(lambda: clock.jump(2 * TTL_MS))
        else:
            clock.jump(dice.choice((-2, -1, 1, 2)) * TTL_MS)

    team = Team(jump)
    store = await SqliteStore.at(tmp_path, clock_ns=clock)
    async with Service(store) as service:
        await team.run(service)
        board = Client(service.link(access.operator())).board(BOARD)
        await judge(board, team.acquired, team.relied, clock.jumps)
    assert sum(one.outcome == "refused" for one in team.relied) >= PAUSES


async def test_leases_go_on_while_lock_masters_die_and_hang(
    redis_binary: Path, tmp_path: Path, seed: int
) -> None:
    """Any one of three may be gone at a time."""
    chosen = lowered(lock_master_timeout_ms=VOTE_MS)
    dice = random.Random(seed)
    faults = 0
    async with contextlib.AsyncExitStack() as stack:
        masters = await stack.enter_async_context(lock_masters(redis_binary, 3))
        victim = masters[0]

        async def harm() -> None:
            nonlocal faults, victim
            faults += 1
            team.is_over = faults >= 10 * PAUSES
            if faults % 10 == 5:
                victim = dice.choice(masters)
                if dice.random() < 0.5:
                    await victim.kill()
                else:
                    victim.pause()
            elif faults % 10 == 0:
                await victim.restart()

        team = Team(harm, VOTED_MS)
        store = await SqliteStore.at(tmp_path)
        voters = LockMasters([master.url for master in masters], chosen)
        service = await stack.enter_async_context(Service(store, lock_masters=voters))
        await team.run(service)
        board = Client(service.link(access.operator())).board(BOARD)
        await judge(board, team.acquired, team.relied, [])
