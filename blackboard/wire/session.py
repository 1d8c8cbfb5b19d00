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

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, Self, TypeGuard

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from blackboard.core.commit import Change, LogEntry, Receipt
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
    TRACEPARENT_CHARACTERS_MAX,
)
from blackboard.units import Milliseconds
from blackboard.wire import answers
from blackboard.wire.answers import ChangeMessage, ChangesMessage, RevisionMessage
from blackboard.wire.errors import from_peer, read_error, write_error
from blackboard.wire.frames import (
    CLOSE_PROTOCOL_ERROR,
    CONTAINERS_MAX,
    FRAME_JOIN_BYTES,
    MESSAGE_BYTES_MAX,
    MSGPACK,
    Encoding,
    grouped,
)
from blackboard.wire.methods import CommitParams, HelloParams, Params
from blackboard.wire.requests import parse, read_commits

HELLO_BYTES_MAX: Final = 16 * 1024
"""The first frame: a token, and little more. The peer is not authenticated yet, so it gets little
room."""
REQUEST_ID_CHARACTERS_MAX: Final = 64
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
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
    params: Params[Any]
    traceparent: str = ""
    """The trace that it belongs to (W3C Trace Context), if its client has one."""


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


# --- deliveries -----------------------------------------------------------------------------------

_REVISIONS: Final = list[RevisionMessage]
_PIECE_BYTES_MAX: Final = MESSAGE_BYTES_MAX * 3 // 4
"""The part of a frame for one piece of a delivery; the rest is for what every piece repeats."""


def pack_revisions(
    entries: Sequence[LogEntry], encoding: Encoding, *, bytes_max: int = _PIECE_BYTES_MAX
) -> list[bytes]:
    """Revisions as packed arrays of messages, each of at most about `bytes_max` bytes.

    Several arrays are put together again by `join_revisions`. A single change larger than that
    makes a larger array: VALUE_BYTES_MAX keeps it below a frame, even with every character escaped.
    """
    packed = encoding.pack(answers.write(_REVISIONS, entries, encoding))
    if len(packed) <= bytes_max:
        return [packed]
    return list(_pieces(entries, encoding, bytes_max))


def _pieces(entries: Sequence[LogEntry], encoding: Encoding, bytes_max: int) -> Iterator[bytes]:
    """Arrays in which a revision may continue from the previous array, with further changes."""
    piece: list[bytes] = []
    size = 0
    for entry in entries:
        for changes in _groups(entry.changes, encoding, bytes_max):
            part_of_it = replace(entry, changes=tuple(changes))
            part = encoding.pack(answers.write(RevisionMessage, part_of_it, encoding))
            if piece and size + len(part) > bytes_max:
                yield encoding.join(piece)
                piece, size = [], 0
            piece.append(part)
            size += len(part)
    yield encoding.join(piece)


def _groups(
    changes: Sequence[Change], encoding: Encoding, bytes_max: int
) -> Iterator[list[Change]]:
    group: list[Change] = []
    size = 0
    for change in changes:
        length = len(encoding.pack(answers.write(ChangeMessage, change, encoding)))
        if group and size + length > bytes_max:
            yield group
            group, size = [], 0
        group.append(change)
        size += length
    yield group


def join_revisions(
    before: tuple[LogEntry, ...], after: tuple[LogEntry, ...]
) -> tuple[LogEntry, ...]:
    """Join what `pack_revisions` split."""
    if not before or not after or before[-1].revision != after[0].revision:
        return before + after
    first, more = before[-1], after[0]
    return (*before[:-1], replace(first, changes=first.changes + more.changes), *after[1:])


def pack_changes(
    watch: int,
    position: Position,
    pieces: Sequence[bytes],
    encoding: Encoding,
    *,
    more: bool = False,
) -> list[bytes]:
    """Messages to a watch with the pieces of `pack_revisions`; without pieces, a progress mark.
    With `more`, the last revision continues in later messages.
    """
    pack, join = encoding.pack, encoding.map
    params = {"watch": pack(watch), "position": pack(str(position))}
    method, messages = pack("changes"), []
    for index, piece in enumerate(pieces or [pack([])]):
        members = {**params, "revisions": piece}
        if more or index < len(pieces) - 1:
            members["more"] = pack(True)
        messages.append(join({"method": method, "params": join(members)}))
    return messages


