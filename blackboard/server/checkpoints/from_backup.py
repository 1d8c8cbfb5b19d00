"""Recovery from a backup: into an empty engine and archive, or into ones that have a part of it.

The history goes into the archive (backup/replay.py); the rest is a recovery of boards that the
engine lost (server/checkpoints/recover.py). An engine without an archive gets one for as long as
that takes.

Invariants
- Nothing is changed before it is clear that no board of the target is newer than the backup, or has
  another history, unless that is to be set aside.
- A recovered board continues far above every revision that can have been given out since the newest
  one in the backup, in a new epoch: processes from the lost future are refused.
- The service's own boards (revocations, audit, data keys) come back at their newest, whatever the
  moment: a revocation stays one.
- It can be repeated, also after a crash.
"""

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from blackboard.archive.base import Archive
from blackboard.archive.sql import archive_beside
from blackboard.backup.manifest import BackupManifest
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import backed_up
from blackboard.backup.replay import Progress, Replay, ahead, folded
from blackboard.core.access import OWN_BOARDS_UNARCHIVED, is_reserved
from blackboard.core.checkpoints import (
    Instant,
    Moment,
    Point,
    Recovered,
    RecoverRequest,
)
from blackboard.core.commit import RECOVER, Entry, Epoch, Seed
from blackboard.core.history import jump
from blackboard.engines.base import Store, pages_of
from blackboard.errors import InvalidRequest, NoSuchBoard
from blackboard.integrity.digest_check import Sums
from blackboard.limits import DEFAULT, LIST_ENTRIES_MAX, Limits
from blackboard.server.assembly import sealed
from blackboard.server.backups.follow import behind_encryption
from blackboard.server.backups.once import complete
from blackboard.server.checkpoints.recover import Recoveries
from blackboard.server.service import Service
from blackboard.server.settings import Settings, make_archive, make_store, wrapper_of
from blackboard.units import Revision


