"""Sums that are computed before a commit is sent, and on what condition."""

import pytest

from blackboard.core.commit import ABSENT, Commit, CommitId, Entry, Increment, KeyAt
from blackboard.encryption.store import Counters, Plan
from blackboard.errors import LimitExceeded, TypeMismatch
from blackboard.limits import INTEGER_MAX
from blackboard.wire.codec import encode_value, prepare

KEY = "private/ada/n"
ADD = Increment(KEY, 2)


@pytest.fixture
def counters() -> Counters:
    """Those of a commit that adds to what is not there."""
    commit = Commit(CommitId("ada", 0, "i", 1), "e", (ADD,))
    return Counters(Plan(commit, prepare(commit)))


def at(value: object) -> Entry:
    """What is at KEY."""
    return Entry(KEY, encode_value(value), 7, 7, "ada", 1, None)


def test_what_is_absent_counts_from_nothing_and_has_to_stay_absent(counters: Counters) -> None:
    assert counters.add(0, ADD) == 2
    assert counters.conditions == [KeyAt(KEY, ABSENT)]
    assert counters.plan.guards == {(KEY, ABSENT)}
    assert counters.plan.totals == {0: 2}


def test_what_the_commit_itself_left_there_needs_no_condition(counters: Counters) -> None:
    counters.now[KEY] = at(5)
    assert (counters.add(0, ADD), counters.add(1, ADD)) == (7, 9)
    assert counters.conditions == [KeyAt(KEY, 7)]
    counters.write(KEY, encode_value(100))
    assert counters.add(2, ADD) == 102
    counters.remove_below("private/ada")
    assert counters.add(3, ADD) == 2


def test_what_is_no_number_or_too_large_is_the_plans_failure(counters: Counters) -> None:
    counters.write(KEY, encode_value("text"))
    assert counters.add(0, ADD) is None
    assert isinstance(counters.plan.failure, TypeMismatch)
    counters.write(KEY, encode_value(INTEGER_MAX))
    assert counters.add(1, ADD) is None
    assert isinstance(counters.plan.failure, LimitExceeded)
