"""At the edge of limits that the service keeps, and that no test of a single module stands at."""

import asyncio
import inspect
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from blackboard import limits
from blackboard.archive.sql import archive_beside
from blackboard.client import writer
from blackboard.client.audit_record import AuditRecord
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import AUDIT_BOARD, READ_ALL, Credential, Principal, Right
from blackboard.core.checkpoints import ImportRequest
from blackboard.core.path import check_key, parse_patterns
from blackboard.core.view import View
from blackboard.core.watch import Position
from blackboard.encryption import master_key
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import (
    Conflict,
    InvalidRequest,
    LimitExceeded,
    SnapshotFirst,
    Unavailable,
)
from blackboard.limits import DEFAULT, Limits
from blackboard.runtime.models import Patience
from blackboard.runtime.supervisor import Crashes, RestartPolicy
from blackboard.runtime.transcripts import Recall, Transcript
from blackboard.server.checkpoints import take as checkpoints
from blackboard.server.checkpoints.imports import Imports
from blackboard.server.feed import Feed
from blackboard.server.http.documents import is_for_document
from blackboard.server.http.serve import _config
from blackboard.server.requests import RequestHandler
from blackboard.server.security.audit import OTHERS, Repeats
from blackboard.server.service import Service
from blackboard.server.settings import Settings
from blackboard.wire import ysync
from blackboard.wire.frames import JSON
from blackboard.wire.requests import parse
from tests.lowered import lowered
from tests.serving import serving
from tests.unit.server.http.conversation import PATIENCE_S, talking
from tests.waiting import wait_until

KEY_HEX = "ab" * 32


@pytest.fixture
async def service(tmp_path: Path, limits: Limits) -> AsyncIterator[Service]:
    """A service with an archive."""
    store, archive = await SqliteStore.at(tmp_path, "memory"), await archive_beside(tmp_path)
    async with Service(store, archive=archive, limits=limits) as service:
        yield service


@pytest.fixture
async def main(service: Service) -> Board:
    """A board, as the operator, that has begun."""
    found = Client(service.link(access.operator())).board("main")
    await found.put("public/a", 1)
    return found


# --- defaults -------------------------------------------------------------------------------------

DEFAULTS: list[tuple[str, Callable[..., Any], str]] = [
    ("LEASE_TTL_MS", Board.lock, "ttl_ms"),
    ("LEASE_TTL_MS", Board.attach, "ttl_ms"),
    ("CLAIM_TRIES_MAX", Board.claim, "tries_max"),
    ("DIFF_KEYS_MAX", Board.diff, "limit"),
    ("AGENT_CRASHES_MAX", RestartPolicy, "crashes_max"),
    ("AGENT_PAUSE_MS", RestartPolicy, "pause_ms"),
    ("AGENT_PAUSE_MS_MAX", RestartPolicy, "pause_ms_max"),
    ("AGENT_GRACE_MS", RestartPolicy, "grace_ms"),
    ("MODEL_ATTEMPTS_MAX", Patience, "attempts"),
    ("MODEL_TIMEOUT_MS", Patience, "timeout_ms"),
]


@pytest.mark.parametrize(
    ("name", "call", "parameter"), DEFAULTS, ids=lambda x: getattr(x, "__qualname__", None)
)
def test_a_default_is_that_of_the_table(
    name: str, call: Callable[..., Any], parameter: str
) -> None:
    """Rows that people may set otherwise."""
    default = inspect.signature(call).parameters[parameter].default
    assert default == getattr(limits, name)


def test_the_rates_that_are_set_are_those_of_the_table() -> None:
    assert Settings.model_fields["rate_burst_ms"].default == limits.RATE_BURST_MS


# --- pages ----------------------------------------------------------------------------------------


async def test_pages_of_the_past_have_an_edge(main: Board, service: Service) -> None:
    """CHECKPOINTS_PAGE_MAX and HISTORY_VERSIONS_MAX are asked for, and no more."""
    link = service.link(access.operator())
    most = limits.CHECKPOINTS_PAGE_MAX
    assert await link.checkpoints("main", limit=most) == []
    with pytest.raises(InvalidRequest):
        await link.checkpoints("main", limit=most + 1)
    most = limits.HISTORY_VERSIONS_MAX
    assert len(await link.history("main", "public/a", limit=most)) == 1
    with pytest.raises(InvalidRequest):
        await link.history("main", "public/a", limit=most + 1)


