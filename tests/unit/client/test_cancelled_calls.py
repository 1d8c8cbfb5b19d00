"""Every call of a board, cancelled wherever it waits: what it was to do is done or not, never half,
nothing of it goes on afterwards, and the next call works."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import blackboard
from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.remote.link import connect
from blackboard.core.commit import Put
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.interrupting import interrupted
from tests.serving import serving
from tests.unit.server.http.conversation import PATIENCE_S
from tests.waiting import wait_until

Call = Callable[[Board], Awaitable[Any]]
Content = dict[str, Any]
NOW: Content = {
    "public/a": 1,
    "public/n": 5,
    "public/m": {"x": 1},
    "public/d/1": 1,
    "public/d/2": 2,
}
FIRST: Content = {"public/first": 1}
WAITS_MAX = 500
"""More than any call here has."""


@dataclass(frozen=True)
class Change:
    """A call, and what a board that held NOW, and FIRST before that, holds once it is done."""

    call: Call
    done: Content


async def _commit(board: Board) -> None:
    await board.commit([Put("public/x", encode_value(1)), Put("public/y", encode_value(2))])


async def _step(board: Board) -> None:
    async with board.step() as step:
        n = await step.get("public/n")
        step.put("public/n", n + 1)
        step.put("public/y", n)


async def _lock(board: Board) -> None:
    async with board.lock("public/a"):
        await board.put("public/a", 2)


async def _claim(board: Board) -> None:
    async with board.claim("public/d/1", timeout_ms=0) as task:
        task.put("public/done", task.value)


async def _attach(board: Board) -> None:
    async with board.attach() as me:
        await me.board.put("public/a", 2)


async def _file(board: Board) -> None:
    await board.files.put("public/f", b"." * 3 * 2**20)


async def _replaced_file(board: Board) -> None:
    await board.files.put("public/f", b"x" * 3 * 2**20)
    await board.files.put("public/f", b"")


async def _deleted_file(board: Board) -> None:
    await board.files.put("public/f", b"")
    await board.files.delete("public/f")


async def _document(board: Board) -> None:
    async with board.document("public/memo") as document:
        document.text().append("Buy.")


CHANGES: dict[str, Change] = {
    "put": Change(lambda b: b.put("public/a", 2), NOW | {"public/a": 2}),
    "expected": Change(lambda b: b.put("public/x", 2, expected=0), NOW | {"public/x": 2}),
    "delete": Change(lambda b: b.delete("public/n"), {k: NOW[k] for k in NOW if k != "public/n"}),
    "delete_prefix": Change(
        lambda b: b.delete_prefix("public/d"), {k: NOW[k] for k in NOW if "/d/" not in k}
    ),
    "append": Change(lambda b: b.append("public/l", 1), NOW | {"public/l/0000000000": 1}),
    "increment": Change(lambda b: b.increment("public/n", 2), NOW | {"public/n": 7}),
    "merge": Change(lambda b: b.merge("public/m", {"x": None}), NOW | {"public/m": {}}),
    "touch": Change(lambda b: b.touch("public/n", ttl_ms=None), NOW),
    "commit": Change(_commit, NOW | {"public/x": 1, "public/y": 2}),
    "step": Change(_step, NOW | {"public/n": 6, "public/y": 5}),
    "lock": Change(_lock, NOW | {"public/a": 2}),
    "attach": Change(_attach, NOW | {"public/a": 2}),
    "claim": Change(_claim, {k: NOW[k] for k in NOW if k != "public/d/1"} | {"public/done": 1}),
    "file": Change(_file, NOW),
    "replaced_file": Change(_replaced_file, NOW),
    "deleted_file": Change(_deleted_file, NOW),
    "checkpoint": Change(lambda b: b.checkpoint(), NOW),
    "restore": Change(lambda b: b.restore("first"), FIRST),
    "rewind": Change(lambda b: b.rewind(to=1), FIRST),
}

READS: dict[str, Call] = {
    "get": lambda b: b.get("public/a"),
    "get_at": lambda b: b.get("public/a", at="first"),
    "list": lambda b: b.list("public/**"),
    "list_at": lambda b: b.list("public/**", at="first"),
    "head": lambda b: b.head(),
    "log": lambda b: b.log(),
    "why": lambda b: b.why("public/a"),
    "leases": lambda b: b.leases(),
    "agents": lambda b: b.agents(),
    "claims": lambda b: b.claims(),
    "checkpoints": lambda b: b.checkpoints(),
    "show": lambda b: b.show("first"),
    "preview": lambda b: b.preview_restore("first"),
    "diff": lambda b: b.diff("first"),
    "history": lambda b: b.history("public/a"),
    "verify": lambda b: b.verify(),
    "origin": lambda b: b.origin(),
    "refresh": lambda b: b.refresh(),
    "document": _document,
    "watch": lambda b: _watched(b),
}
"""`document` is among them because it changes none of the values that are compared."""


async def _watched(board: Board) -> None:
    async with board.watch("public/**", snapshot=True) as watch:
        assert watch.state


@pytest.fixture(params=["embedded", "connected"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a service with an archive."""
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            yield await stack.enter_async_context(blackboard.open(tmp_path, level="memory"))
            return
        store = await SqliteStore.at(tmp_path / "data", "memory")
        archive = await archive_beside(tmp_path)
        service = await stack.enter_async_context(Service(store, archive=archive))
        served = await stack.enter_async_context(serving(service))
        opening = connect(served.url, token=served.token())
        yield await stack.enter_async_context(opening)


