"""Commits under tokens where several processes share an engine: one may not know what another
revoked, and its commits are refused all the same."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pytest
from redis.asyncio import Redis

from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import ACCESS_BOARD, Credential, Principal
from blackboard.core.checkpoints import CheckpointRequest, RestoreRequest
from blackboard.core.commit import Commit, CommitId, Committed, Increment, LogPage, Op, Put
from blackboard.core.model import Outcome
from blackboard.encryption.master_key import LocalWrapper, Wrapper, new_master_key
from blackboard.engines.base import Behind, Store
from blackboard.engines.redis.layout import board_keys
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import Unauthenticated, Unavailable
from blackboard.server.assembly import sealed
from blackboard.server.security.revocations import shared_of
from blackboard.server.service import Service
from blackboard.units import Milliseconds, Revision
from blackboard.wire.codec import Prepared, encode_value, prepare
from tests.unit.server.hooked import HookedStore, service_over
from tests.waiting import wait_until

ADA = replace(access.agent("ada"), credential=Credential("ada", ("token-a",), 0))
BOB = replace(access.agent("bob"), credential=Credential("bob", ("token-b",), 0))


Parts = tuple[Service, HookedStore]


class DeafStore(RedisStore):
    """An engine whose reader of the revocations hears nothing while `deaf`, and which counts."""

    deaf = False
    behind = 0
    """Answers of boards that asked for more to be known."""

    async def log(
        self, board: str, after: Revision, *, limit: int, wait_ms: Milliseconds = 0
    ) -> LogPage:
        """As `Store.log`. What waits for news gets none."""
        page = await super().log(board, after, limit=limit, wait_ms=wait_ms)
        if board == ACCESS_BOARD and wait_ms:
            await wait_until(self._hears)
        return page

    async def _hears(self) -> bool:
        return not self.deaf

    async def commit_at(
        self, board: str, batch: Sequence[Prepared], access: Revision
    ) -> list[Outcome | Behind]:
        """As `Shared.commit_at`, and counted."""
        decisions = await super().commit_at(board, batch, access)
        self.behind += any(isinstance(decision, Behind) for decision in decisions)
        return decisions


@dataclass
class Pair:
    """Two services over one engine: `one` revokes, `two` is the one that does not hear of it."""

    one: Service
    two: Service
    store: DeafStore
    url: str

    def board(self, principal: Principal, name: str = "main") -> Board:
        """A board, through the service that hears nothing."""
        return Client(self.two.link(principal)).board(name)

    async def revoke(self, token: str = "token-a") -> None:
        """Through the other service."""
        await self.one.link(access.operator()).revoke(tokens=[token])

    async def seen(self, key: str, board: str = "main") -> object:
        """What the operator finds."""
        return await Client(self.one.link(access.operator())).board(board).get(key)

    @classmethod
    @asynccontextmanager
    async def over(cls, url: str, wrapper: Wrapper | None = None) -> AsyncIterator[Self]:
        """Both services, which know the revocations; with `wrapper` all values are sealed."""
        store = DeafStore.connect(url)
        assert isinstance(store, DeafStore)
        fronts = [await front(raw, wrapper) for raw in (RedisStore.connect(url), store)]
        async with Service(fronts[0]) as one, Service(fronts[1]) as two:
            await one.host.revocations.ready()
            await two.host.revocations.ready()
            try:
                yield cls(one, two, store, url)
            finally:
                store.deaf = False


async def front(raw: Store, wrapper: Wrapper | None) -> Store:
    """What a service uses: the engine, or what seals in front of it."""
    if wrapper is None:
        return raw
    store, _ = await sealed(raw, None, wrapper, public=True)
    return store


@pytest.fixture(params=["plain", "sealed"])
async def pair(redis_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """Two services; the first commit has told board main."""
    wrapper = LocalWrapper.of(new_master_key()) if request.param == "sealed" else None
    async with Pair.over(redis_url, wrapper) as found:
        await found.board(BOB).put("public/bob", 0)
        await found.board(ADA).put("public/ada", 0)
        yield found


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """A service over the embedded engine."""
    async with service_over(tmp_path) as found:
        yield found


async def test_who_has_not_heard_of_it_commits_nothing_under_a_revoked_token(pair: Pair) -> None:
    """And what is not revoked goes on in the same process, which still hears nothing."""
    mine, other = pair.board(ADA), pair.board(BOB)
    pair.store.deaf = True
    await pair.revoke()
    before = await mine.head()
    with pytest.raises(Unauthenticated, match="revoked"):
        await mine.put("public/ada", 1)
    await other.put("public/bob", 1)
    assert pair.store.behind == 2, "at the first commit ever, and at this one"
    assert (await pair.seen("public/ada"), await pair.seen("public/bob")) == (0, 1)
    assert (await other.head()).revision == before.revision + 1


async def test_one_look_serves_a_whole_batch(pair: Pair) -> None:
    """What shares a call with a revoked commit is carried out, and nothing is sent for each."""
    pair.store.deaf = True
    await pair.revoke()
    results = await asyncio.gather(
        *(pair.board(BOB).put(f"public/b{n}", n) for n in range(20)),
        *(pair.board(ADA).put(f"public/a{n}", n) for n in range(20)),
        return_exceptions=True,
    )
    assert [type(result) for result in results[20:]] == [Unauthenticated] * 20
    assert not any(isinstance(result, BaseException) for result in results[:20])


async def test_an_engine_that_goes_away_takes_no_decision_back(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum came too late, and a token was revoked before it was sent again; then the engine is
    away. What was committed with it in one batch is committed."""
    async with Pair.over(redis_url, LocalWrapper.of(new_master_key())) as pair:
        await pair.board(ADA).increment("public/count")
        head, commit_at = await pair.board(ADA).head(), pair.store.commit_at
        calls = 0

        async def once_away(
            board: str, batch: Sequence[Prepared], access: Revision
        ) -> list[Outcome | Behind]:
            nonlocal calls
            calls += 1
            if calls == 1:
                await Client(pair.one.link(BOB)).board("main").increment("public/count")
            elif calls == 2:
                await pair.revoke("another")
            elif calls == 3:
                raise Unavailable("engine", "it is away for a moment")
            return await commit_at(board, batch, access)

        monkeypatch.setattr(pair.store, "commit_at", once_away)
        pair.store.deaf = True
        ops: list[Op] = [Put("public/ada", encode_value(1)), Increment("public/count", 1)]
        batch = [
            prepare(Commit(CommitId("ada", lane, "once", 1), head.epoch.id, (op,)))
            for lane, op in enumerate(ops)
        ]
        permit = pair.two.host.revocations.permit(ADA)
        put, added = await pair.two.host.permits.commit("main", batch, [permit] * 2)
        assert isinstance(added, Unavailable)
        assert isinstance(put, Committed), put
        assert (await pair.seen("public/ada"), await pair.seen("public/count")) == (1, 2)


