"""Charges: how much processor time accounts may use, their debts, and which requests wait."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
from anyio.lowlevel import checkpoint

from blackboard.engines.payer import charged, metered, paid_by, turn
from blackboard.errors import Overloaded
from blackboard.limits import DEFAULT
from blackboard.server.overload.charges import AT_WORK_S, READ_US, Charges, Subscription
from tests.waiting import TIMEOUT_S, wait_until

LOAD = DEFAULT.load
CREDIT_US, DEBT_US = LOAD.credit_ms_max * 1_000, LOAD.debt_ms_max * 1_000
NOTHING_US = 0.0
BURNT_NS = 3_000_000


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        """The present time."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The clock of `charges`."""
    return Clock()


@pytest.fixture
def charges(clock: Clock) -> Charges:
    """Charges without any use so far."""
    found = Charges(clock)
    found._prices_us["list"] = READ_US
    return found


def burn(spent_ns: int = BURNT_NS) -> None:
    """Use up processor time of this thread."""
    until_ns = time.thread_time_ns() + spent_ns
    while time.thread_time_ns() < until_ns:
        pass


def in_debt(charges: Charges, name: str, debt_us: float = 100_000) -> None:
    """Give an account a debt."""
    charges.charge(name, CREDIT_US + debt_us)


def beside(charges: Charges) -> None:
    """Make another account active."""
    charges.charge("ann", NOTHING_US)


async def true(value: object) -> bool:
    """A condition for `wait_until`."""
    return bool(value)


def begun(charges: Charges, name: str = "rita", method: str = "list") -> "asyncio.Task[float]":
    """A request that waits until it may begin."""
    return asyncio.create_task(charges.admit(name, method))


# --- the rules ------------------------------------------------------------------------------------


def test_who_is_alone_never_waits(charges: Charges) -> None:
    """Regardless of how much it used."""
    for _ in range(100):
        in_debt(charges, "rita")
        assert charges.debt_s("rita") == 0


def test_beside_others_a_debt_is_waited_for(charges: Charges, clock: Clock) -> None:
    """For as long as the repayment takes, at half of the processor time that others leave
    unused."""
    in_debt(charges, "rita", 100_000)
    assert charges.debt_s("rita") == 0
    beside(charges)
    assert charges.debt_s("rita") == pytest.approx(0.2)
    assert charges.debt_s("ann") == 0
    clock.now_s += 0.15
    assert charges.debt_s("rita") == pytest.approx(0.05)
    clock.now_s += 0.06
    assert charges.debt_s("rita") == 0


def test_others_count_as_at_work_for_a_while(charges: Charges, clock: Clock) -> None:
    """After that, the remaining account is alone."""
    beside(charges)
    in_debt(charges, "rita", DEBT_US)
    clock.now_s += AT_WORK_S
    assert charges.debt_s("rita") > 0
    clock.now_s += AT_WORK_S / 10
    assert charges.debt_s("rita") == 0


def test_what_others_use_is_not_there_to_repay_with(charges: Charges) -> None:
    """Two accounts that use all they can get share the processor. A debt is still repaid in the
    end."""
    charges.charge("ann", 500_000)
    in_debt(charges, "rita", 100_000)
    beside(charges)
    assert charges.debt_s("rita") == pytest.approx(0.1 / 0.25)
    charges.charge("ann", 10_000_000)
    assert charges.debt_s("rita") == pytest.approx(0.1 / 0.1)


def test_what_was_used_long_ago_holds_nobody_up(charges: Charges, clock: Clock) -> None:
    """It delays neither the account that used it nor others."""
    charges.charge("ann", 5_000_000)
    in_debt(charges, "rita", DEBT_US)
    clock.now_s += 60
    beside(charges)
    assert charges.debt_s("rita") == 0
    in_debt(charges, "rita", 100_000)
    beside(charges)
    assert charges.debt_s("rita") == pytest.approx(0.2)


def test_a_debt_has_an_end(charges: Charges) -> None:
    """Use beyond DEBT_MS_MAX is counted, but does not add to the debt."""
    in_debt(charges, "rita", 1_000 * DEBT_US)
    beside(charges)
    assert charges.debt_s("rita") == pytest.approx(LOAD.debt_ms_max / 1_000 / 0.5)
    [told, _] = charges.statistics().accounts
    assert told.balance_ms == -LOAD.debt_ms_max
    assert told.charged_ms == pytest.approx(1_000 * LOAD.debt_ms_max + LOAD.credit_ms_max)


