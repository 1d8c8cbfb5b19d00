"""The Board of a service that seals what is private, over the embedded engine and its archive."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.service.access import Principal
from blackboard.service.board import Client
from blackboard.service.embedded import archive_beside
from blackboard.service.encryption import sealed
from blackboard.service.service import Service
from blackboard.store.master_key import LocalWrapper, new_master_key
from blackboard.store.sqlite import SqliteStore
from tests.conformance.board_suite import BoardSuite
from tests.conformance.team import Team


class TestBoardSealed(BoardSuite):
    """Nobody who uses a board notices."""

    @pytest.fixture
    async def team(self, tmp_path: Path) -> AsyncIterator[Team]:
        """A service over an empty directory."""
        wrapper = LocalWrapper.of(new_master_key())
        raw, beside = await SqliteStore.at(tmp_path, "memory"), await archive_beside(tmp_path)
        store, archive = await sealed(raw, beside, wrapper)
        async with Service(store, archive=archive) as service:

            async def connect(principal: Principal) -> Client:
                return Client(service.link(principal))

            yield Team(service, connect)
