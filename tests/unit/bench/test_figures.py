"""The benchmark's arithmetic: a wrong quantile or ratio would be a false claim in the docs."""

import math

import pytest

from bench.figures import Results, Spread, quantile, spread


@pytest.mark.parametrize(
    ("q", "expected"), [(0.01, 1.0), (0.5, 50.0), (0.501, 51.0), (0.99, 99.0), (1.0, 100.0)]
)
def test_a_quantile_is_the_nearest_rank(q: float, expected: float) -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert quantile(values, q) == expected


def test_a_quantile_of_one_value_is_that_value_and_of_none_is_no_number() -> None:
    assert quantile([7.0], 0.99) == 7.0
    assert math.isnan(quantile([], 0.5))


@pytest.mark.parametrize("q", [0.0, -0.1, 50])
def test_a_quantile_outside_its_range_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        quantile([1.0], q)


def test_a_spread_leaves_out_what_is_no_number() -> None:
    assert spread([3.0, math.nan, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0, 3)
    assert spread([math.nan]) is None


def test_ratios_are_taken_round_by_round_and_not_between_medians() -> None:
    """The machine was slow in round 2 for both: the ratio of that round is still 2."""
    results = Results()
    for number, ours, theirs in ((1, 200.0, 100.0), (2, 20.0, 10.0), (3, 300.0, 100.0)):
        results.add("put", "ours", number, {"op/s": ours})
        results.add("put", "etcd", number, {"op/s": theirs})
    assert results.ratio("put", "ours", "etcd", "op/s") == Spread(2.0, 2.0, 3.0, 3)


def test_a_ratio_ignores_rounds_that_lack_one_side_or_have_a_zero_below() -> None:
    results = Results()
    results.add("put", "ours", 1, {"op/s": 5.0})
    results.add("put", "ours", 2, {"op/s": 6.0})
    results.add("put", "etcd", 2, {"op/s": 0.0})
    assert results.ratio("put", "ours", "etcd", "op/s") is None
    assert results.figure("put", "ours", "op/s") == Spread(5.5, 5.0, 6.0, 2)
    assert results.figure("put", "nobody", "op/s") is None


def test_the_same_run_cannot_be_counted_twice() -> None:
    results = Results()
    results.add("put", "ours", 1, {"op/s": 5.0})
    with pytest.raises(ValueError, match="already known"):
        results.add("put", "ours", 1, {"op/s": 5.0})
