"""What is imported is what a service could have exported, whatever a client sends."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.client.link import Transport
from blackboard.core import access
from blackboard.core.checkpoints import ORIGIN_KEY, ExportPage, ImportRequest
from blackboard.core.commit import Entry, Head
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import BlackboardError, Corrupt, InvalidRequest, Unavailable
from blackboard.limits import DEFAULT, INTEGER_MAX
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.waiting import wait_until

REQUEST = "ab" * 8


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service that has board "main" with a checkpoint of two keys."""
    store, archive = await SqliteStore.at(tmp_path, "memory"), await archive_beside(tmp_path)
    async with Service(store, archive=archive) as service:
        board = Client(service.link(access.operator())).board("main")
        await board.put("public/a", 1)
        await board.put("public/b", 2)
        await board.checkpoint("one")
        yield service


@pytest.fixture
def link(service: Service) -> Transport:
    """The operator's way to it."""
    return service.link(access.operator())


async def imported(link: Transport, page: ExportPage, entries: Sequence[Entry]) -> None:
    """Import `entries` as what the manifest of `page` describes."""
    spec = ImportRequest(REQUEST, page.manifest, page.signature, page.items)
    await link.import_begin("made", spec)
    await link.import_page("made", REQUEST, 0, entries)
    await link.import_end("made", REQUEST)


async def is_refused(
    link: Transport, page: ExportPage, entries: Sequence[Entry]
) -> BlackboardError:
    """How an import of `entries` is refused; nothing is left of it."""
    with pytest.raises((InvalidRequest, Corrupt)) as refused:
        await imported(link, page, entries)
    assert await link.boards() == ["main"]
    return refused.value


async def test_what_was_exported_is_imported(link: Transport) -> None:
    page = await link.export("main", "one", after=None)
    await imported(link, page, page.entries)
    assert (await link.read("made", ["public/b"])).entries == page.entries[1:]


@pytest.mark.parametrize("key", [ORIGIN_KEY, "system/checkpoints/one", "system/barriers/ada"])
async def test_nobody_brings_records_of_the_service(link: Transport, key: str) -> None:
    """No signed digest covers them, so the owner of a file could make them up."""
    page = await link.export("main", "one", after=None)
    made_up = Entry(key, encode_value({}), 1, 1, "system", 1)
    assert "is the service's own" in str(await is_refused(link, page, [*page.entries, made_up]))


@pytest.mark.parametrize(
    "of_another_time",
    [
        {"mod_revision": 4},
        {"mod_revision": INTEGER_MAX},
        {"create_revision": 2},
        {"create_revision": 0},
        {"time_ms": -1},
    ],
    ids=str,
)
async def test_nobody_brings_what_is_of_another_time(
    link: Transport, of_another_time: dict[str, int]
) -> None:
    """An entry was made at a revision that the checkpoint has, and no later than it changed."""
    page = await link.export("main", "one", after=None)
    first, *rest = page.entries
    moved = replace(first, **of_another_time)
    assert "invalid request" in str(await is_refused(link, page, [moved, *rest]))


async def test_no_key_comes_twice(link: Transport) -> None:
    page = await link.export("main", "one", after=None)
    found = await is_refused(link, page, [*page.entries, *page.entries[1:]])
    assert "public/b is out of order" in str(found)


async def test_nothing_is_left_out_and_nothing_added(link: Transport) -> None:
    """The manifest has digests of all that there was, and there was nothing elsewhere."""
    page = await link.export("main", "one", after=None)
    found = await is_refused(link, page, page.entries[:1])
    assert "namespace public is not what was sealed" in str(found)
    added = replace(page.entries[1], key="public/c")
    found = await is_refused(link, page, [*page.entries, added])
    assert "namespace public is not what was sealed" in str(found)
    elsewhere = replace(page.entries[0], key="private/ada/c")
    found = await is_refused(link, page, [elsewhere, *page.entries])
    assert "namespace private/ada is not what was sealed" in str(found)


async def test_an_import_that_was_interrupted_is_in_nobodys_way(link: Transport) -> None:
    """A client that was cancelled begins again, and does not wait until the first one is idle."""
    page = await link.export("main", "one", after=None)
    for number in range(DEFAULT.checkpoints.imports_max + 1):
        spec = ImportRequest(f"{number:016x}", page.manifest, page.signature, page.items)
        await link.import_begin("made", spec)
        await link.import_page("made", spec.request, 0, page.entries[:1])
    await imported(link, page, page.entries)
    assert (await link.read("made", ["public/b"])).entries == page.entries[1:]
    with pytest.raises(Unavailable, match="given up"):
        await link.import_end("made", f"{0:016x}")


async def test_an_import_says_why_it_ended(link: Transport) -> None:
    """Also if that was before its next request came."""
    page = await link.export("main", "one", after=None)
    of_another_time = replace(page.entries[0], time_ms=-1)
    spec = ImportRequest(REQUEST, page.manifest, page.signature, page.items)
    await link.import_begin("made", spec)

    async def send_more() -> None:  # the third page has no room before the first one is looked at
        for number in range(3):
            await link.import_page("made", REQUEST, number, [of_another_time])

    with pytest.raises(InvalidRequest, match="is no time"):
        await send_more()
    with pytest.raises(InvalidRequest, match="is no time"):
        await link.import_end("made", REQUEST)


