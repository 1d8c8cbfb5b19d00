"""Tokens while they are used: refreshed in a connection, and revoked under it."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import blackboard
from blackboard.client.remote.documents import document_token
from blackboard.core import access
from blackboard.core.access import ACCESS_BOARD, Narrowing
from blackboard.core.path import base_key, parts_prefix
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    Corrupt,
    InvalidRequest,
    Unauthenticated,
    Unavailable,
)
from blackboard.integrity.tokens import attenuate, unverified
from blackboard.limits import Limits
from blackboard.server.http import documents
from blackboard.server.security import revocations
from blackboard.server.service import Service
from tests.lowered import lowered
from tests.redis_process import RedisProcess
from tests.serving import TOKEN_TTL_MS, Served, serving
from tests.unit.server.http.conversation import PATIENCE_S, Talk, talking
from tests.waiting import let_pass, wait_until

ADA, BOB = access.agent("ada"), access.agent("bob")
CLOSE_UNAUTHENTICATED = 4401
MINUTES_AHEAD_NS = 10 * 60 * 10**9
LIVES_MS = 6_000
"""How long a token lives that a test waits for to end: long enough to connect with it first."""


def id_of(token: str) -> str:
    """The id of a token."""
    credential = unverified(token).credential
    assert credential is not None
    return credential.ids[-1]


# --- revoking -------------------------------------------------------------------------------------


async def test_a_token_that_is_revoked_while_that_cannot_be_told_ends_afterwards(
    served: Served,
) -> None:
    """As long as the revocations are not known no connection is closed, and none is forgotten."""
    revocations = served.service.host.revocations
    token = served.token(ADA)
    async with (
        talking(served.url, token, greeting={}) as talk,
        talking(served.url, served.token(ADA), greeting={}) as stays,
    ):
        revocations.hold_back("the archive has them, and is away")
        await served.service.link(access.operator()).revoke(tokens=[id_of(token)])
        answer = await talk.ask(1, "head", {"board": "main"})
        assert answer["error"]["data"]["code"] == "unavailable"
        revocations.hold_back("")
        assert await talk.closed() == CLOSE_UNAUTHENTICATED
        assert "result" in await stays.ask(1, "head", {"board": "main"})


async def test_a_revoked_token_ends_everywhere_at_once(served: Served) -> None:
    """Connection, watch, HTTP, new handshake; and what was narrowed from it. Others stay."""
    token, other = served.token(ADA), served.token(ADA)
    narrow = attenuate(token, Narrowing("ada.helper"))
    operator = served.service.link(access.operator())
    async with (
        talking(served.url, token, greeting={}) as talk,
        talking(served.url, narrow, greeting={}) as helper,
        talking(served.url, other, greeting={}) as stays,
    ):
        watch = {"board": "main", "watch": 1, "patterns": ["public/**"]}
        assert "result" in await talk.ask(1, "watch", watch)
        await operator.revoke(tokens=[id_of(token)])
        assert await talk.closed() == await helper.closed() == CLOSE_UNAUTHENTICATED
        assert "result" in await stays.ask(1, "head", {"board": "main"})
    async with httpx.AsyncClient() as http:
        for gone in (token, narrow):
            answer = await http.post(
                f"http://127.0.0.1:{served.port}/v1/rpc",
                headers={"Authorization": f"Bearer {gone}"},
                json={"id": 1, "method": "boards"},
            )
            assert answer.status_code == 401
            assert gone not in answer.text
            with pytest.raises(Unauthenticated, match="revoked"):
                async with blackboard.connect(served.url, token=gone):
                    pass


async def test_a_document_ends_with_its_token(served: Served) -> None:
    """Also for a peer that says nothing, and for one that came with the token in its URL."""
    token = served.token(ADA)
    narrow = document_token(token, "main", "public/memo")
    url = f"{served.url}/v1/boards/main/docs/public/memo"
    headers = {"Authorization": f"Bearer {token}"}
    bobs = {"Authorization": f"Bearer {served.token(BOB)}"}
    async with (
        connect(url, additional_headers=headers, proxy=None) as one,
        connect(f"{url}?token={narrow}", proxy=None) as two,
        connect(url, additional_headers=bobs, proxy=None) as bob,
    ):
        for peer in (one, two, bob):
            await peer.recv()
        await served.service.link(access.operator()).revoke(tokens=[id_of(token)])
        async with asyncio.timeout(PATIENCE_S):
            await one.wait_closed()
            await two.wait_closed()
        assert one.close_code == two.close_code == CLOSE_UNAUTHENTICATED
        assert served.gate.connections == 1
        await bob.ping()
    async with connect(url, additional_headers=headers, proxy=None) as again:
        async with asyncio.timeout(PATIENCE_S):
            await again.wait_closed()
        assert again.close_code == CLOSE_UNAUTHENTICATED


async def test_a_token_in_a_url_is_for_that_document_alone(served: Served) -> None:
    """It gets into logs and histories: one that could do more is not let in there."""
    token = served.token(ADA)
    url = f"{served.url}/v1/boards/main/docs/public/memo"
    others = [
        document_token(token, "main", "public/other"),
        document_token(token, "b", "public/memo"),
    ]
    for wide in (token, *others):
        async with connect(f"{url}?token={wide}", proxy=None) as peer:
            with pytest.raises(ConnectionClosed):
                await peer.recv()
            assert peer.close_code == CLOSE_UNAUTHENTICATED
    narrow = document_token(token, "main", "public/memo")
    async with connect(f"{url}?token={narrow}", proxy=None) as peer:
        await peer.recv()


async def test_a_token_in_a_url_is_let_in_from_a_machine_whose_clock_is_ahead(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was valid for an hour by that clock, and so for more than an hour by the service's."""
    ahead = SimpleNamespace(time_ns=lambda: time.time_ns() + MINUTES_AHEAD_NS)
    monkeypatch.setattr("blackboard.client.remote.documents.time", ahead)
    narrow = document_token(served.token(ADA), "main", "public/memo")
    url = f"{served.url}/v1/boards/main/docs/public/memo"
    async with connect(f"{url}?token={narrow}", proxy=None) as peer:
        await peer.recv()


