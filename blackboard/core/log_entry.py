"""The log entry of a commit: the changes that it made, and the digest that stands for them.

The digest is a hash over salted hashes of the parts of the entry.

Each change is a leaf: the hash of a salt and of the change. One more leaf stands for the part that
readers never get: the commit's id, its grounds and results. The digest is a hash over the header,
which every reader of the entry gets, and all leaves. So a reader with some of the changes, their
salts and the other leaves can compute the digest. The leaves reveal nothing about the rest: to
guess the content of a leaf, one would have to guess its salt. Content can also be removed later;
its leaf stays, so the digest and everything chained to it remain valid.

Invariants
- The salts are derived from the entry's `salt`, 16 random bytes that readers never get. None of
  them reveals another.
- Leaves are sorted by their bytes and padded with random ones to a power of two, at least
  LEAVES_MIN. So neither their order nor their number reveals how many changes are hidden from a
  reader.
- An entry with redacted values has, in place of the salt, the salts of its other leaves, and the
  leaves of what was removed (`Kept`). Its digest is the same, and nothing that is kept reveals a
  removed value.
- An entry without `salt` (from an older version, or the marker of an epoch) keeps the digest that
  it came with: the SHA-256 of the encoded commit.

Sources: commitments to single claims with salts and decoys as in SD-JWT (RFC 9901, sections 4.2 and
4.2.5); a tag before the hashed bytes separates leaves from digests, as in RFC 6962, section 2.1.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.msgpack import encode
from msgspec.structs import replace

from blackboard.core.commit import (
    Append,
    Change,
    ChangeKind,
    Commit,
    Committed,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    Increment,
    Kept,
    Lease,
    LogEntry,
    Op,
    Proof,
    Put,
    PutBack,
    Release,
    Renew,
    Result,
    write_integer,
)
from blackboard.core.lease import from_result, to_result
from blackboard.core.redaction import is_marker
from blackboard.limits import PROOF_LEAVES_MAX
from blackboard.units import Key, Milliseconds, Revision

SALT_BYTES: Final = 16
"""Size of an entry's salt, and of each leaf's: 128 bits cannot be searched."""
LEAVES_MIN: Final = 4
"""Leaves of the smallest entry: an ordinary step, of one to three changes, has no more."""
HASH_BYTES: Final = 32
_LEAF: Final = b"\x00"
_ENTRY: Final = b"\x01"


# --- what a commit did ---------------------------------------------------------------------------


def log_entry(commit: Commit, committed: Committed, digest: bytes) -> LogEntry:
    """The log entry of a commit that took effect; `digest` is that of its encoded form, which is
    used if it has no salt."""
    entry = LogEntry(
        revision=committed.revision,
        time_ms=committed.time_ms,
        id=commit.id,
        changes=effects(commit, committed),
        digest=digest,
        based_on=commit.based_on,
        note=commit.note,
        epoch=commit.begins,
        results=committed.results,
        salt=commit.salt,
        account=commit.account,
    )
    return replace(entry, digest=digest_of(entry)) if commit.salt else entry


def effects(commit: Commit, committed: Committed) -> tuple[Change, ...]:
    """The absolute effects of a commit that took effect: one change per key, the last one."""
    if commit.begins is not None:
        return _effects_of_restore(commit, committed)
    if len(commit.ops) == len(committed.results) == 1:  # one operation has no key twice
        return _effect(commit.ops[0], committed.results[0], committed)
    changes: dict[tuple[bool, Key], Change] = {}
    for op, result in zip(commit.ops, committed.results, strict=True):
        for change in _effect(op, result, committed):
            # One key can have an entry and a lease, which change independently.
            slot = (change.lease is not None, change.key)
            # Removed and added again: changes stand in the order in which they took effect.
            before = changes.pop(slot, None)
            changes[slot] = change if before is None else _after(before, change)
    return tuple(changes.values())


def _after(before: Change, change: Change) -> Change:
    """`change`, with the facts of an earlier change of the same key or lease in its commit."""
    if before.item is not None:
        return replace(change, item=max(before.item, change.item or 0))
    if (before.kind, change.kind) == (ChangeKind.RENEW, ChangeKind.WAIT):
        return replace(change, kind=ChangeKind.RENEW)  # which tells the queue as well
    return change


def _effects_of_restore(commit: Commit, committed: Committed) -> tuple[Change, ...]:
    """As `effects`, for the two kinds of operations of a restore, of which there are many."""
    changes: dict[Key, Change] = {}
    for op, result in zip(commit.ops, committed.results, strict=True):
        assert isinstance(op, (PutBack, Delete))
        if isinstance(op, PutBack):
            change = _put_back(op)
        elif result:
            change = Change(ChangeKind.DELETE, op.key)
        else:
            continue
        before = changes.pop(op.key, None)
        changes[op.key] = change if before is None else _after(before, change)
    return tuple(changes.values())


def _put_back(op: PutBack) -> Change:
    kind = ChangeKind.DELETE if op.value is None else ChangeKind.PUT
    return Change(kind, op.key, op.value, op.expires_at_ms, op.item)


def _effect(op: Op, result: Result, committed: Committed) -> tuple[Change, ...]:
    now_ms = committed.time_ms
    match op:
        case Put():
            return (Change(ChangeKind.PUT, op.key, op.value, _expiry(now_ms, op.ttl_ms)),)
        case PutBack():
            return (_put_back(op),)
        case Delete():
            return (Change(ChangeKind.DELETE, op.key),) if result else ()
        case DeletePrefix():
            assert isinstance(result, tuple)
            return tuple(Change(ChangeKind.DELETE, str(key)) for key in result)
        case Append():
            assert isinstance(result, str)
            item = int(result.rpartition("/")[2])
            expires_at_ms = _expiry(now_ms, op.ttl_ms)
            return (Change(ChangeKind.PUT, result, op.value, expires_at_ms, item=item),)
        case Increment():
            assert isinstance(result, int)
            return (Change(ChangeKind.PUT, op.key, write_integer(result)),)
        case Grant() | Renew() | Release() | Expire():
            assert isinstance(result, tuple)
            return (_lease_change(op, from_result(op.key, result), committed.revision),)


def _lease_change(
    op: Grant | Renew | Release | Expire, after: Lease | None, revision: Revision
) -> Change:
    """The change of a lease; when it is free now, the change names its last holder."""
    if after is None:
        assert isinstance(op, Release | Expire)
        kind = ChangeKind.EXPIRE if isinstance(op, Expire) else ChangeKind.RELEASE
        return Change(kind, op.key, lease=Lease(op.key, op.holder, op.fence, 0))
    # A fence is the revision of its grant. So a release, too, is a grant if a waiter got the lease.
    if after.fence == revision:
        return Change(ChangeKind.GRANT, op.key, lease=after)
    is_renewal = isinstance(op, Renew) and op.fence > 0
    return Change(ChangeKind.RENEW if is_renewal else ChangeKind.WAIT, op.key, lease=after)


def _expiry(now_ms: Milliseconds, ttl_ms: Milliseconds | None) -> Milliseconds | None:
    return None if ttl_ms is None else now_ms + ttl_ms


# --- its digest -----------------------------------------------------------------------------------


def content_of(change: Change) -> bytes | None:
    """The SHA-256 of a change's value; None if it has none."""
    return None if change.value is None else hashlib.sha256(change.value).digest()


