"""Whatever is sent to a service, it harms nobody but the sender.

A service runs as a process of its own. Each case is sent from a plain socket; then: the answer has
the stable code that it should, or the connection closes with the right code; no revision was made;
where it is promised, the same connection goes on; and a bystander, connected all the time, reads
and writes as before.
"""

import asyncio
import contextlib
import errno
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest

import blackboard
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.integrity.tokens import issue, new_secret
from blackboard.limits import DEFAULT, FRAME_BYTES_MAX, OPERATIONS_MAX, VALUE_BYTES_MAX
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from tests.acceptance.attack import (
    ADA,
    BOARD,
    FEW_STRANGERS,
    OPERATOR,
    OTHER_LIFE,
    PUT,
    SHORT_LEASE,
    Target,
    ask,
    fence,
    key_at,
    op,
    service_at,
    unchanged,
    with_packed_values,
)
from tests.unit.server.http.conversation import PATIENCE_S, Talk, talking
from tests.waiting import wait_until

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One service for all cases: each must leave it as it was."""
    with service_at(tmp_path_factory.mktemp("data")) as found:
        yield found


@pytest.fixture
async def bystander(target: Target) -> AsyncIterator[Board]:
    """Somebody else's board, which must be the same afterwards, and still work."""
    async with blackboard.connect(target.url, token=OPERATOR) as client:
        yield client.board(BOARD)


@pytest.fixture(autouse=True)
async def nothing_happens(bystander: Board) -> AsyncIterator[None]:
    """No case makes a revision, and the bystander goes on."""
    await bystander.put("public/bystander", 1)
    before = (await bystander.head()).revision
    yield
    async with asyncio.timeout(PATIENCE_S):
        assert (await bystander.head()).revision == before
        receipt = await bystander.increment("public/bystander", 1)
        assert await bystander.get("public/bystander") == receipt


async def commit_of(talk: Talk, changed: dict[str, Any]) -> dict[str, Any]:
    """Params of a commit that would be fine but for what is changed."""
    await talk.send({"id": 99, "method": "head", "params": {"board": BOARD}})
    epoch = (await talk.receive())["result"]["epoch"]["id"]
    plain = {
        "board": BOARD,
        "id": {"lane": 0, "incarnation": "bad", "step": 1},
        "epoch": epoch,
        "ops": [PUT],
    }
    return {**plain, **changed}


async def refused(talk: Talk, message: Any) -> dict[str, Any]:
    """Send a message that must be answered with an error; its `data`."""
    await talk.send(message)
    answer = await talk.receive()
    assert "error" in answer, answer
    assert len(json.dumps(answer, default=repr)) < 4000
    data: dict[str, Any] = answer["error"]["data"]
    return data


async def goes_on(talk: Talk) -> None:
    """The connection serves the next request."""
    assert "result" in await talk.ask(1000, "whoami", {})


# --- requests that are answered -------------------------------------------------------------------

COMMITS: list[tuple[str, dict[str, Any], str]] = [
    ("ops are no list", {"ops": 7}, "invalid_request"),
    ("no ops", {"ops": []}, "invalid_request"),
    ("an op is no map", {"ops": [None]}, "invalid_request"),
    ("an unknown op", {"ops": [{"kind": "exec", "key": "public/x"}]}, "invalid_request"),
    ("a member too many", {"ops": [{**PUT, "mode": "w"}]}, "invalid_request"),
    ("a member missing", {"ops": [{"kind": "put", "key": "public/x"}]}, "invalid_request"),
    ("a key that is a number", op(7), "invalid_request"),
    ("an empty key", op(""), "invalid_request"),
    ("a namespace", op("public"), "invalid_request"),
    ("an unknown namespace", op("secret/x"), "invalid_request"),
    ("a way up", op("public/../private/bob/x"), "invalid_request"),
    ("a slash at the end", op("public/x/"), "invalid_request"),
    ("a wildcard", op("public/*"), "invalid_request"),
    ("a NUL", op("public/x\0"), "invalid_request"),
    ("a brace", op("public/{x}"), "invalid_request"),
    ("another alphabet", op("public/\u0435"), "invalid_request"),
    ("a key too long", op("public/" + "k/" * 1000 + "k"), "limit_exceeded"),
    ("a segment too long", op("public/" + "k" * 129), "invalid_request"),
    ("too many ops", {"ops": [PUT] * (OPERATIONS_MAX + 1)}, "limit_exceeded"),
    ("a lease too short", {"ops": [SHORT_LEASE]}, "invalid_request"),
    ("a foreign private key", op("private/bob/x"), "access_denied"),
    ("a foreign inbox", op("inbox/bob/x"), "access_denied"),
    ("reading a foreign key", key_at("private/bob/x", 0), "access_denied"),
    ("watching a foreign prefix", unchanged("private/bob", 0), "access_denied"),
    ("a foreign ground", {"based_on": [["private/bob/x", 1]]}, "access_denied"),
    ("a foreign fence", fence("private/bob/x"), "access_denied"),
    ("acting for another", {"agent": "bob"}, "access_denied"),
    ("a stale epoch", {"epoch": "0" * 32}, "stale_epoch"),
    ("a future revision of a key", key_at("public/bystander", 10**9), "conflict"),
    ("a future revision of a prefix", unchanged("public", 10**9), "future_revision"),
    ("an impossible revision", {"retry_since": 2**60}, "invalid_request"),
    ("a fence that nobody has", fence("public/x"), "fenced"),
    ("a board that is no name", {"board": "../etc"}, "invalid_request"),
    ("no such lane", {"id": {"lane": 64, "incarnation": "i", "step": 1}}, "invalid_request"),
    ("a note too long", {"note": "n" * 1025}, "limit_exceeded"),
]  # fmt: skip


