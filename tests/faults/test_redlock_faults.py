"""Lock masters that die, hang and come back, and services whose engines do not know each other.

Bounds on time are generous: they tell a bounded wait from a hang, and measure nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import blackboard
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.commit import Commit, CommitId, Grant, Release, Renew
from blackboard.core.lease import LOCK_MASTERS
from blackboard.engines.redis.redlock import LockMasters
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import InvalidRequest, LeaseHeld, StaleEpoch, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.server.service import Service
from blackboard.server.settings import load
from tests.lock_masters import keys_of, lock_masters, votes
from tests.lowered import lowered
from tests.postgres import answered
from tests.redis_process import RedisProcess
from tests.waiting import wait_until

BOARD = "board"
LOCK = "public/lock"
NAME = f"{BOARD}/{LOCK}"
TTL_MS = 200_000
PATIENT_MS, HASTY_MS = 10_000, 3_000
"""How long a command to a master may take here: a busy machine may need more than usual; less where
a master hangs, and the test waits for that."""
SOON_S = 20.0
"""What a hang would exceed, and a writer that insists on what cannot be had."""
HANG_S = 60.0
"""What waiting for a lease that comes free would never take."""

pytestmark = [
    pytest.mark.usefixtures("redis_binary"),
    pytest.mark.limits(lock_master_timeout_ms=PATIENT_MS),
]


PATIENT = lowered(lock_master_timeout_ms=PATIENT_MS)
"""Masters that run are waited for."""
hasty = pytest.mark.limits(lock_master_timeout_ms=HASTY_MS)
"""Masters that hang are not waited for so long."""


@pytest.fixture(params=[3, 5])
async def servers(
    request: pytest.FixtureRequest, redis_binary: Path
) -> AsyncIterator[list[RedisProcess]]:
    """Three or five masters that the test may kill."""
    async with lock_masters(redis_binary, request.param) as running:
        yield running


@pytest.fixture
async def masters(servers: list[RedisProcess], limits: Limits) -> AsyncIterator[LockMasters]:
    """All of them, with connections that are open already."""
    masters = LockMasters([server.url for server in servers], limits)
    await masters.acquire("warm", "up", TTL_MS)
    await masters.release("warm", "up")
    yield masters
    await masters.aclose()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    deadline = time.monotonic() + seconds
    yield
    assert time.monotonic() < deadline


def majority(servers: list[RedisProcess]) -> list[RedisProcess]:
    """Just so many that the others are too few."""
    return servers[: len(servers) // 2 + 1]


def minority(servers: list[RedisProcess]) -> list[RedisProcess]:
    """As many as can be missed."""
    return servers[: len(servers) // 2]


# --- masters --------------------------------------------------------------------------------------


async def test_dead_masters_hold_nobody_up(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    for server in minority(servers):
        await server.kill()
    await acquire_soon(masters, len(minority(servers)))
    alive = servers[len(minority(servers)) :]
    assert await keys_of(alive) == 0


@hasty
async def test_hung_masters_hold_nobody_up(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    """Their connections are open and nothing answers."""
    for server in minority(servers):
        server.pause()
    await acquire_soon(masters, len(minority(servers)))


async def acquire_soon(masters: LockMasters, missing: int) -> None:
    """Acquire and release: each master that is missing costs one command's time, all at once."""
    before = masters.counts().unreachable
    with within(SOON_S):
        assert await masters.acquire(NAME, "one", TTL_MS)
    assert masters.counts().unreachable == before + missing
    with within(SOON_S):
        await masters.release(NAME, "one")


def test_a_command_holds_nobody_up_for_a_quarter_of_a_second() -> None:
    """As the other tests have it, but for the time that they grant a busy machine."""
    assert DEFAULT.engine.lock_master_timeout_ms < 250


@hasty
@pytest.mark.parametrize("fault", ["dead", "hung"])
async def test_without_a_majority_there_is_no_lock_and_it_is_said_soon(
    masters: LockMasters, servers: list[RedisProcess], fault: str
) -> None:
    """The few votes that were got are given back."""
    for server in majority(servers):
        if fault == "dead":
            await server.kill()
        else:
            server.pause()
    with within(SOON_S), pytest.raises(Unavailable, match="no majority answers") as refused:
        await masters.acquire(NAME, "one", TTL_MS)
    assert refused.value.what == LOCK_MASTERS
    assert await keys_of(servers[len(majority(servers)) :]) == 0


