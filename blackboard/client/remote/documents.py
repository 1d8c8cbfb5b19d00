"""The client's connection to one document: a `Pipe` (client/link.py) over a separate WebSocket.

It does not reconnect; a `Document` opens the next one.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect as connect_websocket
from websockets.exceptions import ConnectionClosed, WebSocketException

from blackboard.client.remote.connect import Address, end_if_silent, reason_of
from blackboard.core.access import AccessGrant, Narrowing, Right
from blackboard.core.path import check_document, document_prefix
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    Corrupt,
    DocumentRefused,
    InvalidRequest,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import (
    DEFAULT,
    DOCUMENT_TOKEN_TTL_MS_MAX,
    FRAME_BYTES_MAX,
    ConnectionLimits,
)
from blackboard.units import Key, Milliseconds
from blackboard.wire.ysync import CLOSE_BY_CAUSE

_CLOSE_TIMEOUT_S: Final = 1.0
_CLOSE_UNAUTHENTICATED: Final = 4401
_CLOSE_FORBIDDEN: Final = 4403


@asynccontextmanager
async def open_document(
    address: Address,
    board: str,
    key: Key,
    agent: str | None,
    *,
    limits: ConnectionLimits = DEFAULT.connection,
) -> AsyncIterator["RemotePipe"]:
    """Connect to a document. Errors: Unavailable; InvalidRequest for an invalid key."""
    path = f"{address.websocket}/boards/{quote(board)}/docs/{quote(check_document(key))}"
    name = agent or address.agent
    url = f"{path}?agent={quote(name)}" if name else path
    token = await address.fresh_token(limits.request_timeout_ms)
    try:
        tls = address.tls()
    except InvalidRequest as error:
        # The client has connected with it: somebody is just replacing the file.
        raise Unavailable(what=address.websocket, reason=error.reason) from error
    try:
        socket = await connect_websocket(
            url,
            additional_headers={} if token is None else {"Authorization": f"Bearer {token}"},
            compression=None,
            ssl=tls,
            proxy=None if address.is_loopback else True,
            open_timeout=limits.handshake_timeout_ms / 1000,
            close_timeout=_CLOSE_TIMEOUT_S,
            ping_interval=limits.ping_interval_ms / 1000,
            ping_timeout=limits.ping_interval_ms / 1000,
            # A whole document comes as one message, and may be larger than FRAME_BYTES_MAX.
            max_size=None,
            max_queue=4,
        )
        end_if_silent(socket, limits)
    # Of the last, more than handshakes: a proxy that is none, for example.
    except (OSError, TimeoutError, WebSocketException) as error:
        raise Unavailable(what=address.websocket, reason=reason_of(error, url)) from error
    try:
        yield RemotePipe(socket, key, has_more_tokens=callable(address.token))
    finally:
        await socket.close()


def document_token(
    token: str,
    board: str,
    key: Key,
    *,
    can_edit: bool = True,
    ttl_ms: Milliseconds = DOCUMENT_TOKEN_TTL_MS_MAX // 2,
) -> str:
    """A token that a stock client may have in its URL: `token`, narrowed to the document at `key`.

    Tokens are narrowed offline, without the service. The new token is valid for at most `ttl_ms`,
    and for the same agent. The service takes none that is valid for more than an hour by its own
    clock, so the default leaves room for a clock here that is ahead. Errors: InvalidRequest when
    `token` allows less, or is not a token.
    """
    # Imported here because it loads slowly, and most clients of documents narrow no tokens.
    from blackboard.integrity.tokens import attenuate

    rights = {Right.READ, Right.APPEND} if can_edit else {Right.READ}
    grant = AccessGrant(f"{document_prefix(check_document(key))}/**", frozenset(rights))
    ends_ms = time.time_ns() // 1_000_000 + min(ttl_ms, DOCUMENT_TOKEN_TTL_MS_MAX)
    return attenuate(token, Narrowing(None, (grant,), frozenset({board}), ends_ms))


class RemotePipe:
    """The WebSocket of one document."""

    def __init__(self, socket: ClientConnection, key: Key, *, has_more_tokens: bool) -> None:
        self._socket = socket
        self._key = key
        self._has_more_tokens = has_more_tokens
        self._was_let_in = False

    async def send(self, frame: bytes) -> None:
        """As `Pipe.send`. Errors: also DocumentRefused for what does not fit into a frame."""
        # The service would close the connection (1009), and the replica would send the same again.
        if len(frame) > FRAME_BYTES_MAX:
            raise DocumentRefused(self._key, "too_large", f"an update of {len(frame)} bytes")
        try:
            await self._socket.send(frame)
        except ConnectionClosed as closed:
            raise self._failure(closed) from closed

    async def receive(self) -> bytes:
        """As `Pipe.receive`."""
        try:
            message = await self._socket.recv()
        except ConnectionClosed as closed:
            raise self._failure(closed) from closed
        # From here on, 4401 means that the token expired. Before, it means that it is not accepted.
        self._was_let_in = True
        return message if isinstance(message, bytes) else message.encode()

    async def aclose(self) -> None:
        """Close the WebSocket: later reads and writes raise."""
        await self._socket.close()

    async def ended(self) -> None:
        """As `Pipe.ended`."""
        await self._socket.wait_closed()

    def _failure(self, closed: ConnectionClosed) -> BlackboardError:
        """The error for a close code and its reason. For an expired token it is Unavailable if
        there is a source of tokens: the next connection gets a new one, and nothing is lost."""
        frame = closed.rcvd
        if frame is None:
            return Unavailable(what=f"document {self._key}", reason=str(closed))
        cause, _, reason = frame.reason.partition(": ")
        if CLOSE_BY_CAUSE.get(cause) == frame.code:
            return DocumentRefused(self._key, cause, reason)
        if frame.code == _CLOSE_UNAUTHENTICATED:
            if self._was_let_in and self._has_more_tokens:
                return Unavailable(what=f"document {self._key}", reason=frame.reason)
            return Unauthenticated(reason=frame.reason)
        if cause == "corrupt":
            # Not a cause of a refusal: it is no use to try again.
            return Corrupt(what=f"document {self._key}", reason=reason)
        if frame.code == _CLOSE_FORBIDDEN:
            return AccessDenied(principal="you", right="read", key=self._key)
        return Unavailable(what=f"document {self._key}", reason=f"{frame.code} {frame.reason}")
