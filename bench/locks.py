"""Measure our lock beside pottery's Redlock and etcd's lock in one run on this machine.

    python -m bench.locks                three rounds
    python -m bench.locks --quick        does it run at all; figures are worthless
    python -m bench.locks --only ours    rows whose name contains one of these words

Two cells. Alone: one client acquires and releases, over and over. Contended: eight clients, each
with a connection of its own, hold one lock for a millisecond and ask for it again at once; a wait
is the time from asking to having. Exit status 1 means that a cell failed, not a target.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

from bench.figures import Figures, Results, quantile
from bench.machine import gather_facts
from bench.ours import serve_ours
from bench.peers import POWER_LOSS, PROCESS_CRASH, Etcd, serve_redis
from bench.report import Table, cell_table, verdict_table
from bench.rows import LOOPBACK, client_module
from bench.servers import Lab
from bench.session import (
    Measured,
    command_line,
    end_on_sigterm,
    explain,
    laboratory,
    report,
    start_rows,
    wanted,
)
from bench.targets import Target, judge

CONTENDERS = 8
HOLD_SECONDS = 0.001
TTL_SECONDS = 10
WARM_UP_SECTIONS = 20
CELL_SECONDS_MAX = 120.0
MASTERS = 3
ALONE, CONTENDED = "alone", f"{CONTENDERS} contenders"


class Contender(ABC):
    """A client with a connection of its own."""

    @abstractmethod
    def holding(self, name: str) -> Any:
        """An async context manager: entered when the lock `name` is had, left when it is free."""


class LockRow(ABC):
    """A lock service in one setting."""

    name: ClassVar[str]
    survives: ClassVar[str]

    @abstractmethod
    async def start(self, lab: Lab) -> None:
        """Bring it up; `UnavailableError` if that cannot be."""

    @abstractmethod
    async def connect(self, stack: AsyncExitStack) -> Contender:
        """A client that is closed with `stack`."""


class _OursContender(Contender):
    def __init__(self, board: Any) -> None:
        self._board = board

    def holding(self, name: str) -> Any:
        return self._board.lock(f"public/{name}", ttl_ms=TTL_SECONDS * 1000)


class OursEmbedded(LockRow):
    """Our lock through the service, over WebSockets, on the embedded engine."""

    name: ClassVar[str] = "ours-embedded"
    survives: ClassVar[str] = POWER_LOSS

    async def start(self, lab: Lab) -> None:
        _, self._endpoint = await serve_ours(lab, self.name, await self._engine(lab))

    async def _engine(self, lab: Lab) -> Sequence[str]:
        return ()

    async def connect(self, stack: AsyncExitStack) -> Contender:
        url = f"ws://{LOOPBACK}:{self._endpoint.port}"
        connecting = client_module("blackboard").connect(url, token=self._endpoint.token)
        client = await stack.enter_async_context(connecting)
        return _OursContender(client.board("bench"))


class OursRedis(OursEmbedded):
    """The same on a Redis that syncs before each answer."""

    name: ClassVar[str] = "ours-redis"

    async def _engine(self, lab: Lab) -> Sequence[str]:
        redis = await serve_redis(lab, "redis-of-ours", "always")
        return ("--engine", f"redis://{LOOPBACK}:{redis.port}")


class _PotteryContender(Contender):
    def __init__(self, lock: Any, clients: Sequence[Any]) -> None:
        self._lock, self._clients = lock, clients

    @asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        # One object for each acquisition: pottery loses the first hold if it is acquired again.
        lock = self._lock(key=name, masters=self._clients, auto_release_time=TTL_SECONDS)
        async with lock:
            yield


class Pottery(LockRow):
    """pottery's AIORedlock over three masters that sync once a second: Redlock without a board."""

    name: ClassVar[str] = "pottery"
    survives: ClassVar[str] = PROCESS_CRASH

    async def start(self, lab: Lab) -> None:
        client_module("pottery")
        self._ports = [
            (await serve_redis(lab, f"lock-master-{number}", "everysec")).port
            for number in range(MASTERS)
        ]

    async def connect(self, stack: AsyncExitStack) -> Contender:
        redis, pottery = client_module("redis.asyncio"), client_module("pottery")
        clients = [redis.Redis(host=LOOPBACK, port=port) for port in self._ports]
        for client in clients:
            await stack.enter_async_context(client)
        return _PotteryContender(pottery.AIORedlock, clients)


class _EtcdContender(Contender):
    def __init__(self, client: Any) -> None:
        self._client = client

    @asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        lock = self._client.lock(name.encode(), ttl=TTL_SECONDS)
        await lock.acquire(timeout=None)
        try:
            yield
        finally:
            await lock.release()


