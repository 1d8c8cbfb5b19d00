"""What a watcher is shown of each log entry, and the index that finds the views of a key.

Watchers with equal views share their deliveries. A change goes to the views with a pattern that
matches its key. `PatternIndex` finds them at a cost that depends on the matches, not on the number
of patterns: it is a trie of segments, in which a lookup follows the literal segment and `*`.

Invariants
- A watcher gets exactly the changes that match its patterns and that its own grants allow reading,
  whichever other watchers share its view.
- A view says nothing about rights to keys that it does not show.
- `PatternIndex.matching(key)` has exactly the items with a pattern that matches the key.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final, Generic, Self, TypeVar

from msgspec.structs import replace

from blackboard.core import access, history
from blackboard.core.access import READ_ALL, AccessGrant
from blackboard.core.commit import LogEntry
from blackboard.core.path import Pattern, parse_pattern
from blackboard.errors import LimitExceeded
from blackboard.limits import PATTERNS_MAX
from blackboard.units import Key, Revision

T = TypeVar("T")
_ONE: Final = "*"
_REST: Final = "**"
Grounds = tuple[tuple[Key, Revision], ...]
"""What a revision is based on: keys and the revisions at which they were read."""


@dataclass(frozen=True)
class View:
    """What a watcher is shown: keys that match one of `patterns` and that `grants` allow reading.

    Watchers with equal views share their deliveries.
    """

    patterns: tuple[Pattern, ...]
    grants: tuple[AccessGrant, ...]
    coalesce: bool = False

    @classmethod
    def of(
        cls, patterns: tuple[Pattern, ...], grants: tuple[AccessGrant, ...], *, coalesce: bool
    ) -> Self:
        """The view of a watcher of `patterns` whose rights are `grants`.

        It consists of the readable parts of the patterns and says nothing about other rights, so
        that agents that may read the same share a view. Agents without any readable pattern share
        one view, which shows only epochs.
        """
        readable = tuple(pattern.text for pattern in access.readable_patterns(grants))
        parts = (_readable_parts(pattern.text, readable) for pattern in patterns)
        # Sorted, so that the same rights and patterns in another order are an equal view.
        met = sorted(set(chain.from_iterable(parts)))
        whole = cls(patterns, grants, coalesce)
        if len(met) > PATTERNS_MAX:
            return whole
        try:
            # The patterns contain the rights now. With the same grants for all, equal patterns are
            # equal views.
            return cls(tuple(map(parse_pattern, met)), READ_ALL if met else (), coalesce)
        except LimitExceeded:  # the part is longer than any pattern that was given
            return whole

    @cached_property
    def readable(self) -> Callable[[Key], bool]:
        """A function that says whether the grants allow reading a key."""
        return access.readable(self.grants)

    @cached_property
    def readable_patterns(self) -> tuple[Pattern, ...]:
        """The same as patterns: a readable key matches at least one."""
        return access.readable_patterns(self.grants)

    @cached_property
    def meets(self) -> tuple[str, ...]:
        """The patterns that it may show. Empty: it shows only epochs."""
        wanted = (pattern.text for pattern in self.patterns)
        return intersections(wanted, (pattern.text for pattern in self.readable_patterns))

    @cached_property
    def _hash(self) -> int:
        return hash((self.patterns, self.grants, self.coalesce))

    def __hash__(self) -> int:
        return self._hash  # computed once: every delivery to every watcher needs it

    def shows(self, key: Key) -> bool:
        """Whether it shows `key`."""
        return any(pattern.matches(key) for pattern in self.patterns) and self.readable(key)

    def show(self, entry: LogEntry) -> LogEntry | None:
        """The part of `entry` that this view shows; None if it shows nothing of it.

        Errors: Resync for a restore that changed more than one delivery can hold.
        """
        visible = history.bounded(history.visible(entry, self.patterns, self.readable))
        return None if visible is None else self.with_grounds(visible, entry.based_on, ())

    def with_grounds(self, visible: LogEntry, grounds: Grounds, added: Collection[Key]) -> LogEntry:
        """`visible` with those of `grounds` that this view shows, and those of the keys `added`."""
        if not grounds:
            return visible
        shown = tuple(each for each in grounds if each[0] in added or self.shows(each[0]))
        return replace(visible, based_on=shown)


def _readable_parts(pattern: str, readable: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns for what `pattern` matches and one of `readable` matches too."""
    if any(access.covers(grant, pattern) for grant in readable):
        return (pattern,)
    return intersections([pattern], readable)


