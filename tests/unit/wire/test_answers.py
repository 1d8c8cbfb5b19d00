"""Answers: errors keep their code and fields, revisions are packed in pieces that fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from blackboard.core.commit import Change, ChangeKind, CommitId, LogEntry
from blackboard.errors import BY_CODE, BlackboardError, Conflict, InvalidRequest, from_fields
from blackboard.types import COMMIT_BYTES_MAX, FRAME_BYTES_MAX, VALUE_BYTES_MAX
from blackboard.wire import answers, reading
from blackboard.wire.codec import encode_value
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from tests.unit.wire.drawing import log_entries

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)


def test_every_error_has_a_number_of_its_own() -> None:
    """The table is complete and no number stands twice."""
    assert answers.RPC_CODES.keys() == BY_CODE.keys()
    numbers = [*answers.RPC_CODES.values(), answers.METHOD_NOT_FOUND]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("code", BY_CODE)
@both
def test_every_error_survives(encoding: Encoding, code: str) -> None:
    """Written, packed, split and read it has the same type and the same fields."""
    kind = BY_CODE[code]
    names = kind.__dataclass_fields__
    error = from_fields(code, {name: f"{name}-1" for name in names})
    (message,) = encoding.split(encoding.join([encoding.pack(answers.write_error(error))]))
    found = reading.read_error(message)
    assert type(found) is type(error)
    assert found.fields() == error.fields()
    assert message["code"] == answers.RPC_CODES[code]


def test_an_unknown_method_has_json_rpcs_number() -> None:
    """-32601, as every JSON-RPC client expects."""
    error = answers.write_error(InvalidRequest(field="method", reason="there is no method x"))
    assert (error["code"], error["data"]["code"]) == (-32601, "invalid_request")


def test_the_value_in_a_conflict_survives() -> None:
    """Any value, so that an agent can plan anew without another read."""
    conflict = Conflict("public/a", 3, 5, "bob", 5, 9, {"n": [1, b"x", None]})
    for encoding in (MSGPACK, JSON):
        packed = encoding.pack(answers.write_error(conflict))
        (message,) = encoding.split(encoding.join([packed]))
        found = reading.read_error(message)
        assert isinstance(found, BlackboardError)
        assert found.fields() == conflict.fields()


@both
@given(entries=st.lists(log_entries, max_size=5), bytes_max=st.integers(1, 2000))
def test_pieces_join_to_what_they_were(
    encoding: Encoding, entries: list[LogEntry], bytes_max: int
) -> None:
    """However small the pieces have to be."""
    entries = [replace(entry, revision=number) for number, entry in enumerate(entries, 1)]
    pieces = answers.pack_revisions(entries, encoding, bytes_max=bytes_max)
    joined: list[LogEntry] = []
    for piece in pieces:
        joined = reading.join_revisions(joined, _read(piece, encoding))
    assert joined == entries


def _read(piece: bytes, encoding: Encoding) -> list[LogEntry]:
    (messages,) = encoding.split(encoding.join([piece]))
    return reading.read_revisions(messages, encoding)


def test_the_largest_commit_of_the_worst_text_fits_into_frames() -> None:
    """Control characters take six bytes each in JSON: 24 MiB, which leave as pieces that fit."""
    value = encode_value("\x01" * (VALUE_BYTES_MAX - 5))
    count = COMMIT_BYTES_MAX // VALUE_BYTES_MAX
    changes = tuple(Change(ChangeKind.PUT, f"public/{n}", value) for n in range(count))
    entry = LogEntry(1, 2, CommitId("ada", 0, "", 0), changes, b"\0" * 32)
    pieces = answers.pack_revisions([entry], JSON)
    assert len(pieces) == count
    assert max(map(len, pieces)) < FRAME_BYTES_MAX - 1000
    assert len(answers.pack_revisions([entry], MSGPACK)) == 1
