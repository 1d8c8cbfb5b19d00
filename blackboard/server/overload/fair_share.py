"""Fair shares of the one thread that does the work of a process.

The event loop serves whoever comes, in the order of coming: behind a thousand requests of one agent
the one request of another waits for all of them. So what takes time is asked for first. The first
ROUND_US of work in a round of the loop are anybody's, and up to FULL_ROUND_US are for accounts that
were given nothing in this round and have nothing waiting. What is beyond waits for a later round,
and then it is not who came first that counts but who has had least: server/overload/fair_share.py.

While there is only one account there is nobody to be fair to: its rounds may be as long as
LONE_ROUND_US, so that whoever comes next waits no longer than that.

Costs are estimates, of processor time on a machine of 2020: what matters is how they compare. If
all are too small by a factor, a round takes longer by that factor. What a request really took is
charged to its account afterwards (charges.py).

Invariants
- what is asked for is given, unless whoever asked is cancelled: each round gives at least one.
- an account that has had less than its share waits for one round, and one item of each other one.

Who is next, when several want more than there is: start-time fair queueing.

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

import asyncio
import heapq
from collections import Counter
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

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


ROUND_US: Final = 500
"""Work that a round of the loop takes on: long beside the 20 us that a round costs by itself, short
beside the few milliseconds in which a commit is answered."""
FULL_ROUND_US: Final = 4 * ROUND_US
"""With what those bring whose first work in it this is: many agents at once who do not ask for much
are no crowd to be put in line."""
LONE_ROUND_US: Final = 10_000
"""For an account that is alone. Whoever comes then waits so long, once."""
HANDSHAKE_US: Final = 300
"""A connection that is let in, up to its `hello`."""
READ_US: Final = 300
"""A look-up; most take less, a large page more."""
COMMIT_US: Final = 100
"""A commit, beside what it takes to read it: its part of a batch of its engine, and its answer."""
DELIVERY_US: Final = 40
"""News for one watch."""
STRANGERS: Final = ""
"""The account of all who have not said who they are."""
_MESSAGE_US: Final = 50
_BYTES_PER_US: Final = 50
_SHARED_S: Final = 0.25
"""For how long an account that came counts as one that is at work."""


def frame_us(size: int) -> float:
    """What a message of `size` bytes costs, to be read."""
    return _MESSAGE_US + size / _BYTES_PER_US


class Shares:
    """Those of one process."""

    def __init__(self) -> None:
        self._queue: FairQueue[tuple[str, asyncio.Future[None]]] = FairQueue()
        self._account: str | None = None
        """Who was given something last."""
        self._shared_until_s = 0.0
        """Until then more than one account counts as at work."""
        self._round_us = LONE_ROUND_US
        self._spent_us = 0.0
        self._served: set[str] = set()
        """Who was given something in this round."""
        self._is_counting = False  # whether the round that comes will be noticed

    @property
    def waiting(self) -> int:
        """How much was asked for and not given yet, in items."""
        return len(self._queue)

    def at_once(self, account: str, cost_us: float) -> bool:
        """Whether work that costs so much may be done now; else whoever asks has to `wait`."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if account != self._account:
            self._shared_until_s = now_s + _SHARED_S if self._account is not None else 0.0
            self._account = account
        self._round_us = ROUND_US if now_s < self._shared_until_s else LONE_ROUND_US
        if (self._spent_us < self._round_us and not self._queue) or self._is_first(account):
            self._spend(loop, account, cost_us)
            return True
        return False

    def _is_first(self, account: str) -> bool:
        has_more = account in self._served or account in self._queue
        return self._spent_us < FULL_ROUND_US and not has_more

    async def wait(self, account: str, cost_us: float) -> None:
        """Return when work that costs so much may be done. A cancelled caller has taken nothing."""
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
