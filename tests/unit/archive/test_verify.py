"""Verifying a log that is longer than a page of it."""

from pathlib import Path

from blackboard.core.checkpoints import Point
from blackboard.core.commit import Put
from blackboard.wire.codec import encode_value
from tests.conformance.archive_suite import Place
from tests.conformance.story import Story


async def test_each_page_goes_on_from_the_one_before(tmp_path: Path) -> None:
    """Nothing is found in 600 revisions, and one change in each page is."""
    story = Story()
    for number in range(600):
        story.tell(Put(f"public/k{number % 40}", encode_value(number)))
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        archive = await place.open()
        await story.archive_into(archive, "main", page=200)
        at = Point("main", 600)
        assert [finding async for finding in archive.verify(at)] == []
        await place.change("UPDATE commit_log SET note = 'x' WHERE revision IN (10, 300, 590)")
        found = [finding async for finding in archive.verify(at)]
    broken = "is not what was archived: the hash chain breaks"
    assert found == [f"revision {number} {broken}" for number in (10, 300, 590)]
