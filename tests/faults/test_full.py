"""No room: on the disk below either engine, and in the memory of Redis.

A disk is full in two ways: a file system of two megabytes, where this process may mount one, and a
limit on how large files may grow (RLIMIT_FSIZE) of the process that writes. Nothing that was
answered is lost, nothing is half there, reading goes on, and so does writing when there is room.
"""

import asyncio
import resource
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from blackboard.client import writer as writer_module
from blackboard.client.board import Board
from blackboard.core import access
from blackboard.engines.redis.process import RedisProcess, RedisSettings
from blackboard.errors import BlackboardError, OutcomeUnknown, Unavailable
from tests.guarantees.processes import ServiceProcess
from tests.servers import ask
from tests.waiting import wait_until

SHORT_MS = 4_000
"""How long a writer insists here, instead of half a minute."""
SOON_S = 90.0
"""What a hang would exceed."""
COUNT, BIG = "public/count", "public/big"
BIG_BYTES = 200_000
DISK = "2m"
WRAPPER = "#!/bin/sh\ntrap '' XFSZ\nexec {binary} \"$@\"\n"
"""Lets a server be told that its file is too large, instead of ending it."""


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers of this process give up soon."""
    monkeypatch.setattr(writer_module, "REQUEST_TIMEOUT_MS", SHORT_MS)


@contextmanager
def no_file_grows(pid: int) -> Iterator[None]:
    """Process `pid` finds its disk full."""
    usual = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, usual[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, usual)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system with little room.

    Not below pytest's directories: what a killed run left mounted would fail all later runs there,
    when pytest removes old directories.
    """
    place = Path(tempfile.mkdtemp(prefix="blackboard-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "blackboard-test", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        place.rmdir()
        pytest.skip("this process may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        place.rmdir()


async def count_up(board: Board, acknowledged: list[int]) -> BlackboardError:
    """Count, and write something large, until that fails; returns why."""
    number = 0
    while True:
        try:
            acknowledged.append(await board.increment(COUNT))
            await board.put(f"{BIG}/{number}", "x" * BIG_BYTES)
        except (Unavailable, OutcomeUnknown) as error:
            return error
        number += 1


async def check_nothing_is_lost(board: Board, acknowledged: list[int]) -> None:
    """Each number once, in order; at most one more, whose outcome nobody was told."""
    assert acknowledged == list(range(1, len(acknowledged) + 1))
    assert await board.get(COUNT) in (len(acknowledged), len(acknowledged) + 1)


async def goes_on(board: Board) -> None:
    """Wait until the board takes a commit again."""

    async def is_taken() -> bool:
        try:
            await board.put("public/after", 1)
        except (Unavailable, OutcomeUnknown):
            return False
        return True

    await wait_until(is_taken, timeout_s=SOON_S)


@pytest.mark.usefixtures("hurried")
async def test_an_embedded_engine_whose_disk_is_full(small_disk: Path) -> None:
    """Reading goes on; with room again writing does, too, and a restart finds it all."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(600_000))
    acknowledged: list[int] = []
    with anyio.fail_after(SOON_S):
        async with ServiceProcess("sqlite", small_disk / "data") as service:
            async with service.connect(access.agent("ada")) as client:
                board = client.board("main")
                assert isinstance(await count_up(board, acknowledged), Unavailable)
                await check_nothing_is_lost(board, acknowledged)
                ballast.unlink()
                await goes_on(board)
            await service.kill()
            await service.start()
            async with service.connect(access.agent("ada")) as client:
                await check_nothing_is_lost(client.board("main"), acknowledged)
                assert await client.board("main").get("public/after") == 1


@pytest.mark.usefixtures("hurried")
async def test_an_embedded_engine_whose_files_may_not_grow(tmp_path: Path) -> None:
    """SQLite calls that an I/O error, after which nothing is believed before it can be written."""
    acknowledged: list[int] = []
    with anyio.fail_after(SOON_S):
        async with ServiceProcess("sqlite", tmp_path / "data") as service:
            async with service.connect(access.agent("ada")) as client:
                board = client.board("main")
                acknowledged.append(await board.increment(COUNT))
                with no_file_grows(service.pid):
                    await count_up(board, acknowledged)
                await goes_on(board)
                await check_nothing_is_lost(board, acknowledged)
            await service.kill()
            await service.start()
            async with service.connect(access.agent("ada")) as client:
                await check_nothing_is_lost(client.board("main"), acknowledged)


# --- Redis ----------------------------------------------------------------------------------------


@pytest.fixture
def wrapped(redis_binary: Path, tmp_path: Path) -> Path:
    """The server, told of a file that is too large instead of ended by it."""
    path = tmp_path / "server"
    path.write_text(WRAPPER.format(binary=redis_binary))
    path.chmod(0o700)
    return path


@pytest.fixture
async def careless(wrapped: Path) -> AsyncIterator[RedisProcess]:
    """A server that answers first and syncs each second."""
    async with RedisProcess(wrapped, settings=RedisSettings(fsync="everysec")) as redis:
        yield redis


@pytest.mark.usefixtures("hurried")
async def test_a_redis_that_cannot_write_its_file_refuses_commits(
    careless: RedisProcess, tmp_path: Path
) -> None:
    """It says MISCONF; what it refused did not happen, reads are answered."""
    acknowledged: list[int] = []
    with anyio.fail_after(SOON_S):
        async with (
            ServiceProcess(careless.url, tmp_path / "data") as service,
            service.connect(access.agent("ada")) as client,
        ):
            board = client.board("main")
            acknowledged.append(await board.increment(COUNT))
            with no_file_grows(careless.pid):
                error = await count_up(board, acknowledged)
                assert "MISCONF" in str(error)
                await check_nothing_is_lost(board, acknowledged)
            await goes_on(board)
            await check_nothing_is_lost(board, acknowledged)


async def test_a_redis_that_syncs_each_commit_ends_when_it_cannot(
    wrapped: Path, tmp_path: Path
) -> None:
    """The commit that did not reach the disk is applied when the server is back, once."""
    acknowledged: list[int] = []
    with anyio.fail_after(SOON_S):
        async with (
            RedisProcess(wrapped) as redis,
            ServiceProcess(redis.url, tmp_path / "data") as service,
            service.connect(access.agent("ada")) as client,
        ):
            board = client.board("main")
            acknowledged.append(await board.increment(COUNT))
            with no_file_grows(redis.pid):
                counting = asyncio.create_task(board.increment(COUNT))
                await wait_until(lambda: ended(redis), timeout_s=SOON_S)
            await redis.restart()
            acknowledged.append(await counting)
            assert await board.get(COUNT) == 2
            assert acknowledged == [1, 2]


async def ended(redis: RedisProcess) -> bool:
    """Whether its process is gone."""
    return not redis.is_running()


@pytest.mark.usefixtures("hurried")
async def test_a_redis_without_memory_still_forgets(redis_binary: Path, tmp_path: Path) -> None:
    """Writing is refused, reading and removing are not; then there is room."""
    acknowledged: list[int] = []
    with anyio.fail_after(SOON_S):
        async with (
            RedisProcess(redis_binary) as redis,
            ServiceProcess(redis.url, tmp_path / "data") as service,
            service.connect(access.agent("ada")) as client,
        ):
            board = client.board("main")
            await board.put(BIG, "x" * BIG_BYTES)
            await ask(redis, "CONFIG", "SET", "maxmemory", 1)
            error = await count_up(board, acknowledged)
            assert "out of memory" in str(error)
            assert acknowledged == []
            assert await board.get(COUNT) is None
            assert await board.delete(BIG)
            await ask(redis, "CONFIG", "SET", "maxmemory", 0)
            assert await board.increment(COUNT) == 1
