"""Exactly once, from the writer's side: identities, retries, and epochs.

Invariants
- A lane has one commit in flight, and its step numbers only grow. The number of a refused step is
  not reused.
- An unknown outcome is resolved by sending the same commit again; only when that fails for
  COMMIT_TIMEOUT_MS is OutcomeUnknown raised.
- A refused retry is reported as refused only when no earlier attempt can be accepted any more;
  otherwise its outcome is unknown.
- A commit is sent again under a new epoch only if nothing that this writer saw was lost.
- A step that began before the writer adopted the present epoch (`take`) is still refused.
- A commit that meets the barrier of a checkpoint also delivers the agent's state, in the same
  commit. After a delivery, `deliver` is called again only if it does not have to wait for anything;
  otherwise the commit waits for the cut. So no model is called twice for one checkpoint.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from blackboard import telemetry
from blackboard.arguments import check_argument
from blackboard.client.link import Transport, WatchRequest
from blackboard.client.views import Receipt
from blackboard.client.watch import Watch
from blackboard.core.commit import (
    ENGINE,
    Commit,
    CommitId,
    Condition,
    Delete,
    Epoch,
    Grant,
    HeldFence,
    Op,
    Release,
    Renew,
    changed_nothing,
)
from blackboard.core.freeze import FROZEN_KEY
from blackboard.core.lease import LOCK_MASTERS
from blackboard.core.path import cut_key, namespace_of, superseding_key
from blackboard.errors import (
    AttemptTooOld,
    BoardFrozen,
    Compacted,
    LimitExceeded,
    LocalProtocolError,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    Resync,
    RolledBack,
    SnapshotFirst,
    StaleEpoch,
    Unavailable,
)
from blackboard.limits import (
    BARRIER_GRACE_MS,
    BARRIER_MS_MAX,
    FENCES_MAX,
    LANES_MAX,
    LOG_ENTRIES_MAX,
    OPERATIONS_MAX,
)
from blackboard.units import Key, Milliseconds, Revision

log = logging.getLogger(__name__)


def pause_s(failure: Exception, usual_ms: Milliseconds) -> float:
    """Seconds until the next attempt after `failure`.

    If the failure says when to retry, that long plus a random part of up to half of it; otherwise
    `usual_ms`, shortened by up to half. So clients that failed together do not retry together.
    """
    usual = random.uniform(0.5, 1.0) * usual_ms
    if not isinstance(failure, Overloaded):
        return usual / 1000
    return max(usual, random.uniform(1.0, 1.5) * failure.retry_after_ms) / 1000


Deliver = Callable[[], Awaitable[Sequence[Op]]]
"""Returns the operations that put the agent's state on the board.

