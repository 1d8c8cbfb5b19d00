"""MCP over HTTP: a real service, a real port, many agents, each known by its token."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.subscriptions import ResourceUpdated
from starlette.applications import Starlette

import blackboard
from blackboard import Board
from blackboard.cli.mcp.http_server import serve_http
from blackboard.core import access
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from blackboard.integrations.mcp import board_app
from blackboard.integrations.mcp.arguments import WAIT_S_MAX
from blackboard.integrations.mcp.http import (
    REQUESTS_MAX,
    SESSIONS_MAX,
    TokenSessions,
    TooManyError,
)
from blackboard.limits import VALUE_BYTES_MAX
from blackboard.server.http.serve import listen
from blackboard.server.service import Service
from tests.ports import free_port
from tests.serving import Served, serving
from tests.unit.integrations.mcp_clients import MODERN, OLD, Caller
from tests.waiting import TIMEOUT_S, wait_until

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@dataclass
class Gateway:
    """The MCP server, and the service behind it."""

    served: Served
    app: Starlette
    port: int

    @property
    def url(self) -> str:
        """Where it serves MCP."""
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def sessions(self) -> TokenSessions:
        """The connections that it holds."""
        found: TokenSessions = self.app.state.sessions
        return found

    def token(self, name: str) -> str:
        """A token of an agent."""
        return self.served.token(access.agent(name))

    @asynccontextmanager
    async def caller(self, token: str, mode: str = MODERN) -> AsyncIterator[Caller]:
        """A client with that token."""
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as web:
            transport = streamable_http_client(self.url, http_client=web)
            async with Client(transport, mode=mode) as client:
                yield Caller(client)


@asynccontextmanager
async def up(
    served: Served, sessions_max: int = SESSIONS_MAX, patience_ms: int | None = None
) -> AsyncIterator[Gateway]:
    """An MCP server in front of that service, for which it waits so long."""

    async def connect(token: str) -> Any:
        return await blackboard.connect(served.url, token=token, patience_ms=patience_ms)

    app = board_app(connect, board="team", sessions_max=sessions_max)
    listener = listen("127.0.0.1", 0)
    started = asyncio.Event()
    running = asyncio.create_task(serve_http(app, listener, started.set))
    await asyncio.wait_for(started.wait(), TIMEOUT_S)
    yield Gateway(served, app, listener.getsockname()[1])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(app.state.sessions) == 0


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """Both, up."""
    async with (
        Service(await SqliteStore.at(tmp_path, "memory")) as service,
        serving(service) as served,
        up(served) as found,
    ):
        yield found


@pytest.mark.parametrize("mode", [MODERN, OLD])
async def test_each_request_is_made_by_the_agent_of_its_token(gateway: Gateway, mode: str) -> None:
    async with (
        gateway.caller(gateway.token("ann"), mode) as ann,
        gateway.caller(gateway.token("bob"), mode) as bob,
    ):
        assert (await ann("list"))["you"] == "ann"
        await ann("write", key="private/ann/x", value=1)
        await ann("write", key="public/x", value=1, expected_revision=0)
        error = await bob.fails("write", key="public/x", value=2, expected_revision=0)
        assert (error["code"], error["by"], error["current"]) == ("conflict", "ann", 1)
        assert (await bob.fails("read", keys="private/ann/x"))["code"] == "access_denied"
        assert (await bob("list"))["you"] == "bob"


async def test_claims_outlast_their_request(gateway: Gateway) -> None:
    """They are the token's, and any client with it can give them back."""
    token = gateway.token("ann")
    async with gateway.caller(token) as ann:
        await ann("claim", key="public/files/a")
    async with gateway.caller(gateway.token("bob")) as bob:
        assert (await bob.fails("claim", key="public/files/a"))["holder"] == "ann"
        await gateway.sessions.close_idle(0)  # it is not idle: it has a claim
        async with gateway.caller(token) as again:
            assert (await again("release", key="public/files/a"))["released"] is True
        await bob("claim", key="public/files/a")


async def test_subscriptions_of_two_tokens_are_apart(gateway: Gateway) -> None:
    everything = "blackboard://**"
    async with (
        gateway.caller(gateway.token("ann")) as ann,
        gateway.caller(gateway.token("bob")) as bob,
        ann.client.listen(resource_subscriptions=[everything]) as to_ann,
        bob.client.listen(resource_subscriptions=[everything]) as to_bob,
    ):
        await bob("write", key="private/bob/x", value=1)
        with anyio.fail_after(TIMEOUT_S):
            assert await anext(to_bob) == ResourceUpdated(uri=everything)
        with anyio.move_on_after(0.3) as scope:
            await anext(to_ann)
        assert scope.cancelled_caught
        await ann("write", key="public/x", value=1)
        with anyio.fail_after(TIMEOUT_S):
            assert await anext(to_ann) == ResourceUpdated(uri=everything)
        with pytest.raises(MCPError, match="may not read"):
            async with ann.client.listen(resource_subscriptions=["blackboard://private/bob/x"]):
                pass


