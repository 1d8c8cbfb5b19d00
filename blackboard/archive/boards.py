"""The rows of boards: names, the right to append, origins, and removal.

A board has several rows: the one with its name, older ones that lost the name to it, and those that
were set apart as `<board>~1`. The removal of a board removes all of them. A row that another
board's history includes stays complete, without a name, until that board is removed as well.

Invariants
- A name belongs to one row at a time. A new board of that name gets a new row, and the old row
  keeps its data; only an empty row is removed.
- A board is written only under its lock and with its current fence.
- A row to be removed has no name and the owner REMOVED, so it can neither be found nor appended to.
- Versions whose value is a blob stay in such a row until the blob is gone, for BLOB_GRACE_MS at
  least: so no crash leaves a blob that no row knows. Pruned versions get a row for this.
"""

import contextlib
from collections.abc import Collection, Sequence, Set
from itertools import count
from typing import Any, Final

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive import rows as archive_rows
from blackboard.archive.append import agent_row
from blackboard.archive.database import Database, add, rows
from blackboard.archive.fold import digest_row
from blackboard.archive.history import ArchivedHistory, board_by_id, board_row, line_of
from blackboard.archive.tables import AGENT, BLOB, BOARD, COMMIT, DIGEST, OF_A_BOARD, TOTAL, VERSION
from blackboard.core import digest
from blackboard.core.checkpoints import Point
from blackboard.core.commit import Entry
from blackboard.core.path import SYSTEM, namespace_of
from blackboard.errors import BlackboardError, Fenced
from blackboard.limits import SEGMENT_BYTES_MAX
from blackboard.units import Milliseconds, Revision

_NAME_KEPT: Final = SEGMENT_BYTES_MAX - 16
"""Longest name to which a number is added."""
REMOVED: Final = "~removed"
_BLOBS_AT_ONCE: Final = 1_000
"""Names in one statement. SQLite takes 32,766 values, PostgreSQL about as many."""


async def end_leases(database: Database) -> None:
    """End the leases in a file that no process had open: their holders are dead, and what happened
    before they were killed could not be read until their time was over.

    Fences still go up, so that a process that opened the file in between loses nothing but its
    turn. If the disk is full or the file damaged, the leases are left to end: the archive is opened
    all the same, and each call says what it cannot do.
    """
    held = update(BOARD).where(BOARD.c.until_ms > 0, BOARD.c.owner != REMOVED)
    with contextlib.suppress(BlackboardError):
        async with database.writing() as connection:
            await connection.execute(held, {"until_ms": 0})


def vacant(board: str) -> dict[str, Any]:
    """The row of a board that has no archiver yet."""
    return {
        "name": board,
        "called": board,
        "owner": None,
        "fence": 0,
        "until_ms": 0,
        "continues": False,
    }


async def locked(connection: AsyncConnection, board: str) -> Any:
    """The row of a board, locked for this transaction; None if it is unknown."""
    # SQLite has no row locks: there only one transaction writes at a time (`Database.writing`).
    found = await rows(connection, select(BOARD).where(BOARD.c.name == board).with_for_update())
    return found[0] if found else None


async def held(database: Database, connection: AsyncConnection, at: Point) -> ArchivedHistory:
    """The history at a point, which no append, pruning or removal changes until this transaction
    ends. Errors: Compacted, FutureRevision."""
    past = await ArchivedHistory.at(database, connection, at)
    if database.is_sqlite:
        return past
    # In PostgreSQL each statement sees what was committed before it: without the lock, sums would
    # be read before an append and what it added after it.
    mine = select(BOARD.c.id).where(BOARD.c.id == past.segments[0].board)
    await rows(connection, mine.with_for_update(read=True))
    return await ArchivedHistory.at(database, connection, at)


async def line_locked(connection: AsyncConnection, row: Any) -> list[Any]:
    """As `line_of`, with all rows locked for this transaction."""
    line = [each.id for each in await line_of(connection, row)]
    query = select(BOARD).where(BOARD.c.id.in_(line)).order_by(BOARD.c.id)
    return list(await rows(connection, query.with_for_update()))


