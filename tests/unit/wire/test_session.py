"""The protocol's machine: a client session against a server session in memory, and garbage."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from blackboard.core.commit import Commit, CommitId, LogEntry
from blackboard.core.watch import Position
from blackboard.errors import (
    Conflict,
    InvalidRequest,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    Unavailable,
)
from blackboard.limits import (
    DEFAULT,
    FRAME_BYTES_MAX,
    MESSAGES_PER_FRAME_MAX,
    REQUESTS_IN_FLIGHT_MAX,
)
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from blackboard.wire.methods import CommitParams
from blackboard.wire.requests import write_commit
from blackboard.wire.session import (
    FRAGMENTS_MAX,
    HELLO_BYTES_MAX,
    TRANSITIONS,
    Answered,
    Cancelled,
    Changed,
    ConnectionState,
    Draining,
    Failed,
    RequestReceived,
    RequestRefused,
    ServerSession,
    Transition,
    pack_revisions,
)
from tests.unit.wire.drawing import commits, log_entries
from tests.unit.wire.pair import POSITION, Pair, both


@both
def test_hello_opens_both_sides(encoding: Encoding) -> None:
    """Hello with a token, the welcome, and then requests."""
    pair = Pair(encoding, greeted=False)
    number = pair.client.send_hello({"token": "t", "agent": "ada", "client": "test"})
    (hello,) = pair.to_server()
    assert (hello.params.token, hello.params.agent, hello.params.client) == ("t", "ada", "test")
    assert (pair.client.state, pair.server.state) == (ConnectionState.HELLO, ConnectionState.HELLO)
    pair.server.welcome(hello.id, {"agent": "ada"})
    assert pair.to_client() == [Answered(number, {"agent": "ada"})]
    assert (pair.client.state, pair.server.state) == (ConnectionState.READY, ConnectionState.READY)


@both
@given(commit=commits)
def test_a_commit_and_its_answer(encoding: Encoding, commit: Commit) -> None:
    """The request arrives as it was; the answer carries its id; nothing is in flight afterwards."""
    pair = Pair(encoding)
    number = pair.client.send_request("commit", write_commit("b", commit, encoding))
    (request,) = pair.to_server()
    assert isinstance(request, RequestReceived)
    assert isinstance(request.params, CommitParams)
    assert request.params.to_core(commit.id.agent) == commit
    assert (pair.client.in_flight, pair.server.in_flight) == (1, 1)
    pair.server.respond(request.id, {"revision": 7})
    assert pair.to_client() == [Answered(number, {"revision": 7})]
    assert (pair.client.in_flight, pair.server.in_flight) == (0, 0)


@both
def test_answers_come_in_any_order(encoding: Encoding) -> None:
    """Pipelined requests are distinguished by their ids."""
    pair = Pair(encoding)
    numbers = [pair.client.send_request("boards", {}) for _ in range(5)]
    requests = pair.to_server()
    assert [request.id for request in requests] == numbers
    for request in reversed(requests):
        pair.server.respond(request.id, request.id * 10)
    assert pair.to_client() == [Answered(n, n * 10) for n in reversed(numbers)]


@both
def test_an_error_arrives_as_itself(encoding: Encoding) -> None:
    """Type and fields, the current value of a Conflict too."""
    pair = Pair(encoding)
    number = pair.client.send_request("boards", {})
    pair.to_server()
    conflict = Conflict("public/a", 1, 2, "bob", 2, 5, {"a": b"x"})
    pair.server.respond_error(number, conflict)
    (failed,) = pair.to_client()
    assert isinstance(failed, Failed)
    assert failed.error.fields() == conflict.fields()


@both
def test_a_request_that_is_none_is_answered_at_once(encoding: Encoding) -> None:
    """With an error that names the field; the next request is served as usual."""
    pair = Pair(encoding)
    bad = pair.client.send_request("head", {"board": "a/b"})
    good = pair.client.send_request("head", {"board": "a"})
    refused, received = pair.to_server()
    assert isinstance(refused, RequestRefused)
    assert received.id == good
    (failed,) = pair.to_client()
    assert failed.id == bad
    assert isinstance(failed.error, InvalidRequest)
    assert failed.error.field == "board"
    assert pair.server.in_flight == 1


@both
@pytest.mark.parametrize(
    "message",
    [
        7,
        None,
        [],
        {},
        {"id": 1},
        {"method": "boards"},
        {"id": None, "method": "boards"},
        {"id": True, "method": "boards"},
        {"id": 1.5, "method": "boards"},
        {"id": 2**60, "method": "boards"},
        {"id": "x" * 65, "method": "boards"},
        {"id": "a\0b", "method": "boards"},
        {"id": [], "method": "boards"},
        {"id": 9, "method": "boards", "extra": 1},
        {"id": 9, "method": "nope"},
        {"id": 9, "method": "boards", "params": 7},
        {"id": 9, "method": "hello"},
        {"id": 9, "result": 1},
    ],
)
def test_a_message_that_is_no_request_does_not_close(encoding: Encoding, message: Any) -> None:
    """It is answered, under its id if it has one, and the session goes on."""
    pair = Pair(encoding)
    (refused,) = pair.server.receive(encoding.join([encoding.pack(message)]))
    assert isinstance(refused, RequestRefused)
    assert refused.error.__traceback__ is None, "it would hold the frame, of up to 8 MiB"
    ((answer,),) = [encoding.split(frame) for frame in pair.server.bytes_to_send()]
    known = isinstance(message, dict) and message.get("id") in (1, 9)
    known = known and message["id"] is not True
    assert answer["id"] == (message["id"] if known else None)
    assert answer["error"]["data"]["code"] == "invalid_request"
    assert pair.server.state is ConnectionState.READY


@both
@pytest.mark.parametrize(
    "text",
    ["", "7", "x" * 64, "\N{GRINNING FACE}" * 64, "a\nb\t", "\u200d\u00a0\ufeff", "\x7f\x1b["],
)
def test_an_id_is_any_text(encoding: Encoding, text: str) -> None:
    """Its answer has the same one."""
    pair = Pair(encoding)
    frame = encoding.join([encoding.pack({"id": text, "method": "boards"})])
    (received,) = pair.server.receive(frame)
    assert isinstance(received, RequestReceived)
    pair.server.respond(received.id, [])
    (answer,) = [one for sent in pair.server.bytes_to_send() for one in encoding.split(sent)]
    assert answer == {"id": text, "result": []}


def test_half_of_a_surrogate_pair_is_no_id() -> None:
    """No answer could bring it back."""
    pair = Pair(JSON)
    (refused,) = pair.server.receive(b'{"id":"\\ud800","method":"boards"}')
    assert isinstance(refused, RequestRefused)


def test_an_id_in_flight_cannot_be_used_again() -> None:
    """It would be unclear which of the two an answer is for."""
    pair = Pair(JSON)
    first, second = pair.server.receive(
        b'[{"id":"a","method":"boards"},{"id":"a","method":"boards"}]'
    )
    assert isinstance(first, RequestReceived)
    assert isinstance(second, RequestRefused)
    pair.server.respond("a", [])
    (third,) = pair.server.receive(b'{"jsonrpc":"2.0","id":"a","method":"boards"}')
    assert isinstance(third, RequestReceived)


# --- the handshake --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "found",
    [
        [{"id": 1, "method": "boards"}],
        [{"id": 1, "method": "hello"}, {"id": 2, "method": "boards"}],
        [7],
        [{"id": 1, "method": "hello", "params": {"token": "x" * HELLO_BYTES_MAX}}],
    ],
)
def test_nothing_but_a_small_hello_comes_first(encoding: Encoding, found: list[Any]) -> None:
    """Anything else breaks the protocol: nobody is known yet who could be answered."""
    server = ServerSession(encoding, 0)
    with pytest.raises(RemoteProtocolError):
        server.receive(encoding.join([encoding.pack(message) for message in found]))
    assert server.state is ConnectionState.CLOSED


def test_a_hello_that_is_not_valid_is_answered() -> None:
    """The mistake can be corrected on the same connection."""
    pair = Pair(greeted=False)
    pair.client.send_hello({"agent": "a/b"})
    assert isinstance(pair.to_server()[0], RequestRefused)
    assert pair.server.state is ConnectionState.HELLO
    assert isinstance(pair.to_client()[0], Failed)


def test_the_handshake_has_a_time_limit() -> None:
    """`tick` says when to come again, and raises when it is too late; once greeted, never."""
    server = ServerSession(MSGPACK, now_ms=1000)
    assert server.tick(1000) == 1000 + DEFAULT.connection.handshake_timeout_ms
    assert server.tick(999 + DEFAULT.connection.handshake_timeout_ms) is not None
    with pytest.raises(RemoteProtocolError):
        server.tick(1000 + DEFAULT.connection.handshake_timeout_ms)
    assert server.state is ConnectionState.CLOSED
    assert Pair().server.tick(10**9) is None


# --- frames ---------------------------------------------------------------------------------------


@both
def test_everything_that_waits_is_one_frame(encoding: Encoding) -> None:
    """Up to MESSAGES_PER_FRAME_MAX messages, then the next frame; the order stays."""
    pair = Pair(encoding)
    count = MESSAGES_PER_FRAME_MAX + 1
    for number in range(count):
        pair.server.send_changes(number, POSITION, [])
    frames = pair.server.bytes_to_send()
    assert len(frames) == 2
    events = [event for frame in frames for event in pair.client.receive(frame)]
    assert [event.watch for event in events if isinstance(event, Changed)] == list(range(count))
    assert pair.server.bytes_to_send() == []


@both
def test_no_frame_is_too_big(encoding: Encoding) -> None:
    """Answers that do not fit together travel apart."""
    pair = Pair(encoding)
    for _ in range(3):
        pair.client.send_request("boards", {})
    for request in pair.to_server():
        pair.server.respond(request.id, "x" * (FRAME_BYTES_MAX // 2))
    waiting = pair.server.outgoing_bytes
    frames = pair.server.bytes_to_send()
    assert len(frames) == 3
    assert sum(map(len, frames)) >= waiting > max(map(len, frames))
    assert max(map(len, frames)) <= FRAME_BYTES_MAX
    assert pair.server.outgoing_bytes == 0


def test_an_answer_that_fits_no_frame_becomes_an_error() -> None:
    """The request is answered all the same."""
    pair = Pair()
    number = pair.client.send_request("boards", {})
    pair.to_server()
    pair.server.respond(number, "x" * FRAME_BYTES_MAX)
    (failed,) = pair.to_client()
    assert isinstance(failed.error, LimitExceeded)
    assert failed.error.limit == "FRAME_BYTES_MAX"


def test_a_request_that_fits_no_frame_is_not_sent() -> None:
    """Nothing is in flight after it."""
    pair = Pair()
    with pytest.raises(LimitExceeded, match="FRAME_BYTES_MAX"):
        pair.client.send_request("read", {"keys": "x" * FRAME_BYTES_MAX})
    assert pair.client.in_flight == 0
    assert pair.client.bytes_to_send() == []


def test_the_client_keeps_the_limit_of_requests_in_flight() -> None:
    """One more than REQUESTS_IN_FLIGHT_MAX is this side's mistake."""
    pair = Pair()
    for _ in range(REQUESTS_IN_FLIGHT_MAX):
        pair.client.send_request("boards", {})
    with pytest.raises(LocalProtocolError):
        pair.client.send_request("boards", {})


