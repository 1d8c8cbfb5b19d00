"""A service on a port, new for each test that asks for one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.service.service import Service
from blackboard.store.sqlite import SqliteStore
from tests.serving import Served, serving


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service over an empty directory."""
    async with Service(await SqliteStore.at(tmp_path / "boards")) as service:
        yield service


@pytest.fixture
async def served(service: Service) -> AsyncIterator[Served]:
    """The service on a port."""
    async with serving(service) as served:
        yield served