def proof_of(
    entry: LogEntry, readable: Callable[[Key], bool], content: Callable[[bytes], bytes]
) -> Proof | None:
    """The proof for a reader that gets the changes of the keys that are `readable`.

    `content` is the SHA-256 of a value as it is stored. Returns None for an entry without a salt,
    or with more than PROOF_LEAVES_MAX leaves.
    """
    if not is_salted(entry) or len(entry.changes) >= PROOF_LEAVES_MAX:
        return None
    made, salts = Leaves(entry), salts_of(entry)
    visible: list[tuple[bytes, bytes | None]] = []
    own: set[bytes] = set()
    # Not strict: the last salt is that of the hidden part.
    for salt, change in zip(salts, entry.changes, strict=False):
        kept = None if change.value is None else content(change.value)
        leaf = made.add(change, kept)
        if readable(change.key):
            own.add(leaf)
            visible.append((salt, _disclosed(salt, leaf, change, kept)))
    # Sorted: in the order of the changes they would reveal the places of the hidden ones.
    others = sorted(leaf for leaf in made.all() if leaf not in own)
    return Proof(tuple(s for s, _ in visible), tuple(c for _, c in visible), tuple(others))


def _disclosed(salt: bytes, leaf: bytes, change: Change, kept: bytes | None) -> bytes | None:
    """What a proof has for a change beside its salt: a leaf, a hash of its value, or nothing."""
    if not salt:
        return leaf
    # Of an encrypted value the leaf has the hash of the ciphertext, which the reader cannot
    # compute.
    return kept if kept != content_of(change) else None


