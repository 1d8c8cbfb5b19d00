"""What is entered with `with`: steps, watches, locks, claims and attachments.

Written by `python -m tools.sync_client`: do not edit.
"""

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from blackboard.client.leases.claim import Task
from blackboard.client.step import Ground
from blackboard.client.views import Entry, Listing, Receipt, RevisionEvent
from blackboard.core.commit import Condition, HeldFence, Op
from blackboard.sync import asynchronous
from blackboard.sync.portal import Mirror, Portal
from blackboard.units import Key, Milliseconds, Prefix, Revision

BoardT = TypeVar("BoardT")
T = TypeVar("T")


class Step(Mirror[asynchronous.Step]):
    """Made by `Board.step`. After the block `receipt` says what was committed (None = nothing)."""

    @property
    def receipt(self) -> Receipt | None:
        """As of the asynchronous Step."""
        return self._inner.receipt

    @property
    def agent(self) -> str:
        """The agent that takes this step."""
        return self._inner.agent

    @property
    def ops(self) -> tuple[Op, ...]:
        """The operations that the step will commit."""
        return self._inner.ops

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that the commit of the step will have."""
        return self._inner.conditions

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of all that the step read: what it is conditioned on."""
        return self._inner.patterns

    @overload
    def get(self, key: Key, default: Any = None) -> Any: ...

    @overload
    def get(self, key: Key, default: T, *, as_type: type[T]) -> T: ...

    @overload
    def get(self, key: Key, default: None = None, *, as_type: type[T]) -> T | None: ...

    def get(self, key: Key, default: Any = None, *, as_type: Any = None) -> Any:
        """The value at `key` as this step sees it, own writes included; `default` if absent.

        It is not read from the board (and not tracked) when the step itself put or deleted it.
        `as_type` as in `Board.get`.
        """
        return self._portal.run(lambda: self._inner.get(key, default, as_type=as_type))

    def entry(self, key: Key) -> Entry | None:
        """The entry at `key` on the board, without own writes; the read is tracked."""
        return self._portal.run(lambda: self._inner.entry(key))

    def saw(self, entry: Entry) -> None:
        """Track a read that was made outside of the step: its commit is also conditioned on
        `entry`.
        """
        self._inner.saw(entry)

    def list(self, pattern: str) -> Listing:
        """The first LIST_ENTRIES_MAX entries that match, without own writes; tracked.

        A pattern `<prefix>/**` within one namespace is tracked as a whole (including new and
        removed keys), any other one by the entries found. The runtime's branches (such as
        `public/~agents`) are listed, but tracked only if the pattern names them.
        """
        return self._portal.run(lambda: self._inner.list(pattern))

    def put(self, key: Key, value: Any, *, ttl_ms: Milliseconds | None = None) -> None:
        """Set `key` to `value` when the step commits."""
        self._inner.put(key, value, ttl_ms=ttl_ms)

    def delete(self, key: Key) -> None:
        """Remove `key` when the step commits."""
        self._inner.delete(key)

    def delete_prefix(self, prefix: Prefix) -> None:
        """Remove everything below `prefix` when the step commits."""
        self._inner.delete_prefix(prefix)

    def append(self, prefix: Prefix, value: Any, *, ttl_ms: Milliseconds | None = None) -> None:
        """Add `value` as the next item below `prefix`; its key is in `receipt.results`."""
        self._inner.append(prefix, value, ttl_ms=ttl_ms)

    def increment(self, key: Key, by: int = 1) -> None:
        """Add `by` to the integer at `key`; the sum is in `receipt.results`."""
        self._inner.increment(key, by)

    def send(self, agent: str, message: Any) -> None:
        """Append `message` to the inbox of `agent`, in the same commit as everything else."""
        self._inner.send(agent, message)

    def merge(self, key: Key, patch: Any) -> Any:
        """Apply a JSON merge patch (RFC 7396) to `key` as this step sees it; returns the value."""
        return self._portal.run(lambda: self._inner.merge(key, patch))

    def expect(self, *conditions: Condition) -> None:
        """Add conditions of your own."""
        self._inner.expect(*conditions)

    def rest_on(self, *grounds: Ground) -> None:
        """Add entries to the provenance of this step (`why`), without a condition: they may have
        changed.
        """
        self._inner.rest_on(*grounds)

    def rely_on(self, *fences: HeldFence) -> None:
        """Add leases without which the commit must not happen."""
        self._inner.rely_on(*fences)

    def __enter__(self) -> "Step":
        self._portal.enter(self._inner)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.run(lambda: self._inner.__aexit__(kind, error, trace))


