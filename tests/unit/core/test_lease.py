"""A lease, its fence and its queue, one rule at a time and without a board."""

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from blackboard import limits
from blackboard.core import lease as rules
from blackboard.core.commit import Expire, Grant, HeldFence, Lease, Release, Renew, Waiter
from blackboard.errors import BlackboardError, Fenced, LeaseHeld, LimitExceeded

KEY = "public/lock"
BOB, CYD = Waiter("bob", 100, 500), Waiter("cyd", 100, 900)
HELD = Lease(KEY, "ada", 7, 1_000, (BOB, CYD), 50)
FREE = replace(HELD, waiters=())


def told(error: BlackboardError) -> tuple[object, ...]:
    """The fields of an error."""
    return tuple(error.fields().values())


@pytest.mark.parametrize(
    ("lease", "fence", "holder", "current"),
    [
        (None, 7, "ada", (0, None)),
        (HELD, 6, "ada", (7, "ada")),
        (HELD, 8, "ada", (7, "ada")),
        (HELD, 7, "bob", (7, "ada")),
    ],
)
def test_a_fence_is_refused_unless_it_and_its_holder_are_current(
    lease: Lease | None, fence: int, holder: str, current: tuple[int, str | None]
) -> None:
    with pytest.raises(Fenced) as refused:
        rules.check_fence(lease, HeldFence(KEY, holder, fence))
    assert told(refused.value) == (KEY, fence, *current)


def test_a_current_fence_passes() -> None:
    assert rules.check_fence(HELD, HeldFence(KEY, "ada", 7)) is HELD


def test_a_free_lease_is_granted_from_now_on() -> None:
    assert rules.grant(None, Grant(KEY, "ada", 50), 7, 1_000) == Lease(KEY, "ada", 7, 1_050, (), 50)


def test_a_held_lease_is_refused_to_the_last_millisecond() -> None:
    with pytest.raises(LeaseHeld) as refused:
        rules.grant(FREE, Grant(KEY, "bob", 50), 8, 999)
    assert told(refused.value) == (KEY, "ada", 7, 1_000)
    assert rules.grant(FREE, Grant(KEY, "bob", 50), 8, 1_000) == Lease(KEY, "bob", 8, 1_050, (), 50)


def test_who_asks_with_patience_goes_to_the_end_of_the_queue() -> None:
    waits = rules.grant(HELD, Grant(KEY, "dan", 50, wait=True), 8, 10)
    assert waits == replace(HELD, waiters=(BOB, CYD, Waiter("dan", 50, 60)))


@pytest.mark.parametrize("holder", ["ada", "bob", "cyd"])
def test_nobody_stands_in_a_queue_twice(holder: str) -> None:
    with pytest.raises(LeaseHeld) as refused:
        rules.grant(HELD, Grant(KEY, holder, 50, wait=True), 8, 10)
    assert (refused.value.holder, refused.value.fence) == ("ada", 7)


def test_an_expired_lease_goes_to_the_first_good_ticket_and_a_newcomer_queues_up() -> None:
    over = replace(HELD, until_ms=500)
    passed = rules.grant(over, Grant(KEY, "dan", 50, wait=True), 8, 500)
    assert passed == Lease(KEY, "cyd", 8, 600, (Waiter("dan", 50, 550),), 100)
    with pytest.raises(LeaseHeld):
        rules.grant(over, Grant(KEY, "dan", 50), 8, 500)


