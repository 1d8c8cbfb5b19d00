"""A board's file before it is in its place, and after it left."""

import errno
import sqlite3
from pathlib import Path

import pytest

from blackboard.core.commit import BRANCH, Entry, Epoch, Put, Seed
from blackboard.engines.sqlite.file import BoardFile
from blackboard.engines.sqlite.new import (
    NewFile,
    create,
    remove,
    removed_path,
    seed_path,
)
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, Unavailable
from tests.canary import files_with
from tests.conformance.writer import Writer
from tests.unit.core.trial import faults, packed

NAME = "board"
SEED = Seed(Epoch(2, "branch", BRANCH, 9, 10), 1_000, (("public/l", 3),))
ENTRIES = [Entry(f"public/{n}", packed(n), n + 1, 1, "ada", 5, n or None) for n in range(9)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file will be."""
    return tmp_path / f"{NAME}.db"


def made(path: Path) -> NewFile:
    """A file with entries, begun."""
    new = NewFile(path, seed_path(path))
    new.begin()
    new.add(ENTRIES[:5])
    new.add(ENTRIES[5:])
    return new


def names(path: Path) -> list[str]:
    """Files that are there."""
    return sorted(file.name for file in path.parent.iterdir())


def test_a_finished_file_is_a_board(path: Path) -> None:
    """It loads, with sums and order of expiry, and its epoch is its log."""
    made(path).finish(NAME, SEED)
    assert names(path) == [path.name]
    file = BoardFile(path, level="disk")
    loaded = file.load(NAME)
    assert loaded.clean
    assert (loaded.state.revision, loaded.state.oldest, loaded.state.time_ms) == (10, 10, 1_000)
    assert list(loaded.state.entries.values()) == ENTRIES
    assert loaded.state.next_item == {"public/l": 3}
    assert not faults(loaded.state)
    [marker] = file.read_log(0, 99, limit=9)
    assert (marker.revision, marker.epoch) == (10, SEED.epoch)
    file.abandon()


def test_a_board_that_is_in_place_is_made_whatever_stays_beside_it(path: Path) -> None:
    """The record that an earlier one was removed does not count beside a board."""
    removed_path(path).mkdir()
    made(path).finish(NAME, SEED)
    file = BoardFile(path, level="disk")
    assert file.load(NAME).state.revision == 10
    file.abandon()


def test_until_it_is_finished_it_lies_beside(path: Path) -> None:
    new = made(path)
    assert names(path) == [f"{path.name}.seed"]
    new.abandon()
    assert names(path) == []
    with pytest.raises(Unavailable):
        new.add(ENTRIES)
    new.begin()
    assert names(path) == []


def test_a_finished_one_is_not_abandoned_any_more(path: Path) -> None:
    new = made(path)
    new.finish(NAME, SEED)
    new.abandon()
    assert names(path) == [path.name]


def test_what_a_crash_left_goes(path: Path) -> None:
    """A half of another one, and what SQLite keeps beside a file that was removed."""
    seed_path(path).write_bytes(b"half")
    for suffix in ("-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").write_bytes(b"stale")
    made(path).finish(NAME, SEED)
    assert names(path) == [path.name]


def test_an_entry_twice_is_refused_when_it_is_loaded(path: Path) -> None:
    """Nobody passes one; its weight would be counted twice."""
    new = made(path)
    new.add(ENTRIES[:1])
    new.finish(NAME, SEED)
    file = BoardFile(path, level="disk")
    with pytest.raises(Corrupt):
        file.load(NAME)
    file.abandon()


def test_a_removed_board_leaves_nothing(path: Path) -> None:
    create(path, NAME, SEED.epoch, 0)
    for suffix in ("-wal", "-shm", ".seed", ".dropped"):
        path.with_name(f"{path.name}{suffix}").write_bytes(b"stale")
    remove(path)
    assert names(path) == []
    remove(path)


async def test_a_removal_that_a_crash_cut_off_is_finished_at_the_next_start(
    tmp_path: Path,
) -> None:
    """The board counts as removed, and nothing else would remove its data."""
    store = await SqliteStore.at(tmp_path)
    for board in ("gone", "again", "other"):
        await (await Writer.open(store, board)).commit(Put("public/a", packed("canary")))
    await store.remove("again")
    await store.open("again", again=True)
    await store.aclose()
    boards = tmp_path / "boards"
    (boards / "gone.db").rename(boards / "gone.db.dropped")
    for name in ("gone.db-wal", "gone.db-shm", "gone.db.suspect", "gone.db.seed"):
        (boards / name).write_bytes(b"canary")
    (boards / "again.db.dropped").write_bytes(b"canary")
    (boards / "again.db-wal").touch()
    await (await SqliteStore.at(tmp_path)).aclose()
    assert [file.name for file in files_with(boards, b"canary")] == ["other.db"]
    left = sorted(file.name for file in boards.iterdir())
    assert left == ["again.db", "again.db-wal", "other.db"]


def test_a_full_disk_is_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = made(path)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError

    monkeypatch.setattr("blackboard.engines.sqlite.new.insert", full)
    with pytest.raises((Unavailable, Corrupt)):
        new.add(ENTRIES)
    new.abandon()
    assert names(path) == []


def test_a_sync_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that stayed would keep the name, and no board could begin under it."""
    new = made(path)

    def fails(_: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr("blackboard.engines.sqlite.new.sync_path", fails)
    with pytest.raises(Unavailable):
        new.finish(NAME, SEED)
    new.abandon()
    assert names(path) == []
