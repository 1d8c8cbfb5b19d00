"""The meaning of a commit: `decide` accepts or refuses it.

This is the specification. The embedded engine runs this code; `engines/redis/scripts/commit.lua`
implements the same rules for Redis, and a Hypothesis state machine compares the two.

Invariants
- `decide` changes nothing; a refusal therefore never leaves anything half applied.
- The same state, commit and time give the same answer: there is no other input.
- A commit goes through `decide` -> `log_entry` (core/log_entry.py) -> `evolve` (core/state.py); one
  that makes no log entry (`_Draft.tells_nothing`), through `decide` -> `prolong`.

Values are msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md), whose first byte gives
the type. The rules read only one thing inside a value: whether it is an integer, and which. Twin:
the `integer` function of engines/redis/scripts/commit.lua.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from blackboard import limits
from blackboard.core import freeze, lease
from blackboard.core.commit import (
    ABSENT,
    PRESENT,
    RESTORE,
    SERVICE,
    Append,
    Commit,
    Committed,
    Delete,
    DeletePrefix,
    Entry,
    Epoch,
    Expire,
    Grant,
    Increment,
    KeyAt,
    Lease,
    Op,
    PrefixUnchanged,
    Put,
    PutBack,
    Release,
    Renew,
    Result,
    account_of,
    kind_of,
    name_of,
    read_integer,
    write_integer,
)
from blackboard.core.log_entry import effects, log_entry
from blackboard.core.path import (
    SYSTEM,
    agent_identified,
    barrier_key,
    cut_key,
    is_superseding,
    item_key,
    namespace_of,
    range_below,
    range_watched,
)
from blackboard.core.state import (
    IDENTITIES,
    SHARE,
    UNUSED,
    LaneAnswer,
    State,
    evolve,
    hold,
    shares_of,
)
from blackboard.errors import (
    AttemptTooOld,
    Compacted,
    Conflict,
    FutureRevision,
    HeadMoved,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    Rejected,
    SnapshotFirst,
    StaleEpoch,
    StepSuperseded,
    TypeMismatch,
)
from blackboard.units import Fence, Key, Milliseconds, Prefix, Revision

__all__ = ["Outcome", "State", "conflict", "decide", "effects", "evolve", "log_entry", "prolong"]

Outcome = Committed | Rejected | OutcomeUnknown
"""An engine's answer to one commit."""


def decide(state: State, commit: Commit, now_ms: Milliseconds) -> Outcome:
    """Decide one commit against `state`, changing nothing.

    The order of checks is part of the contract: identity (a retry gets its first answer), epoch,
    limits, freeze, head (of a restore), barrier, fences, conditions in their order, operations in
    their order, quotas. The first check that fails is the answer.

    Shapes: revisions are 1..REVISION_MAX; `now_ms` is the engine's clock and decides only whether a
    held lease may be taken over, and when what is written now expires. Returns: `Committed` (with
    `duplicate` set for a retry); a `Rejected`, with nothing changed; or `OutcomeUnknown` for a
    retry whose first answer is no longer kept (a first attempt that cannot be distinguished from
    such a retry is rejected: AttemptTooOld). Source: etcd tests/robustness/model/deterministic.go
    has the same shape. Twin: engines/redis/scripts/commit.lua.
    """
    try:
        # Before everything else: what was accepted once stays accepted, though the board is in
        # another epoch, frozen or full by now.
        known = _known(state, commit)
        if known is not None:
            return known
        _check_epoch(state, commit)
        _check_limits(commit)
        _check_freeze(state, commit)
        if commit.begins is not None:
            _check_begins(state, commit, commit.begins)
        else:
            _check_barrier(state, commit, now_ms)
        # Before the conditions, so that a former holder learns that its lease is gone. Compared
        # with the state before this commit: one that releases a lease may still rely on it.
        for fence in commit.fences:
            lease.check_fence(state.leases.get(fence.key), fence)
        looked = _Looked()
        for condition in commit.conditions:
            if isinstance(condition, KeyAt):
                _check_key(state, condition)
            else:
                _check_prefix(state, condition, looked)
        draft = _Draft(state, now_ms, account_of(commit.author))
        if commit.begins is not None:
            results = tuple(draft.put_back(commit.ops))  # within the quotas, as it was before
        else:
            results = tuple(draft.apply(op) for op in commit.ops)
            draft.check_quotas()
    except (Rejected, OutcomeUnknown) as refusal:
        return refusal
    revision = state.revision if draft.tells_nothing(commit) else state.revision + 1
    return Committed(revision=revision, time_ms=now_ms, results=results)


