"""Fixtures of the tests of the Redis engine."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from blackboard.store.redis import RedisStore


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
