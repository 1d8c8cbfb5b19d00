"""The parts of a document: texts, lists and maps that several agents edit concurrently.

The library below counts text in UTF-8 bytes and turns integers into floats; here positions are
Unicode code points, and a number without a fraction is an integer, as in JSON.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pycrdt import Array, Map, Text, XmlElement, XmlFragment, XmlText

from blackboard.errors import InvalidRequest
from blackboard.limits import INTEGER_MAX
from blackboard.wire.codec import encode_value

_TEXTS = (Text, XmlFragment, XmlElement, XmlText)


class Editing(Protocol):
    """The part of a document that a shared value uses."""

    version: int
    """Grows with every change, and whenever one may be about to happen."""

    def transaction(self) -> AbstractContextManager[None]:
        """A block of edits. Errors: DocumentRefused."""

    def hold(self, shared: Any) -> None:
        """Keep something as long as the document: its observers end with it."""


# --- plain values ---------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value of the library as JSON types and bytes; what is shared, as a copy."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= INTEGER_MAX else value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Map):
        return {key: plain(value[key]) for key in sorted(value.keys())}
    if isinstance(value, Array):
        return [plain(value[index]) for index in range(len(value))]
    if isinstance(value, _TEXTS):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


def _checked(value: Any) -> Any:
    """Return `value` if it survives: JSON types and bytes. Errors: InvalidRequest, LimitExceeded.

    A replica in a browser has one type of number, exact up to INTEGER_MAX.
    """
    encode_value(value)
    _check_numbers(value)
    return value


def _check_numbers(value: Any) -> None:
    if isinstance(value, bool):
        return
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise InvalidRequest(field="value", reason=f"{value} is beyond what every peer can count")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(field="value", reason=f"{value} is not a JSON number")
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_numbers(inner)


# --- what changed ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delta:
    """A stretch of a change to a text or list, from its front: keep `retain` items, or remove
    `delete`, or add `insert` (a string, or a list of plain values). Exactly one is set."""

    retain: int = 0
    delete: int = 0
    insert: Any = None


@dataclass(frozen=True, slots=True)
class MapDelta:
    """A change to a map: `action` is "add", "update" or "delete"."""

    key: str
    action: str
    old: Any = None
    new: Any = None


class _Shared:
    def __init__(self, document: Editing, shared: Any) -> None:
        self._document = document
        self._shared = shared

    def _wrap(self, value: Any) -> Any:
        kind = _WRAPPERS.get(type(value))
        return plain(value) if kind is None else kind(self._document, value)

    def _observe(self, notify: Callable[[Any], None]) -> Callable[[], None]:
        self._document.hold(self._shared)
        subscription = self._shared.observe(notify)
        return lambda: self._shared.unobserve(subscription)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and plain(self._shared) == plain(other._shared)

    __hash__ = None  # type: ignore[assignment]


EMBEDDED = "\ufffc"
"""Stands in a string for an object in a text that is not a character (an image from an editor in a
browser); it counts as one."""


class SharedText(_Shared):
    """Text. Positions and lengths are Unicode code points; errors: InvalidRequest beyond the end,
    and DocumentRefused."""

    def __init__(self, document: Editing, shared: Any) -> None:
        super().__init__(document, shared)
        self._known = ""
        self._known_at = -1
        self._embedded: list[int] = []
        """Positions of objects that are not characters."""

    def __str__(self) -> str:
        if self._known_at != self._document.version:
            self._read()
        return self._known

    def _read(self) -> None:
        """Reading from the library takes a millisecond for a text with ten thousand edits."""
        found, self._embedded = str(self._shared), []
        if len(self._shared) != len(found.encode()):
            found = ""
            for chunk, _ in self._shared.diff():
                if not isinstance(chunk, str):
                    self._embedded.append(len(found))
                found += chunk if isinstance(chunk, str) else EMBEDDED
        self._remember(found)

    def _remember(self, text: str) -> None:
        self._known, self._known_at = text, self._document.version

    def __len__(self) -> int:
        return len(str(self))

    def __repr__(self) -> str:
        return f"<SharedText {str(self)!r:.60}>"

    def insert(self, position: int, text: str) -> None:
        """Insert `text` before the code point at `position` (the length: at the end)."""
        _check_text(text)
        self._splice(position, 0, text)

    def append(self, text: str) -> None:
        """Add `text` at the end."""
        self.insert(len(self), text)

    def delete(self, position: int, length: int) -> None:
        """Remove `length` code points from `position` on."""
        self.replace(position, length, "")

    def replace(self, position: int, length: int, text: str) -> None:
        """Put `text` where `length` code points from `position` on are."""
        _check_text(text)
        if length < 0:
            raise InvalidRequest(field="length", reason=f"{length} is less than 0")
        self._splice(position, length, text)

    def _splice(self, position: int, length: int, text: str) -> None:
        now = str(self)
        start, end = self._offset(position), self._offset(position + length)
        if end > start or text:
            with self._document.transaction():
                if end > start:
                    del self._shared[start:end]
                if text:
                    self._shared.insert(start, text)
            if not self._embedded:
                self._remember(now[:position] + text + now[position + length :])

    def _offset(self, position: int) -> int:
        """The library's offset of `position`. Errors: InvalidRequest beyond the end."""
        offset = _bytes_before(self._known, position)
        wide = len(EMBEDDED.encode()) - 1
        return offset - wide * bisect_left(self._embedded, position)

    def observe(self, observer: Callable[[Sequence[Delta]], None]) -> Callable[[], None]:
        """Call `observer` with each change, also those made here; returns what ends that.

        It must not edit the document.
        """
        before = str(self)

        def notify(event: Any) -> None:
            nonlocal before
            deltas, before = text_deltas(event.delta, before)
            observer(deltas)

        return self._observe(notify)


