"""An open board of the embedded engine: its state in memory, and its commits on their way to the
file.

Invariants
- `_state` is ahead of the file by the group that is being written and the one that gathers. No
  answer depends on it before the file holds it.
- a group is durable once its rows are in the log of the file. The other tables follow: in parts, in
  the transactions of groups when they are far behind, or in place of a group
  (engines/sqlite/follower.py); always before the journal is copied or the file is closed.
- commits are decided in the order in which they came, on the event loop, without a pause between
  `decide` and `evolve`; a large restore is decided in a thread, while nothing else touches `_state`
  (`_apart`).
- at most one group is being written; it is written even if its callers stop waiting for it. Copying
  the journal into the file takes the place of a group.
- deadlines of leases are in `_state` alone: each lease gets its full time to live when the board is
  loaded, and a renewal waits only for the commits before it to be written.
- `_durable` is the head as of the last written group; `tail` holds the newest log entries up to
  it, without a gap.
- an idle board holds no large journal: it is emptied some seconds after the last write.
- a large board has only some of its entries in memory (engines/sqlite/cache.py). What a call looks
  up is loaded first, on a reader's thread; nothing else waits for it. Entries are evicted in one
  piece with nothing between, and only such as the file has.
- `is_unused` is false while a call of the board is suspended, so that closing an unused board fails
  nobody; nor is a board unused that has leases, whose deadlines would begin again.
- after a failed write (`failure` is set) every call of the board fails: it must be loaded again
  from its file, but not in this process after a failed sync (`failure.is_last`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from blackboard.core.commit import (
    FORWARD,
    Head,
    ListOptions,
    LogPage,
    Reading,
)
from blackboard.core.directories import Children
from blackboard.core.lease import dated
from blackboard.core.model import Outcome
from blackboard.core.path import Ranges, range_of, ranges_of
from blackboard.engines.base import BatchAnswer
from blackboard.engines.payer import metered
from blackboard.engines.sqlite.cache import (
    CHILDREN_AHEAD,
    Found,
    Loader,
    NotLoaded,
    children_of,
    due_of,
    entries_at,
    loaded_of,
    looked_up,
    page_of,
)
from blackboard.engines.sqlite.file import BoardFile, Loaded, WriteError, log_entries
from blackboard.engines.sqlite.follower import LARGE_CHANGES
from blackboard.engines.sqlite.group import Parts, WriteGroup, only_renews
from blackboard.engines.sqlite.rows import ENTRY, LogRows, Taken
from blackboard.engines.sqlite.tablets import Span
from blackboard.engines.tail import LogTail
from blackboard.errors import Compacted, Corrupt, FutureRevision, Unavailable
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import Prepared

T = TypeVar("T")


_GIVE_WAY_EVERY_S: Final = 0.002
_GIVE_WAY_S: Final = 0.0001  # a thread wakes up in half of it
_FOLLOW_AFTER_S: Final = 0.1
"""After a large commit, the tables follow so soon: the callers that waited have continued then."""
_IDLE_S: Final = 10.0
"""After so long without a write, and at most twice as long, a board empties its journal. A person
who types, or an agent that thinks, commits more often."""
_UNDECIDED: Final = "a commit could not be decided"
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
        self._state = state = loaded.state
        began_ms = now_ms()  # from here on, each lease has its full time to live
        state.leases = {key: dated(lease, began_ms) for key, lease in state.leases.items()}
        self._epochs = loaded.epochs
        self._entries = loaded_of(loaded.state)
        self._backlog = loaded.backlog
        self._writers = threads.writers
        self._readers = threads.readers
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._gathering = WriteGroup()
        self._writing: WriteGroup | None = None
        self._under_way: Taken | None = None  # the rows that are being written
        self.loader = Loader(loaded.state, self._read_entries, self._kept, self._whole)
        self._are_indexes_checked = not self._entries.unloaded
        self._starting = False
        self._following: asyncio.TimerHandle | None = None
        self._is_copy_due = False
        self._idle_s = _IDLE_S
        self._idle: asyncio.TimerHandle | None = None
        self._is_idle = False  # whether nothing was written since the timer was set
        self._is_shrink_due = False
        self._gives_way = False  # one timer for all groups: most are written before it rings
        self._queued = 0
        self._suspended = 0
        """Calls of this board that wait for a thread or for a write, but for commits."""
        self.last_use_s = time.monotonic()
        """When a call of this board began last, by the clock of `time.monotonic`."""
        self._held_until_s = 0.0  # by the loop's clock; 0 = not held
        self._lifted = asyncio.Event()
        self._apart: asyncio.Event | None = None
        """Set when the thread that owns the state is done."""
        self._durable = self._head()
        # One future for each waiter, in order; a common one would need a shield.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.tail = LogTail(file.limits.watch)
        self._watch_idle()  # a process that was killed may have left a large journal

    @property
    def read_only(self) -> str:
        """Why only renewals are committed; "" for a board that accepts commits."""
        return self._file.read_only

    def give_up(self, reason: str) -> None:
        """Make every later call fail, so that the board is loaded again. What is being written is
        written nevertheless."""
        self._fail(WriteError(reason, certain=True))

    # --- writing ----------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`. Cancellation: commits that were decided are written nevertheless."""
        self._check_alive()
        if self.read_only and not all(map(only_renews, batch)):
            self._check_writable()
        if self._queued + len(batch) > self._limits.commits_queued_max:
            raise Unavailable(what=f"board {self.name}", reason="too many commits are waiting")
        self._queued += len(batch)
        try:
            begins = any(prepared.commit.begins for prepared in batch)
            is_large = begins and sum(len(prepared.commit.ops) for prepared in batch) >= _APART_OPS
            parts = Parts(batch)
            try:
                if await self._decide_parts(parts, begins=begins, is_large=is_large):
                    return await self._decide_apart(batch)
            except (Corrupt, Unavailable) as error:
                parts.failed(error)
            return await parts.outcomes()
        finally:
            self._queued -= len(batch)

    async def _decide_parts(self, parts: Parts, *, begins: bool, is_large: bool) -> bool:
        """Decide what is left of a batch; returns whether it has to be decided in a thread."""
        needed: list[Span] = []
        # Asked again after each wait: another reason may have come up meanwhile.
        while parts.left:
            if self._must_wait(begins=begins, is_large=is_large):
                await self._may_decide(begins=begins)
            elif self._entries.missing(wanted := [*needed, *self._looked_up(parts.left)]):
                await self._load(wanted)
            elif is_large:
                return True
            else:
                answer: asyncio.Future[list[Outcome]] = self._loop.create_future()
                count, missing = self._decide(parts.left, answer)
                needed += missing
                parts.decided(count, answer)
                self._start_soon()
        return False

    async def _may_decide(self, *, begins: bool) -> None:
        if self._apart is not None:
            await self._whole()
        elif self._held_until_s and not begins:
            await self._let_go_on()
        else:
            await self._progressed()

    def _looked_up(self, batch: Sequence[Prepared]) -> list[Span]:
        """What deciding `batch` looks up, as far as that is known before."""
        if not self._entries.unloaded:
            return []
        spans = (looked_up(self._state, prepared.commit) for prepared in batch)
        return list(chain.from_iterable(spans))

    def begin(self, batch: Sequence[Prepared], answer: BatchAnswer) -> bool:
        """As `Begins.begin`."""
        begins = any(prepared.commit.begins is not None for prepared in batch)
        if self.failure is not None or self.read_only or begins:
            return False
        if self._must_wait(begins=False, is_large=False):
            return False
        if not all(self._entries.has_all_of(prepared.commit) for prepared in batch):
            return False
        _, missing = self._decide(batch, answer)
        assert not missing, missing
        waits = self._starting or self._writing is not None or self._gathering.changes_nothing
        (self._start_soon if waits else self._start)()  # no other batch comes in this turn
        return True

    def _must_wait(self, *, begins: bool, is_large: bool) -> bool:
        """Whether a batch cannot be decided yet. A board is held only for a restore."""
        if self._apart is not None:
            return True
        # The thread that decides it needs the state for itself, and a group of its own.
        if is_large and (self._gathering.calls or self._writing is not None):
            return True
        if self._held_until_s:
            return not begins
        return self._gathering.is_full(self._limits.batch_bytes_max)

    def _decide(self, batch: Sequence[Prepared], answer: BatchAnswer) -> tuple[int, list[Span]]:
        """Decide and apply `batch` in memory; the answer comes when the file holds it. Returns how
        many of its commits that was, and what has to be loaded for the others."""
        group, state = self._gathering, self._state
        epoch = state.epoch
        try:
            outcomes, missing = group.apply(state, self._backlog, batch, self._now_ms())
        except BaseException:
            # The state may be changed in part, so the board is loaded again from its file.
            self._fail(WriteError(_UNDECIDED, certain=True))
            raise
        if state.epoch is not epoch:
            self._lift()
        if outcomes:
            group.calls.append((answer, batch[: len(outcomes)], outcomes))
        return len(outcomes), [] if missing is None else [missing]

    def _decide_apart(self, batch: Sequence[Prepared]) -> Awaitable[list[Outcome]]:
        """As `_decide`, in a thread. The batch is a group by itself, which counts as being
        written."""
        answer = self._loop.create_future()
        group = self._writing = WriteGroup()
        self._apart = asyncio.Event()
        work = self._loop.run_in_executor(self._readers, self._work_apart, group, batch)
        work.add_done_callback(lambda done: self._applied(group, (answer, batch), done))
        return answer

    def _work_apart(self, group: WriteGroup, batch: Sequence[Prepared]) -> list[Outcome]:
        outcomes, missing = group.apply(self._state, self._backlog, batch, self._now_ms())
        assert missing is None, missing  # it was loaded, and nothing is evicted meanwhile
        return outcomes

    def _applied(
        self,
        group: WriteGroup,
        call: "tuple[asyncio.Future[list[Outcome]], Sequence[Prepared]]",
        work: "asyncio.Future[list[Outcome]]",
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
            return self._written(group, WriteError(_UNDECIDED, certain=True))
        group.calls.append((answer, batch, work.result()))
        self._note_head(group)
        if group.changes_nothing:
            return self._written(group, None)
        self._lift()
        return self._hand_over(group, self._taken(group))

    async def _whole(self) -> None:
        """Wait while a thread owns the state. Errors: Unavailable."""
        while self._apart is not None:
            await self._suspend(self._apart.wait())
        self._check_alive()

    async def _suspend(self, waiting: Awaitable[T]) -> T:
        """Wait, and do not count as unused meanwhile."""
        self._suspended += 1
        try:
            return await waiting
        finally:
            self._suspended -= 1

    @property
    def is_unused(self) -> bool:
        """Whether the board may be closed: no call waits, nothing is being written, nobody has a
        lease."""
        is_held = self._held_until_s > self._loop.time()
        calls = self._queued or self._suspended or self._gathering.calls or self._starting
        return not (calls or self._writing or self._apart or is_held or self._state.leases)

    @property
    def is_suspect(self) -> bool:
        """Whether a sync of its file failed."""
        return self._file.suspect

    async def hold(self, hold_ms: Milliseconds) -> None:
        """As `Store.hold`; the clock is the monotonic one of the process.

        Returns once the file holds all earlier commits: then the next commit follows the head, and
        a restore that was computed for it need not be retried.
        """
        await self._whole()
        # Commits that wait for an earlier hold look again, and then wait for this one.
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
        """As `Store.compact`. Errors: Unavailable while it is open read-only."""
        if not self._are_indexes_checked:
            check = self._loop.run_in_executor(self._readers, self._file.check_indexes)
            await self._suspend(check)
            self._are_indexes_checked = True
        await self._whole()
        self._check_writable()
        state = self._state
        oldest = min(oldest, state.revision + 1)
        if oldest > state.oldest:
            doomed = {k: t for k, t in state.tombstones.items() if t.revision < oldest}
            self._backlog.forget(doomed)
            state.compact(oldest)
        # A slice of the log per group: commits share its transaction, and do not wait for all of
        # it.
        remains = True
        while remains:
            group = self._gathering
            group.log_below = state.oldest
            answer: asyncio.Future[list[Outcome]] = self._loop.create_future()
            group.calls.append((answer, (), []))
            self._start_soon()
            await self._suspend(answer)
            remains = group.written is not None and group.written.log_remains
        self.tail.forget(oldest)
        return self.head

    async def scrub(self) -> bool:
        """As `BoardFile.scrub`, after everything that was decided is in the file.

        Errors: Unavailable.
        """
        await self._whole()
        self._check_writable()
        await self._settled(self._state.revision)
        while True:
            self._check_alive()
            if self._writing is None and not self._starting:
                break
            await self._next_wake()
        self._writing = group = WriteGroup(head=self._durable)
        # The journal is copied only once the head records where the log ends (BoardFile).
        scrub = partial(self._written_first, self._rest(), self._file.scrub)
        found = self._loop.run_in_executor(self._writers, scrub)
        found.add_done_callback(lambda done: self._written(group, _failure_of(done)))
        try:
            # Cancelled itself, it would end the group while its thread still writes.
            return await self._suspend(asyncio.shield(found))
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
            return self._follow()
        group, self._gathering = self._gathering, WriteGroup()
        # Noted now: the next decision moves the state on before this group is in the file.
        self._note_head(group)
        if group.changes_nothing:
            return self._finish(group)
        return self._hand_over(group, self._taken(group))

    def _taken(self, group: WriteGroup) -> Taken:
        """What the transaction of `group`, which ends at the present state, writes."""
        backlog, log_below = self._backlog, group.log_below
        if backlog.is_due or self._file.is_journal_long or log_below is not None:
            return backlog.take(self._state, group.log, log_below=log_below)
        return Taken(group.log.rows)

    def _rest(self) -> Taken | None:
        """All that the tables are behind, when no group is being written or gathers."""
        if not self._backlog.rows:
            return None
        return self._backlog.take(self._state, LogRows(), everything=True)

    def _hand_over(
        self, group: WriteGroup, taken: Taken | None, then: Callable[[], None] | None = None
    ) -> None:
        self._writing, self._under_way = group, taken
        self._writers.submit(self._write, group, taken, then)
        if not self._gives_way:
            self._give_way_later(group)

    def _give_way_later(self, group: WriteGroup) -> None:
        self._gives_way = True
        self._loop.call_later(_GIVE_WAY_EVERY_S, self._give_way, group)

    def _follow_soon(self) -> None:
        """After a large commit: let the tables follow when no commit waits, or soon after."""
        self._following = None
        if self.failure is None:
            self._backlog.hurry()
            self._start_soon()

    def _follow(self) -> None:
        """Let the tables follow, or copy the journal, in place of a group: commits that arrive in
        the meantime wait."""
        backlog, then = self._backlog, None
        is_due = backlog.is_due or self._is_copy_due or self._is_shrink_due
        if self.read_only or self._file.is_closed or not is_due:
            return
        group = WriteGroup(head=self._durable)
        group.follows = backlog.take(self._state, LogRows()) if backlog.rows else None
        if self._is_copy_due:
            backlog.scattered = 0
            then = self._file.checkpoint
        elif self._is_shrink_due and not backlog.rows:
            self._is_shrink_due = False
            then = self._file.shrink_journal
        self._is_copy_due = False
        self._hand_over(group, group.follows, then)

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
        self._is_shrink_due = self._file.is_journal_large
        if not self._is_shrink_due:
            return None
        self._backlog.hurry()
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

    def _write(
        self, group: WriteGroup, taken: Taken | None, then: Callable[[], None] | None
    ) -> None:
        """Runs in a writer thread: writes a group, or what takes its place. Notifies the event loop
        in any case."""
        # Also for what is no `Exception`: callers must not wait for ever.
        failure: WriteError | None = WriteError("the writer ended", certain=False)
        try:
            if taken is not None:
                group.written = self._file.write(taken)
            if then is not None:
                then()
            failure = None
        except WriteError as error:
            failure = error
        except Exception as error:
            logging.getLogger(__name__).exception("board %s: a write failed", self.name)
            failure = WriteError(f"the writer ended: {error!r}", certain=False)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
                self._loop.call_soon_threadsafe(self._written, group, failure)

    def _written_first(self, taken: Taken | None, then: Callable[[], T]) -> T:
        """In a writer thread: call `then` after `taken` was written."""
        if taken is not None:
            self._file.write(taken)
        return then()

    def _written(self, group: WriteGroup, failure: WriteError | None) -> None:
        self._writing, self._under_way = None, None
        if group.written is not None:
            self._entries.follow(group.written.tablets)
        if failure is not None and group.follows is not None and failure.no_room:
            # No caller waits for these rows, and the log has their content: they follow later.
            self._backlog.put_back(group.follows)
            failure = None
        if failure is not None:
            self._fail(failure)  # first: a caller that gets the error must not find the board open
            return group.tell_failure(self.name, failure)
        if not group.changes_nothing:
            self._watch_idle()
        return self._finish(group)

    def _finish(self, group: WriteGroup) -> None:
        """Publish `group`, which the file holds now, to readers and callers."""
        assert group.head is not None
        # All of this before `tell`: a caller that has its answer can read its commit.
        self._durable = group.head
        self.tail.extend(group.entries, group.sizes, group.places)
        is_large = any(len(entry.changes) >= LARGE_CHANGES for entry in group.entries)
        if is_large and self._following is None:
            self._following = self._loop.call_later(_FOLLOW_AFTER_S, self._follow_soon)
        self._is_copy_due |= self._backlog.is_copy_due
        if self._file.is_journal_long:
            self._backlog.hurry()
        group.tell()
        self._loop.call_soon(self._wake)  # readers; the callers of `commit` come first
        is_behind = self._is_copy_due or self._is_shrink_due or self._backlog.is_due
        if self._gathering.calls or is_behind:
            self._start_soon()

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
            await self._suspend(waiter)
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

    def _check_writable(self) -> None:
        """Errors: Unavailable while the file is open read-only. A write would fail the board."""
        if self.read_only:
            raise Unavailable(what=f"board {self.name}", reason=self.read_only)

    async def _settled(self, revision: Revision) -> None:
        """Wait until the file holds everything up to `revision`."""
        while self._durable.revision < revision:
            await self._progressed()

    async def aclose(self) -> None:
        """Wait until every decided commit was written or failed, then close the file.

        Errors: Corrupt, Unavailable when the file could not be marked as clean.
        """
        while self._starting or self._writing is not None:
            await self._next_wake()
        # After a failure the file and its journal stay as they are.
        let_go = self._file.abandon
        if self.failure is None:
            let_go = partial(self._close, None if self.read_only else self._rest())
        # Before the wait for the thread: nothing may be decided that would not be written.
        self.failure = self.failure or WriteError("it was closed", certain=True)
        if self._idle is not None:
            self._idle.cancel()
        self._lift()
        self._wake()
        await self._loop.run_in_executor(self._writers, let_go)

    def _close(self, rest: Taken | None) -> None:
        """In a writer thread."""
        try:
            self._write_rest(rest)
        except WriteError as failure:
            self._file.abandon()
            raise Unavailable(f"board {self.name}", failure.reason) from failure
        self._file.close()

    def _write_rest(self, rest: Taken | None) -> None:
        """Let the tables follow to the end; if there is no room for that, record only where the log
        ends."""
        if rest is None:
            return
        try:
            self._file.write(rest)
        except WriteError as failure:
            if not failure.no_room:
                raise
            assert rest.place is not None
            self._file.write(Taken([], place=(*rest.undo[0], rest.place[-1])))

    # --- reading ----------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """The head of the board in its file, and the time."""
        at = self._durable  # replace() takes three times as long
        return Head(at.revision, at.epoch, at.oldest, self._now_ms(), at.log_entries)

    async def read(self, keys: Sequence[Key]) -> Reading:
        """As `Store.read`."""
        spans = [range_of(key) for key in keys]
        look = partial(entries_at, self._state, keys)
        return await self._look(look, lambda _: self._entries.missing(spans))

    async def page(
        self,
        within: Prefix | Ranges,
        *,
        after: Key | None,
        limit: int,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """As `Store.list`."""
        ranges = ranges_of(within, after, reverse=options.reverse)
        look = partial(page_of, self._state, ranges, limit, options)
        return await self._look(look, partial(self._entries.ahead_of, ranges, limit, options))

    async def children(self, page: Children, ranges: Ranges, options: ListOptions) -> Reading:
        """Fill an empty page of `Store.children`."""
        look = partial(children_of, self._state, page, ranges, options)
        ahead = partial(self._entries.ahead_of, ranges, CHILDREN_AHEAD, options)
        return await self._look(look, ahead)

    async def due(self, *, limit: int, by_ms: Milliseconds | None) -> Reading:
        """As `Store.due`."""
        until_ms = self._now_ms() if by_ms is None else by_ms
        look = partial(due_of, self._state, until_ms, limit)
        return await self._look(look, lambda _: self._entries.due(until_ms))

    async def leases(self, *, due: bool) -> Reading:
        """As `Store.leases`."""
        await self._whole()
        now_ms, state = self._now_ms(), self._state
        found = sorted(state.leases.items())
        leases = tuple(lease for _, lease in found if not due or lease.until_ms <= now_ms)
        reading = Reading(state.revision, state.epoch.id, leases=leases)
        await self._settled(reading.revision)
        return reading

    async def _look(
        self, look: Callable[[], Reading], ahead: Callable[[Span], list[Span]]
    ) -> Reading:
        """What `look` reads, once the file holds that. Where it gets to a part that is not loaded,
        `ahead` says what to load."""
        needed: list[Span] = []
        while True:
            await self._whole()
            try:
                # Entries and revision belong together, so nothing is awaited in it.
                reading = look()
            except NotLoaded as missing:
                # With all before: others may be evicted for what it loads now.
                needed += [missing.span, *ahead(missing.span)]
                await self._load(needed)
                continue
            await self._settled(reading.revision)
            return reading

    async def _load(self, spans: Sequence[Span]) -> None:
        """As `Loader.load`, and the board counts as used. Errors: also those of `_check_alive`."""
        await self._suspend(self.loader.load(spans))
        self._check_alive()  # it may have been closed: nothing would be written any more

    async def _read_entries(self, spans: Sequence[Span]) -> Found:
        return await self.read_file(partial(BoardFile.read_entries, spans=spans))

    async def read_file(self, read: Callable[[BoardFile], T]) -> T:
        """What `read` gets from the file, on a reader's thread, beside commits."""
        work = metered(partial(read, self._file))
        return await self._suspend(self._loop.run_in_executor(self._readers, work))

    def _kept(self) -> Iterator[Key] | None:
        """The keys whose entries the file does not have yet; None if nothing may be evicted."""
        if self._apart is not None or self.failure is not None:
            return None
        items = () if self._under_way is None else self._under_way.items
        written = (key for table, found in items if table is ENTRY for key, _, _ in found)
        return chain(self._backlog.before[0], written)

    async def log(self, after: Revision, *, limit: int, wait_ms: Milliseconds) -> LogPage:
        """As `Store.log`."""
        until_s = self._loop.time() + wait_ms / 1000
        while after == self._durable.revision and (left_s := until_s - self._loop.time()) > 0:
            await self._progressed(left_s)
        self._check_after(after)
        head = self.head
        entries = self.tail.page(after, head.revision, limit)
        if entries is None:
            entries = await self.read_file(
                lambda file: file.read_log(after, head.revision, limit=limit)
            )
            self._check_after(after)  # it may have been compacted in the meantime
        return LogPage(head, tuple(entries))

    def _check_after(self, after: Revision) -> None:
        if after > self._durable.revision:
            raise FutureRevision(after, self._durable.revision)
        # The mark in memory: rows may go from the moment at which the compaction was decided.
        if after + 1 < self._state.oldest:
            raise Compacted(after, self._state.oldest)


def _failure_of(work: "asyncio.Future[bool]") -> WriteError | None:
    error = work.exception()
    if error is None or isinstance(error, WriteError):
        return error
    return WriteError(str(error), certain=False)


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