Until the cut it is called again with each further commit, unless it had to wait for something
before: a callback that calls a model is called once.
"""

_FAILURES = (AttemptTooOld, OutcomeUnknown, StaleEpoch, Unavailable)
"""Failures after which the same commit is sent again."""
_Failure = AttemptTooOld | OutcomeUnknown | StaleEpoch | Unavailable


class CommitRequest(Struct, frozen=True, gc=False):
    """A commit before it has an identity: see the fields of `core.commit.Commit`."""

    ops: tuple[Op, ...]
    conditions: tuple[Condition, ...] = ()
    fences: tuple[HeldFence, ...] = ()
    based_on: tuple[tuple[Key, Revision], ...] = ()
    note: str = ""


@dataclass(slots=True)
class _Lane:
    number: int
    step: int = 0


class Writer:
    """Commits of one agent on one board, through one link."""

    def __init__(self, link: Transport, board: str) -> None:
        self.link = link
        self.board = board
        self._limits = link.limits.client
        self._patience_s = link.limits.client.commit_timeout_ms / 1000
        # The newest revision that anything here was based on. An epoch that kept all up to it lost
        # nothing that this writer relies on.
        self.seen: Revision = 0
        self._epoch: Epoch | None = None
        self._read_in = ""
        """The epoch of the first read; reads in it reach up to `_read_to`."""
        self._read_to: Revision = 0
        self._taken = 0
        """How often an epoch was adopted that was not the known one."""
        self._incarnation = secrets.token_hex(8)
        first = secrets.randbelow(LANES_MAX)
        # A stack: a writer without concurrent commits stays on one lane, and two processes of the
        # same agent rarely share it.
        self._lanes = [_Lane((first - i) % LANES_MAX) for i in range(LANES_MAX)]
        self._free = asyncio.Semaphore(LANES_MAX)
        self.deliver: Deliver | None = None
        """Called when a checkpoint waits for this agent; None: its commits are refused instead."""
        self.wait_frozen_ms: Milliseconds = 0
        """How long a commit waits for the thaw while the board is frozen."""
        self._brought: Revision = 0
        self._deliver_waits = False
        """Whether the last call of `deliver` had to wait for something."""
        self._bringing = asyncio.Lock()

    async def epoch(self) -> str:
        """The id of the epoch that this writer works in; learned from the board when first used.

        Errors: StaleEpoch when something that was seen here before, in another epoch, is gone.
        """
        if self._epoch is None:
            await self._begin()
        assert self._epoch is not None
        return self._epoch.id

    async def _begin(self) -> None:
        # `seen` first: a read that ends during this call may already belong to the new epoch.
        seen, head = self.seen, await self.link.head(self.board)
        epoch = head.epoch
        is_gone = 0 < seen < epoch.revision and not await self._is_kept(seen, epoch)
        # Reads in the present epoch say nothing about earlier reads.
        if not is_gone and self._read_in not in ("", epoch.id):
            is_gone = not await self._is_kept(self._read_to, epoch)
        if is_gone:
            details = (epoch.number, epoch.cause, epoch.from_revision, head.revision)
            raise StaleEpoch("", epoch.id, *details)
        self._epoch = epoch
        self.saw(head.revision, epoch.id)

    async def _is_kept(self, seen: Revision, epoch: Epoch) -> bool:
        """Whether `epoch` is certainly the first one after `seen`, and lost nothing up to it."""
        if seen > epoch.from_revision:
            return False
        try:
            # The head names the last epoch only. An earlier one since `seen` may have lost more.
            page = await self.link.log(self.board, seen, limit=LOG_ENTRIES_MAX)
        except (Compacted, Resync):
            return False
        first = next((entry.epoch for entry in page.entries if entry.epoch), None)
        return first == epoch and epoch.cause == ENGINE

    async def refresh(self) -> None:
        """Adopt the present epoch of the board."""
        head = await self.link.head(self.board)
        self.take(head.epoch, head.revision)

    def take(self, epoch: Epoch, revision: Revision) -> None:
        """Adopt `epoch` as of `revision`, regardless of what this writer saw before."""
        known = self._epoch.id if self._epoch else self._read_in
        if epoch.id != known:
            # After a split brain, the lost part may have been far ahead of this epoch.
            self.seen = 0
            self._taken += bool(known)
        self._epoch = epoch
        self.saw(revision, epoch.id)

    def standing(self) -> Callable[[], None]:
        """A function that checks later whether everything read since now is still valid.

        Errors of the returned function: StaleEpoch when another epoch was adopted in between.
        """
        taken = self._taken

        def check() -> None:
            now = self._epoch
            if self._taken != taken and now is not None:
                details = (now.number, now.cause, now.from_revision, self.seen)
                raise StaleEpoch("", now.id, *details)

        return check

    def saw(self, revision: Revision, epoch: str = "") -> None:
        """Record that this writer knows the board up to `revision`, which was read in `epoch`.

        Without an epoch, the revision belongs to the board's history in any case.
        """
        self.seen = max(self.seen, revision)
        self._read_in = self._read_in or epoch
        if epoch and epoch == self._read_in:
            self._read_to = max(self._read_to, revision)

    async def commit(
        self,
        spec: CommitRequest,
        *,
        with_held: bool = True,
        brings: bool | None = None,
        waits: bool = True,
    ) -> Receipt:
        """Carry out `spec`, exactly once.

        It carries its own fences and, `with_held`, those of all leases that the running task holds.
        If a checkpoint waits for this agent, the commit includes the operations of `deliver`
        (`brings`: by default, with_held), or waits for the cut. If the board is
        frozen, it waits up to `wait_frozen_ms` for the thaw, unless `waits` is false.

        Errors: a Rejected: nothing changed. Unavailable: certainly not applied. OutcomeUnknown:
        perhaps applied; no service could be reached for COMMIT_TIMEOUT_MS to find out.
        Cancellation: leaves the outcome unknown.
        """
        if not telemetry.is_on():
            return await self._patiently(spec, with_held=with_held, brings=brings, waits=waits)
        with telemetry.asking("commit", self.board, self.link.agent) as span:
            if span is not None and not spec.note and _changes_entries(spec.ops):
                spec = replace(spec, note=span.mark())
            done = await self._patiently(spec, with_held=with_held, brings=brings, waits=waits)
            if span is not None:
                span.committed(done.revision, "" if self._epoch is None else self._epoch.id)
        return done

    async def _patiently(
        self, spec: CommitRequest, *, with_held: bool, brings: bool | None, waits: bool
    ) -> Receipt:
        """As `commit`, without a span."""
        patience = self._patience(self.wait_frozen_ms if waits else 0)
        while True:
            try:
                return await self._commit(spec, with_held=with_held, brings=brings)
            except BoardFrozen as frozen:
                await self.thawed(frozen, patience)

    def _patience(self, wait_ms: Milliseconds) -> "_Patience":
        return _Patience(wait_ms, self._pauses_ms())

    def _pauses_ms(self) -> Iterator[Milliseconds]:
        """The pauses between attempts, without end. See `pause_s`."""
        pauses_ms = self._limits.commit_pauses_ms
        return chain(pauses_ms, repeat(pauses_ms[-1]))

    async def thawed(self, frozen: BoardFrozen, patience: "_Patience | None" = None) -> None:
        """Return when the board may be thawed: try again then.

        Errors: `frozen`, when that takes longer than `patience` (None: than `wait_frozen_ms`).
        """
        patience = patience or self._patience(self.wait_frozen_ms)
        left_s, pause_s = patience.begin()
        if left_s <= 0:
            raise frozen
        log.warning("%s waits on board %s: %s", self.link.agent, self.board, frozen)
        try:
            async with asyncio.timeout(left_s):
                # FROZEN_KEY is an entry that agents may read, so the thaw is
                # noticed without polling.
                await self._until_gone(FROZEN_KEY)
                await asyncio.sleep(pause_s)  # so that waiting clients do not retry together
        except TimeoutError:
            raise frozen from None
        except (Compacted, Resync, RolledBack, Unavailable) as error:
            log.info("board %s: cannot watch for the thaw: %s", self.board, error)
            await asyncio.sleep(pause_s)

    async def _commit(
        self, spec: CommitRequest, *, with_held: bool, brings: bool | None
    ) -> Receipt:
        # Bounded, because one checkpoint may follow another: a commit must not deliver for ever.
        for _ in range(self._limits.deliveries_max):
            try:
                return await self._carry_out(spec, with_held=with_held)
            except SnapshotFirst as asked:
                if self.deliver is None or not (with_held if brings is None else brings):
                    raise
                receipt = await self._bring_with(spec, asked, with_held=with_held)
                if receipt is not None:
                    return receipt
        return await self._carry_out(spec, with_held=with_held)

    async def bring(self, since: Revision, key: Key) -> None:
        """Deliver this agent's state, once, for the barrier `key`, requested at `since`.

        Errors: as for `commit`, and those of `deliver`; then nothing was delivered.
        """
        assert self.deliver is not None
        async with self._bringing:
            if self._brought < since:
                ops = await self._delivered()
                receipt = await self._carry_out(CommitRequest((*ops, Delete(key))), with_held=True)
                self._brought = receipt.revision

    async def _delivered(self) -> tuple[Op, ...]:
        """The operations that `deliver` returns now."""
        assert self.deliver is not None
        telling = _Noticing(self.deliver())
        returned = await telling
        check_argument("deliver", returned, Sequence[Op])
        ops = tuple(returned)
        self._deliver_waits = telling.waited
        return ops

    async def _bring_with(
        self, spec: CommitRequest, asked: SnapshotFirst, *, with_held: bool
    ) -> Receipt | None:
        """Carry out `spec` together with the operations of `deliver`; None when it must be sent
        again by itself, after the cut."""
        async with self._bringing:  # one delivery serves all commits that wait for the barrier
            if self._brought < asked.since or not self._deliver_waits:
                brought = (*await self._delivered(), Delete(asked.key))
                receipt = await self._bring_in_one(spec, brought, with_held=with_held)
                is_one = receipt is not None
                if receipt is None:
                    receipt = await self._carry_out(CommitRequest(brought), with_held=with_held)
                # Only now: after a delivery that was refused, the next call of
                # `bring` delivers again.
                self._brought = receipt.revision
                if is_one:
                    # The caller has one result for each of its own operations.
                    return replace(receipt, results=receipt.results[: len(spec.ops)])
        await self._cut(asked)
        return None

    async def _bring_in_one(
        self, spec: CommitRequest, brought: tuple[Op, ...], *, with_held: bool
    ) -> Receipt | None:
        """Carry out `spec` together with a delivery; None when both are too large for one commit:
        then the delivery goes alone, and `spec` after the cut."""
        if len(spec.ops) + len(brought) > OPERATIONS_MAX:
            return None
        try:
            both = replace(spec, ops=(*spec.ops, *brought))
            return await self._carry_out(both, with_held=with_held)
        except LimitExceeded as refused:
            if refused.limit not in ("COMMIT_BYTES_MAX", "FRAME_BYTES_MAX"):
                raise
            return None

    async def _cut(self, asked: SnapshotFirst) -> None:
        """Return when the requesting checkpoint was taken or given up.

        Errors: `asked`, if that takes longer than any barrier stands.
        """
        patience_s = (BARRIER_MS_MAX + BARRIER_GRACE_MS) / 1000
        try:
            async with asyncio.timeout(patience_s):
                await self._until_gone(cut_key(self.link.agent))
        except TimeoutError:
            raise asked from None

    async def _until_gone(self, key: Key) -> None:
        """Return when there is no `key`, as far as may be read, or another epoch begins."""
        request = WatchRequest((key,))
        watch = Watch(self.link, self.board, request, revision=None, snapshot=True, saw=self.saw)
        async with watch:
            # The watch begins with a snapshot, because `key` may have gone before
            # the watch was open.
            while key in watch.state:
                revised = await anext(watch)
                gone = any(change.kind == "delete" for change in revised.changes)
                if gone or revised.epoch is not None:
                    return

    async def _carry_out(self, spec: CommitRequest, *, with_held: bool) -> Receipt:
        fences = spec.fences
        if with_held:
            fences = fences_of(self.link, self.board, fences)
        epoch = await self.epoch()
        assert self._epoch is not None
        # Together with `epoch`: another commit may adopt the next one while this one waits.
        number = self._epoch.number
        # The step is numbered only once a lane is free: an engine keeps one answer for each lane.
        await self._free.acquire()
        lane = self._lanes.pop()
        lane.step += 1
        name = CommitId(self.link.agent, lane.number, self._incarnation, lane.step)
        # As late as possible: if an answer of this lane was displaced after `known`, the attempt is
        # refused (AttemptTooOld) and has to be made again.
        since = self.seen
        commit = Commit(
            name,
            epoch,
            spec.ops,
            spec.conditions,
            fences,
            spec.based_on,
            spec.note,
            known=since,
        )
        try:
            receipt = await self.link.commit(self.board, commit)
        except _FAILURES as error:
            receipt = await self._insist(lane, commit, number, error)
        finally:
            # Also after a cancellation: the lane's next step supersedes what may
            # still be on its way.
            self._lanes.append(lane)
            self._free.release()
        self.saw(receipt.revision)
        if with_held and not changed_nothing(spec.ops, receipt.results):
            note_commit(self.link, self.board, receipt.revision)
        return receipt

    async def _insist(self, lane: _Lane, commit: Commit, number: int, failure: _Failure) -> Receipt:
        """Send `commit`, of epoch `number`, again until there is an answer, or no service can be
        reached for too long.

        It is marked as a retry (`retry_since`) only once an attempt may have been applied: for a
        first attempt, an engine need not consider an overwritten answer. A refusal of a retry
        counts once no earlier attempt can be applied any more.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        uncertain: OutcomeUnknown | None = None
        since = commit.known
        for pause_ms in self._pauses_ms():
            if self.link.is_closed:
                raise uncertain or failure
            if isinstance(failure, StaleEpoch):
                # Even after a lost answer this refusal is certain: an engine looks for the
                # first answer of a retry before it compares epochs. No pause: the engine is
                # there and has answered.
                commit = replace(commit, epoch=self._adopt(failure, number))
                number = failure.number
            else:
                if isinstance(failure, OutcomeUnknown):
                    if failure.final:
                        raise failure
                    # From now on, a later "not done" does not undo it.
                    uncertain, commit = failure, replace(commit, retry_since=since)
                elif isinstance(failure, AttemptTooOld):
                    # Only a first attempt gets this error, so no earlier one can have been applied.
                    since = failure.head
                    self.saw(since)
                    commit = replace(commit, known=since)
                rest_s = pause_s(failure, pause_ms)
                if loop.time() + rest_s > deadline:
                    raise uncertain or failure
                if uncertain is None and _is_no_majority(failure):
                    raise failure
                await asyncio.sleep(rest_s)
            try:
                return await self.link.commit(self.board, commit)
            except _FAILURES as error:
                failure = error
            except BoardFrozen as frozen:
                if uncertain is None or not self.wait_frozen_ms or _renews(commit.ops):
                    raise uncertain or frozen from frozen
                # It was not applied, but an earlier attempt could still be applied after the thaw.
                try:
                    await self.thawed(frozen)
                except BoardFrozen:
                    # As a refusal, it would be sent again under another identity.
                    raise uncertain from frozen
                # The time in which no service was reached begins again: the freeze
                # is not part of it.
                failure, deadline = uncertain, loop.time() + self._patience_s
            except Rejected:
                # An earlier attempt may still arrive, and find the reason of this refusal gone.
                if uncertain is not None:
                    await self._close(lane, commit, uncertain, deadline)
                raise
        raise AssertionError("the pauses never end")

    async def _close(
        self, lane: _Lane, refused: Commit, uncertain: OutcomeUnknown, deadline: float
    ) -> None:
        """Make sure that a delayed attempt at `refused` will be superseded.

        The reason of the refusal may be gone when the delayed attempt arrives. A later step of the
        lane, which changes nothing, supersedes it. Errors: `uncertain`, when nothing could be
        committed until `deadline` (of the loop's clock).
        """
        loop = asyncio.get_running_loop()
        lane.step += 1
        # Engines log the removal of this absent key. Other removals of nothing leave no answer on
        # the lane, and would supersede nothing.
        op = Delete(superseding_key(self.link.agent))
        name = replace(refused.id, step=lane.step)
        mark = Commit(name, refused.epoch, (op,), note="after a refused retry", known=refused.known)
        for pause_ms in self._pauses_ms():
            failure: Exception = uncertain
            try:
                self.saw((await self.link.commit(self.board, mark)).revision)
                return
            except StaleEpoch:
                return  # likewise: the attempt belongs to an epoch that has ended
            except AttemptTooOld as error:
                mark = replace(mark, known=error.head)
            except OutcomeUnknown as error:
                if error.final:
                    raise uncertain from error
                mark = replace(mark, retry_since=refused.known)
            except (SnapshotFirst, Unavailable) as error:
                failure = error  # the barrier ends by itself: the delivery is made elsewhere
            except Rejected as error:
                raise uncertain from error
            rest_s = pause_s(failure, pause_ms)
            if self.link.is_closed or loop.time() + rest_s > deadline:
                raise uncertain
            await asyncio.sleep(rest_s)

    def _adopt(self, error: StaleEpoch, number: int) -> str:
        """The new epoch, if the engine merely restarted and lost nothing that this writer saw.

        It must directly follow `number`, that of the commit: an epoch in between may have lost
        commits, or been a restore.
        """
        is_next = error.number == number + 1
        if error.cause != "engine" or not is_next or self.seen > error.from_revision:
            raise error
        self._epoch = Epoch(error.number, error.current, error.cause, error.from_revision)
        return error.current