# --- watches --------------------------------------------------------------------------------------


@both
@given(entries=st.lists(log_entries, min_size=1, max_size=4), bytes_max=st.integers(200, 3000))
def test_changes_arrive_whole(encoding: Encoding, entries: list[LogEntry], bytes_max: int) -> None:
    """Also when they were taken apart; fragments of two watches may alternate."""
    pair = Pair(encoding)
    entries = [_numbered(entry, number) for number, entry in enumerate(entries, 1)]
    pieces = pack_revisions(entries, encoding, bytes_max=bytes_max)[: FRAGMENTS_MAX + 1]
    whole = pack_revisions(entries, encoding)
    pair.server.send_changes(1, POSITION, pieces[:1], more=len(pieces) > 1)
    pair.server.send_changes(2, POSITION, whole)
    if len(pieces) > 1:
        pair.server.send_changes(1, POSITION, pieces[1:])
    found = {event.watch: event for event in pair.to_client()}
    assert found[2] == Changed(2, POSITION, tuple(entries))
    if len(pieces) == len(pack_revisions(entries, encoding, bytes_max=bytes_max)):
        assert found[1] == Changed(1, POSITION, tuple(entries))


def _numbered(entry: LogEntry, revision: int) -> LogEntry:
    return LogEntry(revision, entry.time_ms, entry.id, entry.changes, entry.digest)


