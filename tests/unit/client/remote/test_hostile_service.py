"""What a service sends is read within the limits of a client, however it is cut into pieces."""

import asyncio
import itertools
import socket as tcp
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from blackboard.client.remote import connect as connect_module
from blackboard.client.remote.channel import Channel, LostError
from blackboard.client.remote.client_socket import READ_BYTES_MAX, ClientSocket
from blackboard.client.remote.connect import Address, connect
from blackboard.limits import FRAME_BYTES_MAX
from tests.certificates import Authority
from tests.waiting import TIMEOUT_S, wait_until

_CLOSE = 0x88
PROTOCOL = "blackboard.v1+msgpack"
SIZES = st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536, READ_BYTES_MAX * 3]) | st.integers(
    0, 999
)


def header(first: int, size: int, *, masked: bool = False) -> bytes:
    """The header of a frame whose first byte is `first`."""
    mask = 0x80 if masked else 0
    if size <= 125:
        return bytes((first, mask | size))
    if size <= 0xFFFF:
        return struct.pack("!BBH", first, mask | 126, size)
    return struct.pack("!BBQ", first, mask | 127, size)


def message(content: bytes) -> bytes:
    """A message of one frame."""
    return header(0x82, len(content)) + content


class Peer:
    """The service's end: it greets as a WebSocket server, and then sends the frames given to it."""

    def __init__(self, early: bytes = b"") -> None:
        self._early = early
        """What it sends right behind its greeting."""
        self.last = b""
        """What it sends when the client closes the connection."""
        self.received = b""
        self.writer: asyncio.StreamWriter | None = None
        self.gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        protocol = ServerProtocol(subprotocols=[PROTOCOL])  # type: ignore[list-item]
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            protocol.receive_data(head)
            [request] = protocol.events_received()
            protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
            writer.write(b"".join(protocol.data_to_send()) + self._early)
            self.writer = writer
            while (data := await reader.read(65_536)) and data[0] != _CLOSE:
                self.received += data
            writer.write(self.last)
        except OSError:
            pass
        finally:
            self.gone.set()
            writer.close()

    async def send(self, *pieces: bytes) -> None:
        """Send pieces, one after the other."""
        assert self.writer is not None
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    def end(self) -> None:
        """Break the connection off."""
        assert self.writer is not None
        self.writer.transport.abort()


@asynccontextmanager
async def connected(
    peer: Peer | None = None,
) -> AsyncIterator[tuple[ClientSocket, Peer, list[bytes]]]:
    """A client's socket, the other end, and what the client took."""
    peer, taken = peer or Peer(), list[bytes]()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with connect(Address(f"ws://127.0.0.1:{port}"), None) as socket:
            socket.take = taken.append
            try:
                yield socket, peer, taken
            finally:
                peer.end()
    finally:
        server.close()
        await server.wait_closed()


async def closed(socket: ClientSocket) -> int | None:
    """The close code that the client sent; None if it sent none."""
    with pytest.raises(ConnectionClosed) as ended:
        await asyncio.wait_for(socket.recv(), TIMEOUT_S)
    return None if ended.value.sent is None else ended.value.sent.code


def cut(stream: bytes, places: Sequence[float]) -> list[bytes]:
    """`stream` in pieces, cut at fractions of it."""
    at = sorted({int(place * len(stream)) for place in places} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(at)]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SIZES, min_size=1, max_size=6), st.lists(st.floats(0, 1), max_size=8))
@example([0, 0, 0], [0.5])
@example([READ_BYTES_MAX - 4, 1, READ_BYTES_MAX], [])
async def test_messages_arrive_whole_and_in_order(sizes: list[int], places: list[float]) -> None:
    """Of any size, in any pieces, many of them in one piece."""
    sent = [bytes([number]) * size for number, size in enumerate(sizes)]
    async with connected() as (_, peer, taken):
        await peer.send(*cut(b"".join(map(message, sent)), places))

        async def all_came() -> bool:
            return len(taken) == len(sent)

        await wait_until(all_came)
    assert taken == sent


