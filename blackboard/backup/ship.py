"""Ships the logs of boards to a backup.

A board with an archive is read from there, as far as the archive reaches, because the archive has
the whole history and no board must be opened for it. Other boards (those of a service without an
archive, the data keys) are read from the engine. Both are read behind the encryption: the backup
holds what they hold.

Invariants
- What is added follows what is there, revision by revision. Where it does not (the log was cut, or
  the board began again), a new base is written first.
- A round that fails loses nothing: the next one continues where the manifest ends.
"""

import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from blackboard.archive.base import Archive, archived_pages
from blackboard.backup import manifest as manifests
from blackboard.backup.place import BackupPlace
from blackboard.backup.segment import BASE
from blackboard.backup.write import BoardWriter, Items
from blackboard.core.checkpoints import Mark, Point
from blackboard.core.commit import Epoch, Head, LogEntry, Reading
from blackboard.core.history import check_sequence
from blackboard.core.path import ITEM_DIGITS
from blackboard.engines.base import Store, paged, pages_of
from blackboard.errors import (
    BlackboardError,
    Compacted,
    Corrupt,
    FutureRevision,
    NoSuchBoard,
    Unavailable,
)
from blackboard.limits import DEFAULT, LIST_ENTRIES_MAX, LOG_ENTRIES_MAX, Limits
from blackboard.units import Milliseconds, Prefix, Revision

_BASES_MAX: Final = 64
"""Bases that one board may need in one round: one for each recovery since the last round."""


class HistorySource(Protocol):
    """Where the history of one board is read."""

    async def log(self, after: Revision) -> Sequence[LogEntry]:
        """A page of the log entries after a revision. Errors: Compacted; FutureRevision."""

    async def digest_at(self, revision: Revision) -> bytes | None:
        """The digest of a log entry; None if there is none. Errors: Compacted."""

    async def base(self, at: Revision | None) -> tuple[Head, Items, AsyncIterator[Reading]]:
        """The whole content at a revision, or where the history begins."""


class ArchivedBoard:
    """A board as its archive has it, up to `mark`."""

    def __init__(self, archive: Archive, board: str, mark: Mark) -> None:
        self._archive = archive
        self._board = board
        self._mark = mark

    async def log(self, after: Revision) -> Sequence[LogEntry]:
        """As `HistorySource.log`."""
        if after > self._mark.revision:
            raise FutureRevision(after, self._mark.revision)
        until = self._mark.revision
        return await self._archive.log(self._board, after, until=until, limit=LOG_ENTRIES_MAX)

    async def digest_at(self, revision: Revision) -> bytes | None:
        """As `HistorySource.digest_at`."""
        return await self._archive.digest_at(Point(self._board, revision))

    async def base(self, at: Revision | None) -> tuple[Head, Items, AsyncIterator[Reading]]:
        """As `HistorySource.base`."""
        revision = self._mark.oldest if at is None else at
        point = Point(self._board, revision)
        epoch = (await self._archive.mark_at(point)).epoch if revision else Epoch(1, "")
        time_ms = await self._time_of(revision)
        head = Head(revision, epoch, max(revision, 1), time_ms)
        return head, await self._archive.items(point), archived_pages(self._archive, point)

    async def _time_of(self, revision: Revision) -> Milliseconds:
        """When a revision was committed; 0 if the log does not say."""
        with contextlib.suppress(Compacted):
            log = self._archive.log
            for entry in await log(self._board, revision - 1, until=revision, limit=1):
                return entry.time_ms
        return 0


