"""What the service sends: results and changes, as plain maps. Errors are in `wire/errors.py`.

The shapes are TypedDicts, from which the published JSON Schema is made; nothing validates what we
send ourselves. `wire/reading.py` reads them back.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NotRequired, TypedDict

import msgspec

from blackboard.core.commit import (
    Change,
    Entry,
    Epoch,
    Head,
    Lease,
    LogEntry,
    LogPage,
    Proof,
    Reading,
    Result,
    name_of,
    narrowed_from,
)
from blackboard.wire.errors import ErrorMessage
from blackboard.wire.frames import MESSAGE_BYTES_MAX, Encoding

# --- shapes ---------------------------------------------------------------------------------------


class EntryMessage(TypedDict):
    """What a key holds. `account` is present if the author's name was narrowed from it."""

    key: str
    value: Any
    mod_revision: int
    create_revision: int
    author: str
    time_ms: int
    expires_at_ms: NotRequired[int]
    account: NotRequired[str]


class ReadingMessage(TypedDict):
    """Result of `read` and `list`; `next_key` continues a listing that was cut short."""

    revision: int
    epoch: str
    entries: list[EntryMessage]
    next_key: NotRequired[str]


class WaiterMessage(TypedDict):
    """A waiter in the queue of a lease."""

    holder: str
    ttl_ms: int
    until_ms: int


class LeaseMessage(TypedDict):
    """A granted lease, with its waiters in order."""

    key: str
    holder: str
    fence: int
    until_ms: int
    waiters: NotRequired[list[WaiterMessage]]
    ttl_ms: NotRequired[int]


class LeasesMessage(TypedDict):
    """Result of `leases`; `next_key` continues a listing that was cut short."""

    revision: int
    epoch: str
    leases: list[LeaseMessage]
    next_key: NotRequired[str]


class ChangeMessage(TypedDict):
    """One absolute effect on a key (`value`) or a lease (`lease`)."""

    kind: str
    key: str
    value: NotRequired[Any]
    expires_at_ms: NotRequired[int]
    item: NotRequired[int]
    lease: NotRequired[LeaseMessage]


class RevisionMessage(TypedDict):
    """The part of a revision that you may read. `digest` is the SHA-256 of the whole, in
    hexadecimal.

    `epoch` is set on a revision that begins one, `account` if the author's name was narrowed from
    it.
    """

    revision: int
    time_ms: int
    author: str
    changes: list[ChangeMessage]
    digest: str
    based_on: NotRequired[list[list[str | int]]]
    note: NotRequired[str]
    epoch: NotRequired[Epoch]
    account: NotRequired[str]


class ProofMessage(TypedDict):
    """What is needed, in addition to the visible part of a revision, to compute its digest: the
    `salts` of its changes, in `contents` the SHA-256 of each value that is stored encrypted, and
    the `leaves` of everything else; in hexadecimal.
    """

    salts: list[str]
    contents: list[str | None]
    leaves: list[str]


class LogMessage(TypedDict):
    """Result of `log`: the readable part of the entries up to `through`, and the board's head.

    `proofs`, if requested, has one item per revision; null where there is none.
    """

    head: Head
    revisions: list[RevisionMessage]
    through: int
    proofs: NotRequired[list[ProofMessage | None]]


ResultMessage = int | str | list[str | int] | None


class ReceiptMessage(TypedDict):
    """Result of `commit`. `results` are what the operations computed; `level` says what the commit
    survives."""

    revision: int
    time_ms: int
    results: list[ResultMessage]
    level: str
    duplicate: NotRequired[bool]


class CauseMessage(TypedDict):
    """One commit of the result of `why`. `account` is present if the author's name was narrowed
    from it."""

    key: str
    revision: int
    depth: int
    author: str
    account: NotRequired[str]
    time_ms: int
    note: str
    based_on: list[list[str | int]]
    missing: str


class WelcomeMessage(TypedDict):
    """Result of `hello`: who you are, the service that answers, and its limits.

    `account` is the account for which `agent` acts: for a narrowed token, the one to which the
    original token was issued.
    """

    principal: str
    agent: str
    account: str
    engine: str
    level: str
    server_time_ms: int
    version: str
    limits: dict[str, int]


