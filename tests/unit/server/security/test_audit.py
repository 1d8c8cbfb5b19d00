"""The audit: what is recorded, what is not, and that a change to it shows."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from blackboard import limits
from blackboard.archive.sql import archive_beside
from blackboard.client.audit_record import FORGED, SEALED, UNKNOWN_KEY, AuditKeys, AuditRecord
from blackboard.client.client import Client
from blackboard.client.remote.link import connect
from blackboard.core import access
from blackboard.core.access import (
    AUDIT_BOARD,
    OWN_BOARDS,
    OWN_BOARDS_ARCHIVED,
    Credential,
    Principal,
)
from blackboard.core.commit import Append, Commit, CommitId, Delete, Grant, HeldFence, Put, Reading
from blackboard.core.model import Outcome
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import AccessDenied, Fenced, OutcomeUnknown, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.server.assembly import sealed
from blackboard.server.commit_queue import system_id
from blackboard.server.security.audit import (
    findings,
    looks_into_others,
    missing,
    unproved,
)
from blackboard.server.service import Service
from blackboard.server.sweeper import Sweeper
from blackboard.wire.codec import Prepared, encode_value, prepare
from tests.lowered import lowered
from tests.serving import serving
from tests.unit.server.hooked import service_over
from tests.waiting import TIMEOUT_S, wait_until

SECRET = "canary-secret"


@pytest.fixture
async def service(tmp_path: Path, limits: Limits) -> AsyncIterator[Service]:
    """A service that knows which tokens are revoked."""
    async with Service(await SqliteStore.at(tmp_path, "memory"), limits=limits) as service:
        await service.host.revocations.ready()
        yield service


def with_token(principal: Principal) -> Principal:
    """A principal that came with a token."""
    return replace(
        principal, credential=Credential(principal.name, (f"id-{principal.name}",), 2**50)
    )


def client(service: Service, principal: Principal) -> Client:
    """A client of somebody with a token."""
    return Client(service.link(with_token(principal)))


async def records(service: Service) -> list[tuple[str, str, str, str]]:
    """What was recorded: principal, verb, what, outcome."""
    found = await service.host.audit.read(None, 100)
    return [(r.principal, r.verb, r.what, r.outcome) for _, r in found]


async def test_what_is_recorded(service: Service) -> None:
    """Refusals, a fence, an operator's look, revocation; and nothing of what is usual."""
    ada, bob = (client(service, access.agent(n)).board("main") for n in ("ada", "bob"))
    operator = client(service, access.operator())
    await ada.put("private/ada/x", SECRET)
    await ada.get("private/ada/x")
    await ada.put("public/x", 1)
    await operator.board("main").get("public/x")
    with pytest.raises(AccessDenied):
        await bob.get("private/ada/x")
    with pytest.raises(AccessDenied):
        await bob.put("private/ada/x", SECRET)
    with pytest.raises(Fenced):
        await bob.commit(
            [Put("public/x", encode_value(2))], fences=[HeldFence("public/x", "bob", 1)]
        )
    await operator.board("main").get("private/ada/x")
    await operator.revoke(principal="bob")
    assert await records(service) == [
        ("bob", "read", "private/ada/x", "access_denied"),
        ("bob", "commit", "private/ada/x", "access_denied"),
        ("bob", "commit", "public/x", "fenced"),
        ("operator", "read", "private/ada/x", "private"),
        ("operator", "revoke", "bob", "ok"),
    ]


async def test_the_board_of_a_fenced_commit_is_recorded(service: Service) -> None:
    """Of one that a program makes in the same process, and of one that comes over a connection."""
    async with (
        serving(service) as served,
        connect(served.url, token=served.token(access.agent("bob"))) as connected,
    ):
        for bob, name in ((client(service, access.agent("bob")), "here"), (connected, "there")):
            board = bob.board(name)
            await board.put("public/x", 1)
            with pytest.raises(Fenced):
                await board.commit(
                    [Put("public/x", encode_value(2))], fences=[HeldFence("public/x", "bob", 1)]
                )
    found = await service.host.audit.read(None, 100)
    assert [(r.board, r.outcome) for _, r in found] == [("here", "fenced"), ("there", "fenced")]


