"""Fair shares of the one thread that does the work of a process.

The event loop serves requests in the order of arrival: one request of an account would wait for a
thousand earlier ones of another. So work is admitted first. In each round of the loop, the first
ROUND_US of work are open to all accounts, and up to FULL_ROUND_US to accounts that got nothing in
this round and have nothing waiting. Further work waits for a later round, in which the account with
the least work so far comes first (`FairQueue`).

A single account has nobody to share with: its rounds may be as long as LONE_ROUND_US, so that a
second account waits no longer than that.

Costs are estimates of processor time on a machine of 2020; only their ratios matter. If all are too
small by a factor, a round takes longer by that factor. The real cost of a request is charged to its
account afterwards (charges.py).

Invariants
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
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from blackboard.limits import DEFAULT, Limits

T = TypeVar("T")
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
        start = max(self._now, self._ends.get(account, 0.0))
        if len(self._ends) > 2 * len(self._heap) + _FORGET_ABOVE:
            self._ends = {name: self._ends[name] for name in self._waiting}
        self._ends[account] = start + cost
        self._waiting[account] += 1
        self._number += 1
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
    """What a message of `size` bytes costs, to be read."""
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
