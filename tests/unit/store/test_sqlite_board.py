"""One open board: what is shown when, what shares a transaction, what is kept in memory."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from blackboard import types as limits
from blackboard.core.commit import Committed, Epoch, Increment, Put
from blackboard.core.state import evolve
from blackboard.errors import Compacted, FutureRevision, Unavailable
from blackboard.store import sqlite_board, sqlite_owed
from blackboard.store.sqlite_board import EmbeddedBoard, Threads
from blackboard.store.sqlite_file import BoardFile, log_entries
from blackboard.store.sqlite_new import create
from blackboard.wire.codec import Prepared, prepare
from tests.unit.core.trial import EPOCH, Trial, packed
from tests.waiting import TIMEOUT_S, wait_until

P = ParamSpec("P")
Result = TypeVar("Result")
NAME = "board"
ONE = packed(1)


class Gate(Executor):
    """A thread that writes only while the gate is open; it counts transactions."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.writes = 0
        self._thread = ThreadPoolExecutor(1)

    def submit(
        self, call: Callable[P, Result], /, *args: P.args, **named: P.kwargs
    ) -> "Future[Result]":
        """Run `call` once the gate is open."""

        def wait_and_run() -> Result:
            assert self.open.wait(timeout=30)
            self.writes += 1
            return call(*args, **named)

        return self._thread.submit(wait_and_run)


class Opened:
    """A board over a gate, and commits for it."""

    def __init__(self, path: Path) -> None:
        self.gate = Gate()
        self.reading = Gate()
        self.trial = Trial()
        self.file = BoardFile(path, level="memory")
        self.board = EmbeddedBoard(
            NAME,
            file=self.file,
            loaded=self.file.load(NAME),
            threads=Threads(writers=self.gate, readers=self.reading),
            now_ms=lambda: 1_000,
        )

    def step(self, size: int = 1) -> Prepared:
        """A further step that increments a key, with a note of that size."""
        made = self.trial.make(Increment("public/n", 1), Put("public/pad", b"x" * size))
        return prepare(made)

    async def commit(self, count: int = 1) -> None:
        """Commit so many steps, each in a call of its own."""
        for _ in range(count):
            [outcome] = await self.board.commit([self.step()])
            assert isinstance(outcome, Committed)

    async def log(self, after: int) -> list[int]:
        """The revisions of a page of the log."""
        page = await self.board.log(after, limit=10_000, wait_ms=0)
        return [entry.revision for entry in page.entries]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """A new board."""
    path = tmp_path / "board.db"
    create(path, NAME, EPOCH, 0)
    found = Opened(path)
    yield found
    found.gate.open.set()
    found.reading.open.set()
    await found.board.aclose()


async def turn() -> None:
    """Let everything run that can run without waiting for a thread."""
    for _ in range(5):
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0)


async def test_whoever_committed_goes_on_before_readers_of_the_log(opened: Opened) -> None:
    """Also if somebody stands between him and the board, as the queue of commits does."""
    went_on: list[str] = []

    async def commit() -> None:
        await asyncio.create_task(opened.board.commit([opened.step()]))
        went_on.append("writer")

    async def read() -> None:
        await opened.board.log(0, limit=1, wait_ms=30_000)
        went_on.append("reader")

    reading = asyncio.create_task(read())
    await turn()
    await asyncio.gather(commit(), reading)
    assert went_on == ["writer", "reader"]


async def test_nobody_sees_what_the_file_does_not_hold_yet(opened: Opened) -> None:
    """Neither writers nor readers nor watchers; the head stays."""
    board = opened.board
    await opened.commit()
    opened.gate.open.clear()
    commit = asyncio.create_task(board.commit([opened.step()]))
    read = asyncio.create_task(board.read(["public/n"]))
    calls: list[asyncio.Task[Any]] = [
        commit,
        read,
        asyncio.create_task(board.page("", after=None, limit=9)),
        asyncio.create_task(board.due(limit=9)),
        asyncio.create_task(board.log(1, limit=9, wait_ms=60_000)),
    ]
    await turn()
    assert not any(call.done() for call in calls)
    assert board.head.revision == 1
    assert await opened.log(0) == [1]
    with pytest.raises(FutureRevision):
        await opened.log(2)
    opened.gate.open.set()
    await asyncio.gather(*calls)
    reading = await read
    assert (reading.revision, reading.entries[0].value) == (2, packed(2))
    assert board.head.revision == 2


async def test_who_holds_a_board_finds_everything_written(opened: Opened) -> None:
    """So the head is the one that the next commit follows, and a restore is computed but once."""
    opened.gate.open.clear()
    before = asyncio.create_task(opened.commit())
    await turn()
    holding = asyncio.create_task(opened.board.hold(60_000))
    await turn()
    assert not holding.done()
    after = asyncio.create_task(opened.commit())
    opened.gate.open.set()
    await asyncio.gather(before, holding)
    await turn()
    assert (opened.board.head.revision, after.done()) == (1, False)
    await opened.board.hold(0)
    await after


