"""Group commit: commits that were queued during an engine call share the next call.

Invariants
- At most FLIGHTS_MAX engine calls per board are in flight. Commits leave in the order in which they
  came.
- A writer that waits for each answer, as every lane does, never has commits in two calls.
- A commit that was taken from the queue gets an outcome, even if its sender is gone.
- A commit leaves for the engine only while its sender's token is valid, however long it waited.

The module also detects overload of the process, and then refuses new work.

It measures two things: how late the event loop is, and how many bytes of commits wait for their
engines. A loop counts as late only if it was late in _LOOKS consecutive measurements, as in CoDel
(Nichols and Jacobson, 2012): the smallest delay of an interval distinguishes a standing queue from
a passing one.

During an overload all requests are refused, except those of admins and those that end something.
"""

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec.structs import replace

from blackboard.core.commit import Commit, CommitId
from blackboard.core.entry_digest import SALT_BYTES
from blackboard.core.model import Outcome
from blackboard.engines.base import Begins, Store
from blackboard.errors import BlackboardError, OutcomeUnknown, Overloaded
from blackboard.limits import BATCH_COMMITS_MAX, DEFAULT, LANES_MAX, CommitLimits, Limits
from blackboard.server.security.revocations import Permit, Permits
from blackboard.wire.codec import SYSTEM_AGENT, Prepared

_LOOKS: Final = 3
_SALTS_DRAWN: Final = 256
"""Salts drawn at once: those of the largest batch."""


