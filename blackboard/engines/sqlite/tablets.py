"""The tablets of a board's file: ranges of keys whose rows are read and checked together.

A *tablet* is a range of keys, as in Bigtable (OSDI 2006, section 5.1): from its first key up to
that of the next one. The tablets of a board cover all keys. Its file records how many entries each
has and what their rows weigh. A tablet is read whole, and checked, before one of its keys is looked
up; so what the file lost is noticed as well as what changed in it, although a large board is opened
without reading its entries (engines/sqlite/cache.py).

Invariants
- The first key of the first tablet is "", below every key.
- `Tablets` is what the file holds since its last transaction.
- A tablet without entries, but for the first one, joins the one before it.
"""

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from blackboard.core.commit import Entry
from blackboard.errors import Corrupt
from blackboard.limits import DEFAULT, BoardLimits
from blackboard.units import Key, Milliseconds

SELECT_TABLETS: Final = (
    "SELECT first_key, keys, bytes, weight, expires_at_ms FROM tablet ORDER BY first_key"
)
UPSERT_TABLET: Final = (
    "INSERT INTO tablet (first_key, keys, bytes, weight, expires_at_ms) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (first_key) DO UPDATE SET keys = excluded.keys, bytes = excluded.bytes,"
    " weight = excluded.weight, expires_at_ms = excluded.expires_at_ms"
)
DELETE_TABLET: Final = "DELETE FROM tablet WHERE first_key = ?"
MEASURE_TABLET: Final = (
    "SELECT key, length(key) + coalesce(size, length(value)), weight, expires_at_ms FROM entry"
    " WHERE key >= ? AND key < ? ORDER BY key"
)
"""The rows of a tablet, for `cut`."""
WEIGHT_MODULUS: Final = 2**62
"""Sums of weights are taken modulo this: SQLite's integers end at 2**63."""
FIRST: Final[Key] = ""
LAST: Final[Key] = "\x7f"
"""Above every key."""
Span = tuple[Key, Key]
"""A half-open range of keys."""


class Tablet(Struct, frozen=True, gc=False):
    """The sums over the rows of a tablet, which begins at `first`.

    `expires_at_ms` is not above the earliest expiry among its entries; None if none expires.
    """

    first: Key
    keys: int = 0
    bytes: int = 0
    weight: int = 0
    expires_at_ms: Milliseconds | None = None

    @property
    def row(self) -> tuple[Key, int, int, int, Milliseconds | None]:
        """Its row of table `tablet`."""
        return self.first, self.keys, self.bytes, self.weight, self.expires_at_ms

    def is_large(self, limits: BoardLimits) -> bool:
        """Whether it is to be cut."""
        is_long = self.keys > limits.tablet_keys_max
        return is_long or (self.keys > 1 and self.bytes > limits.tablet_bytes_max)


class Tablets:
    """All tablets of a file. `overlapping` may be called in another thread than `change`."""

    def __init__(self, tablets: Iterable[Tablet]) -> None:
        self._found = {tablet.first: tablet for tablet in tablets}
        self._firsts = sorted(self._found)
        self._one = threading.Lock()

    def __iter__(self) -> Iterator[Tablet]:
        return iter([self._found[first] for first in self._firsts])

    def is_small(self, limits: BoardLimits) -> bool:
        """Whether all entries are read when the board is opened."""
        keys = sum(tablet.keys for tablet in self._found.values())
        size = sum(tablet.bytes for tablet in self._found.values())
        return keys <= limits.boards_whole_keys and size <= limits.boards_cache_bytes

    def holder(self, key: Key) -> Tablet:
        """The tablet that `key` belongs to."""
        return self._found[self._firsts[bisect_right(self._firsts, key) - 1]]

    def end(self, first: Key) -> Key:
        """Where the tablet that begins at `first` ends."""
        at = bisect_right(self._firsts, first)
        return self._firsts[at] if at < len(self._firsts) else LAST

    def overlapping(self, span: Span) -> list[tuple[Tablet, Key]]:
        """The tablets that have keys in `span`, in order, each with its end."""
        first, last = span
        with self._one:
            at, end = bisect_right(self._firsts, first) - 1, bisect_left(self._firsts, last)
            borders = [*self._firsts[at:end], *(self._firsts[end : end + 1] or [LAST])]
            return [(self._found[begin], until) for begin, until in pairwise(borders)]

    def change(self, changes: "Changes") -> None:
        """Take over what a transaction wrote."""
        with self._one:
            for first in changes.gone:
                del self._found[first]
                del self._firsts[bisect_left(self._firsts, first)]
            for tablet in changes.present:
                if tablet.first not in self._found:
                    insort(self._firsts, tablet.first)
                self._found[tablet.first] = tablet


