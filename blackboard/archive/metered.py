"""SQLite connections that measure the processor time of their statements.

A connection runs in a thread of its own, which SQLAlchemy and aiosqlite hide. So each connection
has a number, which an SQL function returns; the number leads to its meter.

A statement is one trip to that thread (`ShortTripConnection`).
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, Self
from weakref import WeakValueDictionary

import aiosqlite

from blackboard.engines.payer import timed

METER_FUNCTION: Final = "blackboard_meter"
_NUMBERS: Final = count(1)
_TEXT: Final = partial(str, encoding="utf-8", errors="replace")
"""Reads damaged text as another text, which `verify` names. By default the driver would report it
as a failure that may pass, and read no other row."""


class ConnectionMeter:
    """The processor time of one connection's thread, in nanoseconds."""

    __slots__ = ("__weakref__", "spent_ns")

    def __init__(self) -> None:
        self.spent_ns = 0

    def add(self, spent_ns: int) -> None:
        """Note so much more."""
        self.spent_ns += spent_ns


_METERS: Final[WeakValueDictionary[int, ConnectionMeter]] = WeakValueDictionary()


def meter_of(number: int) -> ConnectionMeter:
    """The meter of an open connection, by the result of METER_FUNCTION on it."""
    return _METERS[number]


class MeteredConnection(sqlite3.Connection):
    """A connection whose cursors are metered."""

    _meter: ConnectionMeter | None = None

    @property
    def meter(self) -> ConnectionMeter:
        """The meter. It is registered with SQL on first use, by the first cursor."""
        if self._meter is None:
            self._meter = ConnectionMeter()
            number = next(_NUMBERS)
            _METERS[number] = self._meter
            self.create_function(METER_FUNCTION, 0, lambda: number)
        return self._meter

    def cursor(self, *_: Any) -> Any:
        """As sqlite3 does."""
        found = super().cursor(_MeteredCursor)
        found.meter = self.meter
        return found


class _MeteredCursor(sqlite3.Cursor):
    meter: ConnectionMeter

    def execute(self, statement: str, given: Any = (), /) -> Any:
        return timed(partial(super().execute, statement, given), self.meter.add)

    def fetchall(self) -> list[Any]:
        return timed(super().fetchall, self.meter.add)


async def connect(place: str, settings: Mapping[str, Any]) -> "ShortTripConnection":
    """Open a metered connection to `place`; `settings` are those of `sqlite3.connect`."""
    connector = partial(sqlite3.connect, place, factory=MeteredConnection, **settings)
    connection = ShortTripConnection(connector)
    # As SQLAlchemy does: a connection that nobody closed does not keep the process from ending.
    connection._thread.daemon = True
    await connection
    return connection


class ShortTripConnection(aiosqlite.Connection):
    """A connection whose cursors, which are for SQLAlchemy, execute and fetch in one trip.

    With those of aiosqlite SQLAlchemy goes to the thread four times: to make the cursor, to
    execute, to fetch all rows, and to close it. That takes longer than most statements.
    """

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        self._made: list[sqlite3.Connection] = []
        super().__init__(partial(_noted, connector, self._made), iter_chunk_size=1)

    def stop(self) -> asyncio.Future[Any] | None:
        """As in aiosqlite, which does not close a file that is opened after a cancellation."""
        self._tx.put_nowait((None, partial(_close_all, self._made)))
        return super().stop()

    def cursor(self) -> Any:
        """A cursor, which nothing in SQLite stands for before it executes a statement."""
        return _Cursor(self)

    def run(self, work: Callable[..., None], *arguments: Any) -> Awaitable[None]:
        """Call `work` with SQLite's connection in the thread."""
        execute: Any = self._execute
        found: Awaitable[None] = execute(work, self._conn, *arguments)
        return found


def _noted(
    connector: Callable[[], sqlite3.Connection], made: list[sqlite3.Connection]
) -> sqlite3.Connection:
    connection = connector()
    connection.text_factory = _TEXT
    made.append(connection)
    return connection


def _close_all(made: list[sqlite3.Connection]) -> None:
    for connection in made:
        connection.close()


class _Cursor:
    """What was fetched by one statement. Closed from the start, as far as SQLite is concerned."""

    def __init__(self, connection: ShortTripConnection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, given: Any = ()) -> Self:
        """Execute a statement, and fetch its rows."""
        await self._connection.run(self._execute, statement, given)
        return self

    async def executemany(self, statement: str, given: Sequence[Any]) -> Self:
        """Execute a statement that gives no rows, once with each of `given`."""
        await self._connection.run(self._execute_many, statement, given)
        return self

    async def fetchall(self) -> list[Any]:
        """All rows, once."""
        found, self._rows = self._rows, []
        return found

    async def close(self) -> None:
        """Forget the rows."""
        self._rows = []

    def _execute(self, connection: sqlite3.Connection, statement: str, given: Any) -> None:
        cursor = connection.cursor()
        try:
            cursor.execute(statement, given)
            if cursor.description:
                self._rows = cursor.fetchall()
            self._note(cursor)
        finally:
            cursor.close()

    def _execute_many(
        self, connection: sqlite3.Connection, statement: str, given: Sequence[Any]
    ) -> None:
        cursor = connection.cursor()
        try:
            cursor.executemany(statement, given)
            self._note(cursor)
        finally:
            cursor.close()

    def _note(self, cursor: sqlite3.Cursor) -> None:
        self.description = cursor.description
        self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid
