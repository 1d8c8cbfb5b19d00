"""The parts that the boards of one process share: the engine, the archive, access control, and the
counters.

The state of a single board is in `server/boards.py`.
"""

import logging
import time
from collections.abc import Container, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace as with_fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from blackboard.archive.base import Archive
from blackboard.client.cancellation import SharedCalls
from blackboard.core.access import (
    ACCESS_BOARD,
    AUDIT_BOARD,
    Principal,
    TokenRequest,
    is_reserved,
    issued,
)
from blackboard.core.checkpoints import ORIGIN_KEY, Lost, LostBoard
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import EngineFacts, Store, VoteCounts
from blackboard.engines.disk import DiskSpace
from blackboard.errors import BlackboardError, EngineRefused, InvalidRequest, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.server.archiver import Archiver, ArchiveStatistics
from blackboard.server.backups.follow import BackupFollower, BackupStatistics
from blackboard.server.checkpoints.imports import Imports
from blackboard.server.commit_queue import Load
from blackboard.server.continuity import loss_message
from blackboard.server.documents.rooms import Documents
from blackboard.server.latency import Latencies
from blackboard.server.overload.accounts import BegunBoards, WatchShares
from blackboard.server.overload.charges import Charges, ChargeStatistics, Shares
from blackboard.server.overload.rate_limits import Meters, Rates
from blackboard.server.security.audit import Audit
from blackboard.server.security.revocations import Permits, Revocations
from blackboard.units import Milliseconds, Revision

if TYPE_CHECKING:
    from blackboard.engines.redis.redlock import LockMasters

log = logging.getLogger(__name__)
_REVOCATION_ARCHIVED_MS: Final = 5_000
"""How long a revocation waits for the archive, which takes a few milliseconds if it is
available."""


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
    backup: BackupStatistics | None = None
    """None if no backup is followed."""
    lag_ms: float = 0
    backlog_bytes: int = 0
    sweeper: SweeperStatistics = SweeperStatistics()
    votes: VoteCounts | None = None
    """None without lock masters."""
    charges: ChargeStatistics = field(default_factory=ChargeStatistics)
    """Charges for requests that came over connections. Programs that use the service in their own
    process are not charged."""
    latencies: Latencies = field(default_factory=Latencies)
    """How long commits, engine calls, deliveries and requests took."""
    started_s: float = 0
    """When this process began, in seconds since 1970."""
    lost_boards: int = 0
    """Boards of which the engine lost revisions that were not recovered yet."""
    disk: DiskSpace | None = None
    """The room where the data directory is; None if this service has none."""


class Signer(Protocol):
    """Signs a token: `integrity.tokens.issue` with the secret of a service."""

    def __call__(
        self, principal: Principal, ttl_ms: Milliseconds, *, issuer: Principal | None
    ) -> str: ...


