"""The archive in PostgreSQL keeps every promise of the port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.archive_suite import ArchiveSuite, Place
from tests.postgres import Postgres


class TestPostgresArchive(ArchiveSuite):
    """A database of a real server, and a directory."""

    @pytest.fixture
    async def place(self, postgres: Postgres, tmp_path: Path) -> AsyncIterator[Place]:
        """An empty database."""
        async with Place(await postgres.empty(), tmp_path / "blobs") as place:
            yield place
