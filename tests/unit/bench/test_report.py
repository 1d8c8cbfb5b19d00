"""The report's tables."""

import pytest

from bench.figures import Results, Spread
from bench.report import Table, cell_table, markdown, number, spread_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.126, "0.13"), (2.0, "2"), (12.34, "12.3"), (20.0, "20.0"), (12345.6, "12,346")],
)
def test_numbers_carry_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_range_is_shown_only_when_there_is_one() -> None:
    assert spread_text(Spread(2.0, 1.0, 3.0, 3)) == "2 [1-3]"
    assert spread_text(Spread(2.0, 2.0, 2.0, 1)) == "2"
    assert spread_text(None) == "-"


def test_a_cell_table_sets_every_row_in_relation_to_the_named_peer() -> None:
    results = Results()
    results.add("put w=1", "ours", 1, {"op/s": 300.0, "p50 ms": 0.5})
    results.add("put w=1", "etcd", 1, {"op/s": 100.0, "p50 ms": 1.5})
    assert cell_table(results, "put w=1", {"etcd": "power loss"}) == Table(
        "put w=1",
        ["row", "ack survives", "op/s", "p50 ms", "x etcd"],
        [["ours", "-", "300", "0.5", "3"], ["etcd", "power loss", "100", "1.5", "1"]],
    )


def test_markdown_escapes_what_would_break_a_row() -> None:
    text = markdown(Table("t", ["a", "b"], [["x|y", "1"]]))
    assert text == "### t\n\n| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"


def test_a_loss_in_one_round_is_not_hidden_by_the_rounds_without() -> None:
    results = Results()
    for round_number, lost in enumerate((0.0, 20.0, 0.0)):
        results.add("fan n=10", "ours", round_number, {"deliveries/s": 100.0, "lost": lost})
    table = cell_table(results, "fan n=10", {})
    assert table.rows[0][table.header.index("lost (worst)")] == "20.0"
