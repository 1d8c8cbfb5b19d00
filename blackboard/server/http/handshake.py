"""Admission: the handshake of a WebSocket, and the open connections.

Invariants
- A handshake is accepted only if its Host and Origin are allowed, its subprotocol is ours, a token
  in its header is valid, the server is not draining, and there is room.
- At most CONNECTIONS_MAX connections with a token are open, including those of documents and those
  of HTTP requests that are being carried out, and CONNECTIONS_PER_PRINCIPAL_MAX of one account. In
  addition, at most UNGREETED_MAX connections without a token are open.
- Credentials are in a header or the first message, never in a cookie or a URL, so a web page cannot
  use those of its visitor.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Protocol

from blackboard import limits, telemetry
from blackboard.client.link import Transport
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.errors import AccessDenied, LimitExceeded, Unauthenticated, Unavailable
from blackboard.server.http.connection import Connection, clock_ms
from blackboard.server.http.metrics import Traffic
from blackboard.server.http.uvicorn_protocol import DIRECT, Take, Trust, Write
from blackboard.server.overload.admission import Admission
from blackboard.server.overload.charges import HANDSHAKE_US, STRANGERS
from blackboard.server.overload.connections import Strangers, peer_of
from blackboard.server.service import Service
from blackboard.wire.answers import WelcomeMessage
from blackboard.wire.frames import SUBPROTOCOLS
from blackboard.wire.session import ServerSession

log = logging.getLogger(__name__)

Authenticator = Callable[[str], Principal]
"""Returns the principal that a token names. Raises Unauthenticated."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

VERSION: Final = version("agent-blackboard")
_ANNOUNCED_LIMITS: Final = (
    "FRAME_BYTES_MAX",
    "MESSAGES_PER_FRAME_MAX",
    "REQUESTS_IN_FLIGHT_MAX",
    "WATCHES_PER_CONNECTION_MAX",
    "OPERATIONS_MAX",
    "COMMIT_BYTES_MAX",
    "VALUE_BYTES_MAX",
    "VALUE_DEPTH_MAX",
    "KEY_BYTES_MAX",
    "READ_KEYS_MAX",
    "LANES_MAX",
)


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """The host names that requests may use (empty = any), and the origins of web pages that may
    connect: with `own`, also that of the service itself, which sends the page."""

    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    own: bool = False

    def refusal(self, scope: Scope) -> str | None:
        """The reason to refuse the request; None if it is allowed."""
        host, origin = header(scope, b"host") or "", header(scope, b"origin")
        if self.hosts and not self._knows(host.lower()):
            return f"host {host!r:.100} is not one of allowed_hosts"
        if origin is not None and not self._may_connect(origin, host, scope):
            return f"origin {origin!r:.100} is not one of allowed_origins"
        return None

    def _may_connect(self, origin: str, host: str, scope: Scope) -> bool:
        if origin in self.origins:
            return True
        # A proxy may have added TLS: then the page has another scheme than what reaches us.
        schemes = ("https",) if scope.get("scheme") in ("https", "wss") else ("http", "https")
        return self.own and origin.lower() in {f"{scheme}://{host.lower()}" for scheme in schemes}

    def _knows(self, host: str) -> bool:
        # A name that is allowed without a port is allowed with every port.
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return host in self.hosts or name in self.hosts


@dataclass(frozen=True, slots=True)
class Refusal:
    """A handshake that is not accepted: the HTTP status says how, `reason` why."""

    status: int
    reason: str


