"""Reading the archived log, and small comparisons of rows."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from blackboard.archive import rows as archive_rows
from blackboard.archive.blobs import Blobs
from blackboard.archive.database import rows
from blackboard.archive.history import Past, Segment, board_by_id
from blackboard.archive.tables import ABSENT, BLOB, COMMIT, EPOCH, VERSION
from blackboard.core.checkpoints import Difference, Stored
from blackboard.core.commit import LogEntry
from blackboard.errors import Compacted, Corrupt
from blackboard.types import LOG_ENTRIES_MAX, PAGE_BYTES_MAX, Revision


async def page(past: Past, blobs: Blobs, after: Revision, limit: int) -> list[LogEntry]:
    """Log entries after `after` up to the past's revision, as many as a page holds.

    Errors: Compacted when they are not known; Corrupt; Unavailable.
    """
    found: list[LogEntry] = []
    room = min(limit, LOG_ENTRIES_MAX)
    below = -1
    for segment in reversed(past.segments):
        start = max(after, below)
        if start < segment.upto and len(found) < room:
            board = await board_by_id(past.connection, segment.board)
            if after >= below and start < board.oldest:
                raise Compacted(after, board.oldest + 1)
            more, is_whole = await _part(past, blobs, segment, start, room - len(found))
            found += more
            if not is_whole:
                break
        below = segment.upto
    return found


async def _part(
    past: Past, blobs: Blobs, segment: Segment, after: Revision, limit: int
) -> tuple[list[LogEntry], bool]:
    """Log entries of one segment, and whether that was all of it."""
    commits = await commits_between(past, segment, after, limit)
    size = 0
    for count, commit in enumerate(commits, 1):
        size += commit.cost
        if size >= PAGE_BYTES_MAX:
            return await assemble(past, blobs, segment.board, commits[:count]), False
    return await assemble(past, blobs, segment.board, commits), len(commits) < limit


async def commits_between(past: Past, segment: Segment, after: Revision, limit: int) -> list[Any]:
    """Rows of the commits of a segment after `after`."""
    query = (
        select(COMMIT)
        .where(COMMIT.c.board == segment.board)
        .where(COMMIT.c.revision > after, COMMIT.c.revision <= segment.upto)
        .order_by(COMMIT.c.revision)
        .limit(limit)
    )
    return list(await rows(past.connection, query))


async def assemble(past: Past, blobs: Blobs, board: int, commits: Sequence[Any]) -> list[LogEntry]:
    """The log entries of consecutive commits. Errors: Corrupt; Unavailable."""
    if not commits:
        return []
    first, last = commits[0].revision, commits[-1].revision
    changed = (
        select(VERSION)
        .with_hint(VERSION, "INDEXED BY version_by_revision", "sqlite")
        .where(VERSION.c.board == board)
        .where(VERSION.c.revision >= first, VERSION.c.revision <= last)
        .order_by(VERSION.c.revision, VERSION.c.position)
    )
    versions: dict[Revision, list[Any]] = defaultdict(list)
    for row in await rows(past.connection, changed):
        versions[row.revision].append(row)
    begun = select(EPOCH).where(
        EPOCH.c.board == board, EPOCH.c.revision >= first, EPOCH.c.revision <= last
    )
    epochs = {r.revision: archive_rows.epoch_of(r) for r in await rows(past.connection, begun)}
    return [
        await archive_rows.entry_of(c, versions[c.revision], epochs.get(c.revision), blobs)
        for c in commits
    ]


def stored(board: str, row: Any) -> Stored:
    """A checkpoint's row as people get it. Errors: Corrupt."""
    try:
        manifest = archive_rows.unpack_manifest(row.manifest)
    except ValueError as error:
        raise Corrupt(what=f"manifest of checkpoint {row.name}", reason=str(error)) from error
    return Stored(
        board=board,
        name=row.name,
        revision=row.revision,
        time_ms=row.time_ms,
        kind=row.kind,
        manifest=manifest,
        signature=bytes(row.signature),
        pinned=row.pinned,
    )


def alike(a: Any, b: Any) -> bool:
    """Whether two versions of a key hold the same value and expiry; None = no version."""
    if a is None or a.form == ABSENT:
        return b is None or b.form == ABSENT
    if b is None or b.form == ABSENT or a.expires_at_ms != b.expires_at_ms:
        return False
    if a.form == b.form and a.content == b.content:
        return True
    return BLOB not in (a.form, b.form) and archive_rows.hash_of(a) == archive_rows.hash_of(b)


def cost_of(difference: Difference) -> int:
    """About how many bytes a difference has."""
    sides = (difference.before, difference.after)
    return len(difference.key) + sum(len(entry.value) for entry in sides if entry is not None)
