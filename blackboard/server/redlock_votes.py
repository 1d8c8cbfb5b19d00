"""Leases agreed with the lock masters: Redlock in front of the engine (docs/decisions/0012).

Before a commit that grants or renews leases goes to the engine, the service gets the masters' votes
for them, and gives them back when nobody has the lease any more. The votes belong to the board's
epoch, not to the holder: among the holders of one history the engine decides, and a history that
does not know of a lease waits until the votes for it were given back or ran out.

Invariants
- no lease is granted without the votes; a queue passes a lease on together with them.
- a renewal is never refused because of the masters: its fence is what protects.
- the commit is refused as a whole, and nothing was sent to the engine, when votes are missing.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from blackboard.core import lease
from blackboard.core.commit import Commit, Committed, Expire, Grant, Release, Renew, Result
from blackboard.core.model import Outcome
from blackboard.errors import BlackboardError, StaleEpoch, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.server.commit_queue import CommitQueue
from blackboard.server.security.revocations import Permit
from blackboard.wire.codec import Prepared

if TYPE_CHECKING:  # loaded only where lock masters are configured
    from blackboard.engines.redis.redlock import LockMasters

log = logging.getLogger(__name__)
_LEASE_OPERATIONS: Final = (Grant, Renew, Release, Expire)


def masters_at(urls: Sequence[str], limits: Limits = DEFAULT) -> "LockMasters | None":
    """The lock masters at these URLs, None for no URL at all. Nothing is sent yet.

    Errors: InvalidRequest for a URL that is none.
    """
    if not urls:
        return None
    # Not imported above: pottery replaces json.dumps of the whole process while it is imported.
    from blackboard.engines.redis.redlock import LockMasters

    return LockMasters(urls, limits)


async def submit(
    queue: CommitQueue,
    prepared: Prepared,
    masters: "LockMasters",
    permit: Permit | None = None,
) -> Outcome | BlackboardError:
    """Carry out a commit, with the votes of `masters` for its leases.

    Errors: Unavailable, not applied: no majority of masters answers, or another epoch of the board
    has their votes; or COMMITS_QUEUED_MAX.
    """
    ops = prepared.commit.ops
    if not any(isinstance(op, _LEASE_OPERATIONS) for op in ops):
        return await queue.submit(prepared, permit)
    ballot = _Ballot(masters, queue.board, prepared.commit)
    await ballot.open()
    outcome = await queue.submit(prepared, permit)
    await ballot.close(outcome)
    return outcome


class _Ballot:
    """The votes for one commit."""

    def __init__(self, masters: "LockMasters", board: str, commit: Commit) -> None:
        self._masters = masters
        self._board = board
        self._commit = commit
        self._anew: list[str] = []

    async def open(self) -> None:
        """Get the votes for what is to be granted, and prolong those of what is renewed.

        Errors: Unavailable; newly obtained votes are given back. Cancellation: the same.
        """
        grants = [op for op in self._commit.ops if isinstance(op, Grant)]
        # Without a fence, it renews a place in the queue, for which no votes were given.
        renewals = [op for op in self._commit.ops if isinstance(op, Renew) and op.fence]
        calls = [self._acquire(grant) for grant in grants]
        calls += [self._keep(renewal.key, renewal.ttl_ms) for renewal in renewals]
        try:
            # All of them end before any vote is given back: one that was granted later would stay.
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        except asyncio.CancelledError:
            await self._give_back()
            raise
        for error in outcomes:
            if error is not None:
                await self._give_back()
                raise error

    async def close(self, outcome: Outcome | BlackboardError) -> None:
        """Follow what became of the leases. Votes that are of no use to anybody are given back."""
        if isinstance(outcome, StaleEpoch):
            # What this epoch got before, somebody of it may still rely on; not what it got now.
            await self._give_back()
        # The votes of a refused commit belong to this epoch, and run out (decision 12).
        if not isinstance(outcome, Committed) or outcome.duplicate:
            return
        for op, result in zip(self._commit.ops, outcome.results, strict=True):
            if isinstance(op, Release | Expire) and op.fence:
                await self._follow(op, result, outcome.time_ms)

    async def _follow(self, op: Release | Expire, result: Result, now_ms: int) -> None:
        assert isinstance(result, tuple)
        after = lease.from_result(op.key, result)
        if after is None:
            await self._masters.release(self._name(op.key), self._commit.epoch)
        else:
            # The next holder in the queue has it, so the votes last as long as its lease.
            await self._keep(op.key, after.until_ms - now_ms)

    async def _acquire(self, grant: Grant) -> None:
        name = self._name(grant.key)
        if await self._masters.acquire(name, self._commit.epoch, grant.ttl_ms):
            self._anew.append(name)

    async def _keep(self, key: str, ttl_ms: int) -> None:
        """Have the votes for a lease that is held, if they can be had."""
        try:
            await self._masters.acquire(self._name(key), self._commit.epoch, ttl_ms)
        except Unavailable as error:
            log.warning("lease %s of board %s goes on without votes: %s", key, self._board, error)

    async def _give_back(self) -> None:
        while self._anew:
            await self._masters.release(self._anew.pop(), self._commit.epoch)

    def _name(self, key: str) -> str:
        return f"{self._board}/{key}"
