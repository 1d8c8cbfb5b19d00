"""Backups of boards in Redis, with an archive and without, and backups in an object store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from blackboard.backup.place import BackupPlace
from blackboard.backup.read import verify
from blackboard.errors import InvalidRequest, Unavailable
from blackboard.integrity.signing import make_key
from blackboard.server.backups.once import take_once
from blackboard.server.checkpoints.from_backup import Wanted, recover_from
from blackboard.server.service import Service
from blackboard.server.settings import Settings, load, make_archive, make_store
from tests.s3 import S3

BOARD = "main"
LARGE = "x" * 100_000


@pytest.fixture(params=["archive", "none"])
def settings(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Settings:
    """A service over Redis, with an archive in SQLite, and without one."""
    key = tmp_path / "signing_key"
    make_key(key)
    given: dict[str, object] = {"engine": redis_url, "data": tmp_path / "data", "archive": "none"}
    if request.param == "archive":
        archive = {"archive": f"sqlite:///{tmp_path}/archive.db", "blobs": str(tmp_path / "blobs")}
        given |= archive | {"signing_key": key}
    return load(given)


async def wiped(settings: Settings, tmp_path: Path) -> None:
    """Lose the engine and the archive."""
    async with redis.Redis.from_url(settings.engine) as connection:
        await connection.flushall()
    for end in ("", "-wal", "-shm"):
        (tmp_path / f"archive.db{end}").unlink(missing_ok=True)


async def serve(settings: Settings) -> AsyncIterator[Service]:
    """The service of the settings."""
    store, archive = await make_store(settings), await make_archive(settings)
    async with Service(store, archive=archive) as service:
        yield service


async def test_boards_of_redis_come_back(settings: Settings, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async for service in serve(settings):
        board = service.client(agent="ann").board(BOARD)
        await board.put("public/a", 1)
        await board.put("public/large", LARGE)
        await board.put("private/ann/b", 2)
        for number in range(3):
            await board.append("public/list", number)
        before = await board.entry("public/a")
    await take_once(settings, str(backup))
    await wiped(settings, tmp_path)
    [found] = await recover_from(settings, BackupPlace.at(str(backup)), Wanted())
    assert found.revision > found.through == 6
    async for service in serve(settings):
        board = service.client(agent="ann").board(BOARD)
        after = await board.entry("public/a")
        assert before is not None
        assert after is not None
        assert (after.value, after.mod_revision) == (1, before.mod_revision)
        assert await board.get("private/ann/b") == 2
        assert await board.get("public/large") == LARGE
        assert (await board.append("public/list", "next")).endswith("3")


async def test_a_newer_board_of_redis_is_refused(settings: Settings, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async for service in serve(settings):
        await service.client().board(BOARD).put("public/a", 1)
    await take_once(settings, str(backup))
    async for service in serve(settings):
        await service.client().board(BOARD).put("public/a", 2)
    with pytest.raises(InvalidRequest, match="newer board main"):
        await recover_from(settings, BackupPlace.at(str(backup)), Wanted())
    async for service in serve(settings):
        assert await service.client().board(BOARD).get("public/a") == 2


async def test_a_backup_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load({"data": tmp_path / "data"})
    new = load({"data": tmp_path / "new"})
    async with S3() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        url = f"{s3.url}/backup"
        async for service in serve(settings):
            await service.client().board(BOARD).put("public/large", LARGE)
        other = BackupPlace.at(url)
        await other.begin()
        await other.lock()
        with pytest.raises(Unavailable, match="another process writes"):
            await take_once(settings, url)
        await other.unlock()
        assert (await take_once(settings, url)).entries == 1
        assert (await take_once(settings, url)).entries == 0
        assert [each.last async for each in verify(BackupPlace.at(url))] == [1]
        await recover_from(new, BackupPlace.at(url), Wanted())
        async for service in serve(new):
            assert await service.client().board(BOARD).get("public/large") == LARGE
        s3.kill()
        with pytest.raises(Unavailable):
            await take_once(settings, url)
