"""Measure what the number of keys costs a board of the embedded engine, in one run.

    python -m bench.large_board             1,000 to 1,000,000 keys of 256 bytes; five minutes
    python -m bench.large_board --publish   and put the table into docs/sizing.md
    python -m bench.large_board --short     does it run at all; figures are worthless

One board in the default configuration grows from size to size. At each size it is opened again and
again: how soon after that an entry is read, and how soon all 10,000 private keys of an agent, of a
memory that holds nothing yet. Then 64 writers change random keys: at first what they touch has to
be loaded, and then, once the whole board was read, it is in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import blackboard
from bench.figures import quantile
from bench.published import publish
from bench.report import Table, markdown, number
from blackboard import Board
from blackboard.core.commit import Put
from blackboard.wire.codec import encode_value

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SHORT = (1_000, 12_000)
PRIVATE_KEYS = 10_000
VALUE = "x" * 256
TOGETHER = 1_000
"""Puts of one commit that fills the board."""
ACCOUNT_KEYS = 100_000
"""So many keys belong to one account: none may have all of a board."""
OPENINGS = 25
WRITERS = 64
COMMITS = 6_400


def key_of(key: int) -> str:
    """Spread over the board, not one behind the other."""
    return f"public/{key * 7919 % 1_000_003:07d}"


async def fill(board: Board, first: int, last: int) -> None:
    """Put keys, many at a time, as one account after the other."""
    value = encode_value(VALUE)
    for start in range(first, last, TOGETHER):
        some = range(start, min(start + TOGETHER, last))
        owner = board.as_agent(f"owner-{start // ACCOUNT_KEYS}")
        await owner.commit([Put(key_of(key), value) for key in some])


async def give(board: Board) -> None:
    """Give an agent its private keys."""
    value = encode_value(VALUE)
    ada = board.as_agent("ada")
    for start in range(0, PRIVATE_KEYS, TOGETHER):
        some = range(start, start + TOGETHER)
        await ada.commit([Put(f"private/ada/k{key:05d}", value) for key in some])


async def first_reads(folder: str, keys: int) -> tuple[list[float], list[float]]:
    """Seconds from the call of `open` to the first entry, and from there to all private keys."""
    rng, read_s, private_s = random.Random(1), list[float](), list[float]()
    for _ in range(OPENINGS):
        begun = time.perf_counter()
        async with blackboard.open(folder) as client:
            board = client.board("bench")
            assert await board.get(key_of(rng.randrange(keys))) == VALUE
            read_s.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            found = [entry async for entry in board.as_agent("ada").scan("private/ada/**")]
            private_s.append(time.perf_counter() - begun)
            assert len(found) == PRIVATE_KEYS
    return read_s, private_s


async def commits(board: Board, keys: int) -> tuple[float, list[float]]:
    """Processor time of a commit in seconds, of this whole process, and how long each took."""
    rng, took = random.Random(2), list[float]()

    async def write(count: int) -> None:
        for _ in range(count):
            begun = time.perf_counter()
            await board.put(key_of(rng.randrange(keys)), VALUE)
            took.append(time.perf_counter() - begun)

    begun = time.process_time()
    await asyncio.gather(*(write(COMMITS // WRITERS) for _ in range(WRITERS)))
    return (time.process_time() - begun) / COMMITS, took


async def run(sizes: Sequence[int]) -> Table:
    """Measure every size."""
    rows, there = list[list[str]](), 0
    with tempfile.TemporaryDirectory() as folder:
        for keys in sizes:
            async with blackboard.open(folder) as client:
                board = client.board("bench")
                await fill(board, there, keys)
                if not there:
                    await give(board)
            there = keys
            read_s, private_s = await first_reads(folder, keys)
            async with blackboard.open(folder) as client:
                board = client.board("bench")
                first_s, _ = await commits(board, keys)
                async for _ in board.scan("**"):
                    pass
                spent_s, took = await commits(board, keys)
            rows.append(
                [
                    f"{keys:,}",
                    *(number(1000 * quantile(read_s, share)) for share in (0.5, 0.99)),
                    *(number(1000 * quantile(private_s, share)) for share in (0.5, 0.99)),
                    number(1e6 * first_s),
                    number(1e6 * spent_s),
                    *(number(1000 * quantile(took, share)) for share in (0.5, 0.99)),
                ]
            )
            print(*rows[-1], sep=" | ")
    header = ["keys", "opened and read, p50 ms", "p99", "10,000 private keys, p50 ms", "p99"]
    header += ["us a commit at first", "then", "64 writers, p50 ms", "p99"]
    return Table("large-board", header, rows)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and publish if asked."""
    how = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("--short", action="store_true", help="few keys")
    parser.add_argument("--publish", action="store_true", help="renew docs/sizing.md")
    given = parser.parse_args(arguments)
    load = Path("/proc/loadavg").read_text(encoding="utf-8").split()[0]
    table = asyncio.run(run(SHORT if given.short else SIZES))
    print(markdown(table))
    if given.publish:
        conditions = f"`python -m bench.large_board`, load {load} before, one run"
        publish(conditions, {"large-board": table})
    return 0


if __name__ == "__main__":
    sys.exit(main())
