"""The order of the fair queue: the account that has had least comes next."""

import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from blackboard.server.overload.charges import FairQueue


def drained(queue: "FairQueue[str]") -> list[str]:
    """All waiting items, in the order in which they come out."""
    return [queue.take()[0] for _ in range(len(queue))]


def test_small_requests_go_before_earlier_large_ones() -> None:
    """It waits for at most one item of each other account."""
    queue: FairQueue[str] = FairQueue()
    for number in range(1_000):
        for name in ("bob", "eve"):
            queue.add(name, 1, f"{name}{number}")
    for _ in range(500):
        queue.take()
    queue.add("ada", 1, "ada")
    assert "ada" in [queue.take()[0] for _ in range(3)]


def test_what_is_dear_counts_for_what_it_costs() -> None:
    """Ten small items come out for one item that costs ten times as much."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.add("bob", 10, "dear")
        queue.add("ada", 1, "cheap")
    counts = Counter(queue.take()[0] for _ in range(110))
    assert 9 <= counts["dear"] <= 11


def test_nobody_saves_up() -> None:
    """An account that was idle for long gets no more than its share now."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.add("bob", 1, "bob")
        queue.take()
    for _ in range(10):
        queue.add("bob", 1, "bob")
        queue.add("ada", 1, "ada")
    assert abs(Counter(drained(queue)[:10])["ada"] - 5) <= 1


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 100)), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_everything_comes_out_in_the_order_of_its_account(
    items: list[tuple[str, float]], rng: random.Random
) -> None:
    """Each item comes out once, with its cost, for any arrivals in between."""
    queue: FairQueue[int] = FairQueue()
    waiting, found = list(enumerate(items)), list[int]()
    while waiting or len(queue):
        if waiting and rng.random() < 0.6:
            number, (account, cost) = waiting.pop(0)
            queue.add(account, cost, number)
        elif len(queue):
            number, cost = queue.take()
            assert cost == items[number][1]
            found.append(number)
    assert sorted(found) == list(range(len(items)))
    for account in "abc":
        own = [number for number in found if items[number][0] == account]
        assert own == sorted(own)


@given(st.lists(st.integers(1, 9), min_size=40, max_size=80), st.integers(0, 7))
def test_the_shares_are_equal_up_to_one_item(costs: list[int], late: int) -> None:
    """For two accounts that always have waiting items, of any cost."""
    queue: FairQueue[str] = FairQueue()
    for cost in costs:
        queue.add("bob", cost, "bob")
    for _ in range(late):
        queue.take()
    for cost in reversed(costs):
        queue.add("ada", cost, "ada")
    had = dict.fromkeys(("ada", "bob"), 0.0)
    for _ in range(30):
        name, paid = queue.take()
        had[name] += paid
        assert abs(had["ada"] - had["bob"]) <= 2 * max(costs)


def test_accounts_without_anything_waiting_are_forgotten() -> None:
    """For any number of accounts that have come and gone."""
    queue: FairQueue[int] = FairQueue()
    for number in range(10_000):
        queue.add(f"agent{number}", 1, number)
        if number > 10:
            queue.take()
    assert len(queue._ends) < 200


def test_nothing_comes_out_of_nothing() -> None:
    with pytest.raises(IndexError):
        FairQueue[int]().take()
