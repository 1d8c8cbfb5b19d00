"""The archive in SQL: SQLite in a file, or PostgreSQL; large values in an object store.

Invariants
- `append` is one transaction that begins by locking the board's row and checking its fence and its
  revision. So two archivers, or one that was killed, leave no gap and no duplicate.
- Blobs are stored before the transaction that refers to them.
- A history that an engine lost stays: the board continues as a branch of it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from sqlalchemy import and_, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive import (
    activity,
    boards as archive_boards,
    history as archive_log,
    prune as archive_prune,
    redact as archive_redact,
    rows as archive_rows,
)
from blackboard.archive.append import PageTools
from blackboard.archive.appender.pages import ArchivePage, Pages
from blackboard.archive.appender.process import Appender
from blackboard.archive.base import Pause, Sealer, let_others_run
from blackboard.archive.blobs import Blobs
from blackboard.archive.connection import place_of, url_of_file
from blackboard.archive.database import Database, add, rows
from blackboard.archive.fold import large_values
from blackboard.archive.history import (
    ArchivedHistory,
    Segment,
    all_segments,
    board_by_id,
    board_row,
    changed_keys,
    mark_of,
    own_segments,
    segments_of,
)
from blackboard.archive.redact import numbers_of_family
from blackboard.archive.tables import (
    BOARD,
    CHECKPOINT,
    COUNTER,
    EPOCH,
    VERSION,
)
from blackboard.archive.values import ArchivedValues, copy_values, fill, refers
from blackboard.archive.verify import Verification
from blackboard.client.cancellation import finish
from blackboard.core import digest, history
from blackboard.core.checkpoints import (
    Difference,
    Facts,
    Lost,
    Mark,
    Point,
    PrunedRows,
    RedactedRows,
    StoredCheckpoint,
    Version,
)
from blackboard.core.commit import (
    FORWARD,
    Entry,
    Head,
    ListOptions,
    LogEntry,
    Reading,
    signatures_of,
)
from blackboard.core.directories import Children, ranges_behind
from blackboard.core.history import Tally
from blackboard.core.path import Ranges, directory_of, ranges_of
from blackboard.engines.base import ServesValues
from blackboard.errors import BlackboardError, InvalidRequest, NoSuchCheckpoint
from blackboard.integrity.signing import Seal, make_key
from blackboard.limits import (
    BLOB_BYTES,
    DEFAULT,
    LIST_ENTRIES_MAX,
    PAGE_BYTES_MAX,
    READ_KEYS_MAX,
    VALUE_BYTES_MAX,
    Limits,
)
from blackboard.units import Key, Milliseconds, Prefix, Revision

log = logging.getLogger(__name__)
_BLOBS_AT_ONCE: Final = 256
"""Blobs that are discarded in one transaction: other writers wait for it."""
_LEASES_LAST: Final = 16
"""Times the time to live that a process asks for: that of another process may be longer."""
_KEYS_AT_ONCE: Final = 32
"""Rows that are decoded to entries without a pause: less than a millisecond."""


class SqlArchive:
    """An archive, opened; an `Archive`."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        sealer: Sealer,
        limits: Limits = DEFAULT,
        logs: ServesValues | None = None,
        appender: Appender | None = None,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._values = ArchivedValues(database, blobs, logs)
        self._sealer = sealer
        self._limits = limits
        self._copied_bytes_max = limits.archive.archive_copy_bytes_max
        self._pages = Pages(database, PageTools(sealer, self._values))
        self._appender = appender

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        blobs: str,
        sealer: Sealer,
        limits: Limits = DEFAULT,
        logs: ServesValues | None = None,
        may_spawn: bool = False,
    ) -> Self:
        """Open the archive at `url` (sqlite:///path, postgresql://...), which is made if necessary.

        `blobs` is the directory or the URL of its object store. Values above ARCHIVE_COPY_BYTES_MAX
        that `logs` serves are left there, and read from there. With `may_spawn`, a process of its
        own writes into a file of SQLite while there is much to write (archive/appender).
        Errors: InvalidRequest for a URL of neither kind; Unavailable; Corrupt.
        """
        store = Blobs.at(blobs, limits)
        database = await Database.open(url, limits.engine.engine_timeout_ms)
        try:
            if database.was_alone:
                await archive_boards.end_leases(database)
                await store.remove_drafts()
        except BaseException:
            await database.aclose()
            raise
        file = place_of(url).database
        if not may_spawn or not database.is_sqlite or file is None:
            return cls(database, store, sealer, limits, logs)
        appender = Appender(file, limits, database.turn)
        return cls(database, store, sealer, limits, logs, appender)

    @property
    def where(self) -> str:
        """The URL of its database, without the password."""
        return self._database.name

    # --- how far ----------------------------------------------------------------------------------

    async def mark(self, board: str) -> Mark | None:
        """As `Archive.mark`."""
        async with self._database.reading() as connection:
            row = await board_row(connection, board)
            if row is None or row.through is None:
                return None
            segments = await segments_of(connection, row, row.through)
            return await mark_of(ArchivedHistory(self._database, connection, segments), row)

    async def mark_at(self, at: Point) -> Mark:
        """As `Archive.mark_at`."""
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            row = await board_by_id(connection, past.segments[0].board)
            return await mark_of(past, row)

    async def boards(self) -> Sequence[str]:
        """As `Archive.boards`."""
        return sorted(await self.ends())

    async def ends(self) -> Mapping[str, Revision]:
        """As `Archive.ends`."""
        known = select(BOARD.c.name, BOARD.c.through).where(BOARD.c.name.is_not(None))
        async with self._database.reading() as connection:
            found = await rows(connection, known.where(BOARD.c.through.is_not(None)))
            return {row.name: row.through for row in found}

    async def holds(self, board: str) -> bool:
        """As `Archive.holds`."""
        async with self._database.reading() as connection:
            return await archive_boards.holds(connection, await board_row(connection, board))

    async def lost(self, board: str) -> Lost | None:
        """As `Archive.lost`."""
        async with self._database.reading() as connection:
            row = await board_row(connection, board)
            if row is None or not row.continues:
                return None
            return await archive_log.lost(connection, row)

    async def digest_at(self, at: Point) -> bytes | None:
        """As `Archive.digest_at`."""
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            commit = await past.commit()
            is_there = commit is not None and commit.revision == at.revision
            return bytes(commit.digest) if is_there else None

    # --- writing ----------------------------------------------------------------------------------

    async def take(self, board: str, owner: str, ttl_ms: Milliseconds) -> int | None:
        """As `Archive.take`."""
        async with self._database.writing() as connection:
            row = await archive_boards.locked(connection, board)
            now_ms = await self._database.now_ms(connection)
            if row is None:
                new = {"owner": owner, "fence": 1, "until_ms": now_ms + ttl_ms}
                await connection.execute(insert(BOARD), archive_boards.vacant(board) | new)
                return 1
            left_ms = row.until_ms - now_ms
            # One that lasts much longer is from before the database's clock was put back.
            if row.owner != owner and 0 < left_ms <= _LEASES_LAST * ttl_ms:
                return None
            # The same owner keeps its fence: a renewal must not end its own append.
            fence: int = row.fence if row.owner == owner else row.fence + 1
            held = {"owner": owner, "fence": fence, "until_ms": now_ms + ttl_ms}
            await connection.execute(update(BOARD).where(BOARD.c.id == row.id), held)
            return fence

    async def give_up(self, board: str, fence: int) -> None:
        """As `Archive.give_up`."""
        # If another owner has it by now, its fence is higher, and nothing happens.
        mine = update(BOARD).where(BOARD.c.name == board, BOARD.c.fence == fence)
        async with self._database.writing() as connection:
            await connection.execute(mine, {"until_ms": 0})

    async def join(
        self,
        board: str,
        fence: int,
        head: Head,
        pages: AsyncIterator[Reading],
        *,
        items: Sequence[tuple[Prefix, int]] = (),
        apart: bool = False,
    ) -> Mark:
        """As `Archive.join`."""
        async with self._database.writing() as connection:
            old = await archive_boards.owned(connection, board, fence)
            is_known = await archive_boards.holds(connection, old)
            # Revisions that overlap would mean two things: then it is another history.
            apart = apart or (is_known and head.revision <= old.through)
            number = await archive_boards.replace(connection, old, apart=apart)
            totals: dict[str, int] = {}
            oldest = head.revision
            async for page in pages:
                oldest = max(oldest, page.revision)
                large = [e.value for e in page.entries if len(e.value) > BLOB_BYTES]
                if large:
                    # Until the end, so that no redaction discards what these rows refer to.
                    await self._database.lock_blobs(connection, shared=True)
                await self._blobs.put_all(large)
                await archive_boards.adopt(connection, number, page.entries, totals)
            counters = [{"board": number, "prefix": p, "next": n} for p, n in items]
            await add(connection, COUNTER, counters)
            await archive_boards.keep_totals(connection, number, totals, head.revision)
            await add(connection, EPOCH, [archive_rows.epoch_row(number, head.epoch)])
            chain = archive_rows.CHAIN_START
            joined = {"oldest": oldest, "through": head.revision, "chain": chain}
            await connection.execute(update(BOARD).where(BOARD.c.id == number), joined)
            if is_known and not apart:
                await archive_boards.go_on(connection, number, old)
            return Mark(oldest, head.revision, head.epoch, chain)

    async def branch(self, board: str, origin: Point) -> Mark:
        """As `Archive.branch`."""
        if board == origin.board:
            raise InvalidRequest(field="board", reason="a branch has a name of its own")
        async with self._database.writing() as connection:
            past = await archive_boards.held(self._database, connection, origin)
            old = await archive_boards.locked(connection, board)
            if old is None:
                await connection.execute(insert(BOARD), archive_boards.vacant(board))
                old = await board_row(connection, board)
            # The archiver of a board that had the name before must not append to this one.
            fence = old.fence + 1
            number = await archive_boards.replace(connection, old, fence=fence, apart=True)
            await archive_boards.fork(connection, number, past)
            row = await board_by_id(connection, number)
            segments = await segments_of(connection, row, origin.revision)
            return await mark_of(ArchivedHistory(self._database, connection, segments), row)

    async def append(
        self,
        board: str,
        fence: int,
        after: Revision,
        entries: Sequence[LogEntry],
        pause: Pause = let_others_run,
    ) -> Mark:
        """As `Archive.append`."""
        history.check_sequence(after, entries)
        places = await self._values.places(board, entries, self._copied_bytes_max)
        page = ArchivePage(board, fence, after, tuple(entries), places)
        if self._appender is not None:
            self._appender.note(len(entries))
            if self._appender.takes(page):
                async with self._database.turn():
                    if self._appender.has_process:  # it may have ended meanwhile
                        return await self._appender.write(page)
        large = large_values(entries, places, BLOB_BYTES)
        # Outside of the transaction, which would hold the board's row during the upload.
        await self._blobs.put_all(large)
        return await self._pages.write(page, pause, large)

    @property
    def leaves_values(self) -> bool:
        """As `Archive.leaves_values`."""
        return self._values.logs is not None and self._copied_bytes_max < VALUE_BYTES_MAX

    async def copy_values(
        self, board: str, below: Revision | None = None, *, if_shared: bool = False
    ) -> None:
        """As `Archive.copy_values`."""
        if self._values.logs is not None:
            await copy_values(self._database, self._values, board, below, if_shared=if_shared)

    async def refers(self, board: str) -> bool:
        """As `Archive.refers`."""
        return await refers(self._database, await numbers_of_family(self._database, board))

    async def fill(self, board: str, found: Sequence[tuple[Revision, Key, bytes]]) -> None:
        """As `Archive.fill`."""
        mine = await numbers_of_family(self._database, board)
        await fill(self._database, self._blobs, mine, found)

    async def settle(self, board: str) -> Revision:
        """As `Archive.settle`."""
        # Before the sync: what is appended during it may not be on the disk.
        if (mark := await self.mark(board)) is None:
            return 0
        await self._database.sync()
        return mark.revision

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, at: Point, keys: Sequence[Key]) -> Reading:
        """As `Archive.read`."""
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            found = await past.newest(keys[:READ_KEYS_MAX])
            versions = [found[key] for key in keys if key in found]
            entries = self._values.entries(connection, versions)
            present = [entry async for entry in entries if entry is not None]
            return Reading(at.revision, (await past.epoch()).id, tuple(present))

    async def list(
        self,
        at: Point,
        within: Prefix | Ranges,
        *,
        after: Key | None = None,
        limit: int,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Reading:
        """As `Archive.list`."""
        limit = min(limit, LIST_ENTRIES_MAX)
        entries: list[Entry] = []
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            epoch = (await past.epoch()).id
            size = 0
            async for page in past.entries(within, after, reverse=reverse, keys_only=keys_only):
                async for entry in self._shown(connection, page, keys_only=keys_only):
                    if len(entries) >= limit or size >= PAGE_BYTES_MAX:
                        return Reading(at.revision, epoch, tuple(entries), entries[-1].key)
                    entries.append(entry)
                    size += len(entry.key) + len(entry.value)
            return Reading(at.revision, epoch, tuple(entries))

    async def _shown(
        self, connection: AsyncConnection, present: Sequence[Any], *, keys_only: bool
    ) -> AsyncIterator[Entry]:
        """The entries of these versions, of which none is a removal."""
        if keys_only:
            for row in present:
                yield archive_rows.with_value(row, b"")
            return
        async for entry in self._values.entries(connection, present):
            assert entry is not None
            yield entry

    async def children(
        self,
        at: Point,
        within: Ranges,
        prefix: Prefix,
        *,
        after: Key | None = None,
        limit: int,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """As `Archive.children`."""
        found = Children(prefix, min(limit, LIST_ENTRIES_MAX))
        left = ranges_behind(within, prefix, after, reverse=options.reverse)
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            epoch = (await past.epoch()).id
            is_cut = False
            async for page in past.keys_by_directory(found, left, reverse=options.reverse):
                is_cut = await self._add_children(past, page, found, options)
                if is_cut:
                    break
        next_key = found.last if is_cut else None
        entries = tuple(found.entries)
        return Reading(at.revision, epoch, entries, next_key, directories=found.directories)

    async def _add_children(
        self, past: ArchivedHistory, page: Sequence[Any], found: Children, options: ListOptions
    ) -> bool:
        """Add rows to a listing by directory; True once it is full and one is left."""
        places = [directory_of(found.prefix, row.key) for row in page]
        direct = [row for row, place in zip(page, places, strict=True) if place is None]
        direct = direct[: found.room]
        if not options.keys_only:
            whole = await past.newest([row.key for row in direct])
            direct = [whole[row.key] for row in direct]
        shown = self._shown(past.connection, direct, keys_only=options.keys_only)
        for number, (row, place) in enumerate(zip(page, places, strict=True)):
            if number % _KEYS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not found.counts(place) and not found.room:
                return True
            if place is not None:
                found.add_keys(place, row.key, 1)
            else:
                found.add_entry(await anext(shown))
        return False

    async def items(
        self, at: Point, *, unless: Point | None = None
    ) -> Sequence[tuple[Prefix, int]]:
        """As `Archive.items`."""
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            other = None
            if unless is not None:
                other = await ArchivedHistory.at(self._database, connection, unless)
            return sorted((await past.items(other)).items())

    async def history(
        self,
        at: Point,
        key: Key,
        *,
        before: Revision | None = None,
        after: Revision | None = None,
        author: str | None = None,
        limit: int,
    ) -> Sequence[Version]:
        """As `Archive.history`."""
        found: list[Version] = []
        oldest, size = -1 if after is None else after, 0
        written = [] if author is None else [VERSION.c.author.in_(signatures_of(author))]
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            for segment in [each for each in await all_segments(past) if each.shares(key)]:
                upto = segment.upto if before is None else min(segment.upto, before - 1)
                query = (
                    select(VERSION)
                    .where(VERSION.c.board == segment.board, VERSION.c.key == key)
                    .where(VERSION.c.revision > oldest, VERSION.c.revision <= upto, *written)
                    .order_by(VERSION.c.revision.desc())
                    .limit(min(limit, LIST_ENTRIES_MAX) - len(found))
                )
                page = await rows(connection, query)
                async for row, value in self._values.each(connection, page):
                    if size >= PAGE_BYTES_MAX:
                        return found
                    entry = None if value is None else archive_rows.with_value(row, value)
                    size += 0 if value is None else len(value)
                    found.append(Version(key, row.revision, row.time_ms, row.author, entry))
        return found

    async def differences(
        self,
        a: Point,
        b: Point,
        within: Prefix | Ranges = "",
        *,
        after: Key | None = None,
        limit: int,
    ) -> Sequence[Difference]:
        """As `Archive.differences`."""
        found: list[Difference] = []
        size = 0
        async with self._database.reading() as connection:
            before = await ArchivedHistory.at(self._database, connection, a)
            now = await ArchivedHistory.at(self._database, connection, b)
            async for keys in changed_keys(before, now, ranges_of(within, after), limit):
                old, new = await before.newest(keys), await now.newest(keys)
                apart: list[Key] = []
                for number, key in enumerate(keys):
                    if number % _KEYS_AT_ONCE == 0:
                        await asyncio.sleep(0)
                    if not archive_rows.alike(old.get(key), new.get(key)):
                        apart.append(key)
                sides = [side.get(key) for key in apart for side in (old, new)]
                entries = self._values.entries(connection, sides)
                for key in apart:
                    difference = Difference(key, await anext(entries), await anext(entries))
                    found.append(difference)
                    size += archive_log.cost_of(difference)
                    if len(found) >= limit or size >= PAGE_BYTES_MAX:
                        return found
        return found

    async def log(
        self, board: str, after: Revision, *, until: Revision, limit: int
    ) -> Sequence[LogEntry]:
        """As `Archive.log`."""
        async with self._database.reading() as connection:
            row = await board_row(connection, board)
            until = min(until, -1 if row is None or row.through is None else row.through)
            if after >= until:
                return ()
            segments = await segments_of(connection, row, until)
            past = ArchivedHistory(self._database, connection, segments)
            return await archive_log.page(past, self._values, after, limit)

    async def count(self, board: str, within: Ranges, tally: Tally) -> Revision:
        """As `Archive.count`."""
        async with self._database.reading() as connection:
            row = await board_row(connection, board)
            until = min(tally.until, -1 if row is None or row.through is None else row.through)
            if until <= tally.after:
                return tally.after
            segments = await segments_of(connection, row, until)
            past = ArchivedHistory(self._database, connection, segments)
            await activity.count(past, tally.after, within, tally)
            return until

    async def at_time(self, board: str, time_ms: Milliseconds) -> Revision:
        """As `Archive.at_time`."""
        async with self._database.reading() as connection:
            return await activity.at_time(self._database, connection, board, time_ms)

    async def before_time(self, board: str, time_ms: Milliseconds) -> Revision:
        """As `Archive.before_time`."""
        async with self._database.reading() as connection:
            return await activity.before_time(self._database, connection, board, time_ms)

    async def facts_at(self, at: Point) -> Facts:
        """As `Archive.facts_at`."""
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            return Facts(await past.digests(), await past.steps())

    async def digests_at(self, at: Point) -> Mapping[str, bytes] | None:
        """As `Archive.digests_at`."""
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            found = await past.archived_digests()
            return None if found is None else digest.without_empty(found)

    async def sums_at(self, at: Point, namespaces: Sequence[str]) -> Mapping[str, int]:
        """As `Archive.sums_at`."""
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            return await past.totals(namespaces)

    # --- checkpoints ------------------------------------------------------------------------------

    async def checkpoints(self, board: str) -> Sequence[StoredCheckpoint]:
        """As `Archive.checkpoints`."""
        found: list[StoredCheckpoint] = []
        async with self._database.reading() as connection:
            row = await board_row(connection, board)
            if row is None or row.through is None:
                return ()
            kept = await segments_of(connection, row, row.through)
            ends = {segment.board: segment.upto for segment in kept}
            for segment in await own_segments(connection, row):
                for each in await rows(connection, _checkpoints(segment)):
                    is_lost = each.revision > ends.get(segment.board, -1)
                    found.append(replace(archive_log.stored(board, each), lost=is_lost))
        return sorted(found, key=lambda stored: (stored.revision, stored.name))

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """As `Archive.pin`."""
        if not await self._change_checkpoint(board, name, {"pinned": pinned}):
            raise NoSuchCheckpoint(board, name)

    async def forget(self, board: str, name: str, revision: Revision) -> None:
        """As `Archive.forget`."""
        # The row stays with its hash, which the next manifest names as the one before it.
        gone = {"manifest": b"", "signature": b"", "pinned": False}
        await self._change_checkpoint(board, name, gone, revision)

    async def _change_checkpoint(
        self, board: str, name: str, change: dict[str, Any], at: Revision | None = None
    ) -> bool:
        async with self._database.writing() as connection:
            row = await archive_boards.locked(connection, board)
            if row is None or row.through is None:
                return False
            for segment in await own_segments(connection, row):
                mine = _checkpoints(segment).where(CHECKPOINT.c.name == name)
                named = [e for e in await rows(connection, mine) if at in (None, e.revision)]
                if named:
                    one = and_(
                        CHECKPOINT.c.board == segment.board,
                        CHECKPOINT.c.name == name,
                        CHECKPOINT.c.revision == named[-1].revision,
                    )
                    await connection.execute(update(CHECKPOINT).where(one), change)
                    return True
        return False

    async def since_bytes(self, board: str, history_bytes: int) -> Revision:
        """As `Archive.since_bytes`."""
        async with self._database.reading() as connection:
            row = await board_row(connection, board)
            if row is None or row.through is None:
                return 0
            return await activity.since_bytes(connection, row, history_bytes)

    async def prune(
        self, board: str, keep: Sequence[Revision], below: Revision, *, dry_run: bool = False
    ) -> PrunedRows:
        """As `Archive.prune`."""
        removed, doomed = PrunedRows(), set[bytes]()
        async with self._database.writing() as connection:
            row = await archive_boards.locked(connection, board)
            if row is None or row.through is None:
                return removed
            *lost, _ = await archive_boards.line_locked(connection, row)
            prunings = [(archive_prune.Pruning(self._database, connection, row), row.through)]
            for each in lost:
                older = archive_prune.Pruning(self._database, connection, each, was_lost=True)
                prunings.append((older, each.through + 1))
            for pruning, end in prunings:
                removed += await pruning.run(keep, min(below, end))
            # After all of them: the last name of a blob may go with any one.
            for pruning, _ in prunings:
                doomed.update(await pruning.unnamed())
            if dry_run:
                await connection.rollback()
        removed += PrunedRows(0, await self._blobs.sizes(doomed))
        if removed.versions and not dry_run:
            await self._discard(doomed)
            await self.sweep()
            await self._give_back()
        return removed

    async def _discard(self, doomed: Collection[bytes]) -> set[bytes]:
        """Discard blobs that no row needed a moment ago, except recent ones; returns these."""
        young = await self._blobs.young(doomed)
        old = sorted(set(doomed) - young)
        for start in range(0, len(old), _BLOBS_AT_ONCE):
            async with self._database.writing() as connection:
                await self._database.lock_blobs(connection, shared=False)
                # Asked again under the lock: an append may have named one of them meanwhile.
                some = old[start : start + _BLOBS_AT_ONCE]
                unnamed = await archive_boards.unnamed(connection, some)
                # To its end: no call may be under way when the lock is gone.
                await finish(self._blobs.discard_all(unnamed))
        return young

    async def _give_back(self) -> None:
        try:
            await self._database.give_back()
        except BlackboardError as error:
            log.warning("archive: what was pruned stays in its file for now: %s", error)

    async def family(self, board: str) -> Sequence[str]:
        """As `Archive.family`."""
        async with self._database.reading() as connection:
            found = await archive_redact.family(connection, board)
            return sorted(row.name for row in found if row.name is not None)

    async def redact(
        self,
        board: str,
        key: Key,
        upto: Mapping[str, Revision],
        pause: Pause = let_others_run,
    ) -> RedactedRows:
        """As `Archive.redact`."""
        async with self._database.writing() as connection:
            # In the turn: what is appended before it would be remembered.
            self._pages.forget()
            if self._appender is not None:
                self._appender.forget()
            redacting = archive_redact.Redacting(
                self._database, connection, self._blobs, self._sealer, key, upto
            )
            return await redacting.run(board, pause)

    async def scrub(self) -> str:
        """As `Archive.scrub`."""
        return await self._database.scrub()

    async def remove(self, board: str, keep: Collection[str] = ()) -> bool:
        """As `Archive.remove`."""
        async with self._database.writing() as connection:
            now_ms = await self._database.now_ms(connection)
            is_shared = await archive_boards.mark_removed(connection, board, keep, now_ms)
        await self.sweep()
        return is_shared

    async def sweep(self) -> None:
        """As `Archive.sweep`."""
        async with self._database.writing() as connection:
            now_ms = await self._database.now_ms(connection)
            due, doomed = await archive_boards.empty_marked(
                connection, now_ms, self._limits.archive.blob_grace_ms
            )
        # Between the two transactions: if this ends here, rows still name the blobs that are left.
        left = await self._discard(doomed)
        if due:
            async with self._database.writing() as connection:
                await archive_boards.remove_emptied(connection, due, left)

    async def verify(self, at: Point) -> AsyncIterator[str]:
        """As `Archive.verify`."""
        async with self._database.reading() as connection:
            past = await ArchivedHistory.at(self._database, connection, at)
            seen: set[str] = set()
            for each in [past, *await archive_log.lost_ends(past)]:
                verification = Verification(each, at, self._values, self._sealer)
                async for finding in verification.findings():
                    if finding not in seen:
                        seen.add(finding)
                        yield finding

    async def aclose(self) -> None:
        """As `Archive.aclose`."""
        try:
            if self._appender is not None:
                await self._appender.aclose()
        finally:
            await self._database.aclose()


def _checkpoints(segment: Segment) -> Any:
    return (
        select(CHECKPOINT)
        .where(CHECKPOINT.c.board == segment.board, CHECKPOINT.c.revision <= segment.upto)
        .where(func.length(CHECKPOINT.c.manifest) > 0)
        .order_by(CHECKPOINT.c.revision)
    )


async def archive_beside(
    directory: Path, limits: Limits = DEFAULT, logs: ServesValues | None = None
) -> SqlArchive:
    """The archive of an embedded engine, its blobs and its signing key: all in its directory.

    With `logs`, the engine, it does not repeat the values that the logs of the boards hold.
    Errors: Unavailable; Corrupt; InvalidRequest when the key cannot be used.
    """
    seal = Seal(make_key(directory / "signing_key"))
    url, blobs = archive_url(directory), blobs_beside(directory)
    return await SqlArchive.open(url, blobs=blobs, sealer=seal, limits=limits, logs=logs)


def archive_url(directory: Path) -> str:
    """Where the archive of an embedded engine is."""
    return url_of_file(directory.absolute() / "archive.db")


def blobs_beside(directory: Path) -> str:
    """Where its large values are."""
    return str(directory.absolute() / "blobs")
