"""An open board of the embedded engine: its state in memory, and its commits on their way to the
file.

Invariants
- `_state` is ahead of the file by the group that is being written and the one that gathers. No
  answer depends on it before the file holds it.
- commits are decided in the order in which they came, on the event loop, without a pause between
  `decide` and `evolve`; a large restore is decided in a thread, while nothing else touches `_state`
  (`_apart`).
- at most one group is being written; it is written even if its callers stop waiting for it. Copying
  the journal into the file takes the place of a group.
- deadlines of leases are in `_state` alone: each lease gets its full time to live when the board is
  loaded, and a renewal waits only for the commits before it to be written.
- `_durable` is the head as of the last written group; `_tail` holds the newest log entries up to
  it, without a gap.
- an idle board holds no large journal: it is emptied some seconds after the last write.
- after a failed write (`failure` is set) every call of the board fails: it must be loaded again
  from its file, but not in this process after a failed sync (`failure.is_last`).

`WriteGroup` holds the commits that one transaction writes, with the callers to answer. `LogTail`
holds the newest log entries, so that the file is not read for readers that keep up.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, islice, starmap
from typing import Final

from blackboard import limits
from blackboard.core.commit import (
    Committed,
    Entry,
    Epoch,
    Head,
    LogEntry,
    LogPage,
    Reading,
    Renew,
    without_value,
)
from blackboard.core.lease import dated
from blackboard.core.model import Outcome, decide, log_entry, prolong
from blackboard.core.path import Ranges, ranges_of
from blackboard.core.state import State, evolve
from blackboard.engines.base import BatchAnswer
from blackboard.engines.payer import metered
from blackboard.engines.sqlite.file import BoardFile, Loaded, WriteError, log_entries
from blackboard.engines.sqlite.rows import Taken, Touched
from blackboard.errors import Compacted, FutureRevision, OutcomeUnknown, Unavailable
from blackboard.limits import WatchLimits
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import Prepared, encode_results


def date_leases(state: State, now_ms: Milliseconds) -> None:
    """Give each lease of a loaded board its full time to live."""
    state.leases = {key: dated(lease, now_ms) for key, lease in state.leases.items()}


class LogTail:
    """The newest log entries, without a gap, as many as WATCH_QUEUE_* allow."""

    def __init__(self, limits: WatchLimits) -> None:
        self._limits = limits
        self._entries: list[LogEntry] = []
        self._sizes: list[int] = []
        self._changes = 0
        self._bytes = 0

    def page(self, after: Revision, newest: Revision, limit: int) -> list[LogEntry] | None:
        """The entries after `after`; None when they are not all here."""
        if after >= newest:
            return []
        if not self._entries or after + 1 < self._entries[0].revision:
            return None
        start = after + 1 - self._entries[0].revision
        sizes = accumulate(islice(self._sizes, start, start + limit), initial=0)
        count = sum(1 for before in sizes if before < limits.PAGE_BYTES_MAX)
        return self._entries[start : start + min(count, limit)]

    def extend(self, entries: list[LogEntry], sizes: list[int]) -> None:
        """Add written entries, and drop the oldest ones."""
        self._entries += entries
        self._sizes += sizes
        self._bytes += sum(sizes)
        self._changes += sum([len(entry.changes) for entry in entries])
        drop = 0
        while (
            self._bytes > self._limits.watch_queue_bytes_max
            or self._changes > self._limits.watch_queue_changes_max
        ):
            self._bytes -= self._sizes[drop]
            self._changes -= len(self._entries[drop].changes)
            drop += 1
        self._drop(drop)

    def forget(self, below: Revision) -> None:
        """Drop the entries below a revision."""
        count = sum(1 for entry in self._entries if entry.revision < below)
        self._bytes -= sum(self._sizes[:count])
        self._changes -= sum([len(entry.changes) for entry in self._entries[:count]])
        self._drop(count)

    def _drop(self, count: int) -> None:
        del self._entries[:count]
        del self._sizes[:count]


Waiting = tuple[BatchAnswer, Sequence[Prepared], list[Outcome]]
"""A call of `commit`: where its outcomes go, the batch, the outcomes."""


@dataclass(slots=True)
class WriteGroup:
    """The commits of one transaction."""

    calls: list[Waiting] = field(default_factory=list)
    entries: list[LogEntry] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    touched: Touched = field(default_factory=Touched)
    commits: int = 0
    bytes: int = 0
    head: Head | None = None
    log_remains: bool = False

    def is_full(self, bytes_max: int) -> bool:
        """Whether the next commit has to wait for another transaction."""
        return self.commits >= limits.BATCH_COMMITS_MAX or self.bytes >= bytes_max

    @property
    def changes_nothing(self) -> bool:
        """Whether it needs no transaction: its commits were refused, are duplicates, or only moved
        deadlines of leases, which the file does not hold."""
        return not self.entries and self.touched.log_below is None

    def apply(self, state: State, batch: Sequence[Prepared], now_ms: Milliseconds) -> list[Outcome]:
        """Decide a batch, and change `state` by what was accepted.

        If a rule raises unexpectedly, `state` is invalid.
        """
        outcomes: list[Outcome] = []
        for prepared in batch:
            outcome = decide(state, prepared.commit, now_ms)
            outcomes.append(outcome)
            if not isinstance(outcome, Committed) or outcome.duplicate:
                continue
            if not prolong(state, prepared.commit, outcome):
                entry = log_entry(prepared.commit, outcome, prepared.digest)
                self.touched.note(state, entry, prepared, encode_results(outcome.results))
                evolve(state, entry)
                self.entries.append(entry)
                self.sizes.append(prepared.size)
        self.commits += len(batch)
        self.bytes = sum(self.sizes)
        return outcomes

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs that its commits begin."""
        return [entry.epoch for entry in self.entries if entry.epoch is not None]

    def tell(self) -> None:
        """Resolve the callers' futures, once the file holds the group."""
        for answer, _, outcomes in self.calls:
            if not answer.done():
                answer.set_result(outcomes)

    def tell_failure(self, board: str, failure: WriteError) -> None:
        """Fail the callers' futures: the file does not hold the group, or may not hold it."""
        for answer, batch, _ in self.calls:
            if answer.done():
                continue
            if failure.certain or not batch:
                answer.set_exception(Unavailable(f"board {board}", failure.reason))
            else:
                answer.set_result([_unknown(prepared, failure) for prepared in batch])


