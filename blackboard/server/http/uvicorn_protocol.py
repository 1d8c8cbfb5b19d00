"""uvicorn's WebSocket protocol, with a shortcut to the socket.

With ASGI, each peer has a task that sends to it. Sending to fifty peers wakes fifty tasks, one
after the other, before the first byte leaves. With this shortcut, a message can be written at once
if nothing else waits for the peer: the extension DIRECT of a connection's scope has a `Write` of
messages, and one of frames that `framed` made, so that a message to many peers is framed once.
`waiting` returns the messages that have arrived already, so that those of one read are handled
together. `trust` is to be called when the peer is authenticated. Until then the peer may send
STRANGER_BYTES_MAX; what it sends afterwards counts in the budget of all peers
(server/overload/connections.py).

With ASGI, each message goes through a queue to a task, and nothing is read from the socket until
the task has taken it: two more system calls. `offer` names a function that gets each binary message
first, in the call in which it arrived, unless others wait before it.

Source: ASGI, "Extensions"; RFC 6455, section 5.2.
"""

import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.protocol import State

from blackboard.limits import MESSAGE_FRAGMENTS_MAX, STRANGER_BYTES_MAX
from blackboard.server.overload.charges import STRANGERS
from blackboard.server.overload.connections import PIECE_BYTES, Held, Intake, Strangers, peer_of
from blackboard.wire.frames import Encoding

Trust = Callable[[str], None]
"""Accept what a connection sends, counted for an account."""
Take = Callable[[bytes], bool]
"""Handle one binary message now; False to receive it through ASGI."""
Write = Callable[[bytes], bool]
"""Write one binary message, or one frame, if the socket accepts it at once; returns whether it
did."""
Waiting = Callable[[int], list[Any]]
"""Returns up to that many of the events that `receive` would return at once."""
DIRECT: Final = "blackboard.direct"
_BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TEXT: Final = 0x81  # a message of a single frame
_BINARY: Final = 0x82
_LENGTH_MAX: Final = 125
_LENGTH_16_MAX: Final = 0xFFFF


