"""Reads a board's history from a backup into an archive, which may have a part of it already.

The archive gets what it would have got from the engine, entry by entry. So everything that works
with an archive works with what comes back: history, checkpoints, comparisons, and a recovery of the
engine to any of its revisions.

A backup may have several histories of one name: of another data directory, or of an older copy. A
base at a revision that the backup had before begins another history, unless the log behind it says
otherwise. What came before it is then set aside, as by `Archive.join`.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from blackboard.archive.base import Archive
from blackboard.backup.manifest import BackupManifest
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import records_of, small_records, whole
from blackboard.backup.segment import BASE, BaseRecord, LogRecord, PageRecord, SegmentFile
from blackboard.core.checkpoints import Mark, Point
from blackboard.core.commit import Entry, LogEntry, Reading
from blackboard.errors import Compacted, InvalidRequest, Unavailable
from blackboard.limits import DEFAULT, LOG_ENTRIES_MAX, PAGE_BYTES_MAX, Limits
from blackboard.units import Key, Revision

_PAUSE_S: Final = 0.05
_Stretch = tuple[Sequence[SegmentFile], Sequence[SegmentFile]]
Progress = Callable[[int], None]
"""Called with the bytes of the backup that were read."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The archive has another history than the backup, or a newer one."""

    board: str
    reason: str


async def ahead(archive: Archive, manifest: BackupManifest) -> Ahead | None:
    """How an archive is ahead of a backup of a board; None: it has a part of what the backup has,
    or the same, perhaps with epochs that changed nothing."""
    board, last = manifest.board, manifest.segments[-1]
    mark = await archive.mark(board)
    if mark is None or mark.revision <= last.last or not await archive.holds(board):
        return None
    reason = f"it has revisions up to {mark.revision}, the backup up to {last.last}"
    newer = Ahead(board, reason)
    digest = await archive.digest_at(Point(board, last.last)) if last.digest else b""
    # An archive that began with this very base has no log entry there.
    if digest != last.digest and not (digest is None and last.kind == BASE):
        return newer
    since = await archive.log(board, last.last, until=mark.revision, limit=LOG_ENTRIES_MAX)
    return newer if any(entry.changes for entry in since) else None


