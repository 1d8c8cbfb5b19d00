"""Finds concurrent edits of one region of a text.

A replica receives an edit of another replica while an edit of its own is still on its way to the
log. Then neither edit was made with knowledge of the other, unless the received edit builds on the
own one. If both touch one region of a text, that is an *overlap*. It is merged like everything
else, and reported, because two agents that write into one sentence should know. The replica whose
edit is later in the log finds the overlap; the other one may find it, too, because it learns a
little late that its own edit is in the log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pycrdt import Text

from blackboard.client.documents.shared_types import Delta, follow, text_deltas
from blackboard.client.documents.text_content import TextContent

RANGES_MAX = 64
"""Own uncommitted edits that are tracked per text; beyond the limit, the oldest are dropped."""
TEXTS_MAX = 1_024
"""Texts in lists and maps that are tracked; beyond the limit, the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """`agents` edited the text at `text` from `start` to `end` (code points, as merged) at once.

    `text` is the name of a text at the top; of one that lies in a list or map, the path to it:
    "plan/1/note".
    """

    text: str
    start: int
    end: int
    agents: tuple[str, ...]


Met = Callable[[str, tuple[int, int]], None]
"""Called with an overlap: the path of the text, and the region."""


class Overlaps:
    """The uncommitted edits of one replica in each of its texts, and their overlaps."""

    def __init__(self, met: Met) -> None:
        self._met = met
        self._own: dict[str, OwnEdits] = {}
        self._contents: dict[str, TextContent] = {}
        self.batch = 0
        """The number of the last request: its answer confirms the edits up to it."""
        self.applying = False
        """Whether the present change is another replica's edit."""
        self.known = 0
        """Units of this replica that the author of the applied edit knew, at least."""

    def __bool__(self) -> bool:
        """Whether any edit is uncommitted."""
        return any(self._own.values())

    def changed(self, path: str, deltas: Sequence[Delta]) -> None:
        """Record a change of a text."""
        own = self._own.setdefault(path, OwnEdits())
        if not self.applying:
            own.made(deltas, self.batch + 1)
        elif own and (region := own.met(deltas, self.known)) is not None:
            self._met(path, region)

    def changed_below(self, root: str, events: Sequence[Any]) -> None:
        """Record changes in a list or map, given as events of the library."""
        for event in events:
            path = "/".join((root, *map(str, event.path)))
            if isinstance(event.target, Text):
                self.changed(path, self._deltas(path, event))
            else:  # what lies below may have another place now
                for known in [known for known in self._contents if known.startswith(f"{path}/")]:
                    del self._contents[known]

    def _deltas(self, path: str, event: Any) -> list[Delta]:
        """A change of a text in a list or map, in code points."""
        # Popped, and put back at the end: the order says which text was changed least recently.
        content = self._contents.pop(path, None)
        if content is None:  # not read before: only the deleted characters are unknown
            content = TextContent(str(event.target))
            deltas = text_deltas(event.delta, content)
        else:
            deltas, is_known = follow(event.delta, content, event.target)
            if not is_known:
                content = TextContent(str(event.target))
        self._contents[path] = content
        if len(self._contents) > TEXTS_MAX:
            del self._contents[next(iter(self._contents))]
        return deltas

    def reached(self, clock: int) -> None:
        """All edits until now are within the first `clock` units of this replica."""
        for own in self._own.values():
            own.reached(clock)

    def committed(self, batch: int) -> None:
        """Everything up to `batch` is in the log, and earlier edits of others were received."""
        for own in self._own.values():
            own.committed(batch)
        self._own = {path: own for path, own in self._own.items() if own}


@dataclass(slots=True)
class _Range:
    start: int
    end: int
    batch: int
    clock: int | None = None
    """Units of this replica after the edit; an author that knew as many knew it."""


class OwnEdits:
    """The regions of one text with own edits that are not known to be committed yet."""

    def __init__(self) -> None:
        self._ranges: list[_Range] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def made(self, deltas: Sequence[Delta], batch: int) -> None:
        """Record an own edit, which is sent with `batch`."""
        self._move(deltas)
        for start, end in _regions(deltas):
            last = self._ranges[-1] if self._ranges else None
            if last and last.batch == batch and start <= last.end and last.start <= end:
                # Without a clock again: the widened region ends later than the one that had it.
                last.start, last.end, last.clock = min(start, last.start), max(end, last.end), None
            else:
                self._ranges.append(_Range(start, end, batch))
        del self._ranges[:-RANGES_MAX]

    def reached(self, clock: int) -> None:
        """See `Overlaps.reached`."""
        for own in reversed(self._ranges):
            if own.clock is not None:
                # The ranges are in the order of the edits, so all before this one have a clock.
                break
            own.clock = clock

    def met(self, deltas: Sequence[Delta], known: int = 0) -> tuple[int, int] | None:
        """Record an edit of another replica that knew `known` units of this one; returns the region
        where it overlaps an own edit, if any."""
        self._move(deltas)
        found = [
            (min(start, own.start), max(end, own.end))
            for start, end in _regions(deltas)
            for own in self._ranges
            if start <= own.end and own.start <= end and (own.clock is None or own.clock > known)
        ]
        if not found:
            return None
        return min(start for start, _ in found), max(end for _, end in found)

    def committed(self, batch: int) -> None:
        """Everything up to `batch` is in the log, and earlier edits of others were received."""
        self._ranges = [own for own in self._ranges if own.batch > batch]

    def _move(self, deltas: Sequence[Delta]) -> None:
        splice = _splice_of(deltas)
        if splice is None:
            for own in self._ranges:
                own.start, own.end = _moved(own.start, deltas), _moved(own.end, deltas)
            return
        at, until, added = splice
        by = added - (until - at)
        for own in self._ranges:  # the usual edit: the same as `_moved`, without its loop
            if own.end >= at:
                own.end = own.end + by if own.end >= until else at
                if own.start >= at:
                    own.start = own.start + by if own.start >= until else at


def _regions(deltas: Sequence[Delta]) -> list[tuple[int, int]]:
    """Where an edit changed something, in positions after it; a deletion has no width."""
    found, position = [], 0
    for delta in deltas:
        width = len(delta.insert) if delta.insert is not None else 0
        if width or delta.delete:
            found.append((position, position + width))
        position += width + delta.retain
    return found


def _splice_of(deltas: Sequence[Delta]) -> tuple[int, int, int] | None:
    """An edit of one place: where it removes, up to where, and how much it adds then; None for any
    other edit."""
    at = until = added = 0
    for delta in deltas:
        if added or (delta.retain and until):
            return None
        if delta.insert is not None:
            added = len(delta.insert)
            until = until or at
        elif delta.delete:
            until = (until or at) + delta.delete
        else:
            at = until = delta.retain
    return at, until, added


def _moved(position: int, deltas: Sequence[Delta]) -> int:
    """Where `position` is after an edit."""
    before = after = 0
    for delta in deltas:
        if before > position:
            break
        if delta.insert is not None:
            after += len(delta.insert)
        elif delta.delete:
            before += delta.delete
        else:
            step = min(delta.retain, position - before)
            before, after = before + step, after + step
            if before == position and step < delta.retain:
                return after
    return after + max(position - before, 0)
