"""The boards that one process has open, by name: opened once, ended once, and bounded in number.

Nothing here checks rights: `server/requests.py`, the only way in, does.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from blackboard.client.cancellation import SharedCalls, finish
from blackboard.engines.base import VoteCounts
from blackboard.errors import BlackboardError, LimitExceeded, NoSuchBoard, Unavailable
from blackboard.server.archiver import ArchiveStatistics
from blackboard.server.continuity import go_above
from blackboard.server.host import Host
from blackboard.server.open_board import OpenBoard
from blackboard.server.overload.charges import ChargeStatistics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweeperStatistics:
    """The work of this process's sweeper since it started."""

    rounds: int = 0
    """Passes over all boards that are open here."""
    expired: int = 0
    """Expired entries and leases that it removed."""
    refused: int = 0
    """Removals that were refused, because the lease or entry was renewed in time, or another
    process had removed it already."""


@dataclass(frozen=True, slots=True)
class ServiceStatistics:
    """A snapshot for people and for metrics. Counts start at zero with the process."""

    boards: int
    watchers: int
    commits: int
    batches: int
    refused: int
    archive: ArchiveStatistics | None = None
    """None without an archive."""
    lag_ms: float = 0
    backlog_bytes: int = 0
    sweeper: SweeperStatistics = SweeperStatistics()
    votes: VoteCounts | None = None
    """None without lock masters."""
    charges: ChargeStatistics = field(default_factory=ChargeStatistics)
    """Charges for requests that came over connections. Programs that use the service in their own
    process are not charged."""


class Closing(Protocol):
    """Background work that is closed together with the boards."""

    async def aclose(self) -> None:
        """Cancel the work in progress."""


