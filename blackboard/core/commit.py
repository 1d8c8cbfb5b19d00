"""The types of a commit: operations, conditions, log entries, and what a reader gets.

Invariants
- Everything here is frozen. Values are encoded bytes (`wire/codec.py`); no rule reads them, except
  that `increment` reads and writes integers.
- A commit holds requests (`Op`), a log entry holds absolute effects (`Change`). So replaying the
  log, even twice, gives the state.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgpack
from msgspec import Meta, Struct

from blackboard.core.fields import (
    EntryTtl,
    FenceOrTicket,
    GrantedFence,
    Holder,
    Integer,
    KeyText,
    LeaseTtl,
    PrefixText,
    RevisionNumber,
)
from blackboard.limits import INTEGER_MAX, REVISION_MAX
from blackboard.units import Fence, Key, Milliseconds, Prefix, Revision

# --- operations -----------------------------------------------------------------------------------
# Requests carry these records as they are: a tag names the kind, and bounds and checks belong to
# the types of the fields. Only decoding applies them (`wire/requests.py`), building a record here
# does not.


# `gc=False` here and below: these records form no cycles, and a board has millions of them, which
# the garbage collector would look through.
class _Asked(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What a commit may ask for."""


class Put(_Asked, frozen=True, tag_field="kind", tag="put"):
    """Set `key` to `value`; with `ttl_ms` the entry expires that long after the commit."""

    key: KeyText
    value: bytes
    ttl_ms: EntryTtl | None = None


class Delete(_Asked, frozen=True, tag_field="kind", tag="delete"):
    """Remove `key`. Removing an absent key changes nothing and is not an error.

    A commit that only deletes absent keys makes no revision, unless it is a retry.
    """

    key: KeyText


class DeletePrefix(_Asked, frozen=True, tag_field="kind", tag="delete_prefix"):
    """Remove every key below `prefix`. Refused when a commit's operations of this kind remove more
    than OPERATIONS_MAX keys in all."""

    prefix: PrefixText


class Append(_Asked, frozen=True, tag_field="kind", tag="append"):
    """Add `value` as the next item below `prefix`: `<prefix>/<next index, ten digits>`.

    Indexes never repeat, not even after items were deleted.
    """

    prefix: PrefixText
    value: bytes
    ttl_ms: EntryTtl | None = None


class Increment(_Asked, frozen=True, tag_field="kind", tag="increment"):
    """Add `by` to the integer at `key` (absent = 0); |result| <= INTEGER_MAX."""

    key: KeyText
    by: Integer


class Grant(_Asked, frozen=True, tag_field="kind", tag="grant"):
    """Grant lease `key` to `holder` for `ttl_ms`; its fence is the commit's revision.

    If it is held, by the engine's clock: with `wait` the holder joins the end of its queue, with a
    ticket that is valid for `ttl_ms`; without, LeaseHeld. A holder has it, or waits for it, once.
    """

    key: KeyText
    holder: Holder
    ttl_ms: LeaseTtl
    wait: bool = False


class Renew(_Asked, frozen=True, tag_field="kind", tag="renew"):
    """Prolong lease `key` to `ttl_ms` from now; Fenced unless (fence, holder) is current.

    With fence 0: prolong the ticket of the waiting `holder`; Fenced if it does not wait. A commit
    that only renews makes no revision, unless it changes a time to live.
    """

    key: KeyText
    holder: Holder
    fence: FenceOrTicket
    ttl_ms: LeaseTtl


class Release(_Asked, frozen=True, tag_field="kind", tag="release"):
    """End lease `key`, and grant it to the first waiter; Fenced unless (fence, holder) is current.

    With fence 0: `holder` leaves the queue; Fenced if it does not wait.
    """

    key: KeyText
    holder: Holder
    fence: FenceOrTicket


class Expire(_Asked, frozen=True, tag_field="kind", tag="expire"):
    """As Release, by any principal, of a lease that has expired by the engine's clock; else
    LeaseHeld."""

    key: KeyText
    holder: Holder
    fence: GrantedFence


class PutBack(Struct, frozen=True, gc=False):
    """Set `key` to what it held at an earlier revision; only in a commit that `begins` an epoch.

    A `value` of None removes it. `item` is the index of `key` in its list: `append` continues above
    it, even if the engine has no record of that index.
    """

    key: Key
    value: bytes | None
    expires_at_ms: Milliseconds | None = None
    item: int | None = None


