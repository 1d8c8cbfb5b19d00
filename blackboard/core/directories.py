"""Listings by directory: the entries directly below a prefix, and the prefixes one segment longer
that have keys below them, each with a count.

The keys of a directory follow one another, so a listing counts them without reading them, or reads
at most DIRECTORY_KEYS_MAX of them, and goes on behind the last one.
"""

from dataclasses import dataclass, field
from typing import Final

from blackboard.core.commit import Directory, Entry
from blackboard.core.path import (
    Pattern,
    Ranges,
    directory_of,
    parse_pattern,
    range_below,
    ranges_of,
)
from blackboard.errors import InvalidRequest
from blackboard.limits import DIRECTORY_KEYS_MAX, PAGE_BYTES_MAX
from blackboard.units import Key, Prefix

_DELIMITER: Final = "/"


def parse_listing(pattern: str, delimiter: str) -> Pattern:
    """The pattern of a listing; one by directory (with a `delimiter`) must be that of a subtree.
    Errors: InvalidRequest."""
    if delimiter not in ("", _DELIMITER):
        reason = f"{delimiter!r:.20} does not separate the segments of a key, / does"
        raise InvalidRequest(field="delimiter", reason=reason)
    parsed = parse_pattern(pattern)
    if delimiter and not parsed.is_subtree:
        reason = f"{pattern!r} is not PREFIX/** or **, and only these are listed by directory"
        raise InvalidRequest(field="pattern", reason=reason)
    return parsed


def ranges_behind(
    within: Ranges, prefix: Prefix, after: Key | None, *, reverse: bool = False
) -> Ranges:
    """`within`, cut to what follows `after` or, if that lies in a directory, the whole of it."""
    directory = None if after is None else directory_of(prefix, after)
    if directory is None:
        return ranges_of(within, after, reverse=reverse)
    begin, end = range_below(directory)
    if reverse:
        return tuple((first, min(last, begin)) for first, last in within if first < begin)
    return tuple((max(first, end), last) for first, last in within if last > end)


@dataclass
class Children:
    """One page of a listing by directory, as it is gathered from keys in their order."""

    prefix: Prefix
    limit: int
    entries: list[Entry] = field(default_factory=list)
    last: Key | None = None
    """The key to continue after: the last entry, or a key in the last directory."""
    _counts: dict[Prefix, int] = field(default_factory=dict)
    _size: int = 0

    def counts(self, directory: Prefix | None) -> bool:
        """Whether `directory` is the last item, so that its further keys are no item of their
        own."""
        return directory is not None and next(reversed(self._counts), None) == directory

    @property
    def room(self) -> int:
        """How many further items the page has room for."""
        if self._size >= PAGE_BYTES_MAX:
            return 0
        return max(0, self.limit - len(self.entries) - len(self._counts))

    def is_counted(self, key: Key) -> bool:
        """Whether `key` lies in the last directory, and its further keys change nothing."""
        directory = directory_of(self.prefix, key)
        # One more than is shown has been counted: that is how `more` is known.
        return self.counts(directory) and self._counts[directory or ""] > DIRECTORY_KEYS_MAX

    def add_entry(self, entry: Entry) -> None:
        """Add an entry directly below the prefix."""
        self.entries.append(entry)
        self.last = entry.key
        self._size += len(entry.key) + len(entry.value)

    def add_keys(self, directory: Prefix, first: Key, count: int) -> None:
        """Add `count` keys of a directory, which begin with `first`."""
        if directory not in self._counts:
            # Any key of a directory will do: continuing after it skips the whole directory.
            self.last = first
            self._size += len(directory)
        self._counts[directory] = self._counts.get(directory, 0) + count

    @property
    def directories(self) -> tuple[Directory, ...]:
        """The directories, in order."""
        return tuple(
            Directory(prefix, min(count, DIRECTORY_KEYS_MAX), count > DIRECTORY_KEYS_MAX)
            for prefix, count in self._counts.items()
        )
