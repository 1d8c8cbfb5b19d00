"""What readers get while somebody else prunes, deletes or replaces what they read; and how much of
it they hold."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anyio.lowlevel
import anyio.to_thread
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import blackboard
import blackboard.sync
from blackboard import Board
from blackboard.errors import Conflict, Fenced, LeaseHeld, LeaseLost
from blackboard.integrations.langgraph import BlackboardSaver, BlackboardStore
from blackboard.integrations.langgraph.history import AT_ONCE
from blackboard.ops import Release
from tests.waiting import TIMEOUT_S, wait_until

T1: RunnableConfig = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}
Meanwhile = Callable[[Callable[[], Awaitable[Any]]], None]
SIZES = (100, 1_000_000)
"""Bytes of an element: of a record that is an entry, and of one that is a file."""


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        yield client.board("graphs")


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Lets somebody else do something right after the next look at the board."""

    def after_the_next_look(do: Callable[[], Awaitable[Any]]) -> None:
        looks: dict[str, Any] = {name: getattr(Board, name) for name in ("entry", "list")}

        def hooked(name: str) -> Any:
            async def look(board: Board, *arguments: Any, **named: Any) -> Any:
                found = await looks[name](board, *arguments, **named)
                if found:
                    monkeypatch.undo()
                    await do()
                return found

            return look

        for name in looks:
            monkeypatch.setattr(Board, name, hooked(name))

    return after_the_next_look


async def put(saver: BlackboardSaver, said: list[bytes], parent: RunnableConfig) -> RunnableConfig:
    versions = {"said": saver.get_next_version(None, None)}
    made = {
        **empty_checkpoint(),
        "channel_values": {"said": said},
        "channel_versions": {**versions},
    }
    metadata = cast(CheckpointMetadata, {"source": "loop", "step": 0})
    return await saver.aput(parent, cast(Checkpoint, made), metadata, {**versions})


async def three(board: Board, size: int, seed: int) -> tuple[list[bytes], list[RunnableConfig]]:
    """Three checkpoints, of which each builds on the one before; their last list, and configs."""
    draw = random.Random(seed)
    said = [draw.randbytes(size) for _ in range(3)]
    saver, configs = BlackboardSaver(board), [T1]
    for count in (1, 2, 3):
        configs.append(await put(saver, said[:count], configs[-1]))
    return said, configs[1:]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", ["newest", "named"])
async def test_a_checkpoint_is_read_while_its_thread_is_pruned(
    board: Board, meanwhile: Meanwhile, seed: int, size: int, which: str
) -> None:
    said, configs = await three(board, size, seed)
    meanwhile(lambda: BlackboardSaver(board).aprune(["t1"]))
    found = await BlackboardSaver(board).aget_tuple(T1 if which == "newest" else configs[-1])
    assert found is not None
    assert found.checkpoint["channel_values"] == {"said": said}


@pytest.mark.parametrize("size", SIZES)
async def test_a_thread_is_listed_while_it_is_pruned(
    board: Board, meanwhile: Meanwhile, seed: int, size: int
) -> None:
    said, configs = await three(board, size, seed)
    meanwhile(lambda: BlackboardSaver(board).aprune(["t1"]))
    found = [one async for one in BlackboardSaver(board).alist(T1)]
    assert found[0].config == configs[-1]
    for one in found:  # the others are left out, or as they were
        values = one.checkpoint["channel_values"]["said"]
        assert values == said[: len(values)]


@pytest.mark.parametrize("size", SIZES)
async def test_a_run_goes_on_while_its_thread_is_pruned(
    board: Board, meanwhile: Meanwhile, seed: int, size: int
) -> None:
    """Of another worker, which has to read the checkpoint that it goes on from."""
    said, configs = await three(board, size, seed)
    meanwhile(lambda: BlackboardSaver(board).aprune(["t1"]))
    config = await put(BlackboardSaver(board), [*said, b"more"], configs[-1])
    found = await BlackboardSaver(board).aget_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"said": [*said, b"more"]}


@pytest.mark.parametrize("size", SIZES)
async def test_a_thread_that_is_deleted_while_it_is_read_is_none(
    board: Board, meanwhile: Meanwhile, seed: int, size: int
) -> None:
    _, configs = await three(board, size, seed)
    saver, other = BlackboardSaver(board), BlackboardSaver(board)
    meanwhile(lambda: other.adelete_thread("t1"))
    assert await saver.aget_tuple(T1) is None
    _, configs = await three(board, size, seed)
    assert await saver.aget_tuple(T1) is not None
    await put(saver, [], configs[-1])
    meanwhile(lambda: other.adelete_thread("t1"))
    with pytest.raises(Conflict):
        await put(saver, [], configs[-1])


async def test_a_thread_is_pruned_and_copied_while_another_one_prunes_it(
    board: Board, meanwhile: Meanwhile, seed: int
) -> None:
    said, configs = await three(board, 1_000_000, seed)
    meanwhile(lambda: BlackboardSaver(board).aprune(["t1"]))
    await BlackboardSaver(board).acopy_thread("t1", "t2")
    t2: RunnableConfig = {"configurable": {"thread_id": "t2", "checkpoint_ns": ""}}
    found = await BlackboardSaver(board).aget_tuple(t2)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"said": said}
    meanwhile(lambda: BlackboardSaver(board).adelete_thread("t1"))
    await BlackboardSaver(board).aprune(["t1"])
    assert await BlackboardSaver(board).aget_tuple(configs[-1]) is None


