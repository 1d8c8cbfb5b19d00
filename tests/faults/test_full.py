"""No room: on the disk below either engine, and in the memory of Redis.

A disk is full in two ways: a file system of two megabytes, where this process may mount one, and a
limit on how large files may grow (RLIMIT_FSIZE) of the process that writes. Nothing that was
answered is lost, nothing is half there, reading goes on, and so does writing when there is room.
"""

import asyncio
import os
import resource
import sqlite3
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from msgspec.structs import replace

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.commit import Head, Put
from blackboard.engines.sqlite.connection import ROOM_BYTES
from blackboard.engines.sqlite.file import BoardFile
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import BlackboardError, OutcomeUnknown, Unavailable
from blackboard.limits import OPERATIONS_MAX
from blackboard.wire.codec import encode_value
from tests.conformance.writer import Writer, packed
from tests.guarantees.processes import ForkedProcess, ServiceProcess
from tests.lowered import lowered
from tests.redis_process import RedisProcess, RedisSettings
from tests.servers import ask
from tests.waiting import wait_until

SHORT_MS = 4_000
"""How long a writer insists here, instead of half a minute."""
HURRIED = lowered(commit_timeout_ms=SHORT_MS, request_timeout_ms=SHORT_MS)
SOON_S = 90.0
"""What a hang would exceed."""
COUNT, BIG = "public/count", "public/big"
BIG_BYTES = 200_000
DISK = "2m"
WRAPPER = "#!/bin/sh\ntrap '' XFSZ\nexec {binary} \"$@\"\n"
"""Makes a server get an error for a file that is too large, instead of a signal that ends it."""


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
    """Each number once, in order, and at most one more, whose outcome is unknown."""
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


