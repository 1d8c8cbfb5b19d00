"""A barrier when something comes between."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.core.commit import Delete, Put
from blackboard.core.path import barrier_key
from blackboard.server.boards import commit_as_system
from blackboard.server.checkpoints.barrier import Barrier
from blackboard.server.service import Service
from blackboard.types import BARRIER_GRACE_MS
from blackboard.wire.codec import encode_value
from tests.conformance.team import PATIENCE_S
from tests.unit.server.hooked import HookedStore, client_of, service_over

BARRIER_MS = 300


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
    host = opened[0].host
    async with ada.attach(), Barrier(host, "main", BARRIER_MS) as barrier:
        await commit_as_system(host, "main", [Delete(barrier_key("ada"))])
        with anyio.fail_after(PATIENCE_S):
            answers = await barrier.answers()
    assert (answers.delivered, answers.not_fresh) == ((), ("ada",))


async def test_a_service_that_dies_leaves_gates_that_end_by_themselves(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    barrier = Barrier(opened[0].host, "main", BARRIER_MS)
    async with ada.attach():
        await barrier.__aenter__()  # and never left
        operator = client_of(opened[0]).board("main")
        gate = await operator.entry(barrier_key("ada"))
        assert gate is not None
        assert gate.expires_at_ms == gate.time_ms + BARRIER_MS + BARRIER_GRACE_MS
        await barrier.__aexit__(None, None, None)


async def test_a_gate_of_a_later_barrier_is_left_alone(
    opened: tuple[Service, HookedStore], ada: Board
) -> None:
    host = opened[0].host
    operator = client_of(opened[0]).board("main")
    async with ada.attach():
        async with Barrier(host, "main", BARRIER_MS):
            await commit_as_system(
                host, "main", [Put(barrier_key("ada"), encode_value("a later one"), 60_000)]
            )
        assert await operator.get(barrier_key("ada")) == "a later one"


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
    async with ada.lock("public/plan"), Barrier(opened[0].host, "main", BARRIER_MS) as barrier:
        answers = await barrier.answers()
    assert (answers.delivered, answers.not_fresh, answers.left) == ((), (), ())
