"""The suite over one server and over a three-node cluster, Redis and Valkey."""

from collections.abc import AsyncIterator

import pytest

from blackboard.engines.redis.store import RedisStore
from tests.conformance.rules_access import AccessRules
from tests.conformance.store_suite import StoreSuite
from tests.lowered import PATIENT
from tests.servers import RedisCluster3


class TestRedisStore(AccessRules, StoreSuite):
    """One server, its append-only file synced at every commit."""

    @pytest.fixture
    async def store(self, account_url: str) -> AsyncIterator[RedisStore]:
        """A store over the shared server, with an account that may do what is needed only."""
        store = RedisStore.connect(account_url, limits=PATIENT)
        yield store
        await store.aclose()


class TestRedisClusterStore(AccessRules, StoreSuite):
    """Three primaries; boards lie on all of them."""

    @pytest.fixture
    async def store(self, redis_cluster: RedisCluster3) -> AsyncIterator[RedisStore]:
        """A store over the shared cluster."""
        store = RedisStore.connect(
            redis_cluster.url.replace("redis://", "redis+cluster://"), limits=PATIENT
        )
        yield store
        await store.aclose()
