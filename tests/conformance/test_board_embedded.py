"""The Board of the service in this process, over the embedded engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.client.client import Client
from blackboard.core.access import Principal
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.assembly import archive_beside
from blackboard.server.service import Service
from tests.conformance.board_suite import BoardSuite
from tests.conformance.team import Team


class TestBoardEmbedded(BoardSuite):
    """No socket between."""

    @pytest.fixture
    async def team(self, tmp_path: Path, limits: Limits) -> AsyncIterator[Team]:
        """A service over an empty directory."""
        store, archive = await SqliteStore.at(tmp_path), await archive_beside(tmp_path)
        async with Service(store, archive=archive, limits=limits) as service:

            async def connect(principal: Principal) -> Client:
                return Client(service.link(principal))

            yield Team(service, connect)
