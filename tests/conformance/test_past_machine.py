"""The machine of the past over every engine: BLACKBOARD_PAST_EXAMPLES=500 makes it long."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

import blackboard
from blackboard import Client
from blackboard.archive.sql import archive_beside
from blackboard.core import access
from blackboard.engines.redis.store import RedisStore
from blackboard.server.service import Service
from tests.conformance.past_machine import EXAMPLES, FEW, run_past_machine
from tests.lowered import PATIENT
from tests.tiers import few_or_many


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.mark.timeout(0)
@few_or_many(FEW, EXAMPLES)
def test_the_embedded_engine_keeps_its_past(
    portal: BlockingPortal, tmp_path: Path, seed: int, rounds: int
) -> None:
    """Every answer about a revision stays true, and every kind came up."""
    opened = blackboard.open(tmp_path, level="memory")
    with portal.wrap_async_context_manager(opened) as client:
        kinds = run_past_machine(portal, client, seed, rounds)
    assert kinds.missing() == [], kinds.seen


@asynccontextmanager
async def over_redis(url: str, directory: Path) -> AsyncIterator[Client]:
    """A service over Redis, with an archive."""
    archive = await archive_beside(directory)
    async with Service(RedisStore.connect(url, limits=PATIENT), archive=archive) as service:
        yield Client(service.link(access.operator()))


@pytest.mark.timeout(0)
@few_or_many(FEW, EXAMPLES)
def test_redis_keeps_its_past(
    portal: BlockingPortal, redis_url: str, tmp_path: Path, seed: int, rounds: int
) -> None:
    """The same rules, engine and all."""
    opened = over_redis(redis_url, tmp_path)
    with portal.wrap_async_context_manager(opened) as client:
        kinds = run_past_machine(portal, client, seed, rounds)
    assert kinds.missing() == [], kinds.seen
