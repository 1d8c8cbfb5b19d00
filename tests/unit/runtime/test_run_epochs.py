"""An agent that runs while its engine loses something that it saw."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from blackboard import Board
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.ops import Release
from blackboard.runtime.context import Context
from blackboard.runtime.run import RunOptions, run_agent
from blackboard.server.service import Service
from tests.conformance.acting import Actor, Notes, notes_of
from tests.unit.server.hooked import client_of
from tests.waiting import wait_until

PATIENCE_S = 60.0
HOUR_MS = 3_600_000
LOST = 1_000
"""Revisions that the agent saw, and that are gone."""


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[tuple[Board, SqliteStore]]:
    """A board as its agent has it, and its engine."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store) as service:
        yield client_of(service, "ada").board("main"), store


async def note(ctx: Context[Notes]) -> None:
    """Count letters."""
    ctx.state.count += len(await ctx.inbox(limit=1))


async def lose(board: Board, store: SqliteStore, known: Board) -> None:
    """Begin an epoch of the engine without revisions that `known` has seen."""
    head = await board.head()
    known._writer.saw(head.revision + LOST)
    await store.begin_epoch("main", head, above=head.revision + LOST)


async def test_it_waits_for_its_own_lease_of_before(
    parts: tuple[Board, SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which it could not release in the other epoch: no other process is the agent."""
    board, store = parts
    known, stop = board.waiting_for_thaw(0), asyncio.Event()
    monkeypatch.setattr(board, "waiting_for_thaw", lambda _: known)

    async def is_idle() -> bool:
        return any(one.state == "idle" for one in await board.agents())

    async def has_read() -> bool:
        assert not running.done(), running.result()
        return (await notes_of(board)).count == 1

    async def is_queued() -> bool:
        assert not running.done(), running.result()
        return any(lease.waiters for lease in await board.leases("private/ada/*"))

    stay = RunOptions(ttl_ms=HOUR_MS, stop=stop)
    running = asyncio.create_task(run_agent(Actor("ada", note), board, stay))
    await wait_until(is_idle)
    await lose(board, store, known)
    await board.refresh()
    await board.append("inbox/ada/messages", "go on")
    await wait_until(is_queued)
    (lease,) = await board.leases("private/ada/*")
    await board.commit([Release(lease.key, lease.holder, lease.fence)])  # as when it runs out
    await wait_until(has_read)
    stop.set()
    with anyio.fail_after(PATIENCE_S):
        assert (await running).agent == "ada"
    assert await board.leases("private/ada/*") == ()
