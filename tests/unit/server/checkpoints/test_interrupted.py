"""Long operations that are cancelled wherever they wait: whole or not done, and repeatable.

`finish` cancels what it shields only after FINISH_TIMEOUT_MS; here it is cancelled at once.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from blackboard.archive.base import Archive
from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.checkpoints import (
    BranchRequest,
    Point,
    RecoverRequest,
    RedactRequest,
    RestoreRequest,
)
from blackboard.core.commit import Entry
from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import InvalidRequest, Unavailable
from blackboard.server.checkpoints import recover as recover_module
from blackboard.server.checkpoints.branch import _SLOT, _SLOTS, Branches, alone
from blackboard.server.checkpoints.recover import _Recovery
from blackboard.server.checkpoints.redact import _Running
from blackboard.server.service import Service
from tests.interrupting import interrupted
from tests.redis_process import RedisProcess

THEN = {"public/a": 1, "public/b": 1}
NOW = {"public/a": 2, "public/b": 1, "public/c": 1}


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Archive]:
    """An empty archive."""
    opened = await archive_beside(tmp_path)
    yield opened
    await opened.aclose()


@pytest.fixture(params=["sqlite", "redis"])
async def service(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """A service with an archive, over each engine."""
    async with AsyncExitStack() as servers:
        if request.param == "redis":
            server = await servers.enter_async_context(RedisProcess())
            store: Store = RedisStore.connect(server.url)
        else:
            store = await SqliteStore.at(tmp_path / "data", "memory")
        async with Service(store, archive=await archive_beside(tmp_path)) as service:
            yield service


@pytest.fixture
def unshielded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery is cancelled although it was to be finished first, as when that takes long."""

    async def at_once(work: Any) -> Any:
        return await work

    monkeypatch.setattr(recover_module, "finish", at_once)


async def filled(client: Client, name: str) -> Board:
    """A board with a checkpoint, and something since."""
    board = client.board(name)
    await board.put("public/a", 1)
    await board.put("public/b", 1)
    await board.checkpoint("one")
    await board.put("public/a", 2)
    await board.put("public/c", 1)
    return board


async def content(board: Board) -> dict[str, Any]:
    """What the board holds."""
    return {entry.key: entry.value async for entry in board.scan("public/**")}


async def test_a_finished_sole_owner_leaves_nothing_behind(archive: Archive) -> None:
    """The next one to make a board of that name need not wait for a lease to end."""

    async def make() -> None:
        async with alone(archive, "b"):
            await archive.mark("b")

    at, slots = 0, [_SLOT.format(number) for number in range(_SLOTS)]
    while (await interrupted(make(), at)).was_reached:
        fences = [await archive.take(slot, "next", 60_000) for slot in slots]
        assert None not in fences, at
        for slot, fence in zip(slots, fences, strict=True):
            assert fence is not None
            await archive.give_up(slot, fence)
        at += 1
    assert at > 3


@pytest.mark.slow
async def test_a_removal(service: Service) -> None:
    """The board is there or not; the next call removes it, and another one begins."""
    client = Client(service.link(access.operator()))
    at, was_reached = 0, True
    while was_reached:
        name = f"b{at}"
        board = await filled(client, name)
        was_reached = (await interrupted(service.boards._remove(name, None), at)).was_reached
        assert not service.host.removing
        if await service.host.exists(name):
            assert await content(board) == NOW
        await client.remove_board(name)
        assert not await service.host.exists(name)
        await client.board(name).head()
        await client.board(name).put("public/new", 1)
        assert await content(client.board(name)) == {"public/new": 1}
        assert (await client.board(name).verify()).ok
        at += 3
    assert at > 10


@pytest.mark.slow
async def test_a_branch(service: Service) -> None:
    """There is a whole one or none; the next call makes it."""
    client = Client(service.link(access.operator()))
    board = await filled(client, "main")
    at, was_reached = 0, True
    while was_reached:
        name = f"b{at}"
        was_reached = (await interrupted(making(service, name), at)).was_reached
        if await service.host.exists(name):
            with pytest.raises(InvalidRequest, match="there is a board"):
                await board.branch(name, "one")
        else:
            await board.branch(name, "one")
        assert await content(client.board(name)) == THEN
        assert (await client.board(name).verify()).ok
        await client.remove_board(name)
        at += 7
    assert at > 10


async def making(service: Service, name: str) -> None:
    """Make a branch of the checkpoint, without the shield."""
    branches = Branches(await service.boards.use("main"))
    spec = BranchRequest(name, "one", "ab" * 8)
    await branches._make_alone(spec, await branches._past.point("one"), "operator")


@pytest.mark.slow
async def test_a_restore(service: Service) -> None:
    """The board is as it was or at the checkpoint; the same request again takes it there."""
    client = Client(service.link(access.operator()))
    board = await filled(client, "main")
    at, was_reached = 0, True
    while was_reached:
        spec = RestoreRequest("one", f"request {at}")
        was_reached = (await interrupted(client.link.restore("main", spec), at)).was_reached
        assert await content(board) in (THEN, NOW), at
        restored = await client.link.restore("main", spec)
        assert await content(board) == THEN, at
        assert await client.link.restore("main", spec) == restored
        await board.refresh()
        await board.put("public/a", 2)
        await board.put("public/c", 1)
        at += 3
    assert (await board.verify()).ok
    assert at > 10


