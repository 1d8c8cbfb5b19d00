"""Redis and Valkey servers that die, hang, come back with less, and replies that are lost."""

import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from blackboard.client.client import Client
from blackboard.client.writer import _Lane
from blackboard.core.access import operator
from blackboard.core.commit import ABSENT, Committed, Delete, Epoch, Increment, Put
from blackboard.engines.redis.layout import board_keys
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import OutcomeUnknown, StaleEpoch, Unavailable
from blackboard.limits import EPOCH_JUMP, EPOCH_SPREAD
from blackboard.server.service import Service
from blackboard.wire.codec import Prepared, prepare
from tests.conformance.rules_log import whole_log
from tests.conformance.writer import Writer, at, packed
from tests.faults.tcp_proxy import TcpProxy
from tests.lowered import lowered
from tests.postgres import answered
from tests.redis_process import RedisProcess, RedisSettings
from tests.servers import SLOTS, RedisCluster3, ask
from tests.waiting import wait_until

BOARD, COUNT, GATE = "faults", "public/count", "public/gate"
HASTY = lowered(engine_retry_ms=1_200)
"""For stores that give up soon: only where nobody answers, for a slow machine may need longer."""
IMPATIENT = lowered(engine_timeout_ms=500)
"""For stores that repeat a command soon."""
SOON_S = 60
"""What a hang would exceed."""
LONG_S = 100
"""What hundreds of synced commits take at most, on the slowest disk."""


@pytest.fixture
async def server(redis_binary: Path) -> AsyncIterator[RedisProcess]:
    """A server that a test may kill."""
    # Without the delay, in which Redis waits for more replicas to serve at once.
    settings = RedisSettings(options={"repl-diskless-sync-delay": "0"})
    async with RedisProcess(redis_binary, settings=settings) as server:
        yield server


@pytest.fixture
async def store(server: RedisProcess) -> AsyncIterator[RedisStore]:
    """A store over that server."""
    store = RedisStore.connect(server.url)
    yield store
    await store.aclose()


async def count_of(store: RedisStore) -> bytes:
    """The counter's encoded value."""
    return (await store.read(BOARD, [COUNT])).entries[0].value


# --- replies that are lost ------------------------------------------------------------------------


async def test_a_commit_whose_reply_is_lost_is_applied_once(server: RedisProcess) -> None:
    """The store asks again by itself; the answer says that it had been applied."""
    async with TcpProxy(server.port) as proxy:
        store = RedisStore.connect(f"redis://127.0.0.1:{proxy.port}/0")
        ada = await Writer.open(store, BOARD)
        for number in range(1, 6):
            proxy.drop_replies()
            done = await ada.commit(Increment(COUNT, 1))
            assert proxy.dropped.is_set()
            assert (done.duplicate, done.results) == (True, (number,))
        assert await count_of(store) == packed(5)
        await store.aclose()


async def test_a_whole_batch_whose_reply_is_lost_is_applied_once(server: RedisProcess) -> None:
    """Each commit of it has its own identity: the writers are different agents."""
    async with TcpProxy(server.port) as proxy:
        store = RedisStore.connect(f"redis://127.0.0.1:{proxy.port}/0")
        agents = [await Writer.open(store, BOARD, f"agent{i}") for i in range(20)]
        proxy.drop_replies()
        batch = [prepare(agent.make(Increment(COUNT, 1))) for agent in agents]
        outcomes = await store.commit(BOARD, batch)
        assert [o.results for o in outcomes if isinstance(o, Committed)] == [
            (number,) for number in range(1, 21)
        ]
        assert await count_of(store) == packed(20)
        await store.aclose()


async def test_a_lost_answer_that_was_pushed_out_is_unknown_and_not_applied_again(
    server: RedisProcess, store: RedisStore
) -> None:
    """Between the two attempts another incarnation of the agent took the lane."""
    async with TcpProxy(server.port) as proxy:
        through_proxy = RedisStore.connect(f"redis://127.0.0.1:{proxy.port}/0")
        ada = await Writer.open(through_proxy, BOARD)
        await ada.commit(Increment(COUNT, 1))
        outcomes: list[object] = []

        async def commit() -> None:
            outcomes.append(await ada.attempt(Increment(COUNT, 1)))

        async with anyio.create_task_group() as tasks:
            proxy.drop_replies()
            proxy.hold()
            tasks.start_soon(commit)
            await proxy.dropped.wait()
            reborn = await Writer.open(store, BOARD)
            reborn.incarnation = "ada-2"
            await reborn.commit(Increment(COUNT, 1))
            proxy.release()
        assert isinstance(outcomes[0], OutcomeUnknown)
        assert await count_of(store) == packed(3)
        await through_proxy.aclose()


