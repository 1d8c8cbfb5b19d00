"""The Board of the service in this process, over the embedded engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.service import Service
from tests.conformance.board_suite import BoardSuite
from tests.conformance.shared import Running, Services, in_this_process


@asynccontextmanager
async def embedded(directory: Path, limits: Limits) -> AsyncIterator[Running]:
    """A service over an empty directory."""
    store = await SqliteStore.at(directory)
    archive = await archive_beside(directory, limits, store)
    async with Service(store, archive=archive, limits=limits) as service:
        yield in_this_process(service)


@pytest.fixture(scope="module")
async def services(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]:
    """In this process."""
    async with Services(tmp_path_factory, embedded) as services:
        yield services


class TestBoardEmbedded(BoardSuite):
    """No socket between."""
