"""Which rows of a board's tables are behind its log, and which of them a transaction writes.

The durable act of a commit is one row of table `log`. The rows of the other tables follow later,
many commits at once: a key that ten commits wrote is written once. The *mark* is the revision of
which the tables hold the state; the log continues above it.

Invariants
- The mark moves in the transaction that writes the last of its rows.
- A row of `entry` or `tombstone` may be newer than the mark: a large commit is followed some rows
  at a time, because a thousand keys of a large board lie on a thousand pages. Replaying the log
  above the mark over such rows has the same result, since its entries hold absolute effects: a key
  ends as its last change left it. A removed key's rows in both tables are written together, since
  its removal finds nothing then and leaves no tombstone. Entries that were created above the mark
  are left out first (`note_ahead`).
- Whichever rows are written, table `head` records how far the log reaches then. So a log that lost
  its end is noticed, although the mark lies below.
- At most about LOG_AHEAD_ROWS_MAX rows and LOG_AHEAD_BYTES_MAX bytes of the log lie above the mark:
  the nearer these bounds, the more rows a transaction writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from blackboard.core.commit import Entry, LogEntry
from blackboard.core.state import State, Tombstone
from blackboard.engines.sqlite.rows import (
    TABLES,
    Items,
    LogRows,
    Place,
    Places,
    Row,
    Taken,
    epoch_row,
    places_of,
    row_bytes,
)
from blackboard.limits import LOG_AHEAD_BYTES_MAX, LOG_AHEAD_ROWS_MAX
from blackboard.units import Key, Revision

FOLLOW_ROWS: Final = 512
"""Rows of the log above the mark from which on transactions also write rows of tables. The more
there are, the more often they share a row or a page; replaying so many takes 20 ms at a start."""
FOLLOW_BYTES: Final = 4 * 1024 * 1024
"""The same in bytes: a quarter of the journal."""
FOLLOW_CHANGES: Final = 2_048
"""The same in changed keys, apart from a large commit, which waits for a pause."""
LARGE_CHANGES: Final = 256
"""Changes of a commit from which on its rows are assumed to lie on pages of their own."""
SCATTERED_ROWS: Final = 64
"""Entries that one transaction follows after a large commit: about a millisecond."""
TOGETHER_ROWS: Final = 512
"""Entries that one transaction follows otherwise: 3 to 5 milliseconds."""
COPIED_ROWS: Final = 256
"""Scattered rows after which the journal is copied into the file. Copying a thousand pages blocks
commits for 11 milliseconds, this number for 3."""

Before = tuple[dict[Any, Any], ...]


def _nothing() -> Before:
    return {}, {}, {}, {}, {}


@dataclass(slots=True)
class Backlog:
    """The items whose rows are behind the log, with what the file holds of them.

    `note` is called for each entry before it is applied, `take` when all of them were applied.
    """

    mark: Place
    before: Before = field(default_factory=_nothing)
    """Of each table, in the order of `TABLES`: the item of each key; None = absent."""
    epochs: list[Row] = field(default_factory=list)
    rows: int = 0
    """Rows of the log above the mark, and their bytes."""
    size: int = 0
    is_due: bool = False
    """Whether each transaction is to write a part, until the mark is at the end of the log."""
    is_scattered: bool = False
    """Whether the rows of a large commit are among them."""
    places: Places = field(default_factory=dict)
    """Where the log holds values of entries whose rows are behind it."""
    scattered: int = 0
    """Entries taken since the journal was copied, while `is_scattered`."""
    left: int | None = None
    """Entries that the last part left; None after the last one."""

    def note(self, state: State, entry: LogEntry, row: Row | None) -> Places:
        """Record what `entry`, which is not applied yet, is going to change; `row` is its row of
        the log, which a marker has none of. Returns where in the row its values lie."""
        size = 0 if row is None else row_bytes(row)
        # `setdefault` throughout: what counts is what the file holds, and only the first note has
        # that.
        entries, tombstones, leases, next_items, answers = self.before
        if entry.epoch is not None:
            self.epochs.append(epoch_row(entry.epoch, entry.time_ms))
            for key, lease in state.leases.items():  # it ends them all
                leases.setdefault(key, lease)
        for change in entry.changes:
            key = change.key
            if change.lease is not None:
                leases.setdefault(key, state.leases.get(key))
                continue
            old = state.entries.get(key)
            entries.setdefault(key, old)
            # A tombstone comes or goes only with the existence of its key.
            if old is None or change.value is None:
                tombstones.setdefault(key, state.tombstones.get(key))
            if change.item is not None:
                prefix = key.rpartition("/")[0]
                next_items.setdefault(prefix, state.next_item.get(prefix))
        places = {} if row is None else places_of(entry, row)
        self.places |= places
        lane = (entry.signed, entry.id.lane)
        answers.setdefault(lane, state.answers.get(lane))
        self.rows += 1
        self.size += size
        self.is_scattered |= len(entry.changes) >= LARGE_CHANGES
        is_long = len(entries) >= FOLLOW_CHANGES or self.size >= FOLLOW_BYTES
        self.is_due |= self.rows >= FOLLOW_ROWS or (is_long and not self.is_scattered)
        return places

    def note_ahead(self, state: State) -> list[Entry]:
        """Record the entries of a loaded `state` that were created above the mark, and return them:
        the log is applied to a state without them.

        What the log creates would otherwise look like a change of what is there already.
        """
        # The log above the mark names them all, so they are among those that are loaded.
        found = [entry for entry in state.entries.values() if entry.create_revision > self.mark[0]]
        self.before[0].update((entry.key, entry) for entry in found)
        return found

    def forget(self, tombstones: Mapping[str, Tombstone]) -> None:
        """Record tombstones that are about to be dropped."""
        for key, tombstone in tombstones.items():
            self.before[1].setdefault(key, tombstone)

    def hurry(self) -> None:
        """Let the tables be brought up to the end of the log from now on."""
        self.is_due = self.rows > 0

    @property
    def is_copy_due(self) -> bool:
        """Whether enough scattered rows were taken since the last copy of the journal, or all."""
        return self.scattered >= COPIED_ROWS or (self.scattered > 0 and not self.before[0])

    def take(
        self,
        state: State,
        log: LogRows,
        *,
        log_below: Revision | None = None,
        everything: bool = False,
    ) -> Taken:
        """What a transaction writes that appends `log`, which ends at the revision of `state`.

        A part of the items; with the last part the mark moves. Compaction (`log_below`) takes
        everything.
        """
        entries, undo = self.before[0], (self.mark, self.rows, self.size)
        if self.is_scattered:
            self.scattered += min(len(entries), SCATTERED_ROWS)
        count = self._portion(log)
        if everything or log_below is not None or count >= len(entries):
            return self._take_all(state, log, log_below)
        keys = list(islice((key for key in entries if _has_row(state, key)), count))
        # What is left are keys without a row, for the transaction that records the compaction: this
        # one.
        if len(keys) < count:
            return self._take_all(state, log, log_below)
        both = [{key: held.pop(key) for key in keys if key in held} for held in self.before[:2]]
        self.left = len(entries)
        place = (*self.mark, state.revision)
        places = {key: self.places.pop(key) for key in keys if key in self.places}
        return Taken(log.rows, [], _items(state, both), place, None, undo, places)

    def _take_all(self, state: State, log: LogRows, log_below: Revision | None) -> Taken:
        undo = (self.mark, self.rows, self.size)
        items, epochs = _items(state, self.before), self.epochs
        self.mark = (state.revision, state.time_ms, state.oldest)
        self.before, self.epochs = _nothing(), []
        self.rows = self.size = 0
        self.left = None
        self.is_due = self.is_scattered = False
        place, places = (*self.mark, state.revision), self.places
        self.places = {}
        return Taken(log.rows, epochs, items, place, log_below, undo, places)

    def _portion(self, log: LogRows) -> int:
        """How many entries to take: more than came since the last part, and so many that the rest
        is taken before the log above the mark reaches its bounds, if it goes on like this."""
        count = len(self.before[0])
        came = 0 if self.left is None else count - self.left
        by_rows = count * len(log.rows) // max(1, LOG_AHEAD_ROWS_MAX - self.rows)
        by_size = count * log.size // max(1, LOG_AHEAD_BYTES_MAX - self.size)
        least = SCATTERED_ROWS if self.is_scattered else TOGETHER_ROWS
        return max(least, 2 * came, by_rows, by_size)

    def put_back(self, taken: Taken) -> None:
        """Record again what was taken for a transaction that certainly failed and had no log."""
        for table, items in taken.items:
            held = self.before[TABLES.index(table)]
            # Over what was noted meanwhile: the file still has the older item.
            held.update((key, old) for key, old, _ in items)
        self.epochs[:0] = taken.epochs
        self.places = taken.places | self.places
        self.mark, rows, size = taken.undo
        if taken.place is not None and taken.place[0] != self.mark[0]:  # it was the last part
            self.rows += rows
            self.size += size
        self.is_due = False  # until the next commit, or until the board is idle again


def _has_row(state: State, key: Key) -> bool:
    """Whether a key is there or has a tombstone. One whose tombstone was dropped has to wait for
    the transaction that records the compaction."""
    return key in state.entries or key in state.tombstones


def _items(state: State, before: Sequence[Mapping[Any, Any]]) -> Items:
    """The items of the first tables, before and now."""
    found: Items = []
    for table, held in zip(TABLES, before, strict=False):
        if held:
            live = table.live(state)
            found.append((table, [(key, old, live.get(key)) for key, old in held.items()]))
    return found
