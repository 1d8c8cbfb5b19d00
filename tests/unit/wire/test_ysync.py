"""The y-websocket protocol: what we write is what the reference implementation reads, and back."""

import json

import pytest
from hypothesis import given, strategies as st
from pycrdt import (
    Awareness,
    Doc,
    Text,
    create_awareness_message,
    create_sync_message,
    create_update_message,
    handle_sync_message,
)

from blackboard.core.documents.update import write_buffer, write_number, write_text
from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import (
    AWARENESS_BYTES_MAX,
    AWARENESS_STATES_MAX,
    KEY_BYTES_MAX,
    OVERLAP_CLIENTS_MAX,
)
from blackboard.wire import ysync
from blackboard.wire.ysync import (
    AwarenessState,
    Edit,
    Met,
    QueryAwareness,
    Step1,
    Step2,
    read_frame,
)


def test_the_frames_of_another_implementation_are_read() -> None:
    doc: Doc[Text] = Doc()
    doc.get("t", type=Text).insert(0, "hi")
    assert read_frame(create_sync_message(doc)) == [Step1(doc.get_state())]
    assert read_frame(create_update_message(doc.get_update())) == [Edit(doc.get_update())]
    awareness = Awareness(doc)
    awareness.set_local_state({"user": {"name": "ada"}})
    frame = create_awareness_message(awareness.encode_awareness_update([doc.client_id]))
    (message,) = read_frame(frame)
    assert isinstance(message, ysync.Awareness)
    (presence,) = message.present
    assert presence.client == doc.client_id
    assert json.loads(presence.state or "") == {"user": {"name": "ada"}}


@pytest.mark.parametrize("message", [ysync.QUERY_AWARENESS, b"\x02\x00\x00", b"\x00\x00\x00"])
def test_a_frame_holds_so_many_messages_and_no_more(message: bytes) -> None:
    """However small they are, also of those that say nothing."""
    assert len(read_frame(message * ysync.FRAME_MESSAGES_MAX)) in (0, ysync.FRAME_MESSAGES_MAX)
    with pytest.raises(InvalidRequest, match="more than 64 messages"):
        read_frame(message * (ysync.FRAME_MESSAGES_MAX + 1))


def test_another_implementation_reads_ours() -> None:
    doc: Doc[Text] = Doc()
    doc.get("t", type=Text).insert(0, "hi")
    other: Doc[Text] = Doc()
    assert handle_sync_message(ysync.write_step1(other.get_state())[1:], doc) is not None
    handle_sync_message(ysync.write_step2(doc.get_update())[1:], other)
    assert str(other.get("t", type=Text)) == "hi"


@given(st.binary(), st.binary(), st.binary())
def test_several_messages_share_a_frame(state: bytes, lacking: bytes, update: bytes) -> None:
    frame = (
        ysync.write_step1(state)
        + ysync.write_step2(lacking)
        + ysync.write_update(update)
        + ysync.QUERY_AWARENESS
    )
    assert read_frame(frame) == [Step1(state), Step2(lacking), Edit(update), QueryAwareness()]


@given(
    st.lists(
        st.builds(
            AwarenessState,
            st.integers(0, 2**53 - 1),
            st.integers(0, 2**32),
            st.none() | st.text().map(json.dumps),
        )
    )
)
def test_presence_comes_back(present: list[AwarenessState]) -> None:
    (message,) = read_frame(ysync.write_awareness(present))
    assert message == ysync.Awareness(tuple(present))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x09",
        b"\x00\x03\x00",
        b"\x00\x00\x05abc",
        b"\x01" + write_buffer(write_number(1) + b"\x01\x01" + write_buffer(b"{not json")),
        b"\x01" + write_buffer(write_number(2) + b"\x01\x01" + write_buffer(b"null")),
    ],
)
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_frame(frame)


def test_a_refusal_is_passed_over() -> None:
    assert read_frame(b"\x02\x00" + write_buffer(b"denied") + ysync.QUERY_AWARENESS) == [
        QueryAwareness()
    ]


def test_awareness_has_limits() -> None:
    most = [AwarenessState(client, 1, "1") for client in range(AWARENESS_STATES_MAX)]
    read_frame(ysync.write_awareness(most))
    with pytest.raises(LimitExceeded, match="AWARENESS_STATES_MAX"):
        read_frame(ysync.write_awareness([*most, AwarenessState(9_999, 1, "1")]))
    longest = json.dumps("x" * (AWARENESS_BYTES_MAX - 2))
    read_frame(ysync.write_awareness([AwarenessState(1, 1, longest)]))
    with pytest.raises(LimitExceeded, match="AWARENESS_BYTES_MAX"):
        read_frame(ysync.write_awareness([AwarenessState(1, 1, longest[:-1] + 'x"')]))


def test_what_a_client_tells_is_json() -> None:
    assert ysync.read_json(ysync.write_json({"name": "ada"})) == {"name": "ada"}
    with pytest.raises(InvalidRequest):
        ysync.write_json({"name": b"ada"})
    with pytest.raises(LimitExceeded):
        ysync.write_json("x" * AWARENESS_BYTES_MAX)


def test_an_overlap_is_read_as_it_was_written() -> None:
    """With as many authors as there may be, or none, but not with more."""
    met = Met("plan/0/note", 3, 9, tuple(range(OVERLAP_CLIENTS_MAX + 5)))
    (found,) = read_frame(ysync.write_met(met))
    assert found == Met("plan/0/note", 3, 9, tuple(range(OVERLAP_CLIENTS_MAX)))
    many = b"\x64" + write_text("t") + bytes((0, 1, OVERLAP_CLIENTS_MAX + 1)) + b"\0" * 65
    with pytest.raises(LimitExceeded, match="OVERLAP_CLIENTS_MAX"):
        read_frame(many)
    assert read_frame(ysync.write_met(Met("t", 0, 1, ()))) == [Met("t", 0, 1, ())]
    for broken in (Met("t", 2, 1, (1,)), Met("t" * (KEY_BYTES_MAX + 1), 0, 1, (1,))):
        with pytest.raises(InvalidRequest):
            read_frame(ysync.write_met(broken))