@hasty
async def test_a_renewal_without_a_majority_takes_no_votes_away(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    """The lease goes on, so nobody else may get the votes, also at those that answer again."""
    await masters.acquire(NAME, "one", TTL_MS)
    for server in majority(servers):
        server.pause()
    with pytest.raises(Unavailable, match="no majority answers"):
        await masters.acquire(NAME, "one", TTL_MS)
    for server in majority(servers):
        server.resume()
    assert await votes(servers, NAME) == ["one"] * len(servers)
    await masters.release(NAME, "one")
    assert await keys_of(servers) == 0


async def test_masters_that_come_back_vote_again(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    for server in majority(servers):
        await server.kill()
    with pytest.raises(Unavailable):
        await masters.acquire(NAME, "one", TTL_MS)
    for server in majority(servers):
        await server.restart()
    assert await masters.acquire(NAME, "one", TTL_MS)
    assert await votes(servers, NAME) == ["one"] * len(servers)


async def test_a_master_that_forgot_gets_the_lease_again(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    """It came back empty; asking again is enough."""
    await masters.acquire(NAME, "one", TTL_MS)
    await servers[0].kill()
    await servers[0].restart()
    assert await votes(servers, NAME) == [None, *["one"] * (len(servers) - 1)]
    assert not await masters.acquire(NAME, "one", TTL_MS)
    assert await votes(servers, NAME) == ["one"] * len(servers)


async def test_a_cancelled_caller_leaves_no_vote(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    """At each point of the acquisition, from before anything is sent."""
    for steps in range(12):
        asking = asyncio.create_task(masters.acquire(f"{NAME}/{steps}", "one", TTL_MS))
        for _ in range(steps):
            await asyncio.wait([asking], timeout=0)
        if asking.cancel():
            with pytest.raises(asyncio.CancelledError):
                await asking
        else:
            await masters.release(f"{NAME}/{steps}", "one")
    assert await is_empty(servers)


async def is_empty(servers: list[RedisProcess]) -> bool:
    """Whether all votes are given back before long."""

    async def is_so() -> bool:
        return await keys_of(servers) == 0

    await wait_until(is_so)
    return True


@hasty
async def test_a_cancelled_acquisition_at_hung_masters_ends(
    masters: LockMasters, servers: list[RedisProcess]
) -> None:
    """Closing waits for votes that are being given back, but not for masters that hang."""
    servers[0].pause()
    asking = asyncio.create_task(masters.acquire(NAME, "one", TTL_MS))
    await asyncio.wait([asking], timeout=0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with within(SOON_S):
        await masters.aclose()
    assert await keys_of(servers[1:]) == 0


# --- services -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def service_on(directory: Path, servers: list[RedisProcess]) -> AsyncIterator[Board]:
    """A board of a service with an engine of its own and these masters."""
    store = await SqliteStore.at(directory, "memory")
    masters = LockMasters([server.url for server in servers], PATIENT)
    async with Service(store, lock_masters=masters) as service:
        client = Client(service.link(access.operator()))
        yield client.board(BOARD)


@pytest.fixture
async def three(redis_binary: Path) -> AsyncIterator[list[RedisProcess]]:
    """Three masters."""
    async with lock_masters(redis_binary, 3) as running:
        yield running


async def grant(board: Board, holder: str, *, ttl_ms: int = TTL_MS, wait: bool = False) -> int:
    """Request the lease; returns the fence of its present holder."""
    receipt = await board.commit([Grant(LOCK, holder, ttl_ms, wait)])
    result = receipt.results[0]
    assert isinstance(result, tuple)
    return int(result[1])


async def test_a_lease_has_the_votes_from_its_grant_to_its_release(
    three: list[RedisProcess], tmp_path: Path
) -> None:
    async with service_on(tmp_path, three) as board:
        fence = await grant(board, "ada")
        epoch = (await board.head()).epoch.id
        assert await votes(three, NAME) == [epoch] * 3
        await board.commit([Renew(LOCK, "ada", fence, TTL_MS)])
        assert await votes(three, NAME) == [epoch] * 3
        await board.commit([Release(LOCK, "ada", fence)])
        assert await keys_of(three) == 0


async def test_the_votes_stay_while_a_queue_passes_the_lease_on(
    three: list[RedisProcess], tmp_path: Path
) -> None:
    async with service_on(tmp_path, three) as board:
        first = await grant(board, "ada")
        assert await grant(board, "bob", wait=True) == first
        receipt = await board.commit([Release(LOCK, "ada", first)])
        assert (await votes(three, NAME))[0] is not None
        await board.commit([Release(LOCK, "bob", receipt.revision)])
        assert await keys_of(three) == 0


async def test_an_engine_that_does_not_know_of_a_lease_cannot_grant_it(
    three: list[RedisProcess], tmp_path: Path
) -> None:
    """What Redlock is for: the engine was replaced, and the holder is still at work."""
    async with (
        service_on(tmp_path / "old", three) as old,
        service_on(tmp_path / "new", three) as new,
    ):
        fence = await grant(old, "ada")
        asking = asyncio.create_task(grant(new, "bob"))
        done, _ = await asyncio.wait([asking], timeout=0.2)
        assert not done
        await old.commit([Release(LOCK, "ada", fence)])
        assert await asyncio.wait_for(asking, HANG_S) == 1


async def test_who_does_not_get_all_of_several_leases_has_the_votes_for_none(
    three: list[RedisProcess], tmp_path: Path
) -> None:
    """Else nobody could have the others before their time is over."""
    async with (
        service_on(tmp_path / "old", three) as old,
        service_on(tmp_path / "new", three) as new,
    ):
        await grant(old, "ada")
        name, epoch = CommitId(new.agent, 0, "incarnation", 1), (await new.head()).epoch.id
        both = (Grant("public/other", "bob", TTL_MS), Grant(LOCK, "bob", TTL_MS))
        with pytest.raises(Unavailable):
            await new._link.commit(BOARD, Commit(name, epoch, both))
        assert await votes(three, f"{BOARD}/public/other") == [None] * 3


async def test_a_lost_holder_blocks_another_engine_for_its_time_to_live_only(
    three: list[RedisProcess], tmp_path: Path
) -> None:
    async with service_on(tmp_path / "new", three) as new:
        async with service_on(tmp_path / "old", three) as old:
            # A command may take a twentieth of that: too little, now and then, for a busy machine.
            await answered(lambda: grant(old, "ada", ttl_ms=2_000))
        assert await asyncio.wait_for(grant(new, "bob"), HANG_S) == 1


async def test_without_a_majority_a_lease_is_refused_by_name_and_the_board_goes_on(
    three: list[RedisProcess], tmp_path: Path
) -> None:
    """Holders keep what they have, for their fence protects them; only new leases wait."""
    async with service_on(tmp_path, three) as board:
        fence = await grant(board, "ada")
        for server in three[:2]:
            await server.kill()
        with within(SOON_S), pytest.raises(Unavailable) as refused:
            await board.commit([Grant("public/other", "bob", TTL_MS)])
        assert refused.value.what == LOCK_MASTERS
        await board.put("public/x", 1)
        await board.commit([Renew(LOCK, "ada", fence, TTL_MS)])
        await board.commit([Release(LOCK, "ada", fence)])


async def test_a_refused_grant_takes_no_votes_from_the_holder(
    three: list[RedisProcess], tmp_path: Path
) -> None:
    async with service_on(tmp_path, three) as board:
        await grant(board, "ada")
        with pytest.raises(LeaseHeld):
            await grant(board, "bob")
        assert None not in await votes(three, NAME)


async def test_what_an_epoch_of_the_past_asks_for_blocks_nobody(
    three: list[RedisProcess], tmp_path: Path
) -> None:
    """A client that did not hear of the new epoch gets votes, and they are given back."""
    async with service_on(tmp_path, three) as board:
        name = CommitId(board.agent, 0, "incarnation", 1)
        with pytest.raises(StaleEpoch):
            await board._link.commit(BOARD, Commit(name, "past", (Grant(LOCK, "ada", TTL_MS),)))
        assert await keys_of(three) == 0
        await grant(board, "bob")


async def test_the_embedded_client_and_the_settings_take_lock_masters(
    three: list[RedisProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [server.url for server in three]
    async with blackboard.open(tmp_path, lock_masters=urls, limits=PATIENT) as client:
        await grant(client.board(BOARD), "ada")
        assert None not in await votes(three, NAME)
    monkeypatch.setenv("BLACKBOARD_LOCK_MASTERS", ",".join(urls))
    assert load({"data": tmp_path}).lock_masters == tuple(urls)
    twice = [urls[0], urls[1], urls[1].replace("127.0.0.1", "localhost")]
    with pytest.raises(InvalidRequest, match="one server"):
        async with blackboard.open(tmp_path, lock_masters=twice, limits=PATIENT):
            pass
