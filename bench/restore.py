"""What a restore costs, and what the other agents notice of it.

    python -m bench.restore --keys 1000000 --changed 1000
    python -m bench.restore --keys 1000000 --changed 1000 --engine redis://127.0.0.1:6379/0
    python -m bench.restore --keys 200000 --changed 60000 --rounds 3 --watchers 20

A board gets so many keys and a checkpoint. Then, again and again: some keys are changed, and the
checkpoint is restored while other agents commit, each at its own pace. A commit that is refused
because of the new epoch counts with the one that follows it. Told are the quantiles of those
commits before any restore and during them, and how long a restore takes. Because other programs
may be running, there are two figures that they hardly move: the processor time of this process, all
agents included, and that which the event loop spent between two turns of a task that asks for one
every millisecond, until half a second after the restore: for so long nobody else got on. Watchers
are agents with rights of their own, who watch all that they may read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import quantile
from blackboard import StaleEpoch, Unavailable
from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.engines.base import ServesValues, Store
from blackboard.errors import Resync
from blackboard.ops import Put, encode_value
from blackboard.server.http.serve import tune_interpreter
from blackboard.server.service import Service

AGENTS = 8
PACE_S = 0.02
"""Each agent's time from one commit to the next."""
SETTLE_S = 10.0
"""Before anything counts: the rows that filled the board get to their places meanwhile."""
CALM_S = 20.0
REST_S = 0.25
"""From the changes to the restore that takes them back."""
TAIL_S = 0.5
"""After a restore, until the archive has it too; what is noticed then still counts."""
OPERATIONS = 1_000
KEYS_PER_NAMESPACE = 250_000


@dataclass
class Latencies:
    """Milliseconds of each commit, by whether a restore was under way."""

    calm: bool = False
    restoring: bool = False
    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)

    def note(self, began_s: float, was_restoring: bool) -> None:
        """A commit that began then has its answer now."""
        took_ms = (time.perf_counter() - began_s) * 1000
        if was_restoring or self.restoring:
            self.during.append(took_ms)
        elif self.calm:
            self.before.append(took_ms)


@dataclass
class Spent:
    """Milliseconds of processor time: of a restore, and the event loop's longest stretch in it."""

    whole: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def noted(self) -> AsyncIterator[None]:
        """Measure what runs inside."""
        began_s = time.process_time()
        watching = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        yield
        self.whole.append((time.process_time() - began_s) * 1000)
        await asyncio.sleep(TAIL_S)
        watching.cancel()
        await asyncio.wait([watching])

    async def _watch(self) -> None:
        self.longest.append(0.0)
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now_s = time.thread_time()
            self.longest[-1] = max(self.longest[-1], (now_s - last_s) * 1000)
            last_s = now_s


async def work(board: Board, latencies: Latencies) -> None:
    """Commit at a steady pace, for ever."""
    draw = random.Random(board.agent)
    count = 0
    while True:
        await asyncio.sleep(draw.uniform(0.5, 1.5) * PACE_S)
        began_s, was_restoring = time.perf_counter(), latencies.restoring
        count += 1
        try:
            await board.put(f"private/{board.agent}/count", count)
        except StaleEpoch:
            await board.refresh()
            await board.put(f"private/{board.agent}/count", count)
        latencies.note(began_s, was_restoring)


async def watch(board: Board) -> None:
    """Follow the board for ever."""
    while True:
        try:
            async with board.watch("**") as revisions:
                async for _ in revisions:
                    pass
        except Resync:
            continue


def key_of(number: int) -> str:
    """Where key `number` is: no namespace may hold a whole large board."""
    owner = number // KEYS_PER_NAMESPACE
    return f"private/owner-{owner}/k{number}" if owner else f"public/k{number}"


async def fill(operator: Board, keys: int) -> None:
    """Put so many keys on the board."""
    value = encode_value("x" * 64)
    for start in range(0, keys, OPERATIONS):
        stop = min(start + OPERATIONS, keys)
        await operator.commit([Put(key_of(number), value) for number in range(start, stop)])


