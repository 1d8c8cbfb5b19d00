"""The lock benchmark: its targets are of cells and rows that exist, and a section is measured."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

from bench.figures import Results
from bench.locks import (
    ALONE,
    CELLS,
    CONTENDED,
    CONTENDERS,
    ROWS,
    TARGETS,
    Contender,
    LockRow,
    alone_cell,
    contended_cell,
    parse,
    tables,
)
from bench.servers import Lab


class _LocalContender(Contender):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    @asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        async with self._lock:
            yield


class LocalRow(LockRow):
    """A lock of this process, or one that locks nothing."""

    name: ClassVar[str] = "local"
    survives: ClassVar[str] = "nothing"

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    async def start(self, lab: Lab) -> None:
        """Nothing to start."""

    async def connect(self, stack: AsyncExitStack) -> Contender:
        return _LocalContender(self._lock)


def test_targets_name_cells_and_rows_that_exist() -> None:
    names = {kind.name for kind in ROWS}
    for target in TARGETS:
        assert target.cell in CELLS
        assert {target.row, target.reference} <= names


async def test_contenders_hold_in_turn_and_every_wait_is_counted() -> None:
    figures = await contended_cell(LocalRow(asyncio.Lock()), 0.1)
    assert figures["overlaps"] == 0
    assert figures["sections/s"] < 1_000
    assert figures["wait p50 ms"] > CONTENDERS - 2
    assert figures["max/mean wait"] >= 1


async def test_sections_that_overlap_are_found() -> None:
    """A semaphore lets two in."""
    figures = await contended_cell(LocalRow(asyncio.Semaphore(2)), 0.1)
    assert figures["overlaps"] > 0


async def test_one_alone_is_measured() -> None:
    figures = await alone_cell(LocalRow(asyncio.Lock()), 0.05)
    assert figures["pairs/s"] > 0
    assert 0 < figures["p50 ms"] <= figures["p99 ms"]


def test_the_report_has_a_table_for_each_cell_and_the_verdicts() -> None:
    results = Results()
    for cell in CELLS:
        for row, number in (("ours-embedded", 400.0), ("pottery", 100.0)):
            results.add(cell, row, 1, {"sections/s": number})
    found = tables(results)
    assert [table.title for table in found] == [ALONE, CONTENDED, "targets"]
    assert found[-1].rows[0][1:] == ["4", "met"]


def test_the_command_line_has_defaults() -> None:
    assert (parse([]).rounds, parse(["--only", "ours,etcd"]).only) == (3, ["ours", "etcd"])
