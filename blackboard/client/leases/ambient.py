"""The leases that the running task holds, whose fences are added to its commits automatically.

Inside `async with board.lock(...)` no fence has to be named: every commit on that board, by any
Board object of the task and of tasks started inside the block, carries the fences.

Invariants
- A task that was started inside a block keeps relying on its leases, even when it outlives the
  block: such a commit is Fenced, and never applied unprotected. (To start one that does not, give
  it an empty context: `asyncio.create_task(work, context=contextvars.Context())`.)
- a fence of a lease outside `public` goes with commits of its own agent only: no other may read it.
- A board is identified by its name and its service: two services may each have a `main`.

`Keeper` renews leases while a block runs, and ends the block at once when they are lost.

Invariants of `Keeper`
- `deadline_s` is on a monotonic clock that was read before the grant, or the last answered renewal,
  was sent: whatever the engine's clock does, the lease cannot have expired there before.
- the block is cancelled at most once, and only while it runs.
- the block's own error goes first: a loss is then a note on it.

Source: the validity time of Redlock (antirez, 2015-16), and asyncio.timeout for the cancelling.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from blackboard.client.link import Transport
from blackboard.core.commit import HeldFence
from blackboard.core.lease import holder_prefix, owner_prefix
from blackboard.core.path import namespace_of
from blackboard.errors import (
    BlackboardError,
    Fenced,
    LeaseLost,
    LimitExceeded,
    LocalProtocolError,
    OutcomeUnknown,
    Unavailable,
)
from blackboard.limits import DEFAULT, FENCES_MAX, Limits
from blackboard.units import Key, Milliseconds, Revision

_UNIQUE_BYTES = 8
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


def new_holder(agent: str, account: str | None = "") -> str:
    """A name for one acquisition by `agent`, unlike any other: `<agent>~<16 hex digits>`.

    In a name with dots an `@` stands where its account ends ("" = it is its own; None = unknown).

    It is new for each acquisition, so a process that resumes after a pause is not mistaken for a
    later holder.
    """
    prefix = holder_prefix(agent) if account is None else owner_prefix(agent, account)
    return f"{prefix}~{secrets.token_hex(_UNIQUE_BYTES)}"


def take(hold: Hold) -> None:
    """From here on, commits of the running task rely on `hold`."""
    _holds.set((*_holds.get(), hold))


def let_go(hold: Hold) -> None:
    """Commits of the running task no longer rely on `hold`; those of tasks it started still do."""
    hold.ended = True
    _holds.set(tuple(other for other in _holds.get() if other is not hold))


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
        self._cancelling = self._block.cancelling()
        take(self._hold)
        self._watchdog = asyncio.create_task(self._keep(sent_s), name="keeper of leases")
        self._watchdog.add_done_callback(self._ended)

    def stop(self) -> None:
        """The block has ended: nothing is renewed any more, and no task cancelled."""
        let_go(self._hold)
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
            sent_s = loop.time()
            try:
                async with asyncio.timeout_at(self._deadline_s):
                    await self._renew()
                self._deadline_s = sent_s + self._ttl_s
            except (Unavailable, OutcomeUnknown):
                continue

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
