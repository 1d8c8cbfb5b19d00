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
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from bench.catalogue import ROWS
from bench.cells import cas_cell, fan_cell, increment_cell, put_cell
from bench.figures import Figures, Results
from bench.machine import Facts, gather_facts
from bench.published import publish, summary
from bench.report import Table, cell_table, document, markdown, verdict_table
from bench.rows import Row
from bench.servers import Lab, UnavailableError, prepare_cache
from bench.stall import stall_cell
from bench.targets import TARGETS, Verdict, judge

CELL_SECONDS_MAX = 120.0
SETTLE_SECONDS = 0.2
KINDS = ("put", "fan", "cas", "increment", "stall")
Measure = Callable[[Row], Awaitable[Figures]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A named measurement and the kind that rows opt in to."""

    name: str
    kind: str
    measure: Measure


@dataclass(slots=True)
class Run:
    """What one run gathers: started rows, results, and what went wrong by name."""

    rows: list[Row] = field(default_factory=list)
    results: Results = field(default_factory=Results)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


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


def explain(error: BaseException) -> str:
    """An error in one line; of a group the first cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300]


async def start_rows(run: Run, lab: Lab, wanted: Sequence[str], progress: Progress) -> None:
    """Start every wanted row; one that cannot start is noted and left out."""
    kinds = [kind for kind in ROWS if not wanted or any(word in kind.name for word in wanted)]
    task = progress.add_task("starting", total=len(kinds))
    for kind in kinds:
        progress.update(task, description=f"starting {kind.name}")
        row = kind()
        try:
            await row.start(lab)
            run.rows.append(row)
        except UnavailableError as reason:
            run.skipped[kind.name] = str(reason)
        except Exception as error:  # noqa: BLE001 - one broken row must not lose the others
            run.failed[f"start of {kind.name}"] = explain(error)
        progress.advance(task)
    progress.remove_task(task)


async def measure_all(run: Run, cells: Sequence[Cell], rounds: int, progress: Progress) -> None:
    """Every cell of every row in every round; a broken cell is noted and the run goes on."""
    jobs = [(cell, [row for row in run.rows if cell.kind in row.cells]) for cell in cells]
    task = progress.add_task("measuring", total=rounds * sum(len(rows) for _, rows in jobs))
    for round_number in range(1, rounds + 1):
        for cell, rows in jobs:
            for row in random.sample(rows, len(rows)):
                name = f"{cell.name}, {row.name}, round {round_number}"
                progress.update(task, description=name)
                try:
                    figures = await asyncio.wait_for(cell.measure(row), CELL_SECONDS_MAX)
                    run.results.add(cell.name, row.name, round_number, figures)
                except Exception as error:  # noqa: BLE001 - clients raise anything
                    run.failed[name] = explain(error)
                    progress.console.print(f"[red]failed[/red] {name}: {run.failed[name]}")
                progress.advance(task)
                await asyncio.sleep(SETTLE_SECONDS)


def in_report_order(results: Results) -> Results:
    """The same results with rows in the catalogue's order (rounds visit them at random)."""
    ordered = Results()
    for cell, rows in results.cells.items():
        for kind in ROWS:
            for round_number, figures in rows.get(kind.name, {}).items():
                ordered.add(cell, kind.name, round_number, figures)
    return ordered


def show(console: Console, table: Table, *, as_markdown: bool) -> None:
    """Print one table for people or for a page."""
    if as_markdown:
        print(markdown(table))
        return
    shown = RichTable(title=table.title, title_justify="left", title_style="bold")
    for column, heading in enumerate(table.header):
        shown.add_column(heading, justify="left" if column == 0 else "right")
    for line in table.rows:
        shown.add_row(*line)
    console.print(shown)


def print_run(
    facts: Facts, tables: Sequence[Table], troubles: Mapping[str, str], *, as_markdown: bool
) -> None:
    """Print the facts of the machine, the tables, and which rows could not run, and why."""
    for line in facts.lines():
        print(f"- {line}")
    print()
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables:
        show(console, table, as_markdown=as_markdown)
    for name, reason in troubles.items():
        print(f"- {name}: {reason}")


def report(run: Run, facts: Facts, options: argparse.Namespace) -> None:
    """Print the facts, a table per cell, the verdicts and the troubles; write the JSON file."""
    results, survives = in_report_order(run.results), {kind.name: kind.survives for kind in ROWS}
    verdicts: list[Verdict] = [judge(target, results) for target in TARGETS]
    console = Console(width=None if sys.stdout.isatty() else 160)
    for line in facts.lines():
        print(f"- {line}")
    print()
    for cell in results.cells:
        show(console, cell_table(results, cell, survives), as_markdown=options.markdown)
    show(console, verdict_table(verdicts), as_markdown=options.markdown)
    troubles = {**run.skipped, **run.failed}
    for name, reason in run.skipped.items():
        print(f"- skipped {name}: {reason}")
    for name, reason in run.failed.items():
        print(f"- failed {name}: {reason}")
    if options.json:
        written = document(results, verdicts, survives, asdict(facts), troubles)
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    if options.publish:
        tables = {name: summary(name, results) for name in ("put", "fan") if name in options.cells}
        publish(facts.conditions(options.rounds), tables | {"targets": verdict_table(verdicts)})


async def run_all(options: argparse.Namespace) -> int:
    """One whole run; whatever happens, its servers are stopped and its files deleted."""
    rounds, seconds, megabytes = (1, 0.3, 16) if options.quick else (options.rounds, 1.5, 64)
    run = Run()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.folder or prepare_cache()))
    lab = Lab(folder, fetch=options.fetch)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    try:
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
            await start_rows(run, lab, options.only, progress)
            facts = gather_facts(folder)
            cells = plan_cells(options.cells, seconds=seconds, megabytes=megabytes)
            await measure_all(run, cells, rounds, progress)
    finally:
        lab.close()
        shutil.rmtree(folder, ignore_errors=True)
    report(run, facts, options)
    return 1 if run.failed else 0


def words(text: str) -> list[str]:
    """Comma-separated words."""
    return [word for word in text.split(",") if word]


def kinds_of(text: str) -> list[str]:
    """Comma-separated kinds of cells."""
    for word in words(text):
        if word not in KINDS:
            raise argparse.ArgumentTypeError(f"{word} is none of {', '.join(KINDS)}")
    return words(text)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.coordination",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=words, default=[], help="parts of rows' names")
    parser.add_argument("--cells", type=kinds_of, default=list(KINDS), help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--publish", action="store_true", help="renew docs/performance.md")
    parser.add_argument(
        "--no-fetch", dest="fetch", action="store_false", help="do not download missing servers"
    )
    parser.add_argument("--folder", type=Path, help="put the servers' files here: same disk counts")
    return parser.parse_args(arguments)


def main() -> int:
    """Entry point; SIGTERM ends the run like Ctrl-C, so that the servers are stopped."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return asyncio.run(run_all(options))


if __name__ == "__main__":
    sys.exit(main())
