"""A board at its newest revision, and how one log entry changes it.

Invariants of State
- `revision` never decreases; each log entry raises it by one, an epoch marker by more.
- `entries` and `tombstones` are disjoint; a tombstone is the trace of a removed key until the log
  no longer reaches back to its removal (`oldest`).
- every `mod_revision`, `create_revision` and `fence` is at most `revision`.
- `next_item[prefix]` never decreases.
- `entries` may be an engine's own kind, which has not loaded all of them. What it has not loaded it
  refuses to look up; it never says that a key is absent which may be there.
- `usage` is the sum over all entries, loaded or not; `usage[""]` that of the whole board.
- `expiring` has the loaded entries that expire.
- `usage["@ann"]` is the sum over the entries last written by the account `ann`,
  `usage["@ann/inbox"]` that over those of them in inboxes.
- `held` counts `leases`: how many each account holds or waits for, and in `held[IDENTITIES]` how
  many are identities of agents.
- `fold(evolve, log, State())` is the state, except for the deadlines of leases (`until_ms`): an
  engine sets them when it opens the board, and renewals move them (`prolong` of core/model.py).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace
from sortedcontainers import SortedDict, SortedSet

from blackboard.core import lease as leases
from blackboard.core.commit import (
    RESTORE,
    Change,
    ChangeKind,
    Entry,
    Epoch,
    Lease,
    LogEntry,
    Result,
    account_of,
)
from blackboard.core.path import Ranges, agent_identified, directory_of, namespace_of, range_below
from blackboard.units import Key, Milliseconds, Prefix, Revision

if TYPE_CHECKING:
    _Sorted = SortedDict[Key, Entry]
else:  # the class takes no parameters
    _Sorted = SortedDict


class Tombstone(Struct, frozen=True, gc=False):
    """A removed key: the revision of its removal, and its author (a signature)."""

    revision: Revision
    author: str


class LaneAnswer(Struct, frozen=True, gc=False):
    """The last answer given on one lane of an agent.

    `overwritten` is the revision of the newest answer that another incarnation's commit on this
    lane displaced (0 = none): a retry from before it cannot be distinguished from a first attempt.
    """

    incarnation: str
    step: int
    revision: Revision
    time_ms: Milliseconds
    results: tuple[Result, ...]
    overwritten: Revision = 0


class BoardUsage(Struct, frozen=True, gc=False):
    """Live keys, and the bytes of their names and values."""

    keys: int = 0
    bytes: int = 0


UNUSED: Final = BoardUsage()
SHARE: Final = "@"
"""The first character of an account's name in `State.usage`; no namespace begins with it."""
IDENTITIES: Final = ""
"""A name in place of an account's; no account can have it."""

Growth = dict[str, list[int]]
"""Keys and bytes by which namespaces and the shares of accounts grow."""
_exchange: Final[Callable[[Any, Key, Entry], None]] = dict.__setitem__
"""Replaces an entry of a sorted dictionary whose key is already there, without sorting."""


class Entries(_Sorted):
    """The live entries of a board by their keys, in order."""

    def between(self, first: str, last: str, *, reverse: bool = False) -> Iterator[Key]:
        """The keys in the half-open range, sorted; the last first with `reverse`."""
        return iter(self.irange(first, last, inclusive=(True, False), reverse=reverse))

    def count(self, first: str, last: str) -> int:
        """How many keys the half-open range has."""
        return int(self.bisect_left(last) - self.bisect_left(first))


