"""uvicorn's HTTP protocol, with a limit on what it reads from unauthenticated clients.

uvicorn has two parsers, and buffers without a limit until the head of a request is complete. Here
the end of the head is found before the parser sees it: a head has at most REQUEST_HEAD_BYTES_MAX
bytes and REQUEST_HEADERS_MAX lines, with either parser. What comes after it waits, unparsed and
with the socket paused, until the application requests the body, which it does for a valid token.

A request that is sent before the previous one was answered (pipelining, which no common client
does) is not processed, and the connection ends after the answer. It also ends if the body was not
requested. A client may send that request again: it was not carried out (RFC 9112, section 9.3.2).

Invariants
- A parser gets at most REQUEST_HEAD_BYTES_MAX of a head, and a body only if it was requested.
- A connection counts as unauthenticated, except while a request with a valid token is carried out.
- A body counts in the budget of incoming bytes until its request was carried out.
"""

import contextlib
import contextvars
import re
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from blackboard.limits import (
    FRAME_BYTES_MAX,
    REQUEST_HEAD_BYTES_MAX,
    REQUEST_HEADERS_MAX,
    STRANGER_BYTES_MAX,
)
from blackboard.server.http.uvicorn_protocol import DIRECT
from blackboard.server.overload.charges import STRANGERS
from blackboard.server.overload.connections import Held, Intake, Strangers, peer_of

_END: Final = re.compile(rb"\n\r?\n")
_OVERLAP: Final = 2  # bytes of a head's end that may be in the previous data
_BODY_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX
"""Bytes of a body as sent: with chunked encoding it is longer than its content."""
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


class HeadScanner:
    """Finds the end of a request's head in the incoming bytes."""

    def __init__(self) -> None:
        self._size = self._lines = 0
        self.has_begun = False  # empty lines before the head do not end it
        self._last = b""

    def take(self, data: bytes) -> int | None:
        """How many bytes of `data` belong to the head, if it ends there; None if it continues.

        Errors: OverflowError when it has too many bytes or lines.
        """
        # RFC 9112, section 2.2: empty lines before a request are ignored.
        start = 0 if self.has_begun else len(data) - len(data.lstrip(b"\r\n"))
        self.has_begun = start < len(data)
        seen = self._last + data[start:]
        found = _END.search(seen)
        end = None if found is None else found.end() - len(self._last) + start
        part = data if end is None else data[:end]
        self._size += len(part)
        self._lines += part.count(b"\n")
        self._last = seen[-_OVERLAP:]
        # The request line comes first, and an empty line last.
        if self._size > REQUEST_HEAD_BYTES_MAX or self._lines > REQUEST_HEADERS_MAX + 2:
            raise OverflowError
        return end


class _Flow(FlowControl):
    """Calls `wanted` when the application requests the body.

    What is read later is not read in the context of the request that resumed the socket: asyncio
    would keep it, and with it the request's trace, for what comes next on the connection.
    """

    def __init__(self, transport: Any, wanted: Callable[[], None]) -> None:
        super().__init__(transport)
        self.wanted = wanted
        self._context = contextvars.copy_context()

    def resume_reading(self) -> None:
        """As uvicorn does."""
        self.wanted()
        self._context.run(super().resume_reading)


_Uvicorn: Any = object
"""Stands for one of uvicorn's two protocols, which the classes below inherit."""


