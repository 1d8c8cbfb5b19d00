"""Boards of the embedded engine that nobody uses are closed, and loaded again."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from blackboard.core.commit import Committed, Grant, Put
from blackboard.core.model import Outcome
from blackboard.engines.sqlite import store as sqlite_store
from blackboard.engines.sqlite.file import BoardFile, WriteError
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from blackboard.limits import HOLD_MS_MAX
from blackboard.wire.codec import prepare
from tests.conformance.writer import Writer
from tests.lowered import lowered
from tests.unit.engines.sqlite.opened import Opened, turn
from tests.waiting import wait_until

FEW = lowered(boards_unused_max=1, boards_unused_ms=1)
"""Two boards that nobody uses stay open."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An engine that keeps few boards open."""
    opened = await SqliteStore.at(tmp_path, limits=FEW)
    yield opened
    await opened.aclose()


async def closed(store: SqliteStore) -> None:
    """Wait until no board is being closed."""

    async def are_closed() -> bool:
        return not store._leaving

    await wait_until(are_closed)


async def test_those_that_were_used_longest_ago_are_closed(store: SqliteStore) -> None:
    writers = [await Writer.open(store, name) for name in "abcdefgh"]
    for writer in writers:
        await writer.commit(Put("public/x", writer.board.encode()))
        await store.read("a", ["public/x"])
    assert sorted(store._boards) == ["a", "h"]
    await closed(store)
    for name in "abcdefgh":
        head, [entry] = await store.open(name), (await store.read(name, ["public/x"])).entries
        assert (head.revision, head.epoch.number, entry.value) == (1, 1, name.encode())


async def test_what_was_used_just_now_stays_while_there_are_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.at(tmp_path, limits=lowered(FEW, boards_unused_ms=3_600_000))
    for name in "abcdef":
        await store.open(name)
    assert len(store._boards) == 6
    monkeypatch.setattr(sqlite_store, "files_max", lambda: 8 * 5)  # half of them for boards
    await store.open("g")
    assert sorted(store._boards) == ["c", "d", "e", "f", "g"]
    await store.aclose()


async def test_they_are_closed_also_if_no_other_is_opened(tmp_path: Path) -> None:
    limits = lowered(FEW, known_heads_interval_ms=20, boards_unused_ms=300)
    store = await SqliteStore.at(tmp_path, limits=limits)
    for name in "abcdef":
        await store.open(name)

    async def are_few() -> bool:
        return len(store._boards) == 2

    await wait_until(are_few)
    await store.aclose()


async def test_a_commit_that_is_begun_is_a_use(store: SqliteStore) -> None:
    writer = await Writer.open(store, "a")
    await store.open("b")
    answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
    assert store.begin("a", [prepare(writer.make(Put("public/x", b"1")))], answer)
    [outcome] = await answer
    assert isinstance(outcome, Committed)
    await store.open("c")
    assert sorted(store._boards) == ["a", "c"]


async def test_many_that_are_opened_at_once_all_answer(store: SqliteStore) -> None:
    """Those that were just loaded are not closed before their callers have used them."""
    names = [f"b{number}" for number in range(40)]
    for name in names:
        await (await Writer.open(store, name)).commit(Put("public/x", name.encode()))
    await closed(store)
    readings = await asyncio.gather(*(store.read(name, ["public/x"]) for name in names * 3))
    found = [reading.entries[0].value.decode() for reading in readings]
    assert found == names * 3
    await store.open("last")
    assert len(store._boards) <= 2