@pytest.mark.slow
async def test_a_redaction(service: Service) -> None:
    """No value is there after the next call, whatever the one before had done."""
    client = Client(service.link(access.operator()))
    board = await filled(client, "main")
    at, was_reached = 0, True
    while was_reached:
        key = f"public/secret/{at}"
        revision = (await board.put(key, "hush")).revision
        running = redaction(service, key, f"request {at}")
        was_reached = (await interrupted(running, at)).was_reached
        assert await board.get(key) in (None, "hush")
        assert (await client.redact(key)).done
        assert await board.get(key) is None
        assert await board.get(key, at=revision) == {"$redacted": True}, at
        at += 7
    assert await content(board) == NOW
    assert (await board.verify()).ok
    assert at > 10


async def redaction(service: Service, key: str, request: str) -> None:
    """Redact a key of board "main", in this task."""
    running = _Running(service.boards, "main", RedactRequest(key, "", request), "operator")
    running.task.cancel()
    await running._run()


@pytest.mark.slow
async def test_an_import(service: Service, tmp_path: Path) -> None:
    """There is a whole board or none; the next call makes it, in the name of the same person."""
    client = Client(service.link(access.operator()))
    file = tmp_path / "exported"
    await (await filled(client, "main")).export("one", file)
    at, was_reached = 0, True
    while was_reached:
        name = f"b{at}"
        was_reached = (await interrupted(client.import_board(file, name), at)).was_reached
        with suppress(InvalidRequest):  # there is a board of that name
            await client.import_board(file, name)
        board = client.board(name)
        assert await content(board) == THEN, at
        await board.put("public/new", 1)
        assert (await board.verify()).ok
        await client.remove_board(name)
        at += 1
    assert at > 10


@pytest.mark.slow
@pytest.mark.usefixtures("unshielded")
async def test_a_recovery(service: Service) -> None:
    """What is there is what was, or nothing; the next call recovers it."""
    client = Client(service.link(access.operator()))
    at, was_reached = 0, True
    while was_reached:
        name = f"b{at}"
        board = await filled(client, name)
        await lose(service, name)
        was_reached = (await interrupted(recovery(service, name), at)).was_reached
        assert (await board.recover()).done
        assert await content(board) == NOW
        await board.refresh()
        await board.put("public/new", 1)
        assert (await board.verify()).ok
        await client.remove_board(name)
        at += 11
    assert at > 10


async def test_a_recovery_that_fails_in_the_middle(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No user of the board begins an empty one in its place, which the next recovery would take
    for what was lost."""
    client = Client(service.link(access.operator()))
    board = await filled(client, "main")
    await lose(service, "main")
    pages = _Recovery._pages

    async def break_off(recovery: _Recovery, target: Point) -> AsyncIterator[Sequence[Entry]]:
        async for page in pages(recovery, target):
            if recovery.so_far.epoch:  # it is not only compared any more
                raise Unavailable("archive", "it is gone for a moment")
            yield page

    with monkeypatch.context() as patched:
        patched.setattr(_Recovery, "_pages", break_off)
        with pytest.raises(Unavailable, match="for a moment"):
            await board.recover()
    with suppress(Unavailable):
        await service.host.store.open("main")
    assert (await board.recover()).done
    assert await content(board) == NOW
    assert (await board.verify()).ok


async def recovery(service: Service, name: str) -> None:
    """Recover a board, in this task."""
    made = _Recovery(service.boards, name, RecoverRequest())
    made.task.cancel()
    await made._run()


async def lose(service: Service, board: str) -> None:
    """Let the engine lose a board, once it is archived."""
    archiver = service.host.archiver
    assert archiver is not None
    await archiver.reached(board, (await service.host.store.open(board)).revision)
    await service.boards.let_go(board, Unavailable(f"board {board}", "it is lost"))
    await service.host.store.drop(board)


async def break_off(board: Board, monkeypatch: pytest.MonkeyPatch, *, killed: bool = False) -> None:
    """Begin a branch `side` whose content cannot be read; `killed`: nothing is taken back."""

    async def fail(branches: Branches, *_: object) -> AsyncIterator[Sequence[Entry]]:
        raise Unavailable("archive", "it is gone for a moment")
        yield

    async def nothing(branches: Branches, new: str) -> None:
        """What a process does that was killed."""

    with monkeypatch.context() as patched:
        patched.setattr(Branches, "_pages", fail)
        if killed:
            patched.setattr(Branches, "_take_back", nothing)
        with pytest.raises(Unavailable, match="for a moment"):
            await board.branch("side", "now")


async def test_a_branch_that_fails_leaves_nothing_to_the_next_board(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(service.link(access.operator()))
    board = await filled(client, "main")

    await break_off(board, monkeypatch)
    assert service.host.archive is not None
    assert await service.host.archive.boards() == ["main"]
    other = client.board("side")
    await other.put("public/b", 1)
    assert [version.value for version in await other.history("public/b")] == [1]
    assert service.host.lost == {}


async def test_a_branch_whose_process_was_killed_leaves_nothing_to_the_next_board(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had no time to take back what it had written to the archive."""
    client = Client(service.link(access.operator()))
    board = await filled(client, "main")

    await break_off(board, monkeypatch, killed=True)
    other = client.board("side")
    await other.put("public/b", 1)
    assert [version.value for version in await other.history("public/b")] == [1]
    assert (await other.verify()).findings == ()