@dataclass
class State:
    """A board at its newest revision. Owned by one engine; changed by `evolve` and `compact`."""

    epoch: Epoch
    revision: Revision = 0
    oldest: Revision = 1
    time_ms: Milliseconds = 0
    entries: Entries = field(default_factory=Entries)
    tombstones: "SortedDict[Key, Tombstone]" = field(default_factory=SortedDict)
    next_item: dict[Prefix, int] = field(default_factory=dict)
    leases: dict[Key, Lease] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    answers: dict[tuple[str, int], LaneAnswer] = field(default_factory=dict)
    usage: dict[str, BoardUsage] = field(default_factory=dict)
    expiring: "SortedSet[tuple[Milliseconds, Key]]" = field(default_factory=SortedSet)

    def below(self, prefix: Prefix) -> Iterator[Key]:
        """Live keys below `prefix`, sorted."""
        return self.between(*range_below(prefix))

    def between(self, first: str, last: str, *, reverse: bool = False) -> Iterator[Key]:
        """Live keys in the half-open range, sorted; the last first with `reverse`."""
        return self.entries.between(first, last, reverse=reverse)

    def children(
        self, prefix: Prefix, ranges: Ranges, *, reverse: bool = False
    ) -> Iterator[tuple[Key, Prefix | None, int]]:
        """The keys in `ranges` that lie directly below `prefix`, with None; and of each directory
        there a key, its name, and how many keys in that range it has. In order; a directory comes
        once for each range that it has keys in. Cost: a search for each item."""
        for begin, end in reversed(ranges) if reverse else ranges:
            first, last = begin, end
            while (key := next(self.between(first, last, reverse=reverse), None)) is not None:
                directory = directory_of(prefix, key)
                low, high = (key, key + "\x01") if directory is None else range_below(directory)
                low, high = max(low, first), min(high, last)
                yield key, directory, self.entries.count(low, high)
                first, last = (first, low) if reverse else (high, last)

    def removed_between(self, first: str, last: str) -> Iterator[Key]:
        """Keys in the half-open range that have a tombstone, sorted."""
        return iter(self.tombstones.irange(first, last, inclusive=(True, False)))

    def compact(self, oldest: Revision) -> None:
        """Record that the log starts at `oldest` now, and drop older tombstones."""
        self.oldest = max(self.oldest, oldest)
        for key in [k for k, t in self.tombstones.items() if t.revision < self.oldest]:
            del self.tombstones[key]


def evolve(state: State, entry: LogEntry) -> State:
    """Apply one log entry to `state`, in place, and return it, so that a log can be folded.

    Requires: the entry follows `state.revision` directly, or is an epoch marker above it.
    """
    assert entry.revision == state.revision + 1 or (
        entry.epoch is not None and entry.revision > state.revision
    ), (state.revision, entry.revision)
    state.revision, state.time_ms = entry.revision, entry.time_ms
    if entry.epoch is not None:
        state.epoch = entry.epoch
        # A marker: it has no changes, and no writer waits for its answer on a lane.
        if entry.epoch.cause != RESTORE:
            return state
        state.leases.clear()  # a restore undoes what their holders rely on
        state.held.clear()
    growth: Growth = {}
    for change in entry.changes:
        if change.lease is not None:
            _evolve_lease(state, change.lease, change.kind, entry)
        elif change.value is not None:
            _evolve_put(state, change, change.value, entry, growth)
        else:
            _evolve_delete(state, change.key, entry, growth)
        if change.item is not None:
            prefix = change.key.rpartition("/")[0]
            # Not simply the next: a restore may put back an item below those that were appended
            # since.
            state.next_item[prefix] = max(state.next_item.get(prefix, 0), change.item + 1)
    add_up(state.usage, growth)
    _evolve_answer(state, entry)
    return state


def _evolve_lease(state: State, lease: Lease, kind: ChangeKind, entry: LogEntry) -> None:
    before = state.leases.pop(lease.key, None)
    hold(state.held, before, -1)
    if kind in (ChangeKind.RELEASE, ChangeKind.EXPIRE):
        return
    # A change in the log has no time to live, but its deadline lies that long after its commit.
    ttl_ms: Milliseconds | None = lease.until_ms - entry.time_ms
    if kind == ChangeKind.WAIT:  # the holder did not change
        ttl_ms = before.ttl_ms if before else None
    after = leases.charged(before, replace(lease, ttl_ms=ttl_ms), account_of(entry.signed))
    assert after is not None
    state.leases[lease.key] = after
    hold(state.held, after, 1)


def hold(held: dict[str, int], lease: Lease | None, times: int) -> None:
    """Add a lease to the sums of `State.held`, or remove it (`times` = -1)."""
    if lease is None:
        return
    names = [account for account in leases.accounts(lease) if account]
    if agent_identified(lease.key) is not None:
        names.append(IDENTITIES)
    for name in names:
        count = held.get(name, 0) + times
        # It may be negative in a draft, whose sums are differences.
        if count:
            held[name] = count
        else:
            del held[name]


