"""Commits drawn for the state machine: few keys, and expectations that are wrong on purpose.

The first generator of such a kind missed the lost update itself, because it seldom expected a
revision that had been right once. So each expectation is drawn by what it is to the board: exact,
stale, too new, absent, present.
"""

import random
from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from blackboard import limits
from blackboard.core.commit import (
    ABSENT,
    BRANCH,
    ENGINE,
    PRESENT,
    RESTORE,
    Append,
    Commit,
    CommitId,
    Condition,
    Delete,
    DeletePrefix,
    Epoch,
    Expire,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Op,
    PrefixUnchanged,
    Put,
    PutBack,
    Release,
    Renew,
)
from blackboard.core.freeze import FROZEN_KEY
from blackboard.core.path import (
    barrier_key,
    cut_key,
    identity_key,
    item_key,
    superseding_key,
)
from blackboard.core.state import State
from blackboard.limits import INTEGER_MAX
from blackboard.units import Key, Revision
from blackboard.wire.codec import encode_value

LIMITS = {
    "OPERATIONS_MAX": 4,
    "RESTORE_CHANGES_MAX": 5,
    "FENCES_MAX": 2,
    "BASED_ON_MAX": 2,
    "LEASES_MAX": 3,
    "LEASES_ORDINARY_MAX": 2,
    "LEASES_PER_ACCOUNT_MAX": 3,
    "LEASE_WAITERS_MAX": 3,
    "LEASE_WAITERS_PER_ACCOUNT_MAX": 2,
    "ACCOUNT_KEYS_MAX": 6,
    "ACCOUNT_BYTES_MAX": 3_700,
    "ACCOUNT_INBOX_KEYS_MAX": 1,
    "ACCOUNT_INBOX_BYTES_MAX": 1_800,
    "KEY_BYTES_MAX": 30,
    "NAMESPACE_KEYS_MAX": 7,
    "NAMESPACE_BYTES_MAX": 4_000,
    "BOARD_KEYS_MAX": 8,
    "BOARD_BYTES_MAX": 5_600,
}
"""Rows of blackboard/limits.py as they are while a machine runs: near enough to be reached."""

BARRIERS = (barrier_key("ada"), barrier_key("bob"), cut_key("ada"), cut_key("bob"))
KEYS = (
    "public/a",
    "public/b",
    "public/~a/b",
    *(f"public/d/{number}" for number in range(6)),
    item_key("public/l", 1),
    "private/ada/x",
    "private/ada/y",
    "inbox/bob/x",
    superseding_key("ada"),
    *BARRIERS,
)
PREFIXES = (
    "system/barriers",
    "public/d",
    "public/d",
    "public",
    "public",
    "private/ada",
    "public/l",
    "public/~a",
    "public/none",
)
LISTS = ("public/l", "public/l", "public/l", "inbox/bob", "public/" + "long" * 4)
LEASES = ("public/a", "public/b", "public/c", identity_key("ada"), identity_key("bob"))
HOLDERS = ("ada", "bob")
WAITING = ("cyd", "dan", "eve", "fay")
HOUR_MS = 3_600_000
FAR_MS = 4_000_000_000_000
TTLS = (None, None, HOUR_MS, 0)
"""No time between an hour and nothing: the outcome of a commit then never hangs on a clock."""
KINDS_OF_OP: tuple[type[Op], ...] = (
    *(Put, Put, Put, Put, Append, Append, Increment, Increment),
    *(Put, Put, Delete, Delete, DeletePrefix, Grant, Grant, Renew, Release, Expire),
)
INTEGERS = (1, -1, 200, INTEGER_MAX)
VALUES = (
    *(encode_value(value) for value in (1, -70_000, INTEGER_MAX, "text", None, [1], 2**60)),
    encode_value(b"i" * 900),
    encode_value(b"L" * 2_500),
    encode_value("M" * 3_000),
)

Drawn = TypeVar("Drawn")
Draw = Callable[[st.SearchStrategy[Drawn]], Drawn]