class _Patience:
    """How long one commit waits for the thaw of its board, all in all."""

    def __init__(self, wait_ms: Milliseconds, pauses_ms: Iterator[Milliseconds]) -> None:
        self._wait_s = wait_ms / 1000
        self._until_s: float | None = None
        self._pauses = pauses_ms

    def begin(self) -> tuple[float, float]:
        """The seconds still to wait, and those to pause after that."""
        now_s = asyncio.get_running_loop().time()
        if self._until_s is None:
            self._until_s = now_s + self._wait_s
        return self._until_s - now_s, random.uniform(0.5, 1.0) * next(self._pauses) / 1000


class _Noticing:
    """Awaits something, and records whether it had to wait."""

    def __init__(self, work: Awaitable[Sequence[Op]]) -> None:
        self.waited = False
        self._work = work

    def __await__(self) -> Generator[Any, Any, Sequence[Op]]:
        # Driven by hand, as `await` does not say whether it suspended; a clock
        # would only suggest it.
        running = self._work.__await__()
        resume: Callable[[Any], Any] = running.send
        value: Any = None
        while True:
            try:
                waits = resume(value)
            except StopIteration as end:
                found: Sequence[Op] = end.value
                return found
            self.waited = True
            try:
                value = yield waits
                resume = running.send
            except BaseException as error:  # noqa: BLE001 - handed on
                resume, value = running.throw, error


