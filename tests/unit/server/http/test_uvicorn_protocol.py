"""What is written straight to the socket is what a peer would have been sent."""

import asyncio
import contextlib
import gc
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from blackboard.limits import DEFAULT, MESSAGE_FRAGMENTS_MAX, STRANGER_BYTES_MAX
from blackboard.server.http.serve import listen
from blackboard.server.http.uvicorn_protocol import DIRECT, DirectProtocol, counting
from blackboard.server.overload import connections as intake_module
from blackboard.server.overload.connections import PIECE_BYTES, Intake, Strangers
from tests.lowered import lowered
from tests.waiting import TIMEOUT_S, wait_until

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
async def served(writer: Application, intake: Intake | None = None) -> AsyncIterator[str]:
    """The application on a port of its own."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        writer,
        ws=counting(intake or Intake(), Strangers()),
        lifespan="off",
        log_config=None,
        ws_per_message_deflate=False,
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

    def __init__(self, *, trusts: bool, account: str = "ada") -> None:
        self.trusts = trusts
        self.account = account
        self.sizes: asyncio.Queue[int | None] = asyncio.Queue()
        """Of each message, in turn; None is the end."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one WebSocket."""
        await receive()
        if self.trusts:
            scope["extensions"][DIRECT]["trust"](self.account)
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


# --- what is on its way in ------------------------------------------------------------------------

LARGE = 3 * DEFAULT.service.intake_small_bytes


class Reader:
    """An application that knows whose messages these are, and looks at one on request."""

    def __init__(self) -> None:
        self.looks = asyncio.Semaphore(0)
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one WebSocket, whose account is its path."""
        await receive()
        scope["extensions"][DIRECT]["trust"](scope["path"])
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            await self.looks.acquire()
        self.ended.set()


def holds(intake: Intake, *sizes: int) -> Callable[[], Awaitable[bool]]:
    """Whether messages of such sizes are held; each in three fragments, or fewer."""

    async def is_so() -> bool:
        return 0 <= intake.bytes_held - sum(sizes) <= 3 * PIECE_BYTES * len(sizes)

    return is_so


@pytest.mark.parametrize(
    "message",
    ["\u00e9" * LARGE, bytes(2 * LARGE), [bytes(LARGE)] * 2],
    ids=["text", "b", "fragments"],
)
async def test_a_message_counts_until_it_was_looked_at(message: Any) -> None:
    """It counts by its bytes, for any kind of message. Afterwards nothing counts, although the
    connection is still open."""
    application, intake = Reader(), Intake()
    async with served(application, intake) as url, connect(url) as peer:
        for _ in range(3):
            await peer.send(message)
            await wait_until(holds(intake, 2 * LARGE))
            application.looks.release()
            await wait_until(holds(intake))
    assert intake.bytes_held == 0


class Gatherer(Reader):
    """A `Reader` that takes what has arrived together, at most `count` at a time."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.found: list[list[Any]] = []

    def has(self, count: int) -> Callable[[], Awaitable[bool]]:
        """Whether it has found so many."""

        async def is_so() -> bool:
            return sum(map(len, self.found)) >= count

        return is_so

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one WebSocket, whose account is its path."""
        await receive()
        direct = scope["extensions"][DIRECT]
        direct["trust"](scope["path"])
        await send({"type": "websocket.accept"})
        is_open = True
        while is_open:
            await self.looks.acquire()
            events = [await receive(), *direct["waiting"](self.count - 1)]
            self.found.append([event.get("bytes") for event in events])
            is_open = events[-1]["type"] == "websocket.receive"
        self.ended.set()


async def test_messages_that_wait_are_taken_together_in_order() -> None:
    """As many as the application wants, the end of the connection among them. All of them count
    until the next ones are asked for."""
    application, intake = Gatherer(3), Intake()
    messages = [bytes([n]) * LARGE for n in range(5)]
    async with served(application, intake) as url, connect(url) as peer:
        for message in messages:
            await peer.send(message)
        count = 0
        while count < len(messages):
            application.looks.release()
            await wait_until(application.has(count + 1))
            count += len(application.found[-1])
            assert intake.bytes_held >= LARGE * len(application.found[-1])
        await peer.close()
        application.looks.release()
        async with asyncio.timeout(TIMEOUT_S):
            await application.ended.wait()
        await wait_until(holds(intake))
    assert max(map(len, application.found)) <= application.count
    taken = [each for group in application.found for each in group]
    assert taken[:6] == [*messages, None]


async def test_what_arrived_in_one_piece_is_taken_in_one_piece() -> None:
    """And reading goes on when all of it was taken."""
    application, expected = Gatherer(100), []
    async with served(application) as url, connect(url) as peer:
        for messages in ([b"one", b"two", b"three"], [b"four"], [b"five", b"six"]):
            frames = [Frame(Opcode.BINARY, each).serialize(mask=True) for each in messages]
            peer.transport.write(b"".join(frames))
            application.looks.release()
            expected.append(messages)
            await wait_until(application.has(sum(map(len, expected))))
            assert application.found == expected
        application.looks.release()


@pytest.mark.parametrize("in_frame", [False, True])
async def test_what_is_not_whole_counts_until_its_sender_is_gone(in_frame: bool) -> None:
    """The first fragment of a message, or a part of a frame; an abort is an end too."""
    application, intake = Reader(), Intake()
    async with served(application, intake) as url, connect(url) as peer:
        if in_frame:
            head = struct.pack("!BBQI", 0x82, 0x80 | 127, 2 * LARGE, 0)
            peer.transport.write(head + bytes(LARGE))
        sending = asyncio.create_task(asyncio.Event().wait() if in_frame else _send_first(peer))
        await wait_until(holds(intake, LARGE))
        peer.transport.abort()
        sending.cancel()
        await asyncio.wait([sending])
        await wait_until(holds(intake))
        await application.ended.wait()
    assert intake.bytes_held == 0


async def test_the_connection_with_the_most_bytes_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the account that has most; the others, and that one's whole message, go on."""
    monkeypatch.setattr(intake_module, "FRAME_BYTES_MAX", 1)
    application, intake = Reader(), Intake(lowered(intake_bytes_max=5 * LARGE).service)
    async with (
        served(application, intake) as url,
        asyncio.timeout(TIMEOUT_S),
        connect(url + "/eve") as eve,
        connect(url + "/eve") as second,
        connect(url + "/ada") as ada,
    ):
        await second.send(bytes(LARGE))
        await wait_until(holds(intake, LARGE))
        sending = asyncio.create_task(eve.send(_first_of(bytes(2 * LARGE))))
        await wait_until(holds(intake, LARGE, 2 * LARGE))
        await ada.send(bytes(2 * LARGE + 1))
        await eve.wait_closed()
        assert eve.close_code == 1013
        await wait_until(holds(intake, LARGE, 2 * LARGE + 1))
        sending.cancel()
        await asyncio.wait([sending])
        for peer in (ada, second):
            await peer.send(b"goes on")
            application.looks.release()
            application.looks.release()
        await wait_until(holds(intake))
        assert intake.ended == 1
    assert intake.bytes_held == 0


