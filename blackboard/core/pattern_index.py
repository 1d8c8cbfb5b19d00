"""An index that finds the patterns that match a key; the cost depends on the matches, not on the
number of patterns.

It is a trie of segments: at each step, a lookup follows the literal segment and `*`.

Invariant: `matching(key)` has exactly the items with a pattern that matches the key.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from blackboard.units import Key

T = TypeVar("T")
_ONE: Final = "*"
_REST: Final = "**"


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
