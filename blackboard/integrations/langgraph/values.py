"""The values of channels, from the records that share them.

A list that grew is one Python list of elements, and each of its versions a length of it: a history
of n steps takes as much memory and time as its last step. Elements are decoded once if they are
texts, numbers or bytes, or dicts of those, which are copied. Others are decoded for each version:
changing a message that a listing returned changes no other checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from blackboard.integrations.langgraph.records import CheckpointRecord, Growth, Pieced, Typed, array

Load = Callable[[Typed], Any]
"""Decodes a serialized value."""
UNCHANGING: Final = frozenset((str, int, float, bool, bytes, type(None)))
"""Types whose values cannot be changed."""
_NESTED: Final = frozenset((*range(0x90, 0xA0), *range(0xC7, 0xCA), *range(0xD4, 0xD9), 0xDC, 0xDD))
"""First bytes of msgpack arrays and extensions."""


@dataclass(slots=True)
class _ElementLine:
    """The elements of the longest version of a list; decoded, unless some can be changed."""

    items: list[bytes]
    decoded: list[Any] | None
    has_dicts: bool = False


@dataclass(slots=True)
class Version:
    """The first `count` elements of a line."""

    line: _ElementLine
    count: int
    type: str
    depth: int
    """Records that it is put together from."""

    @property
    def items(self) -> list[bytes]:
        """The elements, as they are encoded."""
        return self.line.items[: self.count]

    def value(self, load: Load) -> Any:
        """The list itself, which belongs to the caller."""
        if self.line.decoded is not None:
            found = self.line.decoded[: self.count]
            copied = (one.copy() if type(one) is dict else one for one in found)
            return list(copied) if self.line.has_dicts else found
        return load((self.type, array(self.items)))

    def grown(self, growth: Growth, load: Load) -> "Version":
        """The version that differs from this one by `growth`."""
        line, tail = self.line, growth.tail
        # Only the longest version may be added to in place: the others share its line.
        whole = growth.keep == self.count == len(line.items) and not growth.end
        if not whole:
            end = line.items[self.count - growth.end : self.count]
            line = _line([*line.items[: growth.keep], *tail, *end], self.type, load)
            return Version(line, len(line.items), self.type, self.depth + 1)
        if line.decoded is not None:
            more = _decoded(tail, self.type, load)
            if more is None:
                line.decoded = None
            else:
                line.decoded += more
                line.has_dicts = line.has_dicts or _has_dicts(more)
        line.items += tail
        return Version(line, len(line.items), self.type, self.depth + 1)


def version_of(value: Pieced, load: Load) -> Version:
    """A list that is stored whole."""
    line = _line(list(value.pieces), value.type, load)
    return Version(line, len(line.items), value.type, 1)


def _line(items: list[bytes], type_: str, load: Load) -> _ElementLine:
    found = _decoded(items, type_, load)
    return _ElementLine(items, found, found is not None and _has_dicts(found))


def _has_dicts(found: list[Any]) -> bool:
    return any(type(one) is dict for one in found)


def _decoded(items: Sequence[bytes], type_: str, load: Load) -> list[Any] | None:
    """The elements decoded, if each is a plain value or a dict of those."""
    # By their first bytes, before anything is decoded: that takes the framework's classes.
    if any(item[0] in _NESTED for item in items):
        return None
    found: list[Any] = load((type_, array(items)))
    return found if all(map(_is_flat, found)) else None


def _is_flat(value: Any) -> bool:
    if type(value) is dict:
        return all(type(one) in UNCHANGING for one in value.values())
    return type(value) in UNCHANGING


Held = Pieced | Version
"""A value that is no list, or a list."""


def value_of(held: Held, load: Load) -> Any:
    """The value itself, which belongs to the caller."""
    return held.value(load) if isinstance(held, Version) else load(held.typed)


class Values:
    """The values in the records of one namespace of a thread, as far as they are loaded."""

    def __init__(self, load: Load) -> None:
        self.records: dict[str, CheckpointRecord] = {}
        self.load = load
        self._versions: dict[tuple[str, str], Version] = {}

    def add(self, id_: str, record: CheckpointRecord) -> None:
        """One more record, or the same one as it is stored now: its values are the same."""
        self.records[id_] = record

    def missing(self, id_: str) -> set[str]:
        """The ids of records that have to be loaded before `channel_values(id_)`: the next ones."""
        record = self.records.get(id_)
        if record is None:
            return {id_}
        found = set()
        for channel in record.grown:
            found |= self._first_missing(id_, channel)
        for channel, owner in record.at.items():
            found |= self._first_missing(owner, channel)
        return found

    def _first_missing(self, id_: str, channel: str) -> set[str]:
        while (id_, channel) not in self._versions:
            record = self.records.get(id_)
            if record is None:
                return {id_}
            if channel not in record.grown:
                return set()
            id_ = record.grown[channel].base
        return set()

    def channel_values(self, id_: str) -> dict[str, Any]:
        """The values of the checkpoint `id_`; they belong to the caller."""
        held = self.held(id_)
        return {channel: value_of(stored, self.load) for channel, stored in held.items()}

    def held(self, id_: str) -> dict[str, Held]:
        """The same as they are stored."""
        owners = self.records[id_].owners(id_)
        return {channel: self._held(owner, channel) for channel, owner in owners.items()}

    def _held(self, owner: str, channel: str) -> Held:
        stored = self.records[owner].values.get(channel)
        if stored is not None and not stored.is_list:
            return stored
        return self.version(owner, channel)

    def version(self, owner: str, channel: str) -> Version:
        """The list of a channel in a record that has it."""
        chain: list[tuple[str, Growth]] = []
        id_ = owner
        while (found := self._versions.get((id_, channel))) is None:
            record = self.records[id_]
            growth = record.grown.get(channel)
            if growth is None:
                found = self._versions[id_, channel] = version_of(record.values[channel], self.load)
                break
            chain.append((id_, growth))
            id_ = growth.base
        for id_, growth in reversed(chain):
            found = self._versions[id_, channel] = found.grown(growth, self.load)
        return found
