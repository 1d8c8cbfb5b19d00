"""Feeds the archive: one task per open board tails its log and appends what it finds.

Of all processes that have a board open, one is its archiver. It holds a lease in the archive's
database while there is something to append; the others only check its progress. The lease decides
which process tries; its fence and the archive's position decide what is appended.

Invariants
- No commit waits for the archiver, and none of its errors reaches a commit.
- An append continues where the archive ends: the log is read from the archive's position on.
- Archived data stays, even if the engine's log differs from it (`server/continuity.py`).
- An idle board costs one read of its log per ARCHIVE_IDLE_MS, and holds no lease.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field

from blackboard.archive.base import Archive, Pause
from blackboard.client.cancellation import heed_cancellation
from blackboard.core.checkpoints import Mark, Point
from blackboard.core.commit import Epoch, Head, LogEntry, LogPage, Reading
from blackboard.engines.base import Store, pages_of
from blackboard.errors import (
    BlackboardError,
    Compacted,
    Corrupt,
    Fenced,
    FutureRevision,
    InvalidRequest,
    NoSuchBoard,
    Unavailable,
)
from blackboard.limits import DEFAULT, Limits
from blackboard.server.continuity import go_above, last_shared
from blackboard.units import Milliseconds, Revision

log = logging.getLogger(__name__)
_FIRST_RETRY_MS = 100
_LOOK_MS = 20
"""Interval of checks of another process's progress, while a caller waits for it."""
_AFTER_REST_MS = 20
"""A pause after a restore, so that the commits that waited for it go first."""


@dataclass(frozen=True, slots=True)
class ArchiveStatistics:
    """How the archive keeps up: `behind` is the largest number of revisions by which it is behind a
    board's log, as far as this process knows; `failing` is the number of boards whose last append
    failed. `lag_ms` is the age of the oldest commit that is not archived; 0 if all are."""

    boards: int
    behind: int
    appended: int
    failing: int
    lag_ms: Milliseconds
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Log entries that begin an epoch, of those that this process archived, by cause."""


@dataclass
class _ArchivedBoard:
    """The archiver's state of one board in this process."""

    name: str
    mark: Mark | None = None
    head: Revision = 0
    fence: int | None = None
    may_hold: bool = False  # whether the archive may count the lease as ours
    taken_at: float = 0
    checked: bool = False  # whether archive and log were found to have one history
    apart: bool = False  # whether they were found to have different histories
    finding: str = ""  # why the archive cannot continue where it ends
    failures: int = 0
    failure: Exception | None = None  # of the last attempt
    waiters: int = 0
    gathered: int = 0  # commits since it last looked at the log
    pokes: int = 0
    looked: int = 0  # how many of them came before it last read the log
    restores: int = 0  # restores that ask it to pause
    rested: asyncio.Event = field(default_factory=asyncio.Event)
    late_since: float | None = None
    """When the oldest commit that is not archived was made, by the loop's clock; None: no such
    commit is known."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    ended: BlackboardError | None = None  # why it is not archived any more

    @property
    def revision(self) -> Revision:
        """The last archived revision."""
        return -1 if self.mark is None else self.mark.revision

    @property
    def is_behind(self) -> bool:
        """Whether the log goes on after the last archived page."""
        return self.mark is not None and self.mark.revision < self.head

    def is_at_rest(self) -> bool:
        """Whether everything that is known of the board is archived, and nothing is wanted."""
        # Not whether `wake` is set: while the log is read, the news of a poke is not known yet.
        wanted = self.waiters or self.restores or self.pokes != self.looked
        return self.mark is not None and not (self.is_behind or self.failures or wanted)

    def poke(self) -> None:
        """Have the log read, because there may be something new in it."""
        self.pokes += 1
        self.wake.set()

    def reach(self, mark: Mark | None) -> None:
        """Record the archive's position, and wake the tasks that wait for it."""
        self.mark = mark
        self.tell()

    def end(self, error: BlackboardError) -> None:
        """Give the tasks that wait for the archive `error`: it will not move any more."""
        self.ended = error
        self.tell()

    def tell(self) -> None:
        """Wake the tasks that wait for the archive."""
        # Those that wait now have the old event; the next ones wait for the next move.
        self.moved.set()
        self.moved = asyncio.Event()


