"""Where an archive's database is: its URL, checked; what its driver raises; and the journal of a
file, copied into the file and made durable."""

import inspect
import sqlite3
from functools import cache
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.engines.disk import sync_path
from blackboard.engines.sqlite.journal import journal_path
from blackboard.errors import InvalidRequest

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
    return url if driver.startswith("sqlite") else _postgres(url)


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