def is_proved(entry: LogEntry, proof: Proof) -> bool:
    """Whether the digest of `entry` is that of its visible part and `proof`."""
    if not len(entry.changes) == len(proof.salts) == len(proof.contents):
        return False
    leaves = list(proof.leaves)
    times: dict[Key, int] = {}
    visible = zip(entry.changes, proof.salts, proof.contents, strict=True)
    for change, salt, content in visible:
        times[change.key] = times.get(change.key, 0) + 1
        if salt:
            leaves.append(leaf_of(salt, change, content or content_of(change), times[change.key]))
        elif content and is_marker(change.key, change.value):
            # Here the leaf is taken as given, so the value must be one that says nothing. Otherwise
            # any value could be passed off with a leaf that fits the digest.
            leaves.append(content)
        else:
            return False
    return digest_over(entry, leaves) == entry.digest


class Leaves:
    """The leaves of an entry, made one after the other, in the order of its changes."""

    def __init__(self, entry: LogEntry) -> None:
        self._entry = entry
        self._salts = salts_of(entry)
        self._stands = standing(entry)
        self._found: list[bytes] = []
        self._times: dict[Key, int] = {}

    def add(self, change: Change, content: bytes | None) -> bytes:
        """Add the leaf of the next change and return it; `content` is the SHA-256 of its value."""
        number = len(self._found)
        times = self._times[change.key] = self._times.get(change.key, 0) + 1
        leaf = self._stands.get(number)
        if leaf is None:
            leaf = leaf_of(self._salts[number], change, content, times)
        self._found.append(leaf)
        return leaf

    def digest(self) -> bytes:
        """The digest of the entry, once all changes were added."""
        return digest_over(self._entry, self.all())

    def all(self) -> list[bytes]:
        """All leaves, in no particular order: those of the changes, of the hidden part, and the
        padding."""
        return [*self._found, *self.others()]

    def others(self) -> list[bytes]:
        """The leaves of no change (the hidden part and the padding), once all changes were
        added."""
        kept = self._entry.kept
        # If the hidden part was redacted, its leaf is among `kept.leaves`.
        hidden = [self.hidden()] if self._salts[-1] else []
        if kept is not None:
            return [*hidden, *kept.leaves]
        return [*hidden, *_padding(self._entry.salt, len(self._found) + 1)]

    def hidden(self) -> bytes:
        """The leaf of the part that readers never get."""
        return _hash_leaf(self._salts[-1], _hidden(self._entry))


def digest_of(entry: LogEntry) -> bytes:
    """The digest of an entry with a salt."""
    if is_ordinary(entry):
        return digest_of_one(entry, content_of(entry.changes[0]))
    leaves = Leaves(entry)
    for change in entry.changes:
        leaves.add(change, content_of(change))
    return leaves.digest()


def is_ordinary(entry: LogEntry) -> bool:
    """Whether it has a salt and one change, as most entries do: see `digest_of_one`."""
    return len(entry.changes) == 1 and entry.kept is None and bool(entry.salt)


def digest_of_one(entry: LogEntry, content: bytes | None) -> bytes:
    """The digest of an ordinary entry; `content` is the SHA-256 of its change's value.

    The same as with `Leaves`, in two thirds of the time: each commit is hashed by its engine and by
    the archive.
    """
    salts = hashlib.shake_256(_LEAF + entry.salt).digest(2 * SALT_BYTES)
    shown = leaf_of(salts[:SALT_BYTES], entry.changes[0], content, 1)
    hidden = _hash_leaf(salts[SALT_BYTES:], _hidden(entry))
    # Two leaves are there, so two more make LEAVES_MIN.
    filling = hashlib.shake_256(_ENTRY + entry.salt).digest(2 * HASH_BYTES)
    return digest_over(entry, [shown, hidden, filling[:HASH_BYTES], filling[HASH_BYTES:]])


