"""Reads a backup, and checks all of it: each file against the manifest, the chain, the values.

A service may follow the backup meanwhile. A file that it has merged into another one since the
manifest was read is read from there, with the same checks; one that was pruned is Unavailable, and
not Corrupt.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from blackboard.backup import manifest as manifests
from blackboard.backup.manifest import BackupManifest
from blackboard.backup.place import BackupPlace
from blackboard.backup.segment import (
    BASE,
    LOG,
    BaseRecord,
    LogRecord,
    PageRecord,
    Record,
    SegmentFile,
    joined,
    link,
    records_in,
    unpacked,
)
from blackboard.core.history import check_sequence
from blackboard.errors import Corrupt, Unavailable
from blackboard.units import Milliseconds, Revision


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What a backup holds of a board: from revision `first` to `last`, which is of `time_ms`."""

    board: str
    first: Revision
    last: Revision
    time_ms: Milliseconds
    segments: int
    bytes: int
    removed: bool = False


async def packed_records(place: BackupPlace, segment: SegmentFile) -> Sequence[bytes]:
    """The packed records of a file, which is what the manifest says. Errors: Corrupt;
    Unavailable."""
    data = await place.get(segment.name)
    if data is None:
        return await _merged(place, segment)
    # Before it is unpacked, so that only what we wrote is.
    if len(data) != segment.file_bytes or hashlib.sha256(data).hexdigest() != segment.sha256:
        raise place.corrupt(segment.name, "it is not what was written")
    try:
        records = await asyncio.to_thread(lambda: list(records_in(data)))
    except ValueError as error:
        raise place.corrupt(segment.name, str(error)) from error
    chain = segment.before
    for record in records if segment.kind == LOG else ():
        chain = link(chain, record)
    if chain != segment.chain or len(records) != segment.records:
        raise place.corrupt(segment.name, "its records are not those of the chain")
    return records


async def _merged(place: BackupPlace, segment: SegmentFile) -> Sequence[bytes]:
    """The records of a file that is gone, from the one into which it was merged. That one may be
    gone, too, and so on: a few times, because merging makes fewer and larger files.

    Errors: Corrupt if the manifest still names the file; Unavailable if it was pruned.
    """
    segments = await _segments_now(place, segment)
    if any(each.name == segment.name for each in segments):
        raise place.corrupt(segment.name, "it is missing")
    for other in segments:
        covers = other.after <= segment.after and segment.last <= other.last
        if covers and other.kind == segment.kind == LOG:
            found = _part_of(place, await packed_records(place, other), other, segment)
            if found is not None:
                return found
    raise _changed(place)


def _part_of(
    place: BackupPlace, records: Sequence[bytes], other: SegmentFile, segment: SegmentFile
) -> Sequence[bytes] | None:
    """The records of `segment` among those of `other`: the chain says where they begin and end.
    None if `other` is of another history with these revisions."""
    chain, begin = other.before, 0
    while chain != segment.before and begin < len(records):
        chain = link(chain, records[begin])
        begin += 1
    if begin == len(records):
        return None
    found = records[begin : begin + segment.records]
    for record in found:
        chain = link(chain, record)
    if chain != segment.chain:
        raise place.corrupt(other.name, f"it does not have what {segment.name} had")
    return found


async def _segments_now(place: BackupPlace, segment: SegmentFile) -> Sequence[SegmentFile]:
    """The files that the manifest of this board names by now. Errors: Corrupt if there is none."""
    board = manifests.board_of(segment.name)
    found = await manifests.read(place, await place.id(), board)
    if found is None:
        raise place.corrupt(segment.name, "it is missing, and so is its manifest")
    return found.segments


def _changed(place: BackupPlace) -> Unavailable:
    reason = "it was pruned, or begun again, while it was read: read it once more"
    return Unavailable(what=f"backup {place.where}", reason=reason)


async def _values(
    place: BackupPlace, segment: SegmentFile, names: set[bytes]
) -> dict[bytes, bytes]:
    """Large values that a file names. Errors: Corrupt; Unavailable, also if a file that was pruned
    named them."""
    try:
        return {name: await place.blobs.get(name) for name in names}
    except Corrupt as error:
        if all(each.name != segment.name for each in await _segments_now(place, segment)):
            raise _changed(place) from error
        raise


async def records_of(place: BackupPlace, segment: SegmentFile) -> AsyncIterator[Record]:
    """The records of a file, each with its large values when it is its turn: those of all would be
    more than memory holds. Errors: Corrupt; Unavailable."""
    for record in await small_records(place, segment):
        yield await whole(place, segment, record)


async def small_records(place: BackupPlace, segment: SegmentFile) -> Sequence[Record]:
    """The records of a file, without their large values. Errors: Corrupt; Unavailable."""
    try:
        found = [unpacked(data) for data in await packed_records(place, segment)]
        _check_kind(segment, found)
    except (ValueError, IndexError) as error:
        raise place.corrupt(segment.name, str(error)) from error
    return found


async def whole(place: BackupPlace, segment: SegmentFile, record: Record) -> Record:
    """A record of a file with its large values. Errors: Corrupt; Unavailable."""
    if isinstance(record, BaseRecord) or not record.blobs:
        return record
    values = await _values(place, segment, set(record.blobs.values()))
    try:
        return joined(record, values)
    except IndexError as error:
        raise place.corrupt(segment.name, str(error)) from error


async def blobs_of(place: BackupPlace, segment: SegmentFile) -> set[bytes]:
    """The SHA-256 of the large values that a file names. Errors: Corrupt; Unavailable."""
    found: set[bytes] = set()
    try:
        for data in await packed_records(place, segment):
            record = unpacked(data)
            if not isinstance(record, BaseRecord):
                found |= set(record.blobs.values())
    except ValueError as error:
        raise place.corrupt(segment.name, str(error)) from error
    return found


def _check_kind(segment: SegmentFile, records: Sequence[Record]) -> None:
    """Errors: ValueError; Corrupt when the log has a gap."""
    if segment.kind == BASE:
        rest = records[1:] if segment.begins else records
        first = isinstance(records[0], BaseRecord) == segment.begins
        if not first or not all(isinstance(record, PageRecord) for record in rest):
            raise ValueError("it is no base")
        return
    entries = [record.entry for record in records if isinstance(record, LogRecord)]
    if len(entries) != len(records) or check_sequence(segment.after, entries) != segment.last:
        raise ValueError("it is not the log that the manifest names")


async def backed_up(place: BackupPlace) -> AsyncIterator[BackupManifest]:
    """The manifests of a backup, sorted by board. Errors: InvalidRequest when there is none;
    Corrupt; NewerFormat; Unavailable."""
    name = await place.id()
    for board in await manifests.boards(place):
        found = await manifests.read(place, name, board)
        if found is not None and found.segments:
            yield found


async def verify(place: BackupPlace) -> AsyncIterator[BackedUp]:
    """Read every file of a backup and check it; yields what each board has, once that is sound.

    Errors: as `backed_up`. The first damaged file ends it, named.
    """
    async for manifest in backed_up(place):
        for segment in manifest.segments:
            async for _ in records_of(place, segment):
                pass
        yield summary(manifest)


def summary(manifest: BackupManifest) -> BackedUp:
    """What a backup holds of a board."""
    first = manifest.segments[0].last
    last = manifest.segments[-1]
    count = len(manifest.segments)
    return BackedUp(
        manifest.board, first, last.last, last.time_ms, count, manifest.file_bytes, manifest.removed
    )
