"""Removes the versions that no readable revision needs.

A revision stays readable if it is not below the new `oldest`, if the caller keeps it, if it has a
pinned checkpoint, or if another board branched off there. A version is removed if it is the newest
one for none of these, and the record of a removal if nothing is left that it would hide. One whose
value is a blob is set aside until the blob is gone (archive/boards.py).
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Integer, and_, case, cast, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive.boards import set_aside, unnamed
from blackboard.archive.database import Database, add, rows
from blackboard.archive.fold import digest_row
from blackboard.archive.history import ArchivedHistory, Segment, segments_of
from blackboard.archive.rows import HASH_BYTES
from blackboard.archive.tables import (
    ABSENT,
    BLOB,
    BOARD,
    CHECKPOINT,
    COMMIT,
    COUNTER,
    DIGEST,
    KEPT,
    LOGGED,
    VERSION,
)
from blackboard.core.checkpoints import PrunedRows
from blackboard.units import Revision


class Pruning:
    """One pruning of the board with `row`, which is locked."""

    def __init__(
        self, database: Database, connection: AsyncConnection, row: Any, *, was_lost: bool = False
    ) -> None:
        self._database = database
        self._connection = connection
        self._row = row
        self._was_lost = was_lost
        self._blobs: set[bytes] = set()

    async def run(self, keep: Sequence[Revision], below: Revision) -> PrunedRows:
        """Prune; returns what was removed, without blobs.

        Revisions that an engine lost are removed completely once their end lies below: no later
        revision follows them.
        """
        if below < self._row.oldest:
            below = self._row.oldest
        # Counters and digests come first: they are computed from versions that are about to go.
        await self._keep_counters()
        await self._note_digests([*await self._keep(keep, below), below])
        removed = await self._versions(below)
        for table in (COMMIT, DIGEST):
            await self._others(table, below)
        change = update(BOARD).where(BOARD.c.id == self._row.id)
        await self._connection.execute(change, {"oldest": below})
        return removed

    async def unnamed(self) -> list[bytes]:
        """Blobs of the removed versions, except those that another version refers to."""
        return await unnamed(self._connection, self._blobs)

    async def _keep_counters(self) -> None:
        segments = await segments_of(self._connection, self._row, self._row.through)
        counters = await ArchivedHistory(self._database, self._connection, segments).items()
        await self._connection.execute(delete(COUNTER).where(COUNTER.c.board == self._row.id))
        kept = [{"board": self._row.id, "prefix": p, "next": n} for p, n in counters.items()]
        await add(self._connection, COUNTER, kept)

    async def _keep(self, keep: Sequence[Revision], below: Revision) -> list[Revision]:
        """Record which revisions below stay readable: the requested ones among those that are."""
        board, oldest = self._row.id, self._row.oldest
        kept = select(KEPT.c.revision).where(KEPT.c.board == board)
        readable = {row.revision for row in await rows(self._connection, kept)}
        pinned = select(CHECKPOINT.c.revision).where(
            CHECKPOINT.c.board == board, CHECKPOINT.c.pinned.is_(True)
        )
        branches = select(BOARD.c.origin_revision.label("revision")).where(BOARD.c.origin == board)
        wanted = set(keep)
        for query in (pinned, branches):
            wanted |= {row.revision for row in await rows(self._connection, query)}
        # What an earlier pruning took cannot be kept any more.
        stay = {r for r in wanted if r < below and (r >= oldest or r in readable)}
        await self._connection.execute(delete(KEPT).where(KEPT.c.board == board))
        await add(self._connection, KEPT, [{"board": board, "revision": r} for r in sorted(stay)])
        return sorted(stay)

    async def _note_digests(self, revisions: Sequence[Revision]) -> None:
        """Archive the digests of revisions that stay: afterwards they can no longer be computed."""
        segments = await segments_of(self._connection, self._row, self._row.through)
        for revision in revisions:
            [first, *rest] = segments
            at = [Segment(first.board, revision), *rest]
            past = ArchivedHistory(self._database, self._connection, at)
            if await past.archived_digests() is None:
                totals = sorted((await past.totals()).items())
                new = [digest_row(first.board, name, revision, total) for name, total in totals]
                await add(self._connection, DIGEST, new)

    async def _versions(self, below: Revision) -> PrunedRows:
        doomed = self._doomed(VERSION, VERSION.c.key, below)
        in_row = case((VERSION.c.form == BLOB, 0), else_=func.length(VERSION.c.content))
        if self._database.is_sqlite:
            # Those count, too: they go with the log, when that is cut.
            logged = cast(func.substr(VERSION.c.content, HASH_BYTES + 1), Integer)
            in_row = case((VERSION.c.form == LOGGED, logged), else_=in_row)
        total = select(func.count(), func.coalesce(func.sum(in_row), 0)).where(doomed)
        count, value_bytes = (await self._connection.execute(total)).one()
        in_blob = and_(doomed, VERSION.c.form == BLOB)
        blobs = select(VERSION.c.content).where(in_blob).distinct()
        self._blobs = {bytes(row.content) for row in await rows(self._connection, blobs)}
        if self._blobs:
            now_ms = await self._database.now_ms(self._connection)
            # Before the deletion, whose condition they no longer meet then.
            await set_aside(self._connection, self._row.called, in_blob, now_ms)
        await self._connection.execute(delete(VERSION).where(doomed))
        # Of a branch such a record stays: it may hide a version that the origin has.
        if self._row.origin is None:
            older = VERSION.alias()
            hidden = exists().where(
                older.c.board == VERSION.c.board,
                older.c.key == VERSION.c.key,
                older.c.revision < VERSION.c.revision,
            )
            vain = and_(
                VERSION.c.board == self._row.id,
                VERSION.c.revision <= below,
                VERSION.c.form == ABSENT,
                ~hidden,
            )
            count += (await self._connection.execute(delete(VERSION).where(vain))).rowcount
        return PrunedRows(int(count), int(value_bytes))

    async def _others(self, table: Any, below: Revision) -> None:
        # The newest commit of each agent stays, and so does the newest of all, which has the chain.
        name = table.c.namespace if table is DIGEST else table.c.agent
        await self._connection.execute(delete(table).where(self._doomed(table, name, below)))

    def _doomed(self, table: Any, name: Any, below: Revision) -> Any:
        """Rows of `table` that neither `below` nor a kept revision has as its newest of `name`."""
        newer = table.alias()
        following = (
            select(func.min(newer.c.revision))
            .where(newer.c.board == self._row.id, newer.c[name.name] == name)
            .where(newer.c.revision > table.c.revision)
            .correlate(table)
            .scalar_subquery()
        )
        needed = exists().where(
            KEPT.c.board == self._row.id,
            KEPT.c.revision >= table.c.revision,
            or_(following.is_(None), KEPT.c.revision < following),
        )
        is_over = following <= below
        if self._was_lost and below > self._row.through:
            is_over = or_(is_over, following.is_(None))
        return and_(table.c.board == self._row.id, table.c.revision < below, is_over, ~needed)