async def test_a_search_has_an_edge(main: Board) -> None:
    """RECALL_RESULTS_MAX turns."""
    with Recall(Transcript("operator")) as recall:
        assert await recall.search(main, "word", limit=DEFAULT.agents.recall_results_max) == ()
        with pytest.raises(InvalidRequest):
            await recall.search(main, "word", limit=DEFAULT.agents.recall_results_max + 1)


# --- the past -------------------------------------------------------------------------------------


async def test_checkpoints_of_a_board_have_an_edge(
    main: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CHECKPOINTS_MAX of them; but a restore, which takes one, is never refused for that."""
    monkeypatch.setattr(checkpoints, "CHECKPOINTS_MAX", 2)
    await main.checkpoint("one")
    await main.checkpoint("two")
    with pytest.raises(LimitExceeded) as refused:
        await main.checkpoint("three")
    assert (refused.value.limit, refused.value.value) == ("CHECKPOINTS_MAX", 3)
    await main.restore("one")
    assert [each.kind for each in await main.checkpoints()] == ["named", "named", "before-restore"]


async def test_imports_have_an_edge(main: Board, service: Service) -> None:
    """IMPORTS_MAX under way in one process; nothing of them is left when it ends."""
    await main.checkpoint("one")
    page = await service.link(access.operator()).export("main", "one")
    assert page.manifest is not None
    assert page.signature is not None
    imports = Imports(service.host.store)

    async def begin(number: int) -> None:
        spec = ImportRequest("ab" * 7 + f"{number:02}", page.manifest or b"", page.signature or b"")
        await imports.begin(f"made-{number}", spec, "operator")

    for number in range(limits.DEFAULT.checkpoints.imports_max):
        await begin(number)
    with pytest.raises(LimitExceeded) as refused:
        await begin(99)
    assert refused.value.limit == "IMPORTS_MAX"
    await imports.aclose()
    await begin(0)
    await imports.aclose()
    assert await service.link(access.operator()).boards() == ["main"]


# --- attempts -------------------------------------------------------------------------------------


@pytest.mark.limits(merge_attempts_max=3)
async def test_a_merge_is_computed_so_often(
    main: Board, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MERGE_ATTEMPTS_MAX times; then its caller hears of the conflict."""
    other = Client(service.link(access.agent("bob"))).board("main")
    await main.put("public/map", {"n": 0})
    commit, tries = RequestHandler.commit, 0

    async def overtaken(link: RequestHandler, *args: Any) -> Any:
        nonlocal tries
        if link.agent == "operator":
            tries += 1
            await other.put("public/map", {"n": tries})
        return await commit(link, *args)

    monkeypatch.setattr(RequestHandler, "commit", overtaken)
    with pytest.raises(Conflict):
        await main.merge("public/map", {"mine": 1})
    assert tries == 3


@pytest.mark.limits(deliveries_max=2)
async def test_a_commit_gives_way_so_often(main: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """DELIVERIES_MAX times it brings what a checkpoint asks for; then the refusal is returned."""
    brought = 0

    async def bring(*_: Any, **__: Any) -> None:
        nonlocal brought
        brought += 1

    async def asked(*_: Any, **__: Any) -> Any:
        raise SnapshotFirst("operator", "system/barriers/operator", 1)

    async def nothing() -> list[Any]:
        return []

    found = main._writer
    found.deliver = nothing
    monkeypatch.setattr(found, "_carry_out", asked)
    monkeypatch.setattr(found, "_bring_with", bring)
    with pytest.raises(SnapshotFirst):
        await found.commit(writer.CommitRequest(()))
    assert brought == 2


# --- audit and keys -------------------------------------------------------------------------------


@pytest.mark.limits(audit_batch_max=3)
async def test_records_of_the_audit_share_a_commit(service: Service) -> None:
    """AUDIT_BATCH_MAX of them, the next one makes another; each is kept for AUDIT_KEPT_MS."""
    store, found = service.host.store, service.host.audit
    someone = replace(access.agent("ada"), credential=Credential("ada", ("id",), 0))
    for count, revision in ((3, 1), (4, 3)):
        for number in range(count):
            found.note(someone, "read", "main", check_key(f"public/{number}"), "access_denied")
        await found.settle()
        assert (await store.open(AUDIT_BOARD)).revision == revision
    page = await store.list(AUDIT_BOARD, "system/audit", limit=9)
    assert len(page.entries) == 7
    for entry in page.entries:
        assert entry.expires_at_ms == entry.time_ms + limits.AUDIT_KEPT_MS


async def test_the_command_for_the_key_has_a_time() -> None:
    """KEY_COMMAND_TIMEOUT_MS; a quick one is waited for."""
    quick = f"{sys.executable} -c \"print('{KEY_HEX}')\""
    await master_key.from_command(quick)
    slow = f'{sys.executable} -c "input()"'
    endless = f"{sys.executable} -c \"import signal; signal.pause(); print('{KEY_HEX}')\""
    for command in (slow, endless):
        with pytest.raises((InvalidRequest, Unavailable)) as refused:
            await master_key.from_command(command, 200)
        assert KEY_HEX not in str(refused.value.fields())


# --- watches --------------------------------------------------------------------------------------


async def test_a_delivery_has_an_edge(main: Board) -> None:
    """It ends with the revision that reaches WATCH_BATCH_BYTES_MAX, and holds one at least."""
    found = View(parse_patterns(["public/**"]), READ_ALL)
    for number in range(3):
        await main.put("public/big", "x" * 1_000 + str(number))
    for most, shown in ((1, [1, 1, 1]), (1_500, [2, 1])):
        store = main._link.origin.store  # type: ignore[attr-defined]
        reader = Feed(store, "main", limits=lowered(watch_batch_bytes_max=most).watch)
        head = await main.head()
        async with reader.watch(found, Position(head.epoch.id, head.revision - 3)) as watcher:
            deliveries = [await anext(watcher) for _ in shown]
        assert [len(delivery.revisions) for delivery in deliveries] == shown
        await reader.aclose()


async def test_a_mark_comes_after_a_while(main: Board) -> None:
    """PROGRESS_INTERVAL_MS without news: a watcher hears how far it is all the same."""
    store = main._link.origin.store  # type: ignore[attr-defined]
    reader = Feed(store, "main", limits=lowered(progress_interval_ms=50).watch)
    async with reader.watch(View((), READ_ALL), None) as watcher:
        begun_s = time.monotonic()
        delivery = await anext(watcher)
        assert time.monotonic() - begun_s >= 0.05
    assert delivery.revisions == ()
    assert delivery.position.revision == (await main.head()).revision
    await reader.aclose()


# --- at the edge of the network -------------------------------------------------------------------


@pytest.mark.parametrize(("left_ms", "good"), [(-60_000, True), (60_000, False)])
def test_a_token_in_a_url_has_an_hour(left_ms: int, good: bool) -> None:
    """DOCUMENT_TOKEN_TTL_MS_MAX, give or take what a test takes."""
    now_ms = time.time_ns() // 1_000_000
    grant = access.AccessGrant("public/memo/~doc/**", frozenset({Right.READ}))
    ends_ms = now_ms + limits.DOCUMENT_TOKEN_TTL_MS_MAX + left_ms
    holder = Principal("ada", (grant,), frozenset({"main"}), ends_ms)
    assert is_for_document(holder, "main", "public/memo") is good


def test_pings_come_so_often() -> None:
    """PING_INTERVAL_MS between two, and for the answer; the client does the same."""
    config, ping_s = _config(Starlette(), Settings()), DEFAULT.connection.ping_interval_ms / 1000
    assert config.ws_ping_interval == config.ws_ping_timeout == ping_s


@pytest.mark.limits(drain_timeout_ms=50)
async def test_a_stop_waits_only_so_long(
    service: Service, main: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DRAIN_TIMEOUT_MS for what is in flight; then connections are closed all the same."""
    held = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> Any:
        await held.wait()
        raise Unavailable("engine", "away")

    async with (
        serving(service) as served,
        talking(served.url, served.token(), greeting={}) as talk,
    ):
        monkeypatch.setattr(service.host.store, "list", hang)
        params = {"board": "main", "pattern": "**"}
        await talk.send({"id": 1, "method": "list", "params": params})
        assert "result" in await talk.ask(2, "whoami", {})
        async with asyncio.timeout(PATIENCE_S):
            await served.gate.drain()
        assert served.gate.connections == 1
        held.set()


async def test_what_an_import_begins_with_has_an_edge() -> None:
    """MANIFEST_BYTES_MAX and EXPORT_ITEMS_MAX."""
    good: dict[str, Any] = {
        "board": "b",
        "request": "ab" * 8,
        "manifest": "x" * limits.MANIFEST_BYTES_MAX,
        "signature": "",
        "items": [["public/l", 1]] * limits.EXPORT_ITEMS_MAX,
    }
    parse("import_begin", good, JSON)
    for field, more in (("manifest", "x"), ("items", [["public/l", 1]])):
        with pytest.raises(InvalidRequest):
            parse("import_begin", {**good, field: good[field] + more}, JSON)


@pytest.mark.limits(import_idle_ms=50)
async def test_an_import_whose_pages_do_not_come_is_given_up(main: Board, service: Service) -> None:
    """IMPORT_IDLE_MS after the last one; nothing of it is left."""
    await main.checkpoint("one")
    link = service.link(access.operator())
    page = await link.export("main", "one")
    spec = ImportRequest("ab" * 8, page.manifest or b"", page.signature or b"")
    await link.import_begin("made", spec)

    async def is_over() -> bool:
        return not service.host.imports._open

    await wait_until(is_over)
    with pytest.raises(InvalidRequest):
        await link.import_page("made", spec.request, 0, [])
    assert await link.boards() == ["main"]


async def test_findings_have_an_edge(
    main: Board, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FINDINGS_MAX are returned, and that there are more."""
    link = service.link(access.operator())
    archive = service.host.archive
    assert archive is not None

    for count, more in ((limits.FINDINGS_MAX, False), (limits.FINDINGS_MAX + 1, True)):

        async def findings(_: object, count: int = count) -> AsyncIterator[str]:
            for number in range(count):
                yield f"finding {number}"

        monkeypatch.setattr(archive, "verify", findings)
        told = await link.verify("main", 1)
        assert (len(told.findings), told.more) == (limits.FINDINGS_MAX, more)


async def test_the_report_of_a_crash_has_an_edge(main: Board) -> None:
    """AGENT_ERROR_BYTES_MAX, and no half of a character."""
    crashes = Crashes("ada", main, RestartPolicy())
    for error, kept in (
        ("x" * 2_048, 2_048),
        ("x" * 2_049, 2_048),
        ("x" + "\u20ac" * 2_000, 2_047),
    ):
        await crashes.add(error)
        assert len(crashes.error.encode()) == kept
    assert limits.AGENT_ERROR_BYTES_MAX == 2_048


def test_an_overlap_names_so_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """OVERLAP_CLIENTS_MAX: more are not written, and not read."""
    most = limits.OVERLAP_CLIENTS_MAX
    met = ysync.Met("text", 0, 1, tuple(range(most + 1)))
    (read,) = ysync.read_frame(ysync.write_met(met))
    assert isinstance(read, ysync.Met)
    assert read.clients == met.clients[:most]
    frame = ysync.write_met(met)
    monkeypatch.setattr(ysync, "OVERLAP_CLIENTS_MAX", most - 1)
    with pytest.raises(LimitExceeded):
        ysync.read_frame(frame)


def test_refusals_that_are_recorded_one_by_one_have_edges() -> None:
    """AUDIT_REFUSALS_MAX of all in a window, and AUDIT_KINDS_MAX distinct kinds."""
    found = Repeats()

    def refused(number: int) -> int:
        one = AuditRecord(0, f"agent{number}", "id", "read", "main", "public/a", "access_denied")
        return len(found.take(one))

    kinds = DEFAULT.security.audit_kinds_max
    assert sum(refused(number) for number in range(2 * kinds)) == kinds
    counted = found.counted()
    assert [(record.verb, record.count) for record in counted] == [(OTHERS, kinds)]
    most = DEFAULT.security.audit_refusals_max
    rest = sum(refused(number % kinds) for number in range(2 * most))
    assert kinds + rest == most