def _evolve_put(
    state: State, change: Change, value: bytes, entry: LogEntry, growth: Growth
) -> None:
    key, revision = change.key, entry.revision
    old = state.entries.get(key)
    created, first_ms = (revision, None) if old is None else (old.create_revision, old.created_ms)
    expires_at_ms, time_ms = change.expires_at_ms, entry.time_ms
    new = Entry(key, value, revision, created, entry.signed, time_ms, expires_at_ms, first_ms)
    if old is None:
        state.entries[key] = new
        state.tombstones.pop(key, None)
    else:
        _exchange(state.entries, key, new)
        if old.expires_at_ms is not None:
            state.expiring.discard((old.expires_at_ms, key))
    grow(growth, key, old, new)
    if expires_at_ms is not None:
        state.expiring.add((expires_at_ms, key))


def _evolve_delete(state: State, key: Key, entry: LogEntry, growth: Growth) -> None:
    # It may be gone: a replay over rows that are newer than the mark finds the tombstone already
    # (engines/sqlite/follower.py).
    old = state.entries.pop(key, None)
    if old is not None:
        state.tombstones[key] = Tombstone(entry.revision, entry.signed)
        grow(growth, key, old, None)
        if old.expires_at_ms is not None:
            state.expiring.discard((old.expires_at_ms, key))


def leave_out(state: State, entries: Iterable[Entry]) -> None:
    """Take `entries` out of a state, as if they had never been there."""
    growth: Growth = {}
    for entry in entries:
        del state.entries[entry.key]
        if entry.expires_at_ms is not None:
            state.expiring.discard((entry.expires_at_ms, entry.key))
        grow(growth, entry.key, entry, None)
    add_up(state.usage, growth)


@lru_cache(maxsize=4_096)
def shares_of(account: str, namespace: str) -> tuple[str, ...]:
    """The names in `State.usage` for what `account` writes in `namespace`. The service has none."""
    if account.startswith("~"):
        return ()
    mine = f"{SHARE}{account}"
    return (mine, f"{mine}/inbox") if namespace.startswith("inbox/") else (mine,)


def grow(growth: Growth, key: Key, old: Entry | None, new: Entry | None) -> None:
    """Add to `growth` what it adds to the sums of `State.usage` that the entry at `key` changes
    from `old` to `new`; None = absent."""
    # The usual case, made quick. With two authors of one account the rest gives the same sums.
    if old is not None and new is not None and old.author == new.author:
        if (more := len(new.value) - len(old.value)) != 0:
            namespace = namespace_of(key)
            _grow(growth, (namespace, *shares_of(account_of(new.author), namespace)), 0, more)
        return
    for entry, times in ((old, -1), (new, 1)):
        if entry is not None:
            namespace = namespace_of(key)
            names = (namespace, *shares_of(account_of(entry.author), namespace))
            _grow(growth, names, times, times * (len(key) + len(entry.value)))


def _grow(growth: Growth, names: Iterable[str], keys: int, size: int) -> None:
    """Add to the growth of each of `names`. It is summed up first, because a restore has many keys
    in few namespaces."""
    for name in names:
        found = growth.setdefault(name, [0, 0])
        found[0] += keys
        found[1] += size


def add_up(usage: dict[str, BoardUsage], growth: Growth) -> None:
    """Add `growth` to the sums of `State.usage`."""
    for grown, (keys, size) in growth.items():
        # Only namespaces add up to the board; the shares of accounts divide the same bytes again.
        for name in (grown,) if grown.startswith(SHARE) else (grown, ""):
            used = usage.get(name, UNUSED)
            if used.keys + keys:
                usage[name] = BoardUsage(used.keys + keys, used.bytes + size)
            else:  # the result is the same as summing over the entries
                usage.pop(name, None)


def _evolve_answer(state: State, entry: LogEntry) -> None:
    lane = (entry.signed, entry.id.lane)
    last = state.answers.get(lane)
    overwritten = 0
    if last is not None:
        same = last.incarnation == entry.id.incarnation
        overwritten = last.overwritten if same else last.revision
    state.answers[lane] = LaneAnswer(
        incarnation=entry.id.incarnation,
        step=entry.id.step,
        revision=entry.revision,
        time_ms=entry.time_ms,
        results=entry.results,
        overwritten=overwritten,
    )
