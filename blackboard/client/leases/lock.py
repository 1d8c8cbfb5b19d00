"""Locks: leases with a queue, automatic renewal, and fences that are added to commits
automatically.

    async with board.lock("public/plan", "public/budget") as lock:
        plan = await board.get("public/plan")
        await board.put("public/plan", better(plan))     # carries the fences of the lock

Several keys are requested in one commit, so every queue has the waiters in the same order, and
there is no deadlock. The log wakes waiters; there is no polling.

Invariants
- `_places` holds what this acquisition may have on the board, from before it first asks until it
  is known that nothing is left: the fence of each granted key, 0 for each key that it waits for.
- A cancellation never interrupts a request to the board: its answer is processed first, then
  everything is released.
- the block runs only while every key is granted.

Source: the queue of etcd's and ZooKeeper's lock recipes; waiting on the log from the revision of
the requesting commit leaves no gap in which a grant could be missed.
"""

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from blackboard import telemetry
from blackboard.client.cancellation import finish
from blackboard.client.link import WatchRequest
from blackboard.client.views import Change, Receipt, RevisionEvent
from blackboard.client.watch import Watch
from blackboard.client.writer import CommitRequest, Hold, Writer, check_free, let_go, take
from blackboard.core import lease as rules
from blackboard.core.commit import RESTORE, Grant, HeldFence, Lease, Op, Release, Renew
from blackboard.core.lease import holder_prefix, owner_prefix
from blackboard.core.path import check_key
from blackboard.core.watch import Position
from blackboard.errors import (
    BlackboardError,
    BoardFrozen,
    Compacted,
    Fenced,
    FutureRevision,
    InvalidRequest,
    LeaseHeld,
    LeaseLost,
    LocalProtocolError,
    OutcomeUnknown,
    Resync,
    RolledBack,
    StaleEpoch,
    Unavailable,
)
from blackboard.limits import DEFAULT, LIST_ENTRIES_MAX, Limits
from blackboard.units import Fence, Key, Milliseconds, Revision

_UNIQUE_BYTES = 8
UNDELIVERED = (Compacted, FutureRevision, Resync, RolledBack)
"""A watch cannot go on: the log has gone on without it, a restore was too large to be delivered, or
the engine lost commits. What it waited for has to be read."""
log = logging.getLogger(__name__)
T = TypeVar("T")


