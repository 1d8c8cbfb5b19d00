"""Fixtures that several packages' tests share: stores, an open board, a service on a port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.new import create
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server import feed
from blackboard.server.security import revocations
from blackboard.server.service import Service
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
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """A new board."""
    path = tmp_path / "board.db"
    create(path, NAME, EPOCH, 0)
    found = Opened(path)
    yield found
    found.gate.open.set()
    found.reading.open.set()
    await found.board.aclose()


@pytest.fixture
def no_marks_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches tell where they are when they are asked, not also every few seconds: what comes next
    on a connection does not depend on how fast the machine is. Nobody misses them."""
    monkeypatch.setattr(feed, "PROGRESS_INTERVAL_MS", 3_600_000)
    monkeypatch.setattr(revocations, "ACCESS_STALE_MS", 3_600_000)


@pytest.fixture
async def service(tmp_path: Path, limits: Limits) -> AsyncIterator[Service]:
    """A service over an empty directory."""
    async with Service(await SqliteStore.at(tmp_path / "boards"), limits=limits) as service:
        yield service


@pytest.fixture
async def served(service: Service, no_marks_by_the_clock: None) -> AsyncIterator[Served]:
    """The service on a port."""
    async with serving(service) as served:
        yield served