def _unknown(prepared: Prepared, failure: WriteError) -> OutcomeUnknown:
    name = prepared.commit.id
    return OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, failure.reason)


_GIVE_WAY_EVERY_S: Final = 0.002
_GIVE_WAY_S: Final = 0.0001  # a thread wakes up in half of it
_LARGE_CHANGES: Final = 512
"""Changes of a commit, each of which may be on a page of its own. After such a commit the journal
is copied into the file at once, rather than during the next commit."""
_COPY_AFTER_S: Final = 0.1  # the callers that waited for the commit have continued by then
_IDLE_S: Final = 10.0
"""After so long without a write, and at most twice as long, a board empties its journal. A person
who types, or an agent that thinks, commits more often."""
_APART_OPS: Final = 4_096
"""Operations from which on a restore is decided and applied in a thread: so many take 10 to 25 ms,
which would block the event loop for all boards."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads for blocking calls. Reads of the old log have their own, so that no commit waits
    for them."""

    writers: Executor
    readers: Executor


class EmbeddedBoard:
    """An open board. `loaded` is the content of `file`."""

    def __init__(
        self,
        name: str,
        *,
        file: BoardFile,
        loaded: Loaded,
        threads: Threads,
        now_ms: Callable[[], Milliseconds],
        distrusted: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._limits = file.limits.commits
        self._distrusted = distrusted
        self.failure: WriteError | None = None
        self._file = file
        self._state = loaded.state
        date_leases(loaded.state, now_ms())
        self._epochs = loaded.epochs
        # After the last group that was handed over; only the writer uses it.
        self._weight = loaded.weight
        self._writers = threads.writers
        self._readers = threads.readers
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._gathering = WriteGroup()
        self._writing: WriteGroup | None = None
        self._starting = False
        self._copying: asyncio.TimerHandle | None = None
        self._is_copy_due = False
        self._idle_s = _IDLE_S
        self._idle: asyncio.TimerHandle | None = None
        self._is_idle = False  # whether nothing was written since the timer was set
        self._is_shrink_due = False
        self._gives_way = False  # one timer for all groups: most are written before it rings
        self._queued = 0
        self._held_until_s = 0.0  # by the loop's clock; 0 = not held
        self._lifted = asyncio.Event()
        self._apart: asyncio.Event | None = None
        """Set when the thread that owns the state is done."""
        self._durable = self._head()
        # One future for each waiter, in order; a common one would need a shield.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._tail = LogTail(file.limits.watch)
        self._watch_idle()  # a process that was killed may have left a large journal

    @property
    def read_only(self) -> str:
        """Why only renewals are committed; "" for a board that accepts commits."""
        return self._file.read_only

    def give_up(self, reason: str) -> None:
        """Make every later call fail, so that the board is loaded again. Must not be called during
        a write."""
        self._fail(WriteError(reason, certain=True))

    # --- writing ----------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`. Cancellation: commits that were decided are written nevertheless."""
        self._check_alive()
        if self.read_only and not all(map(_only_renews, batch)):
            raise Unavailable(what=f"board {self.name}", reason=self.read_only)
        if self._queued + len(batch) > self._limits.commits_queued_max:
            raise Unavailable(what=f"board {self.name}", reason="too many commits are waiting")
        self._queued += len(batch)
        try:
            begins = any(prepared.commit.begins for prepared in batch)
            is_large = begins and sum(len(prepared.commit.ops) for prepared in batch) >= _APART_OPS
            while self._must_wait(begins=begins, is_large=is_large):
                if self._apart is not None:
                    await self._whole()
                elif self._held_until_s and not begins:
                    await self._let_go_on()
                else:
                    await self._progressed()
            if is_large:
                return await self._decide_apart(batch)
            answer: asyncio.Future[list[Outcome]] = self._loop.create_future()
            self._decide(batch, answer)
            return await answer
        finally:
            self._queued -= len(batch)

    def begin(self, batch: Sequence[Prepared], answer: BatchAnswer) -> bool:
        """As `Begins.begin`."""
        if (
            self.failure is not None
            or self.read_only
            or self._must_wait(begins=False, is_large=False)
            or any(prepared.commit.begins is not None for prepared in batch)
        ):
            return False
        self._decide(batch, answer)
        return True

    def _must_wait(self, *, begins: bool, is_large: bool) -> bool:
        """Whether a batch cannot be decided yet. A board is held only for a restore."""
        if self._apart is not None:
            return True
        if is_large and (self._gathering.calls or self._writing is not None):
            return True
        if self._held_until_s:
            return not begins
        return self._gathering.is_full(self._limits.batch_bytes_max)

    def _decide(self, batch: Sequence[Prepared], answer: BatchAnswer) -> None:
        """Decide and apply `batch` in memory; the answer comes when the file holds it."""
        group, state = self._gathering, self._state
        epoch = state.epoch
        try:
            outcomes = group.apply(state, batch, self._now_ms())
        except BaseException:
            self._fail(_undecided())
            raise
        if state.epoch is not epoch:
            self._lift()
        group.calls.append((answer, batch, outcomes))
        self._start_soon()

    def _decide_apart(self, batch: Sequence[Prepared]) -> Awaitable[list[Outcome]]:
        """As `_decide`, in a thread. The batch is a group by itself, which counts as being
        written."""
        answer = self._loop.create_future()
        group = self._writing = WriteGroup()
        self._apart = asyncio.Event()
        work = self._loop.run_in_executor(self._readers, self._work_apart, group, batch)
        work.add_done_callback(lambda done: self._applied(group, (answer, batch), done))
        return answer

    def _work_apart(
        self, group: WriteGroup, batch: Sequence[Prepared]
    ) -> tuple[list[Outcome], Taken]:
        outcomes = group.apply(self._state, batch, self._now_ms())
        return outcomes, group.touched.taken(self._state)

    def _applied(
        self,
        group: WriteGroup,
        call: "tuple[asyncio.Future[list[Outcome]], Sequence[Prepared]]",
        work: "asyncio.Future[tuple[list[Outcome], Taken]]",
    ) -> None:
        """Called when the thread is done: the event loop owns the state again."""
        assert self._apart is not None
        self._apart.set()
        self._apart = None
        answer, batch = call
        error = work.exception()
        if error is not None:
            if not answer.done():
                answer.set_exception(error)
            return self._written(group, _undecided())
        outcomes, taken = work.result()
        group.calls.append((answer, batch, outcomes))
        self._note_head(group)
        if group.changes_nothing:
            return self._written(group, None)
        self._lift()
        return self._hand_over(group, taken)

    async def _whole(self) -> None:
        """Wait while a thread owns the state. Errors: Unavailable."""
        while self._apart is not None:
            await self._apart.wait()
        self._check_alive()

    async def hold(self, hold_ms: Milliseconds) -> None:
        """As `Store.hold`; the clock is the monotonic one of the process.

        Returns once the file holds all earlier commits: then the next commit follows the head, and
        a restore that was computed for it need not be retried.
        """
        await self._whole()
        self._lift()
        if hold_ms > 0:
            self._held_until_s = self._loop.time() + hold_ms / 1000
            self._lifted = asyncio.Event()
            await self._settled(self._state.revision)

    def _lift(self) -> None:
        self._held_until_s = 0.0
        self._lifted.set()

    async def _let_go_on(self) -> None:
        """Wait until the board is no longer held. Errors: Unavailable."""
        left_s = self._held_until_s - self._loop.time()
        try:
            async with asyncio.timeout(left_s):
                await self._lifted.wait()
        except TimeoutError:
            if self._held_until_s <= self._loop.time():  # it has not been held again
                self._lift()
        self._check_alive()

    async def compact(self, oldest: Revision) -> Head:
        """As `Store.compact`."""
        await self._whole()
        state = self._state
        oldest = min(oldest, state.revision + 1)
        if oldest > state.oldest:
            doomed = {k: t for k, t in state.tombstones.items() if t.revision < oldest}
            self._gathering.touched.forget(doomed)
            state.compact(oldest)
        remains = True
        while remains:
            group = self._gathering
            group.touched.log_below = state.oldest
            answer: asyncio.Future[list[Outcome]] = self._loop.create_future()
            group.calls.append((answer, (), []))
            self._start_soon()
            await answer
            remains = group.log_remains
        self._tail.forget(oldest)
        return self.head

    async def scrub(self) -> bool:
        """As `BoardFile.scrub`, after everything that was decided is in the file.

        Errors: Unavailable.
        """
        await self._whole()
        await self._settled(self._state.revision)
        while True:
            self._check_alive()
            if self._writing is None and not self._starting:
                break
            await self._next_wake()
        self._writing = group = WriteGroup(head=self._durable)
        found = self._loop.run_in_executor(self._writers, self._file.scrub)
        found.add_done_callback(lambda done: self._written(group, _failure_of(done)))
        try:
            return await asyncio.shield(found)
        except WriteError as failure:
            raise Unavailable(f"board {self.name}", failure.reason) from failure

    def _start_soon(self) -> None:
        """Start writing after the callbacks that are ready, so that callers that woke together
        share a group."""
        if not self._starting and self._writing is None:
            self._starting = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        """Hand the gathered group to a writer thread, if there is anything to write."""
        self._starting = False
        if self.failure is not None:
            return self._wake()  # `aclose` may wait for this
        if self._writing is not None:
            return None  # a large restore came first; the group starts after it
        if not self._gathering.calls:
            return self._copy_journal()
        group, self._gathering = self._gathering, WriteGroup()
        self._note_head(group)
        if group.changes_nothing:
            return self._finish(group)
        self._writing = group
        return self._hand_over(group, group.touched.taken(self._state))

    def _hand_over(self, group: WriteGroup, work: Taken | Callable[[], None]) -> None:
        self._writers.submit(self._write, group, work)
        if not self._gives_way:
            self._give_way_later(group)

    def _give_way_later(self, group: WriteGroup) -> None:
        self._gives_way = True
        self._loop.call_later(_GIVE_WAY_EVERY_S, self._give_way, group)

    def _copy_soon(self) -> None:
        """Copy the journal when no commit waits, or soon after."""
        self._copying = None
        if self.failure is None:
            self._is_copy_due = True
            self._start_soon()

    def _copy_journal(self) -> None:
        """Copy the journal in place of a group: commits that arrive in the meantime wait."""
        if self._is_copy_due or self._is_shrink_due:
            work = self._file.shrink_journal if self._is_shrink_due else self._file.checkpoint
            self._is_copy_due = self._is_shrink_due = False
            self._writing = WriteGroup(head=self._durable)
            self._hand_over(self._writing, work)

    def _watch_idle(self) -> None:
        """Note a write, and empty the journal when no other one followed it for `_idle_s`."""
        self._is_shrink_due = False
        self._is_idle = self._idle is None
        if self._idle is None and not self.read_only:
            self._idle = self._loop.call_later(self._idle_s, self._look_if_idle)

    def _look_if_idle(self) -> None:
        self._idle = None
        if self.failure is not None or self._file.is_closed:
            return None
        if not self._is_idle:
            return self._watch_idle()
        self._is_shrink_due = True
        return self._start_soon()

    def _give_way(self, group: WriteGroup) -> None:
        """Yield the interpreter lock to the writer thread for a moment.

        An event loop that is busy with short system calls takes the interpreter lock back before a
        waiting thread has woken up, for hundreds of milliseconds on end.
        """
        self._gives_way = False
        if self._writing is group:
            time.sleep(_GIVE_WAY_S)
        if self._writing is not None:
            self._give_way_later(self._writing)

    def _write(self, group: WriteGroup, work: Taken | Callable[[], None]) -> None:
        """Runs in a writer thread: writes a group, or calls what takes its place. Notifies the
        event loop in any case."""
        failure: WriteError | None = WriteError("the writer ended", certain=False)
        try:
            if isinstance(work, Taken):
                writes = work.writes(self._weight)
                self._weight = writes.weight
                group.log_remains = self._file.write(writes)
            else:
                work()
            failure = None
        except WriteError as error:
            failure = error
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
                self._loop.call_soon_threadsafe(self._written, group, failure)

    def _written(self, group: WriteGroup, failure: WriteError | None) -> None:
        self._writing = None
        if failure is not None:
            self._fail(failure)  # first: a caller that gets the error must not find the board open
            group.tell_failure(self.name, failure)
            return
        if not group.changes_nothing:
            self._watch_idle()
        self._finish(group)
        if self._gathering.calls or self._is_copy_due or self._is_shrink_due:
            self._start_soon()

    def _finish(self, group: WriteGroup) -> None:
        """Publish `group`, which the file holds now, to readers and callers."""
        assert group.head is not None
        self._durable = group.head
        self._tail.extend(group.entries, group.sizes)
        is_large = any(len(entry.changes) >= _LARGE_CHANGES for entry in group.entries)
        if is_large and self._copying is None:
            self._copying = self._loop.call_later(_COPY_AFTER_S, self._copy_soon)
        self._is_copy_due |= self._file.is_copy_due
        group.tell()
        self._loop.call_soon(self._wake)  # readers; the callers of `commit` come first

    def _fail(self, failure: WriteError) -> None:
        """Make every later call fail. The gathering group was never sent to the file."""
        self.failure = failure
        if failure.is_last:
            self._distrusted()
        self._lift()
        self._gathering.tell_failure(self.name, WriteError(failure.reason, certain=True))
        self._wake()

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise Unavailable(f"board {self.name}", self.failure.reason)

    def _note_head(self, group: WriteGroup) -> None:
        """The head after `group`, the last one that was decided."""
        self._epochs += group.epochs
        group.head = self._head()

    def _head(self) -> Head:
        """The head of the state in memory, which may not be in the file yet."""
        state = self._state
        kept = log_entries(self._epochs, state.oldest, state.revision)
        return Head(state.revision, state.epoch, state.oldest, state.time_ms, kept)

    # --- waiting ----------------------------------------------------------------------------------

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            _set(waiter)

    async def _next_wake(self, within_s: float | None = None) -> None:
        """Wait until a group was written or failed, or until the timeout."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting[waiter] = None
        timer = None if within_s is None else self._loop.call_later(within_s, _set, waiter)
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)
            if timer is not None:
                timer.cancel()

    async def _progressed(self, within_s: float | None = None) -> None:
        """Wait until a group was written, or until the timeout. Errors: Unavailable when writing
        failed."""
        self._check_alive()
        await self._next_wake(within_s)
        self._check_alive()

    async def _settled(self, revision: Revision) -> None:
        """Wait until the file holds everything up to `revision`."""
        while self._durable.revision < revision:
            await self._progressed()

    async def aclose(self) -> None:
        """Wait until every decided commit was written or failed, then close the file.

        Errors: Unavailable when the file could not be marked as clean.
        """
        while self._starting or self._writing is not None:
            await self._next_wake()
        let_go = self._file.close if self.failure is None else self._file.abandon
        self.failure = self.failure or WriteError("it was closed", certain=True)
        if self._idle is not None:
            self._idle.cancel()
        self._lift()
        self._wake()
        await self._loop.run_in_executor(self._writers, let_go)

    # --- reading ----------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """The head of the board in its file, and the time."""
        at = self._durable  # replace() takes three times as long
        return Head(at.revision, at.epoch, at.oldest, self._now_ms(), at.log_entries)

    async def read(self, keys: Sequence[Key]) -> Reading:
        """As `Store.read`."""
        await self._whole()
        entries = self._state.entries
        found = tuple(entries[key] for key in keys if key in entries)
        return await self._reading(found, None)

    async def page(
        self,
        within: Prefix | Ranges,
        *,
        after: Key | None,
        limit: int,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Reading:
        """As `Store.list`."""
        await self._whole()
        entries = self._state.entries
        ranges = ranges_of(within, after, reverse=reverse)
        between = partial(self._state.between, reverse=reverse)
        keys = chain.from_iterable(starmap(between, reversed(ranges) if reverse else ranges))
        found: list[Entry] = []
        size = 0
        next_key = None
        for key in keys:
            if len(found) >= limit or size >= limits.PAGE_BYTES_MAX:
                next_key = found[-1].key
                break
            entry = without_value(entries[key]) if keys_only else entries[key]
            found.append(entry)
            size += len(key) + len(entry.value)
        return await self._reading(tuple(found), next_key)

    async def due(self, *, limit: int) -> Reading:
        """As `Store.due`."""
        await self._whole()
        now_ms = self._now_ms()
        found: list[Entry] = []
        for until_ms, key in self._state.expiring:
            if until_ms > now_ms or len(found) >= limit:
                break
            found.append(self._state.entries[key])
        return await self._reading(tuple(found), None)

    async def leases(self, *, due: bool) -> Reading:
        """As `Store.leases`."""
        await self._whole()
        now_ms, state = self._now_ms(), self._state
        found = sorted(state.leases.items())
        leases = tuple(lease for _, lease in found if not due or lease.until_ms <= now_ms)
        reading = Reading(state.revision, state.epoch.id, leases=leases)
        await self._settled(reading.revision)
        return reading

    async def _reading(self, entries: tuple[Entry, ...], next_key: Key | None) -> Reading:
        """A reading of the present state, returned once it is durable."""
        reading = Reading(self._state.revision, self._state.epoch.id, entries, next_key)
        await self._settled(reading.revision)
        return reading

    async def log(self, after: Revision, *, limit: int, wait_ms: Milliseconds) -> LogPage:
        """As `Store.log`."""
        until_s = self._loop.time() + wait_ms / 1000
        while after == self._durable.revision and (left_s := until_s - self._loop.time()) > 0:
            await self._progressed(left_s)
        self._check_after(after)
        head = self.head
        entries = self._tail.page(after, head.revision, limit)
        if entries is None:
            read = self._file.read_log
            entries = await self._loop.run_in_executor(
                self._readers, metered(lambda: read(after, head.revision, limit=limit))
            )
            self._check_after(after)  # it may have been compacted in the meantime
        return LogPage(head, tuple(entries))

    def _check_after(self, after: Revision) -> None:
        if after > self._durable.revision:
            raise FutureRevision(after, self._durable.revision)
        if after + 1 < self._state.oldest:
            raise Compacted(after, self._state.oldest)


def _only_renews(prepared: Prepared) -> bool:
    return all(isinstance(op, Renew) for op in prepared.commit.ops)


def _failure_of(work: "asyncio.Future[bool]") -> WriteError | None:
    error = work.exception()
    if error is None or isinstance(error, WriteError):
        return error
    return WriteError(str(error), certain=False)


def _undecided() -> WriteError:
    return WriteError("a commit could not be decided", certain=True)


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