async def test_whole_messages_in_a_line_are_let_go_of_but_not_the_one_in_hand() -> None:
    """Those were not answered: their sender sends them again."""
    application, intake = Reader(), Intake(lowered(intake_account_bytes_max=2 * LARGE).service)
    async with served(application, intake) as url, connect(url) as peer:
        async with asyncio.timeout(TIMEOUT_S):
            await peer.send(bytes(LARGE))
            await wait_until(holds(intake, LARGE))
            await peer.send(bytes(LARGE))
            await peer.wait_closed()
            assert peer.close_code == 1013
            await wait_until(holds(intake, LARGE))
            application.looks.release()
            await application.ended.wait()
    assert intake.bytes_held == 0


async def test_messages_without_content_count_too() -> None:
    """Each takes a place in the line; so do fragments."""
    application, intake = Reader(), Intake()
    count = 2 * DEFAULT.service.intake_small_bytes // PIECE_BYTES
    async with served(application, intake) as url, connect(url) as peer:
        await peer.send(b"")
        await peer.send([b""] * count)
        await wait_until(holds(intake, (count + 1) * PIECE_BYTES))
        application.looks.release()
        application.looks.release()
        await wait_until(holds(intake))


async def test_what_is_no_text_does_not_count() -> None:
    """It is gone, and so is its sender, while the application still looks at what was before."""
    application, intake = Reader(), Intake()
    async with served(application, intake) as url, connect(url) as peer:
        async with asyncio.timeout(TIMEOUT_S):
            await peer.send("first")
            await peer.send(b"\xff" * LARGE, text=True)
            await peer.wait_closed()
            assert peer.close_code == 1007
            await wait_until(holds(intake))
            application.looks.release()
            await application.ended.wait()


@pytest.mark.parametrize("stops", [False, True])
async def test_who_does_not_read_is_gone_all_the_same(
    monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    """To close waits until what was sent before is read: not for ever. A server may stop then."""
    made, let_go = DirectProtocol.connection_made, DirectProtocol.let_go
    unread: list[int] = []

    def impatient(self: DirectProtocol, transport: Any) -> None:
        self.close_timeout = 0.05
        made(self, transport)

    def stopping(self: DirectProtocol) -> None:
        let_go(self)
        unread.append(self.transport.get_write_buffer_size())
        if stops:
            self.shutdown()
            self.transport.abort()

    monkeypatch.setattr(DirectProtocol, "let_go", stopping)

    monkeypatch.setattr(DirectProtocol, "connection_made", impatient)
    intake = Intake(lowered(intake_account_bytes_max=LARGE).service)
    ended = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        sending = asyncio.create_task(_flood(send))
        while (await receive())["type"] == "websocket.receive":
            pass
        sending.cancel()
        await asyncio.wait([sending])
        ended.set()

    async with (
        served(application, intake) as url,
        asyncio.timeout(TIMEOUT_S),
        connect(url, max_queue=1) as peer,
    ):
        await wait_until(lambda: _is_full(peer))
        sending = asyncio.create_task(peer.send(_first_of(bytes(LARGE + 1))))
        await ended.wait()
        sending.cancel()
        await asyncio.wait([sending])
        peer.transport.abort()
    assert unread[0] > 0


async def _flood(send: Any) -> None:
    with contextlib.suppress(Exception):
        while True:
            await send({"type": "websocket.send", "bytes": bytes(100_000)})


async def _is_full(peer: Any) -> bool:
    """Whether this side has stopped reading."""
    return bool(peer.recv_messages.paused)


async def _send_first(peer: Any) -> bool:
    await peer.send(_first_of(bytes(LARGE)))
    return True


async def _first_of(part: bytes) -> AsyncGenerator[bytes, None]:
    """A message of two fragments, of which only the first comes."""
    yield part
    await asyncio.Event().wait()
    yield b""
