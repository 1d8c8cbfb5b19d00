"""The points of a step that an observer is told: for telemetry, and for tests that kill there."""

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """Where a step is. Each of the ...ING points is followed by a commit, unless there is none."""

    HYDRATED = "hydrated"
    STEP_BEGUN = "step begun"
    CALL_BEGUN = "call begun"
    CALL_RETURNED = "call returned"
    RECORDING = "recording"
    RECORDED = "recorded"
    COMMITTING = "committing"
    COMMITTED = "committed"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"


Observer = Callable[[Point, str], None]
"""Called with a point and what it is about: the name of a call, the number of a step.

It is called in the middle of things: it returns at once, and does not raise."""


def unobserved(point: Point, about: str) -> None:
    """The observer of whoever has none."""
