"""Attaching when something comes between."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.leases import presence
from blackboard.client.leases.lock import Lock
from blackboard.client.leases.presence import entries_that_end_with, presence_key
from blackboard.client.link import Stream, WatchRequest
from blackboard.core import access
from blackboard.core.commit import Commit, Delete, Grant, Lease, Op, Put, Receipt, Release, Renew
from blackboard.core.path import barrier_key, cut_key, identity_key
from blackboard.errors import (
    Fenced,
    LeaseHeld,
    LeaseLost,
    SnapshotFirst,
    StepSuperseded,
    Unavailable,
)
from blackboard.limits import Limits
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.conformance.workers import Block, apart, lease_of
from tests.unit.server.hooked import HookedStore, client_of, service_over

HOUR_MS = 3_600_000
ADA = identity_key("ada")


@pytest.fixture
async def opened(tmp_path: Path, limits: Limits) -> AsyncIterator[tuple[Service, HookedStore]]:
    """A service over a hooked engine."""
    async with service_over(tmp_path, limits) as opened:
        yield opened


@pytest.fixture
async def ada(opened: tuple[Service, HookedStore]) -> Board:
    """The board as ada, who has worked on it before."""
    board = client_of(opened[0], "ada").board("main")
    await board.put("public/begun", 1)
    return board


class SlowReport(RequestHandler):
    """A way on which the first report of an agent is carried out, but not answered before a renewal
    of its lease was."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.boards, access.agent("ada"))
        self._is_renewed = asyncio.Event()

    async def commit(self, board: str, commit: Commit) -> Receipt:
        """As `Link.commit`."""
        receipt = await super().commit(board, commit)
        if any(isinstance(op, Renew) for op in commit.ops):
            self._is_renewed.set()
        elif any(isinstance(op, Put) for op in commit.ops):
            await self._is_renewed.wait()
        return receipt


@pytest.mark.limits(renewals_per_ttl=36_000)  # a lease of an hour is renewed at once
async def test_a_renewal_while_it_attaches_writes_its_presence_no_second_time(
    opened: tuple[Service, HookedStore],
) -> None:
    board = Board(SlowReport(opened[0]), "main")
    async with board.attach(ttl_ms=HOUR_MS):
        kinds = [[change.kind for change in one.changes] for one in await board.log()]
    assert kinds == [["grant"], ["put"]]


async def test_a_renewal_during_a_barrier_keeps_the_lease_whatever_is_committed(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """The presence would tell of a step that is newer each time: until the cut it tells nothing."""
    until_cut = Put(cut_key("ada"), encode_value(1))
    async with ada.attach(ttl_ms=HOUR_MS) as me:
        await (await opened[0].boards.use("main")).commit_as_system([until_cut])

        async def step() -> None:
            await ada.commit([Put("public/a", encode_value(1)), Delete(barrier_key("ada"))])

        renew = Lock._renew

        async def interrupted(lock: Lock) -> None:
            try:
                await renew(lock)
            except SnapshotFirst:
                await step()
                raise

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lock, "_renew", interrupted)
            await step()
            await me._renew()
        await (await opened[0].boards.use("main")).commit_as_system([Delete(cut_key("ada"))])
        await me._renew()
        [present] = await ada.agents()
        assert present.step == me.committed


class BreakingWatches(RequestHandler):
    """A way on which the first watches end because the service is out of reach."""

    breaks = 2

    @asynccontextmanager
    async def watch(self, board: str, request: WatchRequest) -> AsyncIterator[Stream]:
        """As `Transport.watch`."""
        if self.breaks:
            self.breaks -= 1
            raise Unavailable("service", "away")
        async with super().watch(board, request) as stream:
            yield stream


@pytest.mark.limits(commit_pauses_ms=(1,))
async def test_an_idle_agent_delivers_after_the_service_was_out_of_reach(
    opened: tuple[Service, HookedStore],
) -> None:
    board = Board(BreakingWatches(opened[0].boards, access.agent("ada")), "main")
    operator = client_of(opened[0]).board("main")

    async def deliver() -> Sequence[Op]:
        return [Put("public/a", encode_value("delivered"))]

    async with board.attach(ttl_ms=HOUR_MS, deliver=deliver):
        with anyio.fail_after(60):
            await operator.checkpoint("plan", barrier_ms=60_000)
        assert await operator.get("public/a") == "delivered"


