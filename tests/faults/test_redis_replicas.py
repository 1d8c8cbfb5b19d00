"""What an answer says of the replicas of a Redis server: that they had the commit, or nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.commit import Committed, Increment
from blackboard.engines.base import REPLICA
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import InvalidRequest, LimitExceeded, Unavailable
from blackboard.limits import DEFAULT, REPLICAS_MAX, EngineLimits, Limits
from blackboard.server.service import Service
from blackboard.wire.codec import decode_value
from tests.conformance.writer import Writer
from tests.faults.tcp_proxy import TcpProxy
from tests.guarantees.redis_pair import RedisPair
from tests.postgres import answered
from tests.servers import ask
from tests.waiting import wait_until

BOARD = "board"
COUNT = "public/count"
URL = "redis://127.0.0.1:1/0"


@asynccontextmanager
async def opened(
    url: str, replicas: int = 1, limits: Limits = DEFAULT
) -> AsyncIterator[RedisStore]:
    """A store that asks for so many replicas."""
    store = RedisStore.connect(url, replicas=replicas, limits=limits)
    try:
        yield store
    finally:
        await store.aclose()


async def level_of(ada: Writer) -> str:
    """The level of one more commit."""
    return (await ada.commit(Increment(COUNT, 1))).level


async def count_of(store: RedisStore) -> int:
    """What the commits counted up to."""
    [entry] = (await store.read(BOARD, [COUNT])).entries
    return int(decode_value(entry.value))


async def reach_replica(commit: Callable[[], Awaitable[str]]) -> None:
    """Commit until an answer has the level of replicas: on a busy machine some come too late."""

    async def is_reached() -> bool:
        return await commit() == REPLICA

    await wait_until(is_reached)


async def test_a_commit_that_the_replicas_had_says_so(redis_binary: Path) -> None:
    """And one that they did not have in time is answered all the same."""
    async with RedisPair(redis_binary) as pair, opened(pair.primary.url) as store:
        ada = await Writer.open(store, BOARD)
        await reach_replica(lambda: level_of(ada))
        count = await count_of(store)
        pair.part()
        assert await level_of(ada) == ""
        assert await count_of(store) == count + 1


async def test_fewer_replicas_than_were_asked_for_are_not_enough(redis_binary: Path) -> None:
    async with RedisPair(redis_binary) as pair, opened(pair.primary.url, replicas=2) as store:
        assert await level_of(await Writer.open(store, BOARD)) == ""


async def test_a_commit_that_was_on_a_replica_survives_the_primary(redis_binary: Path) -> None:
    """What the level says: all of them are there when the replica takes its place."""
    async with RedisPair(redis_binary) as pair:
        async with opened(pair.primary.url) as store:
            ada = await Writer.open(store, BOARD)
            await reach_replica(lambda: level_of(ada))
            before = await count_of(store)
            levels = [await level_of(ada) for _ in range(20)]
            last = max((n for n, level in enumerate(levels, 1) if level == REPLICA), default=0)
        await pair.promote()
        async with opened(pair.primary.url, replicas=0) as store:
            await store.open(BOARD)
            assert await count_of(store) >= before + last


async def test_an_answer_from_memory_does_not_say_how_far_it_got(redis_binary: Path) -> None:
    """The commit was written on another connection: this one's WAIT is not about it."""
    async with (
        RedisPair(redis_binary) as pair,
        TcpProxy(pair.primary.port) as proxy,
        opened(f"redis://127.0.0.1:{proxy.port}/0") as store,
    ):
        ada = await Writer.open(store, BOARD)
        proxy.drop_replies()
        done = await ada.commit(Increment(COUNT, 1))
        assert proxy.dropped.is_set()
    assert (done.duplicate, done.level) == (True, "")


async def test_an_error_behind_the_answer_loses_no_answer(redis_binary: Path) -> None:
    """WAIT is refused; the commit was not."""
    async with RedisPair(redis_binary) as pair, opened(pair.primary.url) as store:
        await ask(pair.primary, "ACL", "SETUSER", "default", "-wait")
        done = await (await Writer.open(store, BOARD)).commit(Increment(COUNT, 1))
        assert isinstance(done, Committed)
        assert (done.duplicate, done.level) == (False, "")


async def test_an_answer_that_comes_late_is_not_lost_by_waiting(redis_url: str) -> None:
    """The server was away for most of the call's time, and its replica is not back yet: the wait
    for it would take longer than what is left."""
    short = EngineLimits(engine_retry_ms=1_000, replica_wait_ms=4_000)
    async with opened(redis_url, limits=replace(DEFAULT, engine=short)) as store:
        ada = await answered(lambda: Writer.open(store, BOARD))

        attempts = 0

        async def is_answered() -> bool:
            nonlocal attempts
            attempts += 1
            # A busy server may use up the time of a call by itself, now and then.
            with suppress(Unavailable):
                done = await ada.attempt(Increment(COUNT, 1))
                return isinstance(done, Committed) and (done.duplicate, done.level) == (False, "")
            return False

        await wait_until(is_answered)
        assert 1 <= await count_of(store) <= attempts  # those without an answer may count


async def test_the_receipt_tells_the_level(redis_binary: Path) -> None:
    async with (
        RedisPair(redis_binary) as pair,
        Service(RedisStore.connect(pair.primary.url, replicas=1)) as service,
    ):
        board = Client(service.link(access.agent("ada"))).board(BOARD)

        async def put() -> str:
            return (await board.put(COUNT, 1)).level

        await reach_replica(put)
        pair.part()
        assert (await board.put(COUNT, 2)).level == "disk"


def test_how_many_replicas_may_be_asked_for() -> None:
    """REPLICAS_MAX, and not of a cluster."""
    RedisStore.connect(URL, replicas=REPLICAS_MAX)
    with pytest.raises(LimitExceeded, match="REPLICAS_MAX"):
        RedisStore.connect(URL, replicas=REPLICAS_MAX + 1)
    with pytest.raises(InvalidRequest, match="cluster"):
        RedisStore.connect("redis+cluster://127.0.0.1:1", replicas=1)


def test_nobody_waits_longer_than_a_call_may_take() -> None:
    """The answer is there already: waiting for replicas must not make a call time out."""
    assert DEFAULT.engine.replica_wait_ms < DEFAULT.engine.engine_timeout_ms / 10
