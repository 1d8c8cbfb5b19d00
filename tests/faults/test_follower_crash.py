"""kill -9 and power cuts at every file call of commit, follower, restore, compaction, journal copy,
closing and opening: what was acknowledged is there, wherever the tables are behind the log.

The calls are recorded (tests/faults/disk.py) and the files made as they were after any of them:
after kill -9 all that was written is there; after a power cut, of what was not synced, each sector
or not. What the next process does with such files is recorded in the same way, and cut again.

BLACKBOARD_TEST_CUTS=500 makes it long.
"""

import asyncio
import os
import random
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import pytest

from blackboard.core.commit import RESTORE, Commit, CommitId, Committed, Epoch, LogEntry, PutBack
from blackboard.core.state import State
from blackboard.engines.sqlite import board as sqlite_board, file as sqlite_file, follower
from blackboard.engines.sqlite.file import BoardFile, Loaded
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, Unavailable
from blackboard.limits import REVISION_MAX
from blackboard.wire.codec import encode_value, prepare
from tests.conformance.machines import undated
from tests.faults.disk import LIVES_IN_MEMORY, Event, Lost, Power, Recorder, Told, recorded
from tests.faults.sqlite_child import BOARD, FORGETFUL
from tests.faults.test_power_sqlite import flip, rest, write
from tests.faults.test_sqlite_crash import copy_board, replay
from tests.proof import Layer
from tests.source_tree import ROOT

CUTS = int(os.environ.get("BLACKBOARD_TEST_CUTS", "40"))
WRITERS = 3
STEPS = 12
"""Of each writer, in each of ROUNDS rounds."""
ROUNDS = 5
RESTORED_KEYS = 40
SMALL = {
    "FOLLOW_ROWS": 10,
    "TOGETHER_ROWS": 6,
    "LARGE_CHANGES": 16,
    "SCATTERED_ROWS": 8,
    "COPIED_ROWS": 16,
}
"""So that within few commits the tables follow often, and in parts."""
WAL_PAGES = 60
How = Literal["killed", "all", "some", "zeros"]


@dataclass
class Story:
    """A board that was written to: its files before, what became of them, and its whole log."""

    before: dict[str, bytes]
    epoch: Epoch
    events: list[Event] = field(default_factory=list)
    log: list[LogEntry] = field(default_factory=list)
    oldest: dict[int, int] = field(default_factory=dict)
    """By the number of events, what a compaction that was acknowledged then left."""

    def take_log(self, entries: Sequence[LogEntry]) -> None:
        """The log goes on."""
        self.log += [entry for entry in entries if entry.revision > len(self.log)]

    def state_at(self, revision: int) -> State:
        """What the board was then, had nothing been compacted."""
        return replay(self.log[:revision], self.epoch)


async def restore(store: SqliteStore, recorder: Recorder, dice: random.Random) -> None:
    """Put so many keys back that the tables follow in parts."""
    head = await store.open(BOARD)
    revision = head.revision + 1
    begins = Epoch(head.epoch.number + 1, f"epoch-{revision}", RESTORE, head.revision, revision)
    value = encode_value(dice.randbytes(300))
    ops = [PutBack(f"public/k/{n}", value if n % 3 else None) for n in range(RESTORED_KEYS)]
    name = CommitId("~service", 0, "1", revision)
    prepared = prepare(Commit(name, head.epoch.id, tuple(ops), begins=begins))
    [outcome] = await store.commit(BOARD, [prepared])
    assert isinstance(outcome, Committed), outcome
    recorder.events.append(Told(outcome.revision, prepared.digest))


async def act(store: SqliteStore, story: Story, recorder: Recorder, dice: random.Random) -> None:
    """Rounds of commits, and between them everything else that writes to the file."""
    for number in range(ROUNDS):
        steps = range(number * STEPS + 1, (number + 1) * STEPS + 1)
        await asyncio.gather(*(write(store, recorder, i, dice, steps) for i in range(WRITERS)))
        story.take_log((await store.log(BOARD, len(story.log), limit=999)).entries)
        if number in (0, 3):
            await restore(store, recorder, dice)
        elif number == 1:
            kept = (await store.compact(BOARD, len(story.log) - dice.randrange(20))).oldest
            story.oldest[len(recorder.events)] = kept
        elif number == 2:
            assert not await store.scrub(BOARD)
        else:
            await rest(store)
    story.take_log((await store.log(BOARD, len(story.log), limit=999)).entries)