class EngineBoard:
    """A board as its engine has it, up to `until`: on a busy one there is always more."""

    def __init__(self, store: Store, board: str, until: Revision) -> None:
        self._store = store
        self._board = board
        self._until = until

    async def log(self, after: Revision) -> Sequence[LogEntry]:
        """As `HistorySource.log`."""
        page = await self._store.log(self._board, after, limit=LOG_ENTRIES_MAX)
        return [entry for entry in page.entries if entry.revision <= self._until]

    async def digest_at(self, revision: Revision) -> bytes | None:
        """As `HistorySource.digest_at`."""
        page = await self._store.log(self._board, revision - 1, limit=1)
        found = page.entries[:1]
        return found[0].digest if found and found[0].revision == revision else None

    async def base(self, at: Revision | None) -> tuple[Head, Items, AsyncIterator[Reading]]:
        """As `HistorySource.base`: the present. An engine does not say its counters of `append`:
        they are derived from the items that there are."""
        head, following = await self._store.open(self._board), dict[Prefix, int]()
        # Read before the pages: the counters stand in the first record of a base.
        keys = partial(self._store.list, self._board, "", limit=LIST_ENTRIES_MAX, keys_only=True)
        async for page in paged(lambda after: keys(after=after)):
            for entry in page.entries:
                prefix, _, last = entry.key.rpartition("/")
                if len(last) == ITEM_DIGITS and last.isdecimal():
                    following[prefix] = max(following.get(prefix, 0), int(last) + 1)
        return head, tuple(sorted(following.items())), pages_of(self._store, self._board, "")


@dataclass(frozen=True, slots=True)
class Shipped:
    """What a round added: boards that changed, log entries, bases, and the bytes of the files."""

    boards: int = 0
    entries: int = 0
    bases: int = 0
    bytes: int = 0

    def plus(self, other: "Shipped") -> "Shipped":
        """The sum of two."""
        return Shipped(
            self.boards + other.boards,
            self.entries + other.entries,
            self.bases + other.bases,
            self.bytes + other.bytes,
        )


