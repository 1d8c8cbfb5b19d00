"""What a watcher is shown of each log entry. Watchers with equal views share their deliveries.

Invariants
- A watcher gets exactly the changes that match its patterns and that its own grants allow reading,
  whichever other watchers share its view.
- A view says nothing about rights to keys that it does not show.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Self

from msgspec.structs import replace

from blackboard.core import access, history
from blackboard.core.access import READ_ALL, AccessGrant
from blackboard.core.commit import LogEntry
from blackboard.core.path import Pattern, parse_pattern
from blackboard.core.pattern_index import intersections
from blackboard.errors import LimitExceeded
from blackboard.limits import PATTERNS_MAX
from blackboard.units import Key, Revision

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
        met = sorted(set(chain.from_iterable(parts)))
        whole = cls(patterns, grants, coalesce)
        if len(met) > PATTERNS_MAX:
            return whole
        try:
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
