"""A watch as people use it: cancelled waits, snapshots, and what a writer learns from it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.errors import Compacted, InvalidRequest, StaleEpoch
from blackboard.server.service import Service
from tests.unit.server.hooked import HookedStore, client_of, service_over

PATIENCE_S = 60.0
Parts = tuple[Service, HookedStore]


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """A service over an engine that can be broken."""
    async with service_over(tmp_path) as parts:
        yield parts


@pytest.fixture
def board(parts: Parts) -> Board:
    """A board."""
    return client_of(parts[0]).board("main")


async def test_a_cancelled_wait_keeps_what_had_come(board: Board) -> None:
    """It waits for a revision that does not exist; what came meanwhile is delivered afterwards."""
    async with board.watch("public/**") as watch:
        waiting = asyncio.create_task(watch.wait_for(10))
        for _ in range(5):
            await board.increment("public/n")
        await anyio.wait_all_tasks_blocked()
        waiting.cancel()
        await asyncio.wait([waiting])
        with anyio.fail_after(PATIENCE_S):
            found = [(await anext(watch)).revision for _ in range(5)]
    assert found == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("after", [1.0, b"x:1:", ["x"]])
async def test_what_is_no_position_does_not_mean_from_now_on(board: Board, after: Any) -> None:
    with pytest.raises(InvalidRequest):
        board.watch("public/**", after=after)


async def test_the_position_follows_what_was_taken_not_what_was_received(board: Board) -> None:
    for _ in range(5):
        await board.increment("public/n")
    async with board.watch("public/**", after=0) as watch:
        positions = []
        for _ in range(5):
            revised = await anext(watch)
            positions.append(watch.position)
            assert revised.position == watch.position
    assert [position.split(":")[1] for position in positions] == ["1", "2", "3", "4", "5"]


async def test_after_the_last_of_a_delivery_the_position_is_beyond_what_was_hidden(
    board: Board,
) -> None:
    await board.put("public/a", 1)
    await board.put("public/b", 1)
    await board.put("public/c", 1)
    async with board.watch("public/a", after=0) as watch:
        revised = await anext(watch)
        assert (revised.revision, watch.position.split(":")[1]) == (1, "3")


async def test_an_error_is_raised_every_time(parts: Parts, board: Board) -> None:
    """A loop that was ended by an error does not go on as if nothing had been."""
    for _ in range(5):
        await board.increment("public/n")
    async with board.watch("public/**", after=0) as watch:
        await parts[1].compact("main", 4)
        for _ in range(3):
            with pytest.raises(Compacted):
                await anext(watch)


async def test_a_snapshot_with_changes_between_its_pages_is_exact(
    parts: Parts, board: Board
) -> None:
    """Keys are changed, removed and made again while the state is read, before and after it."""
    for key in "abcd":
        await board.put(f"public/{key}", "old")
    rounds: list[int] = []

    async def meddle() -> None:
        if len(rounds) < 2:
            rounds.append(1)
            await board.put("public/a", len(rounds))
            await board.delete("public/b")
            await board.put("public/b", "again")
            await board.delete("public/c")
            await board.put(f"public/new{len(rounds)}", 1)

    parts[1].hook("after list", meddle)
    patterns = ["public/a", "public/**"]
    async with board.watch(*patterns, "private/**", snapshot=True) as watch:
        found = {key: (e.value, e.mod_revision) for key, e in watch.state.items()}
    assert rounds == [1, 1]
    assert watch.revision >= 4 + 5
    assert found == await replayed(board, watch.revision)


async def replayed(board: Board, revision: int) -> dict[str, tuple[object, int]]:
    """The board at `revision`, from its log."""
    state: dict[str, tuple[object, int]] = {}
    for revised in await board.log():
        for change in revised.changes:
            if revised.revision <= revision:
                state.pop(change.key, None)
                if change.kind == "put":
                    state[change.key] = (change.value, revised.revision)
    return state


async def test_what_a_watch_delivered_counts_as_seen(board: Board) -> None:
    """A writer that saw a revision only in a watch does not go on where that one was lost."""
    other = Board(board._link, "main")
    async with board.watch("public/**") as watch:
        await other.increment("public/n")
        await other.increment("public/n")
        await anext(watch)
        await anext(watch)
    with pytest.raises(StaleEpoch):
        board._writer._adopt(StaleEpoch("old", "new", 2, "engine", from_revision=1, head=9), 1)
