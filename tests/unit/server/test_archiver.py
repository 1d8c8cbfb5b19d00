"""The archiver brings every log entry into the archive, once, and holds nobody up."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from blackboard.archive.base import Archive, Pause
from blackboard.archive.fold import STEP_CHANGES
from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.checkpoints import Mark, Point
from blackboard.core.commit import Entry, LogEntry, Put
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import NoSuchBoard, Unavailable
from blackboard.limits import Limits
from blackboard.server.archiver import _LOOK_MS, Archiver, _ArchivedBoard
from blackboard.server.boards import Boards
from blackboard.server.host import Host
from blackboard.server.requests import RequestHandler
from blackboard.server.sweeper import Sweeper
from blackboard.units import Key, Revision
from blackboard.wire.codec import encode_value
from tests.conformance.archive_suite import Place
from tests.conformance.rules_archive import state_at, whole_log
from tests.conformance.writer import Writer
from tests.interrupting import interrupted
from tests.lowered import lowered
from tests.postgres import Postgres, answered, postgres_directory
from tests.unit.server.hooked import HookedStore
from tests.waiting import wait_until

BOARD = "main"
PATIENCE_MS = 60_000
"""For what may take a slow machine more than ARCHIVE_WAIT_MS."""
ONE = encode_value(1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """The engine."""
    opened = await SqliteStore.at(tmp_path / "data", "memory")
    yield opened
    await opened.aclose()


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Archive]:
    """An empty archive."""
    opened = await archive_beside(tmp_path)
    yield opened
    await opened.aclose()


@pytest.fixture
async def boards(tmp_path: Path, limits: Limits) -> AsyncIterator[Boards]:
    """What a service has, with an archive."""
    store = await SqliteStore.at(tmp_path / "data", "memory")
    archive = await archive_beside(tmp_path / "past")
    boards = Boards(Host(store, archive=archive, limits=limits))
    await boards.host.look()
    yield boards
    await boards.aclose()


async def log_of(store: SqliteStore, board: str = BOARD) -> list[LogEntry]:
    """The log, from where it begins."""
    head = await store.open(board)
    found: list[LogEntry] = []
    while (after := found[-1].revision if found else head.oldest - 1) < head.revision:
        found += (await store.log(board, after, limit=1000)).entries
    return found


async def content_of(store: SqliteStore, board: str = BOARD) -> dict[Key, Entry]:
    """What the board holds now; small boards only."""
    page = await store.list(board, "", limit=1000)
    return {entry.key: entry for entry in page.entries}


def client(boards: Boards) -> Board:
    """The board as its operator."""
    return Client(RequestHandler(boards, access.operator())).board(BOARD)


async def test_what_is_committed_is_archived(boards: Boards) -> None:
    """By the service itself, soon, and equal to the log."""
    board = client(boards)
    for number in range(50):
        await board.put(f"public/k{number % 7}", number)
    head = await board.head()
    assert boards.host.archiver is not None
    mark = await boards.host.archiver.reached(BOARD, head.revision)
    assert mark.revision == head.revision
    assert isinstance(boards.host.store, SqliteStore)
    assert await whole_log(boards.host.archiver.archive, BOARD) == await log_of(boards.host.store)
    statistics = boards.host.archiver.statistics()
    assert (statistics.boards, statistics.behind, statistics.failing) == (1, 0, 0)
    assert statistics.appended == head.revision


@pytest.mark.limits(archive_pause_ms=3_600_000, archive_idle_ms=3_600_000, archive_page_entries=8)
async def test_a_full_page_is_archived_at_once(boards: Boards) -> None:
    """However long it gathers otherwise: later, the engine would have to read it again."""
    board, archiver = client(boards), boards.host.archiver
    assert archiver is not None

    async def is_archived() -> bool:
        return archiver.statistics().appended >= 9

    revision = (await board.put("public/a", 0)).revision
    await archiver.reached(BOARD, revision)
    for number in range(8):
        await board.put("public/a", number)
    await wait_until(is_archived)


async def test_closing_archives_to_the_end(tmp_path: Path) -> None:
    """An archiver that stops archives everything first, and releases its lease."""
    store = await SqliteStore.at(tmp_path / "data", "memory")
    boards = Boards(Host(store, archive=await archive_beside(tmp_path)))
    await boards.host.look()
    for number in range(20):
        await client(boards).put("public/a", number)
    await boards.aclose()
    archive = await archive_beside(tmp_path)
    mark = await archive.mark(BOARD)
    assert mark is not None
    assert mark.revision == 20
    assert await archive.take(BOARD, "another", 1_000) is not None
    await archive.aclose()


@pytest.mark.slow
async def test_a_board_that_is_older_than_the_archive_is_joined(
    store: SqliteStore, archive: Archive
) -> None:
    """Its log was cut before; commits go on while it is listed."""
    writer = await Writer.open(store, BOARD)
    for number in range(3_000):
        if number % 100 == 0:
            await writer.send_all(
                [writer.make(Put(f"public/{number + i}", ONE)) for i in range(100)]
            )
    await store.compact(BOARD, 3_001 - 2_950)
    enough = asyncio.Event()
    busy = asyncio.create_task(write_until(enough, writer))
    archiver = Archiver(store, archive)
    mark = await archiver.reached(BOARD, 3_000, timeout_ms=PATIENCE_MS)
    enough.set()
    await busy  # a commit that is cancelled may be carried out later
    head = await store.open(BOARD)
    mark = await archiver.reached(BOARD, head.revision, timeout_ms=PATIENCE_MS)
    assert 0 < mark.oldest <= head.revision
    assert await state_at(archive, Point(BOARD, head.revision)) == await whole(store)
    assert await whole_log(archive, BOARD, mark.oldest) == [
        entry for entry in await log_of(store) if entry.revision > mark.oldest
    ]
    found = archive.verify(Point(BOARD, head.revision))
    assert [finding async for finding in found] == []
    await archiver.aclose()


async def test_a_gap_is_logged_once_by_the_process_that_archives(
    store: SqliteStore, archive: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by each process, each time that it checks whether another one is archiving."""
    writer = await Writer.open(store, BOARD)
    await writer.send_all([writer.make(Put("public/a", ONE)) for _ in range(5)])
    first = Archiver(store, archive)
    await first.reached(BOARD, 5)
    await first.aclose()
    await writer.send_all([writer.make(Put("public/a", ONE)) for _ in range(5)])
    await store.compact(BOARD, 9)
    fence = await archive.take(BOARD, "another", 60_000)
    assert fence is not None
    archiver = Archiver(store, archive)
    with pytest.raises(Unavailable):
        await archiver.reached(BOARD, 10, timeout_ms=10 * _LOOK_MS)
    assert "archive" not in caplog.text
    await archive.give_up(BOARD, fence)
    await archiver.reached(BOARD, 10, timeout_ms=PATIENCE_MS)
    assert caplog.text.count("missing from the archive") == 1
    await archiver.aclose()


