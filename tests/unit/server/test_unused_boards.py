"""Boards that nobody uses are closed, and opened again: nothing of them is lost or ends late."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import product
from pathlib import Path

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.checkpoints import CHECKPOINTS
from blackboard.core.commit import Commit, Grant, Head, Put
from blackboard.errors import LimitExceeded, NoSuchBoard, Unavailable
from blackboard.integrity.signing import make_key
from blackboard.limits import Limits
from blackboard.server.checkpoints.schedule import Automatic
from blackboard.server.commit_queue import salted, system_id
from blackboard.server.service import Service
from blackboard.server.settings import Settings, load, make_archive, make_store
from blackboard.wire.codec import encode_value, prepare
from tests.lowered import lowered
from tests.postgres import Postgres
from tests.unit.server.hooked import HookedStore, client_of
from tests.waiting import wait_until

FEW = lowered(boards_unused_max=2, boards_unused_ms=1, sweep_interval_ms=20, archive_idle_ms=20)
"""Two boards that nobody uses stay open, and four of the engine."""


@asynccontextmanager
async def serving(
    path: Path, limits: Limits = FEW, automatic: Automatic | None = None
) -> AsyncIterator[tuple[Service, HookedStore]]:
    """A service with an archive, which sweeps."""
    store = await HookedStore.at(path, "memory", limits=limits)
    archive = await archive_beside(path, limits)
    async with Service(store, archive=archive, automatic=automatic, limits=limits) as service:
        yield service, store


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[tuple[Service, HookedStore]]:
    """A service that keeps few boards open."""
    async with serving(tmp_path) as found:
        yield found


def is_open(service: Service, name: str) -> bool:
    """Whether a board is open, without using it."""
    return name in [board.name for board in service.boards]


async def use_others(service: Service, *, but: str = "main") -> None:
    """Use other boards until `but` is closed."""
    names = [f"other{number}" for number in range(4)]

    async def is_closed() -> bool:
        for name in names:
            await client_of(service).board(name).put("public/x", 1)
        return not is_open(service, but)

    await wait_until(is_closed)


async def test_the_one_that_was_used_longest_ago_is_closed(
    parts: tuple[Service, HookedStore],
) -> None:
    service, store = parts
    client = client_of(service)
    for number in range(20):
        await client.board(f"b{number}").put("public/x", number)
        await client.board("b0").get("public/x")

    async def are_few() -> bool:
        archive = service.statistics().archive
        assert archive is not None
        counts = (len(list(service.boards)), archive.boards, archive.failing)
        return counts == (2, 2, 0) and len(store._boards) <= 4

    await wait_until(are_few)
    assert is_open(service, "b0")
    assert is_open(service, "b19")
    assert service.statistics().boards == 2
    assert service.statistics().commits == 20  # also of boards that are closed


async def test_everything_is_there_when_it_is_opened_again(
    parts: tuple[Service, HookedStore],
) -> None:
    service, _ = parts
    board = client_of(service).board("main")
    first = await board.put("public/x", 1)
    await board.checkpoint("early")
    before = await board.head()
    await use_others(service)
    assert service.host.archive is not None
    assert await service.host.archive.take("main", "another process", 1) is not None
    after = await board.head()
    assert (after.revision, after.epoch) == (before.revision, before.epoch)
    assert await board.get("public/x") == 1
    assert (await board.put("public/x", 2)).revision == before.revision + 1
    assert [version.value for version in await board.history("public/x")] == [2, 1]
    await use_others(service)
    await board.restore("early")
    assert await board.get("public/x") == 1
    assert await board.get("public/x", at=first.revision) == 1


async def test_a_board_that_is_watched_stays_open(parts: tuple[Service, HookedStore]) -> None:
    service, _ = parts
    client = client_of(service)
    async with client.board("main").watch("public/**") as watch:
        await client.board("idle").head()
        await use_others(service, but="idle")
        assert is_open(service, "main")
        await client.board("main").put("public/x", "seen")
        assert (await anext(watch)).changes[0].value == "seen"
    await use_others(service)


async def test_a_board_with_a_commit_on_its_way_stays_open(
    parts: tuple[Service, HookedStore],
) -> None:
    service, store = parts
    client = client_of(service)
    await client.board("main").head()
    await client.board("idle").head()
    waits, may_go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        waits.set()
        await may_go_on.wait()

    store.hook("before commit", hold)
    commit = asyncio.create_task(client.board("main").put("public/x", 1))
    await waits.wait()
    del store.hooks["before commit"]
    await use_others(service, but="idle")
    assert is_open(service, "main")
    may_go_on.set()
    await commit
    await use_others(service)
    assert await client.board("main").get("public/x") == 1


async def test_what_expires_on_a_closed_board_goes(parts: tuple[Service, HookedStore]) -> None:
    """An entry with a time to live, or a lease: the board is opened for it, and closed again."""
    service, store = parts
    await client_of(service).board("main").head()
    for op in (
        Put("public/short", encode_value(1), ttl_ms=500),
        Grant("public/lock", "a process that died", 500),
    ):
        opened = await service.boards.use("main")
        await opened.commit_as_system([op])
        before = service.statistics().sweeper.expired
        await use_others(service)

        async def is_gone(before: int = before) -> bool:
            return service.statistics().sweeper.expired > before

        await wait_until(is_gone)
    assert (await store.list("main", "public", limit=9)).entries == ()
    assert (await store.leases("main")).leases == ()
    await use_others(service)


async def test_a_closed_board_can_be_removed(parts: tuple[Service, HookedStore]) -> None:
    service, _ = parts
    client = client_of(service)
    await client.board("main").put("public/x", 1, ttl_ms=3_600_000)
    await use_others(service)
    await client.remove_board("main")
    assert "main" not in await client.boards()
    assert "main" not in service.boards._due_ms


async def test_a_board_that_is_used_while_it_is_closed_stays_open(
    parts: tuple[Service, HookedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, store = parts
    client = client_of(service)
    await client.board("main").put("public/x", 1)
    closing, may_go_on, leases = asyncio.Event(), asyncio.Event(), store.leases

    async def hold(board: str, *, due: bool = False) -> object:
        if board == "main" and not due:
            closing.set()
            await may_go_on.wait()
        return await leases(board, due=due)

    monkeypatch.setattr(store, "leases", hold)
    for name in "abc":
        await client.board(name).head()
    await closing.wait()
    opened = service.boards.get("main")
    assert opened is not None
    await client.board("main").get("public/x")
    may_go_on.set()
    assert service.boards._closing is not None
    await asyncio.wait([service.boards._closing])
    assert service.boards.get("main") is opened
    assert "main" in opened.archiver._tasks


async def test_a_request_that_began_before_goes_on(parts: tuple[Service, HookedStore]) -> None:
    """It holds the board that was closed; its commit is archived like any other."""
    service, _ = parts
    held = await service.boards.use("main")
    await client_of(service).board("main").put("public/x", 1)
    await use_others(service)
    done = await held.commit_as_system([Put("public/x", encode_value(2))], note="late")
    assert service.boards.get("main") is None
    assert held.archive is not None
    mark = held.archive.mark

    async def is_archived() -> bool:
        found = await mark("main")
        return found is not None and found.revision == done.revision

    await wait_until(is_archived)
    assert (await client_of(service).board("main").head()).revision == done.revision


@pytest.mark.parametrize("is_queued", [True, False])
async def test_the_last_commits_of_a_closed_board_are_archived(
    tmp_path: Path, *, is_queued: bool
) -> None:
    """Those of a connection, which go into the queue, and those of which this process does not
    know, although its archiver would look at the board only in an hour."""
    async with serving(tmp_path, lowered(FEW, archive_idle_ms=3_600_000)) as (service, store):
        board = client_of(service).board("main")
        first = await board.put("public/x", 1)
        opened, archiver = await service.boards.use("main"), service.host.archiver
        assert archiver is not None
        await archiver.reached("main", first.revision)
        await wait_until(lambda: _is_so(archiver.is_at_rest("main")))
        operation = Put("public/x", encode_value(2))
        commit = prepare(salted(Commit(system_id(), (await opened.head()).epoch.id, (operation,))))
        if is_queued:
            await opened.queue.submit(commit)
        else:
            await store.commit("main", [commit])
        await use_others(service)
        mark = await archiver.archive.mark("main")
        assert mark is not None
        assert mark.revision == first.revision + 1


async def _is_so(condition: bool) -> bool:
    return condition


async def test_a_board_gets_its_last_checkpoint_when_it_is_closed(tmp_path: Path) -> None:
    """If every board gets one at shutdown. One that did not change since gets no other."""
    automatic = Automatic(at_shutdown=True)
    async with serving(tmp_path, automatic=automatic) as (service, _):
        board = client_of(service).board("main")
        await board.put("public/x", 1)
        await use_others(service)
        assert len(await board.checkpoints()) == 1
        await use_others(service)
        assert len(await board.checkpoints()) == 1


async def until_seen(service: Service) -> None:
    """Wait until automatic checkpoints count what changes on the board from here on."""
    seen = service._checkpoints._last

    async def is_seen() -> bool:
        return "main" in seen

    await wait_until(is_seen)


async def test_a_closed_board_gets_the_checkpoint_that_is_due(tmp_path: Path) -> None:
    automatic = Automatic(every_ms=1_500)
    async with serving(tmp_path, automatic=automatic) as (service, store):
        board = client_of(service).board("main")
        await board.head()
        await until_seen(service)
        await board.put("public/x", 1)
        await use_others(service)

        async def is_taken() -> bool:
            found = await store.list("main", CHECKPOINTS, limit=9)
            return len(found.entries) == 1

        await wait_until(is_taken)


async def test_revisions_are_counted_while_a_board_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, automatic=Automatic(every_revisions=4)) as (service, _):
        board: Board = client_of(service).board("main")
        await board.head()
        await until_seen(service)
        for number in range(4):
            await board.put("public/x", number)
            await use_others(service)
        await board.get("public/x")

        async def is_taken() -> bool:
            return len(await board.checkpoints()) == 1

        await wait_until(is_taken)


@pytest.mark.limits(boards_open_max=2)
async def test_the_number_of_boards_in_use_is_bounded(tmp_path: Path, limits: Limits) -> None:
    """One that nobody uses makes room."""
    async with serving(tmp_path, limits) as (service, _):
        client = client_of(service)
        async with client.board("a").watch("**"):
            async with client.board("b").watch("**"):
                assert await client.board("c").get("public/a") is None
                for attempt in (client.board("c").put("public/a", 1), client.board("c").head()):
                    with pytest.raises(LimitExceeded) as refused:
                        await attempt
                    assert (refused.value.limit, refused.value.maximum) == ("BOARDS_OPEN_MAX", 2)
                assert await client.boards() == ["a", "b"]
            await client.board("c").put("public/a", 1)
            assert not is_open(service, "b")


@pytest.mark.limits(boards_open_max=1)
async def test_a_board_that_is_made_while_no_other_can_be_opened_is_made(
    tmp_path: Path, limits: Limits
) -> None:
    """A branch and an import are reported as what they are: done."""
    async with serving(tmp_path, limits) as (service, _):
        client = client_of(service)
        board = client.board("main")
        await board.put("public/x", 1)
        await board.checkpoint("one")
        await board.export("one", tmp_path / "one.zip")
        async with board.watch("**"):
            await board.branch("branched", "one")
            await client.import_board(tmp_path / "one.zip", "imported")
        for name in ("branched", "imported"):
            assert await client.board(name).get("public/x") == 1


@pytest.mark.limits(boards_per_principal_max=2)
async def test_a_principal_closes_its_own_boards_for_another(
    tmp_path: Path, limits: Limits
) -> None:
    async with serving(tmp_path, limits) as (service, _):
        ann, bob = (Client(service.link(access.agent(name))) for name in ("ann", "bob"))
        await bob.board("bobs").put("public/x", 1)
        for name in "abcd":
            await ann.board(name).put("public/x", 1)
        assert {board.name for board in service.boards} == {"bobs", "c", "d"}


async def test_an_archive_that_hangs_holds_up_no_expiry_and_no_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No board can be closed meanwhile, as each has a lease in the archive to give up."""
    async with serving(tmp_path, lowered(FEW, engine_timeout_ms=500)) as (service, _):
        board, archive = client_of(service).board("main"), service.host.archive
        assert archive is not None
        monkeypatch.setattr(archive, "give_up", _hang)
        async with board.watch("public/**") as watch:
            for name in "abcdefgh":
                await client_of(service).board(name).put("public/x", 1)
            await board.put("public/short", 1, ttl_ms=1)
            assert [(await anext(watch)).changes[0].kind for _ in range(2)] == ["put", "delete"]