def _is_no_majority(failure: _Failure) -> bool:
    """Whether the lock masters cannot be reached: that is reported at once, because the caller of a
    lock may have an alternative."""
    return isinstance(failure, Unavailable) and failure.what == LOCK_MASTERS


# --- the leases that the running task holds -------------------------------------------------------
# Inside `async with board.lock(...)` no fence has to be named: every commit on that board, by any
# Board object of the task and of tasks started inside the block, carries the fences.
#
# - A task that was started inside a block keeps relying on its leases, even when it outlives the
#   block: such a commit is Fenced, and never applied unprotected. (To start one that does not, give
#   it an empty context: `asyncio.create_task(work, context=contextvars.Context())`.)
# - A fence of a lease outside `public` goes with commits of its own agent only: no other may read
#   it.
# - A board is identified by its name and its service: two services may each have a `main`.

_holds: ContextVar[tuple["Hold", ...]] = ContextVar("blackboard_holds", default=())


@dataclass(eq=False, slots=True)
class Hold:
    """Leases of one board that a block of one agent holds together.

    `committed` is the last revision that relied on them; `ended` is set after the block.
    """

    origin: object
    board: str
    agent: str
    fences: tuple[HeldFence, ...]
    committed: Revision = 0
    ended: bool = False


def take(hold: Hold) -> None:
    """From here on, commits of the running task rely on `hold`."""
    # A new tuple, because tasks that were started before share the old one.
    _holds.set((*_holds.get(), hold))


