"""Commits under tokens, on an engine that other processes use as well.

A process looks at a token once more as a commit leaves for the engine, with what it knows of the
revocations. What another process has revoked a moment ago it may not know yet, or for long when it
is frozen in between. So each batch with a token in it carries the access number up to which this
process knows the record, and the board, which whoever revokes has told the number of his record,
does not decide what comes with a lower one. Then the record is read on, each token is looked at
again, and what is still permitted is sent again.

Invariants
- a commit whose permit does not stand when its board decides was not carried out.
- nothing is sent again that may have been carried out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from blackboard.core.model import Outcome
from blackboard.engines.base import Behind, Shared, Store
from blackboard.errors import BlackboardError, Unavailable
from blackboard.server.security.revocations import Permit, Revocations, shared_of
from blackboard.wire.codec import Prepared

_ATTEMPTS_MAX: Final = 8
"""Times that a batch is sent while somebody revokes again and again in between."""
Decision = Outcome | BlackboardError


@dataclass
class _Batch:
    """A batch on its way: `left` are the numbers of those that have no decision yet."""

    commits: Sequence[Prepared]
    permits: Sequence[Permit | None]
    decisions: dict[int, Decision]
    left: list[int]

    def take(self, answers: Sequence[Outcome | Behind]) -> Behind | None:
        """Note what was decided; why the rest was not."""
        behind, still = None, []
        for number, answer in zip(self.left, answers, strict=True):
            if isinstance(answer, Behind):
                behind = answer
                still.append(number)
            else:
                self.decisions[number] = answer
        self.left = still
        return behind


class Permits:
    """The way of commits to the engine of one process."""

    def __init__(self, store: Store, revocations: Revocations) -> None:
        self._store = store
        self._revocations = revocations
        self._shared = shared_of(store)

    async def commit(
        self, board: str, commits: Sequence[Prepared], permits: Sequence[Permit | None]
    ) -> Sequence[Decision]:
        """As `Store.commit`, of what was just permitted: one permit each, None = the service's own.

        Errors: Unavailable when certainly none of them was applied. One alone may be refused as
        Unauthenticated or Unavailable.
        """
        if self._shared is None or not any(permits):
            return await self._store.commit(board, commits)
        batch = _Batch(commits, permits, {}, list(range(len(commits))))
        for _ in range(_ATTEMPTS_MAX):
            sent = [commits[number] for number in batch.left]
            answers = await self._shared.commit_at(board, sent, self._revocations.through)
            behind = batch.take(answers)
            if behind is None:
                break
            await self._look_again(board, batch, behind, self._shared)
            if not batch.left:
                break
        for number in batch.left:
            reason = "tokens are revoked all the time"
            batch.decisions[number] = Unavailable(what=f"board {board}", reason=reason)
        return [batch.decisions[number] for number in range(len(commits))]

    async def _look_again(self, board: str, batch: _Batch, behind: Behind, engine: Shared) -> None:
        """Know what the board asks for, and leave out what is not permitted any more."""
        try:
            await self._revocations.catch_up(behind.access)
            if behind.access is None:
                await engine.raise_access(board, self._revocations.through)
        except BlackboardError as error:
            refused: dict[int, BlackboardError] = dict.fromkeys(range(len(batch.left)), error)
        else:
            permits = [batch.permits[number] for number in batch.left]
            refused = dict(self._revocations.recheck(permits))
        for place, refusal in refused.items():
            # One error for all would share a traceback among tasks: each gets its own.
            batch.decisions[batch.left[place]] = type(refusal)(**refusal.fields())
        batch.left = [number for place, number in enumerate(batch.left) if place not in refused]
