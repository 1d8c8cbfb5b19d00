"""A board continues above its archived revisions, however its engine and its archive disagree."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import blackboard
from blackboard.archive.base import Archive
from blackboard.archive.sql import archive_beside
from blackboard.core.checkpoints import Lost, Point, RecoverRequest
from blackboard.core.commit import Put
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import InvalidRequest, Unavailable
from blackboard.limits import Limits
from blackboard.server.archiver import Archiver
from blackboard.server.checkpoints.recover import Recoveries
from blackboard.server.continuity import go_above
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.conformance.rules_archive import state_at, whole_log
from tests.conformance.writer import Writer
from tests.redis_process import RedisProcess
from tests.unit.server.hooked import client_of
from tests.waiting import wait_until

BOARD = "main"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """The engine."""
    opened = await SqliteStore.at(tmp_path / "data")
    yield opened
    await opened.aclose()


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Archive]:
    """An empty archive."""
    opened = await archive_beside(tmp_path)
    yield opened
    await opened.aclose()


async def archived(store: SqliteStore, archive: Archive) -> None:
    """Archive what is in the log, by an archiver that comes and goes."""
    archiver = Archiver(store, archive)
    archiver.follow(BOARD)

    async def is_done() -> bool:
        mark = await archive.mark(BOARD)
        with contextlib.suppress(Unavailable):  # an epoch is beginning
            return mark is not None and mark.revision == (await store.open(BOARD)).revision
        return False

    await wait_until(is_done)
    await archiver.aclose()


async def commits(store: SqliteStore, count: int, value: str) -> None:
    """Commit `count` times."""
    writer = await Writer.open(store, BOARD, value)
    for number in range(count):
        await writer.commit(Put(f"public/{number % 3}", encode_value(value)))


async def test_a_board_that_holds_what_is_archived_stays_as_it_is(
    store: SqliteStore, archive: Archive
) -> None:
    assert await go_above(store, archive, BOARD) is None
    await commits(store, 5, "ada")
    assert await go_above(store, archive, BOARD) is None
    await archived(store, archive)
    assert await go_above(store, archive, BOARD) is None
    await commits(store, 2, "bob")
    assert await go_above(store, archive, BOARD) is None
    assert (await store.open(BOARD)).epoch.number == 1


async def test_a_board_that_was_lost_goes_on_above_once(
    store: SqliteStore, archive: Archive
) -> None:
    """However often it is looked at; again after another loss. The loss is found until the archive
    has the new epoch: a service that ended in between acts on it after it has started again."""
    through = 0
    for _ in range(2):
        await commits(store, 5, "ada")
        await archived(store, archive)
        through, before = (await store.open(BOARD)).revision, through
        await store.drop(BOARD)
        lost = await go_above(store, archive, BOARD)
        head = await store.open(BOARD)
        assert lost == Lost(0, through, head.revision)
        assert head.revision > through > before
        assert await go_above(store, archive, BOARD) == lost
        assert (await store.open(BOARD)).epoch == head.epoch
        assert head.epoch.number == 2
        await archived(store, archive)
        assert await go_above(store, archive, BOARD) is None
        mark = await archive.mark(BOARD)
        assert mark is not None
        assert mark.epoch.id == head.epoch.id


async def test_an_epoch_begins_only_where_the_board_still_stands(store: SqliteStore) -> None:
    """A commit that was made in the meantime is not lost."""
    await commits(store, 3, "ada")
    head = await store.open(BOARD)
    await commits(store, 1, "bob")
    after = await store.begin_epoch(BOARD, head, above=1_000)
    assert (after.revision, after.epoch.number) == (4, 1)
    begun = await store.begin_epoch(BOARD, after, above=1_000)
    assert begun.revision > 1_000
    assert (begun.epoch.number, begun.epoch.cause, begun.epoch.from_revision) == (2, "engine", 4)
    await commits(store, 1, "bob")
    with pytest.raises(InvalidRequest):
        await store.begin_epoch("unknown", head, above=1)


async def test_another_board_of_the_name_is_kept_beside_the_archived_one(
    store: SqliteStore, archive: Archive
) -> None:
    """An archive of somewhere else was put beside the engine: longer or shorter, nothing goes."""
    for number, count in enumerate((6, 3), 1):
        await commits(store, 5, f"ada{number}")
        await archived(store, archive)
        old = await whole_log(archive, BOARD)
        await store.drop(BOARD)
        await commits(store, count, f"bob{number}")
        await go_above(store, archive, BOARD)
        await archived(store, archive)
        assert await whole_log(archive, f"{BOARD}~{number}") == old
        log = await whole_log(archive, BOARD)
        assert [entry.author for entry in log][:count] == [f"bob{number}"] * count
        assert (await archive.boards())[-1] == f"{BOARD}~{number}"
        await store.drop(BOARD)
        await go_above(store, archive, BOARD)
        await archived(store, archive)


async def test_a_log_that_was_cut_before_it_was_archived_leaves_a_gap(
    store: SqliteStore, archive: Archive
) -> None:
    """The archive goes on with what the board holds; what it had before stays."""
    await commits(store, 5, "ada")
    await archived(store, archive)
    await commits(store, 10, "bob")
    await store.compact(BOARD, 13)
    assert await go_above(store, archive, BOARD) is None
    await commits(store, 1, "cy")
    await archived(store, archive)
    held = await state_at(archive, Point(BOARD, 5))
    assert {entry.author for entry in held.values()} == {"ada"}
    held = await state_at(archive, Point(BOARD, 16))
    assert {entry.author for entry in held.values()} == {"bob", "cy"}
    assert await archive.boards() == [BOARD]


@pytest.mark.limits(recover_wait_ms=0)
async def test_a_recovery_tells_how_far_it_is(tmp_path: Path, limits: Limits) -> None:
    """After RECOVER_WAIT_MS the answer is that it continues. The caller repeats the request until
    it is done."""
    async with blackboard.open(tmp_path) as client:
        board = client.board(BOARD)
        for number in range(5):
            await board.put(f"public/{number}", number)
        await board.checkpoint("kept")
        await board.show("kept")
    for file in (tmp_path / "boards").glob(f"{BOARD}.db*"):
        file.unlink()
    told: list[int] = []
    async with blackboard.open(tmp_path, limits=limits) as client:
        board = client.board(BOARD)
        recovered = await board.recover(progress=told.append)
        assert recovered.done
        assert await board.get("public/4") == 4
    assert told


async def test_a_recovery_asks_nobody_for_a_checkpoint(tmp_path: Path) -> None:
    """At the moment that comes back one was being taken: nobody waits for that any more."""
    async with blackboard.open(tmp_path) as client:
        board = client.board(BOARD)
        async with board.as_agent("ada").attach():
            async with board.watch("system/barriers/*") as watch:
                taking = asyncio.create_task(board.checkpoint("plan", barrier_ms=60_000))
                asked = (await anext(watch)).revision
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        await board.checkpoint("kept")
        await board.show("kept")
    for file in (tmp_path / "boards").glob(f"{BOARD}.db*"):
        file.unlink()
    async with blackboard.open(tmp_path) as client:
        board = client.board(BOARD)
        assert (await board.recover(asked)).from_revision == asked
        assert (await board.list("system/barriers/**")).entries == ()
        await board.as_agent("ada").put("public/plan", 1)


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[tuple[Service, Service]]:
    """Two services over one engine and one archive, which lost a board that the first one had."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(RedisProcess())
        one, other = [
            await stack.enter_async_context(
                Service(RedisStore.connect(server.url), archive=await archive_beside(tmp_path))
            )
            for _ in range(2)
        ]
        head = await client_of(one).board(BOARD).put("public/a", 1)
        assert one.host.archiver is not None
        await one.host.archiver.reached(BOARD, head.revision)
        await one.boards.let_go(BOARD, Unavailable(f"board {BOARD}", "it is lost"))
        await one.host.store.drop(BOARD)
        for each in (one, other):
            await each.host.look()
            assert BOARD in each.host.facts().warnings[-1]
        yield one, other