def test_nobody_saves_up_more_than_the_credit(charges: Charges, clock: Clock) -> None:
    charges.charge("rita", 1)
    clock.now_s += 3_600
    beside(charges)
    charges.charge("rita", CREDIT_US + 1_000)
    beside(charges)
    assert charges.debt_s("rita") > 0


def test_what_a_watch_costs_is_charged_but_is_no_work_of_its_account(charges: Charges) -> None:
    """Deliveries come unrequested, so an account that only watches does not make others wait."""
    in_debt(charges, "rita")
    Subscription(charges, "ann").settle()
    charges.charge_aside("ann", 1)
    assert charges.debt_s("rita") == 0
    watch = Subscription(charges, "rita")
    before = charges.statistics().charged_ms
    watch.charge(5_000_000)
    assert watch.is_due
    assert charges.statistics().charged_ms == pytest.approx(before + 5)


def test_accounts_are_forgotten_that_owe_nothing(charges: Charges, clock: Clock) -> None:
    """Beyond the limit, the oldest accounts are forgotten even with a debt."""
    in_debt(charges, "rita")
    for number in range(LOAD.meters_max - 1):
        charges.charge(f"agent{number}", 1)
    assert len(charges._accounts) == LOAD.meters_max
    clock.now_s += 0.01
    charges.charge("one more", 1)
    assert set(charges._accounts) == {"rita", "one more"}
    for number in range(LOAD.meters_max + 10):
        in_debt(charges, f"agent{number}", DEBT_US)
    assert len(charges._accounts) == LOAD.meters_max
    assert "rita" not in charges._accounts


def test_the_statistics_name_a_few(charges: Charges) -> None:
    """The accounts that were charged most."""
    for number in range(3 * LOAD.accounts_named_max):
        charges.charge(f"agent{number}", 1_000 * number)
    in_debt(charges, "rita")
    told = charges.statistics()
    names = [account.name for account in told.accounts]
    assert names[:2] == ["rita", f"agent{3 * LOAD.accounts_named_max - 1}"]
    assert len(names) == LOAD.accounts_named_max
    assert told.in_debt == 1
    assert told.waiting == told.refused == 0
    assert told.charged_ms == pytest.approx(LOAD.credit_ms_max + 100 + sum(range(48)))


# --- waiting --------------------------------------------------------------------------------------


async def test_a_debtor_goes_on_when_the_debt_is_repaid(charges: Charges, clock: Clock) -> None:
    """While other accounts are active, whose requests do not wait."""
    in_debt(charges, "rita")
    beside(charges)
    waiting = begun(charges)
    await wait_until(lambda: true(charges.statistics().waiting))
    assert await charges.admit("ann", "list") == READ_US
    assert not waiting.done()
    clock.now_s += 0.21
    beside(charges)
    assert await asyncio.wait_for(waiting, TIMEOUT_S) == READ_US
    assert charges.statistics().waiting == 0


async def test_a_debtor_goes_on_when_the_others_have_gone(charges: Charges, clock: Clock) -> None:
    """Even if its debt is not repaid."""
    in_debt(charges, "rita", DEBT_US)
    beside(charges)
    waiting = begun(charges)
    await wait_until(lambda: true(charges.statistics().waiting))
    clock.now_s += AT_WORK_S + 0.1
    await asyncio.wait_for(waiting, TIMEOUT_S)
    assert charges.statistics().in_debt == 1


async def test_those_that_come_together_begin_as_they_can_be_paid(
    charges: Charges, clock: Clock
) -> None:
    """Each reserves the cost of the previous request of its kind, and they begin in order."""
    charges.learn("rita", "differences", 100_000)
    beside(charges)
    tasks = [begun(charges, method="differences") for _ in range(6)]
    await wait_until(lambda: true(charges.statistics().waiting == 3))
    assert [task.done() for task in tasks] == [True] * 3 + [False] * 3
    charges.give_back("rita", 100_000)
    await wait_until(lambda: true(tasks[3].done()))
    assert not tasks[4].done()
    for _ in range(4):
        charges.give_back("rita", 100_000)
        clock.now_s += 0.001
        beside(charges)
    await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S)
    with pytest.raises(IndexError):
        charges._accounts["rita"].line[0]