AskedOp = Put | Delete | DeletePrefix | Append | Increment | Grant | Renew | Release | Expire
"""What a request may ask for: everything but `PutBack`, which only a restore computes."""
Op = AskedOp | PutBack

# --- conditions -----------------------------------------------------------------------------------

ABSENT = 0
PRESENT = -1
RevisionOrPresence = Annotated[int, Meta(ge=PRESENT, le=REVISION_MAX)]


class KeyAt(_Asked, frozen=True, tag_field="kind", tag="key_at"):
    """`key` was last written at `revision`; ABSENT (0) = does not exist, PRESENT (-1) = exists."""

    key: KeyText
    revision: RevisionOrPresence


class PrefixUnchanged(_Asked, frozen=True, tag_field="kind", tag="prefix_unchanged"):
    """No key below `prefix` was written or removed after revision `since`.

    A whole namespace (`public`) does not include its runtime branches, whose names begin with `~`:
    presences, for instance, change all the time. A prefix that names such a branch includes it.

    Refused (LimitExceeded) when more than OPERATIONS_MAX keys, live or recently removed, lie below
    all such prefixes of one commit.
    """

    prefix: PrefixText
    since: RevisionNumber


Condition = KeyAt | PrefixUnchanged


class HeldFence(_Asked, frozen=True):
    """The commit relies on lease `key` as granted to `holder` at revision `fence`."""

    key: KeyText
    holder: Holder
    fence: GrantedFence


# --- the commit -----------------------------------------------------------------------------------


_NARROWED = "@"
"""Not allowed in names: it replaces the dot between an account and the rest of a narrowed name."""


def signature(name: str, account: str) -> str:
    """How the board records an author: `name`, with an `@` where its account ends.

    `buyer.me` of the account `buyer` is `buyer@me`; an agent that acts under its account's own
    name, or whose account is not known (""), is recorded by name alone.
    """
    if not account or account == name:
        return name
    assert name.startswith(account + "."), "a name is narrowed from that of its account"
    return account + _NARROWED + name[len(account) + 1 :]


def name_of(signed: str) -> str:
    """The name in a signature."""
    return signed.replace(_NARROWED, ".", 1)


def signatures_of(name: str) -> tuple[str, ...]:
    """Every signature with that name: `buyer.me` is signed as itself, or as `buyer@me`."""
    narrowed = (i for i, character in enumerate(name) if character == ".")
    return (name, *(name[:i] + _NARROWED + name[i + 1 :] for i in narrowed))


def account_of(signed: str) -> str:
    """The account behind a signature: the subject of the token before it was narrowed."""
    return signed.partition(_NARROWED)[0]


def narrowed_from(signed: str) -> str:
    """The account behind a signature, if it differs from its name; else ""."""
    account, mark, _ = signed.partition(_NARROWED)
    return account if mark else ""


SERVICE: Final = "~system"
"""The name under which the service itself commits; no principal has it."""


class CommitId(Struct, frozen=True, gc=False):
    """Names one attempt of one writer, so that a retry is recognised.

    `agent` writes on `lane` (0..LANES_MAX-1), where it has one commit in flight at a time; within
    an `incarnation` (a random id of the writing process) the steps on a lane only grow. This is the
    client session of Ongaro's Raft thesis (section 6.3) with a bounded number of sessions.
    """

    agent: str
    lane: int
    incarnation: str
    step: int


class Commit(Struct, frozen=True, gc=False):
    """One atomic step: all of `ops`, or nothing.

    `known` is the board's revision that the writer knew before the first attempt; `retry_since` is
    the same once an earlier attempt may have got through, and None before. `based_on` lists (key,
    mod_revision) pairs that were read; they are kept as provenance, and are conditions only if they
    are also in `conditions`.

    `account` is that of the token, if `id.agent` was narrowed from it, else "". The service sets it
    and ignores what the writer sent. Lanes are separate for each account.

    A commit that `begins` an epoch is a restore: it takes effect only as `begins.revision`, that is
    if there was no other commit since its operations (PutBack, Delete) were computed. It voids all
    leases, and no commit of an older epoch is accepted after it.

    `salt` is drawn by the service: without it, a short value could be guessed from the entry's
    digest.
    """

    id: CommitId
    epoch: str
    ops: tuple[Op, ...]
    conditions: tuple[Condition, ...] = ()
    fences: tuple[HeldFence, ...] = ()
    based_on: tuple[tuple[Key, Revision], ...] = ()
    note: str = ""
    retry_since: Revision | None = None
    begins: "Epoch | None" = None
    known: Revision | None = None
    salt: bytes = b""
    account: str = ""

    @property
    def author(self) -> str:
        """The signature of the agent that commits."""
        return signature(self.id.agent, self.account) if self.account else self.id.agent


