"""The newest log entries of a board, so that its file is not read for readers that keep up."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, islice

from blackboard import limits
from blackboard.core.commit import LogEntry
from blackboard.engines.base import LoggedValue
from blackboard.limits import WatchLimits
from blackboard.units import Key, Revision


class LogTail:
    """The newest log entries, without a gap, as many as WATCH_QUEUE_* allow."""

    def __init__(self, limits: WatchLimits) -> None:
        self._limits = limits
        self._entries: list[LogEntry] = []
        self._sizes: list[int] = []
        self._places: list[Mapping[Key, tuple[Revision, int]]] = []
        self._changes = 0
        self._bytes = 0

    def page(self, after: Revision, newest: Revision, limit: int) -> list[LogEntry] | None:
        """The entries after `after`; None when they are not all here."""
        if after >= newest:
            return []
        if not self._entries or after + 1 < self._entries[0].revision:
            return None
        # Revisions count as places: only the marker of an epoch of the engine skips some, and none
        # is written while the board is open.
        start = after + 1 - self._entries[0].revision
        # The bytes before each entry. So the first one is always taken, however large it is.
        sizes = accumulate(islice(self._sizes, start, start + limit), initial=0)
        count = sum(1 for before in sizes if before < limits.PAGE_BYTES_MAX)
        return self._entries[start : start + min(count, limit)]

    def places(self, entries: Sequence[LogEntry]) -> list[dict[Key, LoggedValue]] | None:
        """As `ServesValues.places`; None when they are not all here."""
        found: list[dict[Key, LoggedValue]] = []
        for entry in entries:
            at = entry.revision - self._entries[0].revision if self._entries else -1
            if not 0 <= at < len(self._entries) or self._entries[at].digest != entry.digest:
                return None
            # Of a restore that is larger than any commit, each look would read all of it.
            places = self._places[at] if self._sizes[at] <= limits.COMMIT_BYTES_MAX else {}
            sizes = {c.key: len(c.value or b"") for c in entry.changes if c.key in places}
            found.append({key: LoggedValue(*places[key], size) for key, size in sizes.items()})
        return found

    def extend(
        self,
        entries: list[LogEntry],
        sizes: list[int],
        places: Sequence[Mapping[Key, tuple[Revision, int]]],
    ) -> None:
        """Add written entries, and drop the oldest ones. `places` say where in the log the values
        of each lie: revision, and bytes before."""
        self._entries += entries
        self._sizes += sizes
        self._places += places
        self._bytes += sum(sizes)
        self._changes += sum([len(entry.changes) for entry in entries])
        drop = 0
        while (
            self._bytes > self._limits.watch_queue_bytes_max
            or self._changes > self._limits.watch_queue_changes_max
        ):
            self._bytes -= self._sizes[drop]
            self._changes -= len(self._entries[drop].changes)
            drop += 1
        self._drop(drop)

    def forget(self, below: Revision) -> None:
        """Drop the entries below a revision."""
        count = sum(1 for entry in self._entries if entry.revision < below)
        self._bytes -= sum(self._sizes[:count])
        self._changes -= sum([len(entry.changes) for entry in self._entries[:count]])
        self._drop(count)

    def _drop(self, count: int) -> None:
        del self._entries[:count]
        del self._sizes[:count]
        del self._places[:count]