async def test_a_commit_that_left_before_and_comes_after(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever holds it up between the last look at the token and the engine."""
    left, goes_on, commit_at = asyncio.Event(), asyncio.Event(), pair.store.commit_at

    async def held(
        board: str, batch: Sequence[Prepared], access: Revision
    ) -> list[Outcome | Behind]:
        left.set()
        await goes_on.wait()
        return await commit_at(board, batch, access)

    monkeypatch.setattr(pair.store, "commit_at", held)
    late = asyncio.create_task(pair.board(ADA).put("public/ada", 1))
    await left.wait()
    await pair.revoke()
    goes_on.set()
    with pytest.raises(Unauthenticated, match="revoked"):
        await late
    assert await pair.seen("public/ada") == 0


async def test_a_commit_that_is_sent_after_another_one_has_read_the_record(pair: Pair) -> None:
    """Its token was checked before that, and what is sent with it says that the record is known."""
    head = await pair.board(ADA).head()
    pair.store.deaf = True
    there = pair.two.host
    permit, before = there.revocations.permit(ADA), there.revocations.through
    await pair.revoke()
    await there.revocations.catch_up()
    assert there.revocations.through > before
    op = Put("public/ada", encode_value(1))
    late = prepare(Commit(CommitId("ada", 0, "late", 1), head.epoch.id, (op,)))
    [decision] = await there.permits.commit("main", [late], [permit])
    assert isinstance(decision, Unauthenticated)
    assert await pair.seen("public/ada") == 0


async def test_a_board_that_is_made_after_it(pair: Pair) -> None:
    """By a process that has not heard of it: there is no number to compare, so it asks."""
    pair.store.deaf = True
    await pair.revoke()
    with pytest.raises(Unauthenticated, match="revoked"):
        await pair.board(ADA, "new").put("public/ada", 1)
    await pair.board(BOB, "newer").put("public/bob", 1)
    assert await pair.seen("public/ada", "new") is None


async def test_a_board_on_another_run_of_the_engine_asks_again(pair: Pair) -> None:
    """What an engine that came back has as a number may be one from before."""
    pair.store.deaf = True
    await pair.revoke()
    meta = board_keys("main")[0]
    async with Redis.from_url(pair.url) as redis:
        await redis.hset(meta, mapping={"run": "another", "access": "0"})
    with pytest.raises(Unauthenticated, match="revoked"):
        await pair.board(ADA).put("public/ada", 1)
    await pair.board(BOB).put("public/bob", 1)
    async with Redis.from_url(pair.url) as redis:
        told = await redis.hget(meta, "access")
    assert int(told or 0) == pair.two.host.revocations.through


async def test_what_is_done_to_a_whole_board_asks_first(pair: Pair) -> None:
    """A checkpoint is not a commit of its requester, so the record is read before it is taken."""
    admin = replace(access.operator(), credential=Credential("cyd", ("token-c",), 0))
    link = pair.two.link(admin)
    pair.store.deaf = True
    await pair.revoke("token-c")
    with pytest.raises(Unauthenticated, match="revoked"):
        await link.checkpoint("main", CheckpointRequest("one", "f" * 16))


async def test_a_restore_that_left_before_and_comes_after(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a commit, and compared as one."""
    admin = replace(access.operator(), credential=Credential("cyd", ("token-c",), 0))
    store = RedisStore.connect(redis_url)
    archive = await archive_beside(tmp_path)
    async with (
        Service(RedisStore.connect(redis_url)) as one,
        Service(store, archive=archive) as two,
    ):
        for service in (one, two):
            await service.host.revocations.ready()
        link = two.link(admin)
        board = Client(link).board("main")
        then = await board.put("public/a", 1)
        await board.put("public/a", 2)
        commit_at = store.commit_at

        async def late(
            board: str, batch: Sequence[Prepared], access_number: Revision
        ) -> list[Outcome | Behind]:
            await one.link(access.operator()).revoke(tokens=["token-c"])
            return await commit_at(board, batch, access_number)

        monkeypatch.setattr(store, "commit_at", late)
        with pytest.raises(Unauthenticated, match="revoked"):
            await link.restore("main", RestoreRequest(then.revision, "f" * 16))
        assert await Client(one.link(access.operator())).board("main").get("public/a") == 2


async def test_nobody_is_let_in_when_the_record_was_lost(pair: Pair) -> None:
    """A board asks for more than the record has: who was revoked there nobody knows."""
    await pair.store.raise_access("main", 10**6)
    head = await pair.board(ADA).head()
    put = Put("public/ada", encode_value(1))
    commit = Commit(CommitId("ada", 0, "once", 1), head.epoch.id, (put,))
    with pytest.raises(Unavailable, match="lost"):
        await pair.two.link(ADA).commit("main", commit)
    assert await pair.seen("public/ada") == 0


async def test_who_uses_the_engine_alone_has_nothing_to_compare(parts: Parts) -> None:
    """The embedded engine is one process's: what that knows is all there is."""
    service, store = parts
    await service.host.revocations.ready()
    await Client(service.link(ADA)).board("main").put("public/ada", 1)
    assert shared_of(store) is None
    await service.link(access.operator()).revoke(tokens=["token-a"])
    with pytest.raises(Unauthenticated):
        await Client(service.link(ADA)).board("main").put("public/ada", 2)
