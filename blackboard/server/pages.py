"""One answer of a listing or of the log, assembled from pages of an engine.

It goes by nothing but what the reader may read: that alone decides where it ends, and a cursor is a
key that the reader may read (docs/decisions/0035-readable-ranges.md).
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from msgspec.structs import replace

from blackboard.archive.base import Archive
from blackboard.core.access import Reach
from blackboard.core.checkpoints import Point
from blackboard.core.commit import Entry, ListOptions, LogEntry, Reading, without_value
from blackboard.core.directories import Children, ranges_behind
from blackboard.core.history import Gathered, portions
from blackboard.core.path import Pattern, Ranges, directory_of, ranges_of
from blackboard.engines.base import Store
from blackboard.engines.payer import turn
from blackboard.errors import InvalidRequest
from blackboard.limits import LIST_ENTRIES_MAX, PAGE_BYTES_MAX
from blackboard.units import Key, Prefix

_LIST_PAGES_MAX: Final = 16
"""Keys that one request searches for matches, as a multiple of its limit, before it answers with a
`next_key`."""
_LIST_TRIES: Final = 8
"""How often a listing starts again because the board changed between its pages."""


class Source(Protocol):
    """Where entries come from: the board as it is, or as it was."""

    async def read(self, keys: Sequence[Key]) -> Reading:
        """Entries of `keys`, all as of one revision."""

    async def list(
        self, within: Ranges, after: Key | None, limit: int, options: ListOptions
    ) -> Reading:
        """Up to `limit` entries of the keys in `within` that follow `after` in the order of
        `options`."""

    async def children(
        self, within: Ranges, prefix: Prefix, after: Key | None, limit: int, options: ListOptions
    ) -> Reading:
        """Up to `limit` entries and directories of `prefix`, see `Store.children`."""


class PresentSource:
    """The present content of the board `board`."""

    def __init__(self, store: Store, board: str) -> None:
        self._store = store
        self._board = board

    async def read(self, keys: Sequence[Key]) -> Reading:
        """As `Source.read`."""
        return await self._store.read(self._board, keys)

    async def list(
        self, within: Ranges, after: Key | None, limit: int, options: ListOptions
    ) -> Reading:
        """As `Source.list`."""
        return await self._store.list(
            self._board,
            within,
            after=after,
            limit=limit,
            reverse=options.reverse,
            keys_only=options.keys_only,
        )

    async def children(
        self, within: Ranges, prefix: Prefix, after: Key | None, limit: int, options: ListOptions
    ) -> Reading:
        """As `Source.children`."""
        read = partial(self._store.children, self._board, within, prefix, after=after)
        return await read(limit=limit, options=options)


class ArchivedSource:
    """The content of a board at a point of its history."""

    def __init__(self, archive: Archive, at: Point) -> None:
        self._archive = archive
        self._at = at

    async def read(self, keys: Sequence[Key]) -> Reading:
        """As `Source.read`."""
        return await self._archive.read(self._at, keys)

    async def list(
        self, within: Ranges, after: Key | None, limit: int, options: ListOptions
    ) -> Reading:
        """As `Source.list`."""
        return await self._archive.list(
            self._at,
            within,
            after=after,
            limit=limit,
            reverse=options.reverse,
            keys_only=options.keys_only,
        )

    async def children(
        self, within: Ranges, prefix: Prefix, after: Key | None, limit: int, options: ListOptions
    ) -> Reading:
        """As `Source.children`."""
        read = partial(self._archive.children, self._at, within, prefix, after=after)
        return await read(limit=limit, options=options)


class Sieve:
    """The visible part of the keys that were scanned.

    It goes by nothing but what the reader may read: that alone decides where a page ends.
    """

    def __init__(self, pattern: Pattern, reach: Reach, limit: int) -> None:
        self.found: list[Entry] = []
        self.last: Key | None = None
        self._pattern = pattern
        self._readable = reach.readable
        self.limit = limit
        self._seen = 0
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether the answer ends here even if there are more keys."""
        return (
            len(self.found) >= self.limit
            or self._size >= PAGE_BYTES_MAX
            or self._seen >= self.limit * _LIST_PAGES_MAX
        )

    def take(self, entries: Sequence[Entry]) -> bool:
        """Take the next entries; False when it is full and a readable one is left."""
        for entry in entries:
            if not self._readable(entry.key):
                continue
            # Only behind a readable key: that others follow must not end a page.
            if self.is_full:
                return False
            self._seen += 1
            self.last = entry.key
            if self._pattern.matches(entry.key):
                self.found.append(entry)
                self._size += len(entry.value)
        return True


