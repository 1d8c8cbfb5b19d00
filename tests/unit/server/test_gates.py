"""The gates of a commit: which are on where, in which order, and that the others cost nothing."""

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

import blackboard
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import Credential, Principal
from blackboard.core.commit import Commit, CommitId, Grant, Put
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.engines.redis.redlock import LockMasters
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import (
    AccessDenied,
    InvalidRequest,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from blackboard.server.assembly import sealed
from blackboard.server.boards import Boards
from blackboard.server.gates import GATES, CommitGates
from blackboard.server.host import Host
from blackboard.server.overload.rate_limits import Rates
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value

ENGINE = "identity epoch size freeze barrier fences conditions operations".split()
PLAIN = ["serving", "board", "form", "rights", "room", *ENGINE]
"""Of a program that opened the boards in its own process."""
ADA = replace(access.agent("ada"), credential=Credential("ada", ("token-a",), 0))
"""Came with a token."""
SERVED = ["audit", "load", "share", "serving", "token", "board", "rights", "room", "token again"]


def names(host: Host, principal: Principal, *, served: bool) -> list[str]:
    """Which gates are on."""
    return list(CommitGates(host, principal, served=served).names)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An engine."""
    opened = await SqliteStore.at(tmp_path / "data", "memory")
    yield opened
    await opened.aclose()


async def test_an_embedded_board_has_the_gates_that_it_needs(tmp_path: Path) -> None:
    async with blackboard.open(tmp_path) as client:
        link = client.board("main")._link
        assert isinstance(link, RequestHandler)
        assert list(link.gates.names) == PLAIN


async def test_each_feature_adds_its_gates(store: SqliteStore) -> None:
    """At their places, and none of others."""
    operator = access.operator()
    masters = LockMasters(["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"])
    voted = Host(store, masters)
    assert names(voted, operator, served=False) == [*PLAIN[:4], "votes", *PLAIN[4:]]
    front, _ = await sealed(store, None, LocalWrapper.of(new_master_key()))
    assert names(Host(front), operator, served=False) == [*PLAIN[:5], "encryption", *PLAIN[5:]]
    await masters.aclose()


async def test_a_served_commit_has_more(store: SqliteStore) -> None:
    """Its form was checked as it was read."""
    operator = access.operator()
    plain = ["load", "share", "serving", "board", "rights", "room", *ENGINE]
    assert names(Host(store), operator, served=True) == plain
    assert names(Host(store), ADA, served=True) == [*SERVED, *ENGINE]
    rates = Rates(requests_per_second=1)
    metered = names(Host(store, rates=rates), ADA, served=True)
    assert metered == [
        *("audit", "rates"),
        *SERVED[1:7],
        "log rate",
        *SERVED[7:],
        *ENGINE,
    ]
    assert names(Host(store, rates=rates), operator, served=True) == plain


async def test_an_engine_that_processes_share_has_an_access_number() -> None:
    redis = RedisStore.connect("redis://127.0.0.1:1")
    assert names(Host(redis), ADA, served=True) == [*SERVED, "access number", *ENGINE]
    assert "access number" not in names(Host(redis), access.operator(), served=True)
    await redis.aclose()


async def test_all_gates_are_on_somewhere() -> None:
    """With everything configured, a program and a connection have all of them between them."""
    masters = LockMasters(["redis://127.0.0.1:1"])
    redis = RedisStore.connect("redis://127.0.0.1:1")
    host = Host(redis, masters, rates=Rates(requests_per_second=1))
    found = {*names(host, ADA, served=True), *names(host, ADA, served=False)}
    assert {gate.name for gate in GATES} - found == {"encryption"}
    await masters.aclose()
    await redis.aclose()


def commit(epoch: str, *, key: str = "public/a", agent: str = "ada") -> Commit:
    """A put."""
    name = CommitId(agent, 0, "i", 1)
    return Commit(name, epoch, (Put(key, encode_value(1)),))


@asynccontextmanager
async def metered(tmp_path: Path) -> AsyncIterator[Service]:
    """A service whose accounts may add one byte to the logs in an hour."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store, rates=Rates(log_bytes_per_hour=1)) as service:
        await service.host.revocations.ready()
        yield service


async def test_the_first_gate_that_refuses_is_the_answer(tmp_path: Path) -> None:
    """A commit that all of them refuse, mended from the front."""
    async with metered(tmp_path) as service:
        epoch = (await (await service.boards.use("main")).head()).epoch.id
        expired = replace(ADA, expires_at_ms=time.time_ns() // 1_000_000 - 1)
        bad, other = commit(epoch, key="nowhere"), commit(epoch, key="private/bob/a")
        steps: list[tuple[Principal, str, Commit, type[Exception]]] = [
            (expired, "~audit", bad, Unauthenticated),
            (ADA, "~audit", bad, AccessDenied),
            (ADA, "main", bad, InvalidRequest),
            (ADA, "main", other, AccessDenied),
            (ADA, "main", commit(epoch), RateLimited),
        ]
        await service.link(ADA).commit("main", commit(epoch))  # an hour's worth
        service.host.draining = True
        with pytest.raises(Unavailable):
            await service.link(expired).commit("~audit", bad)
        service.host.draining = False
        for principal, board, refused, error in steps:
            with pytest.raises(error):
                await service.link(principal).commit(board, refused)
        assert (await (await service.boards.use("main")).head()).revision == 1


async def called(work: Callable[[], object]) -> set[str]:
    """The files below blackboard/ of which `work` calls any function."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and "blackboard" in path.parts:
            found.add("/".join(path.parts[-2:]))

    sys.setprofile(note)
    try:
        await work()  # type: ignore[misc]
    finally:
        sys.setprofile(None)
    return found


async def test_what_is_off_is_not_even_asked(store: SqliteStore) -> None:
    """Neither the audit nor revocations, neither lock masters nor encryption, nor any account."""
    boards = Boards(Host(store))
    await boards.host.look()
    board = Client(RequestHandler(boards, access.operator())).board("main")
    await board.put("public/a", 1)

    async def work() -> None:
        await board.put("public/a", 2)
        await board.commit([Grant("public/a", "me", 60_000)])

    found = await called(work)
    assert {"server/gates.py", "server/commit_queue.py", "server/boards.py"} <= found
    off = {"security", "overload", "encryption"}
    assert [path for path in found if path.partition("/")[0] in off] == []
    assert "server/redlock_votes.py" not in found
    await boards.aclose()
