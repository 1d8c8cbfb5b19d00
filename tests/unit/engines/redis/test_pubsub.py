"""Messages over one server and a cluster, malformed messages, and a connection that breaks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import anyio
import pytest

from blackboard.engines.base import PubSub
from blackboard.engines.redis.pubsub import read_message, write_message
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from tests.faults.tcp_proxy import TcpProxy
from tests.ports import free_port
from tests.servers import RedisCluster3

KEY = "public/memo"
PATIENCE_S = 60


@pytest.fixture
async def connected() -> AsyncIterator[Callable[[str], RedisStore]]:
    """Makes stores, and closes them."""
    async with AsyncExitStack() as stack:

        def connect(url: str) -> RedisStore:
            store = RedisStore.connect(url)
            stack.push_async_callback(store.aclose)
            return store

        yield connect


async def check_messages(one: RedisStore, two: RedisStore, boards: list[str]) -> None:
    """What one says about a board is heard by two there, in order, and nowhere else."""
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        heard = {b: await stack.enter_async_context(two.subscribe(b)) for b in boards}
        for board in boards:
            await one.publish(board, KEY, board.encode())
            await one.publish(board, KEY, b"\x00\xff")
        for board in boards:
            assert await anext(heard[board]) == (KEY, board.encode())
            assert await anext(heard[board]) == (KEY, b"\x00\xff")


async def test_one_server(redis_url: str, connected: Callable[[str], RedisStore]) -> None:
    await check_messages(connected(redis_url), connected(redis_url), ["a", "b"])


async def test_a_cluster(
    redis_cluster: RedisCluster3, connected: Callable[[str], RedisStore]
) -> None:
    """The boards lie on all three nodes."""
    url = redis_cluster.url.replace("redis://", "redis+cluster://")
    await check_messages(connected(url), connected(url), [f"board-{n}" for n in range(6)])


async def test_a_subscriber_learns_that_its_connection_broke(
    redis_url: str, connected: Callable[[str], RedisStore]
) -> None:
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    async with TcpProxy(port) as proxy:
        store = connected(f"redis://127.0.0.1:{proxy.port}/0")
        with anyio.fail_after(PATIENCE_S):
            with pytest.raises(Unavailable):
                await hear_nothing(store, proxy)
        async with store.subscribe("a") as heard:
            await store.publish("a", KEY, b"again")
            assert await anext(heard) == (KEY, b"again")


async def hear_nothing(store: RedisStore, proxy: TcpProxy) -> None:
    """Listen while the line is cut."""
    async with store.subscribe("a") as heard:
        proxy.cut()
        await anext(heard)


async def test_without_a_server_it_is_unavailable(
    connected: Callable[[str], RedisStore],
) -> None:
    store = connected(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(Unavailable):
        await store.publish("a", KEY, b"x")
    with pytest.raises(Unavailable):
        async with store.subscribe("a"):
            pass


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x92\x01\xa1x", b"\x05"])
def test_a_malformed_message_is_ignored(message: bytes) -> None:
    assert read_message(message) is None
    assert read_message(write_message(KEY, message)) == (KEY, message)


def test_an_engine_of_one_process_has_no_pubsub() -> None:
    assert not issubclass(SqliteStore, PubSub)
