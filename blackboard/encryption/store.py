"""A store that encrypts the values of private namespaces, in front of another store.

Log, state, archive, exports and backups of the store behind hold ciphertext; reads through this one
return plain values. It encrypts `private/**` and `inbox/**`, and, with `public`, `public/**`. Keys,
authors, times, notes and sizes are not encrypted.

An engine cannot increment an encrypted integer. Here such an `increment` becomes a conditional
write, which is retried when the key changed, at most MERGE_ATTEMPTS_MAX times, with the same
contract: one commit, its first answer to every retry, and the same errors in the same order. A
retry gets the sums that follow from its operations and from the values that its commit left. If a
later operation of the commit overwrote a sum, or its log entry is gone, no sum is guessed: the
retry gets a final OutcomeUnknown.

Invariants
- No plain value of an encrypted namespace reaches the store behind.
- A restore puts back, and a branch begins with, exactly the stored ciphertext.
- A value whose data key was destroyed reads as `ERASED`. A value that cannot be decrypted, or is
  not in the place for which it was encrypted (encryption/places.py), is Corrupt.
- The sums of a batch are computed from one reading of the board, so that all commits of a writer in
  it are based on the same values.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from msgspec.structs import replace

from blackboard.core import commit as integers
from blackboard.core.commit import (
    ABSENT,
    FORWARD,
    Append,
    Change,
    Commit,
    CommitId,
    Committed,
    Condition,
    Delete,
    DeletePrefix,
    Entry,
    Head,
    Increment,
    KeyAt,
    ListOptions,
    LogEntry,
    LogPage,
    Op,
    Put,
    PutBack,
    Reading,
    Result,
    Seed,
    without_value,
)
from blackboard.core.model import Outcome
from blackboard.core.path import Ranges, namespace_of, range_below
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.places import Places
from blackboard.engines.base import Behind, EngineFacts, PubSub, Shared, Store
from blackboard.errors import (
    BlackboardError,
    Compacted,
    Conflict,
    Corrupt,
    InvalidRequest,
    LimitExceeded,
    NoSuchBoard,
    OutcomeUnknown,
    Rejected,
    TypeMismatch,
)
from blackboard.integrity.digest_check import Opened, sealed_form
from blackboard.integrity.envelope import (
    APPEND,
    PUT,
    Header,
    Place,
    header_of,
    is_sealed,
    open_sealed,
    seal,
)
from blackboard.limits import DEFAULT, INTEGER_MAX, READ_KEYS_MAX, Limits
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import Prepared, encode_value, prepare


@dataclass(slots=True)
class Plan:
    """A commit, and the one that is sent to the store behind in its place."""

    commit: Commit
    sent: Prepared
    totals: dict[int, int] = field(default_factory=dict)
    """The sums computed here, by the number of the increment."""
    guards: set[tuple[Key, Revision]] = field(default_factory=set)
    """Conditions that were added for these sums."""
    failure: Rejected | None = None
    """Why the commit is to be refused; the engine cannot check the encrypted value."""
    place: Place | None = None
    """The place for which its values are encrypted."""
    _items: dict[Prefix, int] = field(default_factory=dict)

    def next_item(self, prefix: Prefix) -> Place | None:
        """The place for which the next item appended to `prefix` is encrypted."""
        number = self._items.get(prefix, 0)
        self._items[prefix] = number + 1
        return None if self.place is None else dataclasses.replace(self.place, number=number)


class Counters:
    """The encrypted integers that one commit increments, as its operations see them one by one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now: dict[Key, Entry] = {}
        self.conditions: list[Condition] = []
        self._written: dict[Key, bytes | None] = {}
        self._appended: set[Prefix] = set()

    def append(self, prefix: Prefix) -> None:
        """Record that an earlier operation appends an item to `prefix`."""
        self._appended.add(prefix)

    def write(self, key: Key, value: bytes | None) -> None:
        """Record the value that an earlier operation leaves at `key`."""
        self._written[key] = value

    def remove_below(self, prefix: Prefix) -> None:
        """Record that everything below `prefix` is removed."""
        first, last = range_below(prefix)
        for key in (*self.now, *self._written):
            if first <= key < last:
                self._written[key] = None

    def add(self, number: int, op: Increment) -> int | None:
        """The sum, None if there is none; the plan then has the reason."""
        value = self._before(op.key)
        found = 0 if value is None else integers.read_integer(bytes(value))
        if found is None:
            # Not raised, as the engine checks first what comes before. It refuses to increment a
            # ciphertext, and `_settle` puts this reason in place of its own.
            self.plan.failure = TypeMismatch(
                op.key, "integer", integers.kind_of(bytes(value or b""))
            )
            return None
        total = found + op.by
        if abs(total) > INTEGER_MAX:
            self.plan.failure = LimitExceeded("INTEGER_MAX", total, INTEGER_MAX, op.key)
            return None
        self.plan.totals[number] = total
        self._written[op.key] = integers.write_integer(total)
        return total

    def _before(self, key: Key) -> bytes | None:
        """The value at `key` before the operation, on the condition that it does not change.

        Errors: InvalidRequest when it may be an item that the commit appends: only the engine knows
        the key of that.
        """
        if key in self._written:
            return self._written[key]
        entry = self.now.get(key)
        if entry is None and key.rpartition("/")[0] in self._appended:
            reason = f"{key} may be what this commit appends: append the sum"
            raise InvalidRequest(field="ops", reason=reason)
        condition = KeyAt(key, ABSENT if entry is None else entry.mod_revision)
        self.conditions.append(condition)
        self.plan.guards.add((key, condition.revision))
        return None if entry is None else entry.value


