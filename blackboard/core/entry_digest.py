"""The digest of a log entry: a hash over salted hashes of what the entry says.

Each change is a leaf: the hash of a salt and of the change. One more leaf stands for what no reader
is shown: the commit's id, its grounds and results. The digest is a hash over the header, which
every reader of the entry is shown, and all leaves. So who is shown some of the changes, with their
salts, and the other leaves, can compute the digest; of the rest the leaves tell nothing, for to
guess what stands behind one is to guess its salt. And what a leaf stands for can be taken away, and
the digest with all that is chained to it still stands.

Invariants
- salts follow from the entry's `salt`, 16 random bytes that no reader is shown: each of them tells
  nothing of the others.
- leaves are in the order of their bytes, and padded with random ones to a power of two, at least
  LEAVES_MIN: neither places nor numbers tell how many changes a reader is not shown.
- an entry of which values were redacted has, in place of the salt, those of all its other leaves,
  and the leaves that stand for what is gone (`Kept`): the digest is the same, and nothing that is
  kept tells what a value was.
- an entry without `salt` (of a version before this one, or the marker of an epoch) has the digest
  that it came with: the SHA-256 of the encoded commit.

Sources: commitments to single claims with salts and decoys as in SD-JWT (RFC 9901, sections 4.2 and
4.2.5); a tag in front of what is hashed keeps leaf and digest apart, as in RFC 6962, section 2.1.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.msgpack import encode
from msgspec.structs import replace

from blackboard.core.commit import Change, Kept, LogEntry, Proof
from blackboard.core.lease import to_result
from blackboard.core.redaction import is_marker
from blackboard.limits import PROOF_LEAVES_MAX
from blackboard.units import Key

SALT_BYTES: Final = 16
"""Of an entry's salt, and of each leaf's: nobody tries 2**128 of them."""
LEAVES_MIN: Final = 4
"""Leaves of the smallest entry: an ordinary step, of one to three changes, has no more."""
HASH_BYTES: Final = 32
_LEAF: Final = b"\x00"
_ENTRY: Final = b"\x01"


def content_of(change: Change) -> bytes | None:
    """The SHA-256 of a change's value; None if it has none."""
    return None if change.value is None else hashlib.sha256(change.value).digest()


def proof_of(
    entry: LogEntry, readable: Callable[[Key], bool], content: Callable[[bytes], bytes]
) -> Proof | None:
    """The proof for a reader who is shown the changes of the keys that are `readable`.

    `content` is the SHA-256 of a value as it is kept. None for an entry without a salt, or with
    more than PROOF_LEAVES_MAX leaves.
    """
    if not is_salted(entry) or len(entry.changes) >= PROOF_LEAVES_MAX:
        return None
    made, salts = Leaves(entry), salts_of(entry)
    shown: list[tuple[bytes, bytes | None]] = []
    own: set[bytes] = set()
    for salt, change in zip(salts, entry.changes, strict=False):
        kept = None if change.value is None else content(change.value)
        leaf = made.add(change, kept)
        if readable(change.key):
            own.add(leaf)
            shown.append((salt, _told(salt, leaf, change, kept)))
    others = sorted(leaf for leaf in made.all() if leaf not in own)
    return Proof(tuple(s for s, _ in shown), tuple(c for _, c in shown), tuple(others))


def _told(salt: bytes, leaf: bytes, change: Change, kept: bytes | None) -> bytes | None:
    """What a proof has beside the salt of a change."""
    if not salt:
        return leaf
    return kept if kept != content_of(change) else None


