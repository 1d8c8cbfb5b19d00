"""Arithmetic on measured values: quantiles, spreads over rounds, ratios between rows. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Figures = Mapping[str, float]
"""One run of one cell for one row: the figure's name (with its unit) and its value."""


WORST_ROUND_COUNTS = frozenset(
    {"paced lost", "lost", "out of order", "repeated", "miscounted", "stalled growth MB"}
)
"""Faults and bounds: told as the worst round's value, for a median would hide a loss in one."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a figure over the rounds, with the lowest and the highest of them."""

    median: float
    low: float
    high: float
    rounds: int


def quantile(values: Sequence[float], q: float) -> float:
    """The nearest-rank quantile, 0 < q <= 1; NaN for no values (nearest rank invents no value)."""
    if not 0 < q <= 1:
        raise ValueError(f"a quantile lies in (0, 1], not {q}")
    if not values:
        return math.nan
    return sorted(values)[math.ceil(q * len(values)) - 1]


def spread(values: Iterable[float]) -> Spread | None:
    """Median and range of the values that are numbers; None when there is none."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known), len(known))


@dataclass(slots=True)
class Results:
    """Everything measured so far: cell -> row -> round -> figures, in the order first seen."""

    cells: dict[str, dict[str, dict[int, Figures]]] = field(default_factory=dict)

    def add(self, cell: str, row: str, round_number: int, figures: Figures) -> None:
        """Keep one run; a second run of the same cell, row and round is a mistake."""
        rounds = self.cells.setdefault(cell, {}).setdefault(row, {})
        if round_number in rounds:
            raise ValueError(f"{cell} of {row} in round {round_number} is already known")
        rounds[round_number] = figures

    def rounds_of(self, cell: str, row: str) -> Mapping[int, Figures]:
        """Round -> figures; empty when the cell was never measured for that row."""
        return self.cells.get(cell, {}).get(row, {})

    def figure(self, cell: str, row: str, name: str) -> Spread | None:
        """The figure's spread over its rounds, or None when nobody measured it."""
        runs = self.rounds_of(cell, row).values()
        return spread(run[name] for run in runs if name in run)

    def ratio(self, cell: str, row: str, reference: str, name: str) -> Spread | None:
        """Row divided by reference, round by round, then the spread of those quotients.

        Rounds are paired because the machine drifts: two rows of one round ran seconds apart.
        Rounds that lack either side, or in which the reference is zero, do not count.
        """
        ours, theirs = self.rounds_of(cell, row), self.rounds_of(cell, reference)
        quotients = [
            ours[number][name] / theirs[number][name]
            for number in ours.keys() & theirs.keys()
            if name in ours[number] and theirs[number].get(name)
        ]
        return spread(quotients)