@pytest.mark.parametrize("by", ["this process", "another process"])
async def test_what_waits_for_the_archive_of_a_removed_board_learns_that(
    store: SqliteStore, archive: Archive, by: str
) -> None:
    """At once: nothing will be archived any more."""
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", ONE))
    archiver = Archiver(store, archive)
    await archiver.reached(BOARD, 1)
    waiting = asyncio.create_task(archiver.reached(BOARD, 2, timeout_ms=PATIENCE_MS))

    async def is_waiting() -> bool:
        return archiver._boards[BOARD].waiters > 0

    await wait_until(is_waiting)
    if by == "this process":
        await archiver.unfollow(BOARD, NoSuchBoard(BOARD))
    else:
        await store.remove(BOARD)
    with pytest.raises(NoSuchBoard):
        await waiting
    await archiver.aclose()


async def write_until(enough: asyncio.Event, writer: Writer) -> None:
    """Change keys from the beginning to the end of the board, and add some."""
    number = 0
    while not enough.is_set():
        number += 7
        await writer.commit(Put(f"public/{number % 2_900}", ONE), Put(f"public/new{number}", ONE))


async def whole(store: SqliteStore) -> dict[Key, Entry]:
    """Everything that the board holds."""
    found: dict[Key, Entry] = {}
    after = None
    while True:
        page = await store.list(BOARD, "", after=after, limit=1000)
        found |= {entry.key: entry for entry in page.entries}
        after = page.next_key
        if after is None:
            return found


