"""One directory, and its workspace on a board: what `Workspace` and the files of a step share.

Every method but `locked`, `head_at` and `tree` is called with the lock on the directory.
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from blackboard.client.cancellation import finish
from blackboard.client.views import Entry
from blackboard.client.workspace import index, scan as scanning, stage as staging, tree as trees
from blackboard.client.workspace.ignoring import Indexed
from blackboard.client.workspace.index import LastSnapshot, Rows
from blackboard.client.workspace.objects import FORMAT, Object, Objects, TreeBoard, TreeHead
from blackboard.client.workspace.scan import Clocked, Progress, Scan
from blackboard.client.workspace.stage import Stage
from blackboard.client.workspace.swap import Beside, mount_among, others_among
from blackboard.client.workspace.tree import Nodes, id_of, shown
from blackboard.core.checkpoints import NOW, When
from blackboard.core.path import check_tree
from blackboard.errors import FileRefused, InvalidRequest, UnsavedFiles
from blackboard.limits import UNSAVED_PATHS_MAX
from blackboard.units import Key, Revision

T = TypeVar("T")
_DISK_MS: Final = 600_000
"""Longest time that a cancelled call waits for the disk."""

Present = tuple[TreeHead, Entry]
"""A snapshot on the board, and the entry of its head."""


class Packed(NamedTuple):
    """A tree as it is stored: its head, and its leaves and root by their ids."""

    head: TreeHead
    objects: dict[bytes, bytes]

    @staticmethod
    def of(rows: Rows, salt: bytes) -> "Packed":
        """That of the tree of `rows`."""
        nodes = [row.node for row in rows.values()]
        objects = {id_of(leaf, salt): leaf for leaf in trees.pack(nodes)}
        root = trees.pack_root([*objects])
        objects[id_of(root, salt)] = root
        files = sum(not node.is_directory for node in nodes)
        size = sum(node.size for node in nodes)
        return Packed(TreeHead(FORMAT, id_of(root, salt), salt, files, size), objects)

    def ids(self, rows: Rows) -> set[bytes]:
        """The ids of everything that the tree needs."""
        return {*self.objects, *_parts(index.nodes(rows))}


class Seen(NamedTuple):
    """A directory: `rows` as the index knows it, and as it is `now`."""

    rows: Rows
    scan: Scan
    now: Rows


class Replacement(NamedTuple):
    """What takes the place of a directory: a tree that was put at `revision` and seen at the moment
    `at`, with contents of `source` if there is one, and what the index will say of it."""

    nodes: Nodes
    base: LastSnapshot
    revision: Revision
    at: When | None = None
    source: Path | None = None
    progress: Progress | None = None


class WorkspaceDirectory:
    """The directory `path`, for the workspace at `key` of `board`.

    Errors of the constructor: InvalidRequest.
    """

    def __init__(self, board: TreeBoard, key: Key, path: Path) -> None:
        if os.name == "nt":
            raise InvalidRequest("path", "workspaces need a POSIX file system")
        self.key = check_tree(key)
        # Only the parent is resolved: a link in the last place would be exchanged,
        # and not its target.
        self.path = path.parent.resolve() / path.name
        if self.path.name in ("", "..") or self.path.is_symlink():
            raise InvalidRequest(
                "path", f"{path} is not a directory of its own: a link, or the top"
            )
        self.board = board
        self.objects = Objects(board, key)
        self.beside = Beside(self.path)

    @property
    def holder(self) -> str:
        """The name under which `WorkspaceHeld` reports the agent that works on the directory."""
        return f"{self.board.agent} on board {self.board.name}"

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Work on the directory, alone. Errors: WorkspaceHeld; InvalidRequest."""
        lock = self.beside.locked(self.holder)
        try:
            await in_thread(lock.__enter__)
            try:
                yield
            finally:
                await in_thread(lambda: lock.__exit__(None, None, None))
        except OSError as error:
            raise self.unusable(error) from error

    def unusable(self, error: OSError) -> InvalidRequest:
        """What is said of an error of the file system that is about no file of the workspace."""
        return InvalidRequest("path", f"{self.path}: {error}")

    # --- looking ----------------------------------------------------------------------------------

    async def indexed(self, salt: bytes) -> tuple[LastSnapshot | None, Rows]:
        """What the index says of this workspace; nothing if it is that of another one."""
        base, rows = await in_thread(lambda: index.load(self.beside.index))
        of_this = base is not None and (base.board, base.key) == (self.board.name, self.key)
        return (base, rows) if base is not None and of_this and base.salt == salt else (None, {})

    async def look(self, rows: Rows, salt: bytes) -> Scan:
        """What is in the directory, as of `scan.look`."""
        return await in_thread(lambda: scanning.look(self.path, Indexed(rows, salt)))

    async def present(self, rows: Rows, salt: bytes, progress: Progress | None = None) -> Seen:
        """What is in the directory now; `rows` is what the index says of it."""
        if not self.path.exists():
            return Seen(rows, Scan(), {})
        clock_ns = await in_thread(self.beside.clock_ns)
        found = await self.look(rows, salt)
        now = await in_thread(
            lambda: scanning.read(self.path, found, rows, Clocked(salt, clock_ns), progress)
        )
        return Seen(rows, found, now)

    async def check_saved(self, seen: Seen, nodes: Nodes) -> None:
        """Errors: UnsavedFiles for what only the directory has, if `nodes` took its place."""
        lost = [
            path
            for path, row in seen.now.items()
            if not row.node.is_directory
            and row.node != nodes.get(path)
            and (path not in seen.rows or seen.rows[path].node != row.node)
        ]
        if not lost:
            return
        # Without an index every file counts as unsaved. If the tree is the
        # board's, nothing is lost.
        present = await self.objects.head()
        if present is None or Packed.of(seen.now, present[0].salt).head.root != present[0].root:
            paths = [*map(shown, lost[:UNSAVED_PATHS_MAX])]
            raise UnsavedFiles(str(self.path), paths, len(lost))

    async def check_unchanged(self, seen: Seen, salt: bytes, during: str) -> None:
        """Errors: FileRefused when the directory is not any more as it was `seen`."""
        if self.path.exists() and await self.look(seen.rows, salt) != seen.scan:
            raise FileRefused(str(self.path), f"something changed in it during the {during}")

    async def head_at(self, at: When | None) -> Present:
        """The snapshot at a moment. Errors: InvalidRequest without one."""
        found = await self.objects.head(at)
        if found is None:
            raise InvalidRequest("at", f"there is no snapshot at {self.key} at that moment")
        return found

    async def tree(self, at: When | None) -> tuple[Nodes, bytes]:
        """The tree of the snapshot at a moment, and its salt. Errors: as of `head_at`; Corrupt."""
        at = _past(at)
        head, entry = await self.head_at(at)
        return await self.objects.tree(head, entry.mod_revision, at), head.salt

    # --- putting a tree onto the board ------------------------------------------------------------

    def base(self, head: TreeHead, revision: Revision) -> LastSnapshot:
        """What the index says of a snapshot."""
        return LastSnapshot(self.board.name, self.key, head.salt, head.root, revision)

    async def present_ids(self, before: Present | None, rows: Rows) -> set[bytes]:
        """The ids of all objects of the present snapshot; `rows` is its tree, unless empty."""
        if before is None:
            return set()
        head, entry = before
        nodes = index.nodes(rows) or await self.objects.tree(head, entry.mod_revision)
        leaves = await self.objects.leaves(head, entry.mod_revision)
        return {head.root, *leaves, *_parts(nodes)}

    # --- replacing the directory ------------------------------------------------------------------

    async def restore(
        self,
        at: When | None = None,
        *,
        source: Path | None = None,
        discard: bool = False,
        progress: Progress | None = None,
    ) -> Present:
        """Make the directory what the snapshot at a moment says. Errors: as of
        `Workspace.restore`."""
        at = _past(at)
        head, entry = await self.head_at(at)
        nodes = await self.objects.tree(head, entry.mod_revision, at)
        # The next snapshot follows the present one, also after the restore of an earlier one.
        present = (head, entry) if at is None else await self.objects.head()
        base = self.base(head, 0 if present is None else present[1].mod_revision)
        plan = Replacement(nodes, base, entry.mod_revision, at, source, progress)
        await self.replace(plan, discard=discard)
        return head, entry

    async def replace(self, plan: Replacement, *, discard: bool = False) -> None:
        """Let the tree of `plan` take the place of the directory. Errors: UnsavedFiles, FileRefused
        unless with `discard`; Corrupt."""
        salt = plan.base.salt
        _, rows = await self.indexed(salt)
        seen = await self.present(rows, salt)
        if not discard:
            await self.check_saved(seen, plan.nodes)
        carried = await self.carried(seen.scan, plan.nodes, discard=discard)
        try:
            fresh = await self.fill(plan, seen)
            # Writing the stage may take minutes: what was saved meanwhile would
            # be lost by the swap.
            await self.check_unchanged(seen, salt, "restore")
            await in_thread(lambda: index.write(self.beside.stage_index, plan.base, fresh))
        except BaseException:
            await in_thread(self.beside.discard)
            raise
        # Outside of the `try`: a swap that has begun is finished by the next use, not discarded.
        await in_thread(lambda: self.beside.swap(carried))

    async def carried(self, found: Scan, nodes: Nodes, *, discard: bool = False) -> list[bytes]:
        """The ignored paths that go into the new tree `nodes`. Errors: FileRefused for one in the
        way, a mount and a directory of another user: after the swap, it would be too late."""
        carried = _carried_from(found, nodes, discard=discard)
        directories = (path for path, one in found.stats.items() if stat.S_ISDIR(one.mode))
        if self.path.exists():
            paths = [*directories, *carried]
            theirs = await in_thread(lambda: others_among(self.path, paths))
            if theirs is not None:
                reason = "it belongs to another user, so it can neither be moved nor removed"
                raise FileRefused(shown(theirs), reason)
            mount = await in_thread(lambda: mount_among(self.path, paths, carried))
            if mount is not None:
                reason = "something is mounted there, so it can neither be moved nor removed"
                raise FileRefused(shown(mount), reason)
        return carried

    async def fill(self, plan: Replacement, seen: Seen) -> Rows:
        """Write the stage, with contents of the directory as it was `seen`; returns its rows.
        Errors: FileRefused, Corrupt."""
        stage = await in_thread(lambda: Stage(self.beside.stage, plan.nodes, plan.base.salt))
        await self._write(stage, seen, plan)
        fresh = await in_thread(stage.finish)
        await in_thread(lambda: _take_mode(self.path, self.beside.stage))
        clock_ns = await in_thread(self.beside.clock_ns)
        return staging.settled(fresh, clock_ns)

    async def _write(self, stage: Stage, seen: Seen, plan: Replacement) -> None:
        source, has = self.path, index.nodes(seen.now)
        if plan.source is not None:
            source = plan.source
            _, rows = await in_thread(lambda: index.load(Beside(source).index))
            has = index.nodes(rows) if source.is_dir() else {}
        missing = await in_thread(lambda: stage.begin(source, has, plan.progress))
        for batch in staging.batches(missing):
            ids = {node.parts[number] for node, number in batch}
            contents = await self.objects.read(ids, plan.revision, plan.at)
            await in_thread(partial(stage.fill, batch, contents))


