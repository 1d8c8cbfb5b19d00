"""What the archive costs in bytes and time."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.core.commit import Append
from blackboard.wire.codec import encode_value
from tests.conformance.archive_suite import Place
from tests.conformance.story import Story

STEPS = 800
STEP_BYTES = 1024


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
