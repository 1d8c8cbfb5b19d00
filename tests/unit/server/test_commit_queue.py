"""Group commit: which commits share a call, which outcomes they get, and what a failing engine
does."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from blackboard.core.commit import Commit, CommitId, Committed, Increment, KeyAt, Op, Put
from blackboard.core.log_entry import SALT_BYTES
from blackboard.core.model import Outcome
from blackboard.engines.sqlite import store as sqlite_store
from blackboard.errors import BlackboardError, Conflict, OutcomeUnknown, Unavailable
from blackboard.limits import BATCH_COMMITS_MAX, Limits
from blackboard.server.commit_queue import CommitQueue, salted, system_id
from blackboard.server.security.revocations import Permit, Permits, Revocations
from blackboard.wire.codec import Prepared, encode_value, prepare
from tests.lowered import lowered
from tests.unit.server.hooked import HookedStore

PATIENCE_S = 60.0


class Sender:
    """Submits commits of one agent."""

    def __init__(self, queue: CommitQueue, epoch: str) -> None:
        self.queue = queue
        self.epoch = epoch
        self.step = 0

    def make(self, *ops: Op, conditions: tuple[KeyAt, ...] = ()) -> Prepared:
        """The next commit."""
        self.step += 1
        return prepare(Commit(CommitId("ada", 0, "i", self.step), self.epoch, ops, conditions))

    async def many(self, count: int) -> list[Outcome | BlackboardError]:
        """Submit `count` increments in one turn of the event loop."""
        made = [self.make(Increment("public/n", 1)) for _ in range(count)]
        with anyio.fail_after(PATIENCE_S):
            return await asyncio.gather(*[self.queue.submit(prepared) for prepared in made])


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[HookedStore]:
    """An engine that can be broken."""
    opened = await HookedStore.at(tmp_path, "memory")
    yield opened
    await opened.aclose()


@pytest.fixture
async def sender(store: HookedStore, limits: Limits) -> Sender:
    """A sender of a queue of its own, which has one engine call in flight."""
    head = await store.open("main")
    chosen = lowered(limits, calls_in_flight_max=1).commits
    return Sender(CommitQueue(store, "main", limits=chosen), head.epoch.id)


async def test_commits_of_one_turn_share_a_call_and_keep_their_order(sender: Sender) -> None:
    outcomes = await sender.many(10)
    assert [o.revision for o in outcomes if isinstance(o, Committed)] == list(range(1, 11))
    counts = sender.queue.counts
    assert (counts.commits, counts.batches, counts.refused) == (10, 1, 0)


async def test_two_calls_in_flight_share_what_waits(sender: Sender) -> None:
    """Unless the engine decides at once: then what came together is written together."""
    sender.queue.limits = lowered(calls_in_flight_max=2).commits
    engine, sender.queue._engine = sender.queue._engine, None
    outcomes = await sender.many(10)
    assert [o.revision for o in outcomes if isinstance(o, Committed)] == list(range(1, 11))
    assert sender.queue.counts.batches == 2
    sender.queue._engine = engine
    await sender.many(10)
    assert sender.queue.counts.batches == 3


async def test_what_queues_during_a_call_goes_together_in_the_next(
    sender: Sender, store: HookedStore
) -> None:
    gate = anyio.Event()
    store.hook("before commit", gate.wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sender.many, 1)
        await anyio.wait_all_tasks_blocked()
        for _ in range(5):
            tasks.start_soon(sender.many, 1)
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert (sender.queue.counts.commits, sender.queue.counts.batches) == (6, 2)


async def test_a_batch_is_bounded_by_count_and_by_bytes(sender: Sender, limits: Limits) -> None:
    assert len(await sender.many(BATCH_COMMITS_MAX + 1)) == BATCH_COMMITS_MAX + 1
    assert sender.queue.counts.batches == 2
    size = sender.make(Increment("public/n", 1)).size
    sender.queue.limits = lowered(limits, batch_bytes_max=4 * size).commits
    assert len(await sender.many(9)) == 9
    assert sender.queue.counts.batches == 2 + 3
    sender.queue.limits = lowered(limits, batch_bytes_max=1).commits
    assert len(await sender.many(2)) == 2


async def test_a_refusal_is_the_outcome_of_its_own_commit_only(sender: Sender) -> None:
    put = Put("public/a", encode_value(1))
    made = [sender.make(put, conditions=(KeyAt("public/a", 0),)) for _ in range(3)]
    outcomes = await asyncio.gather(*[sender.queue.submit(prepared) for prepared in made])
    assert [type(outcome) for outcome in outcomes] == [Committed, Conflict, Conflict]
    assert sender.queue.counts.refused == 2


async def test_an_unavailable_engine_gives_each_caller_its_own_error(
    sender: Sender, store: HookedStore
) -> None:
    async def away() -> None:
        raise Unavailable("engine", "away")

    store.hook("before commit", away)
    outcomes = await sender.many(3)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3
    store.hooks.clear()
    assert [type(outcome) for outcome in await sender.many(1)] == [Committed]


async def test_a_bug_leaves_nobody_waiting_and_the_queue_usable(
    sender: Sender, store: HookedStore
) -> None:
    """Neither those of the batch nor those behind it: their outcome is unknown."""
    gate = anyio.Event()

    async def bug() -> None:
        await gate.wait()
        raise ZeroDivisionError

    store.hook("before commit", bug)
    first = asyncio.create_task(sender.many(2))
    await anyio.wait_all_tasks_blocked()
    second = asyncio.create_task(sender.many(2))
    await anyio.wait_all_tasks_blocked()
    [worker] = sender.queue._workers
    gate.set()
    with anyio.fail_after(PATIENCE_S):
        outcomes = await first + await second
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 4
    assert {o.step for o in outcomes if isinstance(o, OutcomeUnknown)} == {1, 2, 3, 4}
    with pytest.raises(ZeroDivisionError):
        await worker
    assert sender.queue.load.backlog_bytes == 0
    store.hooks.clear()
    assert [type(outcome) for outcome in await sender.many(1)] == [Committed]


@pytest.mark.limits(commits_queued_max=2)
async def test_too_many_waiting_commits_are_refused_before_they_wait(
    sender: Sender, store: HookedStore
) -> None:
    gate = anyio.Event()
    store.hook("before commit", gate.wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sender.many, 1)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(sender.many, 2)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Unavailable):
            await sender.queue.submit(sender.make(Increment("public/n", 1)))
        gate.set()
    assert sender.queue.counts.commits == 3


async def test_closing_waits_for_what_was_queued(sender: Sender, store: HookedStore) -> None:
    gate = anyio.Event()
    store.hook("before commit", gate.wait)
    waiting = asyncio.create_task(sender.many(3))
    await anyio.wait_all_tasks_blocked()
    closing = asyncio.create_task(sender.queue.aclose())
    await anyio.wait_all_tasks_blocked()
    assert not closing.done()
    gate.set()
    with anyio.fail_after(PATIENCE_S):
        await closing
        assert [type(outcome) for outcome in await waiting] == [Committed] * 3
    await sender.queue.aclose()


async def test_a_sender_that_went_away_does_not_disturb_the_others(
    sender: Sender, store: HookedStore
) -> None:
    gate = anyio.Event()
    store.hook("before commit", gate.wait)
    gone, stays = asyncio.create_task(sender.many(1)), asyncio.create_task(sender.many(1))
    await anyio.wait_all_tasks_blocked()
    gone.cancel()
    await asyncio.wait([gone])
    gate.set()
    with anyio.fail_after(PATIENCE_S):
        [outcome] = await stays
    assert isinstance(outcome, Committed)
    assert outcome.revision == 2


_FORKED = """
import os, sys
from blackboard.core.commit import Commit
from blackboard.server.commit_queue import salted, system_id