async def spoil(operator: Board, keys: int, changed: int, draw: random.Random) -> None:
    """Change some of them."""
    value = encode_value(draw.random())
    numbers = draw.sample(range(keys), changed)
    for start in range(0, changed, OPERATIONS):
        some = numbers[start : start + OPERATIONS]
        await operator.commit([Put(key_of(number), value) for number in some])


async def measure(service: Service, given: argparse.Namespace) -> dict[str, float]:
    """Run it all; the figures by name."""
    keys, changed, rounds = given.keys, given.changed, given.rounds
    client = Client(service.link(access.operator()))
    operator = client.board("bench")
    await fill(operator, keys)
    await operator.checkpoint("whole")
    await _archived(operator)
    latencies, spent, took_ms, draw = Latencies(), Spent(), [], random.Random(keys)
    agents = [operator.as_agent(f"agent-{number}") for number in range(AGENTS)]
    working = [asyncio.create_task(work(agent, latencies)) for agent in agents]
    watchers = [operator.as_agent(f"watcher-{number}") for number in range(given.watchers)]
    working += [asyncio.create_task(watch(watcher)) for watcher in watchers]
    try:
        await asyncio.sleep(SETTLE_S)
        latencies.calm = True
        await asyncio.sleep(CALM_S)
        latencies.calm = False  # what waits for the changes between restores counts nowhere
        for _ in range(rounds):
            await spoil(operator, keys, changed, draw)
            await asyncio.sleep(REST_S)  # what waited for these large commits is not the restore's
            latencies.restoring = True
            began_s = time.perf_counter()
            async with spent.noted():
                await operator.restore("whole")
                took_ms.append((time.perf_counter() - began_s) * 1000)
            latencies.restoring = False
            await asyncio.sleep(REST_S)  # nor is what began before it and waits for the next ones
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    return {
        "keys": keys,
        "changed keys": changed,
        "restores": rounds,
        "restore p50 ms": quantile(took_ms, 0.5),
        "restore max ms": max(took_ms),
        "restore cpu p50 ms": quantile(spent.whole, 0.5),
        "last restore cpu ms": spent.whole[-1],
        "longest stretch p50 ms": quantile(spent.longest, 0.5),
        "longest stretch max ms": max(spent.longest),
        "commits before": len(latencies.before),
        "before p50 ms": quantile(latencies.before, 0.5),
        "before p99 ms": quantile(latencies.before, 0.99),
        "before p99.9 ms": quantile(latencies.before, 0.999),
        "commits during": len(latencies.during),
        "during p50 ms": quantile(latencies.during, 0.5),
        "during p99 ms": quantile(latencies.during, 0.99),
        "during p99.9 ms": quantile(latencies.during, 0.999),
    }


async def _archived(operator: Board) -> None:
    """Wait until the archive has all of it, however long that takes."""
    while True:
        try:
            await operator.show("whole")
        except Unavailable:
            continue
        return


@asynccontextmanager
async def serving(engine: str, folder: Path) -> AsyncIterator[Service]:
    """A service over an empty engine, and an archive beside it."""
    store: Store
    if engine == "sqlite":
        from blackboard.engines.sqlite.store import SqliteStore

        store = await SqliteStore.at(folder)
    else:
        from blackboard.engines.redis.store import RedisStore

        store = RedisStore.connect(engine)
    logs = store if isinstance(store, ServesValues) else None
    async with Service(store, archive=await archive_beside(folder, logs=logs)) as service:
        yield service


async def run(given: argparse.Namespace) -> None:
    """Measure once, and print."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(given.engine, Path(folder)) as service:
            figures = await measure(service, given)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}, indent=2))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", default="sqlite", help="sqlite, or the URL of an empty Redis")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--changed", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--watchers", type=int, default=0)
    given = parser.parse_args()
    tune_interpreter()  # as a service does
    asyncio.run(run(given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
