"""Reads a document from its entries, and makes the operations that change it there.

The layout is that of core/path.py.

`UpdateTail` decides when to compact. To load a document is to apply its base, which is one call of
the library, and then each update, which is parsed first: byte for byte that takes nine times as
long. So the tail is kept short in number and in bytes. With a large base it may be longer, because
a compaction writes the whole base again.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blackboard.client.views import Entry, RevisionEvent
from blackboard.client.writer import CommitRequest, Writer
from blackboard.core.commit import (
    ABSENT,
    Append,
    Condition,
    Delete,
    KeyAt,
    Op,
    Put,
    PutBack,
    signature,
)
from blackboard.core.documents import update as crdt
from blackboard.core.path import (
    base_key,
    document_prefix,
    overlaps_prefix,
    parts_prefix,
    updates_prefix,
)
from blackboard.errors import Corrupt
from blackboard.limits import DEFAULT, VALUE_BYTES_MAX, DocumentLimits
from blackboard.units import Key, Revision
from blackboard.wire.codec import encode_value

PIECE_BYTES = VALUE_BYTES_MAX - 4096
"""Bytes of an update or of a state in one value, with room for the fields around it."""
# So many whole pieces, the base and the deletions still fit into COMMIT_BYTES_MAX.
_LAST_COMMIT_PIECES = 3
TAIL_DELETED_MAX = 960
"""Updates that one compaction removes: a commit has room for the pieces as well."""
STRAYS_DELETED_MAX = 32
"""Stray pieces that one compaction removes: two of the largest states, and the commit has room for
them beside everything else."""


@dataclass(frozen=True, slots=True)
class Item:
    """One update in the log: the keys of its pieces, its author, and, for that of a restore, its
    `mark` (the client that shows whether a peer has seen it), and the owners of the clients of what
    it put back."""

    keys: tuple[Key, ...]
    update: bytes
    author: str
    mark: int | None = None
    owners: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Base:
    """The compacted state: the owners of its clients, and the mark of the last restore."""

    state: bytes = crdt.EMPTY_UPDATE
    owners: Mapping[int, str] = field(default_factory=dict)
    mark: int | None = None
    keys: tuple[Key, ...] = ()
    revision: Revision = ABSENT


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A stored document: a base, and updates to be applied to it."""

    base: Base
    items: tuple[Item, ...]


def read_document(key: Key, entries: Mapping[Key, Entry]) -> StoredDocument:
    """The document at `key` from all entries below its prefix. Errors: Corrupt."""
    prefix = updates_prefix(key) + "/"
    updates = [entry for found, entry in entries.items() if found.startswith(prefix)]
    # By revision first: the update of a restore has a key that says nothing about its place.
    updates.sort(key=lambda entry: (entry.mod_revision, entry.key))
    pieces = [(e.key, e.value, signature(e.author, e.account)) for e in updates]
    return StoredDocument(_read_base(key, entries), tuple(read_items(pieces)))


