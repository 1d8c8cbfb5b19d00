"""Removes the archive of a board, except for what its branches share.

A board has several rows: the one with its name, older ones that lost the name to it, and those that
were set apart as `<board>~1`. All of them are removed. A row that another board's history includes
stays complete, without a name, until that board is removed as well.

Invariants
- A row to be removed has no name and the owner REMOVED, so it can neither be found nor appended to.
- Versions whose value is a blob stay until the blob may be removed (BLOB_GRACE_MS), so that a crash
  leaves no unreferenced blobs.
"""

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive.database import rows
from blackboard.archive.tables import BLOB, BOARD, OF_A_BOARD, VERSION
from blackboard.limits import BLOB_GRACE_MS
from blackboard.units import Milliseconds

REMOVED: Final = "~removed"


async def mark(
    connection: AsyncConnection, board: str, keep: Collection[str], now_ms: Milliseconds
) -> bool:
    """Mark every row of `board` for removal, except for those with a name in `keep`; returns
    whether a branch needs one of them."""
    mine = or_(BOARD.c.called == board, BOARD.c.name == board)
    found = await rows(connection, select(BOARD).where(mine).with_for_update())
    doomed = [row for row in found if row.name is None or row.name == board or row.name not in keep]
    for row in doomed:
        if row.owner != REMOVED:
            gone = {"name": None, "owner": REMOVED, "until_ms": now_ms, "fence": row.fence + 1}
            await connection.execute(update(BOARD).where(BOARD.c.id == row.id), gone)
    needed = await _needed(connection)
    return any(row.id in needed for row in doomed)


async def sweep(connection: AsyncConnection, now_ms: Milliseconds) -> list[bytes]:
    """Remove the marked rows that no branch needs; returns the blobs that are no longer
    referenced."""
    needed = await _needed(connection)
    blobs: set[bytes] = set()
    for row in await rows(connection, select(BOARD).where(BOARD.c.owner == REMOVED)):
        if row.id in needed:
            continue
        is_over = row.until_ms + BLOB_GRACE_MS < now_ms
        blobs |= await _remove(connection, row.id, with_blobs=is_over)
    return await _unnamed(connection, blobs)


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


async def _remove(connection: AsyncConnection, number: int, *, with_blobs: bool) -> set[bytes]:
    """Remove the content of a row; `with_blobs`, also its versions with blobs and the row
    itself."""
    blobs = select(VERSION.c.content).where(VERSION.c.board == number, VERSION.c.form == BLOB)
    names = {bytes(row.content) for row in await rows(connection, blobs.distinct())}
    for table in OF_A_BOARD:
        every: Any = delete(table).where(table.c.board == number)
        if table is VERSION and names and not with_blobs:
            every = every.where(VERSION.c.form != BLOB)
        await connection.execute(every)
    if names and not with_blobs:
        return set()
    await connection.execute(delete(BOARD).where(BOARD.c.id == number))
    return names


async def _unnamed(connection: AsyncConnection, blobs: set[bytes]) -> list[bytes]:
    found: list[bytes] = []
    for name in sorted(blobs):
        named = select(VERSION.c.board).where(VERSION.c.form == BLOB, VERSION.c.content == name)
        if not await rows(connection, named.limit(1)):
            found.append(name)
    return found
