"""A service that follows a backup, while something happens to the place."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.backup import manifest as manifests
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import verify
from blackboard.backup.ship import Shipper
from blackboard.core.commit import Commit, CommitId, LogPage, Put
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.service import Service
from blackboard.units import Revision
from blackboard.wire.codec import encode_value, prepare
from tests.conformance.story import Story
from tests.lowered import lowered
from tests.waiting import wait_until

BOARD = "main"
QUICK = lowered(
    backup_start_ms=60_000,  # it is compared before it is used, and shipped when it ends
    backup_interval_ms=10,
    archive_retry_ms=50,
    archive_pause_ms=1,
    finish_timeout_ms=60_000,
)
HASTY = lowered(QUICK, backup_start_ms=50, finish_timeout_ms=1_000)
"""Without much patience for a place that does not answer."""


@asynccontextmanager
async def following(data: Path, backup: str, limits: Limits = QUICK) -> AsyncIterator[Service]:
    """A service over the embedded engine that follows a backup."""
    store = await SqliteStore.at(data, limits=limits)
    archive = await archive_beside(data, limits)
    async with Service(store, archive=archive, limits=limits) as service:
        await service.follow(BackupPlace.at(backup, limits))
        yield service


async def put(service: Service, value: int) -> int:
    """One commit; returns its revision."""
    return (await service.client().board(BOARD).put("public/a", value)).revision


async def until_failing(service: Service, failing: bool) -> None:
    """Wait until the last round failed, or did not."""

    async def is_so() -> bool:
        found = service.statistics().backup
        return found is not None and found.failing == failing

    await wait_until(is_so)


async def newest(backup: Path) -> int:
    """The newest revision in a backup that was read as a whole; 0: nothing is there."""
    found = [each async for each in verify(BackupPlace.at(str(backup)))]
    return next((each.last for each in found if each.board == BOARD), 0)


async def test_a_store_that_does_not_answer_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start waits BACKUP_START_MS for it; commits do not wait at all, and the lag grows."""
    silent = asyncio.Event()
    connected = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        async with following(tmp_path / "data", "s3://bucket/backup", HASTY) as service:
            await connected.wait()
            assert [await put(service, value) for value in range(3)] == [1, 2, 3]
            found = service.statistics().backup
            assert found is not None
            assert found.entries == 0
            before = found.lag_ms

            async def is_later() -> bool:
                now = service.statistics().backup
                return now is not None and now.lag_ms > before

            await wait_until(is_later)
    finally:
        silent.set()
        server.close()


async def test_a_backup_that_vanished_is_begun_again_as_a_whole(tmp_path: Path) -> None:
    """Its disk is not mounted any more. Nothing counts as shipped that is not there; when the old
    one is back, it goes on from where it was."""
    backup, away = tmp_path / "backup", tmp_path / "away"

    async with following(tmp_path / "data", str(backup)) as service:

        async def until_shipped(revision: int) -> None:
            async def is_shipped() -> bool:
                return (backup / "backup.json").exists() and await newest(backup) == revision

            await wait_until(is_shipped)

        await put(service, 1)
        await until_shipped(1)
        backup.rename(away)
        await put(service, 2)
        await until_shipped(2)  # with all that came before
        await until_failing(service, failing=False)
        shutil.rmtree(backup)
        away.rename(backup)
        await put(service, 3)
        await until_shipped(3)
    assert await newest(backup) == 3


