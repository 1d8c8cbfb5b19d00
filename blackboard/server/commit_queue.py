"""Group commit: commits that were queued during an engine call share the next call.

Invariants
- At most CALLS_IN_FLIGHT_MAX engine calls per board are in flight. Commits leave in the order in
  which they came.
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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from blackboard import telemetry
from blackboard.core.commit import Commit, CommitId
from blackboard.core.log_entry import SALT_BYTES
from blackboard.core.model import Outcome
from blackboard.engines.base import Begins, Store
from blackboard.errors import BlackboardError, OutcomeUnknown, Overloaded
from blackboard.limits import BATCH_COMMITS_MAX, DEFAULT, LANES_MAX, CommitLimits, Limits
from blackboard.server.latency import Latencies
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
        # From now, not from the last due time: one pause must not make later looks late.
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
        # Several looks in a row: a single long turn of the loop is no overload.
        self.is_late = min(self._lags_ms) > self._limits.loop_lag_ms_max

    def lateness(self) -> Overloaded | None:
        """The reason to refuse new requests; None if there is none."""
        if not self.is_late:
            return None
        reason = f"its event loop is {self.lag_ms:.0f} ms late"
        return self._refusal(reason)

    def check_backlog(self) -> None:
        """Errors: Overloaded when BACKLOG_BYTES_MAX of commits wait."""
        # Of all boards: thousands of queues, each within its bound, could fill the memory.
        if self.backlog_bytes >= self._backlog_max:
            raise self._refusal(f"{self.backlog_bytes} bytes of commits are waiting")

    def _refusal(self, reason: str) -> Overloaded:
        return Overloaded("service", reason, self.retry_ms)


def salted(commit: Commit) -> Commit:
    """The commit with a new salt."""
    return replace(commit, salt=new_salt())


_SALTS: Final[deque[bytes]] = deque()
"""Salts for the next commits: to draw each by itself costs a system call per commit."""
os.register_at_fork(after_in_child=_SALTS.clear)  # else parent and child would use the same ones


def new_salt() -> bytes:
    """The salt of one commit."""
    try:
        return _SALTS.popleft()
    except IndexError:
        # From the system's source: with a salt that can be predicted, a reader of part of a commit
        # could check guesses at the rest against its digest.
        drawn = os.urandom(SALT_BYTES * _SALTS_DRAWN)
        _SALTS.extend(
            drawn[at : at + SALT_BYTES] for at in range(SALT_BYTES, len(drawn), SALT_BYTES)
        )
        return drawn[:SALT_BYTES]


def system_id() -> CommitId:
    """A unique id for one commit of the service."""
    incarnation = secrets.token_hex(8)
    # A lane keeps one answer. Spread over all lanes, the next commit of the service seldom pushes
    # out the answer that a retry of this one needs.
    return CommitId(SYSTEM_AGENT, int(incarnation, 16) % LANES_MAX, incarnation, 0)


Ticket = int | str
"""What a sender calls a commit."""
Outcomes = list[tuple[Ticket, Outcome | BlackboardError]]
Answered = Callable[[Outcomes], None]
"""Gets the outcomes of commits that were queued with it, in their order, each once: together those
that one engine call decided. It is called between two steps of the queue, so it must not queue
commits itself."""
T = TypeVar("T")
Waiting = tuple[Prepared, Permit | None, Answered, Ticket, tuple[float, telemetry.OpenSpan | None]]
"""A queued commit; the last member is when it was queued, by the clock of the loop, and its
span."""


@dataclass(slots=True)
class CommitCounts:
    """Counters of one queue."""

    commits: int = 0
    batches: int = 0
    refused: int = 0

    def plus(self, other: "CommitCounts") -> "CommitCounts":
        """The sum of two."""
        return CommitCounts(
            self.commits + other.commits,
            self.batches + other.batches,
            self.refused + other.refused,
        )


def _forget(commit: Commit, error: BlackboardError) -> None:
    """Nobody wants to know."""


def _ignore(commits: int) -> None:
    """Nobody wants to know."""


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
    latencies: Latencies = field(default_factory=Latencies)
    """Those of the process."""
    refused: Callable[[Commit, BlackboardError], None] = _forget
    """Called with each commit that its engine refused."""
    decided: Callable[[int], None] = _ignore
    """Called when so many commits may have been applied, before their senders get the outcomes."""
    _waiting: deque[Waiting] = field(default_factory=deque)
    _with_permit: int = 0
    """The number of waiting commits that came with a token."""
    _working: int = 0
    """Engine calls that are in flight or about to begin."""
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)
    _workers: "set[asyncio.Task[None]]" = field(default_factory=set)
    """Calls of an engine that needs a task for each."""
    in_flight: "set[_EngineCall]" = field(default_factory=set)
    """The engine calls that are in flight."""
    _apart: set[asyncio.Future[Any]] = field(default_factory=set)
    """The calls that are made past this queue."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    """Kept, because until Python 3.12 `get_running_loop` makes a system call (getpid)."""

    def __post_init__(self) -> None:
        # None also for an encrypting store, which has to read and encrypt before it can decide.
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

    def add(
        self,
        prepared: Prepared,
        permit: Permit | None,
        answered: Answered,
        ticket: Ticket = 0,
        traceparent: str = "",
    ) -> None:
        """Queue one commit; `answered` gets its outcome. `permit`: None = a commit of the service.

        Errors: Overloaded when COMMITS_QUEUED_MAX commits or BACKLOG_BYTES_MAX bytes are waiting;
        then `answered` is not called.
        """
        if len(self._waiting) >= self.limits.commits_queued_max:
            what, reason = f"board {self.board}", "too many commits are waiting"
            raise Overloaded(what, reason, self.load.retry_ms)
        self.load.check_backlog()
        commit, span = prepared.commit, None
        if telemetry.is_on():
            span = telemetry.commit(self.board, commit.author, len(commit.ops), traceparent)
        self._waiting.append((prepared, permit, answered, ticket, (self.loop.time(), span)))
        self._with_permit += permit is not None
        self.load.backlog_bytes += prepared.size
        # A call counts before it begins: otherwise each commit of this turn would schedule one.
        if self._working < self.limits.calls_in_flight_max:
            self._working += 1
            self.loop.call_soon(self._go_on)  # commits that arrive in this turn share its call

    @property
    def is_working(self) -> bool:
        """Whether a commit waits, or is with the engine."""
        return self._working > 0 or bool(self._waiting)

    async def aclose(self) -> None:
        """Wait until every queued commit has its outcome."""
        while self._working:  # again, as an answered sender may have queued its next commit
            self._quiet.clear()
            await self._quiet.wait()
        if self._apart:
            await asyncio.wait(self._apart)

    async def settled(self) -> None:
        """Wait for the engine calls that are now in flight."""
        # Not for later calls: their permits are checked after what the caller has changed.
        if calls := [*(call.landed for call in self.in_flight), *self._apart]:
            await asyncio.wait(calls)

    async def apart(self, call: Coroutine[Any, Any, T]) -> T:
        """Await `call`, which checks the permit of a commit and sends it to the engine past this
        queue. `settled` waits for it, too.

        Cancellation: the call goes on, as the engine does.
        """
        task = asyncio.ensure_future(call)
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)
        return await asyncio.shield(task)

    # --- engine calls -----------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Begin an engine call with commits that wait; if none do, this call is not needed."""
        while self._waiting:
            call = _EngineCall(self, self._take())
            try:
                permits = self._permitted(call)
                # All its tokens ended while it waited: what waits behind it gets this call.
                if not call.batch:
                    call.land()
                    continue
                if not self._begin(call, permits):
                    worker = self.loop.create_task(self._work(call, permits))
                    self._workers.add(worker)
                    worker.add_done_callback(self._workers.discard)
            except BaseException:
                self._fail(call)
                raise
            return
        self._end()

    def _end(self) -> None:
        self._working -= 1
        if not self._working:
            self._quiet.set()

    def _fail(self, call: "_EngineCall") -> None:
        """After a bug: nobody is left waiting."""
        call.land()
        self._give_up(call.batch)
        self._end()

    def _begin(self, call: "_EngineCall", permits: Permits | None) -> bool:
        """Whether a batch is on its way without a task. It does not overtake those with one."""
        # An engine that is shared needs an access number with each batch: see `Permits.commit`.
        if self._engine is None or self._workers or (permits is not None and permits.are_shared):
            return False
        return self._engine.begin(self.board, call.commits, call)

    async def _work(self, call: "_EngineCall", permits: Permits | None) -> None:
        try:
            outcomes = await self._commit(call, permits)
        except BaseException:
            self._fail(call)
            raise
        call.land()
        self._answer(call, outcomes)
        self._go_on()

    def _answer(self, call: "_EngineCall", outcomes: Sequence[Outcome | BlackboardError]) -> None:
        batch, now_s = call.batch, self.loop.time()
        self.counts.batches += 1
        self.counts.commits += len(batch)
        self.latencies.engine_calls.observe(now_s - call.began_s)
        observe = self.latencies.commits.observe
        for *_, (queued_s, _) in batch:
            observe(now_s - queued_s)
        if telemetry.is_on():
            _trace(batch, outcomes, now_s - call.began_s)
        refused = sum([isinstance(o, BlackboardError) for o in outcomes])
        self.counts.refused += refused
        if refused:
            self._note(batch, outcomes)
        self._tell_all(batch, outcomes)

    def _note(self, batch: list[Waiting], outcomes: Sequence[Outcome | BlackboardError]) -> None:
        for (prepared, *_), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BlackboardError):
                self.refused(prepared.commit, outcome)

    def _tell_all(
        self, batch: list[Waiting], outcomes: Sequence[Outcome | BlackboardError]
    ) -> None:
        self.decided(len(batch))
        if telemetry.is_on():
            _end_spans(batch, outcomes)
        # One call for all commits of a sender, so that a connection answers them in one frame.
        together: dict[Answered, Outcomes] = {}
        for (_, _, answered, ticket, _), outcome in zip(batch, outcomes, strict=True):
            together.setdefault(answered, []).append((ticket, outcome))
        for answered, found in together.items():
            self._tell(answered, found)

    def _tell(self, answered: Answered, outcomes: Outcomes) -> None:
        try:
            answered(outcomes)
        except Exception as error:  # noqa: BLE001 - a bug of one must not reach the others
            context = {"message": f"commits of {self.board} were not answered", "exception": error}
            self.loop.call_exception_handler(context)

    def _take(self) -> list[Waiting]:
        """The next batch: at least one commit, then as many as the limits allow.

        While another call of a task could also leave, the batch takes only its share of the queue:
        then an engine can work for one half of the writers while the other half is on its way. An
        engine that decides at once would write both halves together, one turn later.
        """
        # This call counts in `_working` and is not in flight yet, so at least one is left.
        calls = 1 if self._engine else self.limits.calls_in_flight_max - len(self.in_flight)
        share = -(-len(self._waiting) // calls)
        batch = [self._waiting.popleft()]  # whatever its size, or it would wait for ever
        size = batch[0][0].size
        while self._waiting and len(batch) < min(share, BATCH_COMMITS_MAX):
            size += self._waiting[0][0].size
            if size > self.limits.batch_bytes_max:
                break
            batch.append(self._waiting.popleft())
        self.load.backlog_bytes -= sum([waiting[0].size for waiting in batch])
        return batch

    def _permitted(self, call: "_EngineCall") -> Permits | None:
        """Leave the commits that are still permitted; the others get the reason. Returns the
        permits of what is left, if any has one."""
        permits, batch = self.permits, call.batch
        # Without tokens, as in an embedded program, the batch is not even looked through.
        if not self._with_permit or permits is None:
            return None
        given = [permit for _, permit, *_ in batch]
        with_permit = len(given) - given.count(None)
        if not with_permit:
            return None
        self._with_permit -= with_permit
        refused = permits.recheck(given)
        # Replaced before the others get the reason: if something fails from here on, `_fail`
        # answers the batch, and nobody may be answered twice.
        call.batch = (
            [each for n, each in enumerate(batch) if n not in refused] if refused else batch
        )
        self._tell_all([batch[number] for number in refused], list(refused.values()))
        return permits

    async def _commit(
        self, call: "_EngineCall", permits: Permits | None
    ) -> list[Outcome | BlackboardError]:
        try:
            if permits is None:
                return list(await self.store.commit(self.board, call.commits))
            granted = [permit for _, permit, *_ in call.batch]
            return list(await permits.commit(self.board, call.commits, granted))
        except BlackboardError as error:
            # By contract none of them was applied: a doubt would be an outcome, not an error.
            return _each(error, call.batch)

    def landed(self, call: "_EngineCall", outcomes: Sequence[Outcome | BlackboardError]) -> None:
        """Answer a batch that no task waits for, and go on."""
        self._answer(call, outcomes)
        if self._waiting:
            # In a turn of its own: writers that were just answered can join the next batch.
            self.loop.call_soon(self._go_on)
        else:
            self._end()

    def _give_up(self, batch: list[Waiting]) -> None:
        """Give up: the outcome of `batch` is unknown, and the commits behind it are given up
        too."""
        self.load.backlog_bytes -= sum([waiting[0].size for waiting in self._waiting])
        given_up = batch + list(self._waiting)
        self._waiting.clear()
        self._with_permit = 0
        self._tell_all(given_up, [_unknown(prepared) for prepared, *_ in given_up])


class _EngineCall:
    """An engine call; its `BatchAnswer` if no task waits for it. It is in flight from the turn in
    which its permits are checked: who revokes one waits for it."""

    __slots__ = ("_queue", "batch", "began_s", "landed")

    def __init__(self, queue: CommitQueue, batch: list[Waiting]) -> None:
        self._queue = queue
        self.batch = batch
        self.began_s = queue.loop.time()
        self.landed: asyncio.Future[None] = queue.loop.create_future()
        queue.in_flight.add(self)

    @property
    def commits(self) -> list[Prepared]:
        """The commits of its batch."""
        return [waiting[0] for waiting in self.batch]

    def land(self) -> None:
        """The call has ended."""
        self._queue.in_flight.discard(self)
        self.landed.set_result(None)

    def done(self) -> bool:
        """As `BatchAnswer.done`: each commit gets its outcome, even if its sender is gone."""
        return False

    def set_result(self, result: list[Outcome], /) -> None:
        """As `BatchAnswer.set_result`."""
        self.land()
        self._queue.landed(self, result)

    def set_exception(self, exception: BlackboardError, /) -> None:
        """As `BatchAnswer.set_exception`."""
        self.land()
        self._queue.landed(self, _each(exception, self.batch))


def _trace(
    batch: list[Waiting], outcomes: Sequence[Outcome | BlackboardError], took_s: float
) -> None:
    """Add the call of the engine to the spans of the commits that it decided."""
    for (*_, (_, span)), outcome in zip(batch, outcomes, strict=True):
        if span is not None:
            error = outcome if isinstance(outcome, BlackboardError) else None
            span.engine_call(took_s, len(batch), error)


def _end_spans(batch: list[Waiting], outcomes: Sequence[Outcome | BlackboardError]) -> None:
    """End the spans of commits with their outcomes."""
    for (prepared, *_, (_, span)), outcome in zip(batch, outcomes, strict=True):
        if span is None:
            continue
        if isinstance(outcome, BlackboardError):
            span.fail(outcome)
        else:
            span.at(outcome.revision, prepared.commit.epoch)
        span.end()


def _resolve(future: "asyncio.Future[Outcome | BlackboardError]", outcomes: Outcomes) -> None:
    [(_, outcome)] = outcomes
    # A sender that was cancelled has left its future; the commit was decided all the same.
    if not future.done():
        future.set_result(outcome)


def _each(error: BlackboardError, batch: list[Waiting]) -> list[Outcome | BlackboardError]:
    """An error for each commit: one for all would share a traceback among tasks."""
    return [type(error)(**error.fields()) for _ in batch]


def _unknown(prepared: Prepared) -> OutcomeUnknown:
    name = prepared.commit.id
    reason = "the service stopped or failed"
    return OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, reason)
