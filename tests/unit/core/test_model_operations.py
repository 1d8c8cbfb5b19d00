"""What each operation does, computes and refuses; quotas; and what the log keeps of it."""

import pytest
from msgspec.structs import replace

from blackboard import types as limits
from blackboard.core.commit import (
    ABSENT,
    Append,
    Change,
    ChangeKind,
    Committed,
    Delete,
    DeletePrefix,
    Grant,
    Increment,
    Lease,
    Op,
    Put,
    Release,
    Renew,
)
from blackboard.core.model import effects, log_entry
from blackboard.errors import (
    Conflict,
    Fenced,
    LeaseHeld,
    LimitExceeded,
    TypeMismatch,
)
from tests.unit.core.trial import EPOCH, Trial, packed

ONE = packed(1)
A, B, LEASE = "public/a", "public/b", "public/lease"


@pytest.fixture
def trial() -> Trial:
    """An empty board at 1,000 ms."""
    return Trial()


# --- operations -----------------------------------------------------------------------------------


def test_delete_tells_whether_there_was_something(trial: Trial) -> None:
    """Seen through the operations before it; a second delete finds nothing."""
    trial.commit(Put(A, ONE))
    done = trial.commit(Delete(A), Delete(A), Delete(B), Put(B, ONE), Delete(B))
    assert done.results == (1, 0, 0, None, 1)
    assert not trial.state.entries


def test_delete_prefix_removes_what_the_commit_itself_wrote(trial: Trial) -> None:
    """And tells all keys, sorted."""
    trial.commit(Put("public/d/b", ONE), Put("public/d/c", ONE), Put("public/dd", ONE))
    done = trial.commit(Put("public/d/a", ONE), Delete("public/d/c"), DeletePrefix("public/d"))
    assert done.results == (None, 1, ("public/d/a", "public/d/b"))
    assert [*trial.state.entries] == ["public/dd"]


def test_delete_prefix_has_an_edge_for_the_whole_commit(trial: Trial) -> None:
    """OPERATIONS_MAX keys, in all prefix operations of a commit together."""
    maximum = limits.OPERATIONS_MAX
    trial.commit(*[Put(f"public/d/{number}", ONE) for number in range(maximum)])
    assert isinstance(trial.attempt(DeletePrefix("public/d")), Committed)
    trial.commit(Put("public/e/x", ONE))
    many = LimitExceeded("OPERATIONS_MAX", maximum + 1, maximum, "public/e")
    assert trial.refuses(many, DeletePrefix("public/d"), DeletePrefix("public/e"))
    trial.commit(Put("public/d/more", ONE))
    many = LimitExceeded("OPERATIONS_MAX", maximum + 1, maximum, "public/d")
    assert trial.refuses(many, DeletePrefix("public/d"))


def test_append_numbers_items_from_nought(trial: Trial) -> None:
    """Across commits and within one."""
    assert trial.commit(Append("public/l", ONE), Append("public/l", ONE)).results == (
        "public/l/0000000000",
        "public/l/0000000001",
    )
    assert trial.commit(Append("public/l", ONE)).results == ("public/l/0000000002",)


def test_append_never_overwrites(trial: Trial) -> None:
    """A key that somebody put where the next item belongs is a conflict."""
    taken = "public/l/0000000000"
    trial.commit(Put(taken, ONE))
    conflict = Conflict(taken, ABSENT, 1, by="ada", at_revision=1, head=1, current=ONE)
    assert trial.refuses(conflict, Append("public/l", ONE))


def test_append_makes_no_key_that_is_too_long(trial: Trial) -> None:
    """The eleven bytes of the index count."""
    prefix = ("public/" + "a/" * limits.KEY_BYTES_MAX)[: limits.KEY_BYTES_MAX - 11]
    assert isinstance(trial.attempt(Append(prefix, ONE)), Committed)
    maximum = limits.KEY_BYTES_MAX
    too_long = LimitExceeded("KEY_BYTES_MAX", maximum + 1, maximum, f"{prefix}b")
    assert trial.refuses(too_long, Append(f"{prefix}b", ONE))


def test_increment_counts_from_nought(trial: Trial) -> None:
    """Within a commit, too, and in both directions."""
    assert trial.commit(Increment(A, 5), Increment(A, -7)).results == (5, -2)
    assert trial.value(A) == packed(-2)


@pytest.mark.parametrize(("value", "found"), [("1", "string"), (1.0, "float"), (2**53, "integer")])
def test_increment_needs_an_integer_that_counts_exactly(
    trial: Trial, value: object, found: str
) -> None:
    """It names what it found."""
    trial.commit(Put(A, packed(value)))
    assert trial.refuses(TypeMismatch(A, "integer", found), Increment(A, 1))


