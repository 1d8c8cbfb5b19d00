"""Commits and versions as rows, and back.

Invariants
- `entry_of(commit_row(e), versions of e) == e`: the log is read as it was written.
- the chain covers every field of a log entry, large values by their hash: any change alters the
  chain from there on.
"""

import hashlib
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgpack
from msgspec.structs import replace

from blackboard.archive.tables import ABSENT, BLOB, DEFLATED, LOGGED, PLAIN
from blackboard.core import digest, history
from blackboard.core.commit import (
    Change,
    ChangeKind,
    CommitId,
    Entry,
    Epoch,
    Kept,
    LogEntry,
    name_of,
    narrowed_from,
)
from blackboard.core.lease import from_result, to_result
from blackboard.core.log_entry import (
    Leaves,
    content_of as content_hash,
    digest_of_one,
    is_ordinary,
    is_salted,
    standing,
)
from blackboard.engines.base import LoggedValue
from blackboard.errors import Corrupt
from blackboard.limits import BLOB_BYTES, VALUE_BYTES_MAX
from blackboard.wire.codec import decode_results, encode_results

Row = dict[str, Any]
CHAIN_START: Final = bytes(32)
HASH_BYTES: Final = 32
"""Of a SHA-256."""
_DEFLATE_BYTES: Final = 512  # below, the row overhead is larger than the value
_DEFLATED_SHARE: Final = 0.9
_MOST_OF_ZLIB: Final = (15, 8)
_SETTINGS_OF_ZLIB: Final = ((1_024, 4), (8_192, 6))  # up to this many bytes, this memLevel
_SAMPLE_BYTES: Final = 128
_RANDOM_KINDS: Final = 80  # distinct bytes in a sample: text has below 50, random data 101


# --- content --------------------------------------------------------------------------------------


def content_of(value: bytes, hashed: bytes | None = None) -> tuple[int, bytes]:
    """Form and content of a value; `hashed` is its SHA-256, if it is known.

    A value above BLOB_BYTES must be stored as a blob first.
    """
    if len(value) > BLOB_BYTES:
        return BLOB, hashed or digest.content_of(value)
    if len(value) >= _DEFLATE_BYTES and len(set(value[:_SAMPLE_BYTES])) < _RANDOM_KINDS:
        deflated = _deflated(value)
        if len(deflated) < _DEFLATED_SHARE * len(value):
            return DEFLATED, deflated
    return PLAIN, value


def _deflated(value: bytes) -> bytes:
    """`value`, compressed by zlib with no more memory than it needs.

    By default zlib clears a quarter of a megabyte first, which takes ten times as long as
    compressing a short value.
    """
    window, memory = _MOST_OF_ZLIB
    for bytes_max, memory_level in _SETTINGS_OF_ZLIB:
        if len(value) <= bytes_max:
            # zlib has no window below 2**9 bytes.
            window, memory = max(9, (len(value) - 1).bit_length()), memory_level
            break
    compressor = zlib.compressobj(1, zlib.DEFLATED, window, memory)
    return compressor.compress(value) + compressor.flush()


def _inflated(content: bytes) -> bytes:
    """The inverse of `_deflated`; the size is limited, so that a forged row cannot exhaust the
    memory.

    Errors: zlib.error, also above VALUE_BYTES_MAX; TypeError when it is not bytes.
    """
    inflater = zlib.decompressobj()
    # One byte more, to distinguish a value of exactly this size from a larger one.
    value = inflater.decompress(content, VALUE_BYTES_MAX + 1)
    if len(value) > VALUE_BYTES_MAX:
        raise zlib.error(f"it is more than VALUE_BYTES_MAX, {VALUE_BYTES_MAX:,} bytes")
    if not inflater.eof:
        raise zlib.error("it was cut short")
    return value


def reference(hashed: bytes, value: LoggedValue) -> bytes:
    """The content of a version whose value, with that SHA-256, lies in the log at the version's
    revision. The size comes first, so that SQL can add it up."""
    return hashed + b"%d@%d" % (value.size, value.place)


