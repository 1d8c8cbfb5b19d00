"""Locks when the service is slow, away, or another one, and cancellation at every point."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.views import Change, RevisionEvent
from blackboard.core import access
from blackboard.core.access import AccessGrant as AccessGrant, Principal, Right
from blackboard.core.checkpoints import Moment
from blackboard.core.commit import Grant, Lease, Reading, Release, Waiter
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    LeaseHeld,
    LeaseLost,
    LocalProtocolError,
    StaleEpoch,
    StepSuperseded,
    Unavailable,
)
from blackboard.limits import LIST_ENTRIES_MAX, Limits
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.units import Key
from tests.conformance.team import PATIENCE_S
from tests.conformance.workers import Block, apart, finished, lease_of, queued
from tests.unit.server.hooked import HookedStore, client_of, service_over
from tests.waiting import let_pass

A, B = "public/a", "public/b"
HOUR_MS = 3_600_000
SHORT_MS = 300


eager = pytest.mark.limits(renewals_per_ttl=36_000)
"""Leases and tickets of an hour are prolonged at once and often: what a test waits for comes soon,
and nothing runs out however long the test takes."""


class Gate:
    """A hook that holds up callers while it is closed."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()

    async def __call__(self) -> None:
        """Wait here."""
        self.reached.set()
        await self._open.wait()

    def open(self) -> None:
        """Let everybody through."""
        self._open.set()


class Counting:
    """A hook that holds up the first for longer than its lease lasts, and counts."""

    def __init__(self) -> None:
        self.third = asyncio.Event()
        self._count = 0

    async def __call__(self) -> None:
        """One more."""
        self._count += 1
        if self._count == 1:
            await let_pass(1.5 * SHORT_MS / 1000)
        elif self._count == 3:
            self.third.set()


@pytest.fixture
async def opened(tmp_path: Path, limits: Limits) -> AsyncIterator[tuple[Service, HookedStore]]:
    """A service over a hooked engine."""
    async with service_over(tmp_path, limits) as opened:
        yield opened


@pytest.fixture
def store(opened: tuple[Service, HookedStore]) -> HookedStore:
    """The engine."""
    return opened[1]


@pytest.fixture
async def ada(opened: tuple[Service, HookedStore]) -> Board:
    """The board as ada, who has worked on it before."""
    board = client_of(opened[0], "ada").board("main")
    await board.put("public/begun", 1)
    return board


def failing(error: BlackboardError) -> Callable[[], "asyncio.Future[None]"]:
    """A hook that fails."""

    async def fail() -> None:
        raise error

    return fail  # type: ignore[return-value]


async def cancel_at(block: Block[Any], gate: Gate) -> None:
    """Cancel a block that is held up at the gate; it ends only after the gate was opened."""
    with anyio.fail_after(60):
        await gate.reached.wait()
    block.task.cancel()
    await asyncio.wait([block.task], timeout=0)
    assert not block.task.done()
    gate.open()
    with anyio.fail_after(60):
        await asyncio.wait([block.task])
    assert block.task.cancelled()


# --- cancellation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before commit", "after commit"])
@pytest.mark.parametrize("others", [0, 1])
async def test_cancelled_while_it_asks(
    store: HookedStore, ada: Board, place: str, others: int
) -> None:
    """Whether it is granted or queued, whether the engine has heard of it or not."""
    if others:
        await ada.commit([Grant(B, "ada~other", HOUR_MS)])
    gate = Gate()
    store.hook(place, gate)
    await cancel_at(Block(ada.lock(A, B)), gate)
    left = [(lease.holder, lease.waiters) for lease in await ada.leases()]
    assert left == [("ada~other", ())] * others


async def test_cancelled_before_it_asks(store: HookedStore, ada: Board) -> None:
    head = await ada.head()
    block = Block(ada.lock(A))
    block.task.cancel()
    with anyio.fail_after(60):
        await asyncio.wait([block.task])
    assert block.task.cancelled()
    assert (await ada.head()).revision == head.revision


async def test_cancelled_while_it_waits(ada: Board) -> None:
    await ada.commit([Grant(A, "ada~other", HOUR_MS)])
    block = Block(ada.lock(A, B))
    await queued(ada, A, 1)
    await block.cancel()
    (lease,) = await ada.leases()
    assert (lease.holder, lease.waiters) == ("ada~other", ())


@eager
@pytest.mark.parametrize("place", ["before commit", "after commit"])
async def test_cancelled_while_its_ticket_is_prolonged(
    store: HookedStore, ada: Board, place: str
) -> None:
    await ada.commit([Grant(A, "ada~other", HOUR_MS)])
    block = Block(ada.lock(A, B, ttl_ms=HOUR_MS))
    await queued(ada, A, 1)
    gate = Gate()
    store.hook(place, gate)
    await cancel_at(block, gate)
    (lease,) = await ada.leases()
    assert (lease.holder, lease.waiters) == ("ada~other", ())


