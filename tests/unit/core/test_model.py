"""Every rule of `decide`: what is accepted, and each refusal with all its fields."""

import pytest
from msgspec.structs import replace

from blackboard import limits
from blackboard.core.commit import (
    ABSENT,
    PRESENT,
    CommitId,
    Committed,
    Delete,
    DeletePrefix,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    PrefixUnchanged,
    Put,
    Release,
)
from blackboard.errors import (
    BlackboardError,
    Compacted,
    Conflict,
    Fenced,
    FutureRevision,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    StaleEpoch,
    StepSuperseded,
)
from tests.unit.core.trial import Trial, packed, same

ONE = packed(1)
A, B, LEASE = "public/a", "public/b", "public/lease"


@pytest.fixture
def trial() -> Trial:
    """An empty board at 1,000 ms."""
    return Trial()


# --- identity -------------------------------------------------------------------------------------


def test_a_commit_takes_the_next_revision_at_the_engines_time(trial: Trial) -> None:
    """With one result per operation."""
    assert trial.commit(Put(A, ONE), Increment(B, 2)) == Committed(1, 1_000, (None, 2))
    assert trial.commit(Put(A, ONE)).revision == 2


def test_a_retry_gets_the_first_answer_whatever_happened_since(trial: Trial) -> None:
    """Even in another epoch and with conditions that no longer hold."""
    made = trial.make(Increment(A, 1), conditions=[KeyAt(A, ABSENT)])
    assert trial.send(made) == Committed(1, 1_000, (1,))
    trial.commit(Put(A, ONE), agent="bob")
    trial.now_ms = 5_000
    again = replace(made, epoch="another", retry_since=0)
    assert trial.send(again) == Committed(1, 1_000, (1,), duplicate=True)
    assert trial.state.revision == 2


def test_an_older_step_is_superseded(trial: Trial) -> None:
    """Its answer was given up when a later step came."""
    old, new = trial.make(Put(A, ONE)), trial.make(Put(A, ONE))
    trial.send(new)
    assert same(trial.decide(old), StepSuperseded("ada", 1, 2))


def test_lanes_and_agents_count_for_themselves(trial: Trial) -> None:
    """The same step number elsewhere is another commit."""
    made = trial.make(Increment(A, 1))
    trial.send(made)
    for name in (CommitId("ada", 1, "ada-1", 1), CommitId("bob", 0, "ada-1", 1)):
        outcome = trial.send(replace(made, id=name))
        assert isinstance(outcome, Committed)
        assert not outcome.duplicate
    assert trial.value(A) == packed(3)


def test_a_new_process_starts_over_on_its_lane(trial: Trial) -> None:
    """Steps grow within an incarnation only."""
    trial.commit(Put(A, ONE))
    trial.commit(Put(A, ONE))
    fresh = replace(trial.make(Put(A, ONE)), id=CommitId("ada", 0, "ada-2", 1))
    assert trial.decide(fresh) == Committed(3, 1_000, (None,))


def test_a_retry_whose_answer_was_pushed_out_is_unknown(trial: Trial) -> None:
    """Ours may have been the one that bob's second process pushed out, or never have arrived."""
    mine = replace(trial.make(Put(A, ONE)), id=CommitId("bob", 0, "bob-1", 1))
    trial.send(mine)
    trial.send(replace(mine, id=CommitId("bob", 0, "bob-2", 1)))
    reason = "its answer is no longer kept"
    expected = OutcomeUnknown("bob", 0, "bob-1", 1, reason, final=True)
    assert same(trial.decide(replace(mine, retry_since=0)), expected)


def test_a_retry_that_cannot_have_been_pushed_out_is_a_first_attempt(trial: Trial) -> None:
    """What was pushed out was written before it was ever sent."""
    trial.commit(Put(A, ONE))
    trial.send(replace(trial.make(Put(A, ONE)), id=CommitId("ada", 0, "ada-2", 1)))
    late = replace(trial.make(Put(A, ONE)), id=CommitId("ada", 0, "ada-3", 1))
    assert isinstance(trial.decide(replace(late, retry_since=1)), Committed)
    assert isinstance(trial.decide(replace(late, retry_since=0)), OutcomeUnknown)


# --- epoch and limits -----------------------------------------------------------------------------


def test_another_epoch_is_refused(trial: Trial) -> None:
    """With what the writer needs to find its place."""
    trial.commit(Put(A, ONE))
    made = replace(trial.make(Put(A, ONE)), epoch="zeroth")
    assert same(trial.decide(made), StaleEpoch("zeroth", "first", 1, "created", 0, 1))


def test_a_commit_without_operations_is_none(trial: Trial) -> None:
    """Conditions alone are no commit."""
    expected = InvalidRequest("ops", "a commit needs at least one operation")
    assert same(trial.attempt(), expected)


