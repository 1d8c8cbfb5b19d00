"""The sweeper ends what is over, once, and leaves the rest alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.leases.presence import presence_key
from blackboard.core import access
from blackboard.core.commit import Grant, Reading
from blackboard.core.path import identity_key
from blackboard.errors import Unavailable
from blackboard.limits import Limits
from blackboard.server.boards import Boards
from blackboard.server.host import Host
from blackboard.server.requests import RequestHandler
from blackboard.server.sweeper import Sweeper
from tests.conformance.team import take
from tests.conformance.workers import queued
from tests.unit.server.hooked import HookedStore
from tests.waiting import wait_until

HOUR_MS = 3_600_000
LEAST_MS = 100


@pytest.fixture
async def store(tmp_path: Path) -> HookedStore:
    """The engine."""
    return await HookedStore.at(tmp_path, "memory")


@pytest.fixture
async def boards(store: HookedStore, limits: Limits) -> AsyncIterator[Boards]:
    """What a service has, without a sweeper of its own."""
    boards = Boards(Host(store, limits=limits))
    await boards.host.look()
    yield boards
    await boards.aclose()


@pytest.fixture
async def board(boards: Boards) -> Board:
    """A board as its operator."""
    return Client(RequestHandler(boards, access.operator())).board("main")


@pytest.fixture
def sweeper(boards: Boards) -> Sweeper:
    """The sweeper of this process."""
    return Sweeper(boards, "ab")


async def until_due(store: HookedStore, count: int) -> None:
    """Wait until that many leases have run out."""

    async def are_due() -> bool:
        return len((await store.leases("main", due=True)).leases) == count

    await wait_until(are_due)


async def test_two_sweepers_end_a_lease_once(
    boards: Boards, store: HookedStore, board: Board, sweeper: Sweeper
) -> None:
    """The one that came late is refused, counts it, and changes nothing."""
    late = Sweeper(boards, "cd")
    await board.commit([Grant("public/a", "dead", LEAST_MS), Grant("public/b", "ada", HOUR_MS)])
    await until_due(store, 1)

    async def sweep_in_between() -> None:
        store.hooks.clear()
        await late.sweep()

    store.hook("after leases", sweep_in_between)
    head = await board.head()
    await sweeper.sweep()
    assert (late.expired, late.refused, sweeper.expired, sweeper.refused) == (1, 0, 0, 1)
    assert (await board.head()).revision == head.revision + 1
    assert [lease.key for lease in await board.leases()] == ["public/b"]


async def test_a_board_on_which_nothing_is_over_is_not_written_to(
    board: Board, sweeper: Sweeper
) -> None:
    await board.commit([Grant("public/a", "ada", HOUR_MS)])
    head = await board.head()
    await sweeper.sweep()
    assert (await board.head()).revision == head.revision
    assert (sweeper.expired, sweeper.refused) == (0, 0)


async def test_an_expired_lease_goes_to_the_waiter(
    store: HookedStore, board: Board, sweeper: Sweeper
) -> None:
    asked = await board.commit(  # at one moment: a request after it is granted at once
        [Grant("public/a", "dead", LEAST_MS), Grant("public/a", "next", HOUR_MS, wait=True)]
    )
    await until_due(store, 1)
    async with board.watch("public/a", after=asked.revision) as watch:
        await sweeper.sweep()
        (ended,) = await take(watch, 1)
    assert (ended.author, ended.note) == ("~system", "expired")
    (lease,) = await board.leases()
    assert (lease.holder, lease.fence) == ("next", ended.revision)
    assert await queued(board, "public/a", 0) == []


async def test_a_presence_ends_in_the_commit_that_ends_its_lease(
    store: HookedStore, board: Board, sweeper: Sweeper
) -> None:
    """And no other entry does, whatever the lease is called."""
    for key in (presence_key("ada"), presence_key("bob"), "public/~identity"):
        await board.put(key, 1)
    keys = [identity_key("ada"), "private/bob/deep/~identity", "public/bob/~identity"]
    await board.commit([Grant(key, "dead", LEAST_MS) for key in keys])
    await until_due(store, 3)
    head = await board.head()
    await sweeper.sweep()
    log = await board.log(after=head.revision)
    changed = {tuple(change.key for change in revised.changes) for revised in log}
    assert changed == {(keys[0], presence_key("ada")), (keys[1],), (keys[2],)}


async def test_a_board_whose_engine_hangs_holds_up_no_other(
    store: HookedStore, boards: Boards, board: Board, sweeper: Sweeper
) -> None:
    """One that hung last time is swept apart from the others, until it answers."""
    hangs, goes_on, leases = asyncio.Event(), asyncio.Event(), store.leases
    slow = Client(RequestHandler(boards, access.operator())).board("slow")
    for each in (slow, board):
        await each.put("public/x", 1, ttl_ms=1)
        # Last: when it is due, so is the entry.
        await each.commit([Grant("public/a", "dead", LEAST_MS)])
    await until_due(store, 1)

    async def hang(name: str, *, due: bool = False) -> Reading:
        if name == "slow":
            hangs.set()
            await goes_on.wait()
            raise Unavailable("engine", "no answer")
        return await leases(name, due=due)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "leases", hang)
        first = asyncio.create_task(sweeper.sweep())
        await hangs.wait()
        await wait_until(lambda: _is_so(sweeper.expired == 2))
        goes_on.set()
        await first
        goes_on.clear()
        again = asyncio.create_task(sweeper.sweep_failed())
        await sweeper.sweep()
        goes_on.set()
        await again
    await sweeper.sweep_failed()
    assert sweeper.expired == 4


async def _is_so(condition: bool) -> bool:
    return condition


@pytest.mark.limits(sweep_entries_max=2)
async def test_a_sweep_ends_only_so_many_leases(
    store: HookedStore, board: Board, sweeper: Sweeper
) -> None:
    """SWEEP_ENTRIES_MAX of a board; the next sweep goes on."""
    await board.commit([Grant(f"public/{name}", "dead", LEAST_MS) for name in "abc"])
    await until_due(store, 3)
    await sweeper.sweep()
    assert sweeper.expired == 2
    await sweeper.sweep()
    assert sweeper.expired == 3


async def test_on_a_frozen_board_everything_stays(
    store: HookedStore, boards: Boards, board: Board, sweeper: Sweeper
) -> None:
    """Until the thaw: what is over then goes as ever."""
    link = RequestHandler(boards, access.operator())
    await board.put("public/note", 1, ttl_ms=1)
    await board.commit([Grant("public/a", "dead", LEAST_MS)])
    freeze = await link.freeze("main", "look first")
    await until_due(store, 1)
    await sweeper.sweep()
    assert (sweeper.expired, sweeper.refused) == (0, 0)
    assert (await board.head()).revision == freeze.revision
    await link.thaw("main", "")
    await sweeper.sweep()
    assert (sweeper.expired, await board.get("public/note"), await board.leases()) == (2, None, ())


async def test_a_freeze_goes_before_a_sweep_that_is_under_way(
    store: HookedStore, boards: Boards, board: Board, sweeper: Sweeper
) -> None:
    link = RequestHandler(boards, access.operator())
    await board.commit([Grant("public/a", "dead", LEAST_MS)])
    await until_due(store, 1)

    async def freeze_in_between() -> None:
        store.hooks.clear()
        await link.freeze("main", "")

    store.hook("before commit", freeze_in_between)
    await sweeper.sweep()
    assert (sweeper.expired, sweeper.refused) == (0, 1)
    assert [lease.key for lease in await board.leases()] == ["public/a"]
