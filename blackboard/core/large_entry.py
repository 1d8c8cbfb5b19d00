"""What a reader may see of a log entry with very many changes: of a restore of thousands of keys.

Everybody who watches is told of it in the same moment, each of what concerns him. To ask of each
key, for each watcher, whether it matches takes a microsecond or two, a tenth of a second in all; so
the keys are put in order once, and what lies below a path is found by halving.

Invariant: the answer is that of `history.visible` and `history.bounded`.
"""

from bisect import bisect_left
from itertools import accumulate, chain
from typing import Final

from blackboard.core.commit import LogEntry
from blackboard.core.history import COST_OF_ENTRY, bounded_at, cost_of_change, shown
from blackboard.core.path import Pattern, range_below

LARGE_CHANGES: Final = 256
"""Changes above which this pays."""


class LargeEntry:
    """An entry that begins an epoch, whose changes are of keys (not leases), one for each key."""

    def __init__(self, entry: LogEntry) -> None:
        assert entry.epoch is not None
        self.entry = entry
        changes = entry.changes
        self._order = sorted(
            range(len(changes)), key=[change.key for change in changes].__getitem__
        )
        self._keys = [changes[place].key for place in self._order]
        costs = [cost_of_change(changes[place]) for place in self._order]
        self._costs = list(accumulate(costs, initial=0))

    def visible(self, wanted: tuple[Pattern, ...], readable: tuple[Pattern, ...]) -> LogEntry:
        """What matches a pattern of both, in the order of the entry.

        Errors: Resync when that is more than RESYNC_BYTES.
        """
        spans = self._spans(wanted, readable)
        cost = sum(self._costs[end] - self._costs[start] for start, end in spans)
        bounded_at(COST_OF_ENTRY + cost, self.entry)
        places = sorted(chain.from_iterable(self._order[start:end] for start, end in spans))
        changes = self.entry.changes
        found = tuple([changes[place] for place in places])
        return shown(self.entry, found, lambda key: any(each.matches(key) for each in readable))

    def _spans(
        self, wanted: tuple[Pattern, ...], readable: tuple[Pattern, ...]
    ) -> list[tuple[int, int]]:
        """Where in the order of the keys it stands: ascending, apart."""
        found: list[tuple[int, int]] = []
        for want in wanted:
            for read in readable:
                found += self._matched(want, read)
        found.sort()
        apart: list[tuple[int, int]] = []
        reached = 0
        for start, end in found:
            if end > reached:
                apart.append((max(start, reached), end))
                reached = end
        return apart

    def _matched(self, one: Pattern, other: Pattern) -> list[tuple[int, int]]:
        """Where the keys stand that both match."""
        (start, end), (first, last) = self._span(one), self._span(other)
        start, end = max(start, first), min(end, last)
        to_ask = [pattern for pattern in (one, other) if not pattern.is_subtree]
        if start < end and not to_ask:
            return [(start, end)]
        return [
            (place, place + 1)
            for place in range(start, end)
            if all(pattern.matches(self._keys[place]) for pattern in to_ask)
        ]

    def _span(self, pattern: Pattern) -> tuple[int, int]:
        """Where all keys stand that `pattern` may match: those below its literal path, or it."""
        if pattern.literal:
            start = bisect_left(self._keys, pattern.prefix)
            return start, start + (self._keys[start : start + 1] == [pattern.prefix])
        if not pattern.prefix:
            return 0, len(self._keys)
        first, last = range_below(pattern.prefix)
        return bisect_left(self._keys, first), bisect_left(self._keys, last)
