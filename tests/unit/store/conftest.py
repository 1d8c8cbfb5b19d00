"""Fixtures of the tests of the engines."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from blackboard.store.redis import RedisStore
from blackboard.store.sqlite_new import create
from tests.unit.core.trial import EPOCH
from tests.unit.store.opened import NAME, Opened


@pytest.fixture
async def redis_store(redis_url: str) -> AsyncIterator[RedisStore]:
    """A store over the shared, emptied server."""
    store = RedisStore.connect(redis_url)
    yield store
    await store.aclose()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """What Redis itself says."""
    async with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """A new board."""
    path = tmp_path / "board.db"
    create(path, NAME, EPOCH, 0)
    found = Opened(path)
    yield found
    found.gate.open.set()
    found.reading.open.set()
    await found.board.aclose()
