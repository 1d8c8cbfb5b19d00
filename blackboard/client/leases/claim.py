"""Claims: exactly one agent takes, works on and finishes an entry that matches a pattern.

Invariants
- To claim an entry is to be granted the lease of its key while the entry is unchanged. Of any
  number of claimers one wins; the others continue with the next entry.
- An attempt is counted by the commit that begins it, so that no crash loses it.
- an attempt ends in one commit that also ends the lease: the entry is removed, returned, or moved
  to the dead letters. If a claimer dies, its lease runs out, which returns the entry.
- The log wakes waiters: there is no polling, and only the engine's clock is used. An entry is
  delayed by a lease that is left to expire.

Sources: the visibility timeout and the dead-letter queue of Amazon SQS; `in` of a tuple space
(Gelernter, "Generative communication in Linda", 1985).

Attempts are recorded in two branches of the entries' namespace: `~tries` counts the attempts,
`~dead` holds the entries that failed too often. A pattern matches them only if it names them.

Invariants of the records
- a record belongs to the one entry that exists since revision `created`: a new entry at the same
  key has a new count.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Protocol, TypeVar

import anyio

from blackboard.client.cancellation import finish
from blackboard.client.leases.lock import UNDELIVERED, Keeper, new_holder
from blackboard.client.views import Entry, Listing, Receipt, RevisionEvent
from blackboard.client.watch import Watch
from blackboard.client.writer import CommitRequest, Hold, Writer
from blackboard.core.commit import (
    ABSENT,
    Append,
    Condition,
    Delete,
    Grant,
    HeldFence,
    KeyAt,
    Lease,
    Op,
    Put,
    Release,
    Renew,
)
from blackboard.core.path import namespace_of, parse_pattern
from blackboard.errors import (
    BlackboardError,
    BoardFrozen,
    Conflict,
    Fenced,
    InvalidRequest,
    LeaseHeld,
    LocalProtocolError,
    NothingToClaim,
    line_of,
)
from blackboard.limits import (
    KEY_BYTES_MAX,
    LEASE_TTL_MS_MIN,
    NOTE_BYTES_MAX,
    READ_KEYS_MAX,
)
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import encode_value

T = TypeVar("T")

TRIES = "~tries"
DEAD = "~dead"


def tries_key(key: Key) -> Key:
    """Where attempts at `key` are counted: `public/tasks/7` -> `public/~tries/tasks/7`."""
    return _beside(key, TRIES)


def dead_key(key: Key) -> Key:
    """Where the entry of `key` is moved when it failed too often: `public/tasks/7` ->
    `public/~dead/tasks/7`."""
    return _beside(key, DEAD)


def _beside(path: str, branch: str) -> str:
    namespace = namespace_of(path)
    return f"{namespace}/{branch}{path[len(namespace) :]}"


def _first_segment(path: str) -> str:
    """The first segment of a key, or of a pattern, within its namespace; "" if there is none."""
    return path[len(namespace_of(path)) + 1 :].partition("/")[0]


def check_pattern(pattern: str) -> str:
    """Return `pattern` if there is a place for records beside all that it matches.

    Errors: InvalidRequest, also for `**`, `*/tasks` and `private/**`.
    """
    parse_pattern(pattern)
    kind = pattern.partition("/")[0]
    if kind not in ("public", "private", "inbox") or not _first_segment(pattern):
        reason = f"{pattern!r} does not begin with a namespace, as public/tasks/* does"
        raise InvalidRequest(field="pattern", reason=reason)
    return pattern


def is_meant(pattern: str, key: Key) -> bool:
    """Whether `pattern` is about `key`, which it matches: `~tries` and the like must be named, and
    a record of attempts must fit beside it, also when it is dead."""
    branch = _first_segment(key)
    is_named = not branch.startswith("~") or branch == _first_segment(pattern)
    return is_named and len(tries_key(dead_key(key))) <= KEY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Record:
    """The record of the attempts at an entry: the value at its `tries_key`.

    `delayed`: the lease on the entry is not a claim; it delays the entry.
    """

    tries: int
    created: Revision
    last_error: str = ""
    delayed: bool = False

    @staticmethod
    def of(found: Entry | None, created: Revision) -> "Record":
        """The record of the entry that exists since `created`; without one: no attempt yet."""
        value = found.value if found else None
        # Every writer of the namespace may write at this key, so nothing about
        # the value is certain.
        if isinstance(value, Mapping) and value.get("created") == created:
            tries, last_error = value.get("tries"), value.get("last_error")
            if type(tries) is int and tries >= 0 and isinstance(last_error, str):
                return Record(tries, created, last_error, value.get("delayed") is True)
        return Record(0, created)

    def at(self, key: Key) -> Put:
        """The operation that keeps this record of the entry `key`."""
        return Put(tries_key(key), encode_value(asdict(self)))


# --- what can be seen -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """An entry that was claimed at least once, and is not done.

    `state` is "claimed" (by `holder`, until `until_ms` if that is not renewed), "delayed" (it
    cannot be claimed until `until_ms`), "returned" (it can be claimed) or "dead". `tries` counts
    the attempts so far; `last_error` is the error of the last one that reported it.
    """

    key: Key
    state: str
    tries: int
    holder: str | None = None
    until_ms: Milliseconds | None = None
    last_error: str = ""


class ClaimedBoard(Protocol):
    """The part of a Board that is needed to list claims."""

    async def entries(self, keys: Sequence[Key]) -> dict[Key, Entry]:
        """Several entries as of one revision."""

    def scan(self, pattern: str) -> AsyncIterator[Entry]:
        """All entries that match."""

    async def leases(self, pattern: str) -> Sequence[Lease]:
        """The leases whose keys match."""


async def claims(board: ClaimedBoard, pattern: str) -> list[Claimed]:
    """Entries that match and were claimed, in key order; then those of them that are dead."""
    found = await _living(board, check_pattern(pattern))
    return found + await _dead(board, dead_key(pattern))


async def _living(board: ClaimedBoard, pattern: str) -> list[Claimed]:
    leases = {lease.key: lease for lease in await board.leases(pattern)}
    found = []
    for entry, kept in await _recorded(board, pattern):
        record = Record.of(kept, entry.create_revision)
        if record.tries:
            found.append(_seen(entry.key, record, leases.get(entry.key)))
    return found


async def _dead(board: ClaimedBoard, pattern: str) -> list[Claimed]:
    """Dead letters that match. Their records were moved with them, and describe the original
    entries."""
    found = []
    for entry, kept in await _recorded(board, pattern):
        value = kept.value if isinstance(kept.value, Mapping) else {}
        record = Record.of(kept, value.get("created", 0))
        found.append(Claimed(entry.key, "dead", record.tries, last_error=record.last_error))
    return found


async def _recorded(board: ClaimedBoard, pattern: str) -> list[tuple[Entry, Entry]]:
    """Entries that match and have a record, each with the entry of its record."""
    records: dict[Key, Entry] = {}
    async for kept in board.scan(tries_key(pattern)):
        key = kept.key.replace(f"/{TRIES}/", "/", 1)
        if is_meant(pattern, key):
            records[key] = kept
    keys = sorted(records)
    found: list[tuple[Entry, Entry]] = []
    for start in range(0, len(keys), READ_KEYS_MAX):
        entries = await board.entries(keys[start : start + READ_KEYS_MAX])
        found += [(entries[key], records[key]) for key in sorted(entries)]
    return found


def _seen(key: Key, record: Record, lease: Lease | None) -> Claimed:
    if lease is None:
        return Claimed(key, "returned", record.tries, last_error=record.last_error)
    if record.delayed:
        until_ms, last_error = lease.until_ms, record.last_error
        return Claimed(key, "delayed", record.tries, until_ms=until_ms, last_error=last_error)
    holder, until_ms = lease.holder, lease.until_ms
    return Claimed(key, "claimed", record.tries, holder, until_ms, record.last_error)


_CLAIMED, _DONE, _RETURNED, _DEAD = "claimed", "done", "returned", "dead letter"
_REASON_BYTES_MAX = NOTE_BYTES_MAX - 32
"""Length of an error's text, so that it fits into a note after one of those words."""


