"""What archiving some log entries adds, computed without the database.

Invariants
- A change whose key is known at that revision or later already adds nothing: such a version came
  from a listing that was taken while the log went on (`Archive.join`).
- `totals` hold, after each entry, the sums of the namespaces that it touched.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blackboard.core import digest
from blackboard.core.commit import Change, LogEntry
from blackboard.core.path import SYSTEM, namespace_of
from blackboard.store import archive_rows
from blackboard.store.archive import Step
from blackboard.store.archive_rows import Row
from blackboard.store.archive_tables import ABSENT
from blackboard.types import Key, Revision

CHECKPOINTS: Final = f"{SYSTEM}/checkpoints/"
DECLARED: Final = "public/~declared"
_STEP_CHANGES: Final = 64  # two milliseconds


@dataclass(frozen=True, slots=True)
class Known:
    """The newest version of a key: since when it exists, and its element (None = removed)."""

    revision: Revision
    create_revision: Revision
    element: bytes | None


@dataclass
class Fold:
    """Rows to write, and what they lead to. `known` must hold every key of the entries that has a
    version, `totals` every namespace of theirs that has a sum."""

    board: int
    chain: bytes
    known: dict[Key, Known]
    totals: dict[str, int]
    versions: list[Row] = field(default_factory=list)
    commits: list[Row] = field(default_factory=list)
    epochs: list[Row] = field(default_factory=list)
    digests: list[Row] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)

    def apply(self, entry: LogEntry) -> None:
        """Archive one more entry."""
        for _ in self.steps_of(entry):
            pass

    def steps_of(self, entry: LogEntry) -> Iterator[None]:
        """Archive one more entry, in steps of two milliseconds: a restore has many changes.

        Not done before the last step.
        """
        canonical: list[list[Any]] = []
        for number, change in enumerate(entry.changes, 1):
            canonical.append(archive_rows.canonical_change(change))
            if number % _STEP_CHANGES == 0:
                yield
        self.chain = archive_rows.next_chain(self.chain, entry, canonical)
        self.commits.append(archive_rows.commit_row(self.board, entry, self.chain))
        if entry.epoch is not None:
            self.epochs.append(archive_rows.epoch_row(self.board, entry.epoch))
        name = entry.id
        self.steps[name.agent] = (entry.revision, name.incarnation, name.lane, name.step)
        touched: dict[str, None] = {}
        for position, change in enumerate(entry.changes):
            if change.lease is None and self._change(entry, position, change):
                touched[namespace_of(change.key)] = None
            if position % _STEP_CHANGES == _STEP_CHANGES - 1:
                yield
        for namespace in touched:
            self._note_digest(namespace, entry.revision)

    def _change(self, entry: LogEntry, position: int, change: Change) -> bool:
        """Take in one change of a key; says whether it added anything."""
        before = self.known.get(change.key)
        if before is not None and before.revision >= entry.revision:
            return False
        existed = before is not None and before.element is not None
        created = before.create_revision if before is not None and existed else entry.revision
        element, form, content = None, ABSENT, None
        if change.value is not None:
            hashed = digest.content_of(change.value)
            element = digest.element(change.key, hashed, change.expires_at_ms)
            form, content = archive_rows.content_of(change.value)
        self._count(change.key, before, element)
        self.known[change.key] = Known(entry.revision, created, element)
        self.versions.append(
            {
                "board": self.board,
                "revision": entry.revision,
                "position": position,
                "key": change.key,
                "form": form,
                "content": content,
                "create_revision": created,
                "author": entry.author,
                "time_ms": entry.time_ms,
                "expires_at_ms": change.expires_at_ms,
                "item": change.item,
            }
        )
        return True

    def _count(self, key: Key, before: Known | None, element: bytes | None) -> None:
        namespace = namespace_of(key)
        total = self.totals.get(namespace, digest.EMPTY)
        if before is not None and before.element is not None:
            total = digest.remove(total, before.element)
        if element is not None:
            total = digest.add(total, element)
        self.totals[namespace] = total

    def _note_digest(self, namespace: str, revision: Revision) -> None:
        self.digests.append(
            {
                "board": self.board,
                "namespace": namespace,
                "revision": revision,
                "digest": digest.digest_of(self.totals[namespace]),
            }
        )


def held(totals: Mapping[str, int]) -> dict[str, bytes]:
    """Digests of the namespaces that hold anything."""
    return {
        name: digest.digest_of(total)
        for name, total in sorted(totals.items())
        if total != digest.EMPTY
    }


def large_values(entries: Sequence[LogEntry], bytes_max: int) -> list[bytes]:
    """The values of `entries` that belong among the blobs."""
    changes = (change for entry in entries for change in entry.changes)
    return [c.value for c in changes if c.value is not None and len(c.value) > bytes_max]