def digest_over(entry: LogEntry, leaves: Sequence[bytes]) -> bytes:
    """The digest of an entry with these leaves. Only the header of `entry` is used: revision, time,
    author, note and epoch."""
    epoch = entry.epoch
    begun = epoch and [epoch.number, epoch.id, epoch.cause, epoch.from_revision, epoch.revision]
    header = encode([entry.revision, entry.time_ms, entry.signed, entry.note, begun])
    hashed = hashlib.sha256(header).digest()
    return hashlib.sha256(b"".join([_ENTRY, hashed, *sorted(leaves)])).digest()


def leaf_of(salt: bytes, change: Change, content: bytes | None, times: int) -> bytes:
    """The leaf of a change, the `times`-th of its key in its entry."""
    lease = None if change.lease is None else to_result(change.lease)
    said = [change.kind, change.key, content, change.expires_at_ms, change.item, lease, times]
    return _hash_leaf(salt, encode(said))


def is_salted(entry: LogEntry) -> bool:
    """Whether its digest is over salted leaves."""
    return bool(entry.salt) or (entry.kept is not None and bool(entry.kept.salts))


def standing(entry: LogEntry) -> dict[int, bytes]:
    """The leaves of the redacted changes, by their places in the entry."""
    kept = entry.kept
    return {} if kept is None else dict(zip(kept.places, kept.stands, strict=True))


def redacted(entry: LogEntry, contents: Sequence[bytes | None], places: Sequence[int]) -> LogEntry:
    """`entry` without anything that reveals the values at `places`, or what they were computed
    from.

    `contents` has the SHA-256 of each change's value; the values themselves stay, for the caller to
    replace. The results are removed together with the values of counters, because they contain
    them.
    """
    stands = standing(entry)
    if not is_salted(entry):
        stands |= {place: contents[place] or b"" for place in places}
        return replace(entry, kept=_standing_for(stands, (), ()))
    made, salts = Leaves(entry), salts_of(entry)
    leaves = [made.add(*each) for each in zip(entry.changes, contents, strict=True)]
    stands |= {place: leaves[place] for place in places}
    rest = made.others()
    if any(isinstance(result, int) for result in entry.results):
        entry = replace(entry, results=())
        salts[-1] = b""
    elif salts[-1]:
        rest.remove(made.hidden())
    for place in places:
        salts[place] = b""
    return replace(entry, salt=b"", kept=_standing_for(stands, salts, rest))


def _standing_for(
    stands: Mapping[int, bytes], salts: Sequence[bytes], leaves: Sequence[bytes]
) -> Kept:
    places = tuple(sorted(stands))
    return Kept(places, tuple([stands[place] for place in places]), tuple(salts), tuple(leaves))


def salts_of(entry: LogEntry) -> list[bytes]:
    """The salts of an entry's changes, and last that of the hidden part; empty for what was
    redacted."""
    if entry.kept is not None:
        return list(entry.kept.salts)
    count = len(entry.changes) + 1
    stream = hashlib.shake_256(_LEAF + entry.salt).digest(SALT_BYTES * count)
    return [stream[at : at + SALT_BYTES] for at in range(0, len(stream), SALT_BYTES)]


def _hidden(entry: LogEntry) -> bytes:
    name = entry.id
    return encode([name.lane, name.incarnation, name.step, entry.based_on, entry.results])


def _padding(salt: bytes, count: int) -> list[bytes]:
    # The next power of two. The tag differs from that of the salts, so that the two streams differ.
    whole = max(LEAVES_MIN, 1 << (count - 1).bit_length())
    stream = hashlib.shake_256(_ENTRY + salt).digest(HASH_BYTES * (whole - count))
    return [stream[at : at + HASH_BYTES] for at in range(0, len(stream), HASH_BYTES)]


def _hash_leaf(salt: bytes, said: bytes) -> bytes:
    return hashlib.sha256(b"".join([_LEAF, salt, said])).digest()