class ClaimBoard(Protocol):
    """The reads of a Board that claims need."""

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""

    async def list(self, pattern: str, *, after: Key | None, limit: int) -> Listing:
        """A page of the entries that match."""

    async def leases(self, pattern: str) -> Sequence[Lease]:
        """The leases whose keys match."""

    def watch(self, *patterns: str, after: Revision | str | None) -> Watch:
        """Watch what changes."""


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """How to claim: see `Board.claim`."""

    ttl_ms: Milliseconds
    timeout_ms: Milliseconds | None
    tries_max: int

    def __post_init__(self) -> None:
        if type(self.tries_max) is not int or self.tries_max < 1:
            raise InvalidRequest("tries_max", f"{self.tries_max!r} is not an integer from 1 on")


# --- a task ---------------------------------------------------------------------------------------


class Task:
    """An entry that is yours to work on, inside the block of `Board.claim`.

    Puts and appends through it happen in the commit that ends the task, or not at all: the result
    of a task that can still be returned is never visible.
    """

    def __init__(self, entry: Entry, record: Record, fence: HeldFence, sent_s: float) -> None:
        self.entry = entry
        """The entry as it was claimed."""
        self.attempt = record.tries
        """The number of this attempt, from 1. Attempts whose claimer died count, too."""
        self.last_error = record.last_error
        """The error of the last attempt that reported one, "" if none did."""
        self.fence = fence
        """The fence of the claim; commits inside the block carry it automatically."""
        self.sent_s = sent_s
        """When the lease was requested, by the event loop's clock."""
        self.delay_ms: Milliseconds = 0
        """How long it cannot be claimed after the block raises: 0, or LEASE_TTL_MS_MIN and more."""
        self.ops: list[Op] = []
        """The operations of the commit that ends the task."""

    @property
    def key(self) -> Key:
        """The entry's key."""
        return self.entry.key

    @property
    def value(self) -> Any:
        """The entry's value when it was claimed."""
        return self.entry.value

    def put(self, key: Key, value: Any, *, ttl_ms: Milliseconds | None = None) -> None:
        """Set `key` to `value` when the task is done."""
        self.ops.append(Put(key, encode_value(value), ttl_ms))

    def append(self, prefix: Prefix, value: Any, *, ttl_ms: Milliseconds | None = None) -> None:
        """Add `value` as the next item below `prefix` when the task is done."""
        self.ops.append(Append(prefix, encode_value(value), ttl_ms))

    def move_to(self, prefix: Prefix) -> None:
        """Make its value the next item below `prefix` when the task is done."""
        self.append(prefix, self.value)

    def __repr__(self) -> str:
        return f"<Task {self.key!r}, attempt {self.attempt}>"


