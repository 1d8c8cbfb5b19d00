"""The power goes while the embedded engine writes: what was acknowledged is there, nothing else.

BLACKBOARD_TEST_CUTS=500 makes it long.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from blackboard.core.commit import Commit, CommitId, Committed, LogEntry
from blackboard.engines.sqlite import file as sqlite_file
from blackboard.engines.sqlite.file import journal_path
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, Unavailable
from blackboard.wire.codec import prepare
from tests.conformance.machines import undated
from tests.faults.disk import Event, Lost, Power, Recorder, Told, recorded
from tests.faults.sqlite_child import random_ops
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
    store = await SqliteStore.at(directory)
    await store.open(BOARD)
    await store.aclose()
    before = {str(path): path.read_bytes() for path in (directory / "boards").iterdir()}
    with recorded() as recorder:
        store = await SqliteStore.at(directory)
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
