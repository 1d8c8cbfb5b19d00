"""The Board of a client, over a real WebSocket to a real server."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

import blackboard
from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.core.access import Principal
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.service import Service
from tests.conformance.board_suite import BoardSuite
from tests.conformance.edge import serving
from tests.conformance.shared import Running, Services


@asynccontextmanager
async def over_websocket(directory: Path, limits: Limits) -> AsyncIterator[Running]:
    """A service over an empty directory, and a socket before it.

    Each principal has a connection and a token of its own.
    """
    store = await SqliteStore.at(directory)
    archive = await archive_beside(directory, limits, store)
    async with (
        Service(store, archive=archive, limits=limits) as service,
        serving(service) as edge,
    ):

        def connect(principal: Principal) -> AbstractAsyncContextManager[Client]:
            return blackboard.connect(edge.url, token=edge.token(principal), limits=limits)

        yield Running(service, connect)


@pytest.fixture(scope="module")
async def services(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]:
    """Behind a socket."""
    async with Services(tmp_path_factory, over_websocket) as services:
        yield services


class TestBoardWebSocket(BoardSuite):
    """All that a client asks goes over the socket."""
