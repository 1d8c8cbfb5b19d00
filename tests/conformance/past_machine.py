"""A Hypothesis machine of checkpoints, restores and branches, beside a model that keeps everything.

The model is a list of states, one per revision and board. Every answer about a revision must stay
true, on every board of the family, whatever happens later. A redaction is the exception: from then
on each revision, on every board of the family, has a marker where it had a value of that key.
Frozen boards refuse commits, and a board that is removed leaves the others as they are.

`Kinds` notes what came up. A run in which a kind never came up has not tested it, and fails.
"""

import os
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import hypothesis
import pytest
from anyio.from_thread import BlockingPortal
from hypothesis import HealthCheck, Phase, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from blackboard import Board, Client, StaleEpoch
from blackboard.core.path import item_key
from blackboard.errors import BoardFrozen
from blackboard.ops import Append, Delete, Increment, Put, encode_value

EXAMPLES = int(os.environ.get("BLACKBOARD_PAST_EXAMPLES", "20"))
FEW = 10
"""Examples in `make test`."""
EXAMPLES_MAX = 5 * max(EXAMPLES, 30)
"""After which every kind must have come up."""
STEPS = int(os.environ.get("BLACKBOARD_PAST_STEPS", "40"))
KEYS = ("public/a", "public/b", "private/ada/c", "private/bob/d", "inbox/ada/e")
LISTS = ("public/log", "private/ada/log", "inbox/bob")
COUNTERS = ("public/n", "private/bob/n")
VALUES = (*range(5), *(letter * 600 for letter in "abcde"))
"""Long ones are in the log alone, if the archive is beside an embedded engine."""
MARKER = {"$redacted": True}
BOARDS = 4
"""At a time."""
KINDS = frozenset(
    {
        "commit",
        "checkpoint",
        "restore: checkpoint",
        "restore: revision",
        "restore: abandoned",
        "restore: nothing changed",
        "branch",
        "branch of a branch",
        "past: own",
        "past: parent's",
        "past: abandoned",
        "diff: same",
        "diff: some",
        "diff: other board",
        "history",
        "stale epoch",
        "redact",
        "restore: redacted",
        "freeze",
        "freeze: restored",
        "remove",
        "remove: a parent",
    }
)
T = TypeVar("T")
State = dict[str, Any]
_names = count()


@dataclass
class Kinds:
    """How often each kind came up."""

    seen: Counter[str] = field(default_factory=Counter)

    def missing(self) -> list[str]:
        """Kinds that never came up."""
        return sorted(KINDS - set(self.seen))


@dataclass
class Model:
    """What a board must hold at each revision, and where its lists are."""

    board: Board
    states: dict[int, State] = field(default_factory=lambda: {0: {}})
    counters: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    began: int = 0
    depth: int = 0
    parent: "Model | None" = None
    abandoned: set[int] = field(default_factory=set)

    @property
    def head(self) -> int:
        """The newest revision."""
        return max(self.states)

    @property
    def now(self) -> State:
        """What it holds now."""
        return self.states[self.head]

    def note(self, revision: int, state: State, counters: dict[str, int]) -> None:
        """The board holds `state` since `revision`."""
        assert revision == self.head + 1, (revision, self.head)
        self.states[revision], self.counters[revision] = state, counters

    def note_system(self, head: int, state: State | None = None) -> None:
        """Up to `head` the service committed: the board holds `state`, or what it held."""
        for revision in range(self.head + 1, head + 1):
            held = dict(self.now if state is None else state)
            self.note(revision, held, self.counters[self.head])

    def redact(self, key: str) -> None:
        """Each revision that had a value of `key` has the marker."""
        for state in self.states.values():
            if key in state:
                state[key] = MARKER


ops = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.sampled_from(VALUES)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS), st.none()),
        st.tuples(st.just("append"), st.sampled_from(LISTS), st.integers(0, 9)),
        st.tuples(st.just("increment"), st.sampled_from(COUNTERS), st.integers(-2, 2)),
    ),
    min_size=1,
    max_size=4,
)


