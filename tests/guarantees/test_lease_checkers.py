"""The checkers of leases can see: a good history passes, and each fault planted in it is found."""

import copy
from dataclasses import replace

import pytest

from blackboard.core.commit import ChangeKind, Lease, Waiter
from tests.guarantees.lease_checkers import LATE_MS, LEASE_GUARANTEES, check
from tests.guarantees.lease_history import Acquired, LeaseHistory, Moment, Relied
from tests.guarantees.planting import Faults

K = "public/lock"
GRANT, RENEW, RELEASE = ChangeKind.GRANT, ChangeKind.RENEW, ChangeKind.RELEASE
EXPIRE, WAIT = ChangeKind.EXPIRE, ChangeKind.WAIT


def waiter(holder: str, until_ms: int) -> Waiter:
    """A ticket."""
    return Waiter(holder, 1_000, until_ms)


def good() -> LeaseHistory:
    """Ada has the lease, bob and cyd wait; she passes it on; bob dies, and cyd gets it in time."""
    bob, cyd = waiter("bob~1", 1_400), waiter("cyd~1", 1_500)
    prolonged = waiter("cyd~1", 9_000)
    return LeaseHistory(
        log=[
            Moment(1, 100, "ada", ((GRANT, Lease(K, "ada~1", 1, 1_100)),)),
            Moment(2, 400, "bob", ((WAIT, Lease(K, "ada~1", 1, 1_100, (bob,))),)),
            Moment(3, 500, "cyd", ((WAIT, Lease(K, "ada~1", 1, 1_100, (bob, cyd))),)),
            Moment(4, 600, "ada", (), (b"a1",)),
            Moment(5, 700, "ada", ((RENEW, Lease(K, "ada~1", 1, 1_700, (bob, cyd))),)),
            Moment(6, 800, "ada", ((GRANT, Lease(K, "bob~1", 6, 1_800, (cyd,))),), (b"a2",)),
            Moment(7, 900, "bob", (), (b"b1",)),
            Moment(8, 1_000, "cyd", ((WAIT, Lease(K, "bob~1", 6, 1_800, (prolonged,))),)),
            Moment(9, 2_600, "system", ((GRANT, Lease(K, "cyd~1", 9, 3_600)),)),
            Moment(10, 2_700, "cyd", ((RELEASE, Lease(K, "cyd~1", 9, 0)),)),
            Moment(11, 2_800, "dan", ((GRANT, Lease(K, "dan~1", 11, 3_800)),)),
            Moment(12, 4_100, "system", ((EXPIRE, Lease(K, "dan~1", 11, 0)),)),
        ],
        acquired=[Acquired(K, "ada~1", 1), Acquired(K, "bob~1", 6), Acquired(K, "cyd~1", 9)],
        relied=[
            Relied(b"a1", K, "ada~1", 1, "done", 4),
            Relied(b"a2", K, "ada~1", 1, "done", 6),
            Relied(b"a3", K, "ada~1", 1, "refused"),
            Relied(b"b1", K, "bob~1", 6, "unknown"),
            Relied(b"b2", K, "bob~1", 6, "unknown"),
        ],
        ended_ms=9_000 + LATE_MS,
    )


fault = Faults[LeaseHistory]()
FAULTS = fault.planted


def set_lease(history: LeaseHistory, revision: int, kind: ChangeKind, lease: Lease) -> None:
    """Let another thing become of the lease at `revision`."""
    moment = history.log[revision - 1]
    history.log[revision - 1] = replace(moment, leases=((kind, lease),))


@fault("L1")
def a_grant_over_a_living_holder(history: LeaseHistory) -> None:
    history.log[8] = replace(history.log[8], time_ms=1_700)


@fault("L1")
def a_passing_on_by_a_stranger(history: LeaseHistory) -> None:
    history.log[5] = replace(history.log[5], author="bob")


@fault("L1")
def a_renewal_of_a_lost_lease(history: LeaseHistory) -> None:
    set_lease(history, 8, RENEW, Lease(K, "ada~1", 1, 2_000, ()))


@fault("L1")
def a_release_of_a_free_lease(history: LeaseHistory) -> None:
    history.log.append(Moment(13, 4_200, "dan", ((RELEASE, Lease(K, "dan~1", 11, 0)),)))


@fault("L1")
def an_expiry_before_its_time(history: LeaseHistory) -> None:
    history.log[11] = replace(history.log[11], time_ms=3_700)


@fault("L2")
def a_fence_that_is_not_the_revision(history: LeaseHistory) -> None:
    set_lease(history, 6, GRANT, Lease(K, "bob~1", 5, 1_800, (waiter("cyd~1", 1_500),)))


@fault("L2")
def a_fence_given_twice(history: LeaseHistory) -> None:
    set_lease(history, 9, GRANT, Lease(K, "cyd~1", 6, 3_600))


@fault("L3")
def a_holder_that_the_log_does_not_know(history: LeaseHistory) -> None:
    history.acquired.append(Acquired(K, "eve~1", 9))


@fault("L3")
def a_holder_with_the_fence_of_another(history: LeaseHistory) -> None:
    history.acquired[1] = Acquired(K, "bob~1", 1)