async def test_a_listing_of_all_threads_does_not_load_them_all(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, loaded = BlackboardSaver(board), 0
    for number in range(3 * AT_ONCE):
        thread: RunnableConfig = {"configurable": {"thread_id": f"t{number % 7}"}}
        last = await put(saver, [b"a"], thread)
    look, look_up = Board.list, Board.entries

    async def listed(*arguments: Any, **named: Any) -> Any:
        nonlocal loaded
        page = await look(*arguments, **named)
        loaded += sum(entry.value is not None for entry in page.entries)
        return page

    async def looked_up(*arguments: Any, **named: Any) -> Any:
        nonlocal loaded
        found = await look_up(*arguments, **named)
        loaded += len(found)
        return found

    monkeypatch.setattr(Board, "list", listed)
    monkeypatch.setattr(Board, "entries", looked_up)
    assert [one.config async for one in saver.alist(None, limit=1)] == [last]
    assert loaded <= AT_ONCE
    found = [one.config["configurable"]["checkpoint_id"] async for one in saver.alist(None)]
    assert len(found) == 3 * AT_ONCE
    assert found == sorted(found, reverse=True)


async def test_an_item_is_read_while_it_is_put_again(
    board: Board, meanwhile: Meanwhile, seed: int
) -> None:
    draw = random.Random(seed)
    old, new = ({"text": draw.randbytes(500_000).hex()} for _ in range(2))
    store, other = BlackboardStore(board), BlackboardStore(board)
    await other.aput(("a",), "x", old)
    meanwhile(lambda: other.aput(("a",), "x", new))
    found = await store.aget(("a",), "x")
    assert found is not None
    assert found.value == new
    meanwhile(lambda: other.aput(("a",), "x", old))
    assert [item.value for item in await store.asearch(("a",))] == [old]
    meanwhile(lambda: other.adelete(("a",), "x"))
    assert await store.aget(("a",), "x") is None


class HeldUp(JsonPlusSerializer):
    """It reads when it may, as if the board were slow."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read, self.may_go_on = threading.Event(), threading.Event()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.is_read.set()
        assert self.may_go_on.wait(60)
        return super().loads_typed(data)


async def test_a_listing_can_be_cancelled_while_another_loop_reads(tmp_path: Path) -> None:
    with blackboard.sync.open(tmp_path / "data", level="memory") as client:
        serde = HeldUp()
        saver = BlackboardSaver(client.board("graphs"), serde=serde)
        serde.may_go_on.set()
        await put(saver, [b"a"], T1)
        serde.is_read.clear()
        serde.may_go_on.clear()

        async def read() -> list[Any]:
            return [one async for one in saver.alist(T1)]

        reading = asyncio.create_task(read())
        await anyio.to_thread.run_sync(serde.is_read.wait)
        reading.cancel()
        await anyio.lowlevel.checkpoint()
        serde.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert len(await read()) == 1


async def test_a_thread_is_owned_from_another_loop(tmp_path: Path) -> None:
    """That of a program with `async`, whose board is one of `blackboard.sync`."""
    with blackboard.sync.open(tmp_path / "data", level="memory") as client:
        saver, other = (BlackboardSaver(client.board("graphs")) for _ in range(2))
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(2):
                async with saver.aown("t1"):
                    with pytest.raises(LeaseHeld):
                        async with other.aown("t1", timeout_ms=0):
                            pass
                    await put(saver, [b"a"], T1)
            with pytest.raises(LeaseLost):
                await lose(saver)


async def lose(saver: BlackboardSaver) -> None:
    """Own a thread, and lose it in the middle."""
    async with saver.aown("t1"):
        board = saver._home.board
        (lease,) = await saver._home.arun(lambda: board.leases("public/langgraph/t1/*"))
        assert lease.holder is not None
        release = Release(lease.key, lease.holder, lease.fence)
        await saver._home.arun(lambda: board.commit([release]))
        with pytest.raises(Fenced):
            await put(saver, [b"b"], T1)


async def test_a_wait_for_a_thread_from_another_loop_can_be_cancelled(tmp_path: Path) -> None:
    """It does not become the owner later on, when nobody is there to leave."""
    with blackboard.sync.open(tmp_path / "data", level="memory") as client:
        saver, other = (BlackboardSaver(client.board("graphs")) for _ in range(2))

        async def wait() -> None:
            async with other.aown("t1"):
                raise AssertionError("it is held")

        async def is_waiting() -> bool:
            (lease,) = await asyncio.to_thread(client.board("graphs").leases, "public/langgraph/**")
            return bool(lease.waiters)

        async with saver.aown("t1"):
            waiting = asyncio.create_task(wait())
            await wait_until(is_waiting)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not await is_waiting()
        async with saver.aown("t1", timeout_ms=0):
            pass


async def test_a_store_that_cannot_be_made_leaves_nothing_open(tmp_path: Path) -> None:
    """Its directory can be opened by others, with and without a loop."""
    where = tmp_path / "data"
    wrong = cast(Any, {"dims": 2})  # embedded by nothing
    with pytest.raises(Exception, match="embed"):
        async with BlackboardStore.from_conn_string(str(where), index=wrong):
            pass
    async with blackboard.open(where) as client:
        await client.board("main").put("public/x", 1)
    with pytest.raises(Exception, match="embed"):
        BlackboardStore.from_conn_string(str(where), index=wrong).__enter__()
    async with blackboard.open(where) as client:
        assert await client.board("main").get("public/x") == 1