# --- quick reading --------------------------------------------------------------------------------
# The most frequent messages are read in one step: receipts of commits, and changes of watches. A
# frame that contains only these is decoded directly into records, as the service does with commits
# (`wire/requests.py`). Every other frame goes through `Encoding.split` and `read`, which know all
# messages and say what is wrong.


class _QuickRevision(RevisionMessage, forbid_unknown_fields=True, frozen=True):
    """With the changes as they are: nothing in their messages has another form."""

    changes: tuple[Change, ...]  # type: ignore[assignment]

    def to_core(self) -> LogEntry:
        return self._entry(self.changes)


class _QuickChanges(ChangesMessage, forbid_unknown_fields=True, frozen=True):
    """Without `more`, which is rare and goes the other way."""

    revisions: tuple[_QuickRevision, ...]
    more: UnsetType = UNSET


class QuickMessage(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A message: an answer with `id` and `result`, or a notification with `method` and `params`."""

    id: int | None = None
    result: Receipt | None = None
    method: Literal["changes"] | None = None
    params: _QuickChanges | None = None


_decode: Final = msgspec.msgpack.Decoder(list[QuickMessage]).decode


def read_quickly(frame: bytes) -> list[QuickMessage]:
    """The messages of a msgpack frame that contains only receipts and changes; none for any other
    frame."""
    if len(frame) > CONTAINERS_MAX:
        return []
    try:
        return _decode(frame)
    except (msgspec.MsgspecError, ValueError):
        return []


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

    def receive(self, frame: bytes) -> Sequence[ServerEvent]:
        """Take one frame. Errors: RemoteProtocolError, after which the session is closed."""
        if self.state is ConnectionState.HELLO:
            return [self._receive_hello(frame)]
        commits = self.receive_commits(frame)
        if commits:
            return [RequestReceived(*commit) for commit in commits]
        return [self._receive(message) for message in self._split(frame)]

    def receive_commits(
        self, frame: bytes, count_max: int = MESSAGES_PER_FRAME_MAX
    ) -> list[tuple[RequestId, CommitParams, str]]:
        """Take a frame that contains only plain commits, at most `count_max`; none of any other
        frame, which is left to `receive`."""
        if self.state is not ConnectionState.READY or self.encoding is not MSGPACK:
            return []
        requests = read_commits(frame)
        numbers = {request.id for request in requests}
        # An id that is used twice: `receive` refuses only the requests that repeat it.
        if len(numbers) < len(requests) or not self._in_flight.isdisjoint(numbers):
            return []
        if len(requests) > count_max:
            return []
        self._in_flight |= numbers
        return [(r.id, r.params, r.traceparent or "") for r in requests]

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
            # First: without its id, a refusal cannot be matched with its request.
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
        return RequestReceived(number, params, _traceparent_of(message))

    def _take_id(self, message: Any) -> RequestId:
        if not isinstance(message, dict):
            raise InvalidRequest(field="request", reason="must be a map with id, method, params")
        number = message.get("id")
        if not _is_request_id(number):
            raise InvalidRequest(field="id", reason="must be an integer or a text of 64 characters")
        if number in self._in_flight:
            raise InvalidRequest(field="id", reason="is that of a request still in flight")
        return number

    def _check_order(self, params: Params[Any]) -> None:
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
        """Send to a watch what `pack_revisions` made; without pieces, a progress mark."""
        self.send_packed(pack_changes(watch, position, pieces, self.encoding, more=more))

    def send_packed(self, messages: Sequence[bytes]) -> None:
        """Send what `pack_changes` made."""
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
    # Not `isinstance`: True is an int, and no id.
    if type(number) is int:
        return -INTEGER_MAX <= number <= INTEGER_MAX
    short = isinstance(number, str) and len(number) <= REQUEST_ID_CHARACTERS_MAX
    # An answer has to bring it back: half of a surrogate pair has no encoding.
    return short and _NO_TEXT.search(number) is None


_REQUEST_MEMBERS: Final = {"jsonrpc", "id", "method", "params", "traceparent"}


def _traceparent_of(message: dict[str, Any]) -> str:
    """The trace of a request; "" for what is none, as W3C Trace Context wants it."""
    found = message.get("traceparent")
    is_short = isinstance(found, str) and len(found) <= TRACEPARENT_CHARACTERS_MAX
    return str(found) if is_short else ""


# --- client ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Fragments:
    count: int = 0
    revisions: tuple[LogEntry, ...] = ()


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

    def send_request(self, method: str, params: dict[str, Any], traceparent: str = "") -> int:
        """Send a request; returns its id. Only a service that `traces` takes a `traceparent`.

        Errors: LocalProtocolError when the session is not ready or REQUESTS_IN_FLIGHT_MAX requests
        are unanswered; LimitExceeded when the request does not fit a frame.
        """
        if self.state is not ConnectionState.READY:
            raise LocalProtocolError(reason=f"no requests while the session is {self.state}")
        if len(self._in_flight) >= REQUESTS_IN_FLIGHT_MAX:
            raise LocalProtocolError(reason=f"{REQUESTS_IN_FLIGHT_MAX} requests are unanswered")
        return self._request(method, params, traceparent)

    def _request(self, method: str, params: dict[str, Any], traceparent: str = "") -> int:
        number = self._next_id
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if traceparent:
            message["traceparent"] = traceparent
        packed = self.encoding.pack(message)
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
            # The parts of a delivery have to be joined, which `_receive_changes` does.
            or self._fragments
        ):
            return []
        events: list[ClientEvent] = []
        # Noted here only: if the frame turns out to have anything else, `receive` begins again.
        answered: set[int] = set()
        for message in read_quickly(frame):
            if message.params is not None and message.method is not None:
                with from_peer("changes"):
                    events.append(Changed(*message.params.to_core()[:3]))
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
        with from_peer("message"):
            method = message.get("method")
            if method is None:
                return self._receive_answer(message)
            params = message["params"]
            if method == "changes":
                return self._receive_changes(params)
            if method == "cancelled":
                watch = msgspec.convert(params["watch"], int)
                # The rest of a delivery that this cut off does not come any more.
                self._fragments.pop(watch, None)
                return Cancelled(watch, read_error(params.get("error")))
            if method == "draining":
                self._move(Transition.DRAINED)
                return Draining()
        raise RemoteProtocolError(f"unknown notification {method!r:.100}")

    def _receive_answer(self, message: Any) -> ClientEvent:
        number = message.get("id")
        # The service could not read the id, and nothing that waits here can be matched with it.
        if number is None and "error" in message:
            raise RemoteProtocolError(f"refused: {read_error(message['error'])}")
        if type(number) is not int or number not in self._in_flight:
            raise RemoteProtocolError("an answer to no request")
        self._in_flight.discard(number)
        if "error" in message:
            return Failed(number, read_error(message["error"]))
        if number == self._hello_id:
            self._move(Transition.GREETED)
        return Answered(number, message["result"])

    def _receive_changes(self, params: Any) -> Changed | None:
        news = answers.read(ChangesMessage, params, self.encoding)
        watch, position, revisions, is_part = news
        before = self._fragments.pop(watch, None)
        if before is not None:
            revisions = join_revisions(before.revisions, revisions)
        if is_part:
            count = before.count + 1 if before is not None else 1
            if count > FRAGMENTS_MAX:
                raise RemoteProtocolError(f"more than {FRAGMENTS_MAX} fragments")
            self._fragments[watch] = _Fragments(count, revisions)
            return None
        return Changed(watch, position, revisions)