async def test_who_was_taken_over_in_the_same_process_does_not_end_the_delivery(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """Of the one that took over: here both have the same board, and the same function."""
    operator = client_of(opened[0]).board("main")

    async def deliver() -> Sequence[Op]:
        return [Put("public/a", encode_value("delivered"))]

    first = Block(ada.attach(ttl_ms=HOUR_MS, deliver=deliver))
    await first.entered()
    second = Block(ada.attach(ttl_ms=HOUR_MS, if_taken="take_over", deliver=deliver))
    await second.entered()
    with pytest.raises(LeaseLost):
        await first.end()
    with anyio.fail_after(60):
        await operator.checkpoint("plan", barrier_ms=60_000)
    assert await operator.get("public/a") == "delivered"
    await second.end()


class Rival:
    """Takes the identity over right after each look at its holder."""

    def __init__(self, store: HookedStore, board: Board, times: int) -> None:
        self.looks = 0
        self.fence = 0
        self._board = board
        self._times = times
        store.hook("after leases", self._come_between)

    async def _come_between(self) -> None:
        self.looks += 1
        if self.looks <= self._times:
            await apart(self.take())

    async def take(self) -> None:
        """End its own lease, and take it again."""
        ends = [Release(ADA, "ada~rival", self.fence)] if self.fence else []
        grant = Grant(ADA, "ada~rival", HOUR_MS)
        self.fence = (await self._board.commit([*ends, grant])).revision


@pytest.mark.parametrize("first_free", [True, False])
@pytest.mark.limits(take_over_attempts_max=3)
async def test_taking_over_looks_again_when_somebody_came_between(
    opened: tuple[Service, HookedStore],
    ada: Board,
    first_free: bool,
) -> None:
    """TAKE_OVER_ATTEMPTS_MAX times in all."""
    rival = Rival(opened[1], ada, times=2)
    if not first_free:
        await rival.take()
    async with ada.attach(if_taken="take_over") as me:
        opened[1].hooks.clear()
        assert (await lease_of(ada, ADA)).holder == me.holder
    assert rival.looks == 3


@pytest.mark.limits(take_over_attempts_max=3)
async def test_taking_over_ends_when_it_never_succeeds(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """With the last refusal, and nothing changed."""
    rival = Rival(opened[1], ada, times=3)
    with pytest.raises((Fenced, LeaseHeld)):
        await Block(ada.attach(if_taken="take_over")).entered()
    opened[1].hooks.clear()
    assert rival.looks == 3
    assert (await lease_of(ada, ADA)).holder == "ada~rival"
    assert await ada.agents() == ()


@pytest.mark.parametrize("place", ["before commit", "after commit"])
async def test_cancelled_while_it_tells_that_it_is_there(
    opened: tuple[Service, HookedStore], ada: Board, place: str
) -> None:
    """The identity was had already: it is given back, and nobody is shown."""
    commits = 0
    reached, let = asyncio.Event(), asyncio.Event()

    async def hold_up_the_second() -> None:
        nonlocal commits
        commits += 1
        if commits == 2:
            reached.set()
            await let.wait()

    opened[1].hook(place, hold_up_the_second)
    block = Block(ada.attach())
    with anyio.fail_after(60):
        await reached.wait()
    block.task.cancel()
    await asyncio.wait([block.task], timeout=0)
    let.set()
    with anyio.fail_after(60):
        await asyncio.wait([block.task])
    assert block.task.cancelled()
    assert not block.inside.is_set()
    assert (await ada.leases(), await ada.agents()) == ((), ())


async def test_who_cannot_tell_that_it_is_there_is_not(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    commits = 0

    async def refuse_the_second() -> None:
        nonlocal commits
        commits += 1
        if commits == 2:
            raise StepSuperseded("ada", 1, 2)

    opened[1].hook("before commit", refuse_the_second)
    with pytest.raises(StepSuperseded):
        await Block(ada.attach()).entered()
    assert (await ada.leases(), await ada.agents()) == ((), ())


async def test_more_agents_than_one_read_takes_are_seen(
    opened: tuple[Service, HookedStore], ada: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are alive is asked READ_KEYS_MAX at a time."""
    monkeypatch.setattr(presence, "READ_KEYS_MAX", 2)
    told = {"since_ms": 1, "step": 0, "state": "", "note": ""}
    for name in ("ada", "bob", "cyd", "dan", "eve"):
        await client_of(opened[0], name).board("main").put(presence_key(name), told)
    operator = client_of(opened[0]).board("main")
    await operator.commit([Grant(identity_key("eve"), "eve~1", HOUR_MS)])
    seen = {agent.agent: agent.alive for agent in await operator.agents()}
    assert seen == {"ada": False, "bob": False, "cyd": False, "dan": False, "eve": True}


@pytest.mark.parametrize(
    ("key", "ends"),
    [
        (ADA, (presence_key("ada"),)),
        ("private/ada/x", ()),
        ("private/ada/x/~identity", ()),
        ("public/ada/~identity", ()),
        ("inbox/ada/~identity", ()),
    ],
)
def test_an_identity_ends_its_presence(key: str, ends: tuple[str, ...]) -> None:
    assert entries_that_end_with(Lease(key, "ada~1", 1, 1)) == ends
