"""An operator's Redis whose append-only file ends in the middle of a commit, and is not rewritten.

Redis 7.0 removes only the command that the file ends in. The next transaction ends the one that is
left, so the start after that executes half of a commit that was lost. Our own server is made to
rewrite its file (tests/redis_process.py); this one asks for a password, so it is left as it is.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis

from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.commit import Put
from blackboard.engines.redis.layout import board_keys, log_key
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import Corrupt
from blackboard.server.service import Service
from tests.conformance.writer import Writer, packed
from tests.faults.test_power_redis import append_only_file, found_in
from tests.redis_process import RedisProcess, RedisSettings

BOARD = "power"
PASSWORD = "hush"
SETTINGS = RedisSettings(options={"requirepass": PASSWORD})
PLACES = (b"XADD", b"HSET", b"ZADD", b"EXEC")
"""Commands of the last commit, the last time that each is there; the file ends in it."""


@asynccontextmanager
async def served(binary: Path, directory: Path) -> AsyncIterator[tuple[str, RedisStore]]:
    """A server with a directory, until it is killed."""
    async with RedisProcess(binary, directory=directory, settings=SETTINGS) as server:
        url = server.url.replace("//", f"//:{PASSWORD}@")
        store = RedisStore.connect(url)
        try:
            yield url, store
        finally:
            await store.aclose()
            await server.kill()


def cut(directory: Path, command: bytes) -> int:
    """Let the file end in a command of its last commit; returns where that begins."""
    file = append_only_file(directory)
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.rindex(command) + 2])
    return whole.rindex(b"*1\r\n$5\r\nMULTI")


def has_come_back(url: str, lost: int) -> bool:
    """Whether the log has the revision that was lost."""
    with Redis.from_url(url) as client:
        return bool(client.xrange(log_key(BOARD), f"{lost}-0", f"{lost}-0"))


def is_whole(url: str) -> bool:
    """Whether the board has its entries."""
    with Redis.from_url(url) as client:
        return bool(client.hexists(board_keys(BOARD)[3], "public/a"))


@pytest.mark.parametrize("command", PLACES, ids=bytes.decode)
@pytest.mark.parametrize("is_opened", [True, False], ids=["opened", "not-opened"])
async def test_a_part_of_a_lost_commit_is_noticed(
    redis_binary: Path, tmp_path: Path, command: bytes, *, is_opened: bool
) -> None:
    """Whether or not the board was opened before it came back. Without that part in the file,
    everything is as it was."""
    async with served(redis_binary, tmp_path) as (_, store):
        ada = await Writer.open(store, BOARD)
        await ada.commit(Put("public/a", packed(1)), Put("public/b", packed(1)))
        before = await found_in(store)
        changed = await ada.commit(Put("public/a", packed(2)), Put("public/c", packed(2)))
    begins = cut(tmp_path, command)
    file, ends = append_only_file(tmp_path), 0
    async with served(redis_binary, tmp_path) as (_, store):
        ends = file.stat().st_size
        other = BOARD if is_opened else "other"
        if is_opened:
            assert await found_in(store) == before
        await (await Writer.open(store, other, "bob")).commit(Put("public/later", packed(1)))
        after = await found_in(store) if is_opened else before
    async with served(redis_binary, tmp_path) as (url, store):
        if not has_come_back(url, changed.revision):
            assert await found_in(store) == after
            return
        if is_opened or command != b"EXEC":
            with pytest.raises(Corrupt, match=f"part of a commit .*{changed.revision}"):
                await store.open(BOARD)
            with pytest.raises(Corrupt):
                await store.read(BOARD, ["public/a"])
    torn = file.read_bytes()
    file.write_bytes(torn[:begins] + torn[ends:])
    async with served(redis_binary, tmp_path) as (_, store):
        assert await found_in(store) == after


async def test_a_board_that_is_removed_in_part_is_noticed(
    redis_binary: Path, tmp_path: Path
) -> None:
    """Its keys are gone, and not the fact that there is a board."""
    async with served(redis_binary, tmp_path) as (_, store):
        ada = await Writer.open(store, BOARD)
        await ada.commit(Put("public/a", packed(1)))
        before = await found_in(store)
        await store.remove(BOARD)
    cut(tmp_path, b"HSET")
    async with served(redis_binary, tmp_path) as (_, store):
        assert await found_in(store) == before
    async with served(redis_binary, tmp_path) as (url, store):
        if is_whole(url):
            assert await found_in(store) == before
        else:
            with pytest.raises(Corrupt, match="a part of a commit"):
                await store.open(BOARD)


async def test_it_is_recovered_from_the_archive(redis_binary: Path, tmp_path: Path) -> None:
    """With everything that was committed before the part of the lost commit came back."""
    directory, past = tmp_path / "redis", tmp_path / "archive"
    past.mkdir()
    async with served(redis_binary, directory) as (_, store):
        await (await Writer.open(store, BOARD)).commit(Put("public/a", packed(1)))
        lost = await (await Writer.open(store, BOARD, "bob")).commit(Put("public/a", packed(2)))
    cut(directory, b"HSET")
    async with (
        served(redis_binary, directory) as (_, store),
        beside(store, past) as one,
    ):
        known = (await one.board(BOARD).put("public/later", 3)).revision
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    async with (
        served(redis_binary, copy) as (url, store),
        beside(store, past) as client,
    ):
        board = client.board(BOARD)
        if has_come_back(url, lost.revision):
            with pytest.raises(Corrupt, match="blackboard recover power"):
                await board.get("public/a")
            await board.recover()
        assert [await board.get(f"public/{key}") for key in ("a", "later")] == [1, 3]
        assert (await board.put("public/a", 4)).revision > known
        assert (await board.verify()).ok


@asynccontextmanager
async def beside(store: RedisStore, directory: Path) -> AsyncIterator[Client]:
    """A service with an archive, and the client of its operator."""
    archive = await archive_beside(directory)
    async with Service(store, archive=archive) as service:
        yield Client(service.link(access.operator()))
