"""The results of the API: the types of `core/commit.py` with decoded values."""

from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from blackboard.core import checkpoints, commit as core
from blackboard.core.commit import Cause as Cause, Receipt as Receipt
from blackboard.core.log_entry import is_proved
from blackboard.errors import Corrupt
from blackboard.tables import moment, table
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import as_type, decode_value

T = TypeVar("T")


ENTRY_COLUMNS = ("key", "value", "revision", "author", "time (UTC)")


class Entry(Struct, frozen=True):
    """A key's value, with its author and time.

    `account` is that of the author's token if the author's name was narrowed from it, else "".
    `created_ms` is the time of `create_revision`; None if it was not kept, which is so for entries
    that were last written by a version of Blackboard that did not keep it. In a listing with
    `keys_only`, `value` is None.
    """

    key: Key
    value: Any
    mod_revision: Revision
    create_revision: Revision
    author: str
    time_ms: Milliseconds
    expires_at_ms: Milliseconds | None = None
    account: str = ""
    created_ms: Milliseconds | None = None

    def _repr_html_(self) -> str:
        return table(self.key, ENTRY_COLUMNS, [entry_row(self)])

    @property
    def owner(self) -> str:
        """The account behind it, whatever name it was written under."""
        return self.account or self.author

    def value_as(self, kind: type[T]) -> T:
        """The value as a `kind`: see `Board.get`. Errors: TypeMismatch."""
        return as_type(self.value, kind, self.key)

    @staticmethod
    def of(entry: core.Entry) -> "Entry":
        """Decode an entry."""
        return Entry(
            entry.key,
            # A listing of keys alone has nothing here, and no encoded value is empty.
            decode_value(entry.value) if entry.value else None,
            entry.mod_revision,
            entry.create_revision,
            core.name_of(entry.author),
            entry.time_ms,
            entry.expires_at_ms,
            core.narrowed_from(entry.author),
            entry.created_ms,
        )


class Listing(Struct, frozen=True):
    """Entries in order, all as of `revision`; pass `next_key` as `after` for the next page.

    `directories` are those of a listing with `delimiter`, in order: each with its `prefix`, the
    number of its `keys` that you may read, up to DIRECTORY_KEYS_MAX, and whether there are `more`;
    `count` is that as text, such as "12" or "1,000+".
    """

    revision: Revision
    entries: tuple[Entry, ...]
    next_key: Key | None = None
    directories: tuple[core.Directory, ...] = ()

    @staticmethod
    def of(reading: core.Reading) -> "Listing":
        """Decode a page."""
        entries = tuple(map(Entry.of, reading.entries))
        return Listing(reading.revision, entries, reading.next_key, reading.directories)

    def _repr_html_(self) -> str:
        directories = [(f"{each.prefix}/", f"{each.count} keys") for each in self.directories]
        rows = sorted([*map(entry_row, self.entries), *directories], key=lambda row: row[0])
        caption = f"revision {self.revision}"
        return table(caption, ENTRY_COLUMNS, rows, more=self.next_key is not None)


class Change(Struct, frozen=True):
    """The change of one key by a revision: "put" (with `value`), "delete", or a change of a
    lease."""

    kind: str
    key: Key
    value: Any = None
    expires_at_ms: Milliseconds | None = None
    lease: core.Lease | None = None

    @staticmethod
    def of(change: core.Change) -> "Change":
        """Decode a change."""
        value = None if change.value is None else decode_value(change.value)
        return Change(str(change.kind), change.key, value, change.expires_at_ms, change.lease)


class RevisionEvent(Struct, frozen=True):
    """One revision as you may see it: who did it, when, why, and all its visible changes together.

    `position` is the resume token directly after it. `epoch` is set on a revision that begins one,
    `account` if the author's name was narrowed from it. `verified` says that the digest was
    computed from this (`Board.log`).
    """

    revision: Revision
    time_ms: Milliseconds
    author: str
    changes: tuple[Change, ...]
    based_on: tuple[tuple[Key, Revision], ...] = ()
    note: str = ""
    epoch: core.Epoch | None = None
    position: str = ""
    verified: bool = False
    account: str = ""

    def _repr_html_(self) -> str:
        said = f"revision {self.revision} by {self.author}, {moment(self.time_ms)}"
        caption = f"{said}: {self.note}" if self.note else said
        rows = ((change.kind, change.key, change.value) for change in self.changes)
        return table(caption, ("change", "key", "value"), rows)

    @staticmethod
    def of(entry: core.LogEntry, position: str = "") -> "RevisionEvent":
        """Decode a log entry."""
        return RevisionEvent(
            entry.revision,
            entry.time_ms,
            entry.author,
            tuple([Change.of(change) for change in entry.changes]),
            entry.based_on,
            entry.note,
            entry.epoch,
            position,
            account=entry.account,
        )

    @staticmethod
    def all_of(page: core.LogPage) -> "list[RevisionEvent]":
        """The revisions of a page."""
        return [RevisionEvent.of(entry) for entry in page.entries]

    @staticmethod
    def verified_of(page: core.LogPage) -> "list[RevisionEvent]":
        """The revisions of a page with proofs. Errors: Corrupt."""
        found: list[RevisionEvent] = []
        for entry, proof in zip(page.entries, page.proofs, strict=True):
            if proof is not None and not is_proved(entry, proof):
                reason = "its digest does not match its visible part"
                raise Corrupt(what=f"revision {entry.revision}", reason=reason)
            found.append(replace(RevisionEvent.of(entry), verified=proof is not None))
        return found


class Version(Struct, frozen=True):
    """A version of a key as of `revision`: `entry`, or None when `author` removed the key.

    `account` is set if the author's name was narrowed from it.
    """

    key: Key
    revision: Revision
    time_ms: Milliseconds
    author: str
    entry: Entry | None
    account: str = ""

    @staticmethod
    def of(version: checkpoints.Version) -> "Version":
        """Decode a version."""
        return Version(
            version.key,
            version.revision,
            version.time_ms,
            core.name_of(version.author),
            Entry.of(version.entry) if version.entry else None,
            core.narrowed_from(version.author),
        )

    @property
    def value(self) -> Any:
        """The value, None if it was removed."""
        return None if self.entry is None else self.entry.value

    def _repr_html_(self) -> str:
        caption = f"{self.key} at revision {self.revision}"
        if self.entry is None:
            return table(
                caption, ("removed by", "time (UTC)"), [(self.author, moment(self.time_ms))]
            )
        return table(caption, ENTRY_COLUMNS, [entry_row(self.entry)])


class History(tuple[Version, ...]):
    """Versions of a key, the newest first; a table in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        caption = f"history of {self[0].key}" if self else "no history"
        rows = (
            (one.revision, one.value if one.entry else "(removed)", one.author, moment(one.time_ms))
            for one in self
        )
        return table(caption, ("revision", "value", "author", "time (UTC)"), rows)


def entry_row(entry: Entry) -> tuple[Any, ...]:
    """The cells of an entry in a notebook's table, by ENTRY_COLUMNS."""
    return (entry.key, entry.value, entry.mod_revision, entry.author, moment(entry.time_ms))