async def filled(client: Client, name: str) -> Board:
    """A board that held FIRST at its checkpoint `first`, and now holds NOW."""
    board = client.board(name)
    await board.put("public/first", 1)
    await board.checkpoint("first")
    await board.delete("public/first")
    await board.commit([Put(key, encode_value(value)) for key, value in NOW.items()])
    return board


async def content(board: Board) -> Content:
    """The values that the board holds, apart from documents."""
    found = [entry async for entry in board.scan("public/**") if "~" not in entry.key]
    return {entry.key: entry.value for entry in found}


async def is_file_whole(board: Board) -> bool:
    """Whether there are just the parts of the file that is there."""
    info = await board.files.info("public/f")
    entries = [entry.key async for entry in board.scan("public/f/~file/**")]
    if info is None:
        return not entries
    size = sum([len(piece) async for piece in board.files.read("public/f")])
    return size == info.size_bytes and len(entries) == 1 + -(-size // 2**19)


def work() -> set[asyncio.Task[Any]]:
    """The tasks of this loop that are not done."""
    return {task for task in asyncio.all_tasks() if not task.done()}


async def ended(before: Sequence[object], board: Board) -> None:
    """Wait until a cancelled call left nothing behind: no lease, and no more tasks than before."""

    async def is_over() -> bool:
        return len(work()) <= len(before) and not await board.leases()

    await wait_until(is_over, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_is_made_or_not(client: Client, name: str) -> None:
    change, at, was_reached = CHANGES[name], 0, True
    reached: list[Content] = []
    while was_reached:
        board = await filled(client, f"b{at}")
        before = list(work())
        async with asyncio.timeout(PATIENCE_S):
            end = await interrupted(_awaited(change.call, board), at)
        assert end.error is None or isinstance(end.error, asyncio.CancelledError), at
        await ended(before, board)
        found = await content(board)
        assert found in (NOW, change.done), at
        assert await is_file_whole(board), at
        reached.append(found)
        await board.refresh()
        await board.put("public/after", 1)
        assert await content(board) == found | {"public/after": 1}, at
        assert (await board.verify()).ok, at
        was_reached = end.was_reached
        at += 1
        assert at < WAITS_MAX
    assert reached[-1] == change.done
    assert at > 1


@pytest.mark.parametrize("name", READS)
async def test_a_read_leaves_nothing_behind(client: Client, name: str) -> None:
    call, at, was_reached = READS[name], 0, True
    board = await filled(client, "b")
    while was_reached:
        before = list(work())
        async with asyncio.timeout(PATIENCE_S):
            end = await interrupted(_awaited(call, board), at)
        assert end.error is None or isinstance(end.error, asyncio.CancelledError), at
        await ended(before, board)
        assert await content(board) == NOW, at
        was_reached = end.was_reached
        at += 1
        assert at < WAITS_MAX
    await board.put("public/after", 1)
    assert await content(board) == NOW | {"public/after": 1}


async def _awaited(call: Call, board: Board) -> Any:
    return await call(board)
