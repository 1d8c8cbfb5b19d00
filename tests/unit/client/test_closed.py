"""A client that is closed while it is used: what is under way ends at once, with an error."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint

import blackboard
from blackboard.archive.database import Database
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.remote.link import connect
from blackboard.errors import BlackboardError, LeaseLost, OutcomeUnknown, Unavailable
from blackboard.limits import LEASE_TTL_MS_MIN
from blackboard.runtime.supervisor import Supervisor
from blackboard.runtime.team import run_team
from tests.lowered import lowered
from tests.serving import Served
from tests.unit.runtime.crew import Counter, Hopeless, Patient, Slow
from tests.unit.server.http.conversation import PATIENCE_S
from tests.waiting import wait_until

HOUR_MS = 3_600_000
PATIENT = lowered(commit_timeout_ms=HOUR_MS, request_timeout_ms=HOUR_MS)
"""Retries would go on beyond the end of each test."""


@pytest.fixture(params=["embedded", "connected"])
async def client(
    request: pytest.FixtureRequest, tmp_path: Path, served: Served
) -> AsyncIterator[Client]:
    """A client that gives up late."""
    if request.param == "embedded":
        opening = blackboard.open(tmp_path / "own", limits=PATIENT)
    else:
        opening = connect(served.url, token=served.token(), limits=PATIENT)
    async with opening as client:
        yield client


async def test_no_commit_is_tried_again(client: Client) -> None:
    """Neither one that is under way, nor a later one."""
    board = client.board("b")
    await board.put("public/n", 0)

    async def count() -> None:
        while True:
            await board.increment("public/n")

    counting = asyncio.create_task(count())
    async with asyncio.timeout(PATIENCE_S):
        async with board.watch("public/n") as watch:
            await anext(watch)
        await client.aclose()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await counting
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await board.put("public/n", 1)


async def test_a_document_ends(client: Client) -> None:
    """It is not loaded again and again, and nobody waits for it."""
    document = await client.board("b").document("public/memo")
    try:
        async with asyncio.timeout(PATIENCE_S):
            await client.aclose()
            waiting = asyncio.create_task(document.synced())
            with pytest.raises(BlackboardError):
                await waiting
    finally:
        await document.aclose()


async def test_a_wait_for_a_lock_ends(client: Client) -> None:
    """And its holder learns when the lease has run out."""
    board = client.board("b")
    held = asyncio.Event()

    async def hold() -> None:
        async with board.lock("public/x", ttl_ms=LEASE_TTL_MS_MIN):
            held.set()
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await held.wait()
            waiting = asyncio.create_task(hold())
            await asyncio.wait([waiting], timeout=0)
            await client.aclose()
            with pytest.raises(BlackboardError):
                await waiting
            with pytest.raises(LeaseLost):
                await holding
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


@pytest.mark.parametrize("stays_in_its_step", [False, True])
async def test_a_team_ends_with_the_error(client: Client, *, stays_in_its_step: bool) -> None:
    """It does not try to reach the board for good: neither agents that rest, nor one in a step,
    nor the team itself."""
    board = client.board("b")
    agents: list[Counter] = [Patient("ada"), Counter("bob"), Hopeless("eve")]
    slow = Slow("kim")
    running = asyncio.create_task(run_team(board, [*agents, slow] if stays_in_its_step else agents))
    try:
        await wait_until(lambda: _is_present(board, "ada"))
        if stays_in_its_step:
            await slow.begun.wait()
        async with asyncio.timeout(PATIENCE_S):
            await client.aclose()
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_supervised_agent_ends_with_the_error(client: Client) -> None:
    board = client.board("b")
    assert not board.is_closed
    running = asyncio.create_task(Supervisor(Patient("ada"), board).run())
    try:
        await wait_until(lambda: _is_present(board, "ada"))
        async with asyncio.timeout(PATIENCE_S):
            await client.aclose()
            assert board.is_closed
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _is_present(board: Board, agent: str) -> bool:
    return any(present.agent == agent for present in await board.agents())


async def test_an_archive_that_is_closed_lets_its_transaction_end(tmp_path: Path) -> None:
    """And begins none afterwards: its file may belong to another process by then."""
    archive = await Database.open(f"sqlite:///{tmp_path / 'archive.db'}")
    try:
        async with archive.writing():
            closing = asyncio.create_task(archive.aclose())
            await asyncio.wait([closing], timeout=0)
            assert not closing.done()
        await closing
        with pytest.raises(Unavailable, match="was closed"):
            async with archive.writing():
                pass
        with pytest.raises(Unavailable, match="was closed"):
            async with archive.reading():
                pass
    finally:
        await archive.aclose()


@pytest.mark.parametrize("turns", [1, 2, 5])
async def test_a_watch_ends_when_the_closing_is_cancelled(client: Client, turns: int) -> None:
    """Nobody else would end it."""
    board = client.board("b")
    await board.put("public/n", 0)
    async with asyncio.timeout(PATIENCE_S), board.watch("public/**") as watch:
        waiting = asyncio.ensure_future(anext(watch))
        closing = asyncio.create_task(client.aclose())
        for _ in range(turns):
            await checkpoint()
        closing.cancel()
        await asyncio.wait([closing])
        with pytest.raises(Unavailable):
            await waiting