def _known(state: State, commit: Commit) -> Committed | None:
    """The first answer, if this commit is a retry of one that was applied."""
    # Under the signature: agents of one name on two accounts must not get each other's answers.
    name, last = commit.id, state.answers.get((commit.author, commit.id.lane))
    if last is None:
        return None
    if last.incarnation != name.incarnation:
        _check_distinguishable(commit, last, state)
        return None
    if name.step == last.step:
        return Committed(last.revision, last.time_ms, last.results, duplicate=True)
    # A late copy: a lane has one commit in flight, so nobody waits for this step any more.
    if name.step < last.step:
        raise StepSuperseded(name.agent, name.step, last.step)
    return None  # the next step of this lane, whose writer has the answer to the one before


def _check_distinguishable(commit: Commit, last: LaneAnswer, state: State) -> None:
    """Check that `commit` cannot be a retry of an attempt whose answer was overwritten.

    If an earlier attempt was applied, that happened after the revision that its writer knew. So its
    answer would be the last one, or one that was overwritten since. A first attempt of another
    epoch is not affected: it is refused for its epoch, because its writer has not seen this one.
    """
    name = commit.id
    if commit.retry_since is not None:
        if last.overwritten > commit.retry_since:
            reason = "its answer is no longer kept"
            # Final, or the client would send it again and again: the answer does not come back.
            raise OutcomeUnknown(
                name.agent, name.lane, name.incarnation, name.step, reason, final=True
            )
    elif commit.known is not None and last.overwritten > commit.known:
        _check_epoch(state, commit)
        head, known = state.revision, commit.known
        raise AttemptTooOld(name.agent, name.lane, name.incarnation, name.step, known, head)


def _check_epoch(state: State, commit: Commit) -> None:
    now = state.epoch
    if commit.epoch != now.id:
        raise StaleEpoch(
            yours=commit.epoch,
            current=now.id,
            number=now.number,
            cause=now.cause,
            from_revision=now.from_revision,
            head=state.revision,
        )


def _check_limits(commit: Commit) -> None:
    if commit.begins is not None:
        _check_size("RESTORE_CHANGES_MAX", len(commit.ops), limits.RESTORE_CHANGES_MAX, "ops")
    elif not commit.ops:
        raise InvalidRequest(field="ops", reason="a commit needs at least one operation")
    else:
        _check_size("OPERATIONS_MAX", len(commit.ops), limits.OPERATIONS_MAX, "ops")
    # Tested here and not in `_check_size`: most commits have none, and every commit passes here.
    if commit.conditions:
        _check_size("OPERATIONS_MAX", len(commit.conditions), limits.OPERATIONS_MAX, "conditions")
    if commit.fences:
        _check_size("FENCES_MAX", len(commit.fences), limits.FENCES_MAX, "fences")
    if commit.based_on:
        _check_size("BASED_ON_MAX", len(commit.based_on), limits.BASED_ON_MAX, "based_on")


def _check_begins(state: State, commit: Commit, begins: Epoch) -> None:
    """Errors: unless a restore follows exactly the head for which it was computed."""
    is_next = begins.number == state.epoch.number + 1 and begins.cause == RESTORE
    if not (is_next and begins.from_revision < begins.revision):
        raise InvalidRequest(field="begins", reason="it is not the epoch of a restore")
    # Anything else would escape the quotas, which are not checked for a restore.
    if not {type(op) for op in commit.ops} <= {PutBack, Delete}:
        raise InvalidRequest(field="ops", reason="a restore puts back and deletes, nothing else")
    if begins.revision != state.revision + 1:
        raise HeadMoved(begins.revision - 1, state.revision)