@both
@pytest.mark.parametrize(("changed", "code"), [c[1:] for c in COMMITS], ids=[c[0] for c in COMMITS])
async def test_a_bad_commit(
    target: Target, encoding: Encoding, changed: dict[str, Any], code: str
) -> None:
    """Refused with its code; the next request on the connection is served."""
    async with talking(target.url, ADA, encoding=encoding, greeting={}) as talk:
        params = await commit_of(talk, changed)
        if encoding is MSGPACK:
            params = {**params, "ops": with_packed_values(params["ops"])}
        data = await refused(talk, {"id": 1, "method": "commit", "params": params})
        assert data["code"] == code
        await goes_on(talk)


VALUES: list[tuple[str, bytes, str]] = [
    ("too large", msgpack.packb("x" * VALUE_BYTES_MAX), "limit_exceeded"),
    ("too deep", b"\x91" * 65 + b"\x01", "limit_exceeded"),
    ("deeper than any decoder goes", b"\x91" * 100_000, "invalid_request"),
    ("an extension type", b"\xd4\x05\x00", "invalid_request"),
    ("a timestamp", msgpack.packb(msgpack.Timestamp(1)), "invalid_request"),
    ("NaN", b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "invalid_request"),
    ("a key twice", b"\x82\xa1a\x01\xa1a\x02", "invalid_request"),
    ("a key that is a number", b"\x81\x01\x02", "invalid_request"),
    ("text that is not UTF-8", b"\xa2\xff\xfe", "invalid_request"),
    ("a huge array announced", b"\xdd\xff\xff\xff\xff", "invalid_request"),
    ("a huge text announced", b"\xdb\xff\xff\xff\xff", "invalid_request"),
    ("two values", b"\x01\x02", "invalid_request"),
    ("nothing", b"", "invalid_request"),
    ("an unused code", b"\xc1", "invalid_request"),
    ("the name of bytes", msgpack.packb({"$bytes": "AA=="}), "invalid_request"),
]


@pytest.mark.parametrize(("value", "code"), [v[1:] for v in VALUES], ids=[v[0] for v in VALUES])
async def test_a_bad_msgpack_value(target: Target, value: bytes, code: str) -> None:
    """Refused by the path of the field; the next request on the connection is served."""
    async with talking(target.url, ADA, encoding=MSGPACK, greeting={}) as talk:
        params = await commit_of(talk, op("public/x", value))
        data = await refused(talk, {"id": 1, "method": "commit", "params": params})
        assert data["code"] == code
        assert data["fields"].get("field", data["fields"].get("where")) == "ops.0.value"
        await goes_on(talk)


TEXTS: list[tuple[str, bytes]] = [
    ("a key twice", b'{"a":1,"a":2}'),
    ("bytes that are not base64", b'{"$bytes":"*"}'),
    ("an integer beyond 64 bits", b"9" * 40),
    ("half a character", b'"\\ud800"'),
    ("infinity", b"1e999"),
    ("too deep", b"[" * 65 + b"]" * 65),
]


