"""Rows of a large commit that are written to a side table first, and moved to their places later.

A thousand keys of a large board are on about a thousand pages. Writing all of these pages at once
takes several times as long as writing the rows, and all other commits wait for it. So the rows of a
large commit are first written next to each other into table `owed`, in the transaction of the
commit. Later small transactions move them to table `entry`, some at a time.

Invariants
- A row of `owed` replaces the row of `entry` with its key, if there is one, in the state and in the
  checksum of the file.
- `_keys` has the keys of table `owed`, as long as no write failed. There are at most
  DEFERRED_ROWS_MAX.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Final

from sortedcontainers import SortedSet

from blackboard.core.commit import Entry
from blackboard.core.state import State
from blackboard.engines.sqlite.rows import ENTRY, Row, Table, supersede
from blackboard.errors import Corrupt
from blackboard.limits import RESTORE_CHANGES_MAX
from blackboard.units import Key

DEFERRED: Final[Table[str, Entry]] = replace(ENTRY, name="owed")
DEFERRED_ROWS_MIN: Final = 256
"""Rows of one transaction from which on they are deferred."""
DEFERRED_ROWS_MAX: Final = RESTORE_CHANGES_MAX + 1
"""Most deferred rows: the largest restore, with its answer. Further rows are written to table
`entry` directly."""
MOVED_ROWS: Final = 64
"""Rows that one transaction moves in addition to its own: about a millisecond."""
QUIET_WRITES: Final = 16
"""Small transactions after a large one that move nothing: their commits have already waited for
it."""
COPIED_ROWS: Final = 256
"""Moved rows after which the journal is copied into the file. Each is on separate pages: a thousand
of them block commits for 11 milliseconds, this number for 3."""
_ROWS_PER_STATEMENT: Final = 128
"""Times 8 columns: SQLite takes 32,766 parameters."""
_COLUMNS: Final = ", ".join(ENTRY.columns)
_IN_PLACE: Final = "SELECT key FROM owed NOT INDEXED"
_MOVE: Final = "{} SELECT {} FROM owed WHERE key <= ? ON CONFLICT {}".format(
    ENTRY.upsert.partition(" VALUES ")[0], _COLUMNS, ENTRY.upsert.partition(" ON CONFLICT ")[2]
)
_DELETE_MOVED: Final = "DELETE FROM owed WHERE key <= ?"


class DeferredRows:
    """The deferred rows of one open file. Each call belongs to a transaction, or to loading the
    file."""

    def __init__(self) -> None:
        self._keys: SortedSet[Key] = SortedSet()  # as SQLite orders them: by code points
        self._quiet = 0
        self._moved = 0

    @property
    def is_copy_due(self) -> bool:
        """Whether enough rows were moved since the last copy of the journal, or all of them."""
        return self._moved >= COPIED_ROWS or (self._moved > 0 and not self._keys)

    def note_copy(self) -> None:
        """Record that the journal is being copied."""
        self._moved = 0

    def fill(self, state: State, cursor: sqlite3.Cursor) -> None:
        """Replace rows in `state` from table `entry` by their deferred versions. Errors:
        Corrupt."""
        rows = cursor.execute(DEFERRED.select).fetchall()
        self._keys = SortedSet(row[0] for row in rows)
        # This query reads the table, the one above its index.
        if {key for (key,) in cursor.execute(_IN_PLACE)} != self._keys:
            raise Corrupt(what="table owed", reason="its index is damaged")
        supersede(state, rows)

    def put(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        """Write rows of entries; if there are few, also move some deferred ones."""
        is_large = len(rows) >= DEFERRED_ROWS_MIN
        if is_large and len(self._keys) + len(rows) <= DEFERRED_ROWS_MAX:
            insert(connection, DEFERRED.upsert, rows)
            self._keys.update(row[0] for row in rows)
            self._quiet = QUIET_WRITES
            return
        insert(connection, ENTRY.upsert, rows)
        if self._keys:
            self.drop(connection, rows)
            if self._quiet:
                self._quiet -= 1
            elif not is_large:
                self._move(connection)

    def drop(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        """Drop the deferred versions of written or removed rows, whose keys are the first column of
        `rows`."""
        gone = [(row[0],) for row in rows if row[0] in self._keys]
        connection.executemany(DEFERRED.delete, gone)
        self._keys.difference_update(key for (key,) in gone)

    def _move(self, connection: sqlite3.Connection) -> None:
        """Move the first rows to table `entry`.

        Their keys come from `_keys` and not from a query, because each row of a result is a step
        (see `insert`).
        """
        moved = list(self._keys.islice(0, MOVED_ROWS))
        if moved:
            connection.execute(_MOVE, moved[-1:])
            connection.execute(_DELETE_MOVED, moved[-1:])
            self._keys.difference_update(moved)
            self._moved += len(moved)


def insert(connection: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Insert many rows with few statements.

    Each step of a statement releases the interpreter lock and must get it back from a busy event
    loop, which takes far longer than the step. A statement of many rows is one step. Their numbers
    are powers of two, so that the same few statements stay prepared.
    """
    at = 0
    while at < len(rows):
        size = min(_ROWS_PER_STATEMENT, 1 << (len(rows) - at).bit_length() - 1)
        values = chain.from_iterable(rows[at : at + size])
        connection.execute(_repeated(statement, size), tuple(values))
        at += size


@lru_cache(maxsize=256)
def _repeated(statement: str, times: int) -> str:
    """`INSERT ... VALUES (...)` for so many rows at once."""
    head, _, rest = statement.partition(" VALUES ")
    row, conflict, clause = rest.partition(" ON CONFLICT ")
    return f"{head} VALUES {', '.join([row] * times)}{conflict}{clause}"
