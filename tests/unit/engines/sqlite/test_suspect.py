"""A board's file of which a sync failed: nobody is answered from it, and it is written again."""

import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from blackboard.core.commit import ENGINE, Committed, Epoch, Head, Put
from blackboard.engines.disk import sync_path
from blackboard.engines.sqlite import file as sqlite_file, suspect
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, OutcomeUnknown, StaleEpoch, Unavailable
from blackboard.limits import EPOCH_JUMP
from blackboard.wire.codec import Prepared, prepare
from tests.conformance.rules_seed import a_seed, paged
from tests.conformance.writer import Writer, packed
from tests.faults.disk import Recorder, recorded
from tests.waiting import wait_until

BOARD = "board"


class Disk:
    """Files of which syncs fail: while `broken` is a part of their paths, or all of their names."""

    def __init__(self, recorder: Recorder) -> None:
        self.broken: str | None = None
        self.is_exact = False
        recorder.fails = self._fails

    def _fails(self, path: str) -> bool:
        if self.is_exact:
            return Path(path).name == self.broken
        return self.broken is not None and self.broken in path


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk that works until it is made to fail."""
    with recorded() as recorder:
        yield Disk(recorder)


@pytest.fixture
async def store(disk: Disk, tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An embedded engine on that disk."""
    opened = await SqliteStore.at(tmp_path)
    yield opened
    disk.broken = None
    await opened.aclose()


def path_of(folder: Path) -> Path:
    """Where the board's file is."""
    return folder / "boards" / f"{BOARD}.db"


async def fail(store: SqliteStore, disk: Disk) -> Prepared:
    """Commit once, and fail the sync of the next commit; returns that."""
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    step = prepare(writer.make(Put("public/b", packed(2))))
    disk.broken = f"{BOARD}.db-wal"
    [outcome] = await store.commit(BOARD, [step])
    assert isinstance(outcome, OutcomeUnknown)
    assert "a sync of its file failed" in str(outcome)
    disk.broken = None
    return step


