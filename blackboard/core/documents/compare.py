"""Checks that the units of an update that are already known are the same as the known ones.

Libraries skip known units of an update. So an author whose client id is used by another author as
well would silently lose edits. Here such units are compared by content, neighbours and position.
Deleted units have no content any more and are not compared; nor are subdocuments, which libraries
encode in several ways.

Numbers, objects and JSON are compared as values, since libraries write the same ones differently.
"""

import json
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blackboard.core.documents.update import (
    ANY,
    BINARY,
    COLLECTED,
    DELETED,
    EMBED,
    FORMAT,
    JSON,
    STRING,
    SUBDOCUMENT,
    Id,
    Reader,
    Struct,
    UpdateReader,
)

_UNIT_BYTES = 2
"""Bytes of a UTF-16 unit, which is what clocks count."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A struct and its encoded bytes."""

    struct: Struct
    raw: bytes

    @property
    def end(self) -> int:
        """The clock after its last unit."""
        return self.struct.clock + self.struct.length


class _Pieces(UpdateReader):
    """Reads the structs of an update with their bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(Reader(data))
        self.found: list[_Piece] = []

    def struct(self, client: int, clock: int) -> Struct:
        """As `UpdateReader.struct`, keeping its bytes."""
        begin = self.reader.position
        found = super().struct(client, clock)
        self.found.append(_Piece(found, self.reader.data[begin : self.reader.position]))
        return found


def known_from(structs: Sequence[Struct], clocks: Mapping[int, int]) -> dict[int, int]:
    """The first known unit of `structs`, by client; empty if all are new."""
    found: dict[int, int] = {}
    for one in structs:
        if one.clock < clocks.get(one.client, 0):
            found[one.client] = min(one.clock, found.get(one.client, one.clock))
    return found


def differing(data: bytes, known: bytes, clocks: Mapping[int, int]) -> Id | None:
    """The first unit where the update `data` contradicts `known`, an update that has all units from
    `known_from` on; None if there is none. Errors: InvalidRequest when either is malformed.
    """
    theirs: dict[int, list[_Piece]] = {}
    for piece in _pieces(known):
        theirs.setdefault(piece.struct.client, []).append(piece)
    for piece in _pieces(data):
        client = piece.struct.client
        if piece.struct.clock < clocks.get(client, 0):
            found = _differs(piece, theirs.get(client, []))
            if found is not None:
                return client, found
    return None


def _pieces(data: bytes) -> list[_Piece]:
    reading = _Pieces(data)
    reading.clients()
    return reading.found


def _differs(piece: _Piece, others: Sequence[_Piece]) -> int | None:
    """The clock at which `piece` differs from `others`, which are sorted by clock."""
    # Minus one: the struct before may reach into this one.
    at = bisect_right(others, piece.struct.clock, key=lambda other: other.struct.clock) - 1
    for other in others[max(at, 0) :]:
        if other.struct.clock >= piece.end:
            break
        first = max(piece.struct.clock, other.struct.clock)
        last = min(piece.end, other.end)
        if first < last and not _same(piece, other, first, last):
            return first
    return None


def _same(one: _Piece, other: _Piece, first: int, last: int) -> bool:
    a, b = _content(one.raw), _content(other.raw)
    if a is None or b is None:
        return True
    if _left(one, first) != _left(other, first) or one.struct.right != other.struct.right:
        return False
    # A struct names its place only where it begins; of one that was split, only the first part
    # does.
    begins = one.struct.clock == first == other.struct.clock
    return (not begins or a.place == b.place) and _cut(one, a, first, last) == _cut(
        other, b, first, last
    )


def _left(piece: _Piece, clock: int) -> Id | None:
    """The left neighbour of the unit at `clock` when it was written."""
    own = piece.struct
    return own.left if clock == own.clock else (own.client, clock - 1)


@dataclass(frozen=True, slots=True)
class _Content:
    """The position of a struct, if its neighbours do not give it, and its units."""

    place: bytes
    kind: int
    units: bytes | Sequence[Any]


def _cut(piece: _Piece, content: _Content, first: int, last: int) -> tuple[int, Any]:
    size = _UNIT_BYTES if content.kind == STRING else 1
    begin = piece.struct.clock
    return content.kind, content.units[(first - begin) * size : (last - begin) * size]


def _content(raw: bytes) -> _Content | None:
    """The content of a struct; None when it is not to be compared."""
    reader = Reader(raw)
    info = reader.byte()
    # Five bits of kind, then flags: a left neighbour (0x80), a right one (0x40), a key of a map
    # (0x20).
    kind = info & 0x1F
    if kind in (COLLECTED, DELETED, SUBDOCUMENT):
        return None
    for flag in (0x80, 0x40):
        if info & flag:
            reader.number()
            reader.number()
    place = b"" if info & 0xC0 else _place(reader, has_key=bool(info & 0x20))
    return _Content(place, kind, _units(reader, kind))


def _place(reader: Reader, *, has_key: bool) -> bytes:
    begin = reader.position
    if reader.number() == 1:
        reader.text()
    else:
        reader.number()
        reader.number()
    if has_key:
        reader.text()
    return reader.data[begin : reader.position]


def _units(reader: Reader, kind: int) -> bytes | Sequence[Any]:
    if kind == STRING:
        return reader.text().encode("utf-16-le")
    if kind == ANY:
        return [_any(reader) for _ in range(reader.count())]
    if kind == JSON:
        return [_json(reader.text()) for _ in range(reader.count())]
    if kind == BINARY:
        return [reader.buffer()]
    if kind == EMBED:
        return [_json(reader.text())]
    if kind == FORMAT:
        return [(reader.text(), _json(reader.text()))]
    return [reader.data[reader.position :]]  # a shared type: its kind, and its name if it has one


def _json(text: str) -> Any:
    """A comparable value; values that are not JSON ("undefined") as text."""
    try:
        return _comparable(json.loads(text))
    except (ValueError, RecursionError):
        return ("text", text)


def _comparable(value: Any) -> Any:
    """A form that compares strictly: True is not 1, and NaN equals NaN."""
    if isinstance(value, dict):
        return {key: _comparable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_comparable(inner) for inner in value]
    if isinstance(value, bool) or value is None or value != value:
        return ("word", str(value))
    return value


def _any(reader: Reader) -> Any:
    """A value of lib0's `writeAny`, in the form of `_comparable`. It was validated before."""
    kind = reader.byte()
    if kind in _WORDS:
        return ("word", _WORDS[kind])
    if kind == 125:
        return _integer(reader)
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        begin = reader.position
        reader.skip(form.size)
        return _comparable(form.unpack(reader.data[begin : reader.position])[0])
    if kind == 119:
        return reader.text()
    if kind == 116:
        return reader.buffer()
    if kind == 117:
        return [_any(reader) for _ in range(reader.count())]
    return {reader.text(): _any(reader) for _ in range(reader.count())}


# The types of lib0, from 127 downwards. Those that are missing here: 125 integer, 119 text, 118
# object, 117 array, 116 bytes.
_WORDS = {127: "undefined", 126: "None", 121: "False", 120: "True"}
_NUMBERS = {124: struct.Struct(">f"), 123: struct.Struct(">d"), 122: struct.Struct(">q")}


def _integer(reader: Reader) -> int:
    """Six bits in the first byte, beside a sign; seven in each of the others."""
    byte = reader.byte()
    found, shift, sign = byte & 0x3F, 6, -1 if byte & 0x40 else 1
    while byte & 0x80:
        byte = reader.byte()
        found |= (byte & 0x7F) << shift
        shift += 7
    return sign * found
