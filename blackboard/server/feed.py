"""One log reader per board and process, many watchers.

The reader keeps the newest entries in a ring. Nothing is pushed to a watcher. It takes the entries
after its position at its own pace, from the ring while it keeps up (synced) and from the log when
it does not (unsynced). So a watcher that stopped reading costs only its position, there is no queue
that could overflow, and the log, which is bounded by compaction, is the only buffer.

Invariants
- The ring holds every entry after `_after` up to `_newest`, without a gap.
- `_newest` never decreases.
- A sleeping watcher's view shows nothing of the entries since it fell asleep: the index of views
  finds the affected ones, at a cost that does not depend on the number of other watchers.
- A watcher that sleeps is at the head, but for entries of which its view shows nothing. So a new
  delivery can be given to it at once, without waking it (`Watcher.deliver_to`).
- A Delivery is shared by all watchers that have the same view and position, and that may read the
  same of what its revisions are based on. It is never changed.
- Every watcher gets the error that ends the reader, so that none waits for ever.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, Self

from blackboard.archive.base import Archive
from blackboard.client.link import Delivery
from blackboard.core import history, watch
from blackboard.core.commit import Head, LogEntry
from blackboard.core.history import LARGE_CHANGES, LargeEntry
from blackboard.core.redaction import is_redaction
from blackboard.core.view import Grounds, PatternIndex, View
from blackboard.core.watch import Cursor, Position, WatchEvent
from blackboard.engines.base import Store
from blackboard.engines.payer import Payer, charged, paid_by
from blackboard.errors import (
    BlackboardError,
    Compacted,
    FutureRevision,
    Resync,
    RolledBack,
    Unavailable,
)
from blackboard.limits import (
    DEFAULT,
    LOG_ENTRIES_MAX,
    WatchLimits,
)
from blackboard.server.latency import Histogram
from blackboard.units import Key, Revision
from blackboard.wire.codec import SYSTEM_AGENT

log = logging.getLogger(__name__)

_TAIL_RETRY_S = 0.5


@dataclass(slots=True)
class _Made:
    """A delivery of a view.

    A revision also tells what it is based on. That may be keys outside the view: then it depends on
    the rights of each watcher which of them are shown.
    """

    view: View
    delivery: Delivery
    grounds: tuple[Grounds, ...] = ()
    """Everything that each revision is based on; nothing if there are no `outside` keys."""
    outside: tuple[Key, ...] = ()
    """The keys among them that the view does not show."""
    others: dict[tuple[Key, ...], Delivery] = field(default_factory=dict)
    """The same delivery with some of those keys. Watchers that may read the same ones share it."""

    @classmethod
    def of(cls, view: View, delivery: Delivery, grounds: Sequence[Grounds]) -> Self:
        """`grounds` has what each revision of `delivery` is based on."""
        keys = dict.fromkeys(key for each in grounds for key, _ in each)
        outside = tuple(key for key in keys if not view.shows(key))
        return cls(view, delivery, tuple(grounds), outside) if outside else cls(view, delivery)

    def as_read_by(self, readable: Callable[[Key], bool]) -> Delivery:
        """The delivery to a watcher that may read the keys for which `readable` is true."""
        if not self.outside:
            return self.delivery
        return charged(lambda: self._with(tuple(filter(readable, self.outside))))

    def _with(self, keys: tuple[Key, ...]) -> Delivery:
        if not keys:
            return self.delivery
        found = self.others.get(keys)
        if found is None:
            added, revisions = (
                frozenset(keys),
                zip(self.delivery.revisions, self.grounds, strict=True),
            )
            shown = tuple(
                self.view.with_grounds(each, grounds, added) for each, grounds in revisions
            )
            found = self.others[keys] = Delivery(shown, self.delivery.position)
        return found


@dataclass(slots=True)
class _Sleepers:
    """Watchers with the same view that are up to date."""

    # Futures in place of an Event, which takes twice as long to wait for.
    woken: "dict[asyncio.Future[LogEntry | None], Watcher]" = field(default_factory=dict)
    """They get the last entry before they were woken, if the view shows nothing of it."""
    due_s: float = math.inf
    """When the first of them is due."""

    def wake(self, passed: LogEntry | None) -> None:
        for woken in self.woken:
            if not woken.done():
                woken.set_result(passed)

    def wake_due(self, now_s: float, most: int, passed: LogEntry | None) -> int:
        """Wake at most `most` of those whose mark is due, the longest asleep first. Returns how
        many."""
        due = (woken for woken, watcher in self.woken.items() if watcher.due_s <= now_s)
        found = list(islice(due, most))
        for woken in found:
            del self.woken[woken]
            if not woken.done():
                woken.set_result(passed)
        self.due_s = min((watcher.due_s for watcher in self.woken.values()), default=math.inf)
        return len(found)


class Feed:
    """The live end of one board's log."""

    def __init__(
        self,
        store: Store,
        board: str,
        archive: Archive | None = None,
        limits: WatchLimits = DEFAULT.watch,
    ) -> None:
        self.limits = limits
        self.store = store
        self.board = board
        self._archive = archive
        self.watchers = 0
        self._ring: deque[LogEntry] = deque()
        self._ring_bytes = 0
        self._ring_changes = 0
        self._after: Revision = 0
        self._newest: Revision = 0
        self._sleeping: dict[View | None, _Sleepers] = {}
        self._views: Counter[View] = Counter()
        """The number of watchers of each view."""
        self._index: PatternIndex[View] = PatternIndex()
        self._last: LogEntry | None = None
        """The newest entry for which all affected sleepers were woken."""
        self._poked_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None  # while there is a reader
        self._shared: dict[tuple[View, Position], _Made] = {}
        self._mark: Delivery | None = None
        """The progress mark for watchers that are at the head and saw nothing for a while."""
        self._large: LargeEntry | None = None
        """The last restore that was shown, as long as the ring has it."""
        self._tail: asyncio.Task[None] | None = None
        self._failure: BlackboardError | None = None
        self.delivered = Histogram()
        """How old revisions were when they had been delivered."""

    @contextlib.asynccontextmanager
    async def watch(
        self,
        view: View,
        after: Position | None,
        readable: Callable[[Key], bool] | None = None,
    ) -> AsyncIterator["Watcher"]:
        """Open a watcher that starts after `after` (None = now). It misses nothing from there on.

        `readable` says of which keys outside the view it may learn that a revision is based on
        them; None = those that the grants of the view allow.

        Errors: Compacted, FutureRevision, RolledBack; Unavailable.
        """
        self.watchers += 1  # first: a board without watchers may be closed
        try:
            head = await self.store.open(self.board)
            start = after or Position(head.epoch.id, head.revision)
            await self._check(head, start)
            # The log may have gone on since `head`. A start that the ring does not reach back to is
            # read from the log, so nothing in between is missed.
            self._start(head)
            self._enter(view)
            try:
                yield Watcher(self, view, start, readable or view.readable)
            finally:
                self._leave(view)
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._stop()

    def _enter(self, view: View) -> None:
        self._views[view] += 1
        if self._views[view] == 1:
            self._index.add(view.meets, view)

    def _leave(self, view: View) -> None:
        self._views[view] -= 1
        if not self._views[view]:
            del self._views[view]
            self._index.discard(view.meets, view)

    async def _check(self, head: Head, position: Position) -> None:
        watch.check_start(head, position)
        if position.digest and position.revision >= head.oldest:
            page = await self.store.log(self.board, position.revision - 1, limit=1)
            for entry in page.entries:
                watch.check_digest(page.head, position, entry)

    async def aclose(self) -> None:
        """End the reader. Open watchers get Unavailable."""
        await self.end(Unavailable(what=f"board {self.board}", reason="the service is stopping"))

    async def end(self, error: BlackboardError) -> None:
        """End the reader. Watchers that are still open get `error`."""
        tail = self._tail
        self._stop()
        self._fail(error)
        if tail is not None:
            await asyncio.wait([tail])

    # --- the ring ---------------------------------------------------------------------------------

    def ready(self, after: Revision) -> list[LogEntry] | None:
        """Entries after `after`, oldest first; None when the ring does not reach back that far."""
        if after < self._after:
            return None
        found = []
        for entry in reversed(self._ring):  # most watchers lack only the newest
            if entry.revision <= after:
                break
            found.append(entry)
        found.reverse()
        return found

    async def wait_beyond(self, watcher: "Watcher", view: View | None) -> LogEntry | None:
        """Wait until `view` shows something after the position of `watcher`, or until about when
        its mark is due. Meanwhile the position moves on with what the watcher gets at once.

        Returns the last entry that arrived in the meantime if the view shows nothing of it and of
        the entries before it; else None. Without a view, it waits for any entry. There is no timer
        per watcher: the reader, which reads the log at least every second, wakes those that are
        due. Errors: the reason why the reader ended.
        """
        if self._newest > watcher.position.revision:
            return None
        # After the check for news: a watcher that lacks some reads it in the log before it fails.
        if self._failure is not None:
            # One error for all would share a traceback among tasks: each gets its own.
            raise type(self._failure)(**self._failure.fields())
        woken: asyncio.Future[LogEntry | None] = asyncio.Future(loop=self._loop)
        sleepers = self._sleeping.get(view)
        if sleepers is None:
            sleepers = self._sleeping[view] = _Sleepers()
        sleepers.woken[woken] = watcher
        sleepers.due_s = min(sleepers.due_s, watcher.due_s)
        try:
            return await woken
        finally:
            sleepers.woken.pop(woken, None)

    def poke(self) -> None:
        """Wake every waiting watcher."""
        sleeping, self._sleeping = self._sleeping, {}
        for sleepers in sleeping.values():
            sleepers.wake(self._last)

    def nudge(self, view: View) -> None:
        """Wake the watchers that wait with `view`."""
        sleepers = self._sleeping.pop(view, None)
        if sleepers is not None:
            sleepers.wake(self._last)

    def _tell(self, entries: tuple[LogEntry, ...]) -> None:
        """Deliver `entries` to the watchers whose views show part of them, and wake those whose
        progress marks are due."""
        if any(entry.epoch is not None for entry in entries):  # it concerns every view
            self.poke()
        else:
            concerned: dict[View, None] = {}
            for entry in entries:
                for change in entry.changes:
                    concerned.update(self._index.matching(change.key))
            self._wake_waiting_for_any()
            # Only what the ring has, which drops what a redaction takes away.
            is_whole = self._after < entries[0].revision
            for view in concerned:
                sleepers = self._sleeping.get(view)
                if sleepers is None:
                    continue
                # They stay where a failure of this reader finds them until they were served.
                if not (is_whole and self._deliver(sleepers, entries)):
                    del self._sleeping[view]
                    sleepers.wake(self._last)
        # Only now: those that were woken above move past the entry before these, and not past
        # these, which concern them.
        self._last = entries[-1]
        now_ms = time.time() * 1000
        for entry in entries:
            # Entries have the time of the engine, whose clock may be ahead of this one.
            self.delivered.observe(max(now_ms - entry.time_ms, 0) / 1000)
        self._wake_due()

    def _wake_waiting_for_any(self) -> None:
        sleepers = self._sleeping.pop(None, None)
        if sleepers is not None:
            sleepers.wake(self._last)

    def _deliver(self, sleepers: _Sleepers, entries: tuple[LogEntry, ...]) -> bool:
        """Give the delivery of `entries` to the sleepers that take it at once, and wake the others.

        Returns whether any of them still sleeps.
        """
        assert self._loop is not None
        passed, until, now_s = self._last, entries[-1].revision, self._loop.time()
        still_asleep = False
        made: _Made | None = None
        start: Position | None = None
        for woken, watcher in list(sleepers.woken.items()):
            if woken.done():
                continue
            if watcher.position.revision >= entries[0].revision:
                woken.set_result(passed)  # it read the log itself, ahead of this feed
                continue
            if watcher.has_taker and (made is None or watcher.position is not start):
                start = watcher.position  # one object for all that took the same delivery before
                watcher.pass_by(passed)
                made = watcher.made_of(entries)
            # Only a delivery that ends where the entries do: of one that was cut short, the
            # iteration brings the rest.
            if (
                made is not None
                and made.delivery.position.revision == until
                and watcher.take(made, now_s)
            ):
                still_asleep = True
            else:
                woken.set_result(passed)
        return still_asleep

    def _wake_due(self) -> None:
        """Wake the watchers whose progress mark is due: once a second at most, and
        PROGRESS_MARKS_PER_S_MAX of them at most.

        Those that wait longest come first; the others follow in the next seconds.
        """
        assert self._loop is not None
        now_s = self._loop.time()
        if (now_s - self._poked_s) * 1000 < self.limits.tail_wait_ms:
            return
        self._poked_s = now_s
        left = self.limits.progress_marks_per_s_max
        for view, sleepers in list(self._sleeping.items()):
            if sleepers.due_s <= now_s:
                left -= sleepers.wake_due(now_s, left, self._last)
                if not sleepers.woken:
                    del self._sleeping[view]
                if not left:
                    break

    def shared(self, view: View, after: Position, make: Callable[[], _Made]) -> _Made:
        """The delivery for `view` after `after`. It is made once per head, and charged to the first
        watcher that takes it."""
        found = self._shared.get((view, after))
        if found is None:
            found = self._shared[view, after] = charged(make)
        return found

    async def archived(self, after: Revision, gone: Compacted) -> tuple[LogEntry, ...]:
        """The next entries after `after`, from the archive, for a watcher whose entries the log no
        longer has.

        Errors: `gone` if they are not archived.
        """
        found: Sequence[LogEntry] = ()
        if self._archive is not None:
            # What the log still has comes from there the next time.
            until = gone.oldest - 1
            # If history was pruned there, too, the watcher gets the error of the log.
            with contextlib.suppress(Compacted):
                most = self.limits.watch_batch_revisions_max
                found = await self._archive.log(self.board, after, until=until, limit=most)
        if not found:
            raise gone
        return tuple(found)

    def mark(self, position: Position) -> Delivery:
        """A delivery that contains only a position, shared by all watchers at that position."""
        if self._mark is None or self._mark.position != position:
            self._mark = Delivery((), position)
        return self._mark

    def show(self, view: View, entry: LogEntry) -> LogEntry | None:
        """As `View.show`; the work of showing a large restore to many watchers is done once."""
        if entry.epoch is None or len(entry.changes) < LARGE_CHANGES:
            return view.show(entry)
        if self._large is None or self._large.entry.digest != entry.digest:
            self._large = LargeEntry(entry)
        visible = self._large.visible(view.patterns, view.readable_patterns)
        return view.with_grounds(visible, entry.based_on, ())

    # --- the reader -------------------------------------------------------------------------------

    def _start(self, head: Head) -> None:
        if self._tail is None:
            self._failure = None
            self._loop = asyncio.get_running_loop()
            self._poked_s = self._loop.time()
            self._after = self._newest = head.revision
            self._tail = asyncio.create_task(self._follow(), name=f"feed of {self.board}")
            self._tail.add_done_callback(self._ended)

    def _stop(self) -> None:
        if self._tail is not None:
            self._tail.cancel()
            self._tail = None
        self._ring.clear()
        self._after = self._newest  # what the ring held must be read from the log now
        self._shared.clear()
        self._large = self._last = self._mark = None
        self._ring_bytes = self._ring_changes = 0

    def _fail(self, error: BlackboardError) -> None:
        self._failure = error
        self.poke()

    def _ended(self, tail: "asyncio.Task[None]") -> None:
        """The reader ended. If it was cancelled, there are no watchers; otherwise all watchers get
        the error."""
        if tail.cancelled() or tail is not self._tail:
            return
        error = tail.exception()
        log.error("feed of %s ended", self.board, exc_info=error)
        reason = f"its log cannot be read: {error}"
        known = error if isinstance(error, BlackboardError) else None
        self._stop()
        self._fail(known or Unavailable(what=f"board {self.board}", reason=reason))

    async def _follow(self) -> None:
        reader = asyncio.current_task()
        wait_ms = self.limits.tail_wait_ms
        while self._tail is reader:
            try:
                page = await self.store.log(
                    self.board, self._newest, limit=LOG_ENTRIES_MAX, wait_ms=wait_ms
                )
                if self._tail is not reader:
                    return  # cancelled, but a driver swallowed the CancelledError
                if page.entries:
                    history.check_sequence(self._newest, page.entries)
                    self._append(page.entries)
                else:
                    self._wake_due()
            except (FutureRevision, RolledBack):
                # The engine lost revisions that were seen. Opening the board begins a new epoch,
                # and its marker reaches every watcher.
                await self._recover()
            except Compacted as error:
                self._skip_to(error.oldest - 1)
            except Unavailable as error:
                log.warning("feed of %s: %s", self.board, error)
                await asyncio.sleep(_TAIL_RETRY_S)
            except asyncio.CancelledError:
                if self._tail is reader:
                    raise
                # There are no watchers any more. Storing the error would keep this task, a page of
                # the log and a connection to the engine alive until the garbage collector runs,
                # which may take days.
                return

    async def _recover(self) -> None:
        try:
            await self.store.open(self.board)
        except BlackboardError as error:
            log.warning("feed of %s: %s", self.board, error)
            await asyncio.sleep(_TAIL_RETRY_S)

    def _skip_to(self, revision: Revision) -> None:
        """The log was trimmed beyond the ring's end. Watchers find that out when they read the
        log."""
        self._ring.clear()
        self._ring_bytes = self._ring_changes = 0
        self._after = self._newest = revision
        self._last = None  # no view was checked against the trimmed entries
        self.poke()

    def _append(self, entries: tuple[LogEntry, ...]) -> None:
        for entry in entries:
            self._ring.append(entry)
            self._ring_bytes += history.cost_of(entry)
            self._ring_changes += len(entry.changes)
        self._newest = entries[-1].revision
        # The newest stays, however large: otherwise every watcher would read it from the log.
        while len(self._ring) > 1 and (
            self._ring_bytes > self.limits.watch_queue_bytes_max
            or self._ring_changes > self.limits.watch_queue_changes_max
        ):
            self._drop_oldest()
        # Older entries of the ring may hold what was redacted.
        for entry in entries:
            if entry.author == SYSTEM_AGENT and is_redaction(entry):
                self._drop_below(entry.revision)
        # What was made for the head before lacks these entries.
        self._shared.clear()
        if self._large is not None and self._large.entry.revision <= self._after:
            self._large = None
        self._tell(entries)

    def _drop_below(self, revision: Revision) -> None:
        """Drop the entries before a revision; watchers read them from the log instead."""
        while self._ring and self._ring[0].revision < revision:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._ring.popleft()
        self._after = oldest.revision
        self._ring_bytes -= history.cost_of(oldest)
        self._ring_changes -= len(oldest.changes)


