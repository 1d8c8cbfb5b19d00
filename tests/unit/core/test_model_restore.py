"""A restore is one commit; a barrier stops one agent: the rules, without an engine."""

import pytest
from msgspec.structs import replace

from blackboard import limits
from blackboard.core.commit import (
    BRANCH,
    ENGINE,
    RESTORE,
    Append,
    Change,
    ChangeKind,
    Commit,
    Committed,
    Delete,
    Epoch,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Op,
    Put,
    PutBack,
    Release,
)
from blackboard.core.path import barrier_key
from blackboard.core.state import State, evolve
from blackboard.errors import (
    AttemptTooOld,
    Fenced,
    HeadMoved,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    SnapshotFirst,
    StaleEpoch,
)
from tests.unit.core.trial import EPOCH, Trial, faults, packed, same

A, B = "public/a", "public/b"
ONE = packed(1)
BARRIER = barrier_key("ada")


@pytest.fixture
def trial() -> Trial:
    """A board with a key, a list, and two leases, one with a queue."""
    trial = Trial()
    trial.commit(Put(A, ONE), Append("public/l", ONE))
    trial.commit(Grant("public/x", "ada", 100_000), Grant("public/y", "bob", 100_000))
    trial.commit(Grant("public/x", "bob", 100_000, wait=True))
    return trial


def restore(trial: Trial, *ops: Op) -> Commit:
    """The restore of `trial` as it is."""
    head = trial.state.revision
    epoch = Epoch(trial.state.epoch.number + 1, "second", RESTORE, 1, head + 1)
    return replace(trial.make(*ops), begins=epoch)


def test_a_restore_begins_an_epoch_with_its_changes_in_one_entry(trial: Trial) -> None:
    made = restore(trial, PutBack(A, packed(7), 9_000), Delete("public/l/0000000000"))
    assert trial.send(made) == Committed(4, 1_000, (None, 1))
    entry = trial.log[-1]
    assert entry.epoch == made.begins == trial.state.epoch
    assert [change.key for change in entry.changes] == [A, "public/l/0000000000"]
    assert trial.state.entries[A].expires_at_ms == 9_000
    assert not trial.state.leases
    assert not faults(trial.state)
    replayed = State(EPOCH)
    for one in trial.log:
        evolve(replayed, one)
    assert replayed == trial.state


def test_a_restore_changes_each_key_once_by_its_last_operation(trial: Trial) -> None:
    """In the order of those; what was not there, and is not, is no removal."""
    ops = (PutBack(A, ONE), Delete(B), PutBack(B, packed(2)), Delete("public/c"), Delete(A))
    done = trial.send(restore(trial, *ops, PutBack("public/c", ONE), PutBack(B, packed(3), 9_000)))
    assert isinstance(done, Committed)
    assert done.results == (None, 0, None, 0, 1, None, None)
    assert trial.log[-1].changes == (
        Change(ChangeKind.DELETE, A),
        Change(ChangeKind.PUT, "public/c", ONE),
        Change(ChangeKind.PUT, B, packed(3), 9_000),
    )
    assert not faults(trial.state)


def test_what_is_put_back_stays_in_its_place(trial: Trial) -> None:
    """Sizes, expiries and the order of the keys are kept whether a key was there or was not."""
    trial.commit(Put(B, packed("long")), Put("private/ada/x", ONE, 500))
    again = (PutBack(B, ONE, 7_000), PutBack("private/ada/x", packed("longer")), Delete(A))
    trial.send(restore(trial, *again, PutBack("public/aa", ONE)))
    assert not faults(trial.state)
    assert list(trial.state.below("public")) == ["public/aa", B, "public/l/0000000000"]
    assert list(trial.state.expiring) == [(7_000, B)]


def test_a_restore_ends_leases_and_keeps_counters_and_answers(trial: Trial) -> None:
    trial.send(restore(trial))
    trial.refuses(
        Fenced("public/x", 2, 0, None), Put(B, ONE), fences=[HeldFence("public/x", "ada", 2)]
    )
    assert trial.commit(Append("public/l", ONE)).results == ("public/l/0000000001",)


def test_a_retried_restore_gets_its_first_answer(trial: Trial) -> None:
    made = restore(trial, PutBack(A, ONE))
    first = trial.send(made)
    assert isinstance(first, Committed)
    trial.commit(Put(A, packed(2)), agent="bob")
    assert trial.send(made) == replace(first, duplicate=True)


def test_a_commit_of_the_old_epoch_is_refused(trial: Trial) -> None:
    late = trial.make(Put(A, ONE), agent="bob")
    trial.send(restore(trial))
    outcome = trial.decide(late)
    assert isinstance(outcome, StaleEpoch)
    assert (outcome.cause, outcome.from_revision) == (RESTORE, 1)


