"""A barrier: every attached agent delivers its state before a checkpoint is taken.

    async with Barrier(host, board, request, timeout_ms) as barrier:
        answers = await barrier.answers()
        ...                                              # take the cut in here

Each requested agent has two entries in turn. `system/barriers/<agent>`, the gate, exists until the
agent answers by removing it together with its delivery. After that, until the cut,
`system/barriers/<agent>/cut` exists: each commit of the agent must include the gate's removal,
which says that the commit contains all of the agent's memory. The engine refuses anything else
(SnapshotFirst). The log drives the waiting; there is no polling.

Invariants
- After the block nothing of this barrier is left; if the process dies, nothing is left after the
  timeout.
- an agent counts as having answered only if it removed its gate itself, and not by leaving; a
  process that attached as the agent afterwards has not answered yet.
- A board has one barrier at a time; another one waits for it, within its own timeout.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

from blackboard.client.cancellation import finish
from blackboard.client.leases.presence import agent_of
from blackboard.core.access import READ_ALL
from blackboard.core.checkpoints import BarrierReport as Answers
from blackboard.core.commit import ABSENT, ChangeKind, Condition, Delete, KeyAt, LogEntry, Op, Put
from blackboard.core.path import barrier_key, cut_key, identity_key, parse_patterns
from blackboard.core.view import View
from blackboard.core.watch import Position
from blackboard.errors import BlackboardError, Conflict
from blackboard.limits import BARRIER_GRACE_MS, OPERATIONS_MAX
from blackboard.server.boards import OpenBoard
from blackboard.server.feed import Watcher
from blackboard.units import Milliseconds, Revision
from blackboard.wire.codec import decode_value, encode_value

_VIEW = View(
    patterns=parse_patterns((barrier_key("*"), cut_key("*"), identity_key("*"))),
    grants=READ_ALL,
)
_ASKED_AT_ONCE = OPERATIONS_MAX // 2
"""Agents per commit, with two entries each."""


class Barrier:
    """Requests the state of every attached agent of a board, for up to `timeout_ms`.

    `request` identifies the barrier: the same request again, after its service died, need not wait
    for the old entries.
    """

    def __init__(self, board: OpenBoard, request: str, timeout_ms: Milliseconds) -> None:
        self._board = board
        self._request = request
        self._timeout_ms = timeout_ms
        self._deadline_s = 0.0
        self._asked: Revision = 0
        self._since = Position("", 0)
        """Agents that are not attached any more left after this."""
        self._asked_at: dict[str, Revision] = {}
        """By agent: the revision of the entry that exists until the cut."""
        self._waiting: set[str] = set()
        self._delivered: set[str] = set()
        self._left: set[str] = set()

    async def __aenter__(self) -> Self:
        self._deadline_s = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        try:
            # Agents whose turn to be asked did not come in time count as not fresh.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._deadline_s):
                    await self._ask_in_turn()
        except BaseException:  # cancelled in the middle: `__aexit__` will not run
            await finish(self._lift())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await finish(self._lift())

    async def answers(self) -> Answers:
        """How the agents answered, once all have, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline_s):
                await self._wait()
        names = (self._delivered, self._waiting, self._left)
        delivered, not_fresh, left = (tuple(sorted(found)) for found in names)
        return Answers(self._asked, delivered, not_fresh, left)

    # --- asking -----------------------------------------------------------------------------------

    async def _ask_in_turn(self) -> None:
        """Ask all attached agents, once there is no other barrier."""
        while True:
            self._waiting = await self._attached()
            agents = sorted(self._waiting)
            chunks = [agents[i : i + _ASKED_AT_ONCE] for i in range(0, len(agents), _ASKED_AT_ONCE)]
            try:
                for chunk in chunks:
                    # Not to be interrupted: only what is in `_asked_at` is lifted again.
                    await finish(self._ask(chunk))
                return
            except Conflict as other:
                # It must hold nothing while it waits: the other barrier may need the same agents.
                await finish(self._lift())
                await self._lifted(other)

    async def _attached(self) -> set[str]:
        """The agents that have their identity now."""
        # The head first: those that leave from here on are found in the log.
        head = await self._board.head()
        reading = await self._board.store.leases(self._board.name)
        self._asked, self._since = head.revision, Position(head.epoch.id, head.revision)
        living = (lease for lease in reading.leases if lease.until_ms > head.time_ms)
        return {agent for lease in living if (agent := agent_of(lease)) is not None}

    async def _ask(self, agents: list[str]) -> None:
        """Errors: Conflict, when there is another barrier for one of them."""
        asked = encode_value({"timeout_ms": self._timeout_ms, "request": self._request})
        # Beyond the deadline: none may expire before the cut, and all do if the service dies.
        ttl_ms = self._timeout_ms + BARRIER_GRACE_MS
        left_behind = await self._left_behind([cut_key(agent) for agent in agents])
        ops: list[Op] = []
        conditions: list[Condition] = []
        for agent in agents:
            key = cut_key(agent)
            ops += [Put(barrier_key(agent), asked, ttl_ms), Put(key, asked, ttl_ms)]
            # Of the two entries, only this one tells of another barrier: an agent removes its gate.
            conditions.append(KeyAt(key, left_behind.get(key, ABSENT)))
        done = await self._board.commit_as_system(ops, conditions)
        # Of the first commit: an answer to that may come before the last one is made.
        self._asked = done.revision if not self._asked_at else self._asked
        self._asked_at |= dict.fromkeys(agents, done.revision)

    async def _left_behind(self, keys: list[str]) -> dict[str, Revision]:
        """The entries of an earlier attempt of the same request, whose service died."""
        reading = await self._board.read(keys)
        return {
            entry.key: entry.mod_revision
            for entry in reading.entries
            if decode_value(entry.value).get("request") == self._request
        }

    async def _lifted(self, other: Conflict) -> None:
        """Return when the barrier that was in the way may have been lifted."""
        epoch = (await self._board.head()).epoch.id
        async with self._watch(Position(epoch, other.head)) as watcher:
            while True:
                for entry in (await anext(watcher)).revisions:
                    gone = {c.key for c in entry.changes if c.kind is ChangeKind.DELETE}
                    # If the engine lost the entry, the log has a marker, and no removal.
                    if other.key in gone or entry.epoch is not None:
                        return

    @contextlib.asynccontextmanager
    async def _watch(self, since: Position) -> AsyncIterator[Watcher]:
        async with self._board.feed.watch(_VIEW, since) as watcher:
            yield watcher

    # --- lifting ----------------------------------------------------------------------------------

    async def _lift(self) -> None:
        """Remove the entries of this barrier. Those that cannot be removed expire."""
        asked = sorted(self._asked_at.items())
        self._asked_at = {}
        for start in range(0, len(asked), _ASKED_AT_ONCE):
            chunk = asked[start : start + _ASKED_AT_ONCE]
            # Only as they were put: once they have expired, another barrier may have put its own.
            ops = [Delete(key(agent)) for agent, _ in chunk for key in (barrier_key, cut_key)]
            conditions = [KeyAt(cut_key(agent), revision) for agent, revision in chunk]
            with contextlib.suppress(BlackboardError):
                await self._board.commit_as_system(ops, conditions)

    # --- the answers ------------------------------------------------------------------------------

    async def _wait(self) -> None:
        if not self._asked_at:
            return
        async with self._watch(self._since) as watcher:
            while self._waiting:
                for entry in (await anext(watcher)).revisions:
                    if entry.epoch is not None:
                        return  # all leases ended, so no agent is left to answer
                    for agent in self._notice(entry):
                        await self._ask_again(agent)

    def _notice(self, entry: LogEntry) -> Iterator[str]:
        """Process a log entry; yields the agents as which another process has attached since."""
        for change in entry.changes:
            # The third segment of a barrier's entry, the second one of the key of an identity.
            agent = change.key.split("/")[2 if change.lease is None else 1]
            if agent not in self._asked_at:
                continue
            if change.kind is ChangeKind.GRANT:
                self._delivered.discard(agent)
                self._left.discard(agent)
                self._waiting.add(agent)
                yield agent
            elif agent not in self._waiting:
                continue
            elif change.kind is ChangeKind.DELETE and entry.author == agent:
                if entry.revision <= self._asked_at[agent]:
                    continue  # a gate of the barrier before
                self._waiting.discard(agent)
                self._delivered.add(agent)
            elif change.kind in (ChangeKind.RELEASE, ChangeKind.EXPIRE):
                self._waiting.discard(agent)
                self._left.add(agent)

    async def _ask_again(self, agent: str) -> None:
        """Attaching is not a delivery: the gate is put back if it was removed before."""
        asked = encode_value({"timeout_ms": self._timeout_ms, "request": self._request})
        put = Put(barrier_key(agent), asked, self._timeout_ms + BARRIER_GRACE_MS)
        stands = KeyAt(cut_key(agent), self._asked_at[agent])
        # The gate was not removed before, or the barrier is over.
        with contextlib.suppress(Conflict):
            await self._board.commit_as_system([put], [KeyAt(barrier_key(agent), ABSENT), stands])
