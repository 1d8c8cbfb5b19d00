"""The embedded engine as a whole: who owns the directory, what a restart finds, what failure does.

What every engine promises is in tests/conformance; kills and cuts are in tests/faults.
"""

import asyncio
import contextlib
import errno
import gc
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio.lowlevel
import msgpack
import pytest

from blackboard import limits
from blackboard.core.commit import (
    Append,
    Committed,
    Delete,
    Expire,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Lease,
    Put,
    Renew,
    Waiter,
)
from blackboard.engines.sqlite import directory as data_directory, new, store as sqlite_store
from blackboard.engines.sqlite.directory import DataDirectory, TakenDirectory
from blackboard.engines.sqlite.file import BoardFile
from blackboard.engines.sqlite.rows import LEASE, checksum, weigh
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import (
    Corrupt,
    DataDirectoryInUse,
    Fenced,
    InvalidRequest,
    LeaseHeld,
    LimitExceeded,
    NoSuchBoard,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from blackboard.limits import LEASE_TTL_MS
from blackboard.wire.codec import prepare
from tests.conformance.writer import Writer, packed
from tests.waiting import wait_until

BOARD = "board"
BIG = packed(b"x" * 100_000)
FILE_BYTES = 512 * 1024


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An embedded engine over an empty directory; its boards have half a megabyte."""
    opened = await SqliteStore.at(tmp_path, file_bytes_max=FILE_BYTES)
    yield opened
    await opened.aclose()


async def reopened(store: SqliteStore) -> SqliteStore:
    """Close a store and open its directory again."""
    await store.aclose()
    return await SqliteStore.at(store.directory, store.level)


def board_file(store: SqliteStore) -> Path:
    """The file of the board under test."""
    return store.directory / "boards" / f"{BOARD}.db"


# --- the directory --------------------------------------------------------------------------------


async def test_a_directory_has_one_owner(store: SqliteStore) -> None:
    """A second opener gets an error that names the owner of the directory and its address."""
    for url in (None, "ws://127.0.0.1:7000"):
        store.announce(url)
        with pytest.raises(DataDirectoryInUse) as refused:
            await SqliteStore.at(store.directory)
        own = {"pid": os.getpid(), "is_this_process": True}
        expected = {"path": str(store.directory), "url": url, **own}
        assert refused.value.fields() == expected


async def test_an_owner_in_another_process_is_distinguished_from_a_dead_one(tmp_path: Path) -> None:
    """A lock ends with its process, whatever owner.json still says."""
    script = (
        "import asyncio, sys; from blackboard.engines.sqlite.store import SqliteStore\n"
        "store = asyncio.run(SqliteStore.at(sys.argv[1]))\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    pipe = subprocess.PIPE
    owner = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"open\n"
    with pytest.raises(DataDirectoryInUse) as refused:
        await SqliteStore.at(tmp_path)
    assert refused.value.pid == owner.pid
    owner.kill()
    await owner.communicate()
    assert json.loads(owner_file(tmp_path).read_text())["pid"] == owner.pid
    await (await SqliteStore.at(tmp_path)).aclose()


def owner_file(directory: Path) -> Path:
    """Where the owner of a directory says who it is."""
    return directory / "owner.json"


async def test_a_closed_store_lets_go_and_answers_nothing(store: SqliteStore) -> None:
    """Closing again does nothing."""
    await store.open(BOARD)
    await store.aclose()
    await store.aclose()
    assert not owner_file(store.directory).exists()
    with pytest.raises(Unavailable):
        await store.open(BOARD)


async def test_a_directory_that_cannot_be_is_unavailable(tmp_path: Path) -> None:
    """A file is no directory."""
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable):
        await SqliteStore.at(tmp_path / "file")


async def test_there_are_two_levels(tmp_path: Path) -> None:
    """No other is guessed at."""
    with pytest.raises(InvalidRequest):
        await SqliteStore.at(tmp_path, "second")  # type: ignore[arg-type]


# --- boards ---------------------------------------------------------------------------------------


async def test_only_open_makes_a_board(store: SqliteStore) -> None:
    """A board that is only asked about does not come to be."""
    with pytest.raises(InvalidRequest):
        await store.read("none", ["public/a"])
    with pytest.raises(InvalidRequest):
        await store.open("../none")
    assert await store.boards() == []


async def test_a_restart_finds_everything(store: SqliteStore) -> None:
    """State, log, answers, leases, the next index; in the same epoch."""
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1), ttl_ms=1), Append("public/l", BIG))
    await writer.commit(Delete("public/l/0000000000"), Grant("public/x", "ada", 60_000))
    last = writer.make(Increment("public/n", 2), conditions=[KeyAt("public/n", 0)])
    first_answer = await writer.send(last)
    before = await store.open(BOARD)
    log = (await store.log(BOARD, 0, limit=10)).entries
    again = await reopened(store)
    head = await again.open(BOARD)
    assert (head.revision, head.epoch, head.oldest) == (3, before.epoch, 1)
    assert (await again.log(BOARD, 0, limit=10)).entries == log
    assert [entry.key for entry in (await again.due(BOARD, limit=9)).entries] == ["public/a"]
    [outcome] = await again.commit(BOARD, [prepare(last)])
    assert isinstance(outcome, Committed)
    assert isinstance(first_answer, Committed)
    assert (outcome.duplicate, outcome.results) == (True, first_answer.results)
    other = Writer(again, BOARD, head, "bob")
    assert await other.result(Append("public/l", BIG)) == "public/l/0000000001"
    lease = await other.attempt(Grant("public/x", "bob", 1_000))
    assert not isinstance(lease, Committed)
    await again.aclose()


async def test_many_open_at_once_and_one_of_them_gives_up(store: SqliteStore) -> None:
    """A cancelled opener does not take the board from the others."""
    tasks = [asyncio.create_task(store.open(BOARD)) for _ in range(5)]
    await asyncio.wait(tasks, timeout=0)
    tasks[0].cancel()
    heads = await asyncio.gather(*tasks[1:])
    assert len({head.epoch.id for head in heads}) == 1


async def test_a_board_that_was_just_opened_is_not_opened_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its watches would end, and its leases get their full time again."""
    is_open, calls = threading.Event(), iter(range(2))
    as_ever = new.read_removed

    def read_removed(path: Path) -> tuple[int, int] | None:
        if next(calls):  # one sees that it is not open yet, and is overtaken by the other
            assert is_open.wait(60)
        return as_ever(path)

    monkeypatch.setattr(sqlite_store, "read_removed", read_removed)
    openings = [asyncio.create_task(store.open(BOARD)) for _ in range(2)]
    await asyncio.wait(openings, return_when=asyncio.FIRST_COMPLETED)
    opened = store._boards[BOARD]
    is_open.set()
    await asyncio.gather(*openings)
    assert store._boards[BOARD] is opened


async def test_calls_wait_for_an_epoch_that_begins(store: SqliteStore) -> None:
    """A board in use is not refused for the moment that it takes."""
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    head = await store.open(BOARD)
    beginning = asyncio.create_task(store.begin_epoch(BOARD, head, above=0))
    for _ in range(2):
        await anyio.lowlevel.checkpoint()
    again, opened, read = await asyncio.gather(
        store.begin_epoch(BOARD, head, above=0),
        store.open(BOARD),
        store.read(BOARD, ["public/a"]),
    )
    begun = await beginning
    assert begun.epoch.number == head.epoch.number + 1
    assert begun.epoch == again.epoch == opened.epoch  # it begins once
    assert len(read.entries) == 1


async def test_an_epoch_begins_although_who_began_it_gave_up(store: SqliteStore) -> None:
    """Others wait for it already."""
    await Writer.open(store, BOARD)
    head = await store.open(BOARD)
    beginning = asyncio.create_task(store.begin_epoch(BOARD, head, above=0))
    await anyio.lowlevel.checkpoint()
    waiting = asyncio.create_task(store.open(BOARD))
    await anyio.lowlevel.checkpoint()
    beginning.cancel()
    assert (await waiting).epoch.number == head.epoch.number + 1
    assert beginning.cancelled()


@pytest.mark.parametrize("damage", ["cut", "garbage", "foreign"])
async def test_a_damaged_file_is_refused_by_name_and_left_alone(
    store: SqliteStore, damage: str
) -> None:
    """Never repaired, never taken for a new board; the other boards go on."""
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", BIG))
    await store.aclose()
    path = board_file(store)
    whole = path.read_bytes()
    spoiled = {
        "cut": b"",
        "garbage": whole[:4096] + bytes(len(whole) - 4096),
        "foreign": b"This is a text about boards. " * 400,
    }[damage]
    path.write_bytes(spoiled)
    again = await SqliteStore.at(store.directory)
    for _ in range(2):
        with pytest.raises(Corrupt) as corrupt:
            await again.open(BOARD)
        assert corrupt.value.what == str(path)
    assert (await again.open("other")).revision == 0
    await again.aclose()
    assert path.read_bytes() == spoiled


async def test_a_file_under_another_name_is_refused(store: SqliteStore) -> None:
    """A board knows its name."""
    await store.open(BOARD)
    await store.aclose()
    board_file(store).rename(board_file(store).with_name("other.db"))
    again = await SqliteStore.at(store.directory)
    with pytest.raises(Corrupt):
        await again.open("other")
    await again.aclose()


async def test_a_creation_that_was_cut_short_starts_again(store: SqliteStore) -> None:
    """Half a file under its working name is nobody's board."""
    board_file(store).with_name(f"{BOARD}.db.new").write_bytes(b"half")
    assert (await store.open(BOARD)).revision == 0
    assert await store.boards() == [BOARD]


# --- epochs ---------------------------------------------------------------------------------------


async def test_a_clean_end_without_syncs_begins_no_epoch(tmp_path: Path) -> None:
    """At level "memory" everything was synced in the end."""
    store = await SqliteStore.at(tmp_path, "memory")
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    again = await reopened(store)
    assert (await again.open(BOARD)).epoch.id == writer.epoch
    await again.aclose()


async def test_writers_of_the_old_epoch_are_refused_after_an_unclean_end(tmp_path: Path) -> None:
    """They learn from which revision on nothing of theirs is left."""
    store = await SqliteStore.at(tmp_path, "memory")
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    mark_unclean(store)
    await store.aclose()
    again = await SqliteStore.at(tmp_path, "memory")
    writer.store = again
    outcome = await writer.attempt(Put("public/a", packed(2)))
    assert isinstance(outcome, StaleEpoch)
    assert (outcome.cause, outcome.number, outcome.from_revision) == ("engine", 2, 1)
    head = await again.open(BOARD)
    assert head.log_entries == 2
    page = await again.log(BOARD, 1, limit=9)
    assert [entry.epoch for entry in page.entries] == [head.epoch]
    await again.compact(BOARD, head.revision + 1)
    assert (await again.open(BOARD)).log_entries == 0
    await again.aclose()


def mark_unclean(store: SqliteStore) -> None:
    """Let go of the board's file as the end of a process does."""
    store._boards.pop(BOARD)._file.abandon()


# --- failure --------------------------------------------------------------------------------------


async def test_a_full_disk_changes_nothing_and_the_board_goes_on(store: SqliteStore) -> None:
    """Reads stay, what fits again is taken, revisions have no gap; others never notice."""
    writer = await Writer.open(store, BOARD)
    other = await Writer.open(store, "other")
    accepted = await fill(writer)
    head = await store.open(BOARD)
    assert (head.revision, head.epoch.id) == (accepted, writer.epoch)
    assert len((await store.list(BOARD, "", limit=99)).entries) == accepted
    assert (await writer.commit(Put("public/0", packed(0)))).revision == accepted + 1
    assert (await other.commit(Put("public/a", packed(1)))).revision == 1
    again = await reopened(store)
    assert (await again.open(BOARD)).revision == accepted + 1
    await again.aclose()


async def test_a_full_disk_begins_no_epoch_without_syncs_either(tmp_path: Path) -> None:
    """Nothing was lost: the same process goes on with the same file."""
    store = await SqliteStore.at(tmp_path, "memory", file_bytes_max=FILE_BYTES)
    writer = await Writer.open(store, BOARD)
    accepted = await fill(writer)
    head = await store.open(BOARD)
    assert (head.revision, head.epoch.id) == (accepted, writer.epoch)
    await store.aclose()


async def fill(writer: Writer) -> int:
    """Write until the disk is full; returns how many commits were accepted before."""
    for number in range(10):
        try:
            await writer.commit(Put(f"public/{number}", BIG))
        except Unavailable:
            assert number
            return number
    raise AssertionError("the disk never filled up")


async def test_every_waiter_learns_of_a_failure(store: SqliteStore) -> None:
    """Commits of the failed group and those behind it, readers, waiters for the log."""
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    too_much = prepare(writer.make(*[Put(f"public/{i}", BIG) for i in range(20)]))
    behind = prepare(writer.make(Put("public/b", packed(1))))
    calls = [
        asyncio.create_task(call)
        for call in (
            store.commit(BOARD, [too_much]),
            store.commit(BOARD, [behind]),
            store.list(BOARD, "", limit=9),
            store.log(BOARD, 1, limit=9, wait_ms=60_000),
        )
    ]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 4
    assert (await store.open(BOARD)).revision == 1
    assert [e.key for e in (await store.list(BOARD, "", limit=9)).entries] == ["public/a"]


LIMITED = """
import asyncio, resource, signal, sys
from blackboard.core.commit import Put
from blackboard.engines.sqlite.store import SqliteStore
from tests.conformance.writer import Writer, packed

async def main():
    store = await SqliteStore.at(sys.argv[1])
    writer = await Writer.open(store, "board")
    await writer.commit(Put("public/a", packed(b"a" * 10_000)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    step = writer.make(Put("public/b", packed(b"b" * 300_000)))
    outcome = await writer.send(step)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    again = await writer.send(step)
    print(outcome.code, again.revision, (await store.open("board")).revision)
    await store.aclose()

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
asyncio.run(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on the size of files")
async def test_a_commit_that_could_not_be_written_is_an_unknown_outcome(tmp_path: Path) -> None:
    """Sending it again finds out; it is applied once. A sync that fails: see test_suspect.py."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await child.communicate()
    assert output.decode().split() == [OutcomeUnknown.code, "2", "2"]


async def test_a_caller_that_gives_up_does_not_stop_the_write(store: SqliteStore) -> None:
    """What was decided is written; sending it again gets the first answer."""
    writer = await Writer.open(store, BOARD)
    step = writer.make(Increment("public/n", 1))
    call = asyncio.create_task(store.commit(BOARD, [prepare(step)]))
    await asyncio.wait([call], timeout=0)
    call.cancel()
    outcome = await writer.send(step)
    assert isinstance(outcome, Committed)
    assert (outcome.revision, outcome.results) == (1, (1,))
    assert (await store.open(BOARD)).revision == 1


async def test_entries_of_a_kilobyte_fill_their_pages(tmp_path: Path) -> None:
    """They once took a page each: log and entries together are less than three times the input."""
    store = await SqliteStore.at(tmp_path, "memory")
    writer = await Writer.open(store, BOARD)
    value = packed(bytes(1_024))
    for _ in range(4):
        await writer.send_all([writer.make(Append("public/steps", value)) for _ in range(100)])
    await store.aclose()
    [file] = (tmp_path / "boards").glob("*.db")
    assert file.stat().st_size < 3 * 400 * 1_024


# --- deadlines of leases --------------------------------------------------------------------------


class Clock:
    """The engine's clock, set by hand."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms * 1_000_000


async def lease_in(store: SqliteStore) -> Lease:
    """The only lease of the board."""
    [lease] = (await store.leases(BOARD)).leases
    return lease


@pytest.mark.parametrize("away_ms", [0, 59_000, 3_600_000, -3_600_000])
async def test_a_lease_has_its_full_time_when_its_board_is_opened_again(
    tmp_path: Path, away_ms: int
) -> None:
    """And so has each ticket; the holder keeps its fence. However long the board was closed, and
    whatever its clock says then."""
    clock = Clock()
    store = await SqliteStore.at(tmp_path, clock_ns=clock)
    ada = await Writer.open(store, BOARD)
    await ada.commit(Grant("public/x", "ada", 60_000))
    await ada.commit(Grant("public/x", "bob", 30_000, wait=True))
    await ada.commit(Renew("public/x", "ada", 1, 60_000))
    await store.aclose()
    clock.ms += away_ms
    again = await SqliteStore.at(tmp_path, clock_ns=clock)
    cyd = await Writer.open(again, BOARD, "cyd")
    opened_ms = clock.ms
    waiting = Waiter("bob", 30_000, opened_ms + 30_000, "ada")
    assert await lease_in(again) == Lease(
        "public/x", "ada", 1, opened_ms + 60_000, (waiting,), 60_000, "ada"
    )
    clock.ms = opened_ms + 59_999
    assert isinstance(await cyd.attempt(Expire("public/x", "ada", 1)), LeaseHeld)
    await cyd.commit(Put("public/y", packed(1)), fences=[HeldFence("public/x", "ada", 1)])
    clock.ms += 1
    await cyd.commit(Renew("public/x", "bob", 0, 30_000))
    await cyd.commit(Expire("public/x", "ada", 1))
    assert (await lease_in(again)).holder == "bob"
    assert isinstance(await cyd.attempt(Renew("public/x", "ada", 1, 60_000)), Fenced)
    await again.aclose()


async def test_a_file_whose_leases_have_deadlines_is_opened_and_brought_up_to_date(
    store: SqliteStore,
) -> None:
    """Those of an older form: it has what was left of it, or the usual time if that is more."""
    ada = await Writer.open(store, BOARD)
    granted = await ada.commit(
        Grant("public/long", "ada", 3_600_000), Grant("public/short", "ada", 100)
    )
    await store.aclose()
    file = BoardFile(board_file(store), level="disk")
    loaded = file.load(BOARD)
    file.abandon()
    with closing(sqlite3.connect(board_file(store))) as connection:
        weight = file.filed.weight
        for key, ttl_ms in (("public/long", 3_600_000), ("public/short", 100)):
            older = (key, msgpack.packb(["ada", 1, granted.time_ms + ttl_ms, "bob", 7, 9]))
            weight += weigh(older) - weigh(LEASE.row(key, loaded.state.leases[key]))
            connection.execute(LEASE.upsert, older)
        place = (1, granted.time_ms, 1, 1)
        connection.execute("UPDATE head SET checksum = ?", (checksum(weight, *place),))
        connection.commit()
    for _ in range(2):
        again = await SqliteStore.at(store.directory)
        await again.open(BOARD)
        long, short = (await again.leases(BOARD)).leases
        assert (long.holder, long.fence, long.ttl_ms) == ("ada", 1, 3_600_000)
        assert (short.ttl_ms, [w.ttl_ms for w in short.waiters]) == (LEASE_TTL_MS, [7])
        await again.aclose()


async def test_leases_from_before_accounts_were_recorded_count_to_nobody(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what was written since, the shares are the same after the board was opened again."""
    monkeypatch.setattr(limits, "LEASES_PER_ACCOUNT_MAX", 2)
    monkeypatch.setattr(limits, "ACCOUNT_INBOX_KEYS_MAX", 1)
    ada = await Writer.open(store, BOARD)
    await ada.commit(Grant("public/a", "ada", 3_600_000), Put("inbox/bob/1", packed(1)))
    await ada.commit(Grant("public/b", "ada", 3_600_000))
    await store.aclose()
    file = BoardFile(board_file(store), level="disk")
    loaded = file.load(BOARD)
    file.abandon()
    older = ("public/a", msgpack.packb(["ada", 1, 3_600_000, []]))
    lease, state = loaded.state.leases["public/a"], loaded.state
    weight = file.filed.weight + weigh(older) - weigh(LEASE.row("public/a", lease))
    place = (state.revision, state.time_ms, state.oldest, state.revision)
    with closing(sqlite3.connect(board_file(store))) as connection:
        connection.execute(LEASE.upsert, older)
        connection.execute("UPDATE head SET checksum = ?", (checksum(weight, *place),))
        connection.commit()
    again = await SqliteStore.at(store.directory)
    try:
        ada = await Writer.open(again, BOARD)
        ada.step = 9
        assert [lease.account for lease in (await again.leases(BOARD)).leases] == ["", "ada"]
        await ada.commit(Grant("public/c", "ada", 3_600_000))
        for op in (Grant("public/d", "ada", 1), Put("inbox/bob/2", packed(1))):
            refused = await ada.attempt(op)
            assert isinstance(refused, LimitExceeded)
            assert refused.account == "ada"
    finally:
        await again.aclose()


async def test_nobody_begins_a_board_that_a_cancelled_removal_still_removes(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread goes on, and would take the journal of the new board away."""
    gate, entered = threading.Event(), threading.Event()
    remove = new.remove

    def remove_at_the_gate(path: Path) -> None:
        entered.set()
        gate.wait()
        remove(path)

    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", BIG))
    monkeypatch.setattr(sqlite_store, "remove", remove_at_the_gate)
    removing = asyncio.create_task(store.remove(BOARD))
    await asyncio.to_thread(entered.wait)
    removing.cancel()
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    try:
        with pytest.raises(Unavailable):
            await store.open(BOARD, again=True)
    finally:
        gate.set()
    with pytest.raises(asyncio.CancelledError):
        await removing
    await store.open(BOARD, again=True)
    again = await Writer.open(store, BOARD)
    await again.commit(Put("public/b", BIG))
    assert [entry.key for entry in (await store.list(BOARD, "public", limit=9)).entries] == [
        "public/b"
    ]


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancelled_removal_leaves_no_file_open(store: SqliteStore, turns: int) -> None:
    """At most one writer has a board's file; what is let go of is closed, or warned of here."""
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", BIG))
    removing = asyncio.create_task(store.remove(BOARD))
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    removing.cancel()
    await asyncio.wait([removing])
    gc.collect()
    with contextlib.suppress(NoSuchBoard):
        await (await Writer.open(store, BOARD)).commit(Put("public/a", BIG))
    await store.remove(BOARD)


async def test_closing_waits_for_a_board_that_is_being_removed(store: SqliteStore) -> None:
    """Its last commit, and closing its file, need the threads that closing the store ends."""
    writer = await Writer.open(store, BOARD)
    is_free = threading.Event()
    for _ in range(sqlite_store._WRITERS):
        store._threads.writers.submit(is_free.wait)
    commit = asyncio.create_task(writer.commit(Put("public/a", packed(1))))
    await anyio.lowlevel.checkpoint()
    removal = asyncio.create_task(store.drop(BOARD))

    async def is_let_go() -> bool:
        return BOARD not in store._boards

    await wait_until(is_let_go)
    closing = asyncio.create_task(store.aclose())
    await anyio.lowlevel.checkpoint()
    assert not closing.done()
    is_free.set()
    assert (await commit).revision == 1
    with pytest.raises(Unavailable, match="the store was closed"):
        await removal
    await closing
    again = await SqliteStore.at(store.directory)
    assert (await again.open(BOARD)).revision == 1
    await again.aclose()


async def test_opening_that_is_cancelled_gives_the_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that takes it cannot be stopped: what it took is released when it ends."""
    gate = threading.Event()
    take = data_directory._take

    def take_at_the_gate(where: DataDirectory, heads_max: int) -> TakenDirectory:
        gate.wait()
        return take(where, heads_max)

    monkeypatch.setattr(data_directory, "_take", take_at_the_gate)
    for times in (1, 2):
        gate.clear()
        opening = asyncio.create_task(SqliteStore.at(tmp_path))
        for _ in range(times):
            await anyio.lowlevel.checkpoint()
            opening.cancel()
        done, _ = await asyncio.wait([opening], timeout=0)
        gate.set()
        assert len(done) == times - 1  # once cancelled, it waits for its thread
        await asyncio.wait([opening])
        assert opening.cancelled()
        await wait_until(partial(_can_be_opened, tmp_path))


async def _can_be_opened(directory: Path) -> bool:
    try:
        store = await SqliteStore.at(directory)
    except DataDirectoryInUse:
        return False
    await store.aclose()
    return True


async def test_a_directory_that_could_not_be_taken_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not when the error is forgotten: an error that is kept keeps what it came by."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "cannot be written")

    with monkeypatch.context() as broken:
        broken.setattr(data_directory, "write_owner", fail)
        with pytest.raises(Unavailable) as failed:
            await SqliteStore.at(tmp_path)
    store = await SqliteStore.at(tmp_path)
    await store.aclose()
    assert "cannot be written" in str(failed.value)
