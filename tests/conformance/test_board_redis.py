"""The Board of the service in this process, over real Redis and Valkey."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis

from blackboard.archive.sql import archive_beside
from blackboard.engines.redis.store import RedisStore
from blackboard.limits import Limits
from blackboard.server.service import Service
from tests.conformance.board_suite import ClientRules, EngineRules, ServiceRules
from tests.conformance.shared import Running, Services, in_this_process
from tests.lowered import PATIENT
from tests.redis_accounts import make_account
from tests.redis_process import RedisProcess


@pytest.fixture(scope="module")
async def services(
    redis_server: RedisProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Services]:
    """In this process; the engine is in another."""

    @asynccontextmanager
    async def over_redis(directory: Path, limits: Limits) -> AsyncIterator[Running]:
        """A service over the emptied server, as an account that may do what is needed only."""
        with Redis.from_url(redis_server.url) as client:
            client.flushall()
        store = RedisStore.connect(make_account(redis_server.url), limits=PATIENT)
        archive = await archive_beside(directory)
        async with Service(store, archive=archive, limits=limits) as service:
            yield in_this_process(service)

    async with Services(tmp_path_factory, over_redis) as services:
        yield services


class TestBoardRedis(EngineRules):
    """What the engine has a part in."""


class TestServiceOnRedis(ServiceRules):
    """What the service makes of that."""


class TestClientsOnRedis(ClientRules):
    """What clients make of that."""
