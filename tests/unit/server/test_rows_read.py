"""How much is looked at for a reader: rows of the engines and of the archive, counted."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from blackboard.archive import history as archive_history
from blackboard.archive.database import rows as fetched
from blackboard.archive.history import STEP_KEYS
from blackboard.archive.sql import archive_beside
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.core.checkpoints import DiffRequest, Moment
from blackboard.core.commit import Directory, ListOptions, Put, Reading
from blackboard.core.path import Ranges
from blackboard.core.state import State
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from blackboard.limits import DIRECTORY_KEYS_MAX, LIST_ENTRIES_MAX, OPERATIONS_MAX, PAGE_BYTES_MAX
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.units import Key, Prefix
from blackboard.wire.codec import encode_value
from tests.lowered import lowered
from tests.unit.server.hooked import client_of, service_over

ONE = encode_value(1)
BOARD = "main"
READABLE = 30
LARGE_DIRECTORY = 3_000
PATTERNS = ("**", "*/*/*", "*/ada/**", "private/**", "private/ada/**", "public/*")
PARTS = Principal(
    "pat", (access.parse_grant("private/*/shared/**=read"), access.parse_grant("public/**=read"))
)


class Rows:
    """How many rows were looked at."""

    count = 0


class CountedRedisStore(RedisStore):
    """The engine over Redis, which counts what it is sent."""

    def __init__(self, raw: RedisStore) -> None:
        vars(self).update(vars(raw))
        self.rows = Rows()

    async def list(self, board: str, within: Prefix | Ranges, **page: Any) -> Reading:
        """As `Store.list`, counted."""
        reading = await super().list(board, within, **page)
        self.rows.count += len(reading.entries) + (reading.next_key is not None)
        return reading


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Counts each key that the embedded engine looks at, and each row that the archive fetches."""
    counted = Rows()
    between = State.between

    def counted_between(
        state: State, first: str, last: str, *, reverse: bool = False
    ) -> Iterator[Key]:
        for key in between(state, first, last, reverse=reverse):
            counted.count += 1
            yield key

    async def counted_rows(*query: Any) -> Any:
        found = await fetched(*query)
        counted.count += len(found)
        return found

    monkeypatch.setattr(State, "between", counted_between)
    monkeypatch.setattr(archive_history, fetched.__name__, counted_rows)
    return counted


