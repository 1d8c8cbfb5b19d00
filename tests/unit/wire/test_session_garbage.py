"""Whatever a session is fed, it gives events or RemoteProtocolError."""

from typing import Any

from hypothesis import given, strategies as st

from blackboard.core.commit import Commit, LogEntry
from blackboard.errors import Conflict, InvalidRequest, RemoteProtocolError
from blackboard.wire import methods
from blackboard.wire.frames import Encoding
from blackboard.wire.requests import write_commit
from blackboard.wire.session import (
    ClientSession,
    ConnectionState,
    ServerSession,
    pack_revisions,
)
from tests.unit.wire.drawing import commits, log_entries
from tests.unit.wire.pair import POSITION, Pair, both
from tests.unit.wire.test_messages import junk


def _take(session: ServerSession | ClientSession, frame: bytes) -> None:
    try:
        session.receive(frame)
    except RemoteProtocolError:
        assert session.state is ConnectionState.CLOSED


@both
@given(frame=st.binary(max_size=100), greeted=st.booleans())
def test_any_bytes_are_survived(encoding: Encoding, frame: bytes, greeted: bool) -> None:
    """Both sides give events or RemoteProtocolError, nothing else."""
    pair = Pair(encoding, greeted=greeted)
    _take(pair.server, frame)
    _take(pair.client, frame)


@both
@given(found=st.lists(junk, min_size=1, max_size=4), greeted=st.booleans())
def test_any_messages_are_survived(encoding: Encoding, found: list[Any], greeted: bool) -> None:
    """Well-formed frames of anything."""
    try:
        frame = encoding.join([encoding.pack(message) for message in found])
    except (ValueError, InvalidRequest, TypeError, UnicodeEncodeError):
        return
    pair = Pair(encoding, greeted=greeted)
    _take(pair.server, frame)
    _take(pair.client, frame)


members = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(0, 3) | junk,
        "method": st.sampled_from([*methods.METHODS, "changes", "cancelled", "draining"]),
        "params": st.fixed_dictionaries(
            {},
            optional={
                "watch": st.integers(0, 2) | junk,
                "position": st.just("e:1:") | junk,
                "revisions": st.lists(junk, max_size=2) | junk,
                "error": junk,
                "more": st.booleans() | junk,
                "board": st.just("b") | junk,
            },
        )
        | junk,
        "result": junk,
        "error": junk,
    },
)


@both
@given(found=st.lists(members, min_size=1, max_size=5))
def test_almost_messages_are_survived(encoding: Encoding, found: list[Any]) -> None:
    """The right members with the wrong contents, so that every branch is reached."""
    pair = Pair(encoding)
    pair.client.send_request("boards", {})
    try:
        frame = encoding.join([encoding.pack(message) for message in found])
    except (ValueError, InvalidRequest, TypeError, UnicodeEncodeError):
        return
    _take(pair.server, frame)
    _take(pair.client, frame)


@both
@given(
    commit=commits,
    entries=st.lists(log_entries, max_size=2),
    places=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.none() | st.integers(0),
)
def test_mutated_frames_are_survived(
    encoding: Encoding,
    commit: Commit,
    entries: list[LogEntry],
    places: list[tuple[int, int]],
    cut: int | None,
) -> None:
    """Real frames of both directions with bytes changed, or cut short."""
    pair = Pair(encoding)
    pair.client.send_request("commit", write_commit("b", commit, encoding))
    (asked,) = pair.client.bytes_to_send()
    pair.server.receive(asked)
    pair.server.respond(2, {"revision": 1})
    pair.server.send_changes(1, POSITION, pack_revisions(entries, encoding))
    pair.server.send_cancelled(1, Conflict("public/a", 1, 2))
    (told,) = pair.server.bytes_to_send()
    _take(Pair(encoding).server, _mutated(asked, places, cut))
    _take(pair.client, _mutated(told, places, cut))


def _mutated(frame: bytes, places: list[tuple[int, int]], cut: int | None) -> bytes:
    changed = bytearray(frame)
    for place, byte in places:
        changed[place % len(changed)] = byte
    return bytes(changed if cut is None else changed[: cut % len(changed)])