class Replay:
    """Brings the history of one board from a backup into an archive."""

    def __init__(
        self,
        place: BackupPlace,
        archive: Archive,
        manifest: BackupManifest,
        *,
        apart: bool = False,
        limits: Limits = DEFAULT,
        progress: Progress = lambda _: None,
    ) -> None:
        """With `apart`, what the archive has is set aside under another name first."""
        self._place = place
        self._archive = archive
        self._manifest = manifest
        self._board = manifest.board
        self._apart = apart
        self._lease_ms = limits.archive.archive_lease_ms
        self._progress = progress
        self._owner = secrets.token_hex(8)
        self._fence = 0
        self._mark: Mark | None = None
        self._had: Mark | None = None

    async def run(self) -> Mark:
        """Do it; returns where the archive is then.

        It can be repeated, also after a crash. Errors: InvalidRequest when the archive has another
        history; Corrupt; Unavailable.
        """
        await self._take()
        try:
            if not self._apart and await self._archive.holds(self._board):
                self._mark = self._had = await self._archive.mark(self._board)
            if await self._archive.refers(self._board):
                await self._fill()
            through: Revision | None = None
            for base, logs in await self._left(_stretches(self._manifest.segments)):
                if await self._is_another(base, logs, through):
                    # A part of the history before it, which goes aside, may have been there.
                    self._apart, self._had = True, None
                await self._join(base)
                for segment in logs:
                    await self._append(segment)
                through = (*base, *logs)[-1].last
            # What this returns must be there after a power loss as well.
            await self._archive.settle(self._board)
        finally:
            await self._archive.give_up(self._board, self._fence)
        assert self._mark is not None
        return self._mark

    async def _fill(self) -> None:
        """Give the archive what it left in the log of an embedded engine, which may be lost."""
        for segment in self._manifest.segments:
            pages = self._pages([segment], quiet=True)
            if segment.kind == BASE:
                async for reading in pages:
                    found = [(e.mod_revision, e.key, e.value) for e in reading.entries]
                    await self._fill_some(found)
                continue
            async for some in self._pages_of_log(segment, await self._log(segment)):
                changes = ((entry.revision, change) for entry in some for change in entry.changes)
                await self._fill_some(
                    [(at, c.key, c.value) for at, c in changes if c.value is not None]
                )

    async def _fill_some(self, found: Sequence[tuple[Revision, Key, bytes]]) -> None:
        # Renewed, because all of it takes longer than the lease.
        await self._take()
        await self._archive.fill(self._board, found)

    async def _take(self) -> None:
        """Take the right to append, or renew it. Errors: Unavailable."""
        # In that time the lease of a killed service runs out; one that runs renews its own.
        until_s = time.monotonic() + 3 * self._lease_ms / 1000
        while time.monotonic() < until_s:
            fence = await self._archive.take(self._board, self._owner, self._lease_ms)
            if fence is not None:
                self._fence = fence
                return
            await asyncio.sleep(_PAUSE_S)
        reason = "a service appends to it: stop the services first"
        raise Unavailable(what=f"archive of board {self._board}", reason=reason)

    async def _left(self, stretches: Sequence[_Stretch]) -> Sequence[_Stretch]:
        """The stretches from the one on of which the archive has a part: those before it may be of
        a history that an earlier attempt set aside."""
        if self._mark is None:
            return stretches
        for place in range(len(stretches) - 1, 0, -1):
            _, logs = stretches[place]
            if await self._is_archived(await self._last_until(logs, self._mark.revision)):
                return stretches[place:]
        return stretches

    async def _is_another(
        self,
        base: Sequence[SegmentFile],
        logs: Sequence[SegmentFile],
        through: Revision | None,
    ) -> bool:
        """Whether a base, which comes after one that led `through` a revision, begins another
        history."""
        if through is None or self._mark is None or base[0].last > through:
            return False
        if base[0].last > self._mark.revision:
            return False
        found = await self._last_until(logs, self._mark.revision)
        if found is not None:
            return not await self._is_archived(found)
        # The engine may have lost everything before its first entry.
        first = await self._first(logs)
        return base[0].last > 0 or first is None or first.epoch is None

    async def _is_archived(self, entry: LogEntry | None) -> bool:
        if entry is None:
            return False
        point = Point(self._board, entry.revision)
        try:
            return await self._archive.digest_at(point) == entry.digest
        except Compacted:
            return False

    async def _last_until(self, logs: Sequence[SegmentFile], revision: Revision) -> LogEntry | None:
        """The last log entry at or below a revision; None if there is none."""
        for segment in reversed(logs):
            if segment.after < revision:
                for record in reversed(await self._log(segment)):
                    if record.entry.revision <= revision:
                        return record.entry
        return None

    async def _first(self, logs: Sequence[SegmentFile]) -> LogEntry | None:
        return (await self._log(logs[0]))[0].entry if logs else None

    async def _log(self, segment: SegmentFile) -> Sequence[LogRecord]:
        """The records of a file of the log, without their large values."""
        records = await small_records(self._place, segment)
        return [record for record in records if isinstance(record, LogRecord)]

    async def _join(self, base: Sequence[SegmentFile]) -> None:
        """Begin with a base, unless the archive has that revision already."""
        is_there = self._mark is not None and self._mark.revision >= base[0].last
        if is_there and not self._apart:
            return
        [first, *_] = await small_records(self._place, base[0])
        if not isinstance(first, BaseRecord):
            raise self._place.corrupt(base[0].name, "it is no base")
        # Renewed, because to read a base may take longer than the lease.
        await self._take()
        join = self._archive.join
        pages = self._pages(base)
        self._mark = await join(
            self._board, self._fence, first.head, pages, items=first.items, apart=self._apart
        )
        self._apart = False

    async def _pages(
        self, base: Sequence[SegmentFile], *, quiet: bool = False
    ) -> AsyncIterator[Reading]:
        for segment in base:
            async for record in records_of(self._place, segment):
                if isinstance(record, PageRecord):
                    yield Reading(record.revision, record.epoch, record.entries)
            self._progress(0 if quiet else segment.file_bytes)

    async def _append(self, segment: SegmentFile) -> None:
        assert self._mark is not None
        # If it ends at this very revision, it is still read, to compare that with the archive's.
        if segment.last < self._mark.revision:
            self._progress(segment.file_bytes)
            return
        records = await self._log(segment)
        await self._check_same([record.entry for record in records], segment)
        left = [record for record in records if record.entry.revision > self._mark.revision]
        async for some in self._pages_of_log(segment, left):
            # Renewed for each page, because a large file takes longer than the lease.
            await self._take()
            after = self._mark.revision
            self._mark = await self._archive.append(self._board, self._fence, after, some)
        self._progress(segment.file_bytes)

    async def _pages_of_log(
        self, segment: SegmentFile, records: Sequence[LogRecord]
    ) -> AsyncIterator[Sequence[LogEntry]]:
        """Log entries with their values, as many at once as an engine gives."""
        page, size = list[LogEntry](), 0
        for small in records:
            record = await whole(self._place, segment, small)
            assert isinstance(record, LogRecord)
            page.append(record.entry)
            size += sum(len(change.value or b"") for change in record.entry.changes)
            if len(page) >= LOG_ENTRIES_MAX or size >= PAGE_BYTES_MAX:
                yield page
                page, size = [], 0
        if page:
            yield page

    async def _check_same(self, entries: Sequence[LogEntry], segment: SegmentFile) -> None:
        """Errors: InvalidRequest when the archive's newest revision is another one in the
        backup."""
        had = self._had
        if had is None or not segment.after < had.revision <= segment.last:
            return
        self._had = None
        digest = await self._archive.digest_at(Point(self._board, had.revision))
        if digest not in {entry.digest for entry in entries if entry.revision == had.revision}:
            reason = f"board {self._board}: the archive and the backup have different histories"
            raise InvalidRequest(field="from", reason=reason)


