"""A damaged journal is distinguished from one cut off by a power failure."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from blackboard.engines.sqlite.journal import CUT_OFF_MAX, PAGE_BYTES, forgotten, open_index

HEAD_BYTES = 32
FRAME_BYTES = 24 + PAGE_BYTES
TRANSACTIONS = 6


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a file with a journal."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode=WAL")
    return connection


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[Path, bytes]]:
    """A file, and its journal of six transactions, the first of which makes the table."""
    path = tmp_path / "file.db"
    with closing(connect(path)) as connection:
        connection.execute("CREATE TABLE kept (number INTEGER)")
        for number in range(1, TRANSACTIONS):
            connection.execute("INSERT INTO kept VALUES (?)", (number,))
        yield path, Path(f"{path}-wal").read_bytes()


def reopened(path: Path, journal: bytes, folder: Path) -> int:
    """What is forgotten when that journal is found after a crash."""
    copy = folder / "copy.db"
    copy.write_bytes(path.read_bytes())
    Path(f"{copy}-wal").write_bytes(journal)
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with open_index(copy) as index:
            return forgotten(copy, PAGE_BYTES, index)


def flipped(journal: bytes, at: int) -> bytes:
    """The journal with one bit changed."""
    return journal[:at] + bytes([journal[at] ^ 1]) + journal[at + 1 :]


def test_a_whole_journal_forgets_nothing(written: tuple[Path, bytes], tmp_path: Path) -> None:
    """Nor does an empty one, or none."""
    path, journal = written
    assert reopened(path, journal, tmp_path) == 0
    assert reopened(path, b"", tmp_path) == 0
    assert reopened(path, journal[: HEAD_BYTES - 1], tmp_path) == 0


def test_a_journal_that_was_cut_off_is_no_damage(
    written: tuple[Path, bytes], tmp_path: Path
) -> None:
    """At any place; nor is a last transaction of which a part is missing."""
    path, journal = written
    for size in range(HEAD_BYTES, len(journal), 1_000):
        assert reopened(path, journal[:size], tmp_path) <= CUT_OFF_MAX
    assert reopened(path, flipped(journal, len(journal) - 9), tmp_path) == CUT_OFF_MAX


def test_damage_before_what_was_synced_is_found(
    written: tuple[Path, bytes], tmp_path: Path
) -> None:
    """In the content of a frame, or in the journal's own head."""
    path, journal = written
    frames = (len(journal) - HEAD_BYTES) // FRAME_BYTES
    first = HEAD_BYTES + 100
    assert reopened(path, flipped(journal, first), tmp_path) == TRANSACTIONS
    for frame in range(frames - TRANSACTIONS + 1, frames - 1):
        at = HEAD_BYTES + frame * FRAME_BYTES + 100
        assert reopened(path, flipped(journal, at), tmp_path) == frames - frame
    for at in range(HEAD_BYTES):
        assert reopened(path, flipped(journal, at), tmp_path) > CUT_OFF_MAX


def test_what_an_older_journal_left_is_not_counted(tmp_path: Path) -> None:
    """After everything is in the file, the journal begins again over what it held."""
    path = tmp_path / "file.db"
    with closing(connect(path)) as connection:
        connection.execute("CREATE TABLE kept (number INTEGER)")
        for number in range(TRANSACTIONS):
            connection.execute("INSERT INTO kept VALUES (?)", (number,))
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        connection.execute("INSERT INTO kept VALUES (7)")
        assert Path(f"{path}-wal").stat().st_size > HEAD_BYTES + 3 * FRAME_BYTES
        with open_index(path) as index:
            assert forgotten(path, PAGE_BYTES, index) == 0
