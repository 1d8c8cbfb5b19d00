"""Reads earlier revisions: resolves moments, and returns the content of the board then.

The archive has the history. The newest revisions may not have reached it yet; then we wait for it,
at most ARCHIVE_WAIT_MS.

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
from blackboard.limits import LIST_ENTRIES_MAX, PAGE_BYTES_MAX
from blackboard.server.host import Host
from blackboard.server.open_board import OpenBoard
from blackboard.server.pages import archived_pages, pages_of
from blackboard.units import Key, Prefix, Revision

_DIFF_PAGES_MAX: Final = 16
"""Keys that a request scans for matches, as a multiple of the requested number."""


class HistoryReader:
    """The history of a board."""

    def __init__(self, board: OpenBoard) -> None:
        self._board = board
        self._name = board.name
        self.limits = board.host.limits.checkpoints

    @property
    def archive(self) -> Archive:
        """The archive. Errors: InvalidRequest when this service keeps none."""
        return self._board.archiver.archive

    # --- moments ----------------------------------------------------------------------------------

    async def resolve(self, moment: Moment) -> Revision:
        """The revision of `moment`.

        Errors: FutureRevision, NoSuchCheckpoint; Unavailable while the archive is behind.
        """
        head = await self._board.head()
        if isinstance(moment, Instant):
            await self.reach(head.revision)
            return await self.archive.at_time(self._name, moment.time_ms)
        if isinstance(moment, str):
            return head.revision if moment == NOW else await self._named(moment)
        if moment < 0:
            raise InvalidRequest(field="at", reason=f"{moment} is no revision")
        if moment > head.revision:
            raise FutureRevision(moment, head.revision)
        return moment

    async def _named(self, name: str) -> Revision:
        """A checkpoint of the board, or one of those that it branched off, from before that."""
        key = checkpoint_key(check_checkpoint(name))
        place, below = self._name, None
        while True:
            reading = await self._board.store.read(place, [key])
            if reading.entries and (below is None or reading.entries[0].mod_revision <= below):
                return reading.entries[0].mod_revision
            if below is None and (lost := await self.lost_checkpoint(name)) is not None:
                return lost.revision
            mark = await self.archive.mark(place) if self._board.archive else None
            if mark is None or mark.origin is None:
                raise NoSuchCheckpoint(self._name, name)
            place, below = mark.origin.board, mark.origin.revision

    async def lost_checkpoint(self, name: str) -> StoredCheckpoint | None:
        """The newest checkpoint of that name that the board's engine lost and its archive has."""
        return next((c for c in await self.lost_checkpoints() if c.name == name), None)

    async def lost_checkpoints(self) -> Sequence[StoredCheckpoint]:
        """The checkpoints that the board's engine lost and its archive has, the newest first."""
        archive = self._board.archive
        found = [] if archive is None else await archive.checkpoints(self._name)
        if not found:
            return ()
        epoch = (await self._board.head()).epoch
        # The archive may not know yet from which revision the engine continued.
        gone = range(
            epoch.from_revision + 1, epoch.revision if epoch.cause in (ENGINE, RECOVER) else 0
        )
        return [c for c in reversed(found) if c.lost or c.revision in gone]

    async def reach(self, revision: Revision) -> Mark:
        """Wait until the archive has `revision`; returns how far it is.

        Errors: Unavailable after ARCHIVE_WAIT_MS.
        """
        return await self._board.archiver.reached(self._name, revision)

    async def point(self, moment: Moment) -> Point:
        """The board at a moment, once the archive can answer for it."""
        revision = await self.resolve(moment)
        await self.reach(revision)
        return Point(self._name, revision)

    async def check_same(self, at: Point, known: Mark) -> None:
        """Check that the board still has the history of the mark `known` of `at`; otherwise the
        pages read since may belong to two histories.

        Errors: Unavailable when its engine lost revisions in the meantime; as `Archive.mark_at`.
        """
        mark = await self.archive.mark_at(at)
        if (mark.chain, mark.epoch) != (known.chain, known.epoch):
            reason = f"revision {at.revision} was lost while it was read"
            raise Unavailable(what=f"board {at.board}", reason=reason)

    # --- entries ----------------------------------------------------------------------------------

    async def read(self, keys: Sequence[Key], moment: Moment) -> Reading:
        """Entries of `keys` as they were."""
        return await self.archive.read(await self.point(moment), keys)

    async def page(self, at: Point, after: Key | None) -> tuple[tuple[Entry, ...], Key | None]:
        """A page of a board's content without the records of the service, and where to continue."""
        page = await self.archive.list(at, "", after=after, limit=LIST_ENTRIES_MAX)
        return _content(page), page.next_key

    async def pages(self, at: Point) -> AsyncIterator[tuple[Entry, ...]]:
        """All pages of the content."""
        async for page in archived_pages(self.archive, at):
            yield _content(page)

    async def history(self, key: Key, *, before: Revision | None, limit: int) -> Sequence[Version]:
        """Versions of a key, the newest first."""
        head = await self._board.head()
        await self.reach(head.revision)
        at = Point(self._name, head.revision)
        return await self.archive.history(at, key, before=before, limit=limit)

    async def put_back(self, key: Key, revision: Revision) -> Revision | None:
        """The revision of the version that a restore to `revision` put back; None if it was
        pruned."""
        archive = self._board.archive
        if archive is None:
            return None
        try:
            reading = await archive.read(Point(self._name, revision), [key])
        except Compacted:
            return None
        return reading.entries[0].mod_revision if reading.entries else None

    async def log(self, after: Revision, limit: int) -> LogPage:
        """A page of the log, or of the archive, where the log does not reach back so far.

        Errors: Compacted, if it is not archived either; FutureRevision.
        """
        try:
            return await self._board.log(after, limit)
        except Compacted as gone:
            return await self._archived_log(gone, limit)

    async def _archived_log(self, gone: Compacted, limit: int) -> LogPage:
        head, after = await self._board.head(), gone.revision
        archive = self._board.archive
        mark = None if archive is None else await archive.mark(self._name)
        until = 0 if mark is None else min(mark.revision, gone.oldest - 1)
        if until <= after:
            raise gone
        found = await self.archive.log(self._name, after, until=until, limit=limit)
        return LogPage(head, tuple(found), found[-1].revision if found else until)

    # --- differences ------------------------------------------------------------------------------

    async def differences(
        self, request: DiffRequest, reach: Reach, other: OpenBoard | None = None
    ) -> Differences:
        """A page of the readable and matching differences between two moments; the second one may
        be of another board.

        Its end depends only on what may be read.
        """
        a = await self.point(request.a)
        b = await (self if other is None else HistoryReader(other)).point(request.b)
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


def _content(page: Reading) -> tuple[Entry, ...]:
    return tuple(entry for entry in page.entries if _is_content(entry.key))


def _is_content(key: Key) -> bool:
    return namespace_of(key) != SYSTEM


def size_of(difference: Difference) -> int:
    """About how many bytes a difference occupies."""
    sides = (difference.before, difference.after)
    return 100 + 2 * len(difference.key) + sum(len(side.value) for side in sides if side)


async def begin_archive(
    host: Host, board: str, head: Head, items: Sequence[tuple[Prefix, int]]
) -> None:
    """Archive a board that was just made and has no history here, if this service has an archive.

    If that fails, its archiver begins later as for any board, without `items`, the counters of
    `append`.
    """
    archiver = host.archiver
    if archiver is None:
        return
    fence = await archiver.archive.take(board, archiver.owner, archiver.lease_ms)
    if fence is not None:
        pages = pages_of(host.store, board, "")
        await archiver.archive.join(board, fence, head, pages, items=items)