def is_proved(entry: LogEntry, proof: Proof) -> bool:
    """Whether the digest of `entry` is over what is shown of it, and what `proof` adds."""
    if not len(entry.changes) == len(proof.salts) == len(proof.contents):
        return False
    leaves = list(proof.leaves)
    times: dict[Key, int] = {}
    shown = zip(entry.changes, proof.salts, proof.contents, strict=True)
    for change, salt, content in shown:
        times[change.key] = times.get(change.key, 0) + 1
        if salt:
            leaves.append(leaf_of(salt, change, content or content_of(change), times[change.key]))
        elif content and is_marker(change.key, change.value):
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
        """The leaf of the next change; `content` is the SHA-256 of its value."""
        number = len(self._found)
        times = self._times[change.key] = self._times.get(change.key, 0) + 1
        leaf = self._stands.get(number)
        if leaf is None:
            leaf = leaf_of(self._salts[number], change, content, times)
        self._found.append(leaf)
        return leaf

    def digest(self) -> bytes:
        """The digest of the entry, all of whose changes were added."""
        return digest_over(self._entry, self.all())

    def all(self) -> list[bytes]:
        """Every leaf, in no order that tells anything: also that of what no reader is shown, and
        those that stand for nothing."""
        return [*self._found, *self.others()]

    def others(self) -> list[bytes]:
        """Those of no change, once all changes were added."""
        kept = self._entry.kept
        hidden = [self.hidden()] if self._salts[-1] else []
        if kept is not None:
            return [*hidden, *kept.leaves]
        return [*hidden, *_padding(self._entry.salt, len(self._found) + 1)]

    def hidden(self) -> bytes:
        """That of what no reader is shown."""
        return _hash_leaf(self._salts[-1], _hidden(self._entry))


def digest_of(entry: LogEntry) -> bytes:
    """The digest of an entry with a salt."""
    leaves = Leaves(entry)
    for change in entry.changes:
        leaves.add(change, content_of(change))
    return leaves.digest()


def digest_over(entry: LogEntry, leaves: Sequence[bytes]) -> bytes:
    """The digest of an entry with these leaves. Of the entry itself the header counts: revision,
    time, author, note and epoch."""
    epoch = entry.epoch
    begun = epoch and [epoch.number, epoch.id, epoch.cause, epoch.from_revision, epoch.revision]
    header = encode([entry.revision, entry.time_ms, entry.signed, entry.note, begun])
    hashed = hashlib.sha256(header).digest()
    return hashlib.sha256(b"".join([_ENTRY, hashed, *sorted(leaves)])).digest()


def leaf_of(salt: bytes, change: Change, content: bytes | None, times: int) -> bytes:
    """The leaf of a change, the `times`-th of its key in its entry."""
    lease = None if change.lease is None else to_result(change.lease)
    said = [change.kind.value, change.key, content, change.expires_at_ms, change.item, lease, times]
    return _hash_leaf(salt, encode(said))


def is_salted(entry: LogEntry) -> bool:
    """Whether its digest is over salted leaves."""
    return bool(entry.salt) or (entry.kept is not None and bool(entry.kept.salts))


def standing(entry: LogEntry) -> dict[int, bytes]:
    """What stands for the changes that were redacted, by their places."""
    kept = entry.kept
    return {} if kept is None else dict(zip(kept.places, kept.stands, strict=True))


def redacted(entry: LogEntry, contents: Sequence[bytes | None], places: Sequence[int]) -> LogEntry:
    """`entry` without anything that tells what the values at `places` were, or were made of.

    `contents` has the SHA-256 of each change's value; the values themselves stay, for the caller to
    replace. With the values of counters go the results, which have them, too.
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
    """The salts of an entry's changes, and at the end that of what no reader is shown; empty ones
    for what was redacted."""
    if entry.kept is not None:
        return list(entry.kept.salts)
    count = len(entry.changes) + 1
    stream = hashlib.shake_256(_LEAF + entry.salt).digest(SALT_BYTES * count)
    return [stream[at : at + SALT_BYTES] for at in range(0, len(stream), SALT_BYTES)]


def _hidden(entry: LogEntry) -> bytes:
    name = entry.id
    return encode([name.lane, name.incarnation, name.step, entry.based_on, entry.results])


def _padding(salt: bytes, count: int) -> list[bytes]:
    whole = max(LEAVES_MIN, 1 << (count - 1).bit_length())
    stream = hashlib.shake_256(_ENTRY + salt).digest(HASH_BYTES * (whole - count))
    return [stream[at : at + HASH_BYTES] for at in range(0, len(stream), HASH_BYTES)]


def _hash_leaf(salt: bytes, said: bytes) -> bytes:
    return hashlib.sha256(b"".join([_LEAF, salt, said])).digest()
