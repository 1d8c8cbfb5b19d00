"""A checkpoint as one value of a board, in which what it shares with earlier ones is left out.

A record has, of each channel, one of three things: the value itself; the id of the earlier record
that has the value (`at`); or, of a list, what differs from the list in an earlier record (`base`).
The writes that led from the parent to the checkpoint are in the same record (`led`), because a
message that was written and then appended to a channel is then stored once: values are stored in
pieces, a list by its elements, and equal pieces of a record once.

The bytes: FORMAT, then msgpack of the fields, deflated. msgpack arrays are distinguished without
decoding what is in them, which takes the framework's classes.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgpack

from blackboard.errors import LimitExceeded

Typed = tuple[str, bytes]
"""What a serializer of LangGraph makes of a value: its type and its bytes."""

FORMAT: Final = b"\x01"
RECORD_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Bytes of a record before it is deflated, so that a small one cannot fill the memory of its
readers. What is stored has 64 MiB at most (LARGE_BYTES_MAX)."""
_LEVEL: Final = 6
_COMMON: Final = (
    b"thread_idcheckpoint_ns__interrupt____resume____error__pending_sends\x90fork\x84\xa6sour"
    b"ce\xa6update\xa4step\xff\xa7parents\x80\xa6run_id\xd9$1f1e0000-0000-6000-8000-000000000"
    b"000\x83\xa6source\xa5input\xa4step\xff\xa7parents\x80\x83\xa6source\xa4loop\xa4step\x01"
    b"\xa7parents\x80\x99\xd9$1f1e0000-0000-6000-8000-000000000000\x92\xa7msgpack\xc5\x01\xb5"
    b"\x85\xa1v\x04\xa2ts\xd9 2026-01-01T00:00:00.000000+00:00\xb0channel_versions\x85\xa9__s"
    b"tart__\xab0000000002.\xa8messages\xab0000000003.\xafbranch:to:tools\xb30000000000.00000"
    b"000\xafbranch:to:agent\xb30000000000.00000000\xaebranch:to:node\xb30000000000.00000000"
    b"\xadversions_seen\x85\xa9__input__\x80\xa9__start__\x81\xa9__start__\xab0000000001.\xa5"
    b"tools\x81\xafbranch:to:tools\xb30000000000.00000000\xa5agent\x81\xafbranch:to:agent\xb3"
    b"0000000000.00000000\xa4node\x81\xaebranch:to:node\xb30000000000.00000000\xb0updated_cha"
    b"nnels\x92\xaebranch:to:node\xa8messages\x92\xa7msgpack\xc4(ep\xff\xa7parents\x80\x83"
    b"\xa6source\xa4loop\xa4step\x01\xa7parents\x80\x80\x82\xa1n\x93\xa7msgpack\xc2\x91\x00"
    b"\xaebranch:to:node\x93\xa4null\xc2\x91\x01\x81\xa8messages\x95\xd9$1f1e0000-0000-6000-8"
    b"000-000000000000\x00\x00\x91\x02\xa7msgpack\x92\x93\xd9$1f1e0000-0000-6000-8000-0000000"
    b"00000\xb5~__pregel_pull, tools\x92\x95\x00\xa8messages\xa7msgpack\xc3\x91\x02\x95\x01"
    b"\xafbranch:to:agent\xa4null\xc2\x91\x01\x93\xd9$1f1e0000-0000-6000-8000-000000000000"
    b"\xb4~__pregel_pull, node\x92\x95\x00\xa8messages\xa7msgpack\xc3\x91\x02\x95\x01\xaebran"
    b"ch:to:node\xa4null\xc2\x91\x01\xc0\x92\xc4\x00\xc4\x01\xc1"
)
"""What nearly every record says, in which the compression looks first. Part of FORMAT."""


@dataclass(frozen=True, slots=True)
class Pieced:
    """A serialized value: its bytes, or the elements of a list, each by itself."""

    type: str
    pieces: Sequence[bytes]
    is_list: bool = False

    @property
    def typed(self) -> Typed:
        """The value as its serializer made it."""
        return self.type, array(self.pieces) if self.is_list else self.pieces[0]