def sums_of(
    ops: Sequence[Op], keys: Collection[Key], left: Mapping[Key, bytes | None]
) -> dict[int, int] | None:
    """The sums at `keys` of a commit that took effect, by the number of the increment.

    `left` has the values that it left. None if they do not tell all sums: an operation that
    overwrites a sum leaves no trace of it.
    """
    now: dict[Key, int | None] = {}
    for key in keys:
        if not any(_overwrites(op, key) for op in ops):
            after = integers.read_integer(bytes(left.get(key) or b""))
            added = sum(op.by for op in ops if isinstance(op, Increment) and op.key == key)
            now[key] = None if after is None else after - added
    sums: dict[int, int] = {}
    for number, op in enumerate(ops):
        for key in keys:
            if _overwrites(op, key):
                now[key] = integers.read_integer(bytes(op.value)) if isinstance(op, Put) else 0
        if isinstance(op, Increment) and op.key in keys:
            before = now.get(op.key)
            if before is None:
                return None
            sums[number] = now[op.key] = before + op.by
    return sums


def _overwrites(op: Op, key: Key) -> bool:
    """Whether an operation replaces or removes what is at `key`, whatever that is."""
    if isinstance(op, DeletePrefix):
        first, last = range_below(op.prefix)
        return first <= key < last
    return isinstance(op, Put | Delete) and op.key == key


ERASED: Final = encode_value({"$erased": True})
"""The value of an entry whose data key was destroyed."""
_NOBODY: Final = CommitId("", 0, "", 0)
_HEAD_FRESH_S: Final = 1.0
"""How long a revision that was seen counts as shortly before a commit."""
_Decision = Outcome | Behind
_Counted = dict[Key, Entry] | BlackboardError
_Send = Callable[[str, Sequence[Prepared]], Awaitable[Sequence[_Decision]]]


