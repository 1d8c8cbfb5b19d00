"""The protocol without its sockets: frames go in and events come out, calls go in and frames out.

    state \\ step   GREETED    DRAINED    CLOSED
    HELLO          READY      DRAINING   CLOSED
    READY          -          DRAINING   CLOSED
    DRAINING       DRAINING   DRAINING   CLOSED
    CLOSED         -          -          CLOSED

Invariants
- `receive` returns events or raises RemoteProtocolError, for any input; after raising, the session
  is CLOSED.
- A request is answered at most once, under its own id; two requests in flight never share one.
- Before the greeting only one `hello` is accepted, alone in a small frame.
- Queued messages leave in the order of the calls, in as few frames as the limits allow.
- No clock, no socket, no task: the caller passes the time to `tick`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, TypeGuard

from msgspec import Struct

from blackboard.core.commit import LogEntry
from blackboard.core.watch import Position
from blackboard.errors import (
    BlackboardError,
    InvalidRequest,
    LimitExceeded,
    LocalProtocolError,
    Rejected,
    RemoteProtocolError,
    Unavailable,
)
from blackboard.limits import (
    DEFAULT,
    FRAME_BYTES_MAX,
    INTEGER_MAX,
    MESSAGES_PER_FRAME_MAX,
    REQUESTS_IN_FLIGHT_MAX,
)
from blackboard.units import Milliseconds
from blackboard.wire import reading
from blackboard.wire.errors import write_error
from blackboard.wire.frames import (
    CLOSE_PROTOCOL_ERROR,
    FRAME_JOIN_BYTES,
    MESSAGE_BYTES_MAX,
    MSGPACK,
    Encoding,
    grouped,
)
from blackboard.wire.methods import HelloParams, Params
from blackboard.wire.reading import pack_changes, read_news
from blackboard.wire.requests import parse, read_commits

if TYPE_CHECKING:
    pass

HELLO_BYTES_MAX: Final = 16 * 1024
"""The first frame: a token, and little more. The peer is not authenticated yet, so it gets little
room."""
REQUEST_ID_CHARACTERS_MAX: Final = 64
FRAGMENTS_MAX: Final = 16
"""Fragments of one delivery: four times as many as the largest commit takes with every character
escaped."""


class ConnectionState(StrEnum):
    """The state of a connection."""

    HELLO = "hello"
    READY = "ready"
    DRAINING = "draining"
    CLOSED = "closed"


class Transition(StrEnum):
    """What changes the state of a connection."""

    GREETED = "greeted"
    DRAINED = "drained"
    CLOSED = "closed"


TRANSITIONS: Final[dict[tuple[ConnectionState, Transition], ConnectionState]] = {
    (ConnectionState.HELLO, Transition.GREETED): ConnectionState.READY,
    (ConnectionState.HELLO, Transition.DRAINED): ConnectionState.DRAINING,
    (ConnectionState.HELLO, Transition.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.READY, Transition.DRAINED): ConnectionState.DRAINING,
    (ConnectionState.READY, Transition.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.DRAINING, Transition.GREETED): ConnectionState.DRAINING,
    (ConnectionState.DRAINING, Transition.DRAINED): ConnectionState.DRAINING,
    (ConnectionState.DRAINING, Transition.CLOSED): ConnectionState.CLOSED,
    (ConnectionState.CLOSED, Transition.CLOSED): ConnectionState.CLOSED,
}

RequestId = int | str

# --- events ---------------------------------------------------------------------------------------


class HelloReceived(Struct, frozen=True):
    """Server: a peer wants to connect. Answer with `welcome` or `turn_away`."""

    id: RequestId
    params: HelloParams


class RequestReceived(Struct, frozen=True):
    """Server: a valid request. Answer with `respond` or `respond_error`."""

    id: RequestId
    params: Params


class RequestRefused(Struct, frozen=True):
    """Server: something that is not a valid request, or not valid now. It has been answered
    already."""

    id: RequestId | None
    error: BlackboardError


class Answered(Struct, frozen=True):
    """Client: the result of request `id`, as a message (wire/answers.py has the shapes)."""

    id: int
    result: Any


class Failed(Struct, frozen=True):
    """Client: request `id` was answered with an error."""

    id: int
    error: BlackboardError


class Changed(Struct, frozen=True):
    """Client: a delivery of watch number `watch`; without revisions it is a progress mark."""

    watch: int
    position: Position
    revisions: tuple[LogEntry, ...]


class Cancelled(Struct, frozen=True):
    """Client: watch number `watch` ended because of `error`."""

    watch: int
    error: BlackboardError


class Draining(Struct, frozen=True):
    """Client: the service stops soon and accepts no new requests on this connection."""


ServerEvent = HelloReceived | RequestReceived | RequestRefused
ClientEvent = Answered | Failed | Changed | Cancelled | Draining

# --- what both sides share ------------------------------------------------------------------------


class _Session:
    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.state = ConnectionState.HELLO
        self._outgoing: deque[bytes] = deque()
        self.outgoing_bytes = 0
        """Bytes that `bytes_to_send` would return now."""

    def close(self) -> None:
        """End the session: no more frames are accepted, and waiting messages are not sent."""
        self._move(Transition.CLOSED)
        self._outgoing.clear()
        self.outgoing_bytes = 0

    def bytes_to_send(self) -> list[bytes]:
        """All waiting messages, as frames. The caller must send them in this order."""
        frames: list[bytes] = []
        waiting, join = self._outgoing, self.encoding.join
        if self.outgoing_bytes <= FRAME_JOIN_BYTES and len(waiting) <= MESSAGES_PER_FRAME_MAX:
            frames = [join(list(waiting))] if waiting else []
        else:
            frames = [join(group) for group in grouped(waiting)]
        waiting.clear()
        self.outgoing_bytes = 0
        return frames

    def _queue(self, packed: bytes) -> None:
        self._outgoing.append(packed)
        self.outgoing_bytes += len(packed) + 1  # a comma, in JSON

    def _move(self, step: Transition) -> None:
        new = TRANSITIONS.get((self.state, step))
        if new is None:
            raise LocalProtocolError(reason=f"a session that is {self.state} cannot be {step}")
        self.state = new

    def _split(self, frame: bytes) -> list[Any]:
        if self.state is ConnectionState.CLOSED:
            raise LocalProtocolError(reason="the session is closed")
        try:
            return self.encoding.split(frame)
        except RemoteProtocolError:
            self.close()
            raise

    def _violated(self, reason: str) -> RemoteProtocolError:
        self.close()
        return RemoteProtocolError(reason, CLOSE_PROTOCOL_ERROR)


# --- server ---------------------------------------------------------------------------------------


class ServerSession(_Session):
    """The server's side of a connection."""

    def __init__(
        self,
        encoding: Encoding,
        now_ms: Milliseconds,
        timeout_ms: Milliseconds = DEFAULT.connection.handshake_timeout_ms,
    ) -> None:
        super().__init__(encoding)
        self._timeout_ms = timeout_ms
        self._deadline_ms = now_ms + timeout_ms
        self._in_flight: set[RequestId] = set()

    @classmethod
    def greeted(cls, encoding: Encoding) -> Self:
        """A session whose peer is already authenticated: for requests without a connection."""
        session = cls(encoding, 0)
        session._move(Transition.GREETED)
        return session

    @property
    def in_flight(self) -> int:
        """The number of requests that were received and not answered yet."""
        return len(self._in_flight)

    def tick(self, now_ms: Milliseconds) -> Milliseconds | None:
        """Returns when to call again; None when there is nothing left to wait for.

        Errors: RemoteProtocolError when the greeting did not come in HANDSHAKE_TIMEOUT_MS.
        """
        if self.state is not ConnectionState.HELLO:
            return None
        if now_ms >= self._deadline_ms:
            raise self._violated(f"no hello within {self._timeout_ms} ms")
        return self._deadline_ms

    def receive(self, frame: bytes) -> list[ServerEvent]:
        """Take one frame. Errors: RemoteProtocolError, after which the session is closed."""
        if self.state is ConnectionState.HELLO:
            return [self._receive_hello(frame)]
        commits = self._receive_commits(frame)
        return commits or [self._receive(message) for message in self._split(frame)]

    def _receive_commits(self, frame: bytes) -> list[ServerEvent]:
        """The events of a frame that contains only plain commits; none for any other frame."""
        if self.state is not ConnectionState.READY or self.encoding is not MSGPACK:
            return []
        requests = read_commits(frame)
        numbers = {request.id for request in requests}
        if len(numbers) < len(requests) or not self._in_flight.isdisjoint(numbers):
            return []
        self._in_flight |= numbers
        return [RequestReceived(request.id, request.params) for request in requests]

    def _receive_hello(self, frame: bytes) -> ServerEvent:
        if len(frame) > HELLO_BYTES_MAX:
            raise self._violated(f"the first frame has more than {HELLO_BYTES_MAX} bytes")
        found = self._split(frame)
        if len(found) != 1 or not isinstance(found[0], dict) or found[0].get("method") != "hello":
            raise self._violated("the first frame must hold `hello` and nothing else")
        return self._receive(found[0])

    def _receive(self, message: Any) -> ServerEvent:
        number: RequestId | None = None
        try:
            number = self._take_id(message)
            if not message.keys() <= _REQUEST_MEMBERS:
                raise InvalidRequest(field="request", reason="has unknown members")
            params = parse(message.get("method"), message.get("params"), self.encoding)
            self._check_order(params)
        except (Rejected, Unavailable) as error:
            self._answer(number, "error", write_error(error))
            return RequestRefused(number, error.with_traceback(None))  # it would hold the frame
        self._in_flight.add(number)
        if isinstance(params, HelloParams):
            return HelloReceived(number, params)
        return RequestReceived(number, params)

    def _take_id(self, message: Any) -> RequestId:
        if not isinstance(message, dict):
            raise InvalidRequest(field="request", reason="must be a map with id, method, params")
        number = message.get("id")
        if not _is_request_id(number):
            raise InvalidRequest(field="id", reason="must be an integer or a short string")
        if number in self._in_flight:
            raise InvalidRequest(field="id", reason="is that of a request still in flight")
        return number

    def _check_order(self, params: Params) -> None:
        if self.state is ConnectionState.DRAINING:
            raise Unavailable(what="service", reason="it is stopping")
        if isinstance(params, HelloParams) and self.state is not ConnectionState.HELLO:
            raise InvalidRequest(field="method", reason="hello comes once, first")

    def welcome(self, number: RequestId, result: Any) -> None:
        """Accept the peer."""
        self._move(Transition.GREETED)
        self.respond(number, result)

    def respond(self, number: RequestId, result: Any) -> None:
        """Answer a request; with an error if the result does not fit into a frame."""
        self._in_flight.discard(number)
        self._answer(number, "result", result)

    def respond_error(self, number: RequestId, error: BlackboardError) -> None:
        """Answer a request with an error."""
        self._in_flight.discard(number)
        self._answer(number, "error", write_error(error))

    def send_changes(
        self, watch: int, position: Position, pieces: Sequence[bytes], *, more: bool = False
    ) -> None:
        """Send to a watch what `answers.pack_revisions` made; without pieces, a progress mark."""
        self.send_packed(pack_changes(watch, position, pieces, self.encoding, more=more))

    def send_packed(self, messages: Sequence[bytes]) -> None:
        """Send what `news.pack_changes` made."""
        for message in messages:
            self._send(message)

    def send_cancelled(self, watch: int, error: BlackboardError) -> None:
        """Send a watch the reason why it ended."""
        params = {"watch": watch, "error": write_error(error)}
        self._send(self.encoding.pack({"method": "cancelled", "params": params}))

    def send_draining(self) -> None:
        """Tell the peer that this service stops; further requests are refused as Unavailable."""
        self._move(Transition.DRAINED)
        self._send(self.encoding.pack({"method": "draining", "params": {}}))

    def _answer(self, number: RequestId | None, member: str, content: Any) -> None:
        packed = self.encoding.pack({"id": number, member: content})
        if len(packed) > MESSAGE_BYTES_MAX:
            error = LimitExceeded("FRAME_BYTES_MAX", len(packed), FRAME_BYTES_MAX, "result")
            packed = self.encoding.pack({"id": number, "error": write_error(error)})
        self._send(packed)

    def _send(self, packed: bytes) -> None:
        if self.state is ConnectionState.CLOSED:
            raise LocalProtocolError(reason="the session is closed")
        self._queue(packed)


