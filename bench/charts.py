"""Draw docs/scale.svg from the tables of bench/scale.py in results.json. Pure.

Four panels, one for each question; both axes are logarithmic, so that a cost which does not grow is
a level line, whatever it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.report import MISSING

PICTURE: Final = Path(__file__).resolve().parents[1] / "docs" / "scale.svg"
WIDTH, HEIGHT = 900, 640
_PANEL_WIDTH, _PANEL_HEIGHT = 330, 190
_LEFTS: Final = (70, 500)
_TOPS: Final = (64, 372)
_Rows = Sequence[Sequence[str]]
Tables = Mapping[str, tuple[Sequence[str], _Rows]]
"""Header and rows of each table, by name."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A table, what its first column counts, and the columns that are drawn, as they are called."""

    title: str
    table: str
    across: str
    lines: Sequence[tuple[int, str]]
    """Numbers of columns, of which the first is 0."""


PANELS: Final = (
    Panel(
        "a commit, us of processor time",
        "scale-commits",
        "writers",
        ((1, "embedded"), (2, "one service"), (3, "its Redis"), (6, "three services")),
    ),
    Panel(
        "a delivery, us", "scale-watchers", "watchers", ((1, "one service"), (4, "three services"))
    ),
    Panel(
        "a commit on any board, us",
        "scale-boards",
        "boards",
        ((3, "embedded"), (9, "one service")),
    ),
    Panel(
        "a commit to any key, us",
        "scale-keys",
        "keys of the board",
        ((3, "embedded"), (7, "one service"), (8, "its Redis")),
    ),
)
_HEAD: Final = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"
     role="img" aria-labelledby="t d">
  <title id="t">How processor time grows with size</title>
  <desc id="d">
    Four panels with logarithmic axes: processor time of a commit over the number of writers, of a
    delivery over watchers, of a commit over boards, and over the keys of one board. The tables of
    docs/sizing.md have the same figures.
  </desc>
  <style>
    text {{ font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }}
    text {{ fill: #57606a }}
    .page {{ fill: #ffffff; stroke: #d0d7de }}
    .head {{ font-size: 14px; font-weight: 700; fill: #1f2328 }}
    .frame {{ fill: none; stroke: #d0d7de }}
    .line {{ fill: none; stroke-width: 2 }}
    .c0 {{ stroke: #0969da }} .c1 {{ stroke: #1a7f37 }}
    .c2 {{ stroke: #bc4c00 }} .c3 {{ stroke: #8250df }}
    .t0 {{ fill: #0969da }} .t1 {{ fill: #1a7f37 }}
    .t2 {{ fill: #bc4c00 }} .t3 {{ fill: #8250df }}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #9da7b1 }}
      .page {{ fill: #0d1117; stroke: #30363d }}
      .head {{ fill: #e6edf3 }}
      .frame {{ stroke: #30363d }}
      .c0 {{ stroke: #58a6ff }} .c1 {{ stroke: #3fb950 }}
      .c2 {{ stroke: #f0883e }} .c3 {{ stroke: #bc8cff }}
      .t0 {{ fill: #58a6ff }} .t1 {{ fill: #3fb950 }}
      .t2 {{ fill: #f0883e }} .t3 {{ fill: #bc8cff }}
    }}
  </style>
"""


def drawn(tables: Tables) -> str:
    """The whole file; the place of a table that was not measured yet stays empty."""
    parts = [
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>'
    ]
    for number, panel in enumerate(PANELS):
        if panel.table not in tables:
            continue
        left, top = _LEFTS[number % 2], _TOPS[number // 2]
        parts += _panel(panel, tables[panel.table][1], left, top)
    return _HEAD + "".join(f"  {part}\n" for part in parts) + "</svg>\n"


def _panel(panel: Panel, rows: _Rows, left: int, top: int) -> Iterable[str]:
    across = [_number(row[0]) for row in rows]
    series = [[_number(row[column]) for row in rows] for column, _ in panel.lines]
    known = [value for values in series for value in values if value > 0]
    low, high = _decades(known)
    first, last = math.log10(across[0]), math.log10(across[-1])

    def place(size: float, value: float) -> tuple[float, float]:
        x = left + _PANEL_WIDTH * (math.log10(size) - first) / ((last - first) or 1)
        y = top + _PANEL_HEIGHT * (high - math.log10(value)) / (high - low)
        return round(x, 1), round(y, 1)

    yield f'<text class="head" x="{left}" y="{top - 30}">{panel.title}</text>'
    frame = f'width="{_PANEL_WIDTH}" height="{_PANEL_HEIGHT}"'
    yield f'<rect class="frame" x="{left}" y="{top}" {frame}/>'
    for power in range(low, high + 1):
        y = place(across[0], 10**power)[1]
        yield f'<path class="frame" d="M{left} {y}H{left + _PANEL_WIDTH}"/>'
        yield f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{10**power:,}</text>'
    for size in across:
        x, bottom = place(size, 10**low)
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{size:,.0f}</text>'
    middle = left + _PANEL_WIDTH // 2
    below = top + _PANEL_HEIGHT + 36
    yield f'<text x="{middle}" y="{below}" text-anchor="middle">{panel.across}</text>'
    for number, (values, (_, name)) in enumerate(zip(series, panel.lines, strict=True)):
        points = [place(s, v) for s, v in zip(across, values, strict=True) if v > 0]
        path = " ".join(f"{x},{y}" for x, y in points)
        yield f'<polyline class="line c{number}" points="{path}"/>'
        x = left + 86 * number
        yield f'<text class="t{number}" x="{x}" y="{top - 10}">{name}</text>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around them."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _number(text: str) -> float:
    """0 for what was not measured."""
    return 0.0 if text == MISSING else float(text.replace(",", ""))