class GrantMessage(TypedDict):
    """Rights on every key that a pattern matches."""

    pattern: str
    rights: list[str]


class IdentityMessage(TypedDict):
    """Result of `whoami`: the principal of the token, and the agent that the connection acts as.

    `grants` are the principal's; an empty list of boards means all of them.
    """

    principal: str
    agent: str
    grants: list[GrantMessage]
    boards: list[str]
    expires_at_ms: NotRequired[int]


class RevokedMessage(TypedDict):
    """Result of `revoke`: the number of tokens and principals that are now revoked."""

    revoked: int


class AuditMessage(TypedDict):
    """A record of the audit. Pass its `key` to continue after it."""

    key: str
    time_ms: int
    principal: str
    token: str
    verb: str
    board: str
    what: str
    outcome: str
    writer: str
    number: int
    previous: str
    count: int
    sealed_with: str
    seal: str
    checked: str


class KeysMessage(TypedDict):
    """Result of `erase` and `rewrap`: the number of data keys that were destroyed or rewrapped."""

    keys: int


class WatchMessage(TypedDict):
    """Result of `watch`: the resume token at which it begins."""

    position: str


class ErrorResponse(TypedDict):
    """The answer to a refused request. `id` is null if the request had none."""

    id: int | str | None
    error: ErrorMessage


class ChangesMessage(TypedDict):
    """A delivery of a watch. Without revisions it is a progress mark: everything up to `position`
    was delivered. With `more`, the last revision continues in the next `changes` of the watch, and
    `position` is valid only after that.
    """

    watch: int
    position: str
    revisions: list[RevisionMessage]
    more: NotRequired[bool]


class CancelledMessage(TypedDict):
    """The watch has ended because of `error`."""

    watch: int
    error: ErrorMessage


class DrainingMessage(TypedDict):
    """The service stops soon. It accepts no new requests, and still answers those in flight."""


# --- writing --------------------------------------------------------------------------------------


def write_noun(noun: Any) -> Any:
    """A result whose message has the members of its record; members that are None are left out."""
    if isinstance(noun, list | tuple):
        return [write_noun(each) for each in noun]
    message = msgspec.to_builtins(noun)
    if not isinstance(message, dict):
        return message
    return {name: member for name, member in message.items() if member is not None}


def write_entry(entry: Entry, encoding: Encoding) -> EntryMessage:
    """An entry as a message."""
    message: EntryMessage = {
        "key": entry.key,
        "value": encoding.value_out(entry.value),
        "mod_revision": entry.mod_revision,
        "create_revision": entry.create_revision,
        "author": name_of(entry.author),
        "time_ms": entry.time_ms,
    }
    if entry.expires_at_ms is not None:
        message["expires_at_ms"] = entry.expires_at_ms
    if account := narrowed_from(entry.author):
        message["account"] = account
    return message


def write_reading(reading: Reading, encoding: Encoding) -> ReadingMessage:
    """A reading as a message."""
    message: ReadingMessage = {
        "revision": reading.revision,
        "epoch": reading.epoch,
        "entries": [write_entry(entry, encoding) for entry in reading.entries],
    }
    if reading.next_key is not None:
        message["next_key"] = reading.next_key
    return message


def write_leases(reading: Reading) -> LeasesMessage:
    """A reading of leases as a message."""
    message: LeasesMessage = {
        "revision": reading.revision,
        "epoch": reading.epoch,
        "leases": [write_lease(lease) for lease in reading.leases],
    }
    if reading.next_key is not None:
        message["next_key"] = reading.next_key
    return message


def write_lease(lease: Lease) -> LeaseMessage:
    """A lease as a message."""
    message: LeaseMessage = {
        "key": lease.key,
        "holder": lease.holder,
        "fence": lease.fence,
        "until_ms": lease.until_ms,
    }
    if lease.waiters:
        message["waiters"] = [
            {"holder": w.holder, "ttl_ms": w.ttl_ms, "until_ms": w.until_ms} for w in lease.waiters
        ]
    if lease.ttl_ms is not None:
        message["ttl_ms"] = lease.ttl_ms
    return message


