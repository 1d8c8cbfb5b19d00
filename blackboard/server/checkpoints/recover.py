"""Recovery: a board that its engine lost begins again from its archive.

The rest of the engine's board is replaced by one made from the archive, page by page, completely or
not at all: with all entries and their revisions, the checkpoints and the counters of `append`.
Leases end with the epoch.

Invariants
- What the engine still has is archived first, and the board is replaced only if its head has not
  moved since. So a recovery loses nothing. Only a board with a part of a lost commit is dropped as
  it is.
- the archive is compared with its digests before anything is replaced.
- The revisions of the recovered board are above everything that was archived.
- a kill in the middle leaves a complete board or none: the next recovery completes it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final, Self

from blackboard.archive.base import archived_pages
from blackboard.client.cancellation import finish
from blackboard.core.checkpoints import Instant, Moment, Point, Recovered, RecoverRequest
from blackboard.core.commit import RECOVER, Entry, Epoch, Head, Seed
from blackboard.core.path import barrier_key
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import MayTear
from blackboard.errors import (
    BlackboardError,
    Corrupt,
    HeadMoved,
    InvalidRequest,
    NoSuchBoard,
    NoSuchCheckpoint,
    Unavailable,
)
from blackboard.integrity.digest_check import Sums
from blackboard.limits import HOLD_MS_MAX
from blackboard.server.archiver import check_archived
from blackboard.server.boards import Boards
from blackboard.server.checkpoints.branch import alone
from blackboard.units import Prefix, Revision

log = logging.getLogger(__name__)
_BARRIERS: Final = barrier_key("")

_TRIES: Final = 5
"""Attempts, when there were commits in between."""


class Recoveries:
    """The recoveries of one process."""

    def __init__(self, boards: Boards) -> None:
        self._boards = boards
        self._running: dict[str, _Recovery] = {}

    @classmethod
    def of(cls, boards: Boards) -> Self:
        """Those of a process."""
        if boards.recoveries is None:
            boards.recoveries = cls(boards)
        assert isinstance(boards.recoveries, cls)
        return boards.recoveries

    async def recover(self, board: str, spec: RecoverRequest) -> Recovered:
        """Begin a recovery, or report its progress; waits RECOVER_WAIT_MS for the end.

        If the board was already recovered and nothing was lost since, the answer is the same.
        Errors: NoSuchBoard when nothing is archived of it; InvalidRequest when its engine has all
        that is archived; as `Archive.read` for a moment that is not archived; Corrupt when the
        archive is damaged: the board is unchanged; Unavailable: repeat the call, also while it is
        being recovered to another moment. Cancellation: it continues.
        """
        running = self._running.get(board)
        if running is None:
            running = self._running[board] = _Recovery(self._boards, board, spec)
            running.task.add_done_callback(lambda _: self._running.pop(board, None))
        elif running.spec.at != spec.at:  # its answer would be about that one
            reason = "it is being recovered to another moment"
            raise Unavailable(what=f"board {board}", reason=reason)
        wait_ms = self._boards.host.limits.checkpoints.recover_wait_ms
        await asyncio.wait([running.task], timeout=wait_ms / 1000)
        return running.task.result() if running.task.done() else running.so_far

    async def aclose(self) -> None:
        """Give up the recoveries in progress; a repeated request starts them again."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Recovery:
    """One recovery and its progress."""

    def __init__(self, boards: Boards, board: str, spec: RecoverRequest) -> None:
        self._boards = boards
        self._host = boards.host
        self._board = board
        self.spec = spec
        self._archiver = check_archived(boards.host.archiver)
        self._archive = self._archiver.archive
        self.so_far = Recovered(False, 0, 0, 0, "")
        self.task = asyncio.create_task(self._run(), name=f"recovery of {board}")
        # Retrieved, even if nobody repeats the request: asyncio reports errors that nobody took.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _run(self) -> Recovered:
        if not await self._archive.holds(self._board):
            raise NoSuchBoard(self._board)
        async with alone(self._archive, self._board):
            for _ in range(_TRIES):
                try:
                    recovered = await self._try()
                    self._host.lost.pop(self._board, None)
                    return recovered
                except HeadMoved as error:
                    failure = error
            raise Unavailable(f"board {self._board}", f"not recovered: {failure}")

    async def _try(self) -> Recovered:
        """Errors: HeadMoved when there was a commit in between."""
        head = await self._stands()
        target = await self._target(head)
        if target is None:
            assert head is not None
            epoch = head.epoch
            return Recovered(True, 0, epoch.from_revision, epoch.revision, epoch.id)
        last = await self._archive.mark_at(target)
        # Before others are held: to read the whole board may take longer than a hold.
        await self._check(target)
        await self._archive.copy_values(self._board)
        try:
            if head is not None:
                await self._host.store.hold(self._board, HOLD_MS_MAX)
                head = await self._stands()
            return await finish(self._make(target, head, last.epoch.number))
        finally:
            with suppress(BlackboardError):  # a hold times out
                if head is not None:
                    await self._host.store.hold(self._board, 0)

    async def _stands(self) -> Head | None:
        """The head of the engine's board, once it is archived up to there.

        None when there is none, or only what an unfinished recovery left, or one with a part of a
        lost commit, of which nothing can be relied on.
        """
        try:
            # Opening compares it with its archive, so a loss that nobody noticed is found here.
            await self._boards.use(self._board)
            head = await self._host.store.open(self._board)
        except Unavailable:
            if await self._host.store.exists(self._board):
                raise
            return None
        except Corrupt:
            if self._torn() is None:
                raise
            return None
        await self._archiver.reached(self._board, head.revision, self._archiver.takeover_ms)
        return head

    def _torn(self) -> Revision | None:
        """The last revision of a board of which the engine has a part of a lost commit; None if it
        has none."""
        store = self._host.store
        raw = store.raw if isinstance(store, SealedStore) else store
        return raw.torn(self._board) if isinstance(raw, MayTear) else None

    async def _target(self, head: Head | None) -> Point | None:
        """The target of the recovery; None when it was already recovered. Errors:
        InvalidRequest."""
        lost = await self._archive.lost(self._board)
        wanted = None if self.spec.at is None else await self._resolve(self.spec.at)
        if lost is None and head is not None:
            if head.epoch.cause == RECOVER and wanted in (None, head.epoch.from_revision):
                return None
            reason = "its engine has all that is archived; `restore` brings back an earlier moment"
            raise InvalidRequest(field="board", reason=reason)
        if wanted is None and lost is not None:
            wanted = lost.through
        if wanted is None:
            mark = await self._archive.mark(self._board)
            assert mark is not None
            wanted = mark.revision
        return Point(self._board, wanted)

    async def _resolve(self, moment: Moment) -> int:
        """The revision of a moment, according to the archive."""
        if isinstance(moment, Instant):
            return await self._archive.at_time(self._board, moment.time_ms)
        if isinstance(moment, int):
            return moment
        for found in reversed(await self._archive.checkpoints(self._board)):
            if found.name == moment:
                return found.revision
        raise NoSuchCheckpoint(self._board, moment)

    async def _check(self, target: Point) -> None:
        """Errors: Corrupt unless the archive matches its digests."""
        sums = Sums()
        async for page in self._pages(target):
            await sums.add_all(page)
        digests = (await self._archive.facts_at(target)).digests
        await sums.check(digests, f"board {target.board} at revision {target.revision}")

    async def _make(self, target: Point, head: Head | None, number: int) -> Recovered:
        mark = await self._archive.mark(self._board)
        assert mark is not None
        if head is not None:
            number = max(number, head.epoch.number)
            # Only what is archived may be replaced.
            if mark.revision != head.revision:
                raise HeadMoved(head.revision, mark.revision)
        torn = self._torn() if head is None else None
        revision = max(mark.revision, torn or 0) + 1
        name = secrets.token_hex(8)
        epoch = Epoch(max(number, mark.epoch.number) + 1, name, RECOVER, target.revision, revision)
        items = await self._items(target, mark.revision)
        time_ms = time.time_ns() // 1_000_000 if head is None else head.time_ms
        seed = Seed(epoch, time_ms, items)
        # The log of the board that is replaced goes with it.
        await self._archive.copy_values(self._board)
        self.so_far = Recovered(False, 0, target.revision, revision, name)
        store = self._host.store
        if torn is not None:
            log.warning("board %s: the engine's part of it is dropped", self._board)
            # Such a board cannot be opened, so `seed` could not compare its head.
            await store.drop(self._board)
        await store.seed(self._board, seed, self._counted(target), replaces=head)
        self._archiver.poke(self._board)
        await self._archiver.reached(self._board, revision, self._archiver.takeover_ms)
        done = self.so_far
        return Recovered(True, done.entries, target.revision, revision, name)

    async def _items(self, target: Point, *others: int) -> tuple[tuple[Prefix, int], ...]:
        """The counters of `append`, above every number that was assigned since."""
        found = dict(await self._archive.items(target))
        lost = await self._archive.lost(self._board)
        for revision in {*others, target.revision if lost is None else lost.through}:
            for prefix, following in await self._archive.items(Point(self._board, revision)):
                found[prefix] = max(found.get(prefix, 0), following)
        return tuple(sorted(found.items()))

    async def _counted(self, target: Point) -> AsyncIterator[Sequence[Entry]]:
        async for page in self._pages(target):
            yield page
            old = self.so_far
            count = old.entries + len(page)
            self.so_far = Recovered(False, count, old.from_revision, old.revision, old.epoch)

    async def _pages(self, target: Point) -> AsyncIterator[Sequence[Entry]]:
        """The whole content of the board, without the entries of a barrier."""
        async for page in archived_pages(self._archive, target):
            # The service that asked has given up. Put back, they would refuse the commits of
            # their agents until they expire.
            found = [e for e in page.entries if not e.key.startswith(_BARRIERS)]
            if found:
                yield found
