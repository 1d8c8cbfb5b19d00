"""Retention: removes the oldest history from a backup, and gives its room back.

The files up to some place are replaced by a base with the content to which they lead; the log
goes on from there. What is newer stays as it is.

Invariants
- The newest state of every board stays, whatever the policy.
- The base is complete before anything is removed. A crash in between leaves files that no manifest
  names; the next call removes them.
- What is removed is named by no manifest as they are then, and not only as they were when this
  began. If another process may have written to the backup meanwhile, nothing is removed.
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from blackboard.archive.sql import archive_beside
from blackboard.backup.manifest import BOARDS, BackupManifest
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import backed_up, blobs_of
from blackboard.backup.replay import Replay
from blackboard.backup.segment import LOG, SegmentFile
from blackboard.backup.ship import ArchivedBoard
from blackboard.backup.write import BoardWriter
from blackboard.errors import InvalidRequest
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Milliseconds

_BLOB_NAME: Final = "blobs/[0-9a-f]{2}/[0-9a-f]{64}"
_BLOB: Final = re.compile(rf"^{_BLOB_NAME}$")
_DRAFT: Final = re.compile(
    rf"^(backup\.json|boards/[^/]+/([^/]+\.segment|manifest\.json)|{_BLOB_NAME})\.[0-9a-f]{{16}}$"
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
        # Counted, not subtracted: where an epoch begins, revisions are skipped by the million.
        newer, count, size = sum(map(_commits_in, segments)), 0, sum(logs)
        by_need = self.age_ms is not None or self.revisions is not None
        for place, segment in enumerate(segments, 1):
            size -= logs[place - 1]
            newer -= _commits_in(segment)
            is_old = self.age_ms is None or segment.time_ms <= now_ms - self.age_ms
            is_far = self.revisions is None or newer >= self.revisions
            is_large = self.bytes_max is not None and size + logs[place - 1] > self.bytes_max
            if not ((by_need and is_old and is_far) or is_large):
                break
            count = place
        is_worth = any(logs[:count])  # else a base would be replaced by the same base
        return count if is_worth else 0


def _commits_in(segment: SegmentFile) -> int:
    return segment.records if segment.kind == LOG else 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a board's backup lost: `files`, which had `bytes` more than the base in their place, and
    its history up to revision `below`."""

    board: str
    below: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Removal:
    """What went from a backup, or would go: of boards, and `others` with `other_bytes`: large
    values that nothing names any more, and files that a crash left."""

    boards: Sequence[Dropped]
    others: int
    other_bytes: int

    @property
    def bytes(self) -> int:
        """What the file system gets back."""
        return self.other_bytes + sum(each.bytes for each in self.boards)


async def prune(
    place: BackupPlace,
    policy: Policy,
    now_ms: Milliseconds,
    *,
    dry_run: bool = False,
    limits: Limits = DEFAULT,
) -> Removal:
    """Remove what the policy does not keep; returns what went, or with `dry_run` would go.

    It reads the whole backup, but for large values, and needs room for a copy of one board's
    history in the directory for temporary files. Errors: Unavailable while another process writes
    to the backup; Corrupt; InvalidRequest.
    """
    name = await place.id()
    # A dry run goes beside the service that follows the backup, and so takes no lock.
    if not dry_run:
        await place.lock()
    try:
        return await _prune(place, policy, now_ms, _Needed(place, name, limits, dry_run=dry_run))
    finally:
        if not dry_run:
            await place.unlock()


async def _prune(
    place: BackupPlace, policy: Policy, now_ms: Milliseconds, kept: "_Needed"
) -> Removal:
    found: list[Dropped] = []
    async for manifest in backed_up(place):
        count = policy.count(manifest.segments, now_ms)
        base_bytes = await kept.shorten(manifest, count) if count else None
        if base_bytes is None:
            count = 0
        else:
            gone = manifest.segments[:count]
            size = sum(segment.file_bytes for segment in gone) - base_bytes
            found.append(Dropped(manifest.board, gone[-1].last, count, size))
        await kept.keep(manifest, count)
    left = await kept.others()
    return Removal(found, len(left), sum(left.values()))


class _Needed:
    """What of a backup is needed once a policy was applied to it."""

    def __init__(self, place: BackupPlace, backup: str, limits: Limits, *, dry_run: bool) -> None:
        self._place = place
        self._backup = backup
        self._limits = limits
        self._dry_run = dry_run
        self._names: set[str] = set()
        self._blobs: set[bytes] = set()

    async def shorten(self, manifest: BackupManifest, count: int) -> int | None:
        """Replace the first files by a base; returns its size. None, and nothing changes, if they
        do not lead to one content: the board went on while the base in them was read, and what it
        committed meanwhile is in the files behind."""
        assert manifest.backup == self._backup
        old = replace(manifest, segments=manifest.segments[:count])
        with tempfile.TemporaryDirectory() as directory:
            archive = await archive_beside(Path(directory), self._limits)
            try:
                # As in a recovery, so that the base has what these files would have brought back.
                mark = await Replay(self._place, archive, old, limits=self._limits).run()
                if mark.revision < mark.oldest:
                    return None
                source = ArchivedBoard(archive, manifest.board, mark)
                head, items, pages = await source.base(mark.revision)
                # The time of its last commit, by which the next pruning judges its age.
                head = replace(head, time_ms=old.time_ms)
                writer = BoardWriter(self._place, manifest, self._limits)
                base = await writer.begin_after(count, head, items, pages, dry_run=self._dry_run)
            finally:
                await archive.aclose()
        # Old ones too: their sizes count for this board, and not among the others.
        self._names |= {segment.name for segment in (*manifest.segments, *writer.manifest.segments)}
        self._blobs |= set(base.blobs)
        return base.size

    async def keep(self, manifest: BackupManifest, count: int) -> None:
        """Keep all but the first `count` files of a board."""
        for segment in manifest.segments[count:]:
            self._names.add(segment.name)
            self._blobs |= await blobs_of(self._place, segment)

    async def others(self) -> Mapping[str, int]:
        """Remove every other file that only a backup has; returns their sizes."""
        # In this order: what another process added since then is not among them, or is named.
        sizes = await self._place.sizes()
        await self._look_again()
        needed = self._names | {self._place.blob(name) for name in self._blobs}
        left: dict[str, int] = {}
        for name, size in sizes.items():
            is_segment = name.startswith(BOARDS) and name.endswith(".segment")
            is_ours = is_segment or _BLOB.search(name) is not None
            if _DRAFT.search(name) or (is_ours and name not in needed):
                left[name] = size
        if not self._dry_run:
            await self._place.remove_needless(left)
        return left

    async def _look_again(self) -> None:
        """Keep what the manifests name by now, too."""
        async for manifest in backed_up(self._place):
            for segment in manifest.segments:
                if segment.name not in self._names:
                    self._names.add(segment.name)
                    self._blobs |= await blobs_of(self._place, segment)
