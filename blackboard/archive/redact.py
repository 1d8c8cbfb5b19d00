"""Removes the values of a key from the archive of a board and its family.

A family is the set of boards that share history, including those that were removed or set apart.
Everything happens in one transaction: the values are in the archive, or they are gone.

Invariants
- The hash chain does not change: a redacted value is replaced by its salted hash, which the chain
  covers (core/log_entry.py), and its salt is removed.
- Digests of namespaces are over unsalted hashes, from which values can be guessed. So they are
  computed again with the replaced values, and the manifests that name them are signed again; but
  only manifests that were genuine and agreed with the archive.
- Blobs are removed before the transaction ends: after a crash in between, the next redaction still
  finds the references to them, and continues.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import and_, not_, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive import history as archive_log, rows as archive_rows
from blackboard.archive.base import Pause, Sealer, let_others_run
from blackboard.archive.blobs import Blobs
from blackboard.archive.boards import take_aside, unnamed
from blackboard.archive.database import Database, rows
from blackboard.archive.fold import DECLARED
from blackboard.archive.history import ArchivedHistory, Segment, segments_of
from blackboard.archive.tables import (
    ABSENT,
    BLOB,
    BOARD,
    CHECKPOINT,
    COMMIT,
    DIGEST,
    EPOCH,
    PLAIN,
    TOTAL,
    VERSION,
)
from blackboard.core import digest, log_entry
from blackboard.core.checkpoints import RedactedRows
from blackboard.core.path import Ranges, namespace_of, range_below
from blackboard.core.redaction import REDACTED, left_of, scope_of
from blackboard.errors import Corrupt, Unavailable
from blackboard.integrity.manifest import read_manifest
from blackboard.units import Key, Revision
from blackboard.wire.codec import decode_value

_REVISIONS: Final = 32
"""Revisions that are processed without a pause: a few milliseconds."""
_Elements = tuple[bytes | None, bytes | None]
_Place = tuple[int, Revision, Key]
"""A version: the number of its board, its revision and its key."""


async def family(connection: AsyncConnection, board: str) -> list[Any]:
    """The rows of all boards that share history with `board`, or had its name; the oldest first."""
    found = {row.id: row for row in await rows(connection, select(BOARD).order_by(BOARD.c.id))}
    known = {row.id for row in found.values() if board in (row.name, row.called)}
    grows = True
    while grows:
        near = {row.id for row in found.values() if row.origin in known}
        near |= {found[number].origin for number in known if found[number].origin is not None}
        grows = not near <= known
        known |= near
    return [row for number, row in found.items() if number in known and row.through is not None]


async def numbers_of_family(database: Database, board: str) -> list[int]:
    """The numbers of the rows of `family`."""
    async with database.reading() as connection:
        return [row.id for row in await family(connection, board)]


@dataclass
class _Sum:
    """A namespace's sum on one board, with and without the redacted values, from the revision
    `since` on."""

    since: Revision
    before: int
    after: int

    def move(self, gone: "_Elements | None", come: "_Elements") -> None:
        """Record that a key changed: its elements before and after."""
        old, less = gone or (None, None)
        self.before = _moved(self.before, old, come[0])
        self.after = _moved(self.after, less, come[1])


def _moved(total: int, gone: bytes | None, come: bytes | None) -> int:
    total = total if gone is None else digest.remove(total, gone)
    return total if come is None else digest.add(total, come)


@dataclass
class Redacting:
    """The redaction of one key, in a transaction."""

    database: Database
    connection: AsyncConnection
    blobs: Blobs
    sealer: Sealer
    key: Key
    upto: Mapping[str, Revision]
    """Revisions up to which the boards with these names are redacted; others are redacted
    completely."""
    _gone: dict[_Place, bytes] = field(default_factory=dict)
    """The elements (core/digest.py) of the removed values."""
    _hashes: dict[str, str] = field(default_factory=dict)
    """The manifests that were signed again: old hash and new hash, in hexadecimal."""
    _doomed: set[bytes] = field(default_factory=set)
    _guessable: int = 0
    _pause: Pause = let_others_run

    async def run(self, board: str, pause: Pause) -> RedactedRows:
        """Redact the key on the family of `board`, the oldest first. Errors: Corrupt,
        Unavailable."""
        self._pause = pause
        found = await self._locked(board)
        for row in found:
            if row.through < row.oldest:
                raise Unavailable(f"archive of board {row.called}", "its archive is being made")
        first = await self._first(found)
        # Before anything is replaced: the digests that are compared were made from these values.
        sums = {row.id: await self._sum(row, first[row.id]) for row in found if row.id in first}
        for row in found:
            await self._board(row)
        # Only once all boards are done: the sums of a branch are over versions of its origin, too.
        for row in found:
            if row.id in sums:
                await self._add_up(row, sums[row.id])
        await self._remove_blobs(found)
        return RedactedRows(len(self._gone), self._guessable)

    @property
    def _namespace(self) -> str:
        return namespace_of(self.key)

    async def _locked(self, board: str) -> Sequence[Any]:
        """The rows of the family of `board`, locked."""
        ids: list[int] = []
        found: Sequence[Any] = ()
        # A branch may have begun while this waited for a lock.
        while (now := [row.id for row in await family(self.connection, board)]) != ids:
            ids = now
            query = select(BOARD).where(BOARD.c.id.in_(ids)).order_by(BOARD.c.id)
            found = await rows(self.connection, query.with_for_update())
        return found

    # --- what goes --------------------------------------------------------------------------------

    def _in_scope(self, row: Any) -> Any:
        """The condition that a version of the board with `row` is to be redacted, or was redacted
        before."""
        within = or_(*(_between(*each) for each in scope_of(self.key)))
        upto = self.upto.get(row.name, row.through)
        return and_(VERSION.c.board == row.id, VERSION.c.revision <= upto, within)

    async def _first(self, boards: Sequence[Any]) -> dict[int, Revision]:
        """For each board with such versions, the first revision that has one; -1 if its origin has
        one."""
        found: dict[int, Revision] = {}
        for row in boards:
            # The oldest come first, so that the origin of a branch was looked at before it.
            if row.origin in found and found[row.origin] <= row.origin_revision:
                found[row.id] = -1
                continue
            query = select(VERSION.c.revision).where(self._in_scope(row), _holds())
            first = await rows(self.connection, query.order_by(VERSION.c.revision).limit(1))
            if first:
                found[row.id] = first[0].revision
        return found

    async def _board(self, row: Any) -> None:
        """Redact the versions of one board."""
        after = -1
        while revisions := await self._revisions(row, after):
            for revision in revisions:
                await self._revision(row, revision)
                await self._pause()
            after = revisions[-1]
        within = _between(*scope_of(self.key)[1])
        of_documents = update(VERSION).where(VERSION.c.board == row.id, within)
        removed = of_documents.where(VERSION.c.form == ABSENT)
        await self.connection.execute(
            removed.values(create_revision=VERSION.c.revision, first_ms=None)
        )

    async def _revisions(self, row: Any, after: Revision) -> list[Revision]:
        query = (
            select(VERSION.c.revision)
            .where(self._in_scope(row), _holds(), VERSION.c.revision > after)
            .distinct()
            .order_by(VERSION.c.revision)
            .limit(_REVISIONS)
        )
        return [each.revision for each in await rows(self.connection, query)]

    async def _revision(self, row: Any, revision: Revision) -> None:
        """Redact the values of one revision, in its versions and in its commit."""
        of_it = and_(VERSION.c.board == row.id, VERSION.c.revision == revision)
        versions = await rows(
            self.connection, select(VERSION).where(of_it).order_by(VERSION.c.position)
        )
        scope = scope_of(self.key)
        going = [each for each in versions if _is_in(each.key, scope) and _is_left(each)]
        await self._commit(row, revision, versions, {each.key for each in going})
        for each in going:
            if each.form == BLOB:
                self._doomed.add(bytes(each.content))
            self._gone[row.id, revision, each.key] = archive_rows.element_of(each)
            left = left_of(each.key)
            new: dict[str, Any] = {"form": PLAIN, "content": left}
            if left is None:
                new = {"form": ABSENT, "content": None}
            changed = update(VERSION).where(of_it, VERSION.c.key == each.key)
            await self.connection.execute(changed, new)

    async def _commit(
        self, row: Any, revision: Revision, versions: Sequence[Any], keys: set[Key]
    ) -> None:
        """Replace values in a commit. If the log was pruned, the archive may have only some of its
        versions."""
        one = and_(COMMIT.c.board == row.id, COMMIT.c.revision == revision)
        found = await rows(self.connection, select(COMMIT).where(one))
        written = [each for each in versions if each.position >= 0]
        if not found or not written:
            return
        if revision <= row.oldest:  # its log was pruned, and maybe other versions of it
            bare = {"details": archive_rows.bare_details(found[0])}
            await self.connection.execute(update(COMMIT).where(one), bare)
            return
        begun = select(EPOCH).where(EPOCH.c.board == row.id, EPOCH.c.revision == revision)
        epochs = [archive_rows.epoch_of(each) for each in await rows(self.connection, begun)]
        epoch = epochs[0] if epochs else None
        entry = archive_rows.entry_of(found[0], written, epoch, [None] * len(written))
        hashes = {each.key: archive_rows.hash_of(each) for each in written if each.form != ABSENT}
        contents = [None if c.lease else hashes.get(c.key) for c in entry.changes]
        known = set(log_entry.standing(entry))
        places = [
            place
            for place, change in enumerate(entry.changes)
            if change.lease is None and change.key in keys and place not in known
        ]
        if not places:
            return
        if not log_entry.is_salted(entry):
            self._guessable += 1
        less = log_entry.redacted(entry, contents, places)
        details = {"details": archive_rows.details_of(less)}
        await self.connection.execute(update(COMMIT).where(one), details)

    # --- what it adds up to -----------------------------------------------------------------------

    async def _sum(self, row: Any, first: Revision) -> _Sum:
        """The namespace's sum before `first`, or where the board began."""
        since = max(first - 1, -1)
        past = await self._past(row, since)
        total = (await past.totals([self._namespace]))[self._namespace]
        for element in await self._held(past):
            total = digest.remove(total, element)
        return _Sum(since, total, total)

    async def _past(self, row: Any, revision: Revision) -> ArchivedHistory:
        [first, *rest] = await segments_of(self.connection, row, row.through)
        segments = [Segment(first.board, revision), *rest]
        return ArchivedHistory(self.database, self.connection, segments)

    async def _held(self, past: ArchivedHistory) -> list[bytes]:
        """The elements of the current versions of the key."""
        found: list[bytes] = []
        async for page in past.entries(scope_of(self.key)):
            found += [archive_rows.element_of(each) for each in page]
        return found

    async def _add_up(self, row: Any, total: _Sum) -> None:
        """Compute the digests of one board again, and sign its manifests again."""
        origin = await self._past(row, total.since)
        async for page in origin.entries(scope_of(self.key)):
            for each in page:
                total.move(None, self._elements(each))
        marks = await self._marks(row, total.since)
        async for revision in self._fold(row, total):
            while marks and marks[0] < revision:
                await self._note(row, marks.pop(0), total)
        for mark in marks:
            await self._note(row, mark, total)
        one = and_(TOTAL.c.board == row.id, TOTAL.c.namespace == self._namespace)
        now = {"total": digest.to_bytes(total.after)}
        await self.connection.execute(update(TOTAL).where(one), now)

    async def _marks(self, row: Any, since: Revision) -> list[Revision]:
        """Revisions with a digest of the namespace, or a checkpoint."""
        found: set[Revision] = set()
        for table in (DIGEST, CHECKPOINT):
            query = select(table.c.revision).where(table.c.board == row.id)
            if table is DIGEST:
                query = query.where(table.c.namespace == self._namespace)
            query = query.where(table.c.revision > since)
            found |= {each.revision for each in await rows(self.connection, query)}
        return sorted(found)

    async def _fold(self, row: Any, total: _Sum) -> AsyncIterator[Revision]:
        """Follow the namespace on one board; yields each revision before it is added."""
        after = total.since
        within = and_(VERSION.c.board == row.id, _between(*range_below(self._namespace)))
        while True:
            later = select(VERSION.c.revision).where(within, VERSION.c.revision > after).distinct()
            page = later.order_by(VERSION.c.revision).limit(_REVISIONS)
            revisions = [each.revision for each in await rows(self.connection, page)]
            if not revisions:
                return
            those = and_(within, VERSION.c.revision > after, VERSION.c.revision <= revisions[-1])
            found = await rows(self.connection, select(VERSION).where(those))
            before = await (await self._past(row, after)).newest([each.key for each in found])
            known = {key: self._elements(each) for key, each in before.items()}
            for revision in revisions:
                yield revision
                for each in (each for each in found if each.revision == revision):
                    now = self._elements(each)
                    total.move(known.get(each.key), now)
                    known[each.key] = now
            after = revisions[-1]
            await self._pause()

    def _elements(self, row: Any) -> _Elements:
        """The element of a version before and after the redaction; None for a removal."""
        now = None if row.form == ABSENT else archive_rows.element_of(row)
        return self._gone.get((row.board, row.revision, row.key), now), now

    async def _note(self, row: Any, revision: Revision, total: _Sum) -> None:
        """Write the digest of a revision, and sign its checkpoints again."""
        one = and_(DIGEST.c.board == row.id, DIGEST.c.revision == revision)
        if total.before != total.after:
            changed = update(DIGEST).where(one, DIGEST.c.namespace == self._namespace)
            await self.connection.execute(changed, {"digest": digest.digest_of(total.after)})
        taken = and_(CHECKPOINT.c.board == row.id, CHECKPOINT.c.revision == revision)
        query = select(CHECKPOINT).where(taken).order_by(CHECKPOINT.c.name)
        for each in await rows(self.connection, query):
            signed = self._signed(row, each, total)
            if signed is not None:
                changed = update(CHECKPOINT).where(taken, CHECKPOINT.c.name == each.name)
                await self.connection.execute(changed, signed)

    def _signed(self, row: Any, checkpoint: Any, total: _Sum) -> dict[str, Any] | None:
        """The changed columns of a checkpoint's row; None if its manifest stays: nothing in it
        changes, or it does not agree with the board."""
        if not checkpoint.manifest:
            return None
        try:
            stored = archive_log.stored(row.called, checkpoint)
        except Corrupt:
            return None
        old = bytes(checkpoint.hash)
        if digest.content_of(stored.manifest) != old or self.sealer.findings(stored, None):
            return None
        said = read_manifest(stored.manifest)
        less = self._less(said, total)
        if less is None or less == said:
            return None
        manifest, signature = self.sealer.sign(less)
        new = digest.content_of(manifest)
        self._hashes[old.hex()] = new.hex()
        packed = archive_rows.pack_manifest(manifest)
        return {"manifest": packed, "signature": signature, "hash": new}

    def _less(self, said: dict[str, Any], total: _Sum) -> dict[str, Any] | None:
        """The content of a manifest without the redacted values; None if it does not agree with the
        archive."""
        digests, nothing = dict(said["digests"]), digest.EMPTY_DIGEST.hex()
        if digests.pop(self._namespace, nothing) != digest.digest_of(total.before).hex():
            return None
        if total.after != digest.EMPTY:
            digests[self._namespace] = digest.digest_of(total.after).hex()
        declared = dict(said["declared"])
        prefix, _, name = self.key.rpartition("/")
        if prefix == DECLARED and name in declared:
            declared[name] = decode_value(REDACTED)
        previous = self._hashes.get(said["previous"], said["previous"])
        return said | {"digests": digests, "declared": declared, "previous": previous}

    # --- blobs ------------------------------------------------------------------------------------

    async def _remove_blobs(self, found: Sequence[Any]) -> None:
        """Remove the large values that were redacted, except for those that another key also has,
        and those that pruning left. `SqlArchive.append` stores a value again that it is about to
        refer to."""
        self._doomed |= await take_aside(self.connection, {row.called for row in found})
        if self._doomed:
            await self.database.lock_blobs(self.connection, shared=False)
        # Asked under the lock: just before, an append may have given one of them to another key.
        for name in await unnamed(self.connection, self._doomed):
            await self.blobs.discard(name)
            await self._pause()


def _between(first: str, last: str) -> Any:
    return and_(VERSION.c.key >= first, VERSION.c.key < last)


def _holds() -> Any:
    """The condition that a version has a value and was not redacted."""
    marked = and_(VERSION.c.form == PLAIN, VERSION.c.content == REDACTED)
    return and_(VERSION.c.form != ABSENT, not_(marked))


def _is_left(row: Any) -> bool:
    """As `_holds`, for a row."""
    return row.form != ABSENT and not (row.form == PLAIN and bytes(row.content) == REDACTED)


def _is_in(key: Key, ranges: Ranges) -> bool:
    return any(first <= key < last for first, last in ranges)
