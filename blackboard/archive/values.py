"""Reads the values of versions, wherever they lie: in their rows, in the object store, or in the
log of their board.

The archive of an embedded engine does not repeat what the log of a board holds: a longer value has
a reference there (form LOGGED). So it is stored once, for as long as its commit is in the log.

Invariants
- A reference names the SHA-256 of the value, with which the bytes from the log are compared. So
  nothing else is taken for it: not the log of a later board of that name, nor a damaged one.
- Before rows of a log are removed, what refers to them is copied into the archive, and synced
  (`Archive.copy_values`).
- A row is read before the log is. If the log was cut in between, the row is read again.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import and_, bindparam, literal_column, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive.blobs import Blobs
from blackboard.archive.database import Database, rows
from blackboard.archive.fold import Places
from blackboard.archive.rows import (
    content_of,
    hash_of,
    inline_value,
    referred,
    with_value,
)
from blackboard.archive.tables import ABSENT, BLOB, BOARD, LOGGED, VERSION
from blackboard.core import digest
from blackboard.core.access import is_reserved
from blackboard.core.commit import Entry, LogEntry
from blackboard.engines.base import LoggedValue, ServesValues
from blackboard.errors import Corrupt, Unavailable
from blackboard.limits import BLOB_BYTES, VALUE_BYTES_MAX
from blackboard.units import Key, Revision

log = logging.getLogger(__name__)
_ROWS_TOGETHER: Final = 32
"""Versions whose values are read and decoded without a pause: less than a millisecond."""
_BYTES_TOGETHER: Final = 1024 * 1024
"""Bytes that are read from a log at a time, unless one value has more."""
_COPIED_ROWS: Final = 256
"""Versions whose values are copied in one transaction: other writers wait for it."""
_COPIED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of these values, unless one has more."""
_FILLED: Final = 128
"""Keys that are looked up at a time."""
_IN_LOG: Final = VERSION.c.form == literal_column(str(LOGGED))
"""The condition of the index `version_in_log`, which a parameter would not meet."""
_At = tuple[Revision, int]
"""A version's revision, and its position there."""
OUTSIDE: Final = (BLOB, LOGGED)
"""Forms of which the row has the SHA-256 alone."""

Found = bytes | Corrupt | None
"""A value, or why it cannot be had; None for a removal."""


