"""Maps a board's state to the tables of its file (schema.sql), row by row.

Invariants
- Each table is one mapping of `State`; a row is a pure function of one item of that mapping.
- The weights of all rows, including those of the epochs and of the head, add up to the checksum in
  the file. A row of `entry` weighs as much as if it held its value (engines/sqlite/values.py).
  SQLite itself notices neither a flipped bit in a value, nor a mixture of pages of different times.
  It is no protection against an adversary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, TypeVar
from zlib import adler32, crc32

import msgpack
import msgspec
from msgspec.structs import replace
from sortedcontainers import SortedDict, SortedSet

from blackboard.core.commit import Entry, Epoch, Lease, LogEntry, Waiter, account_of
from blackboard.core.lease import accounts, from_result
from blackboard.core.path import namespace_of
from blackboard.core.state import BoardUsage, LaneAnswer, State, Tombstone, hold, shares_of
from blackboard.limits import LEASE_TTL_MS
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import Prepared, decode_results, encode_results

K = TypeVar("K")
V = TypeVar("V")
Row = tuple[Any, ...]

CHECKSUM_MODULUS: Final = 2**62  # SQLite's integers end at 2**63
_ADLER_SHIFT: Final = 30
_encode: Final = msgspec.msgpack.Encoder().encode


def weigh(row: Row) -> int:
    """What a row adds to the checksum of its file. A NULL in the last column adds nothing, so that
    rows from before a table got that column count as they did."""
    packed = _encode(row[:-1] if row[-1] is None else row)
    # Two different sums: a change would have to leave both as they are.
    return crc32(packed) + (adler32(packed) << _ADLER_SHIFT)


@dataclass(frozen=True, eq=False)
class Table(Generic[K, V]):
    """One table: its SQL, and how an item of `live(state)` becomes a row.

    `key_columns` columns of `columns` come first and are the primary key.
    """

    name: str
    columns: tuple[str, ...]
    live: Callable[[State], Mapping[K, V]]
    row: Callable[[K, V], Row]
    key_columns: int = 1
    stored: tuple[str, ...] = ()
    """Columns that follow in the file, and that no item has."""

    @cached_property
    def select(self) -> str:
        """All rows, in the order of their keys."""
        names = ", ".join(self.columns)
        return f"SELECT {names} FROM {self.name} ORDER BY {', '.join(self._keys)}"

    @cached_property
    def upsert(self) -> str:
        """Write a row, whether or not its key is there."""
        columns = (*self.columns, *self.stored)
        places = ", ".join("?" for _ in columns)
        rest = columns[self.key_columns :]
        news = ", ".join(f"{column} = excluded.{column}" for column in rest)
        return (
            f"INSERT INTO {self.name} ({', '.join(columns)}) VALUES ({places})"
            f" ON CONFLICT ({', '.join(self._keys)}) DO UPDATE SET {news}"
        )

    @cached_property
    def delete(self) -> str:
        """Remove the row with a key."""
        where = " AND ".join(f"{column} = ?" for column in self._keys)
        return f"DELETE FROM {self.name} WHERE {where}"

    @property
    def _keys(self) -> tuple[str, ...]:
        return self.columns[: self.key_columns]


def _pack_lease(lease: Lease) -> bytes:
    """A lease without its deadlines, which only the process that has the board open knows."""
    waiters = [[waiter.holder, waiter.ttl_ms] for waiter in lease.waiters]
    parts = [lease.holder, lease.fence, lease.ttl_ms, waiters]
    # Left out if none is known: so a lease from before accounts were kept weighs what it did.
    if any(found := [*accounts(lease)]):
        parts.append(found)
    packed: bytes = msgpack.packb(parts)
    return packed


def _unpack_lease(key: str, packed: bytes, time_ms: Milliseconds) -> Lease:
    parts = msgpack.unpackb(packed)
    if _is_dated(parts):
        return _read_dated(key, parts, time_ms)
    holder, fence, ttl_ms, waiters, *rest = parts
    account, *others = rest[0] if rest else [""] * (1 + len(waiters))
    named = zip(waiters, others, strict=True)
    queue = tuple(Waiter(name, waits_ms, 0, whose) for (name, waits_ms), whose in named)
    return Lease(key, holder, fence, 0, queue, ttl_ms, account)


def _is_dated(parts: list[Any]) -> bool:
    """Whether a lease is of the older form: with its deadline, without its time to live."""
    # The older form has three parts, and three for each waiter. The present one has four, or five
    # with the accounts.
    return len(parts) % 3 == 0


def _read_dated(key: str, parts: list[Any], time_ms: Milliseconds) -> Lease:
    """Read a lease of the older form. Its time to live is at least what was left of it at the
    newest revision."""
    lease = from_result(key, parts)
    if lease is None:
        raise ValueError(f"lease {key} has no holder")
    return replace(lease, ttl_ms=max(LEASE_TTL_MS, lease.until_ms - time_ms))


def outdated_leases(state: State, rows: Iterable[Row]) -> tuple[list[Row], int]:
    """The `rows` of table `lease` that have an older form, in the present form, and the difference
    in weight."""
    found: list[Row] = []
    more = 0
    for row in rows:
        if _is_dated(msgpack.unpackb(row[1])):
            found.append(LEASE.row(row[0], state.leases[row[0]]))
            more += weigh(found[-1]) - weigh(row)
    return found, more


ENTRY: Final = Table[str, Entry](
    "entry",
    (
        "key",
        "value",
        "mod_revision",
        "create_revision",
        "author",
        "time_ms",
        "expires_at_ms",
        "first_ms",
    ),
    live=lambda state: state.entries,
    row=lambda key, e: (
        key,
        e.value,
        e.mod_revision,
        e.create_revision,
        e.author,
        e.time_ms,
        e.expires_at_ms,
        e.first_ms,
    ),
    stored=("place", "size"),
)
TOMBSTONE: Final = Table[str, Tombstone](
    "tombstone",
    ("key", "revision", "author"),
    live=lambda state: state.tombstones,
    row=lambda key, t: (key, t.revision, t.author),
)
LEASE: Final = Table[str, Lease](
    "lease",
    ("key", "lease"),
    live=lambda state: state.leases,
    row=lambda key, lease: (key, _pack_lease(lease)),
)
NEXT_ITEM: Final = Table[str, int](
    "next_item",
    ("prefix", "item"),
    live=lambda state: state.next_item,
    row=lambda prefix, item: (prefix, item),
)
ANSWER: Final = Table[tuple[str, int], LaneAnswer](
    "answer",
    (
        "agent",
        "lane",
        "incarnation",
        "step",
        "revision",
        "time_ms",
        "results",
        "overwritten",
    ),
    live=lambda state: state.answers,
    row=lambda lane, a: (
        *lane,
        a.incarnation,
        a.step,
        a.revision,
        a.time_ms,
        encode_results(a.results),
        a.overwritten,
    ),
    key_columns=2,
)
TABLES: Final[tuple[Table[Any, Any], ...]] = (ENTRY, TOMBSTONE, LEASE, NEXT_ITEM, ANSWER)


def epoch_row(epoch: Epoch, time_ms: Milliseconds) -> Row:
    """The row of table `epoch`."""
    cause = epoch.cause
    return epoch.revision, time_ms, epoch.number, epoch.id, cause, epoch.from_revision


def stored(row: Row, place: int | None = None) -> Row:
    """The row of an entry as the file has it; without its value, if that is in the log at
    `place`."""
    if place is None:
        return (*row, None, None)
    key, value, *rest = row
    return (key, b"", *rest, place, len(value))


def read_epoch_row(row: Row) -> Epoch:
    """The inverse of `epoch_row`."""
    revision, _, number, name, cause, from_revision = row
    return Epoch(number, name, cause, from_revision, revision)


# --- from the file --------------------------------------------------------------------------------


def fill(state: State, table: Table[Any, Any], rows: Iterable[Row]) -> None:
    """Put the rows of one table, sorted by key, into an empty mapping of `state`."""
    if table is ENTRY:
        state.entries = SortedDict((row[0], Entry(*row)) for row in rows)
        _index(state)
    elif table is TOMBSTONE:
        state.tombstones = SortedDict((key, Tombstone(*rest)) for key, *rest in rows)
    elif table is LEASE:
        time_ms = state.time_ms
        state.leases = {key: _unpack_lease(key, packed, time_ms) for key, packed in rows}
        for lease in state.leases.values():
            hold(state.held, lease, 1)
    elif table is NEXT_ITEM:
        state.next_item = dict(rows)
    else:
        state.answers = {(row[0], row[1]): _answer(row) for row in rows}


def without(state: State, entries: Sequence[Entry]) -> None:
    """Remove entries from a state that was loaded, as if they had never been there."""
    for entry in entries:
        del state.entries[entry.key]
    if entries:
        _index(state)


def _answer(row: Row) -> LaneAnswer:
    _, _, incarnation, step, revision, time_ms, results, overwritten = row
    return LaneAnswer(incarnation, step, revision, time_ms, decode_results(results), overwritten)


def _index(state: State) -> None:
    """Compute what is not in the file: the sums and the order of expiry."""
    sums: dict[str, list[int]] = {"": [0, 0]}
    for key, entry in state.entries.items():
        namespace = namespace_of(key)
        for name in (namespace, "", *shares_of(account_of(entry.author), namespace)):
            used = sums.setdefault(name, [0, 0])
            used[0] += 1
            used[1] += len(key) + len(entry.value)
    state.usage = {name: BoardUsage(keys, size) for name, (keys, size) in sums.items() if keys}
    state.expiring = SortedSet(
        (entry.expires_at_ms, key)
        for key, entry in state.entries.items()
        if entry.expires_at_ms is not None
    )


def unpack_large(packed: bytes | None) -> list[bytes]:
    """The inverse of `pack_large`. Errors: ValueError."""
    values: list[bytes] = [] if packed is None else msgpack.unpackb(packed)
    return values


def weight_of(state: State) -> int:
    """What the rows of `state` add to the checksum of its file."""
    return sum(weigh(table.row(*item)) for table in TABLES for item in table.live(state).items())


def checksum(
    weight: int,
    revision: Revision,
    time_ms: Milliseconds,
    oldest: Revision,
    log_end: Revision,
) -> int:
    """The checksum in the head of a file, when all other rows but those of the log weigh
    `weight`."""
    return (weight + weigh((revision, time_ms, oldest, log_end))) % CHECKSUM_MODULUS


# --- to the file ----------------------------------------------------------------------------------


def seal(revision: Revision, time_ms: Milliseconds, results: bytes, digest: bytes) -> int:
    """The checksum of a row of the log, over the columns that its digest does not cover, and the
    digest."""
    return weigh((revision, time_ms, results, digest)) % CHECKSUM_MODULUS


def pack_large(values: Sequence[bytes]) -> bytes | None:
    """The values that are stored outside a commit's body, as one column; None if there are none."""
    packed: bytes | None = msgpack.packb(values) if values else None
    return packed