async def test_a_look_at_private_leases_is_recorded(service: Service) -> None:
    """By its pattern; not one at public leases, or by an agent."""
    operator, ada = (client(service, each) for each in (access.operator(), access.agent("ada")))
    await ada.board("main").commit([Grant("private/ada/lock", "ada", 3_600_000)])
    for reader, pattern in ((operator, "public/**"), (ada, "private/**"), (operator, "private/**")):
        await reader.board("main").leases(pattern)
    assert await records(service) == [("operator", "leases", "private/**", "private")]


async def test_a_look_into_a_private_document_is_recorded(service: Service) -> None:
    """By its key; not one of the reader's own, or a public one."""
    operator, ada = (with_token(each) for each in (access.operator(), access.agent("ada")))
    for who, key in (
        (ada, "private/ada/memo"),
        (operator, "public/memo"),
        (operator, "private/operator/memo"),
        (operator, "private/ada/memo"),
        (operator, "inbox/ada/memo"),
    ):
        async with service.link(who).document("main", key):
            pass
    assert await records(service) == [
        ("operator", "document", "private/ada/memo", "private"),
        ("operator", "document", "inbox/ada/memo", "private"),
    ]


async def test_a_refused_look_into_a_private_document_is_recorded(service: Service) -> None:
    """As a refused read of an entry is."""
    with pytest.raises(AccessDenied):
        async with service.link(with_token(access.agent("bob"))).document(
            "main", "private/ada/memo"
        ):
            pass
    [found] = await records(service)
    assert found == ("bob", "document", "private/ada/memo/~doc/**", "access_denied")


@pytest.mark.limits(engine_check_interval_ms=20, sweep_entries_max=2)
async def test_records_that_expired_are_removed(tmp_path: Path, limits: Limits) -> None:
    """All of them, however many there are, and no other one."""
    async with Service(await SqliteStore.at(tmp_path, "memory"), limits=limits) as service:
        audit = service.host.audit
        audit.note_service("recover", "main", "recent")
        await audit.settle()
        await record_for_a_moment(service, 5)

        async def is_swept() -> bool:
            return [what for _, _, what, _ in await records(service)] == ["recent"]

        await wait_until(is_swept)
        audit.note_service("recover", "main", "next")
        await audit.settle()
        found = [record for _, record in await audit.read(None, 100)]
        assert not any(record.outcome == "corrupt" for record in found)


async def record_for_a_moment(service: Service, count: int) -> None:
    """Let the audit have records that expire at once, of another process."""
    store = service.host.store
    epoch = (await store.open(AUDIT_BOARD)).epoch.id
    record = encode_value(AuditRecord(1, "ada", "", "read", "main", "old", "ok").stored())
    ops = tuple(Append("system/audit", record, 1) for _ in range(count))
    await store.commit(AUDIT_BOARD, [prepare(Commit(system_id(), epoch, ops))])


