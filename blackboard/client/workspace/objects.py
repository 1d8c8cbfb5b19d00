"""The objects of a workspace on its board: parts of files, leaves, roots; and the head above them.

All are ordinary entries, so cuts, restores, branches, exports, rights, quotas and encryption
include them. The present state holds the objects of the present tree; those of earlier ones are in
the board's history, for as long as that is kept.

Invariants
- A snapshot is one commit: the one that puts the head. Every object of its tree is there by then,
  and none that it needs is removed.
- Commits of a snapshot hold only while the head is the one that it began from. If it takes several
  commits, they hold only while the entry `upload` is the one that it put; so the snapshot after a
  crash knows that objects may lie there that no tree has, and that nobody adds any more.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from blackboard.client.views import Entry, Receipt
from blackboard.client.workspace.tree import (
    ID_BYTES,
    Node,
    Nodes,
    id_of,
    unpack,
    unpack_leaf,
    unpack_root,
)
from blackboard.core.checkpoints import When
from blackboard.core.commit import ABSENT, Condition, Delete, KeyAt, Op, Put, in_batches
from blackboard.core.path import tree_head_key, tree_objects_prefix, tree_upload_key
from blackboard.errors import BlackboardError, Corrupt, InvalidRequest, NewerFormat
from blackboard.limits import OPERATIONS_MAX
from blackboard.units import Key, Revision
from blackboard.wire.codec import encode_value

log = logging.getLogger(__name__)
FORMAT: Final = 1
_LEAVES_READ: Final = 32
"""Leaves that are read at once: four megabytes at the most."""
_COMMIT_BYTES: Final = 2 * 1024 * 1024
"""Half of COMMIT_BYTES_MAX, because other commits wait meanwhile."""
_COMMIT_OPS: Final = OPERATIONS_MAX - 2
"""With those on the head and on the upload, as many as a commit has."""

Object = tuple[bytes, bytes]
"""An id, and the bytes that have it."""


@runtime_checkable
class TreeBoard(Protocol):
    """The part of a Board that a workspace uses."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def agent(self) -> str:
        """The name under which it is changed."""

    async def entry(self, key: Key, *, at: When | None = None) -> Entry | None:
        """The entry at `key`."""

    async def entries(self, keys: Sequence[Key], *, at: When | None = None) -> dict[Key, Entry]:
        """The entries at `keys`."""

    def scan(
        self, pattern: str, *, at: When | None = None, keys_only: bool = False
    ) -> AsyncIterator[Entry]:
        """All entries that match."""

    async def commit(
        self, ops: Sequence[Op], *, conditions: Sequence[Condition] = (), note: str = ""
    ) -> Receipt:
        """Carry out all of `ops` if every condition holds."""


class TreeHead(Struct, frozen=True):
    """The value of the entry `head`: which tree it is, and the salt of its ids."""

    format: int
    root: bytes
    salt: bytes
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """What a snapshot changes: the head `before` it, the one `after` it, and which objects are on
    the board and not in its tree."""

    before: Entry | None
    after: TreeHead
    stale: set[bytes]
    note: str


@dataclass(frozen=True, slots=True)
class CommitRoom:
    """How much of a commit its objects may take: operations, and bytes."""

    ops: int = _COMMIT_OPS
    size_bytes: int = _COMMIT_BYTES

    def holds(self, batch: Sequence[Object], more: int = 0) -> bool:
        """Whether there is room for `batch`, and for `more` operations."""
        size_bytes = sum(len(content) for _, content in batch)
        count = len(batch) + more
        return count == 0 or (count <= self.ops and size_bytes <= self.size_bytes)


class Publication(NamedTuple):
    """What the commit that puts a head puts and deletes, under which conditions, and the keys that
    are `left` to be removed after it."""

    puts: list[tuple[Key, Any]]
    deletes: list[Key]
    conditions: list[Condition]
    left: list[Key]


