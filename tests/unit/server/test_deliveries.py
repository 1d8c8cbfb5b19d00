"""Deliveries that a watcher takes at once, in place of its iteration."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace

from blackboard.client.board import Board
from blackboard.client.link import Delivery
from blackboard.core import access
from blackboard.core.commit import Change, ChangeKind, CommitId
from blackboard.core.path import parse_patterns
from blackboard.core.redaction import NOTE, RECORDS
from blackboard.core.view import View
from blackboard.core.watch import Position
from blackboard.errors import Unauthenticated, Unavailable
from blackboard.limits import DEFAULT
from blackboard.server.feed import Feed, Permitted, Watcher
from blackboard.server.service import Service
from blackboard.wire.codec import SYSTEM_AGENT
from tests.lowered import lowered
from tests.unit.server.hooked import HookedStore, client_of, service_over
from tests.waiting import wait_until

PATIENCE_S = 60.0
MOST = DEFAULT.watch.watch_batch_revisions_max
PUBLIC = View(parse_patterns(["public/**"]), access.operator().grants)
_numbers = itertools.count()


class Purse:
    """A payer that counts."""

    def __init__(self) -> None:
        self.charges = 0

    def charge(self, spent_ns: int) -> None:
        """Count a charge."""
        self.charges += 1

    async def turn(self) -> None:
        """It never waits."""


class Taking:
    """A taker that takes what `takes` says."""

    def __init__(self, takes: Callable[[], bool] = lambda: True) -> None:
        self.payer = Purse()
        self.taken: list[Delivery] = []
        self.refused = 0
        self._takes = takes

    def take(self, delivery: Delivery) -> bool:
        """Take it, or not."""
        if not self._takes():
            self.refused += 1
            return False
        self.taken.append(delivery)
        return True


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[tuple[Service, HookedStore]]:
    """A service, and its engine."""
    async with service_over(tmp_path, lowered(progress_interval_ms=3_600_000)) as parts:
        yield parts


async def opened(service: Service, name: str = "main") -> tuple[Feed, Board]:
    """A board, and its feed."""
    return (await service.boards.use(name)).feed, client_of(service).board(name)


async def is_asleep(feed: Feed, count: int = 1) -> None:
    """Wait until `count` watchers wait for news."""

    async def asleep() -> bool:
        waiting = [done for each in feed._sleeping.values() for done in each.woken]
        return sum(not woken.done() for woken in waiting) == count

    await wait_until(asleep)


async def taken(taking: Taking, count: int) -> None:
    """Wait until `count` deliveries were taken."""
    await wait_until(lambda: _true(len(taking.taken) == count))


def revisions(delivery: Delivery) -> list[int]:
    """The revisions of a delivery."""
    return [entry.revision for entry in delivery.revisions]


async def test_a_watcher_that_is_ahead_of_the_feed_gets_nothing_twice(
    parts: tuple[Service, HookedStore],
) -> None:
    """It resumes from what another process delivered before this one has read the log."""
    feed, board = await opened(parts[0])
    released, behind, ahead = anyio.Event(), Taking(), Taking()

    async def hold() -> None:
        if asyncio.current_task() is feed._tail:
            await released.wait()

    parts[1].hook("before log", hold)
    async with feed.watch(PUBLIC, None) as first:
        for number in range(3):
            await board.put("public/x", number)
        epoch = (await parts[1].open("main")).epoch.id
        async with feed.watch(PUBLIC, Position(epoch, 2)) as second:
            first.deliver_to(behind)
            second.deliver_to(ahead)
            waiting = [asyncio.ensure_future(anext(each)) for each in (first, second)]
            try:
                await is_asleep(feed, 2)
                released.set()
                with anyio.fail_after(PATIENCE_S):
                    assert revisions(await waiting[1]) == [3]
                waiting[1] = asyncio.ensure_future(anext(second))
                await taken(behind, 1)
                assert revisions(behind.taken[0]) == [1, 2, 3]
                await is_asleep(feed, 2)
                await board.put("public/x", 3)
                await taken(behind, 2)
                await taken(ahead, 1)
                assert revisions(ahead.taken[0]) == [4]
            finally:
                for each in waiting:
                    each.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_failure_of_the_feed_reaches_those_that_it_was_serving(
    parts: tuple[Service, HookedStore],
) -> None:
    """Whatever goes wrong while a delivery is made for watchers that wait."""
    feed, board = await opened(parts[0])

    def broken() -> bool:
        raise RuntimeError("a bug in the taker")

    async with feed.watch(PUBLIC, None) as watcher:
        watcher.deliver_to(Taking(broken))
        waiting = asyncio.ensure_future(anext(watcher))
        await is_asleep(feed)
        await board.put("public/x", 1)
        with anyio.fail_after(PATIENCE_S):
            assert revisions(await waiting) == [1]
            with pytest.raises(Unavailable):
                await anext(watcher)


async def test_a_watcher_that_waits_is_not_woken(parts: tuple[Service, HookedStore]) -> None:
    """The reader is charged for the delivery, and its position is after it."""
    feed, board = await opened(parts[0])
    taking = Taking()
    async with feed.watch(PUBLIC, None) as watcher:
        watcher.deliver_to(taking)
        waiting = asyncio.ensure_future(anext(watcher))
        try:
            for revision in (1, 2, 3):
                await is_asleep(feed)
                await board.increment("public/n")
                await taken(taking, revision)
            assert not waiting.done()
            assert list(map(revisions, taking.taken)) == [[1], [2], [3]]
            assert watcher.position == taking.taken[-1].position
            assert taking.payer.charges == 3
            await watcher.request_progress()
            assert (await asyncio.wait_for(waiting, PATIENCE_S)).position == watcher.position
        finally:
            waiting.cancel()


async def _true(value: bool) -> bool:
    return value


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.sampled_from("abx"), min_size=1, max_size=3)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 3),
)
async def test_what_is_taken_and_what_comes_out_make_the_log_without_a_gap(
    parts: tuple[Service, HookedStore], steps: list[tuple[bool, list[str]]], watchers: int
) -> None:
    """Takers that take some deliveries and leave others; commits of which the view shows nothing;
    and several commits between two looks."""
    feed, board = await opened(parts[0], f"board{next(_numbers)}")
    view = View(parse_patterns(["public/a", "public/b"]), access.operator().grants)
    told: list[list[int]] = [[] for _ in range(watchers)]
    takes = True

    async def follow(number: int, watcher: Watcher) -> None:
        async for delivery in watcher:
            told[number] += revisions(delivery)

    class Noting(Taking):
        def __init__(self, number: int) -> None:
            super().__init__(lambda: takes or number == 1)
            self._number = number

        def take(self, delivery: Delivery) -> bool:
            taken = super().take(delivery)
            if taken:
                told[self._number] += revisions(delivery)
            return taken

    async with AsyncExitStack() as stack:
        tasks = []
        try:
            for number in range(watchers):
                watcher = await stack.enter_async_context(feed.watch(view, None))
                watcher.deliver_to(Noting(number))
                tasks.append(asyncio.create_task(follow(number, watcher)))
            seen = []
            for is_taking, keys in steps:
                takes = is_taking
                for key in keys:
                    receipt = await board.put(f"public/{key}", 1)
                    if key != "x":
                        seen.append(receipt.revision)
                await anyio.lowlevel.checkpoint()
            await wait_until(lambda: _true(all(found[-1:] == seen[-1:] for found in told)))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert told == [seen] * watchers


async def test_a_token_that_has_ended_gets_nothing_at_once(
    parts: tuple[Service, HookedStore],
) -> None:
    """The iteration raises the reason, before the first delivery after the end."""
    feed, board = await opened(parts[0])
    taking, is_over = Taking(), False

    def check() -> None:
        if is_over:
            raise Unauthenticated(reason="the token was revoked")

    async with feed.watch(PUBLIC, None) as watcher:
        permitted = Permitted(watcher, check)
        permitted.deliver_to(taking)
        waiting = asyncio.ensure_future(anext(permitted))
        await is_asleep(feed)
        await board.increment("public/n")
        await taken(taking, 1)
        is_over = True
        await board.increment("public/n")
        with pytest.raises(Unauthenticated):
            await asyncio.wait_for(waiting, PATIENCE_S)
    assert list(map(revisions, taking.taken)) == [[1]]
    assert taking.refused == 0


async def test_what_a_redaction_takes_away_is_not_delivered_at_once(
    parts: tuple[Service, HookedStore],
) -> None:
    """A page of the log may have a value and, after it, its redaction: then the ring drops the
    value, and the watcher is woken to read the log instead, as it is now."""
    feed, board = await opened(parts[0])
    taking = Taking()
    await board.put("public/secret", "hunter2")
    await board.put("public/other", 1)
    async with feed.watch(PUBLIC, Position("", 0)) as early, feed.watch(PUBLIC, None) as watcher:
        secret, other = (await anext(early)).revisions
        watcher.deliver_to(taking)
        waiting = asyncio.ensure_future(anext(watcher))
        await is_asleep(feed)
        record = Change(ChangeKind.PUT, f"{RECORDS}/r", b"\xc0")
        redaction = replace(
            other, revision=4, id=CommitId(SYSTEM_AGENT, 0, "", 0), changes=(record,), note=NOTE
        )
        feed._append((replace(secret, revision=3), redaction))
        assert not [each for each in feed._sleeping.values() if each.woken]
        assert taking.taken == []
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_watch_that_was_cancelled_gets_nothing_more(
    parts: tuple[Service, HookedStore],
) -> None:
    """Not even before its task has noticed: an `unwatch` may have been answered."""
    feed, board = await opened(parts[0])
    taking = Taking()
    await board.put("public/a", 1)
    async with feed.watch(PUBLIC, Position("", 0)) as early, feed.watch(PUBLIC, None) as watcher:
        entry = (await anext(early)).revisions[0]
        watcher.deliver_to(taking)
        waiting = asyncio.ensure_future(anext(watcher))
        await is_asleep(feed)
        waiting.cancel()
        feed._append((replace(entry, revision=2),))
        assert (taking.taken, taking.refused) == ([], 0)
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("over", [0, 1])
async def test_more_than_one_delivery_comes_out_of_the_iteration(
    parts: tuple[Service, HookedStore], over: int
) -> None:
    """At the edge: as many revisions as one delivery holds, and one more."""
    feed, board = await opened(parts[0])
    taking = Taking()
    await board.put("public/a", 1)
    async with feed.watch(PUBLIC, Position("", 0)) as early, feed.watch(PUBLIC, None) as watcher:
        entry = (await anext(early)).revisions[0]
        watcher.deliver_to(taking)
        waiting = asyncio.ensure_future(anext(watcher))
        await is_asleep(feed)
        last = 1 + MOST + over
        feed._append(tuple(replace(entry, revision=number) for number in range(2, last + 1)))
        if over:
            delivery = await asyncio.wait_for(waiting, PATIENCE_S)
            assert taking.taken == []
        else:
            [delivery] = taking.taken
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert len(delivery.revisions) == MOST
