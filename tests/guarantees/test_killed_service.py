"""50 changes, kill -9, 50 during the restart, 10 more: a watcher has 110 of 110, none twice.

The same for the kill of the service, of its Redis, and of both. The watch stays open all the time;
another one begins later at a token from before the kill.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from blackboard.client.board import Board
from blackboard.client.watch import Watch
from tests.guarantees.processes import ServiceProcess
from tests.redis_process import RedisProcess

PATIENCE_S = 60.0
BEFORE, DURING, AFTER = 50, 50, 10
TAKEN_BEFORE = 20
ALL = BEFORE + DURING + AFTER
KEY = "public/n"
Action = Callable[[], Coroutine[Any, Any, None]]


async def increment(board: Board, count: int) -> None:
    """Change the key `count` times, one after the other; each is acknowledged."""
    for _ in range(count):
        await board.increment(KEY)


async def values(watch: Watch, count: int) -> list[int]:
    """The next `count` values of the key; beginnings of epochs are passed over."""
    found: list[int] = []
    with anyio.fail_after(PATIENCE_S):
        while len(found) < count:
            found += [change.value for change in (await anext(watch)).changes]
    return found


async def acceptance(service: ServiceProcess, kill: Action, start: Action) -> None:
    """The whole story."""
    async with service.connect() as writing, service.connect() as watching:
        board = writing.board("main")
        async with watching.board("main").watch(KEY, after=0) as watch:
            await increment(board, BEFORE)
            seen = await values(watch, TAKEN_BEFORE)
            token = watch.position
            await kill()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(increment, board, DURING)
                tasks.start_soon(start)
            await increment(board, AFTER)
            seen += await values(watch, ALL - TAKEN_BEFORE)
        assert seen == list(range(1, ALL + 1))
        assert await board.get(KEY) == ALL
    async with service.connect() as fresh, fresh.board("main").watch(KEY, after=token) as resumed:
        assert await values(resumed, ALL - TAKEN_BEFORE) == list(range(TAKEN_BEFORE + 1, ALL + 1))


@asynccontextmanager
async def over_redis(
    path: Path, binary: Path
) -> AsyncIterator[tuple[ServiceProcess, RedisProcess]]:
    """A service process over a Redis of its own."""
    async with RedisProcess(binary) as redis, ServiceProcess(redis.url, path) as service:
        yield service, redis


async def test_a_watcher_survives_the_kill_of_the_embedded_service(tmp_path: Path) -> None:
    async with ServiceProcess("sqlite", tmp_path) as service:
        await acceptance(service, service.kill, service.start)


async def test_a_watcher_survives_the_kill_of_a_service_over_redis(
    tmp_path: Path, redis_binary: Path
) -> None:
    async with over_redis(tmp_path, redis_binary) as (service, _):
        await acceptance(service, service.kill, service.start)


async def test_a_watcher_survives_the_kill_of_redis(tmp_path: Path, redis_binary: Path) -> None:
    async with over_redis(tmp_path, redis_binary) as (service, redis):
        await acceptance(service, redis.kill, redis.restart)


async def test_a_watcher_survives_the_kill_of_both(tmp_path: Path, redis_binary: Path) -> None:
    async with over_redis(tmp_path, redis_binary) as (service, redis):

        async def kill() -> None:
            await redis.kill()
            await service.kill()

        async def start() -> None:
            await redis.restart()
            await service.start()

        await acceptance(service, kill, start)
