"""Parses a CRDT update without trusting it.

An update (Yjs' first encoding) is a list of *structs* of each client, and a set of what is deleted.
Each struct has an id, (client, clock), and may name others: its neighbours when it was written, and
what it lies in. Updates must be parsed first because the library that applies them trusts its
input: a deeply nested value crashes the whole process.

Source: yjs/src/utils/encoding.js, yjs/src/structs/Item.js, lib0/encoding.js.

Surrogate pairs: clocks count UTF-16 units. A character beyond U+FFFF has two, but the library holds
text as UTF-8: after an edit that deletes one of the two, or inserts between them, it counts
wrongly, and what it encodes later cannot be loaded any more. (Yjs itself puts U+FFFD in place of
both.) So `Pairs` records where such characters are, and finds edits that would cut one.

Source: yrs 0.2x, `split_str`; yjs/src/structs/ContentString.js.

Encoding: variable-length integers, strings and buffers. An integer has seven bits to a byte, the
lowest first; the highest bit says that more follow (LEB128, as in lib0). A `Reader` never reads
beyond its bytes and never trusts a length that exceeds them.
"""

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from blackboard.errors import InvalidRequest
from blackboard.limits import INTEGER_MAX, VALUE_DEPTH_MAX

# INTEGER_MAX has 53 bits. Without a bound, a long number would grow until the update ends.
_BITS_MAX = 56


class Reader:
    """Reads `data` from the front. Errors of every method: InvalidRequest, naming `field`."""

    __slots__ = ("data", "end", "field", "position")

    def __init__(self, data: bytes, field: str = "update") -> None:
        self.data = data
        self.field = field
        self.position = 0
        self.end = len(data)

    def byte(self) -> int:
        """The next byte."""
        if self.position >= self.end:
            raise self.broken("ends too early")
        found = self.data[self.position]
        self.position += 1
        return found

    def number(self) -> int:
        """An integer of 0..INTEGER_MAX."""
        # An update consists mostly of numbers, so most of the time is spent here.
        data, position, end = self.data, self.position, self.end
        if position < end and data[position] < 0x80:
            self.position = position + 1
            return data[position]
        found = shift = 0
        while position < end:
            byte = data[position]
            position += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                if found > INTEGER_MAX:
                    break
                return found
            shift += 7
            if shift > _BITS_MAX:
                break
        else:
            raise self.broken("ends too early")
        raise self.broken("holds a number that is too large")

    def count(self) -> int:
        """The number of elements that follow, which take at least a byte each."""
        found = self.number()
        if found > self.end - self.position:
            raise self.broken("announces more than it holds")
        return found

    def skip(self, size: int) -> None:
        """Pass over `size` bytes."""
        if size > self.end - self.position:
            raise self.broken("ends too early")
        self.position += size

    def buffer(self) -> bytes:
        """Bytes, preceded by their number."""
        size = self.count()
        start = self.position
        self.position = start + size
        return self.data[start : self.position]

    def text(self) -> str:
        """UTF-8 text, preceded by its number of bytes."""
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as error:
            raise self.broken("holds text that is not UTF-8") from error

    def broken(self, reason: str) -> InvalidRequest:
        """The error to raise for malformed data."""
        return InvalidRequest(field=self.field, reason=f"{reason} (byte {self.position})")

    @property
    def is_empty(self) -> bool:
        """Whether everything was read."""
        return self.position >= self.end


def write_number(number: int) -> bytes:
    """Encode what `Reader.number` reads."""
    if number < 0x80:
        return bytes((number,))
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def write_buffer(data: bytes) -> bytes:
    """Encode what `Reader.buffer` reads."""
    return write_number(len(data)) + data


def write_text(text: str) -> bytes:
    """Encode what `Reader.text` reads."""
    return write_buffer(text.encode())


Id = tuple[int, int]
"""(client, clock): names one struct, or one unit of a longer one."""
EMPTY_UPDATE = b"\0\0"
EMPTY_STATE = b"\0"


