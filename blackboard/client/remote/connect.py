"""How a client comes to a service: its address, the WebSocket, and why a connection ended."""

import contextlib
import ipaddress
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http.client import BadStatusLine
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, InvalidURI
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import Event
from websockets.typing import Subprotocol

from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    InvalidRequest,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import DEFAULT, FRAME_BYTES_MAX, ConnectionLimits

TokenSource = Callable[[], str | Awaitable[str]]
"""Gives a token whenever one is needed: when connecting, and before the one in use runs out."""

_SUBPROTOCOL: Final = Subprotocol("blackboard.v1+msgpack")
_CLOSE_TIMEOUT_S: Final = 1.0
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""How OpenSSL calls an answer that is not TLS."""
_CLOSE_UNAUTHENTICATED: Final = 4401
_CLOSE_FORBIDDEN: Final = 4403


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service is, and as whom to come."""

    url: str
    token: "str | TokenSource | None" = field(default=None, repr=False)
    agent: str | None = None
    ca: Path | None = None
    """A PEM file of certificates: the service's must be signed by one of them. None = by one that
    this machine trusts."""

    async def fresh_token(self) -> str | None:
        """The token to come with now: a source is asked each time.

        Errors: Unavailable when the source raises something: it may have one the next time.
        """
        if self.token is None or isinstance(self.token, str):
            return self.token
        try:
            found = self.token()
            return found if isinstance(found, str) else await found
        except BlackboardError:
            raise
        except Exception as error:  # of somebody else's code, which may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise Unavailable(what="the source of tokens", reason=reason) from error

    @property
    def websocket(self) -> str:
        """The WebSocket's URL: `http` becomes `ws`, and the path ends in `/v1`.

        Errors: InvalidRequest for something that is no such URL.
        """
        try:
            parts = urlsplit(self.url)
        except ValueError as error:
            raise InvalidRequest(field="url", reason=str(error)) from error
        scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
        if scheme is None or not parts.hostname:
            raise InvalidRequest(
                field="url", reason=f"{self.url!r:.200} is not like ws://host:port"
            )
        path = parts.path.rstrip("/")
        path = path if path.endswith("/v1") else path + "/v1"
        return urlunsplit((scheme, parts.netloc, path, "", ""))

    @property
    def is_encrypted(self) -> bool:
        """Whether connections to it use TLS. Errors: as `websocket`."""
        return self.websocket.startswith("wss:")

    def tls(self) -> ssl.SSLContext | bool | None:
        """How to check the service's certificate, as websockets takes it; None without TLS.

        The file is read each time, so that a new one counts from the next connection on.
        Errors: InvalidRequest when it cannot be read, or holds no certificate.
        """
        if not self.is_encrypted:
            return None
        if self.ca is None:
            return True
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            reason = f"{self.ca}: {_without_place(str(error))}"
            raise InvalidRequest(field="ca", reason=reason) from error

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine: then no proxy is asked."""
        host = urlsplit(self.url).hostname or ""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback
        return host == "localhost"


class ClientSocket(ClientConnection):
    """A WebSocket that hands a message on as it comes, to `take` if that is set.

    A task that waits for each message would double what it costs to read one.
    """

    take: Callable[[bytes], None] | None = None

    def process_event(self, event: Event) -> None:
        """Called by websockets for whatever comes in."""
        if self.take is not None and isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            if event.opcode is Opcode.BINARY and event.fin:
                return self.take(bytes(event.data))
            self.take = None  # fragments: from here on, `recv` puts messages together
        return super().process_event(event)


@contextlib.asynccontextmanager
async def connect(
    address: Address, token: str | None, *, limits: ConnectionLimits = DEFAULT.connection
) -> AsyncIterator[ClientSocket]:
    """A WebSocket to `address`, closed at the end. Errors: those that `translated` knows."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connecting = connect_websocket(
        address.websocket,
        subprotocols=[_SUBPROTOCOL],
        additional_headers=headers,
        compression=None,
        ssl=address.tls(),
        proxy=None if address.is_loopback else True,
        open_timeout=limits.handshake_timeout_ms / 1000,
        close_timeout=_CLOSE_TIMEOUT_S,
        ping_interval=limits.ping_interval_ms / 1000,
        ping_timeout=limits.ping_interval_ms / 1000,
        max_size=FRAME_BYTES_MAX,
        create_connection=ClientSocket,
    )
    async with connecting as socket:
        assert isinstance(socket, ClientSocket)
        yield socket


def translated(error: Exception, url: str) -> BlackboardError:
    """What the end of a connection means: Unavailable if it may be better next time."""
    if isinstance(error, InvalidStatus):
        return _translated_status(error, url)
    if isinstance(error, InvalidURI):
        return InvalidRequest(field="url", reason=str(error))
    if isinstance(error, ConnectionClosed):
        return _translated_close(error, url)
    if isinstance(error, Unauthenticated | AccessDenied | InvalidRequest | Unavailable):
        return error
    return Unavailable(what=url, reason=reason_of(error, url))


def may_pass(error: Exception, url: str) -> bool:
    """Whether the next attempt to connect may do better: the service at `url` may be starting.

    A name that leads nowhere, a certificate that is not accepted, something that is no such service
    and a refusal stay as they are; what a source of tokens raises is for the caller at once.
    """
    if isinstance(error, ssl.SSLError | socket.gaierror | InvalidMessage | BadStatusLine):
        return False
    found = translated(error, url)
    return isinstance(found, Unavailable) and found.what == url


def reason_of(error: Exception, url: str) -> str:
    """Why there is no connection to `url`, in words; of TLS without OpenSSL's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return "it does not speak TLS at that port"
    if isinstance(error, InvalidMessage | BadStatusLine) and url.startswith(("ws:", "http:")):
        return "it does not answer in HTTP; if it speaks TLS, the address begins with wss:"
    return _without_place(str(error)) or type(error).__name__


def _without_place(text: str) -> str:
    """What OpenSSL says, without the line of its source."""
    return re.sub(r" \(_ssl\.c:\d+\)", "", text)


def _translated_status(error: InvalidStatus, url: str) -> BlackboardError:
    status = error.response.status_code
    reason = _reason(error.response.body or b"") or f"HTTP {status}"
    if status == 401:
        return Unauthenticated(reason=reason)
    if status in (400, 403, 404):
        return InvalidRequest(field="url", reason=reason)
    return Unavailable(what=url, reason=reason)


def _reason(body: bytes | bytearray) -> str:
    """What a service, or whatever answered in its place, says of its refusal."""
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, TypeError, KeyError):
        return body[:200].decode(errors="replace")


def _translated_close(error: ConnectionClosed, url: str) -> BlackboardError:
    code = error.rcvd.code if error.rcvd is not None else 1006
    reason = error.rcvd.reason if error.rcvd is not None else "the connection broke"
    if code == _CLOSE_UNAUTHENTICATED:
        return Unauthenticated(reason=reason)
    if code == _CLOSE_FORBIDDEN:
        return AccessDenied(principal="", right="connect", key=url)
    return Unavailable(what=url, reason=f"closed with {code} {reason}")
