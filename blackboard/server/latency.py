"""How long things take in one process: histograms of plain integers, read when metrics are.

Invariant: an observation costs one search among a dozen bounds and two additions, as each commit
makes one.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

BOUNDS_S: Final = (
    *(0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper ends of the buckets, in seconds: from a commit in memory to the longest request."""


class Histogram:
    """Durations in seconds, counted by the bounds of BOUNDS_S."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        """All durations together."""

    def observe(self, duration_s: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def count(self) -> int:
        """How many durations were counted."""
        # Summed when it is read, so that an observation adds to a single bucket.
        return sum(self._counts)

    def counts(self) -> tuple[int, ...]:
        """How many lie in each bucket; the last one has no end."""
        return tuple(self._counts)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """The buckets as Prometheus has them: the upper end, and how many are not above it."""
        total = 0
        for bound, count in zip((*BOUNDS_S, None), self._counts, strict=True):
            total += count
            yield "+Inf" if bound is None else str(bound), total


@dataclass(slots=True)
class Latencies:
    """The histograms of one process."""

    commits: Histogram = field(default_factory=Histogram)
    """From the moment a commit is queued until it is accepted or refused."""
    engine_calls: Histogram = field(default_factory=Histogram)
    """Of the engine, for a batch of commits: decision, write and sync."""
    deliveries: Histogram = field(default_factory=Histogram)
    """From the time of a revision until it was handed to those who watch it; in whole milliseconds,
    between the clock of the engine and that of the service."""
    requests: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """From the arrival of a request to its answer, by method; commits are in `commits`."""