class Changes(Struct):
    """What a transaction does to the tablets of a file."""

    before: list[Tablet]
    """Those that it changes, as they were."""
    present: list[Tablet]
    gone: list[Key]
    """The first keys of those that have no entry any more. Their range joins the one before."""

    def replace(self, tablet: Tablet, pieces: Sequence[Tablet]) -> None:
        """Replace a tablet by the pieces into which it is cut."""
        self.present.remove(tablet)
        self.present += pieces


class TabletSums:
    """Adds up what the rows that a transaction writes do to tablets."""

    def __init__(self, tablets: Tablets) -> None:
        self._tablets = tablets
        self._before: dict[Key, Tablet] = {}
        self._sums: dict[Key, list[int]] = {}
        self._expiry: dict[Key, Milliseconds] = {}

    def add(self, key: Key, old: Entry | None, new: Entry | None, weight: int) -> None:
        """The row of `key` changes from `old` to `new`; `weight` is the difference in weight."""
        tablet = self._tablets.holder(key)
        first = tablet.first
        sums = self._sums.get(first)
        if sums is None:
            self._before[first] = tablet
            sums = self._sums[first] = [tablet.keys, tablet.bytes, tablet.weight]
        if old is not None:
            sums[0] -= 1
            sums[1] -= len(key) + len(old.value)
        if new is not None:
            sums[0] += 1
            sums[1] += len(key) + len(new.value)
            if new.expires_at_ms is not None:
                earliest = self._expiry.get(first, new.expires_at_ms)
                self._expiry[first] = min(earliest, new.expires_at_ms)
        sums[2] += weight

    def changes(self) -> Changes:
        """What comes of it."""
        present, gone = [], []
        for first, (keys, size, weight) in self._sums.items():
            if not keys and first != FIRST:
                gone.append(first)
                continue
            times = [self._before[first].expires_at_ms, self._expiry.get(first)]
            known = [time for time in times if time is not None]
            earliest = min(known) if known and keys else None
            present.append(Tablet(first, keys, size, weight % WEIGHT_MODULUS, earliest))
        return Changes(list(self._before.values()), present, gone)


Measured = tuple[Key, int, int, Milliseconds | None]
"""Of a row: its key, the bytes of key and value, its weight, when it expires."""


class Pieces:
    """Cuts a tablet that begins at `first` into such of half the size, as its rows are added in
    order."""

    def __init__(self, first: Key, limits: BoardLimits = DEFAULT.boards) -> None:
        self._keys_max = max(1, limits.tablet_keys_max // 2)
        self._bytes_max = limits.tablet_bytes_max // 2
        self._found: list[Tablet] = []
        self._last = Tablet(first)

    def add(self, key: Key, size: int, weight: int, expires_at_ms: Milliseconds | None) -> None:
        """Add a row; `size` is that of key and value."""
        last = self._last
        if last.keys and (last.keys >= self._keys_max or last.bytes + size > self._bytes_max):
            self._found.append(last)
            last = Tablet(key)
        times = [time for time in (last.expires_at_ms, expires_at_ms) if time is not None]
        weight = (last.weight + weight) % WEIGHT_MODULUS
        earliest = min(times, default=None)
        self._last = Tablet(last.first, last.keys + 1, last.bytes + size, weight, earliest)

    def all(self) -> list[Tablet]:
        """The smaller ones; one at least."""
        return [*self._found, self._last]


def cut(tablet: Tablet, rows: Iterable[Measured], limits: BoardLimits) -> list[Tablet]:
    """The pieces of a large tablet, whose rows are given in order. Errors: Corrupt unless they are
    those that were written."""
    pieces = Pieces(tablet.first, limits)
    for row in rows:
        pieces.add(*row)
    found = pieces.all()
    keys, size = sum(piece.keys for piece in found), sum(piece.bytes for piece in found)
    weight = sum(piece.weight for piece in found) % WEIGHT_MODULUS
    if (keys, size, weight) != (tablet.keys, tablet.bytes, tablet.weight):
        raise Corrupt(f"its entries from {tablet.first!r}", "they do not add up")
    return found