async def test_one_read_at_a_time_is_never_refused(charges: Charges, clock: Clock) -> None:
    """The largest debt is repaid within DEBT_WAIT_MS_MAX, even if others use all processor time."""
    in_debt(charges, "rita", 10 * DEBT_US)
    charges.charge("ann", 10_000_000)
    assert charges.debt_s("rita") == pytest.approx(LOAD.debt_wait_ms_max / 1_000)
    waiting = begun(charges)
    await wait_until(lambda: true(charges.statistics().waiting))
    clock.now_s += LOAD.debt_wait_ms_max / 1_000 + 1e-6
    charges.charge("ann", 10_000_000)
    assert await asyncio.wait_for(waiting, TIMEOUT_S) == READ_US


async def test_of_what_nobody_has_asked_for_yet_few_begin(charges: Charges) -> None:
    """The cost is known when the first one is done. Then as many begin as can be paid."""
    beside(charges)
    bills = [charges.bill("rita", "differences") for _ in range(20)]
    tasks = [asyncio.create_task(bill.begin()) for bill in bills]
    await wait_until(lambda: true(charges.statistics().waiting == 14))
    assert [task.done() for task in tasks] == [True] * 6 + [False] * 14
    for bill in bills[:2]:
        await bill.run(checkpoint)
    await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S)
    charges.learn("ann", "log", 1_000)
    assert await charges.admit("ann", "log") == 1_000
    assert await charges.admit("bob", "log") == 1_000


