"""The archive in SQLite keeps every promise of the port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.archive_suite import ArchiveSuite, Place


class TestSqliteArchive(ArchiveSuite):
    """A file and a directory."""

    @pytest.fixture
    async def place(self, tmp_path: Path) -> AsyncIterator[Place]:
        """An empty file."""
        async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
            yield place
