"""Differences in a readable form: per namespace, per key, down to the words of a text.

The functions are pure: they work on values that were read before.

Source: texts are compared by difflib (Ratcliff and Obershelp), whose time grows with the square of
the lines; texts of more than TEXT_DIFF_LINES_MAX lines are only reported as different.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from blackboard.client.views import Entry
from blackboard.core.checkpoints import Difference
from blackboard.core.path import namespace_of
from blackboard.limits import TEXT_DIFF_LINES_MAX
from blackboard.tables import table
from blackboard.units import Key, Revision

ADDED: Final = "added"
CHANGED: Final = "changed"
REMOVED: Final = "removed"
_LONG_CHARACTERS: Final = 60
"""Characters above which a text is compared line by line, as is a text of several lines."""
_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Part:
    """A difference within a value: `path` consists of map keys and list indexes, "" is the whole
    value. A missing side is None, and `has_before` or `has_after` is false.
    """

    path: str
    before: Any
    after: Any
    has_before: bool = True
    has_after: bool = True

    @property
    def text(self) -> tuple[str, ...]:
        """The lines of a unified diff, if both are long texts that can be compared; else ()."""
        if not (isinstance(self.before, str) and isinstance(self.after, str)):
            return ()
        return _unified(self.before, self.after)

    def __str__(self) -> str:
        before = _short(self.before) if self.has_before else "nothing"
        after = _short(self.after) if self.has_after else "nothing"
        where = f"{self.path}: " if self.path else ""
        return f"{where}{before} -> {after}"


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key that differs between two moments; None = absent there."""

    key: Key
    before: Entry | None
    after: Entry | None

    @staticmethod
    def of(difference: Difference) -> "KeyChange":
        """Decode a difference."""
        before, after = difference.before, difference.after
        return KeyChange(
            difference.key,
            None if before is None else Entry.of(before),
            None if after is None else Entry.of(after),
        )

    @property
    def kind(self) -> str:
        """ "added", "changed" or "removed"."""
        if self.before is None:
            return ADDED
        return CHANGED if self.after is not None else REMOVED

    @property
    def namespace(self) -> str:
        """The namespace of the key."""
        return namespace_of(self.key)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Where within the value it differs; empty if only its time to live does."""
        if self.before is None or self.after is None:
            old, new = self.before, self.after
            return (Part("", old and old.value, new and new.value, old is not None, bool(new)),)
        return tuple(_parts("", self.before.value, self.after.value))

    def __str__(self) -> str:
        sign = {ADDED: "+", CHANGED: "~", REMOVED: "-"}[self.kind]
        lines = [f"    {line}" for part in self.parts for line in part.text or [str(part)]]
        return "\n".join([f"{sign} {self.key}", *lines])

    def _repr_html_(self) -> str:
        return table(self.kind, ("key", "difference"), [(self.key, _shown(self))])


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between revisions `a` and `b`, by key; `more` says that there are others.

    Iterate over it for the changes; `namespaces` has them by namespace.
    """

    a: Revision
    b: Revision
    changes: tuple[KeyChange, ...]
    more: bool = False

    @property
    def namespaces(self) -> Mapping[str, tuple[KeyChange, ...]]:
        """The changes by namespace, each in key order."""
        found: dict[str, list[KeyChange]] = {}
        for change in self.changes:
            found.setdefault(change.namespace, []).append(change)
        return {name: tuple(changes) for name, changes in found.items()}

    def __iter__(self) -> Iterator[KeyChange]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        return "\n".join(str(change) for change in self.changes)

    def _repr_html_(self) -> str:
        rows = ((change.kind, change.key, _shown(change)) for change in self.changes)
        caption = f"from revision {self.a} to {self.b}"
        return table(caption, ("", "key", "difference"), rows, more=self.more)


def _shown(change: KeyChange) -> str:
    """The differences within one key, a line each."""
    return "\n".join(line for part in change.parts for line in part.text or [str(part)])


def _parts(path: str, before: Any, after: Any) -> Iterator[Part]:
    """The smallest places that differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from _member(f"{path}.{name}" if path else name, name, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _items(path, before, after)
    # In Python True == 1 and 1 == 1.0, but on a board these are different values.
    elif type(before) is not type(after) or before != after:
        yield Part(path, before, after)


def _member(path: str, name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Part]:
    if name in before and name in after:
        yield from _parts(path, before[name], after[name])
    else:
        yield Part(path, before.get(name), after.get(name), name in before, name in after)


def _items(path: str, before: list[Any], after: list[Any]) -> Iterator[Part]:
    for index in range(max(len(before), len(after))):
        place = f"{path}[{index}]"
        if index >= len(before):
            yield Part(place, None, after[index], has_before=False)
        elif index >= len(after):
            yield Part(place, before[index], None, has_after=False)
        else:
            yield from _parts(place, before[index], after[index])


def _unified(before: str, after: str) -> tuple[str, ...]:
    if max(len(before), len(after)) <= _LONG_CHARACTERS and "\n" not in before + after:
        return ()
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > TEXT_DIFF_LINES_MAX:
        return ()
    lines = difflib.unified_diff(old, new, n=1, lineterm="")
    return tuple(lines)[2:]  # the names of two files


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[: _SHOWN_CHARACTERS - 4]} ..."
