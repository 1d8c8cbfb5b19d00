"""A token bucket: a steady rate, and a burst after a pause.

It is the generic cell rate algorithm (ITU-T I.371, annex A): its whole state is one instant, that
at which everything taken so far is paid for. Something is taken if that then lies no further ahead
than the burst; what is larger than a burst is taken when nothing is owed, and paid by waiting. So
nothing is too large to pass, and over time nobody gets more than the rate.
"""

from typing import Final

from blackboard.types import Milliseconds

_CLOSE_ENOUGH_MS: Final = 1e-3  # sums of fractions; no clock of a service is as exact


class Bucket:
    """`per_second` of something, and what `burst_ms` of that rate amount to at once."""

    __slots__ = ("_burst_ms", "_each_ms", "_paid_ms")

    def __init__(self, per_second: float, burst_ms: Milliseconds) -> None:
        self._each_ms = 1_000 / per_second
        self._burst_ms = burst_ms
        self._paid_ms = float("-inf")

    def take(self, amount: int, now_ms: float) -> float:
        """Take `amount`: 0 if it is taken, else after how many milliseconds it can be had.

        `now_ms` is a clock that never goes back. Nothing is taken when the answer is not 0.
        """
        paid_ms = self._paid_ms
        if paid_ms < now_ms:
            paid_ms = now_ms
        cost_ms = amount * self._each_ms
        over_ms = paid_ms - now_ms
        if cost_ms < self._burst_ms:
            over_ms += cost_ms - self._burst_ms
        if over_ms > _CLOSE_ENOUGH_MS:
            return over_ms
        self._paid_ms = paid_ms + cost_ms
        return 0.0

    def is_full(self, now_ms: float) -> bool:
        """Whether nothing is owed: one like new is as good."""
        return self._paid_ms <= now_ms
