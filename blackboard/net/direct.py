"""uvicorn's WebSocket protocol, with a shortcut to the socket.

With ASGI, each peer has a task that sends to it. Telling fifty peers wakes fifty tasks, one after
the other, before the first byte leaves. Whoever has a message for a peer for which nothing waits
may write it at once instead: the extension DIRECT of a connection's scope holds a `Write`, and
`trust`, to be called when it is known who the peer is. Until then it may send STRANGER_BYTES_MAX.

Source: ASGI, "Extensions"; RFC 6455, section 5.2.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.protocol import State

from blackboard.types import MESSAGE_FRAGMENTS_MAX, STRANGER_BYTES_MAX

Write = Callable[[bytes], bool]
"""Write one binary message, if the socket takes it at once; returns whether it did."""
DIRECT: Final = "blackboard.direct"
_BINARY: Final = 0x82  # the only frame of its message
_LENGTH_MAX: Final = 125
_LENGTH_16_MAX: Final = 0xFFFF


class DirectProtocol(WebSocketsSansIOProtocol):
    """One connection."""

    _left: int | None = STRANGER_BYTES_MAX
    """Bytes that a stranger may still send; None = it is known who it is."""

    def connection_made(self, transport: Any) -> None:
        """As uvicorn does. What spoke HTTP until now is over, but it and its parser hold each other
        until the collector comes to them, which to what is old it does once in days."""
        before: Any = transport.get_protocol()
        super().connection_made(transport)
        if hasattr(before, "parser"):
            before.parser = None

    def data_received(self, data: bytes) -> None:
        """As uvicorn does, while there may be so much."""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                return self._turn_out("say who you are first")
        return super().data_received(data)

    def handle_text(self, event: Frame) -> None:
        """As uvicorn does; see `_empty`."""
        super().handle_text(event)
        _empty(event)

    def handle_bytes(self, event: Frame) -> None:
        """As uvicorn does; see `_empty`."""
        super().handle_bytes(event)
        _empty(event)

    def handle_cont(self, event: Frame) -> None:
        """As uvicorn does, while a message has not too many; see `_empty`."""
        if self.transport.is_closing():
            return
        super().handle_cont(event)
        _empty(event)
        if len(self.frames) > MESSAGE_FRAGMENTS_MAX:
            self._turn_out("a message in too many fragments")

    def _turn_out(self, reason: str) -> None:
        if not self.transport.is_closing():
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def trust(self) -> None:
        """Take in messages of every size: it is known whose they are."""
        self._left = None

    async def run_asgi(self) -> None:
        """As uvicorn does, with the extension."""
        extensions = self.scope.get("extensions") or {}
        self.scope["extensions"] = {
            **extensions,
            DIRECT: {"write": self.write, "trust": self.trust},
        }
        try:
            await super().run_asgi()
        finally:
            self.scope["extensions"] = extensions  # the others hold this object

    def write(self, message: bytes) -> bool:
        """See `Write`. Nothing that was sent before may be on its way to the socket still."""
        is_open = self.conn.state is State.OPEN and not self.close_sent
        if not is_open or not self.writable.is_set() or self.transport.is_closing():
            return False
        self.transport.write(_header(len(message)) + message)
        return True


def _empty(frame: Frame) -> None:
    """Let go of what was taken out of it: the parser holds the last frame until the next one comes,
    of each connection, however long that is."""
    frame.data = b""


def _header(size: int) -> bytes:
    if size <= _LENGTH_MAX:
        return bytes((_BINARY, size))
    if size <= _LENGTH_16_MAX:
        return struct.pack("!BBH", _BINARY, _LENGTH_MAX + 1, size)
    return struct.pack("!BBQ", _BINARY, _LENGTH_MAX + 2, size)
