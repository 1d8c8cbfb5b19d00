"""Documents over WebSockets: `/v1/boards/<board>/docs/<key>`, for any peer that speaks y-websocket.

The header has a bearer token, as everywhere. Stock clients in a browser cannot set headers. They
may pass the token in the URL (`?token=`) if it is valid only for this document and for at most an
hour, because URLs end up in logs. `?agent=` names the agent to act as.

A refusal is a close code after the handshake, because a Yjs client treats a refused handshake as a
broken connection and retries for ever. Codes 4400..4499 are final for it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

from blackboard import telemetry
from blackboard.client.link import Pipe
from blackboard.core.access import Principal
from blackboard.core.path import check_document, document_prefix
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    DocumentRefused,
    InvalidRequest,
    LimitExceeded,
    NoSuchBoard,
    Overloaded,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import DOCUMENT_TOKEN_TTL_MS_MAX
from blackboard.server.documents.session import Session
from blackboard.server.http.connection import (
    CLOSE_FORBIDDEN,
    CLOSE_INTERNAL_ERROR,
    CLOSE_UNAUTHENTICATED,
    date_ms,
)
from blackboard.server.http.handshake import (
    Handshake,
    Receive,
    Scope,
    Send,
    bearer_token,
    header,
    heeding_close,
    trust_of,
)
from blackboard.server.http.uvicorn_protocol import DIRECT, Waiting, Write, binary_frame
from blackboard.server.overload.admission import Admission
from blackboard.server.overload.charges import HANDSHAKE_US
from blackboard.units import Key
from blackboard.wire.ysync import CLOSE_BY_CAUSE, CLOSE_RESTART, CLOSE_TRY_LATER

Query = dict[str, list[str]]
Events = Callable[[], Awaitable[list[Any]]]
"""Waits for the next events of a WebSocket: at least one."""
_MESSAGES_AT_ONCE: Final = 32
"""Messages of a peer that are handled together: what a person types in seconds, and a millisecond
or two of the event loop."""
_SMALL_MESSAGE_BYTES: Final = 1_024
"""A message of this size is taken when it arrives, at a fixed price; a larger one is measured."""
_SMALL_MESSAGE_US: Final = 15
"""What such a message costs, its frame included; the commit of its edit is not counted."""
_CLOSE_TIMEOUT_S: Final = 5.0
_REASON_BYTES_MAX: Final = 123  # RFC 6455, section 5.5: a control frame has 125 bytes
_CLOSE_INVALID: Final = 4400
_CLOSE_WRONG_TYPE: Final = 1003


class DocumentDoor:
    """An ASGI application for the WebSockets of documents, beside a `Handshake`."""

    def __init__(self, gate: Handshake) -> None:
        self._gate = gate
        self._message = self._frame = b""
        """The message that was written last, and its frame: the next peer gets the same."""

    def _writing(self, write_frame: Write) -> Write:
        """Writes messages of a document to one peer. A message to all peers is framed once."""

        def write(message: bytes) -> bool:
            if message is not self._message:
                self._message, self._frame = message, binary_frame(message)
            return write_frame(self._frame)

        return write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket."""
        send = heeding_close(send)
        await receive()  # websocket.connect
        refusal = self._gate.origin_policy.refusal(scope)
        if refusal is not None:
            self._gate.note_refusal(refusal)
        if refusal is not None or self._gate.draining:
            return await send({"type": "websocket.close", "code": 1008 if refusal else 1013})
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        scope["query_string"] = b""  # the server's log must not contain a token
        await send({"type": "websocket.accept"})
        code, reason = await self._serve(scope, query, receive, send)
        await _close(send, code, reason)
        return None

    async def _serve(
        self, scope: Scope, query: Query, receive: Receive, send: Send
    ) -> tuple[int, str]:
        """Serve until the visit ends; returns the close code (0 = the peer has left) and the
        reason."""
        board, key = scope["path_params"]["board"], scope["path_params"]["key"]
        try:
            with telemetry.connecting(header(scope, b"traceparent"), board):
                principal = await self._admit(scope, query, board, check_document(key))
            trust_of(scope)(principal.account)
            visit = _Visit(principal, self._gate.admission(principal))
            with self._gate.visit(visit, principal):
                await self._gate.shares.wait(principal.account, HANDSHAKE_US)
                link = self._gate.service.link(principal)
                async with link.document(board, key) as session:
                    ended = await self._attend(visit, session, scope, receive, send)
                # What had come is committed. A service that drains waits for this close, too.
                await _close(send, *ended)
                return 0, ""
        except BlackboardError as error:
            code = next((c for kind, c in _CODES if isinstance(error, kind)), CLOSE_INTERNAL_ERROR)
            return code, f"{error.code}: {error}"

    async def _attend(
        self, visit: "_Visit", session: Session, scope: Scope, receive: Receive, send: Send
    ) -> tuple[int, str]:
        direct = scope.get("extensions", {}).get(DIRECT)
        if direct is None:  # a server other than ours
            return await visit.serve(session, partial(_one_event, receive), send)
        session.attach(self._writing(direct["write_frame"]))
        inlet = _Inlet(session, visit.admission, receive, direct["waiting"])
        direct["offer"](inlet.take)
        return await visit.serve(session, inlet.events, send)

    async def _admit(self, scope: Scope, query: Query, board: str, key: Key) -> Principal:
        """Errors: Unauthenticated, AccessDenied, Unavailable."""
        await self._gate.ready()
        # A header of another scheme has no token: browsers send `Basic` by themselves.
        token, in_url = bearer_token(scope) or None, query.get("token", [""])[0]
        principal = self._gate.authenticate(token or in_url)
        if token is None and not is_for_document(principal, board, key):
            reason = "a token in a URL must be for this document alone, and for an hour at most"
            raise Unauthenticated(reason=reason)
        return self._gate.acting_as(principal, query.get("agent", [None])[0])


