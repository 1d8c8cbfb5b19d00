"""The handshake: which clients are accepted, and how many."""

import asyncio
import gc
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

import blackboard
from blackboard.core import access
from blackboard.limits import STRANGER_BYTES_MAX
from blackboard.server.http.handshake import OriginPolicy, bearer_token, header
from blackboard.server.http.uvicorn_protocol import DirectProtocol
from blackboard.server.service import Service
from tests.serving import Served, serving
from tests.unit.server.http.conversation import talking
from tests.waiting import TIMEOUT_S, wait_until

ORIGIN = "https://dashboard.example.org"


def scope_of(*headers: tuple[str, str]) -> dict[str, Any]:
    """An ASGI scope with those headers."""
    return {"headers": [(name.encode(), value.encode()) for name, value in headers]}


@pytest.mark.parametrize(
    ("hosts", "host", "allowed"),
    [
        ((), "anything", True),
        (("localhost",), "localhost", True),
        (("localhost",), "localhost:7420", True),
        (("localhost",), "LocalHost:7420", True),
        (("[::1]",), "[::1]:7420", True),
        (("[::1]",), "[::1]", True),
        (("board.example.org:443",), "board.example.org:443", True),
        (("board.example.org:443",), "board.example.org:444", False),
        (("localhost",), "evil.example.org", False),
        (("localhost",), "localhost.evil.example.org", False),
        (("localhost",), "localhost:7420:80", False),
        (("localhost",), "", False),
    ],
)
def test_hosts(hosts: tuple[str, ...], host: str, allowed: bool) -> None:
    """A name with any port, or a name with its port; nothing that merely begins like one."""
    assert (OriginPolicy(hosts=hosts).refusal(scope_of(("host", host))) is None) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        (ORIGIN, True),
        (ORIGIN + ":443", False),
        (ORIGIN + ".evil.example.org", False),
        ("http://dashboard.example.org", False),
        ("null", False),
        ("", False),
    ],
)
def test_origins(origin: str | None, allowed: bool) -> None:
    """Exactly what is listed, or none at all, as programs do."""
    headers = [] if origin is None else [("origin", origin)]
    assert (OriginPolicy(origins=(ORIGIN,)).refusal(scope_of(*headers)) is None) is allowed


def test_a_header_that_stands_twice_matches_nothing() -> None:
    """Two parties could each take another of them for the real one."""
    scope = scope_of(("host", "localhost"), ("host", "localhost"))
    assert OriginPolicy(hosts=("localhost",)).refusal(scope) is not None