class Objects:
    """The objects of the workspace at `key` of `board`."""

    def __init__(self, board: TreeBoard, key: Key) -> None:
        self._board = board
        self._key = key
        self._prefix = tree_objects_prefix(key)

    async def head(self, at: When | None = None) -> tuple[TreeHead, Entry] | None:
        """The head at a moment; None before the first snapshot. Errors: InvalidRequest when the
        entry is none, as after a redaction; NewerFormat."""
        entry = await self._board.entry(tree_head_key(self._key), at=at)
        if entry is None:
            return None
        try:
            head = msgspec.convert(entry.value, TreeHead)
        except msgspec.ValidationError as error:
            reason = "it says nothing about a workspace: it was redacted, or put by hand"
            raise InvalidRequest("key", f"{entry.key}: {reason}") from error
        if head.format > FORMAT:
            raise NewerFormat(f"workspace {self._key}", head.format, FORMAT)
        return head, entry

    # --- reading ----------------------------------------------------------------------------------

    async def read(
        self, ids: Iterable[bytes], revision: Revision, at: When | None = None
    ) -> dict[bytes, bytes]:
        """Objects of the snapshot that was taken at `revision`, as far as they are there.

        `at` is the moment at which it was seen (None: the present), and at which its objects are,
        too: of the history, perhaps that moment alone was kept. What a later snapshot removed since
        the present one was seen comes from the history.
        """
        wanted = {self._object(one): one for one in ids}
        found = await self._board.entries([*wanted], at=at)
        missing = [key for key in wanted if key not in found]
        if missing and at is None:
            found |= await self._board.entries(missing, at=revision)
        # A redacted object has a marker in place of its bytes, and counts as missing.
        values = {wanted[key]: entry.value for key, entry in found.items()}
        return {one: value for one, value in values.items() if isinstance(value, bytes)}

    async def tree(self, head: TreeHead, revision: Revision, at: When | None = None) -> Nodes:
        """The nodes of a snapshot. Errors: Corrupt, also when something is missing."""
        leaves: list[list[Node]] = []
        ids = await self.leaves(head, revision, at)
        for some in _chunks(ids, _LEAVES_READ):
            found = await self._checked(head, some, revision, at)
            leaves += [unpack_leaf(found[one]) for one in some]
        return unpack(leaves)

    async def leaves(
        self, head: TreeHead, revision: Revision, at: When | None = None
    ) -> list[bytes]:
        """The ids of the leaves of a snapshot."""
        found = await self._checked(head, [head.root], revision, at)
        return unpack_root(found[head.root])

    async def _checked(
        self, head: TreeHead, ids: Sequence[bytes], revision: Revision, at: When | None
    ) -> dict[bytes, bytes]:
        found = await self.read(ids, revision, at)
        for one in ids:
            if one not in found or id_of(found[one], head.salt) != one:
                reason = "a part of its tree is missing, was redacted, or is not what was put"
                raise Corrupt(what=f"workspace {self._key}", reason=reason)
        return found

    # --- writing ----------------------------------------------------------------------------------

    async def left(self) -> tuple[Entry | None, set[bytes]]:
        """What a snapshot that was not finished announced, and then all objects that are there."""
        upload = await self._board.entry(tree_upload_key(self._key))
        if upload is None:
            return None, set()
        found = {
            _id(entry.key) async for entry in self._board.scan(f"{self._prefix}/*", keys_only=True)
        }
        return upload, {one for one in found if one is not None}

    async def publish(
        self, objects: Iterator[Object], change: NewSnapshot, upload: Entry | None
    ) -> Receipt:
        """Put `objects` and then the head; `upload` is what `left` found.

        Errors: Conflict when the head, or the upload, is not the one that was seen; as of
        `Board.commit`. Then, and after a cancellation, the head is as it was, unless the outcome is
        unknown or the caller was cancelled.
        """
        ready = await self.prepare(objects, change, upload)
        ops: list[Op] = [Put(key, encode_value(value)) for key, value in ready.puts]
        ops += [Delete(key) for key in ready.deletes]
        receipt = await self._board.commit(ops, conditions=ready.conditions, note=change.note)
        try:
            await self.tidy(ready, receipt)
        except BlackboardError as error:  # the snapshot is taken, and that is what the caller asks
            log.info("objects of %s are left until its next snapshot: %s", self._key, error)
        return receipt

    async def prepare(
        self,
        objects: Iterator[Object],
        change: NewSnapshot,
        upload: Entry | None,
        room: CommitRoom | None = None,
    ) -> Publication:
        """Put those of `objects` that do not fit into `room` of the commit that puts the head, and
        return what that commit has to do. Errors: as of `publish`."""
        room = room or CommitRoom()
        head_key = tree_head_key(self._key)
        at_head = KeyAt(head_key, ABSENT if change.before is None else change.before.mod_revision)
        batches = in_batches(objects, lambda one: len(one[1]), _COMMIT_BYTES, _COMMIT_OPS)
        batch = await asyncio.to_thread(next, batches, ())
        # One batch ahead: only then is it known whether the commit of the head has room for all.
        # With a default, since StopIteration cannot be raised into a future.
        following = await asyncio.to_thread(next, batches, ())
        several = bool(following) or not room.holds(batch, len(change.stale))
        conditions: list[Condition] = [at_head]
        if several or upload is not None:
            conditions.append(await self._announce(upload, at_head))
        while following or not room.holds(batch):
            await self._board.commit(self._puts(batch), conditions=conditions)
            batch, following = following, await asyncio.to_thread(next, batches, ())
        stale = [self._object(one) for one in change.stale]
        now = max(room.ops - len(batch), 0)
        puts: list[tuple[Key, Any]] = [(self._object(one), content) for one, content in batch]
        puts.append((head_key, msgspec.structs.asdict(change.after)))
        deletes = stale[:now]
        if len(conditions) > 1 and len(stale) <= now:
            deletes.append(tree_upload_key(self._key))
        return Publication(puts, deletes, conditions, stale[now:])

    async def tidy(self, done: Publication, receipt: Receipt) -> None:
        """Remove what did not fit into the commit of the head, whose receipt this is; if it is not
        done, the next snapshot does it."""
        if done.left:
            # A later snapshot may need some of these objects again.
            at_head = KeyAt(tree_head_key(self._key), receipt.revision)
            await self._remove(done.left, [at_head, *done.conditions[1:]])

    async def _announce(self, upload: Entry | None, at_head: KeyAt) -> KeyAt:
        key = tree_upload_key(self._key)
        seen = KeyAt(key, ABSENT if upload is None else upload.mod_revision)
        value = encode_value({"upload": secrets.token_hex(8)})
        receipt = await self._board.commit([Put(key, value)], conditions=[at_head, seen])
        return KeyAt(key, receipt.revision)

    async def _remove(self, keys: Sequence[Key], conditions: Sequence[Condition]) -> None:
        """Remove what the tree does not have any more, and then the announcement."""
        for some in _chunks(keys, _COMMIT_OPS):
            await self._board.commit([Delete(key) for key in some], conditions=conditions)
        # Last: while it is there, the next snapshot looks for objects that no tree has.
        await self._board.commit([Delete(tree_upload_key(self._key))], conditions=conditions)

    def _puts(self, batch: Iterable[Object]) -> list[Op]:
        return [Put(self._object(one), encode_value(content)) for one, content in batch]

    def _object(self, one: bytes) -> Key:
        return f"{self._prefix}/{one.hex()}"


def _id(key: Key) -> bytes | None:
    """The id in the key of an object; None for one that somebody put by hand."""
    try:
        found = bytes.fromhex(key.rpartition("/")[2])
    except ValueError:
        return None
    return found if len(found) == ID_BYTES else None


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))
