"""A large board that is opened without its entries: what calls load, what waits for it, and how
much of it stays in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from blackboard.core.commit import (
    FORWARD,
    RESTORE,
    Append,
    Committed,
    Delete,
    Epoch,
    Increment,
    KeyAt,
    ListOptions,
    Op,
    PrefixUnchanged,
    Put,
    PutBack,
)
from blackboard.core.directories import Children
from blackboard.core.model import Outcome
from blackboard.core.path import ranges_of
from blackboard.engines.sqlite import board as sqlite_board
from blackboard.engines.sqlite.cache import CHILDREN_AHEAD, LoadedEntries, loaded_of
from blackboard.engines.sqlite.file import BoardFile
from blackboard.engines.sqlite.group import Parts
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.engines.sqlite.tablets import Span
from blackboard.errors import Conflict, Corrupt, OutcomeUnknown, Unavailable
from blackboard.limits import Limits
from blackboard.wire.codec import Prepared, prepare
from tests.conformance.writer import Writer
from tests.lowered import lowered
from tests.unit.core.trial import packed
from tests.unit.engines.sqlite.opened import Opened, turn
from tests.unit.engines.sqlite.test_follower import Written
from tests.unit.engines.sqlite.test_tablets import COLD, follow, k, puts
from tests.waiting import wait_until

Reopen = Callable[[Written], Opened]
PATIENCE_S = 60.0
KEYS = 20
"""In ten tablets."""


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The closed file of a board whose entries are in tablets of two."""
    made = Written(tmp_path / "board.db", COLD)
    follow(made, *puts(*range(KEYS)))
    made.file.close()
    return made


@pytest.fixture
async def reopen() -> AsyncIterator[Reopen]:
    """Opens the board of a closed file, without its entries."""
    opened: list[Opened] = []

    def reopened(written: Written) -> Opened:
        opened.append(Opened(written.path, limits=COLD))
        opened[-1].trial.step = written.trial.step
        return opened[-1]

    yield reopened
    for each in opened:
        await each.board.aclose()


@pytest.fixture
async def cold(reopen: Reopen, written: Written) -> Opened:
    """The board, opened again."""
    return reopen(written)


def unloaded(cold: Opened) -> int:
    """How many tablets of the board are not loaded."""
    return loaded_of(cold.board._state).unloaded


def made(cold: Opened, *ops: Any, agent: str = "ada", **named: Any) -> Prepared:
    """The next commit of an agent."""
    return prepare(cold.trial.make(*ops, agent=agent, **named))


# --- reading --------------------------------------------------------------------------------------


async def test_a_read_loads_the_tablets_of_its_keys(cold: Opened) -> None:
    """And of no others."""
    assert unloaded(cold) == 10
    reading = await cold.board.read([k(3), "public/none", k(9)])
    assert [entry.key for entry in reading.entries] == [k(3), k(9)]
    assert unloaded(cold) == 7
    assert cold.reading.writes == 1
    await cold.board.read([k(2), k(8)])
    assert cold.reading.writes == 1


async def test_a_page_loads_what_it_shows(cold: Opened) -> None:
    """From where it begins, in either direction."""
    page = await cold.board.page("public", after=k(9), limit=4)
    assert [entry.key for entry in page.entries] == [k(10), k(11), k(12), k(13)]
    assert page.next_key == k(13)
    assert unloaded(cold) == 6
    options = ListOptions(reverse=True, keys_only=True)
    page = await cold.board.page("public", after=None, limit=3, options=options)
    assert [entry.key for entry in page.entries] == [k(19), k(18), k(17)]
    assert unloaded(cold) == 4
    page = await cold.board.page("public", after=None, limit=100)
    assert [entry.key for entry in page.entries] == [k(number) for number in range(KEYS)]
    assert unloaded(cold) == 0


