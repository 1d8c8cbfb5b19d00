"""MCP over HTTP: one server for many agents; the token of a request says which of them makes it.

    app = board_app(lambda token: blackboard.connect(url, token=token))      # for any ASGI server

The tokens are those of the Blackboard service, which checks them: this server holds no key, and
has no rights of its own. Each token has its own connection, claims and subscriptions; no answer and
no URI of one reaches another. No request needs an earlier one of the same client (stateless); what
stays between two requests of a token are its claims and what it has read.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from blackboard import telemetry
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    InvalidRequest,
    Unauthenticated,
    Unavailable,
)
from blackboard.integrations.mcp.answers import refused
from blackboard.integrations.mcp.server import RequestContext, board_server
from blackboard.integrations.mcp.session import AgentSession

SESSIONS_MAX: Final = 256
"""Tokens that are served at a time: each has a connection to the service."""
REQUESTS_MAX: Final = 64
"""Requests of one token at a time, subscriptions included."""
IDLE_S: Final = 600
"""How long the connection of a token stays open without a request or a claim."""
PATH: Final = "/mcp"
LOOPBACK: Final = ("127.0.0.1:*", "localhost:*", "[::1]:*")
_SESSION: Final = "blackboard.session"
log = logging.getLogger(__name__)

Connect = Callable[[str], Awaitable[Any]]
"""Opens a `blackboard.Client` with a token: `lambda token: blackboard.connect(url, token=token)`.
"""


@dataclass(eq=False)
class _Connected:
    """The connection of one token."""

    client: Any
    session: AgentSession
    used_s: float = 0.0

    async def aclose(self) -> None:
        """Give back its claims, and disconnect."""
        try:
            with suppress(BlackboardError):
                await self.session.aclose()
        finally:
            await self.client.aclose()


@dataclass(eq=False)
class _TokenGate:
    """The lock of those that open or check the connection of a token, and what the last of them
    found: it holds for all that came before `found_s`, which need not ask again."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    found_s: float = 0.0
    failure: Unavailable | None = None


class TooManyError(Exception):
    """More tokens, or more requests of one token, than are served at a time."""