async def _fill(service: Service) -> None:
    """Write a board of which bob may read little."""
    ada, bob = (client_of(service, name).board(BOARD) for name in ("ada", "bob"))
    for place in ("a", "z", "list"):
        names = [f"private/ada/{place}{number}" for number in range(OPERATIONS_MAX)]
        await ada.commit([Put(name, ONE) for name in names])
    for namespace in ("public", "private/bob", "inbox/bob"):
        keys = [f"{namespace}/k{number}" for number in range(READABLE // 3)]
        await bob.commit([Put(key, ONE) for key in keys])


async def _check(link: RequestHandler, rows: Rows, at: Moment | None) -> None:
    """Of 3,102 keys a reader of 30 has these looked at, and a few rows of the archive's own."""
    await link.list(BOARD, "**", at=at)
    for pattern in PATTERNS:
        rows.count = 0
        page = await link.list(BOARD, pattern, at=at)
        assert len(page.entries) <= READABLE
        assert rows.count <= READABLE + 10, pattern


@pytest.fixture
async def link(tmp_path: Path, rows: Rows) -> AsyncIterator[RequestHandler]:
    """The way of bob to that board, on the embedded engine with an archive."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        await _fill(service)
        yield service.link(access.agent("bob"))


async def test_a_listing_looks_at_nothing_that_others_keep(
    link: RequestHandler, rows: Rows
) -> None:
    await _check(link, rows, None)


async def test_a_listing_of_the_past_looks_at_nothing_that_others_keep(
    link: RequestHandler, rows: Rows
) -> None:
    await _check(link, rows, 6)


async def test_a_listing_over_redis_is_sent_nothing_that_others_keep(redis_url: str) -> None:
    store = CountedRedisStore(RedisStore.connect(redis_url))
    await store.drop(BOARD)
    async with Service(store) as service:
        await _fill(service)
        await _check(service.link(access.agent("bob")), store.rows, None)


async def test_a_comparison_fetches_nothing_that_others_keep(
    link: RequestHandler, rows: Rows
) -> None:
    await link.differences(BOARD, DiffRequest(0, 6))
    for pattern in PATTERNS:
        rows.count = 0
        page = await link.differences(BOARD, DiffRequest(0, 6, pattern=pattern))
        assert rows.count <= 3 * READABLE + 40, pattern
    assert page.next_key is None


async def _fill_directories(service: Service) -> None:
    """Directories of 1 key, of some, and of more than are counted; a key beside them."""
    bob = client_of(service, "bob").board(BOARD)
    await bob.commit([Put(f"public/d{number}/k", ONE) for number in range(40)])
    for start in range(0, LARGE_DIRECTORY, OPERATIONS_MAX):
        numbers = range(start, min(start + OPERATIONS_MAX, LARGE_DIRECTORY))
        await bob.commit([Put(f"public/large/{number:05}", ONE) for number in numbers])
    await bob.commit([Put("public/z", ONE)])


async def _directories(link: RequestHandler, at: Moment | None) -> None:
    page = await link.list(BOARD, "public/**", at=at, options=ListOptions(delimiter="/"))
    assert [e.key for e in page.entries] == ["public/z"]
    assert len(page.directories) == 41
    assert page.directories[-1] == Directory("public/large", DIRECTORY_KEYS_MAX, more=True)


async def test_a_listing_by_directory_reads_none_of_its_keys(tmp_path: Path, rows: Rows) -> None:
    """One search for each item at present; in the past, a directory is left once it was counted."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        await _fill_directories(service)
        link = service.link(access.agent("bob"))
        head = (await link.head(BOARD)).revision
        await _directories(link, head)  # waits for the archive
        for at, most in ((None, 42), (head, 42 + DIRECTORY_KEYS_MAX + 2 * STEP_KEYS)):
            rows.count = 0
            await _directories(link, at)
            assert 42 <= rows.count <= most


async def test_a_listing_by_directory_is_one_script_of_few_commands(redis_url: str) -> None:
    """Over Redis: two or three searches for each item, and one field read for each entry."""
    store = RedisStore.connect(redis_url)
    await store.drop(BOARD)
    unswept = lowered(sweep_interval_ms=3_600_000)  # a sweep runs scripts, too
    async with Service(store, limits=unswept) as service, Redis.from_url(redis_url) as redis:
        await _fill_directories(service)
        link = service.link(access.agent("bob"))
        await _directories(link, None)
        before = await redis.info("commandstats")
        await _directories(link, None)
        after = await redis.info("commandstats")
        calls = {
            name: each["calls"] - before.get(name, {"calls": 0})["calls"]
            for name, each in after.items()
        }
    assert calls["cmdstat_evalsha"] == 1
    assert calls["cmdstat_zrangebylex"] == 43
    assert calls["cmdstat_zlexcount"] == 2 * 41
    assert calls.get("cmdstat_hget", 0) == 1


async def test_a_look_at_one_key_that_may_not_be_read_reads_none(
    link: RequestHandler, rows: Rows
) -> None:
    for at in (None, 6):
        assert (await link.list(BOARD, "private/ada/a7", at=at)).entries == ()
        rows.count = 0
        assert (await link.list(BOARD, "private/ada/a7", at=at)).revision == 6
        assert rows.count <= 5


# --- grants with a wildcard in their midst --------------------------------------------------------


async def _walk(link: RequestHandler, limit: int) -> list[tuple[list[str], str | None]]:
    told: list[tuple[list[str], str | None]] = []
    after: str | None = None
    while True:
        page = await link.list(BOARD, "**", after=after, limit=limit)
        told.append(([entry.key for entry in page.entries], page.next_key))
        after = page.next_key
        if after is None:
            return told


async def test_what_lies_between_readable_keys_ends_no_page(tmp_path: Path) -> None:
    """Neither by its number nor by its size: it fills several pages of the engine."""
    async with service_over(tmp_path) as (service, _):
        ada = client_of(service, "ada").board(BOARD)
        keys = ["private/ada/shared/1", "private/ada/shared/2", "public/1"]
        await ada.commit([Put(key, ONE) for key in keys])
        link = service.link(PARTS)
        before = [await _walk(link, limit) for limit in (1, 2, 3, 9)]
        large = encode_value("x" * (PAGE_BYTES_MAX // 4))
        for number in range(9):
            await ada.commit([Put(f"private/ada/large{number}", large)])
        for place in ("a", "z"):
            names = [f"private/ada/{place}{number}" for number in range(LIST_ENTRIES_MAX)]
            await ada.commit([Put(name, ONE) for name in names])
        assert [await _walk(link, limit) for limit in (1, 2, 3, 9)] == before


async def test_a_change_between_two_pages_of_the_engine_ends_no_page(tmp_path: Path) -> None:
    """Where the first of them ended would tell how many keys others keep: it begins again, or is
    refused."""
    async with service_over(tmp_path) as (service, store):
        ada = client_of(service, "ada").board(BOARD)
        names = [f"private/ada/a{number}" for number in range(LIST_ENTRIES_MAX)]
        await ada.commit([Put(name, ONE) for name in names])
        await ada.commit([Put("private/ada/shared/1", ONE), Put("public/1", ONE)])
        changes = 0

        async def change() -> None:
            nonlocal changes
            changes += 1
            if changes <= 3 or is_restless:
                await ada.put("public/2", changes)

        is_restless = False
        link = service.link(PARTS)
        store.hook("after list", change)
        page = await link.list(BOARD, "**", limit=1)
        assert [entry.key for entry in page.entries] == ["private/ada/shared/1"]
        is_restless = True
        with pytest.raises(Unavailable):
            await link.list(BOARD, "**", limit=1)


async def test_sizes_of_others_commits_end_no_page_of_the_log(tmp_path: Path) -> None:
    """Where a page ends follows from revisions, and from what it shows."""
    async with service_over(tmp_path) as (service, _):
        ada, bob = (client_of(service, name).board(BOARD) for name in ("ada", "bob"))
        large = encode_value("x" * (PAGE_BYTES_MAX // 3))
        for number in range(8):
            await ada.commit([Put("private/ada/large", large)])
            await bob.put("public/small", number)
        page = await service.link(access.agent("bob")).log(BOARD, 0)
        assert page.through == 16
        assert [entry.revision for entry in page.entries] == list(range(2, 17, 2))
        shown = await service.link(access.agent("ada")).log(BOARD, 0)
        assert shown.through == 5