async def test_a_refusal_waits_for_what_it_rests_on(opened: Opened) -> None:
    """A duplicate of a commit that is not written yet is no answer yet."""
    step = opened.step()
    opened.gate.open.clear()
    calls = [asyncio.create_task(opened.board.commit([step])) for _ in range(2)]
    await turn()
    assert not any(call.done() for call in calls)
    opened.gate.open.set()
    first, second = await asyncio.gather(*calls)
    assert [first[0].duplicate, second[0].duplicate] == [False, True]  # type: ignore[union-attr]


async def test_calls_that_come_together_are_written_together(opened: Opened) -> None:
    """One transaction for all that came in one turn, one for all that came while it was written."""
    opened.gate.open.clear()
    first = [asyncio.create_task(opened.commit()) for _ in range(5)]
    await turn()
    second = [asyncio.create_task(opened.commit()) for _ in range(7)]
    await turn()
    opened.gate.open.set()
    await asyncio.gather(*first, *second)
    assert opened.gate.writes == 2
    assert await opened.log(0) == list(range(1, 13))


async def test_a_refusal_alone_is_not_written(opened: Opened) -> None:
    """It costs no transaction."""
    step = opened.step()
    await opened.board.commit([step])
    [again] = await opened.board.commit([step])
    assert isinstance(again, Committed)
    assert again.duplicate
    assert opened.gate.writes == 1


