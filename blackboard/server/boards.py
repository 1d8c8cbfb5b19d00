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
from blackboard.limits import BOARDS_MAX, BOARDS_PER_PRINCIPAL_MAX
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
    """Times that it went over all boards open here."""
    expired: int = 0
    """Entries and leases that it ended."""
    refused: int = 0
    """Those that it came too late for: renewed, or ended by another process."""


@dataclass(frozen=True, slots=True)
class ServiceStatistics:
    """A snapshot for people and for metrics; the counts are since the process started."""

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
    """Of what came over connections; who uses the service in its own process pays for nothing."""


class Closing(Protocol):
    """What ends with the boards."""

    async def aclose(self) -> None:
        """Give up what is under way."""


class Boards:
    """The boards that are open on a host. Iterating gives those that are open now."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._open: dict[str, OpenBoard] = {}
        self._openers: dict[str, str | None] = {}
        """On whose account each board was opened, or is being opened; None = the service's own."""
        self._opening = SharedCalls()
        """So that the first hundred commits of a board open it once."""
        self.recoveries: Closing | None = None
        """Those that this process was asked for (`Recoveries.of`); None until it was."""
        self.redactions: Closing | None = None
        """Those of this process (`Redactions.of`); None until it was asked for one."""

    def __iter__(self) -> Iterator[OpenBoard]:
        return iter(list(self._open.values()))

    def get(self, name: str) -> OpenBoard | None:
        """A board that is open already; else None."""
        return self._open.get(name)

    async def find(self, name: str, opener: str | None = None) -> OpenBoard | None:
        """A board; None if there is no such board, which is not created. Errors: as of `use`."""
        found = self._open.get(name)
        if found is None and await self.host.exists(name):
            return await self.use(name, opener)
        return found

    async def exists(self, name: str) -> bool:
        """Whether it is open, or `Host.exists`."""
        return name in self._open or await self.host.exists(name)

    async def use(self, name: str, opener: str | None = None, *, again: bool = False) -> OpenBoard:
        """A board, which is created if it does not exist.

        `opener` is the principal on whose account it is opened; None = the service's own. A board
        that was removed begins `again`, as another one.
        Errors: NoSuchBoard for one that was removed, without `again`; LimitExceeded above
        BOARDS_MAX boards on the engine, or open in this process, or above BOARDS_PER_PRINCIPAL_MAX
        that `opener` was the first to use: nobody takes all of them.
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
        # One call began the board `again`, and another did not: the first one's is everybody's.
        opened = self._open.setdefault(name, OpenBoard(self.host, name))
        if self.host.archiver is not None and not self.host.draining:
            self.host.archiver.follow(name)
        return opened

    def _check_stays(self, name: str) -> None:
        if name in self.host.removing:
            raise Unavailable(what=f"board {name}", reason="it is being removed")

    async def _go_above(self, name: str) -> None:
        """Let a board continue above its archived revisions. If the archive is unavailable, the
        board can be used anyway: its archiver checks later."""
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
        """Remove a board, and what is kept of it anywhere but for what branches share.

        All who use it get NoSuchBoard. The engine's part is atomic: after a crash there is the
        board or there is none, and `remove` again does the rest, as does the next look at what was
        lost and the next board of this name.
        Errors: NoSuchBoard when there is none; Unavailable: perhaps removed.
        Cancellation: raised when it is done, or after FINISH_TIMEOUT_MS.
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
        """Serve a board no longer: its watchers get `error`."""
        opened = self._open.pop(name, None)
        self._openers.pop(name, None)
        self.host.lost.pop(name, None)
        if self.host.archiver is not None:
            await self.host.archiver.unfollow(name)
        if opened is not None:
            await opened.end(error)

    async def check_new(self, name: str) -> None:
        """Errors: LimitExceeded when the board would be one more than the engine may hold."""
        if await self.host.store.exists(name):
            return
        count = len(await self.host.store.boards()) + 1
        if count > BOARDS_MAX:
            raise LimitExceeded("BOARDS_MAX", count, BOARDS_MAX)

    def _check_room(self, opener: str | None) -> None:
        count = len(self._openers) + 1
        if count > BOARDS_MAX:
            raise LimitExceeded("BOARDS_MAX", count, BOARDS_MAX)
        mine = list(self._openers.values()).count(opener) + 1
        if opener is not None and mine > BOARDS_PER_PRINCIPAL_MAX:
            limit = "BOARDS_PER_PRINCIPAL_MAX"
            raise LimitExceeded(limit, mine, BOARDS_PER_PRINCIPAL_MAX)

    def statistics(self) -> ServiceStatistics:
        """A snapshot of what this process does and did."""
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
        """Wait until every commit has its outcome that is on its way to an engine now."""
        for board in self:
            await board.queue.settled()

    async def aclose(self) -> None:
        """Carry out the commits that wait, end the feeds, close the engine."""
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