@pytest.mark.parametrize("sign", [1, -1])
def test_increment_has_an_edge_on_both_sides(trial: Trial, sign: int) -> None:
    """INTEGER_MAX itself is reached."""
    edge = sign * limits.INTEGER_MAX
    assert trial.commit(Increment(A, edge)).results == (edge,)
    beyond = LimitExceeded("INTEGER_MAX", edge + sign, limits.INTEGER_MAX, A)
    assert trial.refuses(beyond, Increment(A, sign))


# --- leases ---------------------------------------------------------------------------------------


def test_a_grant_is_fenced_by_its_revision(trial: Trial) -> None:
    """And held until its time has run out, to the millisecond."""
    trial.commit(Put(A, ONE))
    assert trial.commit(Grant(LEASE, "ada", 100)).results == (("ada", 2, 1_100),)
    assert trial.state.leases[LEASE] == Lease(LEASE, "ada", 2, 1_100, (), 100, "ada")
    trial.now_ms = 1_099
    assert trial.refuses(LeaseHeld(LEASE, "ada", 2, 1_100), Grant(LEASE, "bob", 100))
    trial.now_ms = 1_100
    assert trial.commit(Grant(LEASE, "bob", 100)).results == (("bob", 3, 1_200),)


def test_a_lease_is_renewed_by_its_holder_only(trial: Trial) -> None:
    """Also after it ran out, as long as nobody took it."""
    trial.commit(Grant(LEASE, "ada", 100))
    trial.now_ms = 9_000
    assert trial.commit(Renew(LEASE, "ada", 1, 100)).results == (("ada", 1, 9_100),)
    assert trial.refuses(Fenced(LEASE, 1, 1, "ada"), Renew(LEASE, "bob", 1, 100))
    assert trial.refuses(Fenced(LEASE, 2, 1, "ada"), Renew(LEASE, "ada", 2, 100))
    assert trial.refuses(Fenced(B, 1, 0, None), Renew(B, "ada", 1, 100))


def test_a_lease_is_released_by_its_holder_only(trial: Trial) -> None:
    """Then it is free at once, and its fence is worth nothing."""
    trial.commit(Grant(LEASE, "ada", 100))
    assert trial.refuses(Fenced(LEASE, 1, 1, "ada"), Release(LEASE, "bob", 1))
    done = trial.commit(Release(LEASE, "ada", 1), Grant(LEASE, "bob", 100))
    assert done.results == ((), ("bob", 2, 1_100))
    assert trial.refuses(Fenced(LEASE, 1, 2, "bob"), Release(LEASE, "ada", 1))


def test_lease_operations_see_each_other(trial: Trial) -> None:
    """Within a commit."""
    held = LeaseHeld(LEASE, "ada", 1, 1_100)
    assert trial.refuses(held, Grant(LEASE, "ada", 100), Grant(LEASE, "bob", 100))
    done = trial.commit(Grant(LEASE, "ada", 100), Renew(LEASE, "ada", 1, 300))
    assert done.results == (("ada", 1, 1_100), ("ada", 1, 1_300))


