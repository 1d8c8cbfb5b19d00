"""The embedded engine keeps every promise of the port, at its level "disk"."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.engines.base import Store
from blackboard.engines.sqlite.store import SqliteStore
from tests.conformance.store_suite import StoreSuite


class TestSqliteStore(StoreSuite):
    """The default."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        """An embedded engine over an empty directory."""
        opened = await SqliteStore.at(tmp_path)
        yield opened
        await opened.aclose()
