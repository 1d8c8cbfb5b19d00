"""The digest of a set of entries, kept up to date by one addition per change.

LtHash16: each element becomes a vector of 1,024 numbers of 16 bits, and the sum of a set is the sum
of its vectors, number by number. Adding and removing commute, so the sum of a namespace at any
revision follows from the one before and the changes, in whatever order they were made.

Invariants
- `add` and `remove` undo each other; the sum of nothing is EMPTY (0).
- To find two different sets with the same sum is as hard as the lattice problem of the papers
  below. Their authors estimate 16 bits by 1,024 at more than 200 bits of security.

A sum is a Python integer of SUM_BYTES bytes; lane i is in its bits 16i..16i+15. A machine word
holds several lanes, so one big addition adds them all. The highest bit of each lane is added
separately, so that no carry crosses into the next lane.

Source: M. Bellare, D. Micciancio, "A New Paradigm for Collision-Free Hashing" (1997); K. Lewi,
W. Kim, I. Maykov, S. Weis, "Securing Update Propagation with Homomorphic Hashing" (2019).
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from blackboard.units import Key, Milliseconds

LANES: Final = 1_024
LANE_BITS: Final = 16
SUM_BYTES: Final = LANES * LANE_BITS // 8
EMPTY: Final = 0
"""The sum of the empty set."""

_TOPS: Final = int.from_bytes(b"\x00\x80" * LANES, "little")  # the highest bit of each lane
_RESTS: Final = int.from_bytes(b"\xff\x7f" * LANES, "little")  # all the others


def element(key: Key, content: bytes, expires_at_ms: Milliseconds | None) -> bytes:
    """The element (32 bytes) that stands for an entry: its key, value and expiry.

    `content` is the SHA-256 of the encoded value, so that a large value need not be loaded.
    """
    name = key.encode()
    # Shifted by one, so that 0 stands for an entry that does not expire.
    expiry = 0 if expires_at_ms is None else expires_at_ms + 1
    sized = len(name).to_bytes(4, "little") + expiry.to_bytes(8, "little")
    return hashlib.sha256(sized + name + content).digest()


def content_of(value: bytes) -> bytes:
    """The SHA-256 of an encoded value, for `element`."""
    return hashlib.sha256(value).digest()


def add(total: int, item: bytes) -> int:
    """`total` with one more element."""
    return combine(total, _expand(item))


def remove(total: int, item: bytes) -> int:
    """`total` without one element."""
    other = _expand(item)
    # With its highest bit set, no lane borrows from the next one; the XOR then corrects that bit.
    return ((total | _TOPS) - (other & _RESTS)) ^ ((total ^ other ^ _TOPS) & _TOPS)


def combine(one: int, other: int) -> int:
    """The sum of two sets' sums."""
    return ((one & _RESTS) + (other & _RESTS)) ^ ((one ^ other) & _TOPS)


def digest_of(total: int) -> bytes:
    """The digest (32 bytes) of the set with this sum."""
    return hashlib.sha256(to_bytes(total)).digest()


def to_bytes(total: int) -> bytes:
    """A sum as SUM_BYTES bytes."""
    return total.to_bytes(SUM_BYTES, "little")


def from_bytes(packed: bytes) -> int:
    """The inverse of `to_bytes`. Errors: ValueError for another size."""
    if len(packed) != SUM_BYTES:
        raise ValueError(f"a sum has {SUM_BYTES} bytes, not {len(packed)}")
    return int.from_bytes(packed, "little")


def _expand(item: bytes) -> int:
    return int.from_bytes(hashlib.shake_128(item).digest(SUM_BYTES), "little")


EMPTY_DIGEST: Final = digest_of(EMPTY)
"""The digest of an empty namespace."""


def digests_of(totals: Mapping[str, int]) -> dict[str, bytes]:
    """Digests of the namespaces that are not empty."""
    return {name: digest_of(total) for name, total in sorted(totals.items()) if total != EMPTY}


def without_empty(digests: Mapping[str, bytes]) -> dict[str, bytes]:
    """The digests of the namespaces that are not empty, sorted."""
    return {name: d for name, d in sorted(digests.items()) if d != EMPTY_DIGEST}
