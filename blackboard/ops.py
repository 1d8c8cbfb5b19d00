"""What a commit is made of: operations, conditions and fences, for `Board.commit`.

    await board.commit(
        [Put("public/plan", encode_value(plan)), Delete("public/draft")],
        conditions=[KeyAt("public/plan", ABSENT)],
    )

Values are encoded: `encode_value` takes what `Board.put` takes, `decode_value` gives it back.
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