async def test_one_archives_and_the_other_takes_over(store: SqliteStore, archive: Archive) -> None:
    """Both come to know how far it is; when one stops, the other goes on."""
    writer = await Writer.open(store, BOARD)
    first, second = Archiver(store, archive), Archiver(store, archive)
    await writer.commit(Put("public/a", ONE))
    await first.reached(BOARD, 1)
    await writer.commit(Put("public/a", ONE))
    await second.reached(BOARD, 2)

    async def is_counted() -> bool:
        """A closing that cuts the answer off leaves what it archived uncounted."""
        return first.statistics().appended + second.statistics().appended == 2

    await wait_until(is_counted)
    await first.aclose()
    await writer.commit(Put("public/a", ONE))
    await second.reached(BOARD, 3)
    assert await whole_log(archive, BOARD) == await log_of(store)
    assert first.statistics().appended + second.statistics().appended == 3
    await second.aclose()


async def test_a_closed_archiver_leaves_no_lease_wherever_it_was(
    store: SqliteStore, archive: Archive
) -> None:
    """The next one need not wait until it ends."""
    writer = await Writer.open(store, BOARD)
    at, was_reached = 0, True
    while was_reached:
        await writer.commit(Put("public/n", ONE))
        archiver = Archiver(store, archive)
        board = archiver._boards[BOARD] = _ArchivedBoard(BOARD)
        was_reached = (await interrupted(archiver._advance(board), at)).was_reached
        await archiver.aclose()
        fence = await archive.take(BOARD, "next", PATIENCE_MS)
        assert fence is not None, at
        await archive.give_up(BOARD, fence)
        at += 1
    assert at > 5


async def test_an_archiver_that_cannot_finish_leaves_no_lease(
    tmp_path: Path, archive: Archive
) -> None:
    """Its engine is away when it is closed, and the archive is not."""
    store = await HookedStore.at(tmp_path / "hooked", "memory")
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/n", ONE))
    archiver = Archiver(store, archive)
    await archiver.reached(BOARD, 1)

    async def fail() -> None:
        raise Unavailable("the engine", "it is away")

    store.hook("before log", fail)
    await archiver.aclose()
    assert await archive.take(BOARD, "next", PATIENCE_MS) is not None
    store.hooks.clear()
    await store.aclose()


async def test_a_board_that_was_made_again_is_archived_beside_the_old_one(
    store: SqliteStore, archive: Archive
) -> None:
    """The archive finds out that its past is not this board's, whichever is longer; each stays."""
    logs = []
    for commits in (5, 9, 2):
        writer = await Writer.open(store, BOARD)
        for number in range(commits):
            await writer.commit(Put(f"public/{commits}", encode_value(number)))
        archiver = Archiver(store, archive)

        async def is_archived(archiver: Archiver = archiver, commits: int = commits) -> bool:
            archiver.follow(BOARD)
            archiver.poke(BOARD)
            mark = await archive.mark(BOARD)
            with contextlib.suppress(Unavailable):  # an epoch is beginning
                head = await store.open(BOARD)
                return mark is not None and mark.revision == head.revision >= commits
            return False

        await wait_until(is_archived)
        logs.append(await log_of(store))
        assert await whole_log(archive, BOARD) == logs[-1]
        await archiver.aclose()
        await store.drop(BOARD)
    assert logs[-1][-1].revision > 9  # above what was archived before
    for number, log in enumerate(logs[:-1], 1):
        assert await whole_log(archive, f"{BOARD}~{number}") == log