@pytest.mark.parametrize(("limit", "value"), [("BATCH_COMMITS_MAX", 4), ("BATCH_BYTES_MAX", 1_000)])
async def test_a_transaction_takes_only_so_much(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """What comes when it is full waits for the next one, in order."""
    monkeypatch.setattr(limits, limit, value)
    opened.gate.open.clear()
    calls = [asyncio.create_task(opened.board.commit([opened.step(240)])) for _ in range(12)]
    await turn()
    opened.gate.open.set()
    outcomes = [outcome for call in calls for outcome in await call]
    revisions = [outcome.revision for outcome in outcomes if isinstance(outcome, Committed)]
    assert revisions == list(range(1, 13))
    assert opened.gate.writes == 3


async def test_a_rule_that_raises_takes_nothing_with_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The board is given up before anything of a half applied commit could be written."""
    await opened.commit()

    def broken(_state: object, _entry: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(sqlite_board, "evolve", broken)
    with pytest.raises(ZeroDivisionError):
        await opened.board.commit([opened.step()])
    with pytest.raises(Unavailable):
        await opened.commit()
    with pytest.raises(Unavailable):
        await opened.board.read(["public/n"])
    with pytest.raises(Unavailable):
        await opened.board.compact(1)
    assert opened.file.load(NAME).state.revision == 1


async def test_closing_does_not_wait_for_what_was_given_up(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule raises, and the board is closed, as a group before that is about to be written."""

    def broken(_state: object, _entry: object) -> None:
        raise ZeroDivisionError

    rules = iter([evolve, broken])
    monkeypatch.setattr(sqlite_board, "evolve", lambda *given: next(rules)(*given))
    committing = [asyncio.create_task(opened.board.commit([opened.step()])) for _ in range(2)]
    closing = asyncio.create_task(opened.board.aclose())
    async with asyncio.timeout(TIMEOUT_S):
        await closing
    given_up, failed = await asyncio.gather(*committing, return_exceptions=True)
    assert isinstance(given_up, Unavailable)
    assert isinstance(failed, ZeroDivisionError)


async def test_waiting_for_the_log_ends_with_the_first_entry_or_the_time(opened: Opened) -> None:
    """An empty page when none came."""
    page = await opened.board.log(0, limit=9, wait_ms=1)
    assert (page.entries, page.head.revision) == ((), 0)
    waiting = asyncio.create_task(opened.board.log(0, limit=9, wait_ms=60_000))
    await turn()
    await opened.commit()
    assert [entry.revision for entry in (await waiting).entries] == [1]


@pytest.mark.parametrize(
    ("limit", "value"), [("WATCH_QUEUE_CHANGES_MAX", 8), ("WATCH_QUEUE_BYTES_MAX", 500)]
)
async def test_the_log_is_the_same_from_memory_and_from_the_file(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """Memory holds the newest only; every page is whole, wherever it begins."""
    monkeypatch.setattr(limits, limit, value)
    await opened.commit(20)
    tail = opened.board._tail
    kept = tail.page(19, 20, 9)
    assert kept is not None
    assert tail.page(0, 20, 9) is None
    assert 0 < len(tail._entries) < 9
    assert len(tail._entries) == len(tail._sizes)
    for after in range(21):
        assert await opened.log(after) == list(range(after + 1, 21))
    from_file = opened.file.read_log(19, 20, limit=9)
    assert kept == from_file


async def test_compaction_takes_entries_from_memory_and_file(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some at a time; never more than there are; a later value never comes back down."""
    monkeypatch.setattr("blackboard.store.sqlite_file._COMPACT_ROWS", 3)
    await opened.commit(12)
    head = await opened.board.compact(9)
    assert (head.oldest, head.log_entries) == (9, 4)
    assert [e.revision for e in opened.file.read_log(0, 12, limit=99)] == [9, 10, 11, 12]
    assert opened.gate.writes == 12 + 3
    with pytest.raises(Compacted) as refused:
        await opened.log(7)
    assert refused.value.fields() == {"revision": 7, "oldest": 9}
    assert (await opened.board.compact(2)).oldest == 9
    assert (await opened.board.compact(99)).oldest == 13
    assert await opened.log(12) == []


async def large(opened: Opened) -> None:
    """Commit so much at once that the journal is copied into the file soon."""
    count = sqlite_board._LARGE_CHANGES
    puts = [Put(f"public/k{number}", b"large") for number in range(count)]
    [outcome] = await opened.board.commit([prepare(opened.trial.make(*puts))])
    assert isinstance(outcome, Committed)


async def test_after_a_large_commit_the_journal_is_copied(opened: Opened) -> None:
    """Once, and with no commit that waits for it; a small one leaves the journal as it is."""
    await opened.commit()
    assert opened.board._copying is None
    await large(opened)
    assert b"public/k0" not in opened.file.path.read_bytes()

    async def copied() -> bool:
        return b"public/k0" in await asyncio.to_thread(opened.file.path.read_bytes)

    await wait_until(copied)
    await opened.commit()
    assert opened.board._copying is None
    assert opened.gate.writes == 4


async def test_the_journal_is_copied_as_rows_are_moved(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of a transaction, once nobody waits for one."""
    monkeypatch.setattr(sqlite_owed, "RESTED_WRITES", 0)
    monkeypatch.setattr(sqlite_board, "_COPY_AFTER_S", 3600)
    await large(opened)
    for _ in range(sqlite_owed.COPIED_ROWS // sqlite_owed.PAID_ROWS - 1):
        await opened.commit()
    assert opened.gate.writes == sqlite_owed.COPIED_ROWS // sqlite_owed.PAID_ROWS
    opened.gate.open.clear()
    last, next_one = (asyncio.create_task(opened.commit()) for _ in range(2))
    await turn()
    opened.gate.open.set()
    await asyncio.gather(last, next_one)

    async def copied() -> bool:
        return b"public/k0" in await asyncio.to_thread(opened.file.path.read_bytes)

    await wait_until(copied)
    assert not opened.file.is_copy_due


async def test_commits_and_closing_wait_for_a_copy_of_the_journal(opened: Opened) -> None:
    """What came meanwhile is written before the file is let go."""
    await large(opened)
    opened.gate.open.clear()

    async def copying() -> bool:
        return opened.board._writing is not None

    await wait_until(copying)
    commit = asyncio.create_task(opened.commit())
    await turn()
    closing = asyncio.create_task(opened.board.aclose())
    await turn()
    assert not commit.done()
    assert not closing.done()
    opened.gate.open.set()
    await asyncio.gather(commit, closing)
    again = BoardFile(opened.file.path, level="memory")
    assert again.load(NAME).state.revision == 2
    again.abandon()


async def test_a_page_that_is_compacted_while_it_is_read_is_refused(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could have a gap that nobody would notice."""
    monkeypatch.setattr(limits, "WATCH_QUEUE_CHANGES_MAX", 2)
    await opened.commit(6)
    opened.reading.open.clear()
    page = asyncio.create_task(opened.log(0))
    await turn()
    await opened.board.compact(4)
    opened.reading.open.set()
    with pytest.raises(Compacted):
        await page


def test_a_head_counts_log_entries_without_the_skipped_ones() -> None:
    """Epochs of an engine skip revisions, those of a restore do not."""
    epochs = [
        Epoch(1, "a"),
        Epoch(2, "b", "engine", 5, 100),
        Epoch(3, "c", "restore", 50, 111),
    ]
    assert log_entries(epochs, 1, 111) == 5 + 1 + 11
    assert log_entries(epochs, 4, 111) == 2 + 1 + 11
    assert log_entries(epochs, 50, 111) == 1 + 11
    assert log_entries(epochs, 100, 111) == 12
    assert log_entries(epochs, 101, 111) == 11
    assert log_entries(epochs, 112, 111) == 0
