"""Data that earlier versions wrote opens with this one, whole, and is written on.

`written_by/VERSION.tar.xz` holds a data directory, and `facts.json` about it, made by
`write_data.py` with the code of that version. `killed/VERSION.tar.xz` holds a directory whose
process was killed, made by `write_killed.py`.
"""

import json
import socket
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import blackboard
from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.core.access import operator
from blackboard.engines.redis.store import RedisStore
from blackboard.server.service import Service
from blackboard.wire.codec import SYSTEM_AGENT
from tests.compatibility.write_data import MASTER_KEY, contents
from tests.lowered import PATIENT

EMBEDDED = ("plain", "encrypted")
Opened = Callable[[], AbstractAsyncContextManager[Client]]
WRITTEN = sorted(Path(__file__).with_name("written_by").glob("*.tar.xz"))
KILLED = sorted(Path(__file__).with_name("killed").glob("*.tar.xz"))


@pytest.fixture(params=WRITTEN, ids=lambda path: path.name.removesuffix(".tar.xz"))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what one version wrote."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def embedded(written: Path, kind: str) -> Opened:
    """Opens a data directory, as often as it is called."""
    key = MASTER_KEY if kind == "encrypted" else None
    return lambda: blackboard.open(written / kind, master_key=key)


@pytest.fixture
def redis(written: Path, redis_url: str, account_url: str) -> Opened:
    """Opens what a server has that has replayed the commands."""
    replay(written / "redis" / "commands.aof", redis_url)
    return lambda: over_redis(account_url, written / "redis")


@asynccontextmanager
async def over_redis(url: str, directory: Path) -> AsyncIterator[Client]:
    """A service over a server that has replayed the commands, with its archive."""
    store = RedisStore.connect(url, limits=PATIENT)
    async with Service(store, archive=await archive_beside(directory)) as service:
        yield Client(service.link(operator()))


def replay(commands: Path, url: str) -> None:
    """Send a server what it wrote to its append-only file."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(commands.read_bytes() + b"QUIT\r\n")
        with connection.makefile("rb") as answers:
            assert not [line for line in answers if line.startswith(b"-")]


def facts_of(written: Path, kind: str) -> dict[str, Any]:
    """What was true of the data when it was written."""
    found: dict[str, Any] = json.loads((written / "facts.json").read_text())[kind]
    return found


@pytest.mark.parametrize("kind", EMBEDDED)
async def test_what_an_earlier_version_wrote_is_there(written: Path, kind: str) -> None:
    """In a directory, plain and encrypted."""
    await all_is_there(embedded(written, kind), facts_of(written, kind))


async def test_what_an_earlier_version_wrote_to_redis_is_there(
    written: Path, redis: Opened
) -> None:
    """With its archive."""
    await all_is_there(redis, facts_of(written, "redis"))


@pytest.mark.parametrize("kind", EMBEDDED)
async def test_data_of_an_earlier_version_is_written_on(written: Path, kind: str) -> None:
    """In a directory, plain and encrypted."""
    await can_be_written_on(embedded(written, kind), facts_of(written, kind))


async def test_data_of_an_earlier_version_in_redis_is_written_on(
    written: Path, redis: Opened
) -> None:
    """With its archive."""
    await can_be_written_on(redis, facts_of(written, "redis"))


@pytest.mark.parametrize("killed", KILLED, ids=lambda path: path.name.removesuffix(".tar.xz"))
async def test_what_an_earlier_version_wrote_until_it_was_killed_is_there(
    killed: Path, tmp_path: Path
) -> None:
    """With the rows of a large restore that were not at their places yet, and again afterwards."""
    with tarfile.open(killed) as archive:
        archive.extractall(tmp_path, filter="data")
    facts = json.loads((tmp_path / "facts.json").read_text())
    expected = dict(facts["now"])
    for number in range(2):
        async with blackboard.open(tmp_path / "killed") as client:
            board = client.board("team")
            since = await board.log(after=facts["head"], limit=100)
            # The service removes what expired meanwhile, as soon as it comes to it.
            assert len([event for event in since if event.author != SYSTEM_AGENT]) == number
            assert {e.key: e.value async for e in board.scan("public/**")} == expected
            await board.put("public/k/0000", number)
            expected["public/k/0000"] = number
            assert (await board.verify()).findings == ()


async def all_is_there(opened: Opened, facts: dict[str, Any]) -> None:
    """Values, log, moments, branch, document; and the digests agree."""
    async with opened() as client:
        board = client.board("team")
        epoch = (await board.head()).epoch
        # Another Redis server begins an epoch: it may have lost some.
        if epoch.from_revision != facts["head"]:
            since = await board.log(after=facts["head"], limit=100)
            # The service removes what expired meanwhile, as soon as it comes to it.
            assert {event.author for event in since} <= {SYSTEM_AGENT}
        assert await contents(board) == facts["now"]
        assert await contents(client.board("what-if")) == facts["branch"]
        for moment in facts["moments"]:
            assert await contents(board, moment["revision"]) == moment["values"]
        entries = await board.entries(["public/plan", "public/later"])
        assert entries["public/plan"].created_ms is None  # written again before it was kept
        assert entries["public/later"].created_ms == entries["public/later"].time_ms
        log = [[event.author, event.note] for event in await board.log(limit=100)]
        assert log[: len(facts["authors"])] == facts["authors"]
        async with board.document("public/memo") as memo:
            assert str(memo.text()) == facts["text"]
        assert (await board.verify()).findings == ()


async def can_be_written_on(opened: Opened, facts: dict[str, Any]) -> None:
    """A commit, a restore of a checkpoint taken then, and everything once more after closing."""
    async with opened() as client:
        board = client.board("team")
        await board.put("private/researcher/notes", "replaced")
        [was] = (await board.list("public/later")).entries
        await board.put("public/later", "again")
        await board.put("public/plan", "again")
        for at in (None, (await board.head()).revision):
            entries = await board.entries(["public/later", "public/plan"], at=at)
            assert entries["public/later"].created_ms == was.time_ms
            assert entries["public/plan"].created_ms is None
        assert await board.increment("public/count") == facts["now"]["public/count"] + 1
        await board.restore("before")
        assert await contents(board) == facts["moments"][0]["values"]
    async with opened() as client:
        assert await contents(client.board("team")) == facts["moments"][0]["values"]
        assert (await client.board("team").verify()).findings == ()
