"""Plain HTTP: requests by POST, health, metrics, the description."""

import asyncio
import contextlib
import json
import math
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blackboard.archive.sql import archive_beside
from blackboard.core import access
from blackboard.engines.base import EngineFacts
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import BlackboardError, Corrupt, Unavailable
from blackboard.limits import FRAME_BYTES_MAX, MESSAGES_PER_FRAME_MAX, Limits
from blackboard.server.http.handshake import OriginPolicy
from blackboard.server.service import Service
from tests.serving import Served, serving
from tests.unit.server.hooked import client_of
from tests.unit.server.http.conversation import PATIENCE_S, talking
from tests.waiting import let_pass, wait_until

COMMIT = {
    "board": "b",
    "id": {"lane": 0, "incarnation": "i", "step": 1},
    "ops": [{"kind": "put", "key": "public/a", "value": {"n": 1, "raw": {"$bytes": "AA=="}}}],
}


class Post:
    """Asks by POST as one principal."""

    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        self.http = http
        self.headers = {"Authorization": f"Bearer {token}"}

    async def send(self, body: Any) -> httpx.Response:
        """Post a body: bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post("/v1/rpc", content=content, headers=self.headers)

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """One request; its answer."""
        response = await self.send({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        assert response.status_code == 200
        answer = response.json()
        assert answer["id"] == 7
        return answer


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service."""
    base = served.url.replace("ws:", "http:")
    async with httpx.AsyncClient(base_url=base, trust_env=False) as client:
        yield client


@pytest.fixture
def post(http: httpx.AsyncClient, served: Served) -> Post:
    """The operator's way."""
    return Post(http, served.token())


async def test_a_board_can_be_used_with_curl(post: Post) -> None:
    """Head, commit, read, list, log, why, boards, whoami."""
    epoch = (await post.ask("head", {"board": "b"}))["result"]["epoch"]["id"]
    receipt = (await post.ask("commit", {**COMMIT, "epoch": epoch}))["result"]
    assert (receipt["revision"], receipt["level"]) == (1, "disk")
    reading = (await post.ask("read", {"board": "b", "keys": ["public/a", "public/none"]}))[
        "result"
    ]
    (entry,) = reading["entries"]
    assert entry["value"] == {"n": 1, "raw": {"$bytes": "AA=="}}
    for method, params in (
        ("list", {"board": "b", "pattern": "public/**"}),
        ("log", {"board": "b"}),
        ("why", {"board": "b", "key": "public/a"}),
    ):
        assert "public/a" in json.dumps((await post.ask(method, params))["result"])
    assert (await post.ask("boards"))["result"] == ["b"]
    assert (await post.ask("whoami", {"agent": "ada"}))["result"]["agent"] == "ada"


async def test_a_batch_is_answered_one_by_one(post: Post) -> None:
    """Each with its own result or error; a single request with a single object."""
    batch = [
        {"id": 1, "method": "boards"},
        {"id": 2, "method": "head", "params": {"board": "a/b"}},
        {"id": "three", "method": "nope"},
        7,
    ]
    answers = {answer["id"]: answer for answer in (await post.send(batch)).json()}
    assert answers[1]["result"] == []
    assert answers[2]["error"]["data"]["fields"]["field"] == "board"
    assert answers["three"]["error"]["code"] == -32601
    assert answers[None]["error"]["data"]["code"] == "invalid_request"
    assert isinstance((await post.send({"id": 1, "method": "boards"})).json(), dict)
    assert isinstance((await post.send([{"id": 1, "method": "boards"}])).json(), list)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("hello", {}),
        ("watch", {"board": "b", "watch": 1, "patterns": ["**"]}),
        ("unwatch", {"watch": 1}),
        ("progress", {"watch": 1}),
    ],
)
async def test_what_needs_a_websocket_is_refused(
    post: Post, method: str, params: dict[str, Any]
) -> None:
    """Watches push, and a POST greets by its header."""
    error = (await post.ask(method, params))["error"]
    assert (error["data"]["code"], error["data"]["fields"]["field"]) == (
        "invalid_request",
        "method",
    )