async def test_the_log_is_cut_only_behind_the_archive(boards: Boards) -> None:
    """While somebody else has the archive and does nothing, the log grows."""
    board = client(boards)
    assert boards.host.archive is not None
    assert boards.host.archiver is not None
    assert await boards.host.archive.take(BOARD, "stuck", 60_000) == 1
    for number in range(60):
        await board.put("public/a", number)
    sweeper = Sweeper(boards, "ab")
    await sweeper.trim(10)
    assert (await boards.host.store.open(BOARD)).oldest == 1
    await boards.host.archive.give_up(BOARD, 1)
    await boards.host.archiver.reached(BOARD, 60)
    await sweeper.trim(10)
    head = await boards.host.store.open(BOARD)
    assert (head.oldest, head.log_entries) == (51, 10)
    log = await whole_log(boards.host.archive, BOARD)
    assert [entry.revision for entry in log] == list(range(1, 61))


async def test_a_log_is_cut_at_the_first_look(boards: Boards) -> None:
    """A service that is started again more often than once a minute trims, too; then once each."""
    board, sweeper = client(boards), Sweeper(boards, "ab")
    assert boards.host.archiver is not None
    for number in range(30):
        await board.put("public/a", number)
    await boards.host.archiver.reached(BOARD, 30)
    await sweeper.trim_due(10)
    assert (await boards.host.store.open(BOARD)).log_entries == 10
    for number in range(30):
        await board.put("public/a", number)
    await boards.host.archiver.reached(BOARD, 60)
    await sweeper.trim_due(10)
    assert (await boards.host.store.open(BOARD)).log_entries == 40
    boards.host.limits = lowered(engine_check_interval_ms=0)
    await sweeper.trim_due(10)
    assert (await boards.host.store.open(BOARD)).log_entries == 10