async def test_cancelled_when_it_was_granted_but_has_not_heard_of_it(
    store: HookedStore, ada: Board
) -> None:
    granted = await ada.commit([Grant(A, "ada~other", HOUR_MS)])
    block = Block(ada.lock(A))
    await queued(ada, A, 1)
    gate = Gate()
    store.hook("after log", gate)
    await ada.commit([Release(A, "ada~other", granted.revision)])
    assert (await lease_of(ada, A)).holder.startswith("ada~")
    await gate.reached.wait()
    await block.cancel()
    assert not block.inside.is_set()
    gate.open()
    assert await ada.leases() == ()


@pytest.mark.parametrize("place", ["before commit", "after commit"])
async def test_cancelled_while_it_gives_back(store: HookedStore, ada: Board, place: str) -> None:
    block = Block(ada.lock(A, B))
    await block.entered()
    gate = Gate()
    store.hook(place, gate)
    block.done.set()
    await cancel_at(block, gate)
    assert await ada.leases() == ()


async def test_cancelled_twice_while_it_gives_back(store: HookedStore, ada: Board) -> None:
    block = Block(ada.lock(A))
    await block.entered()
    gate = Gate()
    store.hook("before commit", gate)
    block.task.cancel()
    await cancel_at(block, gate)
    assert await ada.leases() == ()


async def test_a_cancelled_scope_of_anyio_gives_back_too(ada: Board) -> None:
    with anyio.CancelScope() as scope:
        async with ada.lock(A):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert await ada.leases() == ()


@pytest.mark.limits(finish_timeout_ms=50)
async def test_a_cancellation_waits_only_so_long_for_a_service_that_hangs(
    store: HookedStore, ada: Board
) -> None:
    """What it may have got runs out by itself."""
    gate = Gate()
    store.hook("before commit", gate)
    block = Block(ada.lock(A, ttl_ms=SHORT_MS))
    await gate.reached.wait()
    await block.cancel()
    gate.open()


@pytest.mark.limits(finish_timeout_ms=2_000)
async def test_what_was_asked_for_without_an_answer_is_given_back_too(
    store: HookedStore, ada: Board
) -> None:
    """It may have been granted: what nobody waits for any more is not known to have failed."""
    gate = Gate()
    store.hook("before commit", gate)
    block = Block(ada.lock(A))
    await gate.reached.wait()
    gate.reached.clear()
    block.task.cancel()
    await gate.reached.wait()  # by what gives it back, as nothing waits for the grant any more
    gate.open()
    await asyncio.wait([block.task])
    assert block.task.cancelled()
    assert await ada.leases() == ()


# --- a service that is slow or away ---------------------------------------------------------------


@pytest.mark.limits(finish_timeout_ms=50)
async def test_a_lock_that_cannot_be_renewed_in_time_is_lost(
    store: HookedStore, ada: Board
) -> None:
    """By the holder's own clock: nobody tells it."""
    block = Block(ada.lock(A, ttl_ms=SHORT_MS))

    async def enter_and_go_on() -> None:
        await block.entered()
        store.hook("before commit", failing(Unavailable("engine", "away")))
        await finished(block.task)

    with pytest.raises(LeaseLost):  # on a slow machine before the engine is away
        await enter_and_go_on()
    store.hooks.clear()


async def test_a_lock_whose_grant_was_long_under_way_is_lost_at_once(
    store: HookedStore, ada: Board
) -> None:
    """Its time is over when the block begins; that it can be renewed now does not matter."""
    commits = Counting()
    store.hook("after commit", commits)
    with pytest.raises(LeaseLost):
        async with ada.lock(A, ttl_ms=SHORT_MS):
            await commits.third.wait()  # if that is a renewal, no waiter learned of it
    store.hooks.clear()


@pytest.mark.limits(finish_timeout_ms=50)
async def test_patience_ends_with_a_service_that_does_not_answer(
    store: HookedStore, ada: Board
) -> None:
    gate = Gate()
    store.hook("before commit", gate)
    with pytest.raises(Unavailable, match=A):
        async with ada.lock(A, timeout_ms=50):
            pass
    gate.open()


