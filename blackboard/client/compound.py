"""Changes that take more than one request: merges, touches, deletes of any number of keys.

A merge is that of RFC 7396: objects are merged, null removes a member, all else replaces.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

from blackboard.client.link import Transport
from blackboard.client.views import Entry, Listing, Receipt
from blackboard.core.checkpoints import (
    AUTOMATIC,
    NAMED,
    Checkpoint,
    CheckpointList,
    CheckpointRequest,
    Recovered,
    RecoverRequest,
    Version,
    When,
    moment_of,
    named_by_time,
)
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
from blackboard.core.path import document_of, document_prefix
from blackboard.errors import BlackboardError, Conflict, LimitExceeded
from blackboard.limits import (
    CHECKPOINTS_PAGE_MAX,
    LOG_ENTRIES_MAX,
    OPERATIONS_MAX,
    PAGE_BYTES_MAX,
)
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import encode_value


class ChangedBoard(Protocol):
    """The part of a Board that these changes use."""

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""

    async def list(self, pattern: str, *, limit: int, keys_only: bool) -> Listing:
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
            # A conflict has the value only if it is small and may be read; None may
            # also be the value.
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


async def revision_at(link: Transport, board: str, moment: When | None) -> Revision | None:
    """The revision of a moment; None of None. Errors: those of reading then."""
    if moment is None or type(moment) is int:
        return moment
    return (await link.read(board, (), at=moment_of(moment))).revision


def checkpoint_request(
    name: str | None, note: str, barrier_ms: Milliseconds | None, *, stale_ok: bool
) -> CheckpointRequest:
    """`Board.checkpoint`: what is asked for; without a name, named by its time."""
    request = secrets.token_hex(8)
    kind = AUTOMATIC if name is None else NAMED
    named = named_by_time(datetime.now(UTC), request) if name is None else name
    return CheckpointRequest(named, request, note, barrier_ms, stale_ok, kind)


async def all_checkpoints(link: Transport, board: str) -> CheckpointList:
    """`Board.checkpoints`: all pages of them."""
    found: list[Checkpoint] = []
    after: Revision = 0
    while True:
        page = await link.checkpoints(board, after=after, limit=CHECKPOINTS_PAGE_MAX)
        found += page
        if len(page) < CHECKPOINTS_PAGE_MAX:
            return CheckpointList(found)
        after = page[-1].revision


async def recover_all(
    link: Transport,
    board: str,
    request: RecoverRequest,
    progress: Callable[[int], None] | None,
    refresh: Callable[[], Awaitable[None]],
) -> Recovered:
    """`Board.recover`: one part after the other, until it is done; then `refresh`."""
    while True:
        recovered = await link.recover(board, request)
        if recovered.done:
            # It is done, also if the head cannot be read now: then the next commit is refused.
            with suppress(BlackboardError):
                await refresh()
            return recovered
        if progress is not None:
            progress(recovered.entries)


async def list_pages(
    look: Callable[..., Awaitable[Listing]], at: When | None
) -> AsyncIterator[Listing]:
    """Pages of `Board.list`, the later ones of a moment `at` as of the revision of the first."""
    after: Key | None = None
    while True:
        page = await look(after=after, at=at)
        yield page
        after = page.next_key
        if after is None:
            return
        # A moment such as "now" moves on, and the pages of one listing must not.
        at = at and page.revision


async def log_pages(
    look: Callable[..., Awaitable[LogPage]], after: Revision, limit: int, scanned: int
) -> AsyncIterator[LogPage]:
    """Pages of `Board.log` from `after` on, until they have `limit` entries or the log ends;
    `scanned` revisions are looked through for each, as many as are missing if that is 0."""
    left = limit
    while left > 0:
        page = await look(after, limit=scanned or min(left, LOG_ENTRIES_MAX))
        yield page
        left -= len(page.entries)
        # The first: a page that does not advance would be asked for again without end.
        if page.through <= after or page.through >= page.head.revision:
            return
        after = page.through


async def versions_before(
    look: Callable[..., Awaitable[Sequence[Version]]], before: Revision | None, limit: int
) -> Sequence[Version]:
    """The versions of `Board.history`, in as many pages as their values need."""
    found: list[Version] = []
    while True:
        page = await look(before=before, limit=limit - len(found))
        found += page
        # A page ends early only behind large values; where they are encrypted, they are longer.
        size = sum(len(each.entry.value) for each in page if each.entry is not None)
        if len(found) >= limit or size < PAGE_BYTES_MAX // 2:
            return found
        before = page[-1].revision


async def delete_below(
    board: ChangedBoard, prefix: Prefix, progress: Callable[[int], None] | None
) -> tuple[Key, ...]:
    """`Board.delete_prefix`: at once if the engine takes it, else page by page until it does."""
    gone: list[Key] = []
    while True:
        try:
            receipt = await board.commit([DeletePrefix(prefix)])
        except LimitExceeded as refused:
            page = await board.list(f"{prefix}/**", limit=OPERATIONS_MAX, keys_only=True)
            if refused.limit != "OPERATIONS_MAX" or not page.entries:
                raise
            gone += await _delete_page(board, [entry.key for entry in page.entries])
        else:
            return (*gone, *_keys_of(receipt))
        if progress is not None:
            progress(len(gone))


async def _delete_page(board: ChangedBoard, keys: Sequence[Key]) -> Sequence[Key]:
    """Remove `keys`, and the documents of which some are parts: a document is removed as a whole
    only."""
    gone = [key for key in keys if document_of(key) is None]
    if gone:
        await board.commit([Delete(key) for key in gone])
    for document in dict.fromkeys(filter(None, map(document_of, keys))):
        gone += _keys_of(await board.commit([DeletePrefix(document_prefix(document))]))
    return gone


def _keys_of(receipt: Receipt) -> tuple[Key, ...]:
    """The keys that the one DeletePrefix of a commit removed."""
    [keys] = receipt.results
    assert isinstance(keys, tuple)
    return tuple(map(str, keys))


def expect(key: Key, expected: Revision | None) -> Sequence[Condition]:
    """The condition that `key` is at `expected`; none for None."""
    return () if expected is None else (KeyAt(key, expected),)


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