async def listed(
    source: Source,
    reach: Reach,
    pattern: Pattern,
    after: Key | None,
    limit: int,
    options: ListOptions,
) -> Reading | None:
    """A page of what matches `pattern` and may be read; None if the board changed each time between
    the pages of the engine."""
    for _ in range(_LIST_TRIES):
        if options.delimiter:
            prefix = pattern.prefix
            reading = await _by_directory(source, reach, prefix, after, limit, options)
        else:
            reading = await _joined(source, reach, Sieve(pattern, reach, limit), after, options)
        if reading is not None:
            return reading
    return None


async def _joined(
    source: Source, reach: Reach, sieve: Sieve, after: Key | None, options: ListOptions
) -> Reading | None:
    """Join pages of the engine, as long as they are of one revision.

    None when the revision changed and ending with the last page would reveal unreadable keys: start
    again.
    """
    shown: Reading | None = None
    # In exact ranges nothing is left out, so no more than the answer needs is read.
    step = sieve.limit if reach.is_exact else LIST_ENTRIES_MAX
    while True:
        page = await source.list(reach.ranges, after, step, options)
        if shown is not None and page.revision != shown.revision:
            if not reach.is_exact:
                return None
            break  # even without matches so far: there may be some by now
        shown, after = page, page.next_key
        # In exact ranges all keys are readable: that there are more of them tells nothing.
        if not sieve.take(page.entries) or (reach.is_exact and after and sieve.is_full):
            break
        if after is None:
            return replace(shown, entries=tuple(sieve.found), next_key=None)
        await asyncio.sleep(0)  # an engine in memory answers without yielding to other tasks
        await turn()
    return replace(shown, entries=tuple(sieve.found), next_key=sieve.last)


async def _by_directory(
    source: Source,
    reach: Reach,
    prefix: Prefix,
    after: Key | None,
    limit: int,
    options: ListOptions,
) -> Reading | None:
    """The readable entries directly below `prefix`, and its directories with the number of their
    readable keys. None as from `_joined`."""
    if reach.is_exact:
        return await source.children(reach.ranges, prefix, after, limit, options)
    found = Children(prefix, limit)
    left = ranges_behind(reach.ranges, prefix, after, reverse=options.reverse)
    shown: Reading | None = None
    while True:
        page = await source.list(left, None, LIST_ENTRIES_MAX, options)
        if shown is not None and page.revision != shown.revision:
            return None
        shown = page
        is_cut = _add_children(found, filter(lambda e: reach.readable(e.key), page.entries))
        last = page.next_key
        if is_cut or last is None:
            break
        if found.is_counted(last):
            left = ranges_behind(left, prefix, last, reverse=options.reverse)
        else:
            left = ranges_of(left, last, reverse=options.reverse)
        if not left:
            break
        await asyncio.sleep(0)
        await turn()
    next_key = found.last if is_cut else None
    return replace(
        shown, entries=tuple(found.entries), next_key=next_key, directories=found.directories
    )


def _add_children(found: Children, entries: Iterable[Entry]) -> bool:
    """Add entries to a listing by directory; True once it is full and one is left."""
    for entry in entries:
        directory = directory_of(found.prefix, entry.key)
        if not found.counts(directory) and not found.room:
            return True
        if directory is None:
            found.add_entry(entry)
        else:
            found.add_keys(directory, entry.key, 1)
    return False


async def listed_one(
    source: Source, key: Key | None, after: Key | None, options: ListOptions
) -> Reading:
    """The listing of a pattern that matches `key` alone; None if it may not be read."""
    follows = key and (after is None or (key < after if options.reverse else key > after))
    # Also without a key: the answer names the revision of the board.
    found = await source.read([key] if key and follows else [])
    if not options.keys_only:
        return found
    return replace(found, entries=tuple(map(without_value, found.entries)))


def check_limit(limit: int, maximum: int) -> None:
    """Errors: InvalidRequest unless `limit` is in 1..`maximum`."""
    if not 1 <= limit <= maximum:
        raise InvalidRequest(field="limit", reason=f"{limit} is not in 1..{maximum}")


async def gather(gathered: Gathered, entries: Sequence[LogEntry]) -> bool:
    """Gather a page in portions, and let other tasks run in between; True if the answer ends there.
    Errors: Resync."""
    for portion in portions(entries):
        if gathered.take(portion):
            return True
        await turn()
        await asyncio.sleep(0)
    return False
