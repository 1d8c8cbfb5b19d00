"""Those who work on the board of a simulated run, and write down what they did and saw."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from blackboard.client.board import Board
from blackboard.client.remote.channel import Channel
from blackboard.client.remote.connect import Address
from blackboard.client.remote.link import RemoteTransport
from blackboard.client.watch import Watch
from blackboard.core.commit import HeldFence, KeyAt, Op, Put
from blackboard.errors import (
    BlackboardError,
    BoardFrozen,
    Compacted,
    LeaseLost,
    OutcomeUnknown,
    Rejected,
    RolledBack,
    StaleEpoch,
    Unavailable,
)
from blackboard.limits import DEFAULT
from blackboard.wire.codec import encode_value
from tests.guarantees.history import History, Mark, Read, Watched, Write
from tests.guarantees.lease_history import Acquired, Relied
from tests.guarantees.traffic import COUNTERS, PAIRS, entry_of
from tests.simulation.engines import BOARD
from tests.simulation.loop import rest
from tests.simulation.network import Network
from tests.simulation.plan import Plan
from tests.simulation.trace import Trace

LOCK: Final = "public/lock"
COUNTED: Final = "public/locked/counter"
PATIENCE_MS: Final = DEFAULT.connection.request_timeout_ms
PAUSE_S: Final = 0.15
TTL_MS: Final = 500
FROZEN_WAIT_MS: Final = 60_000
"""How long some wait for a thaw: longer than any freeze of a run."""
_SLOW_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """What one client learned, in its order: it "saw" a revision, was "done" with a commit there,
    or learned that the epoch is another one ("stale")."""

    client: str
    kind: str
    revision: int


@dataclass(slots=True)
class Records:
    """Everything that the actors of a run wrote down."""

    history: History = field(default_factory=History)
    ended_in: dict[int, str] = field(default_factory=dict)
    """How a watcher's chain of watches ended, by its place in the history."""
    acquired: list[Acquired] = field(default_factory=list)
    relied: list[Relied] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Who waited for a thaw, and was refused."""
    seen: list[Seen] = field(default_factory=list)


@dataclass(slots=True)
class Stage:
    """What actors share. `is_over` says that nothing is written any more, up to `head`."""

    plan: Plan
    network: Network
    trace: Trace
    records: Records = field(default_factory=Records)
    head: int | None = None

    def dice(self, name: str) -> random.Random:
        """A random source of its own for the actor `name`."""
        return random.Random(f"{name} {self.plan.seed}")

    @asynccontextmanager
    async def board(self, name: str) -> AsyncIterator[Board]:
        """The board, over a connection of its own."""
        address = Address("ws://simulated", name)
        channel = Channel(address, patience_ms=PATIENCE_MS, dial=self.network.dial)
        while True:
            try:
                await channel.open()
                break
            except Unavailable:  # nobody answers right now
                channel = Channel(
                    address,
                    patience_ms=PATIENCE_MS,
                    dial=self.network.dial,
                )
                await rest(PAUSE_S)
        try:
            yield Board(RemoteTransport(channel), BOARD)
        finally:
            await channel.aclose()

    def told(self, name: str, text: str) -> None:
        """Put an answer into the trace."""
        self.trace.note("told", f"{name} {text}")


# --- writers and readers --------------------------------------------------------------------------


class Writer:
    """Asks for commits, one after the other, of three kinds; reads now and then."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._dice = stage.dice(name)
        self._waits = "freeze" in stage.plan.acts and stage.dice(f"{name} waits").random() < 0.5

    async def run(self) -> None:
        """Until all commits were answered."""
        async with self._stage.board(self._name) as board:
            if self._waits:
                board = board.waiting_for_thaw(FROZEN_WAIT_MS)
            for number in range(self._stage.plan.steps):
                await rest(self._dice.random() * PAUSE_S)
                if self._dice.random() < 0.3:
                    await self._read(board)
                else:
                    await self._write(board, f"{self._name}-{number}")

    async def _write(self, board: Board, value: str) -> None:
        keys: tuple[str, ...] = PAIRS
        expected: int | None = None
        match self._dice.randrange(3):
            case 0:
                keys = (self._dice.choice(COUNTERS),)
                try:
                    entry = await board.entry(keys[0])
                except BlackboardError:
                    return
                expected = entry.mod_revision if entry else 0
                self._saw(expected)
            case 1:
                keys = (f"public/own/{self._name}",)
        started = asyncio.get_running_loop().time()
        outcome, revision = await self._ask(board, value, keys, expected)
        ended = asyncio.get_running_loop().time()
        self._stage.told(self._name, f"{value} {outcome} {revision}")
        self._stage.records.history.writes.append(
            Write(value, keys, started, ended, outcome, revision, expected)
        )

    async def _ask(
        self, board: Board, value: str, keys: tuple[str, ...], expected: int | None
    ) -> tuple[str, int]:
        ops: list[Op] = [Put(key, encode_value(value)) for key in keys]
        conditions = [] if expected is None else [KeyAt(keys[0], expected)]
        gives_up = "cancel" in self._stage.plan.faults and self._dice.random() < 0.2
        patience_s = self._dice.random() * 0.02 if gives_up else None
        try:
            async with asyncio.timeout(patience_s):
                revision = (await board.commit(ops, conditions=conditions)).revision
        except TimeoutError:
            return "unknown", 0
        except StaleEpoch:
            self._note("stale", 0)
            await self._refresh(board)
            return "refused", 0
        except (Rejected, Unavailable) as error:
            if self._waits and isinstance(error, BoardFrozen):
                self._stage.records.refused.append(f"{self._name} waits, and is refused: {error}")
            return "refused", 0
        except OutcomeUnknown:
            return "unknown", 0
        self._note("done", revision)
        return "done", revision

    async def _refresh(self, board: Board) -> None:
        try:
            await board.refresh()
        except Unavailable:
            self._stage.told(self._name, "could not refresh")

    async def _read(self, board: Board) -> None:
        started = asyncio.get_running_loop().time()
        try:
            listing = await board.list("public/**")
        except Unavailable:
            return
        ended = asyncio.get_running_loop().time()
        self._saw(listing.revision)
        values = {entry.key: entry.value for entry in listing.entries}
        keys = (*PAIRS, *COUNTERS)
        shown = tuple((key, values[key]) for key in keys if key in values)
        self._stage.told(self._name, f"read at {listing.revision}")
        self._stage.records.history.reads.append(
            Read(keys, started, ended, listing.revision, shown)
        )

    def _saw(self, revision: int) -> None:
        self._note("saw", revision)

    def _note(self, kind: str, revision: int) -> None:
        self._stage.records.seen.append(Seen(self._name, kind, revision))


