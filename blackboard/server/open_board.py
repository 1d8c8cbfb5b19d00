"""A board that this process serves, with its commit queue, feed, archiver and freeze.

`Boards.use` opens a board once, and `end` closes it once. On a board that has ended, every method
that would change it raises the reason.

Nothing here checks rights: `server/requests.py`, the only way in, does.

Invariants
- Each commit of the service has its own incarnation, so that commits of several services or tasks
  are never mistaken for retries of each other.
- An unknown outcome is resolved by sending the same commit again, at most SYSTEM_TRIES times.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from msgspec.structs import replace

from blackboard.archive.base import Archive
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
from blackboard.core.freeze import FROZEN_KEY, Freeze, freeze_in
from blackboard.core.model import Outcome
from blackboard.core.path import superseding_key
from blackboard.engines.base import Store
from blackboard.errors import (
    AttemptTooOld,
    BlackboardError,
    Conflict,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from blackboard.limits import LOG_ENTRIES_MAX, NOTE_BYTES_MAX
from blackboard.server import redlock_votes as quorum
from blackboard.server.archiver import Archiver, check_archived
from blackboard.server.commit_queue import CommitQueue, salted, system_id
from blackboard.server.feed import Feed
from blackboard.server.host import Host
from blackboard.server.pages import pages_of
from blackboard.server.security.revocations import Permit
from blackboard.units import Key, Prefix, Revision
from blackboard.wire.codec import Prepared, encode_value, prepare

SYSTEM_TRIES: Final = 5
_FREEZE_TRIES: Final = 5
"""Attempts to freeze or thaw, if others freeze or thaw the board between the read and the
commit."""


class OpenBoard:
    """One open board. `host` has what all boards of the process share."""

    def __init__(self, host: Host, name: str) -> None:
        self.host = host
        self.name = name
        self.queue = CommitQueue(host.store, name, host.load, host.permits, host.limits.commits)
        self.feed = Feed(host.store, name, host.archive, host.limits.watch)
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

    async def end(self, error: BlackboardError) -> None:
        """Stop serving the board. Watchers get `error`, peers of its documents are disconnected,
        and queued commits are carried out."""
        self._ended = error
        await self.feed.end(error)
        if self.host.documents is not None:
            await self.host.documents.end(self.name)
        await self.queue.aclose()

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
        try:
            masters = self.host.lock_masters
            if masters is None:
                return await self.queue.submit(prepared, permit)
            return await quorum.submit(self.queue, prepared, masters, permit)
        finally:
            if self.host.archiver is not None:
                self.host.archiver.poke(self.name)

    async def commit_past(
        self, prepared: Prepared, permit: Permit | None
    ) -> Outcome | BlackboardError:
        """Carry out a commit separately, bypassing the queue.

        Errors: Unavailable when it was certainly not applied; the reason why the board ended.
        """
        self._check_open()
        if permit is None:
            (outcome,) = await self.store.commit(self.name, [prepared])
            return outcome
        for refusal in self.host.permits.recheck([permit]).values():
            return refusal
        (decision,) = await self.host.permits.commit(self.name, [prepared], [permit])
        return decision

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

    async def freeze(self, by: str, note: str) -> Freeze:
        """Freeze the board. If it is frozen already, nothing changes, and the existing freeze is
        returned.

        Errors: InvalidRequest for an invalid note; Unavailable; OutcomeUnknown: ask again, which
        does no harm.
        """
        check_note(note)
        put = Put(FROZEN_KEY, encode_value({"by": by, "note": note}))
        for _ in range(_FREEZE_TRIES):
            found = await self.frozen()
            if found is not None:
                return found
            try:
                done = await self.commit_as_system(
                    [put], [KeyAt(FROZEN_KEY, ABSENT)], _told(f"frozen by {by}", note)
                )
            except Conflict:
                continue
            return Freeze(by, note, done.time_ms, done.revision)
        raise Unavailable(f"board {self.name}", "others freeze and thaw it all the time")

    async def thaw(self, by: str, note: str) -> Freeze | None:
        """Thaw it; returns the freeze that this ended, None if there was none.

        Errors: InvalidRequest for an invalid note; Unavailable; OutcomeUnknown: ask again, which
        does no harm.
        """
        check_note(note)
        for _ in range(_FREEZE_TRIES):
            found = await self.frozen()
            if found is None:
                return None
            stands = KeyAt(FROZEN_KEY, found.revision)
            try:
                await self.commit_as_system(
                    [Delete(FROZEN_KEY)], [stands], _told(f"thawed by {by}", note)
                )
            except Conflict:
                continue
            return found
        raise Unavailable(f"board {self.name}", "others freeze and thaw it all the time")


def _told(what: str, note: str) -> str:
    """The note of the commit in the log."""
    text = f"{what}: {note}" if note else what
    return text.encode()[:NOTE_BYTES_MAX].decode(errors="ignore")
