"""Answers: revisions are packed in pieces that fit."""

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from blackboard.core.commit import Change, ChangeKind, CommitId, LogEntry
from blackboard.limits import COMMIT_BYTES_MAX, FRAME_BYTES_MAX, VALUE_BYTES_MAX
from blackboard.wire import answers, reading
from blackboard.wire.codec import encode_value
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from tests.unit.wire.drawing import log_entries

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)


@pytest.mark.slow
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