class Boards:
    """The open boards of a host. Iterating yields the boards that are open now."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._limits = host.limits.boards
        self._open: dict[str, OpenBoard] = {}
        self._openers: dict[str, str | None] = {}
        """The account that opened, or is opening, each board; None = the service itself."""
        self._opening = SharedCalls()
        """Concurrent calls share one opening, so the first hundred commits of a board open it
        once."""
        self.recoveries: Closing | None = None
        """The recoveries of this process (`Recoveries.of`); None until the first one is
        requested."""
        self.redactions: Closing | None = None
        """The redactions of this process (`Redactions.of`); None until the first one is
        requested."""

    def __iter__(self) -> Iterator[OpenBoard]:
        return iter(list(self._open.values()))

    def get(self, name: str) -> OpenBoard | None:
        """The board if it is already open, else None."""
        return self._open.get(name)

    async def find(self, name: str, opener: str | None = None) -> OpenBoard | None:
        """The board, opened if necessary; None if it does not exist. It is not created. Errors: as
        for `use`."""
        found = self._open.get(name)
        if found is None and await self.host.exists(name):
            return await self.use(name, opener)
        return found

    async def exists(self, name: str) -> bool:
        """Whether the board is open here or exists (`Host.exists`)."""
        return name in self._open or await self.host.exists(name)

    async def use(self, name: str, opener: str | None = None, *, again: bool = False) -> OpenBoard:
        """Open a board, and create it if it does not exist.

        `opener` is the account for which it is opened; None = the service itself. With `again`, a
        removed board is created as a new, different board.
        Errors: NoSuchBoard for a removed board without `again`; LimitExceeded above BOARDS_MAX
        boards on the engine or open in this process, or above BOARDS_PER_PRINCIPAL_MAX boards that
        `opener` opened first, so that one account cannot use up all of them.
        """
        found = self._open.get(name)
        if found is not None:
            return found
        self._check_stays(name)
        if name not in self._openers:
            self._check_room(opener)
            self._openers[name] = opener
        return await self._opening.call((name, again), lambda: self._begin(name, again))

    async def _begin(self, name: str, again: bool) -> OpenBoard:
        try:
            await self.check_new(name)
            if again:
                await self.host.finish_removal(name)
            await self.host.store.open(name, again=again)
            self._check_stays(name)
            await self._go_above(name)
        except BaseException:
            if name not in self._open:
                self._openers.pop(name, None)
            raise
        # Concurrent calls may differ in `again`. All of them get the board of the first call.
        opened = self._open.setdefault(name, OpenBoard(self.host, name))
        if self.host.archiver is not None and not self.host.draining:
            self.host.archiver.follow(name)
        return opened

    def _check_stays(self, name: str) -> None:
        if name in self.host.removing:
            raise Unavailable(what=f"board {name}", reason="it is being removed")

    async def _go_above(self, name: str) -> None:
        """Make a board continue above its archived revisions. If the archive is unavailable, the
        board can be used anyway, and its archiver checks later."""
        archive = self.host.archive
        if archive is None:
            return
        try:
            await go_above(self.host.store, archive, name)
            if (lost := await archive.lost(name)) is not None:
                self.host.lost[name] = lost
        except BlackboardError as error:
            log.warning("board %s cannot be compared with its archive: %s", name, error)

    async def remove(self, name: str) -> None:
        """Remove a board and everything that is stored of it, except what branches share.

        All users of the board get NoSuchBoard. The engine removes it atomically: after a crash the
        board either exists or does not. What is left outside the engine is removed by repeating
        `remove`, by the next search for lost boards, or by the next board of this name.
        Errors: NoSuchBoard if the board does not exist; Unavailable: it may have been removed.
        Cancellation: the removal continues; CancelledError is raised when it is done, or after
        FINISH_TIMEOUT_MS.
        """
        await finish(self._remove(name))

    async def _remove(self, name: str) -> None:
        self._check_stays(name)
        host = self.host
        host.removing.add(name)
        try:
            if not await self.exists(name) and await host.store.removed(name) is None:
                raise NoSuchBoard(name)
            mark = None if host.archive is None else await host.archive.mark(name)
            await self.let_go(name, NoSuchBoard(name))
            await host.store.remove(name, above=0 if mark is None else mark.revision)
            await host.finish_removal(name)
        finally:
            host.removing.discard(name)

    async def let_go(self, name: str, error: BlackboardError) -> None:
        """Stop serving a board. Its watchers get `error`."""
        opened = self._open.pop(name, None)
        self._openers.pop(name, None)
        self.host.lost.pop(name, None)
        if self.host.archiver is not None:
            await self.host.archiver.unfollow(name)
        if opened is not None:
            await opened.end(error)

    async def check_new(self, name: str) -> None:
        """Errors: LimitExceeded when the engine has its maximum of boards already."""
        if await self.host.store.exists(name):
            return
        count = len(await self.host.store.boards()) + 1
        self._check_count(count)

    def _check_room(self, opener: str | None) -> None:
        self._check_count(len(self._openers) + 1)
        mine = list(self._openers.values()).count(opener) + 1
        share = self._limits.boards_per_principal_max
        if opener is not None and mine > share:
            raise LimitExceeded("BOARDS_PER_PRINCIPAL_MAX", mine, share)

    def _check_count(self, count: int) -> None:
        if count > self._limits.boards_max:
            raise LimitExceeded("BOARDS_MAX", count, self._limits.boards_max)

    def statistics(self) -> ServiceStatistics:
        """A snapshot of this process's counters."""
        host = self.host
        counts = [board.queue.counts for board in self]
        return ServiceStatistics(
            boards=len(self._open),
            watchers=sum(board.feed.watchers for board in self),
            commits=sum(count.commits for count in counts),
            batches=sum(count.batches for count in counts),
            refused=sum(count.refused for count in counts),
            archive=None if host.archiver is None else host.archiver.statistics(),
            lag_ms=host.load.lag_ms,
            backlog_bytes=host.load.backlog_bytes,
            votes=None if host.lock_masters is None else host.lock_masters.counts(),
            charges=host.charges.statistics(),
        )

    async def settled(self) -> None:
        """Wait until every commit that is now on its way to an engine has an outcome."""
        for board in self:
            await board.queue.settled()

    async def aclose(self) -> None:
        """Carry out the waiting commits, end the feeds, and close the engine."""
        self.host.draining = True
        try:
            await self._opening.settled()
            await self._end()
        finally:
            await self.host.aclose()

    async def _end(self) -> None:
        host = self.host
        if host.documents is not None:
            await host.documents.aclose()
        await host.revocations.aclose()
        await host.audit.aclose()
        await host.imports.aclose()
        for deeds in (self.recoveries, self.redactions):
            if deeds is not None:
                await deeds.aclose()
        for board in self:
            await board.queue.aclose()
            await board.feed.aclose()
