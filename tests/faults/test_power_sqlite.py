"""The power goes while the embedded engine writes: what was acknowledged is there, nothing else.

BLACKBOARD_TEST_CUTS=500 makes it long.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from blackboard.core.commit import ENGINE, Commit, CommitId, Committed, LogEntry, Op, Put
from blackboard.engines.sqlite import file as sqlite_file, follower, suspect
from blackboard.engines.sqlite.file import Level
from blackboard.engines.sqlite.journal import journal_path
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, Unavailable
from blackboard.wire.codec import encode_value, prepare
from tests.conformance.machines import undated
from tests.faults.disk import Cut, Event, Lost, Power, Recorder, Synced, Told, recorded
from tests.faults.sqlite_child import FORGETFUL, random_ops
from tests.faults.test_sqlite_crash import copy_board, first_epoch, load, replay
from tests.proof import Layer
from tests.waiting import wait_until

CUTS = int(os.environ.get("BLACKBOARD_TEST_CUTS", "60"))
WRITERS = 6
COMMITS = 40
"""Of each writer."""
RESTS = 4
"""Moments in a run in which the board is idle."""
BOARD = "crash"
FOLLOW_ROWS = 50
"""After so many commits the tables follow."""
WAL_PAGES = 150
"""Between two checkpoints, so that a run has several and the journal begins again."""


async def write(
    store: SqliteStore,
    recorder: Recorder,
    number: int,
    dice: random.Random,
    steps: range = range(1, COMMITS + 1),
) -> None:
    """Commit, and note each acknowledgement in the moment in which it comes."""
    epoch = (await store.open(BOARD)).epoch.id
    for step in steps:
        ops = random_ops(dice)
        prepared = prepare(Commit(CommitId(f"agent{number}", 0, "1", step), epoch, ops))
        [outcome] = await store.commit(BOARD, [prepared])
        assert isinstance(outcome, Committed), outcome
        recorder.events.append(Told(outcome.revision, prepared.digest))


async def rest(store: SqliteStore) -> None:
    """Write nothing until the board is idle and has emptied its journal."""
    board = store._boards[BOARD]
    board._idle_s = 0.0
    board._look_if_idle()

    async def is_short() -> bool:
        size = journal_path(board._file.path).stat().st_size
        return size <= sqlite_file._IDLE_JOURNAL_BYTES

    await wait_until(is_short)


async def record(directory: Path, dice: random.Random) -> tuple[dict[str, bytes], list[Event]]:
    """The files of a new board, and what became of them while six writers were at it."""
    store = await SqliteStore.at(directory, limits=FORGETFUL)
    await store.open(BOARD)
    await store.aclose()
    before = {str(path): path.read_bytes() for path in (directory / "boards").iterdir()}
    with recorded() as recorder:
        store = await SqliteStore.at(directory, limits=FORGETFUL)
        for first in range(1, COMMITS + 1, COMMITS // RESTS):
            steps = range(first, first + COMMITS // RESTS)
            await asyncio.gather(*(write(store, recorder, i, dice, steps) for i in range(WRITERS)))
            await rest(store)
        events = list(recorder.events)
        await store.aclose()
    assert any(str(event.path).endswith("-wal") for event in events if not isinstance(event, Told))
    return before, events


def check_whole(path: Path, told: Sequence[Told], log: Sequence[LogEntry]) -> int:
    """The opened board is a prefix of the log with every acknowledged commit; returns its
    length."""
    state, found = load(path)
    digests = [entry.digest for entry in found]
    assert digests == [entry.digest for entry in log[: len(found)]]
    for one in told:
        assert digests[one.revision - 1] == one.digest, one
    assert undated(replay(found, first_epoch(state))) == undated(state)
    return len(found)


async def test_nothing_that_was_acknowledged_is_lost_with_the_power(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at any write, truncation, sync or acknowledgement; with any of the unsynced sectors."""
    monkeypatch.setattr(sqlite_file, "_WAL_PAGES", WAL_PAGES)
    monkeypatch.setattr(follower, "FOLLOW_ROWS", FOLLOW_ROWS)
    dice = random.Random(seed)
    (tmp_path / "cut").mkdir()
    before, events = await record(tmp_path, dice)
    _, log = load(tmp_path / "boards" / f"{BOARD}.db")
    moments = Counter(dice.randrange(len(events) + 1) for _ in range(CUTS))
    power = Power({path: content for path, content in before.items() if path.endswith(".db")})
    with Layer("power", seeds=[seed]) as layer:
        for number in range(len(events) + 1):
            for _ in range(moments[number]):
                power.is_cut(tmp_path / "cut", dice.choice(get_args(Lost)), dice)
                check_whole(tmp_path / "cut" / f"{BOARD}.db", power.told, log)
                layer.faults["cut"] += 1
                layer.operations += len(power.told)
            if number < len(events):
                power.goes_on(events[number])
    assert len(power.told) == WRITERS * COMMITS


