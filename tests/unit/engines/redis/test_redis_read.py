"""Replies of the reading scripts."""

import msgpack
import pytest

from blackboard.core.commit import Epoch, Put
from blackboard.engines.redis.codec import read_log_page
from blackboard.errors import Compacted, Corrupt, FutureRevision
from blackboard.wire.codec import encode_results, prepare
from tests.conformance.writer import packed
from tests.unit.engines.redis.test_codec import make_commit

EPOCH = msgpack.packb([1, "e1", "created", 0, 0])


def entry(revision: int) -> list[object]:
    """A stream entry as XRANGE gives it."""
    prepared = prepare(make_commit(Put("public/a", packed(b"x" * 3000)), Put("public/b", b"\x01")))
    fields = [b"b", prepared.body, b"t", b"77", b"r", encode_results([None, None])]
    return [b"%d-0" % revision, [*fields, b"v1", prepared.large[0]]]


def reply(*entries: object, oldest: int = 4) -> list[object]:
    """A reply of log.lua from a board whose log holds `oldest`..9."""
    return [[9, oldest, EPOCH, 80, 6], list(entries)]


def test_an_entry_has_its_large_values_back() -> None:
    """They stand in fields of their own."""
    page = read_log_page(reply(entry(5)), 4)
    [found] = page.entries
    assert (found.revision, found.time_ms) == (5, 77)
    assert [change.value for change in found.changes] == [packed(b"x" * 3000), b"\x01"]
    assert (page.head.revision, page.head.oldest, page.head.log_entries) == (9, 4, 6)


def test_positions_are_compared_with_both_ends_of_the_log() -> None:
    """Whatever the stream answered."""
    for after in (3, 9):
        assert read_log_page(reply(), after).entries == ()
    with pytest.raises(Compacted):
        read_log_page(reply(), 2)
    with pytest.raises(FutureRevision):
        read_log_page(reply(), 10)


def test_a_gap_is_corrupt_unless_an_epoch_begins_there() -> None:
    """A log that lacks a revision is never read as if it did not."""
    with pytest.raises(Corrupt):
        read_log_page(reply(entry(6)), 4)
    marker = msgpack.packb([2, "e2", "engine", 4, 9])
    [found] = read_log_page(reply([b"9-0", [b"e", marker, b"t", b"5"]]), 4).entries
    assert found.epoch == Epoch(2, "e2", "engine", 4, 9)
