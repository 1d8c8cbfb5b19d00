"""Backups of boards in Redis, with an archive and without, and backups in an object store."""

from collections.abc import AsyncIterator, Awaitable, Callable
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
from tests.postgres import Postgres
from tests.s3 import S3
from tests.servers import RedisCluster3

BOARD = "main"
LARGE = "x" * 100_000


@pytest.fixture(params=["archive", "none"])
def settings(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Settings:
    """A service over Redis, with an archive in SQLite, and without one."""
    if request.param == "archive":
        return archived(redis_url, tmp_path, f"sqlite:///{tmp_path}/archive.db")
    return load({"engine": redis_url, "data": tmp_path / "data", "archive": "none"})


def archived(engine: str, folder: Path, archive: str) -> Settings:
    """A service over an engine, with the archive at a URL."""
    given = {"engine": engine, "archive": archive, "data": folder / "data"}
    make_key(folder / "signing_key")
    return load(given | {"blobs": str(folder / "blobs"), "signing_key": folder / "signing_key"})


async def wiped(settings: Settings) -> None:
    """Lose one Redis and an archive in SQLite."""
    async with redis.Redis.from_url(settings.engine) as connection:
        await connection.flushall()
    without_archive(settings)


def without_archive(settings: Settings) -> None:
    """Lose an archive in SQLite."""
    for end in ("", "-wal", "-shm"):
        Path((settings.archive or "").removeprefix("sqlite:///") + end).unlink(missing_ok=True)


async def serve(settings: Settings) -> AsyncIterator[Service]:
    """The service of the settings."""
    store, archive = await make_store(settings), await make_archive(settings)
    async with Service(store, archive=archive) as service:
        yield service


async def come_back(
    settings: Settings, backup: Path, lose: Callable[[], Awaitable[object]]
) -> None:
    """Boards are backed up, lost and recovered."""
    async for service in serve(settings):
        board = service.client(agent="ann").board(BOARD)
        await board.put("public/a", 1)
        await board.put("public/large", LARGE)
        await board.put("private/ann/b", 2)
        for number in range(3):
            await board.append("public/list", number)
        before = await board.entry("public/a")
    await take_once(settings, str(backup))
    await lose()
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


async def test_boards_of_redis_come_back(settings: Settings, tmp_path: Path) -> None:
    await come_back(settings, tmp_path / "backup", lambda: wiped(settings))


async def test_boards_with_their_history_in_postgresql_come_back(
    redis_url: str, postgres: Postgres, tmp_path: Path
) -> None:
    settings = archived(redis_url, tmp_path, await postgres.empty())

    async def lose() -> None:
        await postgres.empty()
        await wiped(settings)

    await come_back(settings, tmp_path / "backup", lose)


async def test_boards_of_a_redis_cluster_come_back(
    redis_cluster: RedisCluster3, tmp_path: Path
) -> None:
    await redis_cluster.flush()  # others have used it
    url = redis_cluster.url.replace("redis://", "redis+cluster://")
    settings = archived(url, tmp_path, f"sqlite:///{tmp_path}/archive.db")

    async def lose() -> None:
        await redis_cluster.flush()
        without_archive(settings)

    await come_back(settings, tmp_path / "backup", lose)


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


@pytest.mark.parametrize(
    "url",
    [
        "s3://[x",
        "s3:bucket/backup",
        "S3:/bucket/backup",
        "gs:bucket/backup",
        "file://mnt/backup",
        "file:///mnt/backup?part=1",
        "file:///mnt/backup#1",
    ],
)
def test_an_address_that_may_mean_another_place_is_refused(url: str) -> None:
    """A bucket is no directory of that name, and another machine is not this one."""
    with pytest.raises(InvalidRequest) as refused:
        BackupPlace.at(url)
    assert refused.value.field == "backup"


async def test_a_name_that_no_system_takes_is_no_place(tmp_path: Path) -> None:
    settings = load({"data": tmp_path / "data"})
    with pytest.raises(Unavailable, match="null byte"):
        await take_once(settings, f"file://{tmp_path}/a%00b")
    assert BackupPlace.at(f"file://localhost{tmp_path}/a").where == f"{tmp_path}/a"
    assert BackupPlace.at("./s3:bucket").where == "s3:bucket"
