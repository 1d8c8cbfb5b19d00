"""Shares of the one thread that does the work of a process, and charges for the time that was used.

Shares. The event loop serves requests in the order of arrival: one request of an account would wait
for a thousand earlier ones of another. So work is admitted first. In each round of the loop, the
first ROUND_US of work are open to all accounts, and up to FULL_ROUND_US to accounts that got
nothing in this round and have nothing waiting. Further work waits for a later round, in which the
account with the least work so far comes first (`FairQueue`).

A single account has nobody to share with: its rounds may be as long as LONE_ROUND_US, so that a
second account waits no longer than that.

Costs are estimates of processor time on a machine of 2020; only their ratios matter. If all are too
small by a factor, a round takes longer by that factor. The real cost of a request is charged to its
account afterwards.

Invariants of `Shares`
- Each round admits at least one item, so every request is admitted unless it is cancelled.
- An account below its share waits for one round, and for one item of each other account.

The order of waiting items is that of start-time fair queueing.

Each account has its own queue. The cost of an item delays the next item of the same account. So an
account with much work waits for itself, and an account with little work is next, however many items
the others have waiting.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996, with equal weights.

Invariants of `FairQueue`
- Items of one account leave in the order of their arrival.
- While an account has items waiting, no other one gets more than the same share and one item.
- The state of accounts with nothing waiting is bounded by the number of waiting items.

Charges. The costs above are estimates; the real cost of a read, a comparison or a query of the
archive is known only afterwards. So it is measured, in the event loop and in the threads that work
for it, and charged to the account of the token, step by step.

An account may use CREDIT_MS_MAX at once. What it uses beyond is a debt, which is repaid as time
passes. A debtor's next read waits until the debt is repaid, but only while other accounts are
active: an account that is alone is never slowed. A read reserves the cost of the last one of its
kind, so that of many concurrent reads only those begin for which there is credit.

A debt is repaid at half of the processor time that the others leave. The other half keeps the waits
of the others short, and several debtors share evenly.

Invariants of `Charges`
- An account that is alone never waits. Others count as active for AT_WORK_S after each request.
- A read waits at most DEBT_WAIT_MS_MAX, and is refused if it would have to wait longer.
- Failed and cancelled requests are charged as well.
- Only calls of `Bill.turn` wait. Commits (including renewals and releases of leases), ends of
  watches, refreshes and heartbeats do not.
- At most METERS_MAX accounts are kept; those without debt are dropped first, then the oldest.
"""

import asyncio
import contextlib
import heapq
import logging
import math
import time
import types
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from blackboard.engines.payer import paid_by, timed
from blackboard.errors import Overloaded
from blackboard.limits import DEFAULT, Limits

log = logging.getLogger(__name__)
T = TypeVar("T")
AT_WORK_S: Final = 0.25
"""How long an account counts as active after a request or work of it."""
_USAGE_S: Final = 1.0
"""Time constant of the average of processor use: older use decays by a factor of e."""
_REPAID_LEAST: Final = 0.1
"""The fraction of a processor that is repaid even while others use all of it. So the largest debt
is repaid within DEBT_WAIT_MS_MAX, and an account that makes one read at a time is never refused."""
_UNKNOWN_US: Final = 50_000.0
"""The reservation of the first read of a kind: five of them can begin together."""
_LOOK_S: Final = 0.05
"""How often waiting requests check whether other accounts are still active."""
_LOOK_LEAST_S: Final = 0.001
_US_PER_S: Final = 1_000_000
_NS_PER_US: Final = 1_000
_OWED_US: Final = 1_000
"""The debt of a watch up to which it is not charged."""