@pytest.mark.parametrize("how", ["look", "open", "removal"])
async def test_a_loss_that_another_service_recovered_is_no_longer_reported(
    services: tuple[Service, Service], how: str
) -> None:
    """As soon as this one looks again, or opens the board; nor is one of a board that is gone."""
    one, other = services
    assert (await client_of(one).board(BOARD).recover()).done
    if how == "open":
        assert await client_of(other).board(BOARD).get("public/a") == 1
    else:
        if how == "removal":
            await client_of(one).remove_board(BOARD)
        await other.host.look()
    assert not any(BOARD in warning for warning in other.host.facts().warnings)


async def test_a_loss_is_reported_until_it_is_recovered(services: tuple[Service, Service]) -> None:
    """Also while the archive does not know of it, and when the board went on without."""
    one, other = services
    assert one.host.archive is not None
    await go_above(one.host.store, one.host.archive, BOARD)
    assert await one.host.archive.lost(BOARD) is None
    await other.host.look()
    assert BOARD in other.host.lost
    head = await client_of(one).board(BOARD).put("public/a", 2)
    assert one.host.archiver is not None
    await one.host.archiver.reached(BOARD, head.revision)
    await other.host.look()
    assert BOARD in other.host.lost


@pytest.mark.limits(recover_wait_ms=0)
async def test_a_recovery_answers_no_request_for_another_moment(
    tmp_path: Path, limits: Limits
) -> None:
    async with blackboard.open(tmp_path) as client:
        for number in range(5):
            await client.board(BOARD).put(f"public/{number}", number)
        await client.board(BOARD).history("public/4")
    for file in (tmp_path / "boards").glob(f"{BOARD}.db*"):
        file.unlink()
    store, archive = await SqliteStore.at(tmp_path), await archive_beside(tmp_path)
    async with Service(store, archive=archive, limits=limits) as service:
        recoveries, wanted = Recoveries.of(service.boards), RecoverRequest(3)
        assert not (await recoveries.recover(BOARD, wanted)).done
        with pytest.raises(Unavailable, match="another moment"):
            await recoveries.recover(BOARD, RecoverRequest(5))
        while not (done := await recoveries.recover(BOARD, wanted)).done:
            pass
        assert done.from_revision == 3