_CODES: Final[tuple[tuple[type[BlackboardError], int], ...]] = (
    (Unauthenticated, CLOSE_UNAUTHENTICATED),
    (AccessDenied, CLOSE_FORBIDDEN),
    (NoSuchBoard, CLOSE_FORBIDDEN),
    (LimitExceeded, CLOSE_TRY_LATER),
    # Before Unavailable, of which it is a kind: the first one that fits counts.
    (Overloaded, CLOSE_TRY_LATER),
    (Unavailable, CLOSE_RESTART),
    (InvalidRequest, _CLOSE_INVALID),
)


def is_for_document(principal: Principal, board: str, key: Key) -> bool:
    """Whether a principal can only use this document, for at most an hour."""
    if principal.expires_at_ms is None or principal.acts_for_any:
        return False
    left_ms = principal.expires_at_ms - date_ms()
    only = {f"{document_prefix(key)}/**"}
    patterns = {grant.pattern for grant in principal.grants}
    return left_ms <= DOCUMENT_TOKEN_TTL_MS_MAX and principal.boards == {board} and patterns == only


async def _close(send: Send, code: int, reason: str) -> None:
    """Close a WebSocket; 0 = the peer has left already."""
    if not code:
        return
    shown = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await send({"type": "websocket.close", "code": code, "reason": shown})


