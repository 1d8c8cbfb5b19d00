"""What the archive costs in bytes and time, and whose leases it heeds when it is opened."""

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from blackboard.core.commit import Append
from blackboard.wire.codec import encode_value
from tests.conformance.archive_suite import Place
from tests.conformance.story import Story

STEPS = 800
STEP_BYTES = 1024
HOUR_MS = 3_600_000


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """An empty archive."""
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        yield place


def told(*, checkpoints: bool) -> Story:
    """An append of a kilobyte that cannot be compressed at each step."""
    story = Story()
    for number in range(STEPS):
        story.tell(Append("public/steps", encode_value(story.dice.randbytes(STEP_BYTES))))
        if checkpoints:
            story.checkpoint(f"step-{number}")
        story.held.clear()
    return story


def bytes_below(directory: Path) -> int:
    """The sizes of all files."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def test_bytes_grow_with_what_was_written(place: Place, tmp_path: Path) -> None:
    """At most twice the input, with everything that is stored beside it."""
    archive = await place.open()
    await told(checkpoints=False).archive_into(archive, "main", page=50)
    await archive.aclose()
    stored = bytes_below(tmp_path)
    assert stored <= 2 * STEPS * STEP_BYTES, f"{stored / STEPS / STEP_BYTES:.2f}"


async def test_many_checkpoints_are_listed_at_once(place: Place, tmp_path: Path) -> None:
    """800 with their manifests in 0.3 s of work; each costs less than a kilobyte of its own."""
    archive = await place.open()
    await told(checkpoints=True).archive_into(archive, "main", page=50)
    start = time.process_time()  # what others do on this machine does not count
    stored = await archive.checkpoints("main")
    assert time.process_time() - start < 0.3
    assert len({each.name for each in stored}) == STEPS
    await archive.aclose()
    size = bytes_below(tmp_path)
    assert size <= 2.65 * STEPS * STEP_BYTES, f"{size / STEPS / STEP_BYTES:.2f}"


async def test_a_lease_is_heeded_while_anybody_has_the_file_open(place: Place) -> None:
    """Its holder may be alive: opening the file once more does not end it."""
    holder, beside = await place.open(), await place.open()
    assert await holder.take("main", "holder", HOUR_MS) == 1
    assert await (await place.open()).take("main", "next", HOUR_MS) is None
    await holder.aclose()
    assert await beside.take("main", "next", HOUR_MS) is None


async def test_a_file_that_nobody_has_open_has_no_leases(place: Place, tmp_path: Path) -> None:
    """The fence goes on; the time at which a board was removed, in the same column, stays."""
    killed = await place.open()
    assert await killed.take("main", "killed", HOUR_MS) == 1
    assert await killed.take("old", "killed", HOUR_MS) == 1
    await killed.aclose()
    with closing(sqlite3.connect(tmp_path / "archive.db")) as database:
        database.execute(
            "UPDATE board SET name = NULL, owner = '~removed', until_ms = 77 WHERE name = 'old'"
        )
        database.commit()
    archive = await place.open()
    with closing(sqlite3.connect(tmp_path / "archive.db")) as database:
        until = dict(database.execute("SELECT owner, until_ms FROM board"))
    assert until == {"killed": 0, "~removed": 77}
    assert await archive.take("main", "next", HOUR_MS) == 2