Place = tuple[Revision, Milliseconds, Revision]
"""revision, time_ms, oldest."""


@dataclass(slots=True)
class LogRows:
    """Rows that are appended to the log, in order, and their bytes."""

    rows: list[Row] = field(default_factory=list)
    size: int = 0

    def add(self, entry: LogEntry, prepared: Prepared, results: bytes) -> Row:
        """Add the row of an entry, which holds all that decided it; returns it."""
        large, digest = pack_large(prepared.large), entry.digest
        sealed = seal(entry.revision, entry.time_ms, results, digest)
        row = (entry.revision, entry.time_ms, prepared.body, large, results, digest, sealed)
        self.rows.append(row)
        self.size += row_bytes(row)
        return row


def row_bytes(row: Row) -> int:
    """The bytes of a row of the log that is not a marker, without its numbers."""
    _, _, body, large, results, _, _ = row
    return len(body) + len(large or b"") + len(results)


@dataclass(slots=True)
class Writes:
    """One transaction: what a group of commits does to the file."""

    log: list[Row]
    epochs: list[Row]
    upserts: list[tuple[str, list[Row]]]
    deletes: list[tuple[str, list[Row]]]
    head: tuple[Revision, Milliseconds, Revision, Revision, int] | None
    """The mark (revision, time_ms, oldest), the end of the log, the checksum; None if only the log
    grows."""
    weight: int
    """The weight of all rows that the file then has, except for its head and its log."""
    log_below: Revision | None
    """Remove log entries below this revision, some at a time."""