async def test_a_document_whose_base_is_damaged_is_reported_as_that(served: Served) -> None:
    """Over a connection, too: it is of no use to try again until the time is over."""
    async with blackboard.connect(served.url, token=served.token()) as client:
        board = client.board()
        await board.put(base_key("public/memo"), {"parts": ["g", 1], "owners": {}, "mark": None})
        await board.put(f"{parts_prefix('public/memo', 'g')}/0000", b"no update")
        with pytest.raises(Corrupt, match="document public/memo"):
            await board.document("public/memo")


@pytest.mark.limits(connections_per_principal_max=2)
async def test_connections_of_documents_count_like_others(served: Served) -> None:
    """Of one principal, narrowed tokens included, and in all."""
    token = served.token(ADA)
    narrow = attenuate(token, Narrowing("ada.helper"))
    headers = {"Authorization": f"Bearer {narrow}"}
    url = f"{served.url}/v1/boards/main/docs/public/memo"
    async with (
        talking(served.url, token, greeting={}),
        connect(url, additional_headers=headers, proxy=None) as one,
        connect(url, additional_headers=headers, proxy=None) as two,
    ):
        await one.recv()
        async with asyncio.timeout(PATIENCE_S):
            await two.wait_closed()
        assert two.close_code == 1013
        assert "CONNECTIONS_PER_PRINCIPAL_MAX" in (two.close_reason or "")
        served.gate._limits = lowered(connections_max=2).service

        with pytest.raises(InvalidStatus, match="503"):
            async with talking(served.url, served.token(BOB)):
                pass


async def test_all_tokens_of_a_principal_are_revoked_until_now(served: Served) -> None:
    """Those that are issued later count; so do those of others."""
    old = served.token(ADA)
    await served.service.link(access.operator()).revoke(principal="ada")
    with pytest.raises(Unauthenticated):
        async with blackboard.connect(served.url, token=old):
            pass
    async with blackboard.connect(served.url, token=served.token(BOB)) as client:
        await client.board().put("public/a", 1)

    async def is_let_in() -> bool:
        try:
            async with blackboard.connect(served.url, token=served.token(ADA)):
                return True
        except Unauthenticated:
            return False

    await wait_until(is_let_in)  # tokens count whole seconds


async def test_nothing_is_done_or_delivered_under_a_revoked_token(served: Served) -> None:
    """Also by a link that is open already, whatever becomes of its connection."""
    principal = unverified(served.token(ADA))
    await served.gate.ready()
    link = served.service.link(principal)
    board = blackboard.Client(link).board("main")
    await board.put("public/a", 1)
    async with board.watch("public/**") as watch:
        await served.service.link(access.operator()).revoke(principal="ada")
        for attempt in (board.put("public/a", 2), board.get("public/a"), link.boards()):
            with pytest.raises(Unauthenticated, match="revoked"):
                await attempt
        await blackboard.Client(served.service.link(BOB)).board("main").put("public/a", 3)
        with pytest.raises(Unauthenticated, match="revoked"):
            await anext(aiter(watch))