@dataclass(slots=True)
class Account:
    """The use of one account."""

    balance_us: float
    """Its remaining credit; negative: its debt."""
    reserved_us: float = 0.0
    """The part of it that is reserved by running requests."""
    charged_us: float = 0.0
    used_us: float = 0.0
    """Recent use: use older than _USAGE_S counts little."""
    at_s: float = 0.0
    prices_us: dict[str, float] = field(default_factory=dict)
    """The cost of a request by method."""
    line: "deque[_Waiting]" = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None
    warn_again_s: float = -math.inf
    """When the next log line about it may be written."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    given: "asyncio.Future[float]"
    """Its reservation, in microseconds."""
    method: str
    until_s: float


@dataclass(frozen=True, slots=True)
class AccountCharge:
    """The processor time that one account has used since the process started, and its credit, in
    milliseconds."""

    name: str
    """"": all clients without a token."""
    charged_ms: float
    balance_ms: float
    """Negative: its debt."""


@dataclass(frozen=True, slots=True)
class ChargeStatistics:
    """A snapshot; the counts are since the process started."""

    charged_ms: float = 0
    """Processor time that was charged to accounts, all together."""
    in_debt: int = 0
    """Accounts that used more than their share."""
    waiting: int = 0
    """Requests that wait until a debt is repaid."""
    refused: int = 0
    """Requests that would have waited too long."""
    accounts: tuple[AccountCharge, ...] = ()
    """The accounts with the highest charges, at most ACCOUNTS_NAMED_MAX."""


class Charges:
    """The accounts of one process. `clock` never goes back, in seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, limits: Limits = DEFAULT
    ) -> None:
        self.limits = limits.load
        self._credit_us = limits.load.credit_ms_max * 1_000.0
        self._warn_again_s = limits.security.audit_window_ms / 1_000
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._used_us = 0.0  # recent use of all accounts
        self._used_at_s = 0.0
        self._charged_us = 0.0
        self._prices_us: dict[str, float] = {}  # by all
        self._refused = 0
        self._last = ("", -math.inf)
        """The account that was active last, and when;"""
        self._other_s = -math.inf
        """when another account was."""

    def charge(self, name: str, spent_us: float) -> None:
        """Charge an account for `spent_us` of work that it requested."""
        now_s = self._clock()
        self._came(name, now_s)
        self._pay(self._account(name, now_s), spent_us)

    def charge_aside(self, name: str, spent_us: float) -> None:
        """The same for background work, which does not make the account count as active."""
        now_s = self._clock()
        self._pay(self._account(name, now_s), spent_us)

    def debt_s(self, name: str) -> float:
        """How long an account would have to wait now before its next step; 0 = it may continue."""
        now_s = self._clock()
        found = self._accounts.get(name)
        return 0.0 if found is None else self._wait_s(name, found, now_s, 0.0)

    def refusal(self, name: str) -> Overloaded:
        """Why a request of an account in debt cannot even wait."""
        account = self._account(name, self._clock())
        least_s = self.limits.overload_retry_ms / 1_000
        return self._refusal(name, account, max(self.debt_s(name), least_s))

    def bill(self, name: str, method: str) -> "Bill":
        """The bill of a request of an account."""
        self._came(name, self._clock())
        return Bill(self, name, method)

    async def admit(self, name: str, method: str) -> float:
        """Wait for the turn of a request; returns what is reserved for it, in microseconds.

        Errors: Overloaded when it would wait longer than DEBT_WAIT_MS_MAX.
        Cancellation: nothing is reserved.
        """
        now_s = self._clock()
        self._came(name, now_s)
        account = self._account(name, now_s)
        before_us = sum(self._price_us(account, waiting.method) for waiting in account.line)
        wait_s = self._wait_s(name, account, now_s, before_us)
        if not wait_s and not account.line:
            return self._reserved(account, method)
        if wait_s * 1_000 > self.limits.debt_wait_ms_max:
            raise self._refusal(name, account, wait_s)
        return await self._wait(name, account, method, now_s)

    def give_back(self, name: str, reserved_us: float) -> None:
        """Release a reservation; the actual use is charged separately."""
        self._account(name, self._clock()).reserved_us -= reserved_us

    def learn(self, name: str, method: str, used_us: float) -> None:
        """Record the cost of a finished request: the next one of its kind reserves about that much.

        An account without such a request reserves the average of all others.
        """
        account = self._account(name, self._clock())
        for prices_us in (account.prices_us, self._prices_us):
            prices_us[method] = (prices_us.get(method, used_us) + used_us) / 2
        if account.timer is not None:  # waiting requests may use what it did not need
            account.timer.cancel()
            self._look(name, account)

    def statistics(self) -> ChargeStatistics:
        """A snapshot of all accounts."""
        now_s = self._clock()
        for account in self._accounts.values():
            self._repay(account, now_s)
        most = heapq.nlargest(
            self.limits.accounts_named_max,
            self._accounts.items(),
            key=lambda item: item[1].charged_us,
        )
        largest = tuple(
            AccountCharge(name, account.charged_us / 1_000, account.balance_us / 1_000)
            for name, account in most
        )
        return ChargeStatistics(
            self._charged_us / 1_000,
            sum(account.balance_us < 0 for account in self._accounts.values()),
            sum(len(account.line) for account in self._accounts.values()),
            self._refused,
            largest,
        )

    # --- the rules --------------------------------------------------------------------------------

    def _came(self, name: str, now_s: float) -> None:
        # Two instants tell every account whether another one was active lately.
        last, last_s = self._last
        if name != last:
            self._other_s = last_s
        self._last = (name, now_s)

    def _is_alone(self, name: str, now_s: float) -> bool:
        last, last_s = self._last
        return now_s - (self._other_s if name == last else last_s) > AT_WORK_S

    def _others(self, account: Account) -> float:
        """The recent use of all other accounts, as a fraction of one processor."""
        return max(self._used_us - account.used_us, 0.0) / (_USAGE_S * _US_PER_S)

    def _rate(self, account: Account) -> float:
        """The rate of repayment, as a fraction of one processor."""
        return max((1 - self._others(account)) / 2, _REPAID_LEAST)

    def _repay(self, account: Account, now_s: float) -> None:
        past_s = now_s - account.at_s
        if past_s <= 0:
            return
        self._used_us *= math.exp((self._used_at_s - now_s) / _USAGE_S)
        self._used_at_s = now_s
        account.used_us *= math.exp(-past_s / _USAGE_S)
        account.at_s = now_s
        repaid_us = past_s * self._rate(account) * _US_PER_S
        account.balance_us = min(account.balance_us + repaid_us, self._credit_us)

    def _pay(self, account: Account, spent_us: float) -> None:
        account.used_us += spent_us
        account.charged_us += spent_us
        self._used_us += spent_us
        self._charged_us += spent_us
        # Bounded, so that every debt is repaid within DEBT_WAIT_MS_MAX (`_REPAID_LEAST`).
        lowest_us = -self.limits.debt_ms_max * 1_000.0
        account.balance_us = max(account.balance_us - spent_us, lowest_us)

    def _wait_s(self, name: str, account: Account, now_s: float, before_us: float) -> float:
        """How long the next request waits after others that reserve `before_us`."""
        if self._is_alone(name, now_s):
            return 0.0
        self._repay(account, now_s)
        owed_us = before_us + account.reserved_us - account.balance_us
        return max(owed_us, 0.0) / (self._rate(account) * _US_PER_S)

    def _account(self, name: str, now_s: float) -> Account:
        found = self._accounts.get(name)
        if found is None:
            if len(self._accounts) >= self.limits.meters_max:
                self._make_room(now_s)
            found = self._accounts[name] = Account(self._credit_us, at_s=now_s)
        else:
            self._repay(found, now_s)
        return found

    def _make_room(self, now_s: float) -> None:
        for account in self._accounts.values():
            self._repay(account, now_s)
        busy = {n for n, a in self._accounts.items() if a.line or a.reserved_us}
        kept = {
            n: a for n, a in self._accounts.items() if n in busy or a.balance_us < self._credit_us
        }
        if len(kept) >= self.limits.meters_max:
            kept.pop(next((name for name in kept if name not in busy), ""), None)
        self._accounts = kept

    # --- the line ---------------------------------------------------------------------------------

    async def _wait(self, name: str, account: Account, method: str, now_s: float) -> float:
        given: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(given, method, now_s + self.limits.debt_wait_ms_max / 1_000)
        account.line.append(waiting)
        if account.timer is None:
            self._look_soon(name, account, 0.0)
        try:
            return await given
        except asyncio.CancelledError:
            # Its turn came in the same moment as the cancellation.
            if given.done() and not given.cancelled() and given.exception() is None:
                account.reserved_us -= given.result()
            with contextlib.suppress(ValueError):  # it was already answered
                account.line.remove(waiting)
            raise

    def _price_us(self, account: Account, method: str) -> float:
        return account.prices_us.get(method) or self._prices_us.get(method, _UNKNOWN_US)

    def _reserved(self, account: Account, method: str) -> float:
        price_us = self._price_us(account, method)
        account.reserved_us += price_us
        return price_us

    def _look_soon(self, name: str, account: Account, wait_s: float) -> None:
        delay_s = min(max(wait_s, _LOOK_LEAST_S), _LOOK_S)
        loop = asyncio.get_running_loop()
        account.timer = loop.call_later(delay_s, self._look, name, account)

    def _look(self, name: str, account: Account) -> None:
        """Admit waiting requests that have credit, and refuse those that waited too long."""
        account.timer = None
        now_s = self._clock()
        while account.line:
            first = account.line[0]
            wait_s = self._wait_s(name, account, now_s, 0.0)
            if wait_s and now_s < first.until_s:
                return self._look_soon(name, account, wait_s)
            account.line.popleft()
            if first.given.done():
                continue
            if wait_s:
                first.given.set_exception(self._refusal(name, account, wait_s))
            else:
                first.given.set_result(self._reserved(account, first.method))
        return None

    def _refusal(self, name: str, account: Account, wait_s: float) -> Overloaded:
        self._refused += 1
        now_s = self._clock()
        if now_s >= account.warn_again_s:
            account.warn_again_s = now_s + self._warn_again_s
            log.warning("%s is refused reads: it used %.0f ms", name, account.charged_us / 1_000)
        reason = f"{name} used more of the processor than its share while others are active"
        return Overloaded("account", reason, math.ceil(wait_s * 1_000))


