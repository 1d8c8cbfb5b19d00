"""Writes pages of a board's log into the archive, one transaction each.

Invariants
- A page is written whole, by the current archiver, after the revision that it follows; or it is not
  written. So two processes that write pages leave no gap and no duplicate.
- What needs more than the database (checkpoints, blobs) is not written without `PageTools`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive import boards as archive_boards
from blackboard.archive.append import Appending, PageTools, Warm, Warmth
from blackboard.archive.base import Pause, let_others_run
from blackboard.archive.database import Database
from blackboard.archive.fold import CHECKPOINTS, large_values
from blackboard.archive.history import ArchivedHistory, board_by_id, segments_of
from blackboard.core.checkpoints import Mark
from blackboard.core.commit import RESTORE, Epoch, LogEntry
from blackboard.engines.base import LoggedValue
from blackboard.limits import BLOB_BYTES
from blackboard.units import Key, Revision

ORDINARY_CHANGES_MAX: Final = 4_096
"""Changes of an ordinary page: encoding them takes some milliseconds, in one piece."""


class ArchivePage(Struct, frozen=True):
    """Log entries of a board that follow revision `after`, for the archiver with this fence; and
    where in the log the values lie that stay there."""

    board: str
    fence: int
    after: Revision
    entries: tuple[LogEntry, ...]
    places: Mapping[Revision, Mapping[Key, LoggedValue]]

    @property
    def is_ordinary(self) -> bool:
        """Whether writing it takes nothing but the database: no key to sign with, no blobs."""
        if sum(len(entry.changes) for entry in self.entries) > ORDINARY_CHANGES_MAX:
            return False
        if any(entry.epoch is not None for entry in self.entries):
            return False
        changes = (change for entry in self.entries for change in entry.changes)
        return all(
            change.value is None
            or (len(change.value) <= BLOB_BYTES and not change.key.startswith(CHECKPOINTS))
            for change in changes
        )


class Pages:
    """Writes pages into one database."""

    def __init__(self, database: Database, tools: PageTools | None = None) -> None:
        self._database = database
        self._tools = tools
        self._warmth = Warmth()

    def forget(self) -> None:
        """Read everything again for the next page: archived values were changed."""
        self._warmth = Warmth()

    async def write(
        self, page: ArchivePage, pause: Pause = let_others_run, large: Sequence[bytes] = ()
    ) -> Mark:
        """As `Archive.append`; `large` are its values that belong among the blobs. Without `tools`,
        the page must be ordinary."""
        warm: Warm | None = None
        async with self._database.writing() as connection:
            row = await archive_boards.owned(connection, page.board, page.fence)
            if row.through != page.after:
                raise archive_boards.out_of_turn(page.board, page.fence, row)
            places = page.places
            if row.called != page.board:  # it was set apart: that name is the one of another log
                places, large = {}, large_values(page.entries, {}, BLOB_BYTES)
            await self._store_blobs(connection, large)
            for run in runs(page.entries):
                if warm is not None:  # the previous run's
                    row = await board_by_id(connection, row.id)
                marker = run[0].epoch
                if marker is not None and loses(marker, row.through):
                    lost_to = marker.from_revision
                    row = await archive_boards.go_back(self._database, connection, row, lost_to)
                # Taken out of the cache: this append changes it, and may fail after that.
                warm = self._warmth.take(row)
                segments = await segments_of(connection, row, row.through)
                past = ArchivedHistory(self._database, connection, segments)
                warm = await Appending(past, row, warm, self._tools).write(run, places, pause)
        assert warm is not None
        self._warmth.keep(warm)
        return warm.mark

    async def _store_blobs(self, connection: AsyncConnection, large: Sequence[bytes]) -> None:
        if large:  # no row referred to them: a redaction may have discarded them
            assert self._tools is not None
            await self._database.lock_blobs(connection, shared=True)
            await self._tools.values.blobs.put_missing(large)


def runs(entries: Sequence[LogEntry]) -> Iterator[list[LogEntry]]:
    """`entries`, cut before every epoch that may follow a loss."""
    run: list[LogEntry] = []
    for entry in entries:
        if run and entry.epoch is not None and entry.epoch.cause != RESTORE:
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def loses(epoch: Epoch, through: Revision) -> bool:
    """Whether revisions up to `through` were lost when `epoch` began."""
    return epoch.cause != RESTORE and epoch.from_revision < through