class DirectProtocol(WebSocketsSansIOProtocol):
    """One connection; servers use what `counting` returns."""

    intake: Intake
    """The budget in which it counts."""
    strangers: Strangers
    """The unauthenticated connections, among which it counts before `trust`."""
    _account = STRANGERS
    _left: int | None = STRANGER_BYTES_MAX
    """Bytes that an unauthenticated client may still send; None = it is authenticated."""
    _unfinished = 0
    """Bytes of the fragments of an incomplete message."""
    _sizes: deque[int]
    """Sizes of the complete messages that wait for the application, in order."""
    _queued = 0
    """The sum of `_sizes`."""
    _shown = 0
    """The size of the message that the application is processing."""
    _counts = False
    _take: Take | None = None
    _is_over = False
    """Whether the application has ended: further messages are dropped."""

    def connection_made(self, transport: Any) -> None:
        """As uvicorn does. It also breaks the reference cycle of the HTTP protocol and its parser,
        which have ended: the garbage collector visits old objects only once in days."""
        self._sizes = deque()
        before: Any = transport.get_protocol()
        super().connection_made(transport)
        if hasattr(before, "parser"):
            before.parser = None
        self.strangers.enter(self, peer_of(transport.get_extra_info("peername")))

    def data_received(self, data: bytes) -> None:
        """As uvicorn does, within the limits."""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self._turn_out(CloseCode.MESSAGE_TOO_BIG, "say who you are first")
                return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._turn_away()
        self._note()

    def _turn_away(self) -> None:
        """Answer a handshake that the parser refuses, such as one with a very long line: uvicorn
        would neither answer it nor ever close the connection."""
        answer = b"".join(self.conn.data_to_send()) or _BAD_REQUEST
        self.handshake_complete = self.close_sent = True
        self.transport.write(answer)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn does."""
        super().connection_lost(exc)
        self.strangers.leave(self)
        self._drop()

    def handle_text(self, event: Frame) -> None:
        """As uvicorn does; see `_empty`."""
        self._unfinished = PIECE_BYTES + len(event.data)
        super().handle_text(event)
        _empty(event)

    def handle_bytes(self, event: Frame) -> None:
        """As uvicorn does; see `_empty`."""
        self._unfinished = PIECE_BYTES + len(event.data)
        super().handle_bytes(event)
        _empty(event)

    def handle_cont(self, event: Frame) -> None:
        """As uvicorn does, up to a maximum number of fragments; see `_empty`."""
        if self.transport.is_closing():
            return
        self._unfinished += PIECE_BYTES + len(event.data)
        super().handle_cont(event)
        _empty(event)
        if len(self.frames) > MESSAGE_FRAGMENTS_MAX:
            self._turn_out(CloseCode.MESSAGE_TOO_BIG, "a message in too many fragments")

    def send_receive_event_to_app(self) -> None:
        """As uvicorn does: a message is complete."""
        if self._is_over:
            self.frames, self._unfinished = [], 0
            return
        if self._is_taken():
            self.frames, self._unfinished = [], 0
            return
        super().send_receive_event_to_app()
        if not self.close_sent:  # otherwise a close was already sent
            self._sizes.append(self._unfinished)
            self._queued += self._unfinished
        self._unfinished = 0

    def _is_taken(self) -> bool:
        """Whether `offer`'s function takes the message that is complete."""
        if self._take is None or self.close_sent or not self.queue.empty():
            return False
        is_plain = len(self.frames) == 1 and self.curr_msg_data_type == "bytes"
        return is_plain and self._take(self.frames[0])

    async def receive(self) -> Any:
        """As uvicorn does. The previous message has been processed."""
        if self._shown:
            self._shown = 0
            self._note()
        message = await super().receive()
        self._show(message)
        return message

    def waiting(self, count: int) -> list[Any]:
        """See `Waiting`. They are processed together with the last one that was received."""
        found = [self.queue.get_nowait() for _ in range(min(count, self.queue.qsize()))]
        for message in found:
            self._show(message)
        # uvicorn resumes reading in `receive`, which these messages did not pass.
        if found and self.read_paused and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()
        return found

    def _show(self, message: Any) -> None:
        if message["type"] == "websocket.receive":
            size = self._sizes.popleft()
            self._shown += size
            self._queued -= size

    def turn_out(self) -> None:
        """See `Stranger`."""
        if self.handshake_complete:
            self._turn_out(CloseCode.TRY_AGAIN_LATER, "too many have not said who they are")
        else:
            self.transport.abort()

    def let_go(self) -> None:
        """See `Holder`. Complete messages that were not processed were not answered either."""
        self._turn_out(CloseCode.TRY_AGAIN_LATER, "too many bytes of messages are in memory")
        self._empty_queue()
        self._drop()

    def _empty_queue(self) -> None:
        events = [self.queue.get_nowait() for _ in range(self.queue.qsize())]
        for event in events:
            # The end of the connection stays: the application waits for it.
            if event["type"] != "websocket.receive":
                self.queue.put_nowait(event)
        self._sizes.clear()
        self._queued = 0

    def _drop(self) -> None:
        """Drop an incomplete message: the rest will not arrive, or is not wanted."""
        self.frames, self._unfinished = [], 0
        self.conn.reader.discard()
        self._note()

    def _note(self) -> None:
        waiting = len(self.conn.reader.buffer) + self._unfinished + self._queued
        held = Held(self._account, waiting, self._shown)
        counted = self.intake.counted(held)
        if counted or self._counts:
            self._counts = counted > 0
            self.intake.note(self, held)

    def _turn_out(self, code: CloseCode, reason: str) -> None:
        if not self.transport.is_closing():
            self.conn.fail(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True  # nothing more is sent, not even when the server stops
            self.transport.close()
            if self.close_timer is not None:
                self.close_timer.cancel()
            # `close` would wait until the peer has read what was sent before, which may never
            # happen.
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)

    def send_500_response(self) -> None:
        """As uvicorn does, unless the connection has ended already: then it would stop the
        server."""
        if not (self.conn.eof_sent or self.transport.is_closing()):
            super().send_500_response()

    def trust(self, account: str) -> None:
        """Accept messages of every size: the peer is authenticated."""
        self._left, self._account = None, account
        self.strangers.leave(self)
        self._note()

    def offer(self, take: Take) -> None:
        """Give each binary message to `take` first, unless others wait before it."""
        self._take = take

    async def run_asgi(self) -> None:
        """As uvicorn does, with the extension."""
        extensions = self.scope.get("extensions") or {}
        self.scope["extensions"] = {
            **extensions,
            DIRECT: {
                "write": self.write,
                "write_frame": self.write_frame,
                "waiting": self.waiting,
                "trust": self.trust,
                "offer": self.offer,
            },
        }
        try:
            await super().run_asgi()
        finally:
            self.scope["extensions"] = extensions  # drop what holds this object
            self._is_over = True
            self._take = None
            self._empty_queue()
            self._shown = 0
            self._note()

    def write(self, message: bytes) -> bool:
        """See `Write`. Requires that all earlier messages have reached the socket."""
        return self.write_frame(binary_frame(message))

    def write_frame(self, frame: bytes) -> bool:
        """The same for what `framed` or `binary_frame` returned."""
        is_open = self.conn.state is State.OPEN and not self.close_sent
        if not is_open or not self.writable.is_set() or self.transport.is_closing():
            return False
        self.transport.write(frame)
        return True


def counting(intake: Intake, strangers: Strangers) -> type[DirectProtocol]:
    """The protocol class whose connections count in `intake` and among `strangers`: one per
    server."""
    counted = {"intake": intake, "strangers": strangers}
    return type(DirectProtocol.__name__, (DirectProtocol,), counted)


def _empty(frame: Frame) -> None:
    """Release the payload of a frame: the parser of each connection holds the last frame until the
    next one arrives, however long that takes."""
    frame.data = b""


def framed(message: bytes, encoding: Encoding) -> bytes:
    """The WebSocket frame of a message in `encoding`."""
    return _header(_BINARY if encoding.binary else _TEXT, len(message)) + message


def binary_frame(message: bytes) -> bytes:
    """The WebSocket frame of a binary message."""
    return _header(_BINARY, len(message)) + message


def _header(kind: int, size: int) -> bytes:
    if size <= _LENGTH_MAX:
        return bytes((kind, size))
    if size <= _LENGTH_16_MAX:
        return struct.pack("!BBH", kind, _LENGTH_MAX + 1, size)
    return struct.pack("!BBQ", kind, _LENGTH_MAX + 2, size)