async def test_two_services_remove_an_expired_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that came late changes nothing."""
    async with service_over(tmp_path) as (service, store):
        await record_for_a_moment(service, 1)

        async def is_due() -> bool:
            return bool((await store.due(AUDIT_BOARD, limit=1)).entries)

        await wait_until(is_due)
        sweeper, late = (Sweeper(service.boards, each) for each in ("ab", "cd"))
        due = await store.due(AUDIT_BOARD, limit=1)
        await sweeper.tend_own(100)
        assert await records(service) == []
        with monkeypatch.context() as patched:

            async def as_before(*_: object, **__: object) -> Reading:
                return due

            patched.setattr(store, "due", as_before)
            await late.tend_own(100)
        assert (sweeper.expired, late.expired, late.refused) == (1, 0, 1)


@pytest.mark.parametrize("is_archived", [False, True])
async def test_the_log_of_the_audit_is_compacted(tmp_path: Path, is_archived: bool) -> None:
    """To as many entries as are kept, none of which is missing in the archive. Else what was
    removed from the audit would stay in its log for good."""
    archive = await archive_beside(tmp_path) if is_archived else None
    async with Service(await SqliteStore.at(tmp_path, "memory"), archive=archive) as service:
        store, audit = service.host.store, service.host.audit
        for number in range(30):
            audit.note_service("recover", "main", str(number))
            await audit.settle()
        if service.host.archiver is not None:
            service.host.archiver.follow(AUDIT_BOARD)
            head = await store.open(AUDIT_BOARD)
            await service.host.archiver.reached(AUDIT_BOARD, head.revision, 60_000)
        await Sweeper(service.boards, "ab").tend_own(10)
        assert (await store.open(AUDIT_BOARD)).log_entries == 10
        found = [record.what for _, record in await audit.read(None, 100)]
        assert found == [str(number) for number in range(30)]
    if is_archived:
        again = await archive_beside(tmp_path)
        async with Service(await SqliteStore.at(tmp_path, "memory"), archive=again) as service:
            assert len(await service.host.audit.read(None, 100)) == 30


async def test_what_expired_leaves_the_archive_too(tmp_path: Path) -> None:
    """The records that are kept stay, and come back when the engine has lost them."""
    archive = await archive_beside(tmp_path)
    async with Service(await SqliteStore.at(tmp_path, "memory"), archive=archive) as service:
        store, audit, archiver = service.host.store, service.host.audit, service.host.archiver
        assert archiver is not None
        audit.note_service("recover", "main", "recent")
        await audit.settle()
        await record_for_a_moment(service, 3)

        async def is_due() -> bool:
            return len((await store.due(AUDIT_BOARD, limit=9)).entries) == 3

        async def archived() -> None:
            archiver.follow(AUDIT_BOARD)
            head = await store.open(AUDIT_BOARD)
            await archiver.reached(AUDIT_BOARD, head.revision, 60_000)

        await archived()
        assert len(archived_items(tmp_path)) == 4
        await wait_until(is_due)
        sweeper = Sweeper(service.boards, "ab")
        await sweeper.tend_own(100)
        await archived()
        await sweeper.tend_own(100)  # it pruned a moment ago
        assert len(archived_items(tmp_path)) > 1
        await Sweeper(service.boards, "cd").tend_own(100)
        assert len(archived_items(tmp_path)) == 1
    for file in (tmp_path / "boards").glob("~audit*"):
        file.unlink()
    again = await archive_beside(tmp_path)
    async with Service(await SqliteStore.at(tmp_path, "memory"), archive=again) as service:
        assert [what for _, _, what, _ in await records(service)][:1] == ["recent"]
        await Sweeper(service.boards, "ef").tend_own(100)
    again = await archive_beside(tmp_path)
    async with Service(await SqliteStore.at(tmp_path, "memory"), archive=again) as service:
        assert [what for _, _, what, _ in await records(service)][:1] == ["recent"]


def archived_items(directory: Path) -> list[str]:
    """Keys of the audit's records that the archive has, one per version."""
    with closing(sqlite3.connect(directory / "archive.db")) as connection:
        found = connection.execute("SELECT key FROM version WHERE key LIKE 'system/audit/%'")
        return [str(key) for (key,) in found]


@pytest.mark.parametrize("board", OWN_BOARDS)
@pytest.mark.parametrize("is_archived", [False, True])
async def test_the_log_of_each_own_board_is_compacted(
    tmp_path: Path, board: str, is_archived: bool
) -> None:
    """Also of those that the archive does not have."""
    archive = await archive_beside(tmp_path) if is_archived else None
    async with Service(await SqliteStore.at(tmp_path, "memory"), archive=archive) as service:
        store, archiver = service.host.store, service.host.archiver
        epoch = (await store.open(board)).epoch.id
        for number in range(30):
            ops = (Put("system/some/key", encode_value(number)),)
            await store.commit(board, [prepare(Commit(system_id(), epoch, ops))])
        if archiver is not None and board in OWN_BOARDS_ARCHIVED:
            archiver.follow(board)
            await archiver.reached(board, (await store.open(board)).revision, 60_000)
        await Sweeper(service.boards, "ab").tend_own(10)
        assert (await store.open(board)).log_entries == 10


async def test_a_wish_is_recorded_in_words(tmp_path: Path) -> None:
    """Its fields that were given, by name; never the bytes of a manifest."""
    archive = await archive_beside(tmp_path)
    async with Service(await SqliteStore.at(tmp_path, "memory"), archive=archive) as service:
        await service.host.revocations.ready()
        told = await told_of_wishes(service, tmp_path / "first.bbx")
    assert re.sub("request=[0-9a-f]+", "request=R", told["checkpoint"]) == (
        "name=first request=R note=all agree kind=named"
    )
    assert re.fullmatch("request=[0-9a-f]+", told["import_begin"])
    assert re.fullmatch("to=first request=[0-9a-f]+", told["restore"])
    assert "patterns=private/ada/**" in told["watch"]


