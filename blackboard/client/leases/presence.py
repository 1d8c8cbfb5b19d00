"""Presence: which agents are running on a board, each in only one process.

    async with board.attach("researcher") as me:
        await me.report("reading", "annual reports")
        async with me.board.step() as step: ...

Invariants
- an agent's identity is a lease on `private/<agent>/~identity`: at most one process has it, and in
  the block its fence goes into every commit of that agent. A process that lost it is Fenced.
- `public/~agents/<agent>` exists from soon after the lease was granted until it ends: the commit
  that releases or expires the lease removes it.

Source: the presence of Erlang's registry and of XMPP; single activation as in Orleans' grains.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from blackboard import telemetry
from blackboard.client.leases.lock import Lock
from blackboard.client.link import WatchRequest
from blackboard.client.views import Entry
from blackboard.client.watch import Watch
from blackboard.client.writer import CommitRequest, Deliver, Writer, pause_s
from blackboard.core.commit import Delete, Lease, Op, Put, Release
from blackboard.core.lease import is_holder_of, is_owned_by
from blackboard.core.path import agent_identified, barrier_key, identity_key
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    BoardFrozen,
    Compacted,
    Fenced,
    InvalidRequest,
    LeaseHeld,
    RolledBack,
    SnapshotFirst,
    Unavailable,
)
from blackboard.limits import READ_KEYS_MAX
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import SYSTEM_AGENT, encode_value

log = logging.getLogger(__name__)
BoardT = TypeVar("BoardT")
IfTaken = Literal["wait", "take_over", "refuse"]
AGENTS = "public/~agents"
_ATTACHED = "attached"


def presence_key(agent: str) -> Key:
    """The entry that shows that `agent` is attached."""
    return f"{AGENTS}/{agent}"


def agent_of(lease: Lease) -> str | None:
    """The agent whose identity `lease` is; None if it is another one."""
    return agent_identified(lease.key)


def entries_that_end_with(lease: Lease) -> tuple[Key, ...]:
    """The entries that must not outlive `lease`: for an identity, the presence of its agent."""
    agent = agent_of(lease)
    return () if agent is None else (presence_key(agent),)


@dataclass(frozen=True, slots=True)
class Presence:
    """An attached agent: since when, the last revision it committed, and what it reports.

    `alive` says whether it has its identity now; None if you may not see that. (The presence of an
    agent that died is removed about a second after its lease ran out.) `account` is set if the
    agent's name was narrowed from it.
    """

    agent: str
    since_ms: Milliseconds
    step: Revision
    state: str
    note: str
    alive: bool | None
    account: str = ""


class Attachment(Lock, Generic[BoardT]):
    """Made by `Board.attach`; a block in which this process is an agent. Used once.

    `board` is the board as that agent. Errors and cancellation as of a Lock.
    """

    def __init__(
        self,
        board: BoardT,
        writer: Writer,
        *,
        if_taken: IfTaken,
        ttl_ms: Milliseconds,
        timeout_ms: Milliseconds | None,
        deliver: Deliver | None = None,
    ) -> None:
        if if_taken not in ("wait", "take_over", "refuse"):
            reason = f"{if_taken!r} is not wait, take_over or refuse"
            raise InvalidRequest(field="if_taken", reason=reason)
        patience = timeout_ms if if_taken == "wait" else 0
        agent = writer.link.agent
        super().__init__(writer, [identity_key(agent)], ttl_ms=ttl_ms, timeout_ms=patience)
        self.board = board
        self.agent = agent
        self._takes_over = if_taken == "take_over"
        self._since_ms: Milliseconds = 0
        self._state, self._note = _ATTACHED, ""
        self._published: dict[str, Any] = {}
        self._silent = False
        # An object of its own: the process that takes over may be this one, with the same function.
        self._deliver = None if deliver is None else partial(deliver)
        self._delivering: asyncio.Task[None] | None = None

    async def report(self, state: str, note: str = "") -> None:
        """Publish what this agent is doing. Errors: Fenced when it was taken over."""
        self._state, self._note = state, note
        await self._report(brings=True)

    async def _report(self, *, brings: bool) -> None:
        presence = self._presence()
        put = Put(presence_key(self.agent), encode_value(presence))
        spec = CommitRequest((put,), fences=self.fences)
        self._published = presence  # a renewal at the same time need not write it, too
        try:
            await self._writer.commit(spec, with_held=False, brings=brings, waits=brings)
        except BaseException:
            # It may not be there: the next renewal writes it again.
            self._published = {}
            raise

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        # By the engine's clock, as others compare it: the clock of this machine may differ.
        self._since_ms = self.until_ms - self._ttl_ms
        try:
            await self._report(brings=False)
        except (BoardFrozen, SnapshotFirst):
            # A checkpoint waits for this agent, and attaching is not a delivery. Until the agent
            # has delivered, only its lease exists, and a later renewal writes its presence. The
            # same holds if the board was frozen after the lease was granted.
            pass
        except BaseException:
            # An `async with` whose `__aenter__` raises does not call it.
            await self.__aexit__(*sys.exc_info())
            raise
        if self._deliver is not None:
            self._writer.deliver = self._deliver
            with telemetry.apart():
                self._delivering = asyncio.create_task(self._deliver_when_asked())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Nothing is awaited before the renewing ends (`Lock.__aexit__`): a loss that is detected
        # after the block must not cancel a task that is leaving it.
        if self._delivering is not None:
            self._delivering.cancel()
            if self._writer.deliver is self._deliver:
                self._writer.deliver = None
        await super().__aexit__(kind, error, trace)

    async def _leave(self) -> Fenced | None:
        """As for a lock; a delivery in progress ends before the identity is released."""
        if self._delivering is not None:
            patience_s = self._limits.client.finish_timeout_ms / 1000
            _, late = await asyncio.wait([self._delivering], timeout=patience_s)
            if late:
                log.warning("agent %s: its delivery does not end", self.agent)
        return await super()._leave()

    async def _deliver_when_asked(self) -> None:
        """Deliver this agent's state as soon as a checkpoint requests it, without waiting for its
        next commit. A failure here occurs again at that commit, where it reaches the agent."""
        pauses_ms = self._limits.client.commit_pauses_ms
        while True:
            try:
                await self._deliver_in_watch()
            except (Compacted, RolledBack, Unavailable) as error:
                # The identity may outlast this: an idle agent makes no commit that would deliver.
                log.info("agent %s watches again for requests: %s", self.agent, error)
                if self._writer.link.is_closed:
                    return
                await asyncio.sleep(pause_s(error, pauses_ms[-1]))
            except BlackboardError as error:
                log.warning("agent %s misses requests for its state: %s", self.agent, error)
                return
            except Exception:
                log.exception("agent %s did not deliver", self.agent)
                return

    async def _deliver_in_watch(self) -> None:
        """Deliver as often as it is requested, without end. Errors: those of watching and of
        `Writer.bring`."""
        writer, key = self._writer, barrier_key(self.agent)
        request = WatchRequest((key,))
        async with Watch(
            writer.link, writer.board, request, revision=None, snapshot=True, saw=writer.saw
        ) as watch:
            # A checkpoint may have asked before the watch began.
            for entry in watch.state.values():
                await writer.bring(entry.mod_revision, key)
            async for revised in watch:
                if any(change.kind == "put" for change in revised.changes):
                    await writer.bring(revised.revision, key)

    # --- additions to the commits of a lock ----------------------------------------------------

    async def _ask(self) -> None:
        """As for a lock; if another process takes the identity at the same time, try again."""
        attempts_max = self._limits.client.take_over_attempts_max if self._takes_over else 1
        for _ in range(attempts_max - 1):
            try:
                await super()._ask()
            except (Fenced, LeaseHeld):
                continue
            return
        await super()._ask()

    async def _asking(self) -> Sequence[Op]:
        asking = await super()._asking()
        if not self._takes_over:
            return asking
        (key,) = self.keys
        reading = await self._writer.link.leases(self._writer.board, key, limit=1)
        # In one commit, so that no third process gets the lease in between. If the holder changes
        # first, the commit is refused (Fenced), and `_ask` repeats it.
        return [*_ends(reading.leases), *asking]

    def _renewing(self) -> Sequence[Op]:
        renewing = super()._renewing()
        if self._silent or not self._since_ms or self._presence() == self._published:
            return renewing
        presence = self._presence()
        return [*renewing, Put(presence_key(self.agent), encode_value(presence))]

    async def _renew(self) -> None:
        presence = self._presence()
        try:
            await super()._renew()
            self._published = presence
        except (BoardFrozen, SnapshotFirst):
            # Until the cut, or the thaw, only leases are renewed: the presence is written later.
            self._silent = True
            try:
                await super()._renew()
            finally:
                self._silent = False
            self._published = {}

    def _leaving(self) -> Sequence[Op]:
        """Also ends the barrier of a checkpoint: an agent that leaves has nothing more to
        deliver."""
        leaving = super()._leaving()
        if not self._since_ms:
            return leaving
        return [*leaving, Delete(presence_key(self.agent)), Delete(barrier_key(self.agent))]

    def _presence(self) -> dict[str, Any]:
        return {
            "since_ms": self._since_ms,
            "step": self.committed,
            "state": self._state,
            "note": self._note,
        }


class PresenceBoard(Protocol):
    """The part of a Board that is needed to list attached agents."""

    @property
    def agent(self) -> str:
        """The reading agent."""

    def scan(self, pattern: str) -> AsyncIterator[Entry]:
        """All entries that match."""

    async def leases(self, pattern: str) -> Sequence[Lease]:
        """The leases that match and may be read."""

    async def entries(self, keys: Sequence[Key]) -> Mapping[Key, Entry]:
        """The entries of `keys`; AccessDenied unless all may be read."""


async def present(board: PresenceBoard) -> tuple[Presence, ...]:
    """The attached agents, by name: `Board.agents`."""
    entries = [entry async for entry in board.scan(f"{AGENTS}/*")]
    held = {lease.key: lease for lease in await board.leases(identity_key("*"))}
    hidden = await _hidden(board, [identity_key(_name_of(entry)) for entry in entries])
    return tuple(filter(None, (_presence_of(entry, held, hidden) for entry in entries)))


def _presence_of(entry: Entry, held: Mapping[Key, Lease], hidden: set[Key]) -> Presence | None:
    """The presence in `entry`; None if it is malformed. Other agents may write there, too: a
    presence that the agent did not write itself is not alive, even if the agent is."""
    key = identity_key(_name_of(entry))
    alive = None if key in hidden else key in held and _is_its_own(entry, held[key])
    match entry.value:
        case {"since_ms": int(since), "step": int(step), "state": str(state), "note": str(note)}:
            return Presence(_name_of(entry), since, step, state, note, alive, entry.account)
    return None


def _is_its_own(entry: Entry, lease: Lease) -> bool:
    """Whether the holder of the identity wrote the presence, or a restore put it back."""
    agent = _name_of(entry)
    if entry.author == SYSTEM_AGENT:
        return True
    is_held = is_owned_by(agent, entry.account, lease.holder) or is_holder_of(agent, lease.holder)
    return entry.author == agent and is_held


async def _hidden(board: PresenceBoard, keys: Sequence[Key]) -> set[Key]:
    """Those of `keys` that the reader may not read."""
    own = {identity_key(board.agent)}
    try:
        for start in range(0, len(keys), READ_KEYS_MAX):
            await board.entries(keys[start : start + READ_KEYS_MAX])
    except AccessDenied:
        return set(keys) - own
    return set()


def _name_of(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]


def _ends(leases: Sequence[Lease]) -> list[Op]:
    """The operations that end each lease and empty its queue, so that the same commit can grant
    it."""
    ops: list[Op] = []
    for lease in leases:
        ops += [Release(lease.key, waiter.holder, 0) for waiter in lease.waiters]
        ops.append(Release(lease.key, lease.holder, lease.fence))
    return ops