async def test_a_listing_by_directory_counts_what_it_does_not_load(
    tmp_path: Path, reopen: Reopen
) -> None:
    """Of each directory it looks at the tablets at its ends, and what was read ahead of them."""
    written = Written(tmp_path / "board.db", COLD)
    names = [f"public/{folder}/{number:04d}" for folder in "abc" for number in range(900)]
    for first in range(0, len(names), 1_000):
        follow(written, *(Put(name, packed(1)) for name in names[first : first + 1_000]))
    follow(written, Put("public/one", packed(1)))
    written.file.close()
    cold = reopen(written)
    before = unloaded(cold)
    reading = await cold.board.children(Children("public", 9), ranges_of("public"), FORWARD)
    assert [(each.prefix, each.keys) for each in reading.directories] == [
        ("public/a", 900),
        ("public/b", 900),
        ("public/c", 900),
    ]
    assert [entry.key for entry in reading.entries] == ["public/one"]
    read = before - unloaded(cold)
    assert read * 2 <= 4 * (CHILDREN_AHEAD + 8)
    assert before * 2 > 2_600


async def test_what_has_expired_is_found_in_tablets_that_are_not_loaded(
    written: Written, reopen: Reopen
) -> None:
    """Without loading the others."""
    written.file = BoardFile(written.path, level="disk", limits=COLD)
    written.file.load("board")
    follow(written, Put(k(5), packed(5), ttl_ms=50), Put(k(15), packed(5), ttl_ms=10))
    written.file.close()
    cold = reopen(written)
    due = await cold.board.due(limit=9, by_ms=1_049)
    assert [entry.key for entry in due.entries] == [k(15)]
    due = await cold.board.due(limit=9, by_ms=1_050)
    assert [entry.key for entry in due.entries] == [k(15), k(5)]
    assert unloaded(cold) == 8


# --- commits --------------------------------------------------------------------------------------


async def test_a_commit_loads_what_it_looks_at(cold: Opened) -> None:
    """Its conditions see what is in the file."""
    [outcome] = await cold.board.commit(
        [made(cold, Put(k(4), packed(1)), conditions=[KeyAt(k(6), 0)])]
    )
    assert isinstance(outcome, Conflict)
    assert outcome.actual == 1
    [outcome] = await cold.board.commit([made(cold, Increment(k(7), 5))])
    assert isinstance(outcome, Committed)
    assert outcome.results == (12,)
    condition = PrefixUnchanged("public", 1)
    [outcome] = await cold.board.commit([made(cold, Put(k(4), packed(1)), conditions=[condition])])
    assert isinstance(outcome, Conflict)
    assert outcome.key == k(7)
    [outcome] = await cold.board.commit([made(cold, Append("public/l", packed(1)), Delete(k(19)))])
    assert isinstance(outcome, Committed)
    assert outcome.results == ("public/l/0000000000", 1)


async def test_commits_to_what_is_loaded_do_not_wait(cold: Opened) -> None:
    """While another one loads; a call that is cancelled meanwhile takes nothing with it."""
    await cold.board.commit([made(cold, Put(k(0), packed(1)))])
    cold.reading.open.clear()
    calls: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(cold.board.commit([made(cold, Put(k(11), packed(1)), agent="bob")])),
        asyncio.ensure_future(cold.board.commit([made(cold, Put(k(17), packed(1)), agent="cyd")])),
        asyncio.ensure_future(cold.board.read([k(15)])),
    ]
    await turn()
    [outcome] = await cold.board.commit([made(cold, Put(k(1), packed(1)))])
    assert isinstance(outcome, Committed)
    assert not any(call.done() for call in calls)
    assert not cold.board.is_unused
    calls[0].cancel()
    cold.reading.open.set()
    [other], reading = await calls[1], await calls[2]
    assert isinstance(other, Committed)
    assert [entry.key for entry in reading.entries] == [k(15)]
    assert (await cold.board.read([k(11)])).entries[0].mod_revision == 1
    assert cold.board.is_unused