async def told_of_wishes(service: Service, file: Path) -> dict[str, str]:
    """Let an operator do something to whole boards; returns what was recorded, by verb."""
    root = client(service, access.operator())
    board = root.board("main")
    await board.put("public/a", 1)
    await board.checkpoint("first", note="all agree")
    await board.export("first", file)
    await root.import_board(file, "other")
    await board.restore("first")
    async with board.watch("private/ada/**", after=0):
        pass
    return {verb: what for _, verb, what, _ in await records(service)}


async def test_no_value_and_no_token_is_recorded(service: Service) -> None:
    """Only who, what for, and the id of the token."""
    bob = client(service, access.agent("bob")).board("main")
    with pytest.raises(AccessDenied):
        await bob.put("private/ada/x", SECRET)
    found = await service.host.audit.read(None, 100)
    assert SECRET not in repr(found)
    assert found[0][1].token == "id-bob"


async def test_who_came_without_a_token_is_not_recorded(service: Service) -> None:
    """A program that opened the service in its own process."""
    with pytest.raises(AccessDenied):
        await Client(service.link(access.agent("bob"))).board("main").get("private/ada/x")
    assert await records(service) == []


async def test_only_an_admin_reads_it_and_nobody_writes_it(service: Service) -> None:
    """Its board is one of the service's own."""
    bob, operator = (client(service, p) for p in (access.agent("bob"), access.operator()))
    with pytest.raises(AccessDenied):
        [r async for r in bob.audit()]
    with pytest.raises(AccessDenied):
        await operator.board("~audit").delete_prefix("system/audit")
    found = [r async for r in operator.audit()]
    assert (found[0].principal, found[0].verb, found[0].outcome) == (
        "bob",
        "audit",
        "access_denied",
    )
    assert findings(found) == []


async def test_a_chain_shows_what_was_changed(service: Service) -> None:
    """Changed, taken out, exchanged; the writers' chains are apart."""
    bob = client(service, access.agent("bob")).board("main")
    for number in range(5):
        with pytest.raises(AccessDenied):
            await bob.get(f"private/ada/{number}")
    good = [record for _, record in await service.host.audit.read(None, 100)]
    assert findings(good) == []
    assert [record.number for record in good] == [1, 2, 3, 4, 5]
    for bad in (
        [*good[:2], replace(good[2], principal="eve"), *good[3:]],
        [*good[:2], *good[3:]],
        [good[0], good[2], good[1], *good[3:]],
    ):
        assert findings(bad)


async def test_an_erasure_names_agent_and_board(tmp_path: Path) -> None:
    """Whom it was done to, and where; and that the service made keys, and with which master key."""
    wrapper = LocalWrapper.of(new_master_key())
    store, _ = await sealed(await SqliteStore.at(tmp_path, "memory"), None, wrapper)
    async with Service(store) as service:
        await service.host.revocations.ready()
        operator = client(service, access.operator())
        await client(service, access.agent("ada")).board("main").put("private/ada/a", SECRET)
        await operator.erase("ada", board="main")
        await operator.erase("ada")
        await operator.rewrap()
        found = [record for _, record in await service.host.audit.read(None, 100)]
    gone = "no live file holds what was replaced"
    assert [(r.principal, r.verb, r.board, r.what) for r in found] == [
        ("~system", "use_key", "", f"master key {wrapper.name}"),
        ("~system", "make_key", "main", "private/ada"),
        ("~system", "scrub_keys", "", gone),
        ("operator", "erase", "main", "ada"),
        ("~system", "scrub_keys", "", gone),
        ("operator", "erase", "", "ada"),
        ("~system", "scrub_keys", "", gone),
        ("operator", "rewrap", "", ""),
    ]


@pytest.mark.limits(audit_window_ms=2**50)
async def test_a_flood_of_refusals_is_counted(service: Service) -> None:
    """So that it fills no disk; nothing of it is lost but what each was about."""
    alike = DEFAULT.security.audit_alike_max
    bob = client(service, access.agent("bob")).board("main")
    for number in range(200):
        with pytest.raises(AccessDenied):
            await bob.get(f"private/ada/{number}")
    for _ in range(300):
        service.host.audit.note_stranger("authenticate", "it has expired", "unauthenticated")
    found = [record for _, record in await service.host.audit.read(None, 100)]
    reads = [r for r in found if r.verb == "read"]
    assert [r.count for r in reads] == [1] * alike + [200 - alike]
    assert (reads[-1].what, reads[-1].principal) == ("private/ada/199", "bob")
    strangers = [r for r in found if r.verb == "authenticate"]
    assert sum(r.count for r in strangers) == 300
    assert {(r.principal, r.token, r.what) for r in strangers} == {("", "", "it has expired")}
    assert findings(found) == []