class Opener:
    """Decrypts the values of boards with their data keys."""

    def __init__(self, keys: DataKeys) -> None:
        self.keys = keys

    async def value(self, boards: Sequence[str], key: Key, value: bytes) -> bytes:
        """The plain value at `key`, encrypted on one of `boards`. Errors: Corrupt; Unavailable."""
        if not is_sealed(value):
            return value
        header = header_of(value, f"value of {key}")
        for board in boards:
            found = await self.keys.find(board, header.key_id)
            if found is None:
                continue
            # Before the cipher: of a destroyed key, only its record tells where a value belongs.
            if found.namespace != namespace_of(key):
                reason = f"it was sealed in {found.namespace}"
                raise Corrupt(what=f"value of {key}", reason=reason)
            if found.cipher is None:
                # With its ciphertext, which a restore or a branch needs for the same digests.
                return Opened.of(ERASED, value)
            return Opened.of(open_sealed(found.cipher, header, key, value), value)
        reason = f"data key {header.key_id.hex()} is not one of board {boards[0]}"
        raise Corrupt(what=f"value of {key}", reason=reason)

    async def entries(self, boards: Sequence[str], found: Iterable[Entry]) -> tuple[Entry, ...]:
        """Entries with plain values."""
        return tuple([await self.entry(boards, entry) for entry in found])

    async def entry(self, boards: Sequence[str], entry: Entry) -> Entry:
        """An entry with its plain value."""
        if not is_sealed(entry.value):
            return entry
        return replace(entry, value=await self.value(boards, entry.key, entry.value))

    async def log(self, boards: Sequence[str], found: Iterable[LogEntry]) -> tuple[LogEntry, ...]:
        """Log entries with plain values."""
        return tuple([await self._log_entry(boards, entry) for entry in found])

    async def _log_entry(self, boards: Sequence[str], entry: LogEntry) -> LogEntry:
        if not any(c.value is not None and is_sealed(c.value) for c in entry.changes):
            return entry
        changes = [await self._change(boards, change) for change in entry.changes]
        return replace(entry, changes=tuple(changes))

    async def _change(self, boards: Sequence[str], change: Change) -> Change:
        if change.value is None or not is_sealed(change.value):
            return change
        return replace(change, value=await self.value(boards, change.key, change.value))


