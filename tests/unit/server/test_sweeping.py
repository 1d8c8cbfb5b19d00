"""Expiry of entries is a commit; the log is trimmed to what is kept."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.client.board import Board
from blackboard.core.commit import Head, Reading
from blackboard.errors import Corrupt
from blackboard.limits import DEFAULT
from blackboard.server.service import Service
from blackboard.server.sweeper import EXPIRED_NOTE, Sweeper
from tests.unit.server.hooked import HookedStore, client_of, service_over
from tests.waiting import wait_until

HOUR_MS = 3_600_000
COUNT_MAX = DEFAULT.boards.sweep_entries_max
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


@pytest.fixture
def sweeper(parts: Parts) -> Sweeper:
    """A sweeper besides the service's own: several may sweep one board."""
    return Sweeper(parts[0].boards, "0f")


async def due(parts: Parts, count: int) -> None:
    """Wait until `count` entries are due by the engine's clock."""

    async def are_due() -> bool:
        return len((await parts[1].due("main", limit=COUNT_MAX)).entries) >= count

    await wait_until(are_due)


async def test_what_is_over_goes_and_what_is_not_stays(
    parts: Parts, board: Board, sweeper: Sweeper
) -> None:
    for number in range(20):
        await board.put(f"public/short/{number}", 1, ttl_ms=1)
    await board.put("public/long", 1, ttl_ms=HOUR_MS)
    await board.put("public/ever", 1)
    await due(parts, 20)
    await sweeper.sweep()
    await sweeper.sweep()
    assert [e.key for e in (await board.list("**")).entries] == ["public/ever", "public/long"]
    expiries = [r for r in await board.log() if r.note == EXPIRED_NOTE]
    assert len(expiries) == 20
    assert {(r.author, len(r.changes), r.changes[0].kind) for r in expiries} == {
        ("~system", 1, "delete")
    }


async def test_expiries_share_engine_calls(parts: Parts, board: Board, sweeper: Sweeper) -> None:
    for number in range(50):
        await board.put(f"public/short/{number}", 1, ttl_ms=1)
    await due(parts, 50)
    before = parts[0].statistics()
    await sweeper.sweep()
    after = parts[0].statistics()
    assert after.commits - before.commits > 5 * (after.batches - before.batches)


async def test_what_was_rewritten_in_time_stays(
    parts: Parts, board: Board, sweeper: Sweeper
) -> None:
    """The sweeper saw the old entry; its commit is conditioned on that one."""
    await board.put("public/a", "old", ttl_ms=1)
    await due(parts, 1)
    [entry] = (await parts[1].due("main", limit=1)).entries
    await board.put("public/a", "new")
    main = await parts[0].boards.use("main")
    await sweeper._remove(main, (await board.head()).epoch.id, entry)
    assert await board.get("public/a") == "new"


async def test_two_sweepers_remove_once(parts: Parts, board: Board, sweeper: Sweeper) -> None:
    await board.put("public/a", 1, ttl_ms=1)
    await due(parts, 1)
    await sweeper.sweep()
    await Sweeper(parts[0].boards, "1e").sweep()
    assert (await board.head()).revision == 2


async def test_a_log_is_trimmed_page_by_page_and_never_below_what_is_kept(
    board: Board, sweeper: Sweeper
) -> None:
    for _ in range(50):
        await board.increment("public/n")
    await sweeper.trim(50)
    assert (await board.head()).oldest == 1
    await sweeper.trim(20)
    head = await board.head()
    assert (head.oldest, head.revision, head.log_entries) == (31, 50, 20)
    await sweeper.trim(19)
    assert (await board.head()).oldest == 31
    assert await board.get("public/n") == 50


async def test_a_board_that_cannot_be_read_keeps_no_other_from_being_swept(
    parts: Parts, board: Board, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken one is opened first, and so comes first in every sweep."""
    await client_of(parts[0]).board("broken").head()
    for number in range(30):
        await board.put(f"public/{number}", 1, ttl_ms=1)
    await due(parts, 30)
    store = parts[1]
    read_due, open_board = store.due, store.open

    def fail(name: str) -> None:
        if name == "broken":
            raise Corrupt(what=name, reason="a bad page")

    async def due_unless_broken(name: str, *, limit: int) -> Reading:
        fail(name)
        return await read_due(name, limit=limit)

    async def open_unless_broken(name: str) -> Head:
        fail(name)
        return await open_board(name)

    monkeypatch.setattr(store, "due", due_unless_broken)
    monkeypatch.setattr(store, "open", open_unless_broken)
    await sweeper.sweep()
    await sweeper.sweep()
    assert (await board.list("**")).entries == ()
    await sweeper.trim(10)
    assert (await board.head()).log_entries == 10
