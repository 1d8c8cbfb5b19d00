"""Computes the rows for some log entries, without the database.

Invariants
- A change whose key is already known at that revision or later adds nothing: that version came from
  a listing taken while the log continued (`Archive.join`).
- `totals` hold the sums of the namespaces as of the last `settle`. Between two of them a key counts
  once, however often it was written, because making its element takes longer than everything else.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from blackboard.archive import rows as archive_rows
from blackboard.archive.rows import Row
from blackboard.archive.tables import ABSENT, LOGGED
from blackboard.core import digest
from blackboard.core.checkpoints import Step
from blackboard.core.commit import Change, LogEntry
from blackboard.core.path import SYSTEM, namespace_of
from blackboard.engines.base import ValuePlaces
from blackboard.units import Key, Milliseconds, Revision

CHECKPOINTS: Final = f"{SYSTEM}/checkpoints/"
DECLARED: Final = "public/~declared"
STEP_CHANGES: Final = 32
"""Changes that are processed without a pause: a millisecond. A commit takes half a dozen turns of
the event loop, and may wait for such a step in each of them."""


Places = Mapping[Revision, ValuePlaces]
"""Of the values of a revision that stay in the log: where they lie."""
_NOWHERE: Final[ValuePlaces] = {}


class Known(Struct, frozen=True, gc=False):
    """The newest version of a key: its create_revision and the time of that (None: not known), and
    its element (None = removed)."""

    revision: Revision
    create_revision: Revision
    created_ms: Milliseconds | None
    element: bytes | None


@dataclass
class Fold:
    """The rows to write, and the resulting state. `known` must have every key of the entries that
    has a version, `totals` every namespace of theirs that has a sum."""

    board: int
    chain: bytes
    known: dict[Key, Known]
    totals: dict[str, int]
    places: Places = field(default_factory=dict)
    versions: list[Row] = field(default_factory=list)
    commits: list[Row] = field(default_factory=list)
    epochs: list[Row] = field(default_factory=list)
    digests: list[Row] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    counted: dict[Key, bytes | None] = field(default_factory=dict)
    """Keys that changed since the last `settle`, with the element that `totals` count."""

    def apply(self, entry: LogEntry) -> None:
        """Archive one more entry."""
        for _ in self.steps_of(entry):
            pass

    def steps_of(self, entry: LogEntry) -> Iterator[None]:
        """Archive one more entry, in steps of a millisecond, because a restore has many changes.

        It is done after the last step.
        """
        link = archive_rows.ChainLink(entry)
        for position, change in enumerate(entry.changes):
            hashed = None if change.value is None else hashlib.sha256(change.value).digest()
            link.add(change, hashed)
            if change.lease is None:
                self._change(entry, position, change, hashed)
            if position % STEP_CHANGES == STEP_CHANGES - 1:
                yield
        self.chain = link.after(self.chain)
        self.commits.append(archive_rows.commit_row(self.board, entry, self.chain))
        if entry.epoch is not None:
            self.epochs.append(archive_rows.epoch_row(self.board, entry.epoch))
        name = entry.id
        self.steps[name.agent] = (entry.revision, name.incarnation, name.lane, name.step)

    def _change(self, entry: LogEntry, position: int, change: Change, hashed: bytes | None) -> None:
        """Add one change of a key, unless it is already known."""
        key, revision = change.key, entry.revision
        before = self.known.get(key)
        created, counted = revision, None
        created_ms: Milliseconds | None = entry.time_ms
        if before is not None:
            if before.revision >= revision:
                return
            counted = before.element
            if counted is not None:
                created, created_ms = before.create_revision, before.created_ms
        element, form, content = None, ABSENT, None
        if change.value is not None:
            assert hashed is not None
            element = digest.element(key, hashed, change.expires_at_ms)
            place = self.places.get(revision, _NOWHERE).get(key)
            if place is None:
                form, content = archive_rows.content_of(change.value, hashed)
            else:
                form, content = LOGGED, archive_rows.reference(hashed, place)
        self.counted.setdefault(key, counted)
        self.known.pop(key, None)  # `known` is ordered by the last change
        self.known[key] = Known(revision, created, created_ms, element)
        self.versions.append(
            {
                "board": self.board,
                "revision": revision,
                "position": position,
                "key": key,
                "form": form,
                "content": content,
                "create_revision": created,
                "author": entry.signed,
                "time_ms": entry.time_ms,
                "expires_at_ms": change.expires_at_ms,
                "item": change.item,
                "first_ms": None if created == revision or content is None else created_ms,
            }
        )

    def settle(self, revision: Revision) -> None:
        """Add the changes to the sums, and record the digests as of `revision`, the last
        entry's."""
        for _ in self.steps_to_settle(revision):
            pass

    def steps_to_settle(self, revision: Revision) -> Iterator[None]:
        """As `settle`, in steps of a millisecond. It is done after the last step."""
        touched: dict[str, None] = {}
        for number, (key, before) in enumerate(self.counted.items(), 1):
            namespace = namespace_of(key)
            touched[namespace] = None
            now = self.known[key].element
            if now != before:
                total = self.totals.get(namespace, digest.EMPTY)
                if before is not None:
                    total = digest.remove(total, before)
                self.totals[namespace] = total if now is None else digest.add(total, now)
            if number % STEP_CHANGES == 0:
                yield
        self.counted.clear()
        # Also if its sum is as before: the revision of a digest tells that nothing came later.
        for namespace in touched:
            total = self.totals.setdefault(namespace, digest.EMPTY)
            self.digests.append(digest_row(self.board, namespace, revision, total))


def digest_row(board: int, namespace: str, revision: Revision, total: int) -> Row:
    """The row of a namespace's digest at a revision."""
    return {
        "board": board,
        "namespace": namespace,
        "revision": revision,
        "digest": digest.digest_of(total),
    }


def large_values(entries: Sequence[LogEntry], places: Places, bytes_max: int) -> list[bytes]:
    """The values of `entries` that belong among the blobs, unless they stay in the log."""
    found = ((c, places.get(e.revision, _NOWHERE)) for e in entries for c in e.changes)
    return [
        change.value
        for change, logged in found
        if change.value is not None and len(change.value) > bytes_max and change.key not in logged
    ]