async def _hang(*_: object) -> None:
    await asyncio.Event().wait()


async def test_a_round_of_closing_ends_with_the_first_failure_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, until a board was closed again."""
    async with serving(tmp_path, lowered(FEW, sweep_interval_ms=3_600_000)) as (service, _):
        archiver, names, tries = service.host.archiver, "abcdef", list[str]()
        assert archiver is not None

        async def fail(board: str, _: int) -> None:
            tries.append(board)
            raise Unavailable("archive", "it is read-only")

        async def can_be_left() -> bool:
            return all(archiver.is_at_rest(name) for name in names)

        with monkeypatch.context() as patch:
            patch.setattr(archiver.archive, "give_up", fail)
            for name in names:
                await client_of(service).board(name).put("public/x", 1)
            await wait_until(can_be_left)
            assert service.boards._closing is not None
            await asyncio.wait([service.boards._closing])
            for _ in range(2):
                tries.clear()
                await service.boards.close_unused()
                assert tries == ["a"]
        assert len([each for each in caplog.messages if "stays open" in each]) == 1
        await service.boards.close_unused()
        assert "".join(board.name for board in service.boards) == "ef"


@pytest.mark.limits(boards_open_max=3, archive_wait_ms=50)
async def test_room_is_waited_for_once_while_the_archive_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    """For one board: the others would wait for the same archive."""
    async with serving(tmp_path, limits) as (service, _):
        archiver, waited = service.host.archiver, list[str]()
        assert archiver is not None
        reached = archiver.reached

        async def counting(board: str, revision: int) -> object:
            waited.append(board)
            return await reached(board, revision)

        async def fail(*_: object) -> None:
            raise Unavailable("archive", "it is away")

        with monkeypatch.context() as patch:
            patch.setattr(archiver, "reached", counting)
            patch.setattr(archiver.archive, "append", fail)
            for name in "abc":
                await client_of(service).board(name).put("public/x", 1)
            with pytest.raises(LimitExceeded):
                await client_of(service).board("d").head()
        assert waited == ["a"]

        async def has_room() -> bool:
            with suppress(LimitExceeded):
                await client_of(service).board("d").head()
                return True
            return False

        await wait_until(has_room)


async def test_what_waits_for_room_ends_with_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens nothing in a service that is being closed."""
    async with serving(tmp_path) as (service, store):
        waits, leases = asyncio.Event(), store.leases

        async def hold(board: str, *, due: bool = False) -> object:
            if not due:
                waits.set()
                await asyncio.Event().wait()
            return await leases(board, due=due)

        monkeypatch.setattr(store, "leases", hold)
        for name in "abcd":
            await service.boards.use(name)
        await waits.wait()  # from here on, no board can be closed
        opening = asyncio.create_task(service.boards.use("e"))
    with pytest.raises(Unavailable, match="stopping"):
        await opening