def referred(row: Any) -> LoggedValue | Corrupt:
    """Where in the log the value of a version lies; an error if the row is damaged."""
    try:
        size, place = map(int, row.content[HASH_BYTES:].split(b"@"))
    except (TypeError, ValueError) as error:
        return Corrupt(f"archived {row.key} at revision {row.revision}", f"its place: {error}")
    if size < 0 or place < 0:
        return Corrupt(f"archived {row.key} at revision {row.revision}", "its place is none")
    return LoggedValue(row.revision, place, size)


def hash_of(row: Any) -> bytes:
    """The SHA-256 of a version's value, without fetching it. Errors: Corrupt."""
    if row.form in (BLOB, LOGGED):
        return bytes(row.content[:HASH_BYTES])
    return digest.content_of(inline_value(row))


def element_of(row: Any) -> bytes:
    """The element (core/digest.py) of a version that is not a removal. Errors: Corrupt."""
    return digest.element(row.key, hash_of(row), row.expires_at_ms)


def inline_value(row: Any) -> bytes:
    """The value of a version that its row holds. Errors: Corrupt."""
    try:
        if row.form == DEFLATED:
            return _inflated(row.content)
        if row.form == PLAIN:
            return bytes(row.content)
        reason = f"form {row.form}"
    except (zlib.error, TypeError) as error:
        reason = str(error)
    raise Corrupt(what=f"archived {row.key} at revision {row.revision}", reason=reason)


def alike(a: Any, b: Any) -> bool:
    """Whether two versions of a key have the same value and expiry; None = no version."""
    if a is None or a.form == ABSENT:
        return b is None or b.form == ABSENT
    if b is None or b.form == ABSENT or a.expires_at_ms != b.expires_at_ms:
        return False
    same = a.form == b.form and a.content == b.content
    return same or hash_of(a) == hash_of(b)


def with_value(row: Any, value: bytes) -> Entry:
    """The entry of this version, with its value."""
    return Entry(
        key=row.key,
        value=value,
        mod_revision=row.revision,
        create_revision=row.create_revision,
        author=row.author,
        time_ms=row.time_ms,
        expires_at_ms=row.expires_at_ms,
        first_ms=row.first_ms,
    )


def version_row(board: int, entry: Entry) -> Row:
    """The row of an entry that was there when the archive began."""
    form, content = content_of(entry.value)
    return {
        "board": board,
        "revision": entry.mod_revision,
        "position": -1,
        "key": entry.key,
        "form": form,
        "content": content,
        "create_revision": entry.create_revision,
        "author": entry.author,
        "time_ms": entry.time_ms,
        "expires_at_ms": entry.expires_at_ms,
        "item": None,
        "first_ms": entry.first_ms,
    }


def total_of(row: Any) -> int:
    """The sum in a namespace's row. Errors: Corrupt."""
    try:
        return digest.from_bytes(bytes(row.total))
    except (TypeError, ValueError) as error:
        raise Corrupt(what=f"archived sum of {row.namespace}", reason=str(error)) from error


# --- commits --------------------------------------------------------------------------------------


def commit_row(board: int, entry: LogEntry, chain: bytes) -> Row:
    """The row of a log entry with its `chain`; its changes of keys have rows of their own."""
    name = entry.id
    return {
        "board": board,
        "revision": entry.revision,
        "time_ms": entry.time_ms,
        "agent": entry.signed,
        "lane": name.lane,
        "incarnation": name.incarnation,
        "step": name.step,
        "note": entry.note,
        "digest": entry.digest,
        "chain": chain,
        "cost": history.cost_of(entry),
        "details": details_of(entry),
    }