async def test_who_may_revoke_what(served: Served) -> None:
    """One's own token, all of one's own; an admin of everything, anything."""
    async with blackboard.connect(served.url, token=served.token(ADA)) as client:
        for attempt in (client.revoke("some-id"), client.revoke(principal="bob")):
            with pytest.raises(AccessDenied):
                await attempt
    token = served.token(ADA)
    async with blackboard.connect(served.url, token=token) as client:
        assert await client.revoke(id_of(token)) == 1
    async with blackboard.connect(served.url, token=served.token()) as client:
        with pytest.raises(InvalidRequest):
            await client.revoke()
        assert await client.revoke("a", "b", principal="bob") == 4


async def test_the_record_is_out_of_reach(served: Served) -> None:
    """Nobody reads, writes or lists the service's own boards; not even the operator."""
    await served.service.link(access.operator()).revoke(principal="ada")
    async with blackboard.connect(served.url, token=served.token()) as client:
        assert ACCESS_BOARD not in await client.boards()
        board = client.board(ACCESS_BOARD)
        for attempt in (board.head(), board.list("**"), board.delete_prefix("system/revoked")):
            with pytest.raises(AccessDenied):
                await attempt


async def test_a_revocation_outlives_the_service(tmp_path: Path, limits: Limits) -> None:
    """It is kept where the boards are, until the token would have ended."""
    from blackboard.engines.sqlite.store import SqliteStore

    service = Service(await SqliteStore.at(tmp_path), limits=limits)
    async with service, serving(service) as served:
        secret, token = served.secret, served.token(ADA)
        await service.link(access.operator()).revoke(tokens=[id_of(token)])
    async with (
        Service(await SqliteStore.at(tmp_path), limits=limits) as service,
        serving(service, secret=secret) as served,
    ):
        with pytest.raises(Unauthenticated, match="revoked"):
            async with blackboard.connect(served.url, token=token):
                pass


async def test_every_process_learns_of_a_revocation(
    redis_server: RedisProcess, limits: Limits
) -> None:
    """Two services over one engine: the one that was not asked closes the connection too, by what
    it hears and not because it has heard nothing for long."""
    async with (
        Service(RedisStore.connect(redis_server.url), limits=limits) as one,
        Service(RedisStore.connect(redis_server.url), limits=limits) as two,
        serving(one) as first,
        serving(two, secret=first.secret) as second,
    ):
        token = first.token(ADA)
        async with talking(second.url, token, greeting={}) as talk:
            await one.link(access.operator()).revoke(tokens=[id_of(token)])
            assert await talk.closed() == CLOSE_UNAUTHENTICATED


# --- refreshing -----------------------------------------------------------------------------------


async def test_a_connection_outlives_its_token_if_it_is_refreshed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its watches; the first token's end is no end any more."""
    first, hour_ms = served.token(ADA), 3_600_000
    async with talking(served.url, first, greeting={}) as talk:
        assert "result" in await talk.ask(
            1, "watch", {"board": "main", "watch": 1, "patterns": ["public/**"]}
        )
        (held,) = served.gate._open
        end = held._expiry
        answer = await talk.ask(2, "refresh", {"token": served.token(ADA, 2 * hour_ms)})
        assert answer["result"]["principal"] == "ada"
        assert end is not None
        assert end.cancelled()
        over_ms = (unverified(first).expires_at_ms or 0) + 1
        monkeypatch.setattr(revocations, "_now_ms", lambda: over_ms)
        await blackboard.Client(served.service.link(BOB)).board("main").put("public/a", 1)
        await received_changes(talk)
        answer = await talk.ask(3, "head", {"board": "main"})
        assert answer["result"]["revision"] == 1


async def received_changes(talk: Talk) -> None:
    """Read until a watch tells of changes."""
    while (message := await talk.receive()).get("method") != "changes" or not (
        message["params"].get("revisions")
    ):
        assert message.get("method") != "cancelled", message