@dataclass(frozen=True, slots=True)
class Growth:
    """A list as the first `keep` elements of the list in record `base`, then `tail`, then its last
    `end` elements."""

    base: str
    keep: int
    end: int
    tail: Sequence[bytes]
    type: str


@dataclass(frozen=True, slots=True)
class TaskWrite:
    """One write of a task, as `put_writes` was given it."""

    task_id: str
    task_path: str
    index: int
    channel: str
    value: Pieced


@dataclass(slots=True)
class CheckpointRecord:
    """What is stored of one checkpoint."""

    parent: str | None
    rest: Typed
    """The checkpoint without its id, which its key has, and without the values of its channels."""
    metadata: Typed
    at: dict[str, str] = field(default_factory=dict)
    values: dict[str, Pieced] = field(default_factory=dict)
    grown: dict[str, Growth] = field(default_factory=dict)
    led: list[TaskWrite] = field(default_factory=list)
    names: tuple[str, str, str] | None = None
    """Thread, namespace and id, if its key has only the digest of one of them."""

    def owners(self, id_: str) -> dict[str, str]:
        """Which record has the value of each channel, if this is the record `id_`."""
        return self.at | dict.fromkeys([*self.values, *self.grown], id_)

    def sources(self) -> set[str]:
        """The ids of the records that this one needs."""
        return set(self.at.values()) | {growth.base for growth in self.grown.values()}


# --- lists ----------------------------------------------------------------------------------------


def pieced(typed: Typed) -> Pieced:
    """A serialized value in pieces: the elements of a list that is not empty."""
    type_, data = typed
    found = elements(data) if type_ == "msgpack" else None
    return Pieced(type_, found, is_list=True) if found else Pieced(type_, [data])


def elements(data: bytes) -> list[bytes] | None:
    """The elements of a msgpack array, as they are encoded; None if `data` is none."""
    head, count = _header(data)
    return _split(data, head, count) if head else None


def body_of(data: bytes) -> bytes:
    """A msgpack array without its header."""
    return data[_header(data)[0] :]


def elements_after(data: bytes, body: bytes, known: int) -> list[bytes] | None:
    """The elements of a msgpack array after the first `known` ones, if those are `body`, as
    `body_of` returned it; None if they are others."""
    head, count = _header(data)
    if not head or count < known or not data.startswith(body, head):
        return None
    return _split(data, head + len(body), count - known)


def _header(data: bytes) -> tuple[int, int]:
    """The bytes of the header of a msgpack array, and its count; no bytes if it is none."""
    first = data[0] if data else 0
    if 0x90 <= first <= 0x9F:
        return 1, first & 0x0F
    size = {0xDC: 2, 0xDD: 4}.get(first)
    return (1 + size, int.from_bytes(data[1 : 1 + size], "big")) if size else (0, 0)


def _split(data: bytes, start: int, count: int) -> list[bytes]:
    """So many encoded values, from `start` on."""
    # msgpack's own bound, 100 MB, is below what a list may have.
    unpacker = msgpack.Unpacker(None, max_buffer_size=len(data))
    unpacker.feed(memoryview(data)[start:])
    marks = [start]
    for _ in range(count):
        unpacker.skip()
        marks.append(start + unpacker.tell())
    return [data[one:other] for one, other in pairwise(marks)]


def array(items: Sequence[bytes]) -> bytes:
    """A msgpack array of elements that are encoded already."""
    packer = msgpack.Packer()
    return b"".join([packer.pack_array_header(len(items)), *items])


def difference(old: Sequence[bytes], new: Sequence[bytes]) -> tuple[int, int]:
    """How many elements `new` and `old` share at their beginning, and how many of others at their
    end."""
    most = min(len(old), len(new))
    keep = 0
    while keep < most and old[keep] == new[keep]:
        keep += 1
    end = 0
    while end < most - keep and old[-1 - end] == new[-1 - end]:
        end += 1
    return keep, end


# --- bytes ----------------------------------------------------------------------------------------