def _read_base(key: Key, entries: Mapping[Key, Entry]) -> Base:
    entry = entries.get(base_key(key))
    if entry is None:
        return Base()
    try:
        generation, count = entry.value["parts"]
        keys = _part_keys(key, generation, count)
        state = b"".join(entries[part].value for part in keys)
        owners = _read_owners(entry.value["owners"])
        mark = entry.value["mark"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(what=entry.key, reason=f"is no base of a document: {error!r}") from error
    return Base(state, owners, mark, keys, entry.mod_revision)


def base_of(key: Key, generation: str, count: int, revision: Revision) -> Base:
    """A base that another process wrote, as far as the next compaction needs it."""
    return Base(keys=_part_keys(key, generation, count), revision=revision)


def _part_keys(key: Key, generation: str, count: int) -> tuple[Key, ...]:
    return tuple(f"{parts_prefix(key, generation)}/{i:04}" for i in range(count))


def read_items(updates: Iterable[tuple[Key, Any, str]]) -> Sequence[Item]:
    """The updates in (key, value, author) of consecutive entries, their pieces put together.

    Errors: Corrupt.
    """
    found: list[Item] = []
    keys: list[Key] = []
    pieces: list[bytes] = []
    for key, value, author in updates:
        try:
            keys.append(key)
            pieces.append(value["update"])
            if not value.get("more"):
                owners = _read_owners(value.get("owners", {}))
                update = b"".join(pieces)
                found.append(Item(tuple(keys), update, author, value.get("mark"), owners))
                keys, pieces = [], []
        except (KeyError, TypeError, AttributeError) as error:
            raise Corrupt(what=key, reason=f"is no update of a document: {error!r}") from error
    if keys:
        raise Corrupt(what=keys[-1], reason="the rest of this update is missing")
    return found


def append_update(key: Key, update: bytes) -> tuple[Append, ...]:
    """The operations that add an update to the document at `key`, in one commit."""
    prefix = updates_prefix(key)
    return tuple(Append(prefix, encode_value(value)) for value in _values(update))


def put_back_update(
    key: Key, update: bytes, mark: int, owners: Mapping[int, str] | None = None
) -> tuple[PutBack, ...]:
    """The same for the update of a restore, and the owners of clients that it puts back. It is not
    appended: its key is derived from its mark, among those of the other updates."""
    values = _values(update)
    if owners:  # in a piece of their own: the last one may be full
        values[-1]["more"] = True
        values.append({"update": b"", "owners": _by_owner(owners)})
    values[-1]["mark"] = mark
    prefix = f"{updates_prefix(key)}/restore-{mark:014x}"
    return tuple(PutBack(f"{prefix}-{i:04}", encode_value(v)) for i, v in enumerate(values))


def _values(update: bytes) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = [{"update": piece, "more": True} for piece in _cut(update)]
    del values[-1]["more"]
    return values


def _cut(data: bytes) -> list[bytes]:
    return [data[i : i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)]


@dataclass(frozen=True, slots=True)
class Compaction:
    """The commits that replace a base and the updates after it: `pieces` first, `ops` at the end.

    `ops` take effect only if the document was neither compacted nor removed in the meantime.
    """

    pieces: tuple[tuple[Op, ...], ...]
    ops: tuple[Op, ...]
    conditions: tuple[Condition, ...]


def compaction(
    key: Key,
    new: Base,
    generation: str,
    *,
    old: Base,
    keys: Sequence[tuple[Key, Revision]],
    strays: Sequence[Key] = (),
) -> Compaction:
    """Compact to the state, owners and mark of `new`; `keys` are those of the updates in it,
    `strays` those of pieces that no base names."""
    cut = _cut(new.state)
    names = _part_keys(key, generation, len(cut))
    puts = [Put(name, encode_value(piece)) for name, piece in zip(names, cut, strict=True)]
    value = {
        "parts": [generation, len(cut)],
        "owners": _by_owner(new.owners),
        "mark": new.mark,
    }
    early = puts if len(puts) > _LAST_COMMIT_PIECES else []
    last: list[Op] = [] if early else list(puts)
    last.append(Put(base_key(key), encode_value(value)))
    last += [Delete(found) for found in (*old.keys, *(found for found, _ in keys), *strays)]
    # The base shows that nobody compacted meanwhile, and the oldest update that the document was
    # not removed while it had no base yet.
    conditions = [KeyAt(base_key(key), old.revision), *(KeyAt(*found) for found in keys[:1])]
    return Compaction(tuple((put,) for put in early), tuple(last), tuple(conditions))


def _by_owner(owners: Mapping[int, str]) -> dict[str, list[int]]:
    """Owners by client, as they are stored: clients by owner."""
    found: dict[str, list[int]] = {}
    for client, owner in owners.items():
        found.setdefault(owner, []).append(client)
    return found


def _read_owners(stored: Mapping[str, Iterable[int]]) -> dict[int, str]:
    return {client: owner for owner, clients in stored.items() for client in clients}


def is_update(key: Key, path: Key) -> bool:
    """Whether `path` is a piece of an update of the document at `key`."""
    return path.startswith(updates_prefix(key) + "/")


def is_part(key: Key, path: Key) -> bool:
    """Whether `path` is a piece of a compacted state of the document at `key`."""
    return path.startswith(parts_prefix(key, ""))


def is_report(key: Key, path: Key) -> bool:
    """Whether `path` is a report of an overlap, which is temporary and not content."""
    return path.startswith(overlaps_prefix(key) + "/")


def pattern(key: Key) -> str:
    """Matches everything of the document at `key`."""
    return f"{document_prefix(key)}/**"


_NOTE = "compacted"
_BASE_SHARE = 8
"""The tail must reach this fraction of the base before a compaction, which bounds its write
amplification."""


class UpdateTail:
    """The updates of the document at `key` by their own keys, oldest first, and the keys of the
    pieces of its compacted states.

    A compaction that ended before its last commit leaves pieces that no base names: strays. The
    next one removes them.
    """

    def __init__(
        self, key: Key, base_bytes: int = 0, limits: DocumentLimits = DEFAULT.documents
    ) -> None:
        self._limits = limits
        self.base_bytes = base_bytes
        """Size of the base, as far as it is known here."""
        self._key = key
        self._found: dict[Key, tuple[Revision, int, bool]] = {}
        self._parts: set[Key] = set()
        self._bytes = 0

    def add(self, path: Key, revision: Revision, size: int, *, goes_on: bool = False) -> None:
        """Add one piece of an update: `size` bytes, committed at `revision`; whether it goes on in
        the next piece."""
        self._found[path] = revision, size, goes_on
        self._bytes += size

    def add_part(self, path: Key) -> None:
        """Add one piece of a compacted state, whether a base names it or not."""
        self._parts.add(path)

    def drop(self, path: Key) -> None:
        """Remove the piece at `path`."""
        self._parts.discard(path)
        _, size, _ = self._found.pop(path, (0, 0, False))
        self._bytes -= size

    @property
    def is_due(self) -> bool:
        """Whether it is time to compact."""
        bytes_max = max(self._limits.document_tail_bytes, self.base_bytes // _BASE_SHARE)
        return len(self._found) >= self._limits.document_tail_updates or self._bytes >= bytes_max

    def is_lost(self, revised: RevisionEvent) -> bool:
        """Whether a revision removed a part of the document without a new base that contains it."""
        base = base_key(self._key)
        gone = any(c.kind == "delete" and c.key in self._found for c in revised.changes)
        kept = any(c.kind == "put" and c.key == base for c in revised.changes)
        lost = any(c.kind == "delete" and c.key == base for c in revised.changes)
        return lost or (gone and not kept)

    async def compact(self, writer: Writer, new: Base, *, old: Base, revision: Revision) -> None:
        """Commit `new`, the document as of `revision`, in place of `old` and the present tail.

        Errors: those of `Board.commit`, a Conflict when another process was first; the document is
        unchanged.
        """
        keys = self._oldest()
        # With something random: two processes may compact as of the same revision at once.
        generation = f"{revision:016}-{secrets.token_hex(4)}"
        # They may be those of a process that is just putting them: its last commit is then refused,
        # because the one here changes the base.
        strays = sorted(self._parts.difference(old.keys))[:STRAYS_DELETED_MAX]
        made = compaction(self._key, new, generation, old=old, keys=keys, strays=strays)
        # Under keys that no base names yet: a crash before the last commit leaves the
        # document as it is.
        for ops in made.pieces:
            await writer.commit(CommitRequest(ops, note=_NOTE), with_held=False)
        await writer.commit(CommitRequest(made.ops, made.conditions, note=_NOTE), with_held=False)
        self.base_bytes = len(new.state)

    def _oldest(self) -> list[tuple[Key, Revision]]:
        """The pieces that one compaction removes, of whole updates: the rest of one would be read
        as an update."""
        oldest = list(self._found.items())[:TAIL_DELETED_MAX]
        while oldest and oldest[-1][1][2]:
            oldest.pop()
        return [(path, revision) for path, (revision, _, _) in oldest]