def test_a_board_has_only_so_many_leases(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that ran out count until they are released; a new grant of one is no new lease."""
    monkeypatch.setattr(limits, "LEASES_MAX", 2)
    trial.commit(Grant(LEASE, "ada", 100))
    trial.commit(Grant(A, "ada", 100))
    trial.now_ms += 1_000
    assert trial.refuses(LimitExceeded("LEASES_MAX", 3, 2, B), Grant(B, "ada", 100))
    assert isinstance(trial.attempt(Grant(A, "bob", 100)), Committed)


# --- quotas ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "where"),
    [
        ("NAMESPACE_KEYS_MAX", "private/ada"),
        ("NAMESPACE_BYTES_MAX", "private/ada"),
        ("BOARD_KEYS_MAX", None),
        ("BOARD_BYTES_MAX", None),
    ],
)
def test_growth_ends_at_each_quota(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, limit: str, where: str | None
) -> None:
    """What fills it exactly passes, then nothing that grows does, and what shrinks always does."""
    key = "private/ada/x"
    unit = len(key) + 10 if "BYTES" in limit else 1
    monkeypatch.setattr(limits, limit, 2 * unit)
    trial.commit(Put(key, b"x" * 10), Put("private/ada/y", b"x" * 10))
    refusal = LimitExceeded(limit, 3 * unit, 2 * unit, where)
    assert trial.refuses(refusal, Put("private/ada/z", b"x" * 10))
    trial.commit(Put(key, b"y" * 10))
    monkeypatch.setattr(limits, limit, 1)
    assert isinstance(trial.attempt(Put(key, b"x" * 9)), Committed)
    assert isinstance(trial.attempt(Delete(key)), Committed)
    assert isinstance(trial.attempt(Delete(key), Put("private/ada/z", b"x" * 10)), Committed)


def test_one_full_namespace_leaves_room_for_the_others(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota is each namespace's own."""
    monkeypatch.setattr(limits, "NAMESPACE_KEYS_MAX", 1)
    trial.commit(Put("private/ada/x", ONE))
    assert isinstance(trial.attempt(Put("private/bob/x", ONE)), Committed)
    full = LimitExceeded("NAMESPACE_KEYS_MAX", 2, 1, "private/ada")
    assert trial.refuses(full, Put("private/bob/x", ONE), Put("private/ada/y", ONE))


# --- effects --------------------------------------------------------------------------------------


def changes_of(trial: Trial, *ops: Op) -> tuple[Change, ...]:
    """What the log would hold of these operations."""
    made = trial.make(*ops)
    outcome = trial.decide(made)
    assert isinstance(outcome, Committed), outcome
    return effects(made, outcome)


def test_effects_are_absolute(trial: Trial) -> None:
    """No sum, no index and no time to live is left to compute."""
    trial.commit(Increment(A, 40), Put("public/d/x", ONE), Grant(LEASE, "ada", 50))
    put, delete = ChangeKind.PUT, ChangeKind.DELETE
    assert changes_of(
        trial,
        Increment(A, 2),
        Put(B, ONE, ttl_ms=500),
        Append("public/l", ONE, ttl_ms=0),
        DeletePrefix("public/d"),
        Renew(LEASE, "ada", 1, 90),
        Grant("public/new", "bob", 70),
    ) == (
        Change(put, A, packed(42)),
        Change(put, B, ONE, 1_500),
        Change(put, "public/l/0000000000", ONE, 1_000, item=0),
        Change(delete, "public/d/x"),
        Change(ChangeKind.RENEW, LEASE, lease=Lease(LEASE, "ada", 1, 1_090)),
        Change(ChangeKind.GRANT, "public/new", lease=Lease("public/new", "bob", 2, 1_070)),
    )
    released = Change(ChangeKind.RELEASE, LEASE, lease=Lease(LEASE, "ada", 1, 0))
    assert changes_of(trial, Release(LEASE, "ada", 1)) == (released,)


def test_effects_hold_one_change_per_key_the_last(trial: Trial) -> None:
    """A lease and an entry of the same name are two things."""
    changes = changes_of(trial, Put(A, ONE), Grant(A, "ada", 1), Put(B, ONE), Put(A, packed(2)))
    assert [(change.kind, change.key) for change in changes] == [
        (ChangeKind.GRANT, A),
        (ChangeKind.PUT, B),
        (ChangeKind.PUT, A),
    ]
    assert changes[-1].value == packed(2)


def test_effects_remember_the_index_of_an_item_that_was_changed_again(trial: Trial) -> None:
    """Removed or overwritten in the same commit, it was given out nevertheless."""
    item = "public/l/0000000000"
    [change] = changes_of(trial, Append("public/l", ONE), Delete(item))
    assert change == Change(ChangeKind.DELETE, item, item=0)
    [change] = changes_of(trial, Append("public/l", ONE), Put(item, packed(2)))
    assert change == Change(ChangeKind.PUT, item, packed(2), item=0)


def test_what_changes_nothing_has_no_effect(trial: Trial) -> None:
    """Nor does it take a revision."""
    assert changes_of(trial, Delete(A), DeletePrefix("public/d")) == ()
    assert trial.commit(Delete(A)).revision == 0


def test_a_log_entry_keeps_what_the_commit_said(trial: Trial) -> None:
    """Who, on which grounds, with which note and results."""
    made = replace(trial.make(Increment(A, 1)), based_on=((B, 7),), note="because", salt=b"")
    outcome = trial.decide(made)
    assert isinstance(outcome, Committed)
    entry = log_entry(made, outcome, b"digest")
    assert (entry.revision, entry.time_ms, entry.id) == (1, 1_000, made.id)
    assert (entry.based_on, entry.note, entry.results) == (((B, 7),), "because", (1,))
    assert (entry.digest, entry.epoch, entry.author) == (b"digest", None, "ada")
    assert EPOCH.id == made.epoch
