"""Changes that take more than one request: merges, touches, deletes of any number of keys."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from blackboard.client.merge_patch import apply
from blackboard.client.views import Entry, Listing, Receipt
from blackboard.core.commit import (
    ABSENT,
    PRESENT,
    Condition,
    Delete,
    DeletePrefix,
    KeyAt,
    LogPage,
    Op,
    Put,
)
from blackboard.errors import Conflict, LimitExceeded
from blackboard.limits import OPERATIONS_MAX
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import encode_value


class ChangedBoard(Protocol):
    """The part of a Board that these changes use."""

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""

    async def list(self, pattern: str, *, limit: int) -> Listing:
        """A page of the entries that match."""

    async def put(self, key: Key, value: Any, *, expected: Revision) -> Receipt:
        """Set `key` to `value` if it is at `expected`."""

    async def commit(self, ops: Sequence[Op], *, conditions: Sequence[Condition] = ()) -> Receipt:
        """Carry out all of `ops` if every condition holds."""


async def merge_at(board: ChangedBoard, key: Key, patch: Any, attempts_max: int) -> Any:
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


async def touch_at(
    board: ChangedBoard, key: Key, ttl_ms: Milliseconds | None, attempts_max: int
) -> Receipt:
    """`Board.touch`: put the value that is there again, until no other change comes in between."""
    for left in reversed(range(attempts_max)):
        entry = await board.entry(key)
        if entry is None:
            raise Conflict(key, PRESENT, ABSENT)
        put = Put(key, encode_value(entry.value), ttl_ms)
        try:
            return await board.commit([put], conditions=[KeyAt(key, entry.mod_revision)])
        except Conflict:
            if not left:
                raise
    raise AssertionError("the last attempt returns or raises")


async def log_pages(
    look: Callable[..., Awaitable[LogPage]], after: Revision, limit: int, scanned: int
) -> AsyncIterator[LogPage]:
    """Pages of `Board.log` from `after` on, until they have `limit` entries or the log ends;
    `scanned` revisions are looked through for each, as many as are missing if that is 0."""
    left = limit
    while left > 0:
        page = await look(after, limit=scanned or left)
        yield page
        left -= len(page.entries)
        if page.through <= after or page.through >= page.head.revision:
            return
        after = page.through


async def delete_below(
    board: ChangedBoard, prefix: Prefix, progress: Callable[[int], None] | None
) -> tuple[Key, ...]:
    """`Board.delete_prefix`: at once if the engine takes it, else page by page until it does."""
    gone: list[Key] = []
    while True:
        try:
            receipt = await board.commit([DeletePrefix(prefix)])
        except LimitExceeded as refused:
            page = await board.list(f"{prefix}/**", limit=OPERATIONS_MAX)
            if refused.limit != "OPERATIONS_MAX" or not page.entries:
                raise
            keys = [entry.key for entry in page.entries]
            await board.commit([Delete(key) for key in keys])
        else:
            [last] = receipt.results
            assert isinstance(last, tuple)
            return (*gone, *map(str, last))
        gone += keys
        if progress is not None:
            progress(len(gone))