class Shipper:
    """Ships the boards of one engine and archive to one place. `begin` it first."""

    def __init__(
        self, place: BackupPlace, store: Store, archive: Archive | None, limits: Limits = DEFAULT
    ) -> None:
        self.place = place
        self._store = store
        self._archive = archive
        self._limits = limits
        self._backup = ""
        self._writers: dict[str, BoardWriter] = {}
        self._checked: set[str] = set()
        self._unsure: set[str] = set()
        """The boards whose manifest may not be durable, although it can be read."""

    async def begin(self) -> None:
        """Become the writer of the place, which is made a backup if it is empty.

        Errors: InvalidRequest when something else is there; NewerFormat; Unavailable, also while
        another process writes to it.
        """
        name = await self.place.begin()
        await self.place.lock()
        self._backup = name
        self._writers.clear()
        self._checked.clear()

    async def end(self) -> None:
        """Let another process write to it. Errors: Unavailable."""
        await self.place.unlock()

    def shipped(self, board: str) -> Revision | None:
        """The newest revision of a board in the backup, as far as this process knows."""
        writer = self._writers.get(board)
        return None if writer is None else writer.manifest.last

    async def boards(self) -> Sequence[str]:
        """Every board of the engine and of the archive."""
        # Either may have boards that the other lacks: lost by the engine, or kept in no archive.
        found = set(await self._store.boards())
        if self._archive is not None:
            found |= set(await self._archive.boards())
        return sorted(found)

    async def round(self, names: Collection[str]) -> Shipped:
        """Ship what boards have that the backup does not. Errors: InvalidRequest when the backup is
        not there any more (its disk may not be mounted), Unavailable when another one is there, or
        another process may have written to it: `begin` again. Unavailable; Corrupt: the first one,
        after the other boards."""
        if await self.place.id() != self._backup:
            reason = "another backup is there than before"
            raise Unavailable(what=f"backup {self.place.where}", reason=reason)
        # If the lease was lost, the manifests that are known here may be old.
        await self.place.confirm()
        total = Shipped()
        failure: BlackboardError | None = None
        for name in sorted(names):
            try:
                total = total.plus(await self._ship(name))
            except NoSuchBoard:  # removed meanwhile
                continue
            except BlackboardError as error:
                # The failure may have come after its manifest had got its name.
                self._unsure.add(name)
                failure = failure or error
        if failure is not None:
            raise failure
        return total

    async def note_removed(self, names: Collection[str]) -> None:
        """Record in the backup which of its boards, all but `names`, were removed."""
        for board in await manifests.boards(self.place):
            if board not in names and await self._store.removed(board) is not None:
                writer = await self._writer(board)
                await writer.describe(apart_from=writer.manifest.apart_from, removed=True)

    async def _ship(self, board: str) -> Shipped:
        source, apart_from = await self._source(board)
        if source is None:
            return Shipped()
        writer = await self._writer(board)
        before = writer.manifest
        # Once for each turn as the writer: what is added later follows what this process added.
        if board not in self._checked:
            await self._check(writer, source)
            self._checked.add(board)
        total = await self._follow(writer, source)
        if writer.manifest.segments and writer.manifest.apart_from != apart_from:
            await writer.describe(apart_from=apart_from)
        if writer.manifest is before:
            return Shipped()
        added = writer.manifest.file_bytes - before.file_bytes
        await writer.merge()
        return total.plus(Shipped(boards=1, bytes=added))

    async def _source(self, board: str) -> tuple[HistorySource | None, str]:
        """Where a board is read, and the name from which it was set apart."""
        archive = self._archive
        if archive is not None and (mark := await archive.mark(board)) is not None:
            if not await archive.holds(board) or mark.revision < mark.oldest:
                return None, ""  # a branch that is being made, or an archive that begins
            return ArchivedBoard(archive, board, mark), mark.called
        if await self._store.exists(board):
            head = await self._store.open(board)
            return EngineBoard(self._store, board, head.revision), ""
        return None, ""

    async def _writer(self, board: str) -> BoardWriter:
        writer = self._writers.get(board)
        if writer is None:
            found = await manifests.read(self.place, self._backup, board)
            # It can be read, but its name may not have been synced: a power cut could take it back.
            if found is not None and board in self._unsure:
                await manifests.write(self.place, found)
            self._unsure.discard(board)
            found = found or manifests.new(self._backup, board)
            writer = self._writers[board] = BoardWriter(self.place, found, self._limits)
        return writer

    async def _check(self, writer: BoardWriter, source: HistorySource) -> None:
        """Write a new base if the backup is of another history."""
        segments = writer.manifest.segments
        # A base may have no log entry to compare: the log begins behind it.
        if not segments or not segments[-1].digest:
            return
        digest = await _digest_at(source, segments[-1].last)
        # An archive that began with this very base has no log entry there.
        is_unknown = digest is None and segments[-1].kind == BASE
        if digest != segments[-1].digest and not is_unknown:
            await _write_base(writer, source, None)

    async def _follow(self, writer: BoardWriter, source: HistorySource) -> Shipped:
        bases = entries = 0
        while bases <= _BASES_MAX:
            last = writer.manifest.last
            at: Revision | None = None
            if last is not None:
                try:
                    page = await source.log(last)
                except (Compacted, FutureRevision):
                    # The log was cut, or the board began again below: only a base can follow.
                    page = None
                if page is not None:
                    if not page:
                        return Shipped(entries=entries, bases=bases)
                    following = unbroken(last, page)
                    if following:
                        await writer.write_log(following)
                        entries += len(following)
                        continue
                    # The log goes on behind a gap, as after a recovery: there it needs a base.
                    at = page[0].revision
            await _write_base(writer, source, at)
            bases += 1
        raise Corrupt(what=f"board {writer.manifest.board}", reason="its log is full of gaps")


async def _write_base(writer: BoardWriter, source: HistorySource, at: Revision | None) -> None:
    head, items, pages = await source.base(at)
    digest = await _digest_at(source, head.revision)
    await writer.write_base(head, items, pages, digest or b"")


async def _digest_at(source: HistorySource, revision: Revision) -> bytes | None:
    """As `HistorySource.digest_at`; None also if the history does not reach to the revision."""
    try:
        return await source.digest_at(revision) if revision else None
    except (Compacted, FutureRevision):
        return None


def unbroken(after: Revision, entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """The entries that follow a revision without a gap."""
    last = after
    for place, entry in enumerate(entries):
        try:
            last = check_sequence(last, (entry,))
        except Corrupt:
            return entries[:place]
    return entries