async def test_a_commit_whose_board_fails_while_it_loads_is_refused(
    cold: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would write it, and nobody answer it."""
    load = cold.board.loader.load

    async def load_last(spans: Sequence[Span]) -> None:
        await load(spans)
        cold.board.give_up("it is loaded again")

    monkeypatch.setattr(cold.board.loader, "load", load_last)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(Unavailable, match="loaded again"):
            await cold.board.commit([made(cold, Put(k(4), packed(1)))])


async def test_a_batch_is_begun_at_once_only_if_all_of_it_is_loaded(cold: Opened) -> None:
    """Else its caller waits, as for a full group."""
    batch = [made(cold, Put(k(0), packed(1))), made(cold, Put(k(9), packed(1)), agent="bob")]
    answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
    assert not cold.board.begin(batch, answer)
    assert all(isinstance(outcome, Committed) for outcome in await cold.board.commit(batch))
    again = [made(cold, Put(k(0), packed(2))), made(cold, Put(k(9), packed(2)), agent="bob")]
    assert cold.board.begin(again, answer)
    assert all(isinstance(outcome, Committed) for outcome in await answer)
    assert not cold.board.begin([made(cold, Append("public/l", packed(1)))], answer)


async def test_a_large_restore_of_a_board_that_is_not_loaded(
    cold: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that it changes is loaded before a thread has the state for itself."""
    monkeypatch.setattr(sqlite_board, "_APART_OPS", 8)
    ops: list[Op] = [*(PutBack(k(n), packed(n + 1), None) for n in range(12)), Delete(k(19))]
    begins = Epoch(2, "second", RESTORE, 1, 2)
    restore = prepare(replace(cold.trial.make(*ops, agent="bob"), begins=begins))
    [outcome] = await cold.board.commit([restore])
    assert isinstance(outcome, Committed)
    page = await cold.board.page("public", after=None, limit=100)
    assert [entry.value for entry in page.entries] == [
        packed(number + (number < 12)) for number in range(KEYS - 1)
    ]


async def test_a_damaged_tablet_fails_the_calls_that_look_at_it(
    written: Written, reopen: Reopen
) -> None:
    """The others go on, and the board stays open."""
    written.damage(f"UPDATE entry SET value = x'c0' WHERE key = '{k(9)}'")
    cold = reopen(written)
    for _ in range(2):
        with pytest.raises(Corrupt):
            await cold.board.read([k(8)])
        with pytest.raises(Corrupt):
            await cold.board.commit([made(cold, Put(k(9), packed(1)))])
        with pytest.raises(Corrupt):
            await cold.board.page("public", after=None, limit=100)
        [outcome] = await cold.board.commit([made(cold, Put(k(1), packed(1)))])
        assert isinstance(outcome, Committed)
        assert (await cold.board.read([k(10)])).entries


async def test_the_log_is_not_cut_by_a_damaged_index(written: Written, reopen: Reopen) -> None:
    """It says which values have to be moved before."""
    cold = reopen(written)
    assert (await cold.board.compact(2)).oldest == 2
    await cold.board.aclose()
    written.damage(
        "PRAGMA writable_schema=ON;"
        "UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', 'NULL') WHERE type = 'index';"
        "REINDEX entry_in_log; VACUUM;"
    )
    written.damage(
        "PRAGMA writable_schema=ON;"
        "UPDATE sqlite_schema SET sql = replace(sql, 'place IS NULL', 'place IS NOT NULL')"
    )
    damaged = reopen(written)
    await damaged.board.commit([made(damaged, Put(k(0), packed(1)))])
    before = damaged.board.head.oldest
    with pytest.raises(Corrupt, match="index"):
        await damaged.board.compact(3)
    assert damaged.board.head.oldest == before


# --- a batch in parts -----------------------------------------------------------------------------


def future(outcomes: list[Outcome] | Exception) -> "asyncio.Future[list[Outcome]]":
    """An answer."""
    made: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
    if isinstance(outcomes, list):
        made.set_result(outcomes)
    else:
        made.set_exception(outcomes)
    return made


async def test_what_was_decided_before_a_failure_keeps_its_outcome(cold: Opened) -> None:
    """What was not is unknown then; if nothing was, the error is that of all."""
    batch = [made(cold, Put(k(n), packed(1)), agent=f"a{n}") for n in range(3)]
    committed = Committed(2, 1, ())
    parts = Parts(batch)
    parts.decided(0, future([]))
    assert parts.left == batch
    parts.decided(1, future([committed]))
    parts.decided(1, future([committed]))
    parts.failed(Corrupt("board.db", "a tablet"))
    first, second, third = await parts.outcomes()
    assert (first, second) == (committed, committed)
    assert isinstance(third, OutcomeUnknown)
    assert (third.agent, third.final) == ("a2", False)
    assert "a tablet" in third.reason
    with pytest.raises(Corrupt):
        Parts(batch).failed(Corrupt("board.db", "a tablet"))
    parts = Parts(batch)
    parts.decided(2, future(Unavailable("board", "closed")))
    parts.decided(1, future(Unavailable("board", "closed")))
    with pytest.raises(Unavailable):
        await parts.outcomes()
    assert await Parts([]).outcomes() == []


# --- how much stays -------------------------------------------------------------------------------


async def fill(store: SqliteStore, board: str, keys: int) -> None:
    """So many entries of a kilobyte and a half each, with what memory takes for them."""
    writer = await Writer.open(store, board)
    for first in range(0, keys, 50):
        numbers = range(first, min(first + 50, keys))
        await writer.commit(*(Put(f"public/{n:04d}", packed("x" * 1_000)) for n in numbers))


def memory(store: SqliteStore) -> int:
    """What the entries of all boards take."""
    return sum(board.loader.bytes for board in store._boards.values())


@pytest.mark.limits(boards_cache_bytes=300_000, boards_whole_keys=16, tablet_keys_max=16)
async def test_entries_of_open_boards_take_a_bounded_memory(tmp_path: Path, limits: Limits) -> None:
    """However many are read; each is found again."""
    store = await SqliteStore.at(tmp_path, limits=limits)
    await fill(store, "large", 600)
    await store.aclose()
    store = await SqliteStore.at(tmp_path, limits=limits)
    await store.open("large")
    for first in range(0, 600, 20):
        keys = [f"public/{n:04d}" for n in range(first, first + 20)]
        assert len((await store.read("large", keys)).entries) == 20
        await turn()
        assert memory(store) <= 300_000 + 4 * 8 * 1_600  # and what the last call looked at
    entries: Any = store._boards["large"]._state.entries
    assert isinstance(entries, LoadedEntries)
    assert 50 < len(entries) < 250
    await store.aclose()


@pytest.mark.limits(boards_cache_bytes=300_000, boards_whole_keys=16, tablet_keys_max=16)
async def test_the_board_that_was_used_longest_ago_gives_first(
    tmp_path: Path, limits: Limits
) -> None:
    """The other one keeps what it has."""
    store = await SqliteStore.at(tmp_path, limits=limits)
    for name in ("old", "new"):
        await fill(store, name, 100)
    await store.aclose()
    store = await SqliteStore.at(tmp_path, limits=limits)
    for name in ("old", "new"):
        await store.open(name)
        page = await store.list(name, "public", limit=100)
        assert len(page.entries) == 100
    old, new = (store._boards[name].loader for name in ("old", "new"))

    async def fits() -> bool:
        store._cache.fit()
        return old.bytes + new.bytes <= 300_000

    await wait_until(fits)
    assert old.bytes < 150_000
    assert new.bytes >= 150_000
    await store.aclose()


@pytest.mark.limits(boards_cache_bytes=1, boards_whole_keys=16, tablet_keys_max=16)
async def test_what_the_file_does_not_hold_yet_stays(tmp_path: Path, limits: Limits) -> None:
    """Until the tables have followed; a board of few entries is read whole again."""
    store = await SqliteStore.at(tmp_path, limits=limits)
    await fill(store, "large", 100)
    board = store._boards["large"]
    before = board.loader.bytes
    for _ in range(20):
        store._cache.fit()
    assert board.loader.bytes == before
    board._backlog.hurry()
    board._start_soon()

    async def are_gone() -> bool:
        store._cache.fit()
        return board.loader.bytes < before / 10

    await wait_until(are_gone)
    page = await store.list("large", "public", limit=200)
    assert len(page.entries) == 100
    await store.aclose()
    store = await SqliteStore.at(tmp_path, limits=lowered(boards_whole_keys=100))
    await store.open("large")
    assert loaded_of(store._boards["large"]._state).unloaded == 0
    await store.aclose()
    for few in (lowered(boards_whole_keys=99), lowered(boards_cache_bytes=100_000)):
        store = await SqliteStore.at(tmp_path, limits=few)
        await store.open("large")
        assert loaded_of(store._boards["large"]._state).unloaded > 0
        await store.aclose()


async def test_what_is_being_written_stays(cold: Opened) -> None:
    """Its rows of before would be read again."""
    await cold.board.commit([made(cold, Put(k(0), packed("new")))])
    cold.gate.open.clear()
    cold.board._backlog.hurry()
    cold.board._start_soon()
    await turn()
    for _ in range(3):
        cold.board.loader.evict(2**62)
    reading = asyncio.ensure_future(cold.board.read([k(0), k(1)]))
    await turn()
    cold.gate.open.set()
    assert [entry.value for entry in (await reading).entries] == [packed("new"), packed(1)]
