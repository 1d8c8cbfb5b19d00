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
_OPCODES: Final = frozenset(map(int, Opcode))


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
    _is_broken = False
    """Whether a message could not be taken."""
    _is_within = False
    """Whether the library has the beginning of a message in fragments."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio before each read. Over TLS, `sizehint` bytes are there to be read, and
        what has no room is lost if the connection ends just then."""
        size = max(READ_BYTES_MAX, self._kept + sizehint)
        if self._buffer is None or len(self._buffer) < size:
            kept = b"" if self._buffer is None else bytes(self._view[: self._kept])
            self._buffer = bytearray(kept).ljust(size, b"\0")
            self._view = memoryview(self._buffer)
        return self._view[self._kept :]

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio after each read."""
        if self._is_broken:
            return
        end, at = self._kept + nbytes, 0
        if self._response is not None:
            at = self._greet(end)
        elif self._owed:
            at = self._pass_on(0, min(self._owed, end))
            self._owed -= at
        try:
            at = self._cut(at, end)
        except BaseException:
            # asyncio ends the connection, but over TLS it may read once more. What was not taken
            # must not be followed by what came later.
            self._is_broken = True
            raise
        self._kept = end - at
        if self._kept and at:
            self._view[: self._kept] = self._view[at:end]
        elif not self._kept and end > READ_BYTES_MAX:
            self._buffer = None  # it was made for a burst

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
                content = at + (4 if size & 127 == 126 else 10)
                size = int.from_bytes(view[at + 2 : content], "big") if content <= end else 0
            stop = content + size
            if stop > end or buffer[at + 1] > 127:
                if self._breaks_rules(at):
                    stop = _ALL
                elif stop - at <= READ_BYTES_MAX:
                    break
                self._owed = stop - end
                return self._pass_on(at, end)
            take = None if self._is_within else self.take
            if take is not None and buffer[at] == _WHOLE_BINARY and self.protocol.state is OPEN:
                take(bytes(view[content:stop]))
            else:
                self.data_received(bytes(view[at:stop]))
            at = stop
        return at

    def _breaks_rules(self, at: int) -> bool:
        """Whether the library refuses the frame at `at` for its first two bytes: there is no such
        opcode, or it is masked. The rest may never come."""
        return self._view[at] & 15 not in _OPCODES or self._view[at + 1] > 127

    def process_event(self, event: Event) -> None:
        """Called by websockets for every incoming event."""
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            return super().process_event(event)
        self._is_within = not event.fin
        if self.take is not None:
            if event.opcode is Opcode.BINARY and event.fin:
                return self.take(bytes(event.data))
            self.take = None  # fragments: from here on, `recv` assembles messages
        return super().process_event(event)