async def test_a_failed_sync_ends_the_board(
    store: SqliteStore, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is asked: a commit sent again is not answered from the page cache."""
    step = await fail(store, disk)
    calls = (
        store.commit(BOARD, [step]),
        store.open(BOARD),
        store.read(BOARD, ["public/a"]),
        store.list(BOARD, "", limit=9),
        store.log(BOARD, 0, limit=9),
        store.leases(BOARD),
        store.compact(BOARD, 1),
        store.hold(BOARD, 1),
        store.facts(),
    )
    for call in calls:
        with pytest.raises(Unavailable, match="a sync of its file failed"):
            await call
    [line] = [line for line in caplog.records if line.levelno == logging.ERROR]
    assert "a sync of" in line.getMessage()
    assert await store.exists(BOARD)


async def test_other_boards_and_new_ones_go_on(store: SqliteStore, disk: Disk) -> None:
    """The board itself may be removed and made again."""
    other = await Writer.open(store, "other")
    await fail(store, disk)
    await other.commit(Put("public/a", packed(1)))
    await store.drop(BOARD)
    again = await Writer.open(store, BOARD)
    await again.commit(Put("public/a", packed(1)))
    assert (await store.open(BOARD)).revision == 1
    assert (await store.facts()).name == "sqlite"


async def test_the_next_process_writes_the_file_again_and_begins_an_epoch(
    store: SqliteStore, disk: Disk, tmp_path: Path
) -> None:
    """The commit whose outcome was unknown is answered, now that the disk holds it."""
    step, path = await fail(store, disk), path_of(tmp_path)
    inode = path.stat().st_ino
    await store.aclose()
    assert suspect.is_marked(path)
    again = await SqliteStore.at(tmp_path)
    head = await again.open(BOARD)
    assert (head.epoch.cause, head.epoch.number) == (ENGINE, 2)
    assert head.revision > EPOCH_JUMP
    assert path.stat().st_ino != inode
    [outcome] = await again.commit(BOARD, [step])
    assert isinstance(outcome, Committed)
    assert outcome.duplicate
    assert [one.key for one in (await again.list(BOARD, "", limit=9)).entries] == [
        "public/a",
        "public/b",
    ]
    await again.aclose()
    assert sorted(one.name for one in path.parent.iterdir()) == [path.name]
    last = await SqliteStore.at(tmp_path)
    assert (await last.open(BOARD)).epoch == head.epoch
    await last.aclose()


async def test_a_writer_of_the_old_epoch_is_refused(
    store: SqliteStore, disk: Disk, tmp_path: Path
) -> None:
    """What it relies on may be gone."""
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    disk.broken = f"{BOARD}.db-wal"
    await writer.send(writer.make(Put("public/a", packed(2))))
    disk.broken = None
    await store.aclose()
    again = await SqliteStore.at(tmp_path)
    writer.store = again
    outcome = await writer.send(writer.make(Put("public/a", packed(3))))
    assert isinstance(outcome, StaleEpoch)
    await again.aclose()


@pytest.mark.parametrize("part", [".copy", ".copy-wal", "boards"])
async def test_a_file_that_cannot_be_written_again_stays_unavailable(
    store: SqliteStore, disk: Disk, tmp_path: Path, part: str
) -> None:
    """For this process: each attempt would copy all of it. The old file is as it was."""
    await fail(store, disk)
    await store.aclose()
    disk.broken = part
    again = await SqliteStore.at(tmp_path)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await again.open(BOARD)
    with pytest.raises(Unavailable):
        await again.facts()
    await again.aclose()
    disk.broken = None
    assert suspect.is_marked(path_of(tmp_path))
    last = await SqliteStore.at(tmp_path)
    reading = await last.read(BOARD, ["public/a"])
    assert reading.entries
    assert (await last.open(BOARD)).epoch.number == 2
    await last.aclose()


@pytest.mark.parametrize("stop", range(1, 8))
async def test_an_exchange_that_was_interrupted_is_finished(
    store: SqliteStore, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """At each sync and each renaming: from the moment on in which the copy is whole, it is the
    board."""
    await fail(store, disk)
    await store.aclose()
    calls = 0

    def interrupted(real: Callable[..., None], *arguments: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(
            "blackboard.engines.sqlite.suspect.sync_path", partial(interrupted, sync_path)
        )
        patch.setattr(os, "replace", partial(interrupted, os.replace))
        with pytest.raises(KeyboardInterrupt):
            suspect.write_again(path_of(tmp_path), lambda _: None, lambda _: None)
    again = await SqliteStore.at(tmp_path)
    assert (await again.read(BOARD, ["public/a"])).entries
    await again.aclose()


async def test_a_sync_that_fails_as_the_journal_is_copied_ends_the_board(
    store: SqliteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would say nothing of it."""
    monkeypatch.setattr(sqlite_file, "_WAL_PAGES", 1)
    writer = await Writer.open(store, BOARD)
    disk.broken = f"{BOARD}.db"
    disk.is_exact = True  # the journal is synced
    await writer.commit(Put("public/a", packed(1)))

    async def is_over() -> bool:
        return store._boards[BOARD].failure is not None

    await wait_until(is_over)  # it is copied after the commit, which is durable without that
    with pytest.raises(Unavailable, match="a sync of its file failed"):
        await store.open(BOARD)


async def test_a_run_without_syncs_whose_last_sync_fails(disk: Disk, tmp_path: Path) -> None:
    """It is not taken for one that ended in good order."""
    store = await SqliteStore.at(tmp_path, "memory")
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    disk.broken = f"{BOARD}.db"
    with pytest.raises(Unavailable):
        await store.aclose()
    disk.broken = None
    again = await SqliteStore.at(tmp_path, "memory")
    assert (await again.open(BOARD)).epoch.number == 2
    await again.aclose()


async def test_a_run_without_syncs_that_another_program_reads_at_its_end(tmp_path: Path) -> None:
    """SQLite then leaves the journal, and may sync nothing."""
    store = await SqliteStore.at(tmp_path, "memory")
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    with closing(sqlite3.connect(path_of(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM log").fetchone()
        await writer.commit(Put("public/a", packed(2)))
        await store.aclose()
    again = await SqliteStore.at(tmp_path, "memory")
    assert (await again.open(BOARD)).epoch.number == 2
    await again.aclose()


async def test_a_damaged_file_that_is_to_be_replaced_is_left_as_it_is(tmp_path: Path) -> None:
    """With its journal, as by every other call."""
    store, path = await SqliteStore.at(tmp_path), path_of(tmp_path)
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    head = await store.open(BOARD)
    store._boards.pop(BOARD)._file.abandon()
    with (
        suspect.kept_as_it_is(path),
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("UPDATE head SET checksum = checksum + 1")
    files = [path.with_name(f"{path.name}{end}") for end in ("", "-wal")]
    before = [file.read_bytes() for file in files]
    assert before[1]
    with pytest.raises(Corrupt):
        await store.seed(BOARD, a_seed(BOARD), paged([]), replaces=head)
    assert [file.read_bytes() for file in files] == before
    await store.aclose()


async def test_a_distrusted_file_is_not_replaced(store: SqliteStore, disk: Disk) -> None:
    """What it holds cannot be compared with the head that was seen."""
    await fail(store, disk)
    head = Head(2, Epoch(1, "e"), 1, 0, 2)
    with pytest.raises(Unavailable, match="a sync of its file failed"):
        await store.seed(BOARD, a_seed(BOARD), paged([]), replaces=head)


async def test_a_board_whose_name_is_not_synced_is_not_made(
    store: SqliteStore, disk: Disk, tmp_path: Path
) -> None:
    """Rather than to go with the power although its commits were acknowledged."""
    disk.broken = os.fspath(tmp_path / "boards")
    with pytest.raises(Unavailable):
        await store.open(BOARD)
    assert not path_of(tmp_path).exists()
    disk.broken = None
    assert (await store.open(BOARD)).revision == 0


async def test_a_journal_that_cannot_be_written_over_leads_to_a_copy(
    disk: Disk, tmp_path: Path
) -> None:
    """The process was killed, and the disk fails at the next start."""
    store = await SqliteStore.at(tmp_path)
    writer = await Writer.open(store, BOARD)
    await writer.commit(Put("public/a", packed(1)))
    store._boards.pop(BOARD)._file.abandon()
    await store.aclose()
    disk.broken = f"{BOARD}.db-wal"
    again = await SqliteStore.at(tmp_path)
    assert (await again.open(BOARD)).epoch.number == 2
    disk.broken = None
    assert (await again.read(BOARD, ["public/a"])).entries
    await again.aclose()
