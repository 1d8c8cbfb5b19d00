"""What a connection may send before anybody knows whose it is, with either parser of HTTP."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from blackboard.limits import (
    FRAME_BYTES_MAX,
    REQUEST_HEAD_BYTES_MAX,
    REQUEST_HEADERS_MAX,
    STRANGER_BYTES_MAX,
)
from blackboard.server.http.http_protocol import PROTOCOLS, BoundedProtocol, HeadScanner, bounded
from blackboard.server.http.serve import Idle, listen
from blackboard.server.http.uvicorn_protocol import DIRECT, counting
from blackboard.server.overload.connections import Intake, Strangers
from tests.waiting import TIMEOUT_S, wait_until

GET = b"GET / HTTP/1.1\r\nHost: h\r\n"


class Application:
    """Answers requests: reads the body of those at `/known`, whose token is good, of no other."""

    def __init__(self) -> None:
        self.bodies: list[int] = []
        self.headers: list[int] = []
        self.strangers_meanwhile: list[int] = []
        self.strangers = Strangers()
        self.intake = Intake()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        self.headers.append(len(scope["headers"]))
        if scope["path"] == "/known":
            scope["extensions"][DIRECT]["trust"]("ada")
            self.bodies.append(await self._read(receive))
            self.strangers_meanwhile.append(len(self.strangers))
            self.headers.append(len(scope["headers"]))
        await self.go_on.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def _read(self, receive: Any) -> int:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return -1
            size, more = size + len(message["body"]), message["more_body"]
        return size


@pytest.fixture(params=PROTOCOLS, ids=lambda protocol: protocol.__name__)
def protocol(request: pytest.FixtureRequest) -> type[BoundedProtocol]:
    """Each parser that is installed."""
    found: type[BoundedProtocol] = request.param
    return found


@asynccontextmanager
async def served(application: Application, protocol: type[BoundedProtocol]) -> AsyncIterator[int]:
    """The application on a port of its own."""
    listener = listen("127.0.0.1", 0)
    strangers = application.strangers
    config = uvicorn.Config(
        application,
        http=bounded(application.intake, strangers, protocol),
        ws=counting(application.intake, strangers),
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running
        listener.close()


async def said(port: int, *parts: bytes) -> bytes:
    """All that is answered until the connection ends; it is the server that ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = b""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            try:
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                while data := await reader.read(65_536):
                    found += data
            except OSError:
                pass
    finally:
        writer.close()
    return found


def statuses(answer: bytes) -> list[int]:
    """Of each response in it."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def padded(size: int, end: bytes = b"Connection: close\r\n\r\n") -> bytes:
    """The head of a request with so many bytes."""
    return GET + b"X: " + b"x" * (size - len(GET) - len(end) - 5) + b"\r\n" + end


@pytest.mark.parametrize("piece", [REQUEST_HEAD_BYTES_MAX * 2, 997])
@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 431)])
async def test_the_edge_of_a_head(
    protocol: type[BoundedProtocol], over: int, status: int, piece: int
) -> None:
    """So many bytes, however they come; one more, and none of them is looked at."""
    application, head = Application(), padded(REQUEST_HEAD_BYTES_MAX + over)
    parts = [head[at : at + piece] for at in range(0, len(head), piece)]
    async with served(application, protocol) as port:
        assert statuses(await said(port, *parts)) == [status]
    assert len(application.headers) == 1 - over


@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 431)])
async def test_the_edge_of_the_number_of_headers(
    protocol: type[BoundedProtocol], over: int, status: int
) -> None:
    application = Application()
    more = REQUEST_HEADERS_MAX - 2 + over
    head = GET + b"Connection: close\r\n" + b"a:\r\n" * more + b"\r\n"
    async with served(application, protocol) as port:
        assert statuses(await said(port, head)) == [status]
    assert application.headers == ([] if over else [REQUEST_HEADERS_MAX])


@pytest.mark.parametrize(
    "endless",
    [
        (b"GET /", b"x" * 4_000),
        (GET, b"a: " + b"x" * 4_000 + b"\r\n"),
        (GET, b"a:\r\n" * 1_000),
        (GET + b"a: ", b"x" * 4_000),
        (GET + b"a: b\r\n", b" c\r\n" * 1_000),
        (b"", b"\r\n" * 2_000),
        (b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", b"b:\r\n"),
    ],
    ids=["url", "headers", "tiny headers", "one header", "folded", "nothing", "upgrade"],
)
async def test_a_head_that_never_ends(
    protocol: type[BoundedProtocol],
    endless: tuple[bytes, bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The connection ends by itself, long before a megabyte, and no application is asked."""
    application = Application()
    caplog.set_level(logging.ERROR)
    async with served(application, protocol) as port:
        await said(port, endless[0], *[endless[1]] * 4_000)
        await wait_until(lambda: _is(application.strangers, 0))
    assert application.headers == []


