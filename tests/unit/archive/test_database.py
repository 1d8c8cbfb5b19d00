"""Opening the archive's database, and what its failures become."""

import asyncio
import contextlib
import errno
import sqlite3
import threading
from itertools import count
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import text

from blackboard.archive import connection as place
from blackboard.archive.database import Database, TrustedFile
from blackboard.engines.disk import SyncError
from blackboard.errors import Corrupt, InvalidRequest, Unavailable
from tests.conformance.team import PATIENCE_S
from tests.ports import free_port
from tests.waiting import wait_until


@pytest.mark.parametrize("url", ["", "paper", "mysql://host/db", "sqlite://", "redis://host"])
async def test_another_url_is_refused(url: str) -> None:
    """Naming the setting."""
    with pytest.raises(InvalidRequest) as refused:
        await Database.open(url)
    assert refused.value.field == "archive"
    assert "sqlite:///" in refused.value.reason


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@host:port/board",
        "postgresql://ada:secret@host:99999/board",
        "postgresql://ada:secret\udcff@host/board",
        "postgresql://ada:secret@host/board?foo=bar",
        f"postgresql://ada:secret@{'host' * 16}.internal/board",
    ],
)
async def test_an_address_that_no_server_has_is_refused(url: str) -> None:
    """And no message contains a password."""
    with pytest.raises(InvalidRequest) as refused:
        await Database.open(url)
    assert refused.value.field == "archive"
    assert "secret" not in str(refused.value)


async def test_a_server_that_is_away_is_unavailable() -> None:
    """And no message contains its password."""
    url = f"postgresql://somebody:secret@127.0.0.1:{free_port()}/blackboard"
    with pytest.raises(Unavailable) as refused:
        await Database.open(url)
    assert "secret" not in str(refused.value)
    assert "127.0.0.1" in refused.value.what


async def test_a_directory_that_is_missing_is_unavailable(tmp_path: Path) -> None:
    """A file cannot be made there."""
    with pytest.raises(Unavailable):
        await Database.open(f"sqlite:///{tmp_path}/missing/archive.db")


async def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    """It is left as it is."""
    path = tmp_path / "archive.db"
    path.write_bytes(b"not a database " * 1000)
    with pytest.raises(Corrupt):
        await Database.open(f"sqlite:///{path}")
    assert path.read_bytes().startswith(b"not a database")


async def test_a_transaction_is_whole_or_not(tmp_path: Path) -> None:
    """An error in the middle undoes it; a reader sees one snapshot."""
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db")
    count = text("SELECT COUNT(*) FROM kept")
    write = text("INSERT INTO kept (board, revision) VALUES (1, :revision)")
    async with database.writing() as connection:
        await connection.execute(write, {"revision": 1})

    async def fail() -> None:
        async with database.writing() as connection:
            await connection.execute(write, {"revision": 2})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with database.reading() as reader:
        assert (await reader.execute(count)).scalar_one() == 1
        async with database.writing() as connection:
            await connection.execute(write, {"revision": 3})
        assert (await reader.execute(count)).scalar_one() == 1
    async with database.reading() as reader:
        assert (await reader.execute(count)).scalar_one() == 2
    await database.sync()
    await database.aclose()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
async def test_a_write_that_was_committed_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Whatever the disk says afterwards, when the length of the journal is looked at."""
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db")

    def fails(_: object) -> int:
        raise OSError(number, "no")

    monkeypatch.setattr("blackboard.archive.database.valid_frames", fails)
    async with database.writing() as connection:
        await connection.execute(text("INSERT INTO kept (board, revision) VALUES (1, 1)"))
    async with database.reading() as connection:
        assert (await connection.execute(text("SELECT COUNT(*) FROM kept"))).scalar_one() == 1
    await database.aclose()


async def test_writers_take_turns(tmp_path: Path) -> None:
    """Many at once, and none fails because the file is locked."""
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db")

    async def write(revision: int) -> None:
        async with database.writing() as connection:
            statement = text("INSERT INTO kept (board, revision) VALUES (1, :revision)")
            await connection.execute(statement, {"revision": revision})

    await asyncio.gather(*(write(number) for number in range(40)))
    async with database.reading() as connection:
        assert (await connection.execute(text("SELECT COUNT(*) FROM kept"))).scalar_one() == 40
    await database.aclose()


@pytest.mark.parametrize("kind", ["reading", "writing"])
async def test_a_cancelled_transaction_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    """Its statement was under way, with a row to fetch."""
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db")
    begun, go_on = threading.Event(), threading.Event()

    def pause() -> int:
        begun.set()
        return go_on.wait()

    async def select() -> None:
        async with getattr(database, kind)() as connection:
            raw = await connection.get_raw_connection()
            await raw.driver_connection.create_function("pause", 0, pause)
            await connection.execute(text("SELECT pause() FROM kept"))

    async with database.writing() as connection:
        await connection.execute(text("INSERT INTO kept (board, revision) VALUES (1, 1), (1, 2)"))
    task = asyncio.create_task(select())
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.wait({task}, timeout=0)  # it is cancelled, and still has to wait
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with contextlib.closing(sqlite3.connect(tmp_path / "archive.db", timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO kept (board, revision) VALUES (1, 3)")
        other.commit()
        busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy
    await database.aclose()


@pytest.mark.parametrize("trip", range(6))
async def test_a_connection_that_is_cancelled_while_it_is_made_is_closed(
    tmp_path: Path, trip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its thread is doing: opening the file, or the settings of the connection."""
    before = connection_threads()
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db")
    trips = count()
    execute: Any = aiosqlite.Connection._execute

    async def cancelled(connection: Any, *call: Any, **how: Any) -> Any:
        task = asyncio.current_task()
        if task is not None and task.get_name() == "second" and next(trips) == trip:
            task.cancel()
        return await execute(connection, *call, **how)

    async def select() -> None:
        async with database.reading() as connection:
            await connection.execute(text("SELECT 1 FROM kept"))

    async with database.reading():  # so that the other one needs a connection of its own
        monkeypatch.setattr(aiosqlite.Connection, "_execute", cancelled)
        [second], _ = await asyncio.wait({asyncio.create_task(select(), name="second")})
        assert second.cancelled()
    await database.aclose()
    left = connection_threads() - before
    for thread in left:
        thread.join(PATIENCE_S)
    assert [thread for thread in left if thread.is_alive()] == []


