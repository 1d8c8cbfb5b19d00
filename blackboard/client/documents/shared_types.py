"""The parts of a document: texts, lists and maps that several agents edit concurrently.

The library below counts text in UTF-8 bytes and turns integers into floats; here positions are
Unicode code points, and a number without a fraction is an integer, as in JSON.
"""

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pycrdt import Array, Map, Text, XmlElement, XmlFragment, XmlText

from blackboard.client.documents.text_content import TextContent
from blackboard.errors import InvalidRequest
from blackboard.limits import INTEGER_MAX
from blackboard.wire.codec import encode_value

log = logging.getLogger(__name__)
T = TypeVar("T")
_TEXTS = (Text, XmlFragment, XmlElement, XmlText)


class Editing(Protocol):
    """The part of a document that a shared value uses."""

    version: int
    """Grows with every change, and whenever one may be about to happen."""

    def transaction(self) -> AbstractContextManager[None]:
        """A block of edits. Errors: DocumentRefused."""

    def observe_shared(
        self, shared: Any, notify: Callable[[Any], None], *, deep: bool = False
    ) -> Callable[[], None]:
        """Call `notify` with what happens to a value of the library, with `deep` also to what is in
        it. Ends with the document, or when the returned function is called."""


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


def notify_observer(observer: Callable[[T], None], what: T) -> None:
    """Call a program's observer. What it raises is logged: in the library it would end the edit, or
    the replica if the edit is of another one."""
    try:
        observer(what)
    except Exception:
        log.exception("an observer of a document failed")


