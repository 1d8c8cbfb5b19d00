"""What the curves of bench/scale.py make of what was spent, and which sizes they leave out."""

from bench.machine import Facts
from bench.scale import conditions
from bench.scale_curves import FULL, SHORT, bytes_of
from bench.scale_site import CURVE_S_MAX, Budget, Spent

SPENT = Spent(
    count=4,
    service_s=0.002,
    redis_s=0.001,
    wall_s=2.0,
    service_bytes=400,
    redis_bytes=800,
    descriptors=7,
)


def test_what_one_of_them_takes() -> None:
    assert (SPENT.service_us, SPENT.redis_us, SPENT.per_s) == (500, 250, 2)


def test_bytes_are_those_of_the_engine() -> None:
    """A service over Redis holds none of the state, one with its own engine all of it."""
    embedded = Spent(4, 0.002, 0, 2.0, 400, 0, 7)
    assert (bytes_of(SPENT), bytes_of(embedded)) == (800, 400)


def test_a_size_that_would_take_too_long_is_left_out() -> None:
    budget = Budget()
    assert budget.has_time_for(1_000_000)  # nobody knows yet
    budget.took(SPENT)
    assert not budget.has_time_for(int(CURVE_S_MAX * SPENT.per_s) + 1)
    assert budget.has_time_for(1)


def test_sizes_grow() -> None:
    """Each step makes what is missing to the next one."""
    for sizes in (FULL, SHORT):
        for curve in (sizes.watchers, sizes.boards, sizes.keys, sizes.documents):
            assert list(curve) == sorted(set(curve))


def test_the_load_is_told() -> None:
    facts = Facts("CPU", 2, "6.1", "3.11", {"redis-server": "7.0"}, {}, 1.25, 0.5, 0.9)
    assert "load 1.2 before, 9.0 after" in conditions(facts, 9.0)
