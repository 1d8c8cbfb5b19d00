"""A directory, or the file of a board, that is removed or replaced while a process has it."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from blackboard.core.commit import Put
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, Unavailable
from tests.conformance.writer import Writer, packed

GONE = "removed or replaced"


async def test_nothing_is_acknowledged_in_a_directory_that_was_removed(tmp_path: Path) -> None:
    """SQLite would go on writing to a file without a name, and say that it is on the disk."""
    store = await SqliteStore.at(tmp_path / "data")
    writer = await Writer.open(store, "board")
    await writer.commit(Put("public/a", packed(1)))
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(Unavailable, match=GONE):
        await writer.commit(Put("public/a", packed(2)))
    with pytest.raises(Unavailable, match=GONE):
        await store.open("board")
    with pytest.raises(Unavailable, match=GONE):
        await store.open("another")
    await store.aclose()
    assert not (tmp_path / "data").exists()


async def test_a_directory_is_given_back_although_its_record_stays(tmp_path: Path) -> None:
    """Otherwise this process could not have it again."""
    store = await SqliteStore.at(tmp_path)
    (tmp_path / "owner.json").unlink()
    (tmp_path / "owner.json").mkdir()
    with pytest.raises(Unavailable):
        await store.aclose()
    (tmp_path / "owner.json").rmdir()
    await (await SqliteStore.at(tmp_path)).aclose()


async def test_a_directory_is_given_back_although_a_board_is_damaged(tmp_path: Path) -> None:
    """And the other boards are closed in good order; the damaged one can be removed, too."""
    store = await SqliteStore.at(tmp_path, "memory")
    for board in ("damaged", "doomed", "sound"):
        await store.open(board)
    for board in ("damaged", "doomed"):
        with closing(sqlite3.connect(tmp_path / "boards" / f"{board}.db")) as other:
            other.execute("DROP TABLE head")
    await store.drop("doomed")
    with pytest.raises(Corrupt):
        await store.aclose()
    again = await SqliteStore.at(tmp_path, "memory")
    assert (await again.open("sound")).epoch.number == 1
    assert await again.boards() == ["damaged", "sound"]
    await again.aclose()


async def test_a_directory_of_its_name_belongs_to_the_process_that_made_it(tmp_path: Path) -> None:
    """The lock that was taken is that of the directory that was moved away."""
    data = tmp_path / "data"
    mine = await SqliteStore.at(data)
    await mine.open("board")
    data.rename(tmp_path / "moved")
    theirs = await SqliteStore.at(data)
    await theirs.open("board")
    theirs.announce("ws://here")
    with pytest.raises(Unavailable, match=GONE):
        await mine.open("late")
    with pytest.raises(Unavailable, match=GONE):
        await mine.exists("late")
    await mine.aclose()
    assert (data / "owner.json").exists()
    writer = await Writer.open(theirs, "board")
    await writer.commit(Put("public/a", packed(1)))
    await theirs.aclose()


async def test_nothing_is_acknowledged_in_a_file_that_was_removed(tmp_path: Path) -> None:
    """The directory is still ours: only this board is affected."""
    store = await SqliteStore.at(tmp_path)
    writer, other = await Writer.open(store, "board"), await Writer.open(store, "other")
    await writer.commit(Put("public/a", packed(1)))
    (tmp_path / "boards" / "board.db").unlink()
    with pytest.raises(Unavailable, match=GONE):
        await writer.commit(Put("public/a", packed(2)))
    await other.commit(Put("public/a", packed(1)))
    await store.aclose()
