"""A Hypothesis machine that drives an engine and core/model.py side by side.

The same commits go to both; their outcomes must agree in every field. Reads, listings and the log
must agree with the model's state at any time, and in the end the log replayed must be the state.
Nothing sleeps: what expires does so at once or not at all, and the model is given the engine's own
clock.

`Counts` notes every kind of outcome. A run in which a kind never came up has not tested it, and
fails (`missing`).
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import cast

import hypothesis
import pytest
from anyio.from_thread import BlockingPortal
from hypothesis import HealthCheck, Phase, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from blackboard import limits
from blackboard.core.commit import (
    SERVICE,
    Commit,
    Committed,
    Delete,
    DeletePrefix,
    Head,
    KeyAt,
    LogEntry,
    Op,
    PrefixUnchanged,
    Put,
    Reading,
    Release,
    Renew,
)
from blackboard.core.freeze import FROZEN_KEY
from blackboard.core.lease import dated
from blackboard.core.model import Outcome, decide, log_entry, prolong
from blackboard.core.state import State, evolve
from blackboard.engines.base import Behind, Shared, Store
from blackboard.errors import (
    BlackboardError,
    Compacted,
    Conflict,
    FutureRevision,
    InvalidRequest,
    LeaseHeld,
    LimitExceeded,
)
from blackboard.units import Milliseconds
from blackboard.wire.codec import Prepared, encode_value, prepare
from tests.conformance.drawing import (
    BARRIERS,
    HOUR_MS,
    KEYS,
    LIMITS,
    PREFIXES,
    Dice,
    Drawing,
    Thrown,
)

EXAMPLES = int(os.environ.get("BLACKBOARD_EXAMPLES", "50"))
STEPS = int(os.environ.get("BLACKBOARD_STEPS", "30"))
WALKS = 150
"""Walks in `make test`: each kind comes up within the first hundred or so."""
WALKS_MAX = 1_000
"""After which every kind must have come up: the rarest need some hundred."""
ROUND = 25
"""Examples from one seed: Hypothesis prefers some rules and values for as long."""

KINDS = frozenset(
    {
        "committed",
        "prolonged",
        "removed nothing",
        "duplicate",
        "conflict: stale",
        "conflict: too new",
        "conflict: exists",
        "conflict: removed",
        "conflict: never existed",
        "conflict: below prefix, living",
        "conflict: below prefix, removed",
        "conflict: append",
        "fenced",
        "fenced: free",
        "lease_held",
        "stale_epoch",
        "attempt_too_old",
        "restored",
        "head_moved",
        "snapshot_first",
        "board_frozen",
        "invalid_request: begins",
        "invalid_request: put back",
        "invalid_request: restore",
        "step_superseded",
        "type_mismatch",
        "invalid_request",
        "compacted",
        "future_revision",
        "outcome_unknown",
        "log: compacted",
        "log: future_revision",
        "log: page",
        "limit: INTEGER_MAX",
        "limit: OPERATIONS_MAX of a prefix",
        *(f"limit: {name}" for name in LIMITS),
    }
)
"""Every kind of answer that a run must have seen."""

FROZEN = encode_value({"by": "cyd", "note": "why"})

_boards = count()

Source = st.DataObject | Dice
"""Whence choices come: from Hypothesis, which shrinks them, or from a number, for ever the same."""


def drawing_from(source: Source, state: State) -> Drawing:
    """What draws commits against `state`."""
    if isinstance(source, Dice):
        return Thrown(source, state)
    return Drawing(source.draw, state)


@dataclass
class Counts:
    """How often each kind came up."""

    kinds: Counter[str] = field(default_factory=Counter)

    def missing(self) -> list[str]:
        """Kinds that never came up."""
        return sorted(KINDS - set(self.kinds))


@contextmanager
def lowered_limits() -> Iterator[None]:
    """Lower rows of blackboard/limits.py for the rules and for every engine in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LIMITS.items():
            patch.setattr(limits, name, value)
        yield


