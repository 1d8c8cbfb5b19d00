"""The boards that one process has open, by name: opened once, ended once, and bounded in number.

An `OpenBoard` has the commit queue, feed, archiver and freeze of one board. `Boards.use` opens it,
and `end` closes it. On a board that has ended, every method that would change it raises the reason.
What all boards of a process share is in server/host.py.

Boards that nobody uses are closed, those first that were used longest ago, while more than
BOARDS_UNUSED_MAX are open. A request that began before that goes on with what it has: the engine
opens its part again, and the archiver follows the board with its next commit.

Nothing here checks rights: `server/requests.py`, the only way in, does.

Invariants
- Each commit of the service has its own incarnation, so that commits of several services or tasks
  are never mistaken for retries of each other.
- An unknown outcome is resolved by sending the same commit again, at most SYSTEM_TRIES times.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from blackboard.archive.base import Archive
from blackboard.client.cancellation import SharedCalls, finish
from blackboard.core.commit import (
    ABSENT,
    Commit,
    Committed,
    Condition,
    Delete,
    Entry,
    Head,
    KeyAt,
    LogPage,
    Op,
    Put,
    Reading,
)
from blackboard.core.fields import check_note
from blackboard.core.freeze import FROZEN_KEY, LAST_FREEZE_KEY, Freeze, freeze_in
from blackboard.core.model import Outcome
from blackboard.core.path import superseding_key
from blackboard.engines.base import Store, check_epoch, check_since, pages_of
from blackboard.engines.disk import space_of
from blackboard.errors import (
    AttemptTooOld,
    BlackboardError,
    Conflict,
    LimitExceeded,
    NoSuchBoard,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from blackboard.limits import INTEGER_MAX, LOG_ENTRIES_MAX, NOTE_BYTES_MAX
from blackboard.server import redlock_votes as quorum
from blackboard.server.archiver import Archiver, check_archived
from blackboard.server.commit_queue import CommitCounts, CommitQueue, salted, system_id
from blackboard.server.continuity import go_above
from blackboard.server.feed import Feed
from blackboard.server.host import Host, ServiceStatistics
from blackboard.server.security.refusals import Refusals
from blackboard.server.security.revocations import Permit
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import Prepared, encode_value, prepare

log = logging.getLogger(__name__)
SYSTEM_TRIES: Final = 5
_BEING_REMOVED: Final = "it is being removed"
_CLOSE_TRIES: Final = 3
"""Boards that are tried, if they are used just then, to make room for another one."""
_FREEZE_TRIES: Final = 5
"""Attempts to freeze or thaw, if others freeze or thaw the board between the read and the
commit."""


class OpenBoard:
    """One open board. `host` has what all boards of the process share."""

    def __init__(self, host: Host, name: str) -> None:
        self.host = host
        self.name = name
        self.queue = CommitQueue(host.store, name, host.load, host.permits, host.limits.commits)
        self.queue.latencies = host.latencies
        self.refusals = Refusals()
        self.queue.refused = self.refusals.note
        self.queue.decided = self._poke_archiver
        self.feed = Feed(host.store, name, host.archive, host.limits.watch)
        self.feed.delivered = host.latencies.deliveries
        self.last_use = 0
        """The count of uses of all boards when this one was used last."""
        self._submitted = 0
        self._ended: BlackboardError | None = None

    @property
    def store(self) -> Store:
        """Its engine."""
        return self.host.store

    @property
    def archive(self) -> Archive | None:
        """Where its history is stored; None: it has no archive."""
        return self.host.archive

    @property
    def archiver(self) -> Archiver:
        """The archiver, which feeds its archive. Errors: InvalidRequest if this service has no
        archive."""
        return check_archived(self.host.archiver)

    @property
    def uses(self) -> tuple[int, int]:
        """Another value whenever the board was used, also by a request that held it before."""
        return self.last_use, self._submitted

    @property
    def is_unused(self) -> bool:
        """Whether nobody watches it, and no commit is on its way."""
        return not (self.feed.watchers or self.queue.is_working)

    async def end(self, error: BlackboardError) -> None:
        """Stop serving the board: as `stop`; watchers get `error`, too."""
        await self.stop(error)
        await self.feed.end(error)

    async def stop(self, error: BlackboardError) -> None:
        """Refuse further commits with `error`, disconnect the peers of its documents, and carry out
        the queued commits. Until `resume`, if the board goes on after all."""
        # First, so that nothing new gets into the queue while it is emptied.
        self._ended = error
        if self.host.documents is not None:
            await self.host.documents.end(self.name)
        await self.queue.aclose()

    def resume(self) -> None:
        """Accept commits again, after `stop`. What was counted until then counts elsewhere."""
        self._ended = None
        self.queue.counts = CommitCounts()

    # --- its content ------------------------------------------------------------------------------

    async def head(self) -> Head:
        """The board's head."""
        return await self.store.open(self.name)

    async def read(self, keys: Sequence[Key]) -> Reading:
        """As `Store.read`."""
        return await self.store.read(self.name, keys)

    async def log(self, after: Revision, limit: int = LOG_ENTRIES_MAX) -> LogPage:
        """As `Store.log`."""
        return await self.store.log(self.name, after, limit=limit)

    def pages(self, prefix: Prefix) -> AsyncIterator[Reading]:
        """All entries below `prefix` ("" = the whole board), page by page. Each page is as of one
        revision; the next page may be as of another."""
        return pages_of(self.store, self.name, prefix)

    async def entries(self, prefix: Prefix) -> AsyncIterator[Entry]:
        """The same entries, one by one."""
        async for page in self.pages(prefix):
            for entry in page.entries:
                yield entry

    # --- commits ----------------------------------------------------------------------------------

    async def commit(
        self, commit: Commit, permit: Permit | None = None
    ) -> Outcome | BlackboardError:
        """Carry out one attempt at a commit. Operations on leases are first agreed with the lock
        masters.

        Without a `permit` it is a commit of the service. Errors: Unavailable when it was not
        applied for lack of votes or of room; the reason why the board ended.
        """
        return await self.submit(prepare(salted(commit)), permit)

    async def submit(self, prepared: Prepared, permit: Permit | None) -> Outcome | BlackboardError:
        """As `commit`, for a commit that is already salted and encoded."""
        self._check_open()
        self._submitted += 1
        masters = self.host.lock_masters
        if masters is None:
            return await self.queue.submit(prepared, permit)
        return await quorum.submit(self.queue, prepared, masters, permit)

    async def commit_past(
        self, prepared: Prepared, permit: Permit | None
    ) -> Outcome | BlackboardError:
        """Carry out a commit separately, bypassing the queue.

        Errors: Unavailable when it was certainly not applied; the reason why the board ended.
        """
        self._check_open()
        self._submitted += 1

        async def carry_out() -> Outcome | BlackboardError:
            for refusal in self.host.permits.recheck([permit]).values():
                return refusal
            try:
                (decision,) = await self.host.permits.commit(self.name, [prepared], [permit])
            finally:  # also after an error: it may have been applied
                self._poke_archiver(1)
            return decision

        return await self.queue.apart(carry_out())

    def _poke_archiver(self, commits: int) -> None:
        """Make the archiver look for new commits. A board that was removed has none."""
        if self.host.archiver is not None and self._ended is None:
            self.host.archiver.poke(self.name, commits)

    async def commit_as_system(
        self, ops: Sequence[Op], conditions: Sequence[Condition] = (), note: str = ""
    ) -> Committed:
        """Commit `ops` in the name of the service, in the board's present epoch.

        Errors: a Rejected: nothing changed, and nothing will. Unavailable; OutcomeUnknown: read the
        board to find out.
        """
        head = await self.head()
        since = head.revision
        commit = Commit(
            system_id(), head.epoch.id, tuple(ops), tuple(conditions), note=note, known=since
        )
        failure: BlackboardError | None = None
        doubt: OutcomeUnknown | None = None  # an attempt may have been applied, or arrive late
        for _ in range(SYSTEM_TRIES):
            outcome = await self._attempt(commit)
            if isinstance(outcome, Committed):
                return outcome
            failure = outcome
            if isinstance(
                outcome, StaleEpoch
            ):  # no attempt of the epoch before can arrive any more
                commit, doubt = replace(commit, epoch=outcome.current), None
            elif isinstance(outcome, OutcomeUnknown) and not outcome.final:
                commit, doubt = replace(commit, retry_since=since), outcome
            elif isinstance(outcome, AttemptTooOld):  # only a first attempt gets this
                since = outcome.head
                commit = replace(commit, known=since)
            else:
                if doubt is not None:
                    await self._supersede(commit, doubt)
                raise outcome
        # The doubt first: whatever the last attempt met, an earlier one may have been applied.
        raise doubt or failure or Unavailable(what=f"board {self.name}", reason="no answer")

    async def _attempt(self, commit: Commit) -> Outcome | BlackboardError:
        """As `commit`, with what it raises as the outcome: it says what became of this attempt, not
        of one before."""
        try:
            return await self.commit(commit)
        except BlackboardError as error:
            return error

    async def _supersede(self, refused: Commit, doubt: OutcomeUnknown) -> None:
        """Make sure that a delayed attempt at `refused` changes nothing: what refused the last one
        may be gone when it arrives. A later step of its lane supersedes it, as in
        client/writer.py. Errors: `doubt`, when that could not be committed."""
        name = replace(refused.id, step=refused.id.step + 1)
        op = Delete(superseding_key(refused.id.agent))
        mark = Commit(name, refused.epoch, (op,), note="after a refused retry", known=refused.known)
        for _ in range(SYSTEM_TRIES):
            outcome = await self._attempt(mark)
            # In another epoch the delayed attempt is refused as well.
            if isinstance(outcome, Committed | StaleEpoch):
                return
            if isinstance(outcome, AttemptTooOld):
                mark = replace(mark, known=outcome.head)
            elif isinstance(outcome, OutcomeUnknown) and not outcome.final:
                mark = replace(mark, retry_since=refused.known)
            else:
                break
        raise doubt

    def _check_open(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(**self._ended.fields())

    # --- its freeze: what a frozen board refuses is in core/freeze.py -----------------------------

    async def frozen(self) -> Freeze | None:
        """The board's freeze; None if it is not frozen."""
        for entry in (await self.read([FROZEN_KEY])).entries:
            return freeze_in(entry.value, entry.time_ms, entry.mod_revision)
        return None

    async def freeze(self, by: str, note: str, known: Revision | None = None) -> Freeze:
        """Freeze the board. If it is frozen already, nothing changes, and the existing freeze is
        returned.

        `known` is the revision at which the request was made: a copy of it that comes late, after a
        freeze since then was thawed, is a Conflict; after a restore, a loss, or the removal of the
        board that was meant, it is StaleEpoch. Errors: also InvalidRequest for an invalid note;
        Unavailable; OutcomeUnknown: ask again, which does no harm.
        """
        check_note(note)
        said = encode_value({"by": by, "note": note})
        # The second one outlives the thaw: by it a late copy of a request is recognised.
        puts = [Put(FROZEN_KEY, said), Put(LAST_FREEZE_KEY, said)]
        for _ in range(_FREEZE_TRIES):
            found = await self.frozen()
            if found is not None:
                return found
            # Only now: a repeat for a freeze that stands is answered, whatever came since.
            if known is not None:
                check_since(await self.head(), known)
            last = await self._last_freeze()
            if last is not None:
                _check_is_newest(last, known, ABSENT)
            conditions = [
                KeyAt(FROZEN_KEY, ABSENT),
                KeyAt(LAST_FREEZE_KEY, ABSENT if last is None else last.revision),
            ]
            told = _log_note(f"frozen by {by}", note)
            try:
                done = await self.commit_as_system(puts, conditions, told)
            except Conflict:
                continue
            return Freeze(by, note, done.time_ms, done.revision)
        raise Unavailable(f"board {self.name}", "others freeze and thaw it all the time")

    async def _last_freeze(self) -> Freeze | None:
        """The newest freeze, also if it was thawed; None if there was none."""
        for entry in (await self.read([LAST_FREEZE_KEY])).entries:
            return freeze_in(entry.value, entry.time_ms, entry.mod_revision)
        return None

    async def thaw(self, by: str, note: str, known: Revision | None = None) -> Freeze | None:
        """Thaw it; returns the freeze that this ended, None if there was none.

        `known` as in `freeze`: a freeze that began since then is not ended, but a Conflict. Errors:
        as of `freeze`.
        """
        check_note(note)
        for _ in range(_FREEZE_TRIES):
            found = await self.frozen()
            if found is None:
                return None
            _check_is_newest(found, known, found.revision)
            stands = KeyAt(FROZEN_KEY, found.revision)
            try:
                await self.commit_as_system(
                    [Delete(FROZEN_KEY)], [stands], _log_note(f"thawed by {by}", note)
                )
            except Conflict:
                continue
            return found
        raise Unavailable(f"board {self.name}", "others freeze and thaw it all the time")


def _check_is_newest(last: Freeze, known: Revision | None, actual: Revision) -> None:
    """Errors: Conflict, when the newest freeze began after `known`."""
    if known is not None and last.revision > known:
        by, at = last.by, last.revision
        raise Conflict(FROZEN_KEY, known, actual, by=by, at_revision=at, head=at)


def _log_note(what: str, note: str) -> str:
    """The note of the commit in the log."""
    text = f"{what}: {note}" if note else what
    # The cut may go through a character.
    return text.encode()[:NOTE_BYTES_MAX].decode(errors="ignore")


def _by_use(board: OpenBoard) -> int:
    return board.last_use


class BeforeClosing(Protocol):
    """What is done before an unused board is closed."""

    async def __call__(self, board: OpenBoard) -> Milliseconds | None:
        """Returns when the board must be opened again; None: no need."""


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
        self.before_closing: BeforeClosing | None = None
        self._uses = 0
        self._due_ms: dict[str, Milliseconds] = {}
        """When closed boards must be opened, because something of them expires."""
        self._closing: asyncio.Task[None] | None = None
        self._one_closes = asyncio.Lock()
        self._closed = CommitCounts()
        """The counts of boards that were open and are not any more."""

    def __iter__(self) -> Iterator[OpenBoard]:
        return iter(list(self._open.values()))

    def get(self, name: str) -> OpenBoard | None:
        """The board if it is already open, else None."""
        found = self._open.get(name)
        if found is not None:
            self._uses += 1
            found.last_use = self._uses
        return found

    async def find(self, name: str, opener: str | None = None) -> OpenBoard | None:
        """The board, opened if necessary; None if it does not exist. It is not created. Errors: as
        for `use`."""
        found = self.get(name)
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
        boards on the engine, above BOARDS_OPEN_MAX boards in use in this process, or above
        BOARDS_PER_PRINCIPAL_MAX boards in use that `opener` opened first, so that one account
        cannot use up all of them.
        """
        found = self.get(name)
        if found is not None:
            return found
        self._check_stays(name)
        if name not in self._openers:
            await self._make_room(opener)
            if (found := self.get(name)) is not None:
                return found
        # Asked again after the wait: another caller may be opening it by now, for its own account.
        if name not in self._openers:
            self._check_room(opener)
            self._openers[name] = opener
        return await self._opening.call((name, again), lambda: self._begin(name, opener, again))

    async def use_new(self, name: str, opener: str | None) -> None:
        """Open a board that was just made, so that its archive begins soon. If it cannot be opened
        now, it has been made all the same: then it is opened when it is used."""
        try:
            await self.use(name, opener)
        except BlackboardError as error:
            log.info("board %s was made, and cannot be opened now: %s", name, error)

    async def _begin(self, name: str, opener: str | None, again: bool) -> OpenBoard:
        try:
            await self.check_new(name)
            if again:
                # What a removed board left in the archive must not become the past of this one.
                await self.host.clear_past(name)
            await self.host.store.open(name, again=again)
            # It may have been removed while the engine opened it.
            self._check_stays(name)
            # Before anybody can commit, or an archived revision could be issued again.
            await self._go_above(name)
        except BaseException:
            # A call with another `again` may have opened it meanwhile: it keeps that opener.
            if name not in self._open:
                self._openers.pop(name, None)
            raise
        # Concurrent calls may differ in `again`. All of them get the board of the first call.
        opened = self._open.setdefault(name, OpenBoard(self.host, name))
        # A call that failed meanwhile, because it differs, has taken the opener away.
        self._openers.setdefault(name, opener)
        self.get(name)
        self._due_ms.pop(name, None)
        if self.host.archiver is not None and not self.host.draining:
            self.host.archiver.follow(name)
        self._close_soon()
        return opened

    # --- boards that nobody uses ------------------------------------------------------------------

    def _close_soon(self) -> None:
        is_running = self._closing is not None and not self._closing.done()
        if len(self._open) > self._limits.boards_unused_max and not is_running:
            self._closing = asyncio.create_task(self.close_unused(), name="close unused boards")

    async def _make_room(self, opener: str | None) -> None:
        """Before a board is opened: wait until unused boards are closed, if there are so many that
        the engine would close what is open here, or if one more would be refused. Errors:
        Unavailable, if the service is closed meanwhile."""
        is_crowded = len(self._open) >= 2 * self._limits.boards_unused_max
        if is_crowded and not self._archive_failures:  # it would be in vain
            self._close_soon()
            assert self._closing is not None
            # `wait` leaves the closing to the others if this caller is cancelled.
            await asyncio.wait([self._closing])
        is_full = len(self._openers) >= self._limits.boards_open_max
        has_its_share = self._share_of(opener) >= self._limits.boards_per_principal_max
        if is_full:
            await self._close_one(self)
        elif has_its_share:
            await self._close_one(b for b in self if self._openers.get(b.name) == opener)
        if self.host.draining and (is_crowded or is_full or has_its_share):
            raise Unavailable(what="service", reason="it is stopping")

    async def close_unused(self) -> None:
        """Close unused boards, while more than BOARDS_UNUSED_MAX boards are open. Errors: none; a
        board that cannot be closed stays open."""
        excess = max(0, len(self._open) - self._limits.boards_unused_max)
        unused = [board for board in sorted(self, key=_by_use) if board.is_unused]
        for board in unused[:excess]:  # one that is not archived yet goes next time, and no other
            failures = self._archive_failures
            if not self.host.draining:
                await self._close(board)
            if self._archive_failures > failures:  # each of the others would wait for it, too
                break

    async def _close_one(self, boards: Iterable[OpenBoard]) -> None:
        """Close the first unused one of `boards`, if there is one; wait until it is archived."""
        unused = [board for board in sorted(boards, key=_by_use) if board.is_unused]
        for board in unused[:_CLOSE_TRIES]:
            if self.host.archiver is not None:
                try:
                    revision = (await board.head()).revision
                    await self.host.archiver.reached(board.name, revision)
                except Unavailable:  # the others would wait for the archive as long
                    return
                except BlackboardError:  # such as a damaged archive: it stays open
                    continue
            await self._close(board)
            if board.name not in self._open:
                return

    async def _close(self, board: OpenBoard) -> None:
        async with self._one_closes:
            try:
                if board.is_unused and self._open.get(board.name) is board:
                    await self._close_unless_used(board)
            except BlackboardError as error:
                # An archive that is away fails every second, for hours perhaps.
                level = logging.WARNING if self._archive_failures <= 1 else logging.DEBUG
                log.log(level, "board %s stays open: %s", board.name, error)

    async def _close_unless_used(self, board: OpenBoard) -> None:
        name, archiver, uses = board.name, self.host.archiver, board.uses
        if archiver is not None and not archiver.is_at_rest(name):
            return
        due_ms = await self._next_due(board)
        if due_ms is not None and due_ms <= time.time_ns() // 1_000_000:
            return  # the sweeper has to do with it, or a freeze keeps it
        if archiver is not None and not await archiver.leave(name):
            return
        # From here on nothing waits, so nobody can begin to use the board before it is dropped.
        is_same = self._open.get(name) is board and board.uses == uses
        if not is_same or not board.is_unused or self.host.draining:
            # The archiver has let go of it above, but the board stays open.
            if archiver is not None and name in self._open:
                archiver.poke(name)
            return
        self._drop(name)
        if due_ms is not None:
            self._due_ms[name] = due_ms

    @property
    def _archive_failures(self) -> int:
        return 0 if self.host.archiver is None else self.host.archiver.failures

    async def _next_due(self, board: OpenBoard) -> Milliseconds | None:
        """When something of a board will expire, or has to be done; None: never."""
        wanted = None if self.before_closing is None else await self.before_closing(board)
        first = await self.host.store.due(board.name, limit=1, by_ms=INTEGER_MAX)
        times = [entry.expires_at_ms for entry in first.entries]
        times += [lease.until_ms for lease in (await self.host.store.leases(board.name)).leases]
        return min((each for each in [*times, wanted] if each is not None), default=None)

    def _drop(self, name: str) -> OpenBoard | None:
        """Forget an open board; what it counted stays."""
        self._openers.pop(name, None)
        self._due_ms.pop(name, None)
        opened = self._open.pop(name, None)
        if opened is not None:
            self._closed = self._closed.plus(opened.queue.counts)
        return opened

    async def open_due(self) -> None:
        """Open the closed boards of which something has expired. Errors: none; it is tried again
        next time."""
        now_ms = time.time_ns() // 1_000_000
        for name in [name for name, due_ms in self._due_ms.items() if due_ms <= now_ms]:
            try:
                await self.use(name)
            except NoSuchBoard:
                self._due_ms.pop(name, None)
            except BlackboardError as error:
                log.warning("board %s is not opened: %s", name, error)

    # --- boards that go ---------------------------------------------------------------------------

    def _check_stays(self, name: str) -> None:
        if name in self.host.removing:
            raise Unavailable(what=f"board {name}", reason=_BEING_REMOVED)

    async def _go_above(self, name: str) -> None:
        """Make a board continue above its archived revisions and those in the backup. If these are
        unavailable, the board can be used anyway, and its archiver checks later."""
        archive, backup = self.host.archive, self.host.backup
        try:
            if backup is not None:
                await backup.go_above(name)
            if archive is None:
                return
            # A loss of an earlier start stays known until it is recovered.
            lost = await go_above(self.host.store, archive, name) or await archive.lost(name)
            if lost is not None:
                self.host.lost[name] = lost
            else:
                self.host.lost.pop(name, None)  # another process recovered it
        except BlackboardError as error:
            log.warning("board %s cannot be compared with what is kept of it: %s", name, error)

    async def remove(self, name: str, epoch: str | None = None) -> None:
        """Remove a board and everything that is stored of it, except what branches share.

        All users of the board get NoSuchBoard. The engine removes it atomically: after a crash the
        board either exists or does not. What is left outside the engine is removed by repeating
        `remove`, by the next search for lost boards, or by the next board of this name.
        Errors: NoSuchBoard if the board does not exist; StaleEpoch if it is not in `epoch`
        ("" = there is none, None = any); Unavailable: it may have been removed; if not, its
        watchers go on.
        Cancellation: the removal continues; CancelledError is raised when it is done, or after
        FINISH_TIMEOUT_MS.
        """
        await finish(self._remove(name, epoch))

    async def _remove(self, name: str, epoch: str | None) -> None:
        self._check_stays(name)
        host = self.host
        # From here on nobody opens the board, so it gets no new users between the steps.
        host.removing.add(name)
        try:
            # Also a board that the engine has removed already: what it left elsewhere goes now.
            if not await self.exists(name) and await host.store.removed(name) is None:
                raise NoSuchBoard(name)
            # Before its users are sent away: a request that is refused must not disturb them.
            await self._check_epoch(name, epoch)
            # The next board of the name begins above what was archived, too.
            mark = None if host.archive is None else await host.archive.mark(name)
            # A process that was stopped until here must not take the next board of the name.
            above = 0 if mark is None else mark.revision
            opener = self._openers.get(name)
            opened = await self._withdraw(name, Unavailable(f"board {name}", _BEING_REMOVED))
            try:
                if host.archive is not None:  # a branch goes on with what only this board's log has
                    await host.archive.copy_values(name, if_shared=True)
                await host.store.remove(name, above=above, epoch=epoch)
            except BaseException:  # as on a full disk; it may have been removed all the same
                if opened is not None and await self._may_exist(name):
                    self._resume(opened, opener)
                else:
                    await self._let_watchers_go(name, opened, NoSuchBoard(name))
                raise
            await self._let_watchers_go(name, opened, NoSuchBoard(name))
            # Only after the engine has recorded the removal: without its record, what is left in
            # the archive would look like a board that the engine lost.
            await host.finish_removal(name)
        finally:
            host.removing.discard(name)

    async def _may_exist(self, name: str) -> bool:
        try:
            return await self.host.store.exists(name)
        except BlackboardError:  # if it is gone, the sweeper lets go of it
            return True

    async def _check_epoch(self, name: str, epoch: str | None) -> None:
        """Errors: StaleEpoch, when a board that exists is not in `epoch`."""
        if epoch is not None and await self.exists(name):
            check_epoch(await self.host.store.open(name), epoch)

    async def let_go(self, name: str, error: BlackboardError) -> None:
        """Stop serving a board that was removed. Its users get `error`."""
        await self._let_watchers_go(name, await self._withdraw(name, error), error)

    async def _withdraw(self, name: str, error: BlackboardError) -> OpenBoard | None:
        """Close a board, except to its watchers; others get `error`. Returns it if it was open."""
        opened = self._drop(name)
        if opened is not None:
            await opened.stop(error)
        if self.host.archiver is not None:
            await self.host.archiver.unfollow(name, error)
        return opened

    async def _let_watchers_go(
        self, name: str, opened: OpenBoard | None, error: BlackboardError
    ) -> None:
        self.host.lost.pop(name, None)
        if opened is not None:
            await opened.end(error)

    def _resume(self, opened: OpenBoard, opener: str | None) -> None:
        """Go on with a board that was withdrawn; nobody can have opened it meanwhile."""
        opened.resume()
        self._open[opened.name], self._openers[opened.name] = opened, opener
        if self.host.archiver is not None:
            self.host.archiver.follow(opened.name)

    async def check_new(self, name: str) -> None:
        """Errors: LimitExceeded when the engine has its maximum of boards already."""
        if await self.host.store.exists(name):
            return
        count = len(await self.host.store.boards()) + 1
        if count > self._limits.boards_max:
            raise LimitExceeded("BOARDS_MAX", count, self._limits.boards_max)

    def _share_of(self, opener: str | None) -> int:
        """How many boards an account opened that are open; the service itself has no share."""
        return 0 if opener is None else list(self._openers.values()).count(opener)

    def _check_room(self, opener: str | None) -> None:
        count, most = len(self._openers) + 1, self._limits.boards_open_max
        if count > most:
            raise LimitExceeded("BOARDS_OPEN_MAX", count, most)
        mine, share = self._share_of(opener) + 1, self._limits.boards_per_principal_max
        if mine > share:
            raise LimitExceeded("BOARDS_PER_PRINCIPAL_MAX", mine, share)

    def statistics(self) -> ServiceStatistics:
        """A snapshot of this process's counters."""
        host = self.host
        counts = [self._closed, *(board.queue.counts for board in self)]
        return ServiceStatistics(
            boards=len(self._open),
            watchers=sum(board.feed.watchers for board in self),
            commits=sum(count.commits for count in counts),
            batches=sum(count.batches for count in counts),
            refused=sum(count.refused for count in counts),
            archive=None if host.archiver is None else host.archiver.statistics(),
            backup=None if host.backup is None else host.backup.statistics(),
            lag_ms=host.load.lag_ms,
            backlog_bytes=host.load.backlog_bytes,
            votes=None if host.lock_masters is None else host.lock_masters.counts(),
            charges=host.charges.statistics(),
            latencies=host.latencies,
            started_s=host.started_s,
            lost_boards=len(host.lost),
            disk=None if host.directory is None else space_of(host.directory),
        )

    async def settled(self) -> None:
        """Wait until every commit that is in flight now has an outcome."""
        for board in self:
            await board.queue.settled()

    async def aclose(self) -> None:
        """Carry out the waiting commits, end the feeds, and close the engine."""
        self.host.draining = True
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.gather(self._closing, return_exceptions=True)
        try:
            # An opening goes on without its callers, and would use the engine after it was closed.
            await self._opening.settled()
            await self._end()
        finally:
            await self.host.aclose()

    async def _end(self) -> None:
        host = self.host
        # First, because the last edits of its peers become commits.
        if host.documents is not None:
            await host.documents.aclose()
        await host.revocations.aclose()
        await host.audit.aclose()
        await host.imports.aclose()
        for background in (self.recoveries, self.redactions):
            if background is not None:
                await background.aclose()
        for board in self:
            await board.queue.aclose()
            await board.feed.aclose()
