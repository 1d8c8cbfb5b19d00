"""The report: tables of medians, ranges and ratios, the verdicts, and the JSON document. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.figures import WORST_ROUND_COUNTS, Results, Spread
from bench.targets import Verdict

MISSING = "-"
WITH_RANGE = frozenset({"p50 ms", "paced p50 ms"})
"""Figures shown with their range, beside the headline of each kind of cell."""
HEADLINE_BY_CELL_KIND: Mapping[str, tuple[str, str]] = {
    "put": ("op/s", "etcd"),
    "fan": ("deliveries/s", "nats"),
    "cas": ("increments/s", "etcd"),
    "increment": ("increments/s", "redis-always"),
    "fanout": ("deliveries/s", "hocuspocus"),
}
"""Kind of cell -> the figure that is compared, and the peer it is compared with."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; every row is as long as the header, the first column is the name."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def number(value: float) -> str:
    """Three significant digits at most, thousands separated."""
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def spread_text(known: Spread | None, *, with_range: bool = True) -> str:
    """`median [low-high]`, or the median alone when there was one round."""
    if known is None:
        return MISSING
    if known.rounds == 1 or not with_range or known.low == known.high:
        return number(known.median)
    return f"{number(known.median)} [{number(known.low)}-{number(known.high)}]"


def figure_text(name: str, known: Spread | None, headline: str) -> str:
    """A figure as its column shows it: the worst round of a fault, else the median."""
    if known is not None and name in WORST_ROUND_COUNTS:
        return number(known.high)
    return spread_text(known, with_range=name == headline or name in WITH_RANGE)


def column_title(name: str) -> str:
    """The figure's name, and that it is the worst round's where it is."""
    return f"{name} (worst)" if name in WORST_ROUND_COUNTS else name


def cell_table(results: Results, cell: str, survives: Mapping[str, str]) -> Table:
    """One cell: a line per row, its figures, and the ratio to the cell's reference peer."""
    rows = results.cells[cell]
    names = list(
        dict.fromkeys(name for runs in rows.values() for run in runs.values() for name in run)
    )
    headline, reference = HEADLINE_BY_CELL_KIND.get(cell.split()[0], ("", ""))
    header = ["row", "ack survives", *map(column_title, names)]
    if headline:
        header.append(f"x {reference}")
    lines = []
    for row in rows:
        line = [row, survives.get(row, MISSING)]
        line += [figure_text(name, results.figure(cell, row, name), headline) for name in names]
        if headline:
            line.append(spread_text(results.ratio(cell, row, reference, headline)))
        lines.append(line)
    return Table(cell, header, lines)


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """The promises and what this run says about them."""
    lines = [
        [verdict.target.text, spread_text(verdict.measured), verdict.outcome]
        for verdict in verdicts
    ]
    return Table("targets", ["target", "measured", "verdict"], lines)


def markdown(table: Table) -> str:
    """The table as GitHub's Markdown; figures are right-aligned."""
    escaped = [[text.replace("|", "\\|") for text in row] for row in (table.header, *table.rows)]
    rule = ["---", *("---:" for _ in table.header[1:])]
    body = [f"| {' | '.join(row)} |" for row in (escaped[0], rule, *escaped[1:])]
    return "\n".join([f"### {table.title}", "", *body, ""])


def document(
    results: Results,
    verdicts: Sequence[Verdict],
    survives: Mapping[str, str],
    facts: Mapping[str, Any],
    troubles: Mapping[str, str],
) -> dict[str, Any]:
    """Everything, for a file: each round's raw figures too, so that nothing has to be re-run."""
    return {
        "facts": facts,
        "troubles": troubles,
        "survives": survives,
        "targets": [asdict(verdict) for verdict in verdicts],
        "cells": results.cells,
    }
