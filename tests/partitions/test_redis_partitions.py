"""Nodes of a Redis Cluster, and a primary with its replica, that are cut off from each other."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from blackboard.engines.base import REPLICA
from tests.guarantees.checkers import check
from tests.guarantees.history import History
from tests.guarantees.processes import ServiceProcess
from tests.guarantees.redis_failover import FailoverCluster
from tests.guarantees.rollback import announced, losses, surviving
from tests.partitions.network import Network, why_not
from tests.partitions.site import HASTY, PATIENCE_S, Actor, Site, finished
from tests.redis_process import RedisProcess, RedisSettings
from tests.servers import ask, server_binaries
from tests.waiting import wait_until

BOARD, KEY = "main", "public/x"
NODES = ("red", "green", "blue", "spare")
PEOPLE = ("ada", "bob", "operator", "one", "two")
SOME = 10
AT_ONCE = RedisSettings(options={"repl-diskless-sync-delay": "0"})
pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """The hosts; a test heals what it cut."""
    with Network((*NODES, *PEOPLE)) as made:
        yield made


@pytest.fixture(autouse=True)
def healed(network: Network) -> Iterator[None]:
    """Whatever a test cut, and however it ended, the next one finds everything together."""
    yield
    network.heal()


class Town:
    """A cluster, whose first master of the board has a replica."""

    def __init__(self, network: Network) -> None:
        self.network = network
        hosts = [network[name] for name in NODES]
        self.cluster = FailoverCluster(server_binaries()[0].path, BOARD, hosts)

    def name_of(self, node: RedisProcess) -> str:
        """The host of a node."""
        return next(name for name in NODES if self.network[name] == node.host)

    async def cut_owner(self, *with_it: str) -> None:
        """Cut the master of the board, with others of its side, and wait for its successor."""
        owner = await self.cluster.owner()
        side = {self.name_of(owner), *with_it}
        rest = {*NODES, *PEOPLE} - side
        witness = next(node for node in self.cluster.nodes if self.name_of(node) not in side)
        self.network.cut(side, rest)

        async def has_another() -> bool:
            try:
                return await self.cluster.owner(seen_by=witness) is not owner
            except LookupError:
                return False

        await wait_until(has_another, timeout_s=PATIENCE_S)

    async def replicated(self) -> float:
        """Wait until the replica has what the master has now; returns the time before."""
        before = time.monotonic()
        owner = await self.cluster.owner()
        target = (await replication(owner))["master_repl_offset"]

        async def is_there() -> bool:
            replica = (await replication(owner)).get("slave0", {})
            return bool(replica.get("offset", -1) >= target)

        await wait_until(is_there, timeout_s=PATIENCE_S)
        return before


async def replication(server: RedisProcess) -> dict[str, Any]:
    """What a server says of it."""
    found = await ask(server, "INFO", "replication")
    assert isinstance(found, dict)
    return found


async def test_a_master_that_is_cut_off_is_succeeded_and_what_is_lost_is_announced(
    network: Network, tmp_path: Path
) -> None:
    """By itself, and then with a service and a client on its side, who must not be left in the
    belief that what they commit there counts. What its replica had is never lost."""
    town = Town(network)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(town.cluster)
        url = town.cluster.url
        one = ServiceProcess(url, tmp_path / "one", host=network["one"])
        two = ServiceProcess(url, tmp_path / "two", host=network["two"], secret=one.secret)
        site = await enter(Site())
        ada, bob, operator = [await site.actor(network[name]) for name in PEOPLE[:3]]
        await enter(one)
        await enter(two)
        await ada.begin("ada", site.place(one, BOARD, "ada"), HASTY)
        await bob.begin("bob", site.place(two, BOARD, "bob"), HASTY)
        alone = await cut_and_heal(town, ada, bob)
        await refuse_without_replica(await town.cluster.owner())
        together = await cut_and_heal(town, ada, bob, "one", "ada")
        history = await finished([ada, bob], operator, site.place(two, BOARD))
    assert check(surviving(history)) == {}
    assert announced(history) == []
    assert lost_outside(history, [alone, together]) == []


async def refuse_without_replica(owner: RedisProcess) -> None:
    """As docs/howto/deploy_redis.md has it, to lose less."""
    await ask(owner, "CONFIG SET", "min-replicas-to-write", 1, "min-replicas-max-lag", 1)


async def cut_and_heal(town: Town, ada: Actor, bob: Actor, *with_it: str) -> tuple[float, float]:
    """Cut the master off under load; returns until when all was replicated, and when it healed."""
    await ada.more(SOME)
    await bob.more(SOME)
    replicated = await town.replicated()
    await town.cut_owner(*with_it)
    await bob.more(SOME)
    if with_it:
        await ada.more(1, "refused", "unknown")
    town.network.heal()
    await town.cluster.wait_until_whole()
    await ada.more(SOME)
    await bob.more(SOME)
    return replicated, time.monotonic()


def lost_outside(history: History, cuts: Sequence[tuple[float, float]]) -> list[str]:
    """Answered commits that are gone, although the replica had them before the cut."""
    gone = losses(history)
    return [
        f"{write.value}, answered as {write.revision}"
        for write in history.writes
        if write.outcome == "done" and any(loss.has(write.revision) for loss in gone)
        if not any(replicated < write.ended < healed for replicated, healed in cuts)
    ]


async def test_a_receipt_that_says_replica_is_kept_where_the_primary_is_cut_off(
    network: Network, tmp_path: Path
) -> None:
    """Others are answered meanwhile with less, and are lost with it."""
    async with AsyncExitStack() as stack:
        enter, binary = stack.enter_async_context, server_binaries()[0].path
        primary = await enter(RedisProcess(binary, settings=AT_ONCE, host=network["red"]))
        replica = await enter(RedisProcess(binary, settings=AT_ONCE, host=network["green"]))
        await ask(replica, "REPLICAOF", primary.host.address, primary.port)
        one = ServiceProcess(primary.url, tmp_path / "one", host=network["one"], replicas=1)
        site = await enter(Site())
        operator = await site.actor(network["operator"])
        there = site.place(await enter(one), BOARD).told()

        async def put(value: int) -> str:
            return str((await operator.ask("put", key=KEY, value=value, **there))["level"])

        async def is_replicated() -> bool:
            return await put(1) == REPLICA

        await wait_until(is_replicated, timeout_s=PATIENCE_S)
        network.cut(["red"], ["green"])
        assert await put(2) == "disk"
        await ask(replica, "REPLICAOF", "NO", "ONE")
        network.cut(["red"], PEOPLE)
        two = ServiceProcess(replica.url, tmp_path / "two", host=network["two"], secret=one.secret)
        there = site.place(await enter(two), BOARD).told()
        assert await operator.ask("get", key=KEY, **there) == {"value": 1}
