"""The process that writes pages into the archive: when it is there, and what happens without it."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint
from msgspec.structs import replace
from sqlalchemy.exc import DBAPIError

from blackboard.archive.appender.pages import ORDINARY_CHANGES_MAX, ArchivePage
from blackboard.archive.appender.worker import _refusal, frame_of
from blackboard.archive.database import DISTRUSTED
from blackboard.archive.sql import SqlArchive, archive_beside
from blackboard.core.checkpoints import Point
from blackboard.core.commit import RESTORE, Epoch, Put
from blackboard.errors import Fenced, Unavailable
from blackboard.limits import BLOB_BYTES
from blackboard.wire.codec import encode_value
from tests.appended import ONE_ENTRY, appender_of, is_alive, open_appended, page_of, started
from tests.conformance.rules_archive import state_at, whole_log
from tests.conformance.story import Story
from tests.lowered import lowered
from tests.waiting import let_pass, wait_until

BOARD = "main"
KILLS = int(os.environ.get("BLACKBOARD_KILLS", "4"))


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[SqlArchive]:
    """An archive for which a process may be started."""
    opened = await open_appended(tmp_path)
    yield opened
    await opened.aclose()


async def check(archive: SqlArchive, story: Story) -> None:
    """The archive has all of the story, and nothing in it is damaged."""
    assert await whole_log(archive, BOARD) == story.log
    assert await state_at(archive, Point(BOARD, story.head)) == story.held[story.head]
    assert [finding async for finding in archive.verify(Point(BOARD, story.head))] == []


def has_process(archive: SqlArchive) -> bool:
    """Whether one takes pages."""
    return appender_of(archive).has_process


async def until_it_is_gone(archive: SqlArchive) -> None:
    """Wait until the service has noticed the end of the process."""

    async def is_gone() -> bool:
        return appender_of(archive)._life is None

    await wait_until(is_gone)


async def test_what_the_process_writes_is_what_the_service_writes(
    archive: SqlArchive, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of every kind, with checkpoints and restores, which the service writes in between."""
    story = Story(seed)
    for number in range(6):
        story.tell_some(20)
        story.checkpoint(f"c{number}")
        story.restore(story.dice.randrange(story.head))
    (tmp_path / "other").mkdir()
    other = await open_appended(tmp_path / "other")
    written, write = [], appender_of(archive).write

    async def noted(page: ArchivePage) -> object:
        written.append(page)
        return await write(page)

    monkeypatch.setattr(appender_of(archive), "write", noted)
    await started(archive)
    for each in (archive, other):
        await story.archive_into(each, BOARD)
    assert 0 < len(written) < len(story.log) / 7
    for revision in range(1, story.head + 1):
        at = Point(BOARD, revision)
        assert await archive.facts_at(at) == await other.facts_at(at)
        assert (await archive.mark_at(at)).chain == (await other.mark_at(at)).chain
    names = [[c.name for c in await each.checkpoints(BOARD)] for each in (archive, other)]
    assert names[0] == names[1] != []
    await check(archive, story)
    await other.aclose()


def test_the_edges_of_a_page_for_the_process() -> None:
    """Whatever takes more than the database, or long to encode, is written by the service."""
    page = page_of(3)
    assert page.is_ordinary
    assert page_of(1, value=bytes(BLOB_BYTES)).is_ordinary
    assert not page_of(1, value=bytes(BLOB_BYTES + 1)).is_ordinary
    assert not page_of(1, key="system/checkpoints/c").is_ordinary
    begins = Story()
    begins.tell(Put("public/a", b"\x01"))
    begins.restore(0)
    assert begins.log[1].epoch == Epoch(2, "epoch-2", RESTORE, 0, 2)
    assert not ArchivePage("main", 1, 0, tuple(begins.log), {}).is_ordinary
    change = page.entries[0].changes[0]
    for size in (ORDINARY_CHANGES_MAX, ORDINARY_CHANGES_MAX + 1):
        entry = replace(page.entries[0], changes=(change,) * size)
        assert ArchivePage("main", 1, 0, (entry,), {}).is_ordinary is (size == ORDINARY_CHANGES_MAX)