@pytest.mark.parametrize("value", [t[1] for t in TEXTS], ids=[t[0] for t in TEXTS])
async def test_a_bad_json_value(target: Target, value: bytes) -> None:
    """What JSON can spell and a value cannot be."""
    async with talking(target.url, ADA, greeting={}) as talk:
        params = JSON.pack(await commit_of(talk, op("public/x", "HERE")))
        params = params.replace(b'"HERE"', value)
        await talk.send_raw(b'[{"id":1,"method":"commit","params":%s}]' % params)
        answer = await talk.receive()
        assert answer["error"]["data"]["code"] in ("invalid_request", "limit_exceeded")
        await goes_on(talk)


REQUESTS: list[tuple[str, Any, str]] = [
    ("an unknown method", {"id": 1, "method": "drop"}, "invalid_request"),
    ("a very long method", {"id": 1, "method": "x" * 1_000_000}, "invalid_request"),
    ("a method that is a list", {"id": 1, "method": []}, "invalid_request"),
    ("no method", {"id": 1}, "invalid_request"),
    ("no id", {"method": "boards"}, "invalid_request"),
    ("an id that is a list", {"id": [], "method": "boards"}, "invalid_request"),
    ("not a map", "boards", "invalid_request"),
    ("params that are a text", {"id": 1, "method": "boards", "params": "x"}, "invalid_request"),
    ("a second hello", {"id": 1, "method": "hello"}, "invalid_request"),
    ("a read of others", ask("read", {"keys": ["private/bob/x"]}), "access_denied"),
    ("a why of others", ask("why", {"key": "private/bob/x"}), "access_denied"),
    ("too many keys", ask("read", {"keys": ["public/x"] * 1025}), "limit_exceeded"),
    ("a log from the future", ask("log", {"after": 10**9}), "future_revision"),
    ("a page too large", ask("log", {"limit": 10**6}), "invalid_request"),
    ("a pattern that is none", ask("list", {"pattern": "("}), "invalid_request"),
    ("a watch from another life", ask("watch", OTHER_LIFE), "rolled_back"),
    ("no such watch", {"id": 1, "method": "unwatch", "params": {"watch": 5}}, "invalid_request"),
    ("an answer", {"id": 1, "result": {}}, "invalid_request"),
]  # fmt: skip


@both
@pytest.mark.parametrize(
    ("message", "code"), [r[1:] for r in REQUESTS], ids=[r[0] for r in REQUESTS]
)
async def test_a_bad_request(target: Target, encoding: Encoding, message: Any, code: str) -> None:
    """Refused with its code; the next request on the connection is served."""
    async with talking(target.url, ADA, encoding=encoding, greeting={}) as talk:
        assert (await refused(talk, message))["code"] == code
        await goes_on(talk)


async def test_what_is_private_is_not_hinted_at(target: Target, bystander: Board) -> None:
    """Listings and logs show nothing of it; a key that exists is refused like one that does not."""
    others = Client(bystander._link).board("others")  # its revisions are not the bystander's
    await others.as_agent("bob").put("private/bob/canary", "the canary sings")
    async with talking(target.url, ADA, greeting={}) as talk:
        read = {"id": 1, "method": "read"}
        errors = [
            await refused(talk, {**read, "params": {"board": "others", "keys": [key]}})
            for key in ("private/bob/canary", "private/bob/nobody")
        ]
        assert json.dumps(errors[0]) == json.dumps(errors[1]).replace("nobody", "canary")
        for method, params in (
            ("list", {"pattern": "**"}),
            ("list", {"pattern": "private/bob/*"}),
            ("log", {}),
        ):
            answer = await talk.ask(2, method, {"board": "others", **params})
            assert "result" in answer
            assert "canary" not in json.dumps(answer)


# --- frames that close ----------------------------------------------------------------------------

BROKEN: list[tuple[str, Encoding, bytes, int]] = [
    ("no msgpack", MSGPACK, b"\xc1", 1007),
    ("cut msgpack", MSGPACK, b"\x91\x83", 1007),
    ("a huge array announced", MSGPACK, b"\xdd\xff\xff\xff\xff", 1007),
    ("a huge map announced", MSGPACK, b"\xdf\xff\xff\xff\xff", 1007),
    ("deep msgpack", MSGPACK, b"\x91" * 1_000_000, 1007),
    ("a bomb of arrays", MSGPACK, b"\x91\xdd\x00\x4c\x4b\x40" + b"\x90" * 5_000_000, 1007),
    ("a bomb of maps", MSGPACK, b"\x91\xdd\x00\x4c\x4b\x40" + b"\x80" * 5_000_000, 1007),
    ("not an array", MSGPACK, b"\x81\xa2id\x01", 1007),
    ("an empty array", MSGPACK, b"\x90", 1002),
    ("too many messages", MSGPACK, b"\xdc\x04\x01" + b"\x01" * 1025, 1002),
    ("too big a frame", MSGPACK, b"\xc6\x00\x80\x00\x01" + b"x" * (FRAME_BYTES_MAX + 1), 1009),
    ("no JSON", JSON, b"hello", 1007),
    ("cut JSON", JSON, b'[{"id":1', 1007),
    ("NaN", JSON, b'[{"id":NaN}]', 1007),
    ("deep JSON", JSON, b"[" * 1_000_000, 1007),
    ("a bomb of JSON arrays", JSON, b"[" + b"[]," * 2_000_000 + b"1]", 1007),
    ("an empty text", JSON, b"", 1007),
]


