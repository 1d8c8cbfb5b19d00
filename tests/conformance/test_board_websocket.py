"""The Board of a client, over a real WebSocket to a real server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import blackboard
from blackboard.client.client import Client
from blackboard.core.access import Principal
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.assembly import archive_beside
from blackboard.server.service import Service
from tests.conformance.board_suite import BoardSuite
from tests.conformance.edge import serving
from tests.conformance.team import Team


class TestBoardWebSocket(BoardSuite):
    """Each principal has a connection and a token of its own."""

    @pytest.fixture
    async def team(self, tmp_path: Path, limits: Limits) -> AsyncIterator[Team]:
        """A service over an empty directory, and a socket before it."""
        store, archive = await SqliteStore.at(tmp_path), await archive_beside(tmp_path)
        async with (
            Service(store, archive=archive, limits=limits) as service,
            serving(service) as edge,
            AsyncExitStack() as clients,
        ):

            async def connect(principal: Principal) -> Client:
                token = edge.token(principal)
                opening = blackboard.connect(edge.url, token=token, limits=limits)
                return await clients.enter_async_context(opening)

            yield Team(service, connect)
