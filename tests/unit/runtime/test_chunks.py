"""Cutting and joining, at the edges of one entry, one part and one value."""

import pytest

from blackboard.errors import Corrupt, LimitExceeded
from blackboard.limits import (
    COMMIT_BYTES_MAX,
    KEY_BYTES_MAX,
    LARGE_BYTES_MAX,
    LARGE_PART_BYTES,
    OPERATIONS_MAX,
    RESTORE_BYTES_MAX,
    STEP_CALLS_MAX,
    STEP_PARTS_MAX,
    VALUE_BYTES_MAX,
)
from blackboard.runtime import chunks as large
from blackboard.wire.codec import decode_value, encode_large, encode_value

HEAD_BYTES = 5
"""Of bytes above 64 KiB as msgpack."""


@pytest.mark.parametrize(
    ("size_bytes", "parts"),
    [
        (VALUE_BYTES_MAX, 0),
        (VALUE_BYTES_MAX + 1, 3),
        (3 * LARGE_PART_BYTES, 3),
        (3 * LARGE_PART_BYTES + 1, 4),
        (LARGE_BYTES_MAX, 128),
    ],
)
def test_a_value_has_as_many_parts_as_it_needs(size_bytes: int, parts: int) -> None:
    """None, if one entry can hold it."""
    assert large.parts_of(size_bytes) == parts == len(large.part_keys("private/a/x", size_bytes))
    assert large.is_large(size_bytes) is bool(parts)


@pytest.mark.parametrize("size_bytes", [3 * LARGE_PART_BYTES, 3 * LARGE_PART_BYTES + 1])
def test_what_was_cut_is_joined_to_the_bit(size_bytes: int) -> None:
    """Whatever the parts' edges cut in two; their keys sort as they follow each other."""
    text = "é" * ((size_bytes - HEAD_BYTES) // 2) + "x" * ((size_bytes - HEAD_BYTES) % 2)
    encoded = encode_large(text)
    assert len(encoded) == size_bytes
    puts = large.puts("private/a/x", encoded)
    assert [put.key for put in puts] == sorted(put.key for put in puts)
    assert all(len(put.value) <= VALUE_BYTES_MAX for put in puts)
    parts = [decode_value(put.value) for put in puts]
    assert large.joined("x", parts, large.digest_of(encoded)) == text


def test_what_fits_into_an_entry_is_one() -> None:
    """At the key itself, as it is."""
    [put] = large.puts("private/a/x", encode_value("text"))
    assert (put.key, decode_value(put.value)) == ("private/a/x", "text")


@pytest.mark.parametrize("damage", [slice(1, None), slice(None, None, -1), slice(0, 0)])
def test_other_parts_are_corrupt(damage: slice) -> None:
    """One missing, another order, none at all."""
    encoded = encode_large(b"x" * VALUE_BYTES_MAX)
    parts = [decode_value(put.value) for put in large.puts("private/a/x", encoded)]
    with pytest.raises(Corrupt) as found:
        large.joined("report", parts[damage], large.digest_of(encoded))
    assert found.value.what == "report"


def test_a_large_value_has_a_limit() -> None:
    """LARGE_BYTES_MAX, encoded."""
    assert len(encode_large(b"x" * (LARGE_BYTES_MAX - HEAD_BYTES))) == LARGE_BYTES_MAX
    with pytest.raises(LimitExceeded) as refused:
        encode_large(b"x" * (LARGE_BYTES_MAX - HEAD_BYTES + 1))
    assert (refused.value.limit, refused.value.value) == ("LARGE_BYTES_MAX", LARGE_BYTES_MAX + 1)


def test_one_operation_removes_a_whole_journal() -> None:
    """Record, result and timer of each call, parts, and a note for each value that is kept."""
    kept = STEP_PARTS_MAX // large.parts_of(VALUE_BYTES_MAX + 1)
    assert 3 * STEP_CALLS_MAX + STEP_PARTS_MAX + kept <= OPERATIONS_MAX
    assert large.parts_of(LARGE_BYTES_MAX) <= STEP_PARTS_MAX
    assert LARGE_BYTES_MAX + COMMIT_BYTES_MAX <= RESTORE_BYTES_MAX
    assert len(large.part_keys("private/" + "a" * 128 + "/" + "b" * 128, LARGE_BYTES_MAX)[-1]) <= (
        KEY_BYTES_MAX
    )


def test_batches_are_what_one_commit_has_room_for() -> None:
    """In their order, none left out."""
    puts = large.puts("private/a/x", encode_large(b"x" * (9 * LARGE_PART_BYTES)))
    batches = large.batches(puts)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [put for batch in batches for put in batch] == puts


def test_keeping_and_dropping_go_by_the_last_member() -> None:
    """What was put ahead and is not kept goes, too."""
    keeping = large.Keeping()
    keeping.keep("a", b"1")
    keeping.drop("a")
    keeping.drop("b")
    keeping.keep("b", b"2")
    assert (keeping.kept, keeping.removed(["b", "c"])) == ({"b": b"2"}, ["a", "c"])


def test_parts_are_known_by_their_keys() -> None:
    """What is kept in one entry is none."""
    key = f"{large.kept_prefix('ada')}/{'0' * 64}"
    assert large.is_part(f"{key}/0000".split("/"))
    assert not large.is_part(key.split("/"))
    assert not large.is_part("private/ada/notes/1/2".split("/"))