def drawn(count):
    return [salted(Commit(system_id(), "", ())).salt.hex() for _ in range(count)]

drawn(1)
child = os.fork()
os.write(1, " ".join(["", *drawn(20), ""]).encode())  # at once: both write to one pipe
if child:
    os.wait()
"""


def test_no_two_commits_have_one_salt_not_even_after_a_fork() -> None:
    """Each of 20 in a process and its child, and each of those beyond one draw."""
    said = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, check=True)
    salts = said.stdout.split()
    assert len(set(salts)) == len(salts) == 40
    many = [salted(Commit(system_id(), "", ())).salt for _ in range(1_000)]
    assert len(set(many)) == 1_000
    assert {len(salt) for salt in many} == {SALT_BYTES}


async def test_an_engine_that_decides_at_once_needs_no_task(sender: Sender) -> None:
    waiting = [sender.queue.submit(sender.make(Increment("public/n", 1))) for _ in range(3)]
    await checkpoint()
    assert (len(sender.queue.in_flight), len(sender.queue._workers)) == (1, 0)
    outcomes = await asyncio.gather(*waiting)
    assert [type(outcome) for outcome in outcomes] == [Committed] * 3
    await sender.queue.aclose()


async def test_a_batch_does_not_overtake_one_that_waits_for_the_engine(
    sender: Sender, store: HookedStore
) -> None:
    """The board is held, and goes on while the second batch is on its way."""
    sender.queue.limits = lowered(calls_in_flight_max=2).commits
    await store._boards["main"].hold(3_600_000)
    first = sender.queue.submit(sender.make(Increment("public/n", 1)))
    await checkpoint()
    await checkpoint()
    assert len(sender.queue._workers) == 1
    lifting = asyncio.create_task(store.hold("main", 0))
    second = sender.queue.submit(sender.make(Increment("public/n", 1)))
    outcomes = await asyncio.gather(first, second)
    await lifting
    assert [o.revision for o in outcomes if isinstance(o, Committed)] == [1, 2]


async def test_a_batch_that_needs_a_task_is_in_flight_before_the_task_begins(
    sender: Sender, store: HookedStore
) -> None:
    """Its permits have been checked, so who revokes one has to wait for it."""
    await store._boards["main"].hold(3_600_000)
    outcome = sender.queue.submit(sender.make(Increment("public/n", 1)))
    await checkpoint()
    assert (len(sender.queue.in_flight), len(sender.queue._workers)) == (1, 1)
    settled = asyncio.create_task(sender.queue.settled())
    lifting = asyncio.create_task(store.hold("main", 0))
    with anyio.fail_after(PATIENCE_S):
        await settled
        assert isinstance(await outcome, Committed)
    await lifting


async def test_a_bug_in_the_check_of_permits_leaves_nobody_waiting(sender: Sender) -> None:
    """Neither who commits nor who closes the board."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    store = sender.queue.store
    sender.queue.permits = Permits(store, Revocations(store))
    broken = cast("Permit", (None, 0))  # has no time at which it expires
    first = sender.queue.submit(sender.make(Increment("public/n", 1)), broken)
    second = sender.queue.submit(sender.make(Increment("public/n", 1)))
    with anyio.fail_after(PATIENCE_S):
        outcomes = await asyncio.gather(first, second)
        await sender.queue.settled()
        await sender.queue.aclose()
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 2
    assert isinstance(said[0]["exception"], AttributeError)
    sender.queue.permits = None
    assert [type(outcome) for outcome in await sender.many(1)] == [Committed]


