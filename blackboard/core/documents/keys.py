"""The keys of a document. A document at key K is stored with ordinary operations on ordinary keys.

    K/~doc/base                      {"parts": [generation, n], "owners": {...}, "mark": ...}
    K/~doc/part/<generation>/<i>     the compacted state, in n pieces of at most a value's size
    K/~doc/update/<index>            updates since then, appended: {"update": bytes, ...}
    K/~doc/update/restore-<mark>-<i> the inverse update of a restore
    K/~doc/overlap/<index>           {"text": ..., "start": ..., "end": ..., "agents": [...]}: what
                                     was edited by several at once, for OVERLAP_TTL_MS

So reads at a revision, watches, checkpoints, digests, diffs and branches include documents. The
content is that of the base with every update applied, in any order.

Invariants
- A compaction is one commit: it puts the new base and removes the updates that the base contains.
- The pieces of one update in a commit are adjacent (`more` says that another one follows).
- Only the base is ever changed in place.
"""

from blackboard.core.path import check_key
from blackboard.units import Key, Prefix

RESERVED = "~doc"
"""The segment below which a document lies. Only the service writes there."""


def document_prefix(key: Key) -> Prefix:
    """The prefix below which all of the document at `key` lies."""
    return f"{key}/{RESERVED}"


def base_key(key: Key) -> Key:
    """The base of a document: it says where the compacted state is."""
    return f"{key}/{RESERVED}/base"


def parts_prefix(key: Key, generation: str) -> Prefix:
    """The prefix of the pieces of the compacted state `generation`."""
    return f"{key}/{RESERVED}/part/{generation}"


def updates_prefix(key: Key) -> Prefix:
    """The prefix of the updates since the compacted state."""
    return f"{key}/{RESERVED}/update"


def overlaps_prefix(key: Key) -> Prefix:
    """The prefix of the reports of regions that several agents edited at once."""
    return f"{key}/{RESERVED}/overlap"


def check_document(key: Key) -> Key:
    """Return `key` if a document can be there. Errors: InvalidRequest, LimitExceeded."""
    check_key(check_key(key) + f"/{RESERVED}/part/{0:016}-{0:08}/{0:04}")
    return key


def document_of(path: str) -> Key | None:
    """The key of the document that `path` (a key or prefix) belongs to; None if to none."""
    key, found, rest = path.partition(f"/{RESERVED}")
    return key if found and (not rest or rest.startswith("/")) else None