@pytest.mark.limits(audit_window_ms=50, audit_alike_max=1)
async def test_what_was_counted_is_written_when_its_time_is_over(service: Service) -> None:
    """Without anything else happening; and at the end of the service."""
    audit = service.host.audit
    audit.note_stranger("connect", "origin", "not_allowed")
    audit.note_stranger("connect", "origin", "not_allowed")

    async def is_written() -> bool:
        page = await service.host.store.list(AUDIT_BOARD, "system/audit", limit=10)
        return len(page.entries) == 2  # one by itself, and then what was counted

    await service.host.store.open(AUDIT_BOARD)
    await wait_until(is_written)


async def test_what_was_noted_last_is_written_at_the_end(tmp_path: Path) -> None:
    """Though it did not wait for others yet: the next process reads it."""
    async with Service(await SqliteStore.at(tmp_path, "memory")) as ending:
        ending.host.audit.note_service("make_key", "main", "last")
    async with Service(await SqliteStore.at(tmp_path, "memory")) as service:
        assert ("~system", "make_key", "last", "ok") in await records(service)


async def test_what_the_end_interrupts_is_written_once(tmp_path: Path) -> None:
    """A record that stands there twice would look as if somebody had put it in."""
    async with service_over(tmp_path) as (service, store):
        written = asyncio.Event()

        async def answer_never() -> None:
            written.set()
            await asyncio.Event().wait()

        store.hook("after commit", answer_never)
        service.host.audit.note_service("make_key", "main", "one")
        await written.wait()
        store.hooks.clear()
        await service.host.audit.aclose()
        service.host.audit.note_service("make_key", "main", "two")
        found = [record for _, record in await service.host.audit.read(None, 10)]
        assert [record.what for record in found] == ["one", "two"]
        assert findings(found) == []


class Forgetful(SqliteStore):
    """Once, it carries out a commit and does not say so."""

    forgets = False

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`, but for that."""
        outcomes = await super().commit(board, batch)
        if not self.forgets:
            return outcomes
        self.forgets = False
        names = [prepared.commit.id for prepared in batch]
        return [OutcomeUnknown(n.agent, n.lane, n.incarnation, n.step, "lost") for n in names]


async def test_what_was_written_without_an_answer_is_written_once(
    tmp_path: Path,
) -> None:
    """It is sent again under its name, and what comes meanwhile follows it."""
    store = await Forgetful.at(tmp_path, "memory")
    async with Service(store, limits=lowered(audit_retry_ms=10)) as service:
        audit = service.host.audit
        store.forgets = True
        for number in range(3):
            audit.note_service("make_key", "main", str(number))
        found = [record for _, record in await audit.read(None, 10)]
        assert [record.what for record in found] == ["0", "1", "2"]
        assert findings(found) == []
        assert not store.forgets


async def test_who_takes_the_end_away_is_noticed_by_its_writer(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as it runs: it looks for its last record before it writes the next."""
    audit, store = service.host.audit, service.host.store
    for number in range(3):
        audit.note_service("make_key", "main", str(number))
    page = await audit.read(None, 10)
    head = await store.open(AUDIT_BOARD)
    name = CommitId("intruder", 0, "i", 1)
    cut = Commit(name, head.epoch.id, (Delete(page[-1][0]),))
    (outcome,) = await store.commit(AUDIT_BOARD, [prepare(cut)])
    assert not isinstance(outcome, Exception)
    audit.note_service("make_key", "main", "after")
    found = [record for _, record in await audit.read(None, 10)]
    assert [(r.verb, r.outcome) for r in found[2:]] == [("audit", "corrupt"), ("make_key", "ok")]
    assert findings(found) == [f"{found[0].writer}: 4 follows 2"]
    assert "removed" in caplog.text


class Full(SqliteStore):
    """It has no room for the next commits."""

    left = 0

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`, but for those."""
        if self.left:
            self.left -= 1
            raise Unavailable(what=f"board {board}", reason="disk is full")
        return await super().commit(board, batch)


async def test_an_outage_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And that it is over; a full disk gets no line for each attempt."""
    store = await Full.at(tmp_path, "memory")
    async with Service(store, limits=lowered(audit_retry_ms=1)) as service:
        await service.host.audit.settle()
        store.left = 20
        service.host.audit.note_service("make_key", "main", "x")
        await service.host.audit.settle()
        assert store.left == 0
    said = [record.getMessage() for record in caplog.records if "audit" in record.getMessage()]
    assert len(said) == 2
    assert "disk is full" in said[0]
    assert said[1] == "audit records are written again"