def _check_freeze(state: State, commit: Commit) -> None:
    """Errors: BoardFrozen, while the entry at FROZEN_KEY keeps `commit` out."""
    found = state.entries.get(freeze.FROZEN_KEY)
    if found is not None and not _passes_freeze(commit):
        raise freeze.refusal(found.value, found.time_ms, found.mod_revision)


def _passes_freeze(commit: Commit) -> bool:
    """Whether a frozen board accepts `commit`. Twin: `check_frozen` of commit.lua."""
    return (
        commit.begins is not None
        or commit.id.agent == SERVICE
        # An incident lasts longer than a lease: without renewals, every agent would lose its
        # identity.
        or all(isinstance(op, Renew | Release) for op in commit.ops)
    )


def _check_barrier(state: State, commit: Commit, now_ms: Milliseconds) -> None:
    """Errors: for a commit of an agent while a checkpoint waits for its state. Until the cut, it
    may only deliver its state and renew its leases, so that the cut has no state of it without the
    memory that belongs to it."""
    agent = commit.id.agent
    barrier, cut = barrier_key(agent), cut_key(agent)
    if barrier not in state.entries and cut not in state.entries:
        return  # as nearly always
    asked = _living(state, barrier, now_ms) or _living(state, cut, now_ms)
    # That removal delivers even if the entry is gone: it says that all memory is in the commit.
    if asked is None or Delete(barrier) in commit.ops:
        return
    # Leases pass: a slow checkpoint must not cost an agent its identity.
    if not all(isinstance(op, Grant | Renew | Release | Expire) for op in commit.ops):
        raise SnapshotFirst(agent, barrier_key(agent), asked.mod_revision)


def _living(state: State, key: Key, now_ms: Milliseconds) -> Entry | None:
    # Expiry is a commit of its own, so an entry whose time has passed may still be there.
    entry = state.entries.get(key)
    is_over = entry and entry.expires_at_ms is not None and entry.expires_at_ms <= now_ms
    return None if is_over else entry


def _check_size(limit: str, value: int, maximum: int, where: str | None) -> None:
    if value > maximum:
        raise LimitExceeded(limit, value, maximum, where)


def _check_key(state: State, condition: KeyAt) -> None:
    entry = state.entries.get(condition.key)
    actual = entry.mod_revision if entry else ABSENT
    if actual != condition.revision and not (entry and condition.revision == PRESENT):
        raise conflict(state, condition.key, condition.revision)


def conflict(state: State, key: Key, expected: Revision) -> Conflict:
    """The Conflict that describes `key` as it is now; small current values are included."""
    entry, tombstone = state.entries.get(key), state.tombstones.get(key)
    if entry is not None:
        # With the value, an agent can plan again without another read.
        small = len(entry.value) <= limits.VALUE_INLINE_BYTES_MAX
        return Conflict(
            key,
            expected,
            entry.mod_revision,
            by=name_of(entry.author),
            at_revision=entry.mod_revision,
            head=state.revision,
            current=entry.value if small else None,
        )
    if tombstone is not None:
        by, at = name_of(tombstone.author), tombstone.revision
        return Conflict(key, expected, ABSENT, by=by, at_revision=at, head=state.revision)
    return Conflict(key, expected, ABSENT, head=state.revision)


@dataclass(slots=True)
class _Looked:
    """How many keys the prefix conditions of one commit have scanned."""

    living: int = 0
    removed: int = 0