async def test_a_repeat_that_is_refused_is_unknown_while_the_first_attempt_may_arrive(
    server: RedisProcess, store: RedisStore
) -> None:
    """What refused the repeat is gone when the first attempt arrives: it is applied."""
    async with TcpProxy(server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        through_proxy = RedisStore.connect(url, limits=IMPATIENT)
        ada = await Writer.open(through_proxy, BOARD)
        await ada.commit(Increment(COUNT, 1))
        bob = await Writer.open(store, BOARD, "bob")
        step = ada.make(Increment(COUNT, 1), conditions=[at(GATE, ABSENT)])
        outcomes: list[object] = []

        async def commit() -> None:
            outcomes.append(await ada.send(step))

        async with anyio.create_task_group() as tasks:
            proxy.keep_back()
            proxy.hold()
            tasks.start_soon(commit)
            await proxy.kept.wait()
            await bob.commit(Put(GATE, packed("shut")))
            proxy.release()
        assert isinstance(outcomes[0], OutcomeUnknown)
        assert not outcomes[0].final
        await bob.commit(Delete(GATE))
        proxy.deliver()

        async def arrived() -> bool:
            return await count_of(store) == packed(2)

        await wait_until(arrived)
        again = await ada.send(step)
        assert isinstance(again, Committed)
        assert again.duplicate
        await through_proxy.aclose()


async def test_a_commit_that_is_never_answered_is_unknown_until_asked_again(
    server: RedisProcess, store: RedisStore
) -> None:
    """The outcome is neither success nor failure; the same commit sent again finds out."""
    async with TcpProxy(server.port) as proxy:
        through_proxy = RedisStore.connect(f"redis://127.0.0.1:{proxy.port}/0", limits=HASTY)
        ada = await answered(lambda: Writer.open(through_proxy, BOARD))
        step = ada.make(Increment(COUNT, 1))
        proxy.drop_replies(1000)
        with anyio.fail_after(SOON_S):
            [outcome] = await through_proxy.commit(BOARD, [prepare(step)])
        assert isinstance(outcome, OutcomeUnknown)
        assert (outcome.agent, outcome.step) == ("ada", 1)
        [found] = await store.commit(BOARD, [prepare(step)])
        assert isinstance(found, Committed)
        assert found.duplicate
        await through_proxy.aclose()


# --- servers that are away ------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    """Nothing was sent, so the outcome is known: not done."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that nobody else listens there meanwhile
        url = f"redis://127.0.0.1:{taken.getsockname()[1]}/0"
        store = RedisStore.connect(url, limits=HASTY)
        with anyio.fail_after(SOON_S), pytest.raises(Unavailable):
            await store.open(BOARD)
        with anyio.fail_after(SOON_S), pytest.raises(Unavailable):
            await store.commit(BOARD, [])
        with anyio.fail_after(SOON_S), pytest.raises(Unavailable):
            await store.facts()
        await store.aclose()


async def test_a_frozen_server_never_hangs_a_caller(
    server: RedisProcess, store: RedisStore
) -> None:
    """Commits become unknown, reads unavailable, in bounded time; then everything goes on."""
    ada = await Writer.open(store, BOARD)
    await ada.commit(Increment(COUNT, 1))
    step = ada.make(Increment(COUNT, 1))
    hasty = RedisStore.connect(server.url, limits=HASTY)
    await answered(lambda: hasty.open(BOARD))  # a commit that finds no connection is not unknown
    server.pause()
    try:
        with anyio.fail_after(SOON_S):
            [outcome] = await hasty.commit(BOARD, [prepare(step)])
        assert isinstance(outcome, OutcomeUnknown)
        with anyio.fail_after(SOON_S), pytest.raises(Unavailable):
            await hasty.read(BOARD, [COUNT])
        with anyio.fail_after(SOON_S), pytest.raises(Unavailable):
            await hasty.log(BOARD, 1, limit=1, wait_ms=100)
    finally:
        server.resume()
        await hasty.aclose()
    found = await ada.send(step)
    assert isinstance(found, Committed)
    assert await count_of(store) == packed(2)


async def test_a_short_freeze_is_bridged(server: RedisProcess, store: RedisStore) -> None:
    """The call waits, and its commit is applied once."""
    ada = await Writer.open(store, BOARD)
    async with anyio.create_task_group() as tasks:
        server.pause()
        tasks.start_soon(ada.commit, Increment(COUNT, 1))
        await anyio.wait_all_tasks_blocked()
        server.resume()
    assert await count_of(store) == packed(1)


# --- servers that come back -----------------------------------------------------------------------


async def test_a_server_that_came_back_begins_an_epoch(
    server: RedisProcess, store: RedisStore
) -> None:
    """A commit of before is refused, even over a store that did not notice; revisions jump."""
    ada = await Writer.open(store, BOARD)
    await ada.commit(Increment(COUNT, 1))
    await ada.commit(Increment(COUNT, 1))
    old = ada.epoch
    await server.kill()
    await server.restart()
    refused = await ada.attempt(Increment(COUNT, 1))
    assert isinstance(refused, StaleEpoch)
    assert (refused.yours, refused.number, refused.cause) == (old, 2, "engine")
    begun = refused.head
    assert refused.from_revision == 2
    assert EPOCH_JUMP <= begun - 2 < EPOCH_JUMP + EPOCH_SPREAD
    page = await store.log(BOARD, 2, limit=10)
    assert [(e.revision, e.epoch) for e in page.entries] == [
        (begun, Epoch(2, refused.current, "engine", 2, begun))
    ]
    ada.epoch = refused.current
    assert (await ada.commit(Increment(COUNT, 1))).revision == begun + 1


async def test_every_kind_of_call_notices_a_server_that_came_back(
    server: RedisProcess, store: RedisStore
) -> None:
    """Reads too: what they show belongs to the new epoch."""
    ada = await Writer.open(store, BOARD)
    await ada.commit(Increment(COUNT, 1))
    epochs = {ada.epoch}

    async def restarted() -> None:
        await server.kill()
        await server.restart()

    await restarted()
    epochs.add((await store.read(BOARD, [COUNT])).epoch)
    await restarted()
    epochs.add((await store.list(BOARD, "", limit=1)).epoch)
    await restarted()
    epochs.add((await store.log(BOARD, 0, limit=9)).head.epoch.id)
    await restarted()
    epochs.add((await store.compact(BOARD, 1)).epoch.id)
    await restarted()
    epochs.add((await store.due(BOARD, limit=1)).epoch)
    assert len(epochs) == 6
    log = await whole_log(store, BOARD)
    assert [entry.epoch.number for entry in log if entry.epoch] == [2, 3, 4, 5, 6]


async def test_a_waiting_reader_outlives_the_server(
    server: RedisProcess, store: RedisStore
) -> None:
    """It gets the new epoch when the server is back."""
    ada = await Writer.open(store, BOARD)
    await ada.commit(Increment(COUNT, 1))
    pages = []

    async def wait() -> None:
        pages.append(await store.log(BOARD, 1, limit=9, wait_ms=60_000))

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await server.kill()
            await server.restart()
    assert pages[0].entries[0].epoch is not None


async def test_revisions_are_not_issued_again_by_a_server_that_lost_everything(
    redis_binary: Path,
) -> None:
    """Without a file the board is gone; what was seen of it is not."""
    async with RedisProcess(
        redis_binary, settings=RedisSettings(options={"appendonly": "no"})
    ) as server:
        store = RedisStore.connect(server.url)
        ada = await Writer.open(store, BOARD)
        for _ in range(5):
            await ada.commit(Increment(COUNT, 1))
        await server.kill()
        await server.restart()
        refused = await ada.attempt(Increment(COUNT, 1))
        assert isinstance(refused, StaleEpoch)
        assert (refused.cause, refused.from_revision) == ("engine", 0)
        assert EPOCH_JUMP <= refused.head - 5 < EPOCH_JUMP + EPOCH_SPREAD
        await store.aclose()


async def test_kill_under_load_loses_no_acknowledged_commit_and_doubles_none(
    server: RedisProcess, store: RedisStore
) -> None:
    """Six writers count; the server is killed three times; each step counts exactly once."""
    acknowledged: list[int] = []
    is_over = anyio.Event()

    async def count(number: int) -> None:
        writer = await Writer.open(store, BOARD, f"agent{number}")
        while not is_over.is_set():
            step = writer.make(Increment(COUNT, 1))
            while not isinstance(outcome := await resolved(prepare(step)), Committed):
                assert isinstance(outcome, StaleEpoch)
                writer.epoch = outcome.current
                writer.step -= 1
                step = writer.make(Increment(COUNT, 1))
            acknowledged.append(outcome.revision)

    async def resolved(step: Prepared) -> object:
        while True:
            [outcome] = await store.commit(BOARD, [step])
            if not isinstance(outcome, OutcomeUnknown):
                return outcome

    async def counted(more: int) -> None:
        enough = len(acknowledged) + more

        async def is_enough() -> bool:
            return len(acknowledged) >= enough

        await wait_until(is_enough, timeout_s=LONG_S)

    with anyio.fail_after(LONG_S):
        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(count, number)
            for _ in range(3):
                await counted(200)
                await server.kill()
                await server.restart()
            await counted(50)
            is_over.set()
    assert len(set(acknowledged)) == len(acknowledged)
    assert await count_of(store) == packed(len(acknowledged))
    log = await whole_log(store, BOARD)
    assert sorted(acknowledged) == [e.revision for e in log if e.epoch is None]
    assert [e.epoch.number for e in log if e.epoch] == [2, 3, 4]
    gaps = [b.revision - a.revision for a, b in pairwise(log)]
    jumps = [gap for gap in gaps if gap != 1]
    assert len(jumps) == 3
    assert all(EPOCH_JUMP <= jump < EPOCH_JUMP + EPOCH_SPREAD for jump in jumps)


async def test_who_lost_nothing_goes_on_when_the_engine_came_back(server: RedisProcess) -> None:
    """Three processes of an agent meet on one lane. In the new epoch one of them pushes the answer
    of another out of it, and so the first attempt of the third could be a late one."""
    async with Service(RedisStore.connect(server.url)) as service:
        ada, bob, cyd = (Client(service.link(operator())).board(BOARD) for _ in range(3))
        await ada.put("public/x", 0)
        for board in (ada, bob, cyd):
            board._writer._lanes = [_Lane(5)]
            await board.get("public/x")
        await ada.put("public/a", 1)
        await bob.put("public/b", 1)
        with anyio.fail_after(LONG_S):
            await server.kill()
            await server.restart()
            await cyd.put("public/c", 1)
            await ada.put("public/a", 2)
        assert await cyd.get("public/a") == 2
        assert (await cyd.head()).epoch.number == 2


# --- another history ------------------------------------------------------------------------------


async def _is_replica_of(replica: RedisProcess, size: int) -> bool:
    info = await ask(replica, "INFO", "replication")
    assert isinstance(info, dict)
    keys = await ask(replica, "DBSIZE")
    return info.get("master_link_status") == "up" and keys == size


async def test_a_promoted_replica_begins_an_epoch_and_a_replica_takes_nothing(
    redis_binary: Path, server: RedisProcess, store: RedisStore
) -> None:
    """A store that is led to the promoted server cannot go on as if nothing had happened."""
    ada = await Writer.open(store, BOARD)
    await ada.commit(Increment(COUNT, 1))
    async with RedisProcess(redis_binary) as replica:
        await ask(replica, "REPLICAOF", "127.0.0.1", server.port)
        await wait_until(lambda: _is_replica_of(replica, 8))
        # The first replica makes the primary rename its history: an epoch, with nothing lost.
        ada.epoch = (await store.open(BOARD)).epoch.id
        await ada.commit(Increment(COUNT, 1))
        there, hasty = (
            RedisStore.connect(replica.url),
            RedisStore.connect(replica.url, limits=HASTY),
        )
        with pytest.raises(Unavailable):
            await hasty.open(BOARD)
        await hasty.aclose()
        await ask(replica, "REPLICAOF", "NO", "ONE")
        assert (await there.open(BOARD)).epoch.id != ada.epoch
        await there.aclose()


async def test_a_server_that_was_a_replica_in_between_begins_an_epoch(
    redis_binary: Path, server: RedisProcess, store: RedisStore
) -> None:
    """The process is the same, but it follows another history now."""
    ada = await Writer.open(store, BOARD)
    await ada.commit(Increment(COUNT, 1))
    settings = RedisSettings(options={"repl-diskless-sync-delay": "0"})
    async with RedisProcess(redis_binary, settings=settings) as other:
        await ask(other, "REPLICAOF", "127.0.0.1", server.port)
        await wait_until(lambda: _is_replica_of(other, 8))
        ada.epoch = (await store.open(BOARD)).epoch.id
        lost = await ada.commit(Increment(COUNT, 1))
        await ask(other, "REPLICAOF", "NO", "ONE")
        await ask(server, "REPLICAOF", "127.0.0.1", other.port)
        await wait_until(lambda: _is_replica_of(server, 8))
        await ask(server, "REPLICAOF", "NO", "ONE")
        refused = await ada.attempt(Increment(COUNT, 1))
        assert isinstance(refused, StaleEpoch)
        assert refused.head > lost.revision


# --- a cluster ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_dead_node_of_a_cluster_takes_only_its_boards_along(redis_binary: Path) -> None:
    """Boards of the other nodes go on; those of the dead one come back with it, in a new epoch."""
    async with RedisCluster3(redis_binary) as cluster:
        url = cluster.url.replace("redis://", "redis+cluster://")
        store, hasty = RedisStore.connect(url), RedisStore.connect(url, limits=HASTY)
        writers = [await Writer.open(store, f"board{i}") for i in range(12)]
        for writer in writers:
            await writer.commit(Put("public/a", packed(1)))
        lost = {w.board for w in writers if await owner_of(cluster, w.board) == 1}
        assert 0 < len(lost) < len(writers)
        for board in lost:
            await answered(partial(hasty.open, board))
        await cluster.nodes[1].kill()
        for writer in writers:
            with anyio.fail_after(SOON_S):
                if writer.board in lost:
                    writer.store = hasty
                    await check_unanswered(writer)
                else:
                    await writer.commit(Increment("public/b", 1))
        await cluster.nodes[1].restart()
        await cluster.wait_until_ok()
        for writer in writers:
            begun = 2 if writer.board in lost else 1
            assert (await store.open(writer.board)).epoch.number == begun
        await hasty.aclose()
        await store.aclose()


async def check_unanswered(writer: Writer) -> None:
    """Nobody says what became of a commit, or that it was not even sent."""
    with suppress(Unavailable):
        assert isinstance(await writer.attempt(Increment("public/b", 1)), OutcomeUnknown)


@pytest.mark.slow
async def test_a_board_that_moves_to_another_node_loses_and_doubles_nothing(
    redis_binary: Path,
) -> None:
    """Writers count while the slot moves; there, a new epoch begins."""
    async with RedisCluster3(redis_binary) as cluster:
        store = RedisStore.connect(cluster.url.replace("redis://", "redis+cluster://"))
        first = await Writer.open(store, BOARD)
        done: list[Committed] = []
        is_over = anyio.Event()

        async def count(number: int) -> None:
            writer = Writer(store, BOARD, await store.open(BOARD), f"agent{number}")
            while not is_over.is_set():
                outcome = await writer.send(step := writer.make(Increment(COUNT, 1)))
                while isinstance(outcome, StaleEpoch):
                    writer.epoch = outcome.current
                    outcome = await writer.send(step := replace(step, epoch=writer.epoch))
                assert isinstance(outcome, Committed), outcome
                done.append(outcome)

        async def has(commits: int) -> bool:
            return len(done) >= commits

        with anyio.fail_after(LONG_S):
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(count, number)
                await wait_until(lambda: has(100), timeout_s=LONG_S)
                await move_slot(cluster, BOARD)
                before = len(done)
                await wait_until(lambda: has(before + 100), timeout_s=LONG_S)
                is_over.set()
        assert await count_of(store) == packed(len(done))
        log = await whole_log(store, BOARD)
        assert sorted(o.revision for o in done) == [e.revision for e in log if e.epoch is None]
        assert [e.epoch.number for e in log if e.epoch] == [2]
        assert (await store.open(BOARD)).epoch.id != first.epoch
        await store.aclose()


async def move_slot(cluster: RedisCluster3, board: str) -> None:
    """Move the slot of `board` to the next node, as an operator does."""
    slot, owner = await slot_of(cluster, board), await owner_of(cluster, board)
    source, target = cluster.nodes[owner], cluster.nodes[(owner + 1) % 3]
    source_id, target_id = await node_id(source), await node_id(target)
    await ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    await ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    await ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *board_keys(board))
    for node in (target, source, *cluster.nodes):
        await ask(node, "CLUSTER", "SETSLOT", slot, "NODE", target_id)


async def slot_of(cluster: RedisCluster3, board: str) -> int:
    """The slot in which a board lies."""
    slot = await ask(cluster.nodes[0], "CLUSTER", "KEYSLOT", board_keys(board)[0])
    assert isinstance(slot, int)
    return slot


async def owner_of(cluster: RedisCluster3, board: str) -> int:
    """The number of the node that had that slot in the beginning."""
    slot = await slot_of(cluster, board)
    return next(i for i in range(3) if slot < SLOTS * (i + 1) // 3)


async def node_id(node: RedisProcess) -> str:
    """The name of a node of a cluster."""
    found = await ask(node, "CLUSTER", "MYID")
    return found.decode() if isinstance(found, bytes) else str(found)
