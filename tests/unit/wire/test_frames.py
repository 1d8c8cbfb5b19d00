"""Frames: what goes in comes out, and nothing that comes in does harm."""

import json
import tracemalloc

import msgpack
import pytest
from hypothesis import given, strategies as st

from blackboard.errors import InvalidRequest, LimitExceeded, Rejected, RemoteProtocolError
from blackboard.limits import (
    FRAME_BYTES_MAX,
    MESSAGES_PER_FRAME_MAX,
    VALUE_BYTES_MAX,
    VALUE_DEPTH_MAX,
)
from blackboard.wire.codec import decode_value, encode_value
from blackboard.wire.frames import CONTAINERS_MAX, JSON, MSGPACK, SUBPROTOCOLS, Encoding, NotAMap
from tests.unit.wire.drawing import texts, values

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)


@both
@given(value=values)
def test_values_survive(encoding: Encoding, value: object) -> None:
    """A value that is packed into a message, framed and split again is the same bytes."""
    encoded = encode_value(value)
    message = {"value": encoding.value_out(encoded)}
    (found,) = encoding.split(encoding.join([encoding.pack(message)]))
    assert encoding.value_in(found["value"]) == encoded
    assert encoding.value_from_service(found["value"]) == encoded
    assert decode_value(encoding.value_in(found["value"])) == value


@both
@given(members=st.dictionaries(st.from_regex("[a-z]{1,9}", fullmatch=True), texts, max_size=20))
def test_a_map_of_packed_members_is_the_packed_map(
    encoding: Encoding, members: dict[str, str]
) -> None:
    """Splicing what was packed before gives what packing at once gives."""
    spliced = encoding.map({name: encoding.pack(text) for name, text in members.items()})
    assert spliced == encoding.pack(members)


@both
@pytest.mark.parametrize("count", [1, 15, 16, MESSAGES_PER_FRAME_MAX])
def test_a_frame_of_packed_messages_is_an_array(encoding: Encoding, count: int) -> None:
    """Every width of the array header reads back."""
    assert encoding.split(encoding.join([encoding.pack(7)] * count)) == [7] * count


@both
@pytest.mark.parametrize("count", [0, MESSAGES_PER_FRAME_MAX + 1])
def test_a_frame_has_a_bounded_number_of_messages(encoding: Encoding, count: int) -> None:
    """None, or one too many, breaks the protocol."""
    with pytest.raises(RemoteProtocolError) as caught:
        encoding.split(encoding.join([encoding.pack(7)] * count))
    assert caught.value.close_code == 1002


@both
def test_a_frame_that_is_too_big_is_not_even_decoded(encoding: Encoding) -> None:
    """One byte more than FRAME_BYTES_MAX."""
    with pytest.raises(RemoteProtocolError) as caught:
        encoding.split(b"[" * (FRAME_BYTES_MAX + 1))
    assert caught.value.close_code == 1009


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x91",
        b"\x91\x01\x02",
        b"\x81\xa1a\x01",
        b"\x91\x81\x01\x02",
        b"\x91\xa1\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\xd6\xff\xff\xff\xff\xff",
        b"\x91\xc7\x0c\xff" + b"\xff" * 12,
    ],
)
def test_what_is_not_msgpack_closes_with_1007(frame: bytes) -> None:
    """Unknown, unfinished, followed by more, announced too big, nested too deep, bad timestamps."""
    with pytest.raises(RemoteProtocolError) as caught:
        MSGPACK.split(frame)
    assert caught.value.close_code == 1007


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"[",
        b"[1,]",
        b"\xff",
        b"[NaN]",
        b"[-Infinity]",
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b'[{"a":1e}]',
        b'["\x01"]',
        b"[" + b"9" * 5000 + b"]",
    ],
)
def test_what_is_not_json_closes_with_1007(frame: bytes) -> None:
    """Unfinished, not UTF-8, numbers that JSON does not have, nested too deep."""
    with pytest.raises(RemoteProtocolError) as caught:
        JSON.split(frame)
    assert caught.value.close_code == 1007