@pytest.mark.parametrize(
    ("encoding", "frame", "code"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN]
)
async def test_a_broken_frame(target: Target, encoding: Encoding, frame: bytes, code: int) -> None:
    """Closes its own connection, with the code that says why."""
    async with talking(target.url, ADA, encoding=encoding, greeting={}) as talk:
        with contextlib.suppress(Exception):  # the service may close before all of it was sent
            await talk.send_raw(frame)
        assert await talk.closed() == code


@pytest.mark.parametrize(("encoding", "message"), [(MSGPACK, "[]"), (JSON, b"[]")])
async def test_a_frame_of_the_wrong_kind(
    target: Target, encoding: Encoding, message: str | bytes
) -> None:
    """Text on the binary protocol, or the reverse."""
    async with talking(target.url, ADA, encoding=encoding, greeting={}) as talk:
        await talk.socket.send(message)
        assert await talk.closed() == 1003


async def test_text_that_is_not_utf8(target: Target) -> None:
    """WebSockets themselves forbid it."""
    async with talking(target.url, ADA, greeting={}) as talk:
        await talk.socket.send([b"[\xff", b"]"], text=True)
        assert await talk.closed() == 1007


# --- handshakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hello",
    [
        {"id": 1, "method": "boards"},
        {"id": 1, "method": "hello", "params": {"token": "x" * 20_000}},
        {"id": 1, "method": "commit", "params": {}},
        7,
    ],
)
@both
async def test_a_stranger_that_does_not_greet(
    target: Target, encoding: Encoding, hello: Any
) -> None:
    """Gets no answer, only the end."""
    async with talking(target.url, None, encoding=encoding) as talk:
        await talk.send(hello)
        assert await talk.closed() == 1002


OTHER_END = ADA[:-3] + ("BBB" if ADA.endswith("AAA") else "AAA")


@pytest.mark.parametrize(
    "token",
    ["", "x", "a.b.c", OTHER_END, issue(new_secret(), access.operator(), 60_000)],
    ids=["empty", "nonsense", "shape", "signature", "another service's"],
)
async def test_a_wrong_token(target: Target, token: str) -> None:
    """In hello: an error, then the end. In a header: no WebSocket. By POST: 401."""
    async with talking(target.url, None) as talk:
        data = await refused(talk, {"id": 1, "method": "hello", "params": {"token": token}})
        assert data["code"] == "unauthenticated"
        assert await talk.closed() == 4401
    with pytest.raises(blackboard.errors.Unauthenticated):
        async with blackboard.connect(target.url, token=token or " "):
            pass
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        headers = {"Authorization": f"Bearer {token}".strip()}
        url = f"http://127.0.0.1:{target.port}/v1/rpc"
        response = await http.post(url, json={"id": 1, "method": "boards"}, headers=headers)
        assert response.status_code == 401


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nHost: x\r\n" + b"X-Long: " + b"x" * 1_000_000,
        b"POST /v1/rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999999999\r\n\r\n{",
        b"NONSENSE\r\n\r\n",
        bytes(range(256)) * 100,
    ],
    ids=["nothing", "a byte", "half", "tls", "no key", "long", "short body", "nonsense", "noise"],
)
async def test_half_closed_and_halting_sockets(target: Target, sent: bytes) -> None:
    """Whatever is sent before the socket is half closed, the service lets go of it."""
    peer = socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S)
    with peer, contextlib.suppress(ConnectionError):
        peer.sendall(sent)
        half_close(peer)
        while await asyncio.to_thread(peer.recv, 65_536):
            pass


def half_close(peer: socket.socket) -> None:
    """Send nothing more. Errors: ConnectionError when the service has closed it already."""
    try:
        peer.shutdown(socket.SHUT_WR)
    except OSError as error:  # ENOTCONN is no ConnectionError
        if error.errno != errno.ENOTCONN:
            raise
        raise ConnectionError(*error.args) from error


