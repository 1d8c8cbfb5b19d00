"""Clients, services and Redis that are cut off from each other, each on an address of its own.

Nobody closes a connection: packets just do not arrive, as when a cable, a switch or a firewall
fails. What everybody saw is held to every guarantee of a board.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blackboard.limits import DEFAULT
from tests.guarantees.checkers import check
from tests.guarantees.history import History
from tests.guarantees.processes import ServiceProcess
from tests.guarantees.worker_process import WorkerProcess
from tests.lock_masters import QUIET
from tests.partitions.network import Network, why_not
from tests.partitions.site import HASTY, PATIENCE_S, Actor, Site, finished, judged_leases, said
from tests.redis_process import RedisProcess
from tests.servers import server_binaries
from tests.waiting import wait_until

HOSTS = ("ada", "bob", "operator", "one", "two", "redis", "first", "second", "third")
SOME = 10
SECTIONS_CUT_MAX = 8
"""Most cuts meet a section before its commit; so many in a row never miss it."""
pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """The hosts; a test heals what it cut."""
    with Network(HOSTS) as made:
        yield made


@pytest.fixture(autouse=True)
def healed(network: Network) -> Iterator[None]:
    """Whatever a test cut, and however it ended, the next one finds everything together."""
    yield
    network.heal()


@dataclass
class Office:
    """Two services over one Redis; ada works through the first, bob through the second."""

    network: Network
    one: ServiceProcess
    two: ServiceProcess
    ada: Actor
    bob: Actor
    operator: Actor
    site: Site

    async def begin(self, board: str, bobs: ServiceProcess, **limits: int) -> None:
        """Let both work on a board until they have done something; ada is hasty."""
        await self.ada.begin("ada", self.site.place(self.one, board, "ada"), HASTY | limits)
        await self.bob.begin("bob", self.site.place(bobs, board, "bob"))
        await self.ada.more(SOME)
        await self.bob.more(SOME)

    async def end(self, board: str) -> History:
        """What both did and saw, when they reach everything again."""
        await self.ada.more(SOME)
        return await finished([self.ada, self.bob], self.operator, self.site.place(self.two, board))


@pytest.fixture(scope="module")
async def office(
    network: Network, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Office]:
    """Everything runs, and everybody reaches everything."""
    data = tmp_path_factory.mktemp("office")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        redis = await enter(RedisProcess(server_binaries()[0].path, host=network["redis"]))
        one = ServiceProcess(redis.url, data / "one", host=network["one"])
        two = ServiceProcess(redis.url, data / "two", host=network["two"], secret=one.secret)
        site = await enter(Site())
        ada, bob, operator = [await site.actor(network[name]) for name in HOSTS[:3]]
        yield Office(network, await enter(one), await enter(two), ada, bob, operator, site)


@pytest.mark.parametrize("only_answers", [False, True], ids=["both ways", "only answers"])
async def test_a_client_that_is_cut_off_misses_nothing_and_repeats_nothing(
    office: Office, only_answers: bool
) -> None:
    """The outcome of what it asked for is unknown, whether that has arrived or only will."""
    board = f"client-{only_answers}"
    await office.begin(board, office.one)
    office.network.cut(["ada"], ["one"], only_answers=only_answers)
    await office.ada.more(1, "unknown")
    await office.bob.more(SOME)
    office.network.heal()
    assert check(await office.end(board)) == {}


async def test_a_client_without_a_link_connects_again_and_misses_nothing(office: Office) -> None:
    """It notices by its own pings; what it asks for then has certainly not happened."""
    await office.begin("unplugged", office.one, ping_interval_ms=HASTY["request_timeout_ms"])
    office.network.unplug("ada")
    await office.ada.more(1, "refused")
    await office.bob.more(SOME)
    office.network.heal()
    assert check(await office.end("unplugged")) == {}


async def test_a_connection_that_went_silent_is_replaced_while_a_commit_waits(
    office: Office,
) -> None:
    """Something on the way forgot the connection. A new one would get through, so nothing fails."""
    place = office.site.place(office.one, "silent", "ada")
    limits = {"request_timeout_ms": 6_000, "commit_timeout_ms": 19_000}
    await office.ada.begin("ada", place, limits)
    await office.bob.begin("bob", office.site.place(office.two, "silent", "bob"))
    await office.ada.more(SOME)
    assert limits["commit_timeout_ms"] < DEFAULT.connection.ping_interval_ms
    office.network.cut_connections("ada", "one")
    await office.ada.more(SOME)
    assert (await office.ada.ask("counts")).get("unknown", 0) == 0
    assert check(await office.end("silent")) == {}


@pytest.mark.parametrize("how", ["cut", "only answers"])
async def test_a_service_that_is_cut_off_from_redis_says_so_and_shows_nothing_old(
    office: Office, how: str
) -> None:
    """Meanwhile the other service goes on; then both do, and watchers have missed nothing."""
    board = f"service-{how.replace(' ', '-')}"
    await office.begin(board, office.two)
    office.network.cut(["one"], ["redis"], only_answers=how == "only answers")
    assert await office.operator.until_ready(office.one, 503)
    reads = (await office.ada.ask("counts"))["reads"]
    await office.ada.more(1, "refused", "unknown")
    await office.bob.more(SOME)
    assert await office.operator.until_ready(office.two, 200) == ""
    assert (await office.ada.ask("counts"))["reads"] == reads
    office.network.heal()
    assert await office.operator.until_ready(office.one, 200) == ""
    history = await office.end(board)
    assert check(history) == {}


@pytest.mark.parametrize("cut", [("ada", "one"), ("one", "redis")], ids="-".join)
async def test_the_lease_of_a_side_that_is_cut_off_ends_and_its_late_commit_is_refused(
    office: Office, cut: tuple[str, str]
) -> None:
    network = office.network
    ada = await office.site.worker("ada", network["ada"], office.one)
    bob = await office.site.worker("bob", network["bob"], office.two)
    for _ in range(SECTIONS_CUT_MAX):
        since = await cut_in_a_section(network, cut, ada, bob)
        network.heal()
        if await end_of_section(ada, since) == {"said": "refused", "why": "fenced"}:
            break
    else:
        pytest.fail("no section went on after the lock was another's")
    assert await judged_leases([ada, bob], office.operator, office.two) == {}


async def end_of_section(worker: WorkerProcess, since: int) -> dict[str, Any]:
    """How a section ends after the worker's first `since` lines. One that a cut met while it read,
    or after its commit was made, is not refused."""
    ends = ("refused", "done", "failed")

    def found() -> list[dict[str, Any]]:
        return [line for line in worker.lines[since:] if line["said"] in ends]

    async def is_over() -> bool:
        return bool(found())

    await wait_until(is_over, timeout_s=PATIENCE_S)
    return found()[0]


async def cut_in_a_section(
    network: Network, cut: tuple[str, str], ada: WorkerProcess, bob: WorkerProcess
) -> int:
    """Cut when ada has the lock, and wait until bob has it; returns how much ada said before."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await said(ada, "acquired", len(ada.lines))
            network.cut(*([name] for name in cut))
            await said(bob, "acquired", len(bob.lines))
            if ada.lines[-1]["said"] in ("acquired", "asked"):
                return len(ada.lines)
            network.heal()


async def test_masters_of_locks_that_are_cut_off_are_missed_when_they_are_too_many(
    network: Network, tmp_path: Path
) -> None:
    """One of three is not missed. Without two, nobody gets a lock, and the board goes on."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        binary = server_binaries()[0].path
        names = ("first", "second", "third")
        urls = [
            (await enter(RedisProcess(binary, settings=QUIET, host=network[name]))).url
            for name in names
        ]
        service = await enter(
            ServiceProcess("sqlite", tmp_path, host=network["one"], lock_masters=tuple(urls))
        )
        site = await enter(Site())
        operator = await site.actor(network["operator"])
        worker = await site.worker("ada", network["ada"], service)
        network.cut(["one"], ["first"])
        await said(worker, "acquired", len(worker.lines))
        network.cut(["one"], ["second"])
        await said(worker, "failed", len(worker.lines), "unavailable")
        there = site.place(service, "main").told()
        assert "revision" in await operator.ask("put", key="public/x", value=1, **there)
        network.heal()
        await said(worker, "done", len(worker.lines))
        assert await judged_leases([worker], operator, service) == {}