async def test_a_post_needs_a_token(http: httpx.AsyncClient, served: Served) -> None:
    """Without one, with another scheme, or with one that is not valid: 401 and nothing else."""
    body = {"id": 1, "method": "boards"}
    assert (await http.post("/v1/rpc", json=body)).status_code == 401
    for value in ("Bearer x", "Basic x", "Bearer " + served.token()[:-2]):
        response = await http.post("/v1/rpc", json=body, headers={"Authorization": value})
        assert response.status_code == 401
        assert response.json()["error"]["data"]["code"] == "unauthenticated"


async def test_a_post_has_the_rights_of_its_token(http: httpx.AsyncClient, served: Served) -> None:
    """Not those of whom it wants to act for."""
    post = Post(http, served.token(access.agent("ada")))
    for params in ({"keys": ["private/bob/x"]}, {"keys": ["private/bob/x"], "agent": "bob"}):
        error = (await post.ask("read", {"board": "b", **params}))["error"]
        assert error["data"]["code"] == "access_denied"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b'{"id": NaN}', 400),
        ([{"id": n, "method": "boards"} for n in range(MESSAGES_PER_FRAME_MAX + 1)], 400),
        (b"x" * (FRAME_BYTES_MAX + 1), 413),
    ],
    ids=["empty", "cut", "utf8", "none", "deep", "nan", "many", "big"],
)
async def test_what_is_no_json_rpc_is_refused(post: Post, body: Any, status: int) -> None:
    """With JSON-RPC's parse error; the next request is fine."""
    response = await post.send(body)
    assert response.status_code == status
    assert response.json()["error"]["code"] == -32700
    assert (await post.ask("boards"))["result"] == []


@pytest.mark.limits(request_timeout_ms=50)
async def test_a_body_has_to_come_in_time(post: Post, http: httpx.AsyncClient) -> None:
    """One that halts is given up, with an answer."""
    answered = asyncio.Event()

    async def halting() -> AsyncIterator[bytes]:
        yield b"["
        await answered.wait()

    sending = asyncio.create_task(http.post("/v1/rpc", content=halting(), headers=post.headers))
    await asyncio.wait([sending], timeout=0.3)
    answered.set()
    assert (await asyncio.wait_for(sending, 20)).status_code == 400