async def _is(strangers: Strangers, count: int) -> bool:
    return len(strangers) == count


async def test_a_body_waits_until_it_is_asked_for(protocol: type[BoundedProtocol]) -> None:
    """Of one that nobody wants nothing is parsed; its sender is answered, and the end is there."""
    application = Application()
    post = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with served(application, protocol) as port:
        assert statuses(await said(port, post, b"1\r\nx\r\n" * 10_000)) == [200]
        assert statuses(await said(port, post + b"this is no chunk\r\n")) == [200]
        assert b"200 OK" in await said(port, post + b"1\r\nx\r\n")


def _known(how: str) -> bytes:
    return b"POST /known HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + how.encode() + b"\r\n\r\n"


async def test_the_body_of_somebody_known_is_taken_in(protocol: type[BoundedProtocol]) -> None:
    """Whole, in chunks, in pieces; what trails it is not kept with the headers."""
    application = Application()
    size = 3 * STRANGER_BYTES_MAX
    chunks = b"%x;ext=1\r\n" % size + b"x" * size + b"\r\n0\r\n" + b"t: 1\r\n" * 50 + b"\r\n"
    async with served(application, protocol) as port:
        whole = _known(f"Content-Length: {size}") + b"x" * size
        assert statuses(await said(port, whole)) == [200]
        parts = [whole[at : at + 30_000] for at in range(0, len(whole), 30_000)]
        assert statuses(await said(port, *parts)) == [200]
        assert statuses(await said(port, _known("Transfer-Encoding: chunked") + chunks)) == [200]
        assert statuses(await said(port, _known("Content-Length: 0"))) == [200]
    assert application.bodies == [size, size, size, 0]
    assert set(application.headers) == {3}


async def test_a_body_in_chunks_has_an_end(protocol: type[BoundedProtocol]) -> None:
    """The bytes between the chunks count too, for any client."""
    application = Application()
    chunk = b"1;" + b"e" * 10_000 + b"\r\nx\r\n"
    count = 2 * FRAME_BYTES_MAX // len(chunk) + 2
    async with served(application, protocol) as port:
        answer = await said(port, _known("Transfer-Encoding: chunked"), *[chunk] * count)
    assert answer == b"" or statuses(answer) == [400]
    assert application.bodies in ([-1], [])


@pytest.mark.parametrize("count", [1, 3])
async def test_a_connection_is_kept_for_the_next_request(
    protocol: type[BoundedProtocol], count: int
) -> None:
    """Each has a head of its own, and each may be of the largest size."""
    application = Application()
    head = padded(REQUEST_HEAD_BYTES_MAX, end=b"\r\n")
    async with served(application, protocol) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(count):
                writer.write(head)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(2) == b"ok"
        assert len(application.strangers) == 1
        writer.close()
        await wait_until(lambda: _is(application.strangers, 0))


