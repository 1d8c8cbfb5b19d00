"""A record of the audit."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Final

from blackboard.types import Milliseconds
from blackboard.wire.codec import encode_value

REFUSED: Final = frozenset({"access_denied", "unauthenticated", "fenced", "not_allowed"})
"""Outcomes that anybody can cause, as often as he likes."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """`principal`, by token `token`, asked for `verb` on `board`, about `what`: `outcome`.

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
    """How many requests like this one it stands for; `what` is that of the last one."""

    def hash(self) -> str:
        """SHA-256 over all of it, in hexadecimal."""
        packed = encode_value([str(value) for value in asdict(self).values()])
        return hashlib.sha256(packed).hexdigest()