async def owned(connection: AsyncConnection, board: str, fence: int) -> Any:
    """The row of a board, locked. Errors: Fenced when `fence` is not current."""
    row = await locked(connection, board)
    if row is None or row.fence != fence:
        raise out_of_turn(board, fence, row)
    return row


def out_of_turn(board: str, fence: int, row: Any) -> Fenced:
    """The error for an append without the current fence, or at the wrong revision."""
    current, owner = (0, None) if row is None else (row.fence, row.owner)
    return Fenced(f"archive of board {board}", fence, current, owner)


async def replace(
    connection: AsyncConnection, old: Any, *, fence: int | None = None, apart: bool = False
) -> int:
    """Give the name of a board to a new row, and return its id.

    The archiver stays, unless a new `fence` is given. The old row stays without a name, or, with
    `apart`, under another name by which it can be read and recovered. An empty row is removed, and
    one that was never written to, as that of a board that begins, is as good as a new one.
    """
    if old.through is None:
        kept = {} if fence is None else {"owner": None, "fence": fence, "until_ms": 0}
        fresh = {"called": old.name} | kept
        await connection.execute(update(BOARD).where(BOARD.c.id == old.id), fresh)
        same: int = old.id
        return same
    is_empty = not await holds(connection, old)
    name = None if is_empty or not apart else await _free_name(connection, old.called)
    freed = {"name": name, "owner": None, "until_ms": 0}
    # Before the new row: the column with the name is unique.
    await connection.execute(update(BOARD).where(BOARD.c.id == old.id), freed)
    if is_empty:
        await _remove_empty(connection, old)
    new = vacant(old.name) | {"fence": fence}
    if not apart and old.through is not None:
        new["called"] = old.called
    if fence is None:
        new |= {"owner": old.owner, "fence": old.fence, "until_ms": old.until_ms}
    await connection.execute(insert(BOARD), new)
    number: int = (await board_row(connection, old.name)).id
    return number


async def holds(connection: AsyncConnection, row: Any) -> bool:
    """Whether anything is archived of the board with `row` itself, apart from its origin."""
    if row is None or row.through is None:
        return False
    if row.continues or (row.origin is None and row.through):  # it may have begun without content
        return True
    for table in (COMMIT, VERSION):
        query = select(table.c.revision).where(table.c.board == row.id).limit(1)
        if await rows(connection, query):
            return True
    return False


async def _remove_empty(connection: AsyncConnection, row: Any) -> None:
    # The history of a branch may lead through it.
    children = await rows(connection, select(BOARD.c.id).where(BOARD.c.origin == row.id))
    if not children:
        for table in OF_A_BOARD:
            await connection.execute(delete(table).where(table.c.board == row.id))
        await connection.execute(delete(BOARD).where(BOARD.c.id == row.id))


async def _free_name(connection: AsyncConnection, called: str) -> str:
    """A free name for a history that is set apart."""
    for number in count(1):
        name = f"{called[:_NAME_KEPT]}~{number}"
        if await board_row(connection, name) is None:
            return name
    raise AssertionError("numbers do not end")


async def adopt(
    connection: AsyncConnection, number: int, entries: Sequence[Entry], totals: dict[str, int]
) -> None:
    """Write the content that a board had before its archive began, and add it to `totals`."""
    for entry in entries:
        hashed = digest.content_of(entry.value)
        element = digest.element(entry.key, hashed, entry.expires_at_ms)
        namespace = namespace_of(entry.key)
        totals[namespace] = digest.add(totals.get(namespace, digest.EMPTY), element)
    await add(connection, VERSION, [archive_rows.version_row(number, entry) for entry in entries])


