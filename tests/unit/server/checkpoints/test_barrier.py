"""A barrier when something comes between."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.core.commit import Delete, Put
from blackboard.core.path import barrier_key, cut_key
from blackboard.limits import BARRIER_GRACE_MS
from blackboard.server.checkpoints.barrier import Barrier
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.conformance.team import PATIENCE_S
from tests.unit.server.hooked import HookedStore, client_of, service_over

BARRIER_MS = 300
REQUEST = "a" * 16


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Service, HookedStore]]:
    """A service over a hooked engine."""
    async with service_over(tmp_path) as opened:
        yield opened


@pytest.fixture
def ada(opened: tuple[Service, HookedStore]) -> Board:
    """The board as ada."""
    return client_of(opened[0], "ada").board("main")


async def test_a_gate_that_somebody_else_removed_was_not_answered(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """Such as the sweeper, when its time was over: nobody brought anything."""
    main = await opened[0].boards.use("main")
    async with ada.attach(), Barrier(main, REQUEST, BARRIER_MS) as barrier:
        await main.commit_as_system([Delete(barrier_key("ada"))])
        with anyio.fail_after(PATIENCE_S):
            answers = await barrier.answers()
    assert (answers.delivered, answers.not_fresh) == ((), ("ada",))


async def test_a_service_that_dies_leaves_gates_that_end_by_themselves(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    barrier = Barrier(await opened[0].boards.use("main"), REQUEST, BARRIER_MS)
    async with ada.attach():
        await barrier.__aenter__()  # and never left
        operator = client_of(opened[0]).board("main")
        gate = await operator.entry(barrier_key("ada"))
        assert gate is not None
        assert gate.expires_at_ms == gate.time_ms + BARRIER_MS + BARRIER_GRACE_MS
        await barrier.__aexit__(None, None, None)


async def test_what_a_later_barrier_asked_is_left_alone(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """One that outlived its time, in a process that was frozen, lifts nothing of the next one."""
    main = await opened[0].boards.use("main")
    operator = client_of(opened[0]).board("main")
    keys = (barrier_key("ada"), cut_key("ada"))
    async with ada.attach():
        async with Barrier(main, REQUEST, BARRIER_MS):
            later = [Put(key, encode_value("a later one"), 60_000) for key in keys]
            await main.commit_as_system(later)
        assert [await operator.get(key) for key in keys] == ["a later one"] * 2


async def test_one_barrier_stands_at_a_time(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """Another one waits for its turn, and fails when its own time is over before."""
    main = await opened[0].boards.use("main")
    operator = client_of(opened[0]).board("main")
    async with ada.attach():
        async with Barrier(main, REQUEST, 60_000):
            async with Barrier(main, "b" * 16, BARRIER_MS) as other:
                answers = await other.answers()
            assert (answers.delivered, answers.not_fresh) == ((), ("ada",))
            assert await operator.entry(cut_key("ada")) is not None
            third = Barrier(main, "c" * 16, 60_000)
            waiting = asyncio.create_task(third.__aenter__())
            await ada.commit([Delete(barrier_key("ada"))])
            assert not waiting.done()
        with anyio.fail_after(PATIENCE_S):
            await waiting
            await ada.commit([Delete(barrier_key("ada"))])
            assert (await third.answers()).delivered == ("ada",)
            await third.__aexit__(None, None, None)
    assert (await operator.list("system/barriers/**")).entries == ()


async def test_the_same_request_goes_on_where_its_service_died(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """It need not wait for what it asked itself."""
    main = await opened[0].boards.use("main")
    async with ada.attach():
        await Barrier(main, REQUEST, 60_000).__aenter__()  # and never left
        async with Barrier(main, REQUEST, 60_000) as again:
            await ada.commit([Delete(barrier_key("ada"))])
            with anyio.fail_after(PATIENCE_S):
                assert (await again.answers()).delivered == ("ada",)
        await ada.put("public/a", 1)


async def test_a_cancelled_barrier_removes_its_gates(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    operator = client_of(opened[0]).board("main")
    async with ada.attach():
        async with operator.watch("system/barriers/*") as watch:
            taking = asyncio.create_task(operator.checkpoint("plan", barrier_ms=60_000))
            await anext(watch)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert (await operator.list("system/barriers/*")).entries == ()
        await ada.put("public/a", 1)
    assert await operator.checkpoints() == ()


async def test_who_only_holds_a_lock_is_not_asked(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    async with (
        ada.lock("public/plan"),
        Barrier(await opened[0].boards.use("main"), REQUEST, BARRIER_MS) as barrier,
    ):
        answers = await barrier.answers()
    assert (answers.delivered, answers.not_fresh, answers.left) == ((), (), ())


async def test_an_agent_that_left_before_it_was_asked_is_not_waited_for(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    """It was attached when the barrier looked for agents."""
    service, store = opened
    main = await service.boards.use("main")
    async with contextlib.AsyncExitStack() as attached:
        await attached.enter_async_context(ada.attach())

        async def leaves() -> None:
            store.hooks.clear()
            await attached.aclose()

        store.hook("after leases", leaves)
        async with Barrier(main, REQUEST, 60_000) as barrier:
            with anyio.fail_after(PATIENCE_S):
                answers = await barrier.answers()
    assert (answers.left, answers.not_fresh) == (("ada",), ())
