"""Where the values of a board's entries lie in its file: in their rows, or in the log.

A commit's row of `log` holds each value that the commit wrote. A row of `entry` does not repeat a
longer one: it says which bytes of the log it is. So a value is stored once for as long as its
commit is in the log, and written once.

Invariants
- A row of `entry` refers only to the row of the log of its own revision, and only to bytes that
  were compared with the value (`places_of`).
- Before rows are removed from the log, the values in them that entries still have are moved to the
  rows of these, in the same transaction (`movable`).
- The checksum of the file counts every value, wherever it lies: bytes that changed in a row of the
  log, or a reference that leads elsewhere, are noticed when the board is loaded.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from blackboard.core.commit import LogEntry
from blackboard.engines.sqlite.rows import ENTRY, Places, Row, Table, row_bytes
from blackboard.errors import Corrupt
from blackboard.limits import REVISION_MAX, VALUE_INLINE_BYTES_MAX
from blackboard.units import Key, Revision

REFERRED_BYTES: Final = 256
"""Values below stay in the rows of their entries: a reference to them would save less than it takes
to follow it when the board is loaded."""
_SEEN_BYTES: Final = 32
"""How much of a value is searched for, before all of it is compared."""
_GUESSES: Final = 4
"""How often these bytes may be those of something else."""
_MISSES_MAX: Final = 8
"""Values of one commit that are searched for in vain. Each search goes through the whole row."""

_ENTRIES: Final = f"SELECT {', '.join((*ENTRY.columns, *ENTRY.stored))} FROM entry ORDER BY key"
MOVE: Final = (
    "INSERT INTO entry (key, value, mod_revision, create_revision, author, time_ms)"
    " VALUES (?, ?, 0, 0, '', 0)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, place = NULL, size = NULL"
)
"""Put a value into the row of its entry, which is there. As an INSERT it takes many at once."""
_IN_LOG: Final = (
    "SELECT mod_revision, key, place, size FROM entry"
    " WHERE place IS NOT NULL AND mod_revision < ? ORDER BY mod_revision"
)
_CONTENT: Final = "SELECT body, large FROM log WHERE revision = ?"

Values = list[tuple[Key, bytes]]


# --- to the file ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Search:
    """Finds values in bytes, in the order in which they lie there."""

    content: bytes
    begins: int = 0
    at: int = 0
    misses: int = 0

    def find(self, value: bytes) -> int | None:
        """Where `value` lies; None if it was not found."""
        if self.misses >= _MISSES_MAX:
            return None
        seen, at = value[:_SEEN_BYTES], self.at
        for _ in range(_GUESSES):
            at = self.content.find(seen, at)
            if at < 0:
                break
            if self.content.startswith(value, at):
                self.at = at + len(value)
                return self.begins + at
            at += 1
        self.misses += 1
        return None


def places_of(entry: LogEntry, row: Row) -> Places:
    """Which of the values that `entry` leaves its row of the log holds, and where: the number of
    bytes before it in `body` and `large`."""
    found: Places = {}
    if row_bytes(row) < REFERRED_BYTES:
        return found
    _, _, body, large, *_ = row
    inline, outside = _Search(body), _Search(large or b"", len(body))
    for change in entry.changes:
        # An earlier change of the key in this commit is not what the entry holds.
        found.pop(change.key, None)
        value = change.value
        if value is not None and len(value) >= REFERRED_BYTES:
            place = (inline if len(value) <= VALUE_INLINE_BYTES_MAX else outside).find(value)
            if place is not None:
                found[change.key] = (entry.revision, place)
    return found


# --- from the file --------------------------------------------------------------------------------


def _values_below(
    connection: sqlite3.Connection, below: Revision
) -> Iterator[tuple[Revision, Values]]:
    """The values of entries that lie in the log below a revision, in its order."""
    found = connection.execute(_IN_LOG, (below,))
    for revision, rows in groupby(found, key=itemgetter(0)):
        content = connection.execute(_CONTENT, (revision,)).fetchone()
        if content is None:
            raise Corrupt(what=f"revision {revision}", reason="the log does not hold its values")
        body, large = content
        held = body if large is None else body + large
        yield revision, [(key, held[place : place + size]) for _, key, place, size in rows]


def rows_of(cursor: sqlite3.Cursor, table: Table[Any, Any]) -> Iterable[Row]:
    """All rows of a table, in the order of their keys; those of entries with their values.

    Errors, also of the iterator: Corrupt unless each entry has one value; sqlite3.Error.
    """
    if table is not ENTRY:
        return cursor.execute(table.select)
    below = _values_below(cursor.connection, REVISION_MAX + 1)
    values = {key: value for _, some in below for key, value in some}
    return _entries(cursor.execute(_ENTRIES), values)


def _entries(rows: Iterable[Row], values: dict[Key, bytes]) -> Iterator[Row]:
    for row in rows:
        (key, value), (place, size) = row[:2], row[-2:]
        if place is None and size is None:
            yield row[:-2]
        elif value or key not in values:
            raise Corrupt(what=f"the entry of {key}", reason="its value is not in one place")
        else:
            yield (key, values.pop(key), *row[2:-2])


def movable(
    connection: sqlite3.Connection, below: Revision, bytes_max: int
) -> tuple[Revision, Values]:
    """The values that have to be moved before the log is cut below a revision.

    If they are more than `bytes_max`, those below an earlier revision, which is returned. Values of
    one commit are taken together.
    """
    found: Values = []
    size = 0
    for revision, values in _values_below(connection, below):
        if size >= bytes_max:
            return revision, found
        found += values
        size += sum(len(value) for _, value in values)
    return below, found