class Struct(msgspec.Struct, frozen=True, gc=False):
    """`length` units of `client` from `clock` on, written between `left` and `right`.

    `is_text` says whether they are characters. A struct without content has no neighbours.
    """

    client: int
    clock: int
    length: int
    left: Id | None = None
    right: Id | None = None
    is_text: bool = False


class Span(msgspec.Struct, frozen=True, gc=False):
    """`length` units of `client` from `clock` on that an update deletes."""

    client: int
    clock: int
    length: int


@dataclass(frozen=True, slots=True)
class Update:
    """The additions and deletions of an update, and its dependencies.

    `needs` has, by client, the number of its units that the structs refer to. `pairs` has the
    surrogate pairs in its text, as runs.
    """

    structs: tuple[Struct, ...]
    deleted: tuple[Span, ...]
    needs: Mapping[int, int]
    pairs: tuple[Span, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it adds and deletes nothing."""
        return not self.structs and not self.deleted

    def reached(self) -> dict[int, int]:
        """The number of known units after this update, by client."""
        return {struct.client: struct.clock + struct.length for struct in self.structs}

    def news(self, clocks: Mapping[int, int]) -> dict[int, int]:
        """As `reached`, for the clients of which `clocks` knows fewer units."""
        return {c: end for c, end in self.reached().items() if end > clocks.get(c, 0)}

    def cuts(self) -> set[Id]:
        """The units before which it may cut a text: next to its insertions, and where a deletion
        begins or ends."""
        found = {(s.left[0], s.left[1] + 1) for s in self.structs if s.left}
        found |= {s.right for s in self.structs if s.right}
        for span in self.deleted:
            found |= {(span.client, span.clock), (span.client, span.clock + span.length)}
        return found

    def knew(self, client: int) -> int:
        """How many units of `client` its authors knew, judging by the units it refers to."""
        deleted = (s.clock + s.length for s in self.deleted if s.client == client)
        return max(self.needs.get(client, 0), *deleted, 0)

    def gap(self, clocks: Mapping[int, int]) -> Id | None:
        """A unit that this update builds on and `clocks` does not have; None if it can be
        applied."""
        known: dict[int, int] = {}  # only the clients of this update: a document may have thousands
        for struct in self.structs:
            before = known.get(struct.client) or clocks.get(struct.client, 0)
            if struct.clock > before:
                return struct.client, before
            known[struct.client] = max(before, struct.clock + struct.length)
        ends = [*self.needs.items(), *((s.client, s.clock + s.length) for s in self.deleted)]
        for client, end in ends:
            if end > (known.get(client) or clocks.get(client, 0)):
                return client, end - 1
        return None


def missing(gap: Id) -> InvalidRequest:
    """The error for a gap."""
    client, clock = gap
    return InvalidRequest(field="update", reason=f"builds on {client}:{clock}, which is missing")


def read_state(data: bytes) -> dict[int, int]:
    """Decode a state vector: the number of known units by client. Errors: InvalidRequest."""
    reader = Reader(data, "state")
    found = {}
    for _ in range(reader.count()):
        client = reader.number()
        found[client] = reader.number()
    return found


def write_state(clocks: Mapping[int, int]) -> bytes:
    """Encode what `read_state` reads."""
    parts = [write_number(len(clocks))]
    parts += [write_number(client) + write_number(clock) for client, clock in clocks.items()]
    return b"".join(parts)


def read_update(data: bytes) -> Update:
    """Decode an update. Errors: InvalidRequest when it is malformed or unsafe to apply."""
    reading = UpdateReader(Reader(data))
    reading.clients()
    deleted = reading.deletions()
    if not reading.reader.is_empty:
        raise reading.reader.broken("goes on after its end")
    return Update(tuple(reading.structs), deleted, reading.needs, tuple(reading.pairs))


class UpdateReader:
    """Reads the parts of one update, in their order. Errors of every method: InvalidRequest."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.structs: list[Struct] = []
        self.needs: dict[int, int] = {}
        self.pairs: list[Span] = []

    def clients(self) -> None:
        """Read the additions."""
        reader, seen = self.reader, set()
        for _ in range(reader.count()):
            count, client, clock = reader.count(), reader.number(), reader.number()
            if client in seen:
                raise reader.broken("names a client twice")
            seen.add(client)
            for _ in range(count):
                struct = self.struct(client, clock)
                self.structs.append(struct)
                clock += struct.length

    def deletions(self) -> tuple[Span, ...]:
        """Read the deletions."""
        reader, found = self.reader, []
        for _ in range(reader.count()):
            client = reader.number()
            for _ in range(reader.count()):
                found.append(Span(client, reader.number(), self._length()))
        return tuple(found)

    def _length(self) -> int:
        length = self.reader.number()
        if not length:
            raise self.reader.broken("holds something of length 0")
        return length

    def struct(self, client: int, clock: int) -> Struct:
        """Read one struct, that `client` wrote at `clock`."""
        reader = self.reader
        info = reader.byte()
        # Five bits of kind, then flags: a left neighbour (0x80), a right one (0x40), a key of a map
        # (0x20).
        kind = info & 0x1F
        if kind == COLLECTED:
            return Struct(client, clock, self._length())
        left = self._id() if info & 0x80 else None
        right = self._id() if info & 0x40 else None
        if left is None and right is None:
            self._parent(has_key=bool(info & 0x20))
        if kind == STRING:
            return Struct(client, clock, self._text(client, clock), left, right, is_text=True)
        return Struct(client, clock, self._content(kind), left, right)

    def _id(self) -> Id:
        client, clock = found = self.reader.number(), self.reader.number()
        if clock >= self.needs.get(client, 0):
            self.needs[client] = clock + 1
        return found

    def _parent(self, *, has_key: bool) -> None:
        # 1: a shared type of the document, by name; 0: the struct that it lies in.
        if self.reader.number() == 1:
            self.reader.text()
        else:
            self._id()
        if has_key:
            self.reader.text()

    def _content(self, kind: int) -> int:
        """Pass over the content of a struct; returns its length."""
        reader = self.reader
        if kind == ANY:
            return self._many(lambda: _skip_any(reader, 0))
        if kind == DELETED:
            return self._length()
        if kind == JSON:
            return self._many(self._json)
        self._single(kind)
        return 1

    def _single(self, kind: int) -> None:
        reader = self.reader
        if kind == BINARY:
            reader.buffer()
        elif kind == EMBED:
            self._json()
        elif kind == FORMAT:
            reader.text()
            self._json()
        elif kind == TYPE:
            self._type()
        elif kind == SUBDOCUMENT:
            reader.text()
            _skip_any(reader, 0)
        else:
            raise reader.broken(f"holds content of unknown kind {kind}")

    def _many(self, skip: Callable[[], None]) -> int:
        count = self.reader.count()
        if not count:
            raise self.reader.broken("holds something of length 0")
        for _ in range(count):
            skip()
        return count

    def _text(self, client: int, clock: int) -> int:
        """Read text; its length is in UTF-16 units. Empty text is valid: the library writes it
        where it cuts a struct."""
        text, more = self.reader.text(), 0
        if not text.isascii():
            for match in _PAIRS.finditer(text):
                count = match.end() - match.start()
                self.pairs.append(Span(client, clock + match.start() + more, 2 * count))
                more += count
        return len(text) + more

    def _type(self) -> None:
        kind = self.reader.number()
        if kind in _NAMED_TYPES:
            self.reader.text()
        elif kind > _XML_TEXT:
            raise self.reader.broken(f"holds a shared type of unknown kind {kind}")

    def _json(self) -> None:
        text = self.reader.text()
        # With fewer brackets it cannot nest so deeply, and need not be parsed.
        if text.count("[") + text.count("{") > VALUE_DEPTH_MAX and _depth_of(text) is None:
            raise self.reader.broken("holds JSON that is nested too deep")


_PAIRS = re.compile("[\U00010000-\U0010ffff]+")
COLLECTED, DELETED, JSON, BINARY, STRING, EMBED = 0, 1, 2, 3, 4, 5
FORMAT, TYPE, ANY, SUBDOCUMENT = 6, 7, 8, 9
# Of Yjs' type numbers: XML elements and hooks, whose names follow. 6 is the last one.
_NAMED_TYPES = (3, 5)
_XML_TEXT = 6


def _skip_any(reader: Reader, depth: int) -> None:
    """Pass over a value of lib0's `writeAny`."""
    if depth > VALUE_DEPTH_MAX:
        raise reader.broken("holds a value that is nested too deep")
    kind = reader.byte()
    if kind == 119:
        reader.text()
    elif kind == 125:
        while reader.byte() >= 0x80:
            pass
    elif kind in _FIXED_BYTES:
        reader.skip(_FIXED_BYTES[kind])
    elif kind == 116:
        reader.buffer()
    elif kind in (117, 118):
        for _ in range(reader.count()):
            if kind == 118:
                reader.text()
            _skip_any(reader, depth + 1)
    else:
        raise reader.broken(f"holds a value of unknown kind {kind}")


_FIXED_BYTES = {127: 0, 126: 0, 124: 4, 123: 8, 122: 8, 121: 0, 120: 0}


def _depth_of(text: str) -> int | None:
    """How deep a JSON text nests; None if deeper than VALUE_DEPTH_MAX, or not JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    # Layer by layer: it may nest deeper than a recursion could follow.
    depth, layer = 0, [value]
    while layer:
        layer = [
            inner
            for outer in layer
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        depth += 1
    return depth if depth <= VALUE_DEPTH_MAX + 1 else None


class Pairs:
    """Where the surrogate pairs are, by client, as runs of 16 bytes each."""

    def __init__(self) -> None:
        self._runs: dict[int, tuple[array[int], array[int]]] = {}

    def add(self, spans: Iterable[Span]) -> None:
        """Record runs (`Update.pairs`). Runs that are already recorded stay as they are."""
        for span in spans:
            starts, ends = self._runs.setdefault(span.client, (array("Q"), array("Q")))
            at = bisect_right(starts, span.clock)
            if at == 0 or ends[at - 1] <= span.clock:
                starts.insert(at, span.clock)
                ends.insert(at, span.clock + span.length)

    def keep_below(self, clocks: Mapping[int, int]) -> None:
        """Drop what is not in `clocks`."""
        for client, (starts, ends) in self._runs.items():
            at = bisect_right(starts, clocks.get(client, 0) - 1)
            del starts[at:], ends[at:]

    def cut_by(self, update: Update, clocks: Mapping[int, int]) -> Id | None:
        """The character that an update would cut, among those recorded here and its own; None if it
        cuts none. `clocks` are the units known before it."""
        for run in update.pairs:
            # Half of a character is known already: the library would cut it.
            if (clocks.get(run.client, 0) - run.clock) % 2 and _is_in(run, clocks):
                return run.client, run.clock
        if not self._runs and not update.pairs:
            return None
        own = Pairs()
        own.add(update.pairs)
        cuts = update.cuts()
        return next((cut for cut in cuts if self._halves(cut) or own._halves(cut)), None)

    def _halves(self, place: Id) -> bool:
        """Whether the unit at `place` is the second one of a character."""
        client, clock = place
        starts, ends = self._runs.get(client, _NONE)
        at = bisect_right(starts, clock) - 1
        return at >= 0 and clock < ends[at] and (clock - starts[at]) % 2 == 1


_NONE = (array("Q"), array("Q"))


def _is_in(run: Span, clocks: Mapping[int, int]) -> bool:
    """Whether the known units end within `run`."""
    return run.clock < clocks.get(run.client, 0) < run.clock + run.length
