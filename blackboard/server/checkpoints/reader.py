"""Looking back: which revision a moment is, and what the board held then.

The archive answers for the past; the newest revisions may not have reached it yet, and then we
wait for it, at most ARCHIVE_WAIT_MS.

Nothing here checks rights: `server/requests.py`, the only way in, does.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from blackboard.archive.base import Archive
from blackboard.core.access import Reach
from blackboard.core.checkpoints import (
    NOW,
    Difference,
    Differences,
    DiffRequest,
    Instant,
    Mark,
    Moment,
    Point,
    StoredCheckpoint,
    Version,
    check_checkpoint,
    checkpoint_key,
)
from blackboard.core.commit import ENGINE, RECOVER, Entry, Head, LogPage, Reading
from blackboard.core.path import SYSTEM, namespace_of, parse_pattern
from blackboard.errors import (
    Compacted,
    FutureRevision,
    InvalidRequest,
    NoSuchCheckpoint,
    Unavailable,
)
from blackboard.limits import ARCHIVE_LEASE_MS, LIST_ENTRIES_MAX, PAGE_BYTES_MAX
from blackboard.server.archiver import check_archived
from blackboard.server.boards import Boards
from blackboard.units import Key, Prefix, Revision

_DIFF_PAGES_MAX: Final = 16
"""How many times as many keys as were asked for one request looks through for matches."""


class HistoryReader:
    """The past of the boards of a host."""

    def __init__(self, host: Boards) -> None:
        self._host = host

    @property
    def archive(self) -> Archive:
        """The archive. Errors: InvalidRequest when this service keeps none."""
        return check_archived(self._host.archiver).archive

    # --- moments ----------------------------------------------------------------------------------

    async def resolve(self, board: str, moment: Moment) -> Revision:
        """The revision that `moment` is.

        Errors: FutureRevision, NoSuchCheckpoint; Unavailable while the archive is behind.
        """
        head = await self._host.store.open(board)
        if isinstance(moment, Instant):
            await self.reach(board, head.revision)
            return await self.archive.at_time(board, moment.time_ms)
        if isinstance(moment, str):
            return head.revision if moment == NOW else await self._named(board, moment)
        if moment < 0:
            raise InvalidRequest(field="at", reason=f"{moment} is no revision")
        if moment > head.revision:
            raise FutureRevision(moment, head.revision)
        return moment

    async def _named(self, board: str, name: str) -> Revision:
        """A checkpoint of the board, or one of those that it branched off, from before that."""
        key = checkpoint_key(check_checkpoint(name))
        place, below = board, None
        while True:
            reading = await self._host.store.read(place, [key])
            if reading.entries and (below is None or reading.entries[0].mod_revision <= below):
                return reading.entries[0].mod_revision
            if below is None and (lost := await self.lost_checkpoint(place, name)) is not None:
                return lost.revision
            mark = await self.mark(place)
            if mark is None or mark.origin is None:
                raise NoSuchCheckpoint(board, name)
            place, below = mark.origin.board, mark.origin.revision

    async def lost_checkpoint(self, board: str, name: str) -> StoredCheckpoint | None:
        """The newest checkpoint of that name that the board's engine lost and its archive has."""
        return next((c for c in await self.lost_checkpoints(board) if c.name == name), None)

    async def lost_checkpoints(self, board: str) -> Sequence[StoredCheckpoint]:
        """Those that the board's engine lost and its archive has, the newest first."""
        archive = self._host.archive
        found = [] if archive is None else await archive.checkpoints(board)
        if not found:
            return ()
        epoch = (await self._host.store.open(board)).epoch
        # The archive may not know yet from which revision the engine continued.
        gone = range(
            epoch.from_revision + 1, epoch.revision if epoch.cause in (ENGINE, RECOVER) else 0
        )
        return [c for c in reversed(found) if c.lost or c.revision in gone]

    async def mark(self, board: str) -> Mark | None:
        """The archived position of the board; None if nothing is archived."""
        return None if self._host.archive is None else await self._host.archive.mark(board)

    async def reach(self, board: str, revision: Revision) -> Mark:
        """Wait until the archive has `revision`; returns how far it is.

        Errors: Unavailable after ARCHIVE_WAIT_MS.
        """
        return await check_archived(self._host.archiver).reached(board, revision)

    async def point(self, board: str, moment: Moment) -> Point:
        """The board at a moment, once the archive can answer for it."""
        revision = await self.resolve(board, moment)
        await self.reach(board, revision)
        return Point(board, revision)

    async def begin(self, board: str, head: Head, items: Sequence[tuple[Prefix, int]]) -> None:
        """Archive a board that was just made and has no past here, if this service has an archive.

        Should that fail, its archiver begins as with any board, not knowing `items`, the counters
        of `append`.
        """
        archiver = self._host.archiver
        if archiver is None:
            return
        fence = await archiver.archive.take(board, archiver.owner, ARCHIVE_LEASE_MS)
        if fence is not None:
            pages = self._listing(board)
            await archiver.archive.join(board, fence, head, pages, items=items)

    async def _listing(self, board: str) -> AsyncIterator[Reading]:
        after: Key | None = None
        while True:
            page = await self._host.store.list(board, "", after=after, limit=LIST_ENTRIES_MAX)
            yield page
            after = page.next_key
            if after is None:
                return

    async def check_same(self, at: Point, known: Mark) -> None:
        """That the board still has the history in which `at` was `known`: else what was read of it
        since may be of two.

        Errors: Unavailable when its engine lost revisions in the meantime; as `Archive.mark_at`.
        """
        mark = await self.archive.mark_at(at)
        if (mark.chain, mark.epoch) != (known.chain, known.epoch):
            reason = f"revision {at.revision} was lost while it was read"
            raise Unavailable(what=f"board {at.board}", reason=reason)

    # --- entries ----------------------------------------------------------------------------------

    async def read(self, board: str, keys: Sequence[Key], moment: Moment) -> Reading:
        """Entries of `keys` as they were."""
        return await self.archive.read(await self.point(board, moment), keys)

    async def page(self, at: Point, after: Key | None) -> tuple[tuple[Entry, ...], Key | None]:
        """A page of a board's content without the records of the service, and where to continue."""
        page = await self.archive.list(at, "", after=after, limit=LIST_ENTRIES_MAX)
        return tuple(e for e in page.entries if _is_content(e.key)), page.next_key

    async def pages(self, at: Point) -> AsyncIterator[tuple[Entry, ...]]:
        """All of that."""
        after: Key | None = None
        while True:
            page, after = await self.page(at, after)
            yield page
            if after is None:
                return

    async def history(
        self, board: str, key: Key, *, before: Revision | None, limit: int
    ) -> Sequence[Version]:
        """Versions of a key, the newest first."""
        head: Head = await self._host.store.open(board)
        await self.reach(board, head.revision)
        at = Point(board, head.revision)
        return await self.archive.history(at, key, before=before, limit=limit)

    async def put_back(self, board: str, key: Key, revision: Revision) -> Revision | None:
        """Where the version was written that a restore to `revision` put back; None: it is gone."""
        archive = self._host.archive
        if archive is None:
            return None
        try:
            reading = await archive.read(Point(board, revision), [key])
        except Compacted:
            return None
        return reading.entries[0].mod_revision if reading.entries else None

    async def log(self, board: str, after: Revision, limit: int) -> LogPage:
        """A page of the log, or of the archive, where the log does not reach back so far.

        Errors: Compacted, if it is not archived either; FutureRevision.
        """
        try:
            return await self._host.store.log(board, after, limit=limit)
        except Compacted as gone:
            return await self._archived_log(board, gone, limit)

    async def _archived_log(self, board: str, gone: Compacted, limit: int) -> LogPage:
        head, after = await self._host.store.open(board), gone.revision
        mark = await self.mark(board)
        until = 0 if mark is None else min(mark.revision, gone.oldest - 1)
        if until <= after:
            raise gone
        found = await self.archive.log(board, after, until=until, limit=limit)
        return LogPage(head, tuple(found), found[-1].revision if found else until)

    # --- differences ------------------------------------------------------------------------------

    async def differences(self, board: str, request: DiffRequest, reach: Reach) -> Differences:
        """A page of what differs between two moments, may be read, and matches.

        Where it ends follows from what may be read alone.
        """
        a = await self.point(board, request.a)
        b = await self.point(request.other or board, request.b)
        pattern = parse_pattern(request.pattern)
        found: list[Difference] = []
        after, size, seen = request.after, 0, 0
        step = request.limit if reach.is_exact else LIST_ENTRIES_MAX
        while page := await self.archive.differences(a, b, reach.ranges, after=after, limit=step):
            for each in page:
                after = each.key
                if not reach.readable(after):
                    continue
                seen += 1
                if pattern.matches(after) and _is_content(after):
                    found.append(each)
                    size += size_of(each)
                is_full = size >= PAGE_BYTES_MAX or len(found) >= request.limit
                if is_full or seen >= request.limit * _DIFF_PAGES_MAX:
                    return Differences(a.revision, b.revision, tuple(found), after)
        return Differences(a.revision, b.revision, tuple(found))


def _is_content(key: Key) -> bool:
    return namespace_of(key) != SYSTEM


def size_of(difference: Difference) -> int:
    """About how many bytes a difference occupies."""
    sides = (difference.before, difference.after)
    return 100 + 2 * len(difference.key) + sum(len(side.value) for side in sides if side)
