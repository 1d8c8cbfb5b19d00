"""Removing a board: with everything of it, for everybody, and in the midst of a crash."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from blackboard.archive.base import Archive
from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.commit import Put
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import (
    AccessDenied,
    InvalidRequest,
    NoSuchBoard,
    StaleEpoch,
    Unavailable,
)
from blackboard.server.assembly import sealed
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.conformance.writer import Writer
from tests.redis_process import RedisProcess
from tests.waiting import wait_until

LARGE = "L" * 300_000


@pytest.fixture(params=["sqlite", "redis", "sealed"])
async def service(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """A service with an archive, over each engine, and one that seals."""
    async with AsyncExitStack() as servers:
        if request.param == "redis":
            server = await servers.enter_async_context(RedisProcess())
            store: Store = RedisStore.connect(server.url)
        else:
            store = await SqliteStore.at(tmp_path / "data", "memory")
        archive: Archive | None = await archive_beside(tmp_path)
        if request.param == "sealed":
            wrapper = LocalWrapper.of(new_master_key())
            store, archive = await sealed(store, archive, wrapper)
        async with Service(store, archive=archive) as service:
            yield service


def client_of(service: Service) -> Client:
    """The operator's."""
    return Client(service.link(access.operator()))


def archive_of(service: Service) -> Archive:
    """The archive of a service that has one."""
    assert service.host.archive is not None
    return service.host.archive


async def fill(client: Client, name: str = "main") -> Board:
    """Let a board hold something of every kind, and archive it."""
    board = client.board(name)
    await board.put("public/plan", 1)
    await board.put("public/large", LARGE)
    await board.put("private/ada/note", "n")
    await board.checkpoint("one")
    assert (await board.verify("now")).ok  # all of it is archived then
    return board


async def test_a_board_is_removed_with_everything_of_it(service: Service) -> None:
    """Nothing of it is read, listed or recovered; one that begins later is another one."""
    client = client_of(service)
    await fill(client)
    board = client.board("main")
    old = await board.head()
    await client.remove_board("main")
    assert list(await client.boards()) == []
    assert await archive_of(service).mark("main") is None
    assert "main" not in await archive_of(service).boards()
    await service.host.look()
    assert not service.host.facts().warnings or "main" not in str(service.host.facts().warnings)
    with pytest.raises(NoSuchBoard):
        await client.board("main").recover()
    with pytest.raises(NoSuchBoard):
        await client.remove_board("never-was")
    await client.remove_board("main")
    again = client.board("main")
    head = await again.head()
    assert head.epoch.number > old.epoch.number
    assert head.revision > old.revision
    assert await again.get("public/plan") is None
    await again.put("public/plan", 2)
    await again.put("private/ada/note", "new")
    assert await again.get("private/ada/note") == "new"
    await again.checkpoint("one")
    assert await again.get("public/plan", at="one") == 2
    assert (await again.verify("now")).ok


async def test_users_of_a_removed_board_get_an_error(service: Service) -> None:
    """Watchers, writers with what they knew, and sessions with its documents."""
    client = client_of(service)
    board = await fill(client)
    async with board.watch("public/**") as watch:
        await client.remove_board("main")
        with pytest.raises(NoSuchBoard):
            async for _ in watch:
                pass
    with pytest.raises(NoSuchBoard):
        await board.put("public/plan", 3)
    writer = await Writer.open(service.host.store, "other")
    stale = writer.make(Put("public/plan", encode_value(4)))
    assert not await service.host.store.exists("main")
    await client.board("main").head()
    outcome = await (await service.boards.use("main")).commit(stale)
    assert isinstance(outcome, StaleEpoch)


async def test_a_request_that_comes_late_removes_no_other_board(service: Service) -> None:
    """A service that was stopped carries it out after others did, and the name is used again."""
    client = client_of(service)
    board = await fill(client)
    epoch = (await board.head()).epoch.id
    await client.remove_board("main")
    await client.link.remove("main", epoch)  # there is nothing to remove, and none of it is left
    await client.link.remove("main", "")
    again = client_of(service).board("main")
    await again.refresh()
    await again.put("public/new", 1)
    for late in (epoch, ""):
        with pytest.raises(StaleEpoch):
            await client.link.remove("main", late)
    assert await again.get("public/new") == 1
    await client.remove_board("main")
    assert "main" not in await client.boards()


