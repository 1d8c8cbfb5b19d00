"""Those entries of an open board that are in memory.

A large board is opened without its entries. A read or a commit that looks up a key of a part that
is not loaded gets NotLoaded instead of an answer; the board loads that part (engines/sqlite/
board.py), and looks again. Nothing has changed by then: looking changes nothing, nor does deciding.

Invariants
- A part is a tablet of the file (engines/sqlite/tablets.py), or lies between the same borders.
- Nothing is written to a part that is not loaded, and what the file does not hold yet is not
  evicted. So the rows of such a part stay as they are until it is loaded.
- A key of a part that is not loaded is never said to be absent.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final, Protocol

from msgspec import Struct, structs

from blackboard import limits
from blackboard.core.commit import (
    Append,
    Commit,
    Delete,
    DeletePrefix,
    Directory,
    Entry,
    Increment,
    KeyAt,
    ListOptions,
    PrefixUnchanged,
    Put,
    PutBack,
    Reading,
    without_value,
)
from blackboard.core.directories import Children
from blackboard.core.freeze import FROZEN_KEY
from blackboard.core.path import (
    Ranges,
    barrier_key,
    cut_key,
    item_key,
    range_below,
    range_of,
    range_watched,
)
from blackboard.core.state import UNUSED, Entries, State
from blackboard.engines.payer import turn
from blackboard.engines.sqlite.tablets import LAST, Changes, Span, Tablet
from blackboard.units import Key, Milliseconds

ENTRY_BYTES: Final = 512
"""What a loaded entry takes in memory beside its key and value, on 64-bit CPython."""
CHILDREN_AHEAD: Final = 512
"""Keys that a listing by directory loads at a time: it needs few of a large directory, and all of
many small ones."""
_PARTS_TOGETHER: Final = 16
"""Parts that are read together, in some 10 milliseconds."""
_DUE_PARTS: Final = 16
"""Parts with expired entries that are loaded at a time."""
_EVICTED_MAX: Final = 16
"""Parts that are evicted at a time, in some 4 milliseconds."""


class NotLoaded(Exception):
    """A key of `span` was looked up, which is not loaded. No error: it is loaded then."""

    def __init__(self, span: Span) -> None:
        super().__init__(f"{span[0]} to {span[1]}")
        self.span = span


class _Part(Struct, gc=False):
    """A range of keys that is loaded or not. While it is not, the sums over its entries."""

    keys: int
    bytes: int
    expires_at_ms: Milliseconds | None
    is_loaded: bool
    is_used: bool = True
    """Whether it was looked at since the last eviction came by."""

    @property
    def cost(self) -> int:
        """What its entries take in memory."""
        return self.bytes + self.keys * ENTRY_BYTES


_NAME_ENTRIES: Final = (KeyAt, Put, Delete, Increment, PutBack)
"""Conditions and operations that look up the entry of their key."""
_LOOK_FURTHER: Final = (PrefixUnchanged, DeletePrefix, Append)
"""Those that look at keys that they do not name."""
_get: Final[Any] = dict.get
_has: Final[Any] = dict.__contains__


class LoadedEntries(Entries):
    """Those entries of a board that are in memory, from all tablets or from some."""

    def __init__(self, tablets: Iterable[Tablet]) -> None:
        super().__init__()
        found = list(tablets)
        self._firsts = [tablet.first for tablet in found]
        # A tablet without entries is known by that.
        self._parts = [_Part(t.keys, t.bytes, t.expires_at_ms, not t.keys) for t in found]
        left = [part for part in self._parts if not part.is_loaded]
        self.unloaded = len(left)
        """How many parts are not loaded."""
        self.unloaded_bytes = sum(part.cost for part in left)
        """What these would take in memory."""
        self._hand = 0
        self._free: set[str] = set()
        """Agents of which it is loaded whether a freeze or a barrier stops them."""

    # --- as a dictionary ---

    def get(self, key: Key, default: Any = None) -> Any:
        """As of a dictionary. Raises NotLoaded."""
        found = _get(self, key)
        if found is None:
            if self.unloaded:
                self._check(key)
            return default
        return found

    def __contains__(self, key: object) -> bool:
        if _has(self, key):
            return True
        if self.unloaded:
            self._check(key)
        return False

    def __missing__(self, key: Key) -> Any:
        if self.unloaded:
            self._check(key)
        raise KeyError(key)

    def between(self, first: str, last: str, *, reverse: bool = False) -> Iterator[Key]:
        """As `Entries.between`. The iterator raises NotLoaded where it gets to such a part."""
        if not self.unloaded:
            return super().between(first, last, reverse=reverse)
        return self._between(first, last, reverse=reverse)

    def _between(self, first: str, last: str, *, reverse: bool) -> Iterator[Key]:
        for part, (low, high) in self._overlapping((first, last), reverse=reverse):
            if not part.is_loaded:
                raise NotLoaded((low, high))
            yield from super().between(low, high, reverse=reverse)

    def count(self, first: str, last: str) -> int:
        """As `Entries.count`: parts that lie within need not be loaded. Raises NotLoaded."""
        if not self.unloaded:
            return super().count(first, last)
        found = 0
        for part, (low, high) in self._overlapping((first, last)):
            if part.is_loaded:
                found += super().count(low, high)
            elif self._span(low) == (low, high):
                found += part.keys
            else:
                raise NotLoaded((low, high))
        return found

    def _check(self, key: Any) -> None:
        at = self._at(key)
        if not self._parts[at].is_loaded:
            raise NotLoaded(range_of(key))

    def _at(self, key: Key) -> int:
        return bisect_right(self._firsts, key) - 1

    def _span(self, key: Key) -> Span:
        """The range of the part that `key` belongs to."""
        at = self._at(key)
        return self._firsts[at], self._end(at)

    def _end(self, at: int) -> Key:
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else LAST

    def _overlapping(self, span: Span, *, reverse: bool = False) -> Iterator[tuple[_Part, Span]]:
        """The parts that have keys in `span`, each with that piece of it."""
        first, last = span
        at, end = max(0, self._at(first)), bisect_left(self._firsts, last)
        numbers = range(at, end)
        for number in reversed(numbers) if reverse else numbers:
            low, high = max(first, self._firsts[number]), min(last, self._end(number))
            if low < high:
                yield self._parts[number], (low, high)

    # --- what has to be loaded ---

    def has_all_of(self, commit: Commit) -> bool:
        """Whether all is certainly loaded that deciding `commit` looks up. Such parts count as
        used."""
        if not self.unloaded:
            return True
        agent = commit.id.agent
        if agent not in self._free:
            if self.missing(map(range_of, (FROZEN_KEY, barrier_key(agent), cut_key(agent)))):
                return False
            self._free.add(agent)
        for each in chain(commit.conditions, commit.ops):
            if isinstance(each, _NAME_ENTRIES):
                part = self._parts[self._at(each.key)]
                part.is_used = True
                if not part.is_loaded:
                    return False
            elif isinstance(each, _LOOK_FURTHER):
                return False
        return True

    def missing(self, spans: Iterable[Span]) -> list[Span]:
        """The ranges of the parts in `spans` that are not loaded, sorted and apart, some parts in
        each. The others count as used."""
        if not self.unloaded:
            return []
        found: set[int] = set()
        for first, last in spans:
            for number in range(max(0, self._at(first)), bisect_left(self._firsts, last)):
                part = self._parts[number]
                part.is_used = True
                if not part.is_loaded:
                    found.add(number)
        return self._joined(sorted(found))

    def _joined(self, numbers: Iterable[int]) -> list[Span]:
        spans: list[Span] = []
        parts = 0
        for number in numbers:
            first, last = self._firsts[number], self._end(number)
            if spans and spans[-1][1] == first and parts < _PARTS_TOGETHER:
                first = spans.pop()[0]
            else:
                parts = 0
            spans.append((first, last))
            parts += 1
        return spans

    def ahead(self, ranges: Ranges, limit: int, *, reverse: bool = False) -> list[Span]:
        """What has to be loaded to list `limit` keys of `ranges`, as far as can be said, with what
        is loaded."""
        spans: list[Span] = []
        keys = size = 0
        for span in reversed(ranges) if reverse else ranges:
            for part, (low, high) in self._overlapping(span, reverse=reverse):
                spans.append((low, high))
                if part.is_loaded:
                    keys += super().count(low, high)
                else:
                    size += part.bytes
                    # Of the part at an edge it is not known how many lie within.
                    keys += part.keys if self._span(low) == (low, high) else 0
                if keys > limit or size >= limits.PAGE_BYTES_MAX:
                    return spans
        return spans

    def ahead_of(self, ranges: Ranges, limit: int, options: ListOptions, at: Span) -> list[Span]:
        """As `ahead`, for a listing that came to `at`."""
        begin, end = at
        if options.reverse:
            left = tuple((first, min(last, end)) for first, last in ranges if first < end)
        else:
            left = tuple((max(first, begin), last) for first, last in ranges if last > begin)
        return self.ahead(left, limit, reverse=options.reverse)

    def due(self, by_ms: Milliseconds) -> list[Span]:
        """The ranges of some parts that are not loaded and may have entries that expire by then."""
        if not self.unloaded:
            return []
        found = (
            number
            for number, part in enumerate(self._parts)
            if not part.is_loaded and part.expires_at_ms is not None and part.expires_at_ms <= by_ms
        )
        return self._joined(islice(found, _DUE_PARTS))

    # --- loading and evicting ---

    def admit(self, span: Span, found: Sequence[Entry]) -> list[Entry]:
        """Take in the entries of whole tablets, which are all that the file has in `span`; returns
        those that were not loaded before."""
        new: list[Entry] = []
        by_key = attrgetter("key")
        for part, (low, high) in list(self._overlapping(span)):
            if part.is_loaded or self._span(low) != (low, high):
                continue
            part.is_loaded = part.is_used = True
            self.unloaded -= 1
            self.unloaded_bytes -= part.cost
            begin = bisect_left(found, low, key=by_key)
            new += found[begin : bisect_left(found, high, begin, key=by_key)]
        self.update({entry.key: entry for entry in new})
        return new

    def evict(self, cost_bytes: int, kept: Iterable[Key]) -> list[Entry]:
        """Forget the entries of parts that were not used lately, until about `cost_bytes` are
        free; returns them. Parts with keys of `kept` stay. Source: the clock algorithm of Corbato,
        1968."""
        busy = {self._at(key) for key in kept}
        gone: list[Entry] = []
        self._free.clear()
        left = _EVICTED_MAX
        for _ in range(2 * len(self._parts)):  # in the second round none is used
            if cost_bytes <= 0 or not left:
                break
            self._hand = (self._hand + 1) % len(self._parts)
            part = self._parts[self._hand]
            if not part.is_loaded or self._hand in busy:
                continue
            if part.is_used:
                part.is_used = False
                continue
            gone += self._unload(self._hand, part)
            cost_bytes -= part.cost
            left -= 1
        return gone

    def _unload(self, at: int, part: _Part) -> list[Entry]:
        keys = list(super().between(self._firsts[at], self._end(at)))
        gone = [self[key] for key in keys]
        for key in keys:
            del self[key]
        part.keys = len(gone)
        part.bytes = sum(len(entry.key) + len(entry.value) for entry in gone)
        times = [entry.expires_at_ms for entry in gone if entry.expires_at_ms is not None]
        part.expires_at_ms = min(times, default=None)
        # Nothing to read again: it stays known that there is nothing.
        part.is_loaded = not keys
        if keys:
            self.unloaded += 1
            self.unloaded_bytes += part.cost
        return gone

    def follow(self, changes: Changes) -> None:
        """Take over borders that a transaction made or removed."""
        for first in changes.gone:
            at = bisect_left(self._firsts, first)
            # Else it stays a part of its own: the rows of the other are still those of the file.
            both = self._parts[at - 1 : at + 1]
            if self._firsts[at : at + 1] == [first] and all(part.is_loaded for part in both):
                del self._firsts[at], self._parts[at]
                self._hand = 0
        for tablet in changes.present:
            at = self._at(tablet.first)
            part = self._parts[at]
            # One that is not loaded stays in one piece, of which the sums are known.
            if self._firsts[at] != tablet.first and part.is_loaded:
                self._firsts.insert(at + 1, tablet.first)
                self._parts.insert(at + 1, structs.replace(part))


def loaded_of(state: State) -> LoadedEntries:
    """The entries of a state that this engine owns."""
    assert isinstance(state.entries, LoadedEntries)
    return state.entries


def admit(state: State, span: Span, found: Sequence[Entry]) -> None:
    """As `LoadedEntries.admit`, and note when they expire."""
    state.expiring.update(_expiring(loaded_of(state).admit(span, found)))


def evict(state: State, cost_bytes: int, kept: Iterable[Key]) -> None:
    """As `LoadedEntries.evict`, and forget when they expire."""
    for each in _expiring(loaded_of(state).evict(cost_bytes, kept)):
        state.expiring.remove(each)


def _expiring(entries: Iterable[Entry]) -> list[tuple[Milliseconds, Key]]:
    times = ((entry.expires_at_ms, entry.key) for entry in entries)
    return [(until_ms, key) for until_ms, key in times if until_ms is not None]


# --- what a commit looks at -----------------------------------------------------------------------


def keys_of(commit: Commit) -> list[Span]:
    """The ranges of single keys that deciding `commit` looks up."""
    agent = commit.id.agent
    keys = [FROZEN_KEY, barrier_key(agent), cut_key(agent)]
    named = chain(commit.conditions, commit.ops)
    keys += [each.key for each in named if isinstance(each, _NAME_ENTRIES)]
    return [range_of(key) for key in keys]


def looked_up(state: State, commit: Commit) -> list[Span]:
    """The ranges that deciding `commit` looks at, as far as it does: of more than OPERATIONS_MAX
    keys a commit is refused."""
    entries, spans = loaded_of(state), keys_of(commit)
    watched = [each.prefix for each in commit.conditions if not isinstance(each, KeyAt)]
    scanned = [range_watched(prefix) for prefix in watched]
    for op in commit.ops:
        if isinstance(op, DeletePrefix):
            scanned.append(range_below(op.prefix))
        elif isinstance(op, Append):
            # To the end of the list: a commit may append more than one item.
            following = item_key(op.prefix, state.next_item.get(op.prefix, 0))
            spans.append((following, range_below(op.prefix)[1]))
    for span in scanned:
        spans += entries.ahead((span,), limits.OPERATIONS_MAX + 1)
    return spans


# --- reading --------------------------------------------------------------------------------------


def entries_at(state: State, keys: Sequence[Key]) -> Reading:
    """As `Store.read`. Raises NotLoaded."""
    entries = state.entries
    return _reading(state, tuple(entries[key] for key in keys if key in entries))


def page_of(state: State, ranges: Ranges, limit: int, options: ListOptions) -> Reading:
    """As `Store.list`. Raises NotLoaded."""
    entries, reverse = state.entries, options.reverse
    spans = (state.between(*span, reverse=reverse) for span in ranges[:: -1 if reverse else 1])
    found: list[Entry] = []
    size = 0
    for key in chain.from_iterable(spans):
        if len(found) >= limit or size >= limits.PAGE_BYTES_MAX:
            return _reading(state, tuple(found), found[-1].key)
        entry = without_value(entries[key]) if options.keys_only else entries[key]
        found.append(entry)
        size += len(key) + len(entry.value)
    return _reading(state, tuple(found))


def children_of(state: State, page: Children, ranges: Ranges, options: ListOptions) -> Reading:
    """As `Store.children`, for a page that is empty, and stays so. Raises NotLoaded."""
    filled, next_key = Children(page.prefix, page.limit), None
    for key, directory, count in state.children(page.prefix, ranges, reverse=options.reverse):
        if not filled.counts(directory) and not filled.room:
            next_key = filled.last
            break
        if directory is not None:
            filled.add_keys(directory, key, count)
            continue
        entry = state.entries[key]
        filled.add_entry(without_value(entry) if options.keys_only else entry)
    return _reading(state, tuple(filled.entries), next_key, filled.directories)


def due_of(state: State, by_ms: Milliseconds, limit: int) -> Reading:
    """As `Store.due`. Raises NotLoaded."""
    found = list(islice(state.expiring.irange(maximum=(by_ms, LAST)), limit))
    if len(found) < limit and (spans := loaded_of(state).due(by_ms)):
        raise NotLoaded(spans[0])
    return _reading(state, tuple(state.entries[key] for _, key in found))


def _reading(
    state: State,
    entries: tuple[Entry, ...],
    next_key: Key | None = None,
    directories: tuple[Directory, ...] = (),
) -> Reading:
    return Reading(state.revision, state.epoch.id, entries, next_key, directories=directories)


# --- loading --------------------------------------------------------------------------------------

Found = list[tuple[Span, list[Entry]]]
"""Ranges of whole tablets, and their entries."""


class Loader:
    """Loads entries of an open board, and evicts them."""

    def __init__(
        self,
        state: State,
        read: Callable[[Sequence[Span]], Awaitable[Found]],
        kept: Callable[[], Iterable[Key] | None],
        whole: Callable[[], Awaitable[None]],
    ) -> None:
        """`read` reads tablets of the file. `kept` names keys whose entries stay, or is None while
        nothing may be evicted. `whole` waits until the state may be changed."""
        self._state = state
        self._read = read
        self._kept = kept
        self._whole = whole
        self._one = asyncio.Lock()
        self._is_loading = False
        self.make_room: Callable[[], None] = lambda: None
        """Called before more entries are loaded."""

    async def load(self, spans: Sequence[Span]) -> None:
        """Load the parts that have keys in `spans`; all of them are loaded when it returns, and
        until its caller awaits something. Cancellation: some may have been loaded.

        Errors: Corrupt, of nothing but these parts; Unavailable.
        """
        async with self._one:
            self.make_room()  # here: the caller of the load before has looked at what it got
            self._is_loading = True  # from here on nothing is evicted: two loads would never end
            try:
                # Others may have loaded them meanwhile.
                missing = loaded_of(self._state).missing(spans)
                for first in range(0, len(missing), _PARTS_TOGETHER):
                    found = await self._read(missing[first : first + _PARTS_TOGETHER])
                    await turn()
                    await self._whole()
                    for within, entries in found:
                        admit(self._state, within, entries)
            finally:
                self._is_loading = False

    @property
    def bytes(self) -> int:
        """What the loaded entries take in memory."""
        used = self._state.usage.get("", UNUSED)
        loaded = used.bytes + used.keys * ENTRY_BYTES
        return loaded - loaded_of(self._state).unloaded_bytes

    def evict(self, cost_bytes: int) -> None:
        """Forget about so many bytes of entries that the file has, if they were not used lately."""
        kept = self._kept()
        if kept is not None and not self._is_loading:
            evict(self._state, cost_bytes, kept)


class _Board(Protocol):
    """An open board."""

    last_use_s: float
    loader: Loader


class CacheBudget:
    """Keeps the loaded entries of all open boards of a store at BOARDS_CACHE_BYTES, or returns to
    it: what calls in flight look at comes on top."""

    def __init__(self, bytes_max: int, boards: Mapping[str, _Board]) -> None:
        self._bytes_max = bytes_max
        self._boards = boards

    def fit(self) -> None:
        """Evict entries if there are too many, those of boards first that were used longest ago."""
        excess = sum(board.loader.bytes for board in self._boards.values()) - self._bytes_max
        if excess <= 0:  # as nearly always
            return
        for board in sorted(self._boards.values(), key=attrgetter("last_use_s")):
            if excess <= 0:
                return
            before = board.loader.bytes
            board.loader.evict(excess)
            excess -= before - board.loader.bytes
