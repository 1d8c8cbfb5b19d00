"""Measure searches by meaning beside sqlite-vec, in one process on this machine.

    python -m bench.memory                   100,000 vectors of 384 numbers, 200 questions
    python -m bench.memory --vectors 10000   another size
    python -m bench.memory --quick           does it run at all; figures are worthless

The vectors lie in clusters, as those of texts do. Ours is a whole `Memory.search`, over a board on
the embedded engine: it asks for the head, follows the log, compares, and reads the results from the
board. sqlite-vec is its virtual table in an SQLite in memory, through apsw, and only compares. The
questions are asked in turn. Recall is measured against every cosine in float64. The processor time
is that of the whole process: what it waited for on a busy machine is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import blackboard
from bench.figures import quantile
from bench.rows import client_module
from blackboard.client.memory.memory import Memory

Matrix = NDArray[np.float32]
DIMENSIONS, CLUSTERS, NEAREST = 384, 500, 10
SPREAD = 0.7
"""Of a vector around the middle of its cluster, whose numbers have a spread of 1."""


@dataclass
class Row:
    """What was measured of one of the two: of each question, and of having it ready."""

    name: str
    ready_s: float
    wall_ms: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)
    found: int = 0


def drawn(count: int, seed: int) -> Matrix:
    """Unit vectors in clusters."""
    dice = np.random.default_rng(seed)
    middles = np.random.default_rng(0).standard_normal((CLUSTERS, DIMENSIONS), np.float32)
    rows = middles[dice.integers(0, CLUSTERS, count)]
    rows = rows + np.float32(SPREAD) * dice.standard_normal((count, DIMENSIONS), np.float32)
    unit: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def numbered(vectors: Matrix, questions: Matrix) -> Callable[[Sequence[str]], Matrix]:
    """A model that knows the vector of each text: `v7` or `q7`."""
    known = {"v": vectors, "q": questions}
    return lambda texts: np.stack([known[text[0]][int(text[1:])] for text in texts])


async def ours(memory: Memory, number: int) -> set[int]:
    """The numbers of the nearest, by a search of the memory."""
    found = await memory.search(f"q{number}", limit=NEAREST, words_weight=0)
    return {int(one.text[1:]) for one in found}


def with_sqlite_vec(vectors: Matrix) -> Any:
    """An SQLite with its table of them. Python's own loads no extensions in many builds."""
    sql = client_module("apsw").Connection(":memory:")
    sql.enable_load_extension(True)
    sql.load_extension(client_module("sqlite_vec").loadable_path())
    sql.execute(f"CREATE VIRTUAL TABLE v USING vec0 (e float[{DIMENSIONS}] distance_metric=cosine)")
    with sql:
        rows = ((number, row.tobytes()) for number, row in enumerate(vectors))
        sql.executemany("INSERT INTO v (rowid, e) VALUES (?, ?)", rows)
    return sql


async def measure(row: Row, ask: Callable[[], Awaitable[set[int]]], expected: set[int]) -> None:
    """One question."""
    wall, processor = time.perf_counter(), time.process_time()
    found = await ask()
    row.wall_ms.append((time.perf_counter() - wall) * 1_000)
    row.processor_ms.append((time.process_time() - processor) * 1_000)
    row.found += len(found & expected)


async def run(count: int, asked: int) -> list[Row]:
    """Fill both, and ask both every question."""
    vectors, questions = drawn(count, 1), drawn(asked, 2)
    cosines = questions.astype(np.float64) @ vectors.T.astype(np.float64)
    nearest = [set(np.argsort(-row)[:NEAREST].tolist()) for row in cosines]
    with tempfile.TemporaryDirectory() as folder:
        async with blackboard.open(folder, level="memory") as client:
            board = client.board("bench")
            embed = numbered(vectors, questions)
            async with board.memory(embed=embed, model="drawn") as memory:
                await memory.remember_all(f"v{number}" for number in range(count))
                began = time.perf_counter()
                await memory.count()
                mine = Row("ours", time.perf_counter() - began)
                began = time.perf_counter()
                sql = with_sqlite_vec(vectors)
                theirs = Row("sqlite-vec", time.perf_counter() - began)

                async def other(number: int) -> set[int]:
                    found = sql.execute(
                        "SELECT rowid FROM v WHERE e MATCH ? AND k = ?",
                        (questions[number].tobytes(), NEAREST),
                    )
                    return {rowid for (rowid,) in found}

                for number, expected in enumerate(nearest):
                    await measure(mine, partial(ours, memory, number), expected)
                    await measure(theirs, partial(other, number), expected)
    return [mine, theirs]


def report(rows: Sequence[Row], count: int) -> None:
    """A table."""
    print(f"{count:,} vectors of {DIMENSIONS} numbers, {len(rows[0].wall_ms)} questions\n")
    print("| row | recall@10 | p50 ms | p99 ms | processor p50 ms | processor p99 ms | ready s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        recall = row.found / NEAREST / len(row.wall_ms)
        figures = (
            statistics.median(row.wall_ms),
            quantile(row.wall_ms, 0.99),
            statistics.median(row.processor_ms),
            quantile(row.processor_ms, 0.99),
            row.ready_s,
        )
        print(f"| {row.name} | {recall:.3f} | " + " | ".join(f"{one:.1f}" for one in figures), "|")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory")
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    count, asked = (2_000, 20) if options.quick else (options.vectors, 200)
    report(asyncio.run(run(count, asked)), count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