class Load:
    """The load of one process, measured every LOOP_LOOK_MS between `start` and `stop`."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits.load
        self._backlog_max = limits.commits.backlog_bytes_max
        self.backlog_bytes = 0
        """Bytes of the waiting commits of all boards."""
        self.is_late = False
        self._lags_ms: deque[float] = deque([0.0] * _LOOKS, maxlen=_LOOKS)
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def retry_ms(self) -> int:
        """When a client that was refused should try again."""
        return self._limits.overload_retry_ms

    @property
    def lag_ms(self) -> float:
        """How late the event loop was at the last measurement."""
        return self._lags_ms[-1]

    def start(self) -> None:
        """Start measuring."""
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + self._limits.loop_look_ms / 1000
        self._timer = loop.call_at(self._due_s, self._look)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.note((asyncio.get_running_loop().time() - self._due_s) * 1000)
        self.start()

    def note(self, lag_ms: float) -> None:
        """Record how late the loop was."""
        self._lags_ms.append(lag_ms)
        self.is_late = min(self._lags_ms) > self._limits.loop_lag_ms_max

    def lateness(self) -> Overloaded | None:
        """The reason to refuse new requests; None if there is none."""
        if not self.is_late:
            return None
        reason = f"its event loop is {self.lag_ms:.0f} ms late"
        return self._refusal(reason)

    def check_backlog(self) -> None:
        """Errors: Overloaded when BACKLOG_BYTES_MAX of commits wait."""
        if self.backlog_bytes >= self._backlog_max:
            raise self._refusal(f"{self.backlog_bytes} bytes of commits are waiting")

    def _refusal(self, reason: str) -> Overloaded:
        return Overloaded("service", reason, self.retry_ms)


def salted(commit: Commit) -> Commit:
    """The commit with a new salt."""
    return replace(commit, salt=_salt())


_SALTS: Final[deque[bytes]] = deque()
"""Salts for the next commits: to draw each by itself costs a system call per commit."""
os.register_at_fork(after_in_child=_SALTS.clear)  # else parent and child would use the same ones


def _salt() -> bytes:
    try:
        return _SALTS.popleft()
    except IndexError:
        drawn = os.urandom(SALT_BYTES * _SALTS_DRAWN)
        _SALTS.extend(
            drawn[at : at + SALT_BYTES] for at in range(SALT_BYTES, len(drawn), SALT_BYTES)
        )
        return drawn[:SALT_BYTES]


def system_id() -> CommitId:
    """A unique id for one commit of the service."""
    incarnation = secrets.token_hex(8)
    return CommitId(SYSTEM_AGENT, int(incarnation, 16) % LANES_MAX, incarnation, 0)


Answered = Callable[[Outcome | BlackboardError], None]
"""Gets the outcome of one commit, once. It is called between two steps of the queue, so it must not
queue commits itself."""
Waiting = tuple[Prepared, Answered, Permit | None]


@dataclass(slots=True)
class CommitCounts:
    """Counters of one queue."""

    commits: int = 0
    batches: int = 0
    refused: int = 0


@dataclass
class CommitQueue:
    """The commits of one board on their way to its engine."""

    store: Store
    board: str
    load: Load = field(default_factory=Load)
    permits: Permits | None = None
    """Checks the tokens of commits again when their batch leaves."""
    limits: CommitLimits = DEFAULT.commits
    counts: CommitCounts = field(default_factory=CommitCounts)
    _waiting: deque[Waiting] = field(default_factory=deque)
    _with_permit: int = 0
    """The number of waiting commits that came with a token."""
    _working: int = 0
    """Engine calls that are in flight or about to begin."""
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)
    _workers: "set[asyncio.Task[None]]" = field(default_factory=set)
    """Calls of an engine that needs a task for each."""
    flights: "set[_Flight]" = field(default_factory=set)
    """The engine calls that are in flight."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    """Kept, because until Python 3.12 `get_running_loop` makes a system call (getpid)."""

    def __post_init__(self) -> None:
        self._engine = self.store if isinstance(self.store, Begins) else None

    def submit(
        self, prepared: Prepared, permit: Permit | None = None
    ) -> "asyncio.Future[Outcome | BlackboardError]":
        """As `add`; the future gets the outcome.

        Cancellation: the commit may still be applied; its outcome is then unknown to the caller.
        """
        outcome: asyncio.Future[Outcome | BlackboardError] = self.loop.create_future()
        self.add(prepared, permit, partial(_resolve, outcome))
        return outcome

    def add(self, prepared: Prepared, permit: Permit | None, answered: Answered) -> None:
        """Queue one commit; `answered` gets its outcome. `permit`: None = a commit of the service.

        Errors: Overloaded when COMMITS_QUEUED_MAX commits or BACKLOG_BYTES_MAX bytes are waiting;
        then `answered` is not called.
        """
        if len(self._waiting) >= self.limits.commits_queued_max:
            what, reason = f"board {self.board}", "too many commits are waiting"
            raise Overloaded(what, reason, self.load.retry_ms)
        self.load.check_backlog()
        self._waiting.append((prepared, answered, permit))
        self._with_permit += permit is not None
        self.load.backlog_bytes += prepared.size
        if self._working < self.limits.flights_max:
            self._working += 1
            self.loop.call_soon(self._go_on)  # commits that arrive in this turn share its call

    async def aclose(self) -> None:
        """Wait until every queued commit has its outcome."""
        while self._working:
            self._quiet.clear()
            await self._quiet.wait()

    async def settled(self) -> None:
        """Wait for the engine calls that are now in flight."""
        if self.flights:
            await asyncio.wait([flight.landed for flight in self.flights])

    # --- engine calls -----------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Begin an engine call with commits that wait; if none do, this call is not needed."""
        while self._waiting:
            flight = _Flight(self, self._take())
            try:
                permits = self._permitted(flight)
                if not flight.batch:
                    flight.land()
                    continue
                if not self._begin(flight, permits):
                    worker = self.loop.create_task(self._work(flight, permits))
                    self._workers.add(worker)
                    worker.add_done_callback(self._workers.discard)
            except BaseException:
                self._fail(flight)
                raise
            return
        self._end()

    def _end(self) -> None:
        self._working -= 1
        if not self._working:
            self._quiet.set()

    def _fail(self, flight: "_Flight") -> None:
        """After a bug: nobody is left waiting."""
        flight.land()
        self._give_up(flight.batch)
        self._end()

    def _begin(self, flight: "_Flight", permits: Permits | None) -> bool:
        """Whether a batch is on its way without a task. It does not overtake those with one."""
        if self._engine is None or self._workers or (permits is not None and permits.are_shared):
            return False
        return self._engine.begin(self.board, flight.commits, flight)

    async def _work(self, flight: "_Flight", permits: Permits | None) -> None:
        try:
            outcomes = await self._commit(flight, permits)
        except BaseException:
            self._fail(flight)
            raise
        flight.land()
        self._answer(flight.batch, outcomes)
        self._go_on()

    def _answer(self, batch: list[Waiting], outcomes: Sequence[Outcome | BlackboardError]) -> None:
        self.counts.batches += 1
        self.counts.commits += len(batch)
        self.counts.refused += sum([isinstance(o, BlackboardError) for o in outcomes])
        for (_, answered, _), outcome in zip(batch, outcomes, strict=True):
            self._tell(answered, outcome)

    def _tell(self, answered: Answered, outcome: Outcome | BlackboardError) -> None:
        try:
            answered(outcome)
        except Exception as error:  # noqa: BLE001 - a bug of one must not reach the others
            context = {"message": f"a commit of {self.board} was not answered", "exception": error}
            self.loop.call_exception_handler(context)

    def _take(self) -> list[Waiting]:
        """The next batch: at least one commit, then as many as the limits allow.

        While another call could also leave, the batch takes only its share of the queue: then the
        disk can sync for one half of the writers while the commits of the other half are decided.
        """
        share = -(-len(self._waiting) // (self.limits.flights_max - len(self.flights)))
        batch = [self._waiting.popleft()]
        size = batch[0][0].size
        while self._waiting and len(batch) < min(share, BATCH_COMMITS_MAX):
            size += self._waiting[0][0].size
            if size > self.limits.batch_bytes_max:
                break
            batch.append(self._waiting.popleft())
        self.load.backlog_bytes -= sum(prepared.size for prepared, _, _ in batch)
        return batch

    def _permitted(self, flight: "_Flight") -> Permits | None:
        """Leave the commits that are still permitted; the others get the reason. Returns the
        permits of what is left, if any has one."""
        permits, batch = self.permits, flight.batch
        if not self._with_permit or permits is None:
            return None
        with_permit = sum(permit is not None for _, _, permit in batch)
        if not with_permit:
            return None
        self._with_permit -= with_permit
        refused = permits.recheck([permit for _, _, permit in batch])
        flight.batch = (
            [each for n, each in enumerate(batch) if n not in refused] if refused else batch
        )
        for number, refusal in refused.items():
            self._tell(batch[number][1], refusal)
        return permits

    async def _commit(
        self, flight: "_Flight", permits: Permits | None
    ) -> list[Outcome | BlackboardError]:
        try:
            if permits is None:
                return list(await self.store.commit(self.board, flight.commits))
            granted = [permit for _, _, permit in flight.batch]
            return list(await permits.commit(self.board, flight.commits, granted))
        except BlackboardError as error:
            return _each(error, flight.batch)

    def landed(self, batch: list[Waiting], outcomes: Sequence[Outcome | BlackboardError]) -> None:
        """Answer a batch that no task waits for, and go on."""
        self._answer(batch, outcomes)
        if self._waiting:
            self.loop.call_soon(self._go_on)
        else:
            self._end()

    def _give_up(self, batch: list[Waiting]) -> None:
        """Give up: the outcome of `batch` is unknown, and the commits behind it are given up
        too."""
        self.load.backlog_bytes -= sum(prepared.size for prepared, _, _ in self._waiting)
        given_up = batch + list(self._waiting)
        self._waiting.clear()
        self._with_permit = 0
        for prepared, answered, _ in given_up:
            self._tell(answered, _unknown(prepared))


class _Flight:
    """An engine call; its `BatchAnswer` if no task waits for it. It is in flight from the turn in
    which its permits are checked: who revokes one waits for it."""

    __slots__ = ("_queue", "batch", "landed")

    def __init__(self, queue: CommitQueue, batch: list[Waiting]) -> None:
        self._queue = queue
        self.batch = batch
        self.landed: asyncio.Future[None] = queue.loop.create_future()
        queue.flights.add(self)

    @property
    def commits(self) -> list[Prepared]:
        """The commits of its batch."""
        return [prepared for prepared, _, _ in self.batch]

    def land(self) -> None:
        """The call has ended."""
        self._queue.flights.discard(self)
        self.landed.set_result(None)

    def done(self) -> bool:
        """As `BatchAnswer.done`: each commit gets its outcome, even if its sender is gone."""
        return False

    def set_result(self, result: list[Outcome], /) -> None:
        """As `BatchAnswer.set_result`."""
        self.land()
        self._queue.landed(self.batch, result)

    def set_exception(self, exception: BlackboardError, /) -> None:
        """As `BatchAnswer.set_exception`."""
        self.land()
        self._queue.landed(self.batch, _each(exception, self.batch))


def _resolve(
    future: "asyncio.Future[Outcome | BlackboardError]", outcome: Outcome | BlackboardError
) -> None:
    if not future.done():
        future.set_result(outcome)


def _each(error: BlackboardError, batch: list[Waiting]) -> list[Outcome | BlackboardError]:
    """An error for each commit: one for all would share a traceback among tasks."""
    return [type(error)(**error.fields()) for _ in batch]


def _unknown(prepared: Prepared) -> OutcomeUnknown:
    name = prepared.commit.id
    reason = "the service stopped or failed"
    return OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, reason)