Result = int | str | tuple[str | int, ...] | None
"""What an operation computed: increment -> the new integer; append -> the new key; delete -> 1 if
the key existed, else 0; delete prefix -> the keys removed, sorted; an operation on a lease -> the
lease as it is then (core/lease.py `to_result`), () when it is free; put, put back -> None."""


REMOVALS: Final = (Delete, DeletePrefix)
"""The operations that remove. A tuple: `Delete | DeletePrefix` would build a union on each call."""


def changed_nothing(ops: "tuple[Op, ...]", results: tuple[Result, ...]) -> bool:
    """Whether all operations are removals, and none of them removed anything."""
    for op, result in zip(ops, results, strict=True):
        if result or not isinstance(op, REMOVALS):
            return False
    return True


class Committed(Struct, frozen=True, gc=False):
    """The commit took effect as `revision` at `time_ms`; `results` has one item per operation.

    A commit that changed nothing but deadlines of leases made no revision: `revision` is the newest
    one then, and `time_ms` the moment from which they were prolonged. `duplicate` says that this
    commit had been applied before and nothing happened now. `level` is what it survives, if that is
    more than its engine promises for every commit; else empty.
    """

    revision: Revision
    time_ms: Milliseconds
    results: tuple[Result, ...]
    duplicate: bool = False
    level: str = ""


class Receipt(Struct, frozen=True):
    """A commit that took effect as `revision`; `results` has what each operation computed.

    `level` names what the acknowledgement survives: "disk", "second", "replica" or "memory".
    `duplicate` says that this commit had already been applied by an earlier attempt.
    """

    revision: Revision
    time_ms: Milliseconds
    results: tuple[Result, ...]
    level: str
    duplicate: bool = False


# --- the log --------------------------------------------------------------------------------------


class ChangeKind(StrEnum):
    """What happened to a key or to a lease: GRANT names its new holder, RENEW the same one, RELEASE
    and EXPIRE the last one; WAIT says that its queue changed."""

    PUT = "put"
    DELETE = "delete"
    GRANT = "grant"
    RENEW = "renew"
    RELEASE = "release"
    EXPIRE = "expire"
    WAIT = "wait"


class Change(Struct, frozen=True, gc=False):
    """One absolute effect. `value` and `expires_at_ms` belong to PUT; `lease` to lease changes.

    `item` is the index that `append` gave in this commit (even if a later operation of the commit
    changed or removed the item), or that a restore says was given; None otherwise.
    """

    kind: ChangeKind
    key: Key
    value: bytes | None = None
    expires_at_ms: Milliseconds | None = None
    item: int | None = None
    lease: "Lease | None" = None


class Kept(Struct, frozen=True, gc=False):
    """What is kept in place of an entry's salt once some of its values were redacted.

    `stands` has, for the changes at `places`, their leaves; in an entry that never had a salt, the
    SHA-256 of their values. `salts` has the salts of all changes (empty at `places`) and that of
    the hidden part of the entry (empty if that was redacted, too). `leaves` has the padding leaves.
    """

    places: tuple[int, ...]
    stands: tuple[bytes, ...]
    salts: tuple[bytes, ...] = ()
    leaves: tuple[bytes, ...] = ()


class LogEntry(Struct, frozen=True, gc=False):
    """One revision of a board.

    `digest` is over salted hashes of its changes (core/log_entry.py). Readers never get the
    `salt`. In an entry without one, `digest` is the SHA-256 of the encoded commit as its service
    sent it.

    An entry with `epoch` set begins that epoch. That of a restore has the changes that lead back to
    `epoch.from_revision`; any other is a marker without changes, whose revision may be far above
    the one before. Entries that begin no epoch follow their predecessor without a gap.

    Once one of its values was redacted (core/redaction.py), it has `kept` in place of its salt.
    """

    revision: Revision
    time_ms: Milliseconds
    id: CommitId
    changes: tuple[Change, ...]
    digest: bytes
    based_on: tuple[tuple[Key, Revision], ...] = ()
    note: str = ""
    epoch: "Epoch | None" = None
    results: tuple[Result, ...] = ()
    salt: bytes = b""
    account: str = ""
    kept: "Kept | None" = None

    @property
    def author(self) -> str:
        """The agent that committed it."""
        return self.id.agent

    @property
    def signed(self) -> str:
        """The signature of the agent that committed it."""
        return signature(self.id.agent, self.account) if self.account else self.id.agent


