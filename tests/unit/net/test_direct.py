"""What is written straight to the socket is what a peer would have been sent."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame

from blackboard.net.direct import DIRECT, DirectProtocol
from blackboard.net.server import listen
from blackboard.types import MESSAGE_FRAGMENTS_MAX, STRANGER_BYTES_MAX
from tests.waiting import TIMEOUT_S

Application = Callable[[Any, Any, Any], Awaitable[None]]
SIZES = (0, 1, 125, 126, 127, 65_535, 65_536, 200_000)


class Writer:
    """An application that writes `messages` at once, and sends what is not taken."""

    def __init__(self, messages: list[bytes]) -> None:
        self.messages = messages
        self.refused = 0
        self.ended = asyncio.Event()
        self.after_the_end: bool | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one WebSocket."""
        await receive()
        write = scope["extensions"][DIRECT]["write"]
        assert not write(b"before the handshake is answered")
        await send({"type": "websocket.accept"})
        for message in self.messages:
            if not write(message):
                self.refused += 1
                await send({"type": "websocket.send", "bytes": message})
        await receive()
        self.after_the_end = write(b"to nobody")
        self.ended.set()


@asynccontextmanager
async def served(writer: Application) -> AsyncIterator[str]:
    """The application on a port of its own."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        writer, ws=DirectProtocol, lifespan="off", log_config=None, ws_per_message_deflate=False
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listener.close()


@pytest.mark.parametrize("size", SIZES)
async def test_a_message_of_any_size_arrives(size: int) -> None:
    writer = Writer([bytes(i % 251 for i in range(size)), b"the next one"])
    async with served(writer) as url, connect(url, max_size=None) as peer:
        async with asyncio.timeout(TIMEOUT_S):
            assert [await peer.recv(), await peer.recv()] == writer.messages


async def test_a_socket_that_is_full_takes_nothing_and_the_order_stays() -> None:
    """Until the peer reads; what is sent the other way meanwhile is in its place."""
    messages = [i.to_bytes(4, "big") * 16_384 for i in range(400)]
    writer = Writer(messages)
    async with served(writer) as url, connect(url, max_queue=1, max_size=None) as peer:
        async with asyncio.timeout(TIMEOUT_S):
            assert [await peer.recv() for _ in messages] == messages
    assert writer.refused


async def test_who_is_gone_is_written_nothing() -> None:
    writer = Writer([])
    async with served(writer) as url, asyncio.timeout(TIMEOUT_S):
        async with connect(url):
            pass
        await writer.ended.wait()
    assert writer.after_the_end is False


# --- strangers ------------------------------------------------------------------------------------


class Listener:
    """An application that takes in messages; it knows whose they are at once, or never."""

    def __init__(self, *, trusts: bool) -> None:
        self.trusts = trusts
        self.sizes: asyncio.Queue[int | None] = asyncio.Queue()
        """Of each message, in turn; None is the end."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one WebSocket."""
        await receive()
        if self.trusts:
            scope["extensions"][DIRECT]["trust"]()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            self.sizes.put_nowait(len(message.get("bytes") or message.get("text") or ""))
        self.sizes.put_nowait(None)


def left_by_strangers(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What connections may still send, noted as their handshakes are over."""
    found: list[int | None] = []
    run = DirectProtocol.run_asgi

    async def noted(self: DirectProtocol) -> None:
        found.append(self._left)
        await run(self)

    monkeypatch.setattr(DirectProtocol, "run_asgi", noted)
    return found


@pytest.mark.parametrize("over", [0, 1])
async def test_the_edge_of_what_strangers_may_send(
    monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    """So many bytes, handshake and frames included; one more, and the connection is closed."""
    application, found = Listener(trusts=False), left_by_strangers(monkeypatch)
    async with served(application) as url, connect(url, compression=None) as peer:
        [left] = found
        assert left is not None
        assert left > STRANGER_BYTES_MAX - 2_000, "a handshake is short"
        size = left - 14 + over  # a header of 10 bytes, a mask of 4
        async with asyncio.timeout(TIMEOUT_S):
            await peer.send(bytes(size))
            if not over:
                assert await application.sizes.get() == size
                await peer.send(b"")  # a frame all the same
            await peer.wait_closed()
            assert await application.sizes.get() is None
    assert peer.close_code == 1009


async def test_who_is_known_sends_what_he_likes() -> None:
    application = Listener(trusts=True)
    async with served(application) as url, connect(url) as peer, asyncio.timeout(TIMEOUT_S):
        for _ in range(3):
            await peer.send(bytes(STRANGER_BYTES_MAX))
            assert await application.sizes.get() == STRANGER_BYTES_MAX


HALF = b"no other test sends this" * (STRANGER_BYTES_MAX // 48)


@pytest.mark.parametrize(
    "message", [(2 * HALF).decode(), 2 * HALF, [HALF, HALF]], ids=["text", "binary", "fragments"]
)
async def test_nothing_of_a_message_is_kept_until_the_next_one(message: Any) -> None:
    """That may come tomorrow, and there may be thousands of connections."""
    application = Listener(trusts=True)
    async with served(application) as url, connect(url, compression=None) as peer:
        await peer.send(message)
        async with asyncio.timeout(TIMEOUT_S):
            assert await application.sizes.get() == 2 * len(HALF)
        frames = [found for found in gc.get_objects() if type(found) is Frame]
        assert frames, "the parser does not hold the last one any more: nothing is to be emptied"
        assert not [frame for frame in frames if frame.data in (HALF, 2 * HALF)]


@pytest.mark.parametrize("over", [0, 1])
async def test_the_edge_of_fragments_of_a_message(over: int) -> None:
    """With one more the connection is closed, and nothing of the message is shown."""
    application = Listener(trusts=True)
    async with served(application) as url, connect(url, compression=None) as peer:
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.suppress(ConnectionClosed):
                await peer.send([b"x", *[b""] * (MESSAGE_FRAGMENTS_MAX - 1 + over)])
            if over:
                await peer.wait_closed()
                assert peer.close_code == 1009
            assert await application.sizes.get() == (None if over else 1)