def _check_prefix(state: State, condition: PrefixUnchanged, looked: _Looked) -> None:
    prefix, since = condition.prefix, condition.since
    if since > state.revision:
        raise FutureRevision(since, state.revision)
    # Older tombstones are gone, so a removal could be overlooked.
    if since < state.oldest - 1:
        raise Compacted(since, state.oldest)
    watched = range_watched(prefix)
    living = _at_most(state.between(*watched), prefix, looked.living)
    removed = _at_most(state.removed_between(*watched), prefix, looked.removed)
    # Tombstones count too: looking for them costs as much as looking for entries.
    looked.living += len(living)
    looked.removed += len(removed)
    for key in living:
        if state.entries[key].mod_revision > since:
            raise conflict(state, key, since)
    for key in removed:
        if state.tombstones[key].revision > since:
            raise conflict(state, key, since)


def _at_most(keys: Iterator[Key], prefix: Prefix, before: int) -> list[Key]:
    """Up to OPERATIONS_MAX keys, including the `before` that the commit already scanned. More are
    refused, because a commit may not loop over a board."""
    room = limits.OPERATIONS_MAX + 1 - before
    found = [key for key, _ in zip(keys, range(room), strict=False)]
    _check_size("OPERATIONS_MAX", before + len(found), limits.OPERATIONS_MAX, prefix)
    return found