class ArchivedValues:
    """The values of versions. `logs` serves those that lie in logs of boards."""

    def __init__(self, database: Database, blobs: Blobs, logs: ServesValues | None = None) -> None:
        self.blobs = blobs
        self.logs = logs
        self._database = database
        self._called: dict[int, str] = {}  # of boards, by number: neither ever changes

    async def places(self, board: str, entries: Sequence[LogEntry], above: int) -> Places:
        """Which values of `entries`, of more than `above` bytes, need not be copied, and where in
        the log they lie. Errors: Corrupt, Unavailable."""
        changes = (change for entry in entries for change in entry.changes)
        are_large = any(c.value is not None and len(c.value) > above for c in changes)
        # The records of the service itself come back from here (server/security/own_boards.py).
        is_left = above < VALUE_BYTES_MAX and not is_reserved(board)
        if self.logs is None or not is_left or not are_large:
            return {}
        with _without_cause():
            found = await self.logs.places(board, entries)
        return {
            entry.revision: {key: place for key, place in places.items() if place.size > above}
            for entry, places in zip(entries, found, strict=True)
        }

    async def of(self, connection: AsyncConnection, row: Any) -> bytes | None:
        """The value of a version, None for a removal. Errors: Corrupt, Unavailable."""
        async for _, value in self.each(connection, [row]):
            return value
        raise AssertionError("one row has one value")

    async def each(
        self, connection: AsyncConnection, versions: Sequence[Any]
    ) -> AsyncIterator[tuple[Any, bytes | None]]:
        """Each version with its value, in order; None has no value either.

        About a megabyte more is read than is taken. Errors: Corrupt, Unavailable.
        """
        for some in together(versions):
            for row, value in zip(some, await self.found(connection, some), strict=True):
                if isinstance(value, Corrupt):
                    raise value
                yield row, value

    async def entries(
        self, connection: AsyncConnection, versions: Sequence[Any]
    ) -> AsyncIterator[Entry | None]:
        """As `each`: the entries of these versions, None for a removal."""
        async for row, value in self.each(connection, versions):
            yield None if value is None else with_value(row, value)

    async def found(
        self, connection: AsyncConnection, versions: Sequence[Any], *, is_new: bool = False
    ) -> list[Found]:
        """The values of all versions, or what is wrong with them; `is_new`: none can have moved
        since they were read.

        Errors: Unavailable, also for versions that were pruned or redacted since they were read.
        """
        found: list[Found] = [None] * len(versions)
        logged: dict[int, list[int]] = defaultdict(list)
        for number, row in enumerate(versions):
            if row is not None and row.form == LOGGED:
                logged[row.board].append(number)
            elif row is not None:
                found[number] = await self._stored(row)
        for board, numbers in logged.items():
            some = [versions[number] for number in numbers]
            name = await self._name(connection, board)
            values = await self._logged(name, some)
            if None in values:
                values = await self._again(name, some, values, is_new=is_new)
            for number, value in zip(numbers, values, strict=True):
                found[number] = value
        return found

    async def _stored(self, row: Any) -> Found:
        try:
            if row.form == BLOB:
                return await self.blobs.get(bytes(row.content))
            return None if row.form == ABSENT else inline_value(row)
        except Corrupt as error:
            return error

    async def _logged(self, board: str, versions: Sequence[Any]) -> list[Found]:
        """The values of versions of one board that refer to its log."""
        wanted = [referred(row) for row in versions]
        values: list[Found] = []
        held = iter(await self._held(board, [w for w in wanted if isinstance(w, LoggedValue)]))
        for row, place in zip(versions, wanted, strict=True):
            value = place if isinstance(place, Corrupt) else next(held, None)
            if isinstance(value, bytes) and hashlib.sha256(value).digest() != hash_of(row):
                value = None
            values.append(value)
        return values

    async def _held(self, board: str, places: Sequence[LoggedValue]) -> Sequence[Found]:
        """What a log has there. Errors: Unavailable."""
        if self.logs is None:
            return [None] * len(places)
        try:
            with _without_cause():
                return await self.logs.values(board, places)
        except Corrupt as error:
            if len(places) == 1:
                return [error]
        # One by one, because one damaged page says nothing of the others.
        return [found for place in places for found in await self._held(board, [place])]

    async def _again(
        self, board: str, versions: Sequence[Any], values: Sequence[Found], *, is_new: bool
    ) -> list[Found]:
        """`values`, of which some are missing: the log was cut since the rows were read, and they
        are in their rows now, or they are lost."""
        missing = [row for row, value in zip(versions, values, strict=True) if value is None]
        now = {} if is_new else await self._now(missing)
        found = list(values)
        for number, row in enumerate(versions):
            if found[number] is None:
                current = now.get((row.revision, row.key), row)
                is_moved = current.form != LOGGED
                found[number] = await self._stored(current) if is_moved else _lost(board, row)
        return found

    async def _now(self, versions: Sequence[Any]) -> dict[tuple[Revision, Key], Any]:
        """The rows of versions of one board as they are now. Errors: Unavailable if one is gone."""
        found: dict[tuple[Revision, Key], Any] = {}
        # Beside the reads of which this is a part: it must not wait for one of them to end.
        async with self._database.reading(is_inner=True) as connection:
            for row in versions:
                same = and_(VERSION.c.board == row.board, VERSION.c.key == row.key)
                query = select(VERSION).where(same, VERSION.c.revision == row.revision)
                [now, *_] = [*await rows(connection, query), None]
                if now is None or now.form == ABSENT or hash_of(now) != hash_of(row):
                    reason = f"{row.key} was pruned or redacted while it was read"
                    raise Unavailable("archive", reason)
                found[row.revision, row.key] = now
        return found

    async def _name(self, connection: AsyncConnection, board: int) -> str:
        if board not in self._called:
            query = select(BOARD.c.called).where(BOARD.c.id == board)
            self._called[board] = (await connection.execute(query)).scalar_one()
        return self._called[board]


@contextlib.contextmanager
def _without_cause() -> Iterator[None]:
    """Take the cause away from what an engine raises: a sync of a board's file that failed says
    nothing of this one."""
    try:
        yield
    except Unavailable as error:
        raise Unavailable(error.what, error.reason) from None


def together(versions: Sequence[Any]) -> Iterator[list[Any]]:
    """`versions`, in parts of which all values are read at once. A blob is a part by itself."""
    some: list[Any] = []
    size = 0
    for row in versions:
        form = ABSENT if row is None else row.form
        more = _size_of(row) if form == LOGGED else 0
        if some and (form == BLOB or len(some) == _ROWS_TOGETHER or size + more > _BYTES_TOGETHER):
            yield some
            some, size = [], 0
        some.append(row)
        size = _BYTES_TOGETHER if form == BLOB else size + more
    if some:
        yield some


def _size_of(row: Any) -> int:
    place = referred(row)
    return place.size if isinstance(place, LoggedValue) else 0


def _lost(board: str, row: Any) -> Corrupt:
    what = f"archived {row.key} at revision {row.revision}"
    reason = f"its value lies in the log of board {board}, which does not have it"
    return Corrupt(what=what, reason=f"{reason}: a backup may (docs/howto/backup.md)")


# --- copying --------------------------------------------------------------------------------------


async def boards_with(database: Database, board: str) -> tuple[list[int], bool]:
    """The numbers of all rows of a board, also of earlier ones of its name, and whether another
    board is one of them, or its history includes one."""
    every = select(BOARD.c.id, BOARD.c.name, BOARD.c.called, BOARD.c.origin)
    async with database.reading() as connection:
        found = await rows(connection, every)
    mine = {row.id: row.name for row in found if board in (row.name, row.called)}
    is_shared = any(row.origin in mine for row in found if row.id not in mine)
    return sorted(mine), is_shared or not {None, board}.issuperset(mine.values())


