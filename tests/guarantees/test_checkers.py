"""The checkers can see: each accepts a good history and rejects those known to be bad.

A bad history is the good one with one fault planted in it; the checker of that guarantee, by name,
must find it.
"""

import copy
from dataclasses import replace

import pytest

from tests.guarantees.checkers import GUARANTEES, check
from tests.guarantees.history import Entry, History, Mark, Read, Watched, Write
from tests.guarantees.planting import Faults

A, B, C = "public/a", "public/b", "public/c"


def good() -> History:
    """Six revisions with a new epoch in the middle, two reads, and a watcher that went on once.

    time      1        2        3         4          5        6         7
    writes    |-- 1 --||-- 2 ---|         |-- 1001 -----------|
                                 |--- refused ---|   |------ 1002 ------|
    reads                  |-- at 2 --|                        |- at 1002 -|
    """
    return History(
        log=[
            Entry(1, ((A, "v1"), (B, "v1"))),
            Entry(2, ((A, "v2"),)),
            Entry(1_000, (), from_revision=2),
            Entry(1_001, ((B, "v3"), (C, "v3"))),
            Entry(1_002, ((A, "v4"),)),
            Entry(1_003, ((A, None),)),
        ],
        writes=[
            Write("v1", (A, B), 1.0, 2.0, "done", 1),
            Write("v2", (A,), 2.1, 3.0, "done", 2, expected=1),
            Write("v0", (A,), 3.1, 4.5, "refused", expected=1),
            Write("v3", (B, C), 4.0, 6.0, "done", 1_001),
            Write("v4", (A,), 5.0, 7.0, "done", 1_002, expected=2),
            Write("v5", (A,), 7.1, 8.0, "unknown"),
        ],
        reads=[
            Read((A, B, C), 2.5, 3.5, 2, ((A, "v2"), (B, "v1"))),
            Read((A, B), 6.1, 7.5, 1_002, ((A, "v4"), (B, "v3"))),
        ],
        watches=[
            [
                Watched("public/", 0, [Entry(1, ((A, "v1"), (B, "v1"))), Mark(1)]),
                Watched(
                    "public/",
                    1,
                    [
                        Entry(2, ((A, "v2"),)),
                        Entry(1_000, (), from_revision=2),
                        Entry(1_001, ((B, "v3"), (C, "v3"))),
                        Entry(1_002, ((A, "v4"),)),
                        Entry(1_003, ((A, None),)),
                        Mark(1_003),
                    ],
                ),
            ],
            [Watched("public/b", 1, [Mark(2), Entry(1_001, ((B, "v3"),)), Mark(1_003)])],
        ],
    )


fault = Faults[History]()
FAULTS = fault.planted


@fault("Watch: Ordered")
def two_revisions_swapped(history: History) -> None:
    told = history.watches[0][1].told
    told[2], told[3] = told[3], told[2]


@fault("Watch: Unique")
def a_revision_told_twice(history: History) -> None:
    history.watches[0][1].told.insert(1, history.watches[0][1].told[0])


@fault("Watch: Unique")
def a_revision_told_again_after_resuming(history: History) -> None:
    history.watches[0][1].told.insert(0, history.watches[0][0].told[0])


@fault("Watch: Atomic")
def half_a_revision(history: History) -> None:
    history.watches[0][0].told[0] = Entry(1, ((A, "v1"),))


@fault("Watch: Atomic")
def a_revision_with_a_change_that_does_not_match(history: History) -> None:
    history.watches[1][0].told[1] = history.log[3]


@fault("Watch: Atomic")
def a_revision_that_was_never_there(history: History) -> None:
    history.watches[0][1].told.insert(1, Entry(500, ((A, "ghost"),)))


@fault("Watch: Atomic")
def a_revision_with_another_value(history: History) -> None:
    history.watches[0][1].told[0] = Entry(2, ((A, "v1"),))


@fault("Watch: Reliable")
def a_revision_left_out(history: History) -> None:
    del history.watches[0][1].told[2]


@fault("Watch: Reliable")
def the_last_revision_left_out_before_a_mark(history: History) -> None:
    del history.watches[0][1].told[4]


@fault("Watch: Reliable")
def a_deletion_left_out(history: History) -> None:
    del history.watches[0][1].told[-2]


@fault("Watch: Reliable")
def a_filtered_revision_left_out(history: History) -> None:
    del history.watches[1][0].told[1]


@fault("Watch: Resumable")
def a_gap_between_two_watches(history: History) -> None:
    history.watches[0][1].after = 2
    del history.watches[0][1].told[0]


@fault("Watch: Resumable")
def the_past_told_to_a_watch_from_now(history: History) -> None:
    history.watches[1][0].told.insert(0, Entry(1, ((B, "v1"),)))


@fault("Watch: Bookmarkable")
def a_mark_ahead_of_its_revisions(history: History) -> None:
    told = history.watches[0][1].told
    told.insert(3, Mark(1_002))