async def post(gateway: Gateway, token: str | None, message: Any, **headers: str) -> Any:
    """One request without the SDK."""
    given = {**ACCEPT, **headers}
    if token is not None:
        given["Authorization"] = f"Bearer {token}"
    async with httpx2.AsyncClient(timeout=TIMEOUT_S) as web:
        return await web.post(gateway.url, json=message, headers=given)


async def test_without_a_good_token_nobody_is_let_in(gateway: Gateway) -> None:
    for token in (None, "nonsense", gateway.token("ann") + "x"):
        answer = await post(gateway, token, HELLO)
        assert answer.status_code == 401, token
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json()["error"] == "unauthenticated"
    assert len(gateway.sessions) == 0
    assert "blackboard token create" in (await post(gateway, None, HELLO)).json()["reason"]
    assert (await post(gateway, gateway.token("ann"), HELLO)).status_code == 200


async def test_a_revoked_token_is_of_no_use_any_more(gateway: Gateway) -> None:
    token = gateway.token("ann")
    async with gateway.caller(token) as ann:
        await ann("write", key="public/x", value=1)
        async with blackboard.connect(gateway.served.url, token=gateway.served.token()) as boss:
            await boss.revoke(principal="ann")
            assert (await post(gateway, token, HELLO)).status_code == 401
            assert len(gateway.sessions) == 0
            assert await boss.board("team").get("public/x") == 1


async def test_an_expired_token_ends_a_wait_with_the_reason(gateway: Gateway) -> None:
    token = gateway.served.token(access.agent("ann"), ttl_ms=6_000)
    async with gateway.caller(token) as ann:
        error = await ann.fails("wait", patterns="public/x", seconds=WAIT_S_MAX)
    assert error["code"] == "unauthenticated", error
    assert "blackboard token create" in error["fix"]
    assert (await post(gateway, token, HELLO)).status_code == 401


async def test_a_web_page_with_another_name_for_this_machine_is_kept_out(gateway: Gateway) -> None:
    token = gateway.token("ann")
    assert (await post(gateway, token, HELLO, Host="evil.example")).status_code == 421
    assert (await post(gateway, token, HELLO, Origin="http://evil.example")).status_code == 403


async def test_what_is_no_message_is_refused(gateway: Gateway) -> None:
    token = gateway.token("ann")
    odd: list[Any] = [[], "hello", {"jsonrpc": "2.0"}, {**HELLO, "method": "no/such"}]
    for message in odd:
        answer = await post(gateway, token, message)
        assert answer.status_code < 500, message
    huge = {**HELLO, "params": {"x": "y" * (8 * VALUE_BYTES_MAX)}}
    assert (await post(gateway, token, huge)).status_code == 413
    async with gateway.caller(token) as ann:
        error = await ann.fails("write", key="public/x", value="x" * (VALUE_BYTES_MAX + 1))
        assert error["limit"] == "VALUE_BYTES_MAX"
        assert (await ann("list"))["you"] == "ann"


async def test_a_client_that_goes_in_a_wait_leaves_nothing_behind(gateway: Gateway) -> None:
    """No call, no place in a queue, no watch; its token goes on."""
    token = gateway.token("ann")
    async with gateway.caller(gateway.token("bob")) as bob:
        await bob("claim", key="public/files/a")
        for call in (
            {"patterns": ["public/x"], "seconds": WAIT_S_MAX},
            {"key": "public/files/a", "wait_s": WAIT_S_MAX},
        ):
            tool = "claim" if "key" in call else "wait"
            with anyio.move_on_after(1):
                async with gateway.caller(token) as ann:
                    await ann.client.call_tool(tool, call)

        async def is_over() -> bool:
            calls = [one.session._calls for one in gateway.sessions._open.values()]
            return not gateway.sessions._requests and not any(calls)

        await wait_until(is_over)
        assert [one["waiting"] for one in (await bob("claims"))["claims"]] == [0]
        async with gateway.caller(token) as ann:
            assert (await ann("list"))["you"] == "ann"


async def test_a_service_that_is_away_is_said_and_comes_back(tmp_path: Path) -> None:
    """Claims and what was read outlast it, and nothing is written twice."""
    async with AsyncExitStack() as stack:
        store = await SqliteStore.at(tmp_path, "memory")
        service = await stack.enter_async_context(Service(store))
        async with AsyncExitStack() as first:
            # One that the kernel picks is anybody's while nobody listens at it.
            served = await first.enter_async_context(serving(service, port=free_port()))
            gateway = await stack.enter_async_context(up(served, patience_ms=2_000))
            ann = await stack.enter_async_context(gateway.caller(gateway.token("ann")))
            await ann("claim", key="public/files/a")
            await ann("write", key="public/x", value=1)
        error = await ann.fails("read", keys="public/x")
        assert (error["code"], error["retryable"]) == ("unavailable", True)
        assert "blackboard serve" in error["fix"]
        async with serving(service, port=served.port, secret=served.secret):
            await ann("write", key="public/x", value=2, based_on=["public/x"])
            assert (await ann("release", key="public/files/a"))["released"] is True
            (entry,) = (await ann("read", keys="public/x"))["entries"]
            assert entry["value"] == 2


