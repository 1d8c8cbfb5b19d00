"""How cost grows with writers, watchers, boards, keys and open documents: one table for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from bench.report import MISSING, Table, number
from bench.scale_site import Budget, Site, Spent, site
from blackboard.client.board import Board
from blackboard.core.commit import Put
from blackboard.wire.codec import encode_value

VALUE = "x" * 256
WATCHES_EACH = 250
"""Of one connection."""
BOARDS_EACH = 250
"""Of one account."""
DELIVERED = 20
"""Commits that every watcher gets."""
KEYS_EACH = 1_000
"""Puts of one commit that fills a board."""
EDITS = 20
"""Of each open document."""
SAMPLE = 1_000
BOARDS_S_MAX = 300.0
"""A file takes longer to make than a key."""
DEPLOYMENTS = {0: "embedded", 1: "one service", 2: "two services", 3: "three services"}
"""By how many services there are over a Redis."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The points of each curve."""

    commits: Sequence[tuple[int, int]]
    """Writers, and how many commits they make together."""
    watchers: Sequence[int]
    boards: Sequence[int]
    keys: Sequence[int]
    documents: Sequence[int]


FULL = Sizes(
    ((1, 600), (4, 1_000), (16, 2_000), (64, 4_000), (256, 6_000)),
    (100, 1_000, 4_000),
    (10, 100, 1_000, 10_000),
    (1_000, 10_000, 100_000, 500_000),
    (1, 10, 50, 200),
)
SHORT = Sizes(
    ((1, 200), (16, 600), (256, 2_000)), (100, 1_000), (10, 100), (1_000, 10_000), (1, 10)
)


async def commits(sizes: Sizes) -> Table:
    """Commits of 256 bytes by so many writers, each on a connection of its own up to 64."""
    costs: dict[int, list[str]] = {writers: [str(writers)] for writers, _ in sizes.commits}
    rates: dict[int, list[str]] = {writers: [] for writers, _ in sizes.commits}
    for services in DEPLOYMENTS:
        async with site(services) as place:
            boards = [(await place.client()).board("scale") for _ in range(64)]
            await _write(boards, 64, 500)  # what a first commit loads is nobody's cost
            for writers, count in sizes.commits:
                spent = await place.spent(count, partial(_write, boards, writers, count))
                costs[writers] += [number(spent.service_us)]
                costs[writers] += [number(spent.redis_us)] if services else []
                rates[writers].append(number(spent.per_s))
    header = ["writers"]
    for services, name in DEPLOYMENTS.items():
        header += [f"{name}, us"] + (["Redis, us"] if services else [])
    header += [f"{name}, commits/s" for name in DEPLOYMENTS.values()]
    return Table("scale-commits", header, [costs[w] + rates[w] for w, _ in sizes.commits])


async def _write(boards: Sequence[Board], writers: int, count: int) -> None:
    numbers = iter(range(count))

    async def write(board: Board) -> None:
        for each in numbers:
            await board.put(f"public/k/{each % 100}", VALUE)

    await asyncio.gather(*(write(boards[each % len(boards)]) for each in range(writers)))


async def watchers(sizes: Sizes) -> Table:
    """Watchers of one board, each of which gets every commit."""
    lines: dict[int, list[str]] = {many: [f"{many:,}"] for many in sizes.watchers}
    for services in (1, 3):
        async with site(services) as place:
            board = (await place.client()).board("watched")
            await board.put("public/a", 0)
            arrived, live = asyncio.Semaphore(0), 0
            budget = Budget()
            for many in sizes.watchers:
                if not budget.has_time_for(many - live):
                    lines[many] += [MISSING] * 3
                    continue
                opened = await place.spent(
                    many - live, partial(_watch, place, many - live, arrived)
                )
                live = many
                budget.took(opened)
                sent = await place.spent(many * DELIVERED, partial(_deliver, board, many, arrived))
                lines[many] += [
                    number(sent.service_us),
                    number(opened.service_kib),
                    f"{sent.descriptors:,}",
                ]
    header = ["watchers"]
    for services in (1, 3):
        name = DEPLOYMENTS[services]
        header += [f"{name}, us a delivery", "KiB a watcher", "descriptors"]
    return Table("scale-watchers", header, list(lines.values()))


async def _watch(place: Site, many: int, arrived: asyncio.Semaphore) -> None:
    live = asyncio.Semaphore(0)

    async def watch(board: Board) -> None:
        async with board.watch("public/**") as found:
            live.release()
            async for _ in found:
                arrived.release()

    for first in range(0, many, WATCHES_EACH):
        board = (await place.client()).board("watched")
        for _ in range(min(WATCHES_EACH, many - first)):
            place.run(watch(board))
    for _ in range(many):
        await live.acquire()


async def _deliver(board: Board, many: int, arrived: asyncio.Semaphore) -> None:
    for each in range(DELIVERED):
        await board.put("public/a", each)
        for _ in range(many):
            await arrived.acquire()


async def boards(sizes: Sizes) -> Table:
    """Boards with one key, which stay known to the service; then commits all over them, most of
    which find a board closed."""
    lines: dict[int, list[str]] = {many: [f"{many:,}"] for many in sizes.boards}
    for services in (0, 1):
        async with site(services) as place:
            known: list[Board] = []
            budget = Budget(BOARDS_S_MAX)
            for many in sizes.boards:
                first = len(known)
                if not budget.has_time_for(many - first):
                    lines[many] += [MISSING] * (6 if services else 4)
                    continue
                begun = await place.spent(many - first, partial(_begin, place, known, many))
                budget.took(begun)
                wrote = await place.spent(SAMPLE, partial(_touch, known))
                lines[many] += _board_cells(begun, wrote, has_redis=services > 0)
    header = ["boards"]
    for services in (0, 1):
        name, redis = DEPLOYMENTS[services], services > 0
        header += [f"{name}, us to begin one", *(["Redis, us"] if redis else [])]
        header += ["KiB each", *(["Redis, KiB each"] if redis else [])]
        header += ["us a commit on any", "descriptors"]
    return Table("scale-boards", header, list(lines.values()))


