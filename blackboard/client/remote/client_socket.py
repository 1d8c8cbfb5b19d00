"""The client's WebSocket: the library's, but for whole binary messages.

With a hundred watchers the client spends most of its time on small binary messages, of one frame
each. These are taken out of the buffer into which asyncio reads. The library's parser would take as
long as decoding the message. It gets everything else, cut into frames: the handshake, control
frames, text, fragments, messages that are larger than the buffer, and whatever breaks the rules.

Invariants
- the library and this module never take parts of the same frame.
- messages are taken in the order in which they come, whichever way they go.

Source: RFC 6455, section 5.2.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from websockets.asyncio.client import ClientConnection
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import OPEN, Event

READ_BYTES_MAX: Final = 64 * 1024
"""The most that one read takes, and the largest frame that is taken out of the buffer."""
_WHOLE_BINARY: Final = 0x82
"""The first byte of a binary message that is not fragmented."""
_END_OF_RESPONSE: Final = b"\r\n\r\n"
_ALL: Final = 2**64
"""More bytes than a connection brings."""


class ClientSocket(ClientConnection, asyncio.BufferedProtocol):
    """A WebSocket that passes each message to `take` when it arrives, if `take` is set.

    A task that waits for each message would double the cost of reading it.

    asyncio reads into a buffer of the connection. Without one, it would allocate 256 KiB for each
    read, which costs three times as much as the rest of reading a small message.
    """

    take: Callable[[bytes], None] | None = None
    _buffer: bytearray | None = None
    _view: memoryview
    _kept = 0
    """The length of the beginning of a frame, which is at the beginning of the buffer."""
    _response: bytes | None = b""
    """The last bytes of the response to the handshake so far; None after its end."""
    _owed = 0
    """How many of the bytes that follow are the library's, uncut."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio before each read."""
        if self._buffer is None:
            self._buffer = bytearray(READ_BYTES_MAX)
            self._view = memoryview(self._buffer)
        return self._view[self._kept :]

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio after each read."""
        end, at = self._kept + nbytes, 0
        if self._response is not None:
            at = self._greet(end)
        elif self._owed:
            at = self._pass_on(0, min(self._owed, end))
            self._owed -= at
        at = self._cut(at, end)
        self._kept = end - at
        if self._kept and at:
            self._view[: self._kept] = self._view[at:end]

    def _pass_on(self, at: int, end: int) -> int:
        """Give the library what is between `at` and `end`; returns `end`."""
        if at < end:
            self.data_received(bytes(self._view[at:end]))
        return end

    def _greet(self, end: int) -> int:
        """Pass on the response to the handshake; returns where the frames begin."""
        before, self._response = self._response, None
        assert before is not None
        received = before + bytes(self._view[:end])
        found = received.find(_END_OF_RESPONSE)
        if found < 0:
            self._response = received[1 - len(_END_OF_RESPONSE) :]
            return self._pass_on(0, end)
        at = self._pass_on(0, found + len(_END_OF_RESPONSE) - len(before))
        if self.protocol.state is OPEN:
            return at
        self._owed = _ALL  # it is refused: a body follows, and no frames
        return self._pass_on(at, end)

    def _cut(self, at: int, end: int) -> int:
        """Take the frames between `at` and `end`; returns where one begins that is not whole."""
        buffer, view = self._buffer, self._view
        assert buffer is not None
        while end - at >= 2:
            size, content = buffer[at + 1], at + 2
            if size > 125:
                content = at + (4 if size == 126 else 10)
                if size > 127:  # masked, which breaks the rules: the library ends the connection
                    self._owed = _ALL
                    return self._pass_on(at, end)
                if content > end:
                    break
                size = int.from_bytes(view[at + 2 : content], "big")
            stop = content + size
            if stop > end:
                if stop - at <= READ_BYTES_MAX:
                    break
                self._owed = stop - end
                return self._pass_on(at, end)
            take = self.take
            if take is not None and buffer[at] == _WHOLE_BINARY and self.protocol.state is OPEN:
                take(bytes(view[content:stop]))
            else:
                self.data_received(bytes(view[at:stop]))
            at = stop
        return at

    def process_event(self, event: Event) -> None:
        """Called by websockets for every incoming event."""
        if self.take is not None and isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            if event.opcode is Opcode.BINARY and event.fin:
                return self.take(bytes(event.data))
            self.take = None  # fragments: from here on, `recv` assembles messages
        return super().process_event(event)
