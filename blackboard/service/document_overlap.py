"""Which edits of others meet edits of one's own that they had not seen.

A replica that is told of somebody's edit while an edit of its own is still on its way to the log
made that one without knowing the other; and the other, which is earlier in the log, was made
without knowing this one. Of two such edits exactly one replica finds out: the one whose edit is
later in the log. Where both touch one region of a text, that is an *overlap*: it is merged like
everything else, and told, because two agents who write into one sentence should know.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blackboard.service.document_types import Delta

RANGES_MAX = 256
"""Own edits on their way that are kept in mind, per text; of more, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """`agents` edited text `text` from `start` to `end` (code points, as merged) at once."""

    text: str
    start: int
    end: int
    agents: tuple[str, ...]


@dataclass(slots=True)
class _Range:
    start: int
    end: int
    batch: int


class OwnEdits:
    """The regions of one text with own edits that are not known to be committed yet."""

    def __init__(self) -> None:
        self._ranges: list[_Range] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def made(self, deltas: Sequence[Delta], batch: int) -> None:
        """Take in an edit of one's own, which is sent with `batch`."""
        self._move(deltas)
        self._ranges += [_Range(start, end, batch) for start, end in _regions(deltas)]
        del self._ranges[:-RANGES_MAX]

    def met(self, deltas: Sequence[Delta]) -> tuple[int, int] | None:
        """Take in an edit of somebody else; the region in which it meets one's own, if any."""
        self._move(deltas)
        found = [
            (min(start, own.start), max(end, own.end))
            for start, end in _regions(deltas)
            for own in self._ranges
            if start <= own.end and own.start <= end
        ]
        if not found:
            return None
        return min(start for start, _ in found), max(end for _, end in found)

    def committed(self, batch: int) -> None:
        """Everything up to `batch` is in the log, and what came before it was told."""
        self._ranges = [own for own in self._ranges if own.batch > batch]

    def _move(self, deltas: Sequence[Delta]) -> None:
        for own in self._ranges:
            own.start, own.end = _moved(own.start, deltas), _moved(own.end, deltas)


def _regions(deltas: Sequence[Delta]) -> list[tuple[int, int]]:
    """Where an edit changed something, in positions after it; a deletion has no width."""
    found, position = [], 0
    for delta in deltas:
        width = len(delta.insert) if delta.insert is not None else 0
        if width or delta.delete:
            found.append((position, position + width))
        position += width + delta.retain
    return found


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
