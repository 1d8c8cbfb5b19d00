"""The backup that a service follows: one task ships what was archived since the last round.

It runs inside the service and not beside it, because the service has the engine open: an embedded
data directory has one owner, and what is encrypted stays so on its way.

Invariants
- No commit waits for it, and none of its errors reaches a commit.
- While another process writes to the backup, this one waits and takes over when that ends.
- A service that stops ships everything, once its archive is complete: after a clean stop, the
  backup has every acknowledged commit.
"""

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from blackboard.archive.base import Archive
from blackboard.backup import read
from blackboard.backup.place import BackupPlace
from blackboard.backup.ship import Shipped, Shipper
from blackboard.client.cancellation import heed_cancellation
from blackboard.encryption.archive import SealedArchive
from blackboard.encryption.data_keys import KEYS_BOARD
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import Store
from blackboard.errors import BlackboardError
from blackboard.limits import DEFAULT, Limits
from blackboard.server.archiver import Archiver
from blackboard.server.overload.accounts import BOARDS_BOARD
from blackboard.server.security.audit import AUDIT_BOARD
from blackboard.server.security.revocations import ACCESS_BOARD
from blackboard.units import Milliseconds

log = logging.getLogger(__name__)
_FIRST_RETRY_MS: Final = 100
_OWN_BOARDS: Final = (ACCESS_BOARD, AUDIT_BOARD, BOARDS_BOARD, KEYS_BOARD)


@dataclass(frozen=True, slots=True)
class BackupStatistics:
    """How the backup keeps up: every commit that is older than `lag_ms` is in it; `failing` says
    that the last round failed. `entries` and `bytes` were shipped by this process."""

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
        self._scanned_s = float("-inf")
        self._complete_s = time.monotonic()
        """When everything was in the backup, by the clock of `time.monotonic`."""
        self._failures = 0
        self._total = Shipped()

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._run(), name="backup")

    def statistics(self) -> BackupStatistics:
        """A snapshot for metrics."""
        lag_ms = int((time.monotonic() - self._complete_s) * 1000)
        return BackupStatistics(lag_ms, self._failures > 0, self._total.entries, self._total.bytes)

    async def stop(self) -> None:
        """Stop following. `finish` ships the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def finish(self) -> None:
        """Ship everything, once the archive is complete, and release the backup. Errors: none; a
        failure is logged."""
        try:
            async with asyncio.timeout(self._finish_ms / 1000):
                self._scanned_s = float("-inf")
                await self._round()
                await self._shipper.end()
        except (BlackboardError, TimeoutError) as error:
            log.warning(
                "the backup %s is not complete: %s", self._place.where, str(error) or "timeout"
            )

    async def _run(self) -> None:
        while True:
            pause_ms = self._limits.backup_interval_ms
            try:
                await self._round()
                self._failures = 0
            except BlackboardError as error:
                self._failures += 1
                pause_ms = min(_FIRST_RETRY_MS * 2**self._failures, self._retry_ms)
                if self._failures == 1:
                    log.warning("the backup waits: %s", error)
                self._begun = False  # what is there is read again
            heed_cancellation()
            await asyncio.sleep(pause_ms / 1000)

    async def _round(self) -> None:
        begun_s = time.monotonic()
        if not self._begun:
            await self._begin()
        archiver = self._archiver
        late_ms = 0 if archiver is None else archiver.statistics().lag_ms
        is_scan = begun_s - self._scanned_s >= self._scan_ms / 1000
        if is_scan or archiver is None:
            names: Collection[str] = await self._shipper.boards()
        else:
            names = self._changed(archiver)
        self._total = self._total.plus(await self._shipper.round(names))
        if is_scan:
            await self._shipper.note_removed(names)
            self._scanned_s = begun_s
        self._complete_s = begun_s - late_ms / 1000

    def _changed(self, archiver: Archiver) -> Collection[str]:
        """The boards of this process that have something new, and the service's own."""
        positions = archiver.positions()
        new = {n for n, r in positions.items() if r > (self._shipper.shipped(n) or -1)}
        return new.union(_OWN_BOARDS)

    async def _begin(self) -> None:
        await self._shipper.begin()
        await self._go_above()
        self._begun = True

    async def _go_above(self) -> None:
        """Make sure that each board continues above all of its revisions in the backup: an older
        copy of the data directory may have been put back."""
        async for manifest in read.backed_up(self._place):
            board, last = manifest.board, manifest.segments[-1].last
            mark = None if self._archive is None else await self._archive.mark(board)
            if mark is not None and mark.revision >= last:
                continue  # server/continuity.py compares the engine with the archive
            if manifest.removed or not await self._store.exists(board):
                continue
            head = await self._store.open(board)
            if head.revision < last:
                await self._store.begin_epoch(board, head, above=last)
                log.warning(
                    "board %s: its engine is at revision %d, its backup at %d: an older copy was"
                    " put back. It continues above both; `blackboard recover --from %s` brings the"
                    " rest back",
                    board,
                    head.revision,
                    last,
                    self._place.where,
                )