@pytest.mark.parametrize(
    ("part", "limit", "item"),
    [
        ("ops", "OPERATIONS_MAX", Put(A, ONE)),
        ("conditions", "OPERATIONS_MAX", KeyAt("public/none", ABSENT)),
        ("fences", "FENCES_MAX", HeldFence(LEASE, "ada", 1)),
        ("based_on", "BASED_ON_MAX", (A, 1)),
    ],
)
def test_parts_of_a_commit_have_an_edge(trial: Trial, part: str, limit: str, item: object) -> None:
    """As many as the limit, not one more."""
    trial.commit(Grant(LEASE, "ada", 1))
    maximum: int = getattr(limits, limit)
    made = trial.make(Put(A, ONE))
    full = replace(made, **{part: (item,) * maximum})
    assert isinstance(trial.decide(full), Committed)
    more = replace(made, **{part: (item,) * (maximum + 1)})
    assert same(trial.decide(more), LimitExceeded(limit, maximum + 1, maximum, part))


# --- fences ---------------------------------------------------------------------------------------


def test_a_fence_must_equal_the_current_grant(trial: Trial) -> None:
    """(fence, holder) as a whole: an order of fences is not used, neither is the clock."""
    trial.commit(Put(A, ONE))
    trial.commit(Grant(LEASE, "ada", 100))
    trial.now_ms += 1_000_000
    held = HeldFence(LEASE, "ada", 2)
    assert isinstance(trial.attempt(Put(A, ONE), fences=[held]), Committed)
    for holder, fence in (("bob", 2), ("ada", 1), ("ada", 3)):
        expected = Fenced(LEASE, fence, 2, "ada")
        assert trial.refuses(expected, fences=[HeldFence(LEASE, holder, fence)])


def test_a_lease_that_nobody_has_fences_everybody(trial: Trial) -> None:
    """Released or never granted."""
    assert trial.refuses(Fenced(LEASE, 1, 0, None), fences=[HeldFence(LEASE, "ada", 1)])
    trial.commit(Grant(LEASE, "ada", 100))
    trial.commit(Release(LEASE, "ada", 1))
    assert trial.refuses(Fenced(LEASE, 1, 0, None), fences=[HeldFence(LEASE, "ada", 1)])


# --- conditions on keys ---------------------------------------------------------------------------


def test_a_key_must_be_where_it_was_read(trial: Trial) -> None:
    """The lost update: stale, and also too new, is refused with the present value."""
    trial.commit(Put(B, ONE))
    trial.commit(Put(A, ONE), agent="bob")
    assert isinstance(trial.attempt(Put(A, ONE), conditions=[KeyAt(A, 2)]), Committed)
    for expected in (1, 3, ABSENT):
        conflict = Conflict(A, expected, 2, by="bob", at_revision=2, head=2, current=ONE)
        assert trial.refuses(conflict, conditions=[KeyAt(A, expected)])


def test_present_is_any_revision(trial: Trial) -> None:
    """But not none."""
    assert trial.refuses(Conflict(A, PRESENT, 0, head=0), conditions=[KeyAt(A, PRESENT)])
    trial.commit(Put(A, ONE))
    assert isinstance(trial.attempt(Put(A, ONE), conditions=[KeyAt(A, PRESENT)]), Committed)


def test_absent_is_never_written_or_removed(trial: Trial) -> None:
    """A conflict about a removed key says who removed it, and when."""
    assert isinstance(trial.attempt(Put(A, ONE), conditions=[KeyAt(A, ABSENT)]), Committed)
    trial.commit(Put(A, ONE))
    trial.commit(Delete(A), agent="bob")
    assert isinstance(trial.attempt(Put(A, ONE), conditions=[KeyAt(A, ABSENT)]), Committed)
    conflict = Conflict(A, 1, ABSENT, by="bob", at_revision=2, head=2)
    assert trial.refuses(conflict, conditions=[KeyAt(A, 1)])
    assert trial.refuses(Conflict(B, 1, ABSENT, head=2), conditions=[KeyAt(B, 1)])


def test_only_small_values_come_with_a_conflict(trial: Trial) -> None:
    """Up to VALUE_INLINE_BYTES_MAX."""
    small = b"x" * limits.VALUE_INLINE_BYTES_MAX
    trial.commit(Put(A, small), Put(B, small + b"x"))
    for key, current in ((A, small), (B, None)):
        conflict = Conflict(key, ABSENT, 1, by="ada", at_revision=1, head=1, current=current)
        assert trial.refuses(conflict, conditions=[KeyAt(key, ABSENT)])