def run_machine(portal: BlockingPortal, store: Store, seed: int, examples: int) -> None:
    """Drive `store` (used through `portal`) and the model; AssertionError where they differ."""
    for done in range(0, examples, ROUND):
        run_round(portal, store, Counts(), seed + done)


def run_round(
    portal: BlockingPortal,
    store: Store,
    counts: Counts,
    seed: int,
    *,
    phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink),
) -> None:
    """ROUND examples from one seed."""
    members = {"portal": portal, "store": store, "counts": counts}
    kind = hypothesis.seed(seed)(type("BoardMachine", (Machine,), members))
    settings = hypothesis.settings(
        max_examples=ROUND,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with lowered_limits():
        run_state_machine_as_test(kind, settings=settings)


def run_walks(portal: BlockingPortal, store: Store, seed: int) -> Counts:
    """WALKS examples without Hypothesis, which takes ten times as long; AssertionError likewise.

    Goes on beyond them, up to WALKS_MAX, until every kind came up.
    """
    counts = Counts()
    for number in range(WALKS_MAX):
        if number >= WALKS and not counts.missing():
            break
        walk(portal, store, counts, seed + number)
    return counts


def walk(portal: BlockingPortal, store: Store, counts: Counts, number: int) -> None:
    """One example without Hypothesis: the same for the same number, on every machine, for ever.

    AssertionError where engine and model differ. As Hypothesis does, it leaves some rules out, so
    that others come up more often.
    """
    dice = Dice(number)
    members = {"portal": portal, "store": store, "counts": counts}
    kind = type("BoardWalk", (Machine,), members)
    with lowered_limits():
        machine = kind()
        machine.open()
        rules = (
            *(machine.commit, machine.commit, machine.commit_batch, machine.commit_after_refusal),
            *(machine.restore, machine.ask_for_a_checkpoint, machine.send_again),
            *(machine.compact, machine.read, machine.list_page, machine.read_log),
        )
        chosen = dice.some(rules)
        if number % 4 == 3:
            chosen = (*chosen, machine.freeze)
        for _ in range(STEPS):
            act = dice.pick(chosen)
            if (act == machine.send_again and not machine.sent) or (
                act == machine.compact and machine.state.revision <= 3
            ):
                act = machine.commit
            act(dice)
        machine.teardown()


class Machine(RuleBasedStateMachine):
    """One board, on the engine and in the model."""

    portal: BlockingPortal
    store: Store
    counts: Counts

    @initialize()
    def open(self) -> None:
        """A new board."""
        self.board = f"machine-{os.getpid()}-{next(_boards)}"
        head = self.portal.call(self.store.open, self.board)
        self.state = State(head.epoch)
        self.first = head.epoch
        self.log: list[LogEntry] = []
        self.sent: list[tuple[Commit, int]] = []
        self.access = 0

    @rule(data=st.data())
    def commit(self, data: Source) -> None:
        """One new commit."""
        self._send([drawing_from(data, self.state).commit()])

    @rule(data=st.data())
    def commit_batch(self, data: Source) -> None:
        """Some new commits in one call, drawn against the state before it."""
        drawing = drawing_from(data, self.state)
        self._send([drawing.commit() for _ in range(drawing.pick((2, 3, 5)))])

    @rule(data=st.data())
    def commit_after_refusal(self, data: Source) -> None:
        """A commit whose last operation is refused, and in the same batch one without that."""
        drawing = drawing_from(data, self.state)
        commit = drawing.commit()
        refused = replace(commit, ops=(*commit.ops, Release("public/none", "ada", 1)))
        self._send([refused, commit, replace(refused, id=drawing.name())])

    @rule(data=st.data())
    def restore(self, data: Source) -> None:
        """A restore, right or wrong; after it, in the same batch, commits of the old epoch and of
        the new one, such as of somebody who had a lease."""
        drawing = drawing_from(data, self.state)
        if not drawing.one_in(4 if not self.state.leases else 2):
            return
        restore = drawing.restore()
        assert restore.begins is not None
        held = drawing.fence()
        release = drawing.commit_of("cyd", Release(held.key, held.holder, held.fence))
        after = [drawing.commit(), release][: drawing.pick((0, 1, 2))]
        epoch = drawing.pick((restore.epoch, restore.begins.id))
        self._send([restore, *(replace(commit, epoch=epoch) for commit in after)])

    @rule(data=st.data())
    def ask_for_a_checkpoint(self, data: Source) -> None:
        """Somebody else raises a barrier, or takes it away."""
        drawing = drawing_from(data, self.state)
        if drawing.one_in(8):
            self._send([drawing.commit_of("cyd", drawing.barrier())])
        elif drawing.one_in(2) and any(key in self.state.entries for key in BARRIERS):
            self._send([drawing.commit_of("cyd", DeletePrefix("system/barriers"))])

    @rule(data=st.data())
    def freeze(self, data: Source) -> None:
        """The service freezes the board, others commit, and mostly it is thawed in the same batch;
        a frozen board is thawed."""
        drawing = drawing_from(data, self.state)
        is_frozen = FROZEN_KEY in self.state.entries
        if not is_frozen and not drawing.one_in(4):
            return
        held = drawing.fence()
        renew = Renew(held.key, held.holder, held.fence, HOUR_MS)
        keeps: tuple[Op, ...] = (renew, Release(held.key, held.holder, held.fence))
        commits = [drawing.commit_of("cyd", drawing.pick(keeps)), drawing.commit()]
        if not is_frozen:
            commits.insert(0, drawing.commit_of(SERVICE, Put(FROZEN_KEY, FROZEN)))
        if is_frozen or not drawing.one_in(8):
            thaw = drawing.commit_of(SERVICE, Delete(FROZEN_KEY))
            commits.append(replace(thaw, id=replace(thaw.id, step=thaw.id.step + 1)))
        self._send(commits)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def send_again(self, data: Source) -> None:
        """A commit that was sent before, as it was or as a retry."""
        drawing = drawing_from(data, self.state)
        commit, since = drawing.pick(tuple(self.sent[-8:]))
        if drawing.pick((True, False)):
            commit = replace(commit, retry_since=since)
        self._send([commit])

    @precondition(lambda self: self.state.revision > 3)
    @rule(data=st.data())
    def compact(self, data: Source) -> None:
        """Drop the older half, or some, or everything."""
        drawing = drawing_from(data, self.state)
        if not drawing.one_in(4):
            return
        head = self.state.revision
        oldest = drawing.pick((head // 2, head - 1, self.state.oldest, head + 1))
        now = self.portal.call(self.store.compact, self.board, oldest)
        self.state.compact(oldest)
        self.log = [entry for entry in self.log if entry.revision >= self.state.oldest]
        self._check_head(now)

    @rule(data=st.data())
    def read(self, data: Source) -> None:
        """Some keys, in any order, present or not."""
        keys = drawing_from(data, self.state).some_keys()
        reading = self.portal.call(self.store.read, self.board, keys)
        present = tuple(self.state.entries[key] for key in keys if key in self.state.entries)
        self._check_reading(reading, present)

    @rule(data=st.data())
    def list_page(self, data: Source) -> None:
        """A page of a listing."""
        drawing = drawing_from(data, self.state)
        prefix, limit = drawing.pick(("", *PREFIXES)), drawing.pick((1, 2, 20))
        after = drawing.pick((None, *KEYS))

        async def page() -> Reading:
            return await self.store.list(self.board, prefix, after=after, limit=limit)

        keys = [*self.state.below(prefix)] if prefix else [*self.state.entries]
        keys = [key for key in keys if after is None or key > after]
        reading = self.portal.call(page)
        self._check_reading(reading, tuple(self.state.entries[key] for key in keys[:limit]))
        assert reading.next_key == (keys[limit - 1] if len(keys) > limit else None)

    @rule(data=st.data())
    def read_log(self, data: Source) -> None:
        """A page of the log from any position."""
        drawing = drawing_from(data, self.state)
        after, limit = drawing.position(), drawing.pick((1, 3, 50))
        if after < 0:
            return

        async def page() -> tuple[LogEntry, ...]:
            return (await self.store.log(self.board, after, limit=limit)).entries

        if after + 1 < self.state.oldest:
            self._check_refused(page, Compacted(after, self.state.oldest))
        elif after > self.state.revision:
            self._check_refused(page, FutureRevision(after, self.state.revision))
        else:
            self.counts.kinds["log: page"] += 1
            expected = [entry for entry in self.log if entry.revision > after][:limit]
            assert self.portal.call(page) == tuple(expected)

    @invariant()
    def the_sums_are_right(self) -> None:
        """The model's own quotas add up (else it could not judge the engine's)."""
        used = self.state.usage.get("")
        if used is not None:
            entries = self.state.entries.values()
            assert used.keys == len(self.state.entries)
            assert used.bytes == sum(len(entry.key) + len(entry.value) for entry in entries)

    def teardown(self) -> None:
        """In the end state, due entries and log are compared as a whole."""
        if not hasattr(self, "state"):
            return
        head = self.portal.call(self.store.open, self.board)
        self._check_head(head)
        self._check_reading(self.portal.call(self._everything), (*self.state.entries.values(),))
        self._check_due()
        self._check_leases()
        self._check_log()

    # --- the comparison ---------------------------------------------------------------------------

    def _send(self, commits: list[Commit]) -> None:
        batch = [prepare(commit) for commit in commits]
        self.sent += [(commit, self.state.revision) for commit in commits]
        outcomes = self.portal.call(self._commit, batch)
        now_ms = self.portal.call(self.store.open, self.board).time_ms
        for commit, outcome in zip(commits, outcomes, strict=True):
            self._check_outcome(commit, outcome, now_ms)

    async def _commit(self, batch: list[Prepared]) -> list[Outcome]:
        """Decide a batch; some late, from a sender that has not heard of a revocation."""
        if not isinstance(self.store, Shared):
            return await self.store.commit(self.board, batch)
        number, self.access = self.access, self.access + 1
        if number % 8 == 0:
            late = Behind(number - 8 if number else None)
            assert await self.store.commit_at(self.board, batch, number - 9) == [late] * len(batch)
            await self.store.raise_access(self.board, number)
            await self.store.raise_access(self.board, number - 1)
        outcomes = await self.store.commit_at(self.board, batch, number)
        assert not any(isinstance(outcome, Behind) for outcome in outcomes)
        return cast("list[Outcome]", outcomes)

    def _check_outcome(self, commit: Commit, outcome: Outcome, now_ms: Milliseconds) -> None:
        moments = self._moments(outcome, now_ms)
        answers = [decide(self.state, commit, moment) for moment in moments]
        expected = next((a for a in answers if _fields(a) == _fields(outcome)), answers[0])
        assert _fields(outcome) == _fields(expected), commit
        self.counts.kinds[kind_of(self.state, commit, expected)] += 1
        if (
            isinstance(expected, Committed)
            and not expected.duplicate
            and not prolong(self.state, commit, expected)
        ):
            entry = log_entry(commit, expected, prepare(commit).digest)
            evolve(self.state, entry)
            self.log.append(entry)

    def _moments(self, outcome: Outcome, now_ms: Milliseconds) -> list[Milliseconds]:
        """When the engine may have decided, as far as its answer tells; `now_ms` is a little later.

        A lease that a refused commit itself granted or renewed, for an hour or for no time, tells
        the moment; one that was there before, perhaps with the very same end, does not.
        """
        if isinstance(outcome, Committed) and not outcome.duplicate:
            return [outcome.time_ms]
        if isinstance(outcome, LeaseHeld):
            return [now_ms, min(now_ms, outcome.until_ms - HOUR_MS), min(now_ms, outcome.until_ms)]
        return [now_ms]

    def _check_head(self, head: Head) -> None:
        found = (head.revision, head.oldest, head.epoch, head.log_entries)
        state = self.state
        assert found == (state.revision, state.oldest, state.epoch, len(self.log))

    def _check_reading(self, reading: Reading, entries: tuple[object, ...]) -> None:
        assert (reading.revision, reading.epoch) == (self.state.revision, self.state.epoch.id)
        assert reading.entries == entries

    def _check_refused(
        self, call: Callable[[], Awaitable[object]], expected: BlackboardError
    ) -> None:
        self.counts.kinds[f"log: {expected.code}"] += 1
        with pytest.raises(type(expected)) as refused:
            self.portal.call(call)
        assert refused.value.fields() == expected.fields()

    async def _everything(self) -> Reading:
        return await self.store.list(self.board, "", limit=1000)

    def _check_due(self) -> None:
        """Entries that expired at the moment of a commit; only those of this millisecond may be
        missing yet."""
        before_ms = self.portal.call(self.store.open, self.board).time_ms

        async def due() -> Reading:
            return await self.store.due(self.board, limit=1000)

        found = [(e.expires_at_ms or 0, e.key) for e in self.portal.call(due).entries]
        past = [(ms, key) for ms, key in self.state.expiring if ms < before_ms]
        soon = [(ms, key) for ms, key in self.state.expiring if ms < before_ms + HOUR_MS // 2]
        assert found == sorted(found)
        assert set(past) <= set(found) <= set(soon)

    def _check_log(self) -> None:
        async def whole() -> tuple[LogEntry, ...]:
            after = self.state.oldest - 1
            return (await self.store.log(self.board, after, limit=10_000)).entries

        entries = self.portal.call(whole)
        assert entries == tuple(self.log)
        if self.state.oldest == 1:
            replayed = State(self.first)
            for entry in entries:
                evolve(replayed, entry)
            assert undated(replayed) == undated(self.state)

    def _check_leases(self) -> None:
        """As the model's, deadlines included: a renewal moves them, and nothing else tells."""
        assert self.portal.call(self.store.leases, self.board).leases == tuple(
            lease for _, lease in sorted(self.state.leases.items())
        )


def _fields(outcome: Outcome) -> object:
    """An outcome as plain values: errors compare by identity otherwise."""
    if isinstance(outcome, Committed):
        return outcome
    return outcome.code, outcome.fields()


def undated(state: State) -> State:
    """The state without the deadlines of its leases, which no log tells."""
    leases = {key: dated(lease, 0) for key, lease in state.leases.items()}
    return dataclasses.replace(state, leases=leases)


def kind_of(state: State, commit: Commit, outcome: Outcome) -> str:
    """The name in KINDS of what came out of `commit`, decided against `state`."""
    if isinstance(outcome, Committed):
        if outcome.revision == state.revision and not outcome.duplicate:
            renews = any(isinstance(op, Renew) for op in commit.ops)
            return "prolonged" if renews else "removed nothing"
        done = "committed" if commit.begins is None else "restored"
        return "duplicate" if outcome.duplicate else done
    if isinstance(outcome, Conflict):
        return f"conflict: {_conflict_kind(commit, outcome)}"
    if isinstance(outcome, InvalidRequest) and outcome.field == "begins":
        return f"{outcome.code}: begins"
    if isinstance(outcome, InvalidRequest) and "back" in outcome.reason:
        return f"{outcome.code}: {'put back' if commit.begins is None else 'restore'}"
    if isinstance(outcome, LimitExceeded):
        is_prefix = outcome.limit == "OPERATIONS_MAX" and outcome.where in PREFIXES
        return f"limit: {outcome.limit}" + (" of a prefix" if is_prefix else "")
    free = ": free" if outcome.fields().get("current") == 0 and outcome.code == "fenced" else ""
    return outcome.code + free


def _conflict_kind(commit: Commit, conflict: Conflict) -> str:
    expected, actual = conflict.expected, conflict.actual
    if KeyAt(conflict.key, expected) not in commit.conditions:
        below = any(isinstance(condition, PrefixUnchanged) for condition in commit.conditions)
        if not below:
            return "append"
        return "below prefix, living" if actual else "below prefix, removed"
    if not actual:
        return "removed" if conflict.by else "never existed"
    if expected == 0:
        return "exists"
    return "stale" if expected < actual else "too new"
