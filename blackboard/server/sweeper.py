"""Removes expired entries and leases, and log entries beyond those that are kept.

Entries and leases exist until a commit removes them. Expiry is such a commit, so every watcher and
every replay sees it, and the next waiter for a lease is woken. Several services may sweep one
board; while nothing is due, that costs nothing. A condition on the entry's revision, or the lease's
fence, lets only one of them succeed, and keeps entries and leases that were renewed in time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from blackboard.client.leases.presence import entries_that_end_with
from blackboard.core import history
from blackboard.core.access import OWN_BOARDS, OWN_BOARDS_ARCHIVED
from blackboard.core.commit import (
    ABSENT,
    Commit,
    CommitId,
    Committed,
    Delete,
    Entry,
    Expire,
    KeyAt,
    Lease,
    Op,
)
from blackboard.core.freeze import FROZEN_KEY
from blackboard.errors import BlackboardError, NoSuchBoard
from blackboard.limits import (
    AUDIT_PRUNE_INTERVAL_MS,
    LANES_MAX,
    LOG_ENTRIES_MAX,
    REVISION_MAX,
    BoardLimits,
)
from blackboard.server.boards import Boards, OpenBoard
from blackboard.server.commit_queue import salted, system_id
from blackboard.server.host import SweeperStatistics
from blackboard.server.security.own_boards import prune_audit
from blackboard.wire.codec import SYSTEM_AGENT, prepare

log = logging.getLogger(__name__)

EXPIRED_NOTE = "expired"
_BOARDS_AT_ONCE: Final = 16
_SLOW_S: Final = 1.0


class Sweeper:
    """Sweeps the boards that a process has open."""

    def __init__(self, boards: Boards, incarnation: str) -> None:
        self._boards = boards

        self._incarnation = incarnation
        self._lane = int(incarnation, 16) % LANES_MAX
        self._step = 0
        self.expired = 0
        """Expired entries and leases that this process removed."""
        self.refused = 0
        """Removals that were refused: renewed in time, or removed by another process."""
        self._rounds = 0
        self._prunes_at_s = float("-inf")
        # Weak, so that boards that were closed or removed do not stay in memory.
        self._trimmed_at: WeakKeyDictionary[OpenBoard, float] = WeakKeyDictionary()
        self._failed: WeakSet[OpenBoard] = WeakSet()
        """Boards that could not be swept last time, or not soon."""

    @property
    def _limits(self) -> BoardLimits:
        return self._boards.host.limits.boards

    def statistics(self) -> SweeperStatistics:
        """The sweeper's counters."""
        return SweeperStatistics(self._rounds, self.expired, self.refused)

    async def sweep(self) -> None:
        """End the expired leases of every open board, then remove its expired entries.

        At most SWEEP_ENTRIES_MAX of each at a time. On a frozen board they stay until the thaw.
        Boards that failed, or took longer than a second, are left to `sweep_failed`.
        """
        swept = [board for board in self._boards if board not in self._failed]
        await self._sweep_all(swept, _SLOW_S)
        self._rounds += 1

    async def sweep_failed(self) -> None:
        """As `sweep`, for the boards that are left to this: where an engine hangs, each of them
        takes as long as ENGINE_RETRY_MS, and the others must not wait for that."""
        await self._sweep_all([board for board in self._boards if board in self._failed], None)

    async def _sweep_all(self, boards: Sequence[OpenBoard], within_s: float | None) -> None:
        for first in range(0, len(boards), _BOARDS_AT_ONCE):
            some = boards[first : first + _BOARDS_AT_ONCE]
            await asyncio.gather(*[self._sweep_one(board, within_s) for board in some])

    async def _sweep_one(self, board: OpenBoard, within_s: float | None) -> None:
        with _logged_failure(board):
            try:
                async with asyncio.timeout(within_s):
                    await self._sweep(board)
                self._failed.discard(board)
                return
            except NoSuchBoard as error:  # another process removed it
                await self._boards.let_go(board.name, error)
            except TimeoutError:
                pass
        self._failed.add(board)

    async def tend_own(self, kept: int) -> None:
        """Remove the expired entries of the service's own boards, which are not open like others,
        and compact their logs to `kept` entries. Once a day, prune the archived audit as well.

        Errors: Unavailable and others: what is left is removed next time.
        """
        for board in OWN_BOARDS:  # whatever grows on them is removed here
            if await self._boards.host.store.exists(board):
                while await self._sweep_own(board):
                    pass
                await self._trim(board, kept, is_archived=board in OWN_BOARDS_ARCHIVED)
        await self._prune_audit()

    async def _prune_audit(self) -> None:
        """Prune the archived audit if AUDIT_PRUNE_INTERVAL_MS have passed. Records that expired
        until then must not stay in the archive for good."""
        archive, now_s = self._boards.host.archive, asyncio.get_running_loop().time()
        if archive is not None and now_s >= self._prunes_at_s:
            await prune_audit(archive)
            # Only after a success: a failed pruning is repeated at the next check, not in a day.
            self._prunes_at_s = now_s + AUDIT_PRUNE_INTERVAL_MS / 1000

    async def _sweep_own(self, board: str) -> bool:
        """Remove SWEEP_ENTRIES_MAX entries in one commit; returns whether more may be due."""
        store = self._boards.host.store
        most = self._limits.sweep_entries_max
        due = await store.due(board, limit=most)
        if not due.entries:
            return False
        ops = tuple(Delete(entry.key) for entry in due.entries)
        unchanged = tuple(KeyAt(entry.key, entry.mod_revision) for entry in due.entries)
        commit = Commit(system_id(), due.epoch, ops, unchanged, note=EXPIRED_NOTE)
        (outcome,) = await store.commit(board, [prepare(salted(commit))])
        self._count(outcome, len(ops))
        return isinstance(outcome, Committed) and len(ops) == most

    async def _sweep(self, board: OpenBoard) -> None:
        over = await board.store.leases(board.name, due=True)
        most = self._limits.sweep_entries_max
        due = await board.store.due(board.name, limit=most)
        # The freeze is read only if something is due: an idle board costs no further call. One
        # that comes after this is a condition of each commit (`_commit`).
        if not (over.leases or due.entries) or await board.frozen():
            return
        expiries = [
            *(self._end(board, over.epoch, o) for o in over.leases[:most]),
            *(self._remove(board, due.epoch, entry) for entry in due.entries),
        ]
        await asyncio.gather(*expiries)  # so that they share engine calls

    async def _end(self, board: OpenBoard, epoch: str, lease: Lease) -> None:
        """End a lease, together with the presence entries of its holder."""
        gone = tuple(Delete(key) for key in entries_that_end_with(lease))
        await self._commit(board, epoch, (Expire(lease.key, lease.holder, lease.fence), *gone))

    async def _remove(self, board: OpenBoard, epoch: str, entry: Entry) -> None:
        unchanged = KeyAt(entry.key, entry.mod_revision)
        await self._commit(board, epoch, (Delete(entry.key),), (unchanged,))

    async def _commit(
        self,
        board: OpenBoard,
        epoch: str,
        ops: tuple[Op, ...],
        conditions: tuple[KeyAt, ...] = (),
    ) -> None:
        self._step += 1
        name = CommitId(SYSTEM_AGENT, self._lane, self._incarnation, self._step)
        # Commits of the service pass on a frozen board. These should not.
        not_frozen = KeyAt(FROZEN_KEY, ABSENT)
        commit = Commit(name, epoch, ops, (*conditions, not_frozen), note=EXPIRED_NOTE)
        self._count(await board.commit(commit), 1)

    def _count(self, outcome: object, removed: int) -> None:
        # A refusal means that another process was faster, or that the entry was renewed in time.
        if isinstance(outcome, BlackboardError):
            self.refused += removed
        else:
            self.expired += removed

    async def trim_due(self, kept: int) -> None:
        """As `trim`, for the boards that were opened since the last call or not checked for
        ENGINE_CHECK_INTERVAL_MS. So a process that does not live that long trims, too.
        """
        now_s = asyncio.get_running_loop().time()
        interval_s = self._limits.engine_check_interval_ms / 1000
        for board in self._boards:
            last_s = self._trimmed_at.get(board)
            if last_s is None or now_s - last_s >= interval_s:
                # Before the attempt, so that a board that fails is not tried again at once.
                self._trimmed_at[board] = now_s
                with _logged_failure(board):
                    await self._trim(board.name, kept)

    async def trim(self, kept: int) -> None:
        """Compact each open board's log that is well above `kept` entries, page by page.

        Entries that are not archived yet stay, however long the log is.
        """
        for board in self._boards:
            with _logged_failure(board):
                await self._trim(board.name, kept)

    async def _trim(self, board: str, kept: int, *, is_archived: bool = True) -> None:
        store = self._boards.host.store
        archive = self._boards.host.archive if is_archived else None
        head = await store.open(board)
        if not history.excess(head, kept):
            return
        # What the archive would lose with the power must stay in the log.
        archived = REVISION_MAX if archive is None else await archive.settle(board)
        while surplus := history.excess(head, kept):
            page = await store.log(board, head.oldest - 1, limit=min(surplus, LOG_ENTRIES_MAX))
            doomed = [entry.revision for entry in page.entries if entry.revision <= archived]
            if not doomed:
                log.warning("board %s: its log stays, the archive is at %s", board, archived)
                break
            if archive is not None:
                await archive.copy_values(board, doomed[-1] + 1)
            head = await store.compact(board, doomed[-1] + 1)
            if head.log_entries <= kept:
                break


@contextlib.contextmanager
def _logged_failure(board: OpenBoard) -> Iterator[None]:
    """Log a failure on one board: the others are still swept, and this one next time."""
    try:
        yield
    except BlackboardError as error:
        log.warning("board %s: %s", board.name, error)