async def test_a_large_page_starts_it(tmp_path: Path) -> None:
    """One of ARCHIVE_PROCESS_ENTRIES. It takes small ones, too, once it is there."""
    archive = await open_appended(tmp_path, lowered(ONE_ENTRY, archive_process_entries=4))
    appender = appender_of(archive)
    appender.note(3)
    assert appender._life is None
    appender.note(4)
    assert appender._life is not None
    assert not appender.takes(page_of(1))
    await started(archive)
    assert appender.takes(page_of(1))
    await archive.aclose()


async def test_only_a_service_starts_one(tmp_path: Path) -> None:
    """Not a program that opens an archive by itself, unless it says so."""
    archive = await archive_beside(tmp_path)
    assert archive._appender is None
    await archive.aclose()


async def test_it_ends_when_it_is_idle(archive: SqlArchive) -> None:
    """So it takes memory only while there is much to write. Then the next one is started."""
    appender = appender_of(archive)
    appender._idle_s, usual_s = 0.05, appender._idle_s
    appender.note(1)
    await until_it_is_gone(archive)
    appender._idle_s = usual_s
    story = Story()
    story.tell_some(10)
    await story.archive_into(archive, BOARD)
    await started(archive)
    story.tell_some(10)
    await story.archive_into(archive, BOARD)
    await check(archive, story)


async def test_a_killed_process_leaves_no_gap(archive: SqlArchive, seed: int) -> None:
    """Wherever it was, its page was written whole or not at all, and the service goes on.

    BLACKBOARD_KILLS=200 makes it long.
    """
    story, dice, done, kills = Story(seed), random.Random(seed), 0, 0
    story.tell_some(40 * KILLS)
    await Story().archive_into(archive, BOARD)
    fence = await archive.take(BOARD, "tester", 600_000)
    assert fence is not None
    while done < story.head:
        if appender_of(archive)._life is None and kills < KILLS:
            kills, appender_of(archive)._rests_until_s = kills + 1, 0.0
            pid = await started(archive)
            asyncio.get_running_loop().call_later(dice.random() / 50, os.kill, pid, signal.SIGKILL)
        some = story.log[done : done + 10]
        try:
            done = (await archive.append(BOARD, fence, done, some)).revision
        except Unavailable:
            mark = await archive.mark(BOARD)
            assert mark is not None
            assert mark.revision in (done, some[-1].revision)
            done = mark.revision
            await until_it_is_gone(archive)
    await until_it_is_gone(archive)
    await check(archive, story)


async def test_one_that_does_not_answer_is_killed(archive: SqlArchive) -> None:
    """A stopped one, for example. Until then the outcome is open, and after it everything goes
    on."""
    story = Story()
    story.tell(Put("public/a", b"\x01"))
    await story.archive_into(archive, BOARD)
    pid = await started(archive)
    os.kill(pid, signal.SIGSTOP)
    appender_of(archive)._timeout_s = 0.2
    story.tell(Put("public/a", b"\x02"))
    with pytest.raises(Unavailable, match="does not answer"):
        await story.archive_into(archive, BOARD)
    assert not has_process(archive)  # nobody else is to wait for it
    await until_it_is_gone(archive)
    assert not is_alive(pid)
    await story.archive_into(archive, BOARD)
    await check(archive, story)