class Archiver:
    """Archives the boards that a process has open. Close it before the store and the archive."""

    def __init__(self, store: Store, archive: Archive, limits: Limits = DEFAULT) -> None:
        self.archive = archive
        self._limits = limits.archive
        self._pause_ms = limits.archive.archive_pause_ms
        self._call_ms = limits.engine.engine_timeout_ms
        self._finish_ms = limits.client.finish_timeout_ms
        self.owner = secrets.token_hex(8)
        """The name of this process as a holder of the archive's leases."""
        self._store = store
        self._boards: dict[str, _ArchivedBoard] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._appended = 0
        self._epochs: Counter[str] = Counter()
        self.failures = 0
        """How often in a row the archive failed when a board was to be left."""
        self.is_closed = False
        """Whether it accepts no more boards."""

    @property
    def lease_ms(self) -> Milliseconds:
        """The time to live of the archive's leases."""
        return self._limits.archive_lease_ms

    @property
    def takeover_ms(self) -> Milliseconds:
        """Time for the archive to catch up: its archiver may just have been killed."""
        return 3 * self.lease_ms

    def follow(self, name: str) -> None:
        """Archive a board from now on, until `unfollow` or `aclose`."""
        if name not in self._tasks:
            board = self._boards[name] = _ArchivedBoard(name)
            task = asyncio.create_task(self._run(board), name=f"archiver of {name}")
            self._tasks[name] = task

    async def unfollow(self, name: str, error: BlackboardError) -> None:
        """Stop archiving a board, because it is or was removed. What waits for its archive gets
        `error`."""
        board = self._boards.pop(name, None)
        if board is not None:
            board.end(error)
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def is_at_rest(self, name: str) -> bool:
        """Whether there is nothing to do for a board, as far as this process knows."""
        board = self._boards.get(name)
        return board is None or board.is_at_rest()

    async def leave(self, name: str) -> bool:
        """Stop archiving a board that is archived to its end, until `follow` or `poke`. False, and
        nothing changes, if there is something to do for it. Errors: Unavailable; NoSuchBoard."""
        board = self._boards.get(name)
        if board is None:
            return True
        if not board.is_at_rest():
            return False
        # What was committed since it last read the log, by another process for example.
        if (await self._store.open(name)).revision > board.revision:
            board.poke()
            return False
        await self._give_up_soon(board)
        # Asked again: a commit or a caller may have come during the call.
        if not board.is_at_rest() or self._boards.get(name) is not board:
            return False
        del self._boards[name]
        task = self._tasks.pop(name)
        task.cancel()
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return True

    async def _give_up_soon(self, board: _ArchivedBoard) -> None:
        """As `_give_up`, within ENGINE_TIMEOUT_MS. Errors: Unavailable."""
        if not board.may_hold:
            return
        try:
            async with asyncio.timeout(self._call_ms / 1000):
                await self._give_up(board)
        except BlackboardError:
            self.failures += 1
            raise
        except TimeoutError as error:
            self.failures += 1
            raise Unavailable(f"archive of board {board.name}", "it does not answer") from error
        self.failures = 0
        board.fence, board.may_hold = None, False

    def poke(self, name: str, commits: int = 0) -> None:
        """Notify the archiver of new entries on a board; it follows the board from now on.

        `commits` is about how many there are.
        """
        if not self.is_closed:
            self.follow(name)
        board = self._boards.get(name)
        if board is not None:
            board.poke()
            board.gathered += commits
            if board.gathered >= self._limits.archive_page_entries:
                # A page is full. The engine has it in memory still, and would read it later.
                board.wanted.set()

    async def reached(
        self, name: str, revision: Revision, timeout_ms: Milliseconds | None = None
    ) -> Mark:
        """Wait until a board is archived up to `revision`; returns the archive's position then.

        Errors: Unavailable after `timeout_ms` (None: ARCHIVE_WAIT_MS), with the reason of the
        delay; Corrupt at once, when the archive is damaged; NoSuchBoard, or the reason with which
        `unfollow` was called.
        """
        if timeout_ms is None:
            timeout_ms = self._limits.archive_wait_ms
        self.follow(name)
        board = self._boards[name]
        board.waiters += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while board.mark is None or board.mark.revision < revision:
                    if board.ended is not None:
                        # One error for all would share a traceback among tasks.
                        raise type(board.ended)(**board.ended.fields())
                    # It does not mend by itself: waiting would only hide the reason.
                    if isinstance(board.failure, Corrupt):
                        raise Corrupt(board.failure.what, board.failure.reason)
                    # Both, as the archiver may be in either of its pauses.
                    board.wake.set()
                    board.wanted.set()
                    await board.moved.wait()
                return board.mark
        except TimeoutError as error:
            reason = f"it is at revision {board.revision}, not yet at {revision}"
            if board.failure is not None:
                reason = f"{reason}: {board.failure}"
            raise Unavailable(what=f"archive of board {name}", reason=reason) from error
        finally:
            board.waiters -= 1

    @contextlib.contextmanager
    def resting(self, name: str) -> Iterator[None]:
        """In this block at most one append to the archive of a board is started per
        ARCHIVE_REST_MS. A running append continues."""
        self.follow(name)
        board = self._boards[name]
        board.restores += 1
        board.rested.clear()
        try:
            yield
        finally:
            board.restores -= 1
            if not board.restores:
                board.rested.set()

    async def settled(self, name: str) -> Revision:
        """The revision up to which the log of a board may be cut: the archive has it durably, even
        after a power loss. Errors: Unavailable."""
        return await self.archive.settle(name)

    def statistics(self) -> ArchiveStatistics:
        """A snapshot for metrics."""
        boards = self._boards.values()
        return ArchiveStatistics(
            boards=len(boards),
            behind=max((b.head - b.revision for b in boards if b.mark is not None), default=0),
            appended=self._appended,
            epochs=dict(self._epochs),
            failing=sum(1 for board in boards if board.failures),
            lag_ms=max((_lag_ms(board) for board in boards), default=0),
        )

    async def aclose(self) -> None:
        """Archive what is in the logs, if that is possible soon, and release the leases."""
        self.is_closed = True
        for task in self._tasks.values():
            task.cancel()
        # Until their tasks have ended, `_finish` would be a second writer of the same boards.
        await asyncio.gather(*self._tasks.values(), *self._leaving, return_exceptions=True)
        # What is not archived by then stays in the log, where the next archiver finds it.
        try:
            async with asyncio.timeout(self._finish_ms / 1000):
                await asyncio.gather(*(self._finish(board) for board in self._boards.values()))
        except TimeoutError:
            behind = sorted(board.name for board in self._boards.values() if board.is_behind)
            log.warning("not archived to their end: %s", ", ".join(behind) or "not known which")

    async def _finish(self, board: _ArchivedBoard) -> None:
        try:
            try:
                while await self._advance(board) or board.is_behind:
                    if board.fence is None:
                        # Another process has the lease. It may have been killed with it.
                        await asyncio.sleep(_LOOK_MS / 1000)
            finally:
                await self._give_up(board)
        except Exception as error:  # the other boards are archived all the same
            unforeseen = None if isinstance(error, BlackboardError) else error
            text = "board %s is not archived to its end: %s"
            log.warning(text, board.name, error, exc_info=unforeseen)

    async def _give_up(self, board: _ArchivedBoard) -> None:
        """Release the lease of a board, so that the next archiver need not wait until it ends."""
        if not board.may_hold:
            return
        if board.fence is None:  # taking it again gives the same fence
            board.fence = await self.archive.take(board.name, self.owner, self.lease_ms)
        if board.fence is not None:
            await self.archive.give_up(board.name, board.fence)

    # --- one board --------------------------------------------------------------------------------

    async def _run(self, board: _ArchivedBoard) -> None:
        while True:
            pause_ms = self._limits.archive_idle_ms
            if board.restores:
                await _rest(board, self._limits.archive_rest_ms)
            try:
                # Before the log is read: a poke during that read must end the next pause.
                board.wake.clear()
                board.wanted.clear()
                board.gathered, pokes = 0, board.pokes
                if await self._advance(board):
                    pause_ms = 0 if board.waiters or board.is_behind else self._pause_ms
                board.failures, board.failure, board.looked = 0, None, pokes
            except NoSuchBoard as error:  # another process removed it
                self._boards.pop(board.name, None)
                self._tasks.pop(board.name, None)
                board.end(error)
                return
            except Exception as error:  # noqa: BLE001 - nobody else would begin again
                pause_ms = self._failed(board, error)
                await asyncio.sleep(pause_ms / 1000)
                continue
            heed_cancellation()
            if pause_ms == 0 and board.fence is None:  # another process has the lease
                await asyncio.sleep(_LOOK_MS / 1000)
                continue
            # While no caller waits, gather commits into one transaction.
            called = board.wanted if pause_ms <= self._pause_ms else board.wake
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await called.wait()

    def _failed(self, board: _ArchivedBoard, error: Exception) -> Milliseconds:
        """Count and log a failure; returns how long to wait before the next attempt."""
        board.failures, board.failure = board.failures + 1, error
        board.tell()
        if board.late_since is None:
            board.late_since = asyncio.get_running_loop().time()
        # Whatever it was, archive and log are compared again before the next append.
        board.fence = None
        board.checked = False
        # An archive that is away fails every few seconds, for hours perhaps.
        level = logging.WARNING if board.failures in (1, 10, 100) else logging.DEBUG
        unforeseen = None if isinstance(error, BlackboardError) else error
        log.log(level, "board %s cannot be archived: %s", board.name, error, exc_info=unforeseen)
        longest_ms = self._limits.archive_retry_ms
        return min(_FIRST_RETRY_MS << min(board.failures - 1, 16), longest_ms)

    async def _advance(self, board: _ArchivedBoard) -> bool:
        """Append the next page of the log, or check the progress of another process.

        Returns whether to continue soon.
        """
        if board.mark is None or not board.checked:
            board.reach(await self.archive.mark(board.name))
        # Read before the lease is taken: a board without news costs the archive nothing.
        page = await self._page(board)
        if page is not None:
            board.head = page.head.revision
            board.late_since = _late_since(page)
            if not page.entries:
                return False
        if not await self._take(board):
            # Another process appends, so this one compares again before it does.
            board.checked = False
            return board.waiters > 0
        if page is None:
            await self._join(board)
            return True
        return await self._append(board, page.entries)

    async def _page(self, board: _ArchivedBoard) -> LogPage | None:
        """The next page of the log; None when the archive cannot continue from its position."""
        board.apart = False
        if board.mark is None:
            return None
        try:
            if not board.checked and not await self._is_same(board, board.mark):
                board.apart = True
                board.finding = "it is not the one that was archived: that is kept"
                return None
            board.checked = True
            after = board.mark.revision
            limit = self._limits.archive_page_entries
            return await self._store.log(board.name, after, limit=limit)
        except FutureRevision:
            board.checked = False
            # The epoch that this begins is in the log, where the next attempt finds it.
            await go_above(self._store, self.archive, board.name)
            raise Unavailable(f"board {board.name}", "its engine lost what is archived") from None
        except Compacted as error:
            board.finding = (
                f"its archive ends at revision {board.mark.revision}, and its log begins at"
                f" {error.oldest}: what lies in between is missing from the archive"
            )
            return None

    async def _is_same(self, board: _ArchivedBoard, mark: Mark) -> bool:
        """Whether the log continues the archived history, from its newest commit or from an earlier
        one.

        Errors: FutureRevision when the engine has less; Compacted.
        """
        before = mark.revision - 1
        # It holds a beginning and no commit that could be compared.
        if before < mark.oldest:
            return True
        try:
            page = await self._store.log(board.name, before, limit=1)
        except Compacted:
            # Whether the log goes on where the archive ends is seen when its next page is read.
            return True
        if not page.entries:
            raise FutureRevision(mark.revision, page.head.revision)
        first = page.entries[0]
        if first.revision == mark.revision:
            return await self.archive.digest_at(Point(board.name, mark.revision)) == first.digest
        if first.epoch is None:
            return False
        survived = first.epoch.from_revision  # the engine lost revisions, as its marker says
        return await last_shared(self._store, self.archive, board.name, survived) == survived

    async def _take(self, board: _ArchivedBoard) -> bool:
        """Take or renew the lease of the archiver."""
        # Before the call: the lease cannot have begun earlier, so it does not end before we think.
        now = asyncio.get_running_loop().time()
        # Renewed after a third of its time, so that two renewals may fail.
        if board.fence is not None and now - board.taken_at < self.lease_ms / 3000:
            return True
        board.may_hold = True  # also when this is cancelled, and nobody learns the fence
        fence = await self.archive.take(board.name, self.owner, self.lease_ms)
        board.may_hold = fence is not None
        if fence is not None and fence != board.fence:  # another process may have appended
            board.reach(await self.archive.mark(board.name))
            board.checked = False
        board.fence, board.taken_at = fence, now
        return fence is not None

    async def _append(self, board: _ArchivedBoard, entries: tuple[LogEntry, ...]) -> bool:
        assert board.fence is not None
        assert board.mark is not None
        after = board.mark.revision
        # The archive may have advanced before we had the lease; then this page is not the next one.
        if entries[0].revision <= after or not board.checked:
            return True
        pause = self._pause(is_last=entries[-1].revision >= board.head)
        try:
            mark = await self.archive.append(board.name, board.fence, after, entries, pause)
        except Fenced:
            # Another process has the lease, and may have appended: compare before the next append.
            board.fence, board.checked = None, False
            return True
        except Compacted:  # the engine lost more than the archive can trace back
            await self._join(board)
            return True
        self._appended += len(entries)
        self._epochs.update(entry.epoch.cause for entry in entries if entry.epoch is not None)
        if mark.revision >= board.head:
            board.late_since = None
        board.reach(mark)
        return True

    def _pause(self, *, is_last: bool) -> Pause:
        """The pause between the steps of an append. It leaves time for other tasks, unless a caller
        waits for the archive or this page is not the last one.

        A commit takes half a dozen turns of the event loop, and its thread takes the interpreter
        lock a dozen times. Without pauses it would wait for one step of the append each time.
        """

        async def pause() -> None:
            hurries = not is_last or any(board.waiters for board in self._boards.values())
            await asyncio.sleep(0 if hurries else self._limits.archive_step_pause_ms / 1000)

        return pause

    async def _join(self, board: _ArchivedBoard) -> None:
        """Begin the archive of a board, with the board's present content if its log no longer
        reaches back to its beginning."""
        assert board.fence is not None
        if board.finding:  # not where it is found: another process may be about to repair it
            log.warning("board %s: %s", board.name, board.finding)
            board.finding = ""
        head = await self._store.open(board.name)
        board.head = head.revision
        # The log still begins at the first commit: so does the archive, and not with the present.
        if head.oldest <= 1 and (board.mark is None or board.apart):
            # Later epochs are entries of the log, and the archive takes them from there.
            first = head.epoch if head.epoch.number == 1 else Epoch(1, "")
            head, pages = Head(0, first, 1), _no_pages()
        else:
            pages = pages_of(self._store, board.name, "")
        join = self.archive.join
        mark = await join(board.name, board.fence, head, pages, apart=board.apart)
        board.apart = False
        board.checked = True
        board.reach(mark)


async def _rest(board: _ArchivedBoard, longest_ms: Milliseconds) -> None:
    """Wait until no restore asks the archiver of a board to pause, but only for a limited time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(longest_ms / 1000):
            await board.rested.wait()
            await asyncio.sleep(_AFTER_REST_MS / 1000)


def _late_since(page: LogPage) -> float | None:
    """When the first entry of a page was made, by the loop's clock, computed from the age that the
    engine reports."""
    if not page.entries:
        return None
    age_ms = max(0, page.head.time_ms - page.entries[0].time_ms)
    return asyncio.get_running_loop().time() - age_ms / 1000


def _lag_ms(board: _ArchivedBoard) -> Milliseconds:
    if board.late_since is None:
        return 0
    return int((asyncio.get_running_loop().time() - board.late_since) * 1000)


async def _no_pages() -> AsyncIterator[Reading]:
    return
    yield


def check_archived(archiver: Archiver | None) -> Archiver:
    """The archiver, if there is one. Errors: InvalidRequest if there is none."""
    if archiver is None:
        reason = "this service keeps no archive: set BLACKBOARD_ARCHIVE to a URL"
        raise InvalidRequest(field="archive", reason=reason)
    return archiver