class Bill:
    """The bill of one request of an account: its `Payer` while it runs."""

    __slots__ = (
        "_charges",
        "_is_open",
        "_method",
        "_paused_s",
        "_reserved_us",
        "_task",
        "_used_us",
        "account",
    )

    def __init__(self, charges: Charges, account: str, method: str) -> None:
        self.account = account
        self._charges = charges
        self._method = method
        self._used_us = 0.0
        self._reserved_us = 0.0
        self._paused_s = 0.0
        self._task: asyncio.Task[Any] | None = None
        self._is_open = True

    async def begin(self) -> None:
        """Wait until the account may continue; from then on the request may be delayed between its
        steps.

        Errors: Overloaded.
        """
        self._reserved_us = await self._charges.admit(self.account, self._method)
        # For reads alone: only they wait between their steps, and only their prices are learned.
        self._task = asyncio.current_task()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work`, and charge its cost, also if it fails."""
        try:
            with paid_by(self):
                return await measured(work(), self.charge)
        finally:
            self._is_open = False
            # A thread may charge later (`metered`): it must not give this back again.
            reserved_us, self._reserved_us = self._reserved_us, 0.0
            if reserved_us:
                self._charges.give_back(self.account, reserved_us)
            if self._task is not None:
                self._charges.learn(self.account, self._method, self._used_us)

    def charge(self, spent_ns: int) -> None:
        """As `Payer.charge`; also when the request has ended before a thread that worked for it."""
        spent_us = spent_ns / _NS_PER_US
        self._used_us += spent_us
        if self._reserved_us:
            paid_us = min(self._reserved_us, spent_us)
            self._reserved_us -= paid_us
            self._charges.give_back(self.account, paid_us)
        self._charges.charge(self.account, spent_us)

    async def turn(self) -> None:
        """As `Payer.turn`: at most DEBT_PAUSE_MS_MAX in all; only in the task of the request."""
        if self._task is None or not self._is_open or asyncio.current_task() is not self._task:
            return  # a task that the request started, such as that of a board, never waits
        left_s = self._charges.limits.debt_pause_ms_max / 1_000 - self._paused_s
        pause_s = min(self._charges.debt_s(self.account), left_s, _LOOK_S)
        if pause_s > 0:
            self._paused_s += pause_s
            await asyncio.sleep(pause_s)


class Subscription:
    """The cost of a watch: the `Payer` of its deliveries."""

    __slots__ = ("_account", "_charges", "_owed_us", "is_due")

    def __init__(self, charges: Charges, account: str) -> None:
        self._charges = charges
        self._account = account
        self._owed_us = 0.0
        self.is_due = False
        """Whether to take a `turn` before the next delivery: something was charged since the last
        one."""

    def charge(self, spent_ns: int) -> None:
        """As `Payer.charge`."""
        self.owe(spent_ns / _NS_PER_US)

    def owe(self, spent_us: float) -> None:
        """Add a cost that is too small to be charged alone; it is charged when enough has
        accumulated."""
        self._owed_us += spent_us
        if self._owed_us >= _OWED_US:
            self.settle()

    def settle(self) -> None:
        """Charge everything accumulated."""
        owed_us, self._owed_us, self.is_due = self._owed_us, 0.0, True
        self._charges.charge_aside(self._account, owed_us)

    def is_free(self) -> bool:
        """Whether the next delivery may go without a `turn`."""
        if self.is_due and self._charges.debt_s(self._account) > 0:
            return False
        self.is_due = False
        return True

    async def turn(self) -> None:
        """As `Payer.turn`: deliveries to a debtor are batched, and at most DEBT_PAUSE_MS_MAX
        late."""
        self.is_due = False
        longest_s = self._charges.limits.debt_pause_ms_max / 1_000
        pause_s = min(self._charges.debt_s(self._account), longest_s)
        if pause_s > 0:
            await asyncio.sleep(pause_s)


@types.coroutine
def measured(work: Coroutine[Any, Any, T], charge: Callable[[int], None]) -> Generator[Any, Any, T]:
    """Drive `work`, and charge the processor time of each of its steps."""
    step = partial(work.send, None)
    while True:
        try:
            awaited = timed(step, charge)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            del step  # an error refers to this frame, so the frame must not refer to the error
        try:
            step = partial(work.send, (yield awaited))
        except BaseException as error:  # noqa: BLE001 - whatever it is, `work` gets it
            step = partial(work.throw, error)


# --- shares of the event loop ---------------------------------------------------------------------


_FORGET_ABOVE = 64


class FairQueue(Generic[T]):
    """Waiting items, each with an account and a cost, in any unit above 0."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, float, Hashable, T]] = []
        self._number = 0
        self._now = 0.0  # the start of the item that left last
        self._waiting: Counter[Hashable] = Counter()
        self._ends: dict[Hashable, float] = {}
        """The end of the last item of each account, in virtual time."""

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, account: Hashable) -> bool:
        """Whether an item of that account is waiting."""
        return account in self._waiting

    def add(self, account: Hashable, cost: float, item: T) -> None:
        """Add an item."""
        if not self._heap:
            self._ends.clear()  # all requests were served
        # Not before now: an account that was idle saves up no share.
        start = max(self._now, self._ends.get(account, 0.0))
        if len(self._ends) > 2 * len(self._heap) + _FORGET_ABOVE:
            self._ends = {name: self._ends[name] for name in self._waiting}
        self._ends[account] = start + cost
        self._waiting[account] += 1
        self._number += 1
        # The number keeps items with one start in order, and keeps the heap from comparing items.
        heapq.heappush(self._heap, (start, self._number, cost, account, item))

    def take(self) -> tuple[T, float]:
        """The item that is next, and its cost. Errors: IndexError when nothing waits."""
        self._now, _, cost, account, item = heapq.heappop(self._heap)
        self._waiting[account] -= 1
        if not self._waiting[account]:
            del self._waiting[account]
        return item, cost


HANDSHAKE_US: Final = 300
"""A new connection, up to its `hello`."""
READ_US: Final = 300
"""A read; most take less, a large page more."""
COMMIT_US: Final = 100
"""A commit, without parsing it: its part of an engine batch, and its answer."""
DELIVERY_US: Final = 40
"""A delivery to one watch."""
STRANGERS: Final = ""
"""The account of all clients without a token."""
_MESSAGE_US: Final = 50
_BYTES_PER_US: Final = 50


def frame_us(size: int) -> float:
    """The cost of reading a message of `size` bytes."""
    return _MESSAGE_US + size / _BYTES_PER_US


class Shares:
    """The shares of one process."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits.load
        self._queue: FairQueue[tuple[str, asyncio.Future[None]]] = FairQueue()
        self._account: str | None = None
        """The account that was admitted last."""
        self._shared_until_s = 0.0
        """Until then more than one account counts as active."""
        self._round_us = self._limits.lone_round_us
        self._spent_us = 0.0
        self._served: set[str] = set()
        """The accounts that were admitted in this round."""
        self._is_counting = False  # whether the beginning of the next round will be noticed

    @property
    def waiting(self) -> int:
        """The number of waiting items."""
        return len(self._queue)

    def at_once(self, account: str, cost_us: float) -> bool:
        """Whether work of this cost may be done now; otherwise the caller has to `wait`."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if account != self._account:
            shared_s = self._limits.shared_ms / 1000
            # The first account of a process has nobody to share with.
            self._shared_until_s = now_s + shared_s if self._account is not None else 0.0
            self._account = account
        is_shared = now_s < self._shared_until_s
        self._round_us = self._limits.round_us if is_shared else self._limits.lone_round_us
        if (self._spent_us < self._round_us and not self._queue) or self._is_first(account):
            self._spend(loop, account, cost_us)
            return True
        return False

    def _is_first(self, account: str) -> bool:
        has_more = account in self._served or account in self._queue
        return self._spent_us < self._limits.full_round_us and not has_more

    async def wait(self, account: str, cost_us: float) -> None:
        """Return when work of this cost may be done. Cancellation: nothing is used."""
        if self.at_once(account, cost_us):
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add(account, cost_us, (account, given))
        await given

    def _spend(self, loop: asyncio.AbstractEventLoop, account: str, cost_us: float) -> None:
        self._spent_us += cost_us
        self._served.add(account)
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._begin_round, loop)

    def _begin_round(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_counting = False
        self._spent_us = 0.0
        self._served.clear()
        while self._queue and self._spent_us < self._round_us:
            (account, given), cost_us = self._queue.take()
            if not given.done():
                given.set_result(None)
                self._spend(loop, account, cost_us)
