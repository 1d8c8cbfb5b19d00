"""A watch with a snapshot whose state has to be read again, because a restore changed too much."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

import blackboard
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.link import Stream
from blackboard.client.watch import Watch
from blackboard.errors import Unavailable
from blackboard.limits import RESYNC_BYTES, VALUE_BYTES_MAX

PATIENCE_S = 60.0
BLOB = "x" * (VALUE_BYTES_MAX // 2)
KEYS = [f"public/big/{number}" for number in range(RESYNC_BYTES // len(BLOB) + 1)]


@dataclass
class Calls:
    """What a test does at calls of a client: once before the next call of each name."""

    before: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    streams: int = 0
    """How many are open."""

    async def meet(self, name: str) -> None:
        """Do what is to be done before a call."""
        if meddle := self.before.pop(name, None):
            await meddle()


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client with an archive, which a restore needs."""
    async with blackboard.open(tmp_path, level="memory") as client:
        yield client


@pytest.fixture
def calls(client: Client, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The calls of that client which a watch makes."""
    calls, link = Calls(), client.link
    real = {name: getattr(link, name) for name in ("head", "list", "watch")}

    async def head(*given: Any, **named: Any) -> Any:
        await calls.meet("head")
        return await real["head"](*given, **named)

    async def list_(*given: Any, **named: Any) -> Any:
        await calls.meet("list")
        return await real["list"](*given, **named)

    @asynccontextmanager
    async def watch(*given: Any) -> AsyncIterator[Stream]:
        await calls.meet("watch")
        async with real["watch"](*given) as stream:
            calls.streams += 1
            try:
                yield stream
            finally:
                calls.streams -= 1

    monkeypatch.setattr(link, "head", head)
    monkeypatch.setattr(link, "list", list_)
    monkeypatch.setattr(link, "watch", watch)
    return calls


@pytest.fixture
async def board(client: Client, calls: Calls) -> Board:
    """A board that was emptied of more than one delivery can hold, after the checkpoint `full`."""
    board = client.board()
    for key in KEYS:
        await board.put(key, BLOB)
    await board.checkpoint("full")
    await board.delete_prefix("public/big")
    await board.checkpoint("empty")
    await board.put("public/small", 1)
    assert board._link.head == client.link.head, "a watch makes the calls above"
    return board


async def next_of(watch: Watch) -> Any:
    """The next revision."""
    with anyio.fail_after(PATIENCE_S):
        return await anext(watch)


@pytest.mark.parametrize("call", ["head", "list"])
async def test_an_attempt_that_failed_is_repeated(board: Board, calls: Calls, call: str) -> None:
    """The revision that begins the epoch is delivered, and nothing without its state."""

    async def fail() -> None:
        # While the state is read, this waits to be delivered.
        await board.put("public/next", 1)
        raise Unavailable("board", "for a moment")

    async with board.watch("public/**", snapshot=True) as watch:
        epoch = watch.position.split(":")[0]
        restored = await board.restore("full")
        calls.before[call] = fail
        with pytest.raises(Unavailable):
            await next_of(watch)
        assert watch.position.split(":")[0] == epoch, "the restore was not delivered"
        assert watch.reached < restored.revision
        again = await next_of(watch)
        assert (again.changes, again.epoch) == ((), restored.epoch)
        assert again.revision == watch.revision > restored.revision
        assert sorted(watch.state) == [*KEYS, "public/next"]


@pytest.mark.parametrize("call", ["head", "list"])
async def test_an_attempt_that_was_cancelled_is_repeated(
    board: Board, calls: Calls, call: str
) -> None:
    begun = anyio.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await anyio.sleep_forever()

    async with board.watch("public/**", snapshot=True) as watch:
        restored = await board.restore("full")
        calls.before[call] = wait_for_ever
        waiting = asyncio.create_task(next_of(watch))
        await begun.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (await next_of(watch)).epoch == restored.epoch
        assert sorted(watch.state) == KEYS


@pytest.mark.parametrize(("call", "name"), [("head", "empty"), ("list", "empty"), ("list", "full")])
async def test_an_epoch_that_begins_meanwhile_is_told_once(
    board: Board, calls: Calls, call: str, name: str
) -> None:
    """The second restore is made while the watch reads what the first one left."""

    async def restore() -> None:
        if name == "full":
            await board.restore("empty")
        await board.restore(name)

    async with board.watch("public/**", snapshot=True) as watch:
        await board.restore("full")
        calls.before[call] = restore
        found = [await next_of(watch)]
        state = sorted(watch.state)
        await board.put("public/next", 1)
        while not found[-1].changes:
            found.append(await next_of(watch))
        head = await board.head()
        assert [revised.epoch for revised in found] == [head.epoch, None]
        assert state == (KEYS if name == "full" else [])
        assert calls.streams == 1, "the others were closed"
    assert calls.streams == 0
