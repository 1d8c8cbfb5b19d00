"""The log of a board: its form, what a reader sees of it, and pages.

Invariants of a well-formed log, which `check_sequence` tests
- revisions increase strictly; only the marker of an engine that restarted may skip some, and the
  first entry of a board that began as a branch.
- the `epoch.revision` of an entry that begins one is its own revision, and `epoch.from_revision`
  lies before it.

A restore of thousands of keys is one log entry, and all watchers get it at the same moment, each
with its own part. Matching each key for each watcher takes a microsecond or two, a tenth of a
second in all. `LargeEntry` sorts the keys once instead, and finds the part below a path by
bisection; its answers are those of `visible` and `bounded`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Final

from msgspec.structs import replace

from blackboard.core.checkpoints import Activity, AuthorActivity
from blackboard.core.commit import (
    BRANCH,
    ENGINE,
    Change,
    CommitId,
    Entry,
    Epoch,
    Head,
    LogEntry,
    Proof,
    Seed,
)
from blackboard.core.path import Pattern, parse_pattern, range_below, superseding_key
from blackboard.errors import Corrupt, InvalidRequest, Resync
from blackboard.limits import (
    ACTIVITY_AUTHORS_MAX,
    EPOCH_JUMP,
    EPOCH_JUMP_PER_SECOND,
    PAGE_BYTES_MAX,
    RESYNC_BYTES,
    REVISION_MAX,
)
from blackboard.units import Key, Milliseconds, Revision

_EVERYTHING = (parse_pattern("**"),)
COST_OF_ENTRY: Final = 200
_COST_OF_CHANGE: Final = 80
_PORTION_CHANGES: Final = 512
"""Changes that are processed without a pause: about a millisecond."""


def jump(revision: Revision, time_ms: Milliseconds, now_ms: Milliseconds) -> Revision:
    """A revision above all that a board can have given out by now, if it was at `revision` at
    `time_ms` (0: unknown)."""
    age_s = max(0, now_ms - time_ms) // 1000 if time_ms else 0
    # Half of the range at most: a clock that is far off must not use up the revisions.
    return min(revision + EPOCH_JUMP + age_s * EPOCH_JUMP_PER_SECOND, REVISION_MAX // 2)


def check_sequence(after: Revision, entries: Iterable[LogEntry]) -> Revision:
    """Check that `entries` continue a log after revision `after`; returns the last revision.

    Errors: Corrupt, naming the revision at which the sequence breaks.
    """
    last = after
    for entry in entries:
        epoch = entry.epoch
        if epoch and not (last < entry.revision == epoch.revision > epoch.from_revision):
            raise Corrupt(what="log", reason=f"bad epoch marker at revision {entry.revision}")
        if entry.revision != last + 1 and not (epoch and _may_skip(epoch, last)):
            raise Corrupt(what="log", reason=f"revision {entry.revision} follows {last}")
        last = entry.revision
    return last


def _may_skip(epoch: Epoch, last: Revision) -> bool:
    return epoch.cause == ENGINE or (epoch.cause == BRANCH and last == 0)


def check_seed(seed: Seed, after: Key, entries: Iterable[Entry]) -> Key:
    """Check a page of a new board's content; returns its last key.

    `after` is the last key of the page before ("" = this is the first).
    Errors: InvalidRequest when the keys do not ascend, or an entry is not older than the seed.
    """
    for entry in entries:
        if entry.key <= after:
            raise InvalidRequest(field="pages", reason=f"{entry.key} follows {after}")
        if not 0 < entry.create_revision <= entry.mod_revision < seed.epoch.revision:
            reason = f"{entry.key} is of revision {entry.mod_revision}"
            raise InvalidRequest(field="pages", reason=reason)
        after = entry.key
    return after


def visible(
    entry: LogEntry, patterns: tuple[Pattern, ...], readable: Callable[[Key], bool]
) -> LogEntry | None:
    """The part of `entry` that a reader may see: matching and readable changes and reads, or
    nothing.

    The commit's identity and computed results are left out, because they could reveal hidden keys.
    Epoch markers are visible to all, without changes.
    """
    if patterns is _EVERYTHING:
        changes = tuple([c for c in entry.changes if readable(c.key)])
    else:
        changes = tuple(c for c in entry.changes if _is_visible(c.key, patterns, readable))
    if not changes and entry.epoch is None:
        return None
    return shown(entry, changes, readable)


def _is_visible(key: Key, patterns: tuple[Pattern, ...], readable: Callable[[Key], bool]) -> bool:
    return any(pattern.matches(key) for pattern in patterns) and readable(key)


def logged(
    entry: LogEntry,
    readable: Callable[[Key], bool],
    pattern: Pattern | None = None,
    author: str | None = None,
) -> LogEntry | None:
    """The part of `entry` that a reader of the log may see, or nothing.

    As `visible`, for all keys. An entry that changed nothing is included if the reader may read its
    author's private namespace; so a reader with every right finds every revision in the log. With
    `pattern`, as `visible` for that pattern. With `author`, only that author's commits.
    """
    if author is not None and entry.author != author:
        return None
    if pattern is not None:
        return visible(entry, (pattern,), readable)
    if not entry.changes and readable(superseding_key(entry.author)):
        return shown(entry, (), readable)
    return visible(entry, _EVERYTHING, readable)


def shown(
    entry: LogEntry, changes: tuple[Change, ...], readable: Callable[[Key], bool]
) -> LogEntry:
    """`entry` with the changes that a reader may see, and nothing that reveals other changes."""
    return replace(
        entry,
        changes=changes,
        based_on=tuple(ground for ground in entry.based_on if readable(ground[0])),
        id=CommitId(entry.author, 0, "", 0),
        results=(),
        salt=b"",
        kept=None,
    )


def bounded(entry: LogEntry | None) -> LogEntry | None:
    """Return the visible part of an entry, if it fits into one delivery.

    Errors: Resync when it is a restore whose visible changes are more than RESYNC_BYTES.
    """
    if entry is not None and entry.epoch is not None:
        bounded_at(cost_of(entry), entry)
    return entry


def bounded_at(cost: int, entry: LogEntry) -> None:
    """As `bounded`, for an `entry` that begins an epoch and whose visible part has this `cost`."""
    if cost > RESYNC_BYTES:
        assert entry.epoch is not None
        raise Resync(entry.revision, entry.epoch.id, entry.epoch.from_revision)


def portions(entries: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """`entries` in portions of about _PORTION_CHANGES changes, each of one entry at least."""
    start = size = 0
    for place, entry in enumerate(entries):
        size += 1 + len(entry.changes)
        if size >= _PORTION_CHANGES:
            yield entries[start : place + 1]
            start, size = place + 1, 0
    if start < len(entries):
        yield entries[start:]


class Gathered:
    """Collects one page of the log. It ends after a number of revisions, or of visible bytes.

    `show` returns the visible part of an entry, `prove` its proof, if proofs were requested; `left`
    is how many entries may still be read.
    """

    def __init__(
        self,
        after: Revision,
        limit: int,
        show: Callable[[LogEntry], LogEntry | None],
        prove: Callable[[LogEntry], Proof | None] | None = None,
    ) -> None:
        self.shown: list[LogEntry] = []
        self.proofs: list[Proof | None] = []
        self._prove = prove
        self.through = after
        self.left = limit
        self._show = show
        self._size = 0

    def take(self, entries: Sequence[LogEntry]) -> bool:
        """Take in the next entries; True when the answer ends there. Errors: Resync."""
        for entry in entries:
            visible = bounded(self._show(entry))
            if visible is not None:
                self.shown.append(visible)
                # Only what is shown: otherwise the end of a page would tell how large hidden
                # commits are.
                self._size += cost_of(visible)
                if self._prove is not None:
                    self._add_proof(self._prove(entry))
            # Entries that are not shown count, too: `left` bounds the work.
            self.through = entry.revision
            self.left -= 1
            if not self.left or self._size >= PAGE_BYTES_MAX:
                return True
        return False

    def _add_proof(self, proof: Proof | None) -> None:
        self.proofs.append(proof)
        # Twice, because leaves travel in hexadecimal.
        self._size += 0 if proof is None else sum(2 * len(leaf) for leaf in proof.leaves)


class Tally:
    """Counts commits along a span of revisions, by author and by part of the span."""

    def __init__(self, after: Revision, until: Revision, parts: int) -> None:
        self.after = after
        self.until = max(until, after)
        # Rounded up, so that there are no more parts than were asked for.
        self.step = max(1, -(-(self.until - after) // parts))
        self._parts = -(-(self.until - after) // self.step)
        self._counts: dict[str, list[int]] = {}
        self._times_ms = [0] * self._parts
        self._epochs: dict[Revision, Epoch] = {}

    def add(self, author: str, part: int, commits: int, time_ms: int) -> None:
        """Count `commits` of an author in a part, the newest of them from `time_ms`."""
        counts = self._counts.setdefault(author, [0] * self._parts)
        counts[part] += commits
        self._times_ms[part] = max(self._times_ms[part], time_ms)

    def begin(self, epoch: Epoch) -> None:
        """Note that an epoch begins in the span."""
        self._epochs[epoch.revision] = epoch

    def take(self, entry: LogEntry, readable: Callable[[Key], bool]) -> None:
        """Count a log entry, if any of it may be seen."""
        if entry.epoch is not None:
            self.begin(entry.epoch)
        if any(readable(change.key) for change in entry.changes if change.lease is None):
            part = (entry.revision - self.after - 1) // self.step
            self.add(entry.author, part, 1, entry.time_ms)

    def activity(self, until: Revision) -> Activity:
        """What was counted, up to revision `until`."""
        order = sorted(self._counts, key=lambda author: (-sum(self._counts[author]), author))
        shown = sorted(order[:ACTIVITY_AUTHORS_MAX])
        return Activity(
            self.after,
            until,
            self.step,
            tuple(self._times_ms),
            tuple(AuthorActivity(author, tuple(self._counts[author])) for author in shown),
            len(order) > len(shown),
            tuple(self._epochs[revision] for revision in sorted(self._epochs)),
        )


def coalesce(entries: Sequence[LogEntry]) -> LogEntry:
    """Several revisions as one: the last one, with the last change of each key.

    Epoch markers among them survive as the newest epoch.
    """
    changes: dict[tuple[bool, Key], Change] = {}
    epoch = None
    for entry in entries:
        epoch = entry.epoch or epoch
        for change in entry.changes:
            slot = (change.lease is not None, change.key)
            # Popped first, so that it stands where it changed last.
            changes.pop(slot, None)
            changes[slot] = change
    return replace(entries[-1], changes=tuple(changes.values()), epoch=epoch)


def cost_of(entry: LogEntry) -> int:
    """About how many bytes `entry` occupies in memory and in a frame."""
    size = COST_OF_ENTRY
    for change in entry.changes:  # a generator or a function would cost as much as the rest
        size += _COST_OF_CHANGE + len(change.key) + len(change.value or b"")
    return size


def cost_of_change(change: Change) -> int:
    """The cost of a change in its entry."""
    return _COST_OF_CHANGE + len(change.key) + len(change.value or b"")


def excess(head: Head, kept: int) -> int:
    """How many of the oldest log entries to drop to keep `kept`; 0 until a tenth more are there."""
    # With slack: otherwise each commit to a full log would be followed by a call that trims it.
    return head.log_entries - kept if head.log_entries > kept + kept // 10 else 0


LARGE_CHANGES: Final = 256
"""Number of changes from which sorting them pays."""


class LargeEntry:
    """An entry that begins an epoch, whose changes are of keys (not leases), one for each key."""

    def __init__(self, entry: LogEntry) -> None:
        assert entry.epoch is not None
        self.entry = entry
        changes = entry.changes
        self._order = sorted(
            range(len(changes)), key=[change.key for change in changes].__getitem__
        )
        self._keys = [changes[place].key for place in self._order]
        costs = [cost_of_change(changes[place]) for place in self._order]
        self._costs = list(accumulate(costs, initial=0))

    def visible(self, wanted: tuple[Pattern, ...], readable: tuple[Pattern, ...]) -> LogEntry:
        """The changes that match a `wanted` and a `readable` pattern, in the order of the entry.

        Errors: Resync when that is more than RESYNC_BYTES.
        """
        spans = self._spans(wanted, readable)
        cost = sum(self._costs[end] - self._costs[start] for start, end in spans)
        bounded_at(COST_OF_ENTRY + cost, self.entry)
        places = sorted(chain.from_iterable(self._order[start:end] for start, end in spans))
        changes = self.entry.changes
        found = tuple([changes[place] for place in places])
        return shown(self.entry, found, lambda key: any(each.matches(key) for each in readable))

    def _spans(
        self, wanted: tuple[Pattern, ...], readable: tuple[Pattern, ...]
    ) -> list[tuple[int, int]]:
        """Spans in the sorted keys that match: ascending and disjoint."""
        found: list[tuple[int, int]] = []
        for want in wanted:
            for read in readable:
                found += self._matched(want, read)
        found.sort()
        apart: list[tuple[int, int]] = []
        reached = 0
        for start, end in found:
            # Spans may overlap, and a change is shown once however many patterns match it.
            if end > reached:
                apart.append((max(start, reached), end))
                reached = end
        return apart

    def _matched(self, one: Pattern, other: Pattern) -> list[tuple[int, int]]:
        """Spans of the sorted keys that both patterns match."""
        (start, end), (first, last) = self._span(one), self._span(other)
        start, end = max(start, first), min(end, last)
        to_ask = [pattern for pattern in (one, other) if not pattern.is_subtree]
        if start < end and not to_ask:
            return [(start, end)]
        return [
            (place, place + 1)
            for place in range(start, end)
            if all(pattern.matches(self._keys[place]) for pattern in to_ask)
        ]

    def _span(self, pattern: Pattern) -> tuple[int, int]:
        """The span of the keys that `pattern` may match: its literal path, or all below it."""
        if pattern.literal:
            start = bisect_left(self._keys, pattern.prefix)
            return start, start + (self._keys[start : start + 1] == [pattern.prefix])
        if not pattern.prefix:
            return 0, len(self._keys)
        first, last = range_below(pattern.prefix)
        return bisect_left(self._keys, first), bisect_left(self._keys, last)
