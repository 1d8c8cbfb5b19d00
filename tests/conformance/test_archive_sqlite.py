"""The archive in SQLite keeps every promise of the port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.archive.base import Archive
from blackboard.core.checkpoints import Point
from blackboard.core.commit import Put
from blackboard.wire.codec import encode_value
from tests.conformance.archive_suite import ArchiveSuite, Place
from tests.conformance.rules_archive import BOARD
from tests.conformance.story import Story


class TestSqliteArchive(ArchiveSuite):
    """A file and a directory."""

    @pytest.fixture
    async def place(self, tmp_path: Path) -> AsyncIterator[Place]:
        """An empty file."""
        async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
            yield place

    @pytest.mark.parametrize(
        ("table", "column"),
        [
            ("version", "key"),
            ("version", "author"),
            ("commit_log", "agent"),
            ("commit_log", "incarnation"),
            ("commit_log", "note"),
        ],
    )
    async def test_damaged_text_is_found_as_any_damage(
        self, archive: Archive, place: Place, table: str, column: str
    ) -> None:
        """A flipped bit makes bytes of it that are no text."""
        story = Story()
        for value in range(3):
            story.tell(Put("public/a", encode_value(value)), note="why")
        await story.archive_into(archive, BOARD)
        damage = f"UPDATE {table} SET {column} = CAST(x'7075e1' AS TEXT) WHERE revision = 2"
        assert await place.change(damage)
        found = [finding async for finding in archive.verify(Point(BOARD, 3))]
        assert any(finding.startswith("revision 2") for finding in found)
        assert (await archive.log(BOARD, 2, until=3, limit=9)) == story.log[2:]