async def refers(database: Database, numbers: Sequence[int]) -> bool:
    """Whether a value of one of these boards lies in a log."""
    if not database.is_sqlite:  # there they never do, and no index says so
        return False
    async with database.reading() as connection:
        for number in numbers:
            query = select(VERSION.c.revision).where(VERSION.c.board == number, _IN_LOG).limit(1)
            if await rows(connection, query):
                return True
    return False


async def copy_values(
    database: Database,
    values: ArchivedValues,
    board: str,
    below: Revision | None,
    *,
    if_shared: bool,
) -> None:
    """As `Archive.copy_values`."""
    if not database.is_sqlite:
        return
    numbers, is_shared = await boards_with(database, board)
    if is_shared or not if_shared:
        for number in numbers:
            await _copy_board(database, values, number, below)
        # In any case: what an earlier call has copied may not be on the disk.
        await database.sync()


async def _copy_board(
    database: Database, values: ArchivedValues, board: int, below: Revision | None
) -> None:
    """Copy the values of one board that lie in its log below a revision (None: all) into the
    archive, some in a transaction. What the log has lost stays as it is.

    Errors: Unavailable. Cancellation: it can be repeated.
    """
    after: _At | None = (-1, -1)
    while after is not None:
        query = select(VERSION).where(VERSION.c.board == board, _IN_LOG)
        query = query.where(tuple_(VERSION.c.revision, VERSION.c.position) > tuple_(*after))
        if below is not None:
            query = query.where(VERSION.c.revision < below)
        query = query.order_by(VERSION.c.revision, VERSION.c.position).limit(_COPIED_ROWS)
        # Read before the transaction that writes, for which everybody else waits.
        async with database.reading() as connection:
            page = _within(await rows(connection, query), _COPIED_BYTES)
            found = [
                pair
                for some in together(page)
                for pair in zip(
                    some, await values.found(connection, some, is_new=True), strict=True
                )
            ]
        whole = [(row, value) for row, value in found if isinstance(value, bytes)]
        if lost := [value for _, value in found if isinstance(value, Corrupt)]:
            log.warning("%d values are not in the log that had them: %s ...", len(lost), lost[0])
        await _store(database, values.blobs, whole)
        after = (page[-1].revision, page[-1].position) if page else None


async def fill(
    database: Database,
    blobs: Blobs,
    numbers: Sequence[int],
    found: Sequence[tuple[Revision, Key, bytes]],
) -> None:
    """As `Archive.fill`, for these boards."""
    for start in range(0, len(found), _FILLED):
        known = {(at, key): value for at, key, value in found[start : start + _FILLED]}
        query = select(VERSION).where(VERSION.c.board.in_(numbers), _IN_LOG)
        query = query.where(VERSION.c.key.in_({key for _, key in known}))
        async with database.reading() as connection:
            page = await rows(connection, query)
        same = [
            (row, value)
            for row in page
            if (value := known.get((row.revision, row.key))) is not None
            and digest.content_of(value) == hash_of(row)
        ]
        await _store(database, blobs, same)


def _within(page: Sequence[Any], bytes_max: int) -> Sequence[Any]:
    """The first of these versions, as many as have so many bytes, and one at least."""
    size = 0
    for number, row in enumerate(page):
        if size >= bytes_max:
            return page[:number]
        size += _size_of(row)
    return page


async def _store(database: Database, blobs: Blobs, found: Sequence[tuple[Any, bytes]]) -> None:
    """Put values into the rows of their versions, unless these have changed meanwhile."""
    if not found:
        return
    given = await asyncio.to_thread(_filled, found)  # compressing them takes some milliseconds
    large = {(row.board, row.revision, row.position): v for row, v in found if len(v) > BLOB_BYTES}
    async with database.writing() as connection:
        if large:
            # Only those that are still wanted: nothing would ever discard the others.
            await database.lock_blobs(connection, shared=True)
            await blobs.put_all([large[place] for place in await _left(connection, large)])
        await connection.execute(_FILL, given)


def _filled(found: Sequence[tuple[Any, bytes]]) -> list[dict[str, Any]]:
    """The parameters of `_FILL` for these values."""
    return [
        {"number": row.board, "at": row.revision, "place": row.position, "kind": form, "data": data}
        for row, value in found
        for form, data in [content_of(value, hash_of(row))]
    ]


async def _left(
    connection: AsyncConnection, places: Collection[tuple[int, Revision, int]]
) -> list[tuple[int, Revision, int]]:
    """Those of the versions that still refer to a log."""
    found: list[tuple[int, Revision, int]] = []
    for board, revision, position in places:
        one = and_(VERSION.c.board == board, VERSION.c.revision == revision)
        query = select(VERSION.c.key).where(one, VERSION.c.position == position, _IN_LOG)
        found += [(board, revision, position)] if await rows(connection, query) else []
    return found


_FILL: Final = (
    update(VERSION)
    .where(VERSION.c.board == bindparam("number"), VERSION.c.revision == bindparam("at"))
    .where(VERSION.c.position == bindparam("place"), _IN_LOG)
    .values(form=bindparam("kind"), content=bindparam("data"))
)
