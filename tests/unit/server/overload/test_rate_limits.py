"""Whose account a request draws on, and what becomes of accounts."""

import pytest

from blackboard.core import access
from blackboard.core.access import AccessGrant, Credential, Narrowing, Principal, narrowed
from blackboard.errors import Overloaded, RateLimited
from blackboard.server.overload import rate_limits as rates
from blackboard.server.overload.rate_limits import Meter, Meters, Rates
from tests.lowered import lowered

TWO = Rates(requests_per_second=2, burst_ms=1_000)


def holder(name: str) -> Principal:
    """An agent that came with a token."""
    plain = access.agent(name)
    credential = Credential(name, (f"id-{name}",), 0)
    return Principal(name, plain.grants, credential=credential)


def meter_of(meters: Meters, principal: Principal) -> Meter:
    """The meter of an account that has one."""
    found = meters.meter(principal)
    assert found is not None
    return found


def test_each_rate_is_shown_by_its_name() -> None:
    """With the time after which it is worth to ask again."""
    meter = Meter("ada", Rates(1, 10, 3_600, burst_ms=1_000))
    assert meter.take_request(0.0) is None
    assert meter.take_bytes(10, 0.0) is None
    assert meter.take_log(3_600, 0.0) is None
    refusals = [meter.take_request(0.0), meter.take_bytes(1, 0.0), meter.take_log(1, 0.0)]
    assert all(isinstance(refusal, RateLimited) for refusal in refusals)
    told = [(refusal.what, refusal.retry_after_ms) for refusal in refusals if refusal]
    assert told == [
        ("1 requests a second", 1_000),
        ("10 bytes a second", 100),
        ("3600 bytes of log an hour", 1_000),
    ]


def test_what_has_no_rate_is_not_counted() -> None:
    """By default nobody; else nobody who opened the service in this process, and no admin."""
    assert Meters(Rates()).meter(holder("ada")) is None
    meters = Meters(TWO)
    assert meters.meter(access.agent("ada")) is None
    credential = Credential("root", ("id",), 0)
    admin = Principal("root", access.operator().grants, credential=credential)
    assert meters.meter(admin) is None
    of_a_board = Principal("x", admin.grants, frozenset({"b"}), credential=credential)
    assert meters.meter(of_a_board) is not None


def test_a_message_is_counted_once_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of its two rates is exceeded, the other has what it had."""
    monkeypatch.setattr(rates, "clock_ms", lambda: 0.0)
    meter = Meter("ada", Rates(requests_per_second=2, bytes_per_second=30, burst_ms=1_000))
    assert meter.take_message(10)
    assert not meter.take_message(21)
    assert meter.take_message(10)
    assert not meter.take_message(10)
    assert meter.take_bytes(11, 0.0) is not None
    assert meter.take_bytes(10, 0.0) is None
    assert meter.take_request(0.0) is not None


def test_what_is_handed_on_draws_on_the_same_account() -> None:
    """A token narrowed a thousand times has one rate; an agent of a like name has its own."""
    ada, meters = holder("ada"), Meters(TWO)
    helper = narrowed(ada, Narrowing("ada.helper", (AccessGrant("public/**", frozenset()),)))
    assert meter_of(meters, helper) is meter_of(meters, ada)
    assert meter_of(meters, holder("adam")) is not meter_of(meters, ada)
    assert meter_of(meters, holder("ada.other")) is not meter_of(meters, ada)


def test_accounts_are_forgotten_that_owe_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """METERS_MAX are kept; when all of them owe something, nobody new is let in."""
    now_ms = 0.0
    monkeypatch.setattr(rates, "clock_ms", lambda: now_ms)
    meters = Meters(TWO, lowered(meters_max=2))
    ada, bob = (meter_of(meters, holder(name)) for name in ("ada", "bob"))
    ada.take_request(now_ms)
    meter_of(meters, holder("eve")).take_request(now_ms)
    with pytest.raises(Overloaded):
        meters.meter(holder("mallory"))
    now_ms = 500.0
    meter_of(meters, holder("mallory"))
    assert meter_of(meters, holder("bob")) is bob, "somebody still drew on it"
