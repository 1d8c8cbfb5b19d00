"""LockMasters over three real servers: who gets the votes, for how long, and what is refused."""

import asyncio
import inspect
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from blackboard.engines.redis.redlock import LockMasters
from blackboard.errors import InvalidRequest, Unavailable
from tests.lock_masters import keys_of, lock_masters, votes
from tests.lowered import lowered
from tests.redis_process import RedisProcess
from tests.servers import ask
from tests.waiting import wait_until

NAME = "board/public/lock"
TTL_MS = 600_000
"""A command may take a twentieth of it: thirty seconds, however busy the machine is."""


@pytest.fixture(scope="module")
def servers(redis_binary: Path) -> Iterator[list[RedisProcess]]:
    """Three masters for this module; nobody stops them."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(lock_masters(redis_binary, 3)) as running,
    ):
        yield running


UNHURRIED = lowered(lock_master_timeout_ms=TTL_MS)
"""A command may take long: none of these tests is about haste, and the machine may be busy."""


@pytest.fixture
async def masters(servers: list[RedisProcess]) -> AsyncIterator[LockMasters]:
    """The masters, emptied."""
    for server in servers:
        await ask(server, "FLUSHALL")
    masters = LockMasters([server.url for server in servers], UNHURRIED)
    yield masters
    await masters.aclose()


async def time_left_ms(servers: list[RedisProcess]) -> list[int]:
    """For how long each master stands by its vote."""
    told = [await ask(server, "PTTL", f"redlock:{NAME}") for server in servers]
    return [one for one in told if isinstance(one, int)]


async def test_votes_are_got_prolonged_and_given_back(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    assert await masters.acquire(NAME, "one", TTL_MS)
    assert await votes(servers, NAME) == ["one"] * 3
    assert not await masters.acquire(NAME, "one", 2 * TTL_MS)
    assert min(await time_left_ms(servers)) > TTL_MS
    await masters.release(NAME, "one")
    assert await keys_of(servers) == 0
    assert await masters.acquire(NAME, "two", TTL_MS)


async def test_two_owners_never_have_the_votes_together(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    await masters.acquire(NAME, "one", TTL_MS)
    with pytest.raises(Unavailable, match="another owner") as refused:
        await masters.acquire(NAME, "two", TTL_MS)
    assert refused.value.what == f"lock {NAME}"
    assert await votes(servers, NAME) == ["one"] * 3
    await masters.release(NAME, "two")
    assert await votes(servers, NAME) == ["one"] * 3
    await masters.acquire("board/public/other", "two", TTL_MS)


async def test_votes_run_out(masters: LockMasters, servers: list[RedisProcess]) -> None:
    """The next owner gets them as soon as the masters forgot the last one."""
    await masters.acquire(NAME, "one", TTL_MS)
    assert max(await time_left_ms(servers)) <= TTL_MS
    for server in servers:  # their time is over
        await ask(server, "PEXPIRE", f"redlock:{NAME}", 1)

    async def is_gone() -> bool:
        return await keys_of(servers) == 0

    await wait_until(is_gone)
    assert await masters.acquire(NAME, "two", TTL_MS)


async def test_a_minority_of_votes_is_no_lock(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    """What was got of it is given back."""
    for server in servers[:2]:
        await ask(server, "SET", f"redlock:{NAME}", "two")
    with pytest.raises(Unavailable, match="another owner"):
        await masters.acquire(NAME, "one", TTL_MS)
    assert await votes(servers, NAME) == ["two", "two", None]


async def test_a_majority_is_enough(masters: LockMasters, servers: list[RedisProcess]) -> None:
    await ask(servers[0], "SET", f"redlock:{NAME}", "two")
    assert await masters.acquire(NAME, "one", TTL_MS)
    assert await votes(servers, NAME) == ["two", "one", "one"]


async def test_many_at_once_share_the_votes(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    """Tasks of one owner do not undo each other's votes."""
    await asyncio.gather(*(masters.acquire(NAME, "one", TTL_MS) for _ in range(100)))
    assert await votes(servers, NAME) == ["one"] * 3


async def test_processes_of_one_owner_agree(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    """Both callers are right that the votes are there, in either order."""
    others = [LockMasters([server.url for server in servers], UNHURRIED) for _ in range(4)]
    for number in range(10):
        name = f"{NAME}/{number}"
        await asyncio.gather(*(other.acquire(name, "one", TTL_MS) for other in others))
        assert await votes(servers, name) == ["one"] * 3
    for other in others:
        await other.aclose()


async def test_votes_that_come_too_late_are_none(
    servers: list[RedisProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline counts from before anything was sent."""
    monkeypatch.setattr("blackboard.engines.redis.redlock._DRIFT_S", TTL_MS / 1000)
    masters = LockMasters([server.url for server in servers], UNHURRIED)
    with pytest.raises(Unavailable, match="too late"):
        await masters.acquire(NAME, "one", TTL_MS)
    await masters.aclose()


async def test_one_server_under_two_names_is_refused(servers: list[RedisProcess]) -> None:
    """Also as another database of it: it would vote twice."""
    port = servers[0].port
    with pytest.raises(InvalidRequest, match="twice"):
        LockMasters([servers[0].url, servers[0].url])
    for other in (f"redis://localhost:{port}/0", f"redis://localhost:{port}/3"):
        masters = LockMasters([servers[0].url, servers[1].url, other], UNHURRIED)
        with pytest.raises(InvalidRequest, match=f"one server: 127.0.0.1:{port}, localhost:{port}"):
            await masters.check()
        await masters.aclose()


async def test_check_warns_of_an_even_number(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    assert await masters.check() == ()
    two = LockMasters([server.url for server in servers[:2]], UNHURRIED)
    assert await two.check() == ("2 lock masters survive no more failures than 1",)
    await two.aclose()


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="lock_masters"):
        LockMasters(["http://localhost"])


def test_importing_leaves_json_as_it_was() -> None:
    """pottery replaces json.dumps for the whole process, ours puts it back."""
    assert inspect.getsourcefile(json.dumps) == json.__file__
    code = (
        "import json; before = json.dumps; import blackboard.engines.redis.redlock; "
        "assert json.dumps is before; import pottery, sys; assert 'pottery.monkey' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_silent_master_is_no_stack_trace(
    servers: list[RedisProcess], caplog: pytest.LogCaptureFixture
) -> None:
    """pottery would log one for every command."""
    urls = [*(server.url for server in servers[:2]), "redis://127.0.0.1:1"]
    masters = LockMasters(urls, UNHURRIED)
    with caplog.at_level(logging.DEBUG):
        await masters.acquire(f"{NAME}/silent", "one", TTL_MS)
        await masters.release(f"{NAME}/silent", "one")
    assert [record for record in caplog.records if record.exc_info] == []
    assert await masters.check() == ("lock master 127.0.0.1:1 does not answer",)
    await masters.aclose()
