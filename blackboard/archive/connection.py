"""How an archive's database is reached: where it is, connections, what drivers raise.

SQLite's connections measure the processor time of their statements. A connection runs in a thread
of its own, which SQLAlchemy and aiosqlite hide. So each connection has a number, which an SQL
function returns; the number leads to its meter. A statement is one trip to that thread
(`ShortTripConnection`). The journal of its file is copied into it, and made durable, by hand.
"""

import asyncio
import contextlib
import inspect
import os
import sqlite3
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

import aiosqlite
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.engines.disk import sync_path
from blackboard.engines.payer import timed
from blackboard.engines.sqlite.journal import journal_path
from blackboard.errors import BlackboardError, Corrupt, InvalidRequest, Unavailable

# --- where ----------------------------------------------------------------------------------------

DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}
_KINDS: Final = (
    "write sqlite:///relative/path, sqlite:////absolute/path or postgresql://user@host/database"
)
_NO_URL: Final = f"are all odd characters of the password percent-encoded? Otherwise, {_KINDS}"
_PORTS: Final = range(1, 65_536)
_LIBPQ_MODE: Final = "sslmode"
"""What URLs for other programs call asyncpg's parameter `ssl`."""
_OF_SQLALCHEMY: Final = ("prepared_statement_cache_size",)


def place_of(given: str) -> URL:
    """The URL as SQLAlchemy takes it. Errors: InvalidRequest, without the password."""
    try:
        if not given.startswith("sqlite"):  # a path may have any bytes
            given.encode()
        url = make_url(given)
    except (ArgumentError, ValueError) as error:
        shown = "it" if "@" in given else repr(given)
        raise InvalidRequest("archive", f"{shown} is not a URL: {_NO_URL}") from error
    driver = DRIVERS.get(url.drivername)
    if driver is None or (driver.startswith("sqlite") and not url.database):
        raise InvalidRequest("archive", f"{url.drivername} is not a kind of archive: {_KINDS}")
    url = url.set(drivername=driver)
    if driver.startswith("sqlite"):
        # SQLAlchemy 2.0 does not decode it.
        _, _, path = given.partition("?")[0].partition("///")
        return url.set(database=unquote(path, errors="surrogateescape") or url.database)
    return _postgres(url)


def url_of_file(path: Path) -> str:
    """The URL of an archive in a file; `place_of` gives the path back."""
    return f"sqlite:///{quote(os.fsencode(path))}"


def _postgres(url: URL) -> URL:
    try:
        (url.host or "").encode("idna")  # as Python's own resolver does
    except UnicodeError as error:
        raise InvalidRequest("archive", f"{url.host!r} is not a host") from error
    if url.port is not None and url.port not in _PORTS:
        raise InvalidRequest("archive", f"{url.port} is not a port")
    query = dict(url.query)
    if _LIBPQ_MODE in query:
        query["ssl"] = query.pop(_LIBPQ_MODE)
    import asyncpg  # an extra

    known = {*inspect.signature(asyncpg.connect).parameters, *_OF_SQLALCHEMY}
    if unknown := sorted(query.keys() - known):
        raise InvalidRequest("archive", f"the URL has an unknown parameter: {unknown[0]!r}")
    return url.set(query=query)


@cache
def errors_of_drivers() -> tuple[type[Exception], ...]:
    """What SQLAlchemy raises or lets pass: of asyncpg, SQLAlchemy 2.0 what it raises at connect."""
    known = (SQLAlchemyError, sqlite3.Error, OSError)
    try:
        import asyncpg
    except ImportError:  # an extra
        return known
    return *known, asyncpg.PostgresError, asyncpg.InterfaceError


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn exceptions of SQLAlchemy and of the drivers into our errors."""
    try:
        yield
    except BlackboardError:
        raise
    except DBAPIError as error:
        cause = error.orig
        reason = str(cause).partition("\n")[0]
        damaged = isinstance(cause, sqlite3.DatabaseError) and not isinstance(
            cause, sqlite3.OperationalError | sqlite3.IntegrityError
        )
        kind = Corrupt if damaged else Unavailable
        raise kind(what=f"archive {what}", reason=reason) from error
    except errors_of_drivers() as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise Unavailable(what=f"archive {what}", reason=reason) from error


def cause_of(error: BlackboardError) -> BaseException | None:
    """What the driver raised, if `error` was made of that; else its cause."""
    cause = error.__cause__
    return cause.orig if isinstance(cause, DBAPIError) else cause


def sync_journal(path: Path) -> None:
    """Errors: OSError; SyncError, after which the file at `path` is suspect."""
    sync_path(journal_path(path))
    sync_path(path.parent)


async def copy_journal(connection: AsyncConnection, how: str) -> bool:
    """Copy SQLite's journal into the file; returns whether a part of it is left.

    Errors: sqlite3.Error.
    """
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    found = await (await driver.execute(f"PRAGMA wal_checkpoint({how})")).fetchone()
    busy, frames, copied = found
    return bool(busy or frames != copied)


# --- metered connections of SQLite ----------------------------------------------------------------

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
