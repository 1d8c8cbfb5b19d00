"""Revocation counts at submission, as a commit leaves for the engine, and at delivery."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import Credential, Principal
from blackboard.core.commit import Commit, CommitId, Put
from blackboard.core.model import Outcome
from blackboard.errors import LimitExceeded, Overloaded, Unauthenticated, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.server.commit_queue import salted
from blackboard.server.security import revocations
from blackboard.server.security.revocations import Permit, Revocations
from blackboard.server.service import Service
from blackboard.wire.codec import Prepared, encode_value, prepare
from tests.conformance.peers import Peer
from tests.lowered import lowered, marked
from tests.unit.server.hooked import HookedStore, service_over
from tests.waiting import slow_at_first, wait_until

PATIENCE_S = 60
ADA = replace(access.agent("ada"), credential=Credential("ada", ("token-1",), 0))
Parts = tuple[Service, HookedStore]


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> Limits:
    """The usual ones: how often a process hears, and what is stale, matters here."""
    return marked(request.node)


@pytest.fixture
async def parts(tmp_path: Path, limits: Limits) -> AsyncIterator[Parts]:
    """A service that follows the revocations, and its engine."""
    async with service_over(tmp_path, limits) as (service, store):
        await service.host.revocations.ready()
        yield service, store


def board_of(service: Service, principal: Principal = ADA) -> Board:
    return Client(service.link(principal)).board("main")


class Held:
    """An engine whose commits to board main wait until `let_go`."""

    def __init__(self, store: HookedStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gate, self._commit, self.begun = asyncio.Event(), store.commit, 0
        monkeypatch.setattr(store, "commit", self._wait)
        monkeypatch.setattr(store, "begin", lambda *_given: False)

    async def _wait(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        if board == "main":
            self.begun += 1
            await self._gate.wait()
        return await self._commit(board, batch)

    def let_go(self) -> None:
        self._gate.set()

    async def has_begun(self, count: int) -> None:
        async def it_has() -> bool:
            return self.begun >= count

        await wait_until(it_has)


@pytest.fixture
async def held(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    """The engine, held up once board main exists and holds something."""
    service, store = parts
    await board_of(service).put("public/mine", 0)
    found = Held(store, monkeypatch)
    yield found
    found.let_go()


async def revoke(service: Service) -> None:
    await service.link(access.operator()).revoke(tokens=["token-1"])


async def test_a_commit_that_waits_is_not_carried_out_under_a_revoked_token(
    parts: Parts, held: Held
) -> None:
    """It was permitted when it came; when it would leave for the engine it is not any more."""
    service, _ = parts
    mine, other = board_of(service), board_of(service, access.agent("bob"))
    async with anyio.create_task_group() as tasks:
        for number in range(2):  # as many calls as may be in flight
            tasks.start_soon(other.put, f"public/{number}", 1)
            await held.has_begun(number + 1)
        waiting = asyncio.create_task(mine.put("public/mine", 1))
        queue = (await service.boards.use("main")).queue
        await wait_until(_asks(lambda: len(queue._waiting) == 1))
        revoking = asyncio.create_task(revoke(service))
        await wait_until(_asks(lambda: service.host.revocations.epoch >= 1))
        assert not revoking.done(), "what is with the engine is not decided yet"
        held.let_go()
        with anyio.fail_after(PATIENCE_S):
            await revoking
            with pytest.raises(Unauthenticated, match="revoked"):
                await waiting
    assert await other.get("public/mine") == 0
    assert await other.get("public/0") == 1


async def test_when_it_is_answered_nothing_is_under_way_any_more(parts: Parts, held: Held) -> None:
    """A commit that is with the engine is decided before; it counts, and it is the last one."""
    service, _ = parts
    mine = board_of(service)
    await mine.head()
    last = asyncio.create_task(mine.put("public/a", 1))
    await held.has_begun(1)
    revoking = asyncio.create_task(revoke(service))
    await wait_until(_asks(lambda: service.host.revocations.epoch >= 1))
    assert not revoking.done()
    held.let_go()
    with anyio.fail_after(PATIENCE_S):
        await revoking
    head = await board_of(service, access.operator()).head()
    await last
    assert head.revision == 2
    with pytest.raises(Unauthenticated):
        await mine.put("public/a", 2)


async def test_a_token_that_runs_out_while_its_commit_waits(
    parts: Parts, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same: it is looked at again when the commit would leave."""
    service, _ = parts
    other = board_of(service, access.agent("bob"))
    ends_ms = time.time_ns() // 1_000_000 + 3_600_000
    mine = board_of(service, replace(ADA, expires_at_ms=ends_ms))
    await mine.head()
    async with anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(other.put, f"public/{number}", 1)
            await held.has_begun(number + 1)
        waiting = asyncio.create_task(mine.put("public/mine", 1))
        queue = (await service.boards.use("main")).queue
        await wait_until(_asks(lambda: len(queue._waiting) == 1))
        monkeypatch.setattr(revocations, "_now_ms", lambda: ends_ms)
        held.let_go()
        with pytest.raises(Unauthenticated, match="expired"):
            await waiting
    assert await other.get("public/mine") == 0