@pytest.mark.parametrize(
    ("encoding", "item"), [(MSGPACK, b"\x90"), (JSON, b"[],"), (MSGPACK, b"\x80")]
)
def test_a_bomb_of_empty_containers_stays_small(encoding: Encoding, item: bytes) -> None:
    """The largest frame of nothing but empty arrays or maps is refused before it fills memory."""
    count = (FRAME_BYTES_MAX - 8) // len(item)
    if encoding is MSGPACK:
        frame = b"\x91\xdd" + count.to_bytes(4, "big") + item * count
    else:
        frame = b"[" + item * (count - 1) + b"[]]"
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError):
        encoding.split(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * FRAME_BYTES_MAX


def test_as_many_containers_as_a_commit_can_need_are_fine() -> None:
    """The count begins to matter only where the frame is large, and then at the limit."""
    arrays = b"\xdd" + (CONTAINERS_MAX - 2).to_bytes(4, "big") + b"\x90" * (CONTAINERS_MAX - 2)
    assert len(MSGPACK.split(b"\x91" + arrays)[0]) == CONTAINERS_MAX - 2
    with pytest.raises(RemoteProtocolError):
        MSGPACK.split(b"\x92" + arrays + b"\x93\x90\x90\x90")


@pytest.mark.parametrize(
    ("encoding", "frame"),
    [
        (MSGPACK, b"\x91\x82\xa1a\x01\xa1a\x02"),
        (JSON, b'[{"a":1,"a":2}]'),
        (JSON, b'[{"$bytes":"not base64!"}]'),
        (JSON, b'[{"$bytes":1}]'),
        (JSON, b'[{"$bytes":"","more":1}]'),
    ],
)
def test_a_map_that_cannot_be_one_spoils_only_its_message(encoding: Encoding, frame: bytes) -> None:
    """A key twice, or bytes that are none: a placeholder, which every model refuses."""
    (found,) = encoding.split(frame)
    assert isinstance(found, NotAMap)
    with pytest.raises(InvalidRequest):
        JSON.value_in(found)


def test_one_json_object_is_a_frame_of_one_message() -> None:
    """For people who type."""
    assert JSON.split(b' {"id": 1} ') == [{"id": 1}]


@pytest.mark.parametrize(
    "value",
    [
        b"\xd4\x05\x00",
        b"\xd6\xff\x00\x00\x00\x01",
        b"\x91\xc7\x0c\xff" + b"\xff" * 12,
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x92\x82\xa1a\x01\xa1a\x02\x01",
        b"\x81\x01\x02",
        b"\x81\xc4\x01a\x02",
        b"\xca\x7f\xc0\x00\x00",
        b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",
        b"\x01\x02",
        b"",
        b"\xc1",
        b"\xa2\xed\xa0",
        b"\x81\xa6$bytes\x01",
    ],
)
def test_a_msgpack_value_that_is_not_plain_is_refused(value: bytes) -> None:
    """Extension types, timestamps, a key twice, keys that are no strings, NaN, two values, none."""
    with pytest.raises(InvalidRequest):
        MSGPACK.value_in(value)


@pytest.mark.parametrize("value", [1, "text", None, [], bytearray(b"\x01")])
def test_a_msgpack_value_travels_as_bytes(value: object) -> None:
    """Anything else is refused, also by a client."""
    with pytest.raises(InvalidRequest):
        MSGPACK.value_in(value)
    with pytest.raises(InvalidRequest):
        MSGPACK.value_from_service(value)


@pytest.mark.parametrize(
    ("long", "short"),
    [
        (b"\xcd\x00\x05", b"\x05"),
        (b"\xd9\x01a", b"\xa1a"),
        (b"\xdc\x00\x01\xc0", b"\x91\xc0"),
        (b"\xca\x3f\x80\x00\x00", msgpack.packb(1.0)),
        (b"\xc5\x00\x01a", b"\xc4\x01a"),
    ],
)
def test_a_value_has_one_spelling(long: bytes, short: bytes) -> None:
    """Longer forms of the same value become the canonical bytes."""
    assert MSGPACK.value_in(long) == short


def test_the_edges_of_a_value() -> None:
    """VALUE_BYTES_MAX and VALUE_DEPTH_MAX are allowed, one more is not."""
    text = "a" * (VALUE_BYTES_MAX - 5)
    assert len(MSGPACK.value_in(msgpack.packb(text))) == VALUE_BYTES_MAX
    with pytest.raises(LimitExceeded, match="VALUE_BYTES_MAX"):
        MSGPACK.value_in(msgpack.packb(text + "a"))
    deepest = b"\x91" * VALUE_DEPTH_MAX + b"\x01"
    assert MSGPACK.value_in(deepest) == deepest
    with pytest.raises(LimitExceeded, match="VALUE_DEPTH_MAX"):
        MSGPACK.value_in(b"\x91" + deepest)


@both
@given(frame=st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(encoding: Encoding, frame: bytes) -> None:
    """Any bytes give messages or RemoteProtocolError."""
    try:
        found = encoding.split(frame)
    except RemoteProtocolError:
        return
    assert isinstance(found, list)


@given(value=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(value: bytes) -> None:
    """What is accepted is canonical: accepted again as it is."""
    try:
        canonical = MSGPACK.value_in(value)
    except Rejected:
        return
    assert MSGPACK.value_in(canonical) == canonical


def test_json_frames_are_json_for_others() -> None:
    """A parser of somebody else reads them; text stays text."""
    packed = JSON.join([JSON.pack({"a": "\u00e9\u2028", "b": b"\x00"})])
    assert json.loads(packed) == [{"a": "\u00e9\u2028", "b": {"$bytes": "AA=="}}]
    assert "\u00e9".encode() in packed


def test_the_subprotocols_are_named_for_good() -> None:
    """Clients ask for these names."""
    assert list(SUBPROTOCOLS) == ["blackboard.v1+msgpack", "blackboard.v1+json"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"id": 1, "params": {"board": "b", "limit": 2**64}}, "limit"),
        ({"id": 1, "params": {"to": {"time_ms": -(2**63) - 1}}}, "time_ms"),
        ({"id": 1, "params": {"based_on": [["public/a", 1], ["public/b", 10**5000]]}}, "based_on"),
        ([2**64], "params"),
    ],
)
def test_an_integer_that_msgpack_does_not_have_is_refused_by_name(
    message: object, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        MSGPACK.pack(message)
    assert refused.value.field == field
    assert MSGPACK.pack([2**64 - 1, -(2**63)])
