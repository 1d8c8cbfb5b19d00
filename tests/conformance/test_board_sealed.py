"""The Board of a service that seals every value, over the embedded engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.service.access import Principal
from blackboard.service.board import Client
from blackboard.service.service import Service
from blackboard.store.sqlite import SqliteStore
from tests.conformance.board_suite import BoardSuite
from tests.conformance.team import Team
from tests.conformance.test_store_sealed import sealing


class TestBoardSealed(BoardSuite):
    """Nobody who uses a board notices."""

    @pytest.fixture
    async def team(self, tmp_path: Path) -> AsyncIterator[Team]:
        """A service over an empty directory."""
        async with Service(sealing(await SqliteStore.at(tmp_path, "memory"))) as service:

            async def connect(principal: Principal) -> Client:
                return Client(service.link(principal))

            yield Team(service, connect)