def one_in(draw: Draw[int], number: int) -> bool:
    """True about once in `number` times, and never when shrunk."""
    return draw(_NUMBERS[number]) == number - 1


_NUMBERS = {number: st.integers(0, number - 1) for number in (2, 4, 8, 12, 30)}


class Drawing:
    """Draws commits against the state that the board is known to have."""

    kinds = KINDS_OF_OP
    removals_one_in = 12
    condition_one_in = 2
    fence_one_in = 4
    leases: tuple[Key, ...] = LEASES
    lease_ttls: tuple[int, ...] = (HOUR_MS, 0, 0)

    def __init__(self, draw: Draw[object], state: State) -> None:
        self._draw = draw
        self.state = state

    def pick(self, choices: tuple[Drawn, ...]) -> Drawn:
        """One of `choices`."""
        return self._draw(st.sampled_from(choices))  # type: ignore[return-value]

    def one_in(self, number: int) -> bool:
        """True about once in `number` times."""
        return one_in(self._draw, number)  # type: ignore[arg-type]

    def some_keys(self) -> list[Key]:
        """One to four keys, each once."""
        return list(dict.fromkeys(self.pick(KEYS) for _ in range(self.pick((1, 2, 3, 4)))))

    def commit(self) -> Commit:
        """A commit, mostly one that could be accepted."""
        edge = self.one_in(12) and self.pick((0, limits.OPERATIONS_MAX, limits.OPERATIONS_MAX + 1))
        size = self.pick((1, 1, 2, 3)) if edge is False else edge
        return Commit(
            id=self.name(),
            epoch="another" if self.one_in(30) else self.state.epoch.id,
            ops=self.removals()
            if self.one_in(self.removals_one_in)
            else tuple(self.op() for _ in range(size)),
            conditions=self.several(self.condition, limits.OPERATIONS_MAX, self.condition_one_in),
            fences=self.several(
                self.fence, limits.FENCES_MAX, self.fence_one_in if self.state.leases else 30
            ),
            based_on=self.several(lambda: (self.pick(KEYS), 1), limits.BASED_ON_MAX, 8),
            note=self.pick(("", "", "why")),
            retry_since=self.since() if self.one_in(8) else None,
            known=self.since() if self.one_in(2) else None,
            salt=self.pick((b"", b"0123456789abcdef")),
        )

    def commit_of(self, agent: str, *ops: Op) -> Commit:
        """A commit of somebody who does nothing else."""
        last = self.state.answers.get((agent, 0))
        name = CommitId(agent, 0, "1", last.step + 1 if last else 1)
        return Commit(name, self.state.epoch.id, ops)

    def restore(self) -> Commit:
        """A restore of this board, mostly to a revision before; now and then of another head."""
        head = self.state.revision
        edge = self.one_in(8) and self.pick((0, limits.RESTORE_CHANGES_MAX + 1))
        size = self.pick((1, 2, 3)) if edge is False else edge
        number = self.state.epoch.number + (self.pick((0, 2)) if self.one_in(12) else 1)
        at = head + (self.pick((0, 2)) if self.one_in(4) else 1)
        cause = self.pick((ENGINE, BRANCH)) if self.one_in(30) else RESTORE
        since = at if self.one_in(30) else max(0, at - self.pick((1, 2, 5)))
        begins = Epoch(number, f"{number}-{head}-{self.pick((1, 2))}", cause, since, at)
        ops = tuple(self.op() if self.one_in(30) else self.reversal() for _ in range(size))
        return replace(self.commit(), ops=ops, begins=begins)

    def reversal(self) -> Op:
        """One operation of a restore."""
        if self.one_in(4):
            return Delete(self.key_near())
        key = self.pick(KEYS) if self.one_in(2) else self.key_near()
        if self.one_in(8):
            item = self.pick((0, 1, 5))
            value = self.pick((None, *VALUES[:2]))
            return PutBack(item_key(self.pick(LISTS), item), value, None, item)
        return PutBack(key, self.pick(VALUES), self.pick((None, None, 1_000, FAR_MS)))

    def several(self, make: Callable[[], Drawn], maximum: int, seldom: int) -> tuple[Drawn, ...]:
        """Once in `seldom` times one or two, and now and then one more than `maximum`."""
        if not self.one_in(seldom):
            return ()
        size = maximum + 1 if self.one_in(12) else self.pick((1, 1, 2))
        return tuple(make() for _ in range(size))

    def name(self) -> CommitId:
        """The next step of a lane; or the last one again, an older one, one of another process."""
        agent, lane = self.pick(HOLDERS), self.pick((0, 0, 1))
        last = self.state.answers.get((agent, lane))
        incarnation, step = (last.incarnation, last.step) if last else ("1", 0)
        if self.one_in(4):
            incarnation = self.pick(("1", "2", "3"))
        change = self.pick((0, -1)) if self.one_in(30) else self.pick((1, 1, 1, 2))
        return CommitId(agent, lane, incarnation, max(1, step + change))

    def since(self) -> Revision:
        """What a retry says that its writer knew."""
        return self.pick((0, 1, max(0, self.state.revision - 2), self.state.revision))

    def op(self) -> Op:
        """One operation."""
        kind = self.pick(self.kinds)
        if kind in (Renew, Release, Expire) and not self.state.leases and not self.one_in(8):
            kind = Grant
        if kind is Put and self.one_in(30):
            return self.pick((PutBack(self.pick(KEYS), self.pick(VALUES)), self.barrier()))
        if kind is Put:
            return Put(self.pick(KEYS), self.pick(VALUES), self.pick(TTLS))
        if kind is Append:
            return Append(self.pick(LISTS), self.pick(VALUES[:8]), self.pick(TTLS))
        if kind is Delete:
            return Delete(self.pick(KEYS))
        if kind is DeletePrefix:
            return DeletePrefix(self.pick(PREFIXES))
        if kind is Increment:
            return Increment(self.pick(KEYS), self.pick(INTEGERS))
        if kind is Grant:
            if self.state.leases and self.one_in(2):
                return self.another_waiter()
            ttl_ms, wait = self.pick(self.lease_ttls), self.one_in(2)
            return Grant(self.pick(self.leases), self.pick((*HOLDERS, *WAITING)), ttl_ms, wait)
        held = self.fence()
        if kind is Expire:
            return Expire(held.key, held.holder, held.fence)
        if self.one_in(4):
            held = self.ticket(held)
        if kind is Renew:
            return Renew(held.key, held.holder, held.fence, self.pick((HOUR_MS, 0)))
        return Release(held.key, held.holder, held.fence)

    def barrier(self) -> Op:
        """A checkpoint begins to wait for an agent, for so long or not at all."""
        return Put(self.pick(BARRIERS), self.pick(VALUES[:1]), self.pick(TTLS))

    def removals(self) -> tuple[Op, ...]:
        """What is removed below prefixes is limited in all: below several of them, and together
        with what the commit itself has just put there."""
        if self.one_in(2):
            some = self.pick(((0, 1, 2), (3, 4, 5), (0, 5)))
            puts = (Put(f"public/d/{number}", VALUES[0]) for number in some)
            return (*puts, DeletePrefix("public/d"))
        return tuple(DeletePrefix(prefix) for prefix in ("private/ada", "public/d", "public/l"))

    def fence(self) -> HeldFence:
        """A fence, mostly the one that is held; else lower, higher, or another's."""
        key = self.pick((*self.state.leases, *self.state.leases, *self.leases))
        lease = self.state.leases.get(key)
        if lease is None:
            return HeldFence(key, self.pick(HOLDERS), self.pick((1, self.state.revision + 1)))
        holder = self.pick(HOLDERS) if self.one_in(4) else lease.holder
        return HeldFence(key, holder, lease.fence + self.pick((0, 0, 0, 0, -1, 1)))

    def another_waiter(self) -> Grant:
        """One more in the longest queue there is, mostly on a ticket that is good."""
        lease = max(self.state.leases.values(), key=lambda lease: len(lease.waiters))
        known = {lease.holder, *(waiter.holder for waiter in lease.waiters)}
        others = tuple(name for name in (*HOLDERS, *WAITING) if name not in known)
        return Grant(
            lease.key, self.pick(others or HOLDERS), self.pick((HOUR_MS, HOUR_MS, 0)), True
        )

    def ticket(self, held: HeldFence) -> HeldFence:
        """What a waiter of that lease, if it has one, shows instead of a fence."""
        lease = self.state.leases.get(held.key)
        waiting = tuple(waiter.holder for waiter in lease.waiters) if lease else ()
        return HeldFence(held.key, self.pick((*waiting, *HOLDERS)), 0)

    def condition(self) -> Condition:
        """A condition, right or wrong in each possible way."""
        if self.one_in(4):
            prefix = self.pick(PREFIXES)
            return PrefixUnchanged(prefix, self.position())
        key = self.key_near()
        entry = self.state.entries.get(key)
        actual = entry.mod_revision if entry else ABSENT
        how = self.pick(("exact", "exact", "stale", "too new", "absent", "present"))
        expected = {
            "exact": actual,
            "stale": max(1, actual - 1),
            "too new": actual + 1,
            "absent": ABSENT,
            "present": PRESENT,
        }[how]
        return KeyAt(key, expected)

    def key_near(self) -> Key:
        """A key, mostly one that exists or existed; not that of a freeze, which holds no value but
        what the service puts there, whatever is restored."""
        removed = tuple(self.state.tombstones)
        near = (*self.state.entries, *removed, *removed)
        known = tuple(key for key in near if key != FROZEN_KEY)
        return self.pick(KEYS) if not known or self.one_in(8) else self.pick(known)

    def position(self) -> Revision:
        """A revision: mostly a late one, now and then compacted, negative or in the future."""
        head, oldest = self.state.revision, self.state.oldest
        late = max(0, head - 1)
        early = max(0, head - 5)
        return self.pick((head, late, late, early, early, oldest - 1, oldest - 2, head + 1))


