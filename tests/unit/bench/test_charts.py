"""The picture of docs/sizing.md: drawn from the published tables, and what it makes of them."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

from bench.charts import PANELS, PICTURE, drawn
from bench.published import picture

HEADER = ["size", *(["us"] * 9)]
LINE = re.compile(r'class="line c0" points="([^"]*)"')


def line_of(values: list[str]) -> list[tuple[float, float]]:
    """The places of the first line of the first panel, for sizes of 1, 10 and 100."""
    rows = [[size, *[value] * 9] for size, value in zip(("1", "10", "100"), values, strict=True)]
    found = LINE.search(drawn({PANELS[0].table: (HEADER, rows)}))
    assert found is not None
    points = [point.split(",") for point in found[1].split()]
    return [(float(x), float(y)) for x, y in points]


def test_the_picture_shows_what_the_file_has() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture()


def test_it_is_a_picture() -> None:
    assert ET.fromstring(picture()).tag.endswith("svg")


def test_what_costs_more_is_higher_and_what_is_larger_is_further_to_the_right() -> None:
    points = line_of(["10", "100", "1,000"])
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(points))


def test_both_axes_are_logarithmic() -> None:
    (x, y), (further, higher), (furthest, highest) = line_of(["10", "100", "1,000"])
    assert furthest - further == further - x
    assert round(y - higher, 1) == round(higher - highest, 1)


def test_what_was_not_measured_is_left_out() -> None:
    assert len(line_of(["10", "-", "30"])) == 2
