"""A sync of a board's file fails, and the kernel drops what it could not write.

BLACKBOARD_TEST_SYNCS=500 makes it long.
"""

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest

from blackboard.core.commit import Commit, CommitId, Committed
from blackboard.engines.sqlite import file as sqlite_file, follower
from blackboard.engines.sqlite.file import BoardFile
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import BlackboardError, OutcomeUnknown, Unavailable
from blackboard.limits import REVISION_MAX
from blackboard.wire.codec import Prepared, prepare
from tests.conformance.machines import undated
from tests.faults.disk import Lost, Power, Recorder, Told, recorded
from tests.faults.sqlite_child import random_ops
from tests.faults.test_sqlite_crash import crash, replay
from tests.proof import Layer
from tests.tiers import few_or_many

RUNS = int(os.environ.get("BLACKBOARD_TEST_SYNCS", "20"))
BOARD = "crash"
WRITERS = 4
COMMITS_MAX = 12
"""Of each writer, in each life of the process."""
CUT_ONE_IN = 40
"""Events after which the power might have been cut."""
LIVES = 3
FOLLOW_ROWS = 10
WAL_PAGES = 60
"""Between two copies of the journal into the file, so that those syncs fail, too."""


@dataclass
class Disk:
    """A disk whose syncs fail, and what was acknowledged for a board on it.

    It has the files in `data`. What it would hold had the power been cut is written to `cut`.
    """

    data: Path
    cut: Path
    dice: random.Random
    recorder: Recorder
    power: Power = field(init=False)
    faults: Counter[str] = field(default_factory=Counter)
    syncs: int = 0
    failing: range = range(0)
    """Which syncs fail, counted from the beginning."""
    _done: int = 0

    def __post_init__(self) -> None:
        self.power = Power({}, self.dice)
        self.recorder.fails = self._fails

    def _fails(self, path: str) -> bool:
        if not path.startswith(str(self.data)):
            return False
        self.syncs += 1
        failed = self.syncs in self.failing
        self.faults["failed sync"] += failed
        return failed

    def soon(self) -> range:
        """One of the next syncs, or some in a row."""
        first = self.syncs + self.dice.randint(1, 30)
        return range(first, first + self.dice.choice((1, 1, 2, 5)))

    async def catch_up(self) -> None:
        """Bring `power` up to date; try what a cut on the way there would leave."""
        boards = str(self.data / "boards")
        for event in self.recorder.events[self._done :]:
            if not isinstance(event, Told) and not event.path.startswith(boards):
                continue
            self.power.goes_on(event)
            if self.power.told and self.dice.randrange(CUT_ONE_IN) == 0:
                await self.try_cut()
        self._done = len(self.recorder.events)

    async def try_cut(self) -> None:
        """Cut the power, as far as a copy of the disk is concerned, and look at that."""
        place = self.cut / "boards"
        self.power.is_cut(place, self.dice.choice(get_args(Lost)), self.dice)
        store = await SqliteStore.at(self.cut)
        await store.open(BOARD)
        await crash(store)
        check(place / f"{BOARD}.db", self.power.told)
        self.faults["cut"] += 1

    def told(self, outcome: Committed, prepared: Prepared) -> None:
        """Record an acknowledged commit."""
        self.recorder.events.append(Told(outcome.revision, prepared.digest))

    def has_ended(self) -> None:
        """The process ended: choose what becomes of the page cache."""
        boards = self.data / "boards"
        fate = self.dice.choice(("page cache kept", "page cache evicted", "power cut"))
        self.faults[fate] += 1
        if fate == "page cache evicted":
            self.power.evicts()
        elif fate == "power cut":
            self.power.is_cut(boards, self.dice.choice(get_args(Lost)), self.dice)
            kept = {str(path): path.read_bytes() for path in boards.iterdir()}
            told = self.power.told
            self.power = Power(kept, self.dice)
            self.power.told = told
            self._done = len(self.recorder.events)  # what the test itself removed is no event


async def write(store: SqliteStore, disk: Disk, agent: str, unanswered: list[Prepared]) -> None:
    """Send what has no answer yet again, then go on, until somebody says no."""
    with suppress(BlackboardError):
        epoch = (await store.open(BOARD)).epoch.id
        for prepared in unanswered:
            [outcome] = await store.commit(BOARD, [prepared])
            if isinstance(outcome, Committed):
                disk.told(outcome, prepared)
        unanswered.clear()
        for step in range(1, disk.dice.randint(1, COMMITS_MAX) + 1):
            ops = random_ops(disk.dice)
            prepared = prepare(Commit(CommitId(agent, 0, "1", step), epoch, ops))
            unanswered.append(prepared)
            [outcome] = await store.commit(BOARD, [prepared])
            if isinstance(outcome, OutcomeUnknown):
                return
            unanswered.clear()
            assert isinstance(outcome, Committed), outcome
            disk.told(outcome, prepared)


async def live(disk: Disk, life: int, unanswered: dict[int, list[Prepared]]) -> None:
    """One process: it writes until it is done or its disk fails, then it ends somehow."""
    try:
        store = await SqliteStore.at(disk.data)
    except Unavailable:
        return
    await asyncio.gather(
        *(write(store, disk, f"agent{n}.{life}", unanswered[n]) for n in range(WRITERS))
    )
    if disk.dice.random() < 0.5:
        with suppress(Unavailable):
            await store.aclose()
    else:
        await crash(store)


def check(path: Path, told: list[Told]) -> None:
    """Every acknowledged commit is there, and no revision was acknowledged twice."""
    file = BoardFile(path, level="disk")
    loaded = file.load(BOARD)
    log = file.read_log(0, REVISION_MAX, limit=100_000)
    file.abandon()
    digests = {entry.revision: entry.digest for entry in log}
    for one in told:
        assert digests.get(one.revision) == one.digest, one
    assert undated(replay(log, loaded.epochs[0])) == undated(loaded.state)


@pytest.fixture
def small_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is copied often, and the tables follow often, in parts."""
    monkeypatch.setattr(sqlite_file, "_WAL_PAGES", WAL_PAGES)
    monkeypatch.setattr(follower, "FOLLOW_ROWS", FOLLOW_ROWS)
    monkeypatch.setattr(follower, "TOGETHER_ROWS", FOLLOW_ROWS // 2)


async def play(folder: Path, dice: random.Random) -> Disk:
    """Several lives of a process on a disk that fails, but not in the last one."""
    with recorded() as recorder:
        disk = Disk(folder / "data", folder / "cut", dice, recorder)
        await (await SqliteStore.at(disk.cut)).aclose()  # makes the directories
        unanswered: dict[int, list[Prepared]] = {n: [] for n in range(WRITERS)}
        for life in range(LIVES):
            disk.failing = disk.soon() if life < LIVES - 1 else range(0)
            await live(disk, life, unanswered)
            await disk.catch_up()
            disk.has_ended()
        await disk.try_cut()
    return disk


@few_or_many(8, RUNS)
@pytest.mark.usefixtures("small_journal")
async def test_nothing_that_was_acknowledged_is_lost_when_syncs_fail(
    tmp_path: Path, seed: int, rounds: int
) -> None:
    """Whichever sync it is, however the process ends, whatever is evicted, and whenever the power
    is cut afterwards: no answer comes from what is only in the page cache."""
    with Layer("power", seeds=[seed]) as layer:
        for run in range(rounds):
            disk = await play(tmp_path / str(run), random.Random(f"{seed} {run}"))
            layer.operations += len(disk.power.told)
            layer.faults.update(disk.faults)
    assert layer.faults["failed sync"] >= rounds / 2
