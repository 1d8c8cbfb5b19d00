"""Commits of the service to a board of its own, such as its data keys or its revocations."""

import asyncio
import secrets
from collections.abc import Sequence

from blackboard.core.commit import Commit, CommitId, Condition, Op
from blackboard.core.model import Outcome
from blackboard.engines.base import Store
from blackboard.wire.codec import SYSTEM_AGENT, prepare


class SystemWriter:
    """One process' commits to `board`, one after the other.

    Their steps are numbered, and a step that reaches the engine after a later one is refused.
    """

    def __init__(self, store: Store, board: str) -> None:
        self._store = store
        self._board = board
        self._incarnation, self._step = secrets.token_hex(8), 0
        self._in_order = asyncio.Lock()

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> Outcome:
        """Commit to the current epoch. Errors: those of the engine's `open` and `commit`.

        Cancellation: it may be committed.
        """
        async with self._in_order:
            # Even if this one fails: a late copy of it must not pass for the next commit.
            self._step += 1
            # Asked each time: in the epoch from before a restart of the engine it would be refused.
            epoch = (await self._store.open(self._board)).epoch.id
            name = CommitId(SYSTEM_AGENT, 0, self._incarnation, self._step)
            commit = Commit(name, epoch, tuple(ops), tuple(conditions))
            (outcome,) = await self._store.commit(self._board, [prepare(commit)])
        return outcome