async def test_one_that_fails_is_done_without(
    archive: SqlArchive, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it was: the next attempt must not meet the same again."""
    pid = await started(archive)
    unreadable = ArchivePage(BOARD, "no fence", 0, page_of(1).entries, {})  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="failed: ValidationError"):
        await appender_of(archive).write(unreadable)
    await until_it_is_gone(archive)
    assert not is_alive(pid)
    assert "no process writes the archive" in caplog.text
    story = Story()
    story.tell_some(10)
    await story.archive_into(archive, BOARD)
    await check(archive, story)


SAYS_THAT_A_SYNC_FAILED = """
import os, sys
sys.path[:] = sys.argv[1:]
from msgspec import msgpack
from blackboard.archive.appender.worker import PageAnswer, frame_of, hello
refused = {"code": "unavailable", "fields": {"what": "archive", "reason": "disk I/O error"}}
failed = PageAnswer(error=refused, is_suspect=True)
for answer in (hello(), *([] if AT_ONCE else [PageAnswer()]), failed):
    size = int.from_bytes(os.read(0, 4), "big")
    while size:
        size -= len(os.read(0, size))
    os.write(1, frame_of(msgpack.encode(answer)))
"""


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_sync_that_failed_in_the_process_ends_the_file_for_the_service(
    archive: SqlArchive, *, at_once: bool
) -> None:
    """As if it had failed in the service, also when it opens the file: no log is cut behind it."""
    story = Story()
    story.tell(Put("public/a", b"\x01"))
    await story.archive_into(archive, BOARD)
    await appender_of(archive).aclose()
    appender = appender_of(archive)
    program = SAYS_THAT_A_SYNC_FAILED.replace("AT_ONCE", str(at_once))
    appender._is_closed, appender._program = False, program
    if at_once:
        appender.note(1)
        await until_it_is_gone(archive)
    else:
        await started(archive)
        story.tell(Put("public/a", b"\x02"))
        with pytest.raises(Unavailable, match="disk I/O error"):
            await archive.append(BOARD, 1, 1, story.log[1:])
    for call in (archive.settle, archive.mark):
        with pytest.raises(Unavailable, match="a sync of its file failed"):
            await call(BOARD)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error"), (None, DISTRUSTED)],
)
def test_the_process_says_that_a_sync_failed(code: int | None, reason: str) -> None:
    """Once it did, every call of it fails for that reason."""
    error, cause = Unavailable("archive", reason), sqlite3.OperationalError(reason)
    if code is not None:
        cause.sqlite_errorcode = code
        error.__cause__ = DBAPIError("PRAGMA", (), cause)
    assert _refusal(error).is_suspect
    assert not _refusal(Unavailable("archive", "database is locked")).is_suspect


async def test_a_cancelled_append_leaves_the_next_one_its_own_answer(archive: SqlArchive) -> None:
    """It waits for the answer, and the process goes on."""
    story = Story()
    story.tell(Put("public/a", b"\x01"))
    await story.archive_into(archive, BOARD)
    pid = await started(archive)
    os.kill(pid, signal.SIGSTOP)
    story.tell(Put("public/a", b"\x02"))
    task = asyncio.create_task(archive.append(BOARD, 1, 1, story.log[1:]))

    async def is_under_way() -> bool:
        return archive._database._turn.locked()

    await wait_until(is_under_way)
    for _ in range(2):
        task.cancel()
        await asyncio.wait([task], timeout=0.01)
    assert not task.done()
    os.kill(pid, signal.SIGCONT)
    await asyncio.wait([task])
    assert task.cancelled()
    story.tell(Put("public/a", b"\x03"))
    await story.archive_into(archive, BOARD)
    assert await started(archive) == pid
    await check(archive, story)


async def test_a_redaction_is_noticed_by_the_process(archive: SqlArchive) -> None:
    """What it remembers of the newest values and sums is from before."""
    story, again = Story(), encode_value("again")
    story.tell(Put("public/a", encode_value("secret")), Put("public/b", again))
    await story.archive_into(archive, BOARD)
    await started(archive)
    story.tell(Put("public/b", encode_value(2)))
    await story.archive_into(archive, BOARD)
    await archive.redact(BOARD, "public/a", {})
    story.tell(Put("public/a", again))
    await story.archive_into(archive, BOARD)
    assert has_process(archive)
    assert (await archive.facts_at(Point(BOARD, 3))).digests == story.digests(3)


async def test_errors_arrive_as_they_are(archive: SqlArchive) -> None:
    """With their fields, and the process goes on."""
    story = Story()
    story.tell_some(10)
    await story.archive_into(archive, BOARD)
    pid = await started(archive)
    story.tell_some(2)
    with pytest.raises(Fenced) as refused:
        await archive.append(BOARD, 999, 10, story.log[10:])
    assert (refused.value.fence, refused.value.holder) == (999, "tester")
    assert refused.value.current == 1
    await story.archive_into(archive, BOARD)
    assert await started(archive) == pid
    await check(archive, story)


async def test_one_that_cannot_be_started_is_done_without(
    archive: SqlArchive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and not tried again for a while."""
    for command in ("/nonexistent", "/bin/false"):
        monkeypatch.setattr(sys, "executable", command)
        appender_of(archive).note(1)
        await until_it_is_gone(archive)
        appender_of(archive).note(1)
        assert appender_of(archive)._life is None
        appender_of(archive)._rests_until_s = 0.0
    assert len([m for m in caplog.messages if m.startswith("no process writes the archive")]) == 2
    monkeypatch.undo()
    story = Story()
    story.tell_some(10)
    await story.archive_into(archive, BOARD)
    await check(archive, story)


@pytest.mark.parametrize("begins", [False, True])
async def test_closing_ends_it(archive: SqlArchive, *, begins: bool) -> None:
    """Also while it is being started; and none is started afterwards."""
    if begins:
        appender_of(archive).note(1)
        await checkpoint()
    pid = None if begins else await started(archive)
    await archive.aclose()
    assert pid is None or not is_alive(pid)
    assert not has_process(archive)
    appender_of(archive).note(1)
    assert appender_of(archive)._life is None
    await archive.aclose()


async def test_it_leaves_signals_to_the_service(archive: SqlArchive) -> None:
    """A terminal and a supervisor send them to both. The service may still have pages for it."""
    pid = await started(archive)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    story = Story()
    story.tell_some(10)
    await story.archive_into(archive, BOARD)
    assert await started(archive) == pid
    await check(archive, story)


def worker() -> "subprocess.Popen[bytes]":
    """The process by itself."""
    command = [sys.executable, "-c", "from blackboard.archive.appender.worker import main; main()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("given", [b"", b"\x00\x00", b"\xff" * 8])
def test_it_ends_with_its_input(given: bytes) -> None:
    """Also in the middle of a frame, and if the input is not from a service."""
    with worker() as child:
        out, _ = child.communicate(given)
    assert (out, child.returncode) == (b"", 0)


def test_it_ends_if_its_service_was_killed_before_it_began() -> None:
    """It would write beside the next service."""
    with worker() as child:
        out, _ = child.communicate(frame_of(b"4194305"))
    assert (out, child.returncode) == (b"", 0)


def environment_of(pid: int) -> bytes:
    """That of a process."""
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_it_gets_nothing_that_is_secret(
    archive: SqlArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no more than the file."""
    monkeypatch.setenv("BLACKBOARD_SECRET", "of the service")
    pid = await started(archive)
    assert b"of the service" not in environment_of(pid)


async def test_a_process_of_another_version_is_not_used(
    archive: SqlArchive, caplog: pytest.LogCaptureFixture
) -> None:
    """The package was upgraded under a service that runs: that one must not convert the file."""
    appender = appender_of(archive)
    appender._program = f"from blackboard.archive.appender import worker as w;{CHANGED};w.main()"
    appender.note(1)
    await until_it_is_gone(archive)
    assert "another version of this package" in caplog.text
    assert not has_process(archive)


CHANGED = "w.hello = lambda: w.PageAnswer(version=(w.FORMAT + 1, 0))"


@pytest.mark.parametrize("is_gone", [False, True])
async def test_another_file_is_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_gone: bool
) -> None:
    """The file was replaced or removed: the service has the old one open, and would wait for what
    goes into the other one."""
    archive = await open_appended(tmp_path)
    (tmp_path / "archive.db").rename(tmp_path / "old.db")
    if not is_gone:
        (tmp_path / "archive.db").touch()
    appender_of(archive).note(1)
    await until_it_is_gone(archive)
    assert "is not the file that the service has open" in caplog.text
    assert (tmp_path / "archive.db").exists() is not is_gone
    await archive.aclose()


async def test_it_starts_beside_a_busy_writer(archive: SqlArchive) -> None:
    """It opens the file in the turn of the service: SQLite's lock may never be free for it."""
    story = Story()
    story.tell(Put("public/a", b"\x01"))
    await story.archive_into(archive, BOARD)
    begun = asyncio.Event()

    async def write_on() -> None:
        while not has_process(archive):
            async with archive._database.writing():
                begun.set()
                await let_pass(0.2)

    writing = asyncio.create_task(write_on())
    await begun.wait()
    appender_of(archive)._timeout_s = 30.0
    await started(archive)
    await writing