# --- watchers -------------------------------------------------------------------------------------


class Watcher:
    """Watches until it has everything, and now and then resumes from where it was."""

    def __init__(self, stage: Stage, name: str, prefix: str) -> None:
        self._stage = stage
        self._name = name
        self._prefix = prefix
        self._dice = stage.dice(name)
        self._token: str | int = 0
        self._reached = 0

    async def run(self) -> None:
        """Until the head that the stage names was delivered."""
        async with self._stage.board(self._name) as board:
            chain = self._begin()
            while not self._is_there():
                watched = Watched(self._prefix, self._reached)
                chain.append(watched)
                try:
                    await self._watch(board, watched)
                except (Compacted, RolledBack) as error:
                    self._stage.told(self._name, f"{error.code} {self._reached}")
                    self._end(chain, error.code)
                    chain = self._begin()
                    head = await self._head(board)
                    self._token, self._reached = str(head[0]), head[1]
                except Unavailable:
                    await rest(PAUSE_S)

    def _begin(self) -> list[Watched]:
        chain: list[Watched] = []
        self._stage.records.history.watches.append(chain)
        return chain

    def _end(self, chain: list[Watched], how: str) -> None:
        place = next(
            place for place, one in enumerate(self._stage.records.history.watches) if one is chain
        )
        self._stage.records.ended_in[place] = how

    async def _head(self, board: Board) -> tuple[str, int]:
        while True:
            try:
                head = await board.head()
                return f"{head.epoch.id}:{head.revision}", head.revision
            except Unavailable:
                await rest(PAUSE_S)

    async def _watch(self, board: Board, watched: Watched) -> None:
        try:
            async with board.watch(self._prefix + "**", after=self._token) as watch:
                try:
                    await self._follow(watch, watched, self._dice.randrange(2, 20))
                finally:
                    self._token = watch.position
        finally:
            if isinstance(self._token, str):
                self._reached = int(self._token.split(":")[1])
            if watched.position != self._reached:
                watched.told.append(Mark(self._reached))

    async def _follow(self, watch: Watch, watched: Watched, count: int) -> None:
        """Take so many revisions, or all up to the end."""
        while len(watched.told) < count:
            if self._stage.head is not None:
                for revised in await watch.wait_for(self._stage.head):
                    watched.told.append(entry_of(revised))
                return
            if self._stage.plan.slow_reader:
                await rest(self._dice.random() * _SLOW_S)
            try:
                async with asyncio.timeout(0.5):  # to look whether there is an end by now
                    revised = await anext(watch)
            except TimeoutError:
                continue
            self._stage.told(self._name, f"revision {revised.revision}")
            watched.told.append(entry_of(revised))

    def _is_there(self) -> bool:
        return self._stage.head is not None and self._reached >= self._stage.head


