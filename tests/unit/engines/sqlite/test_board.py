"""One open board: what is shown when, what shares a transaction, what is kept in memory."""

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from blackboard.core.commit import Committed, Epoch, Grant, Put, Renew
from blackboard.core.model import Outcome
from blackboard.core.state import evolve
from blackboard.engines.sqlite import board as sqlite_board, follower, group as sqlite_group
from blackboard.engines.sqlite.board import EmbeddedBoard, Threads
from blackboard.engines.sqlite.file import BoardFile, log_entries
from blackboard.engines.sqlite.follower import LARGE_CHANGES
from blackboard.engines.sqlite.journal import journal_path
from blackboard.engines.sqlite.rows import REFERRED_BYTES
from blackboard.errors import (
    Compacted,
    FutureRevision,
    HeadMoved,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from blackboard.wire.codec import prepare
from tests.unit.core.trial import packed
from tests.unit.engines.sqlite.opened import NAME, Opened, broken, revision_in, turn
from tests.waiting import TIMEOUT_S, wait_until

ONE = packed(1)


async def test_a_committer_continues_before_readers_of_the_log(opened: Opened) -> None:
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
        asyncio.create_task(board.due(limit=9, by_ms=None)),
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


async def test_closing_does_not_wait_for_what_was_given_up(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule raises, and the board is closed, as a group before that is about to be written."""
    rules = iter([evolve, broken])
    monkeypatch.setattr(sqlite_group, "evolve", lambda *given: next(rules)(*given))
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


async def test_compaction_takes_entries_from_memory_and_file(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some at a time; never more than there are; a later value never comes back down."""
    monkeypatch.setattr("blackboard.engines.sqlite.file._COMPACT_ROWS", 3)
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


async def large(opened: Opened, count: int = follower.LARGE_CHANGES) -> None:
    """Commit so much at once that the tables follow soon, and the journal is copied."""
    puts = [Put(f"public/k{number}", b"large") for number in range(count)]
    [outcome] = await opened.board.commit([prepare(opened.trial.make(*puts))])
    assert isinstance(outcome, Committed)


async def copied(opened: Opened) -> None:
    """Wait until the file itself has what `large` wrote."""

    async def is_copied() -> bool:
        return b"public/k0" in await asyncio.to_thread(opened.file.path.read_bytes)

    await wait_until(is_copied)


async def test_after_a_large_commit_the_tables_follow(opened: Opened) -> None:
    """In parts, and then the journal is copied, with no commit that waits for it; a small one
    leaves both as they are."""
    await opened.commit()
    assert opened.board._following is None
    await large(opened)
    assert b"public/k0" not in opened.file.path.read_bytes()

    async def is_over() -> bool:
        return not opened.board._backlog.rows and opened.board._writing is None

    await wait_until(is_over)
    parts = -(-(follower.LARGE_CHANGES + 2) // follower.SCATTERED_ROWS)
    assert opened.gate.writes == 2 + parts
    await copied(opened)
    await opened.commit()
    assert opened.board._following is None
    assert opened.board._backlog.rows == 1


async def test_the_journal_is_copied_on_the_way(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a commit that is much larger; other commits come in between."""
    monkeypatch.setattr(sqlite_board, "_FOLLOW_AFTER_S", 3600)
    left, checkpoint = [], opened.file.checkpoint

    def noted() -> None:
        left.append(opened.board._backlog.rows)
        checkpoint()

    monkeypatch.setattr(opened.file, "checkpoint", noted)
    await large(opened, 1_000)
    opened.board._follow_soon()
    await copied(opened)
    assert left[0] > 0
    await opened.commit()
    await opened.board.aclose()
    assert revision_in(opened.file.path) == 2


@pytest.mark.parametrize("count", [1, 7])
async def test_the_tables_follow_in_the_transactions_of_commits(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Once enough is behind; nobody waits for a transaction of their own."""
    monkeypatch.setattr(follower, "FOLLOW_ROWS", 4)
    await opened.commit(4 * count)
    assert opened.gate.writes == 4 * count
    assert opened.board._backlog.mark[0] == 4 * count
    await opened.commit(3)
    assert opened.board._backlog.mark[0] == 4 * count


@pytest.mark.parametrize("has_room", [True, False], ids=["room again", "none when it is closed"])
async def test_tables_for_which_there_is_no_room_follow_later(
    opened: Opened, *, has_room: bool
) -> None:
    """The board goes on, and what it acknowledged is there."""
    puts = [Put(f"public/{n}", b"x" * (REFERRED_BYTES - 1)) for n in range(LARGE_CHANGES - 1)]
    await opened.board.commit([prepare(opened.trial.make(*puts))])
    [pages] = opened.file._writer.execute("PRAGMA page_count").fetchone()
    opened.file._writer.execute(f"PRAGMA max_page_count={pages + 4}")
    opened.board._backlog.hurry()
    opened.board._start_soon()

    async def was_tried() -> bool:
        return opened.gate.writes == 2 and opened.board._writing is None

    await wait_until(was_tried)
    await opened.commit()
    assert (opened.board._backlog.rows, opened.board._backlog.mark[0]) == (2, 0)
    if has_room:
        opened.file._writer.execute("PRAGMA max_page_count=10000")
    else:
        await opened.board.commit([prepare(opened.trial.make(Put("public/z", b"x" * 9_000)))])
    await opened.board.aclose()
    file = BoardFile(opened.file.path, level="memory")
    loaded = file.load(NAME)
    file.abandon()
    assert (loaded.state.revision, loaded.clean) == (2 if has_room else 3, True)
    assert loaded.backlog.rows == (0 if has_room else 3)


async def test_what_was_removed_is_in_no_table_and_no_log(opened: Opened) -> None:
    """Once the log that had it was compacted and the file scrubbed, though the tables were far
    behind."""
    secret = b"a value that nobody may find"
    for value in (secret, b"another value"):
        put = prepare(opened.trial.make(Put("public/secret", value)))
        assert isinstance((await opened.board.commit([put]))[0], Committed)
        opened.board._backlog.hurry()
        opened.board._start_soon()
        await opened.commit()
    assert secret in journal_path(opened.file.path).read_bytes()
    await opened.board.compact(3)
    assert await opened.board.scrub()
    for path in (opened.file.path, journal_path(opened.file.path)):
        assert secret not in path.read_bytes()
    assert b"another value" in opened.file.path.read_bytes()


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
    assert revision_in(opened.file.path) == 2


@pytest.mark.limits(watch_queue_changes_max=2)
async def test_a_page_that_is_compacted_while_it_is_read_is_refused(opened: Opened) -> None:
    """It could have a gap that nobody would notice."""
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


# --- a large restore ------------------------------------------------------------------------------


LARGE = 8


@pytest.fixture
def apart(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A board for which LARGE operations are many."""
    monkeypatch.setattr(sqlite_board, "_APART_OPS", LARGE)
    return opened


async def in_a_thread(apart: Opened) -> "asyncio.Task[list[Outcome]]":
    """A large restore to which the thread has not come yet, though it has the state."""
    apart.reading.open.clear()
    restoring = asyncio.create_task(apart.board.commit([apart.restore(LARGE, follows=1)]))
    await turn()
    return restoring


async def test_a_large_restore_is_applied_in_a_thread(apart: Opened) -> None:
    """A smaller one is not, nor is a commit of that size."""
    large_commit = prepare(apart.trial.make(*(Put(f"public/{n}", ONE) for n in range(LARGE))))
    await apart.board.commit([large_commit])
    [small] = await apart.board.commit([apart.restore(LARGE - 1, follows=1)])
    assert (small.revision, apart.reading.writes) == (2, 0)  # type: ignore[union-attr]
    large = replace(apart.restore(LARGE, follows=2).commit, epoch="second")
    assert large.begins is not None
    large = replace(large, begins=replace(large.begins, number=3, id="third"))
    [outcome] = await apart.board.commit([prepare(large)])
    assert isinstance(outcome, Committed)
    assert (outcome.revision, apart.reading.writes) == (3, 1)
    assert apart.board.head.epoch.id == "third"
    assert await apart.log(0) == [1, 2, 3]
    assert apart.board.head == replace(apart.board.head, revision=3, log_entries=3)


async def test_nobody_sees_the_half_of_a_large_restore(apart: Opened) -> None:
    """While a thread has the state, all others wait, and the event loop goes on."""
    board = apart.board
    await apart.commit()
    restoring = await in_a_thread(apart)
    asked: list[Awaitable[Any]] = [
        board.read(["public/1"]),
        board.page("public", after=None, limit=100),
        board.due(limit=1, by_ms=None),
        board.leases(due=False),
        board.commit([apart.step()]),
        board.hold(0),
        board.compact(2),
        board.commit([apart.restore(LARGE, follows=1)]),
    ]
    waiting = [asyncio.ensure_future(each) for each in asked]
    await turn()
    assert [each.done() for each in waiting] == [False] * len(waiting)
    assert (board.head.revision, board._state.oldest, await apart.log(0)) == (1, 1, [1])
    apart.reading.open.set()
    [restored] = await restoring
    read, page, _, _, [step], _, _, [again] = await asyncio.gather(*waiting)
    assert isinstance(restored, Committed)
    assert {entry.mod_revision for entry in read.entries} == {restored.revision}
    assert len(page.entries) == LARGE + 2
    assert isinstance(step, StaleEpoch)
    assert isinstance(again, StaleEpoch)
    assert board.head.revision == 2


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_large_restore_follows_what_is_on_its_way(apart: Opened, is_written: bool) -> None:
    """What gathers, and what is being written: it is a transaction by itself."""
    apart.gate.open.clear()
    first = asyncio.create_task(apart.commit())
    if is_written:
        await turn()
    restoring = asyncio.create_task(apart.board.commit([apart.restore(LARGE, follows=1)]))
    await turn()
    apart.reading.open.set()
    await asyncio.wrap_future(apart.reading.submit(lambda: None))
    assert apart.reading.writes == 1  # that
    apart.gate.open.set()
    await first
    [outcome] = await restoring
    assert isinstance(outcome, Committed)
    assert (outcome.revision, apart.gate.writes) == (2, 2)


async def test_a_large_restore_that_is_refused_is_not_written(apart: Opened) -> None:
    """The board goes on, and is held as long as it was to be."""
    await apart.commit()
    await apart.board.hold(60_000)
    [refused] = await apart.board.commit([apart.restore(LARGE, follows=7)])
    assert isinstance(refused, HeadMoved)
    waiting = asyncio.create_task(apart.commit())
    await turn()
    assert (apart.gate.writes, waiting.done()) == (1, False)
    await apart.board.hold(0)
    await waiting
    assert apart.board.head.revision == 2


async def test_a_large_restore_lets_the_others_go_on(apart: Opened) -> None:
    """For whom the board was held."""
    await apart.commit()
    await apart.board.hold(60_000)
    waiting = asyncio.create_task(apart.board.commit([apart.step()]))
    await apart.board.commit([apart.restore(LARGE, follows=1)])
    async with asyncio.timeout(TIMEOUT_S):
        [outcome] = await waiting
    assert isinstance(outcome, StaleEpoch)


async def test_a_rule_that_raises_in_a_large_restore_takes_nothing_with_it(
    apart: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that wait for the state get the error, and so does the caller that closes the
    board."""
    await apart.commit()
    monkeypatch.setattr(sqlite_group, "evolve", broken)
    restoring = await in_a_thread(apart)
    reading = asyncio.create_task(apart.board.read(["public/n"]))
    await turn()
    closing = asyncio.create_task(apart.board.aclose())
    await turn()
    assert not closing.done()
    apart.reading.open.set()
    results = await asyncio.gather(restoring, reading, closing, return_exceptions=True)
    assert [type(result) for result in results] == [ZeroDivisionError, Unavailable, type(None)]
    assert revision_in(apart.file.path) == 1


async def test_a_large_restore_is_written_though_its_caller_left(apart: Opened) -> None:
    """Closing waits for it."""
    await apart.commit()
    restoring = await in_a_thread(apart)
    restoring.cancel()
    await asyncio.wait([restoring])
    closing = asyncio.create_task(apart.board.aclose())
    await turn()
    assert not closing.done()
    apart.reading.open.set()
    await closing
    assert revision_in(apart.file.path) == 2


async def test_a_copy_of_the_journal_waits_for_a_large_restore(apart: Opened) -> None:
    """Also if it was about to begin: one thing is written at a time."""
    await apart.commit()
    apart.reading.open.clear()
    restoring = asyncio.create_task(apart.board.commit([apart.restore(LARGE, follows=1)]))
    apart.board._follow_soon()
    await turn()
    await asyncio.wrap_future(apart.gate.submit(lambda: None))
    assert apart.gate.writes == 2  # the commit, and that
    apart.reading.open.set()
    [outcome] = await restoring
    assert isinstance(outcome, Committed)

    async def followed() -> bool:
        return apart.board._backlog.mark[0] == 2

    await wait_until(followed)


async def test_a_renewal_is_not_written(opened: Opened) -> None:
    """It waits for what was decided before it, which it may build on, and for nothing else."""
    grant = prepare(opened.trial.make(Grant("public/x", "ada", 60_000)))
    renewal = prepare(opened.trial.make(Renew("public/x", "ada", 1, 60_000)))
    opened.gate.open.clear()
    granting = asyncio.create_task(opened.board.commit([grant]))
    renewing = asyncio.create_task(opened.board.commit([renewal]))
    await turn()
    assert not renewing.done()
    opened.gate.open.set()
    await granting
    [renewed] = await renewing
    assert isinstance(renewed, Committed)
    assert renewed.revision == 1
    writes = opened.gate.writes
    for _ in range(3):
        await opened.board.commit([renewal])
    assert opened.gate.writes == writes


async def test_a_write_that_fails_unexpectedly_is_logged(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With where it failed; the outcome of its commits is unknown, and the board ends."""

    def fails(_: object) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(opened.file, "write", fails)
    [outcome] = await opened.board.commit([opened.step()])
    assert isinstance(outcome, OutcomeUnknown)
    assert "ZeroDivisionError('a bug')" in outcome.reason
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    with pytest.raises(Unavailable):
        await opened.board.commit([opened.step()])


async def test_tables_of_a_file_that_was_let_go_do_not_follow(opened: Opened) -> None:
    """Nothing is handed to a thread that may have ended."""
    await opened.commit()
    writes = opened.gate.writes
    opened.file.abandon()
    opened.board._follow_soon()
    await turn()
    assert opened.board._backlog.is_due
    assert opened.board._writing is None
    assert opened.gate.writes == writes
    opened.board.give_up("its file was let go")


async def test_a_board_that_can_only_be_read_leaves_its_tables_behind(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far they are; it shows what the log says, and renewals are accepted."""
    grant = prepare(opened.trial.make(Grant("public/x", "ada", 60_000)))
    await opened.board.commit([grant])
    await opened.commit(3)
    renewal = prepare(opened.trial.make(Renew("public/x", "ada", 1, 60_000)))
    opened.board.give_up("its process was killed")
    opened.file.abandon()
    with closing(sqlite3.connect(opened.file.path)) as shell:  # copies the journal as it closes
        shell.execute("SELECT count(*) FROM log").fetchone()
    monkeypatch.setattr(follower, "FOLLOW_ROWS", 2)
    content = opened.file.path.read_bytes()
    file = BoardFile(opened.file.path, level="memory", read_only="the disk is full")
    threads = Threads(writers=opened.gate, readers=opened.reading)
    writes, loaded = opened.gate.writes, file.load(NAME)
    assert loaded.backlog.is_due
    board = EmbeddedBoard(NAME, file=file, loaded=loaded, threads=threads, now_ms=lambda: 1_000)
    [renewed] = await board.commit([renewal])
    await turn()
    assert isinstance(renewed, Committed)
    assert (await board.read(["public/n"])).revision == 4
    assert opened.gate.writes == writes
    await board.aclose()
    assert opened.file.path.read_bytes() == content


async def test_a_board_that_can_only_be_read_is_not_compacted(opened: Opened) -> None:
    """Each attempt used to load the board again, and so gave every lease its full time again."""
    await opened.commit(3)
    await opened.board.aclose()
    file = BoardFile(opened.file.path, level="memory", read_only="the disk is full")
    threads = Threads(writers=opened.gate, readers=opened.reading)
    board = EmbeddedBoard(
        NAME, file=file, loaded=file.load(NAME), threads=threads, now_ms=lambda: 1_000
    )
    for call in (partial(board.compact, 2), board.scrub):
        with pytest.raises(Unavailable, match="the disk is full"):
            await call()
    assert board.failure is None
    assert board.head.oldest == 1
    await board.aclose()
