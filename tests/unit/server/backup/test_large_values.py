"""Large values in a backup: a file names them, so it may stand for more than memory holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import blackboard
from blackboard.archive.sql import archive_beside
from blackboard.backup.manifest import BackupManifest
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import backed_up, records_of
from blackboard.backup.replay import Replay
from blackboard.backup.segment import LOG, LogRecord
from blackboard.core.commit import LogEntry
from blackboard.errors import Corrupt
from blackboard.limits import DEFAULT, PAGE_BYTES_MAX
from blackboard.server.backups.once import take_once
from blackboard.server.settings import load
from blackboard.wire.codec import encode_value
from tests.lowered import lowered

BOARD = "main"
LARGE = "x" * 100_000
"""Above BLOB_BYTES."""


async def taken(tmp_path: Path, count: int) -> tuple[BackupPlace, BackupManifest]:
    """A backup of a board to which that many large values were written."""
    settings = load({"data": tmp_path / "data"})
    async with blackboard.open(settings.data) as client:
        for number in range(count):
            await client.board(BOARD).put("public/large", f"{number}{LARGE}")
    # Of a page of the log each: merged, they name more values than a page has.
    await take_once(settings, str(tmp_path / "backup"), lowered(segments_merged=3))
    place = BackupPlace.at(str(tmp_path / "backup"))
    [manifest] = [found async for found in backed_up(place) if found.board == BOARD]
    return place, manifest


def value_bytes(entries: Sequence[LogEntry]) -> int:
    """The values in log entries."""
    return sum(len(change.value or b"") for entry in entries for change in entry.changes)


async def test_a_recovery_holds_one_page_of_values_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, manifest = await taken(tmp_path, 50)
    assert [segment.kind for segment in manifest.segments].count(LOG) == 1
    archive = await archive_beside(tmp_path / "new", DEFAULT)
    append, sizes = archive.append, list[int]()

    async def weighed(
        board: str, fence: int, after: int, entries: Sequence[LogEntry], *more: Any
    ) -> Any:
        sizes.append(value_bytes(entries))
        return await append(board, fence, after, entries, *more)

    monkeypatch.setattr(archive, "append", weighed)
    mark = await Replay(place, archive, manifest).run()
    assert mark.revision == manifest.last
    assert sum(sizes) > 50 * len(LARGE)
    assert max(sizes) < PAGE_BYTES_MAX + 2 * len(LARGE)
    await archive.aclose()


async def test_the_values_of_a_file_are_read_one_after_the_other(tmp_path: Path) -> None:
    """So one that is missing is noticed where it is named, and not before."""
    place, manifest = await taken(tmp_path, 3)
    [segment] = [segment for segment in manifest.segments if segment.kind == LOG]
    whole = [record async for record in records_of(place, segment)]
    for record in whole[:-1]:
        assert isinstance(record, LogRecord)
        assert value_bytes([record.entry]) > len(LARGE)
    for file in (tmp_path / "backup" / "blobs").rglob("*"):
        if file.is_file() and file.read_bytes().startswith(encode_value(f"2{LARGE}")):
            file.unlink()
    records = records_of(place, segment)
    assert [await anext(records) for _ in whole[:-1]] == whole[:-1]
    with pytest.raises(Corrupt, match="missing"):
        await anext(records)
