"""A board in memory for tests of the rules: `decide` and `evolve`, no engine."""

from collections.abc import Iterable, Sequence

from blackboard.core.commit import (
    Commit,
    CommitId,
    Committed,
    Condition,
    Entry,
    Epoch,
    HeldFence,
    Lease,
    LogEntry,
    Op,
    Put,
    account_of,
)
from blackboard.core.model import Outcome, decide, log_entry, prolong
from blackboard.core.path import namespace_of
from blackboard.core.state import BoardUsage, State, evolve, hold, shares_of
from blackboard.errors import BlackboardError
from blackboard.units import Key, Milliseconds
from blackboard.wire.codec import encode_value, prepare

EPOCH = Epoch(1, "first")


class Trial:
    """One board, its log, and a clock that only moves when told. Each `make` is a further step."""

    def __init__(self) -> None:
        self.state = State(EPOCH)
        self.log: list[LogEntry] = []
        self.now_ms: Milliseconds = 1_000
        self.step = 0

    def make(
        self,
        *ops: Op,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        agent: str = "ada",
    ) -> Commit:
        """The next step of `agent`."""
        self.step += 1
        name = CommitId(agent, 0, f"{agent}-1", self.step)
        salt = bytes([self.step % 256]) * 16 if self.step % 2 else b""  # old entries and new ones
        return Commit(name, self.state.epoch.id, ops, tuple(conditions), tuple(fences), salt=salt)

    def decide(self, commit: Commit) -> Outcome:
        """What would be answered now."""
        return decide(self.state, commit, self.now_ms)

    def attempt(
        self,
        *ops: Op,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        agent: str = "ada",
    ) -> Outcome:
        """What would be answered to the next step of `agent`."""
        return self.decide(self.make(*ops, conditions=conditions, fences=fences, agent=agent))

    def send(self, commit: Commit) -> Outcome:
        """Decide a commit and apply it if it is accepted."""
        outcome = self.decide(commit)
        if not isinstance(outcome, Committed) or outcome.duplicate:
            return outcome
        if not prolong(self.state, commit, outcome):
            entry = log_entry(commit, outcome, prepare(commit).digest)
            evolve(self.state, entry)
            self.log.append(entry)
        return outcome

    def commit(
        self, *ops: Op, conditions: Sequence[Condition] = (), agent: str = "ada"
    ) -> Committed:
        """Apply the next step of `agent`, which must be accepted."""
        outcome = self.send(self.make(*ops, conditions=conditions, agent=agent))
        assert isinstance(outcome, Committed), outcome
        return outcome

    def refuses(
        self,
        expected: BlackboardError,
        *ops: Op,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
    ) -> bool:
        """Whether a next step with these parts (by default some `put`) is refused exactly so."""
        operations = ops or (Put("public/other", packed(1)),)
        outcome = self.attempt(*operations, conditions=conditions, fences=fences)
        assert same(outcome, expected), (outcome, expected)
        return True

    def value(self, key: Key) -> bytes | None:
        """The encoded value of `key`."""
        entry = self.state.entries.get(key)
        return entry.value if entry else None


def packed(value: object) -> bytes:
    """An encoded value."""
    return encode_value(value)


def same(outcome: Outcome, expected: BlackboardError) -> bool:
    """Whether `outcome` is an error like `expected` in its kind and in every field."""
    if not isinstance(outcome, BlackboardError):
        return False
    return type(outcome) is type(expected) and outcome.fields() == expected.fields()


def faults(state: State) -> list[str]:
    """Which invariants of `State` (the top of core/state.py) do not hold."""
    entries, head = state.entries, state.revision
    leases = state.leases.values()
    checks = {
        "a key lives and is removed": not (entries.keys() & state.tombstones.keys()),
        "a trace of a removal is older than the log": all(
            tombstone.revision >= state.oldest for tombstone in state.tombstones.values()
        ),
        "a revision is in the future": all(
            1 <= e.create_revision <= e.mod_revision <= head for e in entries.values()
        )
        and all(1 <= lease.fence <= head for lease in leases),
        "the sums are wrong": {k: u for k, u in state.usage.items() if u != BoardUsage()}
        == sums(entries.values()),
        "the leases are counted wrong": state.held == holders(leases),
        "the order of expiry is wrong": list(state.expiring) == expiry(entries.values()),
    }
    return [fault for fault, holds in checks.items() if not holds]


def sums(entries: Iterable[Entry]) -> dict[str, BoardUsage]:
    """What `State.usage` should be, computed from nothing."""
    used: dict[str, BoardUsage] = {}
    for entry in entries:
        namespace = namespace_of(entry.key)
        for name in (namespace, "", *shares_of(account_of(entry.author), namespace)):
            old = used.get(name, BoardUsage())
            size = len(entry.key) + len(entry.value)
            used[name] = BoardUsage(old.keys + 1, old.bytes + size)
    return used


def holders(leases: Iterable[Lease]) -> dict[str, int]:
    """What `State.held` should be, computed from nothing."""
    held: dict[str, int] = {}
    for lease in leases:
        hold(held, lease, 1)
    return held


def expiry(entries: Iterable[Entry]) -> list[tuple[Milliseconds, Key]]:
    """What `State.expiring` should be, computed from nothing."""
    return sorted((e.expires_at_ms, e.key) for e in entries if e.expires_at_ms is not None)