@pytest.mark.parametrize("gap", [False, True])
async def test_nobody_is_served_out_of_turn(protocol: type[BoundedProtocol], gap: bool) -> None:
    """Requests that come before the answer to the last one are dropped, and the connection ends."""
    application = Application()
    application.go_on.clear()
    async with served(application, protocol) as port:
        parts = [GET + b"\r\n"] * 5_000 if gap else [(GET + b"\r\n") * 5_000]
        asking = asyncio.create_task(said(port, *parts))
        await wait_until(lambda: _asked(application))
        application.go_on.set()
        answer = await asking
    assert statuses(answer) in ([200], [])
    assert len(application.headers) == 1


async def _asked(application: Application) -> bool:
    return bool(application.headers)


async def test_what_follows_a_whole_body_is_dropped(protocol: type[BoundedProtocol]) -> None:
    """Also when it comes with it, in one piece."""
    application = Application()
    first = b"POST /known HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
    async with served(application, protocol) as port:
        assert statuses(await said(port, first + (GET + b"\r\n") * 1_000)) == [200]
    assert application.bodies == [1]


async def test_who_is_known_is_no_stranger(protocol: type[BoundedProtocol]) -> None:
    """While the request is carried out; the connection counts again when it waits for another."""
    application = Application()
    post = b"POST /known HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
    async with served(application, protocol) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await wait_until(lambda: _is(application.strangers, 1))
        writer.write(post)
        async with asyncio.timeout(TIMEOUT_S):
            await reader.readuntil(b"ok")
        assert application.strangers_meanwhile == [0]
        assert len(application.strangers) == 1
        writer.close()


def test_the_end_of_a_head_however_it_is_cut() -> None:
    """It is found at the same byte, however the data is split."""
    random_ = random.Random(7)
    for line in (b"\r\n", b"\n"):
        whole = line * 2 + GET.replace(b"\r\n", line) + b"a: b" + line + line
        stream = whole + b"\r\n\r\nbody\n\n"
        for _ in range(200):
            head, at = HeadScanner(), 0
            while True:
                size = random_.randint(1, 8)
                end = head.take(stream[at : at + size])
                if end is not None:
                    assert at + end == len(whole)
                    break
                at += size


UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /?" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: h\r\n", 414),
        (GET + b"X: " + b"a" * 9_000 + b"\r\n", 431),
        (GET + b"Content-Length: 5\r\n", 400),
        (GET + b"Transfer-Encoding: chunked\r\n", 400),
    ],
)
async def test_a_handshake_that_cannot_be_read_is_answered(
    protocol: type[BoundedProtocol], head: bytes, status: int
) -> None:
    """And its connection ends, whatever the peer does."""
    application = Application()
    async with served(application, protocol) as port:
        # Older versions of the parser do not tell these apart.
        assert statuses(await said(port, head + UPGRADE)) in ([status], [400])
    assert len(application.strangers) == 0


class Visited:
    """A connection as `Idle` sees it: the last request, and whether it was ended."""

    def __init__(self) -> None:
        self.cycle: Any = None
        self.is_asking = False
        self.transport = self
        self.ended: int | None = None

    def abort(self) -> None:
        """End it."""
        self.ended = self.ended or self.now

    now = 0

    def answered(self) -> None:
        """Complete one more request."""
        self.cycle = SimpleNamespace(response_complete=True)


ASKING_S, SENDING_S = 5, 30


def test_what_is_idle_and_for_how_long() -> None:
    """A connection with many requests is not, even if each look finds it between two of them."""
    idle, new, busy, answered, working, slow = Idle(), *(Visited() for _ in range(5))
    all_of_them = {new, busy, answered, working, slow}
    answered.answered()
    working.cycle = SimpleNamespace(response_complete=False)
    slow.answered()
    for second in range(100, 200):
        Visited.now = second
        busy.answered()
        busy.is_asking = second % 3 == 0
        slow.is_asking = second >= 120
        idle.sweep(all_of_them, second)
    assert (busy.ended, working.ended) == (None, None)
    assert new.ended == 100 + ASKING_S
    assert answered.ended == 100 + SENDING_S
    assert slow.ended == 120 + ASKING_S