# --- the state ------------------------------------------------------------------------------------


class Entry(Struct, frozen=True, gc=False):
    """The entry of a key: its encoded `value`, author, time, and the revision since which it
    exists.

    `author` is a signature. `first_ms` is the time of `create_revision`, if the entry was written
    again since; None in an entry that was last written before that time was kept.
    """

    key: Key
    value: bytes
    mod_revision: Revision
    create_revision: Revision
    author: str
    time_ms: Milliseconds
    expires_at_ms: Milliseconds | None = None
    first_ms: Milliseconds | None = None

    @property
    def created_ms(self) -> Milliseconds | None:
        """The time since which it exists; None if it is not known."""
        return created_ms_of(self.mod_revision, self.create_revision, self.time_ms, self.first_ms)


def created_ms_of(
    mod_revision: Revision,
    create_revision: Revision,
    time_ms: Milliseconds,
    first_ms: Milliseconds | None,
) -> Milliseconds | None:
    """The time of the revision that created an entry; None if it is not known."""
    return time_ms if mod_revision == create_revision else first_ms


def without_value(entry: Entry) -> Entry:
    """What a listing of keys only shows of an entry: all but its value."""
    return Entry(
        entry.key,
        b"",
        entry.mod_revision,
        entry.create_revision,
        entry.author,
        entry.time_ms,
        entry.expires_at_ms,
        entry.first_ms,
    )


class Waiter(Struct, frozen=True, gc=False):
    """A place in the queue of a lease, with a ticket that is valid until `until_ms`.

    `account` is that of the requester; "" where it is not known.
    """

    holder: str
    ttl_ms: Milliseconds
    until_ms: Milliseconds
    account: str = ""


class Lease(Struct, frozen=True, gc=False):
    """A granted lease. `until_ms` only decides when another holder may take over.

    `waiters` are in the order in which it will be granted to them. The engine sets `until_ms`, and
    those of the waiters; a change in the log has them as of its revision. `ttl_ms` is the time to
    live with which it was granted or last renewed; None in results and in changes of the log.
    `account` is that of the requester: "" in results and changes, and for leases from before
    accounts were recorded.
    """

    key: Key
    holder: str
    fence: Fence
    until_ms: Milliseconds
    waiters: tuple[Waiter, ...] = ()
    ttl_ms: Milliseconds | None = None
    account: str = ""


class Epoch(Struct, frozen=True, gc=False):
    """A stretch of a board's history that nobody rewrote.

    `number` counts from 1; `id` is random, so that two engines never share one. `cause` is one of
    the constants below; `from_revision` is the last revision before it that still counts (for a
    restore: the one whose content came back); `revision` is that of its first log entry (0 for the
    first epoch).
    """

    number: int
    id: str
    cause: str = "created"
    from_revision: Revision = 0
    revision: Revision = 0


CREATED = "created"
ENGINE = "engine"
"""The engine restarted and may hold less than was acknowledged."""
RESTORE = "restore"
BRANCH = "branch"
"""The board began with the content of another one (a branch, an import)."""
RECOVER = "recover"
"""The board began again from its archive, after its engine had lost it."""


class Head(Struct, frozen=True, gc=False):
    """The head of a board: its newest revision, its epoch, and the oldest revision in the log.

    The log holds `log_entries` entries, `oldest`..`revision`; an empty log has `oldest == revision
    + 1`. (Where an epoch began, revisions were skipped, so the span can be wider than the count.)
    """

    revision: Revision
    epoch: Epoch
    oldest: Revision
    time_ms: Milliseconds = 0
    log_entries: int = 0


class Seed(Struct, frozen=True, gc=False):
    """The beginning of a board that starts with given content: see `Store.seed`.

    `epoch` is its first, whose `revision` is the board's first log entry; every revision of an
    entry lies below. `next_item` holds the counters of `append`, by prefix.
    """

    epoch: Epoch
    time_ms: Milliseconds
    next_item: tuple[tuple[Prefix, int], ...] = ()


class Directory(Struct, frozen=True, gc=False):
    """A prefix with keys below it: how many, up to DIRECTORY_KEYS_MAX, and whether there are
    more."""

    prefix: Prefix
    keys: int
    more: bool = False

    @property
    def count(self) -> str:
        """The number of keys as people read it: "7", or "1,000+" if there are more."""
        return f"{self.keys:,}{'+' if self.more else ''}"


