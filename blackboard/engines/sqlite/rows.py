"""Maps a board's state to the tables of its file (schema.sql), row by row.

Invariants
- Each table is one mapping of `State`; a row is a pure function of one item of that mapping. The
  tables `tablet` and `usage` hold sums over the rows of `entry`, whatever the mark is.
- The weights of the rows of all tables but `log` and `entry` add up to the checksum in the file.
  Those of `entry` add up to the weights in `tablet` (engines/sqlite/tablets.py); such a row weighs
  as much as if it held its value. SQLite itself notices neither a
  flipped bit in a value, nor a mixture of pages of different times. It is no protection against an
  adversary.

A commit's row of `log` holds each value that the commit wrote. A row of `entry` does not repeat a
longer one: it says which bytes of the log it is. So a value is stored once for as long as its
commit is in the log, and written once.
- A row of `entry` refers only to the row of the log of its own revision, and only to bytes that
  were compared with the value (`places_of`).
- Before rows are removed from the log, the values in them that entries still have are moved to the
  rows of these, in the same transaction (`movable`).
- The weight of an entry counts its value, wherever it lies: bytes that changed in a row of the log,
  or a reference that leads elsewhere, are noticed when the entry is loaded.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter, ne
from typing import Any, Final, Generic, TypeVar
from zlib import adler32, crc32

import msgpack
import msgspec
from msgspec.structs import replace
from sortedcontainers import SortedDict

from blackboard.core.commit import Entry, Epoch, Lease, LogEntry, Waiter
from blackboard.core.lease import accounts, from_result
from blackboard.core.state import (
    BoardUsage,
    Growth,
    LaneAnswer,
    State,
    Tombstone,
    add_up,
    grow,
    hold,
)
from blackboard.engines.sqlite.tablets import (
    DELETE_TABLET,
    FIRST,
    UPSERT_TABLET,
    WEIGHT_MODULUS,
    Changes,
    Pieces,
    Span,
    Tablet,
    Tablets,
    TabletSums,
)
from blackboard.errors import Corrupt
from blackboard.limits import LEASE_TTL_MS, VALUE_INLINE_BYTES_MAX
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import Prepared, decode_results, encode_results

K = TypeVar("K")
V = TypeVar("V")
Row = tuple[Any, ...]
Rows = tuple[str, Sequence[Row]]
"""A statement, and the rows that it is for."""

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
    stored=("place", "size", "weight"),
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
LOADED: Final = TABLES[1:]
"""Those that are read when a board is opened, all of them."""
SELECT_USAGE: Final = "SELECT name, keys, bytes FROM usage ORDER BY name"
_UPSERT_USAGE: Final = (
    "INSERT INTO usage (name, keys, bytes) VALUES (?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET keys = excluded.keys, bytes = excluded.bytes"
)
_DELETE_USAGE: Final = "DELETE FROM usage WHERE name = ?"


def epoch_row(epoch: Epoch, time_ms: Milliseconds) -> Row:
    """The row of table `epoch`."""
    cause = epoch.cause
    return epoch.revision, time_ms, epoch.number, epoch.id, cause, epoch.from_revision


def stored(row: Row, weight: int, place: int | None = None) -> Row:
    """The row of an entry as the file has it; without its value, if that is in the log at
    `place`."""
    if place is None:
        return (*row, None, None, weight)
    key, value, *rest = row
    return (key, b"", *rest, place, len(value), weight)


def usage_row(name: str, used: BoardUsage) -> Row:
    """The row of table `usage`."""
    return name, used.keys, used.bytes


def read_epoch_row(row: Row) -> Epoch:
    """The inverse of `epoch_row`."""
    revision, _, number, name, cause, from_revision = row
    return Epoch(number, name, cause, from_revision, revision)


# --- from the file --------------------------------------------------------------------------------


def fill(state: State, table: Table[Any, Any], rows: Iterable[Row]) -> None:
    """Put the rows of one table, sorted by key, into an empty mapping of `state`."""
    if table is TOMBSTONE:
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


def _answer(row: Row) -> LaneAnswer:
    _, _, incarnation, step, revision, time_ms, results, overwritten = row
    return LaneAnswer(incarnation, step, revision, time_ms, decode_results(results), overwritten)


def unpack_large(packed: bytes | None) -> list[bytes]:
    """The inverse of `pack_large`. Errors: ValueError."""
    values: list[bytes] = [] if packed is None else msgpack.unpackb(packed)
    return values


def checksum(
    weight: int,
    revision: Revision,
    time_ms: Milliseconds,
    oldest: Revision,
    log_end: Revision,
) -> int:
    """The checksum in the head of a file, when all other rows but those of the log weigh
    `weight`."""
    return (weight + weigh((revision, time_ms, oldest, log_end))) % WEIGHT_MODULUS


# --- to the file ----------------------------------------------------------------------------------


def seal(revision: Revision, time_ms: Milliseconds, results: bytes, digest: bytes) -> int:
    """The checksum of a row of the log, over the columns that its digest does not cover, and the
    digest."""
    return weigh((revision, time_ms, results, digest)) % WEIGHT_MODULUS


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
class Filed:
    """The sums over the rows of a file, as of its last transaction."""

    weight: int
    """Of the rows of all tables but `head`, `log`, and `entry`."""
    usage: dict[str, BoardUsage]
    tablets: Tablets

    def sums(self, writes: "Writes") -> tuple[list[Rows], int]:
        """What a transaction does to the rows of the sums, and the weight of all rows then."""
        changes = writes.tablets
        names = sorted({*writes.growth, ""}) if writes.growth else []
        after = {name: self.usage[name] for name in names if name in self.usage}
        before = [usage_row(*item) for item in after.items()]
        add_up(after, writes.growth)
        present = [usage_row(name, after[name]) for name in names if name in after]
        tablets = [tablet.row for tablet in changes.present]
        weight = writes.weight + sum(map(weigh, present)) + sum(map(weigh, tablets))
        weight -= sum(map(weigh, before)) + sum(weigh(each.row) for each in changes.before)
        gone = [(name,) for name in names if name not in after]
        deletes = [(_DELETE_USAGE, gone), (DELETE_TABLET, [(first,) for first in changes.gone])]
        upserts = [(_UPSERT_USAGE, present), (UPSERT_TABLET, tablets)]
        return [*deletes, *upserts], weight % WEIGHT_MODULUS

    def change(self, writes: "Writes", weight: int) -> None:
        """Take over a transaction that was committed."""
        self.weight = weight
        add_up(self.usage, writes.growth)
        self.tablets.change(writes.tablets)


@dataclass(slots=True)
class FirstSums:
    """The sums over the entries of a file that has none of them yet, which are added in order."""

    growth: Growth = field(default_factory=dict)
    pieces: Pieces = field(default_factory=lambda: Pieces(FIRST))

    def add(self, entry: Entry, weight: int) -> None:
        """Add an entry, whose row weighs `weight`."""
        grow(self.growth, entry.key, None, entry)
        size = len(entry.key) + len(entry.value)
        self.pieces.add(entry.key, size, weight, entry.expires_at_ms)

    def rows(self) -> list[Rows]:
        """Their rows, of which there are none before."""
        usage: dict[str, BoardUsage] = {}
        add_up(usage, self.growth)
        tablets = [tablet.row for tablet in self.pieces.all()]
        return [(UPSERT_TABLET, tablets), (_UPSERT_USAGE, [usage_row(*i) for i in usage.items()])]


@dataclass(slots=True)
class Writes:
    """One transaction: what a group of commits does to the file."""

    log: list[Row]
    epochs: list[Row] = field(default_factory=list)
    upserts: list[Rows] = field(default_factory=list)
    deletes: list[Rows] = field(default_factory=list)
    place: tuple[Revision, Milliseconds, Revision, Revision] | None = None
    """The mark (revision, time_ms, oldest), and the end of the log; None if only the log grows."""
    weight: int = 0
    """The weight of all rows that the file then has, except for its head, its log and its entries,
    and for what the sums change."""
    tablets: Changes = field(default_factory=lambda: Changes([], [], []))
    growth: Growth = field(default_factory=dict)
    log_below: Revision | None = None
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

    def writes(self, filed: Filed) -> Writes:
        """The transaction, for a file that has those sums before it."""
        if self.place is None:
            return Writes(self.log)
        writes = Writes(self.log, self.epochs, place=self.place, log_below=self.log_below)
        weight, sums = filed.weight + sum(map(weigh, self.epochs)), TabletSums(filed.tablets)
        for table, items in self.items:
            row_of = table.row
            present, gone = [], []
            for key, old, new in items:
                heavy = more = 0
                if new is not None:
                    row = row_of(key, new)
                    heavy = more = weigh(row)
                    present.append(self._stored(new, row, heavy) if table is ENTRY else row)
                if old is not None:
                    # `old` is what the file has, so its row need not be read to know its weight.
                    more -= weigh(row_of(key, old))
                    if new is None:
                        gone.append(key if isinstance(key, tuple) else (key,))
                if table is ENTRY:
                    sums.add(key, old, new, more)
                    grow(writes.growth, key, old, new)
                else:
                    weight += more
            writes.upserts += [(table.upsert, present)] if present else []
            writes.deletes += [(table.delete, gone)] if gone else []
        writes.weight, writes.tablets = weight, sums.changes()
        return writes

    def _stored(self, entry: Entry, row: Row, weight: int) -> Row:
        """The row of an entry as the file has it. Its value is in the log if the row of its
        revision holds it, and stays."""
        revision, place = self.places.get(entry.key, (0, 0))
        # The second: its row of the log goes in this transaction.
        if revision != entry.mod_revision or revision < (self.log_below or 0):
            return stored(row, weight)
        return stored(row, weight, place)


# --- values in the log ----------------------------------------------------------------------------

REFERRED_BYTES: Final = 256
"""Values below stay in the rows of their entries: a reference to them would save less than it takes
to follow it when the board is loaded."""
_SEEN_BYTES: Final = 32
"""How much of a value is searched for, before all of it is compared."""
_GUESSES: Final = 4
"""How often these bytes may be those of something else."""
_MISSES_MAX: Final = 8
"""Values of one commit that are searched for in vain. Each search goes through the whole row."""

_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Rows of the log that are kept for the entries that follow: one commit often wrote many."""

