"""Measure Blackboard beside etcd, NATS KV and plain Redis in one run on this machine.

    python -m bench.coordination                        everything, three rounds
    python -m bench.coordination --only ours,etcd       rows whose name contains one of these
    python -m bench.coordination --cells put,fan        kinds: put, fan, cas, increment, stall
    python -m bench.coordination --quick                does it run at all; figures are worthless
    python -m bench.coordination --publish              put the figures into docs/performance.md

In every round each cell visits all rows one after another in a new random order, so that what
drifts on the machine drifts for all. Missing servers are fetched with apt into the checkout's
.servers folder (not with --no-fetch); a row that cannot run is named with its reason.
Everything listens on 127.0.0.1 only. Exit status 1 means that a cell failed, not a target.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.catalogue import ROWS
from bench.cells import cas_cell, fan_cell, increment_cell, put_cell
from bench.figures import Figures, Results
from bench.machine import Facts, gather_facts
from bench.published import summary
from bench.report import Table, cell_table, verdict_table
from bench.rows import Row
from bench.session import (
    SETTLE_SECONDS,
    Measured,
    command_line,
    end_on_sigterm,
    explain,
    laboratory,
    one_of,
    report,
    start_rows,
    wanted,
)
from bench.stall import stall_cell
from bench.targets import TARGETS, judge

CELL_SECONDS_MAX = 120.0

KINDS = ("put", "fan", "cas", "increment", "stall")
Measure = Callable[[Row], Awaitable[Figures]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A named measurement and the kind that rows opt in to."""

    name: str
    kind: str
    measure: Measure


@dataclass(frozen=True, slots=True)
class Visit:
    """Where a run shows how far it is, and notes what went wrong."""

    progress: Progress
    troubles: dict[str, str]


def plan_cells(kinds: Sequence[str], *, seconds: float, megabytes: int) -> list[Cell]:
    """The cells of these kinds in the order of the report."""
    cells = [
        Cell(f"put w={writers}", "put", partial(put_cell, writers=writers, seconds=seconds))
        for writers in (1, 16, 64)
    ]
    cells += [
        Cell(f"fan n={watchers}", "fan", partial(fan_cell, watchers=watchers, seconds=seconds))
        for watchers in (1, 10, 100)
    ]
    cells += [
        Cell("cas", "cas", partial(cas_cell, seconds=seconds)),
        Cell("increment", "increment", partial(increment_cell, seconds=seconds)),
        Cell("stall", "stall", partial(stall_cell, megabytes=megabytes)),
    ]
    return [cell for cell in cells if cell.kind in kinds]


async def measure_all(
    rows: Sequence[Row], cells: Sequence[Cell], rounds: int, visit: Visit
) -> Results:
    """Every cell of every row in every round; a broken cell is noted and the run goes on."""
    results = Results()
    jobs = [(cell, [row for row in rows if cell.kind in row.cells]) for cell in cells]
    task = visit.progress.add_task("measuring", total=rounds * sum(len(them) for _, them in jobs))
    for round_number in range(1, rounds + 1):
        for cell, them in jobs:
            for row in random.sample(them, len(them)):
                name = f"{cell.name}, {row.name}, round {round_number}"
                visit.progress.update(task, description=name)
                try:
                    figures = await asyncio.wait_for(cell.measure(row), CELL_SECONDS_MAX)
                    results.add(cell.name, row.name, round_number, figures)
                except Exception as error:  # noqa: BLE001 - clients raise anything
                    visit.troubles[f"failed {name}"] = explain(error)
                    visit.progress.console.print(f"[red]failed[/red] {name}: {explain(error)}")
                visit.progress.advance(task)
                await asyncio.sleep(SETTLE_SECONDS)
    return results


def in_report_order(results: Results) -> Results:
    """The same results with rows in the catalogue's order (rounds visit them at random)."""
    ordered = Results()
    for cell, rows in results.cells.items():
        for kind in ROWS:
            for round_number, figures in rows.get(kind.name, {}).items():
                ordered.add(cell, kind.name, round_number, figures)
    return ordered


def report_run(results: Results, facts: Facts, options: argparse.Namespace, about: Visit) -> int:
    """Report a table per cell and the verdicts; returns the exit code."""
    survives = {kind.name: kind.survives for kind in ROWS}
    found = [cell_table(results, cell, survives) for cell in results.cells]
    targets = verdict_table([judge(target, results) for target in TARGETS])

    def published() -> dict[str, Table]:
        tables = {name: summary(name, results) for name in ("put", "fan") if name in options.cells}
        return tables | {"targets": targets}

    measured = Measured(facts, about.troubles, options.rounds, results, ROWS, TARGETS, published)
    return report(options, [*found, targets], measured)


async def run_all(options: argparse.Namespace) -> int:
    """One whole run; at its end its servers are stopped and its files deleted."""
    rounds, seconds, megabytes = (1, 0.3, 16) if options.quick else (options.rounds, 1.5, 64)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bars = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
    visit = Visit(bars, {})
    with laboratory(fetch=options.fetch, parent=options.folder) as lab, bars:
        kinds = wanted(ROWS, options.only)
        rows: list[Row] = []
        for kind in bars.track(kinds, description="starting"):
            rows += await start_rows([kind], lab, visit.troubles)
        facts = gather_facts(lab.folder)
        cells = plan_cells(options.cells, seconds=seconds, megabytes=megabytes)
        results = await measure_all(rows, cells, rounds, visit)
    return report_run(in_report_order(results), facts, options, visit)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("coordination", __doc__)
    parser.add_argument("--cells", type=one_of(KINDS), default=list(KINDS), help=", ".join(KINDS))
    parser.add_argument("--folder", type=Path, help="put the servers' files here: same disk counts")
    return parser.parse_args(arguments)


def main() -> int:
    """Entry point; SIGTERM ends the run like Ctrl-C, so that the servers are stopped."""
    end_on_sigterm()
    return asyncio.run(run_all(parse()))


if __name__ == "__main__":
    sys.exit(main())
