"""kill -9 and power cuts: the embedded engine keeps what it acknowledged, and nothing torn.

BLACKBOARD_KILLS=200 makes it long.
"""

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from blackboard.core.commit import Delete, Epoch, LogEntry, Put
from blackboard.core.history import check_sequence
from blackboard.core.state import State, evolve
from blackboard.engines.sqlite.file import BoardFile
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, Unavailable
from blackboard.limits import EPOCH_JUMP, REVISION_MAX
from blackboard.wire.codec import encode_value
from tests.conformance.machines import undated
from tests.conformance.writer import Writer
from tests.faults.sqlite_child import BOARD
from tests.tiers import few_or_many
from tests.waiting import wait_until

KILLS = int(os.environ.get("BLACKBOARD_KILLS", "10"))
CUTS = 10 * KILLS

BOARDS = 12
"""Of which two stay open."""

Acknowledged = dict[str, dict[int, str]]
"""Digests, in hex, by the board and the revision that was answered."""


def run_and_kill(
    directory: Path, dice: random.Random, *, commits_min: int = 1, boards: int = 1
) -> Acknowledged:
    """Let a child commit, kill it at a random moment, and return what it acknowledged."""
    arguments = [str(directory), str(dice.random()), str(boards)]
    command = [sys.executable, "-m", "tests.faults.sqlite_child", *arguments]
    found: Acknowledged = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            for _ in range(commits_min + dice.randrange(800)):
                note(found, child.stdout.readline())
        finally:
            child.kill()
        for line in child.stdout:
            note(found, line)
    assert found, "the child never committed"
    return found


def note(found: Acknowledged, line: str) -> None:
    """Take in one whole line of a child; the last one may have been cut short."""
    if line.endswith("\n"):
        board, revision, digest = line.split()
        found.setdefault(board, {})[int(revision)] = digest


def load(path: Path, board: str = BOARD) -> tuple[State, list[LogEntry]]:
    """The state that the file of a board holds, and its whole log."""
    file = BoardFile(path, level="disk")
    try:
        state = file.load(board).state
        log: list[LogEntry] = []
        while log_page := file.read_log(log[-1].revision if log else 0, REVISION_MAX, limit=1024):
            log += log_page
        return state, log
    finally:
        file.abandon()


def replay(log: Iterable[LogEntry], epoch: Epoch) -> State:
    """What a log adds up to."""
    state = State(epoch)
    for entry in log:
        evolve(state, entry)
    return state


def first_epoch(state: State) -> Epoch:
    """The epoch in which the board was created; none other has begun."""
    assert state.epoch.number == 1
    return state.epoch


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path, seed: int) -> None:
    """Each kill falls into other transactions of the same, growing file."""
    dice = random.Random(seed)
    path = tmp_path / "boards" / f"{BOARD}.db"
    acknowledged: dict[int, str] = {}
    epochs = set()
    for _ in range(KILLS):
        acknowledged |= run_and_kill(tmp_path, dice)[BOARD]
        epochs.add(check(path, acknowledged))
    assert len(epochs) == 1


