"""How a client connects to a service: the address, the WebSocket, and why a connection ended."""

import asyncio
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
from websockets.typing import Subprotocol

from blackboard.client.remote.client_socket import ClientSocket
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    InvalidRequest,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import DEFAULT, FRAME_BYTES_MAX, ConnectionLimits
from blackboard.units import Milliseconds

TokenSource = Callable[[], str | Awaitable[str]]
"""Returns a token whenever one is needed: to connect, and before the one in use expires."""

_IS_TOKEN: Final = re.compile("[!-~]+").fullmatch
"""What a header can carry of a token."""
_SUBPROTOCOL: Final = Subprotocol("blackboard.v1+msgpack")
_CLOSE_TIMEOUT_S: Final = 1.0
_ATTEMPTS: Final = 3
"""Connections for which the time of one request has room."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""OpenSSL's names for an answer that is not TLS."""
_CLOSE_UNAUTHENTICATED: Final = 4401
_CLOSE_FORBIDDEN: Final = 4403


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a service, and the credentials to connect with."""

    url: str
    token: "str | TokenSource | None" = field(default=None, repr=False)
    agent: str | None = None
    ca: Path | None = None
    """A PEM file of the authorities that may sign the service's certificate. None = those that this
    machine trusts."""

    async def fresh_token(self, timeout_ms: Milliseconds) -> str | None:
        """The token to connect with now; a source is called each time.

        Errors: Unavailable when the source raises an error, or has no answer in `timeout_ms`: it
        may have a token the next time.
        Unauthenticated for what is no token, such as the text of a file with its line break.
        """
        found = self.token
        if found is not None and not isinstance(found, str):
            found = await _token_of(found, timeout_ms)
        if found is not None and not _IS_TOKEN(found):
            # Not by a library, whose error would have the token in it.
            raise Unauthenticated(reason="a token has no spaces, line breaks or other characters")
        return found

    @property
    def websocket(self) -> str:
        """The WebSocket's URL: `http` becomes `ws`, and the path ends in `/v1`.

        Errors: InvalidRequest for any other URL.
        """
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname or "", parts.port
            host.encode("idna")  # as the resolver does: an empty or too long part is an error there
        except ValueError as error:
            raise InvalidRequest(field="url", reason=str(error)) from error
        scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
        if scheme is None or not host or port == 0:
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

        The file is read each time, so that the next connection uses a new one.
        Errors: InvalidRequest when it cannot be read or contains no certificate.
        """
        if not self.is_encrypted:
            return None
        if self.ca is None:
            return True
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as error:  # ValueError: no file can have that name
            reason = f"{self.ca}: {_without_place(str(error))}"
            raise InvalidRequest(field="ca", reason=reason) from error

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine: then no proxy is used."""
        host = urlsplit(self.url).hostname or ""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback
        return host == "localhost"


async def _token_of(source: TokenSource, timeout_ms: Milliseconds) -> str:
    try:
        async with asyncio.timeout(timeout_ms / 1000) as waiting:
            # A source may read a file or call a service, so it is called here and not
            # once at the start.
            made = source()
            found = made if isinstance(made, str) else await made
        if not isinstance(found, str):
            raise TypeError(f"it returned a {type(found).__name__}")
        return found
    except BlackboardError:
        raise
    except Exception as error:  # the source is user code, which may raise anything
        reason = f"{type(error).__name__}: {error}"
        if waiting.expired():
            reason = f"no token in {timeout_ms} ms"
        raise Unavailable(what="the source of tokens", reason=reason) from error


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
        # The service has it switched off: small messages cost more time to compress than they save.
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
    async with connecting as connection:
        assert isinstance(connection, ClientSocket)
        end_if_silent(connection, limits)
        yield connection


def end_if_silent(connection: ClientConnection, limits: ConnectionLimits) -> None:
    """Let the kernel end a connection on which nothing that was sent is acknowledged for a third of
    REQUEST_TIMEOUT_MS: the other machine is gone, or the way to it, and nobody says so.

    Then a request is repeated on another connection while its caller still waits. Pings find out
    too, but only later than that. A service that is merely slow or paused does not count: its
    kernel acknowledges. Without this option (it is Linux's), pings have to do.
    """
    found = connection.transport.get_extra_info("socket")
    if found is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        silent_ms = limits.request_timeout_ms // _ATTEMPTS
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_ms)


def translated(error: Exception, url: str) -> BlackboardError:
    """The error for the end of a connection: Unavailable if the next attempt may succeed."""
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
    """Whether the next attempt to connect may succeed: the service at `url` may be starting.

    An unknown host, a certificate that is not accepted, a server that is not this service and a
    refusal will not change. The error of a token source is raised to the caller at once.
    """
    if isinstance(error, ssl.SSLError | socket.gaierror | InvalidMessage | BadStatusLine):
        return False
    found = translated(error, url)
    return isinstance(found, Unavailable) and found.what == url


def reason_of(error: Exception, url: str) -> str:
    """Why there is no connection to `url`, in words. TLS errors are described without OpenSSL's
    jargon."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return "it does not speak TLS at that port"
    if isinstance(error, InvalidMessage | BadStatusLine) and url.startswith(("ws:", "http:")):
        return "it does not answer in HTTP; if it speaks TLS, the address begins with wss:"
    return _without_place(str(error)) or type(error).__name__


def _without_place(text: str) -> str:
    """OpenSSL's message without the line of its source code."""
    return re.sub(r" \(_ssl\.c:\d+\)", "", text)


def _translated_status(error: InvalidStatus, url: str) -> BlackboardError:
    status = error.response.status_code
    reason = _reason(error.response.body or b"") or f"HTTP {status}"
    if status == 401:
        return Unauthenticated(reason=reason)
    # Permanent: most likely this is another server, or another path of it.
    if status in (400, 403, 404):
        return InvalidRequest(field="url", reason=reason)
    return Unavailable(what=url, reason=reason)


def _reason(body: bytes | bytearray) -> str:
    """The reason that the service, or another server in its place, gave for its refusal."""
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return body[:200].decode(errors="replace")


def _translated_close(error: ConnectionClosed, url: str) -> BlackboardError:
    # 1006 stands in RFC 6455 for an end without a close frame.
    code = error.rcvd.code if error.rcvd is not None else 1006
    reason = error.rcvd.reason if error.rcvd is not None else "the connection broke"
    if code == _CLOSE_UNAUTHENTICATED:
        return Unauthenticated(reason=reason)
    if code == _CLOSE_FORBIDDEN:
        return AccessDenied(principal="", right="connect", key=url)
    return Unavailable(what=url, reason=f"closed with {code} {reason}")