@pytest.mark.limits(request_timeout_ms=50)
async def test_a_lock_that_cannot_be_given_back_is_left_to_run_out(
    store: HookedStore,
    ada: Board,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The work is done: its commits were accepted, and the block ends well."""
    with caplog.at_level(logging.WARNING):
        async with ada.lock(A, ttl_ms=HOUR_MS):
            store.hook("before commit", failing(Unavailable("engine", "away")))
    assert "lock on public/a is left to expire" in caplog.text
    store.hooks.clear()
    assert (await lease_of(ada, A)).holder.startswith("ada~")


async def test_a_restore_that_ends_a_lock_warns_nobody(
    store: HookedStore, ada: Board, caplog: pytest.LogCaptureFixture
) -> None:
    """It has to end the locks of before: there is nothing to look into."""
    with caplog.at_level(logging.DEBUG), pytest.raises(LeaseLost, match="restore"):
        async with ada.lock(A, ttl_ms=HOUR_MS):
            store.hook("before commit", failing(StaleEpoch("1", "2", 2, "restore", 1, 9)))
    found = [r for r in caplog.records if "left to expire" in r.message]
    assert [record.levelno for record in found] == [logging.DEBUG]


async def test_a_refused_lock_leaves_nothing_to_give_back(store: HookedStore, ada: Board) -> None:
    store.hook("before commit", failing(StepSuperseded("ada", 1, 2)))
    with pytest.raises(StepSuperseded):
        async with ada.lock(A):
            pass


async def test_a_restored_board_has_no_leases(store: HookedStore, ada: Board) -> None:
    """The epoch says so: what the block did is of a history that is no more."""
    block = Block(ada.lock(A, ttl_ms=HOUR_MS))
    await block.entered()
    restored = StaleEpoch("mine", "another", 2, "restore", 0, 9)
    store.hook("before commit", failing(restored))
    with pytest.raises(LeaseLost, match="restore"):
        await block.end()
    store.hooks.clear()


class BusyLink(RequestHandler):
    """A way on which something happens just before the next reading."""

    meanwhile: Callable[[], Awaitable[object]] | None = None
    afterwards: Callable[[], Awaitable[object]] | None = None

    async def read(self, board: str, keys: Sequence[Key], *, at: Moment | None = None) -> Reading:
        """As `Link.read`."""
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await apart(_done(meanwhile))
        return await super().read(board, keys, at=at)

    async def leases(
        self, board: str, pattern: str, *, after: Key | None = None, limit: int = LIST_ENTRIES_MAX
    ) -> Reading:
        """As `Link.leases`; then something happens."""
        found = await super().leases(board, pattern, after=after, limit=limit)
        if self.afterwards is not None:
            afterwards, self.afterwards = self.afterwards, None
            await apart(_done(afterwards))
        return found


async def _done(work: Callable[[], Awaitable[object]]) -> None:
    await work()


async def test_a_grant_between_the_asking_and_the_watch_is_not_missed(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """The watch begins at the revision of the asking commit, wherever the head is by then."""
    granted = await ada.commit([Grant(A, "ada~other", HOUR_MS)])
    link = BusyLink(opened[0].boards, access.agent("ada"))
    link.meanwhile = lambda: ada.commit([Release(A, "ada~other", granted.revision)])
    block = Block(Board(link, "main").lock(A, ttl_ms=HOUR_MS))
    held = await block.entered()
    assert link.meanwhile is None
    assert [fence.fence for fence in held.fences] == [granted.revision + 2]
    await block.end()


@pytest.mark.parametrize("is_free", [True, False])
async def test_a_lock_is_waited_for_where_the_log_does_not_reach_back(
    opened: tuple[Service, HookedStore], ada: Board, *, is_free: bool
) -> None:
    """What happened meanwhile is read; a waiter that was cut off for long keeps its place."""
    granted = await ada.commit([Grant(A, "ada~other", HOUR_MS)])
    release = [Release(A, "ada~other", granted.revision)]
    is_cut = asyncio.Event()

    async def meanwhile() -> None:
        if is_free:
            await ada.commit(release)
        last = (await ada.put("public/b", 1)).revision
        await opened[1].compact("main", (await ada.put("public/b", 2)).revision)
        assert (await ada.head()).oldest > last
        is_cut.set()

    link = BusyLink(opened[0].boards, access.agent("ada"))
    link.meanwhile = meanwhile
    block = Block(Board(link, "main").lock(A, ttl_ms=HOUR_MS))
    with anyio.fail_after(PATIENCE_S):
        await is_cut.wait()
    if not is_free:
        await ada.commit(release)
    await block.entered()
    await block.end()
    assert await ada.leases() == ()


@pytest.mark.parametrize("is_free", [True, False])
async def test_a_lease_becomes_free_where_the_log_does_not_reach_back(
    opened: tuple[Service, HookedStore], ada: Board, *, is_free: bool
) -> None:
    """It is read again; while it is held, the wait goes on."""
    granted = await ada.commit([Grant(A, "ada~other", HOUR_MS)])
    release = [Release(A, "ada~other", granted.revision)]
    is_cut = asyncio.Event()

    async def afterwards() -> None:
        if is_free:
            await ada.commit(release)
        await ada.put("public/b", 1)
        await opened[1].compact("main", (await ada.put("public/b", 2)).revision)
        is_cut.set()

    link = BusyLink(opened[0].boards, access.agent("ada"))
    link.afterwards = afterwards
    waiting = apart(Board(link, "main").wait_free(A))
    with anyio.fail_after(PATIENCE_S):
        await is_cut.wait()
    if not is_free:
        await ada.commit(release)
    assert await finished(waiting) > granted.revision


async def test_news_from_before_a_grant_do_not_take_it_back(ada: Board) -> None:
    """A refusal has reported the grant already; the watch still brings what came before it."""
    async with ada.lock(A, ttl_ms=HOUR_MS) as held:
        [fence] = held.fences
        for waiters in ((), (Waiter(held.holder, HOUR_MS, HOUR_MS),)):
            before = Lease(A, "bob~other", fence.fence - 1, HOUR_MS, waiters)
            change = Change("grant", A, lease=before)
            held._notice(RevisionEvent(fence.fence - 1, 0, "bob", (change,)))
            assert held.fences == (fence,)


async def test_who_was_put_out_of_a_queue_asks_again(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """As after a pause that was longer than the ticket; what it had got meanwhile is given back."""
    operator = client_of(opened[0]).board("main")
    granted = await ada.commit([Grant(B, "ada~other", HOUR_MS)])
    block = Block(ada.lock(A, B))
    (holder,) = await queued(ada, B, 1)
    third = Block(ada.lock(A, B))
    await queued(ada, B, 2)
    await operator.commit([Release(B, holder, 0)])
    while (await lease_of(ada, A)).holder == holder:
        await queued(ada, B, 2)
    await ada.commit([Release(B, "ada~other", granted.revision)])
    await third.entered()
    assert not block.inside.is_set()
    await third.end()
    await block.entered()
    await block.end()
    assert await ada.leases() == ()


@pytest.mark.limits(renewals_per_ttl=360_000)
async def test_who_heard_late_of_the_grant_renews_before_the_block(
    store: HookedStore, ada: Board
) -> None:
    """So that the block does not begin with a lease that is nearly over."""
    gate = Gate()

    async def is_fresh() -> bool:
        async with ada.lock(A, ttl_ms=HOUR_MS) as held:
            store.hook("before commit", gate)  # from here on, nothing renews it
            is_same = held.until_ms == (await lease_of(ada, A)).until_ms
            gate.open()
            return is_same

    granted = await ada.commit([Grant(A, "ada~other", HOUR_MS)])
    holding = apart(is_fresh())
    await queued(ada, A, 1)
    await ada.commit([Release(A, "ada~other", granted.revision)])
    assert await finished(holding)


async def test_who_may_lock_but_not_read_is_refused_and_does_not_wait_for_ever(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    await ada.commit([Grant(A, "ada~other", HOUR_MS)])
    blind = Principal("blind", (AccessGrant("public/**", frozenset({Right.LOCK})),))
    board = Client(opened[0].link(blind)).board("main")
    with pytest.raises(AccessDenied):
        await Block(board.lock(A)).entered()
    assert (await lease_of(ada, A)).waiters == ()


# --- locks within locks ---------------------------------------------------------------------------


@eager
async def test_a_lost_outer_lock_ends_the_waiting_for_an_inner_one(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    await ada.commit([Grant(B, "ada~other", HOUR_MS)])

    async def nested() -> None:
        async with ada.lock(A, ttl_ms=HOUR_MS), ada.lock(B):
            pytest.fail("nobody gave it")

    task = apart(nested())
    await queued(ada, B, 1)
    lease = await lease_of(ada, A)
    operator = Client(opened[0].link(access.operator())).board("main")
    await operator.commit([Release(A, lease.holder, lease.fence)])
    with pytest.raises(LeaseLost) as lost:
        await finished(task)
    assert lost.value.key == A
    assert (await lease_of(ada, B)).waiters == ()


async def test_a_lost_outer_lock_does_not_keep_the_inner_one_from_being_given_back(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    async def nested() -> None:
        async with ada.lock(A, ttl_ms=HOUR_MS), ada.lock(B):
            lease = await lease_of(ada, A)
            operator = client_of(opened[0]).board("main")
            await apart(operator.commit([Release(A, lease.holder, lease.fence)]))

    with pytest.raises(LeaseLost) as lost:
        await nested()
    assert lost.value.key == A
    assert await ada.leases() == ()


async def test_a_held_lock_is_refused_before_anything_is_sent(ada: Board) -> None:
    async with ada.lock(A):
        head = await ada.head()
        with pytest.raises(LocalProtocolError):
            async with ada.lock(B, A):
                pass
        with pytest.raises(LeaseHeld):
            await ada.commit([Grant(A, "ada~other", HOUR_MS)])
        assert (await ada.head()).revision == head.revision
