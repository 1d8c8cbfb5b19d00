"""Joins updates that type on: each inserts text right behind that of the one before.

Somebody who types makes an update of some thirty bytes for each key. The library that merges
updates keeps each insertion as a struct of its own; only when they are applied do they become one.
Such a run is joined here first, into the bytes that a client would have made for the whole text.
Then what is tried, committed and sent is small, and has to be encoded only once.

Source: yjs/src/structs/Item.js, `mergeWith`.
"""

from collections.abc import Iterable, Iterator
from typing import Self

from blackboard.core.documents.update import STRING, Reader, write_number, write_text
from blackboard.errors import InvalidRequest

_HAS_LEFT, _HAS_RIGHT = 0x80, 0x40
# One client with one struct, and further below an empty set of deletions.
_ONE_STRUCT = b"\x01\x01"
_DELETES_NOTHING = b"\x00"


class _Run:
    """A run that begins with one insertion. `head` is what stands before its text."""

    __slots__ = ("_client", "_end", "_right", "first", "head", "texts")

    def __init__(self, first: bytes, head: bytes, text: str, place: "_Place") -> None:
        self.first = first
        self.head = head
        self.texts = [text]
        self._client, self._right = write_number(place.client), place.right
        self._end = place.clock + _units(text)

    @classmethod
    def of(cls, update: bytes) -> Self | None:
        """The run that `update` begins; None if it does anything else than insert one text."""
        if not update.startswith(_ONE_STRUCT):
            return None
        reader = Reader(update)
        reader.position = len(_ONE_STRUCT)
        try:
            place = _Place(reader)
            head = update[: reader.position]
            text = _text(reader)
        except InvalidRequest:
            return None
        return cls(update, head, text, place) if place.is_text and text else None

    def takes(self, update: bytes) -> bool:
        """Take an update in, if it types on where the run ends."""
        left = self._client + write_number(self._end - 1)
        flags = STRING | _HAS_LEFT | (_HAS_RIGHT if self._right else 0)
        clock = self._client + write_number(self._end)
        # All bytes before the text are known, so one comparison takes the place of parsing.
        head = _ONE_STRUCT + clock + bytes((flags,)) + left + self._right
        if not update.startswith(head):
            return False
        reader = Reader(update)
        reader.position = len(head)
        try:
            text = _text(reader)
        except InvalidRequest:
            return False
        if not text:
            return False
        self.texts.append(text)
        self._end += _units(text)
        return True

    def encoded(self) -> bytes:
        """The run as one update."""
        if len(self.texts) == 1:
            return self.first
        return self.head + write_text("".join(self.texts)) + _DELETES_NOTHING


class _Place:
    """Where a struct inserts. Errors: InvalidRequest."""

    def __init__(self, reader: Reader) -> None:
        self.client, self.clock = reader.number(), reader.number()
        flags = reader.byte()
        self.is_text = flags & ~(_HAS_LEFT | _HAS_RIGHT) == STRING
        if flags & _HAS_LEFT:
            _skip_id(reader)
        begin = reader.position
        if flags & _HAS_RIGHT:
            _skip_id(reader)
        self.right = reader.data[begin : reader.position]
        if not flags & (_HAS_LEFT | _HAS_RIGHT):  # the first of a text names what it lies in
            if reader.number() != 1:
                _skip_id(reader)
            else:
                reader.text()


def _skip_id(reader: Reader) -> None:
    reader.number()
    reader.number()


def _text(reader: Reader) -> str:
    """The text at the end of an update. Errors: InvalidRequest when anything else follows."""
    text = reader.text()
    if reader.data[reader.position :] != _DELETES_NOTHING:
        raise reader.broken("does more than insert a text")
    return text


def _units(text: str) -> int:
    """Its length in UTF-16 units, which clocks count."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def joined(updates: Iterable[bytes]) -> list[bytes]:
    """The same updates in the same order, where runs of typing are one update each. The others are
    not changed, and may be malformed."""
    return list(_joined(updates))


def _joined(updates: Iterable[bytes]) -> Iterator[bytes]:
    run: _Run | None = None
    for update in updates:
        if run is not None and run.takes(update):
            continue
        if run is not None:
            yield run.encoded()
        run = _Run.of(update)
        if run is None:
            yield update
    if run is not None:
        yield run.encoded()
