"""Where a document lies: a document at key K is kept by the operations that a board has anyway.

    K/~doc/base                      {"parts": [generation, n], "owners": {...}, "mark": ...}
    K/~doc/part/<generation>/<i>     the compacted state, in n pieces of at most a value's size
    K/~doc/update/<index>            updates since then, appended: {"update": bytes, ...}
    K/~doc/update/restore-<mark>-<i> the inverse update of a restore
    K/~doc/overlap/<index>           {"text": ..., "start": ..., "end": ..., "agents": [...]}: what
                                     was edited by several at once, for OVERLAP_TTL_MS

So a document is part of every read at a revision, watch, checkpoint, digest, diff and branch.
The content is that of the base with every update applied; their order does not matter.

Invariants
- a compaction is one commit: the new base appears as the updates that it contains go.
- the pieces of one update in a commit are neighbours (`more` says that another one follows).
- nothing here is ever changed in place but the base.
"""

from blackboard.core.path import check_key
from blackboard.units import Key, Prefix

RESERVED = "~doc"
"""The segment below which a document lies. Only the service writes there."""


def document_prefix(key: Key) -> Prefix:
    """Everything of the document at `key` lies below this."""
    return f"{key}/{RESERVED}"


def base_key(key: Key) -> Key:
    """The compacted state, or rather what says where it is."""
    return f"{key}/{RESERVED}/base"


def parts_prefix(key: Key, generation: str) -> Prefix:
    """The pieces of the compacted state `generation`."""
    return f"{key}/{RESERVED}/part/{generation}"


def updates_prefix(key: Key) -> Prefix:
    """The updates since the compacted state."""
    return f"{key}/{RESERVED}/update"


def overlaps_prefix(key: Key) -> Prefix:
    """The reports of regions that several agents edited at once."""
    return f"{key}/{RESERVED}/overlap"


def check_document(key: Key) -> Key:
    """Return `key` if a document can be there. Errors: InvalidRequest, LimitExceeded."""
    check_key(check_key(key) + f"/{RESERVED}/part/{0:016}-{0:08}/{0:04}")
    return key


def document_of(path: str) -> Key | None:
    """The key of the document that `path` (a key or prefix) belongs to; None if to none."""
    key, found, rest = path.partition(f"/{RESERVED}")
    return key if found and (not rest or rest.startswith("/")) else None
