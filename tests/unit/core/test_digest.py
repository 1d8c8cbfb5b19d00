"""The incremental digest, against a slow one that is written another way."""

import hashlib
import random

import pytest
from hypothesis import given, strategies as st

from blackboard.core import digest

ELEMENTS = st.lists(st.binary(min_size=32, max_size=32), max_size=12)


def slow_sum(elements: list[bytes]) -> list[int]:
    """The sum as 1,024 plain numbers, one after the other."""
    lanes = [0] * 1024
    for element in elements:
        stream = hashlib.shake_128(element).digest(2048)
        for i in range(1024):
            lanes[i] = (lanes[i] + stream[2 * i] + 256 * stream[2 * i + 1]) % 65536
    return lanes


def fast_sum(elements: list[bytes]) -> int:
    """The same by the module under test."""
    total = digest.EMPTY
    for element in elements:
        total = digest.add(total, element)
    return total


@given(ELEMENTS)
def test_a_sum_is_that_of_the_slow_oracle(elements: list[bytes]) -> None:
    """Every lane, whatever is carried in the ones beside it."""
    packed = b"".join(lane.to_bytes(2, "little") for lane in slow_sum(elements))
    total = fast_sum(elements)
    assert digest.to_bytes(total) == packed
    assert digest.from_bytes(packed) == total
    assert digest.digest_of(total) == hashlib.sha256(packed).digest()


@given(ELEMENTS, st.randoms(use_true_random=False))
def test_the_order_does_not_matter(elements: list[bytes], dice: random.Random) -> None:
    """The same elements in another order have the same sum."""
    shuffled = list(elements)
    dice.shuffle(shuffled)
    assert fast_sum(shuffled) == fast_sum(elements)


@given(ELEMENTS, ELEMENTS)
def test_what_is_removed_was_never_there(kept: list[bytes], gone: list[bytes]) -> None:
    """Removing undoes adding, in any order; sums of parts add up to the sum of all."""
    total = fast_sum(kept + gone)
    assert digest.combine(fast_sum(kept), fast_sum(gone)) == total
    for element in gone:
        total = digest.remove(total, element)
    assert total == fast_sum(kept)


def test_removing_borrows_within_a_lane_only() -> None:
    """From nothing: each lane wraps around by itself."""
    element = b"e" * 32
    below = digest.remove(digest.EMPTY, element)
    wrapped = [(-lane) % 65536 for lane in slow_sum([element])]
    assert digest.to_bytes(below) == b"".join(lane.to_bytes(2, "little") for lane in wrapped)
    assert digest.add(below, element) == digest.EMPTY


def test_known_vectors() -> None:
    """The format never changes: archives and manifests hold such digests."""
    content = digest.content_of(b"\xa5hello")
    element = digest.element("public/a", content, None)
    later = digest.element("public/a", content, 0)
    named = (8).to_bytes(4, "little") + bytes(8) + b"public/a" + content
    assert element == hashlib.sha256(named).digest()
    assert element.hex() == "2fdf75a00d252231b74fb2a0ea3bc9ff42e972167788140a821bab7b3a39ebcf"
    assert later != element, "an entry that expired in 1970 is none that never expires"
    assert hashlib.sha256(bytes(2048)).digest() == digest.EMPTY_DIGEST
    assert (
        digest.digest_of(digest.add(digest.EMPTY, element)).hex()
        == "09e4e70a7479a8a858dbacb8f497de705b624719712d87a0b5e11009f10dd8ab"
    )


def test_names_and_values_cannot_be_shifted_into_each_other() -> None:
    """The length of the key is part of the element."""
    content = digest.content_of(b"x")
    assert digest.element("public/ab", content, None) != digest.element("public/a", content, None)


def test_another_size_is_no_sum() -> None:
    """A cut sum is refused."""
    with pytest.raises(ValueError, match="2048"):
        digest.from_bytes(bytes(2047))