@pytest.mark.parametrize(
    ("value", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", ""), ("abc", ""), ("", "")],
)
def test_bearer_tokens(value: str, token: str) -> None:
    """Another scheme is a token that is not valid, not the lack of one."""
    assert bearer_token(scope_of(("authorization", value))) == token
    assert bearer_token(scope_of()) is None
    assert header(scope_of(("a", "b")), b"a") == "b"


@pytest.fixture
async def guarded(service: Service) -> AsyncIterator[Served]:
    """A service with lists of hosts and origins."""
    origin_policy = OriginPolicy(hosts=("127.0.0.1",), origins=(ORIGIN,))
    async with serving(service, origin_policy=origin_policy) as served:
        yield served


@pytest.mark.parametrize(
    ("status", "subprotocol", "headers"),
    [
        (400, "blackboard.v2+json", {}),
        (401, "blackboard.v1+json", {"Authorization": "Bearer nonsense"}),
        (401, "blackboard.v1+json", {"Authorization": "Basic abc"}),
        (403, "blackboard.v1+json", {"Origin": "https://evil.example.org"}),
    ],
)
async def test_a_handshake_is_refused_with_its_reason(
    guarded: Served,
    status: int,
    subprotocol: str,
    headers: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As HTTP, before there is a WebSocket. The log names only a refused page, whose reader would
    see nothing else."""
    with pytest.raises(InvalidStatus) as caught:
        await _handshake(guarded, "127.0.0.1", subprotocol, headers)
    assert caught.value.response.status_code == status
    assert b"reason" in (caught.value.response.body or b"")
    assert guarded.gate.traffic.turned_away[status] == 1
    assert guarded.gate.connections == 0
    told = [record.getMessage() for record in caplog.records]
    reason = "origin 'https://evil.example.org' is not one of allowed_origins"
    assert told == ([f"refused: {reason}"] if status == 403 else [])


@pytest.mark.limits(audit_alike_max=2)
async def test_refused_pages_cannot_fill_the_log(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """Any page can connect again and again. The first refusals are logged, the others counted."""
    origin_policy = OriginPolicy(hosts=("127.0.0.1",), origins=(ORIGIN,))
    async with serving(service, origin_policy=origin_policy) as served:
        for number in range(7):
            page = {"Origin": f"https://{number}.example.org"}
            with pytest.raises(InvalidStatus):
                await _handshake(served, "127.0.0.1", "blackboard.v1+json", page)
    told = [record.getMessage() for record in caplog.records]
    lines = [line for line in told if line.startswith("refused: ")]
    assert len(lines) == 2
    assert "5 more in a minute: refused: %s" in told


async def test_who_was_not_let_in_is_in_the_audit(guarded: Served) -> None:
    """With the reason, without any part of the credentials; for handshakes, `hello` and POST."""
    evil = {"Origin": "https://evil.example.org"}
    for headers in (evil, {"Authorization": "Bearer canary.canary.canary"}):
        with pytest.raises(InvalidStatus):
            await _handshake(guarded, "127.0.0.1", "blackboard.v1+json", headers)
    async with talking(guarded.url, None) as talk:
        answer = await talk.ask(1, "hello", {"token": "canary"})
        assert answer["error"]["data"]["code"] == "unauthenticated"
    async with httpx.AsyncClient(trust_env=False) as http:
        url = guarded.url.replace("ws:", "http:")
        assert (await http.post(f"{url}/v1/rpc", json={})).status_code == 401
        assert (await http.post(f"{url}/v1/rpc", json={}, headers=evil)).status_code == 403
    gone = guarded.token(access.agent("bob"))
    await guarded.service.link(access.operator()).revoke(principal="bob")
    headers = {"Authorization": f"Bearer {gone}"}
    with pytest.raises(InvalidStatus):
        await _handshake(guarded, "127.0.0.1", "blackboard.v1+json", headers)
    found = [record for _, record in await guarded.service.host.audit.read(None, 100)]
    assert [(r.principal, r.verb, r.outcome) for r in found] == [
        ("", "connect", "not_allowed"),
        ("", "authenticate", "unauthenticated"),
        ("", "authenticate", "unauthenticated"),
        ("", "authenticate", "unauthenticated"),
        ("", "connect", "not_allowed"),
        ("bob", "authenticate", "unauthenticated"),
    ]
    assert "canary" not in repr(found)


async def test_who_wants_to_pass_for_another_is_in_the_audit(served: Served) -> None:
    """In `hello`, in a later request, with a later token, by POST, and at a document."""
    token, acts = served.token(access.agent("eve")), {"agent": "ada"}
    headers = {"Authorization": f"Bearer {token}"}
    async with talking(served.url, token) as talk:
        assert (await talk.ask(1, "hello", acts))["error"]["data"]["code"] == "access_denied"
    async with talking(served.url, token, greeting={}) as talk:
        ask = {"board": "main", "pattern": "**", **acts}
        assert (await talk.ask(1, "list", ask))["error"]["data"]["code"] == "access_denied"
    async with talking(served.url, served.token(access.agent("ada")), greeting={}) as talk:
        refused = await talk.ask(1, "refresh", {"token": token})
        assert refused["error"]["data"]["code"] == "access_denied"
    async with httpx.AsyncClient(trust_env=False, headers=headers) as http:
        body = {"id": 1, "method": "whoami", "params": acts}
        answer = await http.post(f"{served.url.replace('ws:', 'http:')}/v1/rpc", json=body)
        assert answer.json()["error"]["data"]["code"] == "access_denied"
    url = f"{served.url}/v1/boards/main/docs/public/memo?agent=ada"
    async with connect(url, additional_headers=headers, proxy=None) as peer:
        with pytest.raises(ConnectionClosed):
            await peer.recv()
        assert peer.close_code == 4403
    found = [record for _, record in await served.service.host.audit.read(None, 100)]
    told = [(r.principal, r.verb, r.what, r.outcome) for r in found]
    assert told == [("eve", "act_as", "ada", "access_denied")] * 5


async def test_another_host_is_refused(guarded: Served) -> None:
    """A foreign name that resolves to this machine (DNS rebinding)."""
    with pytest.raises(InvalidStatus) as caught:
        await _handshake(guarded, "evil.example.org", "blackboard.v1+json", {})
    assert caught.value.response.status_code == 403


async def _handshake(served: Served, host: str, subprotocol: str, headers: dict[str, str]) -> None:
    async with connect(
        f"ws://{host}:{served.port}/v1",
        host="127.0.0.1",
        port=served.port,
        subprotocols=[Subprotocol(subprotocol)],
        additional_headers=headers,
        proxy=None,
    ):
        raise AssertionError("it was let in")


async def test_a_web_page_that_is_listed_is_let_in(guarded: Served) -> None:
    """With its token in hello: a page cannot set headers."""
    async with connect(
        f"{guarded.url}/v1",
        subprotocols=[Subprotocol("blackboard.v1+json")],
        additional_headers={"Origin": ORIGIN},
        proxy=None,
    ) as socket:
        params = f'{{"token": "{guarded.token()}"}}'
        await socket.send(f'[{{"id": 1, "method": "hello", "params": {params}}}]')
        assert '"principal":"operator"' in str(await socket.recv())


async def test_msgpack_is_preferred_and_nothing_is_compressed(served: Served) -> None:
    """Regardless of what the client offers."""
    async with connect(
        f"{served.url}/v1",
        subprotocols=[Subprotocol("blackboard.v1+json"), Subprotocol("blackboard.v1+msgpack")],
        compression="deflate",
        proxy=None,
    ) as socket:
        assert socket.subprotocol == "blackboard.v1+msgpack"
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers


@pytest.mark.limits(connections_max=2, connections_per_principal_max=1)
async def test_connections_are_limited(served: Served) -> None:
    """In all, and per principal. A connection that ends makes room."""
    ada, bob, eve = (served.token(access.agent(name)) for name in ("ada", "bob", "eve"))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(talking(served.url, ada, greeting={}))
        async with talking(served.url, ada) as second:
            answer = await second.ask(1, "hello", {})
            assert answer["error"]["data"]["fields"]["limit"] == "CONNECTIONS_PER_PRINCIPAL_MAX"
            assert await second.closed() == 1013
        await wait_until(lambda: _is(served, 1))
        await stack.enter_async_context(talking(served.url, bob, greeting={}))
        with pytest.raises(InvalidStatus, match="503"):
            await stack.enter_async_context(talking(served.url, eve))
        async with talking(served.url, None) as late:  # a stranger is let in, until he is known
            answer = await late.ask(1, "hello", {"token": eve})
            assert answer["error"]["data"]["fields"]["limit"] == "CONNECTIONS_MAX"
    await wait_until(lambda: _is(served, 0))
    async with talking(served.url, ada, greeting={}):
        assert served.gate.connections == 1


@pytest.mark.limits(ungreeted_max=2)
async def test_strangers_make_room_for_strangers(service: Service) -> None:
    """The oldest is closed, not the new one: a token in `hello` is as good as one in a header."""
    async with serving(service) as served, AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(talking(served.url, None)) for _ in range(3)]
        assert await silent[0].closed() == 1013
        token = served.token(access.agent("ada"))
        for _ in range(4):  # who is known counts no longer
            await stack.enter_async_context(talking(served.url, None, greeting={"token": token}))
        assert await silent[1].closed() == 1013
        await wait_until(lambda: _is(served, 5))


@pytest.mark.limits(connections_per_principal_max=2)
async def test_who_shows_a_token_and_says_nothing_makes_room_for_his_own(
    service: Service,
) -> None:
    """Not for the connections of another account, however many of them do the same."""
    async with serving(service) as served, AsyncExitStack() as stack:
        ada, eve = (served.token(access.agent(name)) for name in ("ada", "eve"))
        mine = await stack.enter_async_context(talking(served.url, ada))
        silent = [await stack.enter_async_context(talking(served.url, eve)) for _ in range(3)]
        assert await silent[0].closed() == 1013
        assert "result" in await mine.ask(1, "hello", {})
        assert "result" in await silent[1].ask(1, "hello", {})


async def _is(served: Served, count: int) -> bool:
    return served.gate.connections == count


async def test_strangers_may_send_little(served: Served) -> None:
    """The connection is closed before a larger message is in memory."""
    async with talking(served.url, None) as stranger:
        await stranger.send_raw(b"[" + bytes(STRANGER_BYTES_MAX) + b"]")
        assert await stranger.closed() == 1009


@pytest.mark.parametrize("in_header", [False, True])
async def test_an_authenticated_client_may_send_a_full_frame(
    served: Served, in_header: bool
) -> None:
    """Whether by header or by `hello`."""
    token, greeting = served.token(access.agent("ada")), dict[str, Any]()
    if not in_header:
        greeting["token"] = token
    async with talking(served.url, token if in_header else None, greeting=greeting) as known:
        for number in range(1, 4):
            keys = ["public/" + "a" * 60_000] * 5
            reading = {"board": "b", "keys": keys}
            answer = await known.ask(number, "read", reading)
            assert answer["error"]["data"]["code"] == "limit_exceeded"


async def test_an_answer_after_the_server_closed_is_no_failure(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """The server ends a connection by itself, and takes what comes then for a mistake: for us its
    peer is gone."""
    came: list[MutableMapping[str, Any]] = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": '[{"id":1,"method":"hello"}]'},
    ]
    sent: list[str] = []

    async def receive() -> MutableMapping[str, Any]:
        if not came:
            await asyncio.Event().wait()
        return came.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])
        if message["type"] == "websocket.send":
            raise RuntimeError("Unexpected ASGI message 'websocket.send', after ...")

    authorization = ("authorization", f"Bearer {served.token()}")
    scope = {**scope_of(authorization), "subprotocols": ["blackboard.v1+json"]}
    with caplog.at_level("INFO"):
        async with asyncio.timeout(TIMEOUT_S):
            await served.gate(scope, receive, send)
    assert sent == ["websocket.accept", "websocket.send"]
    assert caplog.records == []
    assert served.gate.connections == 0


async def test_nothing_of_a_connection_waits_for_the_collector(served: Served) -> None:
    """Which comes to what is old once in days, and tens of kilobytes would wait for it each time
    that somebody goes."""
    gc.collect()
    gc.disable()
    try:
        before = _parts()
        async with blackboard.connect(served.url, token=served.token()) as client:
            board = client.board("b")
            async with board.watch("public/**") as ended, board.watch("public/**"):
                await board.put("public/a", 1)
                await anext(aiter(ended))
            assert len(_parts()) > len(before)

        async def gone() -> bool:
            return not _parts() - before

        await wait_until(gone)
    finally:
        gc.enable()


def _parts() -> set[str]:
    """The objects of connections, each with its name and place."""
    kinds = ("Connection", "Watches", "_Watch", "DirectProtocol", "HttpToolsProtocol")
    ours = ("blackboard.", "uvicorn.")
    return {
        f"{type(found).__name__} at {id(found)}"
        for found in gc.get_objects()
        if type(found).__name__ in kinds and str(type(found).__module__).startswith(ours)
    }


@pytest.mark.limits(intake_bytes_max=1_500_000)
async def test_a_client_that_was_sent_away_loses_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More large commits on their way than INTAKE_BYTES_MAX: each is there in the end, once."""

    ended: list[DirectProtocol] = []
    let_go = DirectProtocol.let_go

    def noted(self: DirectProtocol) -> None:
        ended.append(self)
        let_go(self)

    monkeypatch.setattr(DirectProtocol, "let_go", noted)
    value = "x" * 700_000

    async def one(name: str) -> None:
        token = served.token(access.agent(name))
        async with blackboard.connect(served.url, token=token) as client:
            board = client.board("b")
            for number in range(3):
                await board.put(f"public/{name}/{number}", value)
                await board.increment("public/count", 1)

    names = [f"agent{number}" for number in range(6)]
    rounds = 0
    async with asyncio.timeout(6 * TIMEOUT_S):
        while not ended:  # else they got through one after the other
            await asyncio.gather(*map(one, names))
            rounds += 1
    async with blackboard.connect(served.url, token=served.token()) as client:
        assert await client.board("b").get("public/count") == rounds * 3 * len(names)
        for name in names:
            assert await client.board("b").get(f"public/{name}/2") == value
