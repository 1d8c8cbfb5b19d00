"""What one board, agent, watcher, commit and delivery cost, and how cost grows with their number.

    python -m bench.scale                  ten minutes on a quiet machine
    python -m bench.scale --short          three: fewer and smaller sizes
    python -m bench.scale --only commits   some of CELLS
    python -m bench.scale --publish        renews docs/sizing.md and its picture

Services as people start them, without an archive: with their own engine, or one to three over a
Redis that syncs before each answer. Memory is what the processes have more after so many of a kind
were made than before. Processor time is theirs in a stretch of work, divided: it depends less than
wall time on what else runs on the machine. The load is noted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bench import scale_curves
from bench.machine import Facts, gather_facts
from bench.published import publish
from bench.report import Table, markdown
from bench.scale_curves import BOARDS_EACH, FULL, SHORT, VALUE, Sizes
from bench.scale_site import HOUR_MS, Site, site
from blackboard.client.board import Board

WRITERS, COMMITS, MANY = 32, 6_000, 200
STATE = "x" * 1_024
WATCHED_COMMITS = 100


async def costs(sizes: Sizes) -> Table:
    """What one more of each costs."""
    many = MANY if sizes is FULL else MANY // 4
    lines: list[list[str]] = []

    async def cost(kind: str, count: int, work: Callable[[], Awaitable[None]]) -> None:
        spent = await place.spent(count, work)
        cells = (spent.service_bytes / count, spent.redis_bytes / count)
        lines.append([kind, *(f"{c:,.0f}" for c in (*cells, spent.service_us, spent.redis_us))])

    async with site(1) as place:
        client = await place.client()
        board, watched = client.board("scale"), client.board("watched")
        await _write(board, 500)  # what a first commit loads is nobody's cost
        arrived = asyncio.Semaphore(0)
        await cost("board, with one key", many, lambda: _begin(place, many))
        await cost("attached agent, with 1 KB of state", many, lambda: _attach(place, board, many))
        await cost("connection", many, lambda: _connect(place, many))
        await cost(
            f"commit of 256 bytes, {WRITERS} writers", COMMITS, lambda: _write(board, COMMITS)
        )
        await cost("watcher", many, lambda: _watch(place, watched, many, arrived))
        delivered = many * WATCHED_COMMITS
        await cost(
            "delivery to a watcher, its commit included",
            delivered,
            lambda: _deliver(watched, many, arrived),
        )
    return Table("scale", ["one", "service bytes", "Redis bytes", "service us", "Redis us"], lines)


async def _begin(place: Site, many: int) -> None:
    assert many <= BOARDS_EACH
    client = await place.client("owner")
    for number in range(many):
        await client.board(f"board-{number}").put("public/a", 1)


async def _attach(place: Site, board: Board, many: int) -> None:
    there = asyncio.Semaphore(0)

    async def be(agent: Board) -> None:
        async with agent.attach(ttl_ms=HOUR_MS):
            await agent.put(f"private/{agent.agent}/state", STATE)
            there.release()
            await asyncio.Event().wait()

    for number in range(many):
        place.run(be(board.as_agent(f"agent-{number}")))
        await there.acquire()


async def _connect(place: Site, many: int) -> None:
    for _ in range(many):
        await (await place.client()).board("watched").get("public/a", None)


async def _write(board: Board, count: int) -> None:
    """So many commits over a hundred keys: what grows is the log."""
    numbers = iter(range(count))

    async def write() -> None:
        for number in numbers:
            await board.put(f"public/k/{number % 100}", VALUE)

    await asyncio.gather(*(write() for _ in range(WRITERS)))


async def _watch(place: Site, board: Board, many: int, arrived: asyncio.Semaphore) -> None:
    live = asyncio.Semaphore(0)

    async def watch() -> None:
        async with board.watch("public/**") as found:
            live.release()
            async for _ in found:
                arrived.release()

    for _ in range(many):
        place.run(watch())
    for _ in range(many):
        await live.acquire()


async def _deliver(board: Board, many: int, arrived: asyncio.Semaphore) -> None:
    """One commit after the other, each delivered to everybody: its own cost is among it."""
    for number in range(WATCHED_COMMITS):
        await board.put("public/a", number)
        for _ in range(many):
            await arrived.acquire()


CELLS: dict[str, Callable[[Sizes], Awaitable[Table]]] = {
    "costs": costs,
    "commits": scale_curves.commits,
    "watchers": scale_curves.watchers,
    "boards": scale_curves.boards,
    "keys": scale_curves.keys,
    "documents": scale_curves.documents,
}


def conditions(facts: Facts, load_after: float) -> str:
    """What the figures depend on, in one line."""
    return (
        f"{facts.cores} cores of {facts.processor}, shared with clients and other programs"
        f" (load {facts.load_before:.1f} before, {load_after:.1f} after), Python {facts.python},"
        f" redis-server {facts.servers['redis-server']}, a sync takes"
        f" {facts.fdatasync_p50_ms:.2f} ms"
    )


async def run(names: Sequence[str], sizes: Sizes, *, publishes: bool) -> None:
    """Measure and print each table; publish each as soon as it is there."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            facts = gather_facts(Path(folder))
        began_s = time.monotonic()
        table = await CELLS[name](sizes)
        told = conditions(facts, os.getloadavg()[0])
        print(markdown(table), f"\n{told}; {time.monotonic() - began_s:.0f} s\n", flush=True)
        if publishes:
            publish(told, {table.title: table})


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="fewer and smaller sizes")
    parser.add_argument("--only", nargs="+", choices=CELLS, default=list(CELLS), metavar="NAME")
    parser.add_argument("--publish", action="store_true", help="renew docs/sizing.md")
    given = parser.parse_args()
    sizes = SHORT if given.short else FULL
    asyncio.run(run(given.only, sizes, publishes=given.publish))
    return 0


if __name__ == "__main__":
    sys.exit(main())
