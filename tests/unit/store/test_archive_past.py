"""What looking back costs: it follows what is asked for, not what there is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.core.commit import Delete, Put
from blackboard.store.archive import Point
from blackboard.store.archive_database import Database
from blackboard.store.archive_past import Past, Segment, changed_keys
from blackboard.wire.codec import encode_value
from tests.conformance.archive_suite import Place
from tests.conformance.rules_archive import state_at
from tests.conformance.story import Story


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """An archive with two boards."""
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        yield place


def test_a_segment_of_another_board_shares_all_but_its_records() -> None:
    """`system` is each board's own."""
    assert Segment(1, 5).shares("system/checkpoints/a")
    assert not Segment(1, 5, own=False).shares("system/checkpoints/a")
    assert Segment(1, 5, own=False).shares("public/system/a")


async def test_changes_are_found_by_revision(place: Place) -> None:
    """Not by going through all keys: SQLite says which index it takes."""
    archive = await place.open()
    await Story().archive_into(archive, "main")
    plan = await place.ask(
        "EXPLAIN QUERY PLAN SELECT DISTINCT key FROM version INDEXED BY version_by_revision"
        " WHERE board = 1 AND revision > 1 AND revision <= 3 AND key > '' ORDER BY key LIMIT 9"
    )
    assert "version_by_revision (board=? AND revision>? AND revision<?)" in str(plan)


async def test_a_page_takes_a_step_per_key(place: Place) -> None:
    """A key that was written a thousand times is one key; pages go on after their last key."""
    archive = await place.open()
    story = Story()
    for number in range(300):
        story.tell(Put("public/hot", encode_value(number)), Put(f"public/k{number}", b"\x01"))
    await story.archive_into(archive, "main", page=100)
    for revision in (1, 150, 300):
        assert await state_at(archive, Point("main", revision)) == story.held[revision]


async def test_keys_that_are_alike_again_stay_in_the_database(place: Place) -> None:
    """What a restore looks at does not grow with the restores before it."""
    archive = await place.open()
    one, two = encode_value(1), encode_value(2)
    story = Story()
    target = story.tell(*(Put(f"public/k{number}", one) for number in range(9)))
    story.tell(*(Put(f"public/k{number}", two) for number in range(9)), Put("public/new", one))
    story.tell(*(Put(f"public/k{number}", one) for number in range(8)), Delete("public/new"))
    await story.archive_into(archive, "main")
    database = await Database.open(place.url)
    try:
        async with database.reading() as connection:
            then, middle, now = [
                await Past.at(database, connection, Point("main", revision))
                for revision in (target, target + 1, target + 2)
            ]
            assert [keys async for keys in changed_keys(then, now, None)] == [["public/k8"]]
            [changed] = [keys async for keys in changed_keys(then, middle, None)]
            assert len(changed) == 10
    finally:
        await database.aclose()