class _Draft:
    """The changes of a commit, on top of a state that stays unchanged.

    Operations see those before them in the same commit.
    """

    def __init__(self, state: State, now_ms: Milliseconds, account: str) -> None:
        self.state = state
        self.now_ms = now_ms
        self.account = account
        # A fence is the revision of its grant: it only grows, and needs no counter of its own.
        self.fence: Fence = state.revision + 1
        self.values: dict[Key, bytes | None] = {}
        self.next_item: dict[Prefix, int] = {}
        self.leases: dict[Key, Lease | None] = {}
        self.held: dict[str, int] = {}
        # Both are sums over all operations: many small prefixes must not add up to a scan of the
        # board.
        self.looked = 0
        self.removed = 0

    def apply(self, op: Op) -> Result:
        match op:
            case Put():
                self.values[op.key] = op.value
                return None
            case Delete():
                return self._delete(op.key)
            case DeletePrefix():
                return self._delete_prefix(op.prefix)
            case Append():
                return self._append(op)
            case Increment():
                return self._increment(op)
            case Grant():
                return self._grant(op)
            case Renew():
                return self._set_lease(op.key, lease.renew(self._lease(op.key), op, self.now_ms))
            case Release():
                held = lease.release(self._lease(op.key), op, self.fence, self.now_ms)
                return self._set_lease(op.key, held)
            case Expire():
                held = lease.expire(self._lease(op.key), op, self.fence, self.now_ms)
                return self._set_lease(op.key, held)
            case PutBack():
                raise InvalidRequest(field="ops", reason="only a restore puts back what was")

    def put_back(self, ops: Sequence[Op]) -> Iterator[Result]:
        """Apply the operations of a restore. This is a separate, faster path: there are many, and
        all other commits wait for them."""
        for op in ops:
            if isinstance(op, PutBack):
                self.values[op.key] = op.value
                yield None
            else:
                yield self.apply(op)

    def _value(self, key: Key) -> bytes | None:
        if key in self.values:
            return self.values[key]
        entry = self.state.entries.get(key)
        return entry.value if entry else None

    def _lease(self, key: Key) -> Lease | None:
        return self.leases[key] if key in self.leases else self.state.leases.get(key)

    def _delete(self, key: Key) -> int:
        existed = self._value(key) is not None
        if existed:
            self.values[key] = None
        return int(existed)

    def _delete_prefix(self, prefix: Prefix) -> tuple[Key, ...]:
        first, last = range_below(prefix)
        living = _at_most(self.state.below(prefix), prefix, self.looked)
        self.looked += len(living)
        found = set(living)
        found |= {key for key in self.values if first <= key < last}
        # Sorted, because this is a result: the digest covers it, and both engines must give the
        # same.
        doomed = tuple(sorted(key for key in found if self._value(key) is not None))
        self.removed += len(doomed)
        # `looked` does not bound this: entries that the commit itself put are removed, too.
        if self.removed > limits.OPERATIONS_MAX:
            raise LimitExceeded("OPERATIONS_MAX", self.removed, limits.OPERATIONS_MAX, prefix)
        self.values.update(dict.fromkeys(doomed))
        return doomed

    def _append(self, op: Append) -> Key:
        index = self.next_item.get(op.prefix, self.state.next_item.get(op.prefix, 0))
        key = item_key(op.prefix, index)
        # The prefix was checked without the index, which makes the key eleven characters longer.
        if len(key) > limits.KEY_BYTES_MAX:
            raise LimitExceeded("KEY_BYTES_MAX", len(key), limits.KEY_BYTES_MAX, op.prefix)
        if self._value(key) is not None:  # somebody put an entry under the next item's name
            raise conflict(self.state, key, ABSENT)
        self.next_item[op.prefix] = index + 1
        self.values[key] = op.value
        return key

    def _increment(self, op: Increment) -> int:
        value = self._value(op.key)
        number = 0 if value is None else read_integer(value)
        if number is None:
            found = kind_of(value or b"")
            raise TypeMismatch(op.key, "integer", found)
        total = number + op.by
        if abs(total) > limits.INTEGER_MAX:
            raise LimitExceeded("INTEGER_MAX", total, limits.INTEGER_MAX, op.key)
        self.values[op.key] = write_integer(total)
        return total

    def _grant(self, op: Grant) -> Result:
        held = self._lease(op.key)
        if held is None:
            self._check_room(op.key)
        result = self._set_lease(op.key, lease.grant(held, op, self.fence, self.now_ms))
        # On the result: only now is it known whether the account waits, or another one got the
        # lease.
        self._check_share(op.key)
        return result

    def _check_room(self, key: Key) -> None:
        """Errors: LimitExceeded when the board has its full number of leases of this kind."""
        # A lease that is in both counts twice. Twin: `check_room` of commit.lua, which knows only
        # how many fields the hash has.
        count = len(self.state.leases) + len(self.leases) + 1
        if count > limits.LEASES_MAX:
            raise LimitExceeded("LEASES_MAX", limits.LEASES_MAX + 1, limits.LEASES_MAX, key)
        if agent_identified(key) is None:
            ordinary = count - self._held(IDENTITIES)
            _check_size("LEASES_ORDINARY_MAX", ordinary, limits.LEASES_ORDINARY_MAX, key)

    def _check_share(self, key: Key) -> None:
        """Errors: LimitExceeded when the account holds, or waits for, its full share of leases."""
        account, now = self.account, self.leases[key]
        waiting = [waiter for waiter in now.waiters if waiter.account == account] if now else []
        for limit, count, maximum in (
            ("LEASES_PER_ACCOUNT_MAX", self._held(account), limits.LEASES_PER_ACCOUNT_MAX),
            (
                "LEASE_WAITERS_PER_ACCOUNT_MAX",
                len(waiting),
                limits.LEASE_WAITERS_PER_ACCOUNT_MAX,
            ),
        ):
            if count > maximum:
                raise LimitExceeded(limit, count, maximum, key, account)

    def _held(self, name: str) -> int:
        return self.state.held.get(name, 0) + self.held.get(name, 0)

    def _set_lease(self, key: Key, held: Lease | None) -> Result:
        # Against the state, not the draft: every name that this commit added is charged to its
        # account.
        after = lease.charged(self.state.leases.get(key), held, self.account)
        hold(self.held, self._lease(key), -1)
        hold(self.held, after, 1)
        self.leases[key] = after
        return lease.to_result(held)

    def tells_nothing(self, commit: Commit) -> bool:
        """Whether `commit` makes no log entry: it only moved deadlines, which the log does not
        keep, or removed absent keys.

        Such a commit leaves no answer on its lane either. So a retry that removes always makes an
        entry: an earlier attempt may still be in flight, and must not remove what is put there
        later.
        """
        if self.values or commit.begins is not None:
            return False
        is_first = commit.retry_since is None
        return all(
            isinstance(op, Renew) or (is_first and _removes(op)) for op in commit.ops
        ) and all(
            lease.is_prolonged(self.state.leases.get(key), held)
            for key, held in self.leases.items()
        )

    def check_quotas(self) -> None:
        """Refuse growth beyond a quota. A commit that shrinks a namespace always passes. One that
        changes records of the service only is bounded by the quota of their namespace, and not by
        that of the board: a full board can be frozen, too."""
        growth = _growth(self.state, self.values, self.account)
        if SYSTEM in growth and all(n in ("", SYSTEM) or n.startswith(SHARE) for n in growth):
            growth.pop("", None)
        for name, (keys, size) in growth.items():
            used = self.state.usage.get(name, UNUSED)
            if keys > 0:
                self._check_quota("KEYS", name, used.keys + keys)
            if size > 0:
                self._check_quota("BYTES", name, used.bytes + size)

    def _check_quota(self, what: str, name: str, used: int) -> None:
        kind, account = "NAMESPACE" if name else "BOARD", None
        if name.startswith(SHARE):
            kind = "ACCOUNT_INBOX" if name.endswith("/inbox") else "ACCOUNT"
            account = self.account
        limit = f"{kind}_{what}_MAX"
        maximum: int = getattr(limits, limit)
        if used > maximum:
            where = None if account else name or None
            raise LimitExceeded(limit, used, maximum, where, account)