class EtcdLock(LockRow):
    """aetcd's lock on one etcd member: create a key under a lease, else watch it."""

    name: ClassVar[str] = "etcd"
    survives: ClassVar[str] = POWER_LOSS

    async def start(self, lab: Lab) -> None:
        self._etcd = Etcd()
        await self._etcd.start(lab)

    async def connect(self, stack: AsyncExitStack) -> Contender:
        connection: Any = await self._etcd.connect()
        stack.push_async_callback(connection.close)
        return _EtcdContender(connection._client)


ROWS: tuple[type[LockRow], ...] = (OursEmbedded, OursRedis, Pottery, EtcdLock)


def _targets(row: str) -> tuple[Target, ...]:
    return (
        Target(
            f"{CONTENDERS} contenders on {row}: at least pottery's sections/s",
            CONTENDED,
            row,
            "sections/s",
            reference="pottery",
            at_least=1.0,
        ),
        Target(
            f"{CONTENDERS} contenders on {row}: p99 wait below a tenth of pottery's",
            CONTENDED,
            row,
            "wait p99 ms",
            reference="pottery",
            below=0.1,
        ),
    )


TARGETS = (*_targets("ours-embedded"), *_targets("ours-redis"))


async def alone_cell(row: LockRow, seconds: float) -> Figures:
    """Acquire and release a lock that nobody else wants."""
    async with AsyncExitStack() as stack:
        contender, taken_ms = await row.connect(stack), list[float]()
        for _ in range(WARM_UP_SECTIONS):
            async with contender.holding("alone"):
                pass
        began = time.monotonic()
        while (started := time.monotonic()) < began + seconds:
            async with contender.holding("alone"):
                pass
            taken_ms.append((time.monotonic() - started) * 1e3)
    return {
        "pairs/s": len(taken_ms) / (time.monotonic() - began),
        "p50 ms": quantile(taken_ms, 0.5),
        "p99 ms": quantile(taken_ms, 0.99),
    }


async def contended_cell(row: LockRow, seconds: float) -> Figures:
    """Eight want it all the time; `overlaps` counts sections that were not alone."""
    waits_ms: list[float] = []
    inside = overlaps = 0

    async def contend(contender: Contender, deadline: float) -> None:
        nonlocal inside, overlaps
        while (asked := time.monotonic()) < deadline:
            async with contender.holding("contended"):
                waits_ms.append((time.monotonic() - asked) * 1e3)
                overlaps += inside
                inside += 1
                await asyncio.sleep(HOLD_SECONDS)
                inside -= 1

    async with AsyncExitStack() as stack:
        contenders = [await row.connect(stack) for _ in range(CONTENDERS)]
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for contender in contenders:
                tasks.create_task(contend(contender, began + seconds))
        elapsed = time.monotonic() - began
    return {
        "sections/s": len(waits_ms) / elapsed,
        "wait p50 ms": quantile(waits_ms, 0.5),
        "wait p99 ms": quantile(waits_ms, 0.99),
        "max/mean wait": max(waits_ms) * len(waits_ms) / sum(waits_ms),
        "overlaps": overlaps,
    }


CELLS = {ALONE: alone_cell, CONTENDED: contended_cell}


async def measure(
    rows: Sequence[LockRow], rounds: int, seconds: float, troubles: dict[str, str]
) -> Results:
    """Every cell of every row in every round, in a new random order each."""
    results = Results()
    for row in rows:  # so that tables list the rows in their own order
        for cell in CELLS:
            results.cells.setdefault(cell, {})[row.name] = {}
    for number in range(1, rounds + 1):
        for cell, work in CELLS.items():
            for row in random.sample(rows, len(rows)):
                try:
                    figures = await asyncio.wait_for(work(row, seconds), CELL_SECONDS_MAX)
                    results.add(cell, row.name, number, figures)
                except Exception as error:  # noqa: BLE001 - clients raise anything
                    troubles[f"failed {cell} of {row.name}, round {number}"] = explain(error)
    return results


def tables(results: Results) -> list[Table]:
    """A table for each cell, and the verdicts."""
    survives = {kind.name: kind.survives for kind in ROWS}
    verdicts = [judge(target, results) for target in TARGETS]
    return [*(cell_table(results, cell, survives) for cell in CELLS), verdict_table(verdicts)]


async def run(options: argparse.Namespace) -> int:
    """One whole run; whatever happens, its servers are stopped and its files deleted."""
    rounds, seconds = (1, 0.3) if options.quick else (options.rounds, 3.0)
    troubles: dict[str, str] = {}
    with laboratory(fetch=options.fetch) as lab:
        rows = await start_rows(wanted(ROWS, options.only), lab, troubles)
        facts = gather_facts(lab.folder)
        results = await measure(rows, rounds, seconds, troubles)
    found = tables(results)

    def published() -> dict[str, Table]:
        return {"locks-contended": next(table for table in found if table.title == CONTENDED)}

    measured = Measured(facts, troubles, rounds, results, ROWS, TARGETS, published)
    return report(options, found, measured)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return command_line("locks", __doc__).parse_args(arguments)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(asyncio.run(run(parse())))
