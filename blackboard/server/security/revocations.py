"""Revoked tokens: recorded on a board of the service's own, which every process follows.

A record names a token (with everything that was narrowed from it), or a principal: every token
issued to it until then, and every token of a name narrowed from it, at any time. The revoking
process knows at once; the others when they read that board's log, within milliseconds.

On an engine that several processes share, the commit itself closes that gap: before it answers, the
revoking process raises the access number of every board to the revision of its record. A board does
not decide a commit under a token that was checked against an older record (`Permits`).

Invariants
- `check` passes only while the table is known and was updated within ACCESS_STALE_MS: a process
  that cannot read the record accepts no token.
- A record, once seen, counts until its token would have expired; a later one of the same subject
  does not shorten it.
- `epoch` grows with each record: permits from an earlier one are checked again.
- Every record up to revision `through` is in the table.

`Permits` checks each token once more when a commit is sent to the engine. This process may not know
a recent revocation of another process yet, or for long if it was suspended in between. So each
batch with a token carries the access number up to which this process knows the record, and a board
with a higher one does not decide it. Then the process reads the record, checks each token again,
and sends what is still permitted again.

Invariants of `Permits`
- A commit whose permit is not valid when its board decides is not applied.
- A commit that may have been applied is not sent again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from blackboard.core.access import (
    ACCESS_BOARD,
    READ_ALL,
    Credential,
    Principal,
    is_admin,
    is_own_token,
    names_above,
)
from blackboard.core.commit import Change, Delete, Entry, Op, Put
from blackboard.core.model import Outcome
from blackboard.core.path import check_name, parse_patterns
from blackboard.core.view import View
from blackboard.core.watch import Position
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import Behind, Shared, Store, pages_of
from blackboard.engines.system_writer import SystemWriter
from blackboard.errors import (
    BlackboardError,
    Compacted,
    Corrupt,
    FutureRevision,
    InvalidRequest,
    LimitExceeded,
    RolledBack,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import DEFAULT, LOG_ENTRIES_MAX, OPERATIONS_MAX, Limits
from blackboard.server.feed import Feed, Watcher
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import Prepared, decode_value, encode_value

log = logging.getLogger(__name__)

_BELOW: Final = "system/revoked"
_TOKENS: Final = f"{_BELOW}/tokens"
_PRINCIPALS: Final = f"{_BELOW}/principals"
_VIEW: Final = View(parse_patterns([f"{_BELOW}/**"]), READ_ALL)
_RETRY_S: Final = 0.5
_BOARDS_AT_ONCE: Final = 64

UNKNOWN: Final = -1
"""The known revision of the record before it was read."""
Permit = tuple[Principal, int]
"""A principal that was permitted an action, and the epoch of the revocations at that time."""


class Revocations:
    """The revoked tokens and principals, as one process knows them.

    It reads nothing until `ready` is awaited: a service that is used only from its own process has
    no tokens.
    """

    def __init__(self, store: Store, limits: Limits = DEFAULT) -> None:
        self._store = store
        self._limits = limits.security
        self._feed = Feed(store, ACCESS_BOARD, limits=limits.watch)
        self._until: dict[Key, Milliseconds] = {}
        """When each record ends."""
        self._before: dict[Key, Milliseconds] = {}
        """By record of a principal: tokens issued up to then are revoked."""
        self._heard_s = float("-inf")
        self._loop: asyncio.AbstractEventLoop | None = None  # set once the record was read
        self._known = asyncio.Event()
        self._asking = asyncio.Lock()
        # Reads of the record: the last one begun, and the last one that succeeded.
        self._begun = self._done = 0
        self._follower: asyncio.Task[None] | None = None
        self._writer = SystemWriter(store, ACCESS_BOARD)
        self.epoch = 0
        """The number of records seen."""
        self.through: Revision = UNKNOWN
        """The record is known up to here."""
        self.changed: list[Callable[[], None]] = []
        """Called whenever something was revoked."""
        self.archived: Callable[[Revision], Awaitable[None]] | None = None
        """Awaited with the revision of a record before the answer, so that the record survives a
        loss of the engine."""
        self._held_back = ""

    # --- asking -----------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Follow the revocations from here on; returns once they are known.

        Errors: Unavailable when they cannot be read for ACCESS_STALE_MS.
        """
        if self._follower is None:
            self._follower = asyncio.create_task(self._follow(), name="revocations")
        if self._known.is_set():
            return
        try:
            async with asyncio.timeout(self._limits.access_stale_ms / 1000):
                await self._known.wait()
        except TimeoutError as error:
            raise Unavailable("revocations", "they cannot be read") from error

    def check(self, principal: Principal) -> None:
        """Errors: Unauthenticated when the principal's token was revoked, or has expired;
        Unavailable while the revocations cannot be read."""
        credential = principal.credential
        if credential is None:  # used from its own process, where there are no tokens
            return
        # As long as the record is unknown, no token is called invalid: its client may try again.
        if self._held_back:
            raise Unavailable("revocations", self._held_back)
        if self._is_stale():
            raise Unavailable("revocations", "the engine, which has them, is unavailable")
        if self._is_over(principal):
            raise Unauthenticated(reason="the token has expired")
        # Checked for every request, and for most services nothing was ever revoked.
        if self._until and self._is_revoked(principal.name, credential):
            raise Unauthenticated(reason="the token was revoked")

    def hold_back(self, why: str) -> None:
        """Accept no token until this is called with "", because the revocations are not known."""
        if why == self._held_back:
            return
        self._held_back = why
        # So commits that wait for their engine are checked again: their permits are older.
        self.epoch += 1
        self._tell()

    @property
    def is_held_back(self) -> bool:
        """Whether no token is accepted."""
        return bool(self._held_back)

    async def confirm(self, principal: Principal) -> None:
        """As `check`, after reading the record from the engine. Errors: as of `check`."""
        # Only where other processes write the record can it have more than this one has seen.
        if principal.credential is not None and shared_of(self._store) is not None:
            await self.catch_up()
        self.check(principal)

    def permit(self, principal: Principal) -> Permit | None:
        """The permit to check again before a commit of `principal` is sent. To be called in the
        turn in which that was checked: a later one would hide what was revoked in between."""
        return None if principal.credential is None else (principal, self.epoch)

    def recheck(self, permits: Sequence[Permit | None]) -> dict[int, Unauthenticated | Unavailable]:
        """The permits that are no longer valid, by their numbers, with the reasons.

        It costs two comparisons for each, as long as nothing was revoked in between.
        """
        refused: dict[int, Unauthenticated | Unavailable] = {}
        now_ms, is_stale = _now_ms(), self._is_stale()
        for number, permit in enumerate(permits):
            if permit is None:
                continue
            principal, epoch = permit
            # No record says that a token runs out, so the epoch does not show it.
            ends_ms = principal.expires_at_ms
            if epoch != self.epoch or is_stale or (ends_ms is not None and ends_ms <= now_ms):
                try:
                    self.check(principal)
                except (Unauthenticated, Unavailable) as error:
                    refused[number] = error
        return refused

    def _is_over(self, principal: Principal) -> bool:
        return principal.expires_at_ms is not None and principal.expires_at_ms <= _now_ms()

    def _is_revoked(self, name: str, credential: Credential) -> bool:
        """Whether the token, a name above it, or the token that had it issued is revoked."""
        # Each name between account and agent counts, even if no link of the chain has it: otherwise
        # narrowing a token in one step past the revoked name would undo the revocation.
        names = {credential.subject, *names_above(name, credential.subject)}
        before = max(self._before.get(f"{_PRINCIPALS}/{name}", -1) for name in names)
        # Of the same millisecond counts too: which of the two came first is not known.
        if credential.issued_at_ms <= before:
            return True
        if any(f"{_TOKENS}/{one}" in self._until for one in credential.ids):
            return True
        issuer = credential.issuer
        if issuer is None or issuer.credential is None:
            return False
        return self._is_revoked(issuer.name, issuer.credential)

    def _is_stale(self) -> bool:
        stale_s = self._limits.access_stale_ms / 1000
        return self._loop is None or self._loop.time() - self._heard_s > stale_s

    # --- revoking ---------------------------------------------------------------------------------

    async def revoke(
        self,
        tokens: Sequence[str],
        principal: str | None,
        until_ms: Milliseconds | None,
        *,
        by: Principal,
    ) -> int:
        """Revoke tokens by their ids, and all that `principal` was issued until now, at the request
        of `by`, which may do that.

        `until_ms` is when the last of them expires, if that is known. Returns how many records
        there are now; the caller must then call `tell_soon`. Errors: InvalidRequest; LimitExceeded;
        Unavailable: it may be recorded, and not yet in effect in every process; repeating it is
        safe.
        """
        # The table must be known: a new record takes nothing back of the one before (`_record`).
        await self.ready()
        now_ms = _now_ms()
        if principal is None and is_own_token(by, tokens):
            until_ms = by.expires_at_ms
        kept_ms = self._limits.revoked_ttl_ms
        ttl_ms = kept_ms if until_ms is None else max(until_ms - now_ms, 1)
        names = [f"{_TOKENS}/{check_name(token, 'token')}" for token in tokens]
        if principal is not None:
            names.append(f"{_PRINCIPALS}/{check_name(principal, 'principal')}")
        if not names:
            raise InvalidRequest(field="tokens", reason="a token or a principal is needed")
        self._check_room(names, by, now_ms)
        records = {
            name: self._record(name, now_ms, now_ms + min(ttl_ms, kept_ms)) for name in names
        }
        # Each revocation takes some expired records along, so that nobody has to sweep the board.
        over = [key for key, until in self._until.items() if until <= now_ms and key not in names]
        ops: list[Op] = [Put(name, encode_value(record)) for name, record in records.items()]
        ops += [Delete(key) for key in over[: OPERATIONS_MAX - len(ops)]]
        # First: a board whose number is above the record takes no commit under a token.
        revision = await self._commit(ops)
        for name, record in records.items():
            self._note(name, record)  # here at once; the feed brings it to other processes
        await self._tell_boards(revision)
        # Last, as it may take seconds: the revocation is in force by now.
        if self.archived is not None:
            await self.archived(revision)
        return len(self._until)

    def _check_room(self, names: Sequence[Key], by: Principal, now_ms: Milliseconds) -> None:
        """Errors: LimitExceeded."""
        # Those that are over do not count: only a revocation that is accepted removes them.
        count = len({key for key, until in self._until.items() if until > now_ms}.union(names))
        limit, most = "REVOCATIONS_MAX", self._limits.revocations_max
        if not is_admin(by):
            limit, most = "REVOCATIONS_OWN_MAX", self._limits.revocations_own_max
        if count > most:
            raise LimitExceeded(limit, count, most)

    def _record(
        self, key: Key, before_ms: Milliseconds, until_ms: Milliseconds
    ) -> dict[str, Milliseconds]:
        """The record of a revocation. It takes nothing back of the one that is there: that may be
        of older tokens, which are valid for longer."""
        return {
            "before_ms": max(before_ms, self._before.get(key, before_ms)),
            "until_ms": max(until_ms, self._until.get(key, until_ms)),
        }

    async def _tell_boards(self, revision: Revision) -> None:
        """Make all boards refuse commits of processes that do not know the record up to `revision`.

        A board that is made in the meantime has no access number: its first commit under a token
        requests it.
        """
        engine = shared_of(self._store)
        if engine is None:
            return
        boards = await self._store.boards()
        for first in range(0, len(boards), _BOARDS_AT_ONCE):
            some = boards[first : first + _BOARDS_AT_ONCE]
            await asyncio.gather(*[engine.raise_access(board, revision) for board in some])

    def tell_soon(self) -> None:
        """Close connections in the next turn of the loop, so that a client that revokes its own
        token gets the answer first."""
        asyncio.get_running_loop().call_soon(self._tell)

    async def _commit(self, ops: Sequence[Op]) -> Revision:
        """Errors: Unavailable, also when the outcome is unknown: repeating it is safe."""
        outcome = await self._writer.commit(ops)
        if isinstance(outcome, BlackboardError):
            raise Unavailable("revocations", str(outcome))
        return outcome.revision

    # --- following --------------------------------------------------------------------------------

    async def catch_up(self, revision: Revision | None = None) -> None:
        """Read the record up to `revision`; None = up to now.

        Concurrent callers share one read that begins after all of them. Errors: Unavailable;
        Corrupt.
        """
        # Only a read that begins after this call has everything that was revoked before it.
        begun = self._begun
        async with self._asking:
            is_known = revision is not None and self.through >= revision
            if self._done <= begun and not is_known:
                self._begun = number = self._begun + 1
                # If this fails, it does not count: the next caller in line reads for itself.
                await self._read_on()
                self._done = number
        if revision is not None and self.through < revision:
            # A board names a revision that the record does not have: a part of it was lost. The
            # revocations in it are unknown, so no token is accepted.
            raise Unavailable("revocations", f"the engine has lost them after {self.through}")

    async def _read_on(self) -> None:
        """Read the records since `through`."""
        before, head = self.epoch, UNKNOWN
        try:
            while self.through != UNKNOWN and self.through != head:
                page = await self._store.log(
                    ACCESS_BOARD, self.through, limit=LOG_ENTRIES_MAX, wait_ms=0
                )
                self._note_all(change for entry in page.entries for change in entry.changes)
                head = page.head.revision
                last = page.entries[-1].revision if page.entries else head
                # The follower reads the same log, and may have come further during the call.
                self.through = max(self.through, last)
        except (Compacted, FutureRevision, RolledBack):
            # What was missed cannot be read entry by entry any more: all records are read instead.
            self.through = UNKNOWN
        if self.through == UNKNOWN:
            await self._load()
        self._heard()
        if self.epoch != before:
            self._tell()

    async def _follow(self) -> None:
        while self._follower is asyncio.current_task():  # some drivers swallow a cancellation
            try:
                position = await self._load()
                self._tell()  # what was revoked while nothing was heard does not come again
                async with self._feed.watch(_VIEW, position) as watcher:
                    await self._take_in(watcher)
            except Exception as error:  # nobody else would follow them
                unforeseen = None if isinstance(error, BlackboardError) else error
                log.warning("revocations: %s", error, exc_info=unforeseen)
                await asyncio.sleep(_RETRY_S)

    async def _load(self) -> Position:
        """Read all records; returns the position from which to watch. Reading a record twice is
        safe."""
        # Before the pages: a record that is written meanwhile is in them, or comes with the watch.
        head = await self._store.open(ACCESS_BOARD)
        # Nothing is forgotten first: a record that was seen counts even if the engine has lost it.
        async for page in pages_of(self._store, ACCESS_BOARD, _BELOW):
            self._note_all(page.entries)
        self.through = max(self.through, head.revision)
        self._heard()
        return Position(head.epoch.id, head.revision)

    async def _take_in(self, watcher: Watcher) -> None:
        async for delivery in watcher:
            # Progress marks count too: a record to which nothing is added does not become stale.
            self._heard()
            changes = [c for entry in delivery.revisions for c in entry.changes]
            self._note_all(changes)
            self.through = max(self.through, delivery.position.revision)
            if changes:
                self._tell()

    def _heard(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._known.set()

    def _note_all(self, found: Iterable[Entry | Change]) -> None:
        for one in found:
            if one.value is None:
                self._until.pop(one.key, None)
                self._before.pop(one.key, None)
            else:
                self._note(one.key, decode_value(one.value))

    def _note(self, key: Key, record: Any) -> None:
        try:
            before_ms, until_ms = int(record["before_ms"]), int(record["until_ms"])
        except (KeyError, TypeError, ValueError) as error:
            # Not skipped: it may have named a token. While the table cannot be read, it becomes
            # stale, and no token is accepted.
            raise Corrupt(what=key, reason="no record of a revocation") from error
        self.epoch += 1
        self._until[key] = until_ms
        if key.startswith(_PRINCIPALS + "/"):
            self._before[key] = before_ms

    def _tell(self) -> None:
        for call in self.changed:
            call()

    async def aclose(self) -> None:
        """Stop following."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
            await self._feed.aclose()


def is_over(entry: Entry, now_ms: Milliseconds) -> bool:
    """Whether the tokens that a record names have expired."""
    record: Any = decode_value(entry.value)
    until_ms = record.get("until_ms") if isinstance(record, dict) else None
    return isinstance(until_ms, int) and until_ms <= now_ms


def shared_of(store: Store) -> Shared | None:
    """The engine's port for several processes, if it has one."""
    # An encrypting store has the methods of the port whatever is behind it.
    engine = store.raw if isinstance(store, SealedStore) else store
    return cast("Shared", store) if isinstance(engine, Shared) else None


def _now_ms() -> Milliseconds:
    return time.time_ns() // 1_000_000


_ATTEMPTS_MAX: Final = 8
"""Attempts to send a batch while tokens are being revoked."""
Decision = Outcome | BlackboardError


@dataclass
class _Batch:
    """A batch in flight: `left` are the numbers of the commits without a decision."""

    decisions: dict[int, Decision]
    left: list[int]

    def take(self, answers: Sequence[Outcome | Behind]) -> Behind | None:
        """Record the decisions; returns why the rest was not decided."""
        behind, still = None, []
        for number, answer in zip(self.left, answers, strict=True):
            if isinstance(answer, Behind):
                behind = answer
                still.append(number)
            else:
                self.decisions[number] = answer
        self.left = still
        return behind

    def refuse(self, refused: Mapping[int, BlackboardError]) -> None:
        """Record refusals, by the places of the commits in `left`."""
        for place, refusal in refused.items():
            # Each gets its own error, because a shared one would share its traceback among tasks.
            self.decisions[self.left[place]] = type(refusal)(**refusal.fields())
        self.left = [number for place, number in enumerate(self.left) if place not in refused]

    def refuse_all(self, error: BlackboardError) -> None:
        """Record `error` for all commits without a decision."""
        self.refuse(dict.fromkeys(range(len(self.left)), error))


class Permits:
    """Sends the commits of one process to the engine."""

    def __init__(self, store: Store, revocations: Revocations) -> None:
        self._store = store
        self._revocations = revocations
        self._shared = shared_of(store)

    def recheck(
        self, permits: Sequence[Permit | None]
    ) -> Mapping[int, Unauthenticated | Unavailable]:
        """As `Revocations.recheck`."""
        return self._revocations.recheck(permits)

    @property
    def are_shared(self) -> bool:
        """Whether the engine compares them too, in `commit`."""
        return self._shared is not None

    async def commit(
        self, board: str, commits: Sequence[Prepared], permits: Sequence[Permit | None]
    ) -> Sequence[Decision]:
        """As `Store.commit`, with a permit for each commit; None = the service's own.

        Errors: Unavailable when certainly none of them was applied. A single commit may be refused
        as Unauthenticated or Unavailable.
        """
        if self._shared is None or not any(permits):
            return await self._store.commit(board, commits)
        batch = _Batch({}, list(range(len(commits))))
        for _ in range(_ATTEMPTS_MAX):
            # In the same turn as `through` is read: if another call brings the record up to date
            # after the queue has checked the tokens, the board would take that for this check.
            batch.refuse(self._revocations.recheck([permits[number] for number in batch.left]))
            if not batch.left:
                break
            sent = [commits[number] for number in batch.left]
            try:
                answers = await self._shared.commit_at(board, sent, self._revocations.through)
            except BlackboardError as error:
                # It concerns what was sent now. What was decided before keeps its decision.
                if not batch.decisions:
                    raise
                batch.refuse_all(error)
                break
            behind = batch.take(answers)
            if behind is None:
                break
            await self._look_again(board, batch, behind, self._shared)
        # They were not decided in any attempt, so the refusal is certain.
        batch.refuse_all(Unavailable(f"board {board}", "tokens are revoked all the time"))
        return [batch.decisions[number] for number in range(len(commits))]

    async def _look_again(self, board: str, batch: _Batch, behind: Behind, engine: Shared) -> None:
        """Read the record up to the board's access number."""
        try:
            await self._revocations.catch_up(behind.access)
            # A board that no revocation has raised yet. The record was read after the board
            # answered, so whatever was revoked before this commit is in it.
            if behind.access is None:
                await engine.raise_access(board, self._revocations.through)
        except BlackboardError as error:
            batch.refuse_all(error)