@fault("Watch: Bookmarkable")
def a_mark_that_goes_back(history: History) -> None:
    history.watches[1][0].told.append(Mark(2))


@fault("Ordered")
def a_gap_in_the_log(history: History) -> None:
    del history.log[4]


@fault("Ordered")
def a_revision_issued_again(history: History) -> None:
    history.writes[3] = replace(history.writes[3], revision=2)


@fault("Ordered")
def an_epoch_that_begins_in_the_past(history: History) -> None:
    history.log[2] = Entry(2, (), from_revision=1)


@fault("Exactly once")
def a_commit_applied_twice(history: History) -> None:
    history.log.append(Entry(1_004, ((A, "v4"),)))


@fault("Exactly once")
def an_acknowledged_commit_lost(history: History) -> None:
    history.log[1] = Entry(2, ((A, "v9"),))
    history.writes.append(Write("v9", (A,), 2.1, 3.0, "unknown"))


@fault("Exactly once")
def a_refused_commit_applied(history: History) -> None:
    history.log.append(Entry(1_004, ((A, "v0"),)))


@fault("Exactly once")
def an_unknown_commit_applied_twice(history: History) -> None:
    history.log += [Entry(1_004, ((A, "v5"),)), Entry(1_005, ((A, "v5"),))]


@fault("Exactly once")
def a_commit_that_nobody_asked_for(history: History) -> None:
    history.log.append(Entry(1_004, ((A, "forged"),)))


@fault("Exactly once")
def a_commit_answered_with_another_revision(history: History) -> None:
    history.writes[4] = replace(history.writes[4], revision=1_003)


@fault("Atomic")
def half_a_commit(history: History) -> None:
    history.log[0] = Entry(1, ((A, "v1"),))


@fault("Atomic")
def an_unknown_commit_in_halves(history: History) -> None:
    history.writes[5] = replace(history.writes[5], keys=(A, B))
    history.log.append(Entry(1_004, ((A, "v5"),)))


@fault("No lost update")
def an_update_in_between(history: History) -> None:
    history.writes[4] = replace(history.writes[4], expected=1)


@fault("No lost update")
def an_update_of_what_was_not_there(history: History) -> None:
    history.writes[1] = replace(history.writes[1], expected=0)


@fault("No lost update")
def an_update_of_what_was_removed(history: History) -> None:
    history.log.append(Entry(1_004, ((A, "v6"),)))
    history.writes.append(Write("v6", (A,), 8.1, 8.5, "done", 1_004, expected=1_003))


@fault("Linearizable")
def a_commit_that_overtook_an_answer(history: History) -> None:
    """Its answer came before the other began, but its place is behind it."""
    history.writes[1] = replace(history.writes[1], started=7.5, ended=8.0)


@fault("Linearizable")
def a_stale_read(history: History) -> None:
    """It shows what was there, but something later had been answered before it began."""
    history.reads[1] = Read((A, B), 7.1, 7.5, 2, ((A, "v2"), (B, "v1")))


@fault("Linearizable")
def a_read_that_goes_back_in_time(history: History) -> None:
    history.reads.append(Read((A,), 7.6, 7.7, 1_001, ((A, "v2"),)))


@fault("Linearizable")
def a_read_of_the_future(history: History) -> None:
    """It showed a commit that had not even been asked for."""
    history.reads[0] = Read((A, B, C), 2.5, 3.5, 1_001, ((A, "v2"), (B, "v3"), (C, "v3")))


@fault("Linearizable")
def a_torn_read(history: History) -> None:
    history.reads[1] = Read((B, C), 6.1, 7.5, 1_002, ((B, "v1"), (C, "v3")))


@fault("Linearizable")
def a_read_that_leaves_a_key_out(history: History) -> None:
    history.reads[0] = Read((A, B, C), 2.5, 3.5, 2, ((A, "v2"),))


def test_a_good_history_is_accepted_by_every_checker() -> None:
    assert check(good()) == {}


def test_an_empty_history_is_good() -> None:
    assert check(History()) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_the_checker_of_its_guarantee(name: str) -> None:
    guarantee, plant = FAULTS[name]
    history = copy.deepcopy(good())
    plant(history)
    assert GUARANTEES[guarantee](history) != []


def test_every_guarantee_has_a_fault_that_breaks_it() -> None:
    assert {guarantee for guarantee, _ in FAULTS.values()} == set(GUARANTEES)


def test_an_unknown_commit_may_have_happened_once_or_not() -> None:
    history = good()
    history.log.append(Entry(1_004, ((A, "v5"),)))
    assert check(history) == {}


def test_what_was_removed_is_expected_as_if_it_never_was() -> None:
    history = good()
    history.log.append(Entry(1_004, ((A, "v6"),)))
    history.writes.append(Write("v6", (A,), 8.1, 8.5, "done", 1_004, expected=0))
    assert check(history) == {}


def test_commits_at_the_same_time_may_have_either_order() -> None:
    history = good()
    history.writes[3] = replace(history.writes[3], started=5.5, ended=9.0)
    assert check(history) == {}