async def test_the_audit_is_readable_while_nothing_can_be_written(tmp_path: Path) -> None:
    """On a full disk; what waits in memory is there when there is room again."""
    store = await Full.at(tmp_path, "memory")
    limits = lowered(audit_retry_ms=10, engine_timeout_ms=50)
    async with Service(store, limits=limits) as service, asyncio.timeout(TIMEOUT_S):
        audit = service.host.audit
        audit.note_service("make_key", "main", "before")
        await audit.settle()
        store.left = 2**50
        audit.note_service("make_key", "main", "meanwhile")
        for _ in range(2):
            found = await audit.read(None, 10)
            assert [record.what for _, record in found] == ["before"]
        store.left = 0
        await audit.settle()
        found = await audit.read(None, 10)
        assert [record.what for _, record in found] == ["before", "meanwhile"]


@pytest.mark.limits(engine_timeout_ms=50)
async def test_the_audit_is_readable_while_a_record_has_no_answer(
    tmp_path: Path, limits: Limits
) -> None:
    """However long the engine takes to write it."""
    async with service_over(tmp_path, limits) as (service, store):
        audit = service.host.audit
        audit.note_service("make_key", "main", "before")
        await audit.settle()
        goes_on = asyncio.Event()

        async def held() -> None:
            await goes_on.wait()

        store.hook("before commit", held)
        audit.note_service("make_key", "main", "meanwhile")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await audit.read(None, 10)
        finally:
            goes_on.set()
        assert [record.what for _, record in found] == ["before"]
        await audit.settle()


async def test_an_export_shows_what_was_taken_away_later(service: Service) -> None:
    """The end too, which no chain can show; but not what is merely too old."""
    for number in range(4):
        service.host.audit.note_service("make_key", "main", str(number))
    before = [record for _, record in await service.host.audit.read(None, 10)]
    now_ms = before[0].time_ms
    assert missing(before, before, now_ms) == []
    assert missing(before[:3], before, now_ms) == [f"{before[3].writer}: 4 is gone"]
    assert missing([*before[:3], replace(before[3], what="x")], before, now_ms) == [
        f"{before[3].writer}: 4 is not what was exported"
    ]
    assert missing([], before, now_ms + limits.AUDIT_KEPT_MS + 60_000) == []


@pytest.mark.limits(audit_queue_max=3)
async def test_at_most_so_many_records_wait(service: Service) -> None:
    """What is above is counted, and that is recorded."""
    assert DEFAULT.security.audit_queue_max >= 1000
    who = with_token(access.agent("bob"))
    for _ in range(5):
        service.host.audit.note(who, "restore", "main", "x", "ok")
    found = await records(service)
    assert len(found) == 4
    assert found[-1][2] == "2 left out"


@pytest.mark.parametrize(
    ("pattern", "looks"),
    [
        ("private/**", True),
        ("**", True),
        ("*/ada/x", True),
        ("inbox/ada/x", True),
        ("private/operator/x", False),
        ("public/**", False),
        ("system/checkpoints/x", False),
    ],
)
def test_which_looks_are_recorded(pattern: str, looks: bool) -> None:
    """Those of who may read everybody's, at what is not his own."""
    assert looks_into_others(access.operator(), [pattern]) is looks
    assert not looks_into_others(access.agent("ada"), [pattern])


def test_a_record_is_hashed_whole() -> None:
    """Each field that is kept counts."""
    place = ("x", 1, "h", 1, "key", "seal")
    record = AuditRecord(1, "p", "t", "v", "b", "w", "o", *place)
    fields = record.stored()
    changed = [
        AuditRecord(**{**fields, name: "other" if isinstance(value, str) else 9})
        for name, value in fields.items()
    ]
    assert len({record.hash(), *(other.hash() for other in changed)}) == len(changed) + 1


KEYS = ["first secret", "second secret"]


