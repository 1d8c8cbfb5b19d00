"""Backups to a bucket whose answers fail: a typed error after few attempts, the backup before
stays, and the next one goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import blackboard
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import verify
from blackboard.errors import Unavailable
from blackboard.limits import DEFAULT
from blackboard.server.backups.once import take_once
from blackboard.server.checkpoints.from_backup import Wanted, recover_from
from blackboard.server.settings import load
from tests.lowered import lowered
from tests.s3 import S3

ATTEMPTS = 4
"""Of one request: blackboard/archive/blobs.py::object_store."""
IMPATIENT = lowered(engine_timeout_ms=2_000)
FATES = ("500", "403", "silent", "reset")
FILES = (".segment", "/manifest.json", "/blobs/")


@dataclass
class Bucket:
    """Stands before a bucket. What comes for a path with `part` in it has another fate: an answer
    of that status, none at all ("silent"), or a connection that is reset in the middle ("reset").
    """

    port: int
    fate: str = ""
    part: str = ""
    failed: int = 0
    waiting: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request: the server behind it closes the connection after each."""
        task = asyncio.current_task()
        assert task is not None
        self.waiting.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                await self._pass(head, reader, writer)
        finally:
            self.waiting.discard(task)
            writer.close()

    async def _pass(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        lines = head.decode().lower().split("\r\n")
        lengths = [line.partition(":")[2] for line in lines if line.startswith("content-length:")]
        length = int(lengths[0]) if lengths else 0
        is_chosen = bool(self.fate) and self.part in lines[0] and lines[0].startswith("put")
        self.failed += is_chosen
        if is_chosen and self.fate == "silent":
            await reader.read()
        elif is_chosen and self.fate != "reset":
            await reader.readexactly(length)
            writer.write(f"HTTP/1.1 {self.fate} No\r\nContent-Length: 0\r\n\r\n".encode())
        else:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self.port)
            there.write(head + await reader.readexactly(length // 2))
            if is_chosen:
                there.transport.abort()
                writer.transport.abort()
                return
            there.write(await reader.readexactly(length - length // 2))
            writer.write(await there_reader.read())
            there.close()
        await writer.drain()


@asynccontextmanager
async def before(s3: S3, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bucket]:
    """What clients of S3 find in place of the server."""
    bucket = Bucket(s3.port)
    server = await asyncio.start_server(bucket.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    try:
        yield bucket
    finally:
        server.close()
        for task in list(bucket.waiting):
            task.cancel()
        await asyncio.gather(*bucket.waiting, return_exceptions=True)


async def put(data: Path, number: int) -> None:
    """One commit, with a large value of its own."""
    async with blackboard.open(data) as client:
        await client.board("main").put("public/large", f"{number}" * 70_000)


async def newest(url: str) -> int:
    """The newest revision in the backup, which is read as a whole."""
    [found] = [each async for each in verify(BackupPlace.at(url))]
    return found.last


async def test_a_bucket_that_fails_leaves_the_backup_before(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fate, and each kind of file."""
    settings, url = load({"data": tmp_path / "data"}), f"{s3.url}/failing"
    async with before(s3, monkeypatch) as bucket:
        await put(settings.data, 1)
        await take_once(settings, url)
        for number, fate in enumerate(FATES, 2):
            await put(settings.data, number)
            bucket.fate, bucket.part, bucket.failed = fate, FILES[number % len(FILES)], 0
            with pytest.raises(Unavailable):
                await take_once(settings, url, IMPATIENT if fate == "silent" else DEFAULT)
            assert 1 <= bucket.failed <= ATTEMPTS, fate
            assert (bucket.failed == 1) == (fate == "403"), fate
            assert await newest(url) == number - 1
            bucket.fate = ""
            assert (await take_once(settings, url)).entries == 1
            assert await newest(url) == number
        new = load({"data": tmp_path / "new"})
        await recover_from(new, BackupPlace.at(url), Wanted())
    async with blackboard.open(new.data) as client:
        assert await client.board("main").get("public/large") == f"{number}" * 70_000
