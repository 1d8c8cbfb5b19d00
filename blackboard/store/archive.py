"""The port to the cold tier: every commit and every version of every key, in SQL, for good.

The archive is fed by tailing a board's log (`service/archiver.py`). Once it holds revision r it
answers for every revision up to r: what the board held then, who changed what, what its digest was.

What every archive promises (`tests/conformance/rules_archive.py`)
- A revision is archived whole, once, after all before it; whoever appends out of turn is refused.
- What was answered for a revision never changes afterwards.
- A branch shares the past of the board that it came from: reading it at a revision before it began
  reads that board.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from blackboard.core.commit import Entry, Epoch, LogEntry, Reading
from blackboard.types import Key, Milliseconds, Prefix, Revision


@dataclass(frozen=True, slots=True)
class Point:
    """A board at a revision."""

    board: str
    revision: Revision


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the archive of a board reaches: `oldest`..`revision`, sealed by `chain`.

    `chain` is the hash chain over all commits up to `revision`; `epoch` the one at `revision`.
    """

    oldest: Revision
    revision: Revision
    epoch: Epoch
    chain: bytes
    origin: Point | None = None
    """Where the board branched off, None if it did not."""


@dataclass(frozen=True, slots=True)
class Version:
    """What a key became at `revision`: `entry`, or removed (None) by `author`."""

    key: Key
    revision: Revision
    time_ms: Milliseconds
    author: str
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that two points do not hold alike; None = absent there."""

    key: Key
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint as it is kept: its manifest's exact bytes, and their signature."""

    board: str
    name: str
    revision: Revision
    time_ms: Milliseconds
    kind: str
    manifest: bytes
    signature: bytes
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """The agents' last commits at a revision, and each namespace's digest (32 bytes)."""

    digests: Mapping[str, bytes]
    steps: Mapping[str, tuple[Revision, str, int, int]]
    """By agent: the revision, incarnation, lane and step of its last commit."""


class Archive(Protocol):
    """An archive, opened. One object serves many boards."""

    async def mark(self, board: str) -> Mark | None:
        """How far the board is archived; None if it is unknown."""

    async def marks(self) -> Sequence[str]:
        """Names of the boards that it knows, sorted."""

    async def take(self, board: str, owner: str, ttl_ms: Milliseconds) -> int | None:
        """Become, or stay, the one who appends; returns the fence, None while somebody else is.

        By the archive's own clock; the check is that of `append`.
        """

    async def join(self, board: str, mark: Mark, entries: AsyncIterator[Sequence[Entry]]) -> None:
        """Begin the archive of a board whose log does not reach back to its beginning.

        `entries` are all that it held at `mark.revision`; older revisions are not known, unless
        `mark.origin` says where they are. Whole or not at all; replaces what an earlier board of
        that name left.
        """

    async def append(
        self, board: str, fence: int, after: Revision, entries: Sequence[LogEntry]
    ) -> Mark:
        """Archive the log entries that follow revision `after`.

        Errors: Fenced when somebody else appends by now or the archive is not at `after`.
        """

    async def read(self, at: Point, keys: Sequence[Key]) -> Reading:
        """Entries of `keys` as they were. Errors: Compacted, FutureRevision (not archived yet)."""

    async def list(
        self, at: Point, prefix: Prefix, *, after: Key | None = None, limit: int
    ) -> Reading:
        """A page of the entries below `prefix` ("" = all) as they were; see `Store.list`."""

    async def items(self, at: Point) -> Sequence[tuple[Prefix, int]]:
        """The counters of `append` as they were."""

    async def history(
        self, at: Point, key: Key, *, before: Revision | None = None, limit: int
    ) -> Sequence[Version]:
        """Versions of `key` up to the point, the newest first; `before` continues."""

    async def differences(
        self, a: Point, b: Point, *, after: Key | None = None, limit: int
    ) -> Sequence[Difference]:
        """A page of the keys that `a` and `b` do not hold alike (value or expiry), sorted.

        Both belong to one family of branches. The cost follows what changed between them.
        """

    async def log(
        self, board: str, after: Revision, *, until: Revision, limit: int
    ) -> Sequence[LogEntry]:
        """Log entries after `after` up to `until`, as the board's log had them."""

    async def at_time(self, board: str, time_ms: Milliseconds) -> Revision:
        """The newest revision that was committed at `time_ms` or before; 0 if none was."""

    async def facts_at(self, at: Point) -> Facts:
        """Digests and steps as they were."""

    async def checkpoints(self, board: str) -> Sequence[Stored]:
        """All checkpoints of a board, the oldest first."""

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """Keep a checkpoint from being pruned, or no longer. Errors: NoSuchCheckpoint."""

    async def forget(self, board: str, name: str) -> None:
        """Remove a checkpoint's record."""

    async def prune(self, board: str, keep: Sequence[Revision], below: Revision) -> int:
        """Remove versions below `below` that no revision of `keep`, no later revision and no branch
        needs, and the commits before them; returns how many versions went."""

    async def verify(self, at: Point) -> AsyncIterator[str]:
        """Recompute everything up to a point: yields each finding, naming what is damaged."""

    async def aclose(self) -> None:
        """Let go of it."""
