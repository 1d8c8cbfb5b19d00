"""What threads do for a request is charged to its account: statements, pages of the log. A thread
leaves nothing open."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from blackboard.archive.connection import connect
from blackboard.archive.database import Database, rows
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.engines.payer import paid_by
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.overload.charges import Charges, Subscription
from blackboard.server.service import Service
from tests.waiting import TIMEOUT_S

COUNTED = 300_000
SLOW = text(
    f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {COUNTED})"
    " SELECT count(*) FROM n"
)
SLOW_MS = COUNTED / 1e5
"""So much it takes at least, on any machine."""


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """An archive's database in a file."""
    found = await Database.open(f"sqlite:///{tmp_path / 'archive.db'}")
    try:
        yield found
    finally:
        await found.aclose()


async def test_a_file_that_is_opened_after_a_cancellation_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread ends, too."""
    begun, go_on = threading.Event(), threading.Event()
    made: list[sqlite3.Connection] = []
    threads: list[threading.Thread] = []
    opened = sqlite3.connect

    def late(*given: Any, **how: Any) -> sqlite3.Connection:
        threads.append(threading.current_thread())
        begun.set()
        go_on.wait(TIMEOUT_S)
        made.append(opened(*given, **how))
        return made[0]

    monkeypatch.setattr(sqlite3, "connect", late)
    settings = {"check_same_thread": False}
    task = asyncio.create_task(connect(str(tmp_path / "archive.db"), settings))
    await asyncio.to_thread(begun.wait, TIMEOUT_S)
    task.cancel()
    await asyncio.wait({task})
    go_on.set()
    threads[0].join(TIMEOUT_S)
    assert task.cancelled()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


async def test_a_statement_is_charged_to_its_account(database: Database) -> None:
    """Each reading by its own payer; without one by nobody."""
    charges = Charges()
    for name in ("ann", "bob"):
        payer = Subscription(charges, name)
        with paid_by(payer):
            async with database.reading() as connection:
                assert (await rows(connection, SLOW))[0][0] == COUNTED
        payer.settle()
    async with database.reading() as connection:
        assert (await rows(connection, SLOW))[0][0] == COUNTED
    told = charges.statistics()
    assert {each.name for each in told.accounts} == {"ann", "bob"}
    assert min(each.charged_ms for each in told.accounts) > SLOW_MS
    first, second = (each.charged_ms for each in told.accounts)
    assert first < 20 * second


async def test_a_statement_that_nobody_waits_for_any_more_is_paid(database: Database) -> None:
    """It goes on in its thread until it ends."""
    charges = Charges()
    payer = Subscription(charges, "ann")
    began = threading.Event()

    def begin() -> int:
        began.set()
        return 1

    async def read() -> None:
        with paid_by(payer):
            async with database.reading() as connection:
                driver: Any = (await connection.get_raw_connection()).driver_connection
                await driver.create_function("begin_now", 0, begin)
                await rows(connection, text(str(SLOW).replace("SELECT 1", "SELECT begin_now()")))

    task = asyncio.create_task(read())
    await asyncio.to_thread(began.wait, TIMEOUT_S)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    payer.settle()
    assert charges.statistics().charged_ms > SLOW_MS


async def test_a_page_of_an_old_log_is_paid_by_its_reader(tmp_path: Path) -> None:
    """It is read from the file, in a thread."""
    async with Service(await SqliteStore.at(tmp_path, "memory")) as service:
        board = Client(service.link(access.operator())).board("main")
        for number in range(50):
            await board.put("public/x", "x" * 1_000 + str(number))
    store = await SqliteStore.at(tmp_path, "memory")
    try:
        await store.open("main")
        charges = Charges()
        payer = Subscription(charges, "ann")
        with paid_by(payer):
            page = await store.log("main", 0, limit=64)
        assert len(page.entries) >= 50
        payer.settle()
        assert charges.statistics().charged_ms > 0
    finally:
        await store.aclose()