async def test_an_import_is_not_given_up_for_somebody_elses(
    service: Service, link: Transport
) -> None:
    """Beginning again gives up one's own."""
    page = await link.export("main", "one", after=None)
    spec = ImportRequest(REQUEST, page.manifest, page.signature, page.items)
    await link.import_begin("made", spec)
    other = service.link(access.operator("other"))
    await other.import_begin("made", dataclasses.replace(spec, request="cd" * 8))
    await link.import_page("made", REQUEST, 0, page.entries)
    assert (await link.import_end("made", REQUEST)).revision > 0
    assert (await link.read("made", ["public/b"])).entries == page.entries[1:]


async def test_a_request_is_repeated_when_its_answer_was_lost(link: Transport) -> None:
    """Whichever it is: the import goes on, or has ended, as it was to."""
    page = await link.export("main", "one", after=None)
    spec = ImportRequest(REQUEST, page.manifest, page.signature, page.items)
    await link.import_begin("made", spec)
    await link.import_page("made", REQUEST, 0, page.entries[:1])
    await link.import_begin("made", spec)
    await link.import_page("made", REQUEST, 0, page.entries[:1])
    await link.import_page("made", REQUEST, 1, page.entries[1:])
    with pytest.raises(InvalidRequest, match="page 2 comes next"):
        await link.import_page("made", REQUEST, 0, page.entries[:1])
    head = await link.import_end("made", REQUEST)
    assert await link.import_end("made", REQUEST) == head
    await link.import_begin("made", spec)
    assert (await link.read("made", ["public/b"])).entries == page.entries[1:]
    assert (await Client(link).board("made").verify()).findings == ()


@pytest.mark.parametrize("is_repeated_first", [False, True])
async def test_a_page_that_waits_when_its_connection_breaks_is_not_lost(
    service: Service, monkeypatch: pytest.MonkeyPatch, is_repeated_first: bool
) -> None:
    """Whether it is repeated before or after the service notices that the old one is gone."""
    seed, goes_on = SqliteStore.seed, asyncio.Event()

    async def held(*arguments: Any, **named: Any) -> Head:
        await goes_on.wait()
        return await seed(*arguments, **named)

    monkeypatch.setattr(SqliteStore, "seed", held)
    link = service.link(access.operator())
    page = await link.export("main", "one", after=None)
    spec = ImportRequest(REQUEST, page.manifest, page.signature, page.items)
    await link.import_begin("made", spec)
    await link.import_page("made", REQUEST, 0, page.entries[:1])
    running = service.host.imports._open["made", REQUEST]

    async def is_waiting() -> bool:
        return running._next == 2

    again: list[asyncio.Task[None]] = []

    def repeat() -> None:
        again.append(asyncio.create_task(link.import_page("made", REQUEST, 1, page.entries[1:])))

    first = asyncio.create_task(link.import_page("made", REQUEST, 1, page.entries[1:]))
    await wait_until(is_waiting)
    if is_repeated_first:
        repeat()
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    if not is_repeated_first:
        repeat()
    goes_on.set()
    await asyncio.gather(*again)
    await link.import_end("made", REQUEST)
    assert (await link.read("made", ["public/a", "public/b"])).entries == page.entries


async def test_an_import_is_done_though_its_archive_is_away_at_the_end(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its archiver begins as soon as the archive is back."""
    archive = service.host.archive
    assert archive is not None
    join, failures = archive.join, [Unavailable("archive", "it is gone for a moment")]

    async def away_once(*arguments: Any, **named: Any) -> None:
        if failures:
            raise failures.pop()
        await join(*arguments, **named)

    client = Client(service.link(access.operator()))
    await client.board("main").export("one", tmp_path / "exported")
    monkeypatch.setattr(archive, "join", away_once)
    board = await client.import_board(tmp_path / "exported", "made")
    assert not failures
    assert await board.get("public/b") == 2
    assert (await board.verify()).ok


async def test_a_branch_is_done_though_its_archive_is_away_at_the_end(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The board is there by then."""
    archive, seed = service.host.archive, SqliteStore.seed
    assert archive is not None
    mark, failures = archive.mark, list[Unavailable]()

    async def seeded(*arguments: Any, **named: Any) -> Head:
        head = await seed(*arguments, **named)
        failures.append(Unavailable("archive", "it is gone for a moment"))
        return head

    async def away_once(board: str) -> Any:
        if failures and board == "made":
            raise failures.pop()
        return await mark(board)

    monkeypatch.setattr(SqliteStore, "seed", seeded)
    monkeypatch.setattr(archive, "mark", away_once)
    branch = await Client(service.link(access.operator())).board("main").branch("made", "one")
    assert not failures
    assert await branch.get("public/b") == 2
    assert (await branch.verify()).ok