async def keep_totals(
    connection: AsyncConnection, number: int, totals: dict[str, int], revision: Revision
) -> None:
    """Write the sums that a board begins with, and their digests."""
    place = {"board": number}
    sums = [
        place | {"namespace": name, "total": digest.to_bytes(total)}
        for name, total in totals.items()
    ]
    await add(connection, TOTAL, sums)
    found = [digest_row(number, name, revision, total) for name, total in totals.items()]
    await add(connection, DIGEST, found)


async def fork(
    connection: AsyncConnection, number: int, past: ArchivedHistory, *, continues: bool = False
) -> None:
    """Make the empty row `number` continue from `past`; `continues` if both are the same board."""
    totals = await past.totals()
    if not continues:
        totals.pop(SYSTEM, None)
    [segment, *_] = past.segments
    await keep_totals(connection, number, totals, segment.upto)
    steps = await past.steps()
    await add(connection, AGENT, [agent_row(number, name, step) for name, step in steps.items()])
    begun = {
        "oldest": segment.upto,
        "through": segment.upto,
        "chain": await past.chain(),
        "origin": segment.board,
        "origin_revision": segment.upto,
        "continues": continues,
    }
    await connection.execute(update(BOARD).where(BOARD.c.id == number), begun)


async def go_on(connection: AsyncConnection, number: int, old: Any) -> None:
    """Make the row `number` continue the board of row `old`, of which the engine kept nothing."""
    begun = {"origin": old.id, "origin_revision": 0, "continues": True}
    await connection.execute(update(BOARD).where(BOARD.c.id == number), begun)


async def go_back(
    database: Database, connection: AsyncConnection, row: Any, revision: Revision
) -> Any:
    """The engine of the board with `row` lost what came after `revision`: continue from there, with
    the row that is returned.

    The lost revisions stay readable, as revisions of the board that no later one follows.
    """
    if not revision:
        is_known = await holds(connection, row)
        number = await replace(connection, row)
        begun = {"oldest": 0, "through": 0, "chain": archive_rows.CHAIN_START}
        await connection.execute(update(BOARD).where(BOARD.c.id == number), begun)
        if is_known:  # else its row is gone, as of a branch that was never made
            await go_on(connection, number, row)
        return await board_by_id(connection, number)
    past = await ArchivedHistory.at(database, connection, Point(row.name, revision))
    number = await replace(connection, row)
    await fork(connection, number, past, continues=True)
    return await board_by_id(connection, number)


# --- removal --------------------------------------------------------------------------------------


async def mark_removed(
    connection: AsyncConnection, board: str, keep: Collection[str], now_ms: Milliseconds
) -> bool:
    """Mark every row of `board` for removal, except for those with a name in `keep`; returns
    whether a branch needs one of them."""
    mine = or_(BOARD.c.called == board, BOARD.c.name == board)
    found = await rows(connection, select(BOARD).where(mine).with_for_update())
    doomed = [row for row in found if row.name is None or row.name == board or row.name not in keep]
    for row in doomed:
        if row.owner != REMOVED:
            # With a higher fence, because an archiver may still hold its lease.
            gone = {"name": None, "owner": REMOVED, "until_ms": now_ms, "fence": row.fence + 1}
            await connection.execute(update(BOARD).where(BOARD.c.id == row.id), gone)
    needed = await _needed(connection)
    return any(row.id in needed for row in doomed)


async def set_aside(
    connection: AsyncConnection, board: str, pruned: Any, now_ms: Milliseconds
) -> None:
    """Move the versions for which the condition `pruned` holds to a row marked for removal."""
    row = vacant(board) | {"name": None, "owner": REMOVED, "until_ms": now_ms}
    made = (await connection.execute(insert(BOARD), row)).inserted_primary_key
    assert made is not None
    await connection.execute(update(VERSION).where(pruned).values(board=made[0]))