@pytest.fixture
async def crashed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a board whose process was killed: a part of it is only in the journal."""
    monkeypatch.setattr(sqlite_file, "_WAL_PAGES", WAL_PAGES)
    monkeypatch.setattr(follower, "FOLLOW_ROWS", FOLLOW_ROWS)
    store, dice, recorder = await SqliteStore.at(tmp_path), random.Random(seed), Recorder()
    await asyncio.gather(*(write(store, recorder, i, dice) for i in range(WRITERS)))
    await store.aclose()
    monkeypatch.setattr(sqlite_file, "_WAL_PAGES", 10_000)
    store = await SqliteStore.at(tmp_path)
    for number in range(WRITERS, WRITERS + 3):
        await write(store, recorder, number, dice)
    copied = copy_board(tmp_path / "boards" / f"{BOARD}.db", tmp_path / "crashed.db")
    await store.aclose()
    return copied


@pytest.mark.parametrize("part", ["", "-wal"], ids=["file", "journal"])
async def test_a_bit_that_flips_is_noticed(
    crashed: Path, tmp_path: Path, seed: int, part: str
) -> None:
    """Wherever it is: the board is as it was, or it is refused, and refused again.

    Only damage to the last transactions of the journal looks as if the power had cut them off.
    """
    dice = random.Random(seed)
    victim = tmp_path / "flipped.db"
    state, log = load(copy_board(crashed, victim))
    outcomes: Counter[str] = Counter()
    with Layer("power", seeds=[seed]) as layer:
        for _ in range(CUTS // 2):
            flip(copy_board(crashed, victim), part, dice)
            layer.faults["flipped bit"] += 1
            journal = journal_of(victim)
            try:
                found, entries = load(victim)
            except (Corrupt, Unavailable):
                outcomes["refused"] += 1
                if "journal is damaged" in refusal(victim):
                    assert journal_of(victim) == journal
                continue
            outcomes["as it was" if found == state else "cut off"] += 1
            assert entries == log[: len(entries)]
            assert undated(replay(entries, first_epoch(found))) == undated(found)
            assert len(log) - len(entries) <= (2 if part else 0)
            layer.operations += len(entries)
    # Nearly all of the journal, and most of the file, is something that is read.
    assert outcomes["refused"] > CUTS // 20, outcomes


def journal_of(path: Path) -> bytes:
    """The journal of a board's file."""
    return Path(f"{path}-wal").read_bytes()


def refusal(path: Path) -> str:
    """Why a file is refused that was refused before."""
    with pytest.raises((Corrupt, Unavailable)) as refused:
        load(path)
    return str(refused.value)


def flip(path: Path, part: str, dice: random.Random) -> None:
    """One bit of a board's file, or of its journal, anywhere."""
    target = Path(f"{path}{part}")
    content = bytearray(target.read_bytes())
    content[int(dice.random() * len(content))] ^= 1 << dice.randrange(8)
    target.write_bytes(content)


# --- the power goes twice -------------------------------------------------------------------------


LARGE = Put("public/large", encode_value("L" * 60_000))
"""Many frames of a journal."""
SMALL = Put("public/small", encode_value("S"))
"""Few."""


class OneLost(random.Random):
    """Of what was not synced, the first page lacks its beginning, and all else is there: a torn
    transaction whose end is on the disk, even if it has one page only."""

    def __init__(self) -> None:
        super().__init__(0)
        self._results = iter([1.0, 0.0])  # the frame's head, the page's first sector

    def random(self) -> float:
        """Below a half is lost."""
        return next(self._results, 1.0)


async def put(store: SqliteStore, recorder: Recorder, step: int, op: Op) -> None:
    """One commit, which is a transaction of its own."""
    epoch = (await store.open(BOARD)).epoch.id
    prepared = prepare(Commit(CommitId("ada", 0, "1", step), epoch, (op,)))
    [outcome] = await store.commit(BOARD, [prepared])
    assert isinstance(outcome, Committed), outcome
    recorder.events.append(Told(outcome.revision, prepared.digest))


async def process(directory: Path, steps: dict[int, Op], level: Level = "disk") -> list[Event]:
    """What a process does that opens the board and commits; then it is killed."""
    with recorded() as recorder:
        store = await SqliteStore.at(directory, level, limits=FORGETFUL)
        await store.open(BOARD)
        for step, op in steps.items():
            await put(store, recorder, step, op)
        events = list(recorder.events)
        store._boards.pop(BOARD)._file.abandon()
        await store.aclose()
    return events


def before_last_sync(events: Sequence[Event]) -> int:
    """How many events there were when the journal was synced for the last time."""
    synced = (isinstance(e, Synced) and e.path.endswith("-wal") for e in events)
    return max(number for number, is_sync in enumerate(synced) if is_sync)


def files_of(boards: Path) -> dict[str, bytes]:
    """What is there after a restart of the machine."""
    left = [path for path in boards.iterdir() if not path.name.endswith("-shm")]
    return {str(path): path.read_bytes() for path in left}


def tear(before: dict[str, bytes], events: Sequence[Event], boards: Path) -> None:
    """Tear the last transaction: the power goes as it is synced."""
    power = Power(before)
    for event in events[: before_last_sync(events)]:
        power.goes_on(event)
    power.is_cut(boards, "some", OneLost())