@pytest.mark.parametrize("at", [-1, 1, 9])
def test_another_head_is_refused(trial: Trial, at: int) -> None:
    made = restore(trial, PutBack(A, ONE))
    assert made.begins is not None
    moved = replace(made, begins=replace(made.begins, revision=made.begins.revision + at))
    assert same(trial.decide(moved), HeadMoved(3 + at, 3))


@pytest.mark.parametrize(
    "change",
    [
        {"number": 1},
        {"number": 3},
        {"cause": ENGINE},
        {"cause": BRANCH},
        {"from_revision": 4},
    ],
)
def test_what_is_no_epoch_of_a_restore_is_refused(trial: Trial, change: dict[str, object]) -> None:
    made = restore(trial)
    wrong = replace(made, begins=replace(made.begins, **change))  # type: ignore[type-var]
    outcome = trial.decide(wrong)
    assert isinstance(outcome, InvalidRequest)
    assert outcome.field == "begins"


@pytest.mark.parametrize("op", [Put(A, ONE), Increment(B, 1), Release("public/x", "ada", 2)])
def test_a_restore_does_nothing_else(trial: Trial, op: Op) -> None:
    outcome = trial.decide(restore(trial, Delete(A), op))
    assert isinstance(outcome, InvalidRequest)
    assert outcome.field == "ops"


def test_only_a_restore_puts_back(trial: Trial) -> None:
    outcome = trial.attempt(PutBack(A, ONE))
    assert isinstance(outcome, InvalidRequest)
    assert outcome.field == "ops"


def test_a_restore_has_limits_of_its_own(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPERATIONS_MAX", 1)
    monkeypatch.setattr(limits, "NAMESPACE_KEYS_MAX", 1)
    monkeypatch.setattr(limits, "RESTORE_CHANGES_MAX", 3)
    many = [PutBack(f"public/{n}", ONE) for n in range(4)]
    assert isinstance(trial.decide(restore(trial, *many[:3])), Committed)
    expected = LimitExceeded("RESTORE_CHANGES_MAX", 4, 3, "ops")
    assert same(trial.decide(restore(trial, *many)), expected)
    conditions = (KeyAt(A, 1), KeyAt(A, 1))
    crowded = replace(restore(trial, *many[:1]), conditions=conditions)
    assert isinstance(trial.decide(crowded), LimitExceeded)


# --- barriers -------------------------------------------------------------------------------------


def test_an_agent_that_is_waited_for_delivers_first(trial: Trial) -> None:
    trial.commit(Put(BARRIER, ONE), agent="bob")
    trial.refuses(SnapshotFirst("ada", BARRIER, 4), Put(A, ONE))
    trial.refuses(SnapshotFirst("ada", BARRIER, 4), Put(A, ONE), Grant("public/z", "ada", 0))
    trial.commit(Put(A, ONE), agent="bob")
    trial.commit(Release("public/x", "ada", 2))
    trial.commit(Put(A, ONE), Delete(BARRIER))
    trial.commit(Put(A, ONE))


def test_a_barrier_ends_with_its_time(trial: Trial) -> None:
    trial.commit(Put(BARRIER, ONE, 500), agent="bob")
    trial.now_ms += 499
    trial.refuses(SnapshotFirst("ada", BARRIER, 4), Put(A, ONE))
    trial.now_ms += 1
    trial.commit(Put(A, ONE))


def test_a_restore_passes_a_barrier_and_leaves_it(trial: Trial) -> None:
    trial.commit(Put(BARRIER, ONE), agent="bob")
    assert isinstance(trial.send(restore(trial)), Committed)
    trial.refuses(SnapshotFirst("ada", BARRIER, 4), Put(A, ONE))


# --- attempts that come late ----------------------------------------------------------------------


def test_a_first_attempt_that_may_have_been_applied_is_not_applied(trial: Trial) -> None:
    mine = replace(trial.make(Put(A, ONE), agent="cyd"), known=3)
    trial.send(replace(mine, retry_since=3))
    other = replace(trial.make(Put(A, ONE), agent="cyd").id, incarnation="another")
    trial.send(replace(mine, id=other, known=4))
    name = mine.id
    expected = AttemptTooOld("cyd", 0, name.incarnation, name.step, 3, 5)
    assert same(trial.decide(mine), expected)
    assert isinstance(trial.decide(replace(mine, retry_since=3)), OutcomeUnknown)
    assert isinstance(trial.decide(replace(mine, known=4)), Committed)
    assert isinstance(trial.decide(replace(mine, known=None)), Committed)
