"""The cells: what is done to a row, and the figures that come out.

All clients of a cell live in one process on one event loop, so the figures are those of the
system together with its Python client, and CPU per operation is given for both sides.
Every loop ends: by its time, by its count, or by a named time-out.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from bench.figures import Figures, quantile
from bench.rows import Connection, Row

VALUE_BYTES = 256
KEYS = 1_000
FAN_KEYS = 10
WARM_UP_SECONDS = 0.3
CONTENDERS = 8
PRIME_SECONDS_MAX = 15.0
DRAIN_SECONDS_MAX = 20.0
STAMP_DIGITS, NUMBER_DIGITS = 20, 10
PADDING = b"x" * (VALUE_BYTES - STAMP_DIGITS - NUMBER_DIGITS)
PACED_CHANGES_PER_SECOND_MAX = 50.0
PACED_DELIVERIES_PER_SECOND = 2_000.0
BURST_DELIVERIES_PER_SECOND = {1: 1_500, 10: 6_000}
BURST_DELIVERIES_PER_SECOND_MANY = 15_000

_names = itertools.count(random.SystemRandom().randrange(10**9))


def fresh_folder(purpose: str) -> str:
    """A folder that no cell used before, so that rows start from nothing in every round."""
    return f"{purpose}{next(_names)}"


def stamped(number: int) -> bytes:
    """A value of 256 bytes that tells when it was sent and which one of its series it is."""
    return b"%020d%010d" % (time.monotonic_ns(), number) + PADDING


@dataclass(frozen=True, slots=True)
class CpuMeter:
    """CPU and wall clock at one moment; `since` gives what was used from then on."""

    row: Row
    wall: float
    client: float
    server: float

    @classmethod
    def start(cls, row: Row) -> CpuMeter:
        """Read all three clocks."""
        return cls(row, time.monotonic(), time.process_time(), row.cpu_seconds())

    def since(self, operations: int) -> tuple[float, Figures]:
        """Seconds passed, and microseconds of CPU per operation on both sides."""
        seconds = time.monotonic() - self.wall
        per = 1e6 / max(1, operations)
        return seconds, {
            "client us": (time.process_time() - self.client) * per,
            "server us": (self.row.cpu_seconds() - self.server) * per,
        }


async def _all(work: list[Coroutine[None, None, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for coroutine in work:
            group.create_task(coroutine)


async def _write_until(
    connection: Connection, keys: list[str], deadline: float, delays_ms: list[float]
) -> None:
    for number, key in enumerate(itertools.cycle(keys)):
        started = time.monotonic()
        if started >= deadline:
            return
        await connection.put(key, stamped(number))
        delays_ms.append((time.monotonic() - started) * 1e3)


async def put_cell(row: Row, writers: int, seconds: float) -> Figures:
    """Closed-loop writers that share one client, each on its own share of 1,000 keys."""
    connection = await row.connect()
    shares = [[f"k/{key:04d}" for key in range(first, KEYS, writers)] for first in range(writers)]
    try:
        delays_ms: list[float] = []
        for phase_seconds in (WARM_UP_SECONDS, seconds):
            delays_ms.clear()
            meter = CpuMeter.start(row)
            deadline = meter.wall + phase_seconds
            await _all([_write_until(connection, keys, deadline, delays_ms) for keys in shares])
        elapsed, cpu = meter.since(len(delays_ms))
    finally:
        await connection.close()
    return {
        "op/s": len(delays_ms) / elapsed,
        "p50 ms": quantile(delays_ms, 0.5),
        "p99 ms": quantile(delays_ms, 0.99),
        **cpu,
    }


@dataclass(slots=True)
class Deliveries:
    """What all watchers of one cell received of the numbered series first..last."""

    watchers: int
    first: int = 0
    last: int = -1
    received: int = 0
    lost: int = 0
    repeated: int = 0
    delays_ms: list[float] = field(default_factory=list)
    waiting: int = 0
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    _next: list[int] = field(default_factory=list)

    def expect(self, changes: int) -> None:
        """Open the next series; its numbers follow the last one's."""
        self.first, self.last = self.last + 1, self.last + changes
        self._next = [self.first] * self.watchers
        self.received = self.lost = self.repeated = 0
        self.waiting = self.watchers
        self.delays_ms.clear()
        self.complete.clear()

    def receiver(self, watcher: int) -> Callable[[bytes], None]:
        """The callback of one watcher."""

        def receive(value: bytes) -> None:
            now = time.monotonic_ns()
            number = int(value[STAMP_DIGITS : STAMP_DIGITS + NUMBER_DIGITS])
            self.take(watcher, number, (now - int(value[:STAMP_DIGITS])) / 1e6)

        return receive

    def take(self, watcher: int, number: int, delay_ms: float) -> None:
        """Count one arrival; numbers before the series are stragglers of the one before."""
        expected = self._next[watcher]
        if number < expected:
            self.repeated += number >= self.first
            return
        self.lost += number - expected
        self._next[watcher] = number + 1
        self.received += 1
        self.delays_ms.append(delay_ms)
        if number == self.last:
            self.waiting -= 1
            if self.waiting == 0:
                self.complete.set()

    async def wait(self, seconds_max: float) -> None:
        """Until every watcher has the last one; what is missing after the limit is lost."""
        try:
            await asyncio.wait_for(self.complete.wait(), seconds_max)
        except TimeoutError:
            self.lost += sum(self.last + 1 - following for following in self._next)


