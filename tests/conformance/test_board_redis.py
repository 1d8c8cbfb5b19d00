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
from tests.conformance.board_suite import BoardSuite
from tests.conformance.team import Team


class TestBoardRedis(BoardSuite):
    """The service is here, the engine is another process, which lets it do what is needed only."""

    @pytest.fixture
    async def team(self, account_url: str, tmp_path: Path, limits: Limits) -> AsyncIterator[Team]:
        """A service over the shared server, and an archive beside it."""
        archive = await archive_beside(tmp_path)
        async with Service(
            RedisStore.connect(account_url), archive=archive, limits=limits
        ) as service:

            async def connect(principal: Principal) -> Client:
                return Client(service.link(principal))

            yield Team(service, connect)