def _board_cells(begun: Spent, wrote: Spent, *, has_redis: bool) -> list[str]:
    cells = [number(begun.service_us)] + ([number(begun.redis_us)] if has_redis else [])
    cells.append(number(begun.service_kib))
    cells += [number(begun.redis_kib)] if has_redis else []
    return [*cells, number(wrote.service_us), f"{wrote.descriptors:,}"]


async def _begin(place: Site, known: list[Board], many: int) -> None:
    while len(known) < many:
        first = len(known)
        client = await place.client(f"owner{first // BOARDS_EACH}-{first}")
        fresh = [client.board(f"board-{first + n}") for n in range(min(BOARDS_EACH, many - first))]
        for each in range(0, len(fresh), 16):
            await asyncio.gather(*(b.put("public/a", VALUE) for b in fresh[each : each + 16]))
        known += fresh


async def _touch(known: Sequence[Board]) -> None:
    for first in range(0, SAMPLE, 16):
        some = [known[(first + n) * 7_919 % len(known)] for n in range(16)]
        await asyncio.gather(*(board.put("public/a", VALUE) for board in some))


async def keys(sizes: Sizes) -> Table:
    """One board with so many keys of 256 bytes; then commits of one key among them."""
    lines: dict[int, list[str]] = {many: [f"{many:,}"] for many in sizes.keys}
    for services in (0, 1):
        async with site(services) as place:
            board = (await place.client()).board("large")
            there = 0
            budget = Budget()
            for many in sizes.keys:
                if not budget.has_time_for(many - there):
                    lines[many] += [MISSING] * (5 if services else 3)
                    continue
                filled = await place.spent(many - there, partial(_fill, board, there, many))
                there = many
                budget.took(filled)
                wrote = await place.spent(SAMPLE, partial(_change, board, many))
                lines[many] += [
                    number(filled.service_us),
                    *([number(filled.redis_us)] if services else []),
                    number(bytes_of(filled) / filled.count),
                    number(wrote.service_us),
                    *([number(wrote.redis_us)] if services else []),
                ]
    header = ["keys"]
    for services in (0, 1):
        name, redis = DEPLOYMENTS[services], services > 0
        header += [f"{name}, us a key", *(["Redis, us"] if redis else [])]
        header += ["Redis, bytes a key" if redis else "bytes a key"]
        header += ["us a commit", *(["Redis, us"] if redis else [])]
    return Table("scale-keys", header, list(lines.values()))


def bytes_of(spent: Spent) -> int:
    """Those of Redis, or of a service with its own engine, which keeps the state in memory."""
    return spent.redis_bytes or spent.service_bytes


async def _fill(board: Board, first: int, last: int) -> None:
    value = encode_value(VALUE)
    for start in range(first, last, KEYS_EACH):
        names = range(start, min(start + KEYS_EACH, last))
        await board.commit([Put(f"public/k/{name // 1_000}/{name}", value) for name in names])


async def _change(board: Board, many: int) -> None:
    for first in range(0, SAMPLE, 16):
        some = [(first + n) * 7_919 % many for n in range(16)]
        await asyncio.gather(*(board.put(f"public/k/{n // 1_000}/{n}", VALUE) for n in some))


async def documents(sizes: Sizes) -> Table:
    """Open documents with one editor each, who types a word at a time."""
    lines: dict[int, list[str]] = {many: [str(many)] for many in sizes.documents}
    for services in (0, 1):
        async with site(services) as place:
            board = (await place.client()).board("documents")
            await board.put("public/a", 0)
            first = 0
            budget = Budget()
            for many in sizes.documents:
                if not budget.has_time_for(many - first):
                    lines[many] += [MISSING] * (4 if services else 3)
                    continue
                arrived = asyncio.Semaphore(0)
                typing = asyncio.Event()
                opened = await place.spent(
                    many - first,
                    partial(_open, place, board, range(first, many), typing, arrived),
                )
                edited = await place.spent(
                    (many - first) * EDITS,
                    partial(_edit, typing, arrived, many - first),
                )
                first = many
                budget.took(edited)
                lines[many] += [
                    number(edited.service_us),
                    *([number(edited.redis_us)] if services else []),
                    number(opened.service_kib),
                    f"{edited.descriptors:,}",
                ]
    header = ["open documents"]
    for services in (0, 1):
        name, redis = DEPLOYMENTS[services], services > 0
        header += [f"{name}, us an edit", *(["Redis, us"] if redis else [])]
        header += ["KiB each", "descriptors"]
    return Table("scale-documents", header, list(lines.values()))


async def _open(
    place: Site, board: Board, which: range, typing: asyncio.Event, arrived: asyncio.Semaphore
) -> None:
    ready = asyncio.Semaphore(0)

    async def edit(name: int) -> None:
        async with board.document(f"public/document-{name}") as document:
            await document.synced()
            ready.release()
            await typing.wait()
            for _ in range(EDITS):
                document.text().append("a word and ")
                await document.synced()
                arrived.release()
            await asyncio.Event().wait()

    for name in which:
        place.run(edit(name))
    for _ in which:
        await ready.acquire()


async def _edit(typing: asyncio.Event, arrived: asyncio.Semaphore, many: int) -> None:
    typing.set()
    for _ in range(many * EDITS):
        await arrived.acquire()