def let_go(hold: Hold) -> None:
    """Commits of the running task no longer rely on `hold`; those of tasks it started still do."""
    hold.ended = True
    _holds.set(tuple(other for other in _holds.get() if other is not hold))


def adopt_holds(context: Context) -> None:
    """Let the running task or thread hold what a call that ran in `context` left held."""
    _holds.set(context.get(_holds, ()))


def fences_of(
    link: Transport, board: str, explicit: Sequence[HeldFence] = ()
) -> tuple[HeldFence, ...]:
    """`explicit`, then the fences that the running task holds for commits of `link` on `board`."""
    holds = _held_on(link, board)
    if not holds and not explicit:
        return ()
    fences = dict.fromkeys(explicit)
    for hold in holds:
        own = hold.agent == link.agent
        fences.update((f, None) for f in hold.fences if own or namespace_of(f.key) == "public")
    return tuple(fences)


def _renews(ops: Sequence[Op]) -> bool:
    """Whether a commit prolongs a lease, which would run out during the wait for a thaw."""
    return any(isinstance(op, Renew) for op in ops)


def _changes_entries(ops: Sequence[Op]) -> bool:
    """Whether there is more to a commit than leases."""
    return any(not isinstance(op, Grant | Renew | Release) for op in ops)


def note_commit(link: Transport, board: str, revision: Revision) -> None:
    """Record that a commit with the fences of the running task took effect as `revision`."""
    for hold in _held_on(link, board):
        if hold.agent == link.agent:
            hold.committed = max(hold.committed, revision)


def check_free(link: Transport, board: str, keys: Iterable[Key]) -> None:
    """Whether the running task may ask for `keys`.

    Errors: LocalProtocolError when it holds one of them: it would wait for itself. LimitExceeded
    when a commit could not carry all its fences.
    """
    asked = set(keys)
    mine = {f.key for hold in _held_on(link, board) if not hold.ended for f in hold.fences}
    for key in sorted(asked & mine):
        raise LocalProtocolError(reason=f"this task holds {key} already; locks are not re-entrant")
    if len(asked | mine) > FENCES_MAX:
        raise LimitExceeded("FENCES_MAX", len(asked | mine), FENCES_MAX, "keys")


def _held_on(link: Transport, board: str) -> list[Hold]:
    holds = _holds.get()
    return [h for h in holds if h.board == board and h.origin == link.origin] if holds else []