class Reading(Struct, frozen=True, gc=False):
    """Entries as they were at one revision, in the order of the request (absent ones are left out).

    `next_key` continues a listing that was cut short: pass it as `after`. `leases` belong to a
    reading of leases; it has no entries. `directories` belong to a listing by directory.
    """

    revision: Revision
    epoch: str
    entries: tuple[Entry, ...] = ()
    next_key: Key | None = None
    leases: tuple[Lease, ...] = ()
    directories: tuple[Directory, ...] = ()


class ListOptions(Struct, frozen=True, gc=False):
    """In which order a listing goes, whether it leaves the values out, and whether it shows what
    lies deeper as directories (`delimiter` is "/")."""

    reverse: bool = False
    keys_only: bool = False
    delimiter: str = ""


FORWARD: Final = ListOptions()
"""In key order, with values."""


class Proof(Struct, frozen=True, gc=False):
    """The data that is needed, together with the visible part of a log entry, to compute its
    digest.

    `salts` has one for each visible change; `contents` has the SHA-256 of each of their values that
    is stored in another form than the reader gets; `leaves` stand for everything else. A redacted
    change has an empty salt, and its leaf in place of its content.
    """

    salts: tuple[bytes, ...]
    contents: tuple[bytes | None, ...]
    leaves: tuple[bytes, ...]


class LogPage(Struct, frozen=True, gc=False):
    """Log entries after a revision, and where the board stood when they were read.

    An engine's page has consecutive entries; one for a principal leaves out what it may not see,
    and `through` is then the revision up to which the log was looked through. `proofs`, if they
    were asked for, has one for each entry; None where there is none (core/log_entry.py).
    """

    head: Head
    entries: tuple[LogEntry, ...]
    through: Revision = 0
    proofs: tuple[Proof | None, ...] = ()


class Cause(Struct, frozen=True):
    """One commit in the provenance of a key.

    `key` was written at `revision` by `author`; `based_on` are the entries its writer had read.
    `missing` says why the commit cannot be shown ("compacted", "not written there"), else "".
    `account` is set if the author's name was narrowed from it.
    """

    key: Key
    revision: Revision
    depth: int
    author: str = ""
    time_ms: Milliseconds = 0
    note: str = ""
    based_on: tuple[tuple[Key, Revision], ...] = ()
    missing: str = ""
    account: str = ""


# --- integers, which `increment` reads and writes -------------------------------------------------

_KINDS: tuple[tuple[range, str], ...] = (
    (range(0x00, 0x80), "integer"),
    (range(0x80, 0x90), "map"),
    (range(0x90, 0xA0), "list"),
    (range(0xA0, 0xC0), "string"),
    (range(0xC0, 0xC1), "null"),
    (range(0xC2, 0xC4), "boolean"),
    (range(0xC4, 0xC7), "bytes"),
    (range(0xCA, 0xCC), "float"),
    (range(0xCC, 0xD4), "integer"),
    (range(0xD9, 0xDC), "string"),
    (range(0xDC, 0xDE), "list"),
    (range(0xDE, 0xE0), "map"),
    (range(0xE0, 0x100), "integer"),
)


def kind_of(value: bytes) -> str:
    """The JSON-like type of an encoded value: "integer", "string", "map" ..."""
    # 0xC1 is the only byte that begins no msgpack value.
    first = value[0] if value else 0xC1
    return next((name for codes, name in _KINDS if first in codes), "unknown")


def read_integer(value: bytes) -> int | None:
    """The integer that `value` encodes, None if it is no integer or beyond INTEGER_MAX."""
    if kind_of(value) != "integer":
        return None
    number: int = msgpack.unpackb(value)
    # Beyond it, the doubles of the twin in Lua are not exact.
    return number if abs(number) <= INTEGER_MAX else None


def write_integer(number: int) -> bytes:
    """Encode `number` in the shortest form, the only one that equal integers have."""
    encoded: bytes = msgpack.packb(number)
    return encoded


# --- batches: as much as one commit, or one read, has ---------------------------------------------

Item = TypeVar("Item")


def in_batches(
    items: Iterable[Item], size_of: Callable[[Item], int], bytes_max: int, count_max: int
) -> Iterator[list[Item]]:
    """`items` in order, in batches of up to `count_max` that have up to `bytes_max` together; one
    that is larger is a batch by itself."""
    batch: list[Item] = []
    size_bytes = 0
    for item in items:
        size = size_of(item)
        if batch and (size_bytes + size > bytes_max or len(batch) == count_max):
            yield batch
            batch, size_bytes = [], 0
        batch.append(item)
        size_bytes += size
    if batch:
        yield batch
