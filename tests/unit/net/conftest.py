"""A service on a port, new for each test that asks for one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.service import feed, revocations
from blackboard.service.service import Service
from blackboard.store.sqlite import SqliteStore
from tests.serving import Served, serving


@pytest.fixture(autouse=True)
def no_marks_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches tell where they are when they are asked, not also every few seconds: what comes next
    on a connection does not depend on how fast the machine is. Nobody misses them."""
    monkeypatch.setattr(feed, "PROGRESS_INTERVAL_MS", 3_600_000)
    monkeypatch.setattr(revocations, "ACCESS_STALE_MS", 3_600_000)


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
