"""A process's own commits reach its reader of the log without being read back, the same as read."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from blackboard.core import access
from blackboard.core.commit import (
    Append,
    Commit,
    Committed,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    Increment,
    KeyAt,
    LogEntry,
    Op,
    Put,
    PutBack,
    Release,
    Renew,
)
from blackboard.core.path import parse_patterns
from blackboard.core.view import View
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import Compacted
from blackboard.limits import HANDOVER_BYTES_MAX, LEASE_TTL_MS_MIN, VALUE_INLINE_BYTES_MAX
from blackboard.server.commit_queue import salted
from blackboard.server.feed import Feed
from blackboard.wire.codec import prepare
from tests.conformance.rules_restore import restore
from tests.conformance.writer import Writer, packed
from tests.waiting import wait_until

BOARD = "handover"
HOUR_MS = 3_600_000
SOON_S = 60


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[RedisStore]:
    """The store of another process."""
    store = RedisStore.connect(redis_url)
    yield store
    await store.aclose()


async def calls(redis: Redis) -> dict[str, int]:
    """How often each command ran, also within scripts."""
    found = await redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}


@asynccontextmanager
async def followed(
    store: RedisStore,
) -> AsyncIterator[tuple[list[LogEntry], "asyncio.Future[int]"]]:
    """The entries of the board, gathered by a reader as a feed is, from its first one up to the
    revision that is the result of the future; the context ends when it has them all."""
    found: list[LogEntry] = []
    until: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def follow() -> None:
        after = 0
        while not until.done() or after < until.result():
            page = await store.log(BOARD, after, limit=10, wait_ms=50)
            assert page.head.revision >= after + len(page.entries)
            found.extend(page.entries)
            after = found[-1].revision if found else 0

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            yield found, until


async def read_to_end(store: RedisStore) -> int:
    """Follow the log to its head; returns that."""
    head = (await store.open(BOARD)).revision
    await store.log(BOARD, head, limit=1, wait_ms=1)
    return head


# --- what it costs --------------------------------------------------------------------------------


async def test_a_commit_with_a_watcher_is_one_script_call(
    redis_store: RedisStore, redis: Redis
) -> None:
    """It was three, each with an INFO: the commit, and two reads of the log."""
    ada, commits = await Writer.open(redis_store, BOARD), 50
    everything = View(parse_patterns(["**"]), access.operator().grants)
    feed = Feed(redis_store, BOARD)
    try:
        async with feed.watch(everything, None) as watcher:
            await ada.commit(Increment("public/a", 1))
            await anext(watcher)
            before = await calls(redis)
            for number in range(commits):
                await ada.commit(Increment("public/a", 1))
                delivery = await anext(watcher)
                assert [each.revision for each in delivery.revisions] == [number + 2]
            after = await calls(redis)
    finally:
        await feed.aclose()
    for command in ("evalsha", "info", "xrange"):
        more = after.get(command, 0) - before.get(command, 0)
        # Not exactly one each: on a busy machine an answer may be late, and the log is read.
        assert more < commits * 1.5, (command, more)


# --- the same entries -----------------------------------------------------------------------------


Check = Callable[[], Awaitable[None]]


async def every_kind(ada: Writer, check: Check) -> None:
    """Commit with every kind of operation, and everything else that an entry records."""
    large = packed("L" * (VALUE_INLINE_BYTES_MAX + 1))
    commits: list[Commit] = [
        ada.make(Put("public/a", packed(1)), note="first", based_on=[("public/z", 0)]),
        ada.make(Put("public/b", large, HOUR_MS), Put("public/c", packed([1, "x", None]))),
        ada.make(Put("public/a", packed(2)), conditions=[KeyAt("public/a", 1)]),
        salted(ada.make(Put("public/salted", large), Put("public/d", large))),
        replace(salted(ada.make(Append("public/list", packed("i"), HOUR_MS))), account="team"),
        ada.make(Append("public/list", large), Increment("public/n", -3), Delete("public/none")),
        ada.make(Delete("public/a"), DeletePrefix("public/list")),
        salted(ada.make(DeletePrefix("public/list"), Put("public/e", packed("end")))),
    ]
    for commit in commits:
        outcome = await ada.send(commit)
        assert isinstance(outcome, Committed), outcome
        await check()
    await ada.send_all([ada.make(Increment("public/n", 1)) for _ in range(20)])
    await check()


async def every_lease(ada: Writer, check: Check) -> None:
    """Commit with every operation on a lease."""
    lease, ttl_ms = "public/lease", HOUR_MS
    fence = (await ada.commit(Grant(lease, "ada", ttl_ms))).revision
    await check()
    for op in (
        Grant(lease, "bob", ttl_ms, wait=True),
        Renew(lease, "ada", fence, 2 * ttl_ms),
        Release(lease, "ada", fence),
    ):
        await ada.commit(op)
        await check()
    fence = (await ada.commit(Grant("public/short", "ada", LEASE_TTL_MS_MIN))).revision
    await check()

    async def is_expired() -> bool:
        outcome = await ada.attempt(Expire("public/short", "ada", fence))
        return isinstance(outcome, Committed)

    await wait_until(is_expired)
    await check()


async def test_an_entry_that_is_handed_over_is_the_one_in_the_log(
    redis_store: RedisStore, other: RedisStore, redis: Redis
) -> None:
    """For every kind of operation, with all that an entry has: the results, what it was based on,
    its salt, its digest, its account. A restore is read from the log."""
    ada = await Writer.open(redis_store, BOARD, "team.ada")
    at = await read_to_end(redis_store)

    async def check(*, is_read: bool = False) -> None:
        nonlocal at
        before = await calls(redis)
        handed = await redis_store.log(BOARD, at, limit=100, wait_ms=HOUR_MS)
        after = await calls(redis)
        assert after["evalsha"] - before["evalsha"] == is_read
        in_log = await other.log(BOARD, at, limit=100)
        assert handed.entries == in_log.entries != ()
        assert [e.digest for e in handed.entries] == [e.digest for e in in_log.entries]
        assert replace(handed.head, time_ms=0) == replace(in_log.head, time_ms=0)
        at = handed.entries[-1].revision

    with redis_store._handovers.to_reader(BOARD).reading():
        await every_kind(ada, check)
        await every_lease(ada, check)
        head = await other.open(BOARD)
        begins = restore(head, ada, PutBack("public/b", packed(1)), Delete("public/n"))
        assert isinstance(await ada.send(begins), Committed)
        await check(is_read=True)
        assert begins.begins is not None
        ada.epoch = begins.begins.id
        await ada.commit(Put("public/a", packed("in the new epoch")))
        await check()


# --- others that commit ---------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [0, 1])
async def test_the_commits_of_two_processes_are_read_in_order_without_a_gap(
    redis_url: str, other: RedisStore, seed: int, replicas: int
) -> None:
    """Each follows the log while both write, in batches and with renewals between them."""
    mine = RedisStore.connect(redis_url, replicas=replicas)
    try:
        dice = random.Random(seed)
        writers = [await Writer.open(mine, BOARD, "ada"), await Writer.open(other, BOARD, "bob")]
        fences = [
            (await w.commit(Grant(f"public/{w.agent}", w.agent, HOUR_MS))).revision for w in writers
        ]

        async def write(writer: Writer, fence: int) -> None:
            for _ in range(30):
                renew: Op = Renew(f"public/{writer.agent}", writer.agent, fence, HOUR_MS)
                plain: list[Op] = [Increment("public/n", 1) for _ in range(dice.randint(0, 3))]
                ops: list[Op] = dice.sample([renew, *plain], len(plain) + 1)
                await writer.send_all([writer.make(op) for op in ops])

        async with followed(mine) as (here, until), followed(other) as (there, until_too):
            async with anyio.create_task_group() as tasks:
                for writer, fence in zip(writers, fences, strict=True):
                    tasks.start_soon(write, writer, fence)
            head = (await other.open(BOARD)).revision
            until.set_result(head)
            until_too.set_result(head)
        in_log = (await other.log(BOARD, 0, limit=200)).entries
        assert len(in_log) == head
        assert (tuple(here), tuple(there)) == (in_log, in_log)
    finally:
        await mine.aclose()


async def test_a_renewal_is_not_taken_for_the_commit_of_another_process(
    redis_store: RedisStore, other: RedisStore
) -> None:
    """It has no entry; the revision in its answer is that of what others committed."""
    ada, bob = await Writer.open(redis_store, BOARD), await Writer.open(other, BOARD, "bob")
    fence = (await ada.commit(Grant("public/lease", "ada", HOUR_MS))).revision
    head = await read_to_end(redis_store)
    await bob.commit(Put("public/a", packed("bob's")))
    renewed = await ada.commit(Renew("public/lease", "ada", fence, HOUR_MS))
    assert renewed.revision == head + 1
    [entry] = (await redis_store.log(BOARD, head, limit=10, wait_ms=HOUR_MS)).entries
    assert entry.author == "bob"


async def test_a_commit_that_is_not_answered_does_not_delay_those_of_others(
    redis_store: RedisStore, other: RedisStore
) -> None:
    """The reader waits for it only a moment."""
    ada, bob = await Writer.open(redis_store, BOARD), await Writer.open(other, BOARD, "bob")
    await ada.commit(Put("public/a", packed(1)))
    head = await read_to_end(redis_store)
    with redis_store._handovers.to_reader(BOARD).in_flight():  # never lands
        await bob.commit(Put("public/a", packed(2)))
        with anyio.fail_after(SOON_S):
            page = await redis_store.log(BOARD, head, limit=10, wait_ms=HOUR_MS)
    assert [entry.author for entry in page.entries] == ["bob"]


# --- what is forgotten ----------------------------------------------------------------------------


async def test_nothing_is_handed_over_that_a_compaction_dropped(redis_store: RedisStore) -> None:
    """A redaction empties the log in the same way."""
    ada = await Writer.open(redis_store, BOARD)
    await ada.commit(Put("public/a", packed(1)))
    head = await read_to_end(redis_store)
    await ada.commit(Put("public/a", packed("secret")))
    await redis_store.compact(BOARD, head + 2)
    with pytest.raises(Compacted):
        await redis_store.log(BOARD, head, limit=10, wait_ms=HOUR_MS)


async def test_nothing_of_a_dropped_board_reaches_the_next_of_its_name(
    redis_store: RedisStore, other: RedisStore
) -> None:
    """Another process drops it, and makes it again up to the same revision."""
    ada = await Writer.open(redis_store, BOARD)
    await ada.commit(Put("public/a", packed(1)))
    head = await read_to_end(redis_store)
    await ada.commit(Put("public/a", packed("of the old board")))
    await other.drop(BOARD)
    bob = await Writer.open(other, BOARD, "bob")
    await bob.commit(Put("public/a", packed(1)))
    assert (await redis_store.open(BOARD)).revision == head
    await bob.commit(Put("public/a", packed(2)))
    [entry] = (await redis_store.log(BOARD, head, limit=10, wait_ms=HOUR_MS)).entries
    assert entry.author == "bob"


async def test_a_commit_to_the_next_board_of_a_name_does_not_continue_the_old_one(
    redis_store: RedisStore, other: RedisStore
) -> None:
    """Its revision may follow; the page that has it is read from the log, in its own epoch."""
    ada = await Writer.open(redis_store, BOARD)
    await ada.commit(Put("public/a", packed(1)))
    head = await read_to_end(redis_store)
    await other.drop(BOARD)
    bob = await Writer.open(other, BOARD, "bob")
    await bob.commit(Put("public/a", packed(1)))
    ada.epoch, ada.incarnation = bob.epoch, "ada-2"
    await ada.commit(Put("public/a", packed(2)))
    page = await redis_store.log(BOARD, head, limit=10, wait_ms=HOUR_MS)
    assert (page.head.epoch.id, len(page.entries)) == (bob.epoch, 1)


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_reader_that_falls_behind_reads_the_log(
    redis_store: RedisStore, redis: Redis, beyond: int
) -> None:
    """Up to HANDOVER_BYTES_MAX are kept for it."""
    ada = await Writer.open(redis_store, BOARD)
    await ada.commit(Put("public/a", packed(1)))
    head = await read_to_end(redis_store)
    handover = redis_store._handovers.to_reader(BOARD)
    with handover.reading():  # it is busy with the last page
        frame = prepare(replace(ada.make(Put("public/a", b"x" * 65_000)))).size - 65_000
        left, sizes = HANDOVER_BYTES_MAX + beyond, list[int]()
        while left:
            sizes.append(min(left, 65_000 + frame) if left < 2 * 65_000 else 65_000)
            left -= sizes[-1]
        for size in sizes:
            commit = prepare(ada.make(Put("public/a", b"x" * (size - frame))))
            assert commit.size == size
            await redis_store.commit(BOARD, [commit])
    before = await calls(redis)
    page = await redis_store.log(BOARD, head, limit=100, wait_ms=HOUR_MS)
    assert len(page.entries) == len(sizes)
    assert (await calls(redis))["evalsha"] - before["evalsha"] == beyond
