"""Measure LangGraph on a board beside its own checkpointers for SQLite and PostgreSQL.

    python -m bench.checkpointers                     three rounds of 800 steps
    python -m bench.checkpointers --quick             does it run at all; figures are worthless
    python -m bench.checkpointers --only board        rows whose name contains one of these words

One graph of one node loops 800 times, each time with a text of 1 KB more in its list, and
`durability="sync"`; every row syncs what it acknowledges. Told are steps per second; processor
time of this process per step; the time to list the whole history, decoded; how many times the bytes
of the messages the files have after a clean stop; and, of 20 workers that were replaced while they
were away, how many could still put the checkpoint that the next run begins with. Rows run one after
the other, in another order each round; ratios are those of one round. Exit status 1 means that a
row failed, not a target.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import Any, ClassVar

import blackboard
from bench.agent_peers import LangGraphPostgres, LangGraphRow, LangGraphSqlite, graph_of
from bench.agent_rows import MESSAGE_BYTES, size_of
from bench.figures import Figures, Results
from bench.machine import gather_facts
from bench.report import Table, cell_table, verdict_table
from bench.rows import client_module
from bench.servers import Lab
from bench.session import (
    Measured,
    command_line,
    end_on_sigterm,
    in_rounds,
    laboratory,
    report,
    start_rows,
    wanted,
)
from bench.targets import Target, judge
from blackboard.ops import Release

STEPS = 800
ROW_SECONDS_MAX = 600.0
CELL = "a list that grows by 1 KB"
COLLISIONS = 20


class OnABoard(LangGraphRow):
    """The embedded engine in this process, with its archive; a commit is synced."""

    name: ClassVar[str] = "board"

    async def start(self, lab: Lab) -> None:
        self._folder = lab.data_folder(self.name)

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[Any]:
        savers = client_module("blackboard.integrations.langgraph")
        async with blackboard.open(self._folder) as client:
            yield savers.BlackboardSaver(client.board("bench"))

    def disk_bytes(self) -> int:
        return size_of(self._folder)


ROWS: tuple[type[LangGraphRow], ...] = (OnABoard, LangGraphSqlite, LangGraphPostgres)


async def figures_of(row: LangGraphRow, steps: int, mark: str) -> Figures:
    """One thread from its beginning, then its history, then collisions in others."""
    before = row.disk_bytes()
    config = {"configurable": {"thread_id": mark}, "recursion_limit": steps + 10}
    async with row.saver() as saver:
        graph = graph_of(saver, steps, delta=False, as_text=True)
        own, began = time.process_time(), time.monotonic()
        await graph.ainvoke({"n": 0}, config, durability="sync")
        own, seconds = time.process_time() - own, time.monotonic() - began
        began = time.monotonic()
        listed = [found async for found in saver.alist(config)]
        listing = time.monotonic() - began
        assert len(listed) == steps + 2
        assert len(listed[0].checkpoint["channel_values"]["messages"]) == steps
        del listed
    after = row.disk_bytes()
    async with (
        row.saver() as saver,
        row.saver() if not isinstance(row, OnABoard) else _same(saver) as other,
    ):
        late = [await is_taken(saver, other, f"{mark}-{n}") for n in range(COLLISIONS)]
    return {
        "steps/s": steps / seconds,
        "client ms/step": own * 1000 / steps,
        "list ms": listing * 1000,
        "bytes x input": (after - before) / (steps * MESSAGE_BYTES),
        "late ones taken": float(sum(late)),
    }


@asynccontextmanager
async def _same(saver: Any) -> AsyncIterator[Any]:
    """Another worker's saver on the same board; a directory is open once."""
    savers = client_module("blackboard.integrations.langgraph")
    yield savers.BlackboardSaver(saver.board)


async def is_taken(first: Any, second: Any, thread: str) -> bool:
    """Whether the late checkpoint of a worker that was replaced is what the next run begins with.

    On a board, the worker owns the thread, and its lease is ended as it would be in time.
    """
    empty = client_module("langgraph.checkpoint.base").empty_checkpoint
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    begun = await first.aput(config, empty(), {"step": 0}, {})
    newest = []

    async def replace() -> None:
        newest.append(await second.aput(begun, empty(), {"step": 1}, {}))

    if hasattr(first, "aown"):
        with suppress(blackboard.BlackboardError):
            async with first.aown(thread):
                [lease] = await first.board.leases(f"{first.prefix}/{thread}/*")
                await first.board.commit([Release(lease.key, lease.holder, lease.fence)])
                await asyncio.get_running_loop().create_task(replace(), context=Context())
                await first.aput(begun, empty(), {"step": 9}, {})
    else:
        await replace()
        await first.aput(begun, empty(), {"step": 9}, {})
    found = await second.aget_tuple(config)
    return bool([found.config] != newest)


def targets() -> Sequence[Target]:
    """What the page promises, as ratios within a round."""

    def target(name: str, figure: str, peer: str | None, **bound: float) -> Target:
        return Target(name, CELL, "board", figure, reference=peer, **bound)

    sqlite, postgres = "langgraph-sqlite", "langgraph-postgres"
    return (
        target("at least 2x the steps/s of SQLite's", "steps/s", sqlite, at_least=2.0),
        target("at least 5x the steps/s of PostgreSQL's", "steps/s", postgres, at_least=5.0),
        target("a listing in less than 0.1x of SQLite's", "list ms", sqlite, below=0.1),
        target("a listing in less than 0.1x of PostgreSQL's", "list ms", postgres, below=0.1),
        target("at most 2x the bytes of the messages", "bytes x input", None, below=2.0),
    )


async def measure(
    rows: Sequence[LangGraphRow], rounds: int, steps: int, troubles: dict[str, str]
) -> Results:
    """Every row in every round, in a new random order each."""
    results = Results()
    results.cells = {CELL: {row.name: {} for row in rows}}

    async def work(row: LangGraphRow, number: int) -> None:
        found = await figures_of(row, steps, f"thread-{number}")
        results.add(CELL, row.name, number, found)

    await in_rounds(rows, rounds, troubles, ROW_SECONDS_MAX, work)
    return results


def tables(results: Results) -> list[Table]:
    """The table, and the verdicts."""
    survives = {kind.name: kind.survives for kind in ROWS}
    verdicts = [judge(target, results) for target in targets()]
    return [cell_table(results, CELL, survives), verdict_table(verdicts)]


async def run(options: argparse.Namespace) -> int:
    """One whole run."""
    rounds, steps = (1, 40) if options.quick else (options.rounds, options.steps)
    troubles: dict[str, str] = {}
    with laboratory(fetch=options.fetch) as lab:
        rows = await start_rows(wanted(ROWS, options.only), lab, troubles)
        facts = gather_facts(lab.folder)
        results = await measure(rows, rounds, steps, troubles)
    found = tables(results)

    def published() -> dict[str, Table]:
        return dict(zip(("checkpointers", "checkpointers-targets"), found, strict=True))

    measured = Measured(facts, troubles, rounds, results, ROWS, targets(), published)
    return report(options, found, measured)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return command_line("checkpointers", __doc__, steps=STEPS).parse_args(arguments)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(asyncio.run(run(parse())))