async def test_two_revocations_at_once_are_both_recorded(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the engine answers the second first."""
    service, store = parts
    link = service.link(access.operator())
    await link.revoke(tokens=["token-0"])
    monkeypatch.setattr(store, "commit", slow_at_first(store.commit))
    await asyncio.gather(link.revoke(tokens=["token-1"]), link.revoke(tokens=["token-2"]))


async def test_a_document_is_closed_to_whose_token_was_revoked(parts: Parts) -> None:
    """At the next thing that is said or told, also in this process."""
    service, _ = parts
    link = service.link(ADA)
    async with link.document("main", "public/memo") as pipe:
        await pipe.receive()
        await revoke(service)
        with pytest.raises(Unauthenticated, match="revoked"):
            await pipe.send(b"\x00\x00\x01\x00")


async def test_an_edit_that_waits_is_not_committed_under_a_revoked_token(
    parts: Parts, held: Held
) -> None:
    """One that is with the engine counts; what its author sent after it does not any more."""
    service, _ = parts
    async with Peer().connected(service.link(ADA), "main", "public/memo") as ada:
        await ada.sync()
        await ada.push(ada.edit("first "))
        await held.has_begun(1)
        await ada.push(ada.edit("second "))
        revoking = asyncio.create_task(revoke(service))
        await wait_until(_asks(lambda: service.host.revocations.epoch >= 1))
        held.let_go()
        with anyio.fail_after(PATIENCE_S):
            await revoking
        assert ada.pipe is not None
        ended = asyncio.ensure_future(ada.pipe.ended())
        await wait_until(_asks(lambda: ended.done() or held.begun > 1))
        ended.cancel()
        assert held.begun == 1
    async with Peer().connected(service.link(access.operator()), "main", "public/memo") as other:
        await other.sync()
        assert str(other.text) == "first "


async def test_an_edit_in_the_queue_is_not_committed_under_a_revoked_token(
    parts: Parts, held: Held
) -> None:
    service, _ = parts
    other = board_of(service, access.agent("bob"))
    queue = (await service.boards.use("main")).queue
    async with (
        Peer().connected(service.link(ADA), "main", "public/memo") as ada,
        anyio.create_task_group() as tasks,
    ):
        await ada.sync()
        for number in range(2):  # as many calls as may be in flight
            tasks.start_soon(other.put, f"public/{number}", 1)
            await held.has_begun(number + 1)
        await ada.push(ada.edit("late "))
        await wait_until(_asks(lambda: len(queue._waiting) == 1))
        revoking = asyncio.create_task(revoke(service))
        await wait_until(_asks(lambda: service.host.revocations.epoch >= 1))
        held.let_go()
        with anyio.fail_after(PATIENCE_S):
            await revoking
    async with Peer().connected(service.link(access.operator()), "main", "public/memo") as reader:
        await reader.sync()
        assert str(reader.text) == ""


async def test_an_edit_that_was_not_sent_yet_is_not_committed_under_a_revoked_token(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session checked the token before. The queue was full for a moment."""
    service, _ = parts
    await board_of(service).put("public/mine", 0)
    queue, revoked = (await service.boards.use("main")).queue, asyncio.Event()
    submit = queue.submit

    def full_once(prepared: Prepared, permit: Permit | None) -> Awaitable[Any]:
        if permit is not None and permit[0] is ADA and not revoked.is_set():
            asyncio.get_running_loop().create_task(revoke(service))
            revoked.set()
            raise Overloaded("board main", "too many commits are waiting", 20)
        return submit(prepared, permit)

    monkeypatch.setattr(queue, "submit", full_once)
    async with Peer().connected(service.link(ADA), "main", "public/memo") as ada:
        await ada.sync()
        await ada.push(ada.edit("late "))
        await revoked.wait()
        with contextlib.suppress(Unauthenticated):
            await ada.refusal()
    async with Peer().connected(service.link(access.operator()), "main", "public/memo") as reader:
        await reader.sync()
        assert str(reader.text) == ""


async def test_a_commit_whose_board_is_opened_first_is_not_carried_out_under_a_revoked_token(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token was checked before that, which may take seconds."""
    service, _ = parts
    head, boards = await board_of(service).head(), service.boards
    begin = boards.find

    async def slowly(board: str, opener: str | None) -> Any:
        await revoke(service)
        return await begin(board, opener)

    link = service.link(ADA)
    monkeypatch.setattr(boards, "get", lambda _: None)
    monkeypatch.setattr(boards, "find", slowly)
    commit = Commit(
        CommitId("ada", 0, "late", 1), head.epoch.id, (Put("public/a", encode_value(1)),)
    )
    with pytest.raises(Unauthenticated):
        await link.commit("main", commit)
    monkeypatch.undo()
    assert await board_of(service, access.operator()).get("public/a") is None


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_revocation_waits_for_a_commit_that_goes_past_the_queue(
    parts: Parts, held: Held, is_cancelled: bool
) -> None:
    """As a restore does: a long one is not decided any more once the revocation was answered. Also
    when its client has gone."""
    service, _ = parts
    opened = await service.boards.use("main")
    epoch = (await opened.head()).epoch.id
    commit = Commit(CommitId("ada", 0, "late", 1), epoch, (Put("public/mine", encode_value(1)),))
    permit = service.host.revocations.permit(ADA)
    late = asyncio.create_task(opened.commit_past(prepare(salted(commit)), permit))
    await held.has_begun(1)
    if is_cancelled:
        late.cancel()
        await asyncio.wait([late])
    revoking = asyncio.create_task(revoke(service))
    await wait_until(_asks(lambda: service.host.revocations.epoch >= 1))
    assert not revoking.done()
    held.let_go()
    with anyio.fail_after(PATIENCE_S):
        await asyncio.wait([late])
        await revoking
    assert await board_of(service, access.operator()).get("public/mine") == 1


async def test_who_hears_nothing_lets_nobody_in(parts: Parts) -> None:
    """ACCESS_STALE_MS after the last news, and until there is some again."""
    service, store = parts
    found = service.host.revocations
    found.check(ADA)

    async def away() -> None:
        raise Unavailable("engine", "away")

    found._limits = lowered(access_stale_ms=1_500).security
    store.hook("before log", away)

    async def is_refused() -> bool:
        try:
            found.check(ADA)
        except Unavailable:
            return True
        return False

    await wait_until(is_refused)
    idle_s = asyncio.get_running_loop().time() - found._heard_s
    assert idle_s > 1.5
    assert isinstance(found.recheck([(ADA, found.epoch)])[0], Unavailable)
    store.hooks.clear()

    async def is_let_in() -> bool:
        return not await is_refused()

    await wait_until(is_let_in)


async def test_following_goes_on_after_an_error_that_nobody_foresaw(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """Else every token would be refused until the service is started again."""
    service, store = parts
    found, failed = service.host.revocations, asyncio.Event()

    async def fail() -> None:
        failed.set()
        raise RuntimeError("nobody foresaw this")

    store.hook("before open", fail)
    await found._feed.end(Unavailable("engine", "away"))  # it begins to follow once more
    await failed.wait()
    store.hooks.clear()
    before_s = found._heard_s
    await wait_until(_asks(lambda: found._heard_s > before_s))
    assert "nobody foresaw this" in caplog.text


async def test_what_was_revoked_while_nothing_was_heard_is_told_afterwards(parts: Parts) -> None:
    """So that connections of its tokens are closed, although nothing comes with the watch."""
    service, store = parts
    found, other, told = service.host.revocations, Revocations(store), list[int]()
    await other.ready()
    await found._feed.end(Unavailable("engine", "away"))  # it pauses before it follows once more
    found.changed.append(lambda: told.append(found.epoch))
    await other.revoke(["token-1"], None, None, by=access.operator())
    await other.aclose()
    await wait_until(_asks(lambda: bool(told)))
    with pytest.raises(Unauthenticated):
        found.check(ADA)


async def test_the_edge_of_staleness(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to ACCESS_STALE_MS what is known counts; a millisecond later it does not."""
    service, _ = parts
    found, loop = service.host.revocations, asyncio.get_running_loop()
    now_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now_s)
    found._heard_s = now_s - DEFAULT.security.access_stale_ms / 1000 + 0.001
    found.check(ADA)
    found._heard_s = now_s - DEFAULT.security.access_stale_ms / 1000 - 0.001
    with pytest.raises(Unavailable):
        found.check(ADA)


@pytest.mark.limits(access_stale_ms=50)
async def test_who_cannot_begin_to_follow_says_so(tmp_path: Path, limits: Limits) -> None:
    """After ACCESS_STALE_MS, and not before the first answer."""
    async with service_over(tmp_path, limits) as (service, store):

        async def away() -> None:
            raise Unavailable("engine", "away")

        store.hook("after list", away)
        with pytest.raises(Unavailable, match="cannot be read"):
            await service.host.revocations.ready()


@pytest.mark.limits(revocations_max=3)
async def test_the_number_of_revocations_has_an_edge(parts: Parts) -> None:
    """REVOCATIONS_MAX records; naming one again needs no room."""
    link = parts[0].link(access.operator())
    assert await link.revoke(tokens=["a", "b"], principal="bob") == 3
    with pytest.raises(LimitExceeded) as refused:
        await link.revoke(tokens=["c"])
    told = refused.value
    assert (told.limit, told.value, told.maximum) == ("REVOCATIONS_MAX", 4, 3)
    assert await link.revoke(tokens=["a"]) == 3


@pytest.mark.limits(revocations_max=3, revocations_own_max=2)
async def test_holders_of_tokens_leave_room_for_admins(parts: Parts) -> None:
    """A token revokes itself, and so does each one that is narrowed from it."""
    service, _ = parts
    for number in range(2):
        await service.link(_narrowed(number)).revoke(tokens=[f"narrowed-{number}"])
    with pytest.raises(LimitExceeded, match="REVOCATIONS_OWN_MAX"):
        await service.link(_narrowed(2)).revoke(tokens=["narrowed-2"])
    assert await service.link(access.operator()).revoke(principal="ada") == 3


@pytest.mark.limits(revocations_max=1)
async def test_records_that_are_over_do_not_count(parts: Parts) -> None:
    """They are removed by the next revocation, which is accepted."""
    link, now_ms = parts[0].link(access.operator()), time.time_ns() // 1_000_000
    await link.revoke(tokens=["short"], until_ms=now_ms + 1)
    await wait_until(_asks(lambda: time.time_ns() // 1_000_000 > now_ms + 1))
    await link.revoke(tokens=["long"])


async def test_the_record_of_a_token_that_revoked_itself_ends_with_it(parts: Parts) -> None:
    """However long its holder wants it to be kept."""
    service, _ = parts
    ends_ms = time.time_ns() // 1_000_000 + 3_600_000
    link = service.link(replace(ADA, expires_at_ms=ends_ms))
    await link.revoke(tokens=["token-1"], until_ms=2 * ends_ms)
    assert list(service.host.revocations._until.values()) == [ends_ms]


def _narrowed(number: int) -> Principal:
    """A token that was narrowed from that of ADA."""
    return replace(ADA, credential=Credential("ada", ("token-1", f"narrowed-{number}"), 0))


async def test_records_that_are_over_make_room(parts: Parts) -> None:
    """They are removed with the next revocation."""
    service, _ = parts
    link = service.link(access.operator())
    now_ms = time.time_ns() // 1_000_000
    await link.revoke(tokens=["short"], until_ms=now_ms + 1)
    await wait_until(_asks(lambda: time.time_ns() // 1_000_000 > now_ms + 1))
    await link.revoke(tokens=["long"])
    await wait_until(_asks(lambda: len(service.host.revocations._until) == 1))


async def test_records_that_are_not_over_stay(parts: Parts) -> None:
    """However much is revoked after them, for who comes to know of them tomorrow, too."""
    service, store = parts
    await revoke(service)
    for token in ("token-2", "token-3"):
        await service.link(access.operator()).revoke(tokens=[token])
    later = Revocations(store)
    try:
        await later.ready()
        with pytest.raises(Unauthenticated):
            later.check(ADA)
    finally:
        await later.aclose()


async def test_a_record_lasts_as_long_as_any_token(parts: Parts) -> None:
    """REVOKED_TTL_MS if nobody says how long, and never longer."""
    service, _ = parts
    link, found = service.link(access.operator()), service.host.revocations
    before_ms = time.time_ns() // 1_000_000
    await link.revoke(tokens=["unsaid"])
    await link.revoke(tokens=["too-long"], until_ms=before_ms + 2 * DEFAULT.security.revoked_ttl_ms)
    after_ms = time.time_ns() // 1_000_000
    for until_ms in found._until.values():
        assert (
            before_ms + DEFAULT.security.revoked_ttl_ms
            <= until_ms
            <= after_ms + DEFAULT.security.revoked_ttl_ms
        )


async def test_a_later_revocation_takes_nothing_back(parts: Parts) -> None:
    """Not by the name, under a newer token of it, and not by the id, for a shorter time."""
    service, store = parts
    stolen = replace(ADA, credential=Credential("ada", ("token-1",), 0))
    now_ms = time.time_ns() // 1_000_000
    newer = replace(ADA, credential=Credential("ada", ("token-2",), now_ms + 3_600_000))
    boss, found = service.link(access.operator()), service.host.revocations
    await boss.revoke(tokens=["token-1"], principal="ada")
    recorded = dict(found._until)
    await service.link(newer).revoke(principal="ada", until_ms=now_ms)
    await boss.revoke(tokens=["token-1"], until_ms=now_ms)
    await boss.revoke(tokens=["token-3"])  # removes what is over
    assert recorded.items() <= found._until.items()
    later = Revocations(store)
    try:
        await later.ready()
        for known in (found, later):
            with pytest.raises(Unauthenticated, match="revoked"):
                known.check(stolen)
    finally:
        await later.aclose()


def _asks(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return condition()

    return ask
