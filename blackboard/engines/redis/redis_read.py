"""Replies of `scripts/read.lua` and `scripts/log.lua` as readings and log pages."""

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from blackboard.core.commit import ENGINE, Entry, Lease, LogEntry, LogPage, Reading
from blackboard.core.lease import from_result
from blackboard.engines.redis.layout import read_entry, read_epoch, read_head, unpack_bundle
from blackboard.errors import Compacted, Corrupt, FutureRevision
from blackboard.types import Revision
from blackboard.wire.codec import decode_entry, marker_entry

_PARTS: Final = 3
"""Items per entry in a reply of read.lua: key, field, large value."""


def read_reading(reply: Sequence[Any]) -> tuple[Reading, bool]:
    """The entries of a reply of read.lua, and whether there are more."""
    revision, epoch, is_cut, flat = reply
    entries: list[Entry] = [
        read_entry(*flat[at : at + _PARTS]) for at in range(0, len(flat), _PARTS)
    ]
    return Reading(revision, read_epoch(epoch).id, tuple(entries)), bool(is_cut)


def read_leases(reply: Sequence[Any], *, due: bool) -> Reading:
    """The leases of a reply of leases.lua; with `due` those that have run out."""
    revision, epoch, time_ms, flat = reply
    packed = sorted(zip(flat[::2], flat[1::2], strict=True))
    found = (_read_lease(key, lease) for key, lease in packed if key)
    leases = tuple(lease for lease in found if not due or lease.until_ms <= time_ms)
    return Reading(revision, read_epoch(epoch).id, leases=leases)


def _read_lease(key: bytes, packed: bytes) -> Lease:
    lease = from_result(key.decode(), msgpack.unpackb(packed))
    assert lease is not None
    return lease


def read_log_page(reply: Sequence[Any], after: Revision) -> LogPage:
    """The page of a reply of log.lua. Errors: Compacted, FutureRevision, Corrupt."""
    head, items = read_head(reply[0]), reply[1]
    if after + 1 < head.oldest:
        raise Compacted(after, head.oldest)
    if after > head.revision:
        raise FutureRevision(after, head.revision)
    entries = tuple(_read_log_entry(*item) for item in items)
    if entries and entries[0].revision != after + 1 and not _came_back(entries[0]):
        raise Corrupt(what="log", reason=f"revision {after + 1} is missing")
    return LogPage(head, entries)


def _came_back(entry: LogEntry) -> bool:
    return entry.epoch is not None and entry.epoch.cause == ENGINE


def _read_log_entry(name: bytes, flat: Sequence[bytes]) -> LogEntry:
    """One entry of the stream; the names of its fields are those of commit.lua and open.lua."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    revision, time_ms = int(name.partition(b"-")[0]), int(fields[b"t"])
    if b"e" in fields:
        return marker_entry(read_epoch(fields[b"e"]), time_ms)
    numbers = range(1, len(fields) - 2)
    if b"w1" in fields:
        large = [value for n in numbers for value in unpack_bundle(fields[b"w%d" % n])]
    else:
        large = [fields[b"v%d" % n] for n in numbers]
    return decode_entry(revision, time_ms, fields[b"b"], large, fields[b"r"])
