"""What a redaction leaves: a marker in the place of each value, and a record of who asked for it.

`blackboard redact KEY` takes every value that a key ever had from a board, and from all boards that
share history with it. What stays is that the key changed, when, and by whom.

Invariants
- a key's value becomes REDACTED; what a document lay in is removed instead, for no part of one may
  be something else.
- for each redacted key there is a record below RECORDS, in the log from before its values went.
"""

import hashlib
from typing import Final

from msgspec.msgpack import encode

from blackboard.core.commit import LogEntry
from blackboard.core.documents.keys import document_of, document_prefix
from blackboard.core.path import SYSTEM, Ranges, namespace_of, range_below, range_of
from blackboard.errors import InvalidRequest
from blackboard.units import Key

REDACTED: Final = encode({"$redacted": True})
"""The encoded value that stands for one that was redacted."""
RECORDS: Final = f"{SYSTEM}/redactions"
"""The records of redactions, one key for each."""

NOTE: Final = "redacted"
"""Of the commit that removes a key, as all see it who may read the key."""


def record_key(path: Key) -> Key:
    """Where the redaction of `path`, or of the document that it is a part of, is recorded."""
    key = document_of(path) or path
    return f"{RECORDS}/{hashlib.sha256(key.encode()).hexdigest()}"


def is_redaction(entry: LogEntry) -> bool:
    """Whether an entry of the service's own begins a redaction: it removes the key."""
    return entry.note == NOTE and any(c.key.startswith(f"{RECORDS}/") for c in entry.changes)


def check_redactable(key: Key) -> Key:
    """Errors: InvalidRequest for the service's records, and for a part of a document."""
    if namespace_of(key) == SYSTEM:
        raise InvalidRequest(field="key", reason=f"{key} is a record of the service")
    if (document := document_of(key)) is not None:
        raise InvalidRequest(field="key", reason=f"{key} is a part of document {document}")
    return key


def scope_of(key: Key) -> Ranges:
    """What goes with `key`: itself, and the document there."""
    return (range_of(key), range_below(document_prefix(key)))


def left_of(path: Key) -> bytes | None:
    """What `path` holds once it is redacted; None: nothing."""
    return None if document_of(path) is not None else REDACTED


def is_marker(path: Key, value: bytes | None) -> bool:
    """Whether that may be what a redaction left."""
    return value == left_of(path)