@contextmanager
def reading(sizes: Sequence[int]) -> Iterator[None]:
    """While this lasts, the reads of new sockets bring at most `sizes` bytes, in turn."""
    turns = itertools.cycle(sizes)

    class Sipping(ClientSocket):
        def get_buffer(self, sizehint: int) -> memoryview:
            return super().get_buffer(sizehint)[: next(turns)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect_module, "ClientSocket", Sipping)
        yield


READS = st.lists(st.integers(1, 9) | st.integers(1, READ_BYTES_MAX), min_size=1, max_size=5)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 300), max_size=5), READS, st.floats(0, 1))
@example([5, 0], [1], 0.0)
@example([5, 0], [1], 0.5)
@example([126, 300], [3], 0.9)
@example([5], [READ_BYTES_MAX], 0.3)
async def test_messages_may_come_with_the_greeting(
    sizes: list[int], reads: list[int], part: float
) -> None:
    """However it is read; the last one is broken off anywhere, and goes on when the client is
    ready."""
    sent = [bytes([number]) * size for number, size in enumerate([*sizes, 7])]
    stream = b"".join(map(message, sent))
    early = stream[: int(part * len(stream))]
    with reading(reads):
        async with connected(Peer(early)) as (socket, peer, taken):
            await peer.send(stream[len(early) :])
            queued: list[str | bytes] = []

            async def receive() -> None:
                """What came before the client was ready waits in the library's queue."""
                while True:
                    queued.append(await socket.recv())

            async def all_came() -> bool:
                return len(queued) + len(taken) == len(sent)

            receiving = asyncio.create_task(receive())
            await wait_until(all_came)
            receiving.cancel()
    assert [*queued, *taken] == sent


