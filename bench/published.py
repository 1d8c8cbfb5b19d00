"""The figures of docs/performance*.md, docs/sizing.md and docs/howto/backup.md, from results.json.

A table of a page stands below its marker, `<!-- figures: put -->`. `python -m bench --publish`
measures, writes the tables into the file and renews the pages; `python -m bench.published` only
renews the pages. A test compares them with the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import charts
from bench.figures import Results
from bench.report import Table, markdown, spread_text

RESULTS = Path(__file__).with_name("results.json")
_DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = tuple(
    _DOCS / f"{name}.md"
    for name in (
        *("performance", "performance_langgraph", "performance_sessions"),
        *("sizing", "howto/backup"),
    )
)
_PLACE = re.compile(r"^<!-- figures: (.+) -->\n(?:\nMeasured: .+\n\n(?:\|.*\n)+)?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Published:
    """A table of the page, and when and where it was measured."""

    conditions: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of one cell; with `reference`, as a multiple of that row's figure."""

    heading: str
    cell: str
    figure: str
    reference: str | None = None


COLUMNS: Mapping[str, Sequence[Column]] = {
    "put": [
        column
        for count in (1, 16, 64)
        for column in (
            Column(f"w={count}, op/s", f"put w={count}", "op/s"),
            Column("x etcd", f"put w={count}", "op/s", "etcd"),
        )
    ],
    "fan": [
        *(Column(f"n={count}, p50 ms", f"fan n={count}", "paced p50 ms") for count in (1, 10, 100)),
        Column("n=100, deliveries/s", "fan n=100", "deliveries/s"),
        Column("x nats", "fan n=100", "deliveries/s", "nats"),
    ],
    "documents": [
        *(
            Column(f"{count} peers, p50 ms", f"fanout n={count}", "paced p50 ms")
            for count in (1, 10, 50)
        ),
        Column("50 peers, p99 ms", "fanout n=50", "paced p99 ms"),
        Column("load 10,000 edits, ms", "load 10,000 edits", "load ms"),
        Column("session of 26,000 edits, s", "session of two", "session s"),
        Column("its files, MB", "session of two", "stopped MB"),
    ],
    "recovery": [
        Column("commits/s", "recovery load", "commits/s"),
        Column("commits lost by a kill", "recovery load", "lost"),
        Column("of the last s", "recovery load", "lost s"),
        *(
            Column(f"{keys:,} keys back, s", f"recovery keys={keys}", "recover s")
            for keys in (1_000, 10_000, 100_000)
        ),
    ],
}
"""The tables that gather several cells, by name."""


def summary(name: str, results: Results) -> Table:
    """A row per product, with the figures of the table `name`; what was not measured is `-`."""
    columns = COLUMNS[name]
    rows = dict.fromkeys(row for column in columns for row in results.cells.get(column.cell, {}))
    lines = []
    for row in rows:
        spreads = (
            results.figure(column.cell, row, column.figure)
            if column.reference is None
            else results.ratio(column.cell, row, column.reference, column.figure)
            for column in columns
        )
        lines.append([row, *map(spread_text, spreads)])
    return Table(name, ["row", *(column.heading for column in columns)], lines)


def load(path: Path = RESULTS) -> dict[str, Published]:
    """The published tables by name."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: Published(**table) for name, table in found.items()}


def rendered(page: str, published: Mapping[str, Published]) -> str:
    """The page with the table and its conditions below each marker. Errors: KeyError."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        known = published[name]
        body = markdown(Table(name, known.header, known.rows)).partition("\n\n")[2]
        return f"<!-- figures: {name} -->\n\nMeasured: {known.conditions}.\n\n{body}"

    return _PLACE.sub(table, page)


def names_on(page: str) -> list[str]:
    """The tables that the page has a place for."""
    return _PLACE.findall(page)


def picture() -> str:
    """The picture of docs/sizing.md, from the file."""
    return charts.drawn({name: (table.header, table.rows) for name, table in load().items()})


def publish(conditions: str, tables: Mapping[str, Table]) -> None:
    """Put `tables`, by name, into the file in place of those of the same name; renew the pages."""
    known = load()
    known |= {name: Published(conditions, t.header, t.rows) for name, t in tables.items()}
    plain = {name: asdict(table) for name, table in known.items()}
    RESULTS.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    renew()


def renew() -> None:
    """Write the pages again from the file, and the picture."""
    charts.PICTURE.write_text(picture(), encoding="utf-8")
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8"), load()), encoding="utf-8")


if __name__ == "__main__":
    renew()
