"""Four claimers at once, over and over: exactly one gets each entry. BLACKBOARD_CLAIM_ROUNDS=1000
makes it long."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import NothingToClaim
from blackboard.server.service import Service

ROUNDS = int(os.environ.get("BLACKBOARD_CLAIM_ROUNDS", "250"))
CLAIMERS = 4
ROUND_S = 30.0
BOARD = "claims"


@asynccontextmanager
async def claimers_on(*stores: Store) -> AsyncIterator[list[Board]]:
    """Claimers, each a client of its own, shared out among services of these stores."""
    services = [Service(store) for store in stores]
    for service in services:
        await service.__aenter__()
    try:
        yield [
            Client(services[number % len(services)].link(access.operator())).board(BOARD)
            for number in range(CLAIMERS)
        ]
    finally:
        for service in services:
            await service.__aexit__(None, None, None)


async def one_round(boards: list[Board], number: int) -> None:
    """Put one task; all claim it; the winner keeps it until all have an answer."""
    await boards[0].put(f"public/tasks/{number:06d}", number)
    answered = asyncio.Barrier(CLAIMERS)
    winners: list[int] = []

    async def claim(board: Board) -> None:
        try:
            async with board.claim("public/tasks/*", timeout_ms=0) as task:
                winners.append(task.value)
                await answered.wait()
        except NothingToClaim:
            await answered.wait()

    async with asyncio.timeout(ROUND_S), asyncio.TaskGroup() as tasks:
        for board in boards:
            tasks.create_task(claim(board))
    assert winners == [number]


async def play(boards: list[Board], seed: int) -> None:
    """All rounds, in which the claimers come in another order each time; nothing is left over."""
    dice = random.Random(seed)
    for number in range(ROUNDS):
        await one_round(dice.sample(boards, len(boards)), number)
    assert (await boards[0].list("public/**")).entries == ()
    assert await boards[0].leases() == ()


async def test_one_claimer_of_four_gets_each_entry_on_the_embedded_engine(
    tmp_path: Path, seed: int
) -> None:
    async with claimers_on(await SqliteStore.at(tmp_path)) as boards:
        await play(boards, seed)


async def test_one_claimer_of_four_gets_each_entry_on_redis(redis_url: str, seed: int) -> None:
    """Two services share the server, so that the claimers meet in the engine only."""
    stores = RedisStore.connect(redis_url), RedisStore.connect(redis_url)
    async with claimers_on(*stores) as boards:
        await play(boards, seed)