async def sealed_records(service: Service, secrets: list[str], count: int) -> list[AuditRecord]:
    """So many refusals, sealed by a service with these secrets."""
    service.host.audit.seal_with(secrets)
    bob = client(service, access.agent("bob")).board("main")
    for number in range(count):
        with pytest.raises(AccessDenied):
            await bob.get(f"private/ada/{number}")
    return [record for _, record in await service.host.audit.read(None, 100)]


async def rewrite(service: Service, made: list[AuditRecord]) -> list[AuditRecord]:
    """What the service reads once somebody wrote these records in place of all others."""
    store = service.host.store
    page = await store.list(AUDIT_BOARD, "system/audit", limit=100)
    name = CommitId("~system", 0, "thief", 1)
    ops = [Delete(entry.key) for entry in page.entries[len(made) :]]
    puts = [
        Put(entry.key, encode_value({**record.stored(), "checked": SEALED}))
        for entry, record in zip(page.entries, made, strict=False)
    ]
    epoch = (await store.open(AUDIT_BOARD)).epoch.id
    await store.commit(AUDIT_BOARD, [prepare(Commit(name, epoch, (*puts, *ops)))])
    return [record for _, record in await service.host.audit.read(None, 100)]


def chained(made: list[AuditRecord], *, is_sealed: bool = True) -> list[AuditRecord]:
    """Records as one chain, whose hashes are right, with their seals or without."""
    found: list[AuditRecord] = []
    for number, record in enumerate(made, made[0].number):
        previous = found[-1].hash() if found else record.previous
        kept = record if is_sealed else replace(record, sealed_with="", seal="")
        found.append(replace(kept, number=number, previous=previous))
    return found


async def test_a_rewritten_chain_is_noticed(service: Service) -> None:
    """Its hashes are right, but not its signatures: write access to the engine does not give the
    key."""
    made = await sealed_records(service, KEYS, 4)
    assert [record.checked for record in made] == [SEALED] * 4
    assert findings(made) == []
    assert unproved(made) == 0
    found = await rewrite(service, chained([made[0], *made[2:]]))
    assert [record.checked for record in found] == [SEALED, FORGED, FORGED]
    assert "forged" in findings(found)[0]


async def test_a_thief_without_the_secret_cannot_seal(service: Service) -> None:
    """Neither with a key of his own, nor with none, nor by saying that it was checked."""
    made = await sealed_records(service, KEYS, 4)
    own = AuditKeys(["a secret of the thief"])
    kept = [made[0], *made[2:]]
    resealed = [own.sealed(replace(record, seal="")) for record in chained(kept)]
    for forged in (resealed, chained(kept, is_sealed=False), [kept[0], resealed[1]]):
        found = await rewrite(service, forged)
        assert SEALED not in [record.checked for record in found[1:]]
        assert findings(found) or unproved(found) == len(found)


async def test_the_end_that_was_taken_from_a_sealed_chain_shows_in_an_export(
    service: Service,
) -> None:
    """The seals do not tell of it: an export does."""
    made = await sealed_records(service, KEYS, 4)
    found = await rewrite(service, made[:2])
    assert findings(found) == []
    assert len(missing(found, made, made[0].time_ms)) == 2


async def test_records_of_an_older_version_are_read_and_distinguished(service: Service) -> None:
    """They have no seal, and hash as they did."""
    made = await sealed_records(service, [], 3)
    assert [record.checked for record in made] == [""] * 3
    assert "sealed_with" not in made[0].stored()
    assert (findings(made), unproved(made)) == ([], 3)
    service.host.audit.seal_with(KEYS)
    again = [record for _, record in await service.host.audit.read(None, 100)]
    assert missing(again, made, made[0].time_ms) == []


async def test_a_request_without_a_seal_behind_sealed_ones_is_noticed(service: Service) -> None:
    """No service writes that any more."""
    made = await sealed_records(service, KEYS, 2)
    forged = replace(made[1], writer="another", number=1, previous="", sealed_with="", seal="")
    assert findings([made[0], replace(forged, checked="")]) == ["another: 1 has no signature"]


async def test_secrets_change_and_old_seals_still_check(service: Service) -> None:
    """The first key signs and all of them verify; a record signed with a missing key is
    reported."""
    await sealed_records(service, KEYS[:1], 1)
    for secrets, expected in ((KEYS[::-1], SEALED), (KEYS[1:], UNKNOWN_KEY)):
        service.host.audit.seal_with(secrets)
        [(_, record)] = await service.host.audit.read(None, 100)
        assert record.checked == expected
    assert (findings([record]), unproved([record])) == ([], 1)
