"""What every measurement shares: its options, its folder, the start of its rows, what it prints."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from rich.console import Console
from rich.table import Table as RichTable

from bench.figures import Results
from bench.machine import Facts
from bench.published import publish
from bench.report import Table, document, markdown
from bench.servers import Lab, UnavailableError, prepare_cache
from bench.targets import Target, judge

SETTLE_SECONDS = 0.2
"""Rest between two measurements, so that one does not pay for what another left to do."""


class Startable(Protocol):
    """A row: a store with its settings, under a name of its own."""

    name: ClassVar[str]

    async def start(self, lab: Lab) -> None:
        """Start its servers. Errors: UnavailableError when it cannot run here."""


class Named(Protocol):
    """A row as reports speak of it."""

    name: ClassVar[str]
    survives: ClassVar[str]


RowT = TypeVar("RowT", bound=Startable)


@dataclass(frozen=True)
class Measured:
    """What a run brought. `published` are the tables that it renews, by their names in the file of
    results."""

    facts: Facts
    troubles: Mapping[str, str]
    rounds: int
    results: Results
    rows: Sequence[type[Named]]
    targets: Sequence[Target]
    published: Callable[[], Mapping[str, Table]]


def command_line(
    name: str, description: str | None, *, steps: int | None = None
) -> argparse.ArgumentParser:
    """The options that every measurement takes; --steps, too, where it has a default."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=words, default=[], help="parts of rows' names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--publish", action="store_true", help="renew docs/performance.md")
    parser.add_argument(
        "--no-fetch", dest="fetch", action="store_false", help="do not download what is missing"
    )
    if steps is not None:
        parser.add_argument("--steps", type=int, default=steps)
    return parser


def words(text: str) -> list[str]:
    """Comma-separated words."""
    return [word for word in text.split(",") if word]


def one_of(kinds: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads comma-separated words, each of which must be among `kinds`."""

    def read(text: str) -> list[str]:
        for word in words(text):
            if word not in kinds:
                raise argparse.ArgumentTypeError(f"{word} is none of {', '.join(kinds)}")
        return words(text)

    return read


def end_on_sigterm() -> None:
    """Let SIGTERM end the run as Ctrl-C does, so that the servers are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@contextmanager
def laboratory(*, fetch: bool, parent: Path | None = None) -> Iterator[Lab]:
    """A folder for the run. At the end its servers are stopped and its files deleted."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent or prepare_cache()))
    os.chmod(folder, 0o711)  # noqa: PTH101 - PostgreSQL runs as another user, and must get through
    lab = Lab(folder, fetch=fetch)
    try:
        yield lab
    finally:
        lab.close()
        shutil.rmtree(folder, ignore_errors=True)


def wanted(kinds: Iterable[type[RowT]], only: Sequence[str]) -> list[type[RowT]]:
    """The rows whose name has one of the words in it; all of them without words."""
    return [kind for kind in kinds if not only or any(word in kind.name for word in only)]


async def start_rows(
    kinds: Iterable[type[RowT]],
    lab: Lab,
    troubles: dict[str, str],
    begins: Callable[[str], Any] = lambda name: None,
) -> list[RowT]:
    """The rows that run here. What does not is noted in `troubles` with its reason.

    `begins` gets the name of each row just before it is started.
    """
    rows = []
    for kind in kinds:
        begins(kind.name)
        row = kind()
        try:
            await row.start(lab)
            rows.append(row)
        except UnavailableError as reason:
            troubles[f"skipped {row.name}"] = str(reason)
        except Exception as error:  # noqa: BLE001 - one broken row must not lose the others
            troubles[f"failed start of {row.name}"] = explain(error)
    return rows


async def in_rounds(
    rows: Sequence[RowT],
    rounds: int,
    troubles: dict[str, str],
    seconds_max: float,
    work: Callable[[RowT, int], Awaitable[None]],
) -> None:
    """Do the work of each row, with the number of the round, in each round in a new random order.
    What fails, or takes longer than `seconds_max`, is noted in `troubles`."""
    for number in range(1, rounds + 1):
        for row in random.sample(rows, len(rows)):
            try:
                async with asyncio.timeout(seconds_max):
                    await work(row, number)
            except Exception as error:  # noqa: BLE001 - clients and workers fail in any way
                troubles[f"failed {row.name}, round {number}"] = explain(error)


def explain(error: BaseException) -> str:
    """An error in one line; of a group the first cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300]


def report(options: argparse.Namespace, tables: Sequence[Table], measured: Measured) -> int:
    """Print the facts, the tables and the troubles, write the JSON file and renew the published
    tables, as far as `options` say; returns the exit code."""
    facts, troubles = measured.facts, measured.troubles
    _print_run(facts, tables, troubles, as_markdown=options.markdown)
    if options.json:
        survives = {kind.name: kind.survives for kind in measured.rows}
        verdicts = [judge(target, measured.results) for target in measured.targets]
        written = document(measured.results, verdicts, survives, asdict(facts), troubles)
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    if options.publish:
        publish(facts.conditions(measured.rounds), measured.published())
    return 1 if has_failed(troubles) else 0


def _print_run(
    facts: Facts, tables: Sequence[Table], troubles: Mapping[str, str], *, as_markdown: bool
) -> None:
    for line in facts.lines():
        print(f"- {line}")
    print()
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables:
        _show(console, table, as_markdown=as_markdown)
    for name, reason in troubles.items():
        print(f"- {name}: {reason}")


def has_failed(troubles: Mapping[str, str]) -> bool:
    """Whether something broke. What was skipped did not."""
    return any(name.startswith("failed") for name in troubles)


def _show(console: Console, table: Table, *, as_markdown: bool) -> None:
    if as_markdown:
        print(markdown(table))
        return
    shown = RichTable(title=table.title, title_justify="left", title_style="bold")
    for column, heading in enumerate(table.header):
        shown.add_column(heading, justify="left" if column == 0 else "right")
    for line in table.rows:
        shown.add_row(*line)
    console.print(shown)
