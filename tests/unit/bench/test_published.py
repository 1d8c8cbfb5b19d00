"""The pages of figures say what bench/results.json says."""

import re
from pathlib import Path

import pytest

from bench.figures import Results
from bench.published import PAGES, Published, load, names_on, rendered, summary
from bench.report import Table

LINES_MAX = 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_what_the_file_has(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert rendered(text, load()) == text


def test_every_table_of_the_file_stands_on_one_page() -> None:
    shown = [name for page in PAGES for name in names_on(page.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(load())


def test_the_page_of_performance_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= LINES_MAX


def test_every_row_is_as_long_as_its_header() -> None:
    for name, table in load().items():
        assert {len(row) for row in table.rows} == {len(table.header)}, name


def test_a_table_is_put_below_its_marker_and_replaced_the_next_time() -> None:
    page = "# Title\n\n<!-- figures: a -->\n\nText stays.\n\n| own | table |\n| --- | --- |\n"
    once = rendered(page, {"a": Published("on a Monday", ["row", "x"], [["we", "1"]])})
    table = "Measured: on a Monday.\n\n| row | x |\n| --- | ---: |\n| we | 1 |\n"
    assert once == page.replace("-->\n", f"-->\n\n{table}")
    again = rendered(once, {"a": Published("on a Tuesday", ["row"], [["we"]])})
    assert re.findall(r"on a \w+", again) == ["on a Tuesday"]
    assert "Text stays." in again
    assert "| own | table |" in again


def test_a_marker_without_figures_is_an_error() -> None:
    with pytest.raises(KeyError):
        rendered("<!-- figures: a -->\n", {})


def test_a_summary_gathers_cells_and_shows_what_is_missing() -> None:
    results = Results()
    results.add("put w=1", "ours", 1, {"op/s": 300.0})
    results.add("put w=1", "etcd", 1, {"op/s": 100.0})
    found = summary("put", results)
    assert isinstance(found, Table)
    assert found.rows == [
        ["ours", "300", "3", "-", "-", "-", "-"],
        ["etcd", "100", "1", "-", "-", "-", "-"],
    ]