BAD = {
    "an opcode that is none": (header(0x83, 1) + b"x", 1002),
    "a control opcode that is none": (header(0x8B, 0), 1002),
    "reserved bits": (header(0xC2, 1) + b"x", 1002),
    "a masked frame": (header(0x82, 1, masked=True) + b"mask" + b"x", 1002),
    "a masked frame, cut off": (header(0x82, 1, masked=True), 1002),
    "a ping in fragments": (header(0x09, 1) + b"x", 1002),
    "a ping that is too long": (header(0x89, 126) + b"x" * 126, 1002),
    "a continuation of nothing": (header(0x80, 1) + b"x", 1002),
    "a message within the fragments of another": (
        header(0x02, 1) + b"x" + header(0x82, 1) + b"x",
        1002,
    ),
    "a message that is too large": (header(0x82, FRAME_BYTES_MAX + 1), 1009),
    "a length of 64 bits": (header(0x82, 2**64 - 1), 1009),
    "fragments that are too large": (
        header(0x02, 1) + b"x" + header(0x80, FRAME_BYTES_MAX),
        1009,
    ),
    "a close code that is none": (header(0x88, 2) + struct.pack("!H", 999), 1002),
    "a close of one byte": (header(0x88, 1) + b"x", 1002),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("is_cut", [False, True])
async def test_what_breaks_the_rules_ends_the_connection(bad: str, is_cut: bool) -> None:
    """With the code that says why; what came before was taken, and what comes after is not."""
    data, code = BAD[bad]
    async with connected() as (socket, peer, taken):
        pieces = [data[n : n + 1] for n in range(min(len(data), 12))] if is_cut else []
        await peer.send(message(b"before"), *pieces, data[len(pieces) :] + message(b"after"))
        assert await closed(socket) == code
    assert b"before" in taken
    assert b"after" not in taken


HEADERS = {
    "an opcode that is none": header(0x83, 70_000)[:2],
    "a masked frame": header(0x82, 9, masked=True),
    "a masked frame, of its length the half": header(0x82, 200, masked=True)[:3],
}


@pytest.mark.parametrize("bad", HEADERS)
async def test_what_breaks_the_rules_is_refused_before_it_is_whole(bad: str) -> None:
    async with connected() as (socket, peer, _):
        await peer.send(message(b"before") + HEADERS[bad])
        assert await closed(socket) == 1002


async def test_a_message_within_one_that_began_early_is_refused() -> None:
    """The client was not ready when the fragments began, so the library has them."""
    async with connected(Peer(header(0x02, 1) + b"x")) as (socket, peer, taken):
        await peer.send(message(b"within"))
        assert await closed(socket) == 1002
    assert taken == []


async def test_nothing_is_taken_behind_a_message_that_could_not_be() -> None:
    """asyncio ends the connection then; over TLS it may read once more before."""
    async with connected() as (socket, _, taken):

        def fail(content: bytes) -> None:
            raise KeyError(content)

        def read(data: bytes) -> None:
            socket.get_buffer(-1)[: len(data)] = data
            socket.buffer_updated(len(data))

        socket.take = fail
        with pytest.raises(KeyError):
            read(message(b"bad") + message(b"x" * 60_000)[:50_000])
        read(message(b"y" * 60_000)[:50_000])
        socket.take = taken.append
        read(message(b"y" * 60_000)[50_000:])
    assert taken == []


@pytest.mark.parametrize("size", [300, 33_000, 60_000])
async def test_what_a_service_sends_before_it_goes_is_read_whole(size: int, tmp_path: Path) -> None:
    """Over TLS, which has read ahead when the connection ends: messages, and why it ended."""
    authority = Authority(tmp_path)
    pair = authority.issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    close = struct.pack("!H", 4001) + b"it goes"
    last = message(b"z" * size) * (190_000 // size) + header(0x88, len(close)) + close
    go, gone = threading.Event(), threading.Event()

    def serve(listener: tcp.socket) -> None:
        connection = context.wrap_socket(listener.accept()[0], server_side=True)
        protocol = ServerProtocol(subprotocols=[PROTOCOL])  # type: ignore[list-item]
        while not protocol.events:
            protocol.receive_data(connection.recv(9_999))
        [request] = protocol.events_received()
        protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
        connection.sendall(b"".join(protocol.data_to_send()))
        go.wait(TIMEOUT_S)
        connection.sendall(last)
        connection.close()
        gone.set()

    with tcp.socket() as listener:
        listener.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 1 << 20)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        serving = asyncio.create_task(asyncio.to_thread(serve, listener))
        address = Address(f"wss://127.0.0.1:{listener.getsockname()[1]}", ca=authority.ca)
        taken: list[bytes] = []
        async with connect(address, None) as socket:
            socket.take = taken.append
            own: tcp.socket = socket.transport.get_extra_info("socket")
            own.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 1 << 20)
            go.set()
            gone.wait(TIMEOUT_S)  # blocks the loop: everything is there before it reads again
            with pytest.raises(ConnectionClosed) as ended:
                await asyncio.wait_for(socket.recv(), TIMEOUT_S)
        await serving
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == 4001
    assert taken == [b"z" * size] * (190_000 // size)


# --- a channel's connection -----------------------------------------------------------------------


def said(*messages: object) -> bytes:
    """What a service says, in a frame for each."""
    return b"".join(message(msgspec.msgpack.encode([each])) for each in messages)


WELCOME = said({"id": 1, "result": {"agent": "ada", "protocol": 1, "service": "blackboard"}})


@asynccontextmanager
async def channelled() -> AsyncIterator[tuple[Channel, Peer, list[ClientSocket]]]:
    """An open channel, the other end, and the sockets that it had so far."""
    peer, sockets = Peer(WELCOME), list[ClientSocket]()

    @asynccontextmanager
    async def dial(address: Address, token: str | None) -> AsyncIterator[ClientSocket]:
        async with connect(address, token) as socket:
            sockets.append(socket)
            yield socket

    async with await asyncio.start_server(peer.serve, "127.0.0.1", 0) as server:
        address = Address(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        channel = Channel(address, patience_ms=100, dial=dial)
        await channel.open()
        try:
            yield channel, peer, sockets
        finally:
            await channel.aclose()
            peer.end()


async def test_it_is_said_how_a_service_broke_the_rules_whatever_it_sent_then() -> None:
    async with channelled() as (channel, peer, _):
        before = len(peer.received)
        asking = asyncio.create_task(channel.ask("whoami", {}))

        async def asked() -> bool:
            return len(peer.received) > before

        await wait_until(asked)
        await peer.send(said({"id": 99, "result": 1}, {"method": "draining", "params": {}}))
        with pytest.raises(LostError, match="an answer to no request"):
            await asking


async def test_a_channel_is_closed_in_order_whatever_still_comes() -> None:
    """More than is kept for a reader that is gone; the service answers the close after it."""
    async with channelled() as (channel, peer, sockets):
        peer.last = message(b"x" * 9_000) * 20 + header(0x88, 2) + struct.pack("!H", 1000)
        await channel.aclose()
    assert sockets[0].close_code == 1000


@pytest.mark.parametrize("reads", [[READ_BYTES_MAX], [1], [7], [60, 1, 2]])
async def test_a_refusal_of_the_greeting_is_read_whole(reads: list[int]) -> None:
    """Its body is no frames, whatever is in it, and in whatever pieces it comes."""
    body = b'{"reason": "' + message(b"not here") * 9 + b'"}'
    refusal = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        address = Address(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with reading(reads), pytest.raises(InvalidStatus) as refused:
            async with connect(address, None):
                pass
    assert refused.value.response.body == body


@pytest.mark.parametrize("part", [1, 3, 10, 60_000])
async def test_a_message_that_is_cut_off_is_not_taken(part: int) -> None:
    async with connected() as (socket, peer, taken):
        await peer.send(message(b"before"), message(b"x" * 70_000)[:part])
        await wait_for(taken, 1)
        peer.end()
        assert await closed(socket) is None
    assert taken == [b"before"]


async def wait_for(taken: list[bytes], count: int) -> None:
    """Wait until `count` messages were taken."""

    async def came() -> bool:
        return len(taken) >= count

    await wait_until(came)


async def test_the_largest_message_is_taken() -> None:
    """At the edge: FRAME_BYTES_MAX bytes; one byte more is too large, see above."""
    async with connected() as (_, peer, taken):
        await peer.send(header(0x82, FRAME_BYTES_MAX), bytes(FRAME_BYTES_MAX))
        await wait_for(taken, 1)
    assert [len(each) for each in taken] == [FRAME_BYTES_MAX]


async def test_a_ping_between_messages_is_answered() -> None:
    """Also within the fragments of a message, and in one piece with others."""
    ping = header(0x89, 4) + b"ping"
    async with connected() as (_, peer, taken):
        await peer.send(message(b"one") + ping + message(b"two"))
        await wait_for(taken, 2)
        pong = Frame(Opcode.PONG, b"ping")

        async def answered() -> bool:
            return len(peer.received) >= len(pong.serialize(mask=True))

        await wait_until(answered)
        assert peer.received[0] == 0x8A
    assert taken == [b"one", b"two"]


async def test_text_and_fragments_come_through_recv() -> None:
    """They are not taken, and nor is anything behind them: messages stay in order."""
    async with connected() as (socket, peer, taken):
        await peer.send(message(b"one") + header(0x81, 3) + b"two" + message(b"three"))
        async with asyncio.timeout(TIMEOUT_S):
            assert [await socket.recv(), await socket.recv()] == ["two", b"three"]
        assert taken == [b"one"]
        socket.take = taken.append
        await peer.send(header(0x02, 2) + b"fo", header(0x80, 2) + b"ur", message(b"five"))
        async with asyncio.timeout(TIMEOUT_S):
            assert [await socket.recv(), await socket.recv()] == [b"four", b"five"]
    assert taken == [b"one"]


async def test_a_close_has_its_code_and_reason() -> None:
    async with connected() as (socket, peer, taken):
        close = struct.pack("!H", 4401) + b"the token has expired"
        await peer.send(message(b"one") + header(0x88, len(close)) + close + message(b"after"))
        with pytest.raises(ConnectionClosed) as ended:
            await asyncio.wait_for(socket.recv(), TIMEOUT_S)
    assert ended.value.rcvd is not None
    assert (ended.value.rcvd.code, ended.value.rcvd.reason) == (4401, "the token has expired")
    assert taken == [b"one"]
