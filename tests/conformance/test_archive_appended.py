"""The archive whose pages a process of its own writes keeps the promises about writing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.archive.base import Archive
from tests.appended import AppendedPlace
from tests.conformance.archive_suite import Place
from tests.conformance.rules_archive_redact import RedactRules
from tests.conformance.rules_archive_write import WritingRules


class TestAppendedArchive(WritingRules, RedactRules):
    """A file, and a process."""

    @pytest.fixture
    async def place(self, tmp_path: Path) -> AsyncIterator[Place]:
        """An empty file."""
        async with AppendedPlace(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
            yield place

    @pytest.fixture
    async def archive(self, place: Place) -> Archive:
        """The archive, opened."""
        return await place.open()