async def test_a_watch_outlives_its_token_however_many_agents_its_connection_has(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the connection keeps ready: that of an agent with a watch stays."""
    first, hour_ms = served.token(), 3_600_000
    async with talking(served.url, first, greeting={}) as talk:
        watch = {"board": "main", "watch": 1, "patterns": ["public/**"], "agent": "watching"}
        assert "result" in await talk.ask(1, "watch", watch)
        for number in range(2, 260):
            answer = await talk.ask(number, "whoami", {"agent": f"agent-{number}"})
            assert answer["result"]["agent"] == f"agent-{number}"
        await talk.ask(300, "refresh", {"token": served.token(ttl_ms=2 * hour_ms)})
        over_ms = (unverified(first).expires_at_ms or 0) + 1
        monkeypatch.setattr(revocations, "_now_ms", lambda: over_ms)
        await blackboard.Client(served.service.link(BOB)).board("main").put("public/a", 1)
        await received_changes(talk)


async def test_a_connection_stays_whose_it_is(served: Served) -> None:
    """Another's token, a bad one, an old one: refused, and the connection goes on as it was."""
    async with talking(served.url, served.token(ADA), greeting={}) as talk:
        for number, token in enumerate([served.token(BOB), served.token(), "nonsense"], 1):
            answer = await talk.ask(number, "refresh", {"token": token})
            assert answer["error"]["data"]["code"] in ("access_denied", "unauthenticated")
            assert token not in str(answer)
        answer = await talk.ask(9, "whoami", {})
        assert answer["result"]["principal"] == "ada"


async def test_new_rights_count_at_once(served: Served) -> None:
    """A token with fewer rights: requests are refused, and the watches have to be begun again."""
    token = served.token(ADA)
    async with talking(served.url, token, greeting={}) as talk:
        await talk.ask(1, "watch", {"board": "main", "watch": 1, "patterns": ["public/**"]})
        read = access.parse_grant("public/notes/**=read")
        narrow = attenuate(token, Narrowing(grants=(read,)))
        await talk.send({"id": 2, "method": "refresh", "params": {"token": narrow}})
        told = [await talk.receive() for _ in range(3)]
        assert {m["method"] for m in told if "method" in m} == {"changes", "cancelled"}
        answer = await talk.ask(3, "read", {"board": "main", "keys": ["public/a"]})
        assert answer["error"]["data"]["code"] == "access_denied"


@pytest.mark.limits(token_refresh_percent=0)
async def test_a_client_with_a_source_of_tokens_never_runs_out(
    served: Served, limits: Limits
) -> None:
    """It asks for the next one in time; nobody who uses it notices."""
    given: list[str] = []

    async def source() -> str:
        given.append(served.token(ADA))
        return given[-1]

    async with blackboard.connect(served.url, token=source, limits=limits) as client:
        board = client.board()

        async def has_refreshed_twice() -> bool:
            await board.put("public/a", len(given))
            return len(given) >= 3

        await wait_until(has_refreshed_twice)
        assert served.gate.traffic.connections == 1


async def test_a_source_of_tokens_is_left_alone_by_a_client_whose_clock_is_ahead(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To such a client each token seems to have ended when it comes."""
    ahead = SimpleNamespace(time=lambda: time.time() + 2 * TOKEN_TTL_MS / 1000)
    monkeypatch.setattr("blackboard.client.remote.channel.time", ahead)
    given: list[str] = []

    def source() -> str:
        given.append(served.token(ADA))
        return given[-1]

    async with blackboard.connect(served.url, token=source) as client:
        await client.board().put("public/a", 1)
        await let_pass(0.3)
        assert len(given) == 1


async def test_a_document_goes_on_with_the_next_token(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a source of tokens, editing continues: the connection is reopened, and nothing is
    lost."""
    given: list[str] = []

    def source() -> str:
        given.append(served.token(ADA))
        return given[-1]

    def nearly_over_ms() -> int:
        return (unverified(given[-1]).expires_at_ms or 0) - 500

    async with blackboard.connect(served.url, token=source) as client:
        with monkeypatch.context() as patched:
            patched.setattr(documents, "date_ms", nearly_over_ms)
            document = await client.board().document("public/memo")
            document.text().append("before ")
            await document.synced()
        before = len(given)

        async def was_begun_anew() -> bool:
            return len(given) > before

        await wait_until(was_begun_anew)
        document.text().append("after")
        await document.synced()
        other = await client.board().document("public/memo")
        await other.synced()
        assert str(other.text()) == "before after"
        await other.aclose()
        await document.aclose()


async def test_what_a_token_source_raises_reaches_the_caller(served: Served) -> None:
    """A token that is not valid any more is not tried for ever."""

    def source() -> str:
        return served.token(ADA, ttl_ms=1_000)

    stale = source()

    async def is_over() -> bool:
        return time.time() * 1000 > (unverified(stale).expires_at_ms or 0)

    await wait_until(is_over)
    with pytest.raises(BlackboardError):
        async with (
            asyncio.timeout(PATIENCE_S),
            blackboard.connect(served.url, token=lambda: stale),
        ):
            pass


@pytest.mark.parametrize("end", ["\n", " ", "\0", "\r\nX: y", "€"])
@pytest.mark.parametrize("has_source", [False, True])
async def test_a_token_that_no_header_can_carry_is_in_no_error_and_no_log(
    served: Served, caplog: pytest.LogCaptureFixture, end: str, *, has_source: bool
) -> None:
    """As the text of a file, with its line break."""
    token = served.token(ADA)
    given = token + end
    with pytest.raises(Unauthenticated) as caught:
        async with (
            asyncio.timeout(PATIENCE_S),
            blackboard.connect(served.url, token=(lambda: given) if has_source else given),
        ):
            pass
    assert token not in str(caught.value)
    assert token not in caplog.text


async def test_a_token_source_that_returns_something_else_is_reported(served: Served) -> None:
    async def source() -> Any:
        return None

    with pytest.raises(Unavailable, match="NoneType"):
        async with asyncio.timeout(PATIENCE_S), blackboard.connect(served.url, token=source):
            pass


async def test_a_source_of_tokens_that_hangs_is_reported(served: Served) -> None:
    """The first connection waits for it as long as for the service; a later one tries again."""
    answers: list[str | None] = [None, served.token(ADA), None, served.token(ADA)]

    async def source() -> str:
        found = answers.pop(0)
        if found is None:
            await asyncio.Event().wait()
        return found or ""

    connecting = blackboard.connect(served.url, token=source, patience_ms=300)
    with pytest.raises(Unavailable, match="no token in 300 ms"):
        async with asyncio.timeout(PATIENCE_S), connecting:
            pass
    async with blackboard.connect(served.url, token=source, patience_ms=300) as client:
        for connection in list(served.gate._open):
            connection.drain()

        async def is_back() -> bool:
            with suppress(Unavailable):
                return await client.board().increment("public/n") == 1
            return False

        await wait_until(is_back)
    assert not answers


async def test_a_failing_token_source_is_reported_and_asked_again(served: Served) -> None:
    """Whatever it raises: nobody waits for ever, and the next attempt may have a token."""
    answers: list[str | None] = [None, served.token(ADA), None, served.token(ADA)]

    async def source() -> str:
        found = answers.pop(0)
        if found is None:
            raise KeyError("no token yet")
        return found

    with pytest.raises(Unavailable, match="KeyError"):
        async with asyncio.timeout(PATIENCE_S), blackboard.connect(served.url, token=source):
            pass
    async with blackboard.connect(served.url, token=source) as client:
        for connection in list(served.gate._open):
            connection.drain()
        assert await client.board().increment("public/n") == 1
    assert not answers


async def test_a_client_goes_on_after_its_token_ended_while_the_source_failed(
    served: Served,
) -> None:
    """The next token is good; the one before was, too, when it was sent."""
    lives_ms, is_down = LIVES_MS, False

    def source() -> str:
        if is_down:
            raise OSError("the provider of tokens is down")
        return served.token(ADA, ttl_ms=lives_ms)

    async with blackboard.connect(served.url, token=source) as client:
        await client.board().put("public/a", 1)
        is_down, lives_ms = True, TOKEN_TTL_MS
        await wait_until(partial(is_alone, served))
        is_down = False
        async with asyncio.timeout(PATIENCE_S):
            await client.board().put("public/a", 2)


async def test_a_source_that_gives_the_token_that_ended_is_not_asked_for_ever(
    served: Served,
) -> None:
    token = served.token(ADA, ttl_ms=LIVES_MS)
    async with blackboard.connect(served.url, token=lambda: token) as client:
        await client.board().put("public/a", 1)
        await wait_until(partial(is_alone, served))
        with pytest.raises(Unauthenticated):
            async with asyncio.timeout(PATIENCE_S):
                await client.board().put("public/a", 2)


async def is_alone(served: Served) -> bool:
    """Whether the service has no connection any more."""
    return not served.gate._open