class Lock:
    """Made by `Board.lock`; a block that holds the leases of `keys`, all or none. Used once.

    Errors on entering: LeaseHeld when `timeout_ms` is over (0: at once if it is not free);
    LocalProtocolError when this task holds one of the keys already; LimitExceeded; AccessDenied;
    Unavailable. Nothing is held then, and no queue is joined. Errors on leaving: LeaseLost when a
    lease was lost in the middle, unless the block has an error of its own; the block is cancelled
    at once when the loss is noticed. Cancellation, in whichever phase: nothing is held, and no
    queue is joined.
    """

    def __init__(
        self,
        writer: Writer,
        keys: Sequence[Key],
        *,
        ttl_ms: Milliseconds,
        timeout_ms: Milliseconds | None = None,
    ) -> None:
        if not keys:
            raise InvalidRequest(field="keys", reason="at least one key is needed")
        self.keys = tuple(sorted({check_key(key) for key in keys}))
        self.holder = new_holder(writer.link.agent, writer.link.account)
        """The name of this acquisition on the board."""
        self._writer = writer
        self._limits = writer.link.limits
        self._ttl_ms = ttl_ms
        self._timeout_ms = timeout_ms
        self._places: dict[Key, Fence] = {}
        self._leases: dict[Key, Lease] = {}
        """The leases as last seen, of any holder."""
        self._asked_at: Revision = 0
        self._sent_s = 0.0
        self._hold: Hold | None = None
        self._keeper: Keeper | None = None

    @property
    def committed(self) -> Revision:
        """The last revision that was committed in the block; 0: none yet."""
        return self._hold.committed if self._hold else 0

    @property
    def fences(self) -> tuple[HeldFence, ...]:
        """The fences that commits in the block carry."""
        return tuple(HeldFence(key, self.holder, fence) for key, fence in self._places.items())

    @property
    def until_ms(self) -> Milliseconds:
        """When the lease runs out if it is not renewed again, by the engine's clock."""
        return min(self._leases[key].until_ms for key in self.keys)

    # --- the block --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._keeper is not None:
            raise LocalProtocolError(reason="a lock is used for one block only")
        check_free(self._writer.link, self._writer.board, self.keys)
        await self._acquire_in_time()
        origin, board, agent = self._writer.link.origin, self._writer.board, self._writer.link.agent
        # Nothing is awaited from the grant to `start`: a cancellation there would leave leases that
        # nobody renews or releases.
        self._hold = Hold(origin, board, agent, self.fences)
        self._keeper = Keeper(self._hold, self._ttl_ms, self._renew, limits=self._limits)
        self._keeper.start(self._sent_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._keeper is not None
        # First: a renewal that comes after our own release would be refused, and count as a loss.
        self._keeper.stop()
        limits = self._limits
        limit_ms = limits.connection.request_timeout_ms
        # After a loss the service may be out of reach, and the block's error must not wait for it.
        if self._keeper.lost:
            limit_ms = limits.client.finish_timeout_ms
        refusal = await self._finish(self._leave_within(limit_ms))
        if refusal is not None:
            # The keeper was stopped, so this only records the loss, and cancels nothing.
            self._keeper.lose("another holder has it, or it is free", refusal)
        self._keeper.judge(error)

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """As `finish`, for as long as this process waits."""
        return await finish(work, self._limits.client.finish_timeout_ms)

    # --- waiting ----------------------------------------------------------------------------------

    async def _acquire_in_time(self) -> None:
        # 0 needs no timer: the grant does not join the queue then, and is refused at once.
        patience = None if not self._timeout_ms else self._timeout_ms / 1000
        try:
            async with asyncio.timeout(patience) as waiting:
                await self._acquire()
        except TimeoutError as error:
            if not waiting.expired():
                raise
            raise self._in_the_way() from error

    async def _acquire(self) -> None:
        """Request the keys, and wait until all are granted. An error leaves nothing behind."""
        try:
            await self._begin()
            while not self._granted():
                await self._wait()
                if self._is_due():
                    await self._finish(self._prolong())
                if self._outrun():
                    await self._finish(self._ask_again())
        except BaseException:
            await self._finish(self._leave_within(self._limits.client.finish_timeout_ms))
            raise

    async def _begin(self) -> None:
        """Request the keys; on a frozen board after the thaw, if this agent waits for it."""
        while True:
            try:
                return await self._finish(self._ask())
            except BoardFrozen as frozen:
                # Outside of `_finish`: a freeze may last for hours, and this wait can be cancelled.
                await self._writer.thawed(frozen)

    def _granted(self) -> bool:
        return len(self._places) == len(self.keys) and all(self._places.values())

    def _outrun(self) -> bool:
        """Whether a lease or a ticket ran out while waiting: this process was paused too long."""
        return len(self._places) < len(self.keys)

    def _due_s(self) -> float:
        """When leases and tickets are to be prolonged, by the clock of the event loop."""
        return self._sent_s + self._ttl_ms / 1000 / self._limits.client.renewals_per_ttl

    def _is_due(self) -> bool:
        return asyncio.get_running_loop().time() >= self._due_s()

    async def _ask(self) -> None:
        """One commit: each key is granted, or this holder joins its queue.

        After an error nothing was requested, as far as is known; a request that was applied
        expires.
        """
        # Before the commit: if that is cut off (`_finish`), `_leave` knows what may be there.
        self._places = dict.fromkeys(self.keys, 0)
        try:
            ops = await self._asking()
            self._sent_s = asyncio.get_running_loop().time()
            self._take_in(ops, await self._writer.commit(CommitRequest(tuple(ops)), waits=False))
        except BlackboardError:
            self._places = {}
            raise

    async def _asking(self) -> Sequence[Op]:
        wait = self._timeout_ms != 0
        return [Grant(key, self.holder, self._ttl_ms, wait) for key in self.keys]

    async def _ask_again(self) -> None:
        """Go to the end of the queues: a waiter whose ticket expired has lost its place."""
        await self._leave()
        await self._ask()

    async def _wait(self) -> None:
        """Wait until all keys are granted, or a place is lost; or for less, to be called again."""
        try:
            await self._watch()
        except UNDELIVERED:
            # What was granted meanwhile is in the answer to a renewal, from which the next watch
            # goes on.
            await self._finish(self._prolong())

    async def _watch(self) -> None:
        """As `_wait`. Tickets are renewed during the wait. Errors: also UNDELIVERED."""
        writer = self._writer
        # Fails if it may not be read: the wait would never end.
        await writer.link.read(writer.board, self.keys)
        request = WatchRequest(self.keys, Position(await writer.epoch(), self._asked_at))
        async with Watch(
            writer.link, writer.board, request, revision=None, snapshot=False, saw=writer.saw
        ) as watch:
            while not self._granted() and not self._outrun():
                try:
                    async with asyncio.timeout_at(self._due_s()):
                        # A timeout cancels `anext`, which loses no revision.
                        self._notice(await anext(watch))
                except TimeoutError:
                    await self._finish(self._prolong())

    async def _prolong(self) -> None:
        """Renew leases and tickets, and process what the answer says of them."""
        while not self._outrun():
            try:
                await self._renew()
            except Fenced as refusal:
                self._correct(refusal)
            else:
                return

    def _notice(self, revised: RevisionEvent) -> None:
        """Process the changes of the keys in a revision."""
        for change in revised.changes:
            key, fence = change.key, self._places.get(change.key)
            # A change from before a grant that a refusal has already reported is outdated.
            if change.lease is not None and fence is not None and revised.revision >= fence:
                self._place(key, _lease_after(change))

    def _take_in(self, ops: Sequence[Op], receipt: Receipt) -> None:
        """Process the leases in the results of a commit of `ops`."""
        self._asked_at = receipt.revision
        for op, result in zip(ops, receipt.results, strict=True):
            if isinstance(op, Grant | Renew):
                assert isinstance(result, tuple)
                self._place(op.key, rules.from_result(op.key, result))

    def _place(self, key: Key, lease: Lease | None) -> None:
        """The place of this holder, given the present `lease` of the board."""
        if lease is not None:
            self._leases[key] = lease
        if lease is not None and lease.holder == self.holder:
            self._places[key] = lease.fence
        elif lease is not None and any(w.holder == self.holder for w in lease.waiters):
            self._places[key] = 0
        else:
            self._places.pop(key, None)

    def _in_the_way(self) -> BlackboardError:
        """Why it was not granted in time."""
        for key in self.keys:
            lease = self._leases.get(key)
            if lease is not None and lease.holder != self.holder:
                return LeaseHeld(key, lease.holder, lease.fence, lease.until_ms)
        return Unavailable(what=f"lock {self.keys[0]}", reason="no answer in time")

    # --- the commits of a holder ------------------------------------------------------------------

    async def _renew(self) -> None:
        """Prolong every lease and every ticket in one commit. Errors: Fenced."""
        ops, sent_s = self._renewing(), asyncio.get_running_loop().time()
        # Without the task's fences: each Renew names its own, and the loss of another lock is no
        # reason to lose this one.
        receipt = await self._writer.commit(CommitRequest(tuple(ops)), with_held=False, waits=False)
        self._sent_s = sent_s
        self._take_in(ops, receipt)

    def _renewing(self) -> Sequence[Op]:
        return [Renew(key, self.holder, self._places[key], self._ttl_ms) for key in self.keys]

    async def _leave(self) -> Fenced | None:
        """Release every lease and every place in a queue; returns the first refusal for a lost
        lease.

        Each refusal reports the state of one key, which can change at most twice: it is granted,
        and it is lost.
        """
        lost: Fenced | None = None
        while self._places:
            try:
                spec = CommitRequest(tuple(self._leaving()))
                await self._writer.commit(spec, with_held=False, waits=False)
                self._places = {}
            except Fenced as refusal:
                self._correct(refusal)
                if refusal.key not in self._places:
                    lost = lost or refusal
        return lost

    def _leaving(self) -> Sequence[Op]:
        return [Release(key, self.holder, fence) for key, fence in self._places.items()]

    def _correct(self, refusal: Fenced) -> None:
        """Update the places after a refusal: the key was granted in between, or it was lost."""
        if refusal.holder == self.holder and refusal.key in self._places:
            self._places[refusal.key] = refusal.current
        else:
            self._places.pop(refusal.key, None)

    async def _leave_within(self, limit_ms: Milliseconds) -> Fenced | None:
        """As `_leave`; a lease that cannot be released in time is left to expire."""
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self._leave()
        except (BlackboardError, TimeoutError) as error:
            if isinstance(error, StaleEpoch) and self._keeper is not None:
                self._keeper.lose(f"the board is in another epoch: {error.cause}")
            # This is expected after a restore, and needs no attention.
            level = logging.DEBUG if isinstance(error, StaleEpoch) else logging.WARNING
            log.log(level, "lock on %s is left to expire: %s", ", ".join(self.keys), error)
            return None


async def all_leases(writer: Writer, pattern: str) -> tuple[Lease, ...]:
    """The leases whose keys match `pattern` and may be read, with their queues."""
    found: list[Lease] = []
    after: Key | None = None
    while True:
        page = await writer.link.leases(writer.board, pattern, after=after, limit=LIST_ENTRIES_MAX)
        writer.saw(page.revision, page.epoch)
        found += page.leases
        after = page.next_key
        if after is None:
            return tuple(found)


async def wait_free(writer: Writer, key: Key, timeout_ms: Milliseconds | None) -> Revision:
    """Return a revision at which lease `key` was free: the present one, or that of its release.

    Errors: LeaseHeld when `timeout_ms` is over; AccessDenied when the key may not be read.
    """
    patience = math.inf if timeout_ms is None else timeout_ms / 1000
    deadline_s = asyncio.get_running_loop().time() + patience
    link, board = writer.link, writer.board
    await link.read(board, [key])  # fails if it may not be read: the lease would look free
    while True:
        reading = await link.leases(board, key, limit=1)
        if not reading.leases:
            return reading.revision
        start = Position(reading.epoch, reading.revision)
        with contextlib.suppress(*UNDELIVERED):
            return await _released(writer, reading.leases[0], start, deadline_s)


async def _released(writer: Writer, lease: Lease, start: Position, deadline_s: float) -> Revision:
    """The revision at which `lease`, which was held at `start`, is free. Errors: LeaseHeld after
    `deadline_s`; UNDELIVERED."""
    link, board, key = writer.link, writer.board, lease.key
    request = WatchRequest((key,), start)
    try:
        async with (
            asyncio.timeout_at(None if deadline_s == math.inf else deadline_s) as waiting,
            Watch(link, board, request, revision=None, snapshot=False, saw=writer.saw) as watch,
        ):
            while True:
                revised = await anext(watch)
                if revised.epoch is not None and revised.epoch.cause == RESTORE:
                    return revised.revision  # which ends every lease
                changes = [change for change in revised.changes if change.lease is not None]
                if changes and _lease_after(changes[-1]) is None:
                    return revised.revision
                lease = changes[-1].lease if changes and changes[-1].lease else lease
    except TimeoutError as error:
        if not waiting.expired():
            raise
        raise LeaseHeld(key, lease.holder, lease.fence, lease.until_ms) from error


def _lease_after(change: Change) -> Lease | None:
    """The lease after the change; None after a release or an expiry."""
    return None if change.kind in ("release", "expire") else change.lease


# --- keeping them ---------------------------------------------------------------------------------
# `Keeper` renews leases while a block runs, and ends the block at once when they are lost.
#
# - `deadline_s` is on a monotonic clock that was read before the grant, or the last answered
#   renewal, was sent: whatever the engine's clock does, the lease cannot have expired there before.
# - The block is cancelled at most once, and only while it runs.
# - The block's own error goes first: a loss is then a note on it.
#
# Source: the validity time of Redlock (antirez, 2015-16), and asyncio.timeout for the cancelling.


def new_holder(agent: str, account: str | None = "") -> str:
    """A name for one acquisition by `agent`, unlike any other: `<agent>~<16 hex digits>`.

    In a name with dots an `@` stands where its account ends ("" = it is its own; None = unknown).

    It is new for each acquisition, so a process that resumes after a pause is not mistaken for a
    later holder.
    """
    prefix = holder_prefix(agent) if account is None else owner_prefix(agent, account)
    return f"{prefix}~{secrets.token_hex(_UNIQUE_BYTES)}"


class Keeper:
    """The watchdog of one block.

    `renew` prolongs all leases of `hold` once; Unavailable and OutcomeUnknown of it are tried again
    until the deadline, any other error is a loss.
    """

    def __init__(
        self,
        hold: Hold,
        ttl_ms: Milliseconds,
        renew: Callable[[], Awaitable[object]],
        *,
        limits: Limits = DEFAULT,
    ) -> None:
        self.lost: LeaseLost | None = None
        self._hold = hold
        self._ttl_s = ttl_ms / 1000
        self._pause_s = self._ttl_s / limits.client.renewals_per_ttl
        self._renew = renew
        self._deadline_s = 0.0
        self._block: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._interrupted = False
        self._watchdog: asyncio.Task[None] | None = None

    def start(self, sent_s: float) -> None:
        """The running task begins its block; the leases were last requested at `sent_s`, by the
        event loop's clock.

        From here on its commits carry the fences.
        """
        self._deadline_s = sent_s + self._ttl_s
        self._block = asyncio.current_task()
        assert self._block is not None
        # As in asyncio.timeout: if more are left after our own is undone, somebody
        # else cancelled too.
        self._cancelling = self._block.cancelling()
        take(self._hold)
        # Not in the trace of the block's beginning, which would stay open for as long as it renews.
        with telemetry.apart():
            self._watchdog = asyncio.create_task(self._keep(sent_s), name="keeper of leases")
        self._watchdog.add_done_callback(self._ended)

    def stop(self) -> None:
        """The block has ended: nothing is renewed any more, and no task cancelled."""
        let_go(self._hold)
        # From here on, `lose` cancels nothing.
        self._block, block = None, self._block
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._interrupted and block is not None:
            self._interrupted = block.uncancel() <= self._cancelling

    def lose(self, reason: str, fenced: Fenced | None = None) -> None:
        """Record the loss; if the block is running, cancel it. Only the first loss counts."""
        if self.lost is not None:
            return
        first = self._hold.fences[0]
        key = fenced.key if fenced else first.key
        fence = fenced.fence if fenced else first.fence
        self.lost = LeaseLost(key, fence, reason, fenced.holder if fenced else None)
        if self._block is not None:
            self._interrupted = True
            self._block.cancel()

    def judge(self, error: BaseException | None) -> None:
        """How the block ended, after `stop`, when `error` (None = nothing) left it.

        Errors: LeaseLost after a loss, unless the block has an error of its own, or was also
        cancelled from outside.
        """
        if self.lost is None:
            return
        ours = isinstance(error, asyncio.CancelledError) and self._interrupted
        if error is None or ours:
            raise self.lost from error
        error.add_note(str(self.lost))

    async def _keep(self, sent_s: float) -> None:
        """Renew on time. Ends with the error that is a loss."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(sent_s + self._pause_s, self._deadline_s) - loop.time())
            # Read before it is sent: the new time to live cannot have begun earlier in the engine.
            sent_s = loop.time()
            try:
                async with asyncio.timeout_at(self._deadline_s):
                    await self._renew()
                self._deadline_s = sent_s + self._ttl_s
            except (Unavailable, OutcomeUnknown):
                if loop.time() >= self._deadline_s:  # it failed before the timeout could
                    raise TimeoutError from None

    def _ended(self, watchdog: "asyncio.Task[None]") -> None:
        error = None if watchdog.cancelled() else watchdog.exception()
        if isinstance(error, TimeoutError):
            self.lose("no renewal was answered within its time to live")
        elif isinstance(error, Fenced):
            self.lose("another holder has it, or it is free", error)
        elif isinstance(error, BlackboardError):
            self.lose(f"it could not be renewed: {error}")
        elif error is not None:
            self.lose(f"renewing it failed: {error!r}")
