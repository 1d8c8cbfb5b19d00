"""The JavaScript client, over a real WebSocket: the same rules as for the Python one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis

from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from tests.conformance.js.process import needs_node
from tests.conformance.js.suite import JavaScriptRules, from_node
from tests.conformance.shared import Running, Services
from tests.lowered import PATIENT
from tests.redis_accounts import make_account
from tests.redis_process import RedisProcess

pytestmark = needs_node


class TestBoardJavaScript(JavaScriptRules):
    """On the embedded engine."""

    @pytest.fixture(scope="class")
    async def services(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]:
        """Behind a socket, with a Node process each."""

        @asynccontextmanager
        async def over_sqlite(directory: Path, limits: Limits) -> AsyncIterator[Running]:
            store = await SqliteStore.at(directory)
            async with from_node(store, directory, limits) as running:
                yield running

        async with Services(tmp_path_factory, over_sqlite) as services:
            yield services


class TestBoardJavaScriptRedis(JavaScriptRules):
    """On real Redis and Valkey."""

    @pytest.fixture(scope="class")
    async def services(
        self, redis_server: RedisProcess, tmp_path_factory: pytest.TempPathFactory
    ) -> AsyncIterator[Services]:
        """As there."""

        @asynccontextmanager
        async def over_redis(directory: Path, limits: Limits) -> AsyncIterator[Running]:
            with Redis.from_url(redis_server.url) as client:
                client.flushall()
            store = RedisStore.connect(make_account(redis_server.url), limits=PATIENT)
            async with from_node(store, directory, limits) as running:
                yield running

        async with Services(tmp_path_factory, over_redis) as services:
            yield services