async def test_a_branch_keeps_what_it_shares(service: Service) -> None:
    """The past that it came from, with large and sealed values; until it is removed, too."""
    client = client_of(service)
    await fill(client)
    branch = await client.board("main").branch("trial", "one")
    await client.remove_board("main")
    assert await branch.get("public/large", at=2) == LARGE
    assert await branch.get("private/ada/note") == "n"
    assert await branch.get("private/ada/note", at="now") == "n"
    assert (await branch.verify("now")).ok
    await branch.put("public/plan", 5)
    await branch.checkpoint("two")
    await client.board("main").put("public/plan", 6)
    assert await branch.get("public/plan", at=1) == 1
    await client.remove_board("main")
    with pytest.raises(InvalidRequest, match="removed"):
        await branch.branch("main", "two")
    await client.remove_board("trial")
    left = await archive_of(service).boards()
    assert [name for name in left if not access.is_reserved(name)] == []


async def test_a_removal_that_was_killed_in_the_middle_is_finished(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the engine and the archive: there is no board, and nothing brings it back."""
    client = client_of(service)
    await fill(client)
    archive = archive_of(service)

    async def dies(board: str, keep: object = ()) -> bool:
        raise Unavailable(what="archive", reason=f"killed at {board}, {keep}")

    with monkeypatch.context() as patch:
        patch.setattr(archive, "remove", dies)
        with pytest.raises(Unavailable):
            await client.remove_board("main")
        assert not await service.host.exists("main")
        assert list(await client.boards()) == []
        with pytest.raises(Unavailable):  # nor does another one begin before it is finished
            await client.board("main").head()
    assert await archive.holds("main")
    await service.host.look()
    assert not await archive.holds("main")
    await client.remove_board("main")


async def test_a_removal_that_fails_sends_nobody_away(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: what went away for the removal comes back, and the board goes on."""
    client = client_of(service)
    board = await fill(client)

    async def is_full(name: str, **_: object) -> None:
        raise Unavailable(what="engine", reason=f"no room to remove {name}")

    async with board.watch("public/**") as watch:
        with monkeypatch.context() as patch:
            patch.setattr(service.host.store, "remove", is_full)
            with pytest.raises(Unavailable, match="no room"):
                await client.remove_board("main")
        receipt = await board.put("public/plan", 2)
        assert (await anext(watch)).revision == receipt.revision


async def test_an_agent_may_not_remove_a_board(service: Service) -> None:
    client = client_of(service)
    await fill(client)
    with pytest.raises(AccessDenied):
        await Client(service.link(access.agent("ada"))).remove_board("main")
    assert await client.board("main").get("public/plan") == 1


async def test_another_process_sees_that_a_board_was_removed(
    redis_url: str, tmp_path: Path
) -> None:
    """Its watchers end, its writers are refused, and it serves what begins later."""
    async with (
        Service(RedisStore.connect(redis_url), archive=await archive_beside(tmp_path)) as one,
        Service(RedisStore.connect(redis_url)) as two,
    ):
        here, there = client_of(one), client_of(two)
        await fill(here)
        board = there.board("main")
        assert await board.get("public/plan") == 1
        async with board.watch("public/**") as watch:
            await here.remove_board("main")
            with pytest.raises(NoSuchBoard):
                async for _ in watch:
                    pass

        async def has_let_go() -> bool:
            return two.boards.get("main") is None

        await wait_until(has_let_go)
        assert not await two.host.exists("main")
        with pytest.raises(StaleEpoch):  # it read what is gone
            await board.put("public/plan", 2)
        again = here.board("main")
        await again.put("public/plan", 3)
        assert await there.board("main").get("public/plan") == 3