class _Shared:
    def __init__(self, document: Editing, shared: Any) -> None:
        self._document = document
        self._shared = shared

    def _wrap(self, value: Any) -> Any:
        kind = _WRAPPERS.get(type(value))
        return plain(value) if kind is None else kind(self._document, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and plain(self._shared) == plain(other._shared)

    __hash__ = None  # type: ignore[assignment]


FOLLOWED_MAX = 256
"""Parts of a change up to which it is made in the known content; after a longer one, the content is
read again."""
EMBEDDED = "\ufffc"
"""Stands in a string for an object in a text that is not a character (an image from an editor in a
browser); it counts as one."""


class SharedText(_Shared):
    """Text. Positions and lengths are Unicode code points; errors: InvalidRequest beyond the end,
    and DocumentRefused."""

    def __init__(self, document: Editing, shared: Any) -> None:
        super().__init__(document, shared)
        self._content = TextContent()
        self._known_at = -1
        self._embedded: list[int] = []
        """Positions of objects that are not characters."""
        self._follows = False
        self._made: list[tuple[int, str, str]] = []
        """Edits made here that the library has not reported yet: position, old and new text."""
        self._made_at = -1
        self._observers: list[Callable[[Sequence[Delta]], None]] = []

    def __str__(self) -> str:
        return str(self._now())

    def _now(self) -> TextContent:
        """The content. Reading it from the library takes a millisecond for a text with ten
        thousand edits."""
        if not self._follows and self._known_at != self._document.version:
            self._content, self._embedded = self._read()
            self._known_at = self._document.version
        return self._content

    def _read(self) -> tuple[TextContent, list[int]]:
        """The content as the library has it, and the positions of objects in it."""
        found, embedded = str(self._shared), []
        # The string leaves out objects that are no characters, but the library counts each as one.
        if len(self._shared) != len(found.encode()):
            found = ""
            for chunk, _ in self._shared.diff():
                if not isinstance(chunk, str):
                    embedded.append(len(found))
                found += chunk if isinstance(chunk, str) else EMBEDDED
        return TextContent(found), embedded

    def __len__(self) -> int:
        return self._now().length

    def __repr__(self) -> str:
        return f"<SharedText {str(self)!r:.60}>"

    def insert(self, position: int, text: str) -> None:
        """Insert `text` before the code point at `position` (the length: at the end)."""
        check_text(text)
        self._splice(position, 0, text)

    def append(self, text: str) -> None:
        """Add `text` at the end."""
        self.insert(len(self), text)

    def delete(self, position: int, length: int) -> None:
        """Remove `length` code points from `position` on."""
        self.replace(position, length, "")

    def replace(self, position: int, length: int, text: str) -> None:
        """Put `text` where `length` code points from `position` on are."""
        check_text(text)
        if length < 0:
            raise InvalidRequest(field="length", reason=f"{length} is less than 0")
        self._splice(position, length, text)

    def _splice(self, position: int, length: int, text: str) -> None:
        now = self._now()
        start, end = self._offset(now, position), self._offset(now, position + length)
        if end == start and not text:
            return
        with self._document.transaction():
            if end > start:
                del self._shared[start:end]
            if text:
                self._shared.insert(start, text)
            if not self._embedded:
                removed = now.replace(position, length, text)
                if self._follows:
                    self._made.append((position, removed, text))
                    self._made_at = self._document.version
        if not self._embedded:
            self._known_at = self._document.version

    def _offset(self, now: TextContent, position: int) -> int:
        """The library's offset of `position`. Errors: InvalidRequest beyond the end."""
        if not 0 <= position <= now.length:
            raise InvalidRequest(field="position", reason=f"{position} is not in 0..{now.length}")
        # Each object counts as one for the library, and as three bytes in the known content.
        wide = len(EMBEDDED.encode()) - 1
        return now.bytes_before(position) - wide * bisect_left(self._embedded, position)

    def follow(self) -> None:
        """Keep the content up to date by its changes instead of reading it again. Only for a text
        of which this is the one wrapper: no other edit of it may be in an open transaction."""
        self._content, self._embedded = self._read()
        self._follows = True
        self._document.observe_shared(self._shared, self._changed)

    def _changed(self, event: Any) -> None:
        made, self._made = self._made, []
        # The version is still that of the one edit made here: nothing else is part of this change.
        if len(made) == 1 and self._made_at == self._document.version and not self._embedded:
            deltas = _splice_deltas(*made[0])  # the library would walk over the whole text
        else:
            deltas = self._follow(event.delta, made)
        for observer in tuple(self._observers):
            notify_observer(observer, deltas)

    def _follow(self, delta: Sequence[Any], made: list[tuple[int, str, str]]) -> list[Delta]:
        # These edits are in the content already, and the delta is about the text before them.
        for position, removed, text in reversed(made):
            self._content.replace(position, len(text), removed)
        deltas, is_known = follow(delta, self._content, self._shared, self._embedded)
        if not is_known or self._embedded:  # an object may have moved, or be gone
            self._content, self._embedded = self._read()
        return deltas

    def observe(self, observer: Callable[[Sequence[Delta]], None]) -> Callable[[], None]:
        """Call `observer` with each change, also those made here; returns what ends that.

        It must not edit the document. What it raises is logged.
        """
        if self._follows:
            self._observers.append(observer)
            return lambda: self._observers.remove(observer)
        before, embedded = self._read()

        def notify(event: Any) -> None:
            nonlocal before, embedded
            deltas, is_known = follow(event.delta, before, self._shared, embedded)
            if not is_known or embedded:
                before, embedded = self._read()
            notify_observer(observer, deltas)

        return self._document.observe_shared(self._shared, notify)


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
        # Before the insertion: what the library cannot encode would leave an empty text behind.
        check_text(text)
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
            notify_observer(observer, [_list_delta(part) for part in event.delta])

        return self._document.observe_shared(self._shared, notify)


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
        check_text(key, "key")
        with self._document.transaction():
            self._shared[key] = _checked(value)

    def __delitem__(self, key: str) -> None:
        with self._document.transaction():
            del self._shared[key]

    def set_text(self, key: str, text: str = "") -> SharedText:
        """Put a nested text at `key`."""
        check_text(text)
        return SharedText(self._document, self._put(key, Text(text)))

    def set_list(self, key: str) -> SharedList:
        """Put a nested list at `key`."""
        return SharedList(self._document, self._put(key, Array()))

    def set_map(self, key: str) -> "SharedMap":
        """Put a nested map at `key`."""
        return SharedMap(self._document, self._put(key, Map()))

    def _put(self, key: str, shared: Any) -> Any:
        check_text(key, "key")
        with self._document.transaction():
            self._shared[key] = shared
        return self._shared[key]

    def observe(self, observer: Callable[[Sequence[MapDelta]], None]) -> Callable[[], None]:
        """Call `observer` with each change, also those made here; returns what ends that."""

        def notify(event: Any) -> None:
            changes = [_key_change(key, change) for key, change in sorted(event.keys.items())]
            notify_observer(observer, changes)

        return self._document.observe_shared(self._shared, notify)


_WRAPPERS: dict[type, type[_Shared]] = {Text: SharedText, Array: SharedList, Map: SharedMap}


def check_text(text: str, field: str = "text") -> None:
    """Errors: InvalidRequest when it is no text that UTF-8 can hold."""
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidRequest(field=field, reason="is not Unicode text") from error


def follow(
    delta: Sequence[Any], content: TextContent, shared: Any, embedded: Sequence[int] = ()
) -> tuple[list[Delta], bool]:
    """A change of `shared` in code points, made in `content`, which it had before, with objects at
    the positions `embedded`. The second value says whether `content` is right then; otherwise it
    has to be read again: the change was long, or there are objects in the text that are not
    characters."""
    deltas = text_deltas(delta, content, embedded)
    if len(deltas) > FOLLOWED_MAX:
        return deltas, False
    _apply(content, deltas)
    return deltas, content.size == len(shared)


def text_deltas(
    delta: Sequence[Any], before: TextContent, embedded: Sequence[int] = ()
) -> list[Delta]:
    """The library's delta, which counts bytes, in code points of the text before it, which had
    objects at the positions `embedded`; each is one EMBEDDED."""
    is_flat = embedded or len(delta) > FOLLOWED_MAX
    position_at = _flat_positions(str(before), embedded) if is_flat else before.position_at
    found: list[Delta] = []
    offset = position = 0
    for part in delta:
        if "insert" in part:
            is_text = isinstance(part["insert"], str)
            found.append(Delta(insert=part["insert"] if is_text else EMBEDDED))
            continue
        offset += part.get("retain", part.get("delete"))
        now = position_at(offset)
        length, position = now - position, now
        found.append(Delta(retain=length) if "retain" in part else Delta(delete=length))
    return found


def _flat_positions(text: str, embedded: Sequence[int] = ()) -> Callable[[int], int]:
    """As `TextContent.position_at` for offsets that grow: each byte is read once. The library
    counts an object as one, so something of one byte takes its place here."""
    characters = list(text) if embedded else []
    for place in embedded:
        characters[place] = " "
    data, offset, position = ("".join(characters) or text).encode(), 0, 0

    def position_at(wanted: int) -> int:
        nonlocal offset, position
        position += len(data[offset:wanted].decode(errors="replace"))
        offset = wanted
        return position

    return position_at


def _apply(content: TextContent, deltas: Sequence[Delta]) -> None:
    position = 0
    for delta in deltas:
        if delta.delete:
            content.replace(position, delta.delete, "")
        elif delta.insert:
            content.replace(position, 0, delta.insert)
        position += delta.retain + len(delta.insert or "")


def _splice_deltas(position: int, removed: str, text: str) -> list[Delta]:
    found = [Delta(retain=position)] if position else []
    if removed:
        found.append(Delta(delete=len(removed)))
    if text:
        found.append(Delta(insert=text))
    return found


def _list_delta(part: Any) -> Delta:
    if "insert" in part:
        return Delta(insert=plain(part["insert"]))
    return Delta(retain=part.get("retain", 0), delete=part.get("delete", 0))


def _key_change(key: str, change: Any) -> MapDelta:
    return MapDelta(
        key, change["action"], plain(change.get("oldValue")), plain(change.get("newValue"))
    )