async def test_an_embedded_engine_whose_disk_is_full(small_disk: Path) -> None:
    """Reading goes on; with room again writing does, too, and a restart finds it all."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(600_000))
    acknowledged: list[int] = []
    with anyio.fail_after(SOON_S):
        async with ServiceProcess("sqlite", small_disk / "data", limits=HURRIED) as service:
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


async def test_an_embedded_engine_whose_files_may_not_grow(tmp_path: Path) -> None:
    """SQLite calls that an I/O error, after which nothing is believed before it can be written."""
    acknowledged: list[int] = []
    with anyio.fail_after(SOON_S):
        async with ServiceProcess("sqlite", tmp_path / "data", limits=HURRIED) as service:
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


# --- a start without room -------------------------------------------------------------------------


class Starved(ServiceProcess):
    """A service that is started with a limit of nothing on how large its files may grow."""

    async def _open(self, command: list[str]) -> Process | ForkedProcess:
        return await super()._open(["sh", "-c", 'ulimit -S -f 0; exec "$@"', "sh", *command])

    def feed(self) -> None:
        """There is room from now on."""
        usual = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (usual[1], usual[1]))


async def fill_board(service: ServiceProcess) -> Head:
    """A board with a past, all of it archived; returns where it stands."""
    async with service.connect() as client:
        board = client.board("main")
        await board.put(COUNT, 1)
        await board.checkpoint("one")
        await board.put(COUNT, 2)
        await board.verify("now")
        return await board.head()


async def check_it_is_served(service: ServiceProcess, head: Head, folder: Path) -> None:
    """Everything can be looked at, nothing can be changed, and it is said why."""
    async with service.connect() as client:
        board = client.board("main")
        now = await board.head()
        assert now == replace(head, time_ms=now.time_ms)
        assert (await board.get(COUNT), await board.get(COUNT, at="one")) == (2, 1)
        assert [version.value for version in await board.history(COUNT)] == [2, 1]
        async with board.watch("public/**", after=0) as watch:
            assert (await anext(watch)).revision == 1
        exported = await board.export("one", folder / "exported", overwrite=True)
        assert exported.revision == 2
        for attempt in (board.put(COUNT, 3), board.restore("one"), board.increment(COUNT)):
            with pytest.raises(Unavailable) as refused:
                await attempt
            assert "no room on the disk for main.db-wal" in refused.value.reason
        assert await board.get(COUNT) == 2


@pytest.mark.parametrize("start", ["once", "again"])
async def test_a_service_that_starts_without_room_can_be_read(tmp_path: Path, start: str) -> None:
    """Nothing grows: no journal, no index of one, no token, no record of who holds the
    directory."""
    data = tmp_path / "data"
    with anyio.fail_after(2 * SOON_S):
        async with ServiceProcess("sqlite", data, limits=HURRIED) as plenty:
            head = await fill_board(plenty)
            await plenty.stop()
        service = Starved("sqlite", data, secret=plenty.secret, limits=HURRIED)
        async with service:
            if start == "again":
                await service.stop()
                await service.start()
            await check_it_is_served(service, head, tmp_path)
            service.feed()
            async with service.connect() as client:
                board = client.board("main")
                await goes_on(board)
                assert (await board.restore("one")).revision > head.revision
                assert (await board.get(COUNT), await board.get("public/after")) == (1, None)


async def test_a_service_that_starts_on_a_full_disk_can_be_read(
    small_disk: Path, tmp_path: Path
) -> None:
    data, ballast = small_disk / "data", small_disk / "ballast"
    with anyio.fail_after(2 * SOON_S):
        async with ServiceProcess("sqlite", data, limits=HURRIED) as service:
            head = await fill_board(service)
            await service.stop()
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4_096)):
                    pass
            await service.start()
            await check_it_is_served(service, head, tmp_path)
            ballast.unlink()
            async with service.connect() as client:
                await goes_on(client.board("main"))
            await service.kill()
            await service.start()
            async with service.connect() as client:
                assert await client.board("main").get("public/after") == 1


async def test_what_a_board_without_room_may_have_lost_is_not_shown(tmp_path: Path) -> None:
    """An epoch would have to begin first: it is said which files need room."""
    path = tmp_path / "boards" / "main.db"
    store = await SqliteStore.at(tmp_path, "memory")
    try:
        ada = await Writer.open(store, "main")
        await ada.commit(Put(COUNT, packed(1)))
    finally:
        await store.aclose()
    file = BoardFile(path, level="memory")
    file.begin_run(file.load("main"))
    file.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE head SET clean = 0")
    connection.close()
    store = await SqliteStore.at(tmp_path, "memory")
    try:
        with no_file_grows(os.getpid()), pytest.raises(Unavailable) as refused:
            await store.open("main")
        assert refused.value.what == str(path)
        assert "no room on the disk for main.db-wal and main.db-shm" in refused.value.reason
        assert f"{ROOM_BYTES:,} bytes are needed" in refused.value.reason
        assert (await store.open("main")).epoch.number == 2
    finally:
        await store.aclose()


# --- Redis ----------------------------------------------------------------------------------------


@pytest.fixture
def wrapped(redis_binary: Path, tmp_path: Path) -> Path:
    """The server, which gets an error for a file that is too large instead of a signal that ends
    it."""
    path = tmp_path / "server"
    path.write_text(WRAPPER.format(binary=redis_binary))
    path.chmod(0o700)
    return path


@pytest.fixture
async def careless(wrapped: Path) -> AsyncIterator[RedisProcess]:
    """A server that answers first and syncs each second."""
    async with RedisProcess(wrapped, settings=RedisSettings(fsync="everysec")) as redis:
        yield redis


async def test_a_redis_that_cannot_write_its_file_refuses_commits(
    careless: RedisProcess, tmp_path: Path
) -> None:
    """It says MISCONF; what it refused did not happen, reads are answered."""
    acknowledged: list[int] = []
    with anyio.fail_after(SOON_S):
        async with (
            ServiceProcess(careless.url, tmp_path / "data", limits=HURRIED) as service,
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
            ServiceProcess(redis.url, tmp_path / "data", limits=HURRIED) as service,
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


async def test_a_redis_without_memory_is_thawed_and_boards_are_removed(
    redis_binary: Path, tmp_path: Path
) -> None:
    """The ways out of an incident need no memory; what needs some is refused, and nothing of it is
    done."""
    with anyio.fail_after(SOON_S):
        async with (
            RedisProcess(redis_binary) as redis,
            ServiceProcess(redis.url, tmp_path / "data", limits=HURRIED) as service,
            service.connect(access.operator()) as client,
        ):
            board, other = client.board("main"), client.board("other")
            await board.put(BIG, "x" * BIG_BYTES)
            await other.put(BIG, "x")
            await client.freeze("main", note="in an incident")
            await ask(redis, "CONFIG", "SET", "maxmemory", 1)
            with pytest.raises(Unavailable):
                await client.freeze("other")
            with pytest.raises(Unavailable):
                await client.redact(BIG, board="main")
            assert (await client.thaw("main")) is not None
            await client.remove_board("other")
            assert list(await client.boards()) == ["main"]
            assert await board.delete(BIG)
            await ask(redis, "CONFIG", "SET", "maxmemory", 0)
            assert await board.increment(COUNT) == 1


async def test_a_redis_without_memory_refuses_a_redaction_whole(
    redis_binary: Path, tmp_path: Path
) -> None:
    """Of a file with many parts, none is removed: the record of the redaction comes first."""
    key = "public/report"
    ops = [Put(f"{key}/~file/part/x/{n:04}", encode_value(n)) for n in range(OPERATIONS_MAX)]
    with anyio.fail_after(SOON_S):
        async with (
            RedisProcess(redis_binary) as redis,
            ServiceProcess(redis.url, tmp_path / "data", limits=HURRIED) as service,
            service.connect(access.operator()) as client,
        ):
            board = client.board("main")
            await board.commit(ops)
            await ask(redis, "CONFIG", "SET", "maxmemory", 1)
            with pytest.raises(Unavailable):
                await client.redact(key, board="main")
            assert len([entry async for entry in board.scan("public/**")]) == len(ops)
            await ask(redis, "CONFIG", "SET", "maxmemory", 0)
            assert (await client.redact(key, board="main")).done
            assert [entry async for entry in board.scan("public/**")] == []


async def test_a_redis_without_memory_still_forgets(redis_binary: Path, tmp_path: Path) -> None:
    """Writing is refused, reading and removing are not; then there is room."""
    acknowledged: list[int] = []
    with anyio.fail_after(SOON_S):
        async with (
            RedisProcess(redis_binary) as redis,
            ServiceProcess(redis.url, tmp_path / "data", limits=HURRIED) as service,
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
