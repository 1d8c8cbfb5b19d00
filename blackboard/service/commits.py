"""Group commit: what queued while the last engine call was in flight goes together in the next.

Invariants
- per board at most FLIGHTS_MAX engine calls are in flight; commits leave in the order they came.
- a writer that waits for each answer (every lane does) never has commits in two of them.
- a commit that was taken from the queue gets an outcome, whatever happens to its sender.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import cast

from blackboard.core.model import Outcome
from blackboard.errors import BlackboardError, OutcomeUnknown, Unavailable
from blackboard.store.base import Store
from blackboard.types import BATCH_BYTES_MAX, BATCH_COMMITS_MAX, COMMITS_QUEUED_MAX, FLIGHTS_MAX
from blackboard.wire.codec import Prepared

Waiting = tuple[Prepared, "asyncio.Future[Outcome | BlackboardError]"]


@dataclass(slots=True)
class CommitCounts:
    """What one queue did so far."""

    commits: int = 0
    batches: int = 0
    refused: int = 0


@dataclass
class CommitQueue:
    """The commits of one board on their way to its engine."""

    store: Store
    board: str
    counts: CommitCounts = field(default_factory=CommitCounts)
    _waiting: deque[Waiting] = field(default_factory=deque)
    _in_flight: int = 0
    _workers: "set[asyncio.Task[None]]" = field(default_factory=set)

    def submit(self, prepared: Prepared) -> "asyncio.Future[Outcome | BlackboardError]":
        """Queue one commit; the future tells its outcome.

        Errors: Unavailable when COMMITS_QUEUED_MAX commits wait already.
        Cancellation: the commit may still be applied; its outcome is then unknown to the caller.
        """
        if len(self._waiting) >= COMMITS_QUEUED_MAX:
            raise Unavailable(what=f"board {self.board}", reason="too many commits are waiting")
        outcome: asyncio.Future[Outcome | BlackboardError]
        outcome = asyncio.get_running_loop().create_future()
        self._waiting.append((prepared, outcome))
        if len(self._workers) < FLIGHTS_MAX:
            worker = asyncio.create_task(self._work(), name=f"commits of {self.board}")
            self._workers.add(worker)
        return outcome

    async def aclose(self) -> None:
        """Wait until everything that was queued has its outcome."""
        await asyncio.gather(*self._workers)

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                outcomes = await self._commit(batch)
                for (_, waiter), outcome in zip(batch, outcomes, strict=True):
                    if not waiter.done():
                        waiter.set_result(outcome)
        finally:
            self._workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _take(self) -> list[Waiting]:
        """The next batch: at least one commit, then as many as the limits allow.

        While another call could leave too, it takes its share only: a disk that syncs for one half
        of the writers, while the other half is decided, waits for nobody.
        """
        share = -(-len(self._waiting) // (FLIGHTS_MAX - self._in_flight))
        batch = [self._waiting.popleft()]
        size = batch[0][0].size
        while self._waiting and len(batch) < min(share, BATCH_COMMITS_MAX):
            size += self._waiting[0][0].size
            if size > BATCH_BYTES_MAX:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _commit(self, batch: list[Waiting]) -> list[Outcome | BlackboardError]:
        commits = [prepared for prepared, _ in batch]
        outcomes: list[Outcome | BlackboardError]
        self._in_flight += 1
        try:
            outcomes = list(await self.store.commit(self.board, commits))
        except BlackboardError as error:
            # One error for all would share a traceback among tasks: each gets its own.
            outcomes = [type(error)(**error.fields()) for _ in batch]
        except BaseException:
            for prepared, waiter in batch + list(self._waiting):
                if not waiter.done():
                    waiter.set_result(_unknown(prepared))
            self._waiting.clear()
            raise
        finally:
            self._in_flight -= 1
        self.counts.batches += 1
        self.counts.commits += len(batch)
        self.counts.refused += sum(isinstance(o, BlackboardError) for o in outcomes)
        return outcomes


def _unknown(prepared: Prepared) -> OutcomeUnknown:
    name = prepared.commit.id
    reason = "the service stopped or failed"
    return OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, reason)