def _is_request_id(number: Any) -> TypeGuard[RequestId]:
    if type(number) is int:
        return -INTEGER_MAX <= number <= INTEGER_MAX
    short = type(number) is str and len(number) <= REQUEST_ID_CHARACTERS_MAX
    return short and str(number).isprintable()


_REQUEST_MEMBERS: Final = {"jsonrpc", "id", "method", "params"}

# --- client ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Fragments:
    count: int = 0
    revisions: list[LogEntry] = field(default_factory=list)


class ClientSession(_Session):
    """The client's side of a connection."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__(encoding)
        self._next_id = 1
        self._hello_id: int | None = None
        self._in_flight: set[int] = set()
        self._fragments: dict[int, _Fragments] = {}

    @property
    def in_flight(self) -> int:
        """The number of requests that were sent and not answered yet."""
        return len(self._in_flight)

    def send_hello(self, params: dict[str, Any]) -> int:
        """Greet the service; nothing else may be sent before its answer. Returns the id."""
        if self.state is not ConnectionState.HELLO or self._hello_id is not None:
            raise LocalProtocolError(reason="hello comes once, first")
        self._hello_id = self._request("hello", params)
        return self._hello_id

    def send_request(self, method: str, params: dict[str, Any]) -> int:
        """Send a request; returns its id.

        Errors: LocalProtocolError when the session is not ready or REQUESTS_IN_FLIGHT_MAX requests
        are unanswered; LimitExceeded when the request does not fit a frame.
        """
        if self.state is not ConnectionState.READY:
            raise LocalProtocolError(reason=f"no requests while the session is {self.state}")
        if len(self._in_flight) >= REQUESTS_IN_FLIGHT_MAX:
            raise LocalProtocolError(reason=f"{REQUESTS_IN_FLIGHT_MAX} requests are unanswered")
        return self._request(method, params)

    def _request(self, method: str, params: dict[str, Any]) -> int:
        number = self._next_id
        packed = self.encoding.pack({"id": number, "method": method, "params": params})
        if len(packed) > MESSAGE_BYTES_MAX:
            raise LimitExceeded("FRAME_BYTES_MAX", len(packed), FRAME_BYTES_MAX, "request")
        self._next_id += 1
        self._in_flight.add(number)
        self._queue(packed)
        return number

    def receive(self, frame: bytes) -> list[ClientEvent]:
        """Take one frame. Errors: RemoteProtocolError, after which the session is closed."""
        events = self._receive_news(frame)
        if events:
            return events
        try:
            for message in self._split(frame):
                event = self._receive(message)
                if event is not None:
                    events.append(event)
        except RemoteProtocolError:
            self.close()
            raise
        return events

    def _receive_news(self, frame: bytes) -> list[ClientEvent]:
        """The events of a frame that contains only receipts and changes; none for any other
        frame."""
        if (
            self.state is not ConnectionState.READY
            or self.encoding is not MSGPACK
            or self._fragments
        ):
            return []
        events: list[ClientEvent] = []
        answered: set[int] = set()
        for message in read_news(frame):
            if message.params is not None and message.method is not None:
                with reading.from_peer("changes"):
                    events.append(Changed(*message.params.to_core()))
            elif (
                message.result is not None
                and message.id in self._in_flight
                and message.id not in answered
            ):
                answered.add(message.id)
                events.append(Answered(message.id, message.result))
            else:
                return []
        self._in_flight -= answered
        return events

    def _receive(self, message: Any) -> ClientEvent | None:
        with reading.from_peer("message"):
            method = message.get("method")
            if method is None:
                return self._receive_answer(message)
            params = message["params"]
            if method == "changes":
                return self._receive_changes(params)
            if method == "cancelled":
                self._fragments.pop(reading.read_int(params, "watch"), None)
                return Cancelled(params["watch"], reading.read_error(params.get("error")))
            if method == "draining":
                self._move(Transition.DRAINED)
                return Draining()
        raise RemoteProtocolError(f"unknown notification {method!r:.100}")

    def _receive_answer(self, message: Any) -> ClientEvent:
        number = message.get("id")
        if number is None and "error" in message:
            raise RemoteProtocolError(f"refused: {reading.read_error(message['error'])}")
        if type(number) is not int or number not in self._in_flight:
            raise RemoteProtocolError("an answer to no request")
        self._in_flight.discard(number)
        if "error" in message:
            return Failed(number, reading.read_error(message["error"]))
        if number == self._hello_id:
            self._move(Transition.GREETED)
        return Answered(number, message["result"])

    def _receive_changes(self, params: Any) -> Changed | None:
        watch = reading.read_int(params, "watch")
        revisions = reading.read_revisions(params.get("revisions"), self.encoding)
        before = self._fragments.pop(watch, None)
        if before is not None:
            revisions = reading.join_revisions(before.revisions, revisions)
        if params.get("more") is True:
            count = before.count + 1 if before is not None else 1
            if count > FRAGMENTS_MAX:
                raise RemoteProtocolError(f"more than {FRAGMENTS_MAX} fragments")
            self._fragments[watch] = _Fragments(count, revisions)
            return None
        position = reading.read_position(params.get("position"))
        return Changed(watch, position, tuple(revisions))
