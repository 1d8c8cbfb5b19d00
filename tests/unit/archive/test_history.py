"""What looking back costs: it follows what is asked for, not what there is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import event

from blackboard.archive import history as archive_past
from blackboard.archive.database import Database
from blackboard.archive.history import ArchivedHistory, Segment, changed_keys
from blackboard.core.checkpoints import Point
from blackboard.core.commit import Delete, Put
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
                await ArchivedHistory.at(database, connection, Point("main", revision))
                for revision in (target, target + 1, target + 2)
            ]
            assert [keys async for keys in changed_keys(then, now)] == [["public/k8"]]
            [changed] = [keys async for keys in changed_keys(then, middle)]
            assert len(changed) == 10
    finally:
        await database.aclose()


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 99])
async def test_names_are_cut_off_before_they_are_compared(
    place: Place, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Nothing is lost where all of a cut are alike again, of a board or of its branch."""
    monkeypatch.setattr(archive_past, "STEP_KEYS", 2)
    archive = await place.open()
    one, two = encode_value(1), encode_value(2)
    story = Story()
    names = [f"public/k{number:02d}" for number in range(20)]
    first = story.tell(*(Put(name, one) for name in names))
    story.tell(*(Put(name, two) for name in names))
    alike = [name for number, name in enumerate(names) if number not in (0, 9, 10, 19)]
    last = story.tell(*(Put(name, one) for name in alike))
    await story.archive_into(archive, "main")
    await archive.branch("other", Point("main", first))
    mine = story.lose(first, jump=1)
    mine.tell(Put(names[9], two), Put("public/k", one), Put("public/z", one))
    await mine.archive_into(archive, "other")
    at_first, at_last = Point("main", first), Point("main", last)
    branch = Point("other", mine.head)
    for one_side, other, expected in (
        (at_first, at_last, [names[0], names[9], names[10], names[19]]),
        (at_first, branch, ["public/k", names[9], "public/z"]),
        (at_last, branch, ["public/k", names[0], names[10], names[19], "public/z"]),
    ):
        found, after = [], None
        while page := await archive.differences(one_side, other, after=after, limit=limit):
            after = page[-1].key
            found += [each.key for each in page]
        assert found == sorted(expected)


async def test_who_wants_many_differences_goes_through_the_changes_once(place: Place) -> None:
    """Once for CHANGED_KEYS of them, and once to see that this is the end."""
    archive = await place.open()
    story = Story()
    target = story.tell(Put("public/first", b"\x01"))
    count = archive_past.CHANGED_KEYS + 1
    for start in range(0, count, 1_000):
        numbers = range(start, min(start + 1_000, count))
        story.tell(*(Put(f"public/k{number}", b"\x01") for number in numbers))
    await story.archive_into(archive, "main")
    passes = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        passes.extend(["WITH changed"] if "version_by_revision" in statement else [])

    event.listen(archive._database._engine.sync_engine, "before_cursor_execute", note)
    points, sizes, after = (Point("main", target), Point("main", story.head)), [], None
    while page := await archive.differences(*points, after=after, limit=count):
        after = page[-1].key
        sizes.append(len(page))
    assert sizes == [count]
    assert len(passes) == 3


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_branch_is_listed_in_order_though_each_board_is_read_in_pieces(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, reverse: bool
) -> None:
    """Of each piece, only what lies before the end of every other one counts."""
    monkeypatch.setattr(archive_past, "STEP_KEYS", 2)
    archive = await place.open()
    one = encode_value(1)
    story = Story()
    first = story.tell(*(Put(f"public/k{number:02d}", one) for number in range(12)))
    await story.archive_into(archive, "main")
    await archive.branch("other", Point("main", first))
    mine = story.lose(first, jump=1)
    mine.tell(*(Put(f"public/k{number:02d}x", one) for number in (0, 1, 2, 3, 10)))
    mine.tell(Delete("public/k05"), Put("public/a", one), Put("public/z", one))
    await mine.archive_into(archive, "other")
    expected = sorted(mine.held[mine.head], reverse=reverse)
    for limit in (1, 3, 99):
        found: list[str] = []
        after = None
        for _ in range(-(-len(expected) // limit)):
            page = await archive.list(
                Point("other", mine.head), "", after=after, limit=limit, reverse=reverse
            )
            found += [entry.key for entry in page.entries]
            after = page.next_key
        assert (found, after) == (expected, None)