class TokenSessions:
    """The connections by token; close them."""

    def __init__(
        self, connect: Connect, board: str | None, *, sessions_max: int = SESSIONS_MAX
    ) -> None:
        self._connect = connect
        self._board = board
        self._sessions_max = sessions_max
        self._open: dict[str, _Connected] = {}
        self._opening = 0
        """Connections that are being made: each needs room as an open one does."""
        self._requests: Counter[str] = Counter()
        """Of each token, from before its connection is opened or checked: `close_idle` leaves that
        open."""
        self._gates: WeakValueDictionary[str, _TokenGate] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def of(self, token: str) -> AsyncIterator[AgentSession]:
        """The session of a token, for one request.

        Errors: Unauthenticated when the service does not accept the token any more; Unavailable;
        TooManyError.
        """
        name = hashlib.sha256(token.encode()).hexdigest()
        if self._requests[name] >= REQUESTS_MAX:
            raise TooManyError
        self._requests[name] += 1
        try:
            connected = await self._connected(name, token)
            try:
                yield connected.session
            finally:
                connected.used_s = _now_s()
        finally:
            self._requests[name] -= 1
            if not self._requests[name]:
                del self._requests[name]

    async def _connected(self, name: str, token: str) -> _Connected:
        # This reference keeps the gate in the weak dictionary until the call ends.
        gate = self._gates.setdefault(name, _TokenGate())
        came_s = _now_s()
        async with gate.lock:
            is_known = came_s < gate.found_s
            if is_known and gate.failure is not None:
                raise Unavailable(gate.failure.what, gate.failure.reason)
            known = self._open.get(name)
            if known is not None:
                # At each request: the token may have been revoked since the last one.
                if is_known or await self._is_good(known, gate):
                    return known
                await self._close(name)
            await self._make_room()
            self._opening += 1
            try:
                client = await self._connect(token)
            except Unavailable as failure:
                gate.found_s, gate.failure = _now_s(), failure
                raise
            finally:
                self._opening -= 1
            gate.failure = None
            session = AgentSession(client.board(self._board))
            made = self._open[name] = _Connected(client, session, used_s=_now_s())
            return made

    async def _is_good(self, connected: _Connected, gate: _TokenGate) -> bool:
        """Whether the service still accepts the token. One that is away says nothing of it."""
        begun_s = _now_s()
        try:
            await connected.client.whoami()
        except Unavailable:
            # Those that came meanwhile would wait as long again, and find the same.
            gate.found_s = _now_s()
            return not connected.client.board().is_closed
        except BlackboardError:
            return False
        gate.found_s = begun_s
        return True

    async def _make_room(self) -> None:
        if len(self._open) + self._opening < self._sessions_max:
            return
        await self.close_idle(0)
        if len(self._open) + self._opening >= self._sessions_max:
            raise TooManyError

    async def close_idle(self, idle_s: float = IDLE_S) -> None:
        """Close connections that nobody uses, and that hold no claim."""
        now = _now_s()
        for name, one in list(self._open.items()):
            is_used = name in self._requests or len(one.session.claims)
            if not is_used and now - one.used_s >= idle_s:
                await self._close(name)

    async def _close(self, name: str) -> None:
        found = self._open.pop(name, None)
        if found is not None:
            await found.aclose()

    async def aclose(self) -> None:
        """Close all."""
        for name in list(self._open):
            await self._close(name)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class _Authenticated:
    """Finds the session of a request by its token, before anything of the request is read."""

    def __init__(self, app: ASGIApp, sessions: TokenSessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _token_in(Request(scope))
        if not token:
            why = "no token: send Authorization: Bearer TOKEN (blackboard token create NAME)"
            await _refusal(401, "unauthenticated", why)(scope, receive, send)
            return
        try:
            # Entered by hand: an error of the application must not become one of these answers.
            entered = self._sessions.of(token)
            session = await entered.__aenter__()
        except Unauthenticated as error:
            await _refusal(401, error.code, error.reason)(scope, receive, send)
            return
        except (AccessDenied, InvalidRequest) as error:
            await _refusal(403, error.code, str(error))(scope, receive, send)
            return
        except BlackboardError as error:
            await _refusal(503, error.code, str(error))(scope, receive, send)
            return
        except TooManyError:
            await _refusal(503, "overloaded", "too many requests at once")(scope, receive, send)
            return
        try:
            scope[_SESSION] = session
            # The session's connection is older or younger than the request: it is not in its trace.
            with telemetry.entering(_traceparent_in(Request(scope))):
                await self._app(scope, receive, send)
        finally:
            await entered.__aexit__(None, None, None)


def _token_in(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _traceparent_in(request: Request) -> str:
    return ", ".join(request.headers.getlist("traceparent"))  # two are none


def _refusal(status: int, code: str, reason: str) -> Response:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status)
    return JSONResponse({"error": code, "reason": reason}, status, headers)


def _session_of(ctx: RequestContext) -> AgentSession:
    session = None if ctx.request is None else ctx.request.scope.get(_SESSION)
    if not isinstance(session, AgentSession):
        raise refused("unauthenticated", "this request has no token", "Configure a token.")
    return session


def board_app(
    connect: Connect,
    *,
    board: str | None = None,
    hosts: Sequence[str] = LOOPBACK,
    sessions_max: int = SESSIONS_MAX,
) -> Starlette:
    """An ASGI application that serves MCP at `/mcp`, and `/healthz`.

    `board` is the board of all requests (None = the default one of the client). `hosts` are the
    host names that requests may use (empty = any), which keeps web pages away that have pointed a
    name at this machine. `sessions_max` tokens are served at a time.
    """
    sessions = TokenSessions(connect, board, sessions_max=sessions_max)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(hosts),
        allowed_hosts=list(hosts),
        allowed_origins=[f"http://{host}" for host in hosts],
    )
    manager = StreamableHTTPSessionManager(
        board_server(_session_of), stateless=True, security_settings=security
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        closing = asyncio.create_task(_close_idle(sessions), name="idle sessions")
        try:
            async with manager.run():
                yield
        finally:
            closing.cancel()
            # After the requests, which use the connections: the manager has ended them by now.
            await sessions.aclose()

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    serving = _Authenticated(StreamableHTTPASGIApp(manager), sessions)
    app = Starlette(routes=[Route(PATH, serving), Route("/healthz", health)], lifespan=lifespan)
    app.state.sessions = sessions
    return app


async def _close_idle(sessions: TokenSessions) -> None:
    while True:
        await asyncio.sleep(IDLE_S / 10)
        with suppress(BlackboardError):
            await sessions.close_idle()
