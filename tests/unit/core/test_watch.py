"""Positions, the watcher's state table, and the rule that every log entry goes through."""

from itertools import product

import pytest
from hypothesis import given, strategies as st

from blackboard.core.commit import CommitId, Epoch, Head, LogEntry
from blackboard.core.watch import (
    TRANSITIONS,
    Cursor,
    Position,
    WatchEvent,
    WatchState,
    check_digest,
    check_reach,
    check_start,
)
from blackboard.errors import Compacted, FutureRevision, InvalidRequest, RolledBack
from blackboard.limits import REVISION_MAX

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=40)
FIRST = Epoch(1, "first")
SECOND = Epoch(2, "second", "engine", from_revision=10, revision=1_000)


def entry(revision: int, epoch: Epoch | None = None, digest: bytes = b"\xab" * 32) -> LogEntry:
    """A log entry without changes."""
    name = CommitId("ada", 0, "i", revision)
    return LogEntry(revision, 0, name, changes=(), digest=digest, epoch=epoch)


@given(NAMES, st.integers(0, REVISION_MAX), st.text("0123456789abcdef", max_size=16))
def test_a_position_survives_being_a_token(epoch: str, revision: int, digest: str) -> None:
    position = Position(epoch, revision, digest)
    assert Position.parse(str(position)) == position


def test_the_position_of_an_entry_names_its_digest_in_short() -> None:
    assert str(Position.of(entry(7), "first")) == "first:7:" + "ab" * 8


NO_TOKENS = ["", "first", "first:", ":7:", "first:x:", "first:-1:", "first:1.5:"]
ODD = ["\ud800:1:", "first:1:\udfff", "first:\u0663:", "\u00e9:1:"]
LONG = ["first:" + "1" * 17, "e" * 200 + ":1:"]


@pytest.mark.parametrize("token", NO_TOKENS + ODD + LONG)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Position.parse(token)
    assert refused.value.field == "position"


def test_the_table_knows_every_state_and_event_and_nothing_else() -> None:
    assert set(TRANSITIONS) == set(product(WatchState, WatchEvent))


@pytest.mark.parametrize("event", WatchEvent)
def test_a_cancelled_cursor_stays_cancelled(event: WatchEvent) -> None:
    cursor = Cursor(Position("first", 0))
    cursor.on(WatchEvent.ENDED)
    assert cursor.on(event) is cursor.state is WatchState.CANCELLED


def test_a_watcher_is_unsynced_until_it_has_caught_up_and_when_it_falls_behind() -> None:
    cursor = Cursor(Position("first", 0))
    found = [cursor.state]
    for event in (WatchEvent.FELL_BEHIND, WatchEvent.CAUGHT_UP, WatchEvent.FELL_BEHIND):
        found.append(cursor.on(event))
    unsynced = WatchState.UNSYNCED
    assert found == [unsynced, unsynced, WatchState.SYNCED, unsynced]


def test_a_cursor_moves_past_entries_and_keeps_its_epoch() -> None:
    cursor = Cursor(Position("first", 4))
    cursor.pass_entry(entry(5))
    cursor.pass_entry(entry(6))
    assert cursor.position == Position("first", 6, "ab" * 8)


@pytest.mark.parametrize("at", [4, 5])
def test_an_entry_that_lies_behind_is_a_bug(at: int) -> None:
    with pytest.raises(AssertionError):
        Cursor(Position("first", 5)).pass_entry(entry(at))


@pytest.mark.parametrize("seen", [0, 9, 10])
def test_a_new_epoch_that_counts_everything_seen_is_passed(seen: int) -> None:
    cursor = Cursor(Position("first", seen))
    cursor.pass_entry(entry(1_000, SECOND))
    assert cursor.position == Position("second", 1_000, "ab" * 8)


@pytest.mark.parametrize("seen", [11, 999])
def test_a_new_epoch_that_lost_something_seen_ends_the_watch(seen: int) -> None:
    cursor = Cursor(Position("first", seen))
    with pytest.raises(RolledBack) as told:
        cursor.pass_entry(entry(1_000, SECOND))
    assert told.value.fields() == {
        "revision": seen,
        "epoch": "second",
        "from_revision": 10,
        "head": 1_000,
    }
    assert cursor.state is WatchState.CANCELLED
    assert cursor.position == Position("first", seen)


HEAD = Head(revision=1_005, epoch=SECOND, oldest=8)


@pytest.mark.parametrize("after", [7, 8, 10, 1_000, 1_005])
def test_a_watch_may_start_where_the_log_can_be_read_on(after: int) -> None:
    check_start(HEAD, Position("first", after))
    check_reach(HEAD, after)


@pytest.mark.parametrize("after", [0, 6])
def test_a_watch_from_before_the_log_gets_the_oldest_revision(after: int) -> None:
    with pytest.raises(Compacted) as told:
        check_start(HEAD, Position("second", after))
    assert (told.value.revision, told.value.oldest) == (after, 8)


def test_an_empty_log_reaches_back_to_its_head_only() -> None:
    empty = Head(revision=5, epoch=FIRST, oldest=6)
    check_start(empty, Position("first", 5))
    with pytest.raises(Compacted):
        check_start(empty, Position("first", 4))


def test_the_future_of_the_same_epoch_does_not_exist_yet() -> None:
    with pytest.raises(FutureRevision) as told:
        check_start(HEAD, Position("second", 1_006))
    assert (told.value.revision, told.value.head) == (1_006, 1_005)


def test_the_future_of_another_epoch_was_rolled_back() -> None:
    with pytest.raises(RolledBack) as told:
        check_start(HEAD, Position("first", 1_006))
    assert (told.value.from_revision, told.value.head) == (10, 1_005)


def test_over_two_epochs_what_survived_is_a_bound_from_above() -> None:
    """The head tells of its own epoch; of the first one nothing after 10 was left before that."""
    third = Epoch(3, "third", "engine", from_revision=1_005, revision=2_000)
    with pytest.raises(RolledBack) as told:
        check_start(Head(revision=2_001, epoch=third, oldest=8), Position("first", 2_002))
    assert (told.value.epoch, told.value.from_revision) == ("third", 1_005)


def test_a_revision_that_was_issued_again_has_another_digest() -> None:
    position = Position.of(entry(9), "first")
    check_digest(HEAD, position, entry(9))
    check_digest(HEAD, Position("first", 9), entry(9, digest=b"\xcd" * 32))
    with pytest.raises(RolledBack) as told:
        check_digest(HEAD, position, entry(9, digest=b"\xcd" * 32))
    assert (told.value.revision, told.value.from_revision) == (9, 9)