class Watch(Mirror[asynchronous.Watch]):
    """Made by `Board.watch`. Iterate for `RevisionEvent`; keep `position` to resume later.

    A restore comes as one revision that begins an epoch, with exactly what it changed. When that is
    more than RESYNC_BYTES, a watch with a snapshot reads `state` and `revision` again and delivers
    an empty revision that begins the epoch; any other watch ends with Resync.

    Errors while iterating: Compacted, RolledBack, Resync (start again with a snapshot);
    AccessDenied; Unavailable when the service could not be reached. The iteration is over then;
    `position` is still valid.
    """

    @property
    def state(self) -> dict[Key, Entry]:
        """With `snapshot`: the matching entries as of `revision`, by key."""
        return self._inner.state

    @property
    def revision(self) -> Revision:
        """The revision that `state` shows."""
        return self._inner.revision

    @property
    def position(self) -> str:
        """The resume token after what was iterated so far: pass it as `after` of a new watch."""
        return self._inner.position

    @property
    def reached(self) -> Revision:
        """Everything up to this revision was delivered, or is not visible."""
        return self._inner.reached

    def __enter__(self) -> "Watch":
        self._portal.enter(self._inner)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.run(lambda: self._inner.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[RevisionEvent]:
        return self

    def __next__(self) -> RevisionEvent:
        return self._portal.run(self._inner.__anext__)

    def next(self, *, timeout_ms: Milliseconds | None = None) -> RevisionEvent:
        """The next visible revision. Errors: TimeoutError when none came within `timeout_ms`;
        nothing is lost then."""

        async def wait() -> RevisionEvent:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                return await anext(self._inner)

        return self._portal.run(wait)

    def take_received(self) -> list[RevisionEvent]:
        """Revisions that were received and not returned yet, without waiting."""
        return self._portal.call(self._inner.take_received)

    def wait_for(self, revision: Revision) -> list[RevisionEvent]:
        """Wait for everything up to `revision`, which must exist.

        Returns the visible revisions on the way, and maybe more; they do not come through the
        iteration again. Cancellation loses nothing.
        """
        return self._portal.run(lambda: self._inner.wait_for(revision))


class Lock(Mirror[asynchronous.Lock]):
    """Made by `Board.lock`; a block that holds the leases of `keys`, all or none. Used once.

    Errors on entering: LeaseHeld when `timeout_ms` is over (0: at once if it is not free);
    LocalProtocolError when this task holds one of the keys already; LimitExceeded; AccessDenied;
    Unavailable. Nothing is held then, and no queue is joined. Errors on leaving: LeaseLost when a
    lease was lost in the middle, unless the block has an error of its own; the block is cancelled
    at once when the loss is noticed. Cancellation, in whichever phase: nothing is held, and no
    queue is joined.
    """

    @property
    def keys(self) -> tuple[Key, ...]:
        """As of the asynchronous Lock."""
        return self._inner.keys

    @property
    def holder(self) -> str:
        """The name of this acquisition on the board."""
        return self._inner.holder

    @property
    def committed(self) -> Revision:
        """The last revision that was committed in the block; 0: none yet."""
        return self._inner.committed

    @property
    def fences(self) -> tuple[HeldFence, ...]:
        """The fences that commits in the block carry."""
        return self._inner.fences

    @property
    def until_ms(self) -> Milliseconds:
        """When the lease runs out if it is not renewed again, by the engine's clock."""
        return self._inner.until_ms

    def __enter__(self) -> Self:
        self._portal.enter(self._inner)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.run(lambda: self._inner.__aexit__(kind, error, trace))


class Claim(Mirror[asynchronous.Claim]):
    """Made by `Board.claim`: a block with one task.

    Cancellation, and every other error of the block, returns the task and counts as an attempt; a
    cancellation before the block leaves nothing behind, not even the count.
    """

    def __enter__(self) -> Task:
        return self._portal.enter(self._inner)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.run(lambda: self._inner.__aexit__(kind, error, trace))


class Attachment(Lock, Generic[BoardT]):
    """Made by `Board.attach`; a block in which this process is an agent. Used once.

    `board` is the board as that agent. Errors and cancellation as of a Lock.
    """

    _inner: asynchronous.Attachment[Any]

    def __init__(self, portal: Portal, inner: asynchronous.Attachment[Any], board: BoardT) -> None:
        super().__init__(portal, inner)
        self._board = board

    @property
    def agent(self) -> str:
        """As of the asynchronous Attachment."""
        return self._inner.agent

    @property
    def board(self) -> BoardT:
        """The board as that agent."""
        return self._board

    def report(self, state: str, note: str = "") -> None:
        """Publish what this agent is doing. Errors: Fenced when it was taken over."""
        self._portal.run(lambda: self._inner.report(state, note))