class _Visit:
    """A peer of a document, as long as its token is valid and the service does not drain."""

    def __init__(self, principal: Principal, admission: Admission) -> None:
        self._principal = principal
        self.admission = admission
        self._told: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        """The close code and reason by which the service ends it."""

    def recheck(self, check: Callable[[Principal], None]) -> None:
        """As `Visitor.recheck`."""
        try:
            check(self._principal)
        except Unauthenticated as error:
            self._end(CLOSE_UNAUTHENTICATED, error.reason)

    def drain(self) -> None:
        """As `Visitor.drain`. Yjs clients connect again after this code."""
        self._end(CLOSE_RESTART, "closed: the service stops; come back soon")

    def _end(self, code: int, reason: str) -> None:
        if not self._told.done():
            self._told.set_result((code, reason))

    async def serve(self, pipe: Pipe, receive: Events, send: Send) -> tuple[int, str]:
        """Pass frames in both directions until one side closes. Returns the same as
        `DocumentDoor._serve`."""
        tasks = {
            asyncio.create_task(_read(pipe, receive, self.admission)),
            asyncio.create_task(_write(pipe, send)),
            asyncio.create_task(_ended(pipe)),
        }
        until: set[asyncio.Future[Any]] = {*tasks, self._told}
        try:
            done, _ = await asyncio.wait(
                until, timeout=self._left_s(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in tasks:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
        if not done:
            return CLOSE_UNAUTHENTICATED, "the token has expired"
        ended = _end_of(found)
        if self._told.done() and not 4400 <= ended[0] < 4500:
            return self._told.result()
        return ended  # a refusal is final: the peer must learn of it though the service stops

    def _left_s(self) -> float | None:
        expires_at_ms = self._principal.expires_at_ms
        return None if expires_at_ms is None else max(expires_at_ms - date_ms(), 0) / 1000


def _end_of(found: Sequence[int | BaseException]) -> tuple[int, str]:
    """The close code and reason that the results of a visit's tasks mean."""
    for error in found:
        if isinstance(error, DocumentRefused):
            return CLOSE_BY_CAUSE.get(error.cause, CLOSE_INTERNAL_ERROR), _close_reason(error)
        if isinstance(error, Unauthenticated):
            return CLOSE_UNAUTHENTICATED, error.reason
        if error == _CLOSE_WRONG_TYPE:
            return _CLOSE_WRONG_TYPE, "binary messages only"
    return 0, ""


def _close_reason(refusal: DocumentRefused) -> str:
    """The reason of a close, in the form that `cause_of` parses."""
    return f"{refusal.cause}: {refusal.reason}"


async def _one_event(receive: Receive) -> list[Any]:
    return [await receive()]


class _Inlet:
    """The way of a peer's messages to its session.

    Small ones are taken in the call in which they arrive, at most _MESSAGES_AT_ONCE in a turn of
    the event loop. The others, and all that have to wait, are `events` for the reading task.
    """

    def __init__(
        self, session: Session, admission: Admission, receive: Receive, waiting: Waiting
    ) -> None:
        self._session = session
        self._admission = admission
        self._receive = receive
        self._waiting = waiting
        self._loop = asyncio.get_running_loop()
        self._is_reading = False
        """Whether the reading task waits for a message, and has none before it."""
        self._taken = 0

    async def events(self) -> list[Any]:
        """As `Events`."""
        self._is_reading = True
        try:
            return [await self._receive(), *self._waiting(_MESSAGES_AT_ONCE - 1)]
        finally:
            self._is_reading = False

    def take(self, message: bytes) -> bool:
        """As `Take`."""
        size = len(message)
        if (
            not self._is_reading
            or size > _SMALL_MESSAGE_BYTES
            or self._taken >= _MESSAGES_AT_ONCE
            or not self._session.has_room
            or not self._admission.at_once(size)
            or not self._session.take(message)
        ):
            return False
        if not self._taken:
            self._loop.call_soon(self._settle)
        self._taken += 1
        return True

    def _settle(self) -> None:
        """Charge what was taken in the last turn."""
        taken, self._taken = self._taken, 0
        self._admission.charges.charge(self._admission.account, _SMALL_MESSAGE_US * taken)


async def _read(pipe: Pipe, receive: Events, admission: Admission) -> int:
    while True:
        frames, end = _frames_of(await receive())
        while frames:
            count = await admission.turn([len(frame) for frame in frames])
            bill = admission.charges.bill(admission.account, "document")
            await bill.run(partial(_pass, pipe, frames[:count]))
            del frames[:count]
        if end is not None:
            return end


def _frames_of(events: Sequence[Any]) -> tuple[list[bytes], int | None]:
    """The messages of events up to its end, if it ends: with a close code, 0 = the peer left."""
    frames: list[bytes] = []
    for event in events:
        if event["type"] == "websocket.disconnect":
            return frames, 0
        frame = event.get("bytes")
        if frame is None:
            return frames, _CLOSE_WRONG_TYPE
        frames.append(frame)
    return frames, None


async def _pass(pipe: Pipe, frames: Sequence[bytes]) -> None:
    for frame in frames:
        await pipe.send(frame)


async def _write(pipe: Pipe, send: Send) -> int:
    try:
        while True:
            frame = await pipe.receive()
            await send({"type": "websocket.send", "bytes": frame})
    except OSError:
        return 0


async def _ended(pipe: Pipe) -> int:
    """Wait for the session's end, because sending may hang if the peer does not read."""
    await pipe.ended()
    return 0