async def test_a_request_that_would_wait_too_long_is_refused(
    charges: Charges, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, with the time to retry: the requests that already wait leave no room for its cost.
    The log has one line of it."""
    caplog.set_level(logging.WARNING)
    charges.learn("rita", "list", 1_000)
    in_debt(charges, "rita", 10 * DEBT_US)
    charges.charge("ann", 10_000_000)
    waiting = begun(charges)
    await wait_until(lambda: true(charges.statistics().waiting))
    for _ in range(3):
        with pytest.raises(Overloaded) as caught:
            await charges.admit("rita", "list")
        assert caught.value.what == "account"
        assert caught.value.retry_after_ms > LOAD.debt_wait_ms_max
    assert charges.statistics().refused == 3
    assert len([line for line in caplog.messages if "rita" in line]) == 1
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_who_waited_long_enough_is_refused(charges: Charges, clock: Clock) -> None:
    """If others left less than expected, or the account used more in the meantime."""
    in_debt(charges, "rita")
    beside(charges)
    waiting = begun(charges)
    await wait_until(lambda: true(charges.statistics().waiting))
    clock.now_s += LOAD.debt_wait_ms_max / 1_000
    in_debt(charges, "rita", 10 * DEBT_US)
    beside(charges)
    with pytest.raises(Overloaded):
        await asyncio.wait_for(waiting, TIMEOUT_S)


async def test_who_gives_up_waiting_reserves_nothing(charges: Charges, clock: Clock) -> None:
    """Nor does it delay the requests behind it."""
    in_debt(charges, "rita")
    beside(charges)
    tasks = [begun(charges) for _ in range(3)]
    await wait_until(lambda: true(charges.statistics().waiting == 3))
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    assert charges.statistics().waiting == 2
    clock.now_s += 0.21
    beside(charges)
    await asyncio.wait_for(asyncio.gather(*tasks[1:]), TIMEOUT_S)
    assert charges._accounts["rita"].reserved_us == 2 * READ_US


async def test_who_is_cancelled_as_it_may_go_on_reserves_nothing(
    charges: Charges, clock: Clock
) -> None:
    """It was granted, but has not run yet."""
    in_debt(charges, "rita")
    beside(charges)
    waiting = begun(charges)
    await wait_until(lambda: true(charges.statistics().waiting))
    clock.now_s += 1
    beside(charges)
    charges.learn("rita", "log", 1_000)  # a request is done: the line is looked at
    assert charges._accounts["rita"].reserved_us == READ_US
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert charges._accounts["rita"].reserved_us == 0


# --- bills ----------------------------------------------------------------------------------------


async def test_a_request_is_charged_for_each_of_its_steps(charges: Charges) -> None:
    """Not for the work of others while it waits."""
    bill = charges.bill("rita", "list")
    others = asyncio.Event()

    async def work() -> str:
        burn()
        others.set()
        await checkpoint()
        await checkpoint()
        burn()
        return "done"

    async def other() -> None:
        await others.wait()
        burn(100 * BURNT_NS)

    beside_it = asyncio.create_task(other())
    assert await bill.run(work) == "done"
    await beside_it
    charged_ms = charges.statistics().charged_ms
    assert 2 * BURNT_NS / 1e6 <= charged_ms < 100 * BURNT_NS / 1e6


@pytest.mark.parametrize("ended", ["failed", "cancelled"])
async def test_what_did_not_come_to_its_end_is_paid_too(charges: Charges, ended: str) -> None:
    """A request that fails, and one that is cancelled. No reservation is left."""
    bill = charges.bill("rita", "list")
    await bill.begin()
    reached = asyncio.Event()

    async def work() -> None:
        burn()
        if ended == "failed":
            raise Overloaded("it", "is too much", 1)
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(bill.run(work))
    if ended == "cancelled":
        await reached.wait()
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), Overloaded)
    assert charges.statistics().charged_ms >= BURNT_NS / 1e6
    assert charges._accounts["rita"].reserved_us == 0
    assert charges._accounts["rita"].prices_us["list"] >= BURNT_NS / 1e3


async def test_threads_work_on_the_account_of_the_request(charges: Charges) -> None:
    """Even a thread that ends after the request was cancelled. No reservation is left, and none is
    given back twice."""
    bill = charges.bill("rita", "log")
    await bill.begin()
    began, let_go = threading.Event(), threading.Event()

    def in_thread() -> None:
        began.set()
        assert let_go.wait(TIMEOUT_S)
        burn()

    async def work() -> None:
        await asyncio.get_running_loop().run_in_executor(None, metered(in_thread))

    task = asyncio.create_task(bill.run(work))
    await asyncio.to_thread(began.wait, TIMEOUT_S)
    task.cancel()
    await asyncio.wait([task])
    before_ms = charges.statistics().charged_ms
    let_go.set()
    await wait_until(lambda: true(charges.statistics().charged_ms >= before_ms + BURNT_NS / 1e6))
    assert charges._accounts["rita"].reserved_us == 0


def test_without_a_payer_work_is_done_as_it_is(charges: Charges) -> None:
    """An embedded board has no payer."""
    assert metered(burn) is burn
    assert charged(lambda: 7) == 7
    watch = Subscription(charges, "rita")
    with paid_by(watch):
        charged(burn)
    watch.settle()
    assert charges.statistics().charged_ms >= BURNT_NS / 1e6


async def held_up(bill_turn: Callable[[], Awaitable[None]], charges: Charges) -> float:
    """The waiting times of an account in debt, by the loop's clock, until none of its requests
    waits."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for _ in range(1_000):
        await bill_turn()
    return loop.time() - began_s


async def test_a_long_request_lets_others_have_their_turn(charges: Charges, clock: Clock) -> None:
    """It pauses between its steps, for DEBT_PAUSE_MS_MAX in all, in its own task and only after it
    has begun."""
    bill = charges.bill("rita", "differences")
    pauses = list[float]()

    async def work() -> None:
        await asyncio.create_task(held_up(turn, charges))  # such as that of a board it opened
        pauses.append(bill._paused_s)
        await held_up(turn, charges)
        pauses.append(bill._paused_s)

    await bill.begin()
    in_debt(charges, "rita", DEBT_US)
    beside(charges)
    await bill.run(work)
    assert pauses == [0, pytest.approx(LOAD.debt_pause_ms_max / 1_000)]


async def test_what_was_not_let_begin_as_a_read_is_not_held_up(charges: Charges) -> None:
    """A restore makes others wait while it runs, so it is not delayed."""
    bill = charges.bill("rita", "restore")
    in_debt(charges, "rita", DEBT_US)
    beside(charges)
    await bill.run(lambda: held_up(turn, charges))
    assert bill._paused_s == 0