class Taker(Protocol):
    """Takes deliveries for a watcher without its task: see `Watcher.deliver_to`."""

    @property
    def payer(self) -> Payer:
        """The account that is charged for making them."""

    def take(self, delivery: Delivery) -> bool:
        """Take a delivery now; False to leave it to the iteration."""


class Watcher:
    """One watcher's iteration; a `Stream` (client/link.py)."""

    def __init__(
        self, feed: Feed, view: View, start: Position, readable: Callable[[Key], bool]
    ) -> None:
        self.view = view
        self._readable = readable
        self._feed = feed
        self._cursor = Cursor(start)
        self._loop = asyncio.get_running_loop()
        self._marked_s = self._loop.time()
        self._asked: Revision | None = None
        self._taker: Taker | None = None

    @property
    def position(self) -> Position:
        """Everything up to here was delivered, or is not visible to this watcher."""
        return self._cursor.position

    @property
    def due_s(self) -> float:
        """When it is due to get a progress mark, by the loop's clock."""
        return self._marked_s + self._feed.limits.progress_interval_ms / 1000

    def deliver_to(self, taker: "Taker") -> None:
        """Give deliveries to `taker` while the iteration waits for the next one. What it does not
        take comes out of the iteration."""
        self._taker = taker

    @property
    def has_taker(self) -> bool:
        """Whether deliveries can be given to a taker."""
        return self._taker is not None

    def pass_by(self, passed: LogEntry | None) -> None:
        """Move past `passed`, an entry of which the view shows nothing, unless that was done."""
        if passed is not None and passed.revision > self.position.revision:
            self._cursor.pass_entry(passed)

    def made_of(self, entries: Sequence[LogEntry]) -> _Made:
        """The delivery of `entries`, which follow the position, for a taker, who pays for it."""
        assert self._taker is not None
        with paid_by(self._taker.payer):
            return self._feed.shared(self.view, self.position, lambda: self._pass(entries))

    def take(self, made: _Made, now_s: float) -> bool:
        """Give a delivery to the taker; False if it did not take it."""
        taker, delivery = self._taker, made.delivery
        if taker is None:
            return False
        if made.outside:
            with paid_by(taker.payer):
                delivery = made.as_read_by(self._readable)
        if delivery.revisions and not taker.take(delivery):
            return False
        # Only once it is taken: the iteration goes on from here with whatever was left to it.
        self._cursor.position = delivery.position
        self._cursor.on(WatchEvent.CAUGHT_UP)
        self._marked_s = now_s
        return True

    @property
    def state(self) -> watch.WatchState:
        """Whether it is synced, unsynced, or cancelled."""
        return self._cursor.state

    async def request_progress(self) -> None:
        """Request a progress mark at the board's present head; the iteration delivers it."""
        self._asked = (await self._feed.store.open(self._feed.board)).revision
        # It sleeps until its view shows something, and has to wait for any entry now.
        self._feed.nudge(self.view)

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        """The next delivery. Cancellation: loses nothing; the next call continues from here."""
        try:
            while True:
                delivery = await self._next()
                now_s = self._loop.time()
                if delivery.revisions or self._mark_is_due(now_s):
                    self._asked = None if self._is_answered() else self._asked
                    self._marked_s = now_s
                    return delivery
        except BlackboardError:
            self._cursor.on(WatchEvent.ENDED)
            raise

    async def _next(self) -> Delivery:
        after = self.position.revision
        entries = self._feed.ready(after)
        if entries == [] and not self._is_answered():
            awaited = self.view if self._asked is None else None
            self.pass_by(await self._feed.wait_beyond(self, awaited))
            after = self.position.revision
            entries = self._feed.ready(after)
        if entries is None:
            self._cursor.on(WatchEvent.FELL_BEHIND)
            return await self._catch_up(after)
        self._cursor.on(WatchEvent.CAUGHT_UP)
        if not entries:
            return self._feed.mark(self.position)
        made = self._feed.shared(self.view, self.position, lambda: self._pass(entries))
        self._cursor.position = made.delivery.position
        return made.as_read_by(self._readable)

    async def _catch_up(self, after: Revision) -> Delivery:
        """The next entries from the log, or from the archive if the log was cut in the meantime: at
        most what fits into one delivery. The rest is read later.

        Errors: Compacted, RolledBack; Corrupt when there is a gap.
        """
        store, board = self._feed.store, self._feed.board
        most = self._feed.limits.watch_batch_revisions_max
        try:
            found = (await store.log(board, after, limit=most)).entries
        except FutureRevision:
            # The engine lost revisions that were seen. Opening the board begins an epoch above
            # them.
            watch.check_start(await store.open(board), self.position)
            found = (await store.log(board, after, limit=most)).entries
        except Compacted as gone:
            found = await self._feed.archived(after, gone)
        history.check_sequence(after, found)
        made = charged(lambda: self._pass(found))
        self._cursor.position = made.delivery.position
        return made.as_read_by(self._readable)

    def _pass(self, entries: Sequence[LogEntry]) -> _Made:
        """The delivery after the position, of as many entries as fit into one."""
        cursor, size = Cursor(self.position), 0
        shown: list[LogEntry] = []
        grounds: list[Grounds] = []
        limits = self._feed.limits
        count_max, bytes_max = limits.watch_batch_revisions_max, limits.watch_batch_bytes_max
        for entry in entries:
            try:
                visible = self._feed.show(self.view, entry)
            except Resync:
                if cursor.position == self.position:
                    raise
                break  # deliver the entries before it first
            cursor.pass_entry(entry)
            if visible is not None:
                shown.append(visible)
                grounds.append(entry.based_on)
                size += history.cost_of(visible)
            if len(shown) >= count_max or size >= bytes_max:
                break
        if self.view.coalesce and len(shown) > 1:
            shown, grounds = [history.coalesce(shown)], grounds[-1:]
        return _Made.of(self.view, Delivery(tuple(shown), cursor.position), grounds)

    def _is_answered(self) -> bool:
        return self._asked is not None and self.position.revision >= self._asked

    def _mark_is_due(self, now_s: float) -> bool:
        interval_ms = self._feed.limits.progress_interval_ms
        return self._is_answered() or (now_s - self._marked_s) * 1000 >= interval_ms


class Permitted:
    """A watcher that ends when its token does: `check` raises the reason."""

    def __init__(self, watcher: Watcher, check: Callable[[], None]) -> None:
        self._watcher = watcher
        self._check = check

    @property
    def position(self) -> Position:
        """As `Watcher.position`."""
        return self._watcher.position

    def deliver_to(self, taker: Taker) -> None:
        """As `Watcher.deliver_to`, as long as the token is valid."""
        self._watcher.deliver_to(_PermittedTaker(taker, self._check))

    async def request_progress(self) -> None:
        """As `Watcher.request_progress`."""
        await self._watcher.request_progress()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        delivery = await anext(self._watcher)
        # After the wait: the token may have ended while nothing happened on the board.
        self._check()
        return delivery


class _PermittedTaker:
    """Takes nothing once the token has ended: the iteration raises the reason."""

    __slots__ = ("_check", "_taker", "payer")

    def __init__(self, taker: Taker, check: Callable[[], None]) -> None:
        self.payer = taker.payer
        self._taker = taker
        self._check = check

    def take(self, delivery: Delivery) -> bool:
        """As `Taker.take`."""
        try:
            self._check()
        except BlackboardError:
            return False
        return self._taker.take(delivery)
