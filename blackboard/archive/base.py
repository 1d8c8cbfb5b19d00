"""The port of the archive: every commit and every version of every key, kept in SQL.

The archive is fed by tailing a board's log (`server/archiver.py`). Once it holds revision r it
answers for every revision up to r: its content, its changes and their authors, its digest.

What every archive promises (`tests/conformance/rules_archive.py`)
- A revision is archived completely, once, after all earlier ones; an append out of turn is refused.
- Answers about a revision never change, and only `prune` removes a revision. Revisions that an
  engine lost stay in the board's history, though no later one follows them.
- A branch shares the history of its origin: reading it at a revision before it began reads the
  origin.
- A checkpoint's manifest is written with the revision that takes it, or neither is.
- `Unavailable` when its database or object store cannot be reached; `Corrupt` when stored data is
  not what was written. A driver's exception never escapes.
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
    PrunedRows,
    RedactedRows,
    StoredCheckpoint,
    Version,
)
from blackboard.core.commit import FORWARD, Head, ListOptions, LogEntry, Reading
from blackboard.core.history import Tally
from blackboard.core.path import Ranges
from blackboard.engines.base import paged
from blackboard.limits import LIST_ENTRIES_MAX
from blackboard.units import Key, Milliseconds, Prefix, Revision

Pause = Callable[[], Awaitable[None]]
"""Awaited between the steps of a long computation, so that other tasks run."""


async def let_others_run() -> None:
    """The shortest pause: one turn of the event loop."""
    await asyncio.sleep(0)


class Sealer(Protocol):
    """Makes manifests, and checks whether one is genuine."""

    def seal(self, cut: Cut) -> tuple[bytes, bytes]:
        """The manifest of a checkpoint, and its signature."""

    def sign(self, said: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """A manifest with this content and the public key of this sealer, and its signature."""

    def findings(self, stored: StoredCheckpoint, cut: Cut | None) -> Sequence[str]:
        """The problems of a manifest that should describe `cut`; none if it is genuine.

        Without `cut` (that revision was pruned) only its signature is checked.
        """


class Archive(Protocol):
    """An archive, opened. One object serves many boards."""

    async def mark(self, board: str) -> Mark | None:
        """How far the board is archived; None if it is unknown."""

    async def mark_at(self, at: Point) -> Mark:
        """The mark as it was at a revision: its epoch and its chain. Errors: as `read`."""

    async def boards(self) -> Sequence[str]:
        """Names of the boards that it knows, sorted."""

    async def ends(self) -> Mapping[str, Revision]:
        """The newest revision that it has of each of these boards."""

    async def holds(self, board: str) -> bool:
        """Whether anything is archived of the board itself. An incomplete branch has a mark, but no
        data."""

    async def lost(self, board: str) -> Lost | None:
        """The last loss of the board's engine, unless it was recovered; None if there was none."""

    async def digest_at(self, at: Point) -> bytes | None:
        """The digest of the log entry that is the point's revision; None if there is none.
        Errors: as `read`."""

    # --- writing: the archiver's ------------------------------------------------------------------

    async def take(self, board: str, owner: str, ttl_ms: Milliseconds) -> int | None:
        """Take or renew the right to append for `ttl_ms`, by the clock of the database; returns the
        fence, None while another owner has it.

        The methods below check the fence.
        """

    async def give_up(self, board: str, fence: int) -> None:
        """Release the right to append, so that another owner can take it at once."""

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
        """Begin the archive of a board whose log is at `head`.

        `pages` are listings of the whole board, each as of `head` or later; once the log up to the
        newest of them was appended, revisions from that one on are known exactly. `items` are the
        counters of `append`, as far as they are known. Atomic.

        Data that the archive already has under that name stays. If it ends below `head`, it belongs
        to the board, from before a gap. Otherwise, or with `apart`, it is another history: it is
        kept under a name of its own, `<board>~1` or the next free number. Errors: Fenced.
        """

    async def branch(self, board: str, origin: Point) -> Mark:
        """Begin the archive of a board that shares the history of another one up to `origin`.

        The cost depends on what changed since `origin`, not on the size of the board. Call it
        before the board is made, so that no archiver treats it as an unrelated board. Data of
        another board of that name is kept under a name of its own, as by `join`. Errors: as `read`.
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

        Errors: Fenced when another owner has the right to append now, or the archive is not at
        `after`.
        """

    @property
    def leaves_values(self) -> bool:
        """Whether it leaves values in the logs of boards, and reads them there."""

    async def copy_values(
        self, board: str, below: Revision | None = None, *, if_shared: bool = False
    ) -> None:
        """Copy into the archive, durably, what it has only in the log of a board below a revision
        (None: all of it). Call it before the log is cut or the board is removed or replaced.

        With `if_shared` only if the history of another board includes this one. What the log has
        lost cannot be copied, and is no error. Errors: Unavailable; it can be repeated.
        """

    async def refers(self, board: str) -> bool:
        """Whether it has a value of a board, or of one that shares history with it, in a log alone,
        be it lost or not."""

    async def fill(self, board: str, found: Sequence[tuple[Revision, Key, bytes]]) -> None:
        """Take over values that were written at a revision to a key, if it has them in a log alone:
        from a backup, when that log is lost. On all boards that share history with this one; others
        change nothing. Errors: Unavailable; it can be repeated."""

    async def settle(self, board: str) -> Revision:
        """Make the archived revisions survive a power loss; returns the newest one that does."""

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, at: Point, keys: Sequence[Key]) -> Reading:
        """Entries of `keys` as they were.

        Errors: Compacted when the archive does not reach back that far or the revision was pruned;
        FutureRevision when it is not archived yet. The same holds for every `Point`.
        """

    async def list(
        self,
        at: Point,
        within: Prefix | Ranges,
        *,
        after: Key | None = None,
        limit: int,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Reading:
        """A page of the entries within a prefix or ranges as they were; see `Store.list`."""

    async def children(
        self,
        at: Point,
        within: Ranges,
        prefix: Prefix,
        *,
        after: Key | None = None,
        limit: int,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """A listing by directory as it was; see `Store.children`. Of each directory at most
        DIRECTORY_KEYS_MAX keys and a page of the database are read."""

    async def items(
        self, at: Point, *, unless: Point | None = None
    ) -> Sequence[tuple[Prefix, int]]:
        """The counters of `append` as they were, sorted; after pruning they may be higher.

        With `unless`, only counters from revisions outside the history of that point: those that
        the engine had lost.
        """

    async def history(
        self,
        at: Point,
        key: Key,
        *,
        before: Revision | None = None,
        after: Revision | None = None,
        author: str | None = None,
        limit: int,
    ) -> Sequence[Version]:
        """Versions of `key` up to the point, the newest first; `before` continues.

        At most `limit`, and about PAGE_BYTES_MAX bytes of values, but one at least. Only those
        above `after`, and of `author` (a name), if given. What an author did not write is looked
        through without its values.
        """

    async def differences(
        self,
        a: Point,
        b: Point,
        within: Prefix | Ranges = "",
        *,
        after: Key | None = None,
        limit: int,
    ) -> Sequence[Difference]:
        """A page of the keys within a prefix or ranges that differ between `a` and `b` (in value or
        expiry), sorted.

        A page that is not the last has `limit` items, or PAGE_BYTES_MAX bytes and at least one; an
        empty one is the end. Both must belong to one family of branches, else InvalidRequest. The
        cost depends on what changed between them.
        """

    async def log(
        self, board: str, after: Revision, *, until: Revision, limit: int
    ) -> Sequence[LogEntry]:
        """Log entries after `after` up to `until`, as the board's log had them; a page of them, as
        `Store.log`. A branch has those of its origin. Errors: Compacted."""

    async def count(self, board: str, within: Ranges, tally: Tally) -> Revision:
        """Add to `tally` the commits that changed keys within; returns up to which revision. A
        branch has those of its origin, what was pruned has none."""

    async def at_time(self, board: str, time_ms: Milliseconds) -> Revision:
        """The newest revision that was committed at `time_ms` or before; 0 if none was."""

    async def before_time(self, board: str, time_ms: Milliseconds) -> Revision:
        """The revision before the first one that was committed after `time_ms`; the newest one if
        none was. That of `at_time` can be newer, if a clock was behind for a while."""

    async def facts_at(self, at: Point) -> Facts:
        """Digests and steps as they were."""

    async def digests_at(self, at: Point) -> Mapping[str, bytes] | None:
        """Digests as they were, if they were archived with that revision, as those of every
        checkpoint are; else None: `facts_at` computes them from the versions."""

    async def sums_at(self, at: Point, namespaces: Sequence[str]) -> Mapping[str, int]:
        """The sum (core/digest.py) of each of `namespaces` as it was.

        The cost depends on what changed since.
        """

    # --- checkpoints ------------------------------------------------------------------------------

    async def checkpoints(self, board: str) -> Sequence[StoredCheckpoint]:
        """All checkpoints of a board, the oldest first."""

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """Protect a checkpoint from pruning, or end that. Errors: NoSuchCheckpoint."""

    async def forget(self, board: str, name: str, revision: Revision) -> None:
        """Remove the manifest of the checkpoint at `revision`. Its hash stays, because the next
        manifest names it. No error if there is none."""

    async def since_bytes(self, board: str, history_bytes: int) -> Revision:
        """The oldest revision after which all commits have at most `history_bytes` together; 0 if
        the whole log has no more.

        A commit counts about what its keys and values take before compression
        (`core.history.cost_of`).
        """

    async def prune(
        self, board: str, keep: Sequence[Revision], below: Revision, *, dry_run: bool = False
    ) -> PrunedRows:
        """Remove versions below `below` that no revision of `keep`, no pinned checkpoint, no later
        revision and no branch needs, and the log below it; returns what was removed.

        `keep` are revisions that stay readable (those of checkpoints); others below become
        Compacted, including those that the engine lost. Recent blobs are removed by a `sweep` an
        hour later (BLOB_GRACE_MS). A file gives the room back to the file system once that is a
        quarter of it. With `dry_run` the same is done and undone: it takes as long, and meanwhile
        no commit is archived.
        """

    async def family(self, board: str) -> Sequence[str]:
        """Names of the boards that share history with `board`, including itself and the histories
        set apart from it, as far as they have a name."""

    async def redact(
        self,
        board: str,
        key: Key,
        upto: Mapping[str, Revision],
        pause: Pause = let_others_run,
    ) -> RedactedRows:
        """Remove every value of `key`, or of the document there, from the archive of `board` and of
        all boards that share history with it: see archive/redact.py. Atomic.

        On the boards in `upto`, values written after that revision stay. `pause` is awaited between
        steps of a few milliseconds. Errors: Corrupt, Unavailable; it can be repeated.
        """

    async def scrub(self) -> str:
        """Overwrite deleted data in the archive's files; returns "", or what is left to do by hand.
        Errors: Unavailable."""

    async def remove(self, board: str, keep: Collection[str] = ()) -> bool:
        """Remove the archive of a board, including earlier boards of that name and histories set
        apart from it, except for boards with a name in `keep`; no error if there is nothing.

        From then on it cannot be found. Data that a branch shares stays until the branch is
        removed; returns whether there is any. `sweep` removes unreferenced blobs a while later.
        """

    async def sweep(self) -> None:
        """Continue the removal of boards."""

    def verify(self, at: Point) -> AsyncIterator[str]:
        """Recompute everything up to a point; yields each finding, which names what is damaged."""

    async def aclose(self) -> None:
        """Close the archive."""


def archived_pages(archive: Archive, at: Point) -> AsyncIterator[Reading]:
    """All entries of a board at a point of its history, page by page."""
    return paged(lambda after: archive.list(at, "", after=after, limit=LIST_ENTRIES_MAX))
