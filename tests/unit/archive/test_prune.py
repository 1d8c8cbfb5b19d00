"""Pruning lets go of blobs, too."""

from pathlib import Path

from blackboard.core.commit import Put
from blackboard.limits import BLOB_BYTES
from blackboard.wire.codec import encode_value
from tests.conformance.archive_suite import Place
from tests.conformance.story import Story
from tests.lowered import lowered


def large(number: int) -> bytes:
    """A value for the object store."""
    return encode_value(bytes([number]) * (BLOB_BYTES + 1))


async def test_blobs_that_nothing_names_go_a_while_later(tmp_path: Path) -> None:
    """One that another key or another board names stays; and so does a young one."""
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        archive = await place.open()
        story, other = Story(), Story()
        for number in range(4):
            story.tell(Put("public/a", large(number)))
        story.tell(Put("public/b", large(1)))
        other.tell(Put("public/c", large(2)))
        await story.archive_into(archive, "main")
        await other.archive_into(archive, "other")

        def count() -> int:
            return sum(path.is_file() for path in place.blobs.rglob("*"))

        assert count() == 4
        assert await archive.prune("main", [], 4) == 3
        assert count() == 4, "they are young"
        story.tell(Put("public/a", b"\x01"))
        await story.archive_into(archive, "main")
        hasty = await place.open(limits=lowered(blob_grace_ms=0))
        assert await hasty.prune("main", [], 6) == 1
        assert count() == 3
