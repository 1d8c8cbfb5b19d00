"""What a redaction leaves: a marker in place of each value, and a record of its requester.

`blackboard redact KEY` removes every value that a key ever had from a board, and from all boards
that share history with it. The facts that the key changed, when, and by whom, stay.

Invariants
- A key's value becomes REDACTED. The keys of a document are removed instead, because REDACTED would
  not be a valid part of one.
- Each redacted key has a record below RECORDS, which is in the log before its values are removed.
"""

import hashlib
from typing import Final

from msgspec.msgpack import encode

from blackboard.core.commit import LogEntry
from blackboard.core.path import (
    SYSTEM,
    Ranges,
    document_of,
    document_prefix,
    file_of,
    file_prefix,
    namespace_of,
    range_below,
    range_of,
    tree_of,
    tree_prefix,
)
from blackboard.errors import InvalidRequest
from blackboard.units import Key, Prefix

REDACTED: Final = encode({"$redacted": True})
"""The encoded value that replaces a redacted one."""
RECORDS: Final = f"{SYSTEM}/redactions"
"""The records of redactions, one key for each."""

NOTE: Final = "redacted"
"""The note of the commit that removes a key; every reader of the key sees it."""


def record_key(path: Key) -> Key:
    """The key of the record for the redaction of `path`, or of the document, file or workspace that
    it belongs to."""
    key = document_of(path) or file_of(path) or tree_of(path) or path
    # Hashed, because a whole key does not fit into one segment.
    return f"{RECORDS}/{hashlib.sha256(key.encode()).hexdigest()}"


def is_redaction(entry: LogEntry) -> bool:
    """Whether `entry` is the service's commit that begins a redaction by removing the key."""
    return entry.note == NOTE and any(c.key.startswith(f"{RECORDS}/") for c in entry.changes)


def check_redactable(key: Key) -> Key:
    """Errors: InvalidRequest for the service's records, and for a part of a document, a file or a
    workspace."""
    if namespace_of(key) == SYSTEM:
        raise InvalidRequest(field="key", reason=f"{key} is a record of the service")
    if (document := document_of(key)) is not None:
        raise InvalidRequest(field="key", reason=f"{key} is a part of document {document}")
    if (file := file_of(key)) is not None:
        raise InvalidRequest(field="key", reason=f"{key} is a part of file {file}")
    if (tree := tree_of(key)) is not None:
        raise InvalidRequest(field="key", reason=f"{key} is a part of workspace {tree}")
    return key


def scope_of(key: Key) -> Ranges:
    """The ranges that a redaction of `key` covers: the key, and what is stored in parts at it."""
    return (range_of(key), *map(range_below, parts_prefixes(key)))


def parts_prefixes(key: Key) -> tuple[Prefix, ...]:
    """Where the document, the file and the workspace at `key` lie, in order."""
    return document_prefix(key), file_prefix(key), tree_prefix(key)


def left_of(path: Key) -> bytes | None:
    """What `path` holds once it is redacted; None if it is removed."""
    return None if document_of(path) is not None else REDACTED


def is_marker(path: Key, value: bytes | None) -> bool:
    """Whether `value` at `path` may be what a redaction left."""
    return value == left_of(path)