class Dice:
    """The dice of one walk, and its theme: most faults show where much of one kind happens.

    Only `random()` is used, which gives the same in every Python.
    """

    def __init__(self, number: int) -> None:
        self.random = random.Random(number).random
        themes = (KINDS_OF_OP, self.some(KINDS_OF_OP), LEASING, FILLING)
        self.kinds = self.pick(themes)

    def pick(self, choices: tuple[Drawn, ...]) -> Drawn:
        """One of `choices`."""
        return choices[int(self.random() * len(choices))]

    def some(self, choices: tuple[Drawn, ...]) -> tuple[Drawn, ...]:
        """About half of `choices`."""
        return tuple(choice for choice in choices if self.random() < 0.5) or choices


LEASING: tuple[type[Op], ...] = (Grant, Grant, Grant, Renew, Release, Expire)
FILLING: tuple[type[Op], ...] = (Put, Put, Append)


class Thrown(Drawing):
    """Drawn with dice."""

    def __init__(self, dice: Dice, state: State) -> None:
        super().__init__(_never, state)
        self._dice = dice
        self.kinds = dice.kinds
        self.removals_one_in = 3 if dice.kinds is FILLING else 12
        if dice.kinds is LEASING:
            self.leases, self.lease_ttls = LEASES[:1], (HOUR_MS, HOUR_MS, HOUR_MS, 0)
            self.condition_one_in = self.fence_one_in = 30
        elif dice.kinds is FILLING:
            self.condition_one_in = 12

    def pick(self, choices: tuple[Drawn, ...]) -> Drawn:
        """One of `choices`."""
        return self._dice.pick(choices)

    def one_in(self, number: int) -> bool:
        """True about once in `number` times."""
        return self._dice.random() * number < 1


def _never(strategy: st.SearchStrategy[object]) -> object:
    raise AssertionError(f"dice do not draw {strategy}")