def connection_threads() -> set[threading.Thread]:
    """The threads that aiosqlite runs, one for each connection that is open."""
    return {thread for thread in threading.enumerate() if "_connection_worker" in thread.name}


async def test_an_opening_that_is_cancelled_leaves_the_file_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the thread that opens it had not ended: its lock is released."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(_: TrustedFile) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    with monkeypatch.context() as patched:
        patched.setattr(TrustedFile, "_make_sure", slowly)
        opening = asyncio.create_task(Database.open(f"sqlite:///{tmp_path}/archive.db"))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        opening.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert await asyncio.to_thread(go_on.wait, PATIENCE_S)
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db")
    assert database.was_alone
    await database.aclose()


async def test_a_closed_one_is_not_opened_to_scrub_it(tmp_path: Path) -> None:
    """By then its file may be another process's."""
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db")
    await database.aclose()
    with pytest.raises(Unavailable, match="it was closed"):
        await database.scrub()


async def test_a_write_that_is_cancelled_lets_no_other_overtake_a_read(tmp_path: Path) -> None:
    """There is room on the disk again; the read uses the file without its journal."""
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db")
    assert database._file is not None
    await database._begin_to_read(database._file, Unavailable("archive", "no room"))

    async def write() -> None:
        async with database.writing() as connection:
            await connection.execute(text("INSERT INTO kept (board, revision) VALUES (1, 1)"))

    async def is_open() -> bool:
        return not database._read_only

    async with database.reading():
        first = asyncio.create_task(write())
        await wait_until(is_open)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(write())
        for _ in range(32):
            async with database.reading() as other:
                await other.execute(text("SELECT 1"))
        assert not second.done()
    await second
    await database.aclose()


async def test_any_number_of_reads_leaves_a_connection_to_write(tmp_path: Path) -> None:
    """Verifying takes minutes, and so does a read that waits for an object store."""
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db", timeout_ms=500)
    async with contextlib.AsyncExitStack() as reads:
        with contextlib.suppress(Unavailable):
            while True:
                await reads.enter_async_context(database.reading())
        async with database.writing() as connection:
            await connection.execute(text("INSERT INTO kept (board, revision) VALUES (1, 1)"))
        await database.sync()
    async with database.reading() as connection:
        assert (await connection.execute(text("SELECT COUNT(*) FROM kept"))).scalar_one() == 1
    await database.aclose()


@pytest.mark.parametrize("fails", [False, True], ids=["sound", "failing"])
async def test_a_long_read_holds_up_no_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """What it keeps out of the file is durable in the journal. After a failure nothing counts."""
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db", timeout_ms=500)
    async with database.reading() as connection:
        await connection.execute(text("SELECT COUNT(*) FROM kept"))
        async with database.writing() as other:
            await other.execute(text("INSERT INTO kept (board, revision) VALUES (1, 1)"))
        if fails:
            monkeypatch.setattr(place, "sync_path", _fail)
        with pytest.raises(Unavailable) if fails else contextlib.nullcontext():
            await database.sync()
        monkeypatch.undo()
    with pytest.raises(Unavailable) if fails else contextlib.nullcontext():
        await database.sync()
    await database.aclose()


def _fail(path: Path) -> None:
    raise SyncError(errno.EIO, "the disk fails")