Places = dict[Key, tuple[Revision, int]]
"""Of values that the log holds: the revision of the row, and where in it (`places_of`)."""
Items = list[tuple[Table[Any, Any], list[tuple[Any, Any, Any]]]]
"""Of each table, in the order of `TABLES`: key, item in the file, item now; None = absent."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one transaction writes. The items are copied from the state, which continues to change,
    so that another thread can make the rows."""

    log: list[Row]
    epochs: list[Row] = field(default_factory=list)
    items: Items = field(default_factory=list)
    place: tuple[Revision, Milliseconds, Revision, Revision] | None = None
    """The mark, and the end of the log; None if only the log grows."""
    log_below: Revision | None = None
    undo: tuple[Place, int, int] = ((0, 0, 0), 0, 0)
    """The mark before it, and how many rows and bytes of the log were above."""
    places: Places = field(default_factory=dict)
    """Of the entries among `items`."""

    def writes(self, weight: int) -> Writes:
        """The transaction; `weight` is that of all rows before it, without the head and the log."""
        if self.place is None:
            return Writes(self.log, [], [], [], None, weight, None)
        upserts: list[tuple[str, list[Row]]] = []
        deletes: list[tuple[str, list[Row]]] = []
        for table, items in self.items:
            row_of = table.row
            present, gone = [], []
            for key, old, new in items:
                if new is not None:
                    row = row_of(key, new)
                    weight += weigh(row)
                    present.append(self._stored(new, row) if table is ENTRY else row)
                if old is not None:
                    # `old` is what the file has, so its row need not be read to know its weight.
                    weight -= weigh(row_of(key, old))
                    if new is None:
                        gone.append(key if isinstance(key, tuple) else (key,))
            upserts += [(table.upsert, present)] if present else []
            deletes += [(table.delete, gone)] if gone else []
        weight = (weight + sum(map(weigh, self.epochs))) % CHECKSUM_MODULUS
        head = (*self.place, checksum(weight, *self.place))
        return Writes(self.log, self.epochs, upserts, deletes, head, weight, self.log_below)

    def _stored(self, entry: Entry, row: Row) -> Row:
        """The row of an entry as the file has it. Its value is in the log if the row of its
        revision holds it, and stays."""
        revision, place = self.places.get(entry.key, (0, 0))
        # The second: its row of the log goes in this transaction.
        if revision != entry.mod_revision or revision < (self.log_below or 0):
            return stored(row)
        return stored(row, place)
