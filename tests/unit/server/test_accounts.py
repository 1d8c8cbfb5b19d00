"""What one account may have of a service: watches, and boards that it began."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import BOARDS_BOARD, Credential
from blackboard.core.commit import Entry, Reading
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import LimitExceeded
from blackboard.limits import Limits
from blackboard.server.overload.accounts import BegunBoards, WatchShares
from blackboard.server.service import Service
from tests.lowered import lowered
from tests.unit.server.hooked import client_of, service_over
from tests.waiting import wait_until


@asynccontextmanager
async def started(directory: Path, limits: Limits) -> AsyncIterator[Service]:
    """A service that knows which tokens are revoked."""
    async with service_over(directory, limits) as (service, _):
        await service.host.revocations.ready()
        yield service


def client(service: Service, account: str, name: str = "") -> Client:
    """A client with a token of `account`, narrowed to `name` if there is one."""
    credential = Credential(account, ("id-of-it",), 0)
    principal = access.agent(name or account)
    return Client(service.link(replace(principal, credential=credential)))


async def refused(board: Board) -> LimitExceeded:
    """Why a board may not begin."""
    with pytest.raises(LimitExceeded) as found:
        await board.head()
    return found.value


@pytest.mark.limits(boards_per_account_max=2)
async def test_an_account_begins_so_many_boards_in_however_many_lives_of_the_service(
    tmp_path: Path, limits: Limits
) -> None:
    """Whatever names it narrows; who removes one of them makes room, and others have theirs."""
    async with started(tmp_path, limits) as service:
        await client(service, "mallory").board("a").head()
    async with started(tmp_path, limits) as service:
        await client(service, "mallory", "mallory.x").board("b").put("public/x", 1)
        await client(service, "mallory").board("a").put("public/x", 1)
        for name in ("mallory", "mallory.y"):
            told = await refused(client(service, "mallory", name).board("c"))
            assert (told.limit, told.value, told.maximum) == ("BOARDS_PER_ACCOUNT_MAX", 3, 2)
            assert (told.where, told.account) == ("c", "mallory")
        with pytest.raises(LimitExceeded):
            await client(service, "mallory").board("c").put("public/x", 1)
        await client(service, "ann").board("c").put("public/x", 1)
        await client(service, "mallory").board("c").put("public/x", 2)
        await client_of(service).remove_board("a")
        await client(service, "mallory").board("d").head()
        await refused(client(service, "mallory").board("e"))
        await client_of(service).board("e").head()
        assert await client_of(service).boards() == ["b", "c", "d", "e"]


@pytest.mark.limits(boards_per_account_max=1)
async def test_a_removed_board_counts_to_the_account_that_begins_it_again(
    tmp_path: Path, limits: Limits
) -> None:
    """And no longer to the one that began it before, also if it counts to nobody now."""
    async with started(tmp_path, limits) as service:
        await client(service, "ann").board("a").head()
        await client_of(service).remove_board("a")
        await client(service, "mallory").board("a").head()
        await refused(client(service, "mallory").board("b"))
        await client(service, "ann").board("b").head()
        await client_of(service).remove_board("b")
        await client_of(service).board("b").head()
        await client(service, "ann").board("c").head()


@pytest.mark.limits(boards_per_account_max=2)
async def test_boards_that_begin_at_once_are_counted_one_by_one(
    tmp_path: Path, limits: Limits
) -> None:
    async with started(tmp_path, limits) as service:
        asked = [client(service, "mallory").board(name).head() for name in "abcde"]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(answer, LimitExceeded) for answer in answers) == 3
        assert len(await client_of(service).boards()) == 2


async def test_boards_that_never_came_to_exist_count_for_a_while(tmp_path: Path) -> None:
    """As long as a request may last; then their records go."""
    store = await SqliteStore.at(tmp_path)
    two = lowered(boards_per_account_max=2)
    patient, begun = BegunBoards(store, two), BegunBoards(store, lowered(two, request_timeout_ms=1))
    for name in "ab":
        await patient.note("ann", name)
    with pytest.raises(LimitExceeded):
        await patient.note("ann", "c")

    last = (await store.list(BOARDS_BOARD, "system/boards_of/ann", limit=9)).entries[-1]

    async def is_over() -> bool:
        return (await store.open(BOARDS_BOARD)).time_ms > last.time_ms + 1

    await wait_until(is_over)
    await begun.note("ann", "c")
    assert await kept_of(store, "ann") == ["c"]
    await store.open("c")
    await begun.note("ann", "d")
    await begun.forget("c")
    assert await kept_of(store, "ann") == ["d"]
    await store.aclose()


async def kept_of(store: SqliteStore, account: str) -> list[str]:
    """The boards that are recorded for an account."""
    found = await store.list(BOARDS_BOARD, f"system/boards_of/{account}", limit=9)
    return [entry.key.rpartition("/")[2] for entry in found.entries]


async def test_a_board_costs_its_account_no_more_when_others_have_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: of the records, only its own are read."""
    store = await SqliteStore.at(tmp_path)
    begun = BegunBoards(store)
    for number in range(30):
        await begun.note(f"other{number}", f"b{number}")
    plain = store.list
    read: list[Entry] = []

    async def counted(*where: Any, **how: Any) -> Reading:
        reading = await plain(*where, **how)
        read.extend(reading.entries)
        return reading

    monkeypatch.setattr(store, "list", counted)
    for name in ("one", "two"):
        await begun.note("ann", name)
    assert len(read) == 1
    await store.aclose()


@pytest.mark.limits(watches_per_account_max=2)
async def test_an_account_opens_so_many_watches(tmp_path: Path, limits: Limits) -> None:
    """Over all its connections and names; one that ends makes room."""
    async with started(tmp_path, limits) as service, AsyncExitStack() as open_watches:
        mine, narrowed = client(service, "ann"), client(service, "ann", "ann.x")
        await open_watches.enter_async_context(mine.board("main").watch("public/**"))
        async with narrowed.board("main").watch("public/**"):
            with pytest.raises(LimitExceeded) as found:
                async with mine.board("other").watch("public/**"):
                    pass
            assert (found.value.limit, found.value.account) == ("WATCHES_PER_ACCOUNT_MAX", "ann")
            assert (found.value.value, found.value.maximum) == (3, 2)
            async with client(service, "bob").board("main").watch("public/**"):
                pass
        async with mine.board("main").watch("public/**"):
            pass


def test_a_process_has_so_many_watches() -> None:
    """Those of the service itself are not counted."""
    shares = WatchShares(lowered(watches_max=2))
    with shares.one("a"), shares.one("b"), shares.one("~system"):
        with pytest.raises(LimitExceeded) as found, shares.one("c"):
            pass
        assert (found.value.limit, found.value.value) == ("WATCHES_MAX", 3)
    with shares.one("c"):
        pass
