"""How long somebody waits who was refused."""

from blackboard.client.writer import pause_s
from blackboard.errors import Overloaded, RateLimited, Unavailable

TRIES = range(200)


def test_without_a_time_to_come_back_it_is_the_usual_one() -> None:
    """Shortened by up to half, at random."""
    found = [pause_s(Unavailable("x", "y"), 100) for _ in TRIES]
    assert 0.05 <= min(found) < max(found) <= 0.1
    assert pause_s(OSError(), 0) == 0


def test_no_client_returns_before_the_given_time() -> None:
    """And not all at once."""
    for refusal in (Overloaded("x", "y", 1_000), RateLimited("x", "y", 1_000)):
        found = [pause_s(refusal, 10) for _ in TRIES]
        assert 1 <= min(found) < max(found) <= 1.5
        assert pause_s(refusal, 9_000) > 1.5, "the usual pause counts if it is longer"
