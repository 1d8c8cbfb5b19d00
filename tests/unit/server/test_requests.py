"""The way in: pages of one revision, limits, and a service that does not serve."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.client.board import Board
from blackboard.client.link import WatchRequest
from blackboard.core.access import operator
from blackboard.core.commit import Put
from blackboard.errors import EngineRefused, InvalidRequest, LimitExceeded, Unavailable
from blackboard.limits import LIST_ENTRIES_MAX, LOG_ENTRIES_MAX, PAGE_BYTES_MAX, READ_KEYS_MAX
from blackboard.server import pages
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.unit.server.hooked import HookedStore, client_of, service_over

ONE = encode_value(1)
Parts = tuple[Service, HookedStore]


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """A service over an engine that can be broken."""
    async with service_over(tmp_path) as parts:
        yield parts


@pytest.fixture
def link(parts: Parts) -> RequestHandler:
    """The operator's way."""
    return parts[0].link(operator())


@pytest.fixture
def board(parts: Parts) -> Board:
    """The board as the operator sees it."""
    return client_of(parts[0]).board("main")


async def test_a_listing_never_mixes_two_revisions(
    parts: Parts, link: RequestHandler, board: Board
) -> None:
    """Between two pages of the engine somebody changes what the first one showed."""
    names = [f"public/{i}/{kind}" for i in range(6) for kind in "ab"]
    await board.commit([Put(name, ONE) for name in names])
    changed: list[int] = []

    async def change_once() -> None:
        if not changed:
            changed.append((await board.put("public/0/a", "changed")).revision)

    parts[1].hook("after list", change_once)
    first = await link.list("main", "public/*/a", limit=4)
    assert {entry.mod_revision for entry in first.entries} == {1}
    assert first.revision == 1
    assert changed == [2]
    rest = await link.list("main", "public/*/a", after=first.next_key, limit=4)
    found = [entry.key for entry in (*first.entries, *rest.entries)]
    assert found == [name for name in names if name.endswith("a")]


async def test_a_listing_without_matches_so_far_mixes_no_revisions_either(
    parts: Parts, link: RequestHandler, board: Board
) -> None:
    """What matches by now in a page that was looked through before would be missed."""
    await board.commit([Put(f"public/{i}", ONE) for i in range(8)] + [Put("public/9/a", ONE)])
    changed: list[int] = []

    async def change_once() -> None:
        if not changed:
            changed.append((await board.put("public/0/a", 1)).revision)

    parts[1].hook("after list", change_once)
    page = await link.list("main", "public/*/a", limit=4)
    assert (page.revision, page.entries, page.next_key) == (1, (), "public/3")
    assert changed == [2]


async def test_a_listing_that_finds_little_answers_in_the_end(
    link: RequestHandler, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks through a bounded number of pages, and says where to go on."""
    monkeypatch.setattr(pages, "_LIST_PAGES_MAX", 2)
    await board.commit([Put(f"public/{i}", ONE) for i in range(9)] + [Put("public/z/a", ONE)])
    page = await link.list("main", "public/*/a", limit=3)
    assert (page.entries, page.next_key) == ((), "public/5")
    page = await link.list("main", "public/*/a", after=page.next_key, limit=3)
    assert [entry.key for entry in page.entries] == ["public/z/a"]


async def test_limits_of_requests(link: RequestHandler) -> None:
    for limit in (0, -1, LIST_ENTRIES_MAX + 1):
        with pytest.raises(InvalidRequest):
            await link.list("main", "public/**", limit=limit)
    for limit in (0, LOG_ENTRIES_MAX + 1):
        with pytest.raises(InvalidRequest):
            await link.log("main", 0, limit=limit)
    with pytest.raises(LimitExceeded):
        await link.read("main", ["public/a"] * (READ_KEYS_MAX + 1))
    assert (await link.read("main", ["public/a"] * READ_KEYS_MAX)).entries == ()


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 129, "a b"])
async def test_what_is_no_board_is_refused(link: RequestHandler, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await link.head(name)
    assert await link.boards() == []


async def test_an_engine_that_would_lose_data_is_not_served_until_it_is_mended(
    parts: Parts, link: RequestHandler
) -> None:
    service, store = parts

    async def evicting() -> None:
        raise EngineRefused("maxmemory-policy", "allkeys-lru", "noeviction")

    await link.head("main")
    store.hook("before facts", evicting)
    with pytest.raises(EngineRefused):
        await service.host.look()
    for attempt in (link.head("main"), link.boards(), link.read("main", ["public/a"])):
        with pytest.raises(EngineRefused):
            await attempt
    with pytest.raises(EngineRefused):
        link.watch("main", WatchRequest(("**",)))
    store.hooks.clear()
    await service.host.look()
    await link.head("main")


async def test_a_stopping_service_takes_nothing_new(parts: Parts, link: RequestHandler) -> None:
    parts[0].drain()
    for attempt in (link.head("main"), link.boards(), link.log("main", 0)):
        with pytest.raises(Unavailable):
            await attempt


async def test_a_listing_of_large_values_is_cut_by_bytes(board: Board) -> None:
    """What one request gathers from many pages of the engine must fit into one answer."""
    for number in range(6):
        await board.put(f"public/{number}", b"x" * 900_000)
    found, after = 0, None
    while True:
        page = await board.list("public/*", after=after)
        assert sum(len(entry.value) for entry in page.entries) <= 2 * PAGE_BYTES_MAX
        found, after = found + len(page.entries), page.next_key
        if after is None:
            break
    assert found == 6