def test_fragments_are_forgotten_when_they_are_whole() -> None:
    """What comes next for that watch stands for itself; so does a number used again."""
    pair = Pair()
    piece = pack_revisions([LogEntry(5, 6, CommitId("ada", 0, "", 0), (), b"d" * 32)], MSGPACK)
    pair.server.send_changes(1, POSITION, piece, more=True)
    pair.server.send_changes(1, POSITION, piece)
    pair.server.send_changes(1, POSITION, [])
    pair.server.send_changes(1, POSITION, piece, more=True)
    pair.server.send_cancelled(1, Conflict("public/a", 1, 2))
    pair.server.send_changes(1, POSITION, [])
    whole, mark, _, again = pair.to_client()
    assert [entry.revision for entry in whole.revisions] == [5]
    assert mark.revisions == again.revisions == ()


def test_fragments_without_end_break_the_protocol() -> None:
    """A client does not gather for ever."""
    pair = Pair()
    empty = MSGPACK.pack([])
    for _ in range(FRAGMENTS_MAX):
        pair.server.send_changes(1, POSITION, [empty], more=True)
    assert pair.to_client() == []
    pair.server.send_changes(1, POSITION, [empty], more=True)
    with pytest.raises(RemoteProtocolError):
        pair.to_client()


@both
def test_the_end_of_a_watch_and_of_the_service(encoding: Encoding) -> None:
    """A mark, the reason, and the announcement; then requests are refused as Unavailable."""
    pair = Pair(encoding)
    number = pair.client.send_request("boards", {})
    pair.to_server()
    pair.server.send_changes(3, POSITION, [])
    pair.server.send_cancelled(3, Unavailable("service", "it is stopping"))
    pair.server.send_draining()
    late = pair.client.send_request("boards", {})
    assert isinstance(pair.to_server()[0], RequestRefused)
    pair.server.respond(number, ["b"])
    mark, cancelled, draining, refused, answered = pair.to_client()
    assert mark == Changed(3, POSITION, ())
    assert isinstance(cancelled, Cancelled)
    assert isinstance(cancelled.error, Unavailable)
    assert draining == Draining()
    assert (refused.id, type(refused.error)) == (late, Unavailable)
    assert answered == Answered(number, ["b"])
    with pytest.raises(LocalProtocolError):
        pair.client.send_request("boards", {})