async def test_tokens_have_a_limit_and_idle_ones_make_room(tmp_path: Path) -> None:
    async with (
        Service(await SqliteStore.at(tmp_path, "memory")) as service,
        serving(service) as served,
        up(served, sessions_max=2) as gateway,
    ):
        ann, bob, eve = (gateway.token(name) for name in ("ann", "bob", "eve"))
        async with gateway.caller(ann) as first, gateway.caller(bob) as second:
            await first("claim", key="public/files/a")
            await second("claim", key="public/files/b")
            refused = await post(gateway, eve, HELLO)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            await first("release", key="public/files/a")
            assert (await post(gateway, eve, HELLO)).status_code == 200
            assert len(gateway.sessions) == 2


async def test_tokens_that_come_at_once_have_the_same_limit(gateway: Gateway) -> None:
    """Each that is being connected counts, before it is."""
    opened, goes = [], asyncio.Event()

    async def connect(token: str) -> Any:
        opened.append(token)
        await goes.wait()
        return await blackboard.connect(gateway.served.url, token=token)

    sessions = TokenSessions(connect, "team", sessions_max=1)

    async def request(name: str) -> int:
        async with sessions.of(gateway.token(name)):
            return len(sessions)

    first, second = (asyncio.create_task(request(name)) for name in ("ann", "bob"))

    async def is_begun() -> bool:
        return bool(opened)

    await wait_until(is_begun)
    goes.set()
    assert await first == 1
    with pytest.raises(TooManyError):
        await second
    assert await request("bob") == 1  # the other one is idle by now, and makes room
    await sessions.aclose()


async def test_one_token_has_a_limited_number_of_requests(gateway: Gateway) -> None:
    token = gateway.token("ann")
    async with AsyncExitStack() as entered:
        for _ in range(REQUESTS_MAX):
            await entered.enter_async_context(gateway.sessions.of(token))
        assert (await post(gateway, token, HELLO)).status_code == 503
        assert (await post(gateway, gateway.token("bob"), HELLO)).status_code == 200
    assert (await post(gateway, token, HELLO)).status_code == 200


async def test_requests_of_one_token_wait_for_the_service_together(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them asks; one after the other, the last would wait for as many times as long. They
    count while they wait."""
    sessions, token, asked, goes = gateway.sessions, gateway.token("ann"), [], asyncio.Event()
    async with sessions.of(token) as session:
        board = session.board
    [connected] = sessions._open.values()

    async def whoami() -> None:
        asked.append(token)
        await goes.wait()
        raise Unavailable(what="the service", reason="it does not answer")

    async def request() -> Board:
        async with sessions.of(token) as session:
            return session.board

    monkeypatch.setattr(connected.client, "whoami", whoami)
    waiting = [asyncio.create_task(request()) for _ in range(REQUESTS_MAX)]

    async def is_asked() -> bool:
        return bool(asked)

    await wait_until(is_asked)
    with pytest.raises(TooManyError), anyio.fail_after(TIMEOUT_S):
        await request()
    goes.set()
    assert await asyncio.gather(*waiting) == [board] * REQUESTS_MAX
    assert len(asked) == 1


async def test_requests_that_came_during_a_check_are_checked_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together: the token may have been revoked since the check before them began."""
    sessions, token, asked, goes = gateway.sessions, gateway.token("ann"), [], asyncio.Event()
    async with sessions.of(token):
        [connected] = sessions._open.values()
    real = connected.client.whoami

    async def whoami() -> Any:
        asked.append(token)
        await goes.wait()
        return await real()

    async def request() -> None:
        async with sessions.of(token):
            pass

    monkeypatch.setattr(connected.client, "whoami", whoami)
    waiting = [asyncio.create_task(request()) for _ in range(5)]

    async def is_asked() -> bool:
        return bool(asked)

    await wait_until(is_asked)
    goes.set()
    await asyncio.gather(*waiting)
    assert len(asked) == 2


async def test_a_connection_that_cannot_be_made_fails_all_that_wait_for_it() -> None:
    attempts, goes = [], asyncio.Event()

    async def connect(token: str) -> Any:
        attempts.append(token)
        await goes.wait()
        raise Unavailable(what="the service", reason="it does not answer")

    sessions = TokenSessions(connect, "team")

    async def request() -> None:
        async with sessions.of("a token"):
            pytest.fail("nobody answers")

    waiting = [asyncio.create_task(request()) for _ in range(5)]

    async def is_begun() -> bool:
        return bool(attempts)

    await wait_until(is_begun)
    goes.set()
    failures = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(failure) for failure in failures] == [Unavailable] * 5
    assert len(attempts) == 1


async def test_health_needs_no_token(gateway: Gateway) -> None:
    async with httpx2.AsyncClient() as web:
        answer = await web.get(gateway.url.removesuffix("/mcp") + "/healthz")
    assert json.loads(answer.text) == {"status": "ok"}
