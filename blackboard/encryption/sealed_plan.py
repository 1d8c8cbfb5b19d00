"""What goes to the engine in place of a commit to sealed integers, which it cannot add to."""

from dataclasses import dataclass, field

from blackboard.core import integers
from blackboard.core.commit import ABSENT, Commit, Condition, Entry, Increment, KeyAt
from blackboard.core.path import range_below
from blackboard.errors import LimitExceeded, Rejected, TypeMismatch
from blackboard.types import INTEGER_MAX, Key, Prefix, Revision
from blackboard.wire.codec import Prepared


@dataclass(slots=True)
class Plan:
    """A commit, and what goes to the store behind in its place."""

    commit: Commit
    sent: Prepared
    totals: dict[int, int] = field(default_factory=dict)
    """By the number of an increment that was computed here: the sum."""
    guards: set[tuple[Key, Revision]] = field(default_factory=set)
    """Conditions that were added for those."""
    failure: Rejected | None = None
    """What the engine, which cannot look into the value, is to refuse the commit for."""


class Counters:
    """The sealed integers that one commit adds to, as its operations see them one by one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now: dict[Key, Entry] = {}
        self.conditions: list[Condition] = []
        self._written: dict[Key, bytes | None] = {}

    def write(self, key: Key, value: bytes | None) -> None:
        """Note what an operation before leaves at `key`."""
        self._written[key] = value

    def remove_below(self, prefix: Prefix) -> None:
        """Note that everything below `prefix` is gone."""
        first, last = range_below(prefix)
        for key in (*self.now, *self._written):
            if first <= key < last:
                self._written[key] = None

    def add(self, number: int, op: Increment) -> int | None:
        """The sum, None if there is none; the plan then has the reason."""
        value = self._before(op.key)
        found = 0 if value is None else integers.read_integer(bytes(value))
        if found is None:
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
        """What is at `key` when the operation comes, on condition that it stays so."""
        if key in self._written:
            return self._written[key]
        entry = self.now.get(key)
        condition = KeyAt(key, ABSENT if entry is None else entry.mod_revision)
        self.conditions.append(condition)
        self.plan.guards.add((key, condition.revision))
        return None if entry is None else entry.value