@dataclass(frozen=True, slots=True)
class BoardRecovered:
    """A board that is back: with its content of `from_revision`, it continues at `revision`, in
    `epoch`. The backup had it up to `through`."""

    board: str
    from_revision: Revision
    through: Revision
    revision: Revision
    epoch: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to recover: `boards` (empty = all) as of a moment (None = the newest). With `aside`, a
    newer or different history in the target is set aside, and not a reason to refuse."""

    boards: Collection[str] = ()
    at: Moment | None = None
    aside: bool = False
    note: str = ""


async def recover_from(
    settings: Settings,
    place: BackupPlace,
    wanted: Wanted,
    *,
    limits: Limits = DEFAULT,
    progress: Progress = lambda _: None,
) -> Sequence[BoardRecovered]:
    """Recover boards into the engine and the archive that the settings name. No service may use
    them.

    Errors: InvalidRequest, naming the board, when the target is newer or has another history, or
    the moment is a name and several boards are wanted; NoSuchBoard; NoSuchCheckpoint;
    DataDirectoryInUse; Corrupt; NewerFormat; Unavailable. It can be repeated.
    """
    if wanted.aside and not (settings.engine == "sqlite" or settings.archive):
        reason = "without an archive there is no place for what is set aside"
        raise InvalidRequest(field="aside", reason=reason)
    manifests = await _chosen(place, wanted)
    async with _opened(settings, limits) as (store, archive):
        target = _Target(place, store, archive, wanted, limits, progress)
        # What the target itself has is archived first: `check` looks there, and the engine's part
        # of a board is dropped later.
        await complete(store, archive, limits)
        await target.check(manifests)
        # First those that were set apart: another history of a board gets the next free name.
        for manifest in sorted(manifests, key=lambda each: not each.apart_from):
            await target.bring(manifest)
        empty = {m.board for m in manifests if not await archive.holds(m.board)}
        wrapper = await wrapper_of(settings)
        public = settings.seal_public
        front, sealing = await sealed(store, archive, wrapper, public=public, limits=limits)
        async with Service(front, archive=sealing, limits=limits) as service:
            return [
                await _recover(service, manifest, wanted, is_empty=manifest.board in empty)
                for manifest in manifests
                if _is_recovered(manifest)
            ]


async def size_of(place: BackupPlace, wanted: Wanted) -> int:
    """How many bytes of the backup will be read. Errors: as `recover_from`."""
    return sum(manifest.file_bytes for manifest in await _chosen(place, wanted))


async def _chosen(place: BackupPlace, wanted: Wanted) -> Sequence[BackupManifest]:
    found = [manifest async for manifest in backed_up(place)]
    names = {manifest.board for manifest in found if _is_recovered(manifest)}
    for name in wanted.boards:
        if name not in names:
            raise NoSuchBoard(name)
    if isinstance(wanted.at, str | int) and len(wanted.boards) != 1:
        reason = "a checkpoint or a revision belongs to one board: name it"
        raise InvalidRequest(field="at", reason=reason)
    keep = set(wanted.boards) or {manifest.board for manifest in found}
    return [m for m in found if m.board in keep or is_reserved(m.board)]


def _is_recovered(manifest: BackupManifest) -> bool:
    is_own = is_reserved(manifest.board)
    return not (is_own or manifest.removed or manifest.apart_from)


@contextlib.asynccontextmanager
async def _opened(settings: Settings, limits: Limits) -> AsyncIterator[tuple[Store, Archive]]:
    """The engine and the archive; what uses them closes them, too."""
    store = await make_store(settings, limits)
    with contextlib.ExitStack() as stack:
        try:
            archive: Archive | None = await make_archive(settings, limits, store)
            if archive is None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                archive = await archive_beside(directory, limits)
        except BaseException:
            await store.aclose()
            raise
        try:
            yield store, archive
        finally:  # both may be closed again
            await archive.aclose()
            await store.aclose()


class _Target:
    """An engine and an archive, behind the encryption, that get what a backup has."""

    def __init__(
        self,
        place: BackupPlace,
        store: Store,
        archive: Archive,
        wanted: Wanted,
        limits: Limits,
        progress: Progress,
    ) -> None:
        self._place = place
        self._store = store
        self._archive = archive
        self._wanted = wanted
        self._limits = limits
        self._read = 0
        self._progress = progress

    async def check(self, manifests: Sequence[BackupManifest]) -> None:
        """Errors: InvalidRequest when the target has something newer."""
        if self._wanted.aside:
            return
        for manifest in manifests:
            if is_reserved(manifest.board):
                continue
            found = await ahead(self._archive, manifest)
            if found is not None:
                reason = f"the target has a newer board {manifest.board}: {found.reason}"
                raise InvalidRequest(field="board", reason=reason)

    async def bring(self, manifest: BackupManifest) -> None:
        """Bring what a backup has of one board into the target. Errors: as `recover_from`."""
        if manifest.board in OWN_BOARDS_UNARCHIVED:  # no archive keeps it
            await self._seed(manifest)
            self._count(manifest.file_bytes)
            return
        newer = await ahead(self._archive, manifest)
        is_apart = newer is not None and self._wanted.aside
        if newer is None or is_apart:
            replay = Replay(
                self._place,
                self._archive,
                manifest,
                apart=is_apart,
                limits=self._limits,
                progress=self._count,
            )
            await replay.run()
        if not manifest.apart_from and not manifest.removed:
            await self._go_above(manifest)

    def _count(self, size: int) -> None:
        self._read += size
        self._progress(self._read)

    async def _go_above(self, manifest: BackupManifest) -> None:
        """Begin an empty board in an epoch above all revisions that can have been given out.

        What the engine has of it is in the archive.
        """
        board, last = manifest.board, manifest.segments[-1]
        mark = await self._archive.mark(board)
        newest = 0 if mark is None else mark.revision
        if await self._store.exists(board):
            newest = max(newest, (await self._store.open(board)).revision)
            await self._archive.copy_values(board)
            await self._store.drop(board)
        head = await self._store.open(board, again=True)
        # Another history of that name may have gone further.
        highest = max(segment.last for segment in manifest.segments)
        above = jump(highest, last.time_ms, time.time_ns() // 1_000_000)
        await self._store.begin_epoch(board, head, above=max(above, newest))

    async def _seed(self, manifest: BackupManifest) -> None:
        """Put a board that no archive keeps into the engine, unless it has content there."""
        board = manifest.board
        head = None
        if await self._store.exists(board):
            head = await self._store.open(board)
            # Put there by an earlier attempt, and perhaps changed since: it stays.
            if (await self._store.list(board, "", limit=1)).entries:
                return
        state = await folded(self._place, manifest)
        last = manifest.segments[-1]
        now_ms = time.time_ns() // 1_000_000
        revision = jump(last.last, last.time_ms, now_ms)
        if head is not None:
            revision = max(revision, head.revision + 1)
        number = 1 if head is None else head.epoch.number
        epoch = Epoch(number + 1, f"{last.sha256[:16]}", RECOVER, last.last, revision)
        pages = _pages([state[key] for key in sorted(state)])
        await self._store.seed(board, Seed(epoch, now_ms), pages, replaces=head)


async def _pages(entries: Sequence[Entry]) -> AsyncIterator[Sequence[Entry]]:
    for at in range(0, len(entries), LIST_ENTRIES_MAX):
        yield entries[at : at + LIST_ENTRIES_MAX]


async def _recover(
    service: Service, manifest: BackupManifest, wanted: Wanted, *, is_empty: bool
) -> BoardRecovered:
    """Recover a board from the archive, and compare what the engine has then. One that had no
    content and no log yet has begun already."""
    board = manifest.board
    through = manifest.segments[-1].last
    if is_empty:
        head = await service.host.store.open(board)
        return BoardRecovered(board, through, through, head.revision, head.epoch.id)
    at = through if wanted.at is None else wanted.at
    if isinstance(at, Instant):
        at = await _first_at(service, manifest, at) or at
    request = RecoverRequest(at, wanted.note)
    done = Recovered(False, 0, 0, 0, "")
    # Each call waits for RECOVER_WAIT_MS only, and then says how far it is.
    while not done.done:
        done = await Recoveries.of(service.boards).recover(board, request)
    # The archive was checked before. This checks what was written.
    await _compare(service, board, done)
    return BoardRecovered(board, done.from_revision, through, done.revision, done.epoch)


async def _first_at(service: Service, manifest: BackupManifest, at: Instant) -> Revision | None:
    """The revision of the base with which a pruned backup begins, if the board was at that; None if
    not. The archive does not know when that was committed."""
    archive, base = service.host.archive, manifest.segments[0]
    assert archive is not None
    found = await archive.at_time(manifest.board, at.time_ms)
    return base.last if found < base.last and 0 < base.time_ms <= at.time_ms else None


async def _compare(service: Service, board: str, done: Recovered) -> None:
    """Errors: Corrupt unless the engine has the content with the archived digests."""
    store, archive = behind_encryption(service.host.store, service.host.archive)
    assert archive is not None
    sums = Sums()
    async for page in pages_of(store, board, ""):
        await sums.add_all(page.entries)
    digests = (await archive.facts_at(Point(board, done.from_revision))).digests
    await sums.check(digests, f"board {board}, recovered as of revision {done.from_revision}")
