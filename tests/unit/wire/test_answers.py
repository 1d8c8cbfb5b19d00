"""Answers: revisions are packed in pieces that fit."""

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from blackboard.core.commit import Change, ChangeKind, CommitId, LogEntry
from blackboard.limits import COMMIT_BYTES_MAX, FRAME_BYTES_MAX, VALUE_BYTES_MAX
from blackboard.wire import answers
from blackboard.wire.answers import RevisionMessage
from blackboard.wire.codec import encode_value
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from blackboard.wire.session import join_revisions, pack_revisions
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
    pieces = pack_revisions(entries, encoding, bytes_max=bytes_max)
    joined: tuple[LogEntry, ...] = ()
    for piece in pieces:
        joined = join_revisions(joined, _read(piece, encoding))
    assert joined == tuple(entries)


def _read(piece: bytes, encoding: Encoding) -> tuple[LogEntry, ...]:
    (messages,) = encoding.split(encoding.join([piece]))
    return tuple(answers.read(list[RevisionMessage], messages, encoding))


def test_the_largest_commit_of_the_worst_text_fits_into_frames() -> None:
    """Control characters take six bytes each in JSON: 24 MiB, which leave as pieces that fit."""
    value = encode_value("\x01" * (VALUE_BYTES_MAX - 5))
    count = COMMIT_BYTES_MAX // VALUE_BYTES_MAX
    changes = tuple(Change(ChangeKind.PUT, f"public/{n}", value) for n in range(count))
    entry = LogEntry(1, 2, CommitId("ada", 0, "", 0), changes, b"\0" * 32)
    pieces = pack_revisions([entry], JSON)
    assert len(pieces) == count
    assert max(map(len, pieces)) < FRAME_BYTES_MAX - 1000
    assert len(pack_revisions([entry], MSGPACK)) == 1


def test_a_revision_in_pieces_keeps_the_account_behind_its_author() -> None:
    """As one that came in a single piece does."""
    changes = tuple(Change(ChangeKind.DELETE, f"public/{n}") for n in range(3))
    entry = LogEntry(1, 2, CommitId("ada.me", 0, "", 0), changes, b"\0" * 32, account="ada")
    joined: tuple[LogEntry, ...] = ()
    for piece in pack_revisions([entry], MSGPACK, bytes_max=1):
        joined = join_revisions(joined, _read(piece, MSGPACK))
    assert joined == (entry,)