def test_a_queue_has_an_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE_WAITERS_MAX wait, one more is refused."""
    monkeypatch.setattr(limits, "LEASE_WAITERS_MAX", 3)
    full = rules.grant(HELD, Grant(KEY, "dan", 50, wait=True), 8, 10)
    with pytest.raises(LimitExceeded) as refused:
        rules.grant(full, Grant(KEY, "eve", 50, wait=True), 9, 10)
    assert told(refused.value) == ("LEASE_WAITERS_MAX", 4, 3, KEY, None)


def test_renewal_prolongs_the_lease_even_after_its_time_and_keeps_the_queue() -> None:
    renewed = rules.renew(HELD, Renew(KEY, "ada", 7, 70), 2_000)
    assert renewed == replace(HELD, until_ms=2_070, ttl_ms=70)


def test_renewal_with_fence_0_prolongs_a_ticket_in_its_place() -> None:
    renewed = rules.renew(HELD, Renew(KEY, "bob", 0, 70), 2_000)
    assert renewed == replace(HELD, waiters=(Waiter("bob", 70, 2_070), CYD))
    renewed = rules.renew(HELD, Renew(KEY, "cyd", 0, 70), 2_000)
    assert renewed == replace(HELD, waiters=(BOB, Waiter("cyd", 70, 2_070)))


@pytest.mark.parametrize(("lease", "current"), [(None, (0, None)), (HELD, (7, "ada"))])
def test_who_does_not_wait_has_no_ticket(
    lease: Lease | None, current: tuple[int, str | None]
) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: rules.renew(lease, Renew(KEY, "ada", 0, 50), 0),
        lambda: rules.release(lease, Release(KEY, "ada", 0), 8, 0),
    ]
    for refuse in attempts:
        with pytest.raises(Fenced) as refused:
            refuse()
        assert told(refused.value) == (KEY, 0, *current)


def test_a_released_lease_passes_on_in_turn() -> None:
    release = Release(KEY, "ada", 7)
    assert rules.release(HELD, release, 8, 499) == Lease(KEY, "bob", 8, 599, (CYD,), 100)
    assert rules.release(HELD, release, 8, 500) == Lease(KEY, "cyd", 8, 600, (), 100)
    assert rules.release(HELD, release, 8, 900) is None
    assert rules.release(FREE, release, 8, 0) is None


def test_a_waiter_leaves_the_queue_and_nothing_else_changes() -> None:
    assert rules.release(HELD, Release(KEY, "bob", 0), 8, 0) == replace(HELD, waiters=(CYD,))
    assert rules.release(HELD, Release(KEY, "cyd", 0), 8, 0) == replace(HELD, waiters=(BOB,))


def test_a_lease_expires_when_its_time_is_over_and_not_before() -> None:
    expire = Expire(KEY, "ada", 7)
    with pytest.raises(LeaseHeld):
        rules.expire(HELD, expire, 8, 999)
    assert rules.expire(FREE, expire, 8, 1_000) is None
    over = replace(HELD, until_ms=400)
    assert rules.expire(over, expire, 8, 400) == Lease(KEY, "bob", 8, 500, (CYD,), 100)
    with pytest.raises(Fenced):
        rules.expire(over, replace(expire, fence=6), 8, 400)


def test_a_dated_lease_has_its_full_time_and_so_has_each_waiter() -> None:
    dated = Lease(KEY, "ada", 7, 5_050, (Waiter("bob", 100, 5_100), Waiter("cyd", 100, 5_100)), 50)
    assert rules.dated(HELD, 5_000) == dated


def test_only_deadlines_tell_a_prolonged_lease_from_the_one_before() -> None:
    assert rules.is_prolonged(HELD, rules.dated(HELD, 5_000))
    others = [
        *(replace(HELD, holder="bob"), replace(HELD, fence=8), replace(HELD, ttl_ms=51)),
        *(FREE, replace(HELD, waiters=(CYD, BOB)), None),
        replace(HELD, waiters=(replace(BOB, ttl_ms=101), CYD)),
    ]
    assert not any(rules.is_prolonged(HELD, other) for other in others)
    assert not any(rules.is_prolonged(other, HELD) for other in others)


names = st.text("ab~", min_size=1, max_size=3)
numbers = st.integers(0, limits.INTEGER_MAX)
waiters = st.lists(st.builds(Waiter, names, numbers, numbers), max_size=4).map(tuple)


@given(st.none() | st.builds(Lease, st.just(KEY), names, numbers, numbers, waiters))
def test_a_result_says_all_of_a_lease(lease: Lease | None) -> None:
    assert rules.from_result(KEY, rules.to_result(lease)) == lease


@pytest.mark.parametrize(
    "flat", [("ada",), ("ada", 1), ("ada", 1, 2, "bob"), ("ada", 1, 2, "b", 3)]
)
def test_a_torn_result_is_refused(flat: tuple[str | int, ...]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        rules.from_result(KEY, flat)


def test_a_page_ends_at_its_limit_or_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one lease at least, however long the queue."""
    leases = [replace(HELD, key=f"public/{name}") for name in "abcd"]
    assert rules.page_of(leases, 4) == leases
    assert rules.page_of(leases, 2) == leases[:2]
    monkeypatch.setattr(limits, "PAGE_BYTES_MAX", 900)
    assert rules.page_of(leases, 4) == leases[:3]
    monkeypatch.setattr(limits, "PAGE_BYTES_MAX", 1)
    assert rules.page_of(leases, 4) == leases[:1]
    assert rules.page_of([], 4) == []


@pytest.mark.parametrize(
    ("agent", "holder", "is_own"),
    [
        ("ada", "ada", True),
        ("ada", "ada~1", True),
        ("ada", "ada~", True),
        ("ada.sub", "ada.sub~1", True),
        ("a~b", "a~b~1", True),
        ("x" * 111, "x" * 111 + "~1", True),
        ("ada", "bob", False),
        ("ada", "bob~1", False),
        ("ada", "adam~1", False),
        ("ada", "ada.sub~1", False),
        ("ada", "~ada", False),
        ("a", "a~b~1", False),
        ("a~b", "a~b", False),
        ("x" * 112, "x" * 111 + "~1", False),
        ("x" * 112, "x" * 112, False),
        ("x" * 112 + "a", rules.holder_prefix("x" * 112 + "b") + "~1", False),
        ("x" * 112, rules.holder_prefix("x" * 112) + "~1", True),
    ],
)
def test_whose_holder_it_is(agent: str, holder: str, is_own: bool) -> None:
    """Of each holder there is one agent at most that it may be of."""
    assert rules.is_holder_of(agent, holder) is is_own