def test_a_process_killed_while_it_closes_boards_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Each board is opened and closed over and over, beside eleven others, and goes on in its
    epoch."""
    dice = random.Random(seed)
    acknowledged: Acknowledged = {}
    epochs = set()
    for _ in range(KILLS // 2):
        for board, digests in run_and_kill(tmp_path, dice, boards=BOARDS).items():
            acknowledged.setdefault(board, {}).update(digests)
        for board, digests in acknowledged.items():
            epochs.add((board, check(tmp_path / "boards" / f"{board}.db", digests)))
    assert len(epochs) == BOARDS


def check(path: Path, acknowledged: dict[int, str]) -> str:
    """A board's file has all that was acknowledged, and its state is what its log adds up to.
    Returns the id of its epoch."""
    state, log = load(path, path.stem)
    digests = {entry.revision: entry.digest.hex() for entry in log}
    assert acknowledged.items() <= digests.items()
    assert check_sequence(0, log) == state.revision
    assert undated(replay(log, first_epoch(state))) == undated(state)
    return state.epoch.id


async def test_without_syncs_a_killed_process_begins_a_new_epoch(tmp_path: Path) -> None:
    """What the kernel had not written yet may be lost: no revision may be given out again."""
    store = await SqliteStore.at(tmp_path, "memory")
    before = await store.open(BOARD)
    await store.aclose()
    clean = await SqliteStore.at(tmp_path, "memory")
    assert (await clean.open(BOARD)).epoch == before.epoch
    await crash(clean)
    again = await SqliteStore.at(tmp_path, "disk")
    head = await again.open(BOARD)
    assert (head.epoch.number, head.epoch.cause) == (2, "engine")
    assert head.epoch.from_revision == before.revision
    assert head.revision == head.epoch.revision == before.revision + EPOCH_JUMP
    [marker] = (await again.log(BOARD, 0, limit=10)).entries
    assert marker.epoch == head.epoch
    await again.aclose()
    once_more = await SqliteStore.at(tmp_path, "disk")
    assert (await once_more.open(BOARD)).epoch == head.epoch
    await once_more.aclose()


async def crash(store: SqliteStore) -> None:
    """Let go of a store as the end of a process does: nothing is marked, nothing is flushed.

    A transaction that a thread is writing ends first, and no other one begins: SQLite crashes when
    its connection is closed meanwhile.
    """
    for board in store._boards.values():
        board.give_up("its process was killed")
    await store.aclose()


@few_or_many(CUTS // 4, CUTS)
@pytest.mark.parametrize("checkpointed", [False, True], ids=["wal", "checkpointed"])
@pytest.mark.parametrize("cut", ["-wal", ""], ids=["cut wal", "cut file"])
def test_a_cut_file_is_a_whole_prefix_or_refused(
    tmp_path: Path, seed: int, checkpointed: bool, cut: str, rounds: int
) -> None:
    """Cut anywhere: what opens is the board as it was after some commit.

    With a checkpoint in between, the pages of the file can be newer than those of a cut WAL.
    """
    dice = random.Random(seed)
    whole = tmp_path / "whole"
    run_and_kill(whole, dice, commits_min=400)
    path = whole / "boards" / f"{BOARD}.db"
    if checkpointed:
        copy_pages_into_file(path)
    victim = tmp_path / "cut.db"
    _, log = load(copy_board(path, victim))
    digests = [entry.digest for entry in log]
    shorter = is_shorter_without_wal(path, victim, len(log))
    outcomes = {"whole": 0, "prefix": 0, "refused": 0}
    for number in range(rounds):
        copy_board(path, victim)
        target = Path(f"{victim}{cut}")
        share = dice.random() ** 4 if number else 0.0  # all is lost, then mostly much
        os.truncate(target, int(target.stat().st_size * share))
        try:
            state, prefix = load(victim)
        except (Corrupt, Unavailable):
            outcomes["refused"] += 1
            continue
        outcomes["whole" if len(prefix) == len(log) else "prefix"] += 1
        assert [entry.digest for entry in prefix] == digests[: len(prefix)]
        assert undated(replay(prefix, first_epoch(state))) == undated(state)
    assert outcomes["prefix"] or not (cut and shorter), outcomes


def is_shorter_without_wal(path: Path, victim: Path, commits: int) -> bool:
    """Whether the file alone is an older board: its pages may have been copied a moment before."""
    os.truncate(f"{copy_board(path, victim)}-wal", 0)
    try:
        return len(load(victim)[1]) < commits
    except Corrupt:
        return False


def copy_pages_into_file(path: Path) -> None:
    """Checkpoint all that is in the WAL and leave the WAL as it is, as a crash right then does."""
    wal = Path(f"{path}-wal")
    kept = wal.read_bytes()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    connection.close()
    wal.write_bytes(kept)


def wal_bytes(path: Path) -> int:
    """How long the WAL of a board's file is."""
    return Path(f"{path}-wal").stat().st_size


def copy_board(path: Path, target: Path) -> Path:
    """Copy a board's file and its WAL, if it has one. SQLite rebuilds the WAL's index."""
    for suffix in ("-wal", "-shm"):
        Path(f"{target}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(path, target)
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(f"{path}-wal", f"{target}-wal")
    return target


async def follow(store: SqliteStore) -> None:
    """Let the tables of the board follow its log."""
    board = store._boards[BOARD]
    board._backlog.hurry()
    board._start_soon()

    async def is_done() -> bool:
        return board._writing is None and not board._backlog.rows

    await wait_until(is_done)


@pytest.mark.parametrize("both", [False, True], ids=["the end of the log", "a table"])
async def test_pages_that_never_were_together_are_refused(tmp_path: Path, *, both: bool) -> None:
    """SQLite finds every page good; only the head tells this mixture from a board: it says where
    the log ends, and has the checksum of the tables."""
    path = tmp_path / "boards" / f"{BOARD}.db"
    victim = tmp_path / "cut.db"
    value = encode_value(b"x" * 2_000)
    filler = (Put(f"public/k{number:03d}", value) for number in range(50))
    store = await SqliteStore.at(tmp_path)
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", value), *filler, Put("public/z", value))
    await store.aclose()  # everything is in the file, and the WAL is empty
    store = await SqliteStore.at(tmp_path)
    writer = await Writer.open(store, BOARD, "bob")
    await writer.commit(Put("public/a", value))
    if both:
        await follow(store)
    size = wal_bytes(path)
    await writer.commit(Delete("public/z"))
    await follow(store)
    copy_pages_into_file(path)
    copy_board(path, victim)
    await store.aclose()
    os.truncate(f"{victim}-wal", size)
    with pytest.raises(Corrupt, match="do not add up" if both else "its log ends at"):
        load(victim)