@dataclass
class Host:
    """The engine and the archive of one process, and whatever else all of its boards use."""

    store: Store
    lock_masters: "LockMasters | None" = None
    draining: bool = False
    archive: Archive | None = None
    """Where the history of the boards is stored; None: history cannot be read."""
    rates: Rates = field(default_factory=Rates)
    """The rate limits of each principal."""
    limits: Limits = DEFAULT
    lost: dict[str, Lost] = field(default_factory=dict)
    """The known losses of the engine, by board, until they are recovered."""
    removing: set[str] = field(default_factory=set)
    """Boards that are being removed now."""
    signer: Signer | None = None
    """Signs tokens; None: only a holder of the secret can make one."""
    directory: Path | None = None
    """Where this service keeps its files, if it is one with a directory of its own."""
    started_s: float = field(default_factory=time.time)
    """When it began, in seconds since 1970."""
    latencies: Latencies = field(default_factory=Latencies)
    _facts: EngineFacts | None = None
    _refused: EngineRefused | None = None

    def __post_init__(self) -> None:
        self.load = Load(self.limits)
        self.shares = Shares(self.limits)
        self.charges = Charges(limits=self.limits)
        self.meters = Meters(self.rates, self.limits)
        self.revocations = Revocations(self.store, self.limits)
        self.permits = Permits(self.store, self.revocations)
        self.audit = Audit(self.store, self.limits)
        if isinstance(self.store, SealedStore):
            self.store.keys.made = partial(self.audit.note_service, "make_key")
            self.store.keys.scrubbed = self._note_scrub
        self.imports = Imports(self.store, self.limits)
        self.watches = WatchShares(self.limits)
        self.begun = BegunBoards(self.store, self.limits)
        self._looks = SharedCalls()
        """Shares queries of the archive between concurrent calls. Queries of the engine are not
        shared: a shared answer may be older than the call, and could miss a board that was just
        created."""
        self.archiver: Archiver | None = None
        """Appends the log of each board to the archive."""
        if self.archive is not None:
            self.archiver = Archiver(self.store, self.archive, self.limits)
            self.revocations.archived = self._archived_revocation
            self.audit.written = partial(self._archive_soon, AUDIT_BOARD)
        self.backup: BackupFollower | None = None
        """Ships the history of the boards to another place; None if no backup is followed."""
        self.documents: Documents | None = None
        """The documents that are open here; None until a service can link to their boards."""

    def issue(self, issuer: Principal, request: TokenRequest) -> str:
        """Sign a token. Errors: InvalidRequest, also when this service signs none."""
        if self.signer is None:
            reason = "this service signs no tokens: make one where its secret is"
            raise InvalidRequest("service", reason)
        return self.signer(issued(issuer, request), request.ttl_ms, issuer=issuer)

    def _archive_soon(self, own: str) -> None:
        """Make the archiver look at a board of the service's own, which has changed."""
        if self.archiver is not None and not self.archiver.is_closed:
            self.archiver.follow(own)
            self.archiver.poke(own)

    async def _archived_revocation(self, revision: Revision) -> None:
        """Wait until a revocation is archived. If the archive is unavailable, the revocation is in
        force all the same."""
        assert self.archiver is not None
        self._archive_soon(ACCESS_BOARD)
        try:
            await self.archiver.reached(ACCESS_BOARD, revision, _REVOCATION_ARCHIVED_MS)
        except Unavailable as error:
            log.warning("a revocation lies in the engine alone until it is archived: %s", error)

    async def look(self) -> None:
        """As `look_at_engine`; then compare the engine's boards with those of the archive."""
        await self.look_at_engine()
        await self._look_for_lost()

    async def look_at_engine(self) -> None:
        """Ask the engine for its settings, which may have been changed while it runs.

        Errors: EngineRefused: nothing is served until a later check succeeds. InvalidRequest when
        two lock masters are the same server. Unavailable; Corrupt.
        """
        try:
            facts = await self.store.facts()
        except EngineRefused as error:
            self._refused = error
            raise
        self._refused = None
        found = () if self.lock_masters is None else await self.lock_masters.check()
        self._facts = with_fields(facts, warnings=facts.warnings + found)

    async def _look_for_lost(self) -> None:
        """Find the archived boards that the engine does not have at all."""
        if self.archive is None:
            return
        try:
            there = set(await self.store.boards())
            for name in await self.archive.boards():
                if name in there or name in self.removing or is_reserved(name):
                    continue
                # Its removal ended between the engine's step and that of the archive.
                if await self.store.removed(name) is not None:
                    await self.finish_removal(name)
                elif await self.archive.holds(name):
                    mark = await self.archive.mark(name)
                    through = 0 if mark is None else mark.revision
                    self.lost.setdefault(name, Lost(0, through, through))
            await self._forget_recovered(there)
            await self.archive.sweep()
        except BlackboardError as error:
            log.warning("the archive cannot be compared with the engine: %s", error)

    async def _forget_recovered(self, there: Container[str]) -> None:
        """Forget the losses that another process recovered, and those of boards that it removed."""
        for name, known in list(self.lost.items()):
            with suppress(BlackboardError):  # it stays lost until that can be told
                is_over = await (self._has_all(name) if name in there else self._was_removed(name))
                # What was found out about it in the meantime is newer.
                if is_over and self.lost.get(name) is known:
                    del self.lost[name]

    async def _was_removed(self, name: str) -> bool:
        return await self.store.removed(name) is not None

    async def _has_all(self, name: str) -> bool:
        """Whether the engine has all of a board that it ever had."""
        assert self.archive is not None
        mark = await self.archive.mark(name)
        # Until the archive has the engine's epoch, it does not know of a loss that began it.
        reading = await self.store.read(name, [ORIGIN_KEY])
        is_known = mark is not None and mark.epoch.id == reading.epoch
        return is_known and await self.archive.lost(name) is None

    async def lost_boards(self) -> Sequence[LostBoard]:
        """Boards whose lost revisions the archive still has, sorted by name. Boards that were set
        apart are listed until they are recovered. Errors: Unavailable."""
        if self.archive is None:
            return []
        # Not taken from `self.lost`: another process may have recovered or removed them meanwhile.
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
        """Audit which master key this service uses, if it has one."""
        if isinstance(self.store, SealedStore):
            self.audit.note_service("use_key", "", f"master key {self.store.keys.master}")

    def _note_scrub(self, left: str) -> None:
        """Audit whether the engine's files still contain destroyed data keys."""
        self.audit.note_service("scrub_keys", "", left or "no live file holds what was replaced")

    def facts(self) -> EngineFacts:
        """The facts about the engine as of the last check."""
        assert self._facts is not None, "the service was not started"
        leaves_values = self.archive is not None and self.archive.leaves_values
        lost = tuple(
            loss_message(name, found, leaves_values=leaves_values)
            for name, found in sorted(self.lost.items())
        )
        behind = () if self.backup is None else tuple(self.backup.warnings.values())
        return with_fields(self._facts, warnings=self._facts.warnings + lost + behind)

    @property
    def level(self) -> str:
        """The level of the engine's acknowledgements at the last check. Every commit reads it."""
        assert self._facts is not None, "the service was not started"
        return self._facts.level

    def check_serving(self) -> None:
        """Errors: Unavailable while stopping; EngineRefused when the engine would lose data."""
        if self.draining:
            raise Unavailable(what="service", reason="it is stopping")
        if self._refused is not None:
            # One error for all would share its traceback among tasks.
            raise EngineRefused(**self._refused.fields())

    async def exists(self, name: str) -> bool:
        """Whether the board exists: in the engine, or in the archive of an engine that lost it."""
        if await self.store.exists(name):
            return True
        # What a removal has not cleared from the archive yet is no board that the engine lost.
        if self.archive is None or await self.store.removed(name) is not None:
            return False
        holds = self.archive.holds
        return await self._looks.call(name, lambda: holds(name))

    async def finish_removal(self, name: str) -> None:
        """If the engine has removed the board, remove what is left of it elsewhere."""
        if await self.store.removed(name) is not None:
            await self.clear_past(name)
            await self.begun.forget(name)

    async def clear_past(self, name: str) -> None:
        """As `finish_removal`, but leave the record of the account that began the board: it may be
        of the next board of that name."""
        if await self.store.removed(name) is None:
            return
        is_shared = False
        if self.archive is not None:
            is_shared = await self.archive.remove(name, keep=await self.store.boards())
        # A branch that shares the history reads it with these keys.
        if isinstance(self.store, SealedStore) and not is_shared:
            await self.store.keys.forget(name)

    async def aclose(self) -> None:
        """Close everything else after the boards, and the engine last."""
        # From its end to its beginning, each also after an error: nothing stays in use.
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self.store.aclose)
            if self.archiver is not None:
                closing.push_async_callback(self.archiver.archive.aclose)
            # Stopped before the archiver, finished after it: it ships what that adds last.
            if self.backup is not None:
                closing.push_async_callback(self.backup.finish)
            if self.archiver is not None:
                closing.push_async_callback(self.archiver.aclose)
            if self.backup is not None:
                closing.push_async_callback(self.backup.stop)
            if self.lock_masters is not None:
                closing.push_async_callback(self.lock_masters.aclose)
            await self._looks.settled()
