"""Who is next, when several want more than there is: start-time fair queueing.

Each account has its own line. The whole of an item is charged to its account: the next item of the
same account stands as far behind it as it costs. So whoever asks for much waits behind himself, and
whoever asks for little now and then is next, however many items the others have waiting.

Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996, with equal weights.

Invariants
- items of one account come out in the order in which they came in.
- while an account has something waiting, no other one gets more than its own share and one item
  beyond what this one gets.
- what is remembered of accounts that have nothing waiting is bounded by what waits.
"""

import heapq
from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
_FORGET_ABOVE = 64


class FairQueue(Generic[T]):
    """Items that wait, each on somebody's account and with a cost, in any unit above 0."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, float, Hashable, T]] = []
        self._number = 0
        self._now = 0.0  # the start of the item that came out last
        self._waiting: Counter[Hashable] = Counter()
        self._ends: dict[Hashable, float] = {}
        """Up to where what each account asked for reaches."""

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, account: Hashable) -> bool:
        """Whether something waits on that account."""
        return account in self._waiting

    def add(self, account: Hashable, cost: float, item: T) -> None:
        """Let `item` wait."""
        if not self._heap:
            self._ends.clear()  # everybody has had what he asked for
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