class SealedStore:
    """A `Store` that encrypts; see the docstring of this module. Closing it closes the one
    behind."""

    def __init__(
        self, raw: Store, keys: DataKeys, *, public: bool = False, limits: Limits = DEFAULT
    ) -> None:
        self.raw = raw
        self.keys = keys
        self.opener = Opener(keys)
        self.places = Places(raw, keys, public=public, limits=limits)
        self._merge_attempts_max = limits.client.merge_attempts_max
        self._heads: dict[str, tuple[str, Revision, float]] = {}
        # Sums that were outdated are recomputed one by one, in their order. Otherwise one of them
        # could be outdated each time, for ever.
        self._adding = asyncio.Lock()

    def seals(self, path: str) -> bool:
        """Whether values at a key, or below a prefix, are encrypted."""
        return self.places.seals(path)

    async def facts(self) -> EngineFacts:
        """As `Store.facts`."""
        return await self.raw.facts()

    async def open(self, board: str, *, again: bool = False) -> Head:
        """As `Store.open`."""
        return self._saw(board, await self.raw.open(board, again=again))

    def _saw(self, board: str, head: Head) -> Head:
        self._heads[board] = head.epoch.id, head.revision, time.monotonic()
        self.places.saw_epoch(board, head.epoch.id)
        return head

    def _committed(self, board: str, commit: Commit, revision: Revision) -> None:
        """Record the revision of a commit, as the base for the next `Place`."""
        seen = self._heads.get(board)
        # The answers to two calls in flight may come in either order.
        if seen is not None and seen[0] == commit.epoch and seen[1] < revision:
            self._heads[board] = seen[0], revision, time.monotonic()

    async def _place(self, board: str, commit: Commit) -> Place:
        """The place for which the values of a commit are encrypted: after the newest revision
        seen."""
        seen = self._heads.get(board)
        if commit.begins is not None:
            # A restore takes effect at this revision or not at all, so it is known beforehand.
            return Place(board, commit.begins.revision - 1, commit.account)
        # A place far behind the commit would make readers search the log for it for long.
        if seen is None or seen[0] != commit.epoch or seen[2] < time.monotonic() - _HEAD_FRESH_S:
            head = await self.open(board)
            return Place(board, head.revision, commit.account)
        return Place(board, seen[1], commit.account)

    async def begin_epoch(self, board: str, head: Head, *, above: Revision) -> Head:
        """As `Store.begin_epoch`."""
        return await self.raw.begin_epoch(board, head, above=above)

    async def exists(self, board: str) -> bool:
        """As `Store.exists`."""
        return await self.raw.exists(board)

    async def hold(self, board: str, hold_ms: Milliseconds) -> None:
        """As `Store.hold`."""
        await self.raw.hold(board, hold_ms)

    async def drop(self, board: str) -> None:
        """As `Store.drop`. The data keys stay: branches may need them."""
        await self.raw.drop(board)

    async def remove(self, board: str, *, above: Revision = 0, epoch: str | None = None) -> None:
        """As `Store.remove`. The data keys stay (`DataKeys.forget`): branches may need them."""
        await self.raw.remove(board, above=above, epoch=epoch)
        self._heads.pop(board, None)

    async def removed(self, board: str) -> Revision | None:
        """As `Store.removed`."""
        return await self.raw.removed(board)

    async def compact(self, board: str, oldest: Revision) -> Head:
        """As `Store.compact`."""
        return await self.raw.compact(board, oldest)

    async def boards(self) -> Sequence[str]:
        """As `Store.boards`."""
        return await self.raw.boards()

    async def aclose(self) -> None:
        """As `Store.aclose`."""
        # Before the store, whose log its follower reads.
        await self.keys.aclose()
        await self.raw.aclose()

    # --- committing -------------------------------------------------------------------------------

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`."""
        return cast("list[Outcome]", await self._commit(board, batch, self.raw.commit))

    async def commit_at(
        self, board: str, batch: Sequence[Prepared], access: Revision
    ) -> list[_Decision]:
        """As `Shared.commit_at`."""
        assert isinstance(self.raw, Shared)
        return await self._commit(board, batch, partial(self.raw.commit_at, access=access))

    async def raise_access(self, board: str, access: Revision) -> None:
        """As `Shared.raise_access`."""
        assert isinstance(self.raw, Shared)
        await self.raw.raise_access(board, access)

    async def _commit(self, board: str, batch: Sequence[Prepared], send: _Send) -> list[_Decision]:
        reading = await self._counters(board, [prepared.commit for prepared in batch])
        plans = [await self._planned(board, prepared, reading) for prepared in batch]
        # One call for the whole batch; only sums that were outdated are sent again, by themselves.
        sent = [plan.sent for plan in plans if isinstance(plan, Plan)]
        answers = iter(await send(board, sent) if sent else [])
        outcomes: list[_Decision] = []
        for prepared, plan in zip(batch, plans, strict=True):
            if isinstance(plan, Plan):
                outcomes.append(await self._settled(board, prepared, plan, next(answers), send))
            else:
                outcomes.append(cast("Outcome", plan))
        return outcomes

    async def _planned(
        self, board: str, prepared: Prepared, reading: "_Counted"
    ) -> Plan | BlackboardError:
        """As `_plan`. Corrupt or Unavailable values refuse only this commit; nothing was sent
        yet."""
        try:
            return await self._plan(board, prepared, reading)
        except NoSuchBoard:
            raise
        except BlackboardError as error:
            return error

    async def _counters(self, board: str, commits: Sequence[Commit]) -> "_Counted":
        """The stored entries that commits increment; or the error of reading them."""
        wanted = sorted({key for commit in commits for key in self._added_to(commit)})
        found: dict[Key, Entry] = {}
        try:
            for start in range(0, len(wanted), READ_KEYS_MAX):
                reading = await self.raw.read(board, wanted[start : start + READ_KEYS_MAX])
                found |= {entry.key: entry for entry in reading.entries}
        except BlackboardError as error:
            # Not raised: it concerns only the commits of the batch that add to such a counter.
            return error
        return found

    def _added_to(self, commit: Commit) -> set[Key]:
        return {o.key for o in commit.ops if isinstance(o, Increment) and self.seals(o.key)}

    async def _settled(
        self, board: str, prepared: Prepared, plan: Plan, outcome: _Decision, send: _Send
    ) -> _Decision:
        """As `_settle`; when the store becomes unavailable in between, the outcome is unknown."""
        try:
            return await self._settle(board, prepared, plan, outcome, send)
        except BlackboardError as error:
            name = prepared.commit.id
            return OutcomeUnknown(
                name.agent, name.lane, name.incarnation, name.step, reason=str(error)
            )

    async def _settle(
        self, board: str, prepared: Prepared, plan: Plan, outcome: _Decision, send: _Send
    ) -> _Decision:
        """The outcome for the sender; an outdated sum is computed again."""
        if self._is_late(plan, outcome):
            async with self._adding:
                for _ in range(self._merge_attempts_max):
                    counters = await self._counters(board, [prepared.commit])
                    again = await self._plan(board, prepared, counters)
                    if not isinstance(again, Plan):
                        return again
                    plan = again
                    (outcome,) = await send(board, [plan.sent])
                    if not self._is_late(plan, outcome):
                        break
        if isinstance(outcome, Committed):
            self._committed(board, plan.commit, outcome.revision)
            # For a retry, values were encrypted again: the engine has those of the first one.
            if not outcome.duplicate:
                self.places.note_own(board, plan.sent.commit, outcome)
            # A restore was sent with one operation more (`Places.telling`).
            outcome = replace(outcome, results=outcome.results[: len(plan.commit.ops)])
        if isinstance(outcome, Committed):
            return await self._with_totals(board, plan, outcome)
        if isinstance(outcome, TypeMismatch) and plan.failure is not None:
            return plan.failure
        if isinstance(outcome, Conflict) and isinstance(outcome.current, bytes):
            outcome.current = await self._current(board, outcome, outcome.current)
        return outcome

    async def _current(self, board: str, conflict: Conflict, value: bytes) -> bytes | None:
        """The decrypted value in a conflict; None if it is not in its place, or cannot be read."""
        entry = Entry(conflict.key, value, conflict.actual, 0, author="", time_ms=0)
        try:
            await self.places.check_entries(board, [entry])
            return await self.opener.value([board], conflict.key, value)
        except BlackboardError:  # the commit is refused all the same: its outcome is known
            return None

    @staticmethod
    def _is_late(plan: Plan, outcome: _Decision) -> bool:
        # A Conflict with a condition of the sender's own is its answer, and is not tried again.
        return isinstance(outcome, Conflict) and (outcome.key, outcome.expected) in plan.guards

    async def _with_totals(self, board: str, plan: Plan, outcome: Committed) -> Outcome:
        """The results with the sums; for a retry, those of the first attempt."""
        totals: dict[int, int] | None = plan.totals
        if outcome.duplicate:
            totals = await self._totals_then(board, plan.commit, outcome)
        if totals is None:
            # It was applied, but nothing has the sums any more: asking again is no use.
            name = plan.commit.id
            reason = "its result is no longer kept"
            return OutcomeUnknown(
                name.agent, name.lane, name.incarnation, name.step, reason, final=True
            )
        if not totals:
            return outcome
        results: list[Result] = list(outcome.results)
        for number, total in totals.items():
            results[number] = total
        return replace(outcome, results=tuple(results))

    async def _totals_then(
        self, board: str, commit: Commit, outcome: Committed
    ) -> dict[int, int] | None:
        """The sums that the first attempt of `commit` was answered; None if they are not kept."""
        keys = self._added_to(commit)
        # Before encryption was switched on, the engine computed the sums, and has them.
        pairs = zip(commit.ops, outcome.results, strict=False)
        if all(r is not None for op, r in pairs if isinstance(op, Increment) and op.key in keys):
            return {}
        try:
            page = await self.raw.log(board, outcome.revision - 1, limit=1)
        except Compacted:
            return None
        entries = await self.opener.log([board], page.entries)
        left = {c.key: c.value for entry in entries for c in entry.changes}
        return sums_of(commit.ops, keys, left)

    # --- plans ------------------------------------------------------------------------------------

    async def _plan(self, board: str, prepared: Prepared, reading: "_Counted") -> Plan | Rejected:
        """What to send in place of a commit; a refusal if that would be too large."""
        commit = prepared.commit
        if not any(self._concerns(op) for op in commit.ops):
            return Plan(commit, prepared)
        plan = Plan(commit, prepared)
        counters = Counters(plan)
        if wanted := self._added_to(commit):
            if isinstance(reading, BlackboardError):
                raise reading
            entries = [reading[key] for key in sorted(wanted) if key in reading]
            # Before anything is added: the sum is encrypted for the present, so an old value that
            # was put back in the engine would become a genuine one.
            await self.places.check_entries(board, entries)
            opened = await self.opener.entries([board], entries)
            counters.now |= {entry.key: entry for entry in opened}
        plan.place = await self._place(board, commit)
        ops = [await self._sealed(board, counters, n, op) for n, op in enumerate(commit.ops)]
        if commit.begins is not None:
            ops += await self.places.telling(board, commit, commit.begins.revision, ops)
        conditions = (*commit.conditions, *counters.conditions)
        try:
            # Each ciphertext is about 100 bytes longer, so what just fitted may not fit now.
            plan.sent = prepare(replace(commit, ops=tuple(ops), conditions=conditions))
        except LimitExceeded as refusal:
            return refusal
        return plan

    def _concerns(self, op: Op) -> bool:
        match op:
            case Put() | Increment():
                return self.seals(op.key)
            case Append():
                return self.seals(op.prefix)
            case PutBack() if op.value is not None:
                return isinstance(op.value, Opened) or self.seals(op.key)
        return False

    async def _sealed(self, board: str, counters: "Counters", number: int, op: Op) -> Op:
        name, place = counters.plan.commit.id, counters.plan.place
        match op:
            case Put() if self.seals(op.key):
                counters.write(op.key, op.value)
                value = await self._seal(board, op.key, PUT, name, op.value, place)
                return replace(op, value=value)
            case Append() if self.seals(op.prefix):
                place = counters.plan.next_item(op.prefix)
                counters.append(op.prefix)
                value = await self._seal(board, op.prefix, APPEND, name, op.value, place)
                return replace(op, value=value)
            case PutBack() if op.value is not None:
                kept = sealed_form(op.value)
                # Plain, from before the switch to encryption: now that would be Corrupt there.
                if self.seals(op.key) and not is_sealed(kept):
                    kept = await self._seal(board, op.key, PUT, name, kept, place)
                return replace(op, value=kept)
            case Delete():
                counters.write(op.key, None)
            case DeletePrefix():
                counters.remove_below(op.prefix)
            case Increment() if self.seals(op.key):
                total = counters.add(number, op)
                if total is None:
                    return op
                packed = integers.write_integer(total)
                return Put(op.key, await self._seal(board, op.key, PUT, name, packed, place))
        return op

    async def _seal(
        self,
        board: str,
        path: str,
        kind: str,
        name: CommitId,
        value: bytes,
        place: Place | None = None,
    ) -> bytes:
        key = await self.keys.current(board, namespace_of(path))
        assert key.cipher is not None, "the newest key that was not destroyed"
        # Nonces are random, so one key may encrypt only so many values: SEALS_PER_KEY_MAX.
        key.seals += 1
        return seal(key.cipher, Header(key.id, kind, name, place), path, value)

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, board: str, keys: Sequence[Key]) -> Reading:
        """As `Store.read`. Errors: also Corrupt."""
        return await self._opened(board, await self.raw.read(board, keys))

    async def list(
        self,
        board: str,
        within: Prefix | Ranges,
        *,
        after: Key | None = None,
        limit: int,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Reading:
        """As `Store.list`. Errors: also Corrupt."""
        found = await self.raw.list(
            board, within, after=after, limit=limit, reverse=reverse, keys_only=keys_only
        )
        return found if keys_only else await self._opened(board, found)

    async def children(
        self,
        board: str,
        within: Ranges,
        prefix: Prefix,
        *,
        after: Key | None = None,
        limit: int,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """As `Store.children`. Errors: also Corrupt."""
        read = partial(self.raw.children, board, within, prefix, after=after)
        found = await read(limit=limit, options=options)
        return found if options.keys_only else await self._opened(board, found)

    async def due(self, board: str, *, limit: int, by_ms: Milliseconds | None = None) -> Reading:
        """As `Store.due`, without the values: an entry expires even if nobody can read it."""
        reading = await self.raw.due(board, limit=limit, by_ms=by_ms)
        return replace(reading, entries=tuple(map(without_value, reading.entries)))

    async def leases(self, board: str, *, due: bool = False) -> Reading:
        """As `Store.leases`."""
        return await self.raw.leases(board, due=due)

    async def log(
        self, board: str, after: Revision, *, limit: int, wait_ms: Milliseconds = 0
    ) -> LogPage:
        """As `Store.log`. Errors: also Corrupt."""
        page = await self.raw.log(board, after, limit=limit, wait_ms=wait_ms)
        self._saw(board, page.head)
        await self.places.check_log(board, page.entries)
        return replace(page, entries=await self.opener.log([board], page.entries))

    # --- pub/sub ----------------------------------------------------------------------------------

    @property
    def pubsub(self) -> bool:
        """Whether the store behind offers pub/sub."""
        return isinstance(self.raw, PubSub)

    async def publish(self, board: str, key: Key, data: bytes) -> None:
        """As `PubSub.publish`."""
        assert isinstance(self.raw, PubSub)
        if self.seals(key):
            # Without a place: no log has the message, so nothing could be compared with it.
            data = await self._seal(board, key, PUT, _NOBODY, data)
        await self.raw.publish(board, key, data)

    @asynccontextmanager
    async def subscribe(self, board: str) -> AsyncIterator[AsyncIterator[tuple[Key, bytes]]]:
        """As `PubSub.subscribe`. A message that cannot be decrypted did not come from one of our
        services."""
        assert isinstance(self.raw, PubSub)
        async with self.raw.subscribe(board) as heard:
            yield self._opened_messages(board, heard)

    async def _opened_messages(
        self, board: str, heard: AsyncIterator[tuple[Key, bytes]]
    ) -> AsyncIterator[tuple[Key, bytes]]:
        async for key, data in heard:
            if self.seals(key) == is_sealed(data):
                with contextlib.suppress(Corrupt):
                    yield key, await self.opener.value([board], key, data)

    async def _opened(self, board: str, reading: Reading) -> Reading:
        self.places.saw_epoch(board, reading.epoch)
        await self.places.check_entries(board, reading.entries)
        return replace(reading, entries=await self.opener.entries([board], reading.entries))

    # --- branches ---------------------------------------------------------------------------------

    async def seed(
        self,
        board: str,
        seed: Seed,
        pages: AsyncIterator[Sequence[Entry]],
        *,
        replaces: Head | None = None,
    ) -> Head:
        """As `Store.seed`. Ciphertext stays as it is: the board gets the keys that it needs."""
        ids: set[bytes] = set()

        async def sealed() -> AsyncIterator[Sequence[Entry]]:
            async for page in pages:
                before = set(ids)
                found = [await self._seeded(board, entry, ids) for entry in page]
                # Before the engine gets the page: a board must never be there without its keys.
                await self.keys.adopt(board, ids - before)
                yield found

        return await self.raw.seed(board, seed, sealed(), replaces=replaces)

    async def _seeded(self, board: str, entry: Entry, ids: set[bytes]) -> Entry:
        kept = sealed_form(entry.value)
        if is_sealed(kept):
            ids.add(header_of(kept, f"value of {entry.key}").key_id)
        elif self.seals(entry.key):
            # No commit of this board wrote it. Readers recognise it by the id without an
            # incarnation, and do not look for its commit in the log (`Places`).
            name = replace(_NOBODY, agent=entry.author)
            kept = await self._seal(board, entry.key, PUT, name, kept)
        return replace(entry, value=kept)
