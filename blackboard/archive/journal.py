"""SQLite's journal of the archive's file: copied into the file, and made durable."""

from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.engines.disk import sync_path
from blackboard.engines.sqlite.journal import journal_path


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