class Claim:
    """Made by `Board.claim`: a block with one task.

    Cancellation, and every other error of the block, returns the task and counts as an attempt; a
    cancellation before the block leaves nothing behind, not even the count.
    """

    def __init__(
        self, board: ClaimBoard, writer: Writer, pattern: str, terms: ClaimOptions
    ) -> None:
        self._board = board
        self._writer = writer
        self._limits = writer.link.limits
        self._pattern = check_pattern(pattern)
        self._terms = terms
        self._task: Task | None = None
        self._before: Entry | None = None
        """The record of tries as it was before `_task` was taken."""
        self._keeper: Keeper | None = None

    async def __aenter__(self) -> Task:
        if self._keeper is not None:
            raise LocalProtocolError(reason="a claim is used for one block only")
        try:
            task = await self._next()
            # `finish` shields the commit from anyio's scopes. A cancellation that came meanwhile is
            # raised here, where the claim can still be undone without counting an attempt.
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            if self._task is not None:
                await self._quietly(self._undo(self._task), None)
            raise
        hold = Hold(
            self._writer.link.origin, self._writer.board, self._writer.link.agent, (task.fence,)
        )
        self._keeper = Keeper(
            hold, self._terms.ttl_ms, lambda: self._renew(task.fence), limits=self._limits
        )
        self._keeper.start(task.sent_s)
        return task

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        keeper, task = self._keeper, self._task
        assert keeper is not None
        assert task is not None
        keeper.stop()
        if keeper.lost is not None:
            await self._quietly(self._lost(task, error or keeper.lost), None)
        elif error is None:
            await self._settle(task, keeper)
        else:
            await self._quietly(self._failed(task, error), error)
        keeper.judge(error)

    # --- taking -----------------------------------------------------------------------------------

    async def _next(self) -> Task:
        """Take the first entry that is free; wait for one if there is none."""
        timeout_ms = self._terms.timeout_ms
        deadline_s = math.inf if timeout_ms is None else anyio.current_time() + timeout_ms / 1000
        task, seen = await self._look()
        while task is None:
            try:
                task = await self._wait(seen, deadline_s)
            except UNDELIVERED:
                # What became free cannot be delivered, so it is looked for.
                task, seen = await self._look()
        return task

    async def _wait(self, seen: Revision, deadline_s: float) -> Task:
        """Take the first entry that becomes free after revision `seen`."""
        async with self._board.watch(self._pattern, after=seen) as watch:
            while True:
                # Only the wait is bounded: an acquisition in progress is not interrupted.
                with anyio.CancelScope(deadline=deadline_s) as waiting:
                    await self._until_free(watch, seen)
                if waiting.cancelled_caught:
                    raise NothingToClaim(self._pattern, self._terms.timeout_ms or 0)
                task, seen = await self._look()
                if task is not None:
                    return task

    async def _until_free(self, watch: Watch, seen: Revision) -> None:
        """Return when something after revision `seen` may have made an entry free."""
        async for revised in watch:
            if revised.revision > seen and frees(self._pattern, revised):
                return

    async def _look(self) -> tuple[Task | None, Revision]:
        """Scan the entries once, in their order; also returns the revision after which to watch."""
        page = await self._page(None)
        # Of the first page, which is the oldest thing read here: the watch may repeat a change, but
        # misses none.
        seen = page.revision
        held = {lease.key for lease in await self._board.leases(self._pattern)}
        while True:
            for entry in page.entries:
                # `held` only saves requests. Whether it is free is decided by the grant.
                if entry.key not in held and is_meant(self._pattern, entry.key):
                    task = await self._take(entry)
                    if task is not None:
                        return task, seen
            if page.next_key is None:
                return None, seen
            page = await self._page(page.next_key)

    async def _page(self, after: Key | None) -> Listing:
        entries = self._limits.client.claim_look_entries
        return await self._board.list(self._pattern, after=after, limit=entries)

    async def _take(self, entry: Entry) -> Task | None:
        """Claim `entry`; None if another claimer was faster, it changed, or it was tried too
        often."""
        for _ in range(self._limits.client.claim_take_attempts_max):
            # Read again for each attempt: the grant is conditioned on it, so no two claimers count
            # the same attempt.
            found = await self._board.entry(tries_key(entry.key))
            try:
                await self._finish(self._grant(entry, found))
            except LeaseHeld:
                return None
            except BoardFrozen as frozen:
                await self._writer.thawed(frozen)
                continue
            except Conflict as conflict:
                if conflict.key == entry.key:
                    return None
                continue  # an attempt was counted in between, and may be over already
            assert self._task is not None
            if self._task.attempt <= self._terms.tries_max:
                return self._task
            # Its claimers died: each had counted its attempt, and none was left to bury it.
            task, self._task = self._task, None
            await self._quietly(self._bury(task, task.last_error or "its claimers died"), None)
            return None
        return None

    async def _grant(self, entry: Entry, found: Entry | None) -> None:
        """Take `entry`, whose record was `found`. It is ours once `_task` is set."""
        record = Record.of(found, entry.create_revision)
        record = replace(record, tries=record.tries + 1, delayed=False)
        holder = new_holder(self._writer.link.agent, self._writer.link.account)
        spec = CommitRequest(
            (Grant(entry.key, holder, self._terms.ttl_ms), record.at(entry.key)),
            conditions=(
                # Else a claimer could get an entry that was finished and put again
                # since it was listed.
                KeyAt(entry.key, entry.mod_revision),
                KeyAt(tries_key(entry.key), found.mod_revision if found else ABSENT),
            ),
            note=_CLAIMED,
        )
        sent_s = asyncio.get_running_loop().time()
        receipt = await self._writer.commit(spec, waits=False)
        fence = HeldFence(entry.key, holder, receipt.revision)
        self._task, self._before = Task(entry, record, fence, sent_s), found

    async def _renew(self, fence: HeldFence) -> Receipt:
        op = Renew(fence.key, fence.holder, fence.fence, self._terms.ttl_ms)
        return await self._writer.commit(CommitRequest((op,)), with_held=False)

    # --- ending -----------------------------------------------------------------------------------

    async def _settle(self, task: Task, keeper: Keeper) -> None:
        """The block succeeded: finish the task, unless its lease was lost.

        Errors: LeaseLost; what the commit is refused for, and then the task is returned.
        """
        try:
            await self._done(task)
        except Fenced as fenced:
            # The fence of another lock, which the commit also carried: the claim is still held.
            if fenced.key != task.key:
                await self._quietly(self._failed(task, fenced), fenced)
                raise
            keeper.lose("its end came too late", fenced)
        except BaseException as error:
            await self._quietly(self._failed(task, error), error)
            raise

    async def _done(self, task: Task) -> None:
        """Commit that it is done; on a frozen board after the thaw. It cannot be claimed before."""
        ops = (*task.ops, Delete(task.key), Delete(tries_key(task.key)), _release(task.fence))
        while True:
            try:
                done = self._writer.commit(CommitRequest(ops, note=_DONE), waits=False)
                await self._finish(done)
            except BoardFrozen as frozen:
                await self._writer.thawed(frozen)
            else:
                return

    async def _failed(self, task: Task, error: BaseException) -> None:
        """The attempt ended with `error`: the task is returned, or it was the last attempt."""
        last_error = _error_text(error)
        if task.attempt >= self._terms.tries_max:
            await self._bury(task, last_error)
            return
        record = Record(task.attempt, task.entry.create_revision, last_error, task.delay_ms > 0)
        ends: Op = _release(task.fence)
        if record.delayed:
            delay_ms = max(task.delay_ms, LEASE_TTL_MS_MIN)
            # The rest of a lease that nobody renews is the delay: only the engine's clock counts.
            ends = Renew(task.key, task.fence.holder, task.fence.fence, delay_ms)
        spec = CommitRequest((record.at(task.key), ends), note=f"{_RETURNED}: {last_error}")
        # Without the fences of the task, as a lost lock may be why it failed. A barrier must not
        # keep it claimed either, so a delivery that is asked for comes with it (`brings`).
        await self._writer.commit(spec, with_held=False, brings=True, waits=False)

    async def _lost(self, task: Task, error: BaseException) -> None:
        """As `_failed`, for a lease that seems to be lost: if the board still has it, the task
        cannot be claimed until it expires. This does not wait long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.client.finish_timeout_ms / 1000):
                await self._failed(task, error)

    async def _bury(self, task: Task, last_error: str) -> None:
        """Move the entry's present value to the dead letters, together with its record."""
        # Read again: the block may have changed it.
        entry = await self._board.entry(task.key)
        ops: list[Op] = [Delete(tries_key(task.key)), _release(task.fence)]
        conditions: list[Condition] = []
        if entry is not None:
            record = Record(task.attempt, task.entry.create_revision, last_error)
            dead = dead_key(task.key)
            ops += [Delete(task.key), Put(dead, encode_value(entry.value)), record.at(dead)]
            conditions = [KeyAt(task.key, entry.mod_revision)]
        spec = CommitRequest(tuple(ops), tuple(conditions), note=f"{_DEAD}: {last_error}")
        await self._writer.commit(spec, with_held=False, brings=True, waits=False)

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """As `finish`, for as long as this process waits."""
        return await finish(work, self._limits.client.finish_timeout_ms)

    async def _quietly(self, work: Coroutine[Any, Any, None], error: BaseException | None) -> None:
        """Tidy up after `error`. If that fails, the lease is left to run out, and a note on the
        error says so."""
        try:
            await self._finish(work)
        except BlackboardError as failure:
            if error is not None:
                error.add_note(f"the task could not be returned: {failure}")

    async def _undo(self, task: Task) -> None:
        """Undo the claim, as if `task` had not been taken."""
        key = tries_key(task.key)
        was = Put(key, encode_value(self._before.value)) if self._before else Delete(key)
        await self._writer.commit(
            CommitRequest((was, _release(task.fence))), with_held=False, brings=True, waits=False
        )


def frees(pattern: str, revised: RevisionEvent) -> bool:
    """Whether a revision may have freed an entry that matches `pattern`."""
    if revised.epoch is not None:
        return True  # a restore ends every lease, and may change no entry
    # A task that is done is deleted by the commit that releases it: nothing became free.
    gone = {change.key for change in revised.changes if change.kind == "delete"}
    return any(
        change.kind in ("put", "release", "expire")
        and change.key not in gone
        and is_meant(pattern, change.key)
        for change in revised.changes
    )


def _release(fence: HeldFence) -> Release:
    return Release(fence.key, fence.holder, fence.fence)


def _error_text(error: BaseException) -> str:
    """An error as one short text for the record."""
    text = line_of(error).encode(errors="replace")
    return text[:_REASON_BYTES_MAX].decode(errors="ignore")
