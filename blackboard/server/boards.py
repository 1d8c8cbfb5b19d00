"""The open boards of one process: a commit queue and a feed for each.

Nothing here checks rights: `server/requests.py`, the only way in, does.

Commits of the service itself: the records of the namespace `system`.

Invariants
- each commit has its own incarnation, so that commits of several services or tasks are never
  mistaken for retries of each other.
- an unknown outcome is resolved by sending the same commit again, at most SYSTEM_TRIES times.
"""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from blackboard.archive.base import Archive
from blackboard.client.cancellation import finish
from blackboard.core.access import is_reserved
from blackboard.core.checkpoints import Lost, LostBoard
from blackboard.core.commit import Commit, CommitId, Committed, Condition, Head, Op
from blackboard.core.entry_digest import SALT_BYTES
from blackboard.core.model import Outcome
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import EngineFacts, Store, VoteCounts
from blackboard.errors import (
    AttemptTooOld,
    BlackboardError,
    EngineRefused,
    LimitExceeded,
    NoSuchBoard,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from blackboard.limits import BOARDS_MAX, BOARDS_PER_PRINCIPAL_MAX, LANES_MAX
from blackboard.server import redlock_votes as quorum
from blackboard.server.accounts import BegunBoards, WatchShares
from blackboard.server.archiver import Archiver, ArchiveStatistics
from blackboard.server.checkpoints.imports import Imports
from blackboard.server.commit_queue import CommitQueue, Load
from blackboard.server.continuity import go_above, told
from blackboard.server.documents.rooms import Documents
from blackboard.server.feed import Feed
from blackboard.server.overload.charges import Charges, ChargeStatistics
from blackboard.server.overload.fair_share import Shares
from blackboard.server.overload.rate_limits import Meters, Rates
from blackboard.server.security.audit import AUDIT_BOARD, Audit
from blackboard.server.security.revocations import ACCESS_BOARD, Permit, Permits, Revocations
from blackboard.units import Revision
from blackboard.wire.codec import SYSTEM_AGENT, Prepared

if TYPE_CHECKING:
    from blackboard.engines.redis.redlock import LockMasters

log = logging.getLogger(__name__)
_REVOCATION_ARCHIVED_MS: Final = 5_000
"""How long whoever revokes waits for the archive: it takes a few milliseconds unless it is away."""


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
    """What a host ends with itself."""

    async def aclose(self) -> None:
        """Give up what is under way."""


@dataclass(frozen=True, slots=True)
class OpenBoard:
    """A board that this process serves."""

    queue: CommitQueue
    feed: Feed


@dataclass
class Boards:
    """An engine and the boards open on it."""

    store: Store
    lock_masters: "LockMasters | None" = None
    draining: bool = False
    archive: Archive | None = None
    """Where the past of the boards is kept; without, nobody can look back."""
    rates: Rates = field(default_factory=Rates)
    """What each principal may ask for."""
    _boards: dict[str, OpenBoard] = field(default_factory=dict)
    _openers: dict[str, str | None] = field(default_factory=dict)
    _facts: EngineFacts | None = None
    _lost: dict[str, Lost] = field(default_factory=dict)
    _refused: EngineRefused | None = None
    _removing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.load = Load()
        self.shares = Shares()
        self.charges = Charges()
        self.meters = Meters(self.rates)
        self.revocations = Revocations(self.store)
        self._permits = Permits(self.store, self.revocations)
        self.audit = Audit(self.store)
        if isinstance(self.store, SealedStore):
            self.store.keys.made = partial(self.audit.note_service, "make_key")
            self.store.keys.scrubbed = self._note_scrub
        self.imports = Imports(self.store)
        self.watches = WatchShares()
        self.begun = BegunBoards(self.store)
        self.recoveries: Closing | None = None
        """Those that this process was asked for (`Recoveries.of`); None until it was."""
        self.redactions: Closing | None = None
        """Those of this process (`Redactions.of`); None until it was asked for one."""
        self.archiver = None if self.archive is None else Archiver(self.store, self.archive)
        """What feeds the archive."""
        if self.archiver is not None:
            self.revocations.archived = self._archived_revocation
            self.audit.written = partial(self._archive_soon, AUDIT_BOARD)
        self.documents: Documents | None = None
        """Those open here; None until a service can give ways to their boards."""

    def _archive_soon(self, own: str) -> None:
        """Have what was written to a board of the service's own archived."""
        if self.archiver is not None and not self.archiver.is_closed:
            self.archiver.follow(own)
            self.archiver.poke(own)

    async def _archived_revocation(self, revision: Revision) -> None:
        """Wait until a revocation is archived; one that is not, as the archive is away, is in force
        all the same."""
        assert self.archiver is not None
        self._archive_soon(ACCESS_BOARD)
        try:
            await self.archiver.reached(ACCESS_BOARD, revision, _REVOCATION_ARCHIVED_MS)
        except Unavailable as error:
            log.warning("a revocation lies in the engine alone until it is archived: %s", error)

    async def look(self) -> None:
        """Ask the engine for its settings; somebody may have changed them under us.

        Errors: EngineRefused; from then on nothing is served until a later check succeeds.
        InvalidRequest when two lock masters are the same server.
        """
        try:
            facts = await self.store.facts()
        except EngineRefused as error:
            self._refused = error
            raise
        self._refused = None
        found = () if self.lock_masters is None else await self.lock_masters.check()
        self._facts = with_fields(facts, warnings=facts.warnings + found)
        await self._look_for_lost()

    async def _look_for_lost(self) -> None:
        """Find the boards that are archived and that the engine does not have at all."""
        if self.archive is None:
            return
        try:
            there = set(await self.store.boards())
            for name in await self.archive.boards():
                if name in there or name in self._removing or is_reserved(name):
                    continue
                if await self.store.removed(name) is not None:
                    await self.finish_removal(name)
                elif await self.archive.holds(name):
                    mark = await self.archive.mark(name)
                    through = 0 if mark is None else mark.revision
                    self._lost.setdefault(name, Lost(0, through, through))
            await self.archive.sweep()
        except BlackboardError as error:
            log.warning("the archive cannot be compared with the engine: %s", error)

    async def lost_boards(self) -> Sequence[LostBoard]:
        """Boards of which the archive has what the engine lost, by name; those that were set apart
        are among them until they are recovered. Errors: Unavailable."""
        if self.archive is None:
            return []
        there, found = set(await self.store.boards()), []
        for name in await self.archive.boards():
            if is_reserved(name) or await self.store.removed(name) is not None:
                continue
            if name in there:
                lost = await self.archive.lost(name)
                found += [] if lost is None else [LostBoard(name, lost.survived, lost.through)]
            elif await self.archive.holds(name) and (mark := await self.archive.mark(name)):
                found.append(LostBoard(name, 0, mark.revision, mark.called))
        return found

    def note_start(self) -> None:
        """Have it in the audit with which master key this service works, if it has one."""
        if isinstance(self.store, SealedStore):
            self.audit.note_service("use_key", "", f"master key {self.store.keys.master}")

    def _note_scrub(self, left: str) -> None:
        """Have it in the audit whether the engine's files still hold data keys that are gone."""
        self.audit.note_service("scrub_keys", "", left or "no live file holds what was replaced")

    def facts(self) -> EngineFacts:
        """The engine's facts as of the last check."""
        assert self._facts is not None, "the service was not started"
        lost = tuple(told(name, found) for name, found in sorted(self._lost.items()))
        return with_fields(self._facts, warnings=self._facts.warnings + lost)

    def note_recovered(self, name: str) -> None:
        """Nothing of this board is lost any more."""
        self._lost.pop(name, None)

    def check_serving(self) -> None:
        """Errors: Unavailable while stopping; EngineRefused when the engine would lose data."""
        if self.draining:
            raise Unavailable(what="service", reason="it is stopping")
        if self._refused is not None:
            raise EngineRefused(**self._refused.fields())

    async def head(self, board: str, opener: str | None = None) -> Head:
        """The head of `board`. See `use`."""
        await self.use(board, opener)
        return await self.store.open(board)

    def is_open(self, name: str) -> bool:
        """Whether this process serves the board already."""
        return name in self._boards

    def opened(self, name: str) -> OpenBoard:
        """The queue and the feed of a board that is open."""
        return self._boards[name]

    async def find(self, name: str, opener: str | None = None) -> OpenBoard | None:
        """The queue and the feed of a board; None if there is no such board, which is not created.

        Errors: as of `use`.
        """
        found = self._boards.get(name)
        if found is None and await self.exists(name):
            return await self.use(name, opener)
        return found

    async def exists(self, name: str) -> bool:
        """Whether there is such a board: in the engine, or in the archive of one that lost it."""
        if name in self._boards or await self.store.exists(name):
            return True
        if self.archive is None or await self.store.removed(name) is not None:
            return False
        return await self.archive.holds(name)

    async def use(self, name: str, opener: str | None = None, *, again: bool = False) -> OpenBoard:
        """The queue and the feed of a board, which is created if it does not exist.

        `opener` is the principal on whose account it is opened; None = the service's own. A board
        that was removed begins `again`, as another one.
        Errors: NoSuchBoard for one that was removed, without `again`; LimitExceeded above
        BOARDS_MAX boards on the engine, or open in this process, or above BOARDS_PER_PRINCIPAL_MAX
        that `opener` was the first to use: nobody takes all of them.
        """
        found = self._boards.get(name)
        if found is not None:
            return found
        self._check_stays(name)
        if name not in self._openers:
            self._check_room(opener)
            self._openers[name] = opener
        try:
            await self.check_new(name)
            if again:
                await self.finish_removal(name)
            await self.store.open(name, again=again)
            self._check_stays(name)
            await self._go_above(name)
        except BaseException:
            if name not in self._boards:
                self._openers.pop(name, None)
            raise
        queue = CommitQueue(
            self.store, name, self.load, self.revocations.recheck, self._permits.commit
        )
        opened = OpenBoard(queue, Feed(self.store, name, self.archive))
        if self.archiver is not None and not self.draining:
            self.archiver.follow(name)
        return self._boards.setdefault(name, opened)

    def _check_stays(self, name: str) -> None:
        if name in self._removing:
            raise Unavailable(what=f"board {name}", reason="it is being removed")

    async def remove(self, name: str) -> None:
        """Remove a board, and what is kept of it anywhere but for what branches share.

        Whoever uses it gets NoSuchBoard. The engine's part is atomic: after a crash there is the
        board or there is none, and `remove` again does the rest, as does the next look at what was
        lost and the next board of this name.
        Errors: NoSuchBoard when there is none; Unavailable: perhaps removed.
        Cancellation: raised when it is done, or after FINISH_TIMEOUT_MS.
        """
        await finish(self._remove(name))

    async def _remove(self, name: str) -> None:
        self._check_stays(name)
        self._removing.add(name)
        try:
            if not await self.exists(name) and await self.store.removed(name) is None:
                raise NoSuchBoard(name)
            mark = None if self.archive is None else await self.archive.mark(name)
            await self.let_go(name, NoSuchBoard(name))
            await self.store.remove(name, above=0 if mark is None else mark.revision)
            await self.finish_removal(name)
        finally:
            self._removing.discard(name)

    async def let_go(self, name: str, error: BlackboardError) -> None:
        """Serve a board no longer: who watches it is told `error`."""
        opened = self._boards.pop(name, None)
        self._openers.pop(name, None)
        self._lost.pop(name, None)
        if self.archiver is not None:
            await self.archiver.unfollow(name)
        if opened is not None:
            await opened.feed.end(error)
        if self.documents is not None:
            await self.documents.end(name)
        if opened is not None:
            await opened.queue.aclose()

    async def finish_removal(self, name: str) -> None:
        """Remove what is left outside the engine of a board that it removed, if it did."""
        if await self.store.removed(name) is None:
            return
        is_shared = False
        if self.archive is not None:
            is_shared = await self.archive.remove(name, keep=await self.store.boards())
        if isinstance(self.store, SealedStore) and not is_shared:
            await self.store.keys.forget(name)
        await self.begun.forget(name)

    async def _go_above(self, name: str) -> None:
        """Let a board continue above its archived revisions. If the archive is unavailable, the
        board can be used anyway: its archiver checks later."""
        if self.archive is None:
            return
        try:
            await go_above(self.store, self.archive, name)
            if (lost := await self.archive.lost(name)) is not None:
                self._lost[name] = lost
        except BlackboardError as error:
            log.warning("board %s cannot be compared with its archive: %s", name, error)

    async def commit(
        self,
        board: str,
        commit: Commit,
        opener: str | None = None,
        permit: Permit | None = None,
    ) -> Outcome | BlackboardError:
        """Carry out one attempt of a commit, agreed with the lock masters if it is about leases.

        Without a `permit` it is the service's own. Errors: Unavailable when it was not applied for
        want of votes or of room.
        """
        opened = await self.use(board, opener)
        try:
            return await quorum.submit(opened.queue, salted(commit), self.lock_masters, permit)
        finally:
            if self.archiver is not None:
                self.archiver.poke(board)

    async def commit_past(
        self, board: str, prepared: Prepared, permit: Permit | None
    ) -> Outcome | BlackboardError:
        """Carry out a commit separately, bypassing the queue.

        Errors: Unavailable when certainly it was not applied.
        """
        for refusal in self.revocations.recheck([permit]).values():
            return refusal
        (outcome,) = await self._permits.commit(board, [prepared], [permit])
        return outcome

    async def check_new(self, name: str) -> None:
        """Errors: LimitExceeded when the board would be one more than the engine may hold."""
        if await self.store.exists(name):
            return
        count = len(await self.store.boards()) + 1
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

    def boards(self) -> Sequence[str]:
        """Names of the boards that this process serves."""
        return list(self._boards)

    def statistics(self) -> ServiceStatistics:
        """A snapshot of what this process does and did."""
        counts = [board.queue.counts for board in self._boards.values()]
        return ServiceStatistics(
            boards=len(self._boards),
            watchers=sum(board.feed.watchers for board in self._boards.values()),
            commits=sum(count.commits for count in counts),
            batches=sum(count.batches for count in counts),
            refused=sum(count.refused for count in counts),
            archive=None if self.archiver is None else self.archiver.statistics(),
            lag_ms=self.load.lag_ms,
            backlog_bytes=self.load.backlog_bytes,
            votes=None if self.lock_masters is None else self.lock_masters.counts(),
            charges=self.charges.statistics(),
        )

    async def settled(self) -> None:
        """Wait until every commit has its outcome that is on its way to an engine now."""
        for board in list(self._boards.values()):
            await board.queue.settled()

    async def aclose(self) -> None:
        """Carry out the commits that wait, end the feeds, close the engine."""
        self.draining = True
        try:
            await self._end()
        finally:
            await self.store.aclose()

    async def _end(self) -> None:
        if self.documents is not None:
            await self.documents.aclose()
        await self.revocations.aclose()
        await self.audit.aclose()
        await self.imports.aclose()
        for deeds in (self.recoveries, self.redactions):
            if deeds is not None:
                await deeds.aclose()
        for board in self._boards.values():
            await board.queue.aclose()
            await board.feed.aclose()
        if self.lock_masters is not None:
            await self.lock_masters.aclose()
        if self.archiver is not None:
            await self.archiver.aclose()
            await self.archiver.archive.aclose()


def salted(commit: Commit) -> Commit:
    """The commit with a new salt, on its way to an engine."""
    return replace(commit, salt=secrets.token_bytes(SALT_BYTES))


SYSTEM_TRIES: Final = 5


def system_id() -> CommitId:
    """A name for one commit of the service, unlike any other."""
    incarnation = secrets.token_hex(8)
    return CommitId(SYSTEM_AGENT, int(incarnation, 16) % LANES_MAX, incarnation, 0)


async def commit_as_system(
    host: Boards,
    board: str,
    ops: Sequence[Op],
    conditions: Sequence[Condition] = (),
    note: str = "",
) -> Committed:
    """Commit `ops` in the name of the service, in whichever epoch the board is.

    Errors: a Rejected: nothing changed. Unavailable; OutcomeUnknown: look whether it is there.
    """
    name = system_id()
    head = await host.head(board)
    since = head.revision
    commit = Commit(name, head.epoch.id, tuple(ops), tuple(conditions), note=note, known=since)
    failure: BlackboardError | None = None
    for _ in range(SYSTEM_TRIES):
        outcome = await host.commit(board, commit)
        if isinstance(outcome, Committed):
            return outcome
        failure = outcome
        if isinstance(outcome, StaleEpoch):
            commit = replace(commit, epoch=outcome.current)
        elif isinstance(outcome, OutcomeUnknown) and not outcome.final:
            commit = replace(commit, retry_since=since)
        elif isinstance(outcome, AttemptTooOld):  # only a first attempt gets this
            since = outcome.head
            commit = replace(commit, known=since)
        else:
            raise outcome
    raise failure or Unavailable(what=f"board {board}", reason="no answer")
