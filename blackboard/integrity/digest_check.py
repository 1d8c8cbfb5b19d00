"""Checks the content of a board against the digests of its namespaces in a manifest.

For operations that read the whole content of a board (a branch, an export, an import), and for a
restore, which starts with the present sums and adds its changes. Values are hashed in their stored
form, that is, encrypted ones as ciphertext. Records of the service (`system`) are left out.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from blackboard.core import digest
from blackboard.core.commit import Entry
from blackboard.core.path import SYSTEM, namespace_of
from blackboard.errors import Corrupt
from blackboard.units import Key, Milliseconds

ENTRIES_AT_ONCE: Final = 64
"""Entries that are added and removed without a pause: a millisecond."""


class Opened(bytes):
    """The plain bytes of a value, together with its ciphertext.

    Two are equal if their ciphertext is equal. A restore puts the same ciphertext back, so that
    digests do not change.
    """

    sealed: bytes

    @staticmethod
    def of(plain: bytes, sealed: bytes) -> "Opened":
        """`plain`, which was decrypted from `sealed`."""
        found = Opened(plain)
        found.sealed = sealed
        return found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Opened):
            return self.sealed == other.sealed
        return bytes.__eq__(self, other)

    # `bytes` has one of its own, which would compare the plain bytes.
    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        # Equal ciphertext has equal plain bytes, so this agrees with both ways to be equal.
        return bytes.__hash__(self)


def sealed_form(value: bytes) -> bytes:
    """The stored form of a value: its ciphertext, if it was decrypted."""
    return value.sealed if isinstance(value, Opened) else value


class Sums:
    """The sum (core/digest.py) of each namespace, while entries are added and removed.

    It begins empty, or with the sums `begin`, and with `others`, the digests of namespaces in which
    nothing changes.
    """

    def __init__(
        self, begin: Mapping[str, int] | None = None, others: Mapping[str, bytes] | None = None
    ) -> None:
        self._sums = dict(begin or {})
        self._others = others or {}

    def add(self, key: Key, value: bytes, expires_at_ms: Milliseconds | None) -> None:
        """Add the entry of `key`."""
        self._change(key, digest.add, _element(key, value, expires_at_ms))

    def remove(self, key: Key, value: bytes, expires_at_ms: Milliseconds | None) -> None:
        """Remove the entry of `key`."""
        self._change(key, digest.remove, _element(key, value, expires_at_ms))

    def _change(self, key: Key, how: Callable[[int, bytes], int], element: bytes) -> None:
        namespace = namespace_of(key)
        self._sums[namespace] = how(self._sums.get(namespace, digest.EMPTY), element)

    async def add_all(self, entries: Sequence[Entry]) -> None:
        """Add entries, with pauses for other tasks."""
        for number, entry in enumerate(entries, 1):
            self.add(entry.key, entry.value, entry.expires_at_ms)
            if number % ENTRIES_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def check(self, digests: Mapping[str, bytes], what: str) -> None:
        """Errors: Corrupt, about `what`, unless these are the digests of all namespaces."""
        held = dict(self._others)
        for number, (namespace, total) in enumerate(self._sums.items(), 1):
            held[namespace] = digest.digest_of(total)
            if number % ENTRIES_AT_ONCE == 0:
                await asyncio.sleep(0)
        for namespace in sorted((digests.keys() | held.keys()) - {SYSTEM}):
            found = held.get(namespace, digest.EMPTY_DIGEST)
            if found != digests.get(namespace, digest.EMPTY_DIGEST):
                raise Corrupt(what=what, reason=f"namespace {namespace} is not what was sealed")


def _element(key: Key, value: bytes, expires_at_ms: Milliseconds | None) -> bytes:
    return digest.element(key, digest.content_of(sealed_form(value)), expires_at_ms)