def write_change(change: Change, encoding: Encoding) -> ChangeMessage:
    """A change as a message."""
    message: ChangeMessage = {"kind": change.kind.value, "key": change.key}
    if change.value is not None:
        message["value"] = encoding.value_out(change.value)
    if change.expires_at_ms is not None:
        message["expires_at_ms"] = change.expires_at_ms
    if change.item is not None:
        message["item"] = change.item
    if change.lease is not None:
        message["lease"] = write_lease(change.lease)
    return message


def write_revision(entry: LogEntry, encoding: Encoding) -> RevisionMessage:
    """A log entry as a message."""
    message: RevisionMessage = {
        "revision": entry.revision,
        "time_ms": entry.time_ms,
        "author": entry.author,
        "changes": [write_change(change, encoding) for change in entry.changes],
        "digest": entry.digest.hex(),
    }
    if entry.based_on:
        message["based_on"] = [[key, revision] for key, revision in entry.based_on]
    if entry.note:
        message["note"] = entry.note
    if entry.epoch is not None:
        message["epoch"] = write_noun(entry.epoch)
    if entry.account:
        message["account"] = entry.account
    return message


def write_results(results: Sequence[Result]) -> list[ResultMessage]:
    """What the operations of a commit computed, as a message."""
    return [list(r) if isinstance(r, tuple) else r for r in results]


def write_log(page: LogPage, encoding: Encoding) -> LogMessage:
    """A page of the log as a message."""
    message: LogMessage = {
        "head": write_noun(page.head),
        "revisions": [write_revision(entry, encoding) for entry in page.entries],
        "through": page.through,
    }
    if page.proofs:
        message["proofs"] = [_write_proof(proof) for proof in page.proofs]
    return message


def _write_proof(proof: Proof | None) -> ProofMessage | None:
    if proof is None:
        return None
    return {
        "salts": [salt.hex() for salt in proof.salts],
        "contents": [None if each is None else each.hex() for each in proof.contents],
        "leaves": [leaf.hex() for leaf in proof.leaves],
    }


_PIECE_BYTES_MAX: Final = MESSAGE_BYTES_MAX * 3 // 4
"""The part of a frame for one piece of a delivery; the rest is for what every piece repeats."""


def pack_revisions(
    entries: Sequence[LogEntry], encoding: Encoding, *, bytes_max: int = _PIECE_BYTES_MAX
) -> list[bytes]:
    """Revisions as packed arrays of messages, each of at most about `bytes_max` bytes.

    Several arrays are put together again by `reading.join_revisions`. A single
    change larger than that makes a larger array: VALUE_BYTES_MAX keeps it below a frame, even with
    every character escaped.
    """
    packed = encoding.pack([write_revision(entry, encoding) for entry in entries])
    if len(packed) <= bytes_max:
        return [packed]
    return list(_pieces(entries, encoding, bytes_max))


def _pieces(entries: Sequence[LogEntry], encoding: Encoding, bytes_max: int) -> Iterator[bytes]:
    """Arrays in which a revision may continue from the previous array, with further changes."""
    piece: list[bytes] = []
    size = 0
    for entry in entries:
        whole = write_revision(entry, encoding)
        for changes in _groups(whole["changes"], encoding, bytes_max):
            part = encoding.pack({**whole, "changes": changes})
            if piece and size + len(part) > bytes_max:
                yield encoding.join(piece)
                piece, size = [], 0
            piece.append(part)
            size += len(part)
    yield encoding.join(piece)


def _groups(
    changes: list[ChangeMessage], encoding: Encoding, bytes_max: int
) -> Iterator[list[ChangeMessage]]:
    group: list[ChangeMessage] = []
    size = 0
    for change in changes:
        length = len(encoding.pack(change))
        if group and size + length > bytes_max:
            yield group
            group, size = [], 0
        group.append(change)
        size += length
    yield group
