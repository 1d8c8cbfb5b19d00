"""Pruning lets go of blobs, too."""

import secrets
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from blackboard.core.checkpoints import Point, PrunedRows
from blackboard.core.commit import Put
from blackboard.errors import Unavailable
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
        dry = await archive.prune("main", [], 4, dry_run=True)
        assert dry == PrunedRows(3, size_of_blobs(place.blobs) // 4)
        assert [await archive.prune("main", [], 4) for _ in range(2)] == [dry, PrunedRows()]
        assert count() == 4, "they are young"
        story.tell(Put("public/a", b"\x01"))
        await story.archive_into(archive, "main")
        hasty = await place.open(limits=lowered(blob_grace_ms=0))
        assert (await hasty.prune("main", [], 6)).versions == 1
        assert count() == 2, "one is needed by another key, one by another board"


async def test_a_blob_that_could_not_be_removed_goes_later(tmp_path: Path) -> None:
    """So does one whose process was killed before."""
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        archive = await place.open(limits=lowered(blob_grace_ms=0))
        story = Story()
        story.tell(Put("public/a", large(0)))
        story.tell(Put("public/a", b"\x01"))
        await story.archive_into(archive, "main")
        held = [path for path in place.blobs.rglob("*") if path.is_file()]
        folder = held[0].parent
        folder.rename(tmp_path / "away")
        folder.write_bytes(b"no directory")
        with pytest.raises(Unavailable):
            await archive.prune("main", [], 2)
        folder.unlink()
        (tmp_path / "away").rename(folder)
        later = await place.open(limits=lowered(blob_grace_ms=0))
        await later.sweep()
        assert [path for path in place.blobs.rglob("*") if path.is_file()] == []
        assert await place.ask("SELECT * FROM board WHERE name IS NULL") == []


@pytest.mark.parametrize("way", ["prune", "remove"])
async def test_a_large_value_that_is_written_again_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """By another process, on another board, when the archive knows already which blobs may go."""
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        archive, writer = [await place.open(limits=lowered(blob_grace_ms=0)) for _ in range(2)]
        story, again = Story(), Story()
        story.tell(Put("public/a", large(0)))
        story.tell(Put("public/a", b"\x01"))
        await story.archive_into(archive, "main")
        again.tell(Put("public/z", large(0)))
        found = archive._blobs._found

        async def and_write(names: Iterable[bytes]) -> AsyncIterator[Any]:
            for each in [each async for each in found(names)]:
                if await writer.mark("other") is None:
                    await again.archive_into(writer, "other")
                yield each

        monkeypatch.setattr(archive._blobs, "_found", and_write)
        if way == "prune":
            assert (await archive.prune("main", [], 2)).versions == 1
        else:
            await archive.remove("main")
            await archive.sweep()
        [entry] = (await writer.read(Point("other", 1), ["public/z"])).entries
        assert entry.value == large(0)
        assert [finding async for finding in writer.verify(Point("other", 1))] == []


async def test_a_file_gives_its_room_back(tmp_path: Path) -> None:
    """The archive goes on in it."""
    file = tmp_path / "archive.db"
    async with Place(f"sqlite:///{file}", tmp_path / "blobs") as place:
        archive = await place.open()
        story = Story()
        for _ in range(60):
            story.tell(Put("public/a", encode_value(secrets.token_bytes(40_000))))
        await story.archive_into(archive, "main")
        await archive.settle("main")
        before = size_of(file)
        assert (await archive.prune("main", [], 50)).versions == 49
        assert size_of(file) < before / 2
        story.tell(Put("public/a", b"\x01"))
        await story.archive_into(archive, "main")
        assert [found async for found in archive.verify(Point("main", 61))] == []


def size_of_blobs(folder: Path) -> int:
    """The bytes of the files in a folder of blobs."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def size_of(file: Path) -> int:
    """What a database takes, according to the file system, with its journal."""
    files = [path for path in file.parent.glob(f"{file.name}*") if path.is_file()]
    return sum(path.stat().st_blocks * 512 for path in files)
