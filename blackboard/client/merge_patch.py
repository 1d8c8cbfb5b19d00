"""JSON merge patch, RFC 7396: objects are merged, null removes a member, all else replaces."""

from typing import Any, Protocol

from blackboard.client.views import Entry, Receipt
from blackboard.errors import Conflict
from blackboard.units import Key, Revision
from blackboard.wire.codec import encode_value


class MergeBoard(Protocol):
    """The part of a Board that a merge uses."""

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""

    async def put(self, key: Key, value: Any, *, expected: Revision) -> Receipt:
        """Set `key` to `value` if it is at `expected`."""


async def merge_at(board: MergeBoard, key: Key, patch: Any, attempts_max: int) -> Any:
    """`Board.merge`: apply `patch` to what is at `key` until no other change comes in between."""
    encode_value(patch)  # refuses what nests too deep to be applied
    entry = await board.entry(key)
    revision, value = (entry.mod_revision, entry.value) if entry else (0, None)
    for left in reversed(range(attempts_max)):
        merged = apply(value, patch)
        try:
            await board.put(key, merged, expected=revision)
            return merged
        except Conflict as conflict:
            if not left:
                raise
            revision, value = conflict.actual, conflict.current
            if value is None and revision:
                entry = await board.entry(key)
                revision, value = (entry.mod_revision, entry.value) if entry else (0, None)
    raise AssertionError("the last attempt returns or raises")


def apply(value: Any, patch: Any) -> Any:
    """The result of applying `patch` to `value`; neither is changed.

    Source: RFC 7396, section 2, whose pseudocode this is.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, member in patch.items():
        if member is None:
            merged.pop(name, None)
        else:
            merged[name] = apply(merged.get(name), member)
    return merged