class Handshake:
    """An ASGI application for the WebSocket. It owns the open connections."""

    def __init__(
        self, service: Service, authenticator: Authenticator, origin_policy: OriginPolicy
    ) -> None:
        self.service = service
        self._authenticator = authenticator
        self.shares = service.host.shares
        self.charges = service.host.charges
        self.latencies = service.host.latencies
        self.origin_policy = origin_policy
        self._revocations = service.host.revocations
        self._revocations.changed.append(self._recheck)
        self.traffic = Traffic()
        self.stopping = False
        """Whether the service is about to stop: it serves on, and says that it is not ready."""
        self.draining = False
        self._open: set[Connection] = set()
        self._visitors: set[Visitor] = set()
        self._known: dict[Connection, str] = {}
        self.limits = service.host.limits
        chosen = self._limits = self.limits.service
        self._ungreeted = Strangers(chosen.ungreeted_max, chosen.ungreeted_per_peer_max)
        """Connections that have sent no token, by peer."""
        self._greeting = Strangers(chosen.connections_max, chosen.connections_per_principal_max)
        """Connections with a token that have not sent `hello`, by account."""
        self._per_account: Counter[str] = Counter()
        self.posts = 0
        """Plain HTTP requests with a token that are being carried out."""
        self._empty = asyncio.Event()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open) + len(self._visitors)

    @property
    def _greeted(self) -> int:
        return len(self._known) + len(self._visitors) + self.posts

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the sockets of all connections."""
        return sum(connection.waiting for connection in self._open)

    async def drain(self) -> None:
        """Let every connection finish, for at most DRAIN_TIMEOUT_MS. No new connection is
        accepted."""
        self.stopping = self.draining = True
        for visitor in [*self._open, *self._visitors]:
            visitor.drain()
        try:
            async with asyncio.timeout(self._limits.drain_timeout_ms / 1000):
                while self.connections:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            log.warning("%d connections did not finish in time", self.connections)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket."""
        send = heeding_close(send)
        await receive()  # websocket.connect
        with ExitStack() as handshake:
            traced = telemetry.connecting(header(scope, b"traceparent"))
            span = handshake.enter_context(traced)
            principal = await self._admitted(scope)
            if isinstance(principal, Refusal):
                if span is not None:
                    span.turn_away(principal.status)
                return await self._turn_away(scope, send, principal)
            # Before it waits for its share: connections that wait are counted, too.
            connection = self._counted_in(scope, receive, send, principal)
            try:
                account = STRANGERS if principal is None else principal.account
                await self.shares.wait(account, HANDSHAKE_US)
                with suppress(OSError):  # it is already closed
                    await send({"type": "websocket.accept", "subprotocol": subprotocol(scope)})
                    handshake.close()  # the connection may last for days: it belongs to no trace
                    await connection.run()
            finally:
                self._count_out(connection)
        return None

    async def _admitted(self, scope: Scope) -> Principal | Refusal | None:
        """As `admit`, once the revoked tokens are known."""
        try:
            await self.ready()
            return self.admit(scope)
        except Unavailable as error:
            return Refusal(503, error.reason)

    def _counted_in(
        self, scope: Scope, receive: Receive, send: Send, principal: Principal | None
    ) -> Connection:
        """A connection that was admitted, and is counted from here on."""
        name = subprotocol(scope)
        assert name is not None, "it was admitted"
        timeout_ms = self.limits.connection.handshake_timeout_ms
        session = ServerSession(SUBPROTOCOLS[name], clock_ms(), timeout_ms)
        socket = _Socket(receive, send, session, direct_of(scope))
        connection = Connection(socket, session, self, principal)
        if principal is None:
            self._ungreeted.enter(connection, peer_of(scope.get("client")))
        else:
            socket.trust(principal.account)
            self._greeting.enter(connection, principal.account)
        self._open.add(connection)
        self.traffic.connections += 1
        return connection

    def admit(self, scope: Scope) -> Principal | Refusal | None:
        """The principal of a handshake; None if the token comes later, in `hello`; or the
        refusal."""
        if self.draining:
            return Refusal(503, "no more connections here now")
        refusal = self.origin_policy.refusal(scope)
        if refusal is not None:
            self.note_refusal(refusal)
            return Refusal(403, refusal)
        if subprotocol(scope) is None:
            return Refusal(400, f"ask for a subprotocol: {', '.join(SUBPROTOCOLS)}")
        token = bearer_token(scope)
        if token is None:
            return None
        try:
            principal = self.authenticate(token)
        except Unauthenticated as error:
            return Refusal(401, error.reason)
        if self._greeted >= self._limits.connections_max:
            return Refusal(503, "no more connections here now")
        return principal

    async def _turn_away(self, scope: Scope, send: Send, refusal: Refusal) -> None:
        self.traffic.turned_away[refusal.status] += 1
        # ASGI: a close before the handshake is answered with 403, whatever its code.
        if "websocket.http.response" not in scope.get("extensions", {}):
            return await send({"type": "websocket.close", "code": 4000 + refusal.status})
        headers = [(b"content-type", b"application/json")]
        start = {"type": "websocket.http.response.start", "status": refusal.status}
        await send({**start, "headers": headers})
        body = json.dumps({"reason": refusal.reason}).encode()
        return await send({"type": "websocket.http.response.body", "body": body})

    async def ready(self) -> None:
        """Wait until the revoked tokens are known. Errors: Unavailable."""
        await self._revocations.ready()

    def authenticate(self, token: str) -> Principal:
        """The principal that a token names. Errors: Unauthenticated, which is audited;
        Unavailable."""
        audit = self.service.host.audit
        try:
            principal = self._authenticator(token)
        except Unauthenticated as error:
            audit.note_stranger("authenticate", error.reason, error.code)
            raise
        try:
            self._revocations.check(principal)
        except Unauthenticated as error:
            audit.note(principal, "authenticate", "", error.reason, error.code)
            raise
        return principal

    def note_refusal(self, why: str) -> None:
        """Audit and log the refusal of a Host or an Origin: a page that is refused learns only
        that its connection was closed."""
        log.warning("refused: %s", why)
        self.service.host.audit.note_stranger("connect", why, "not_allowed")

    def _recheck(self) -> None:
        for visitor in [*self._open, *self._visitors]:
            with suppress(Unavailable):  # not known now; `changed` is called when it is
                visitor.recheck(self._revocations.check)

    # --- the house --------------------------------------------------------------------------------

    def link(self, principal: Principal, agent: str | None = None) -> Transport:
        """A link to the boards for `principal`, as `agent`. Errors: as of `acting_as`."""
        return self.service.link(self.acting_as(principal, agent))

    def acting_as(self, principal: Principal, agent: str | None) -> Principal:
        """The principal for a session of `principal` as `agent`; None = as itself.

        Errors: AccessDenied, which is audited; InvalidRequest for what is no name.
        """
        try:
            return access.acting_as(principal, agent)
        except AccessDenied as error:
            self.service.host.audit.note(principal, "act_as", "", error.key, error.code)
            raise

    def succeed(
        self, before: Principal, now: Principal, agents: Iterable[str]
    ) -> dict[str, Principal]:
        """What `now` is as each of `agents`, on a connection that was opened for `before`.

        Errors: AccessDenied, which is audited, also for the token of another principal: what is
        open there was permitted to the one that opened it.
        """
        if (now.name, now.account) != (before.name, before.account):
            audit = self.service.host.audit
            audit.note(now, "act_as", "", before.name, AccessDenied.code)
            raise AccessDenied(now.name, "act as", before.name)
        return {agent: self.acting_as(now, agent) for agent in agents}

    def welcome(self, principal: Principal, agent: str) -> WelcomeMessage:
        """The answer to `hello`."""
        facts = self.service.facts()
        return WelcomeMessage(
            principal=principal.name,
            agent=agent,
            account=principal.account if agent == principal.name else agent,
            engine=facts.name,
            level=facts.level,
            server_time_ms=time.time_ns() // 1_000_000,
            version=VERSION,
            limits={name: getattr(limits, name) for name in _ANNOUNCED_LIMITS},
            traces=telemetry.is_on(),
        )

    def admission(self, principal: Principal) -> Admission:
        """The rate limits that apply to a principal. Errors: Overloaded."""
        return Admission.of(self.service.host, principal)

    def count_in(self, connection: Connection, principal: Principal) -> None:
        """Count a connection for its account. Errors: LimitExceeded when there are too many."""
        # First: a connection that is refused here is counted where it was until it is closed.
        self._enter(principal.account)
        self._ungreeted.leave(connection)
        self._greeting.leave(connection)
        self._known[connection] = principal.account

    @contextmanager
    def visit(self, visitor: "Visitor", principal: Principal) -> Iterator[None]:
        """Count a connection of another kind while it lasts. Errors: LimitExceeded."""
        self._enter(principal.account)
        self._visitors.add(visitor)
        try:
            yield
        finally:
            self._visitors.discard(visitor)
            self._leave(principal.account)
            self._note_empty()

    @contextmanager
    def post(self, principal: Principal) -> Iterator[None]:
        """Count an HTTP request, which has a connection to itself, while it is carried out.

        Errors: LimitExceeded.
        """
        self._enter(principal.account)
        self.posts += 1
        try:
            yield
        finally:
            self.posts -= 1
            self._leave(principal.account)

    def _enter(self, account: str) -> None:
        most, share = self._limits.connections_max, self._limits.connections_per_principal_max
        if self._greeted >= most:
            raise LimitExceeded("CONNECTIONS_MAX", self._greeted + 1, most)
        count = self._per_account[account] + 1
        if count > share:
            raise LimitExceeded("CONNECTIONS_PER_PRINCIPAL_MAX", count, share)
        self._per_account[account] = count

    def _leave(self, account: str) -> None:
        self._per_account[account] -= 1
        if not self._per_account[account]:
            del self._per_account[account]

    def _count_out(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._ungreeted.leave(connection)
        self._greeting.leave(connection)
        account = self._known.pop(connection, None)
        if account is not None:
            self._leave(account)
        self._note_empty()

    def _note_empty(self) -> None:
        if not self.connections:
            self._empty.set()


class Visitor(Protocol):
    """A connected client."""

    def recheck(self, check: Callable[[Principal], None]) -> None:
        """End if `check` says that the token was revoked."""

    def drain(self) -> None:
        """Finish what has come, and end: the service stops."""


class _Socket:
    """The ASGI side of a `socket.Socket`."""

    def __init__(
        self, receive: Receive, send: Send, session: ServerSession, direct: dict[str, Any]
    ) -> None:
        self._receive = receive
        self._send = send
        self.trust: Trust = direct.get("trust", _no_limits)
        self.write: Write = direct.get("write_frame", _takes_nothing)
        self.offer: Callable[[Take], None] = direct.get("offer", _offers_nothing)
        self._binary = session.encoding.binary

    async def receive(self) -> str | bytes | None:
        """As `socket.Socket.receive`."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            return None
        found = message.get("bytes")
        return found if found is not None else str(message["text"])

    async def send(self, frame: bytes) -> None:
        """As `socket.Socket.send`."""
        content = {"bytes": frame} if self._binary else {"text": frame.decode()}
        await self._send({"type": "websocket.send", **content})

    async def close(self, code: int, reason: str) -> None:
        """As `socket.Socket.close`."""
        await self._send({"type": "websocket.close", "code": code, "reason": reason})


def heeding_close(send: Send) -> Send:
    """`send`, but raises ConnectionResetError if the server has closed the connection by itself.

    The server does that after invalid WebSocket bytes, or a ping without an answer. If the
    application sends before it hears of it, uvicorn treats that as a bug of the application
    (RuntimeError).
    """

    async def sent(message: MutableMapping[str, Any]) -> None:
        try:
            await send(message)
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error

    return sent


def trust_of(scope: Scope) -> Trust:
    """A function that lifts the limits for unauthenticated clients from a connection, if our own
    server runs it."""
    found: Trust = direct_of(scope).get("trust", _no_limits)
    return found


def release_of(scope: Scope) -> Callable[[], None]:
    """A function that reports that the body of an HTTP request is not in memory any more, if our
    own server runs it."""
    found: Callable[[], None] = direct_of(scope).get("release", _does_nothing)
    return found


def abort_of(scope: Scope) -> Callable[[], None]:
    """A function that ends the connection of an HTTP request at once, if our own server runs it."""
    found: Callable[[], None] = direct_of(scope).get("abort", _does_nothing)
    return found


def direct_of(scope: Scope) -> dict[str, Any]:
    """The extension DIRECT of a connection; empty if another server than ours runs it."""
    found: dict[str, Any] = scope.get("extensions", {}).get(DIRECT, {})
    return found


def _no_limits(_account: str) -> None:
    """The server that runs this has no limits for unauthenticated clients."""


def _does_nothing() -> None:
    """The server that runs this neither counts bodies nor lets us end its connections."""


def _takes_nothing(_frame: bytes) -> bool:
    """The server that runs this has no shortcut to the socket."""
    return False


def _offers_nothing(_take: Take) -> None:
    """The server that runs this has no shortcut from the socket."""


def header(scope: Scope, name: bytes) -> str | None:
    """A header of a request. A duplicate header counts as a value that matches nothing."""
    found = [value for key, value in scope["headers"] if key == name]
    return None if not found else b", ".join(found).decode("latin-1")


def subprotocol(scope: Scope) -> str | None:
    """The subprotocol to speak: of those that the client offers, the one that we prefer.

    Servers differ in whether they split a header that holds several.
    """
    offered = {name.strip() for text in scope["subprotocols"] for name in text.split(",")}
    return next((name for name in SUBPROTOCOLS if name in offered), None)


def bearer_token(scope: Scope) -> str | None:
    """The token in the Authorization header; "" for another scheme."""
    value = header(scope, b"authorization")
    if value is None:
        return None
    # RFC 9110, section 11.1: schemes are compared without regard to case.
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