@pytest.fixture
async def torn(tmp_path: Path) -> Path:
    """The directory of a board with one commit, and a torn large one."""
    store = await SqliteStore.at(tmp_path)
    await store.open(BOARD)
    await store.aclose()
    boards = tmp_path / "boards"
    before = files_of(boards)
    tear(before, await process(tmp_path, {1: SMALL, 2: LARGE}), boards)
    return tmp_path


def revision_of(boards: Path, target: Path) -> int:
    """The revision of a board that is copied to a folder and opened there."""
    state, _ = load(copy_board(boards / f"{BOARD}.db", target / f"{BOARD}.db"))
    return state.revision


async def test_two_power_cuts_in_a_row_are_no_damage(torn: Path, tmp_path: Path) -> None:
    """The second one tears a smaller transaction, which was written over a part of the first."""
    boards, target = torn / "boards", tmp_path / "copy"
    target.mkdir()
    for step in range(2, 5):
        assert revision_of(boards, target) == 1
        before = files_of(boards)
        tear(before, await process(torn, {step: SMALL}), boards)
    assert revision_of(boards, target) == 1


async def test_a_process_that_ends_as_it_cuts_a_journal_loses_nothing(
    torn: Path, tmp_path: Path
) -> None:
    """At each call, by kill -9 or a power cut; and then the next transaction is torn."""
    before = files_of(torn / "boards")
    events = await process(torn, {2: SMALL})
    assert sum(isinstance(event, Cut) for event in events) == 1
    victim, target = tmp_path / "victim", tmp_path / "copy"
    (victim / "boards").mkdir(parents=True)
    target.mkdir()
    for end, how in product(range(len(events) + 1), ("killed", *get_args(Lost))):
        power = Power(before)
        for event in events[:end]:
            power.goes_on(event)
        if how == "killed":
            power.is_killed(victim / "boards")
        else:
            power.is_cut(victim / "boards", how, random.Random(end))
        found = revision_of(victim / "boards", target)
        assert 1 + len(power.told) <= found <= 2
        left = files_of(victim / "boards")
        tear(left, await process(victim, {3: SMALL}), victim / "boards")
        assert revision_of(victim / "boards", target) == found


async def test_a_sync_that_fails_as_a_journal_is_cut_ends_the_board(torn: Path) -> None:
    """The next process writes the file again, and nothing is lost, whatever the disk holds."""
    before = files_of(torn / "boards")
    with recorded() as recorder:
        recorder.fails = lambda _: any(isinstance(event, Cut) for event in recorder.events)
        store = await SqliteStore.at(torn)
        refused = [
            *await asyncio.gather(store.open(BOARD), return_exceptions=True),
            *await asyncio.gather(store.open(BOARD), return_exceptions=True),
        ]
        recorder.fails = lambda _: False
        await store.aclose()
    assert all(isinstance(error, Unavailable) for error in refused), refused
    assert "a sync failed" in str(refused[0])
    assert "a sync of its file failed" in str(refused[1])
    power = Power(before)
    for event in recorder.events:
        power.goes_on(event)
    power.is_killed(torn / "boards")
    suspect.mark(torn / "boards" / f"{BOARD}.db", "for this test: the mark was not synced")
    again = await SqliteStore.at(torn)
    assert (await again.open(BOARD)).epoch.cause == ENGINE
    assert [entry.key for entry in (await again.list(BOARD, "", limit=9)).entries] == [SMALL.key]
    await again.aclose()


async def test_a_run_without_syncs_leaves_no_ends_to_the_next_one(torn: Path) -> None:
    """At level `memory` many transactions may be torn; the next run is at level `disk`."""
    boards = torn / "boards"
    before = files_of(boards)
    steps: dict[int, Op] = dict.fromkeys(range(2, 40), SMALL)
    power = Power(before)
    for event in await process(torn, steps, "memory"):
        power.goes_on(event)
    power.is_cut(boards, "some", OneLost())
    found = files_of(boards)
    await process(torn, {})
    assert files_of(boards) != found
    state, _ = load(boards / f"{BOARD}.db")
    assert state.epoch.cause == ENGINE


async def test_damage_is_found_in_a_journal_that_was_cut(torn: Path) -> None:
    """What was synced after it was cut is missed, and nothing is changed."""
    path = torn / "boards" / f"{BOARD}.db"
    await process(torn, dict.fromkeys(range(2, 6), SMALL))
    journal = journal_path(path)
    content = bytearray(journal.read_bytes())
    content[len(content) // 3] ^= 1
    journal.write_bytes(content)
    assert "journal is damaged" in refusal(path)
    assert journal.read_bytes() == content


async def test_the_journal_of_a_damaged_file_is_not_cut(torn: Path) -> None:
    """It stays as evidence, and so does the file."""
    path = torn / "boards" / f"{BOARD}.db"
    journal = journal_of(path)
    [epoch] = [state.epoch.id for state, _ in [load(copy_board(path, torn / "copy.db"))]]
    content = path.read_bytes().replace(epoch.encode(), epoch[::-1].encode())
    path.write_bytes(content)
    assert "do not add up" in refusal(path)
    assert (path.read_bytes(), journal_of(path)) == (content, journal)
