"""Admission control: whether a request of a peer is accepted now, given its rate and the load.

A refused request is answered with an error that says when to retry, and its connection is not read
from for a while, because refusing has a cost, too.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.errors import Overloaded
from blackboard.limits import DEFAULT, LoadLimits
from blackboard.server.commit_queue import Load
from blackboard.server.host import Host
from blackboard.server.overload.charges import Charges, Shares, frame_us
from blackboard.server.overload.rate_limits import Meter, clock_ms
from blackboard.wire.methods import FREE


@dataclass(slots=True)
class Admission:
    """The admission of one peer."""

    load: Load
    shares: Shares
    charges: Charges
    account: str
    meter: Meter | None
    is_admin: bool
    pause_ms: float = 0
    """How long to stop reading from the peer."""
    limits: LoadLimits = DEFAULT.load

    @classmethod
    def of(cls, host: Host, principal: Principal) -> Self:
        """The admission of a principal. Errors: Overloaded."""
        meter = host.meters.meter(principal)
        account, is_admin = principal.account, access.is_admin(principal)
        limits = host.limits.load
        return cls(host.load, host.shares, host.charges, account, meter, is_admin, limits=limits)

    def over(self, size: int) -> Overloaded | None:
        """Why a message of `size` bytes is not accepted; None if it is."""
        if self.meter is None:
            return None
        return self._noted(self.meter.take_bytes(size, clock_ms()))

    @property
    def takes_all(self) -> bool:
        """Whether `refusal` is None now, for any number of requests."""
        return self.meter is None and (self.is_admin or not self.load.is_late)

    def refusal(self, method: str) -> Overloaded | None:
        """Why a request is not taken; None if it is."""
        # What ends something makes the load smaller, and admins must be able to act during one.
        if self.load.is_late and not self.is_admin and method not in FREE:
            return self._noted(self.load.lateness())
        if self.meter is None:
            return None
        return self._noted(self.meter.take_request(clock_ms()))

    async def pause(self) -> None:
        """Wait for the requested time, at most RATE_PAUSE_MS_MAX."""
        pause_ms, self.pause_ms = self.pause_ms, 0
        await asyncio.sleep(min(pause_ms, self.limits.rate_pause_ms_max) / 1000)

    async def turn(self, sizes: Sequence[int]) -> int:
        """Wait until messages are accepted, for a protocol without a refusal. Returns how many of
        those of `sizes` bytes each are: at least the first, and none behind one that had to wait.
        """
        count, is_refused = 0, False
        while count < len(sizes) and not is_refused:
            while self.over(sizes[count]) is not None:
                is_refused = True
                await self.pause()
            while self.refusal("document") is not None:
                is_refused = True
                await self.pause()
            count += 1
        # The waiting above was the pause.
        self.pause_ms = 0
        debt_s = self.charges.debt_s(self.account)
        if debt_s > 0:
            await asyncio.sleep(min(debt_s, self.limits.debt_pause_ms_max / 1000))
        await self.shares.wait(self.account, sum(map(frame_us, sizes[:count])))
        return count

    def at_once(self, size: int) -> bool:
        """Whether a message of `size` bytes is accepted now, for a protocol without a refusal;
        otherwise `turn` waits until it is. It counts for the rates only if it is accepted."""
        return (
            not self.pause_ms
            and (self.is_admin or not self.load.is_late)
            and not self.charges.debt_s(self.account)
            and self.shares.at_once(self.account, frame_us(size))
            and (self.meter is None or self.meter.take_message(size))
        )

    def _noted(self, refusal: Overloaded | None) -> Overloaded | None:
        if refusal is not None:
            self.pause_ms = max(self.pause_ms, refusal.retry_after_ms)
        return refusal
