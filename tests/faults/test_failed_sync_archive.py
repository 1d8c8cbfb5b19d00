"""A sync of an archive's file fails: nothing counts until it was written again.

The log of a board is cut only up to where `settle` says, so that much must be there afterwards.
"""

import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blackboard.archive.database import Database, TrustedFile
from blackboard.archive.sql import SqlArchive
from blackboard.core.checkpoints import Mark
from blackboard.core.commit import Head
from blackboard.engines.sqlite import suspect
from blackboard.errors import Unavailable
from blackboard.integrity.signing import Seal
from tests.conformance.archive_suite import SECRET
from tests.conformance.story import Story, listing
from tests.faults.archiver_child import story_of
from tests.faults.disk import Power, Recorder, recorded
from tests.faults.test_archiver_crash import BOARD, check

STEPS = 20
NUMBER = 7
FATES = ("page cache kept", "page cache evicted", "power cut")


class Disk:
    """Files of which syncs fail, once each, while `broken` ends their paths."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.broken: str | None = None
        self.power = Power({}, random.Random(NUMBER))
        self._done = 0
        recorder.fails = lambda path: self.broken is not None and path.endswith(self.broken)

    def meets(self, fate: str, folder: Path) -> None:
        """What becomes of the page cache after the process ended."""
        for event in self.recorder.events[self._done :]:
            if str(getattr(event, "path", "")).startswith(str(folder)):
                self.power.goes_on(event)
        if fate == "page cache evicted":
            self.power.evicts()
        elif fate == "power cut":
            self.power.is_cut(folder, "all", random.Random(NUMBER))
        self._done = len(self.recorder.events)


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk that works until the test breaks it."""
    with recorded() as recorder:
        yield Disk(recorder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the archive is."""
    made = tmp_path / "archive"
    made.mkdir()
    return made


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqlArchive]:
    """An archive, for as long as a process lives."""
    url, blobs = f"sqlite:///{folder}/archive.db", str(folder.parent / "blobs")
    archive = await SqlArchive.open(url, blobs=blobs, sealer=Seal(SECRET))
    try:
        yield archive
    finally:
        await archive.aclose()


async def begin(archive: SqlArchive, story: Story) -> tuple[int, Mark]:
    """Become the archiver of the story's board, and archive half of it."""
    fence = await archive.take(BOARD, "ada", 600_000)
    assert fence is not None
    await archive.join(BOARD, fence, Head(0, story.epochs[0], 1), listing())
    return fence, await archive.append(BOARD, fence, 0, story.log[: len(story.log) // 2])


@pytest.mark.parametrize("broken", ["archive.db-wal", "archive.db"])
@pytest.mark.parametrize("fate", FATES)
async def test_no_log_is_cut_behind_an_archive_whose_sync_failed(
    folder: Path, disk: Disk, fate: str, broken: str
) -> None:
    """Nor after a second sync, which would succeed. The next process writes the file again."""
    story = story_of(NUMBER, STEPS)
    async with opened(folder) as archive:
        fence, mark = await begin(archive, story)
        settled = await archive.settle(BOARD)
        assert settled == mark.revision
        mark = await archive.append(BOARD, fence, mark.revision, story.log[mark.revision :])
        disk.broken = broken
        with pytest.raises(Unavailable):
            await archive.settle(BOARD)
        disk.broken = None
        for call in (archive.settle, archive.mark):
            with pytest.raises(Unavailable, match="a sync of its file failed"):
                await call(BOARD)
    disk.meets(fate, folder)
    async with opened(folder) as archive:
        assert not suspect.is_marked(folder / "archive.db")
        found = await archive.mark(BOARD)
        assert found is not None
        assert found.revision >= settled
        await check(archive, NUMBER)
        again = await archive.settle(BOARD)
    disk.meets("power cut", folder)
    async with opened(folder) as archive:
        last = await archive.mark(BOARD)
        assert last is not None
        assert last.revision >= again


async def test_a_sync_that_fails_as_the_journal_is_copied_is_noticed(
    folder: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would say nothing of it."""
    database = await Database.open(f"sqlite:///{folder}/archive.db")
    monkeypatch.setattr("blackboard.archive.database._WAL_PAGES", 1)
    disk.broken = "archive.db"
    with pytest.raises(Unavailable):
        async with database.writing() as connection:
            await connection.exec_driver_sql("CREATE TABLE more (number INTEGER)")
    disk.broken = None
    with pytest.raises(Unavailable, match="a sync of its file failed"):
        async with database.reading():
            pass
    await database.aclose()


async def test_a_journal_that_cannot_be_written_over_leads_to_a_copy(
    folder: Path, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The process was killed, and the disk fails at the next start: what it has is not believed."""
    story = story_of(NUMBER, STEPS)
    killed = tmp_path / "killed"
    async with opened(folder) as archive:
        _, mark = await begin(archive, story)
        shutil.copytree(folder, killed)
    assert (killed / "archive.db-wal").stat().st_size
    left = ["archive.db-wal"]
    disk.recorder.fails = lambda path: path.endswith(tuple(left)) and left.pop() != ""
    async with opened(killed) as archive:
        assert await archive.mark(BOARD) == mark
    assert "was written again" in caplog.text
    assert not suspect.is_marked(killed / "archive.db")


async def test_an_archive_that_others_still_use_is_not_replaced(folder: Path) -> None:
    """Another process may have it open; both report that they must be restarted."""
    path = folder / "archive.db"
    first = await Database.open(f"sqlite:///{path}")
    suspect.mark(path, "for this test")
    with pytest.raises(Unavailable, match="a sync of its file failed"):
        await Database.open(f"sqlite:///{path}")
    with pytest.raises(Unavailable, match="a sync of its file failed"):
        await first.sync()
    await first.aclose()
    last = await Database.open(f"sqlite:///{path}")
    await last.sync()
    await last.aclose()
    assert not suspect.is_marked(path)


def test_a_copy_that_is_damaged_is_refused(folder: Path) -> None:
    """Rather than to be taken for the archive; the old file stays, and is refused again."""
    path = folder / "archive.db"
    shutil.copy(Path(__file__), path)
    suspect.mark(path, "for this test")
    for _ in range(2):
        with pytest.raises(Unavailable):
            TrustedFile(path, "archive")
    assert path.read_bytes() == Path(__file__).read_bytes()