@fault("L4")
def a_commit_after_the_lease_was_passed_on(history: LeaseHistory) -> None:
    history.relied.append(Relied(b"late", K, "ada~1", 1, "done", 7))
    history.log[6] = replace(history.log[6], values=(b"b1", b"late"))


@fault("L4")
def a_commit_with_the_fence_of_another_holder(history: LeaseHistory) -> None:
    history.relied[0] = replace(history.relied[0], holder="ada~2")


@fault("L4")
def a_refused_commit_that_happened(history: LeaseHistory) -> None:
    history.log[4] = replace(history.log[4], values=(b"a3",))


@fault("L4")
def an_unknown_commit_that_happened_too_late(history: LeaseHistory) -> None:
    history.log[9] = replace(history.log[9], values=(b"b2",))


@fault("L4")
def an_acknowledged_commit_lost(history: LeaseHistory) -> None:
    history.log[3] = replace(history.log[3], values=())


@fault("L4")
def a_commit_applied_twice(history: LeaseHistory) -> None:
    history.log[4] = replace(history.log[4], values=(b"a1",))


@fault("L5")
def a_lease_that_stayed_with_the_dead(history: LeaseHistory) -> None:
    history.log[8:] = [
        replace(moment, time_ms=moment.time_ms + LATE_MS + 2_000) for moment in history.log[8:]
    ]


@fault("L5")
def a_lease_that_never_came_back(history: LeaseHistory) -> None:
    del history.log[11]


@fault("L6")
def a_lease_granted_to_the_second_in_the_queue(history: LeaseHistory) -> None:
    set_lease(history, 6, GRANT, Lease(K, "cyd~1", 6, 1_800))


@fault("L6")
def a_lease_granted_past_its_queue(history: LeaseHistory) -> None:
    set_lease(history, 9, GRANT, Lease(K, "eve~1", 9, 3_600))


@fault("L6")
def a_queue_that_turned_round(history: LeaseHistory) -> None:
    turned = (waiter("cyd~1", 1_500), waiter("bob~1", 1_400))
    set_lease(history, 5, RENEW, Lease(K, "ada~1", 1, 1_700, turned))


@fault("L6")
def a_queue_that_was_joined_in_front(history: LeaseHistory) -> None:
    joined = (waiter("eve~1", 1_500), waiter("bob~1", 1_400), waiter("cyd~1", 1_500))
    set_lease(history, 5, WAIT, Lease(K, "ada~1", 1, 1_100, joined))


def test_a_good_history_is_accepted_by_every_checker() -> None:
    assert check(good()) == {}


def test_an_empty_history_is_good() -> None:
    assert check(LeaseHistory()) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_the_checker_of_its_guarantee(name: str) -> None:
    guarantee, plant = FAULTS[name]
    history = copy.deepcopy(good())
    plant(history)
    assert LEASE_GUARANTEES[guarantee](history) != []


def test_every_guarantee_has_a_fault_that_breaks_it() -> None:
    assert {guarantee for guarantee, _ in FAULTS.values()} == set(LEASE_GUARANTEES)


def test_a_ticket_that_ran_out_may_be_passed_over() -> None:
    history = good()
    history.log[1] = replace(
        history.log[1], leases=((WAIT, Lease(K, "ada~1", 1, 1_100, (waiter("bob~1", 700),))),)
    )
    tickets = (waiter("bob~1", 700), waiter("cyd~1", 1_500))
    set_lease(history, 3, WAIT, Lease(K, "ada~1", 1, 1_100, tickets))
    set_lease(history, 5, RENEW, Lease(K, "ada~1", 1, 1_700, tickets))
    set_lease(history, 6, GRANT, Lease(K, "cyd~1", 6, 1_800))
    history.acquired.clear()
    assert LEASE_GUARANTEES["L6"](history) == []


def test_a_lease_waits_while_no_service_is_there() -> None:
    history = good()
    FAULTS["a_lease_that_stayed_with_the_dead"][1](history)
    history.outages = [(1_900, 5_000 + LATE_MS)]
    assert LEASE_GUARANTEES["L5"](history) == []


def back(time_ms: int, taken_ms: int, *, set_back_ms: int = 0) -> LeaseHistory:
    """Ada has the lease until 1,100; the engine comes back at `time_ms`; bob gets it."""
    return LeaseHistory(
        log=[
            Moment(1, 100, "ada", ((GRANT, Lease(K, "ada~1", 1, 1_100)),)),
            Moment(1_001, time_ms, "", dates=True),
            Moment(1_002, taken_ms, "bob", ((GRANT, Lease(K, "bob~1", 1_002, taken_ms + 1_000)),)),
        ],
        set_back_ms=set_back_ms,
    )


def test_a_lease_has_its_whole_time_after_the_engine_came_back() -> None:
    """To take it before is a fault, though the time that the log has is over."""
    assert check(back(900, 1_900)) == {}
    assert "L1" in check(back(900, 1_899))


def test_a_clock_that_was_set_back_may_bring_the_end_forward_by_as_much() -> None:
    """What was prolonged afterwards is in no log; more than that is a fault all the same."""
    assert check(back(900, 1_700, set_back_ms=200)) == {}
    assert "L1" in check(back(900, 1_699, set_back_ms=200))