class _PieceTable:
    """The pieces of one record, equal ones once."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._index: dict[bytes, int] = {}

    def add(self, pieces: Sequence[bytes]) -> list[int]:
        """Where these are."""
        return [self._one(piece) for piece in pieces]

    def _one(self, piece: bytes) -> int:
        index = self._index.setdefault(piece, len(self.found))
        if index == len(self.found):
            self.found.append(piece)
        return index


def encode(record: CheckpointRecord, bytes_max: int = RECORD_BYTES_MAX) -> bytes:
    """The bytes of a record. Errors: LimitExceeded for one that could not be read."""
    pieces = _PieceTable()
    fields = [
        record.parent,
        record.rest,
        record.metadata,
        record.at,
        {name: _value(value, pieces) for name, value in record.values.items()},
        {
            name: [growth.base, growth.keep, growth.end, pieces.add(growth.tail), growth.type]
            for name, growth in record.grown.items()
        },
        _writes(record.led, pieces),
        record.names,
        pieces.found,
    ]
    return _packed(fields, bytes_max)


def decode(data: bytes) -> CheckpointRecord:
    """The record with these bytes. Errors: ValueError for another format, or damage."""
    parent, rest, metadata, at, values, grown, led, names, pieces = _unpacked(data)
    return CheckpointRecord(
        parent,
        tuple(rest),
        tuple(metadata),
        at,
        {name: _value_of(value, pieces) for name, value in values.items()},
        {
            name: Growth(base, keep, end, [pieces[place] for place in tail], type_)
            for name, (base, keep, end, tail, type_) in grown.items()
        },
        _writes_of(led, pieces),
        None if names is None else tuple(names),
    )


def encode_writes(writes: Sequence[TaskWrite], bytes_max: int = RECORD_BYTES_MAX) -> bytes:
    """The bytes of writes that are stored by themselves. Errors: as of `encode`."""
    pieces = _PieceTable()
    return _packed([_writes(writes, pieces), pieces.found], bytes_max)


def decode_writes(data: bytes) -> list[TaskWrite]:
    """The writes with these bytes. Errors: ValueError when they are of another format."""
    writes, pieces = _unpacked(data)
    return _writes_of(writes, pieces)


def _value(value: Pieced, pieces: _PieceTable) -> list[Any]:
    return [value.type, value.is_list, pieces.add(value.pieces)]


def _value_of(fields: Sequence[Any], pieces: Sequence[bytes]) -> Pieced:
    type_, is_list, places = fields
    return Pieced(type_, [pieces[place] for place in places], is_list)


def _writes(writes: Sequence[TaskWrite], pieces: _PieceTable) -> list[Any]:
    """By task, because a task writes to several channels."""
    tasks: dict[tuple[str, str], list[Any]] = {}
    for write in writes:
        fields = [write.index, write.channel, *_value(write.value, pieces)]
        tasks.setdefault((write.task_id, write.task_path), []).append(fields)
    return [[*task, fields] for task, fields in tasks.items()]


def _writes_of(tasks: Sequence[Any], pieces: Sequence[bytes]) -> list[TaskWrite]:
    return [
        TaskWrite(task_id, task_path, index, channel, _value_of(value, pieces))
        for task_id, task_path, writes in tasks
        for index, channel, *value in writes
    ]


def _packed(fields: Any, bytes_max: int) -> bytes:
    packed = msgpack.packb(fields)
    if len(packed) > bytes_max:
        raise LimitExceeded("RECORD_BYTES_MAX", len(packed), bytes_max, "a checkpoint")
    # -15: raw deflate, without zlib's header and checksum, which small records would pay for.
    squeeze = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15, zdict=_COMMON)
    return FORMAT + squeeze.compress(packed) + squeeze.flush()


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(inflated(data), strict_map_key=False)


def inflated(data: bytes, bytes_max: int = RECORD_BYTES_MAX) -> bytes:
    """What was deflated. Errors: ValueError."""
    if data[:1] != FORMAT:
        raise ValueError(f"format {data[:1]!r} of a checkpoint is not known")
    stretch = zlib.decompressobj(-15, zdict=_COMMON)
    try:
        # Bounded: deflate shrinks by up to a thousand, and a record may have been put by hand.
        found = stretch.decompress(data[1:], bytes_max + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not stretch.eof or len(found) > bytes_max:
        raise ValueError(f"a checkpoint is damaged, or has more than {bytes_max} bytes")
    return found