class SharedList(_Shared):
    """A list of values: JSON types and bytes, or again shared ones."""

    def __len__(self) -> int:
        return len(self._shared)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Any:
        return self._wrap(self._shared[self._index(index, len(self) - 1)])

    def append(self, value: Any) -> None:
        """Add a value at the end."""
        self.insert(len(self), value)

    def insert(self, index: int, value: Any) -> None:
        """Insert a value before that at `index`."""
        with self._document.transaction():
            self._shared.insert(self._index(index, len(self)), _checked(value))

    def delete(self, index: int, length: int = 1) -> None:
        """Remove `length` values from `index` on."""
        with self._document.transaction():
            self._index(index + length - 1, len(self) - 1)
            del self._shared[self._index(index, len(self) - 1) : index + length]

    def insert_text(self, index: int, text: str = "") -> SharedText:
        """Insert a nested text."""
        return SharedText(self._document, self._insert(index, Text(text)))

    def insert_list(self, index: int) -> "SharedList":
        """Insert a nested list."""
        return SharedList(self._document, self._insert(index, Array()))

    def insert_map(self, index: int) -> "SharedMap":
        """Insert a nested map."""
        return SharedMap(self._document, self._insert(index, Map()))

    def _insert(self, index: int, shared: Any) -> Any:
        with self._document.transaction():
            self._shared.insert(self._index(index, len(self)), shared)
        return self._shared[index]

    def _index(self, index: int, maximum: int) -> int:
        if not 0 <= index <= maximum:
            raise InvalidRequest(field="index", reason=f"{index} is not in 0..{maximum}")
        return index

    def observe(self, observer: Callable[[Sequence[Delta]], None]) -> Callable[[], None]:
        """As `SharedText.observe`; what is inserted is a list of plain values."""

        def notify(event: Any) -> None:
            observer([_list_delta(part) for part in event.delta])

        return self._observe(notify)


class SharedMap(_Shared):
    """A map of strings to values: JSON types and bytes, or again shared ones. Of two concurrent
    settings of one key, one wins, the same everywhere."""

    def __len__(self) -> int:
        return len(self._shared)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._shared))

    def __contains__(self, key: str) -> bool:
        return key in self._shared

    def __getitem__(self, key: str) -> Any:
        return self._wrap(self._shared[key])

    def get(self, key: str, default: Any = None) -> Any:
        """The value at `key`, or `default`."""
        return self[key] if key in self._shared else default

    def __setitem__(self, key: str, value: Any) -> None:
        with self._document.transaction():
            self._shared[key] = _checked(value)

    def __delitem__(self, key: str) -> None:
        with self._document.transaction():
            del self._shared[key]

    def set_text(self, key: str, text: str = "") -> SharedText:
        """Put a nested text at `key`."""
        return SharedText(self._document, self._put(key, Text(text)))

    def set_list(self, key: str) -> SharedList:
        """Put a nested list at `key`."""
        return SharedList(self._document, self._put(key, Array()))

    def set_map(self, key: str) -> "SharedMap":
        """Put a nested map at `key`."""
        return SharedMap(self._document, self._put(key, Map()))

    def _put(self, key: str, shared: Any) -> Any:
        with self._document.transaction():
            self._shared[key] = shared
        return self._shared[key]

    def observe(self, observer: Callable[[Sequence[MapDelta]], None]) -> Callable[[], None]:
        """Call `observer` with each change, also those made here; returns what ends that."""

        def notify(event: Any) -> None:
            observer([_key_change(key, change) for key, change in sorted(event.keys.items())])

        return self._observe(notify)


_WRAPPERS: dict[type, type[_Shared]] = {Text: SharedText, Array: SharedList, Map: SharedMap}


def _bytes_before(text: str, position: int) -> int:
    """UTF-8 bytes of the first `position` code points. Errors: InvalidRequest beyond the end."""
    if not 0 <= position <= len(text):
        raise InvalidRequest(field="position", reason=f"{position} is not in 0..{len(text)}")
    return position if text.isascii() else len(text[:position].encode())


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(field="text", reason="is not Unicode text") from error


def text_deltas(delta: Sequence[Any], before: str) -> tuple[list[Delta], str]:
    """The library's delta, which counts bytes, in code points; and the text after it."""
    data, position = before.encode(), 0
    found: list[Delta] = []
    after: list[str] = []
    for part in delta:
        if "insert" in part:
            text = part["insert"] if isinstance(part["insert"], str) else ""
            found.append(Delta(insert=text))
            after.append(text)
            continue
        size = part.get("retain", part.get("delete"))
        text = data[position : position + size].decode(errors="replace")
        position += size
        if "retain" in part:
            found.append(Delta(retain=len(text)))
            after.append(text)
        else:
            found.append(Delta(delete=len(text)))
    after.append(data[position:].decode(errors="replace"))
    return found, "".join(after)


def _list_delta(part: Any) -> Delta:
    if "insert" in part:
        return Delta(insert=plain(part["insert"]))
    return Delta(retain=part.get("retain", 0), delete=part.get("delete", 0))


def _key_change(key: str, change: Any) -> MapDelta:
    return MapDelta(
        key, change["action"], plain(change.get("oldValue")), plain(change.get("newValue"))
    )
