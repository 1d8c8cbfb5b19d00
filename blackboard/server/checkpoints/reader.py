"""Reads earlier revisions: resolves moments, and returns the content of the board then.

The archive has the history. The newest revisions may not have reached it yet; then we wait for it,
at most ARCHIVE_WAIT_MS.

Nothing here checks rights: `server/requests.py`, the only way in, does.

`causes` answers why something is so, by walking back from an entry through the commits that it was
based on. A commit is based on the reads that its writer named; nothing is inferred. An entry that a
restore put back is based on the version at the restored revision. The walk is breadth first, visits
each (key, revision) once, and is bounded by WHY_DEPTH_MAX and WHY_COMMITS_MAX.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from blackboard.archive.base import Archive, archived_pages
from blackboard.client.views import Cause
from blackboard.core.access import Reach
from blackboard.core.checkpoints import (
    NOW,
    Activity,
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
from blackboard.core.commit import ENGINE, RECOVER, RESTORE, Entry, Head, LogEntry, LogPage, Reading
from blackboard.core.history import Gathered, Tally
from blackboard.core.path import SYSTEM, check_name, namespace_of, parse_pattern
from blackboard.engines.base import pages_of
from blackboard.engines.payer import turn
from blackboard.errors import (
    BlackboardError,
    Compacted,
    FutureRevision,
    InvalidRequest,
    NoSuchCheckpoint,
    Resync,
    Unavailable,
)
from blackboard.limits import (
    ACTIVITY_LOG_MAX,
    LIST_ENTRIES_MAX,
    LOG_ENTRIES_MAX,
    PAGE_BYTES_MAX,
)
from blackboard.server.boards import OpenBoard
from blackboard.server.host import Host
from blackboard.server.pages import gather
from blackboard.units import Key, Prefix, Revision

log = logging.getLogger(__name__)
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
            # Otherwise the answer would depend on how far the archive happens to be.
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
        place, below, seen = self._name, None, set[str]()
        # Boards that were removed and begun again may have branched off each other.
        while place not in seen:
            seen.add(place)
            reading = await self._board.store.read(place, [key])
            if reading.entries and (below is None or reading.entries[0].mod_revision <= below):
                return reading.entries[0].mod_revision
            if below is None and (lost := await self.lost_checkpoint(name)) is not None:
                return lost.revision
            mark = await self.archive.mark(place) if self._board.archive else None
            if mark is None or mark.origin is None:
                break
            place, below = mark.origin.board, mark.origin.revision
        raise NoSuchCheckpoint(self._name, name)

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

    async def history(
        self,
        key: Key,
        *,
        before: Revision | None,
        after: Revision | None,
        author: str | None,
        limit: int,
    ) -> Sequence[Version]:
        """Versions of a key, the newest first, see `Archive.history`."""
        if author is not None:
            check_name(author, "author")
        head = await self._board.head()
        await self.reach(head.revision)
        at = Point(self._name, head.revision)
        return await self.archive.history(
            at, key, before=before, after=after, author=author, limit=limit
        )

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

    async def gather_log(self, gathered: Gathered) -> LogPage:
        """Join pages of the engine, so that large commits of others do not end a page early."""
        after = gathered.through
        while True:
            try:
                page = await self.log(gathered.through, gathered.left)
                is_whole = await gather(gathered, page.entries)
            except (Resync, Compacted):
                if gathered.through == after:
                    raise
                is_whole = True  # first what is before it
            if is_whole or not page.entries or gathered.through >= page.head.revision:
                shown, proofs = tuple(gathered.shown), tuple(gathered.proofs)
                return LogPage(page.head, shown, gathered.through, proofs)

    async def activity(
        self, span: tuple[Revision, Revision | None], parts: int, reach: Reach
    ) -> Activity:
        """The readable commits of a span (None: up to now), counted in `parts`.

        The archive counts what it has. Of the rest, and of everything if the reader may read only
        some keys between others, up to ACTIVITY_LOG_MAX log entries are read.
        """
        head = await self._board.head()
        after, until = span
        until = head.revision if until is None else min(until, head.revision)
        if self._board.archive is None or not reach.is_exact:
            oldest = head.oldest - 1 if self._board.archive is None else 0
            after = max(after, oldest, until - ACTIVITY_LOG_MAX)
        tally = Tally(min(after, until), until, parts)
        through = tally.after
        if self._board.archive is not None and reach.is_exact:
            through = await self.archive.count(self._name, reach.ranges, tally)
        return tally.activity(await self._count_log(through, tally, reach))

    async def _count_log(self, through: Revision, tally: Tally, reach: Reach) -> Revision:
        last = min(tally.until, through + ACTIVITY_LOG_MAX)
        while through < last:
            try:
                page = await self.log(through, min(LOG_ENTRIES_MAX, last - through))
            except Compacted as gone:  # what was pruned has none
                if gone.oldest - 1 <= through:
                    raise
                through = min(gone.oldest - 1, tally.until)
                last = min(tally.until, through + ACTIVITY_LOG_MAX)
                continue
            for entry in page.entries:
                if entry.revision <= last:
                    tally.take(entry, reach.readable)
            if not page.entries:
                break
            through = page.entries[-1].revision
        return min(through, last)

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
    `append`. Errors: none.
    """
    archiver = host.archiver
    if archiver is None:
        return
    try:
        fence = await archiver.archive.take(board, archiver.owner, archiver.lease_ms)
        if fence is not None:
            pages = pages_of(host.store, board, "")
            await archiver.archive.join(board, fence, head, pages, items=items)
    except BlackboardError as error:  # the board is there: its maker must not be told otherwise
        log.warning("board %s is archived later: %s", board, error)


