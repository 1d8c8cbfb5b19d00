"""What a saver remembers of the newest checkpoint of each thread: it is what the next one is
compared with, and what most runs begin with.

Nothing depends on it: a commit names the revisions of the records that it builds on, and is refused
if another process changed one of them.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from langgraph.checkpoint.base import ChannelVersions, Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol

from blackboard.integrations.langgraph.keys import ThreadPlace
from blackboard.integrations.langgraph.records import (
    CheckpointRecord,
    Growth,
    Pieced,
    Typed,
    body_of,
    difference,
    elements_after,
    pieced,
)
from blackboard.integrations.langgraph.values import UNCHANGING, Held, Version, version_of

TIPS_MAX: Final = 256
"""Threads whose newest checkpoint one saver remembers."""
TIPS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of values of those; the thread that was used last stays, whatever its size."""
SEEN_MAX: Final = 16_384
"""Checkpoints that one saver remembers by name, so that a run on one that is gone is noticed."""
SMALL_BYTES: Final = 32
"""Values up to this size are stored again: to say where they are takes as much."""
APART: Final = ("id", "channel_values")
"""Parts of a checkpoint that stand elsewhere in its record."""
DEPTH_SPARE: Final = 256
"""Records that a list may be put together from, beside four for each of its elements; then it is
stored whole."""


@dataclass(slots=True)
class Tip:
    """A checkpoint, and where the values of its channels are."""

    id: str
    versions: ChannelVersions
    serde: SerializerProtocol
    owners: dict[str, str] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    """Of the records that the next one may build on, itself included."""
    objects: dict[str, list[Any]] = field(default_factory=dict)
    """The lists themselves, as they were put."""
    bodies: dict[str, bytes] = field(default_factory=dict)
    """The lists as they were serialized, without their headers, if that was necessary."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the values, about."""
        held = (one.items if isinstance(one, Version) else one.pieces for one in self.held.values())
        return sum(sum(map(len, pieces)) for pieces in (*held, self.bodies.values()))


class Tips:
    """The tips of one saver, those used last."""

    def __init__(self) -> None:
        self._tips: OrderedDict[ThreadPlace, tuple[Tip, int]] = OrderedDict()
        self._bytes = 0
        self._seen: OrderedDict[tuple[ThreadPlace, str], None] = OrderedDict()

    def get(self, place: ThreadPlace) -> Tip | None:
        """The newest checkpoint there, as far as this saver knows."""
        found = self._tips.get(place)
        if found is None:
            return None
        self._tips.move_to_end(place)
        return found[0]

    def keep(self, place: ThreadPlace, tip: Tip) -> None:
        """Remember a tip in place of the one that was there."""
        self.forget(place)
        self._seen[place, tip.id] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        # Kept with it, because its lists may grow in place: what is subtracted is what was added.
        size = tip.size_bytes
        self._tips[place] = (tip, size)
        self._bytes += size
        while len(self._tips) > TIPS_MAX or (self._bytes > TIPS_BYTES_MAX and len(self._tips) > 1):
            self.forget(next(iter(self._tips)))

    def has_seen(self, place: ThreadPlace, id_: str) -> bool:
        """Whether that was the newest checkpoint there once."""
        return (place, id_) in self._seen

    def forget(self, place: ThreadPlace) -> None:
        """Forget what is there."""
        found = self._tips.pop(place, None)
        self._bytes -= found[1] if found else 0

    def forget_thread(self, prefix: str, thread: str) -> None:
        """Forget all namespaces of a thread."""
        for place in [p for p in self._tips if (p.prefix, p.thread) == (prefix, thread)]:
            self.forget(place)


# --- the next one ---------------------------------------------------------------------------------