def _past(at: When | None) -> When | None:
    """A moment that stays the same one; None for the present."""
    return None if at == NOW else at


def coming(
    top: Path, rows: Rows, packed: Packed, known: set[bytes], base: Rows | None = None
) -> Iterator[Object]:
    """What is not among `known`, on the board: parts of the files in `top`, then leaves and the
    root. `base` is the present snapshot: a row that it has is the same object in `rows`, and not
    looked at. Errors: FileRefused."""
    before = base or {}
    there = set(known)
    nodes = (row.node for path, row in rows.items() if before.get(path) is not row)
    yield from scanning.contents(top, nodes, there, packed.head.salt)
    for one, content in packed.objects.items():
        if one not in there:
            yield one, content


def _carried_from(found: Scan, nodes: Nodes, *, discard: bool) -> list[bytes]:
    """The ignored paths that go into the new tree. Errors: FileRefused for one in the way."""
    carried = []
    for path in found.ignored:
        if not _is_in_the_way(path, nodes):
            carried.append(path)
        elif not discard:
            reason = "an ignored file or directory has the place of something in the snapshot"
            raise FileRefused(shown(path), reason)
    return carried


def _is_in_the_way(path: bytes, nodes: Nodes) -> bool:
    names = path.split(b"/")
    above = (b"/".join(names[:end]) for end in range(1, len(names)))
    return path in nodes or any(a in nodes and not nodes[a].is_directory for a in above)


def _parts(nodes: Nodes) -> Iterator[bytes]:
    for node in nodes.values():
        yield from node.parts


def _take_mode(top: Path, stage: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        stage.chmod(stat.S_IMODE(top.stat().st_mode))


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work`, which blocks, to its end: what it writes is not left to run on."""
    return await finish(asyncio.to_thread(work), _DISK_MS)