async def take_aside(connection: AsyncConnection, boards: Collection[str]) -> set[bytes]:
    """Remove the pruned versions of these boards that were set aside; returns their blobs."""
    query = select(BOARD.c.id).where(BOARD.c.owner == REMOVED, BOARD.c.through.is_(None))
    of_these = await rows(connection, query.where(BOARD.c.called.in_(boards)))
    aside = [row.id for row in of_these]
    blobs = select(VERSION.c.content).where(VERSION.c.board.in_(aside), VERSION.c.form == BLOB)
    found = {bytes(row.content) for row in await rows(connection, blobs.distinct())}
    await connection.execute(delete(VERSION).where(VERSION.c.board.in_(aside)))
    await connection.execute(delete(BOARD).where(BOARD.c.id.in_(aside)))
    return found


async def empty_marked(
    connection: AsyncConnection, now_ms: Milliseconds, grace_ms: Milliseconds
) -> tuple[list[int], list[bytes]]:
    """Remove the marked rows that no branch needs, but for versions with blobs.

    Returns the rows whose blobs may go now, and those of the blobs that nothing else needs. Once
    they are gone, call `remove_emptied`.
    """
    query = select(BOARD).where(BOARD.c.owner == REMOVED).order_by(BOARD.c.id)
    # Locked before it is asked what is needed: a branch that begins meanwhile is seen, or waits.
    marked = await rows(connection, query.with_for_update())
    needed, due = await _needed(connection), []
    for row in marked:
        if row.id not in needed:
            is_left = await _empty_row(connection, row.id)
            # In a marked row, `until_ms` is the time at which it was marked.
            if is_left and row.until_ms + grace_ms < now_ms:
                due.append(row.id)
    named = select(VERSION.c.content).where(VERSION.c.board.in_(due), VERSION.c.form == BLOB)
    blobs = {bytes(row.content) for row in await rows(connection, named.distinct())}
    return due, await unnamed(connection, blobs)


async def remove_emptied(
    connection: AsyncConnection, due: Collection[int], left: Set[bytes]
) -> None:
    """Remove the rows `due`, except for those with a blob that was `left`."""
    for number in due:
        mine = VERSION.c.board == number
        blobs = await rows(connection, select(VERSION.c.content).where(mine).distinct())
        if left.isdisjoint(bytes(row.content) for row in blobs):
            await connection.execute(delete(VERSION).where(mine))
            await connection.execute(delete(BOARD).where(BOARD.c.id == number))


async def _needed(connection: AsyncConnection) -> set[int]:
    """The rows that the history of a remaining board includes."""
    found = {row.id: row for row in await rows(connection, select(BOARD))}
    needed: set[int] = set()
    for row in found.values():
        origin = None if row.owner == REMOVED else row.origin
        while origin is not None and origin not in needed:
            needed.add(origin)
            origin = found[origin].origin
    return needed


async def _empty_row(connection: AsyncConnection, number: int) -> bool:
    """Remove the content of a row but for versions with blobs; returns whether it has any. The row
    itself goes if it has none."""
    for table in OF_A_BOARD:
        every: Any = delete(table).where(table.c.board == number)
        if table is VERSION:
            every = every.where(VERSION.c.form != BLOB)
        await connection.execute(every)
    if await rows(connection, select(VERSION.c.board).where(VERSION.c.board == number).limit(1)):
        return True
    await connection.execute(delete(BOARD).where(BOARD.c.id == number))
    return False


async def unnamed(connection: AsyncConnection, blobs: Collection[bytes]) -> list[bytes]:
    """Those of `blobs` that no board needs; sorted. What is marked for removal needs nothing."""
    needed, left = await _needed(connection), sorted(blobs)
    marked = select(BOARD.c.id).where(BOARD.c.owner == REMOVED, BOARD.c.id.not_in(needed))
    found: list[bytes] = []
    for start in range(0, len(left), _BLOBS_AT_ONCE):  # no index leads there: each is a scan
        some = left[start : start + _BLOBS_AT_ONCE]
        query = select(VERSION.c.content).where(VERSION.c.form == BLOB, VERSION.c.content.in_(some))
        named = await rows(connection, query.where(VERSION.c.board.not_in(marked)).distinct())
        found += sorted(set(some) - {bytes(row.content) for row in named})
    return found
