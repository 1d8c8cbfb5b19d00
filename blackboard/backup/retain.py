"""Retention: removes the oldest history from a backup, and gives its room back.

The files up to some place are replaced by a base with the content to which they lead; the log
goes on from there. What is newer stays as it is.

Invariants
- The newest state of every board stays, whatever the policy.
- The base is complete before anything is removed. A crash in between leaves files that no manifest
  names; the next call removes them.
"""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from blackboard.archive.sql import archive_beside
from blackboard.backup.manifest import BOARDS, BackupManifest
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import backed_up
from blackboard.backup.replay import Replay
from blackboard.backup.segment import LOG, SegmentFile
from blackboard.backup.ship import ArchivedBoard
from blackboard.backup.write import BoardWriter
from blackboard.errors import InvalidRequest
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Milliseconds

_DRAFT: Final = re.compile(
    r"^(backup\.json|boards/[^/]+/([^/]+\.segment|manifest\.json)|blobs/[0-9a-f]{2}/[0-9a-f]{64})"
    r"\.[0-9a-f]{16}$"
)
"""What a file of a backup is called while it is being written."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What stays recoverable: every moment of the last `age_ms`, and the newest `revisions` of each
    board. If the log of a board is then larger than `bytes_max`, it is cut further. None = does not
    matter."""

    age_ms: Milliseconds | None = None
    revisions: int | None = None
    bytes_max: int | None = None

    def __post_init__(self) -> None:
        """Errors: InvalidRequest when it keeps everything."""
        if self.age_ms is None and self.revisions is None and self.bytes_max is None:
            raise InvalidRequest(field="keep", reason="nothing says what to keep")

    def count(self, segments: Sequence[SegmentFile], now_ms: Milliseconds) -> int:
        """How many of the first files may go."""
        logs = [each.file_bytes if each.kind == LOG else 0 for each in segments]
        last, count, size = segments[-1].last, 0, sum(logs)
        by_need = self.age_ms is not None or self.revisions is not None
        for place, segment in enumerate(segments, 1):
            size -= logs[place - 1]
            is_old = self.age_ms is None or segment.time_ms <= now_ms - self.age_ms
            is_far = self.revisions is None or segment.last <= last - self.revisions
            is_large = self.bytes_max is not None and size + logs[place - 1] > self.bytes_max
            if not ((by_need and is_old and is_far) or is_large):
                break
            count = place
        is_worth = any(logs[:count])  # else a base would be replaced by the same base
        return count if is_worth else 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a board's backup lost: `files`, with `bytes`, and its history up to revision `below`."""

    board: str
    below: int
    files: int
    bytes: int


async def prune(
    place: BackupPlace,
    policy: Policy,
    now_ms: Milliseconds,
    *,
    dry_run: bool = False,
    limits: Limits = DEFAULT,
) -> Sequence[Dropped]:
    """Remove what the policy does not keep; returns what went, or would go.

    It needs room for a copy of one board's history in the directory for temporary files. Errors:
    Unavailable while another process writes to the backup; Corrupt; InvalidRequest.
    """
    name = await place.id()
    if not dry_run:
        await place.lock()
    try:
        found: list[Dropped] = []
        async for manifest in backed_up(place):
            assert manifest.backup == name
            count = policy.count(manifest.segments, now_ms)
            gone = manifest.segments[:count]
            if not gone:
                continue
            size, last = sum(segment.file_bytes for segment in gone), gone[-1].last
            if not dry_run:
                size -= await _shorten(place, manifest, count, limits)
            found.append(Dropped(manifest.board, last, count, size))
        if not dry_run:
            await _tidy(place)
        return found
    finally:
        if not dry_run:
            await place.unlock()


async def _shorten(place: BackupPlace, manifest: BackupManifest, count: int, limits: Limits) -> int:
    """Replace the first files by a base; returns its size."""
    old = replace(manifest, segments=manifest.segments[:count])
    with tempfile.TemporaryDirectory() as directory:
        archive = await archive_beside(Path(directory), limits)
        try:
            mark = await Replay(place, archive, old, limits=limits).run()
            source = ArchivedBoard(archive, manifest.board, mark)
            head, items, pages = await source.base(mark.revision)
            head = replace(head, time_ms=old.time_ms)
            writer = BoardWriter(place, manifest, limits)
            await writer.begin_after(count, head, items, pages)
        finally:
            await archive.aclose()
    kept = len(manifest.segments) - count
    return sum(
        s.file_bytes for s in writer.manifest.segments[: len(writer.manifest.segments) - kept]
    )


async def _tidy(place: BackupPlace) -> None:
    """Remove the files that no manifest names, and the drafts, which a crash left."""
    named = {segment.name async for each in backed_up(place) for segment in each.segments}
    for name in await place.names():
        is_left = name.startswith(BOARDS) and name.endswith(".segment") and name not in named
        if is_left or _DRAFT.search(name):
            await place.remove(name)
