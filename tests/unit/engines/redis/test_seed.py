"""Making a board in steps: how large they are, and two who make the same one."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from blackboard.core.commit import BRANCH, Entry, Epoch, Seed
from blackboard.engines.redis.layout import board_keys
from blackboard.engines.redis.lua import Scripts
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import Unavailable
from tests.conformance.writer import packed

BOARD = "made"
SEED = Seed(Epoch(1, "branch", BRANCH, 9, 10), 1_000)


def entries(count: int, size: int = 10) -> list[Entry]:
    """So many entries with values of about `size` bytes."""
    value = packed("x" * size)
    return [Entry(f"public/{n:05d}", value, 1, 1, "ada", 1, None) for n in range(count)]


async def one_page(page: Sequence[Entry]) -> AsyncIterator[Sequence[Entry]]:
    """All at once."""
    yield page


class Steps:
    """Counts what each call of seed.lua is given."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        make = Scripts.make

        async def counted(scripts: Scripts, board: str, arguments: Sequence[Any]) -> bytes:
            self.sizes.append(sum(map(len, arguments[2:])) if arguments[0] == "page" else 0)
            return await make(scripts, board, arguments)

        patch.setattr(Scripts, "make", counted)


@pytest.mark.parametrize(("count", "size", "steps"), [(1_900, 10, 5), (40, 100_000, 5)])
async def test_a_step_is_bounded(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch, count: int, size: int, steps: int
) -> None:
    """In entries and in bytes, however large the pages are."""
    counted = Steps(monkeypatch)
    await redis_store.seed(BOARD, SEED, one_page(entries(count, size)))
    pages = [size for size in counted.sizes if size]
    assert len(pages) == steps
    assert max(counted.sizes) < 1024 * 1024 + 2 * size + 100_000
    last = await redis_store.list(BOARD, "", after=f"public/{count - 2:05d}", limit=9)
    assert last.entries == tuple(entries(count, size)[-1:])


async def test_a_repeated_first_step_that_comes_late_takes_nothing_away(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, it was sent again, and the first one arrives after the pages."""
    make = Scripts.make

    async def late(scripts: Scripts, board: str, arguments: Sequence[Any]) -> bytes:
        if arguments[0] == "end":
            assert await make(scripts, board, ["begin", arguments[1]]) == b"ok"
        return await make(scripts, board, arguments)

    monkeypatch.setattr(Scripts, "make", late)
    await redis_store.seed(BOARD, SEED, one_page(entries(3, 10)))
    found = await redis_store.list(BOARD, "", limit=9)
    assert found.entries == tuple(entries(3, 10))


async def test_the_second_maker_of_a_board_wins_and_the_first_gets_an_error(
    redis_store: RedisStore,
) -> None:
    """They never mix."""
    first_began, second_done = anyio.Event(), anyio.Event()

    async def slow() -> AsyncIterator[Sequence[Entry]]:
        yield [Entry("public/mine", packed(1), 1, 1, "ada", 1, None)]
        first_began.set()
        await second_done.wait()

    async def first() -> None:
        with pytest.raises(Unavailable):
            await redis_store.seed(BOARD, SEED, slow())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await first_began.wait()
        await redis_store.seed(BOARD, SEED, one_page(entries(3)))
        second_done.set()
    assert (await redis_store.list(BOARD, "", limit=9)).entries == tuple(entries(3))


async def test_what_a_dead_maker_left_is_removed(redis_store: RedisStore, redis: Redis) -> None:
    """Every key of it."""
    meta, log, *_, entries_key, index, expiry, leases = board_keys(BOARD)
    await redis.hset(meta, mapping={"seed": "dead", "u:public": b"\0" * 16})
    await redis.hset(entries_key, "public/old", "x")
    await redis.zadd(index, {"public/old": 0})
    with pytest.raises(Unavailable):
        await redis_store.open(BOARD)
    await redis_store.seed(BOARD, SEED, one_page(entries(1)))
    assert (await redis_store.list(BOARD, "", limit=9)).entries == tuple(entries(1))
    assert await redis.hget(meta, "seed") is None
    assert await redis.exists(log, expiry, leases) == 3


async def test_an_answer_of_the_last_step_that_was_lost_is_no_failure(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Scripts.make

    async def twice(scripts: Scripts, board: str, arguments: Sequence[Any]) -> bytes:
        await make(scripts, board, arguments)
        return await make(scripts, board, arguments)

    monkeypatch.setattr(Scripts, "make", twice)
    head = await redis_store.seed(BOARD, SEED, one_page(entries(5)))
    assert (head.revision, head.log_entries) == (10, 1)
