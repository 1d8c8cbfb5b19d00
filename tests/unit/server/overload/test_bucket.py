"""A token bucket: what it lets through over time, at every rate and in every order."""

import random

from hypothesis import given, strategies as st

from blackboard.server.overload.rate_limits import Bucket

RATES = st.floats(min_value=0.01, max_value=1e9)
BURSTS_MS = st.integers(min_value=1, max_value=3_600_000)


def test_a_burst_passes_and_the_next_one_waits_for_one_of_it() -> None:
    """Ten a second, for two seconds: twenty at once, then one each tenth of a second."""
    bucket = Bucket(10, 2_000)
    assert [bucket.take(1, 0.0) for _ in range(20)] == [0.0] * 20
    assert bucket.take(1, 0.0) == 100
    assert bucket.take(1, 100.0) == 0
    assert bucket.take(1, 100.0) == 100


def test_what_is_refused_costs_nothing() -> None:
    """However often it is asked for, the time to wait does not grow."""
    bucket = Bucket(10, 1_000)
    bucket.take(10, 0.0)
    assert {bucket.take(5, 0.0) for _ in range(100)} == {500.0}


def test_what_is_larger_than_the_burst_passes_once_and_is_paid_for() -> None:
    """Nothing is too large; the next one waits the longer."""
    bucket = Bucket(1_000, 1_000)
    assert bucket.take(5_000, 0.0) == 0
    assert bucket.take(1, 0.0) == 4_001
    assert bucket.take(1, 4_001.0) == 0
    assert bucket.take(5_000, 4_001.0) == 1_000, "it has to wait until nothing is owed"


def test_a_pause_fills_it_and_no_more() -> None:
    """A day of silence is worth one burst."""
    bucket = Bucket(10, 1_000)
    bucket.take(10, 0.0)
    assert not bucket.is_full(999.0)
    assert bucket.is_full(1_000.0)
    now_ms = 86_400_000.0
    assert sum(bucket.take(1, now_ms) == 0 for _ in range(50)) == 10


@given(RATES, BURSTS_MS, st.integers(min_value=0, max_value=2**32))
def test_over_time_nobody_gets_more_than_the_rate(rate: float, burst_ms: int, seed: int) -> None:
    """The rate's worth, a burst, and the last thing that was taken: it may have been larger."""
    rng, bucket, now_ms, taken, last = random.Random(seed), Bucket(rate, burst_ms), 0.0, 0, 0
    for _ in range(200):
        now_ms += rng.choice((0.0, 0.1, 1_000 / rate, burst_ms / 3))
        amount = rng.choice((1, 7, 1_000))
        if bucket.take(amount, now_ms) == 0:
            taken, last = taken + amount, amount
    assert taken - last <= rate * (now_ms + burst_ms + 0.001) / 1_000 * (1 + 1e-9)


@given(RATES, BURSTS_MS)
def test_a_client_that_waits_as_long_as_asked_is_served(rate: float, burst_ms: int) -> None:
    """The time that a refusal names is enough."""
    bucket, now_ms = Bucket(rate, burst_ms), 0.0
    for _ in range(50):
        wait_ms = bucket.take(1_000, now_ms)
        if wait_ms:
            now_ms += wait_ms * (1 + 1e-9)
            assert bucket.take(1_000, now_ms) == 0
