"""Who reads slowly, or not at all, harms only itself, and misses nothing without being told."""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

import blackboard
from blackboard.client.board import Board
from blackboard.client.watch import Watch
from blackboard.core import access
from blackboard.core.commit import Op, Put
from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Compacted
from blackboard.limits import DEFAULT
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.conformance.edge import Edge, serving
from tests.source_tree import ROOT

PATIENCE_S = 60.0
CHANGES = 64
REVISIONS = 4 * DEFAULT.watch.watch_queue_changes_max // CHANGES
"""So many revisions of CHANGES changes are four times what is kept ready for watchers."""


@asynccontextmanager
async def served(store: Store) -> AsyncIterator[tuple[Service, Edge]]:
    """A service over `store`, on a socket."""
    async with Service(store) as service, serving(service) as edge:
        yield service, edge


async def fill(board: Board, count: int) -> None:
    """Commit `count` revisions of CHANGES changes."""
    for number in range(count):
        value = encode_value(number)
        ops: list[Op] = [Put(f"public/{i}", value) for i in range(CHANGES)]
        await board.commit(ops)


async def everything(watch: Watch, last: int) -> list[int]:
    """The revisions that a watch tells up to `last`; each must be whole."""
    found: list[int] = []
    with anyio.fail_after(PATIENCE_S):
        while not found or found[-1] < last:
            revised = await anext(watch)
            assert len(revised.changes) == CHANGES
            found.append(revised.revision)
    return found


async def follow(watch: Watch, found: list[int]) -> None:
    """Note the revisions that a watch tells, until it ends."""
    with anyio.fail_after(PATIENCE_S):
        async for revised in watch:
            found.append(revised.revision)


async def trimmed_under_a_slow_watcher(store: Store) -> None:
    """It gets what was already on its way, in order, and then hears where the log begins."""
    async with AsyncExitStack() as stack:
        service, edge = await stack.enter_async_context(served(store))
        token = edge.token(access.operator())
        connected = [blackboard.connect(edge.url, token=token) for _ in range(2)]
        slow, quick = [await stack.enter_async_context(c) for c in connected]
        board = quick.board("main")
        async with slow.board("main").watch("public/**") as behind:
            async with board.watch("public/**") as ahead:
                await fill(board, REVISIONS)
                assert await everything(ahead, REVISIONS) == list(range(1, REVISIONS + 1))
            oldest = REVISIONS - 10
            await service.host.store.compact("main", oldest)
            found: list[int] = []
            with pytest.raises(Compacted) as told:
                await follow(behind, found)
        assert told.value.oldest == oldest
        assert found == list(range(1, len(found) + 1))
        assert len(found) < oldest
        assert told.value.revision == int(behind.position.split(":")[1]) == found[-1]
        with pytest.raises(Compacted):
            async with slow.board("main").watch("public/**", after=behind.position) as again:
                await anext(again)
        async with slow.board("main").watch("public/**", snapshot=True) as anew:
            assert len(anew.state) == CHANGES
            assert anew.revision == REVISIONS


async def test_a_slow_watcher_learns_that_its_log_was_trimmed(tmp_path: Path) -> None:
    await trimmed_under_a_slow_watcher(await SqliteStore.at(tmp_path))


async def test_a_slow_watcher_learns_that_its_log_was_trimmed_in_redis(redis_url: str) -> None:
    await trimmed_under_a_slow_watcher(RedisStore.connect(redis_url))


async def test_a_stalled_process_holds_up_nobody_and_misses_nothing(tmp_path: Path) -> None:
    """It is frozen with its socket open while four times the ring is written and told."""
    async with AsyncExitStack() as stack:
        _, edge = await stack.enter_async_context(served(await SqliteStore.at(tmp_path)))
        token = edge.token(access.operator())
        client = await stack.enter_async_context(blackboard.connect(edge.url, token=token))
        board = client.board("main")
        await board.head()
        command = [sys.executable, "-m", "tests.guarantees.watcher_child"]
        process = await stack.enter_async_context(
            await anyio.open_process([*command, edge.url, token, str(REVISIONS)], cwd=ROOT)
        )
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        assert await line_of(lines) == "open"
        process.send_signal(signal.SIGSTOP)
        async with board.watch("public/**") as watch:
            await fill(board, REVISIONS)
            assert await everything(watch, REVISIONS) == list(range(1, REVISIONS + 1))
        process.send_signal(signal.SIGCONT)
        with anyio.fail_after(PATIENCE_S):
            told = [int(await line_of(lines)) for _ in range(REVISIONS)]
            await process.wait()
    assert told == list(range(1, REVISIONS + 1))


async def line_of(lines: BufferedByteReceiveStream) -> str:
    """The next line of a process."""
    return (await lines.receive_until(b"\n", 100)).decode()
