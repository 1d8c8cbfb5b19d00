"""The parts of a commit for `Board.commit`: operations, conditions and fences.

    await board.commit(
        [Put("public/plan", encode_value(plan)), Delete("public/draft")],
        conditions=[KeyAt("public/plan", ABSENT)],
    )

Values are encoded: `encode_value` encodes what `Board.put` accepts, `decode_value` decodes it.
"""

from blackboard.core.commit import (
    ABSENT,
    PRESENT,
    Append,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Lease,
    PrefixUnchanged,
    Put,
    Release,
    Renew,
    Waiter,
)
from blackboard.wire.codec import decode_value, encode_value

__all__ = [
    "ABSENT",
    "PRESENT",
    "Append",
    "Delete",
    "DeletePrefix",
    "Expire",
    "Grant",
    "HeldFence",
    "Increment",
    "KeyAt",
    "Lease",
    "PrefixUnchanged",
    "Put",
    "Release",
    "Renew",
    "Waiter",
    "decode_value",
    "encode_value",
]