# --- states ---------------------------------------------------------------------------------------


def test_a_closed_session_stays_closed() -> None:
    """Nothing goes in or out, and closing again is fine."""
    pair = Pair()
    pair.server.send_changes(1, POSITION, [])
    for session in (pair.server, pair.client):
        session.close()
        session.close()
        assert session.bytes_to_send() == []
        with pytest.raises(LocalProtocolError):
            session.receive(b"\x91\x01")
    with pytest.raises(LocalProtocolError):
        pair.server.send_changes(1, POSITION, [])
    with pytest.raises(LocalProtocolError):
        pair.client.send_request("boards", {})


def test_hello_comes_once() -> None:
    """A second one is this side's mistake; so is a second welcome."""
    pair = Pair()
    with pytest.raises(LocalProtocolError):
        pair.client.send_hello({})
    with pytest.raises(LocalProtocolError):
        pair.server.welcome(1, {})


def test_the_table_of_states_is_complete() -> None:
    """Every state can be closed, and only CLOSED cannot be left."""
    assert all((state, Transition.CLOSED) in TRANSITIONS for state in ConnectionState)
    reached = {new for (state, _), new in TRANSITIONS.items() if state is not new}
    assert reached == set(ConnectionState) - {ConnectionState.HELLO}
    assert {new for (state, _), new in TRANSITIONS.items() if state is ConnectionState.CLOSED} == {
        ConnectionState.CLOSED
    }


# --- any order of calls ---------------------------------------------------------------------------


class Conversation(RuleBasedStateMachine):
    """Requests, answers, changes and frames in any order: every request gets its own answer."""

    asked = Bundle("asked")

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.sent: set[int] = set()
        self.answered: dict[int, int] = {}
        self.marks: list[int] = []
        self.seen: list[int] = []

    @rule()
    def ask(self) -> None:
        """The client asks."""
        self.sent.add(self.pair.client.send_request("boards", {}))

    @rule(target=asked)
    def carry_to_server(self) -> Any:
        """Frames reach the server; one of the requests may be answered later."""
        requests = self.pair.to_server()
        for request in requests[1:]:
            self.pair.server.respond(request.id, -request.id)
        return requests[0].id if requests else None

    @rule(number=consumes(asked))
    def answer(self, number: int | None) -> None:
        """The server answers a request that waited."""
        if number is not None:
            self.pair.server.respond(number, -number)

    @rule()
    def mark(self) -> None:
        """The server tells a watch how far it is."""
        self.marks.append(len(self.marks))
        self.pair.server.send_changes(1, Position("e", len(self.marks)), [])

    @rule()
    def carry_to_client(self) -> None:
        """Frames reach the client."""
        for event in self.pair.to_client():
            if isinstance(event, Answered):
                assert event.id not in self.answered
                self.answered[event.id] = event.result
            else:
                self.seen.append(event.position.revision - 1)

    @invariant()
    def answers_fit(self) -> None:
        """No answer without a request, each with its own content, marks in order."""
        assert all(result == -number for number, result in self.answered.items())
        assert self.answered.keys() <= self.sent
        assert self.pair.client.in_flight == len(self.sent) - len(self.answered)
        assert self.seen == self.marks[: len(self.seen)]


TestConversation = Conversation.TestCase
