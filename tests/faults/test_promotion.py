"""A replica takes over without the last commits: every client that knew them gets an error.

Real servers, a service process over them, and clients over WebSockets. The link between primary and
replica is cut; the primary answers some more commits, and dies; then the replica is promoted, and
the service is led to it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.commit import Increment
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import Fenced, LeaseLost, RolledBack, StaleEpoch
from blackboard.limits import EPOCH_JUMP
from tests.conformance.writer import Writer
from tests.faults.tcp_proxy import TcpProxy
from tests.guarantees.processes import ServiceProcess
from tests.guarantees.redis_pair import RedisPair
from tests.redis_process import RedisProcess
from tests.servers import ask

SOON_S = 60.0
"""What a hang would exceed."""
KEPT, LOST = 5, 3
"""Commits that the replica has, and that it does not have."""
COUNT = "public/count"


@dataclass
class Failover:
    """A service over a pair of servers, and clients of it."""

    pair: RedisPair
    line: TcpProxy
    service: ServiceProcess
    clients: AsyncExitStack

    async def board(self, agent: str) -> Board:
        """The board as `agent` sees it, over a connection of its own."""
        connected = self.service.connect(access.agent(agent))
        return (await self.clients.enter_async_context(connected)).board("main")

    async def lose(self, board: Board) -> tuple[int, int]:
        """Commit what survives, then what does not; returns the last revision of each."""
        for _ in range(KEPT):
            await board.increment(COUNT)
        kept = (await board.head()).revision
        await self.pair.sync()
        self.pair.part()
        for _ in range(LOST):
            await board.increment(COUNT)
        return kept, (await board.head()).revision

    async def promote(self) -> None:
        """Let the replica take over, and lead the service to it."""
        await self.pair.promote()
        self.line.lead_to(self.pair.primary.port)


@asynccontextmanager
async def staged(binary: Path, data: Path, *, archived: bool) -> AsyncIterator[Failover]:
    """All of it, running; with an archive or without."""
    async with RedisPair(binary) as pair, TcpProxy(pair.primary.port) as line:
        url = f"redis://127.0.0.1:{line.port}/0"
        service = ServiceProcess(url, data, archived=archived)
        async with service, AsyncExitStack() as clients:
            with anyio.fail_after(SOON_S):
                yield Failover(pair, line, service, clients)


@pytest.fixture
async def failover(redis_binary: Path, tmp_path: Path) -> AsyncIterator[Failover]:
    """All of it, without an archive."""
    async with staged(redis_binary, tmp_path / "data", archived=False) as failover:
        yield failover


async def test_writers_of_lost_revisions_are_refused_and_others_go_on(failover: Failover) -> None:
    """The epoch says what survived; no revision is given to anything else."""
    ada, bob = await failover.board("ada"), await failover.board("bob")
    await bob.put("public/bob", 1)
    kept, last = await failover.lose(ada)
    await failover.promote()
    receipt = await bob.put("public/bob", 2)  # bob has seen nothing that was lost
    assert receipt.revision >= kept + EPOCH_JUMP
    with pytest.raises(StaleEpoch) as told:
        await ada.increment(COUNT)
    assert (told.value.cause, told.value.from_revision) == ("engine", kept)
    assert told.value.from_revision < last < told.value.head
    await ada.refresh()
    assert await ada.increment(COUNT) == KEPT + 1


async def test_a_watcher_of_lost_revisions_gets_rolled_back(failover: Failover) -> None:
    """While it watches, and when it comes back with its token; then it can go on."""
    ada, eve = await failover.board("ada"), await failover.board("eve")
    async with eve.watch(COUNT, after=0) as watch:
        kept, last = await failover.lose(ada)
        seen = await watch.wait_for(last)
        assert [revised.changes[0].value for revised in seen] == list(range(1, KEPT + LOST + 1))
        token = watch.position
        await failover.promote()
        with pytest.raises(RolledBack) as told:
            await anext(watch)
    assert (told.value.revision, told.value.from_revision) == (last, kept)
    with pytest.raises(RolledBack) as later:
        async with eve.watch(COUNT, after=token) as again:
            await anext(again)
    assert later.value.from_revision == kept
    async with eve.watch(COUNT, after=later.value.from_revision) as again:
        await ada.refresh()
        await ada.increment(COUNT)
        epoch, revised = await anext(again), await anext(again)
        assert epoch.epoch is not None
        assert revised.changes[0].value == KEPT + 1


async def test_a_reader_of_lost_revisions_is_refused_at_its_first_commit(
    failover: Failover,
) -> None:
    """What it wants to write was thought of on the ground of something that is gone."""
    ada, joe = await failover.board("ada"), await failover.board("joe")
    await failover.lose(ada)
    assert await joe.get(COUNT) == KEPT + LOST
    await failover.promote()
    with pytest.raises(StaleEpoch):
        await joe.put("public/joe", 1)
    await joe.refresh()
    await joe.put("public/joe", 2)


async def test_after_two_epochs_the_error_names_the_first(failover: Failover) -> None:
    """The second one lost nothing; what the first one lost is not forgotten for that."""
    ada, bob = await failover.board("ada"), await failover.board("bob")
    await failover.lose(ada)
    await failover.promote()
    await bob.put("public/bob", 1)
    await failover.pair.primary.kill()
    await failover.pair.primary.restart()
    await bob.put("public/bob", 2)
    with pytest.raises(StaleEpoch):
        await ada.increment(COUNT)
    await ada.refresh()
    assert await ada.increment(COUNT) == KEPT + 1


async def test_a_lock_that_was_granted_in_what_was_lost_holds_nothing(failover: Failover) -> None:
    """Its fence is a revision that no longer exists, so the present holder of the lock is the only
    one."""
    ada, bob = await failover.board("ada"), await failover.board("bob")
    await failover.lose(ada)
    is_promoted = asyncio.Event()

    async def take_it() -> None:
        await is_promoted.wait()
        async with bob.lock("public/lock"):
            await bob.put("public/by", "bob")

    async def keep_it() -> None:
        async with ada.lock("public/lock"):
            await failover.promote()
            is_promoted.set()
            await asyncio.shield(taking)
            await ada.put("public/by", "ada")

    taking = asyncio.create_task(take_it())  # before ada's block: what begins in it has her lock
    with pytest.raises((Fenced, LeaseLost, StaleEpoch)):
        await keep_it()
    await taking
    assert await bob.get("public/by") == "bob"


async def test_the_archive_keeps_what_was_lost(redis_binary: Path, tmp_path: Path) -> None:
    """It had it, with a checkpoint: that is read as before, and no later revision follows it."""
    async with staged(redis_binary, tmp_path / "data", archived=True) as failover:
        ada, bob = await failover.board("ada"), await failover.board("bob")
        kept, last = await failover.lose(ada)
        keeper = failover.service.connect(access.operator())
        board = (await failover.clients.enter_async_context(keeper)).board("main")
        await board.checkpoint("lost")
        assert await board.get(COUNT, at="lost") == KEPT + LOST  # waits until it is archived
        await failover.promote()
        present = await bob.put("public/bob", 1)
        assert await bob.get("public/bob", at=present.revision) == 1
        told = [await bob.get(COUNT, at=at) for at in (kept, last, present.revision)]
        assert told == [KEPT, KEPT + LOST, KEPT]
        assert [found.name for found in await board.checkpoints()] == ["lost"]
        log = await bob.log(after=0)
        values = [change.value for entry in log for change in entry.changes]
        assert values == [*range(1, KEPT + 1), 1]
        assert await board.get(COUNT, at="lost") == KEPT + LOST
        assert (await board.verify()).ok


async def test_a_primary_that_comes_back_and_its_promoted_replica_issue_other_revisions(
    redis_binary: Path,
) -> None:
    """Neither knows of the other, and both begin an epoch behind the same revision."""
    async with RedisPair(redis_binary) as pair:
        assert pair.replica is not None
        store = RedisStore.connect(pair.primary.url)
        ada = await Writer.open(store, "main")
        for _ in range(KEPT):
            await ada.commit(Increment(COUNT, 1))
        await pair.sync()
        pair.part()
        await store.aclose()
        await pair.primary.kill()
        await pair.primary.restart()
        await ask(pair.replica, "REPLICAOF", "NO", "ONE")
        issued = [await revisions_after(server) for server in (pair.primary, pair.replica)]
    assert set(issued[0]).isdisjoint(issued[1])


async def revisions_after(server: RedisProcess) -> list[int]:
    """What a server issues that a new process opens the board on."""
    store = RedisStore.connect(server.url)
    try:
        bob = await Writer.open(store, "main", "bob")
        return [(await bob.commit(Increment(COUNT, 1))).revision for _ in range(LOST)]
    finally:
        await store.aclose()
