"""A record of the audit, and its signature."""

import hashlib
import hmac
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from blackboard.units import Milliseconds
from blackboard.wire.codec import encode_value

REFUSED: Final = frozenset({"access_denied", "unauthenticated", "fenced", "not_allowed"})
"""Outcomes that any client can cause, as often as it likes."""


FORGED: Final = "forged"
"""The verdict on a record whose signature does not match its key."""
UNKNOWN_KEY: Final = "unknown key"
"""The verdict on a record that was signed with a key that the service does not have."""
SEALED: Final = "sealed"
"""The verdict on a record with a valid signature."""
_LATER: Final = frozenset({"sealed_with", "seal", "checked"})
"""Fields that records of older versions lack."""


class AuditKeys:
    """Keys for audit records: the first one signs, all of them verify. They are derived from the
    service's secrets, which the operator of the engine need not have; a secret itself is never a
    key."""

    def __init__(self, secrets: list[str]) -> None:
        derived = [_derived(secret) for secret in secrets]
        self._by_name = {hashlib.sha256(b"name\0" + key).hexdigest()[:16]: key for key in derived}
        self._first = next(iter(self._by_name), "")

    def sealed(self, record: "AuditRecord") -> "AuditRecord":
        """The record, signed with the first key; unchanged without any key."""
        if not self._first:
            return record
        named = replace(record, sealed_with=self._first)
        return replace(named, seal=named.sealed_by(self._by_name[self._first]))

    def checked(self, record: "AuditRecord") -> "AuditRecord":
        """The record with this service's verdict on its signature; a verdict in the record is
        ignored."""
        if not record.sealed_with:
            return replace(record, checked="")
        key = self._by_name.get(record.sealed_with)
        if key is None:
            return replace(record, checked=UNKNOWN_KEY)
        # As bytes: compare_digest refuses text that is not ASCII, which a forged seal may be.
        is_right = hmac.compare_digest(record.seal.encode(), record.sealed_by(key).encode())
        return replace(record, checked=SEALED if is_right else FORGED)


def _derived(secret: str) -> bytes:
    return hmac.digest(secret.encode(), b"blackboard audit", "sha256")


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A request: `principal`, with token `token`, requested `verb` on `board`, about `what`, with
    `outcome`.

    `writer` and `number` name its place in the chain of one process; `previous` is the hash of the
    record before, empty for the first.
    """

    time_ms: Milliseconds
    principal: str
    token: str
    verb: str
    board: str
    what: str
    outcome: str
    writer: str = ""
    number: int = 0
    previous: str = ""
    count: int = 1
    """How many similar requests the record stands for; `what` is that of the last one."""
    sealed_with: str = ""
    """The name of the key that signed it; empty = not signed, as in older versions."""
    seal: str = ""
    """HMAC-SHA-256 over all fields above, in hexadecimal."""
    checked: str = ""
    """The service's verdict on the signature: SEALED, FORGED, UNKNOWN_KEY, or empty."""

    def stored(self) -> dict[str, Any]:
        """The stored form."""
        # Unsigned, it is hashed as older versions did: their chains must still verify.
        left_out = {"checked"} if self.sealed_with else _LATER
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def hash(self) -> str:
        """SHA-256 over its stored form, in hexadecimal."""
        return hashlib.sha256(self._packed(self.stored())).hexdigest()

    def sealed_by(self, key: bytes) -> str:
        """Its signature with `key`, in hexadecimal."""
        fields = {name: value for name, value in self.stored().items() if name != "seal"}
        return hmac.new(key, self._packed(fields), "sha256").hexdigest()

    @staticmethod
    def _packed(fields: dict[str, Any]) -> bytes:
        return encode_value([str(value) for value in fields.values()])
