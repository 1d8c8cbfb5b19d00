"""The port to the cold tier: every commit and every version of every key, in SQL, for good.

The archive is fed by tailing a board's log (`server/archiver.py`). Once it holds revision r it
answers for every revision up to r: what the board held then, who changed what, what its digest was.

What every archive promises (`tests/conformance/rules_archive.py`)
- A revision is archived completely, once, after all earlier ones; an append out of turn is refused.
- What was answered for a revision never changes afterwards, and no revision goes but by `prune`.
  Those that an engine lost stay revisions of the board, though none that came later follows them.
- A branch shares the past of the board that it came from: reading it at a revision before it began
  reads that board.
- A checkpoint's manifest is written with the revision that takes it, or neither is.
- `Unavailable` when its database or object store cannot be reached; `Corrupt` when what is there is
  not what was written. A driver's exception never comes through.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from blackboard.core.checkpoints import (
    Cut,
    Difference,
    Facts,
    Lost,
    Mark,
    Point,
    RedactedRows,
    StoredCheckpoint,
    Version,
)
from blackboard.core.commit import Head, LogEntry, Reading
from blackboard.core.path import Ranges
from blackboard.units import Key, Milliseconds, Prefix, Revision

Pause = Callable[[], Awaitable[None]]
"""Awaited where a long piece of work gives way to others."""


async def let_others_run() -> None:
    """The shortest pause: one turn of the event loop."""
    await asyncio.sleep(0)


class Sealer(Protocol):
    """Makes manifests, and checks whether one is genuine."""

    def seal(self, cut: Cut) -> tuple[bytes, bytes]:
        """The manifest of a checkpoint, and its signature."""

    def sign(self, said: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """The manifest that says this, in the name of this key, and its signature."""

    def findings(self, stored: StoredCheckpoint, cut: Cut | None) -> Sequence[str]:
        """The problems of a manifest that should describe `cut`; none if it is genuine.

        Without `cut` (what the board held then was pruned) only its signature is looked at.
        """


class Archive(Protocol):
    """An archive, opened. One object serves many boards."""

    async def mark(self, board: str) -> Mark | None:
        """How far the board is archived; None if it is unknown."""

    async def mark_at(self, at: Point) -> Mark:
        """The mark as it was at a revision: its epoch and its chain. Errors: as `read`."""

    async def boards(self) -> Sequence[str]:
        """Names of the boards that it knows, sorted."""

    async def holds(self, board: str) -> bool:
        """Whether anything is archived of the board itself: of a branch that was not made to the
        end there is a mark, but nothing."""

    async def lost(self, board: str) -> Lost | None:
        """The last loss of the board's engine, unless it was recovered; None if there was none."""

    async def digest_at(self, at: Point) -> bytes | None:
        """The digest of the log entry that is the point's revision; None if there is none.
        Errors: as `read`."""

    # --- writing: the archiver's ------------------------------------------------------------------

    async def take(self, board: str, owner: str, ttl_ms: Milliseconds) -> int | None:
        """Become, or stay, the one who appends; returns the fence, None while somebody else is.

        By the clock of the archive's database. The fence is checked by what follows.
        """

    async def give_up(self, board: str, fence: int) -> None:
        """Let somebody else become the one who appends at once."""

    async def join(
        self,
        board: str,
        fence: int,
        head: Head,
        pages: AsyncIterator[Reading],
        *,
        items: Sequence[tuple[Prefix, int]] = (),
        apart: bool = False,
    ) -> Mark:
        """Begin the archive of a board where its log stands at `head`.

        `pages` are listings of the whole board, each as of `head` or later; once the log up to the
        newest of them was appended, revisions from that one on are known exactly. `items` are the
        counters of `append`, as far as they are known. Whole or not at all.

        What the archive has under that name stays. If it ends below `head`, these are revisions of
        the board from before a gap. Otherwise, or with `apart`, it is another history: it is kept
        under a name of its own, `<board>~1` or the next number that is free. Errors: Fenced.
        """

    async def branch(self, board: str, origin: Point) -> Mark:
        """Begin the archive of a board that shares the past of another one up to `origin`.

        Costs what changed since `origin`, not what there is. To be called before the board is made,
        so that nobody archives it as a stranger. What the archive has of another board of that name
        is kept under a name of its own, as by `join`. Errors: as `read`.
        """

    async def append(
        self,
        board: str,
        fence: int,
        after: Revision,
        entries: Sequence[LogEntry],
        pause: Pause = let_others_run,
    ) -> Mark:
        """Archive the log entries that follow revision `after`, and seal the checkpoints in them.

        `pause` is awaited between steps of about a millisecond of processor time.

        Errors: Fenced when somebody else appends by now or the archive is not at `after`.
        """

    async def settle(self, board: str) -> Revision:
        """Make what is archived outlive a power loss; returns up to which revision it does."""

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, at: Point, keys: Sequence[Key]) -> Reading:
        """Entries of `keys` as they were.

        Errors: Compacted when the archive does not reach back so far or the revision was pruned;
        FutureRevision when it is not archived yet. So for every `Point`.
        """

    async def list(
        self, at: Point, within: Prefix | Ranges, *, after: Key | None = None, limit: int
    ) -> Reading:
        """A page of the entries within a prefix or ranges as they were; see `Store.list`."""

    async def items(
        self, at: Point, *, unless: Point | None = None
    ) -> Sequence[tuple[Prefix, int]]:
        """The counters of `append` as they were, sorted; after pruning perhaps higher.

        With `unless` only what revisions told that are not in the past of that point: those that
        the engine had lost by then.
        """

    async def history(
        self, at: Point, key: Key, *, before: Revision | None = None, limit: int
    ) -> Sequence[Version]:
        """Versions of `key` up to the point, the newest first; `before` continues."""

    async def differences(
        self,
        a: Point,
        b: Point,
        within: Prefix | Ranges = "",
        *,
        after: Key | None = None,
        limit: int,
    ) -> Sequence[Difference]:
        """A page of the keys within a prefix or ranges that `a` and `b` do not hold alike (value
        or expiry), sorted.

        A page that is not the last has `limit` items, or PAGE_BYTES_MAX bytes and at least one; an
        empty one is the end. Both belong to one family of branches, else InvalidRequest. The cost
        follows what changed between them.
        """

    async def log(
        self, board: str, after: Revision, *, until: Revision, limit: int
    ) -> Sequence[LogEntry]:
        """Log entries after `after` up to `until`, as the board's log had them; a page of them, as
        `Store.log`. A branch has those of its origin. Errors: Compacted."""

    async def at_time(self, board: str, time_ms: Milliseconds) -> Revision:
        """The newest revision that was committed at `time_ms` or before; 0 if none was."""

    async def facts_at(self, at: Point) -> Facts:
        """Digests and steps as they were."""

    async def digests_at(self, at: Point) -> Mapping[str, bytes] | None:
        """Digests as they were, if they were archived with that very revision, as those of every
        checkpoint are; else None: `facts_at` computes them from the versions that are there."""

    async def sums_at(self, at: Point, namespaces: Sequence[str]) -> Mapping[str, int]:
        """The sum (core/digest.py) of each of `namespaces` as it was.

        The cost follows what changed since.
        """

    # --- checkpoints ------------------------------------------------------------------------------

    async def checkpoints(self, board: str) -> Sequence[StoredCheckpoint]:
        """All checkpoints of a board, the oldest first."""

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """Keep a checkpoint from being pruned, or no longer. Errors: NoSuchCheckpoint."""

    async def forget(self, board: str, name: str) -> None:
        """Let go of a checkpoint's manifest (its hash stays, so that the next one still has a
        previous one). No error if there is none."""

    async def prune(self, board: str, keep: Sequence[Revision], below: Revision) -> int:
        """Remove versions below `below` that no revision of `keep`, no pinned checkpoint, no later
        revision and no branch needs, and the log below it; returns how many versions went.

        `keep` are revisions that stay readable (those of checkpoints); others below become
        Compacted, those among them that the engine lost. Blobs that nothing names any more go a
        while later.
        """

    async def family(self, board: str) -> Sequence[str]:
        """Names of the boards that share history with `board`, itself and what was set apart of it
        included; of those that have a name."""

    async def redact(
        self,
        board: str,
        key: Key,
        upto: Mapping[str, Revision],
        pause: Pause = let_others_run,
    ) -> RedactedRows:
        """Take every value of `key`, or of the document there, out of what is archived of `board`
        and of all that shares history with it: see archive/redact.py. All of it or nothing.

        Of the boards in `upto` what was written later stays. `pause` is awaited between steps of a
        few milliseconds. Errors: Corrupt, Unavailable: done again, it goes on.
        """

    async def scrub(self) -> str:
        """Overwrite what the archive held and holds no more in its files; returns "", or what is
        left to do by hand. Errors: Unavailable."""

    async def remove(self, board: str, keep: Collection[str] = ()) -> bool:
        """Remove what is archived of a board, its earlier lives and what was set apart of it
        included, but for boards with a name in `keep`; no error if there is nothing.

        Nobody finds it from then on. What a branch shares stays until the branch goes, too: returns
        whether there is such. Blobs that nothing names any more go a while later, by `sweep`.
        """

    async def sweep(self) -> None:
        """Go on with what is left of boards that were removed."""

    def verify(self, at: Point) -> AsyncIterator[str]:
        """Recompute everything up to a point: yields each finding, naming what is damaged."""

    async def aclose(self) -> None:
        """Let go of it."""