def test_conditions_speak_of_the_state_before_the_commit(trial: Trial) -> None:
    """Not of what the commit itself is about to write."""
    made = trial.attempt(Put(A, ONE), Delete(A), conditions=[KeyAt(A, ABSENT)])
    assert isinstance(made, Committed)
    assert trial.refuses(Conflict(A, 1, 0, head=0), Put(A, ONE), conditions=[KeyAt(A, 1)])


# --- conditions on prefixes -----------------------------------------------------------------------


def test_an_unchanged_prefix_is_about_what_lies_below_it(trial: Trial) -> None:
    """Changes of the prefix's own key and of its neighbours do not count."""
    trial.commit(Put("public/d/x", ONE))
    trial.commit(Put("public/d", ONE), Put("public/d0", ONE), Put("public/dd/x", ONE))
    same_since = [PrefixUnchanged("public/d", 1)]
    assert isinstance(trial.attempt(Put(A, ONE), conditions=same_since), Committed)


def test_a_key_written_below_a_prefix_is_a_conflict(trial: Trial) -> None:
    """It names the first such key."""
    trial.commit(Put("public/d/a", ONE))
    trial.commit(Put("public/d/c", ONE), Put("public/d/b", ONE), agent="bob")
    conflict = Conflict("public/d/b", 1, 2, by="bob", at_revision=2, head=2, current=ONE)
    assert trial.refuses(conflict, conditions=[PrefixUnchanged("public/d", 1)])


def test_a_key_removed_below_a_prefix_is_a_conflict(trial: Trial) -> None:
    """What is gone has changed, too."""
    trial.commit(Put("public/d/a", ONE), Put("public/d/b", ONE))
    trial.commit(Delete("public/d/a"), agent="bob")
    conflict = Conflict("public/d/a", 1, ABSENT, by="bob", at_revision=2, head=2)
    assert trial.refuses(conflict, conditions=[PrefixUnchanged("public/d", 1)])


def test_a_prefix_condition_reaches_from_the_log_to_the_head(trial: Trial) -> None:
    """Beyond either end nobody could tell."""
    for _ in range(4):
        trial.commit(Put(A, ONE))
    trial.state.compact(3)
    unchanged = [PrefixUnchanged("public/d", 2)]
    assert isinstance(trial.attempt(Put(A, ONE), conditions=unchanged), Committed)
    assert trial.refuses(Compacted(1, 3), conditions=[PrefixUnchanged("public/d", 1)])
    assert trial.refuses(FutureRevision(5, 4), conditions=[PrefixUnchanged("public/d", 5)])


def test_a_prefix_condition_does_not_loop_over_a_board(trial: Trial) -> None:
    """OPERATIONS_MAX living keys, or as many removed ones, are the most."""
    maximum = limits.OPERATIONS_MAX
    keys = [f"public/d/{number}" for number in range(maximum)]
    trial.commit(*[Put(key, ONE) for key in keys])
    unchanged = [PrefixUnchanged("public/d", 1)]
    assert isinstance(trial.attempt(Put(A, ONE), conditions=unchanged), Committed)
    trial.commit(Put("public/d/more", ONE))
    many = LimitExceeded("OPERATIONS_MAX", maximum + 1, maximum, "public/d")
    assert trial.refuses(many, conditions=unchanged)
    trial.commit(Delete("public/d/more"))
    trial.commit(DeletePrefix("public/d"))
    assert trial.refuses(many, conditions=[PrefixUnchanged("public/d", 3)])


# --- the order of checks --------------------------------------------------------------------------


def test_the_first_check_that_fails_is_the_answer(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epoch, limits, fences, conditions, operations, quotas: a commit that offends all of them."""
    monkeypatch.setattr(limits, "NAMESPACE_BYTES_MAX", 30)
    trial.commit(Put(A, packed("text")))
    ops = (Put(B, b"x" * 30), Increment(A, 1))
    commit = trial.make(*ops)
    commit = replace(
        commit,
        epoch="zeroth",
        conditions=(KeyAt(A, ABSENT), KeyAt(B, 1)),
        fences=(HeldFence(LEASE, "ada", 1),),
        based_on=((A, 1),) * (limits.BASED_ON_MAX + 1),
    )
    cures = [
        ("stale_epoch", {"epoch": "first"}),
        ("limit_exceeded", {"based_on": ()}),
        ("fenced", {"fences": ()}),
        ("conflict", {"conditions": (KeyAt(A, 1), KeyAt(B, 1))}),
        ("conflict", {"conditions": ()}),
        ("type_mismatch", {"ops": ops[:1]}),
        ("limit_exceeded", {"ops": (Put(B, b""),)}),
    ]
    for code, cure in cures:
        outcome = trial.decide(commit)
        assert isinstance(outcome, BlackboardError)
        assert outcome.code == code
        commit = replace(commit, **cure)  # type: ignore[arg-type]
    assert isinstance(trial.decide(commit), Committed)