@pytest.mark.parametrize("drip", [b"", b"X-Drip: 1\r\n"], ids=["silent", "dripping"])
async def test_a_request_that_never_ends(target: Target, drip: bytes) -> None:
    """The head of a request has as long as a hello, whether nothing more comes or a little."""
    started = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    writer.write(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(drip)
                with contextlib.suppress(TimeoutError):
                    assert await asyncio.wait_for(reader.read(1), 0.2) == b""
    assert (time.monotonic() - started) * 1000 > DEFAULT.connection.handshake_timeout_ms * 0.9
    writer.close()


async def test_a_handshake_that_never_ends(target: Target) -> None:
    """An open WebSocket that says nothing is closed when its time is over, not before."""
    started = time.monotonic()
    async with talking(target.url, None) as talk:
        assert await talk.closed() == 4401
    assert (time.monotonic() - started) * 1000 > DEFAULT.connection.handshake_timeout_ms * 0.9


async def test_many_strangers_keep_nobody_out(tmp_path: Path) -> None:
    """Silent connections fill their own quota; clients with a token get in from any address.

    The quota is small here, and strangers may stay long: the oldest of them goes for a new one.
    """
    with service_at(tmp_path, FEW_STRANGERS) as target:
        async with contextlib.AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(talking(target.url, None)) for _ in range(48)]
            for talk in silent[:40]:
                assert await talk.closed() == 1013
            async with blackboard.connect(target.url, token=OPERATOR) as client:
                await client.board(BOARD).put("public/a", 1)
            async with talking(target.url, None, greeting={"token": OPERATOR}) as known:
                assert "result" in await known.ask(1, "whoami", {})


HEADS = (
    (b"GET /", b"x" * 65_000),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a:\r\n" * 16_000),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a: " + b"x" * 65_000 + b"\r\n"),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\na: ", b"x" * 65_000),
    (b"POST /v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n", b"x" * 65_000),
    (
        b"POST /v1/rpc HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1;" + b"e" * 65_000 + b"\r\nx\r\n",
    ),
)


async def _pour(port: int, start: bytes, more: bytes) -> None:
    """Send megabytes to the service, as long as it takes them."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(OSError):
        writer.write(start)
        for _ in range(160):
            writer.write(more)
            await writer.drain()
    writer.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
async def test_the_memory_of_the_service_is_not_the_strangers(
    target: Target, bystander: Board
) -> None:
    """Heads and bodies without end, of strangers: nothing of them is kept, and others go on."""
    before = target.memory_bytes()
    for start, more in HEADS:
        await asyncio.gather(*[_pour(target.port, start, more) for _ in range(4)])
        assert await bystander.get("public/bystander") == 1
    assert target.memory_bytes() - before < 16 * 1024 * 1024


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
async def test_readers_that_never_read(target: Target, bystander: Board) -> None:
    """Watches, listings and reads of megabytes that nobody takes: memory stays flat."""
    bulk = Client(bystander._link).board("bulk")  # its revisions are not the bystander's
    text = "x" * 250_000
    for number in range(8):
        await bulk.put(f"public/{number}", text)
    async with contextlib.AsyncExitStack() as stack:
        before = target.memory_bytes()
        stalled = [
            await stack.enter_async_context(talking(target.url, OPERATOR, greeting={}))
            for _ in range(10)
        ]
        for talk in stalled:
            for number in range(20):
                watch = {"board": "bulk", "watch": number, "patterns": ["public/**"]}
                await talk.send({"id": number, "method": "watch", "params": watch})
            await talk.receive()
            talk.socket.transport.pause_reading()
            for number in range(100, 200):
                listing = {"board": "bulk", "pattern": "public/**"}
                await talk.send({"id": number, "method": "list", "params": listing})
        waiting, grown = [], []
        for number in range(200):
            await bulk.put(f"public/{number % 8}", text)
            if number % 20 == 19:  # who does not read is let go in the end
                waiting.append(await _gauge(target, "blackboard_waiting_bytes"))
                grown.append(target.memory_bytes() - before)
        assert 0 < max(waiting) <= 10 * DEFAULT.service.outgoing_bytes_max
        for talk in stalled:
            talk.socket.transport.abort()
    assert max(grown) < 10 * 4 * FRAME_BYTES_MAX
    await wait_until(lambda: _is_quiet(target))


async def _gauge(target: Target, name: str) -> float:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        text = (await http.get(f"http://127.0.0.1:{target.port}/metrics")).text
    return float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0])


async def _is_quiet(target: Target) -> bool:
    return await _gauge(target, "blackboard_connections") == 1