async def fan_cell(row: Row, watchers: int, seconds: float) -> Figures:
    """One writer and watchers on connections of their own: paced latency, then a burst."""
    deliveries, folder = Deliveries(watchers), fresh_folder("fan")
    connections = [await row.connect()]
    try:
        for watcher in range(watchers):
            connections.append(await row.connect())
            await connections[-1].watch(folder, deliveries.receiver(watcher))
        writer = connections[0]
        await _send(writer, folder, deliveries, 1, per_second=None)
        await deliveries.wait(PRIME_SECONDS_MAX)
        if deliveries.lost:
            raise RuntimeError(f"{deliveries.lost} of {watchers} watchers missed the first change")
        paced = await _paced(writer, folder, deliveries, seconds)
        return {**paced, **await _burst(row, writer, folder, deliveries, seconds)}
    finally:
        await _close_all(connections)


async def _close_all(connections: list[Connection]) -> None:
    outcomes = await asyncio.gather(
        *(connection.close() for connection in connections), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _send(
    writer: Connection,
    folder: str,
    deliveries: Deliveries,
    changes: int,
    *,
    per_second: float | None,
) -> None:
    deliveries.expect(changes)
    started = time.monotonic()
    for sent, number in enumerate(range(deliveries.first, deliveries.last + 1)):
        if per_second is not None:
            await asyncio.sleep(max(0.0, started + sent / per_second - time.monotonic()))
        await writer.put(f"{folder}/{number % FAN_KEYS}", stamped(number))


async def _paced(
    writer: Connection, folder: str, deliveries: Deliveries, seconds: float
) -> Figures:
    per_second = min(
        PACED_CHANGES_PER_SECOND_MAX, PACED_DELIVERIES_PER_SECOND / deliveries.watchers
    )
    changes = max(5, int(per_second * seconds))
    await _send(writer, folder, deliveries, changes, per_second=per_second)
    await deliveries.wait(DRAIN_SECONDS_MAX)
    return {
        "paced p50 ms": quantile(deliveries.delays_ms, 0.5),
        "paced p99 ms": quantile(deliveries.delays_ms, 0.99),
        "paced lost": deliveries.lost,
    }


async def _burst(
    row: Row, writer: Connection, folder: str, deliveries: Deliveries, seconds: float
) -> Figures:
    watchers = deliveries.watchers
    rate = BURST_DELIVERIES_PER_SECOND.get(watchers, BURST_DELIVERIES_PER_SECOND_MANY)
    meter = CpuMeter.start(row)
    await _send(
        writer, folder, deliveries, max(20, int(rate * seconds / watchers)), per_second=None
    )
    await deliveries.wait(DRAIN_SECONDS_MAX)
    elapsed, cpu = meter.since(deliveries.received)
    return {
        "deliveries/s": deliveries.received / elapsed,
        "burst p50 ms": quantile(deliveries.delays_ms, 0.5),
        "lost": deliveries.lost,
        "repeated": deliveries.repeated,
        **cpu,
    }


async def cas_cell(row: Row, seconds: float) -> Figures:
    """Eight tasks add one to one counter by reading and conditional writing, retried at once."""
    connection, key = await row.connect(), f"{fresh_folder('cas')}/counter"
    attempts = successes = 0

    async def contend(deadline: float) -> None:
        nonlocal attempts, successes
        while time.monotonic() < deadline:
            value, version = await connection.read(key)
            attempts += 1
            if await connection.swap(key, b"%d" % (int(value) + 1), version):
                successes += 1

    try:
        await connection.put(key, b"0")
        meter = CpuMeter.start(row)
        await _all([contend(meter.wall + seconds) for _ in range(CONTENDERS)])
        elapsed, cpu = meter.since(successes)
        total = int((await connection.read(key))[0])
    finally:
        await connection.close()
    return {
        "increments/s": successes / elapsed,
        "attempts each": attempts / max(1, successes),
        "miscounted": abs(total - successes),
        **cpu,
    }


async def increment_cell(row: Row, seconds: float) -> Figures:
    """Eight tasks add one to one counter with the system's own operation."""
    connection, key = await row.connect(), f"{fresh_folder('count')}/counter"
    done = 0

    async def add(deadline: float) -> None:
        nonlocal done
        while time.monotonic() < deadline:
            await connection.increment(key)
            done += 1

    try:
        meter = CpuMeter.start(row)
        await _all([add(meter.wall + seconds) for _ in range(CONTENDERS)])
        elapsed, cpu = meter.since(done)
        total = int((await connection.read(key))[0])
    finally:
        await connection.close()
    return {"increments/s": done / elapsed, "miscounted": abs(total - done), **cpu}
