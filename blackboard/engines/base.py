"""The port of a storage engine.

The guarantees of every engine (`tests/conformance/` runs the same suite over all of them):
- `commit` decides each commit of a batch on its own, in order, as `core/model.py` says. An outcome
  that is `Committed` has reached the engine's acknowledged level; one that is an error changed
  nothing; `OutcomeUnknown` is neither, and sending the same commit again resolves it.
- `read`, `list` and `log` are linearizable: they show every commit that was answered before they
  were called, and nothing that a fault named by the level could still lose.
- A call raises `Unavailable` within ENGINE_RETRY_MS and never hangs; a driver's exception never
  escapes.
- Cancelling a call leaves the engine usable; a cancelled `commit` has an unknown outcome.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

from blackboard import limits
from blackboard.core.commit import (
    FORWARD,
    Entry,
    Head,
    ListOptions,
    LogEntry,
    LogPage,
    Reading,
    Seed,
)
from blackboard.core.model import Outcome
from blackboard.core.path import Ranges
from blackboard.errors import BlackboardError, LimitExceeded, StaleEpoch
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import Prepared


def check_hold(hold_ms: Milliseconds) -> None:
    """Errors: LimitExceeded when a board may not be held that long."""
    if hold_ms > limits.HOLD_MS_MAX:
        raise LimitExceeded("HOLD_MS_MAX", hold_ms, limits.HOLD_MS_MAX)


def check_size(limit: str, size: int, maximum: int) -> None:
    """Errors: LimitExceeded when a call has more than `limit` allows."""
    if size > maximum:
        raise LimitExceeded(limit, size, maximum)


def check_epoch(head: Head, epoch: str | None) -> None:
    """Errors: StaleEpoch when a board at `head` is not in `epoch`; None = any."""
    if epoch is not None and head.epoch.id != epoch:
        raise _stale(epoch, head)


def check_since(head: Head, known: Revision) -> None:
    """Errors: StaleEpoch when the epoch of a board at `head` began after revision `known`.

    A request that was made then may be about what a restore, a loss or a removal took away since.
    """
    if head.epoch.revision > known:
        raise _stale("", head)


def _stale(epoch: str, head: Head) -> StaleEpoch:
    now = head.epoch
    return StaleEpoch(epoch, now.id, now.number, now.cause, now.from_revision, head.revision)


@dataclass(slots=True)
class VoteCounts:
    """Counts the answers of lock masters to requests for a vote, one per request and master."""

    granted: int = 0
    """The vote was granted or prolonged."""
    refused: int = 0
    """Another owner had the vote."""
    unreachable: int = 0
    """No answer in time, or an error."""


REPLICA: Final = "replica"
"""The level of a commit that reached the requested number of replicas before its answer."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts about an engine: its kind, the location of its boards, and what an acknowledged commit
    survives.

    `level` is one of "disk" (power loss), "second" (a process crash; power loss costs a second),
    "memory" (a crash of the service, not of the machine). Single commits may have the level REPLICA
    instead: they survive the loss of the primary, if one of the replicas takes its place.
    `warnings` are problems that do not prevent it from serving.
    """

    name: str
    version: str
    location: str
    level: str
    warnings: tuple[str, ...] = ()


class Store(Protocol):
    """An engine, opened. One object serves many boards and many tasks of one event loop."""

    async def facts(self) -> EngineFacts:
        """Query the engine's facts. Errors: EngineRefused if its settings would lose data."""

    async def open(self, board: str, *, again: bool = False) -> Head:
        """Create `board` if necessary, and return its head.

        The first contact with an engine run that may have lost revisions begins a new epoch. With
        `again`, a removed board (`remove`) begins again, in a new epoch above all its revisions.
        Errors: NoSuchBoard for a removed board without `again`.
        """

    async def begin_epoch(self, board: str, head: Head, *, above: Revision) -> Head:
        """Begin an epoch above revision `above` if the board is still at `head`; returns its new
        head.

        For a board that was found to hold less than was acknowledged. Errors: InvalidRequest when
        there is no such board; Unavailable, also for commits at the same time.
        """

    async def exists(self, board: str) -> bool:
        """Whether the board exists and is complete. Creates nothing."""

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """Decide 1..BATCH_COMMITS_MAX commits; one outcome each, in order.

        While the board is held, the call waits, except for a restore, which is a batch of its own.
        Errors: Unavailable when certainly none of them was applied.
        """

    async def hold(self, board: str, hold_ms: Milliseconds) -> None:
        """Make commits wait for up to `hold_ms` (at most HOLD_MS_MAX) by the engine's clock; 0 ends
        the wait, as does a restore. Two concurrent holds of a board may end early; nothing worse
        happens. Errors: LimitExceeded, Unavailable.
        """

    async def seed(
        self,
        board: str,
        seed: Seed,
        pages: AsyncIterator[Sequence[Entry]],
        *,
        replaces: Head | None = None,
    ) -> Head:
        """Make a board that begins with the entries of `pages`, which are sorted by key.

        It exists completely or not at all: until then `open` raises Unavailable, and the remains of
        a crash are removed by the next `seed` of that name. With `replaces` an existing board is
        removed first; after a failure there is that, or neither until the next `seed`. Errors:
        InvalidRequest when the board exists; HeadMoved when its head is not `replaces`: nothing
        changed.
        """

    async def drop(self, board: str) -> None:
        """Remove a board and all of its data; no error if there is none."""

    async def remove(self, board: str, *, above: Revision = 0, epoch: str | None = None) -> None:
        """Remove a board for good and record that it existed, up to its last revision or `above`;
        no error if there is none. Atomic, also under a crash.

        From then on every process that has it open gets NoSuchBoard. Errors: StaleEpoch, and
        nothing happens, if there is a board that is not in `epoch`; Unavailable: perhaps removed.
        """

    async def removed(self, board: str) -> Revision | None:
        """The last revision of a board that was removed and did not begin again; else None."""

    async def read(self, board: str, keys: Sequence[Key]) -> Reading:
        """Up to READ_KEYS_MAX entries, all as of one revision; absent keys are left out."""

    async def list(
        self,
        board: str,
        within: Prefix | Ranges,
        *,
        after: Key | None = None,
        limit: int,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Reading:
        """Entries below a prefix ("" = the whole board), or in ranges of keys, in key order, from
        the first key > `after`. Keys outside are not read, so they affect no page.

        With `reverse` in descending order, from the first key < `after`. With `keys_only` the
        values are left out (`b""`), not read, and not counted.

        A page ends after `limit` entries or PAGE_BYTES_MAX bytes; then `next_key` is its last key.
        Each page is as of one revision, two pages may differ in theirs.
        """

    async def children(
        self,
        board: str,
        within: Ranges,
        prefix: Prefix,
        *,
        after: Key | None = None,
        limit: int,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """A listing of `within`, which lies below `prefix`, by directory: the entries directly
        below `prefix`, and its directories with the number of their keys within.

        `limit` counts both. A page ends as one of `list`; its `next_key` may lie in the last
        directory: continuing after a key of a directory skips the rest of it. All of one revision.
        Cost: what is returned; the keys of a directory are not read.
        """

    async def log(
        self, board: str, after: Revision, *, limit: int, wait_ms: Milliseconds = 0
    ) -> LogPage:
        """Log entries after revision `after`, at most `limit` and about PAGE_BYTES_MAX bytes.

        With `wait_ms`, wait up to that long for the first one (an empty page when none came).
        Errors: Compacted when `after` + 1 is no longer in the log, FutureRevision above the head.
        """

    async def due(self, board: str, *, limit: int, by_ms: Milliseconds | None = None) -> Reading:
        """Entries that have expired by the engine's clock, the earliest first; with `by_ms`, those
        that will have expired then. A store that encrypts leaves out the values (`b""`)."""

    async def leases(self, board: str, *, due: bool = False) -> Reading:
        """All leases with their queues, sorted by key; with `due` only the expired ones."""

    async def compact(self, board: str, oldest: Revision) -> Head:
        """Drop log entries (and tombstones) below `oldest`, which never decreases."""

    async def boards(self) -> Sequence[str]:
        """Names of the boards that exist, sorted."""

    async def aclose(self) -> None:
        """Release the engine. Commits in flight finish or have an unknown outcome."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A commit was not decided, because tokens were revoked since its own was checked.

    `access` is the revision of the revocation record that the service must read first. None: the
    board has no access number yet; the service has to read the record and call
    `Shared.raise_access`.
    """

    access: Revision | None


@runtime_checkable
class Shared(Protocol):
    """The additional port of an engine that several processes share: each board has an access
    number, which never falls until the engine restarts, and is compared in the commit itself."""

    async def commit_at(
        self, board: str, batch: Sequence[Prepared], access: Revision
    ) -> "list[Outcome | Behind]":
        """As `Store.commit`, if the board's access number is not above `access`.

        Otherwise, or if it has none, nothing is decided and each outcome is `Behind`, or
        `OutcomeUnknown` where an earlier attempt may have been executed.
        """

    async def raise_access(self, board: str, access: Revision) -> None:
        """Raise the access number of `board` to `access`; a higher one stays. A board that is not
        open on this run of the engine has none and gets none. Errors: Unavailable."""


class BatchAnswer(Protocol):
    """Where the outcomes of a batch go; a future of them is one."""

    def done(self) -> bool:
        """Whether nobody waits for them."""

    def set_result(self, result: list[Outcome], /) -> None:
        """The outcomes, as `Store.commit` returns them."""

    def set_exception(self, exception: BlackboardError, /) -> None:
        """The error, as `Store.commit` raises it."""


@runtime_checkable
class Begins(Protocol):
    """The additional port of an engine that decides commits on the event loop: they need no task
    that waits."""

    def begin(self, board: str, batch: Sequence[Prepared], answer: BatchAnswer) -> bool:
        """Decide a batch now and let `answer` know later; False if it would have to wait, or may
        be refused as a whole: then nothing was decided, and `commit` says why.

        The engine answers even if nobody waits. What it calls must not call the engine. It may
        begin to write before it returns: put what came together into one batch.
        """


@runtime_checkable
class Scrubs(Protocol):
    """The additional port of an engine with files: removing traces of deleted data from them."""

    async def scrub(self, board: str) -> str:
        """Overwrite deleted data of `board` in every file that the engine has open.

        Returns "" when that is done, else what is left to do by hand. Copies, replicas, and what a
        file system or a disk keeps in freed blocks are out of its reach. Errors: Unavailable.
        """


class LoggedValue(NamedTuple):
    """Where a value lies in a log: the revision of its commit, the bytes before it, its size."""

    revision: Revision
    place: int
    size: int


ValuePlaces = Mapping[Key, LoggedValue]
"""Where the values of one commit lie, by key."""


@runtime_checkable
class ServesValues(Protocol):
    """The additional port of an engine whose log serves single values of commits, until it is
    compacted or its board is removed."""

    async def places(self, board: str, entries: Sequence[LogEntry]) -> Sequence[ValuePlaces]:
        """Of each of these log entries, where the values of its keys lie. Left out is what need not
        lie there as it is: small values, results, what the log no longer has; and all of a restore
        that is larger than a commit may be, because all of it would be read for each value."""

    async def values(self, board: str, wanted: Sequence[LoggedValue]) -> Sequence[bytes | None]:
        """The bytes at these places; None where the log does not have them. Whether they are the
        value that was meant is for the caller to check. Errors: Corrupt, Unavailable."""


@runtime_checkable
class MayTear(Protocol):
    """The additional port of an engine that can come back with a part of a commit."""

    def torn(self, board: str) -> Revision | None:
        """The last revision of a board whose `open` was Corrupt for that reason; else None."""


@runtime_checkable
class PubSub(Protocol):
    """The additional port of an engine that several processes share: messages that are not stored
    (pub/sub).

    Messages may be lost, and are not in the log. So they suit only information that is repeated
    anyway, such as awareness.
    """

    async def publish(self, board: str, key: Key, data: bytes) -> None:
        """Publish a message about `key`. Errors: Unavailable; it may or may not have been
        delivered."""

    def subscribe(
        self, board: str
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[Key, bytes]]]:
        """Receive all messages about a board from now on, including those of this process.

        Errors: Unavailable, also of the iteration: messages until the next call are lost.
        """


async def paged(page: Callable[[Key | None], Awaitable[Reading]]) -> AsyncIterator[Reading]:
    """The pages of a listing, from first to last; `page` returns the page after a key."""
    after: Key | None = None
    while True:
        found = await page(after)
        yield found
        after = found.next_key
        if after is None:
            return


def pages_of(store: Store, board: str, prefix: Prefix) -> AsyncIterator[Reading]:
    """All present entries of a board below a prefix ("" = the whole board), page by page; different
    pages may be of different revisions."""
    return paged(
        lambda after: store.list(board, prefix, after=after, limit=limits.LIST_ENTRIES_MAX)
    )
