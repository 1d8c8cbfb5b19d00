"""Keeps leases alive while a block runs, and ends the block at once when they are lost.

Invariants
- `deadline_s` is on a monotonic clock that was read before the grant, or the last answered renewal,
  was sent: whatever the engine's clock does, the lease had not run out there before.
- the block is cancelled at most once, and only while it runs.
- the block's own error goes first: a loss is then a note on it.

Source: the validity time of Redlock (antirez, 2015-16), and asyncio.timeout for the cancelling.
"""

import asyncio
from collections.abc import Awaitable, Callable

from blackboard.client.leases import ambient as held
from blackboard.client.leases.ambient import Hold
from blackboard.errors import BlackboardError, Fenced, LeaseLost, OutcomeUnknown, Unavailable
from blackboard.types import RENEWALS_PER_TTL, Milliseconds


class Keeper:
    """The watchdog of one block.

    `renew` prolongs all leases of `hold` once; Unavailable and OutcomeUnknown of it are tried again
    until the deadline, any other error is a loss.
    """

    def __init__(
        self, hold: Hold, ttl_ms: Milliseconds, renew: Callable[[], Awaitable[object]]
    ) -> None:
        self.lost: LeaseLost | None = None
        self._hold = hold
        self._ttl_s = ttl_ms / 1000
        self._renew = renew
        self._deadline_s = 0.0
        self._block: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._interrupted = False
        self._watchdog: asyncio.Task[None] | None = None

    def start(self, sent_s: float) -> None:
        """The running task begins its block; the leases were last asked for at `sent_s`.

        That is a time of the event loop's clock. From here on its commits carry the fences.
        """
        self._deadline_s = sent_s + self._ttl_s
        self._block = asyncio.current_task()
        assert self._block is not None
        self._cancelling = self._block.cancelling()
        held.take(self._hold)
        self._watchdog = asyncio.create_task(self._keep(sent_s), name="keeper of leases")
        self._watchdog.add_done_callback(self._ended)

    def stop(self) -> None:
        """The block is over, in whichever way: nothing is renewed, nobody cancelled any more."""
        held.let_go(self._hold)
        self._block, block = None, self._block
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._interrupted and block is not None:
            self._interrupted = block.uncancel() <= self._cancelling

    def lose(self, reason: str, fenced: Fenced | None = None) -> None:
        """Note the loss; if the block is running, cancel it. The first loss counts."""
        if self.lost is not None:
            return
        first = self._hold.fences[0]
        key = fenced.key if fenced else first.key
        fence = fenced.fence if fenced else first.fence
        self.lost = LeaseLost(key, fence, reason, fenced.holder if fenced else None)
        if self._block is not None:
            self._interrupted = True
            self._block.cancel()

    def judge(self, error: BaseException | None) -> None:
        """How the block ended, after `stop`, when `error` (None = nothing) left it.

        Errors: LeaseLost after a loss, unless the block has an error of its own, or was cancelled
        by somebody else too.
        """
        if self.lost is None:
            return
        ours = isinstance(error, asyncio.CancelledError) and self._interrupted
        if error is None or ours:
            raise self.lost from error
        error.add_note(str(self.lost))

    async def _keep(self, sent_s: float) -> None:
        """Renew on time. Ends with the error that is a loss."""
        loop = asyncio.get_running_loop()
        pause_s = self._ttl_s / RENEWALS_PER_TTL
        while True:
            await asyncio.sleep(min(sent_s + pause_s, self._deadline_s) - loop.time())
            sent_s = loop.time()
            try:
                async with asyncio.timeout_at(self._deadline_s):
                    await self._renew()
                self._deadline_s = sent_s + self._ttl_s
            except (Unavailable, OutcomeUnknown):
                continue

    def _ended(self, watchdog: "asyncio.Task[None]") -> None:
        error = None if watchdog.cancelled() else watchdog.exception()
        if isinstance(error, TimeoutError):
            self.lose("no renewal was answered within its time to live")
        elif isinstance(error, Fenced):
            self.lose("somebody else has it, or nobody", error)
        elif isinstance(error, BlackboardError):
            self.lose(f"it could not be renewed: {error}")
        elif error is not None:
            self.lose(f"renewing it failed: {error!r}")