def details_of(entry: LogEntry) -> bytes:
    """Grounds, results, changes of leases, and the salt or its replacement."""
    leases = [
        [position, change.kind.value, change.key, to_result(change.lease)]
        for position, change in enumerate(entry.changes)
        if change.lease is not None
    ]
    is_plain = not leases and not entry.based_on and not entry.salt and entry.kept is None
    if is_plain and entry.results.count(None) == len(entry.results):
        return _plain_details(len(entry.results))
    grounds = [part for pair in entry.based_on for part in pair]
    details: list[Any] = [grounds, encode_results(entry.results), leases]
    if entry.salt or entry.kept is not None:
        details.append(entry.salt)
    if (kept := entry.kept) is not None:
        details.append([kept.places, kept.stands, kept.salts, kept.leaves])
    packed: bytes = msgpack.packb(details)
    return packed


def bare_details(commit: Any) -> bytes:
    """The details of a commit's row, without salt and results, for a commit that no log has any
    more.

    Errors: Corrupt.
    """
    try:
        grounds, _, leases, *_ = msgpack.unpackb(commit.details)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise Corrupt(what=f"archived revision {commit.revision}", reason=repr(error)) from error
    packed: bytes = msgpack.packb([grounds, encode_results(()), leases])
    return packed


@lru_cache(maxsize=64)
def _plain_details(results: int) -> bytes:
    """The details of most commits without a salt: neither grounds nor results nor leases."""
    packed: bytes = msgpack.packb([[], encode_results((None,) * results), []])
    return packed


def entry_of(
    commit: Any, versions: Sequence[Any], epoch: Epoch | None, values: Sequence[bytes | None]
) -> LogEntry:
    """The log entry of a commit's row and of its versions' rows, with their values; None leaves one
    out.

    Errors: Corrupt when they do not belong together.
    """
    changes: dict[int, Change] = {}
    for row, value in zip(versions, values, strict=True):
        kind = ChangeKind.DELETE if row.form == ABSENT else ChangeKind.PUT
        changes[row.position] = Change(kind, row.key, value, row.expires_at_ms, row.item)
    try:
        grounds, results, leases, *salted = msgpack.unpackb(commit.details)
        for position, kind, key, flat in leases:
            changes[position] = Change(ChangeKind(kind), key, lease=from_result(key, flat))
        return LogEntry(
            revision=commit.revision,
            time_ms=commit.time_ms,
            id=CommitId(name_of(commit.agent), commit.lane, commit.incarnation, commit.step),
            changes=tuple(change for _, change in sorted(changes.items())),
            digest=bytes(commit.digest),
            based_on=tuple(zip(grounds[::2], grounds[1::2], strict=True)),
            note=commit.note,
            epoch=epoch,
            results=decode_results(results),
            salt=salted[0] if salted else b"",
            account=narrowed_from(commit.agent),
            kept=_kept(salted[1], len(changes)) if len(salted) > 1 else None,
        )
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise Corrupt(what=f"archived revision {commit.revision}", reason=repr(error)) from error


def _kept(packed: Any, changes: int) -> Kept:
    """The replacement of a salt. Errors: ValueError unless it fits the number of changes."""
    places, stands, salts, leaves = map(tuple, packed)
    fits = all(place in range(changes) for place in places) and len(places) == len(stands)
    if not fits or len(salts) not in (0, changes + 1):
        raise ValueError("what is kept of it does not fit its changes")
    return Kept(places, stands, salts, leaves)


def epoch_row(board: int, epoch: Epoch) -> Row:
    """The row of an epoch."""
    return {
        "board": board,
        "revision": epoch.revision,
        "number": epoch.number,
        "id": epoch.id,
        "cause": epoch.cause,
        "from_revision": epoch.from_revision,
    }


def epoch_of(row: Any) -> Epoch:
    """The inverse of `epoch_row`."""
    return Epoch(row.number, row.id, row.cause, row.from_revision, row.revision)


# --- manifests ------------------------------------------------------------------------------------

