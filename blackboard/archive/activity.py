"""What the database says of a board's commits without reading them: when they were made, how much
they take, and how many each agent made along a span of revisions.

A page that draws a hundred thousand revisions cannot read them. One query counts the readable
versions by author and part of the span; no value is read.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import TextClause, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive import rows as archive_rows
from blackboard.archive.database import Database, rows
from blackboard.archive.history import (
    ArchivedHistory,
    Segment,
    all_segments,
    board_row,
    line_of,
    segments_of,
)
from blackboard.archive.tables import COMMIT, EPOCH, VERSION_BY_REVISION
from blackboard.core.commit import name_of
from blackboard.core.history import Tally
from blackboard.core.path import EVERYTHING, SYSTEM, Ranges, range_below
from blackboard.limits import ACTIVITY_AUTHORS_MAX
from blackboard.units import Milliseconds, Revision

_OWN_RECORDS: Final = range_below(SYSTEM)
"""The keys of an origin that a branch does not share."""


@lru_cache(maxsize=64)
def _counted(ranges: int, *, own: bool, is_sqlite: bool) -> tuple[TextClause, TextClause]:
    """Queries for the most active authors of a span, and for their commits by part of it."""
    # SQLite's planner would scan all keys, because they are in order.
    how = f"INDEXED BY {VERSION_BY_REVISION.name}" if is_sqlite else ""
    within = " OR ".join(f"key >= :first{n} AND key < :last{n}" for n in range(ranges)) or "1 = 1"
    shared = "" if own else " AND NOT (key >= :own_first AND key < :own_last)"
    seen = (
        f"FROM version {how} WHERE board = :board AND revision > :low AND revision <= :high"
        f" AND ({within}){shared}"
    )
    # One more than are shown, which tells that there are others.
    most = (
        f"SELECT author, COUNT(*) AS changes {seen}"
        f" GROUP BY author ORDER BY changes DESC, author LIMIT {ACTIVITY_AUTHORS_MAX + 1}"
    )
    parts = (
        "SELECT author, (revision - :start) / :step AS part, COUNT(DISTINCT revision) AS commits,"
        f" MAX(time_ms) AS time_ms {seen} GROUP BY author, part"
    )
    return text(most), text(parts)


async def count(past: ArchivedHistory, after: Revision, within: Ranges, tally: Tally) -> None:
    """Add to `tally` what `past` has after revision `after`, of the keys within."""
    if not within:
        return  # below, no ranges stand for everything
    ranges = () if within == EVERYTHING else within
    bounds = {f"first{n}": first for n, (first, _) in enumerate(ranges)}
    bounds |= {f"last{n}": last for n, (_, last) in enumerate(ranges)}
    low = after
    for segment in reversed(past.segments):
        if segment.upto > low:
            await _count(past, segment, low, bounds, tally)
            low = segment.upto


async def _count(
    past: ArchivedHistory, segment: Segment, low: Revision, bounds: dict[str, Any], tally: Tally
) -> None:
    is_sqlite = past.connection.dialect.name == "sqlite"
    most, parts = _counted(len(bounds) // 2, own=segment.own, is_sqlite=is_sqlite)
    where: dict[str, Any] = {"board": segment.board, "low": low, "high": segment.upto, **bounds}
    if not segment.own:
        where |= dict(zip(("own_first", "own_last"), _OWN_RECORDS, strict=True))
    authors = {row.author for row in await rows(past.connection, most, where)}
    where |= {"start": tally.after + 1, "step": tally.step}
    for row in await rows(past.connection, parts, where):
        if row.author in authors:
            tally.add(name_of(row.author), row.part, row.commits, row.time_ms)
    begun = select(EPOCH).where(EPOCH.c.board == segment.board)
    begun = begun.where(EPOCH.c.revision > low, EPOCH.c.revision <= segment.upto)
    for row in await rows(past.connection, begun.order_by(EPOCH.c.revision)):
        tally.begin(archive_rows.epoch_of(row))


# --- times and sizes ------------------------------------------------------------------------------


async def at_time(
    database: Database, connection: AsyncConnection, board: str, time_ms: Milliseconds
) -> Revision:
    """As `Archive.at_time`."""
    _, segments = await _log_of(database, connection, board)
    for segment in segments:
        earlier = _commits(segment).where(COMMIT.c.time_ms <= time_ms)
        last = earlier.order_by(COMMIT.c.revision.desc()).limit(1)
        if found := await rows(connection, last):
            return int(found[0].revision)
    return 0


async def before_time(
    database: Database, connection: AsyncConnection, board: str, time_ms: Milliseconds
) -> Revision:
    """As `Archive.before_time`."""
    newest, segments = await _log_of(database, connection, board)
    for segment in segments:
        later = _commits(segment).where(COMMIT.c.time_ms > time_ms)
        first = later.order_by(COMMIT.c.revision).limit(1)
        if found := await rows(connection, first):
            newest = min(newest, int(found[0].revision) - 1)
    return newest


async def _log_of(
    database: Database, connection: AsyncConnection, board: str
) -> tuple[Revision, Sequence[Segment]]:
    """The newest archived revision of a board, 0 if there is none, and the segments of its log,
    with those that its engine lost."""
    row = await board_row(connection, board)
    if row is None or row.through is None:
        return 0, ()
    segments = await segments_of(connection, row, row.through)
    past = ArchivedHistory(database, connection, segments)
    return int(row.through), await all_segments(past)


def _commits(segment: Segment) -> Any:
    return select(COMMIT.c.revision).where(
        COMMIT.c.board == segment.board, COMMIT.c.revision <= segment.upto
    )


async def since_bytes(connection: AsyncConnection, row: Any, history_bytes: int) -> Revision:
    """As `Archive.since_bytes`, for the board with `row`."""
    line = [each.id for each in await line_of(connection, row)]
    total = func.sum(COMMIT.c.cost).over(order_by=COMMIT.c.revision.desc())
    every = select(COMMIT.c.revision, total.label("total"))
    sums = every.where(COMMIT.c.board.in_(line)).subquery()
    first = select(func.max(sums.c.revision)).where(sums.c.total > history_bytes)
    return int((await connection.execute(first)).scalar_one() or 0)