def following(
    tip: Tip | None, checkpoint: Checkpoint, serde: SerializerProtocol
) -> tuple[CheckpointRecord, Tip]:
    """The record of `checkpoint`, without its metadata, parent and writes; and its tip.

    What it shares with `tip` is left out.
    """
    versions = checkpoint["channel_versions"]
    rest = {name: part for name, part in checkpoint.items() if name not in APART}
    record = CheckpointRecord(None, serde.dumps_typed(rest), ("", b""))
    after = Tip(checkpoint["id"], dict(versions), serde)
    for channel, value in checkpoint["channel_values"].items():
        if tip is not None and _is_unchanged(tip, channel, versions):
            held, at = tip.held[channel], tip.owners[channel]
            after.objects |= {channel: tip.objects[channel]} if channel in tip.objects else {}
            after.bodies |= {channel: tip.bodies[channel]} if channel in tip.bodies else {}
        else:
            held, at = _store(record, tip, after, channel, value)
            if isinstance(held, Version):
                # A copy, because the graph may go on to change its own list.
                after.objects[channel] = list(value)
        if at:
            record.at[channel] = at
        after.held[channel], after.owners[channel] = held, at or after.id
    if tip is not None:
        wanted = set(after.owners.values())
        after.revisions = {id_: rev for id_, rev in tip.revisions.items() if id_ in wanted}
    return record, after


def _is_unchanged(tip: Tip, channel: str, versions: ChannelVersions) -> bool:
    version = versions.get(channel)
    return version is not None and channel in tip.held and tip.versions.get(channel) == version


def _store(
    record: CheckpointRecord, tip: Tip | None, after: Tip, channel: str, value: Any
) -> tuple[Held, str]:
    """Put a value into the record, or say which record has it already."""
    serde = after.serde
    old = None if tip is None else tip.held.get(channel)
    if tip is not None and isinstance(old, Version) and type(value) is list:
        grown = _growth(tip, after, channel, value, old)
        if isinstance(grown, Growth):
            record.grown[channel] = grown
            return old.grown(grown, serde.loads_typed), ""
        found = grown
    else:
        found = pieced(serde.dumps_typed(value))
    if found.is_list:
        record.values[channel] = found
        return version_of(found, serde.loads_typed), ""
    if tip is not None and old == found and len(found.pieces[0]) > SMALL_BYTES:
        return found, tip.owners[channel]
    record.values[channel] = found
    return found, ""


def _growth(tip: Tip, after: Tip, channel: str, value: list[Any], base: Version) -> Growth | Pieced:
    """How a list differs from that of the tip; or the list itself, if that takes less.

    Elements that are the same objects as before, and cannot be changed, are not serialized again;
    nor are the encoded elements compared one by one if the list begins as the one before.
    """
    dumps, owner = after.serde.dumps_typed, tip.owners[channel]
    may_grow = base.depth < DEPTH_SPARE + 4 * base.count
    same = _same(tip.objects.get(channel, []), value)
    if same == base.count and may_grow:
        tail = _tail(dumps, value[same:], base.type)
        if tail is not None:
            return Growth(owner, same, 0, tail, base.type)
    type_, data = typed = dumps(value)
    if type_ != base.type:
        return pieced(typed)
    body, after.bodies[channel] = tip.bodies.get(channel), body_of(data)
    found = None if body is None else elements_after(data, body, base.count)
    if found is not None and may_grow:
        return Growth(owner, base.count, 0, found, type_)
    whole = pieced(typed)
    keep, end = difference(base.items, whole.pieces) if whole.is_list else (0, 0)
    if not keep + end or not may_grow:
        return whole
    return Growth(owner, keep, end, whole.pieces[keep : len(whole.pieces) - end], type_)


def _tail(dumps: Callable[[Any], Typed], rest: list[Any], type_: str) -> Sequence[bytes] | None:
    """The elements that come behind others of a list of that type; None if a serializer encodes
    them in another way, as one that falls back to pickle does."""
    if not rest:
        return []
    found = pieced(dumps(rest))
    return found.pieces if found.is_list and found.type == type_ else None


def _same(known: list[Any], value: list[Any]) -> int:
    """How many elements at the beginning are the same objects, and cannot be changed."""
    count = 0
    for one, other in zip(known, value, strict=False):
        if one is not other or type(one) not in UNCHANGING:
            break
        count += 1
    return count