class BoundedProtocol(_Uvicorn):  # type: ignore[misc]
    """The common part of the protocols of both parsers. Servers use what `bounded` returns."""

    strangers: Strangers
    """The unauthenticated connections, among which it counts."""
    intake: Intake
    """The budget of incoming bytes, in which bodies count."""
    _account = STRANGERS
    _head: HeadScanner | None = None
    """Set while the head of a request is awaited or incomplete."""
    _rest: bytes | None = None
    """Data after a head that the application has not requested yet."""
    _body_left = _BODY_BYTES_MAX
    """Bytes of the body that may still come."""
    _counts = False
    """Whether bytes of a body are reported."""
    _is_last = False
    """Whether the connection ends with the answer."""
    _unheard: int | None = None
    """Bytes that may still arrive and are dropped; set once the answer was sent."""

    @property
    def is_asking(self) -> bool:
        """Whether the head of a request has begun, and is not complete."""
        return self._head is not None and self._head.has_begun

    def connection_made(self, transport: Any) -> None:
        """As uvicorn does."""
        super().connection_made(transport)
        self._head = HeadScanner()
        self.flow: Any = _Flow(transport, self._on_wanted)
        self.strangers.enter(self, peer_of(transport.get_extra_info("peername")))

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn does."""
        super().connection_lost(exc)
        self._leave()

    def data_received(self, data: bytes) -> None:
        """As uvicorn does, within the limits."""
        if self.transport.is_closing():
            return
        if self._unheard is not None:
            self._unheard -= len(data)
            if self._unheard < 0:
                self.transport.abort()
        elif self._head is not None:
            self._take_head(self._head, data)
        elif self._rest is not None:
            self._rest += data  # read before the socket was paused
        elif not self.cycle.more_body:
            self._is_last = True
            self.flow.pause_reading()
        else:
            self._take_body(data)

    def _take_head(self, head: HeadScanner, data: bytes) -> None:
        try:
            end = head.take(data)
        except OverflowError:
            self.logger.warning("A request's head is too large.")
            self.transport.write(_TOO_LARGE)
            self._linger()
            return
        before = self.cycle
        super().data_received(data if end is None else data[:end])
        if self.transport.get_protocol() is not self:
            self._leave()  # it has become a WebSocket
        elif self.cycle is not before:
            self._begin(b"" if end is None else data[end:])
        elif end is not None and not self.transport.is_closing():
            # A complete head that the parser does not take for one: always a bad request.
            self.logger.warning("Invalid HTTP request received.")
            super().send_400_response("Invalid HTTP request received.")

    def _begin(self, rest: bytes) -> None:
        """Begin to carry out a request."""
        self._head, self._rest, self._body_left = None, rest, _BODY_BYTES_MAX
        extensions: Any = {
            DIRECT: {"trust": self._trust, "release": self._release, "abort": self._abort}
        }
        self.cycle.scope["extensions"] = extensions
        self.flow.pause_reading()

    def _trust(self, account: str) -> None:
        self._account = account
        self.strangers.leave(self)

    def _abort(self) -> None:
        self.transport.abort()

    def _on_wanted(self) -> None:
        rest, self._rest = self._rest, None
        if rest and not self.cycle.response_complete:
            self.data_received(rest)

    def _take_body(self, data: bytes) -> None:
        self._body_left -= len(data)
        if self._body_left < 0:
            self.transport.abort()
        else:
            super().data_received(data)
            self._note()

    def _note(self) -> None:
        """Report the bytes of the body; until all have come, they are given up with the
        connection."""
        size = _BODY_BYTES_MAX - self._body_left
        is_whole = self.cycle is None or not self.cycle.more_body
        held = Held(self._account, *((0, size) if is_whole else (size, 0)))
        counted = self.intake.counted(held)
        if counted or self._counts:
            self._counts = counted > 0
            self.intake.note(self, held)

    def let_go(self) -> None:
        """See `Holder`. The request was not carried out, as its body is not complete."""
        self._release()
        self.transport.abort()

    def _release(self) -> None:
        """Report that nothing of the body is in memory any more."""
        self._body_left = _BODY_BYTES_MAX
        self._note()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn does, but bytes after a complete request whose answer is being sent are no
        error."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering:
            super().send_400_response(msg)
        elif self.cycle.more_body:
            self.transport.abort()
        else:
            self._is_last = True

    def on_response_complete(self) -> None:
        """As uvicorn does, then wait for the next request, or end the connection."""
        is_last = self._is_last or bool(self._rest) or self.cycle.more_body or self._has_more()
        self._rest = None
        self._release()
        self._account = STRANGERS
        self.cycle.scope.pop("extensions", None)
        if self.transport.is_closing():
            return
        self.strangers.enter(self, peer_of(self.client))
        if is_last:
            self._linger()
        else:
            self._head = HeadScanner()
            super().on_response_complete()

    def _linger(self) -> None:
        """End the connection so that the peer can read the answer. If it were closed while the peer
        still sends, it would be reset and the answer lost. uvicorn's timer, or ours (`Idle`),
        closes it."""
        self._unheard = STRANGER_BYTES_MAX
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
        else:  # over TLS
            self.transport.close()

    def _has_more(self) -> bool:
        """Whether the parser has bytes of another request."""
        return False

    def turn_out(self) -> None:
        """See `Stranger`."""
        self.transport.abort()

    def _leave(self) -> None:
        """Break the reference cycles of this object: the garbage collector visits old objects only
        once in days."""
        self.strangers.leave(self)
        self._head = None
        if isinstance(self.flow, _Flow):
            self.flow.wanted = _nothing
        if self.cycle is not None:
            self.cycle.scope.pop("extensions", None)


def _nothing() -> None:
    """The data is dropped."""


class _WithH11(BoundedProtocol, H11Protocol):
    """With the parser that is always installed."""

    def connection_made(self, transport: Any) -> None:
        """As uvicorn does. h11's own limit is lower."""
        super().connection_made(transport)
        self.conn = h11.Connection(h11.SERVER, REQUEST_HEAD_BYTES_MAX)

    def _has_more(self) -> bool:
        return bool(self.conn.trailing_data[0])


PROTOCOLS: list[type[BoundedProtocol]] = [_WithH11]
"""One for each parser that is installed; the last one is the fastest."""

with contextlib.suppress(ImportError):
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class _WithHttptools(BoundedProtocol, HttpToolsProtocol):
        """With the parser of the extra `fast`."""

        def on_message_begin(self) -> None:
            """As uvicorn does, but only for the request that is being carried out."""
            if self._head is None:
                raise ValueError("a request before the last one was answered")
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            """As uvicorn does; data after a body is dropped."""
            if self._head is not None:
                super().on_header(name, value)

    PROTOCOLS.append(_WithHttptools)


def bounded(
    intake: Intake, strangers: Strangers, protocol: type[BoundedProtocol] = PROTOCOLS[-1]
) -> type[BoundedProtocol]:
    """The protocol class whose connections count in `intake` and among `strangers`: one per
    server."""
    return type(protocol.__name__, (protocol,), {"intake": intake, "strangers": strangers})