async def test_a_body_that_is_too_large_is_refused_before_its_end(
    served: Served, post: Post
) -> None:
    """Nobody has the service keep more than a frame, however much there is to come."""
    host, port = served.url.removeprefix("ws://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"POST /v1/rpc HTTP/1.1\r\nHost: {host}:{port}\r\nTransfer-Encoding: chunked\r\n"
        token = post.headers["Authorization"]
        writer.write(f"{head}Authorization: {token}\r\n\r\n".encode())
        size = FRAME_BYTES_MAX + 1
        writer.write(f"{size:x}\r\n".encode() + bytes(size) + b"\r\n")
        assert await reader.readline() == b"HTTP/1.1 413 Request Entity Too Large\r\n"
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_web_page_cannot_post(http: httpx.AsyncClient, post: Post) -> None:
    """Unless its origin is listed."""
    headers = {**post.headers, "Origin": "https://evil.example.org"}
    response = await http.post("/v1/rpc", json={"id": 1, "method": "boards"}, headers=headers)
    assert response.status_code == 403


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/v1/schema", "/healthz"])
async def test_a_name_that_is_not_ours_learns_nothing(service: Service, path: str) -> None:
    """A web page that has its own name lead here (DNS rebinding) reads no counts; only that
    something listens, which it knows."""
    async with (
        serving(service, origin_policy=OriginPolicy(hosts=("127.0.0.1",))) as served,
        httpx.AsyncClient(base_url=served.url.replace("ws:", "http:"), trust_env=False) as http,
    ):
        assert (await http.get(path)).status_code == 200
        expected = 200 if path == "/healthz" else 403
        assert (await http.get(path, headers={"Host": "evil.example"})).status_code == expected


async def test_health(http: httpx.AsyncClient, served: Served, post: Post) -> None:
    """Alive while the process is; ready while requests are taken."""
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    engine = {"name": "sqlite", "level": "disk"}
    assert (await http.get("/readyz")).json() == {"status": "ready", "engine": engine}
    served.gate.stopping = True
    assert (await http.get("/healthz")).status_code == 200
    response = await http.get("/readyz")
    assert (response.status_code, response.json()["reason"]) == (503, "stopping")


async def test_ready_and_metrics_tell_how_the_archive_keeps_up(
    tmp_path: Path, limits: Limits
) -> None:
    """In revisions and in time; it is ready however far behind it is."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with (
        Service(store, archive=await archive_beside(tmp_path), limits=limits) as service,
        serving(service) as served,
        httpx.AsyncClient(base_url=served.url.replace("ws:", "http:"), trust_env=False) as http,
    ):
        told = (await http.get("/readyz")).json()
        assert told["archive"] == {"behind": 0, "lag_ms": 0, "failing": 0}
        assert "blackboard_archive_lag_seconds 0.0" in (await http.get("/metrics")).text


async def test_it_is_ready_while_its_archive_hangs(
    tmp_path: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit waits for the archive either."""

    async def hang() -> None:
        await asyncio.Event().wait()

    store, archive = await SqliteStore.at(tmp_path, "memory"), await archive_beside(tmp_path)
    async with (
        Service(store, archive=archive, limits=limits) as service,
        serving(service) as served,
        httpx.AsyncClient(base_url=served.url.replace("ws:", "http:"), trust_env=False) as http,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(archive, "boards", hang)
            assert (await http.get("/readyz", timeout=PATIENCE_S)).status_code == 200


class _Silent:
    """A store whose engine stopped answering."""

    def __init__(self, error: BlackboardError) -> None:
        self._error = error

    async def facts(self) -> EngineFacts:
        raise self._error


@pytest.mark.parametrize(
    "error", [Unavailable("engine", "no answer"), Corrupt("engine", "no answer")]
)
async def test_it_is_not_ready_without_its_engine(
    http: httpx.AsyncClient,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    error: BlackboardError,
) -> None:
    """503, with the reason, also when it is not asked again yet."""
    monkeypatch.setattr(served.service.host.store, "facts", _Silent(error).facts)
    for _ in range(2):
        response = await http.get("/readyz")
        assert (response.status_code, "no answer" in response.json()["reason"]) == (503, True)


async def test_metrics_count_and_tell_nothing_private(http: httpx.AsyncClient, post: Post) -> None:
    """What was done shows; names of boards, keys and agents do not."""
    epoch = (await post.ask("head", {"board": "secretboard"}))["result"]["epoch"]["id"]
    op = {"kind": "put", "key": "private/ada/secretkey", "value": 1}
    commit = {**COMMIT, "board": "secretboard", "epoch": epoch, "ops": [op], "agent": "ada"}
    await post.ask("commit", commit)
    await post.ask("head", {"board": "a/b"})
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    assert 'blackboard_requests_total{method="commit",outcome="ok"} 1.0' in lines
    assert "blackboard_commits_total 1.0" in lines
    assert "blackboard_boards 1.0" in lines
    for name in ("secretboard", "secretkey", "ada"):
        assert name not in response.text


async def test_the_description_is_served(http: httpx.AsyncClient) -> None:
    """Without a token: it says nothing about any board."""
    assert (await http.get("/v1/schema")).json()["asyncapi"] == "3.0.0"


@pytest.mark.parametrize("path", ["/readyz/", "/healthz/", "/metrics/", "/v1/schema/", "/v1/rpc/"])
async def test_nobody_is_sent_to_another_host(http: httpx.AsyncClient, path: str) -> None:
    """By a slash too many, which has no meaning."""
    response = await http.get(path, headers={"Host": "evil.example.org"})
    assert (response.status_code, response.headers.get("location")) == (404, None)


class SlowReader:
    """Posts over a bare socket, and reads as slowly as the test wants."""

    def __init__(self, served: Served) -> None:
        self._token, self._to = served.token(), ("127.0.0.1", served.port)
        self._socket = socket.socket()
        # Before it connects: the system then keeps little that was not read.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self._socket.setblocking(False)

    async def post(self, body: bytes, size: int | None = None) -> None:
        """Send a request; with `size` it says that its body has so many bytes."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, self._to)
        head = f"POST /v1/rpc HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {self._token}\r\n"
        head += f"Content-Length: {size or len(body)}\r\n\r\n"
        await loop.sock_sendall(self._socket, head.encode() + body)

    async def more(self, body: bytes) -> None:
        """Send more of it."""
        await asyncio.get_running_loop().sock_sendall(self._socket, body)

    async def read(self, most: int) -> bytes:
        """What has come, at least a byte; b"" at the end."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await asyncio.get_running_loop().sock_recv(self._socket, most)
            except ConnectionError:
                return b""

    async def rest(self, found: bytes = b"") -> bytes:
        """The content of the answer, as far as it comes."""
        size = math.inf
        while len(found) < size and (data := await self.read(1_000_000)):
            found += data
            head, end, _ = found.partition(b"\r\n\r\n")
            if end:
                [length] = re.findall(rb"(?i)content-length: (\d+)", head)
                size = len(head) + len(end) + int(length)
        return found.partition(b"\r\n\r\n")[2]

    def close(self) -> None:
        """Go."""
        self._socket.close()


async def large_answer(served: Served) -> bytes:
    """A request whose answer is larger than what sockets keep."""
    board = client_of(served.service).board("b")
    for number in range(8):
        await board.put(f"public/{number}", "x" * 900_000)
    ask = {"method": "list", "params": {"board": "b", "pattern": "public/**"}}
    return json.dumps([{"id": number, **ask} for number in range(4)]).encode()


@pytest.mark.limits(handshake_timeout_ms=1_000)
async def test_a_large_answer_may_be_read_slowly(served: Served) -> None:
    """For longer than a client may take to ask."""
    reader = SlowReader(served)
    try:
        await reader.post(await large_answer(served))
        found = b""
        for _ in range(30):
            found += await reader.read(10_000)
            await let_pass(0.1)
        answers = json.loads(await reader.rest(found))
        assert ["result" in answer for answer in answers] == [True] * 4
    finally:
        reader.close()


async def posts(served: Served, count: int) -> None:
    """Return once so many requests are being carried out."""

    async def as_many() -> bool:
        return served.gate.posts == count

    await wait_until(as_many)


@pytest.mark.limits(send_timeout_ms=500)
async def test_an_answer_that_is_not_read_is_cut_off(served: Served) -> None:
    """After SEND_TIMEOUT_MS."""
    reader = SlowReader(served)
    try:
        await reader.post(await large_answer(served))
        begun = await reader.read(100)
        await posts(served, 1)
        await posts(served, 0)
        with pytest.raises(json.JSONDecodeError):
            json.loads(await reader.rest(begun))
    finally:
        reader.close()


@pytest.mark.limits(connections_per_principal_max=2)
async def test_requests_count_like_connections(served: Served, post: Post) -> None:
    """While they are carried out; one too many is refused before its body is read."""
    waiting, body = SlowReader(served), b'{"id": 1, "method": "boards"}'
    try:
        async with talking(served.url, served.token(), greeting={}):
            await waiting.post(b" ", 1 + len(body))
            await posts(served, 1)
            refused = await post.send(body)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            fields = refused.json()["error"]["data"]["fields"]
            assert fields["limit"] == "CONNECTIONS_PER_PRINCIPAL_MAX"
            other = {"Authorization": f"Bearer {served.token(access.agent('ada'))}"}
            allowed = await post.http.post("/v1/rpc", content=body, headers=other)
            assert allowed.status_code == 200
        waiting.close()
        await posts(served, 0)
        assert (await post.send(body)).status_code == 200
    finally:
        waiting.close()


@pytest.mark.limits(intake_account_bytes_max=1_000_000)
async def test_bodies_count_in_the_budget_of_incoming_bytes(served: Served, post: Post) -> None:
    """Of the account: above its share, its newest connection is closed."""
    first, second, half = SlowReader(served), SlowReader(served), b" " * 600_000
    try:
        await first.post(half, 2 * len(half))
        await posts(served, 1)
        await second.post(half, 2 * len(half))
        assert await second.read(1) == b""
        await posts(served, 1)
        assert (await post.send({"id": 1, "method": "boards"})).status_code == 200
        await first.more(b" " * 100_000)
        await posts(served, 1)
    finally:
        first.close()
        second.close()
    await posts(served, 0)
    body = b" " * 900_000 + b'{"id": 1, "method": "boards"}'
    for _ in range(5):
        assert (await post.send(body)).json()["result"] == []
