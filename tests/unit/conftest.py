"""Fixtures that several packages' tests share: stores, an open board, a service on a port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.new import create
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.service import Service
from tests.lowered import NO_MARKS_BY_THE_CLOCK, marked
from tests.serving import Served, serving
from tests.unit.core.trial import EPOCH
from tests.unit.engines.sqlite.opened import NAME, Opened


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
async def opened(tmp_path: Path, limits: Limits) -> AsyncIterator[Opened]:
    """A new board."""
    path = tmp_path / "board.db"
    create(path, NAME, EPOCH, 0)
    found = Opened(path, limits)
    yield found
    found.gate.open.set()
    found.reading.open.set()
    await found.board.aclose()


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> Limits:
    """The limits of what the test opens: `NO_MARKS_BY_THE_CLOCK`, but for those that its marks
    `limits` name."""
    return marked(request.node, NO_MARKS_BY_THE_CLOCK)


@pytest.fixture
async def service(tmp_path: Path, limits: Limits) -> AsyncIterator[Service]:
    """A service over an empty directory."""
    async with Service(await SqliteStore.at(tmp_path / "boards"), limits=limits) as service:
        yield service


@pytest.fixture
async def served(service: Service) -> AsyncIterator[Served]:
    """The service on a port."""
    async with serving(service) as served:
        yield served
