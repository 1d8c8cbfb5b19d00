"""The files of a backup: records of one board, framed, compressed, and chained by SHA-256.

A base has a board's content at one revision; a log has the log entries that follow. Values above
BLOB_BYTES are left out and named by their SHA-256: they lie in the blobs of the backup, once.

The chain covers the log entries, not the files: neither merging files nor a base changes it.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from blackboard.core.commit import Change, Entry, Head, LogEntry
from blackboard.limits import BLOB_BYTES
from blackboard.units import Milliseconds, Prefix, Revision

BASE: Final = "base"
LOG: Final = "log"
CHAIN_START: Final = bytes(32)
_MAGIC: Final = b"blackboard backup segment 1\n"
_FRAME: Final = struct.Struct(">I")
_Valued = TypeVar("_Valued", Entry, Change)


class BaseRecord(Struct, frozen=True, tag="base"):
    """Begins a base: the board's `head` then, and the counters of `append`."""

    head: Head
    items: tuple[tuple[Prefix, int], ...]


class PageRecord(Struct, frozen=True, tag="page"):
    """Some entries as of one revision; `blobs` has the SHA-256 of large values by their place."""

    revision: Revision
    epoch: str
    entries: tuple[Entry, ...]
    blobs: dict[int, bytes] = {}


class LogRecord(Struct, frozen=True, tag="log"):
    """A log entry; `blobs` has the SHA-256 of large values by the place of the change."""

    entry: LogEntry
    blobs: dict[int, bytes] = {}


Record = BaseRecord | PageRecord | LogRecord
_ENCODER: Final = Encoder()
_DECODER: Final = Decoder(Record)


class SegmentFile(Struct, frozen=True):
    """What the manifest says of a file: its `kind`, its revisions after `after` up to `last`, the
    time of the last one, whether it `begins` a base, the `chain` before and after it, its size,
    its SHA-256, and how many times small files were merged into it (`tier`)."""

    name: str
    kind: str
    after: Revision
    last: Revision
    time_ms: Milliseconds
    records: int
    file_bytes: int
    sha256: str
    before: bytes
    chain: bytes
    digest: bytes
    """The digest of the log entry at `last`; empty if a base has none there."""
    begins: bool = False
    tier: int = 0


def apart(record: Record) -> tuple[Record, list[bytes]]:
    """A record without its large values, and these."""
    large: list[bytes] = []
    if isinstance(record, PageRecord):
        entries, blobs = _parted(record.entries, large)
        return replace(record, entries=entries, blobs=blobs), large
    if isinstance(record, LogRecord):
        changes, blobs = _parted(record.entry.changes, large)
        return LogRecord(replace(record.entry, changes=changes), blobs), large
    return record, large


def joined(record: Record, values: dict[bytes, bytes]) -> Record:
    """The inverse of `apart`; `values` by their SHA-256."""
    if isinstance(record, PageRecord):
        return replace(record, entries=_whole(record.entries, record.blobs, values), blobs={})
    if isinstance(record, LogRecord):
        changes = _whole(record.entry.changes, record.blobs, values)
        return LogRecord(replace(record.entry, changes=changes))
    return record


def _parted(
    items: Sequence[_Valued], large: list[bytes]
) -> tuple[tuple[_Valued, ...], dict[int, bytes]]:
    """`items` without their large values, which go to `large`, and the SHA-256 of these."""
    kept, blobs = list(items), dict[int, bytes]()
    for place, item in enumerate(items):
        value: bytes | None = item.value
        if value is not None and len(value) > BLOB_BYTES:
            large.append(value)
            blobs[place] = hashlib.sha256(value).digest()
            # Not None, which in a change is the removal of the key.
            kept[place] = replace(item, value=b"")
    return tuple(kept), blobs


def _whole(
    items: Sequence[_Valued], blobs: dict[int, bytes], values: dict[bytes, bytes]
) -> tuple[_Valued, ...]:
    """The inverse of `_parted`."""
    whole = list(items)
    for place, name in blobs.items():
        whole[place] = replace(whole[place], value=values[name])
    return tuple(whole)


def packed(record: Record) -> bytes:
    """A record as bytes."""
    return _ENCODER.encode(record)


def link(chain: bytes, record: bytes) -> bytes:
    """The chain after a packed log record."""
    return hashlib.sha256(chain + hashlib.sha256(record).digest()).digest()


def file_of(records: Iterable[bytes]) -> bytes:
    """A file with these packed records."""
    framed = b"".join(part for each in records for part in (_FRAME.pack(len(each)), each))
    return _MAGIC + zlib.compress(framed, 1)


def records_in(data: bytes) -> Iterator[bytes]:
    """The packed records of a file. Errors: ValueError."""
    if not data.startswith(_MAGIC):
        raise ValueError("it is no segment")
    try:
        framed = zlib.decompress(data[len(_MAGIC) :])
    except zlib.error as error:
        raise ValueError(str(error)) from error
    at = 0
    while at < len(framed):
        (size,) = _FRAME.unpack_from(framed, at)
        at += _FRAME.size
        if at + size > len(framed):
            raise ValueError("its last record is not complete")
        yield framed[at : at + size]
        at += size


def unpacked(data: bytes) -> Record:
    """The record in packed bytes. Errors: ValueError."""
    try:
        record: Record = _DECODER.decode(data)
        return record
    except (DecodeError, ValidationError) as error:
        raise ValueError(str(error)) from error
