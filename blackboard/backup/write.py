"""Writes the files of one board into a backup, and merges small ones."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from blackboard.backup import manifest as manifests
from blackboard.backup.manifest import BackupManifest, adding, folder
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import packed_records
from blackboard.backup.segment import (
    BASE,
    LOG,
    BaseRecord,
    LogRecord,
    PageRecord,
    Record,
    SegmentFile,
    apart,
    file_of,
    link,
    packed,
)
from blackboard.core.commit import Epoch, Head, LogEntry, Reading
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Prefix, Revision

Items = Sequence[tuple[Prefix, int]]


@dataclass(frozen=True, slots=True)
class NewBase:
    """A base that was written: the size of its files in bytes, and the large values it names."""

    size: int
    blobs: Collection[bytes]


class BoardWriter:
    """Writes what follows in the backup of one board; `manifest` says what is there already.

    Errors of every method: Unavailable; what is there stays as it is.
    """

    def __init__(
        self, place: BackupPlace, manifest: BackupManifest, limits: Limits = DEFAULT
    ) -> None:
        self.manifest = manifest
        self._place = place
        self._limits = limits.backup

    async def write_base(
        self, head: Head, items: Items, pages: AsyncIterator[Reading], digest: bytes = b""
    ) -> None:
        """Add the whole content of the board as of `head`, or page by page as of later revisions;
        `digest` is that of the log entry at `head`.

        It counts once it is complete.
        """
        filling = _Filling(self._place, self.manifest, BASE, head)
        filling.digest = digest
        await self._fill_base(filling, head, items, pages)
        await self._publish(adding(self.manifest, filling.segments))

    async def _fill_base(
        self, filling: "_Filling", head: Head, items: Items, pages: AsyncIterator[Reading]
    ) -> None:
        await filling.add(BaseRecord(head, tuple(items)))
        async for page in pages:
            if page.entries:
                await filling.add(PageRecord(page.revision, page.epoch, page.entries))
            if filling.size >= self._limits.segment_bytes:
                await filling.end()
        await filling.end()

    async def write_log(self, entries: Sequence[LogEntry]) -> None:
        """Add the log entries that follow."""
        last = self.manifest.segments[-1]
        # Only revision and time of it are used.
        at = Head(last.last, Epoch(0, ""), 0, last.time_ms)
        filling = _Filling(self._place, self.manifest, LOG, at)
        for entry in entries:
            await filling.add(LogRecord(entry))
            if filling.size >= self._limits.segment_bytes:
                await filling.end()
        await filling.end()
        await self._publish(adding(self.manifest, filling.segments))

    async def merge(self) -> None:
        """Merge the last files into one, while there are SEGMENTS_MERGED small ones of a tier."""
        while (small := self._mergeable()) is not None:
            records = [
                record for segment in small for record in await packed_records(self._place, segment)
            ]
            data = await asyncio.to_thread(file_of, records)
            first, last = small[0], small[-1]
            one = replace(
                last,
                name=_name(self.manifest.board, last.last, data),
                after=first.after,
                before=first.before,
                records=len(records),
                file_bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                # As in a log-structured merge tree: a record is written again once for each tier.
                tier=last.tier + 1,
            )
            await self._place.put(one.name, data)
            kept = self.manifest.segments[: -len(small)]
            await self._publish(replace(self.manifest, segments=(*kept, one)))
            # Only now: until the manifest names the merged file, these are the backup.
            await self._place.remove_needless(segment.name for segment in small)

    def _mergeable(self) -> Sequence[SegmentFile] | None:
        count = self._limits.segments_merged
        found = self.manifest.segments[-count:]
        tiers = {(each.kind, each.tier) for each in found}
        fits = sum(each.file_bytes for each in found) <= self._limits.segment_bytes
        if len(found) < count or len(tiers) > 1 or found[0].kind != LOG or not fits:
            return None
        return found

    async def begin_after(
        self,
        count: int,
        head: Head,
        items: Items,
        pages: AsyncIterator[Reading],
        *,
        dry_run: bool = False,
    ) -> "NewBase":
        """Replace the first `count` files by a base with the content to which they lead. With
        `dry_run`, nothing is written; the answer is the same."""
        old, kept = self.manifest.segments[:count], self.manifest.segments[count:]
        # The chain goes on from what is replaced, so the files behind the base still follow.
        filling = _Filling(self._place, replace(self.manifest, segments=old), BASE, head)
        filling.is_rehearsed = dry_run
        # By it, the next shipping and a recovery know of which history the base is.
        filling.digest = old[-1].digest
        await self._fill_base(filling, head, items, pages)
        base = NewBase(sum(each.file_bytes for each in filling.segments), filling.blobs)
        if dry_run:
            return base
        await self._publish(replace(self.manifest, segments=(*filling.segments, *kept)))
        names = {segment.name for segment in self.manifest.segments}
        # A base of the same content has the same name.
        await self._place.remove_needless(s.name for s in old if s.name not in names)
        return base

    async def describe(self, *, apart_from: str = "", removed: bool = False) -> None:
        """Record that the board was set apart, or removed."""
        new = replace(self.manifest, apart_from=apart_from, removed=removed)
        if new != self.manifest:
            await self._publish(new)

    async def _publish(self, manifest: BackupManifest) -> None:
        await manifests.write(self._place, manifest)
        self.manifest = manifest


def _name(board: str, last: Revision, data: bytes) -> str:
    """A name that no other content has, so a file that is there is never changed."""
    return f"{folder(board)}{last:016d}-{hashlib.sha256(data).hexdigest()[:16]}.segment"


class _Filling:
    """Files that are being written, one after the other."""

    def __init__(self, place: BackupPlace, manifest: BackupManifest, kind: str, at: Head) -> None:
        self.segments: list[SegmentFile] = []
        self.size = 0
        self.blobs: set[bytes] = set()
        self.is_rehearsed = False
        """Whether nothing is written."""
        self.digest = b""
        """That of the last log entry."""
        self._place = place
        self._board = manifest.board
        self._kind = kind
        self._after = self._last = at.revision
        # An archive does not know the time of a revision whose log entry was cut away.
        self._time_ms = at.time_ms or manifest.time_ms
        self._before = self._chain = manifest.chain
        self._records: list[bytes] = []

    async def add(self, record: Record) -> None:
        """Add a record, and store its large values."""
        small, large = apart(record)
        if not isinstance(small, BaseRecord):
            self.blobs |= set(small.blobs.values())
        if large and not self.is_rehearsed:
            # Before the file that refers to them.
            await self._place.blobs.put_durably(large)
        if isinstance(record, LogRecord):
            self._last, self._time_ms = record.entry.revision, record.entry.time_ms
            self.digest = record.entry.digest
        data = packed(small)
        self._records.append(data)
        # Log entries alone: so a base can be put between them, and files be merged, later.
        if isinstance(record, LogRecord):
            self._chain = link(self._chain, data)
        self.size += len(data)

    async def end(self) -> None:
        """Write the file."""
        if not self._records:
            return
        # In a thread: compression would hold up the commits of the service, and the lease.
        data = await asyncio.to_thread(file_of, self._records)
        segment = SegmentFile(
            name=_name(self._board, self._last, data),
            kind=self._kind,
            after=self._after,
            last=self._last,
            time_ms=self._time_ms,
            records=len(self._records),
            file_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            before=self._before,
            chain=self._chain,
            digest=self.digest,
            begins=self._kind == BASE and not self.segments,
        )
        if not self.is_rehearsed:
            await self._place.put(segment.name, data)
        self.segments.append(segment)
        self._after, self._before = self._last, self._chain
        self._records, self.size = [], 0
