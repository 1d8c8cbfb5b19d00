"""How many commits each agent made along a span of revisions: counted by the database.

A page that draws a hundred thousand revisions cannot read them. One query counts the readable
versions by author and part of the span; no value is read.
"""

from functools import lru_cache
from typing import Any, Final

from sqlalchemy import TextClause, select, text

from blackboard.archive import rows as archive_rows
from blackboard.archive.database import rows
from blackboard.archive.history import ArchivedHistory, Segment
from blackboard.archive.tables import EPOCH, VERSION_BY_REVISION
from blackboard.core.commit import name_of
from blackboard.core.history import Tally
from blackboard.core.path import EVERYTHING, SYSTEM, Ranges, range_below
from blackboard.limits import ACTIVITY_AUTHORS_MAX
from blackboard.units import Revision

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