def run_past_machine(portal: BlockingPortal, client: Client, seed: int, examples: int) -> Kinds:
    """Drive the boards of `client` and the model; AssertionError where they differ.

    Goes on, with further seeds, up to EXAMPLES_MAX, until every kind came up.
    """
    kinds = Kinds()
    for number in range(EXAMPLES_MAX // examples):
        if number and not kinds.missing():
            break
        _run_round(portal, client, kinds, seed + number, examples)
    return kinds


def _run_round(
    portal: BlockingPortal, client: Client, kinds: Kinds, seed: int, examples: int
) -> None:
    class Machine(PastMachine):
        def __init__(self) -> None:
            super().__init__(portal, client, kinds)

    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    machine = hypothesis.seed(seed)(Machine)
    run_state_machine_as_test(machine, settings=settings)


class PastMachine(RuleBasedStateMachine):
    """One family of boards."""

    def __init__(self, portal: BlockingPortal, client: Client, kinds: Kinds) -> None:
        super().__init__()
        self.portal = portal
        self.client = client
        self.kinds = kinds.seen
        self.family: list[Model] = []
        self.names: list[tuple[Model, str, int]] = []
        self.stale: Board | None = None
        self.may_redact = True
        """Once in an example: it takes as long as all the rest."""

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop."""

        async def run() -> T:
            return await work

        return self.portal.call(run)

    @initialize()
    def begin(self) -> None:
        """One empty board, and a client that has looked at it."""
        name = f"past-{next(_names)}"
        self.family.append(Model(self.client.board(name)))
        self._look_from_elsewhere()

    def _look_from_elsewhere(self) -> None:
        self.stale = Board(self.client.link, self.family[0].board.name)
        self.call(self.stale.head())
        self.call(self.stale.refresh())
        self.fresh = True

    # --- what changes boards ----------------------------------------------------------------------

    @rule(which=st.integers(0, 9), wishes=ops)
    def commit(self, which: int, wishes: list[tuple[str, str, Any]]) -> None:
        """Several operations as one revision."""
        model = self._member(which)
        state, counters = dict(model.now), dict(model.counters[model.head])
        packed = [_apply(state, counters, *spec) for spec in wishes]
        receipt = self.call(model.board.commit(packed))
        if all(kind == "delete" and key not in model.now for kind, key, _ in wishes):
            assert receipt.revision == model.head  # to remove what is absent makes no revision
            return
        model.note(receipt.revision, state, counters)
        self.kinds["commit"] += 1

    @rule(which=st.integers(0, 9))
    def checkpoint(self, which: int) -> None:
        """Name the present."""
        model = self._member(which)
        name = f"c{next(_names)}"
        taken = self.call(model.board.checkpoint(name))
        model.note(taken.revision, dict(model.now), model.counters[model.head])
        self.names.append((model, name, taken.revision))
        self.kinds["checkpoint"] += 1

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 99))
    def restore_checkpoint(self, which: int) -> None:
        """Take a board back to one of its checkpoints."""
        self._restore(*self.names[which % len(self.names)])
        self.kinds["restore: checkpoint"] += 1

    @rule(which=st.integers(0, 9), back=st.integers(0, 30))
    def restore_revision(self, which: int, back: int) -> None:
        """Take a board back to any revision that it ever had."""
        model = self._member(which)
        revision = sorted(model.states)[-1 - back % len(model.states)]
        self._restore(model, revision, revision)
        self.kinds["restore: revision"] += 1

    def _restore(self, model: Model, to: str | int, revision: int) -> None:
        was_abandoned, before = revision in model.abandoned, model.head
        restored = self.call(model.board.restore(to))
        model.note_system(restored.revision - 1)  # a checkpoint of what is abandoned
        changed = model.now != model.states[revision]
        assert bool(restored.put_back + restored.removed) == changed
        model.note(restored.revision, dict(model.states[revision]), model.counters[before])
        model.abandoned |= {r for r in model.states if revision < r < restored.revision}
        self.kinds["restore: abandoned"] += was_abandoned
        self.kinds["restore: nothing changed"] += not changed
        self.kinds["restore: redacted"] += MARKER in model.now.values()
        self.fresh = self.fresh and model is not self.family[0]

    @precondition(lambda self: len(self.family) < BOARDS)
    @rule(which=st.integers(0, 9), back=st.integers(0, 30))
    def branch(self, which: int, back: int) -> None:
        """A new board that begins as another one was."""
        parent = self._member(which)
        revision = sorted(parent.states)[-1 - back % len(parent.states)]
        if not revision:
            return  # nothing to begin with
        made = self.call(parent.board.branch(f"past-{next(_names)}", revision))
        head = self.call(made.head()).revision
        child = Model(made, began=revision, depth=parent.depth + 1, parent=parent)
        child.states = {r: dict(s) for r, s in parent.states.items() if r <= revision}
        child.counters = {r: c for r, c in parent.counters.items() if r <= revision}
        child.abandoned = {r for r in parent.abandoned if r <= revision}
        child.note_system(head)
        self.family.append(child)
        self.kinds["branch of a branch" if parent.depth else "branch"] += 1

    @rule()
    def write_from_elsewhere(self) -> None:
        """A client that has not looked since a restore is refused, and changes nothing."""
        assert self.stale is not None
        model = self.family[0]
        state, counters = dict(model.now), dict(model.counters[model.head])
        with suppress(StaleEpoch):
            op = _apply(state, counters, "put", "public/a", "from elsewhere")
            receipt = self.call(self.stale.commit([op]))
            assert self.fresh, "a commit of an old epoch was accepted"
            model.note(receipt.revision, state, counters)
            return
        assert not self.fresh, "a commit of this epoch was refused"
        self.kinds["stale epoch"] += 1
        self._look_from_elsewhere()

    @precondition(lambda self: self.may_redact)
    @rule(which=st.integers(0, 9), key=st.sampled_from(KEYS), goes_back=st.booleans())
    def redact(self, which: int, key: str, goes_back: bool) -> None:
        """Remove every value of a key from all boards; perhaps go back to where it had one."""
        model = self._member(which)
        had = [revision for revision, state in model.states.items() if key in state]
        if not had:
            return
        done = self.call(self.client.redact(key, board=model.board.name))
        assert set(done.boards) == {one.board.name for one in self.family}
        for one in self.family:
            held = {k: v for k, v in one.now.items() if k != key}
            one.redact(key)
            one.note_system(self.call(one.board.head()).revision, held)
        assert self.call(model.board.verify()).findings == ()
        self.may_redact = False
        self.kinds["redact"] += 1
        if goes_back:
            self._restore(model, had[-1], had[-1])

    @rule(which=st.integers(0, 9), wishes=ops, back=st.none() | st.integers(0, 30))
    def freeze(self, which: int, wishes: list[tuple[str, str, Any]], back: int | None) -> None:
        """Freeze a board, which then refuses commits, but may be taken back; and thaw it."""
        model = self._member(which)
        freeze = self.call(self.client.freeze(model.board.name, note="why"))
        model.note_system(freeze.revision)
        packed = [_apply({}, {}, *spec) for spec in wishes]
        with pytest.raises(BoardFrozen):
            self.call(model.board.commit(packed))
        if back is not None:
            revision = sorted(model.states)[-1 - back % len(model.states)]
            self._restore(model, revision, revision)
            assert self.call(self.client.frozen(model.board.name)) == freeze
        assert self.call(model.board.head()).revision == model.head
        assert self.call(self.client.thaw(model.board.name)) == freeze
        model.note_system(model.head + 1)
        self.kinds["freeze" if back is None else "freeze: restored"] += 1

    @precondition(lambda self: len(self.family) > BOARDS // 2)
    @rule(which=st.integers(0, 9))
    def remove(self, which: int) -> None:
        """Remove a board, not the first; what it shares with the others stays."""
        model = self.family.pop(1 + which % (len(self.family) - 1))
        self.call(self.client.remove_board(model.board.name))
        assert model.board.name not in self.call(self.client.boards())
        assert self._held(model, None) == self._held(model, model.head) == {}
        self.names = [name for name in self.names if name[0] is not model]
        is_parent = any(other.parent is model for other in self.family)
        self.kinds["remove: a parent" if is_parent else "remove"] += 1

    # --- what looks at them -----------------------------------------------------------------------

    @rule(which=st.integers(0, 9), back=st.integers(0, 60))
    def look_back(self, which: int, back: int) -> None:
        """Every revision still holds what it held."""
        model = self._member(which)
        revision = sorted(model.states)[-1 - back % len(model.states)]
        assert self._held(model, revision) == model.states[revision]
        kind = "past: abandoned" if revision in model.abandoned else "past: own"
        self.kinds[kind if revision > model.began else "past: parent's"] += 1

    @rule(a=st.tuples(st.integers(0, 9), st.integers(0, 60)), b=st.integers(0, 60))
    def compare(self, a: tuple[int, int], b: int) -> None:
        """A diff names exactly the keys that two revisions do not hold alike."""
        model = self._member(a[0])
        revisions = sorted(model.states)
        first, second = (revisions[-1 - back % len(revisions)] for back in (a[1], b))
        found = self.call(model.board.diff(first, second, limit=1000))
        assert _keys(found) == _differing(model.states[first], model.states[second])
        self.kinds["diff: some" if found else "diff: same"] += 1

    @precondition(lambda self: len(self.family) > 1)
    @rule(a=st.integers(0, 9), b=st.integers(0, 9))
    def compare_boards(self, a: int, b: int) -> None:
        """So does one of two boards of the family."""
        first, second = self._member(a), self._member(b)
        work = first.board.diff(first.head, second.head, other=second.board.name, limit=1000)
        assert _keys(self.call(work)) == _differing(first.now, second.now)
        self.kinds["diff: other board"] += first is not second

    @rule(which=st.integers(0, 9), key=st.sampled_from(KEYS))
    def tell_history(self, which: int, key: str) -> None:
        """The versions of a key are those revisions at which it changed, or was written again."""
        model = self._member(which)
        found = self.call(model.board.history(key, limit=1000))
        at = dict(sorted((version.revision, version.value) for version in found))
        value = None
        for revision in sorted(model.states):
            value = at.get(revision, value)
            assert value == model.states[revision].get(key), (key, revision)
        self.kinds["history"] += 1

    def teardown(self) -> None:
        """In the end every board holds what the model says, now and at its checkpoints."""
        for model in self.family:
            assert self._held(model, None) == model.now
        for model, _, revision in self.names:
            assert self._held(model, revision) == model.states[revision]

    def _member(self, which: int) -> Model:
        return self.family[which % len(self.family)]

    def _held(self, model: Model, revision: int | None) -> State:
        listing = self.call(model.board.list("**", at=revision))
        assert listing.next_key is None
        return {e.key: e.value for e in listing.entries if not e.key.startswith("system/")}


def _apply(state: State, counters: dict[str, int], kind: str, path: str, value: Any) -> Any:
    """Do to the model what the operation, which is returned, does to the board."""
    if kind == "put":
        state[path] = value
        return Put(path, encode_value(value))
    if kind == "delete":
        state.pop(path, None)
        return Delete(path)
    if kind == "increment":
        state[path] = state.get(path, 0) + value
        return Increment(path, value)
    index = counters.get(path, 0)
    counters[path] = index + 1
    state[item_key(path, index)] = value
    return Append(path, encode_value(value))


def _keys(diff: Any) -> set[str]:
    return {change.key for change in diff if not change.key.startswith("system/")}


def _differing(a: State, b: State) -> set[str]:
    missing = object()
    return {key for key in a.keys() | b.keys() if a.get(key, missing) != b.get(key, missing)}