@contextmanager
def small_parts() -> Iterator[None]:
    """Within few commits, everything happens."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(follower, name, value)
        patch.setattr(sqlite_board, "LARGE_CHANGES", SMALL["LARGE_CHANGES"])
        patch.setattr(sqlite_board, "_APART_OPS", 2 * SMALL["LARGE_CHANGES"])
        patch.setattr(sqlite_board, "_FOLLOW_AFTER_S", 0.0)
        patch.setattr(sqlite_file, "_WAL_PAGES", WAL_PAGES)
        patch.setattr(sqlite_file, "_COMPACT_ROWS", 16)
        yield


async def told(directory: Path, dice: random.Random) -> Story:
    """A new board, and what became of it until it was closed."""
    store = await SqliteStore.at(directory, limits=FORGETFUL)
    epoch = (await store.open(BOARD)).epoch
    await store.aclose()
    paths = (directory / "boards").glob("*.db")
    story = Story({str(path): path.read_bytes() for path in paths}, epoch)
    with recorded() as recorder:
        store = await SqliteStore.at(directory, limits=FORGETFUL)
        await act(store, story, recorder, dice)
        await store.aclose()
    story.events = recorder.events
    return story


@dataclass(frozen=True, slots=True)
class Found:
    """What the next process finds, how many rows of its tables are ahead of the mark, how many
    refer to a value in the log, and what its rows weigh."""

    loaded: Loaded
    log: list[LogEntry]
    ahead: int
    refer: int
    weight: int

    @property
    def behind(self) -> int:
        """How many rows of the log are above the mark."""
        return self.loaded.backlog.rows


def load(path: Path, name: str = BOARD) -> Found:
    """Open a file, and leave it as it is."""
    file = BoardFile(path, level="disk")
    try:
        loaded = file.load(name)
        log = file.read_log(loaded.state.oldest - 1, REVISION_MAX, limit=REVISION_MAX)
        query = "SELECT count(*) FROM entry WHERE mod_revision > ?"
        [ahead] = file._writer.execute(query, loaded.backlog.mark[:1]).fetchone()
        query = "SELECT count(*) FROM entry WHERE place IS NOT NULL"
        [refer] = file._writer.execute(query).fetchone()
        return Found(loaded, log, ahead, refer, file.filed.weight)
    finally:
        file.abandon()


def check(path: Path, story: Story, acknowledged: Sequence[Told], oldest: int) -> Found:
    """The board is as it was at a revision that is not below those that were acknowledged. A copy
    is opened, so that the next process finds what was left."""
    with TemporaryDirectory() as folder:
        found = load(copy_board(path, Path(folder) / path.name))
    state = found.loaded.state
    expected = story.log[state.oldest - 1 : state.revision]
    assert [entry.digest for entry in found.log] == [entry.digest for entry in expected]
    assert state.revision >= max((one.revision for one in acknowledged), default=0)
    for one in acknowledged:
        assert story.log[one.revision - 1].digest == one.digest
    assert state.oldest >= oldest
    whole = story.state_at(state.revision)
    whole.compact(state.oldest)
    assert undated(state) == undated(whole)
    begun = [entry.epoch for entry in story.log[: state.revision] if entry.epoch is not None]
    assert found.loaded.epochs == [story.epoch, *begun]
    return found


def files_in(directory: Path) -> dict[str, bytes]:
    """Its files, but for what a restart of the machine does not leave."""
    left = [path for path in directory.iterdir() if not path.name.endswith(LIVES_IN_MEMORY)]
    return {str(path): path.read_bytes() for path in left}


async def open_again(directory: Path, name: str = BOARD) -> list[Event]:
    """The next process: opens the board, whose tables follow, and closes it. What it did."""
    with recorded() as recorder:
        store = await SqliteStore.at(directory, limits=FORGETFUL)
        await store.open(name)
        board = store._boards[name]
        board._backlog.hurry()
        board._start_soon()
        await store.aclose()
    return recorder.events


def fail(power: Power, target: Path, how: How, dice: random.Random) -> None:
    """Let the files in `target` be those that the next process finds."""
    if how == "killed":
        power.is_killed(target)
    else:
        power.is_cut(target, how, dice)


@pytest.mark.parametrize("kind", ["killed", "cut"])
async def test_whenever_it_ends_the_board_is_as_it_was(
    tmp_path: Path, seed: int, kind: str
) -> None:
    """At any call, and again at any call of the process after it."""
    dice = random.Random(seed)
    hows: tuple[How, ...] = ("killed",) if kind == "killed" else get_args(Lost)
    with small_parts(), Layer("power", seeds=[seed]) as layer:
        story = await told(tmp_path, dice)
        moments = sorted(dice.randrange(len(story.events) + 1) for _ in range(CUTS))
        power, done, behind, ahead, refer = Power(dict(story.before)), 0, 0, 0, 0
        for moment in moments:
            while done < moment:
                power.goes_on(story.events[done])
                done += 1
            oldest = max((o for at, o in story.oldest.items() if at <= done), default=1)
            victim = tmp_path / "victim" / "boards"
            shutil.rmtree(victim, ignore_errors=True)
            victim.mkdir(parents=True)
            fail(power, victim, dice.choice(hows), dice)
            acknowledged = list(power.told)
            found = check(victim / f"{BOARD}.db", story, acknowledged, oldest)
            behind += found.behind > 0
            ahead += found.ahead > 0
            refer += found.refer > 0
            layer.faults["cut"] += 1
            layer.operations += len(acknowledged)
            await again(victim, story, acknowledged, oldest, dice, hows)
        assert behind > CUTS // 4
        assert ahead > CUTS // 20
        assert refer > CUTS // 4


async def again(
    victim: Path,
    story: Story,
    acknowledged: Sequence[Told],
    oldest: int,
    dice: random.Random,
    hows: Sequence[How],
) -> None:
    """The process that opens what was left ends in the middle of that, too."""
    before = files_in(victim)
    events = await open_again(victim.parent)
    assert check(victim / f"{BOARD}.db", story, acknowledged, oldest).behind == 0
    power = Power(before)
    end = dice.randrange(len(events) + 1)
    for event in events[:end]:
        power.goes_on(event)
    fail(power, victim, dice.choice(list(hows)), dice)
    check(victim / f"{BOARD}.db", story, acknowledged, oldest)


# --- an older format ------------------------------------------------------------------------------


OLDER = sorted((ROOT / "tests" / "compatibility" / "killed").glob("*.tar.xz"))
OLD_BOARD = "team"


@pytest.fixture(params=OLDER, ids=lambda path: path.name.removesuffix(".tar.xz"))
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The boards of a process of an earlier version that was killed."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "older", filter="data")
    return tmp_path / "older" / "killed" / "boards"


async def test_a_conversion_that_ends_early_is_done_by_the_next_process(
    older: Path, tmp_path: Path, seed: int
) -> None:
    """At any call: the file is of the old format or of the new one, and nothing is missing."""
    dice = random.Random(seed)
    victim = tmp_path / "victim" / "boards"
    shutil.copytree(older, victim)
    before = files_in(victim)
    with Layer("power", seeds=[seed]) as layer:
        events = await open_again(victim.parent, OLD_BOARD)
        expected = load(victim / f"{OLD_BOARD}.db", OLD_BOARD)
        moments = sorted(dice.randrange(len(events) + 1) for _ in range(CUTS))
        power, done = Power(before), 0
        for moment in moments:
            for event in events[done:moment]:
                power.goes_on(event)
            done = moment
            fail(power, victim, dice.choice(get_args(How)), dice)
            found = load(victim / f"{OLD_BOARD}.db", OLD_BOARD)
            assert undated(found.loaded.state) == undated(expected.loaded.state)
            assert [e.digest for e in found.log] == [e.digest for e in expected.log]
            if not found.behind:  # the tables of formats 3 and 4 always were at the end of the log
                assert found.weight == expected.weight
            layer.faults["cut"] += 1


def test_a_bit_that_flipped_in_an_older_format_is_noticed(
    older: Path, tmp_path: Path, seed: int
) -> None:
    """Nothing damaged is converted: the board is as it was, or it is refused, and refused again."""
    dice = random.Random(seed)
    victim = tmp_path / "victim.db"
    # What lies in the journal as well is not read from the file.
    with closing(sqlite3.connect(older / f"{OLD_BOARD}.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    expected = load(copy_board(older / f"{OLD_BOARD}.db", victim), OLD_BOARD)
    refused = 0
    for _ in range(CUTS):
        flip(copy_board(older / f"{OLD_BOARD}.db", victim), "", dice)
        try:
            found = load(victim, OLD_BOARD)
        except (Corrupt, Unavailable):
            refused += 1
            with pytest.raises((Corrupt, Unavailable)):
                load(victim, OLD_BOARD)
            continue
        assert undated(found.loaded.state) == undated(expected.loaded.state)
        assert [e.digest for e in found.log] == [e.digest for e in expected.log]
    assert refused