# --- lockers --------------------------------------------------------------------------------------


class Locker:
    """Increments a counter under a lock; its writes do not hear of a loss of the lock."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._dice = stage.dice(name)

    async def run(self) -> None:
        """A few sections."""
        async with self._stage.board(self._name) as board:
            for number in range(max(1, self._stage.plan.steps // 2)):
                await rest(self._dice.random() * PAUSE_S)
                try:
                    await self._section(board, f"{self._name}-{number}")
                except StaleEpoch:
                    await self._refresh(board)
                except (LeaseLost, Rejected, OutcomeUnknown, Unavailable, TimeoutError) as error:
                    self._stage.told(self._name, type(error).__name__)

    async def _refresh(self, board: Board) -> None:
        try:
            await board.refresh()
        except Unavailable:
            self._stage.told(self._name, "could not refresh")

    async def _section(self, board: Board, tag: str) -> None:
        async with board.lock(LOCK, ttl_ms=TTL_MS, timeout_ms=20_000) as lock:
            [fence] = lock.fences
            self._stage.records.acquired.append(Acquired(LOCK, fence.holder, fence.fence))
            self._stage.told(self._name, f"has the lock under {fence.fence}")
            section = asyncio.create_task(self._update(board, tag, fence))
            try:
                await asyncio.shield(section)
            finally:
                await asyncio.wait([section])
                if not section.cancelled():
                    section.exception()

    async def _update(self, board: Board, tag: str, fence: HeldFence) -> None:
        found = await board.get(COUNTED, {"count": 0})
        await rest(self._dice.random() * 2 * TTL_MS / 1000)
        value = {"count": found["count"] + 1, "by": tag}
        outcome, revision = "unknown", 0
        try:
            revision = (await board.put(COUNTED, value)).revision
            outcome = "done"
        except (Rejected, Unavailable):
            outcome = "refused"
            raise
        finally:
            self._stage.told(self._name, f"{tag} {outcome} {revision}")
            self._stage.records.relied.append(
                Relied(encode_value(value), LOCK, fence.holder, fence.fence, outcome, revision)
            )