# --- provenance -----------------------------------------------------------------------------------


Ground = tuple[Key, Revision]


async def causes(
    past: HistoryReader, entries: Sequence[Entry], readable: Callable[[Key], bool]
) -> list[Cause]:
    """The commits behind `entries` as they are now, nearest first."""
    waiting = deque(((entry.key, entry.mod_revision), 0) for entry in entries)
    met = {ground for ground, _ in waiting}
    found: list[Cause] = []
    limits = past.limits
    while waiting and len(found) < limits.why_commits_max:
        await turn()
        (key, revision), depth = waiting.popleft()
        cause = await _cause(past, Cause(key, revision, depth), readable)
        found.append(cause)
        for ground in cause.based_on:
            if ground not in met and cause.depth < limits.why_depth_max:
                met.add(ground)
                waiting.append((ground, cause.depth + 1))
    return found


async def _cause(past: HistoryReader, at: Cause, readable: Callable[[Key], bool]) -> Cause:
    """`at`, which says where, and what the commit there says."""
    try:
        entry = await entry_at(past, at.revision)
    except Compacted:
        return replace(at, missing="compacted")
    if entry is None or not any(change.key == at.key for change in entry.changes):
        return replace(at, missing="not written there")
    grounds = await _grounds(past, at.key, entry)
    shown = tuple(ground for ground in grounds if readable(ground[0]))
    return replace(
        at,
        author=entry.author,
        account=entry.account,
        time_ms=entry.time_ms,
        note=entry.note,
        based_on=shown,
    )


async def _grounds(past: HistoryReader, key: Key, entry: LogEntry) -> tuple[Ground, ...]:
    if entry.epoch is None or entry.epoch.cause != RESTORE:
        return entry.based_on
    # The commit of a restore names no grounds: the value has those of the version that came back.
    written = await past.put_back(key, entry.epoch.from_revision)
    return () if written is None else ((key, written),)


async def entry_at(past: HistoryReader, revision: Revision) -> LogEntry | None:
    """The log entry of `revision`; None if there is none: a writer may claim any ground."""
    if revision < 1:
        return None
    try:
        page = await past.log(revision - 1, 1)
    except FutureRevision:
        return None
    return next((entry for entry in page.entries if entry.revision == revision), None)