CALLS: dict[str, Callable[[Opened], Awaitable[object]]] = {
    "a commit": lambda opened: opened.commit(),
    "a reader of the log": lambda opened: opened.board.log(3, limit=9, wait_ms=60_000),
    "a reader of the old log": lambda opened: opened.board.log(1, limit=9, wait_ms=0),
    "a compaction": lambda opened: opened.board.compact(1),
    "a scrub": lambda opened: opened.board.scrub(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_board_that_is_called_is_not_unused(opened: Opened, call: str) -> None:
    """From the beginning of the call to its end; the call may have to wait for either thread."""
    board, gates = opened.board, (opened.gate, opened.reading)
    await opened.commit(3)
    if call == "a reader of the old log":
        board.tail.forget(9)
    assert board.is_unused
    for gate in gates:
        gate.open.clear()
    task = asyncio.ensure_future(CALLS[call](opened))
    await turn()
    assert not board.is_unused
    for gate in gates:
        gate.open.set()
    if call == "a reader of the log":
        await opened.commit()
    await task
    assert board.is_unused


async def test_a_reader_that_was_woken_still_uses_the_board(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is being written any more, and the reader has not continued yet."""
    board, wake = opened.board, opened.board._wake
    seen: list[bool] = []

    def look_and_wake() -> None:
        seen.append(board.is_unused)
        wake()

    opened.gate.open.clear()
    commit = asyncio.create_task(opened.commit())
    await turn()
    read = asyncio.create_task(board.read(["public/n"]))
    await turn()
    commit.cancel()
    await turn()
    monkeypatch.setattr(board, "_wake", look_and_wake)
    opened.gate.open.set()
    assert len((await read).entries) == 1
    assert seen == [False]
    assert board.is_unused


async def test_a_board_with_a_lease_stays_open(store: SqliteStore) -> None:
    """When it is loaded, every lease has its full time to live again."""
    held = await Writer.open(store, "held")
    await held.commit(Grant("public/lock", "ann", 60_000))
    [before] = (await store.leases("held")).leases
    for name in "abcd":
        await store.open(name)
    assert "held" in store._boards
    assert (await store.leases("held")).leases == (before,)


async def test_a_held_board_stays_open(store: SqliteStore) -> None:
    await store.open("held")
    await store.hold("held", HOLD_MS_MAX)
    for name in "abcd":
        await store.open(name)
    assert "held" in store._boards
    await store.hold("held", 0)
    for name in "ef":
        await store.open(name)
    assert "held" not in store._boards


async def test_a_board_is_loaded_once_it_is_closed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two openings of its file would damage it."""
    gate, close = asyncio.Event(), store._close_one

    async def slowly(board: object) -> None:
        await gate.wait()
        await close(board)  # type: ignore[arg-type]

    writer = await Writer.open(store, "main")
    await writer.commit(Put("public/x", b"1"))
    monkeypatch.setattr(store, "_close_one", slowly)
    for name in "ab":
        await store.open(name)
    assert store._leaving
    read = asyncio.create_task(store.read("main", ["public/x"]))
    batch = [prepare(writer.make(Put("public/y", b"2")))]
    commit = asyncio.create_task(store.commit("main", batch))
    await turn()
    done = read.done() or commit.done() or "main" in store._boards
    gate.set()
    assert not done
    assert (await read).entries[0].value == b"1"
    [outcome] = await commit
    assert isinstance(outcome, Committed)
    assert outcome.revision == 2


async def test_the_heads_of_closed_boards_are_known(tmp_path: Path) -> None:
    """Also if they were closed before the known heads were written."""
    store = await SqliteStore.at(tmp_path, limits=lowered(FEW, known_heads_interval_ms=3_600_000))
    for name in "abcd":
        await (await Writer.open(store, name)).commit(Put("public/x", b"1"))
    assert set(store._left) == {"a", "b"}
    await store.aclose()
    for name in "abcd":
        known = store._heads.get(name)
        assert known is not None
        assert known.revision == 1


async def test_a_board_that_cannot_be_closed_in_order_is_not_trusted(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync, it is Unavailable; the others are not."""
    writer = await Writer.open(store, "main")
    await writer.commit(Put("public/x", b"1"))
    close = BoardFile.close

    def fail(file: BoardFile) -> None:
        if file.path.stem == "main":
            file.suspect = True
            file.abandon()
            raise Unavailable("board main", "its sync failed")
        close(file)

    monkeypatch.setattr(BoardFile, "close", fail)
    for name in "abc":
        await store.open(name)
    await closed(store)
    with pytest.raises(Unavailable, match="sync"):
        await store.read("main", ["public/x"])
    assert (await store.open("a")).revision == 0


async def test_a_board_that_failed_is_closed_like_others(store: SqliteStore) -> None:
    writer = await Writer.open(store, "main")
    await writer.commit(Put("public/x", b"1"))
    store._boards["main"]._fail(WriteError("for a test", certain=True))
    for name in "abc":
        await store.open(name)
    await closed(store)
    assert (await store.read("main", ["public/x"])).entries[0].value == b"1"


MANY_BOARDS = """
import asyncio, os, resource, sys
import blackboard
resource.setrlimit(resource.RLIMIT_NOFILE, (700, 700))
async def main():
    async with blackboard.open(sys.argv[1]) as client:
        for number in range(220):
            await client.board(f"b{number}").put("public/x", number)
        print(await client.board("b0").get("public/x"), len(os.listdir("/proc/self/fd")) < 650)
asyncio.run(main())
"""


async def test_more_boards_than_a_process_may_have_files_for(tmp_path: Path) -> None:
    """An ordinary process may open 1,024 files; a board has four."""
    assert await printed_by(MANY_BOARDS, tmp_path / "data") == "0 True\n"


async def printed_by(program: str, data: Path) -> str:
    """What a program prints that gets a data directory. It has a process of its own, because it
    lowers the number of files that this may open."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(data)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await child.communicate()
    return output.decode()


FEW_FILES = """
import asyncio, os, resource, sys
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable

async def main():
    store = await SqliteStore.at(sys.argv[1])
    await store.open("main")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for more in range(5):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + more, hard))
        try:
            await store.open("other")
        except Unavailable as error:
            print(error.reason)
        await store.read("main", ["public/x"])
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print((await store.open("other")).revision)
    await store.aclose()

asyncio.run(main())
"""


async def test_too_many_files_are_not_called_a_full_disk(tmp_path: Path) -> None:
    """Whichever of the files of a board is the first that cannot be opened."""
    store = await SqliteStore.at(tmp_path)
    for name in ("main", "other"):
        await store.open(name)
    await store.aclose()
    *reasons, revision = (await printed_by(FEW_FILES, tmp_path)).splitlines()
    assert any("Too many open files" in reason for reason in reasons)
    assert any("this process may open no more files" in reason for reason in reasons)
    assert all("room" not in reason for reason in reasons)
    assert revision == "0"