async def test_what_another_service_archives_is_shipped_at_once(tmp_path: Path) -> None:
    """The first round, which looks at every board, was over before it was committed."""
    backup, story = tmp_path / "backup", Story()
    rarely = lowered(QUICK, engine_check_interval_ms=3_600_000)

    async def is_there() -> bool:
        return (backup / "boards" / "other" / "manifest.json").exists()

    async def is_followed() -> bool:
        return (backup / "boards" / BOARD / "manifest.json").exists()

    async with following(tmp_path / "data", str(backup), rarely) as service:
        await put(service, 1)
        await wait_until(is_followed)
        archive = await archive_beside(tmp_path / "data", QUICK)
        story.tell(Put("public/a", b"\x01"))
        await story.archive_into(archive, "other")
        await wait_until(is_there)
        await archive.aclose()


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_what_was_not_archived_is_shipped_though_nobody_uses_it(
    tmp_path: Path, is_stopped: bool
) -> None:
    """As after a kill: the commit is in the engine only. A stop at once ships it, too."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    async with following(data, str(backup)) as service:
        await put(service, 1)
    async with Service(await SqliteStore.at(data)) as service:
        wanted = await put(service, 2)
    assert await newest(backup) < wanted

    async def is_shipped() -> bool:
        return await newest(backup) == wanted

    async with following(data, str(backup)):
        if not is_stopped:
            await wait_until(is_shipped)
    assert await is_shipped()


async def test_a_place_that_is_no_directory_is_waited_for(tmp_path: Path) -> None:
    """The lag says so; it is shipped to as soon as it can be."""
    backup = tmp_path / "backup"
    backup.write_text("in the way")
    async with following(tmp_path / "data", str(backup)) as service:
        await put(service, 1)
        await until_failing(service, failing=True)
        assert await put(service, 2) == 2
        backup.unlink()
        await until_failing(service, failing=False)
    assert await newest(backup) == 2


@pytest.mark.parametrize("what", ["backup/boards/damaged/manifest.json", "copy/boards/damaged.db"])
async def test_what_is_damaged_holds_up_no_other_board(tmp_path: Path, what: str) -> None:
    """Neither the comparison with the backup nor what is shipped to it."""
    data, backup, copy = (tmp_path / name for name in ("data", "backup", "copy"))
    async with following(data, str(backup)) as service:
        await service.client().board("damaged").put("public/a", 1)
        await put(service, 1)
    shutil.copytree(data, copy)
    async with following(data, str(backup)) as service:
        last = await put(service, 2)
    damaged = tmp_path / what
    damaged.write_bytes(damaged.read_bytes()[:-2])
    async with following(copy, str(backup)) as service:
        above = await put(service, 3)
        assert above > last + 1  # an older copy was put back
        place = BackupPlace.at(str(backup))

        async def is_shipped() -> bool:
            found = await manifests.read(place, await place.id(), BOARD)
            return found is not None and found.last == above

        await wait_until(is_shipped)


async def test_an_error_that_nobody_foresaw_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    async with following(tmp_path / "data", str(backup)) as service:
        await put(service, 1)
        await until_failing(service, failing=False)

        async def fails(_place: BackupPlace) -> str:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(BackupPlace, "id", fails)
            await until_failing(service, failing=True)
        await until_failing(service, failing=False)


@pytest.mark.parametrize("what", ["archive", "backup"])
async def test_an_error_that_nobody_foresaw_keeps_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """It comes when the service ends: what follows is closed, and the backup released."""
    backup, closed = tmp_path / "backup", list[bool]()

    async def fails(*_: object) -> str:
        raise RuntimeError("a bug")

    async with following(tmp_path / "data", str(backup)) as service:
        await put(service, 1)
        await until_failing(service, failing=False)
        archive = service.host.archive
        assert archive is not None
        close = archive.aclose

        async def closes() -> None:
            closed.append(True)
            await close()

        monkeypatch.setattr(archive, "aclose", closes)
        if what == "archive":
            monkeypatch.setattr(archive, "append", fails)
            await put(service, 2)
        else:
            monkeypatch.setattr(BackupPlace, "id", fails)
    assert closed
    assert "a bug" in caplog.text
    other = BackupPlace.at(str(backup))
    await other.lock()
    await other.unlock()


async def test_a_board_that_never_rests_holds_up_no_other(tmp_path: Path) -> None:
    """Without an archive, there is always one more log entry: of each only so much is shipped as
    there was at the beginning."""
    store = await SqliteStore.at(tmp_path / "data")
    log, reads = store.log, 0

    async def commit(board: str) -> None:
        head = await store.open(board)
        put = (Put("public/a", encode_value(head.revision)),)
        await store.commit(
            board, [prepare(Commit(CommitId("ann", 0, "w", head.revision + 1), head.epoch.id, put))]
        )

    async def read(board: str, after: Revision, **page: Any) -> LogPage:
        nonlocal reads
        if board == "busy":
            reads += 1
            assert reads < 20
            await commit(board)
        return await log(board, after, **page)

    for board in ("busy", BOARD):
        await commit(board)
    place = BackupPlace.at(str(tmp_path / "backup"))
    shipper = Shipper(place, store, None, QUICK)
    await shipper.begin()
    store.log = read  # type: ignore[method-assign]
    shipped = await shipper.round(["busy", BOARD])
    assert shipped.boards == 2
    await commit("busy")
    last = (await store.open("busy")).revision
    await shipper.round(["busy"])
    assert shipper.shipped("busy") == last
    await shipper.end()
    await store.aclose()
