"""Values that are too large for one entry: cut into parts, known by their digest.

A part is an entry like any other, below a private prefix of the agent. So it is encrypted,
restored, branched, archived and pruned as everything else, on every engine and over every link.

Invariants
- equal values have equal parts, so the archive stores them once.
- the last part is committed last: if it is there, all of them are.
- A joined value is bit for bit the one that was cut; anything else is Corrupt.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from blackboard.client.files import PARTS_PER_COMMIT as PARTS_PER_COMMIT
from blackboard.core.commit import Put
from blackboard.errors import Corrupt
from blackboard.limits import LARGE_PART_BYTES, VALUE_BYTES_MAX
from blackboard.units import Key, Prefix
from blackboard.wire.codec import decode_value, encode_value

_PART_SEGMENTS = 5
"""Segments of `private/<agent>/~kept/<digest>/<number>`."""


def digest_of(encoded: bytes) -> str:
    """SHA-256 of an encoded value, in hexadecimal."""
    return hashlib.sha256(encoded).hexdigest()


def is_large(size_bytes: int) -> bool:
    """Whether an encoded value of that size is stored in parts."""
    return size_bytes > VALUE_BYTES_MAX


def parts_of(size_bytes: int) -> int:
    """The number of parts of an encoded value of that size; 0 if it is not large."""
    return _cuts_of(size_bytes) if is_large(size_bytes) else 0


def part_keys(prefix: Prefix, size_bytes: int) -> list[Key]:
    """The keys of the parts of a value of that size, in order; none if it is not large."""
    return keys_of_cut(prefix, size_bytes) if is_large(size_bytes) else []


def keys_of_cut(prefix: Prefix, size_bytes: int) -> list[Key]:
    """Where `cut` puts a value of that size, however small."""
    return [f"{prefix}/{number:04}" for number in range(_cuts_of(size_bytes))]


def _cuts_of(size_bytes: int) -> int:
    return -(-size_bytes // LARGE_PART_BYTES)


def cut(prefix: Prefix, encoded: bytes) -> list[Put]:
    """The operations that put an encoded value in parts below `prefix`, however small it is."""
    return [
        Put(part, encode_value(encoded[number * LARGE_PART_BYTES :][:LARGE_PART_BYTES]))
        for number, part in enumerate(keys_of_cut(prefix, len(encoded)))
    ]


def puts(key: Key, encoded: bytes) -> list[Put]:
    """The operations that put an encoded value at `key`, or its parts below it, if it is large."""
    return cut(key, encoded) if is_large(len(encoded)) else [Put(key, encoded)]


def batches(ops: Sequence[Put]) -> list[Sequence[Put]]:
    """Puts of parts, as many at a time as one commit has."""
    return [ops[at : at + PARTS_PER_COMMIT] for at in range(0, len(ops), PARTS_PER_COMMIT)]


def joined(what: str, parts: Iterable[Any], digest: str) -> Any:
    """The value whose parts these are. Errors: Corrupt, which names `what`."""
    return decode_value(joined_bytes(what, parts, digest))


def joined_bytes(what: str, parts: Iterable[Any], digest: str) -> bytes:
    """The encoded value whose parts these are. Errors: Corrupt, which names `what`."""
    # A part that is missing, or was redacted, is left out here: then the digest differs.
    encoded = b"".join(part for part in parts if isinstance(part, bytes))
    if digest_of(encoded) != digest:
        raise Corrupt(what=what, reason="its parts are not those of the value with its digest")
    return encoded


def kept_prefix(agent: str) -> Prefix:
    """The prefix of the large values that `agent` keeps, by their digests."""
    return f"private/{agent}/~kept"


def is_part(segments: Sequence[str]) -> bool:
    """Whether the key with these segments is that of a part of a value that is kept."""
    return len(segments) == _PART_SEGMENTS and (segments[0], segments[2]) == ("private", "~kept")


@dataclass(slots=True)
class Keeping:
    """The large values that one run of a step keeps and drops, by digest."""

    kept: dict[str, bytes] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    def keep(self, digest: str, encoded: bytes) -> None:
        """Keep a large value."""
        self.kept[digest] = encoded
        # Dropped earlier in the same step: its commit must not remove the parts.
        self.dropped.discard(digest)

    def drop(self, digest: str) -> None:
        """Drop it."""
        self.kept.pop(digest, None)
        self.dropped.add(digest)

    def removed(self, ahead: Iterable[str]) -> list[str]:
        """The digests to remove when the step commits, among them values that uncommitted runs put
        `ahead`."""
        return sorted(self.dropped.union(ahead) - self.kept.keys())
