"""The journal of an idle board: it is emptied, and nothing is lost when that fails."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from blackboard.core.commit import Committed, Put
from blackboard.engines.sqlite.board import EmbeddedBoard
from blackboard.engines.sqlite.file import _IDLE_JOURNAL_BYTES
from blackboard.engines.sqlite.journal import journal_path
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from tests.conformance.writer import Writer, packed
from tests.faults.disk import recorded
from tests.unit.engines.sqlite.opened import Opened, revision_in, turn
from tests.waiting import wait_until

BOARD = "board"
LARGE = b"x" * 2 * _IDLE_JOURNAL_BYTES
BOARDS = 12
BYTES_PER_BOARD = 30_000_000 // 184
"""Of a small board with 53 KB of commits, so that 184 of them take 30 MB."""


def soon(board: EmbeddedBoard) -> None:
    """The board counts as idle as soon as nothing is written for one turn of the loop."""
    board._idle_s = 0.0
    if board._idle is not None:
        board._idle.cancel()
        board._idle = None


async def emptied(path: Path) -> None:
    """Wait until the journal of the file at `path` is empty."""

    async def is_empty() -> bool:
        return journal_path(path).stat().st_size == 0

    await wait_until(is_empty)


def salts(path: Path) -> bytes:
    """What is different in each journal of the file at `path`."""
    return journal_path(path).read_bytes()[16:24]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An embedded engine."""
    opened = await SqliteStore.at(tmp_path)
    yield opened
    await opened.aclose()


def path_of(folder: Path) -> Path:
    """Where the board's file is."""
    return folder / "boards" / f"{BOARD}.db"


async def test_an_idle_board_empties_its_journal(opened: Opened) -> None:
    """Each time; the commits after it are in the next journal, or in the file."""
    soon(opened.board)
    for number in range(1, 4):
        [outcome] = await opened.board.commit([opened.step(len(LARGE))])
        assert isinstance(outcome, Committed)
        await emptied(opened.file.path)
        assert await opened.log(0) == list(range(1, number + 1))
    await opened.board.aclose()
    assert revision_in(opened.file.path) == 3


async def test_a_busy_board_keeps_its_journal(opened: Opened) -> None:
    """A write starts the time again."""
    board = opened.board
    await opened.commit()
    timer = board._idle
    assert timer is not None
    await opened.commit()
    timer.cancel()
    board._look_if_idle()
    assert not board._is_shrink_due
    assert board._idle is not None
    await opened.commit()
    board._idle.cancel()
    board._look_if_idle()
    assert not board._is_shrink_due


async def test_a_small_journal_stays(opened: Opened) -> None:
    """Else each commit of a slow writer would cost a copy."""
    await opened.commit()
    size = journal_path(opened.file.path).stat().st_size
    assert 0 < size <= _IDLE_JOURNAL_BYTES
    opened.file.shrink_journal()
    assert journal_path(opened.file.path).stat().st_size == size


async def test_commits_wait_while_the_journal_is_emptied(opened: Opened) -> None:
    """And are written afterwards."""
    [outcome] = await opened.board.commit([opened.step(len(LARGE))])
    assert isinstance(outcome, Committed)
    opened.gate.open.clear()
    opened.board._is_idle = True
    opened.board._look_if_idle()
    await turn()
    commit = asyncio.create_task(opened.commit())
    await turn()
    assert not commit.done()
    before = salts(opened.file.path)
    opened.gate.open.set()
    await commit
    assert salts(opened.file.path) != before  # it was written to a new journal


async def test_a_journal_that_somebody_reads_stays(opened: Opened) -> None:
    """The board goes on, and empties it later."""
    [outcome] = await opened.board.commit([opened.step(len(LARGE))])
    assert isinstance(outcome, Committed)
    with closing(sqlite3.connect(opened.file.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchone()
        opened.file.shrink_journal()
        assert journal_path(opened.file.path).stat().st_size > len(LARGE)
        await opened.commit()
    soon(opened.board)
    await opened.commit()
    await emptied(opened.file.path)


async def test_what_a_killed_process_left_is_emptied(store: SqliteStore, tmp_path: Path) -> None:
    """Without a single commit by the next process."""
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed("x" * len(LARGE))))
    store._boards.pop(BOARD)._file.abandon()
    assert journal_path(path_of(tmp_path)).stat().st_size > len(LARGE)
    await store.open(BOARD)
    store._boards[BOARD]._look_if_idle()
    await emptied(path_of(tmp_path))


@pytest.mark.parametrize("how", ["idle", "scrub"])
async def test_a_sync_that_fails_as_the_journal_is_emptied_ends_the_board(
    tmp_path: Path, how: str
) -> None:
    """The next attempt would succeed, and drop a journal whose pages the disk never got."""
    with recorded() as recorder:
        store = await SqliteStore.at(tmp_path)
        writer = await Writer.open(store, BOARD)
        await writer.commit(Put("public/a", packed("x" * len(LARGE))))
        recorder.fails = lambda path: Path(path).name == f"{BOARD}.db"
        if how == "scrub":
            with pytest.raises(Unavailable, match="a sync of its file failed"):
                await store.scrub(BOARD)
        else:
            soon(store._boards[BOARD])
            store._boards[BOARD]._watch_idle()

        async def is_over() -> bool:
            return store._boards[BOARD].failure is not None

        await wait_until(is_over)
        recorder.fails = lambda path: False
        with pytest.raises(Unavailable, match="a sync of its file failed"):
            await store.open(BOARD)
        assert journal_path(path_of(tmp_path)).stat().st_size > len(LARGE)
        await store.aclose()
        again = await SqliteStore.at(tmp_path)
        assert (await again.open(BOARD)).epoch.number == 2
        assert (await again.read(BOARD, ["public/a"])).entries
        await again.aclose()


async def test_many_small_boards_take_little_room(store: SqliteStore, tmp_path: Path) -> None:
    """While they are open and idle."""
    for number in range(BOARDS):
        writer = await Writer.open(store, f"b{number}")
        for step in range(94):
            await writer.commit(Put(f"public/k{step % 8}", packed("x" * 500)))
        soon(store._boards[f"b{number}"])
        await writer.commit(Put("public/last", packed(1)))
    for number in range(BOARDS):
        await emptied(tmp_path / "boards" / f"b{number}.db")
    taken = sum(path.stat().st_size for path in (tmp_path / "boards").iterdir())
    assert taken <= BOARDS * BYTES_PER_BOARD
