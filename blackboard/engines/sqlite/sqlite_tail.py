"""The newest log entries of an open board: for those who keep up, the file is not read."""

from itertools import accumulate, islice

from blackboard import types as limits
from blackboard.core.commit import LogEntry
from blackboard.types import Revision


class Tail:
    """The newest log entries, without a gap, as many as WATCH_QUEUE_* allow."""

    def __init__(self) -> None:
        self._entries: list[LogEntry] = []
        self._sizes: list[int] = []
        self._changes = 0
        self._bytes = 0

    def page(self, after: Revision, newest: Revision, limit: int) -> list[LogEntry] | None:
        """The entries after `after`; None when they are not all here."""
        if after >= newest:
            return []
        if not self._entries or after + 1 < self._entries[0].revision:
            return None
        start = after + 1 - self._entries[0].revision
        sizes = accumulate(islice(self._sizes, start, start + limit), initial=0)
        count = sum(1 for before in sizes if before < limits.PAGE_BYTES_MAX)
        return self._entries[start : start + min(count, limit)]

    def extend(self, entries: list[LogEntry], sizes: list[int]) -> None:
        """Add what was written, and let the oldest go."""
        self._entries += entries
        self._sizes += sizes
        self._bytes += sum(sizes)
        self._changes += sum([len(entry.changes) for entry in entries])
        drop = 0
        while (
            self._bytes > limits.WATCH_QUEUE_BYTES_MAX
            or self._changes > limits.WATCH_QUEUE_CHANGES_MAX
        ):
            self._bytes -= self._sizes[drop]
            self._changes -= len(self._entries[drop].changes)
            drop += 1
        del self._entries[:drop]
        del self._sizes[:drop]
