"""A barrier: every attached agent brings in what it knows before a checkpoint is taken.

    async with Barrier(host, board, timeout_ms) as barrier:
        answers = await barrier.answers()

While it stands, `system/barriers/<agent>` exists for each agent that has not answered, and what
else that agent commits is refused (SnapshotFirst). An agent answers by removing it, together with
what it brings. Who waits is woken by the log; nobody polls.

Invariants
- after the block no gate of this barrier is left, and if the process dies, none is after its time.
- an agent counts as having answered only if it removed its gate itself.
"""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from blackboard.client.cancellation import finish
from blackboard.client.leases.presence import agent_of, identity_key
from blackboard.core.access import READ_ALL
from blackboard.core.checkpoints import Barrier as Answers
from blackboard.core.commit import ChangeKind, Delete, KeyAt, LogEntry, Put
from blackboard.core.path import barrier_key, parse_patterns
from blackboard.core.watch import Position
from blackboard.errors import BlackboardError
from blackboard.server.boards import Host, commit_as_system
from blackboard.server.feed import View
from blackboard.types import BARRIER_GRACE_MS, Milliseconds, Revision
from blackboard.wire.codec import encode_value

_VIEW = View(
    patterns=parse_patterns((barrier_key("*"), identity_key("*"))),
    grants=READ_ALL,
)


class Barrier:
    """Asks every attached agent of `board` for its state, for up to `timeout_ms`."""

    def __init__(self, host: Host, board: str, timeout_ms: Milliseconds) -> None:
        self._host = host
        self._board = board
        self._timeout_ms = timeout_ms
        self._asked: Revision = 0
        self._epoch = ""
        self._waiting: set[str] = set()
        self._delivered: set[str] = set()
        self._left: set[str] = set()

    async def __aenter__(self) -> Self:
        self._waiting = await self._attached()
        try:
            if self._waiting:
                await finish(self._ask())
        except BaseException:  # asked, but cancelled in the middle: there will be no leaving
            await finish(self._lift())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._waiting:
            await finish(self._lift())

    async def answers(self) -> Answers:
        """How the agents answered, once all have, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._wait()
        names = (self._delivered, self._waiting, self._left)
        delivered, not_fresh, left = (tuple(sorted(found)) for found in names)
        return Answers(self._asked, delivered, not_fresh, left)

    async def _attached(self) -> set[str]:
        """The agents that have their identity now."""
        reading = await self._host.store.leases(self._board)
        head = await self._host.head(self._board)
        self._asked = head.revision
        living = (lease for lease in reading.leases if lease.until_ms > head.time_ms)
        return {agent for lease in living if (agent := agent_of(lease)) is not None}

    async def _ask(self) -> None:
        asked = encode_value({"timeout_ms": self._timeout_ms})
        ttl_ms = self._timeout_ms + BARRIER_GRACE_MS
        gates = [Put(barrier_key(agent), asked, ttl_ms) for agent in sorted(self._waiting)]
        self._asked = (await commit_as_system(self._host, self._board, gates)).revision

    async def _lift(self) -> None:
        """Remove what is left of our gates; one that another barrier asked for anew stays."""
        keys = [barrier_key(agent) for agent in sorted(self._waiting)]
        await asyncio.gather(*(self._remove(key) for key in keys))

    async def _remove(self, key: str) -> None:
        # A conflict: it was answered just now, or is another barrier's. What could not be removed
        # ends with its time to live.
        with contextlib.suppress(BlackboardError):
            ours = [KeyAt(key, self._asked)]
            await commit_as_system(self._host, self._board, [Delete(key)], ours)

    async def _wait(self) -> None:
        opened = await self._host.use(self._board)
        epoch = (await self._host.head(self._board)).epoch.id
        async with opened.feed.watch(_VIEW, Position(epoch, self._asked)) as watcher:
            while self._waiting:
                for entry in (await anext(watcher)).revisions:
                    if entry.epoch is not None:
                        return  # all leases ended: nobody is there any more to answer
                    self._notice(entry)

    def _notice(self, entry: LogEntry) -> None:
        for change in entry.changes:
            agent = change.key.split("/")[2 if change.lease is None else 1]
            if agent not in self._waiting:
                continue
            if change.kind is ChangeKind.DELETE and entry.author == agent:
                self._waiting.discard(agent)
                self._delivered.add(agent)
            elif change.kind in (ChangeKind.RELEASE, ChangeKind.EXPIRE):
                self._waiting.discard(agent)
                self._left.add(agent)
