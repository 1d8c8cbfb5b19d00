"""Characters of two units in a document, and edits that would cut one in two.

Clocks count UTF-16 units. A character beyond U+FFFF has two, and the library that keeps documents
holds text as UTF-8: an edit that deletes one of the two, or inserts between them, makes it count
wrong from there on, and what it encodes later cannot be loaded any more. (Yjs itself puts U+FFFD in
place of both.) So it is known here where such characters are.

Source: yrs 0.2x, `split_str`; yjs/src/structs/ContentString.js.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping

from blackboard.core.documents.update import Id, Span, Update


class Pairs:
    """Where the characters of two units are, by client: runs of them, 16 bytes each."""

    def __init__(self) -> None:
        self._runs: dict[int, tuple[array[int], array[int]]] = {}

    def add(self, spans: Iterable[Span]) -> None:
        """Note runs (`Update.pairs`). What is noted already stays as it is."""
        for span in spans:
            starts, ends = self._runs.setdefault(span.client, (array("Q"), array("Q")))
            at = bisect_right(starts, span.clock)
            if at == 0 or ends[at - 1] <= span.clock:
                starts.insert(at, span.clock)
                ends.insert(at, span.clock + span.length)

    def keep_below(self, clocks: Mapping[int, int]) -> None:
        """Forget what is not in `clocks`."""
        for client, (starts, ends) in self._runs.items():
            at = bisect_right(starts, clocks.get(client, 0) - 1)
            del starts[at:], ends[at:]

    def cut_by(self, update: Update, clocks: Mapping[int, int]) -> Id | None:
        """The character that an update would cut, of those noted here and its own; `clocks` are
        known before it. None if it cuts none."""
        for run in update.pairs:
            if (clocks.get(run.client, 0) - run.clock) % 2 and _is_in(run, clocks):
                return run.client, run.clock
        if not self._runs and not update.pairs:
            return None
        own = Pairs()
        own.add(update.pairs)
        cuts = update.cuts()
        return next((cut for cut in cuts if self._halves(cut) or own._halves(cut)), None)

    def _halves(self, place: Id) -> bool:
        """Whether the unit at `place` is the second one of a character."""
        client, clock = place
        starts, ends = self._runs.get(client, _NONE)
        at = bisect_right(starts, clock) - 1
        return at >= 0 and clock < ends[at] and (clock - starts[at]) % 2 == 1


_NONE = (array("Q"), array("Q"))


def _is_in(run: Span, clocks: Mapping[int, int]) -> bool:
    """Whether what is known ends within `run`."""
    return run.clock < clocks.get(run.client, 0) < run.clock + run.length