def _removes(op: Op) -> bool:
    """Whether an operation only removes. The removal that supersedes a lane does more than that."""
    if isinstance(op, Delete):
        return not is_superseding(op.key)
    return isinstance(op, DeletePrefix)


def _growth(
    state: State, values: dict[Key, bytes | None], account: str
) -> dict[str, tuple[int, int]]:
    """(keys, bytes) by which each namespace, the board ("") and the shares of `account` grow when
    it writes `values`.

    A namespace whose keys all stay as large as they are is left out.
    """
    growth: dict[str, tuple[int, int]] = {}
    for key, value in values.items():
        old, namespace = state.entries.get(key), namespace_of(key)
        own_keys, own_size = (0, 0) if value is None else (1, len(key) + len(value))
        keys, size = own_keys, own_size
        if old is not None:
            keys, size = keys - 1, size - len(key) - len(old.value)
        _add(growth, (namespace, ""), keys, size)
        if old is None or account_of(old.author) == account:
            own_keys, own_size = keys, size
        # Else it changes hands: the whole entry counts for the account that writes it now.
        _add(growth, shares_of(account, namespace), own_keys, own_size)
    return growth


def _add(growth: dict[str, tuple[int, int]], names: tuple[str, ...], keys: int, size: int) -> None:
    if keys or size:
        for name in names:
            more_keys, more_bytes = growth.get(name, (0, 0))
            growth[name] = (more_keys + keys, more_bytes + size)


def prolong(state: State, commit: Commit, committed: Committed) -> bool:
    """Whether `commit`, which `decide` answered with `committed`, makes no log entry. If so, the
    leases that it renews are prolonged now."""
    if committed.revision > state.revision:
        return False
    for op, result in zip(commit.ops, committed.results, strict=True):
        if not isinstance(op, Renew):
            continue  # it removed an absent key
        assert isinstance(result, tuple)
        held = lease.from_result(op.key, result)
        assert held is not None
        # Results have neither accounts nor the time to live. A renewal that changes the latter is
        # logged, so here it is what it was.
        before = state.leases[op.key]
        queue = zip(before.waiters, held.waiters, strict=True)
        waiters = tuple(replace(now, account=then.account) for then, now in queue)
        account = before.account
        state.leases[op.key] = replace(held, waiters=waiters, ttl_ms=before.ttl_ms, account=account)
    return True