_WITHIN: Final = "FROM entry WHERE key >= ? AND key < ? ORDER BY key"
ALL_COLUMNS: Final = ", ".join((*ENTRY.columns, *ENTRY.stored))
"""Those of table `entry`, for `ValuesInLog.whole`."""
_ENTRIES: Final = f"SELECT {ALL_COLUMNS} {_WITHIN}"
_KEYS: Final = f"SELECT key {_WITHIN}"
"""From the index alone."""
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
_SIZES: Final = "SELECT length(body), coalesce(length(large), 0) FROM log WHERE revision = ?"
_READ_WHOLE_BYTES: Final = 16 * 1024
"""A row of the log up to which reading all of it is no slower than opening it for one value."""

Values = list[tuple[Key, bytes]]


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


class ValuesInLog:
    """The values that the log has for entries."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._kept: dict[Revision, bytes] = {}
        self._size = 0
        self._opened: set[Revision] = set()
        """Large rows of which one value was read."""
        self._is_scattered = False
        """Whether more rows are looked at, again and again, than can be kept."""

    def whole(self, row: Row) -> Row:
        """A row of all columns, without those that only the file has, and with its value. Errors:
        Corrupt."""
        key, value, revision, *_, place, size, _ = row
        if place is None and size is None:
            return row[:-3]
        held = None
        if place is not None and size is not None and not value:
            held = self.slice(revision, place, size)
        if held is None:
            raise Corrupt(what=f"the entry of {key}", reason="its value is not in one place")
        return (key, held, *row[2:-3])

    def slice(self, revision: Revision, place: int, size: int) -> bytes | None:
        """`size` bytes of a row of the log, after `place` of them; None if it has no such bytes."""
        if place < 0 or size < 0:
            return None
        if revision not in self._kept and (self._is_scattered or revision not in self._opened):
            sizes = self._connection.execute(_SIZES, (revision,)).fetchone()
            if sizes is not None and sum(sizes) > _READ_WHOLE_BYTES:
                self._opened.add(revision)  # a second value of it is worth reading all of it
                return self._piece(revision, place, size, sizes[0])
        held = self._content(revision)
        return None if held is None or place + size > len(held) else held[place : place + size]

    def _piece(self, revision: Revision, place: int, size: int, body_bytes: int) -> bytes | None:
        """As `slice`, without reading the row: a value is in its body, or behind it."""
        column, at = ("body", place) if place < body_bytes else ("large", place - body_bytes)
        with self._connection.blobopen("log", column, revision, readonly=True) as blob:
            if at + size > len(blob):
                return None
            blob.seek(at)
            return blob.read(size)

    def _content(self, revision: Revision) -> bytes | None:
        held = self._kept.get(revision)
        if held is None:
            content = self._connection.execute(_CONTENT, (revision,)).fetchone()
            if content is None:
                return None
            body, large = content
            held = body if large is None else body + large
            if self._size > _KEPT_BYTES:
                self._kept.clear()
                self._size = 0
                self._is_scattered = True
            self._kept[revision] = held
            self._size += len(held)
        return held


def entries_of(
    connection: sqlite3.Connection, tablets: Tablets, spans: Iterable[Span]
) -> Iterator[tuple[Span, list[Entry]]]:
    """For each of `spans`, the range of all tablets that have keys in it, and their entries.

    Cost: about 5 us per entry. Errors, also of the iterator: Corrupt unless the rows of each tablet
    are those that were written, and have one value each; sqlite3.Error.
    """
    held = ValuesInLog(connection)
    for span in spans:
        found = tablets.overlapping(span)
        within = (found[0][0].first, found[-1][1])
        yield within, [entry for each in found for entry in _entries_in(connection, held, *each)]


def _entries_in(
    connection: sqlite3.Connection, held: ValuesInLog, tablet: Tablet, last: Key
) -> list[Entry]:
    within, weight = (tablet.first, last), 0
    found: list[Entry] = []
    for row in connection.execute(_ENTRIES, within):
        whole, heavy = held.whole(row), row[-1]
        if weigh(whole) != heavy:
            raise Corrupt(what=f"the entry of {row[0]}", reason="it was not written so")
        weight += heavy
        found.append(Entry(*whole))
    where = f"its entries from {tablet.first!r} to {last!r}"
    if len(found) != tablet.keys or (weight - tablet.weight) % WEIGHT_MODULUS:
        raise Corrupt(what=where, reason="they are not those that were written")
    # The rows were read through this index, and a write would not find its row by it.
    indexed = (key for (key,) in connection.execute(_KEYS, within))
    if any(map(ne, indexed, (entry.key for entry in found))):
        raise Corrupt(what=where, reason="their index is damaged")
    return found


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
