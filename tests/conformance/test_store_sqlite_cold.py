"""The embedded engine keeps every promise of the port, whatever of a board is in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.engines.base import Store
from tests.conformance.cold import ColdStore, following
from tests.conformance.store_suite import StoreSuite


class TestColdSqliteStore(StoreSuite):
    """Each call finds its boards without their entries."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        """An embedded engine over an empty directory."""
        with following():
            opened = await ColdStore.cold(tmp_path)
            yield opened
            await opened.aclose()
