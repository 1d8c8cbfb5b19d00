"""The Board of the service in this process, over real Redis and Valkey."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.client.client import Client
from blackboard.core.access import Principal
from blackboard.engines.redis.store import RedisStore
from blackboard.limits import Limits
from blackboard.server.assembly import archive_beside
from blackboard.server.service import Service
from tests.conformance.board_suite import ClientRules, EngineRules, ServiceRules
from tests.conformance.team import Team


@pytest.fixture
async def team(account_url: str, tmp_path: Path, limits: Limits) -> AsyncIterator[Team]:
    """A service over the shared server, as an account that may do what is needed only.

    The service is in this process, the engine in another; an archive is beside the service.
    """
    archive = await archive_beside(tmp_path)
    store = RedisStore.connect(account_url)
    async with Service(store, archive=archive, limits=limits) as service:

        async def connect(principal: Principal) -> Client:
            return Client(service.link(principal))

        yield Team(service, connect)


class TestBoardRedis(EngineRules):
    """What the engine has a part in."""


class TestServiceOnRedis(ServiceRules):
    """What the service makes of that."""


class TestClientsOnRedis(ClientRules):
    """What clients make of that."""