def _stretches(segments: Sequence[SegmentFile]) -> Sequence[_Stretch]:
    """The files of each base, and of the log that follows it."""
    found: list[tuple[list[SegmentFile], list[SegmentFile]]] = []
    for segment in segments:
        if segment.begins:
            found.append(([], []))
        found[-1][0 if segment.kind == BASE else 1].append(segment)
    return found


async def folded(place: BackupPlace, manifest: BackupManifest) -> dict[Key, Entry]:
    """The newest content of a board, for one that is small. Errors: Corrupt; Unavailable."""
    state: dict[Key, Entry] = {}
    for segment in manifest.segments[manifest.bases[-1] :]:
        async for record in records_of(place, segment):
            if isinstance(record, PageRecord):
                state.update((entry.key, entry) for entry in record.entries)
            elif isinstance(record, LogRecord):
                _fold(state, record.entry)
    return state


def _fold(state: dict[Key, Entry], entry: LogEntry) -> None:
    for change in entry.changes:
        # Every recovery ends all leases.
        if change.lease is not None:
            continue
        old = state.pop(change.key, None)
        if change.value is None:
            continue
        created = entry.revision if old is None else old.create_revision
        first_ms = entry.time_ms if old is None else old.created_ms
        state[change.key] = Entry(
            change.key,
            change.value,
            entry.revision,
            created,
            entry.signed,
            entry.time_ms,
            change.expires_at_ms,
            first_ms,
        )