async def test_an_error_that_nobody_foresaw_does_not_end_it(
    boards: Boards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would begin again; the next try goes on where it was."""
    assert boards.host.archiver is not None
    await client(boards).put("public/a", 1)
    page, failures = boards.host.archiver._page, ["a library's own"]

    async def failing(board: Any) -> Any:
        if failures:
            raise RuntimeError(failures.pop())
        return await page(board)

    monkeypatch.setattr(boards.host.archiver, "_page", failing)
    assert (await boards.host.archiver.reached(BOARD, 1, PATIENCE_MS)).revision == 1
    assert not failures


async def test_waiting_for_the_archive_is_bounded(boards: Boards) -> None:
    """Unavailable, saying how far it is."""
    assert boards.host.archive is not None
    assert boards.host.archiver is not None
    await boards.host.archive.take(BOARD, "stuck", 60_000)
    await client(boards).put("public/a", 1)
    with pytest.raises(Unavailable, match="not yet at 1"):
        await boards.host.archiver.reached(BOARD, 1, timeout_ms=50)


@pytest.mark.limits(archive_rest_ms=600_000)
async def test_it_rests_while_a_restore_is_on_its_way(
    boards: Boards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No append is begun but the one that may be under way; afterwards it goes on."""
    archiver, board, begun = boards.host.archiver, client(boards), 0
    assert archiver is not None
    append = archiver.archive.append

    async def counted(*given: Any) -> Mark:
        nonlocal begun
        begun += 1
        return await append(*given)

    await archiver.reached(BOARD, (await board.put("public/a", 0)).revision)
    monkeypatch.setattr(archiver.archive, "append", counted)
    with archiver.resting(BOARD), archiver.resting(BOARD):
        for number in range(3):
            done = await board.put("public/a", number)
            with contextlib.suppress(Unavailable):
                await archiver.reached(BOARD, done.revision, timeout_ms=50)
        assert begun <= 1
    assert (await archiver.reached(BOARD, done.revision)).revision == done.revision


@pytest.mark.limits(archive_rest_ms=5)
async def test_a_rest_of_the_archiver_has_an_end(boards: Boards) -> None:
    """ARCHIVE_REST_MS, then it does one thing: a restore may take long, or hang."""
    archiver, board = boards.host.archiver, client(boards)
    assert archiver is not None
    with archiver.resting(BOARD):
        for number in range(3):
            done = await board.put("public/a", number)
            assert (await archiver.reached(BOARD, done.revision)).revision == done.revision


async def nobody_waits_until(
    store: SqliteStore, archive: Archive, revision: Revision, limits: Limits
) -> None:
    """Until the board is archived so far, by an archiver whom nobody asks for it."""
    archiver = Archiver(store, archive, limits)
    archiver.follow(BOARD)

    async def is_so_far() -> bool:
        mark = await archive.mark(BOARD)
        return mark is not None and mark.revision >= revision

    await wait_until(is_so_far)
    await archiver.aclose()


@pytest.mark.limits(archive_page_entries=4, archive_pause_ms=600_000)
async def test_a_full_page_is_followed_by_the_next_one(
    store: SqliteStore, archive: Archive, limits: Limits
) -> None:
    """Nobody waits, and there are more commits than one page per ARCHIVE_PAUSE_MS: it keeps up."""
    writer = await Writer.open(store, BOARD)
    for _ in range(4 * 5 + 1):
        done = await writer.commit(Put("public/a", ONE))
    await nobody_waits_until(store, archive, done.revision, limits)


async def test_a_board_is_not_at_rest_while_the_news_of_a_commit_is_read(
    tmp_path: Path, archive: Archive
) -> None:
    """Nor does it count as archived, however long the engine takes to answer."""
    store = await HookedStore.at(tmp_path / "data", "memory")
    archiver, writer = Archiver(store, archive), await Writer.open(store, BOARD)

    async def is_at_rest() -> bool:
        return archiver.is_at_rest(BOARD)

    archiver.follow(BOARD)
    await wait_until(is_at_rest)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        asked.set()
        await answer.wait()

    store.hook("before log", hang)
    done = await writer.commit(Put("public/a", ONE))
    archiver.poke(BOARD, 1)
    await asked.wait()
    assert not archiver.is_at_rest(BOARD)
    assert not await archiver.leave(BOARD)
    answer.set()
    await wait_until(is_at_rest)
    mark = await archive.mark(BOARD)
    assert mark is not None
    assert mark.revision == done.revision
    await archiver.aclose()
    await store.aclose()


@pytest.mark.limits(archive_step_pause_ms=50)
async def test_an_append_leaves_time_for_others_unless_somebody_waits(
    boards: Boards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ARCHIVE_STEP_PAUSE_MS between the steps of a large commit; none while a caller waits for
    it."""
    archiver, board, pauses = boards.host.archiver, client(boards), asyncio.Queue[Pause]()
    assert archiver is not None
    append, loop = archiver.archive.append, asyncio.get_running_loop()

    async def noted(*given: Any) -> Mark:
        pauses.put_nowait(given[-1])
        return await append(*given)

    monkeypatch.setattr(archiver.archive, "append", noted)
    await board.put("public/a", 1)
    pause = await pauses.get()
    began_s = loop.time()
    await pause()
    assert loop.time() - began_s > 0.04
    archiver._limits = lowered(archive_step_pause_ms=600_000).archive
    waiting = asyncio.create_task(archiver.reached(BOARD, 2))
    await anyio.lowlevel.checkpoint()  # first: an append that nobody waits for would pause
    done = await board.commit([Put(f"public/{n}", ONE) for n in range(4 * STEP_CHANGES)])
    assert (await waiting).revision == done.revision == 2


@pytest.mark.limits(archive_step_pause_ms=600_000, archive_page_entries=1)
async def test_an_append_that_is_a_page_behind_does_not_pause(
    store: SqliteStore, archive: Archive, limits: Limits
) -> None:
    """But for the last page: what piles up meanwhile is archived as fast as it goes."""
    writer = await Writer.open(store, BOARD)
    large = [Put(f"public/{n}", ONE) for n in range(4 * STEP_CHANGES)]
    done = await writer.commit(*large)
    await writer.commit(Put("public/a", ONE))
    await nobody_waits_until(store, archive, done.revision, limits)


async def test_who_waits_for_another_archiver_asks_with_pauses(
    store: SqliteStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of another process may be that of a dead one, and last: nobody hammers at it."""
    await (await Writer.open(store, BOARD)).commit(Put("public/a", ONE))
    assert await archive.take(BOARD, "another", 60_000) is not None
    asked, take, wait_ms = 0, archive.take, 2_000

    async def counted(board: str, owner: str, ttl_ms: int) -> int | None:
        nonlocal asked
        asked += 1
        return await take(board, owner, ttl_ms)

    monkeypatch.setattr(archive, "take", counted)
    archiver = Archiver(store, archive)
    with pytest.raises(Unavailable):
        await archiver.reached(BOARD, 1, timeout_ms=wait_ms)
    monkeypatch.undo()
    await archiver.aclose()
    assert 0 < asked <= wait_ms // _LOOK_MS + 2


async def test_the_lag_is_the_age_of_what_is_not_archived(tmp_path: Path, boards: Boards) -> None:
    """It grows while somebody else holds the archive's file, and is gone afterwards."""
    board = client(boards)
    await board.put("public/a", 1)
    assert boards.host.archiver is not None
    await boards.host.archiver.reached(BOARD, 1)
    file = tmp_path / "past" / "archive.db"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await board.put("public/a", 2)

        async def lags() -> bool:
            assert boards.host.archiver is not None
            return boards.host.archiver.statistics().lag_ms > 300

        await wait_until(lags)
        await board.put("public/a", 3)
        assert await lags()
        other.execute("ROLLBACK")
    await boards.host.archiver.reached(BOARD, 3, timeout_ms=PATIENCE_MS)
    assert boards.host.archiver.statistics().lag_ms == 0


async def test_commits_go_on_while_the_database_is_away(tmp_path: Path) -> None:
    """A server that was killed: nobody waits for it, and what was missed is caught up with."""
    if postgres_directory() is None:
        pytest.skip("no PostgreSQL server on this machine: run tools/get_postgres.sh")
    async with Postgres() as server, Place(server.url, tmp_path / "blobs") as place:
        store = await SqliteStore.at(tmp_path / "data", "memory")
        boards = Boards(Host(store, archive=await place.open()))
        await boards.host.look()
        board = client(boards)
        await board.put("public/a", 0)
        assert boards.host.archiver is not None
        await boards.host.archiver.reached(BOARD, 1)
        server.kill()
        for number in range(30):
            await board.put("public/a", number)

        async def is_failing() -> bool:
            assert boards.host.archiver is not None
            return boards.host.archiver.statistics().failing == 1

        await wait_until(is_failing)
        await server.start()
        mark = await boards.host.archiver.reached(BOARD, 31, timeout_ms=PATIENCE_MS)
        assert mark.revision == 31
        assert boards.host.archiver.statistics().failing == 0
        archive = boards.host.archiver.archive
        assert await answered(lambda: whole_log(archive, BOARD)) == await log_of(store)
        await boards.aclose()


async def test_a_cancellation_that_the_engine_swallowed_does_not_keep_it_open(
    tmp_path: Path, archive: Archive
) -> None:
    """It once waited for ever for a task that had missed its cancellation."""
    store = await HookedStore.at(tmp_path / "hooked", "memory")
    inside, never = asyncio.Event(), asyncio.Event()

    async def swallow() -> None:
        inside.set()
        with contextlib.suppress(asyncio.CancelledError):
            await never.wait()

    await store.open(BOARD)
    archiver = Archiver(store, archive)
    store.hook("after log", swallow)
    archiver.follow(BOARD)
    await inside.wait()
    store.hooks.clear()
    with anyio.fail_after(60):
        await archiver.aclose()
    await store.aclose()
