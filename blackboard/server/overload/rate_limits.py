"""Rate limits of a principal in one process: requests, bytes, and growth of the logs.

Narrowed tokens share the account of the original. Admins of everything have no rate, because they
must be able to act during an overload.

Invariants
- A principal gets no more than its rate over time, whatever it opens, closes or narrows.
- At most METERS_MAX accounts are kept; only those without debt are dropped.

A token bucket: a steady rate, and a burst after a pause.

It is the generic cell rate algorithm (ITU-T I.371, annex A): its whole state is one instant, at
which everything taken so far will be repaid. A request passes if that instant is then no further
ahead than the burst; a request larger than a burst passes when there is no debt, and delays the
following ones. So no request is too large to pass, and over time no principal gets more than the
rate.
"""

import math
import time
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.errors import Overloaded, RateLimited
from blackboard.limits import DEFAULT, RATE_BURST_MS, Limits
from blackboard.units import Milliseconds

_CLOSE_ENOUGH_MS: Final = 1e-3  # tolerance for sums of fractions, below the precision of any clock


class Bucket:
    """A rate of `per_second`, with a burst of `burst_ms` of that rate."""

    __slots__ = ("_burst_ms", "_each_ms", "_paid_ms")

    def __init__(self, per_second: float, burst_ms: Milliseconds) -> None:
        self._each_ms = 1_000 / per_second
        self._burst_ms = burst_ms
        self._paid_ms = float("-inf")

    def take(self, amount: int, now_ms: float) -> float:
        """Take `amount`: 0 if it was taken, else the milliseconds until it can be.

        `now_ms` is a clock that never goes back. Nothing is taken when the answer is not 0.
        """
        paid_ms = self._paid_ms
        if paid_ms < now_ms:
            paid_ms = now_ms
        cost_ms = amount * self._each_ms
        over_ms = paid_ms - now_ms
        if cost_ms < self._burst_ms:
            over_ms += cost_ms - self._burst_ms
        if over_ms > _CLOSE_ENOUGH_MS:
            return over_ms
        self._paid_ms = paid_ms + cost_ms
        return 0.0

    def is_full(self, now_ms: float) -> bool:
        """Whether there is no debt, so that the bucket can be replaced by a new one."""
        return self._paid_ms <= now_ms


_HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of each principal in one process; None = unlimited.

    `log_bytes_per_hour` bounds what its commits add to the logs, compacted or not. A principal that
    was idle has a burst of `burst_ms` of each rate; for the growth of the logs, of an hour.
    """

    requests_per_second: int | None = None
    bytes_per_second: int | None = None
    log_bytes_per_hour: int | None = None
    burst_ms: Milliseconds = RATE_BURST_MS

    @property
    def are_unlimited(self) -> bool:
        """Whether no rate is limited."""
        return (self.requests_per_second, self.bytes_per_second, self.log_bytes_per_hour) == (
            None,
            None,
            None,
        )


class Meter:
    """The use of one account. Each method returns the refusal if its argument exceeds the rate."""

    __slots__ = ("__weakref__", "_account", "_bytes", "_log", "_rates", "_requests")

    def __init__(self, account: str, rates: Rates) -> None:
        self._account = account
        self._rates = rates
        self._requests = _bucket(rates.requests_per_second, rates.burst_ms)
        self._bytes = _bucket(rates.bytes_per_second, rates.burst_ms)
        per_hour = rates.log_bytes_per_hour
        per_second = None if per_hour is None else per_hour / _HOUR_S
        self._log = _bucket(per_second, _HOUR_S * 1_000)

    def take_request(self, now_ms: float) -> RateLimited | None:
        """One request, of any kind."""
        if self._requests is None or not (wait_ms := self._requests.take(1, now_ms)):
            return None
        return self._refusal(f"{self._rates.requests_per_second} requests a second", wait_ms)

    def take_bytes(self, size: int, now_ms: float) -> RateLimited | None:
        """A message of `size` bytes."""
        if self._bytes is None or not (wait_ms := self._bytes.take(size, now_ms)):
            return None
        return self._refusal(f"{self._rates.bytes_per_second} bytes a second", wait_ms)

    def take_message(self, size: int) -> bool:
        """A message of `size` bytes that is one request; nothing is taken if it exceeds a rate."""
        if self._bytes is None and self._requests is None:
            return True
        now_ms = clock_ms()
        if self.take_bytes(size, now_ms) is not None:
            return False
        if self.take_request(now_ms) is None:
            return True
        # Given back: the message is offered once more when the rates allow it.
        if self._bytes is not None:
            self._bytes.take(-size, now_ms)
        return False

    def take_log(self, size: int, now_ms: float) -> RateLimited | None:
        """A commit of `size` bytes."""
        if self._log is None or not (wait_ms := self._log.take(size, now_ms)):
            return None
        return self._refusal(f"{self._rates.log_bytes_per_hour} bytes of log an hour", wait_ms)

    def is_forgettable(self, now_ms: float) -> bool:
        """Whether there is no debt."""
        kept = (self._requests, self._bytes, self._log)
        return all(bucket is None or bucket.is_full(now_ms) for bucket in kept)

    def _refusal(self, rate: str, wait_ms: float) -> RateLimited:
        reason = f"{self._account} exceeds {rate}"
        return RateLimited(what=rate, reason=reason, retry_after_ms=math.ceil(wait_ms))


def _bucket(per_second: float | None, burst_ms: Milliseconds) -> Bucket | None:
    return None if per_second is None else Bucket(per_second, burst_ms)


class Meters:
    """The accounts of one process."""

    def __init__(self, rates: Rates, limits: Limits = DEFAULT) -> None:
        self._rates = rates
        self._limits = limits.load
        self._kept: dict[str, Meter] = {}
        self._in_use: WeakValueDictionary[str, Meter] = WeakValueDictionary()
        """The meters that are kept, and dropped ones that are still in use."""

    def meter(self, principal: Principal) -> Meter | None:
        """The meter of the account of `principal`; None without a rate.

        Errors: Overloaded when METERS_MAX other accounts have a debt.
        """
        if self._rates.are_unlimited or principal.credential is None or access.is_admin(principal):
            return None
        account = principal.account
        found = self._kept.get(account)
        if found is None:
            self._make_room()
            # A connection may still use the meter that was dropped; two would allow twice the rate.
            found = self._in_use.get(account) or Meter(account, self._rates)
            self._kept[account] = self._in_use[account] = found
        return found

    def _make_room(self) -> None:
        most = self._limits.meters_max
        if len(self._kept) < most:
            return
        now_ms = clock_ms()
        owing = {name: m for name, m in self._kept.items() if not m.is_forgettable(now_ms)}
        if len(owing) >= most:
            reason = f"{most} principals are at their rates"
            raise Overloaded("accounts", reason, self._limits.overload_retry_ms)
        self._kept = owing


def clock_ms() -> float:
    """The clock of rates: it is monotonic, and unrelated to the date."""
    return time.monotonic() * 1_000