async def test_a_store_that_fails_leaves_the_board_open(
    parts: tuple[Service, HookedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, store = parts
    client = client_of(service)
    await client.board("main").put("public/x", 1)
    due, failed = store.due, asyncio.Event()

    async def fail(board: str, **named: object) -> object:
        if board == "main" and named.get("by_ms") is not None:
            failed.set()
            raise NoSuchBoard(board)
        return await due(board, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "due", fail)
    for name in "abcde":
        head: Head = await client.board(name).head()
        assert head.revision == 0
    await failed.wait()
    assert is_open(service, "main")
    monkeypatch.setattr(store, "due", due)
    await use_others(service)


async def test_services_that_close_the_same_boards_archive_all_of_them(
    redis_url: str, postgres: Postgres, tmp_path: Path
) -> None:
    """The archiver of each board is the service that has it open, or had it last."""
    key = tmp_path / "signing_key"
    make_key(key)
    given = {"engine": redis_url, "archive": await postgres.empty(), "signing_key": key}
    settings = load(given | {"data": tmp_path, "blobs": str(tmp_path / "blobs")})
    names, rounds = [f"b{number}" for number in range(8)], range(4)
    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(over_redis(settings)) for _ in range(2)]
        for number in rounds:
            for name, service in product(names, services):
                await client_of(service).board(name).append("public/log", number)

        async def are_few() -> bool:
            return all(len(list(service.boards)) <= 2 for service in services)

        await wait_until(are_few)
    async with over_redis(settings) as last:
        for name in names:
            board = client_of(last).board(name)
            assert (await board.verify()).ok
            written = (await board.list("public/log/*")).entries
            assert [entry.value for entry in written] == [each for each in rounds for _ in services]
            for revision in range(1, len(written) + 1):
                then = await board.list("public/log/*", at=revision)
                assert len(then.entries) == revision


@asynccontextmanager
async def over_redis(settings: Settings) -> AsyncIterator[Service]:
    """One of several services over an engine and an archive."""
    store, archive = await make_store(settings, FEW), await make_archive(settings, FEW)
    async with Service(store, archive=archive, limits=FEW) as service:
        yield service
