"""The backup that a service follows: one task ships what was archived since the last round.

It runs inside the service and not beside it, because the service has the engine open: an embedded
data directory has one owner, and what is encrypted stays so on its way.

Invariants
- No commit waits for it, and none of its errors reaches a commit.
- A board that has less than its backup continues above it: before the service accepts a commit, or,
  if the backup did not answer then, as soon as it does.
- While another process writes to the backup, this one waits and takes over when that ends.
- What a service committed that was killed, or whose archive was away, is shipped too, although
  nobody uses its board: `_archive_rest` makes the archive complete.
- A service that stops ships everything, once its archive is complete: after a clean stop, the
  backup has every acknowledged commit.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from blackboard.archive.base import Archive
from blackboard.backup import manifest as manifests
from blackboard.backup.place import BackupPlace
from blackboard.backup.segment import SegmentFile
from blackboard.backup.ship import Shipped, Shipper
from blackboard.client.cancellation import heed_cancellation
from blackboard.core.access import OWN_BOARDS
from blackboard.core.commit import Head
from blackboard.core.history import jump
from blackboard.encryption.archive import SealedArchive
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import Store
from blackboard.errors import BlackboardError, Corrupt, InvalidRequest, NewerFormat
from blackboard.limits import DEFAULT, Limits
from blackboard.server.archiver import Archiver
from blackboard.units import Milliseconds, Revision

log = logging.getLogger(__name__)
_FIRST_RETRY_MS: Final = 100


@dataclass(frozen=True, slots=True)
class BackupStatistics:
    """How the backup keeps up: every commit that is older than `lag_ms` is in it, but for those
    that another service has not archived yet; `failing` says that the last round failed. `entries`
    and `bytes` were shipped by this process."""

    lag_ms: Milliseconds
    failing: bool
    entries: int
    bytes: int


def behind_encryption(store: Store, archive: Archive | None) -> tuple[Store, Archive | None]:
    """The store and the archive that hold what is encrypted as it is."""
    raw = store.raw if isinstance(store, SealedStore) else store
    return raw, archive.raw if isinstance(archive, SealedArchive) else archive


class BackupFollower:
    """Ships the boards of `store` to `place`, from `start` until `aclose`."""

    def __init__(
        self,
        place: BackupPlace,
        store: Store,
        archiver: Archiver | None,
        limits: Limits = DEFAULT,
    ) -> None:
        archive = None if archiver is None else archiver.archive
        self._store, self._archive = behind_encryption(store, archive)
        self._archiver = archiver
        self._limits = limits.backup
        self._retry_ms = limits.archive.archive_retry_ms
        self._finish_ms = limits.client.finish_timeout_ms
        self._scan_ms = limits.boards.engine_check_interval_ms
        self._shipper = Shipper(place, self._store, self._archive, limits)
        self._place = place
        self._task: asyncio.Task[None] | None = None
        self._begun = False
        self._is_compared = False
        self._newest: dict[str, SegmentFile] = {}
        """The last file of each board that was not compared with the engine yet."""
        self._uncompared: set[str] = set()
        """Those of them that exist, or may exist."""
        self.warnings: dict[str, str] = {}
        """The boards that had less than their backup."""
        self._unknown: set[str] = set()
        """The boards of which the archive may lack what was committed before this process."""
        self._known: set[str] = set()
        """Those of which this process has found that out."""
        self._late: set[str] = set()
        """Those of them that the archiver follows because the archive had less."""
        self._scanned_s = float("-inf")
        self._complete_s = time.monotonic()
        """When everything was in the backup, by the clock of `time.monotonic`."""
        self._failures = 0
        self._total = Shipped()

    async def start(self) -> None:
        """Compare the boards with the backup, if it answers within BACKUP_START_MS, and begin to
        follow."""
        try:
            async with asyncio.timeout(self._limits.backup_start_ms / 1000):
                failure = await self._compare()
                if failure is not None:
                    raise failure
        except Exception as error:  # the service starts without it, and `_run` tries again
            if not isinstance(error, InvalidRequest):  # there is no backup yet
                reason = str(error) or "it does not answer"
                text = "boards are not compared with the backup yet: %s"
                log.warning(text, reason, exc_info=_unforeseen(error))
        self._task = asyncio.create_task(self._run(), name="backup")

    def statistics(self) -> BackupStatistics:
        """A snapshot for metrics."""
        lag_ms = int((time.monotonic() - self._complete_s) * 1000)
        return BackupStatistics(lag_ms, self._failures > 0, self._total.entries, self._total.bytes)

    async def stop(self) -> None:
        """Stop following. `finish` ships the rest, once the archiver is closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(self._finish_ms / 1000):
                await self._archive_rest(await self._shipper.boards(), self._finish_ms)
        except Exception as error:  # the service is closed nevertheless
            text = "it is not known whether the archive has all boards: %s"
            log.warning(text, str(error) or "timeout", exc_info=_unforeseen(error))

    async def finish(self) -> None:
        """Ship everything, once the archive is complete, and release the backup. Errors: none; a
        failure is logged."""
        try:
            async with asyncio.timeout(self._finish_ms / 1000):
                # A scan finds the boards that this process did not follow, too.
                self._scanned_s = float("-inf")
                await self._round()
        except Exception as error:  # else the archive and the lock would stay open
            why = str(error) or "timeout"
            log.warning(
                "the backup %s is not complete: %s",
                self._place.where,
                why,
                exc_info=_unforeseen(error),
            )
        # Also after a failure: its lease would be renewed for as long as this process lives.
        with contextlib.suppress(BlackboardError, TimeoutError):
            async with asyncio.timeout(self._finish_ms / 1000):
                await self._shipper.end()

    async def _run(self) -> None:
        while True:
            pause_ms = self._limits.backup_interval_ms
            try:
                await self._round()
                self._failures = 0
            except Exception as error:  # nobody else would begin again
                self._failures += 1
                # Bounded: the number of failures grows for as long as the place is away.
                pause_ms = min(_FIRST_RETRY_MS << min(self._failures, 16), self._retry_ms)
                if self._failures == 1:
                    log.warning("the backup waits: %s", error, exc_info=_unforeseen(error))
                self._begun = self._is_compared = False  # what is there is read again
            heed_cancellation()
            await asyncio.sleep(pause_ms / 1000)

    async def _round(self) -> None:
        begun_s = time.monotonic()
        if not self._begun:
            await self._begin()
        elif self._uncompared:
            await self._compare_rest()
        archiver = self._archiver
        # Before the round: what the archive lacks now, the round cannot ship.
        late_ms = 0 if archiver is None else archiver.statistics().lag_ms
        is_scan = begun_s - self._scanned_s >= self._scan_ms / 1000
        # Without an archive nothing says which boards have changed.
        if is_scan or self._archive is None:
            names: Collection[str] = await self._shipper.boards()
        else:
            names = await self._changed(self._archive)
        found = names if is_scan else ()
        is_behind = await self._archive_rest(found, self._limits.backup_interval_ms)
        self._total = self._total.plus(await self._shipper.round(names))
        if is_scan:
            await self._shipper.note_removed(names)
            self._scanned_s = begun_s
        # As of the beginning: the round may have missed what was committed since.
        if not is_behind:
            self._complete_s = begun_s - late_ms / 1000

    async def _archive_rest(self, names: Collection[str], within_ms: Milliseconds) -> bool:
        """Let the archiver take in what was committed before this process and is not archived, of
        `names` and of those that are left of earlier calls; returns whether there is any, or may
        be.

        A board is archived once somebody uses it, and nobody may use this one again. Each is
        compared once, as many as fit into `within_ms` but one at least; one that fails is compared
        again after the next scan. Errors: Unavailable.
        """
        archiver, archive = self._archiver, self._archive
        if archiver is None or archive is None:
            return False
        await self._let_go(archiver)
        self._unknown.update(name for name in names if name not in self._known)
        if not self._unknown:
            return False
        until_s, found = time.monotonic() + within_ms / 1000, len(self._late)
        ends = await archive.ends()
        for name in sorted(self._unknown):
            self._unknown.discard(name)
            try:
                # One that the archive does not know is shipped from the engine.
                if name in ends and await self._is_ahead(name, ends[name]):
                    archiver.poke(name)
                    self._late.add(name)
                self._known.add(name)
            except BlackboardError as error:
                log.debug("board %s is not compared with its archive: %s", name, error)
            if time.monotonic() >= until_s:
                break
        return bool(self._unknown) or len(self._late) > found

    async def _is_ahead(self, name: str, end: Revision) -> bool:
        return await self._store.exists(name) and (await self._store.open(name)).revision > end

    async def _let_go(self, archiver: Archiver) -> None:
        """Let the archiver leave what it took in. A board that is used is followed again with its
        next commit."""
        for name in [name for name in self._late if archiver.is_at_rest(name)]:
            with contextlib.suppress(BlackboardError):
                if await archiver.leave(name):
                    self._late.discard(name)

    async def _changed(self, archive: Archive) -> Collection[str]:
        """The boards of which the archive has something new, also from other services, and the
        service's own. One that began again may have less than was shipped."""
        ends = await archive.ends()
        new = {name for name, last in ends.items() if last != self._shipper.shipped(name)}
        # The archive does not know all of the service's own boards.
        return new.union(OWN_BOARDS)

    async def _begin(self) -> None:
        await self._shipper.begin()
        if not self._is_compared:
            await self._compare()  # the round names what is damaged, after the other boards
        self._begun = True

    async def _compare(self) -> BlackboardError | None:
        """Make sure that each board continues above all of its revisions in the backup: an older
        copy of the data directory may have been put back. Boards that do not exist are compared
        when they begin.

        Returns why the first one could not be compared, which holds up no other board: its manifest
        is damaged, or what the engine has. Errors: Unavailable when the backup does not answer;
        InvalidRequest when there is none.
        """
        failure: BlackboardError | None = None
        name = await self._place.id()
        for board in await manifests.boards(self._place):
            try:
                manifest = await manifests.read(self._place, name, board)
            except (Corrupt, NewerFormat) as error:
                failure = failure or error
                continue
            if manifest is None or manifest.removed or not manifest.segments:
                continue
            self._newest[board] = manifest.segments[-1]
            self._uncompared.add(board)
        failure = await self._compare_rest() or failure
        self._is_compared = True
        return failure

    async def _compare_rest(self) -> BlackboardError | None:
        """Compare the boards that were not; those that fail are tried again in the next round.
        Returns why the first one failed. Errors: none."""
        failure: BlackboardError | None = None
        for board in sorted(self._uncompared):
            try:
                if await self._store.exists(board):
                    await self.go_above(board)
                self._uncompared.discard(board)
            except BlackboardError as error:
                failure = failure or error
        return failure

    async def go_above(self, board: str) -> None:
        """Compare a board with its backup, if that was not done yet. Errors: Unavailable."""
        newest = self._newest.get(board)
        if newest is None:
            return
        mark = None if self._archive is None else await self._archive.mark(board)
        if mark is None or mark.revision < newest.last:  # else server/continuity.py compares it
            head = await self._store.open(board)
            if head.revision < newest.last:
                await self._begin_above(board, head, newest)
        # Last: a comparison that failed is made again the next time that the board is used.
        self._newest.pop(board, None)

    async def _begin_above(self, board: str, head: Head, newest: SegmentFile) -> None:
        # The older the backup is, the more may have been given out since: so the jump grows.
        above = jump(newest.last, newest.time_ms, time.time_ns() // 1_000_000)
        new = await self._store.begin_epoch(board, head, above=above)
        text = (
            f"board {board}: its engine is at revision {head.revision}, its backup at"
            f" {newest.last}: an older copy was put back. It continues at {new.revision};"
            f" `blackboard recover --from {self._place.where}` brings the rest back"
        )
        self.warnings[board] = text
        log.warning("%s", text)


def _unforeseen(error: Exception) -> Exception | None:
    """The error if it is a bug, of which the log shows where it came from."""
    return None if isinstance(error, BlackboardError | TimeoutError) else error
