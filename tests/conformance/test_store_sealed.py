"""A store that seals keeps every promise of the port, with everything sealed, over both engines."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.store.base import Store
from blackboard.store.data_keys import DataKeys
from blackboard.store.master_key import LocalWrapper, new_master_key
from blackboard.store.sealed import SealedStore
from blackboard.store.sqlite import SqliteStore
from tests.conformance.store_suite import StoreSuite


def sealing(raw: Store) -> SealedStore:
    """A store in front of `raw` that seals everything."""
    wrapper = LocalWrapper.of(new_master_key())
    return SealedStore(raw, DataKeys(raw, wrapper), public=True)


class TestSealedSqliteStore(StoreSuite):
    """In front of the embedded engine."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        """A sealing store over an empty directory."""
        opened = sealing(await SqliteStore.at(tmp_path, "memory"))
        yield opened
        await opened.aclose()