# --- finding views by their patterns -------------------------------------------------------------


class _Node(Generic[T]):
    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.here: tuple[T, ...] = ()
        """Items of the patterns that end here."""
        self.below: tuple[T, ...] = ()
        """Items of the patterns that end in `**` here: it matches one more segment or several."""

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.here or self.below)


class PatternIndex(Generic[T]):
    """Items by their patterns. An item may have several patterns; items are compared by `==`.

    Patterns are texts that `parse_pattern` accepts.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, patterns: Iterable[str], item: T) -> None:
        """Add `item` under `patterns`: keys that match one of them find it."""
        for pattern in patterns:
            node = self._root
            segments = pattern.split("/")
            ends_open = segments[-1] == _REST
            for segment in segments[:-1] if ends_open else segments:
                child = node.children.get(segment)
                if child is None:
                    child = node.children[segment] = _Node()
                node = child
            if ends_open:
                node.below += (item,)
            else:
                node.here += (item,)

    def discard(self, patterns: Iterable[str], item: T) -> None:
        """Undo `add` with the same arguments, and remove unused nodes."""
        for pattern in patterns:
            segments = pattern.split("/")
            ends_open = segments[-1] == _REST
            path = [self._root]
            for segment in segments[:-1] if ends_open else segments:
                child = path[-1].children.get(segment)
                if child is None:
                    break
                path.append(child)
            else:
                self._remove(path, segments, item, ends_open=ends_open)

    def _remove(
        self, path: list[_Node[T]], segments: list[str], item: T, *, ends_open: bool
    ) -> None:
        node = path[-1]
        if ends_open:
            node.below = _without(node.below, item)
        else:
            node.here = _without(node.here, item)
        for parent, child, segment in zip(
            reversed(path[:-1]),
            reversed(path[1:]),
            reversed(segments[: len(path) - 1]),
            strict=True,
        ):
            if not child.is_empty:
                return
            del parent.children[segment]

    def matching(self, key: Key) -> dict[T, None]:
        """The items with a pattern that matches `key`, each once.

        Their order depends only on the order in which they were added, so it is the same in every
        process.
        """
        found: dict[T, None] = {}
        nodes = [self._root]
        for segment in key.split("/"):
            reached: list[_Node[T]] = []
            for node in nodes:
                # Only while a segment of the key is left: `**` matches at least one.
                if node.below:
                    found.update(dict.fromkeys(node.below))
                for name in (segment, _ONE):
                    child = node.children.get(name)
                    if child is not None:
                        reached.append(child)
            if not reached:
                return found
            nodes = reached
        for node in nodes:
            found.update(dict.fromkeys(node.here))
        return found


def _without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    """`items` without one `item`."""
    for index, other in enumerate(items):
        if other == item:
            return items[:index] + items[index + 1 :]
    return items


def intersection(first: str, second: str) -> str | None:
    """The pattern that matches exactly what both match; None when no key is matched by both."""
    a, b = first.split("/"), second.split("/")
    common: list[str] = []
    for index in range(max(len(a), len(b))):
        if index >= len(a) or index >= len(b):
            return None  # `**` needs a segment to match, too
        if a[index] == _REST:
            return "/".join([*common, *b[index:]])
        if b[index] == _REST:
            return "/".join([*common, *a[index:]])
        one, other = a[index], b[index]
        if one != other and _ONE not in (one, other):
            return None
        common.append(other if one == _ONE else one)
    return "/".join(common)


def intersections(patterns: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """The patterns for what one of `patterns` and one of `others` match, each once."""
    theirs = tuple(others)
    met = (intersection(pattern, other) for pattern in patterns for other in theirs)
    return tuple(dict.fromkeys(text for text in met if text is not None))
