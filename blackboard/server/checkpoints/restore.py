"""Restore: the content of an earlier revision comes back, as one new revision.

The difference between then and now is computed beside the board, from the archive and the tail of
the log, while other commits continue; then one commit applies it, which is accepted only if there
was no other commit since. The cost depends on the changes, not on the size of the board. After
RESTORE_ATTEMPTS_MAX attempts on a busy board, and at once for a large restore, other commits are
held, for at most HOLD_MS_MAX.

Invariants
- The restore is one atomic commit, and no commit of the old epoch follows it.
- The same commit puts an entry with its answer, which a repeated request finds.
- The difference leads from the archive's sums of the present to its digests of the target, if it
  has them; otherwise nothing is restored.
- The namespace `system` is left unchanged, except for that entry.
- `append` reuses no number of the restored content, even if the engine lost it.
- Between the last read of the log and the commit nothing is awaited, so that there is no commit in
  between. The exception is the thread that encodes a large commit, while other commits wait. Apart
  from the commit, the work there does not grow with the number of changes.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final

from sortedcontainers import SortedDict

from blackboard import telemetry
from blackboard.archive.history import CHANGED_KEYS
from blackboard.client.documents.inverse import restored
from blackboard.core.access import Principal, narrowed_from
from blackboard.core.checkpoints import (
    BEFORE_RESTORE,
    KEPT_CALLS,
    RESTORES,
    CheckpointRequest,
    Point,
    Restored,
    RestoreRequest,
    check_request,
    request_segment,
)
from blackboard.core.commit import (
    ABSENT,
    RESTORE,
    Commit,
    Committed,
    Delete,
    Entry,
    Epoch,
    Head,
    KeyAt,
    LogEntry,
    Op,
    PutBack,
    signature,
)
from blackboard.core.path import SYSTEM, document_of, document_prefix, item_key, namespace_of
from blackboard.errors import (
    AttemptTooOld,
    BlackboardError,
    Compacted,
    Conflict,
    Corrupt,
    HeadMoved,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from blackboard.integrity.digest_check import ENTRIES_AT_ONCE, Sums
from blackboard.limits import HOLD_MS_MAX, READ_KEYS_MAX, RESTORE_BYTES_MAX, RESTORE_CHANGES_MAX
from blackboard.server.boards import OpenBoard
from blackboard.server.checkpoints.reader import HistoryReader, entry_at
from blackboard.server.checkpoints.take import Checkpoints
from blackboard.server.commit_queue import salted, system_id
from blackboard.server.security.revocations import Permit
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import decode_value, encode_value, prepare

Content = tuple[bytes, Milliseconds | None]
"""A value and its expiry; None stands for "absent"."""
_KEYS_AT_ONCE: Final = 256
"""Keys that are compared without a pause: a millisecond."""


class Restores:
    """Restores a board."""

    def __init__(self, board: OpenBoard) -> None:
        self._board = board
        self._past = HistoryReader(board)

    async def restore(self, spec: RestoreRequest, who: Principal) -> Restored:
        """Restore the board in the name of `who`; a repeated request gets the same answer.

        Errors: those of resolving the moment; LimitExceeded; Corrupt: the archive does not match
        its digests, and nothing changed; Unavailable: certainly not done; OutcomeUnknown: repeat
        the request to find out.
        """
        check_request(spec.request)
        if telemetry.is_on():
            spec = replace(spec, note=spec.note or telemetry.mark())
        done = await self._restore(spec, who)
        if telemetry.is_on():
            await self._trace(done)
        return done

    async def _trace(self, done: Restored) -> None:
        """The span of the restore names the new cut, and has a link to the span that made the
        one which came back."""
        telemetry.reached(done.revision, done.epoch.id)
        # The restore is done: a missing link in a trace must not make it fail.
        with contextlib.suppress(BlackboardError):
            entry = await entry_at(self._past, done.from_revision)
            telemetry.follow("" if entry is None else entry.note)

    async def _restore(self, spec: RestoreRequest, who: Principal) -> Restored:
        # Checked again, with the permit, as the commit is sent: comparing may take seconds.
        revocations = self._board.host.revocations
        revocations.check(who)
        by = signature(who.name, narrowed_from(who))
        permit = revocations.permit(who)
        done = await self._asked_before(spec, by)
        if done is not None:
            return done
        target = await self._past.point(spec.to)
        await self._past.archive.mark_at(target)  # refused before anything is changed
        # It gives the abandoned future a name, by which that can be read and restored. What others
        # commit from here to the switch comes after it.
        before = await self._checkpoint_before(spec, by)
        record = {"by": by, "note": spec.note, "to": target.revision, "before": before}
        attempt = _Attempt(self._board, self._past, target, spec, record, permit)
        try:
            # Appends of the archiver would share the disk with what others have to wait for.
            with self._board.archiver.resting(self._board.name):
                return await self._insist(attempt)
        except HeadMoved as error:
            done = await self._asked_before(spec, by)
            if done is not None:
                return done
            reason = f"not restored: {error}"
            raise Unavailable(what=f"board {self._board.name}", reason=reason) from error
        except (OutcomeUnknown, Conflict) as error:
            return await self._find_out(spec, by, error)

    async def _find_out(
        self, spec: RestoreRequest, by: str, failure: OutcomeUnknown | Conflict
    ) -> Restored:
        """The result of a restore whose commit ended with `failure`.

        After a conflict, another attempt of the same request was faster. Errors: OutcomeUnknown,
        also when there is no result, because it may still be in flight.
        """
        cause: BlackboardError = failure
        try:
            done = await self._asked_before(spec, by)
            if done is not None:
                return done
        except InvalidRequest:
            # The name belongs to the request of somebody else, which no repetition will change.
            raise
        except BlackboardError as error:
            cause = error
        raise OutcomeUnknown.of("restore", by, str(cause), request=spec.request) from cause

    async def _insist(self, attempt: "_Attempt") -> Restored:
        """Try while other commits continue, then hold them."""
        await attempt.compare()
        # Encoding a large one several times takes longer than a hold.
        limits = self._past.limits
        for _ in range(0 if attempt.is_large else limits.restore_attempts_max):
            with contextlib.suppress(HeadMoved):
                return await attempt.commit()
        store, board = self._board.store, self._board.name
        try:
            for _ in range(limits.restore_holds_max):
                await store.hold(board, HOLD_MS_MAX)
                try:
                    return await attempt.commit()
                except HeadMoved as error:
                    failure = error
            raise failure
        finally:
            # A hold times out; failing to end it says nothing about the restore.
            with contextlib.suppress(BlackboardError):
                await store.hold(board, 0)

    async def _checkpoint_before(self, spec: RestoreRequest, by: str) -> str:
        name = f"before-restore-{request_segment(spec.request)}"
        asked = CheckpointRequest(name, spec.request, spec.note, kind=BEFORE_RESTORE)
        await Checkpoints(self._board).take(asked, by)
        return name

    async def _asked_before(self, spec: RestoreRequest, by: str) -> Restored | None:
        """The result of the same request, if it was done before. Errors: InvalidRequest when it was
        another one, of somebody else."""
        reading = await self._board.read([restore_key(spec.request)])
        if not reading.entries:
            return None
        record = decode_value(reading.entries[0].value)
        if record["by"] != by:
            reason = f"{spec.request!r} was the request of another restore: give this one its own"
            raise InvalidRequest(field="request", reason=reason)
        entry = reading.entries[0]
        return _restored(record, entry.mod_revision, entry.time_ms)


def restore_key(request: str) -> Key:
    """The key of the answer to a restore, which is kept for a while."""
    return f"{RESTORES}/{request_segment(request)}"


def _restored(record: dict[str, Any], revision: Revision, time_ms: Milliseconds) -> Restored:
    epoch = Epoch(record["number"], record["epoch"], RESTORE, record["to"], revision)
    counts = (record["put_back"], record["removed"])
    return Restored(revision, time_ms, epoch, record["to"], *counts, record["before"])


@dataclass
class _Attempt:
    """A restore in progress: the differences from the target, kept up to date with the head."""

    board: OpenBoard
    past: HistoryReader
    target: Point
    spec: RestoreRequest
    record: dict[str, Any]
    permit: Permit | None
    _through: Revision = 0
    """The log was processed up to here; 0 = not begun."""
    _then: dict[Key, Content | None] = field(default_factory=dict)
    """The values of keys that may differ, at the target,"""
    _now: dict[Key, Content | None] = field(default_factory=dict)
    """and now."""
    _unsettled: set[Key] = field(default_factory=set)
    """Keys whose operation below may be wrong."""
    _puts: "SortedDict[Key, PutBack]" = field(default_factory=SortedDict)
    _deletes: "SortedDict[Key, Delete]" = field(default_factory=SortedDict)
    _parts: set[Key] = field(default_factory=set)
    """Keys of documents that may differ."""
    _items: dict[Key, int] = field(default_factory=dict)
    """The last item, with its index, of each list that has further items in the lost revisions."""
    _size: int = 0
    """Bytes of the operations."""

    @property
    def is_large(self) -> bool:
        """Whether each try keeps the event loop busy for long."""
        return len(self._puts) + len(self._deletes) >= self.past.limits.restore_large_changes

    async def compare(self) -> None:
        """Compute the present differences in advance, so that `commit` has less to do. Errors:
        LimitExceeded."""
        await self._catch_up()
        self._check_limits()

    async def commit(self) -> Restored:
        """Compute the remaining differences and commit. Errors: HeadMoved: try again."""
        head = await self._catch_up()
        self._check_limits()
        puts, deletes = self._puts.values(), self._deletes.values()
        documents = await self._documents(head)
        epoch = Epoch(
            head.epoch.number + 1,
            secrets.token_hex(8),
            RESTORE,
            self.target.revision,
            head.revision + 1,
        )
        record = {
            **self.record,
            "number": epoch.number,
            "epoch": epoch.id,
            "put_back": len(puts) + len(documents),
            "removed": len(deletes),
        }
        until_ms = head.time_ms + self.past.limits.restore_kept_ms
        answer = PutBack(restore_key(self.spec.request), encode_value(record), until_ms)
        commit = Commit(
            system_id(),
            head.epoch.id,
            (*deletes, *puts, *self._counted(), *documents, *await self._kept_calls(head), answer),
            # Of two attempts of one request that get here, one takes effect.
            (KeyAt(restore_key(self.spec.request), ABSENT),),
            note=self.spec.note,
            begins=epoch,
            known=head.revision,
        )
        committed = await self._send(salted(commit))
        return _restored(record, committed.revision, committed.time_ms)

    def _counted(self) -> Iterator[PutBack]:
        """Operations that make `append` continue above items that the engine has no record of."""
        for key, item in self._items.items():
            value, expires_at_ms = self._then[key] or (None, None)
            yield PutBack(key, value, expires_at_ms, item)

    async def _kept_calls(self, head: Head) -> list[Op]:
        """The operation which records that calls are answered from the abandoned revisions, or
        which removes that record of an earlier restore."""
        if self.spec.keep_calls:
            kept = {"after": self.target.revision, "through": head.revision}
            return [PutBack(KEPT_CALLS, encode_value(kept), None)]
        reading = await self.board.read([KEPT_CALLS])
        return [Delete(KEPT_CALLS)] if reading.entries else []

    async def _send(self, commit: Commit) -> Committed:
        """Commit directly, bypassing the queue of other commits, which may be waiting for this
        one."""
        prepared = await asyncio.to_thread(prepare, commit) if self.is_large else prepare(commit)
        outcome = await self.board.commit_past(prepared, self.permit)
        if isinstance(outcome, Committed):
            return outcome
        # Both mean that there was another commit: a new try computes the differences again.
        if isinstance(outcome, AttemptTooOld | StaleEpoch):
            raise HeadMoved(commit.begins.revision - 1 if commit.begins else 0, outcome.head)
        raise outcome

    def _check_limits(self) -> None:
        count = len(self._puts) + len(self._deletes) + len(self._items) + 1 + self.spec.keep_calls
        if count > RESTORE_CHANGES_MAX:
            raise LimitExceeded("RESTORE_CHANGES_MAX", count, RESTORE_CHANGES_MAX)
        if self._size > RESTORE_BYTES_MAX:
            raise LimitExceeded("RESTORE_BYTES_MAX", self._size, RESTORE_BYTES_MAX)

    async def _documents(self, head: Head) -> list[Op]:
        """The operations that restore documents. Their peers have the abandoned content, so it is
        undone, not overwritten. Errors: HeadMoved; Corrupt."""
        changed: dict[Key, list[Key]] = {}
        for key in sorted(self._parts):
            document = document_of(key)
            # A document that looks the same needs nothing, although its updates were logged.
            if document is not None and self._then[key] != self._now[key]:
                changed.setdefault(document, []).append(key)
        found: list[Op] = []
        for document, keys in sorted(changed.items()):
            now = await self._below(document_prefix(document), head)
            then = dict(now)
            for key in keys:
                held = self._then[key]
                then[key] = b"" if held is None else held[0]
            kept = {key: value for key, value in then.items() if value}
            authors = await self._authors([key for key in keys if key in kept and key not in now])
            found += restored(document, kept, now, authors)
        return found

    async def _authors(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        """Who wrote entries of a document that were removed, as they were at the target."""
        found: dict[Key, str] = {}
        async for _, entries in self._at_target(keys):
            found.update((entry.key, entry.author) for entry in entries)
        return found

    async def _below(self, prefix: Prefix, head: Head) -> dict[Key, bytes]:
        found: dict[Key, bytes] = {}
        async for page in self.board.pages(prefix):
            if page.revision != head.revision:
                # What is undone must be the state at the revision that the restore follows.
                raise HeadMoved(head.revision, page.revision)
            found.update((entry.key, entry.value) for entry in page.entries)
        return found

    # --- what differs -----------------------------------------------------------------------------

    async def _catch_up(self) -> Head:
        """Process the log since the last call; returns the head that was reached."""
        if not self._through:
            await self._begin()
        while True:
            try:
                head = await self._follow()
            except Compacted:  # the log was trimmed, but the archive has it
                self._forget()
                await self._begin()
                continue
            # So few are compared without a pause: during one, a busy board would move on again.
            if len(self._unsettled) <= _KEYS_AT_ONCE:
                self._settle_some()
                return head
            await self._settle()

    def _forget(self) -> None:
        for held in (self._then, self._now, self._unsettled, self._items):
            held.clear()
        for found in (self._puts, self._deletes, self._parts):
            found.clear()
        self._size = 0

    async def _settle(self) -> None:
        """Compare all keys, with pauses for other tasks."""
        while self._unsettled:
            self._settle_some()
            await asyncio.sleep(0)

    def _settle_some(self) -> None:
        for _ in range(min(len(self._unsettled), _KEYS_AT_ONCE)):
            self._compare(self._unsettled.pop())

    def _compare(self, key: Key) -> None:
        """Compute the operation that restores `key`."""
        old = self._puts.pop(key, None) or self._deletes.pop(key, None)
        self._size -= 0 if old is None else _size_of(old)
        then = self._then[key]
        if document_of(key) is not None:
            self._parts.add(key)
        elif then != self._now[key]:
            if then is None:
                new: PutBack | Delete = self._deletes.setdefault(key, Delete(key))
            else:
                new = self._puts.setdefault(key, PutBack(key, *then))
            self._size += _size_of(new)

    async def _begin(self) -> None:
        """Compute the differences at the archive's present revision."""
        head = await self.board.head()
        # The archive must have the beginning of the epoch, because the engine may have lost the
        # revisions before.
        mark = await self.past.reach(max(self.target.revision, head.epoch.revision))
        now = Point(self.board.name, mark.revision)
        async for key, then, at_mark in self._archived(now):
            self._then[key], self._now[key] = then, at_mark
            self._unsettled.add(key)
            # A bound on memory. Twice, because some keys may be equal again at the head.
            if len(self._then) > 2 * RESTORE_CHANGES_MAX:
                count = len(self._then)
                raise LimitExceeded("RESTORE_CHANGES_MAX", count, RESTORE_CHANGES_MAX)
        try:
            await self._verify(now)
        except Corrupt:
            await self.past.check_same(now, mark)
            raise
        await self._count_items(now)
        # Last: it says that the differences are complete up to here.
        self._through = mark.revision

    async def _count_items(self, now: Point) -> None:
        """Find lists with items at the target that the engine has no record of."""
        for prefix, following in await self.past.archive.items(self.target, unless=now):
            last = item_key(prefix, following - 1)
            if namespace_of(last) != SYSTEM and document_of(last) is None:
                self._items[last] = following - 1
        await self._look_up([key for key in self._items if key not in self._then])

    async def _verify(self, now: Point) -> None:
        """Check that the differences lead from the sums of `now` to the digests of the target.

        The cost depends on the differences; equal keys are not checked otherwise. Without archived
        digests of the target, there is nothing to compare with. Errors: Corrupt.
        """
        archive = self.past.archive
        then, at_mark = await archive.digests_at(self.target), await archive.digests_at(now)
        if then is None or at_mark is None:
            return
        changed = sorted({namespace_of(key) for key in self._then})
        sums = Sums(await archive.sums_at(now, changed), others=at_mark)
        for number, (key, content) in enumerate(self._then.items(), 1):
            if (before := self._now[key]) is not None:
                sums.remove(key, *before)
            if content is not None:
                sums.add(key, *content)
            if number % ENTRIES_AT_ONCE == 0:
                await asyncio.sleep(0)
        await sums.check(then, f"board {self.board.name} at revision {self.target.revision}")

    async def _archived(
        self, now: Point
    ) -> AsyncIterator[tuple[Key, Content | None, Content | None]]:
        after: Key | None = None
        while True:
            page = await self.past.archive.differences(
                self.target, now, after=after, limit=CHANGED_KEYS
            )
            if not page:
                return
            for number, each in enumerate(page):
                if number % _KEYS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if namespace_of(each.key) != SYSTEM:
                    yield each.key, _content(each.before), _content(each.after)
            after = page[-1].key

    async def _follow(self) -> Head:
        """Process the tail of the log, up to the head."""
        while True:
            page = await self.board.log(self._through)
            for entry in page.entries:
                if entry.epoch is not None and entry.epoch.cause != RESTORE:
                    raise Compacted(self._through, entry.revision)  # it continues from before
            await self._look_up(await self._take(page.entries))
            if page.entries:
                self._through = page.entries[-1].revision
            if self._through >= page.head.revision:
                return page.head

    async def _take(self, entries: Iterable[LogEntry]) -> list[Key]:
        """Record the values of keys after `entries`, with pauses for other tasks; returns the keys
        whose values at the target are unknown."""
        found: dict[Key, None] = {}
        changes = chain.from_iterable(entry.changes for entry in entries)
        while some := list(islice(changes, _KEYS_AT_ONCE)):
            for change in some:
                # Leases end with the epoch: they are neither compared nor put back.
                if change.lease is None and namespace_of(change.key) != SYSTEM:
                    value = change.value
                    self._now[change.key] = None if value is None else (value, change.expires_at_ms)
                    found[change.key] = None
            if len(some) == _KEYS_AT_ONCE:
                await asyncio.sleep(0)
        self._unsettled.update(found)
        return [key for key in found if key not in self._then]

    async def _look_up(self, keys: list[Key]) -> None:
        """Look up their values at the target."""
        async for some, entries in self._at_target(keys):
            found = {entry.key: _content(entry) for entry in entries}
            self._then.update((key, found.get(key)) for key in some)

    async def _at_target(
        self, keys: Sequence[Key]
    ) -> AsyncIterator[tuple[Sequence[Key], Sequence[Entry]]]:
        """The keys, some at a time, with their entries at the target."""
        for start in range(0, len(keys), READ_KEYS_MAX):
            some = keys[start : start + READ_KEYS_MAX]
            yield some, (await self.past.archive.read(self.target, some)).entries


def _content(entry: Entry | None) -> Content | None:
    return None if entry is None else (entry.value, entry.expires_at_ms)


def _size_of(op: PutBack | Delete) -> int:
    return len(op.key) + (len(op.value or b"") if isinstance(op, PutBack) else 0)