async def test_each_commit_of_a_failed_call_without_a_task_has_an_error_of_its_own(
    sender: Sender, store: HookedStore
) -> None:
    sender.queue.limits = lowered(calls_in_flight_max=2).commits
    is_free = threading.Event()
    for _ in range(sqlite_store._WRITERS):
        store._threads.writers.submit(is_free.wait)
    first = sender.queue.submit(sender.make(Increment("public/n", 1)))
    await checkpoint()  # handed to the file
    waiting = [sender.queue.submit(sender.make(Increment("public/n", 1))) for _ in range(3)]
    await checkpoint()  # decided, and not handed to the file yet
    assert len(sender.queue.in_flight) == 2
    store._boards["main"].give_up("the disk is gone")
    outcomes = await asyncio.gather(*waiting)
    is_free.set()
    assert isinstance(await first, Committed)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert [type(outcome) for outcome in await sender.many(1)] == [Committed]


async def test_a_bug_of_one_sender_does_not_keep_the_others_waiting(sender: Sender) -> None:
    """It is reported to the event loop."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

    def bug(_outcome: object) -> None:
        raise ZeroDivisionError

    sender.queue.add(sender.make(Increment("public/n", 1)), None, bug)
    with anyio.fail_after(PATIENCE_S):
        outcome = await sender.queue.submit(sender.make(Increment("public/n", 1)))
    assert isinstance(outcome, Committed)
    assert isinstance(said[0]["exception"], ZeroDivisionError)