# What most manifests have in common (integrity/signing.py), the most common last. It must not
# change, because unpacking needs the same dictionary. Streams packed without it are read as well.
_ALIKE: Final = (
    b'"private/","inbox/","public":"","system":""},"epoch":[1,"","restore",0,0],"format":1,'
    b'"barrier":{"asked":0,"delivered":[],"left":[],"not_fresh":[]},"kind":"before-restore",'
    b'{"agents":{"~system":[1,"",0,0]},"author":"~system","board":"main","chain":"",'
    b'"checkpoint":"","declared":{},"digests":{"private/":"","public":"","system":""},'
    b'"epoch":[1,"","created",0,0],"format":1,"key":"","previous":"","record":{"barrier":null,'
    b'"by":"operator","kind":"automatic","kind":"named","note":"","request":""},"revision":1,'
    b'"time_ms":1'
)


def pack_manifest(manifest: bytes) -> bytes:
    """A manifest as it is stored: what all of them have in common takes no room."""
    window = zlib.MAX_WBITS
    compressor = zlib.compressobj(
        9, zlib.DEFLATED, window, zlib.DEF_MEM_LEVEL, zlib.Z_DEFAULT_STRATEGY, _ALIKE
    )
    return compressor.compress(manifest) + compressor.flush()


def unpack_manifest(packed: bytes) -> bytes:
    """The inverse of `pack_manifest`. Errors: ValueError.

    Its size is not bounded: the manifest of the checkpoint before a restore, or of one that was
    taken while the archive was away, may have more than MANIFEST_BYTES_MAX.
    """
    inflater = zlib.decompressobj(zdict=_ALIKE)
    try:
        manifest = inflater.decompress(packed)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof:
        raise ValueError("it was cut short")
    return manifest


# --- the chain ------------------------------------------------------------------------------------


class ChainLink:
    """The next link of the hash chain: SHA-256 over the one before and the content of `entry`.

    Its changes are added one by one, because a restore has many. For an entry with a salt, the
    content is its digest, once as received and once as computed from the changes.
    """

    def __init__(self, entry: LogEntry) -> None:
        self._entry = entry
        self._digest: bytes | None = None
        self._is_ordinary = is_ordinary(entry)
        self._leaves = Leaves(entry) if not self._is_ordinary and is_salted(entry) else None
        self._stands = standing(entry)
        self._changes: list[list[Any]] = []

    def add(self, change: Change, hashed: bytes | None) -> None:
        """Add the next change; `hashed` is the SHA-256 of its value."""
        if self._is_ordinary:
            self._digest = digest_of_one(self._entry, hashed)
        elif self._leaves is not None:
            self._leaves.add(change, hashed)
        else:
            if (stands := self._stands.get(len(self._changes))) is not None:
                change, hashed = replace(change, kind=ChangeKind.PUT), stands
            self._changes.append(_canonical_change(change, hashed))

    def after(self, chain: bytes) -> bytes:
        """The chain after the entry."""
        computed = self._digest if self._leaves is None else self._leaves.digest()
        if computed is None:
            return hashlib.sha256(chain + _canonical(self._entry, self._changes)).digest()
        return hashlib.sha256(chain + self._entry.digest + computed).digest()


def next_chain(chain: bytes, entry: LogEntry) -> bytes:
    """The hash chain after `entry`."""
    link = ChainLink(entry)
    for change in entry.changes:
        link.add(change, content_hash(change))
    return link.after(chain)


def _canonical(entry: LogEntry, changes: Sequence[list[Any]]) -> bytes:
    """The content of a log entry without a salt, as bytes; values by their SHA-256."""
    name, epoch = entry.id, entry.epoch
    said: list[Any] = [
        entry.revision,
        entry.time_ms,
        [entry.signed, name.lane, name.incarnation, name.step],
        entry.digest,
        entry.note,
        entry.based_on,
        epoch and [epoch.number, epoch.id, epoch.cause, epoch.from_revision, epoch.revision],
        entry.results,
        changes,
    ]
    packed: bytes = msgpack.packb(said)
    return packed


def _canonical_change(change: Change, hashed: bytes | None) -> list[Any]:
    """The content of a change; `hashed` is the SHA-256 of its value."""
    lease = None if change.lease is None else to_result(change.lease)
    return [change.kind.value, change.key, hashed, change.expires_at_ms, change.item, lease]
