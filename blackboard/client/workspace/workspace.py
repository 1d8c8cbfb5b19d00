"""A workspace: a directory of files that is part of the board's cut.

    files = board.workspace("checkout")           # at private/<agent>/workspace
    await files.snapshot(note="tests pass")       # one commit, with what changed since the last one
    await board.checkpoint("before-the-rewrite")  # the board, and the files, as of one revision
    await board.restore("before-the-rewrite")
    await files.restore()                         # the directory, as the board has it now

A snapshot is ordinary data of the board (objects.py), so rights, restores, branches, exports and
encryption hold for files as for everything else. The directory itself is replaced as a whole
(swap.py).
"""

import logging
import secrets
import stat
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from blackboard.arguments import checks_arguments
from blackboard.client.views import Entry
from blackboard.client.workspace import index
from blackboard.client.workspace.directory import (
    Packed,
    Present,
    Seen,
    WorkspaceDirectory,
    coming,
    in_thread,
)
from blackboard.client.workspace.index import LastSnapshot
from blackboard.client.workspace.objects import NewSnapshot, TreeBoard, TreeHead
from blackboard.client.workspace.scan import Progress
from blackboard.client.workspace.tree import Node, Nodes, shown
from blackboard.core.checkpoints import When
from blackboard.core.path import tree_head_key
from blackboard.errors import Conflict, InvalidRequest
from blackboard.units import Key, Milliseconds, Revision

log = logging.getLogger(__name__)

SALT_BYTES: Final = 32


class Snapshot(Struct, frozen=True):
    """The files of a workspace as of `revision`. `root` stands for all of them, with names, modes
    and contents: two snapshots of one workspace that have the same root are the same."""

    key: Key
    root: str
    files: int
    size_bytes: int
    revision: Revision
    author: str
    time_ms: Milliseconds


class WorkspaceFile(Struct, frozen=True):
    """What a snapshot has at `path`. `target` is where a link leads; permissions are those of
    `chmod`. A path that is not UTF-8 is shown with its other bytes as `\\xff`."""

    path: str
    kind: Literal["file", "directory", "link"]
    size_bytes: int
    permissions: int
    target: str = ""


Kind = Literal["added", "removed", "changed", "mode"]


class FileChange(Struct, frozen=True):
    """`path` is only on the second side (`added`), only on the first (`removed`), or differs in
    content, kind or target (`changed`) or in its permissions alone (`mode`)."""

    path: str
    change: Kind

    def __str__(self) -> str:
        return f"{_SIGNS[self.change]} {self.path}"


_SIGNS = {"added": "+", "removed": "-", "changed": "~", "mode": "x"}


@checks_arguments
class Workspace:
    """The directory `path`, kept at `key` of a board. Rights: those to everything below
    `<key>/~tree`.

    One process works on a directory at a time: a second call meanwhile gets WorkspaceHeld. Programs
    may read and write the files at any time. Every method first finishes what a process that was
    killed began. Errors of all of them: InvalidRequest when the directory, or the one that it lies
    in, cannot be used, and on Windows.
    """

    def __init__(self, board: TreeBoard, key: Key, path: Path) -> None:
        self._directory = WorkspaceDirectory(board, key, path)
        self.key = self._directory.key
        self.path = self._directory.path
        self._board = board

    # --- taking and restoring ---------------------------------------------------------------------

    async def snapshot(
        self, *, note: str = "", overwrite: bool = False, progress: Progress | None = None
    ) -> Snapshot:
        """Put the directory onto the board, in one commit with `note`; returns the present snapshot
        without a commit if nothing changed since.

        Only files whose size, times or inode changed are read. `progress` gets the number of files
        that were looked at. What the rules of `.gitignore` and `.blackboardignore` leave out is no
        part of it.

        Errors: Conflict when the board's snapshot is not the one that this directory came from (the
        board was restored, or somebody else took one): restore first, or `overwrite` it.
        FileRefused, naming it, for a pipe, socket or device, a file that cannot be read or keeps
        changing. InvalidRequest when there is no such directory. LimitExceeded:
        WORKSPACE_ENTRIES_MAX, WORKSPACE_BYTES_MAX, quotas. After any of them, and after a
        cancellation, the snapshot is the one before it, or, after OutcomeUnknown or a cancellation,
        perhaps the new one.
        """
        async with self._directory.locked():
            before = await self._directory.objects.head()
            # Kept, so that unchanged files keep their ids and are not put again.
            salt = before[0].salt if before else secrets.token_bytes(SALT_BYTES)
            base, rows = await self._directory.indexed(salt)
            if not overwrite:
                self._check_base(before, base)
            if not self.path.exists():
                # A slip of the pen, or a volume that is not there: not a directory without files.
                raise InvalidRequest("path", f"there is no directory {self.path}")
            seen = await self._directory.present(rows, salt, progress)
            # Beside the loop: a tree may have 100,000 nodes, each of which is hashed in its leaf.
            packed = await in_thread(lambda: Packed.of(seen.now, salt))
            if before is not None and before[0].root == packed.head.root:
                await self._record(*before, seen)
                return self._snapshot(*before)
            return await self._put(before, base, seen, packed, note)

    async def restore(
        self, at: When | None = None, *, discard: bool = False, progress: Progress | None = None
    ) -> Snapshot:
        """Make the directory exactly what the snapshot at `at` says (None: the present one).

        The tree is written beside the directory and takes its place at once; until then, and after
        any error, the old one stands. Files that are the same keep their times. What ignore rules
        leave out is carried over. `progress` gets the number of files that are done.

        Errors: UnsavedFiles when files changed since the last snapshot or restore, and FileRefused
        when an ignored file has the place of one of the snapshot's, unless with `discard`: these
        are then lost. FileRefused when a file cannot be written, as without space, or changes
        meanwhile, and for a mount or another user's directory in it. InvalidRequest without a
        snapshot at that moment. Corrupt when a part is missing, as after a redaction. Cancellation:
        the old tree, or the new one.
        """
        return await self._restore(at, discard=discard, progress=progress)

    async def branch(self, board: TreeBoard, path: Path, *, at: When | None = None) -> "Workspace":
        """Make a second directory at `path`, which must not exist or be empty, from the snapshot of
        `board`, a branch of this board, at `at`.

        Contents that this directory has are cloned where the file system can do that, else copied;
        nothing is shared that a write could change. Errors: as of `restore`.
        """
        other = Workspace(board, self.key, path)
        await other._restore(at, source=self.path)
        return other

    # --- looking ----------------------------------------------------------------------------------

    async def info(self, at: When | None = None) -> Snapshot | None:
        """The snapshot at a moment, the present one by default; None without one."""
        found = await self._directory.objects.head(at)
        return None if found is None else self._snapshot(*found)

    async def list(self, at: When | None = None) -> tuple[WorkspaceFile, ...]:
        """What the snapshot at a moment has, by path. Errors: InvalidRequest without one."""
        nodes, _ = await self._directory.tree(at)
        return tuple(map(file_of, nodes.values()))

    async def diff(self, a: When | None = None, b: When | None = None) -> tuple[FileChange, ...]:
        """What differs between the snapshots at `a` (None: the present one) and `b` (None: the
        directory as it is), by path. Errors: as of `snapshot` for the directory; InvalidRequest
        when there is no snapshot at a moment."""
        first, salt = await self._directory.tree(a)
        if b is not None:
            second, _ = await self._directory.tree(b)
            return _differences(first, second)
        async with self._directory.locked():
            _, rows = await self._directory.indexed(salt)
            seen = await self._directory.present(rows, salt)
            return _differences(first, index.nodes(seen.now))

    # --- snapshots --------------------------------------------------------------------------------

    def _check_base(self, before: Present | None, base: LastSnapshot | None) -> None:
        """Errors: Conflict when the board's snapshot is not what this directory came from."""
        if before is None:
            return
        head, entry = before
        if base is not None and base.revision == entry.mod_revision:
            return
        if base is not None and base.coming == head.root and entry.author == self._board.agent:
            return  # it was committed from here, and this process was killed before it knew
        seen = 0 if base is None else base.revision
        raise Conflict(entry.key, seen, entry.mod_revision, entry.author, entry.mod_revision)

    async def _put(
        self,
        before: Present | None,
        base: LastSnapshot | None,
        seen: Seen,
        packed: Packed,
        note: str,
    ) -> Snapshot:
        """Commit a tree that differs from the present one."""
        upload, left = await self._directory.objects.left()
        # With `overwrite` the index may be of another tree than the present one on the board.
        is_base = base is not None and before is not None and base.root == before[0].root
        known = left | await self._directory.present_ids(before, seen.rows if is_base else {})
        stale = known - packed.ids(seen.now)
        objects = coming(self.path, seen.now, packed, known, seen.rows if is_base else {})
        # Before the commit: if this process is killed in between, `_check_base` recognises by it
        # that the new head came from here.
        await self._mark(base, packed.head, seen)
        change = NewSnapshot(None if before is None else before[1], packed.head, stale, note)
        receipt = await self._directory.objects.publish(objects, change, upload)
        by, at_ms = self._board.agent, receipt.time_ms
        made = Entry(tree_head_key(self.key), None, receipt.revision, 0, by, at_ms)
        try:
            await self._record(packed.head, made, seen)
        except OSError as error:
            # It is on the board: an error would say that it is not. The next call knows it by
            # what `_mark` wrote.
            log.warning("the index of %s is that of the snapshot before: %s", self.path, error)
        return self._snapshot(packed.head, made)

    async def _mark(self, base: LastSnapshot | None, head: TreeHead, seen: Seen) -> None:
        """Write down that `head` may be committed."""
        new = replace(self._directory.base(head, 0), root=b"") if base is None else base
        marked = replace(new, coming=head.root)
        rows = {} if base is None else seen.rows
        await in_thread(lambda: index.write(self._directory.beside.index, marked, rows))

    async def _record(self, head: TreeHead, entry: Entry, seen: Seen) -> None:
        base = self._directory.base(head, entry.mod_revision)
        await in_thread(lambda: index.write(self._directory.beside.index, base, seen.now))

    async def _restore(
        self,
        at: When | None,
        *,
        source: Path | None = None,
        discard: bool = False,
        progress: Progress | None = None,
    ) -> Snapshot:
        async with self._directory.locked():
            found = await self._directory.restore(
                at, source=source, discard=discard, progress=progress
            )
            return self._snapshot(*found)

    def _snapshot(self, head: TreeHead, entry: Entry) -> Snapshot:
        size, root = head.size_bytes, head.root.hex()
        return Snapshot(
            self.key, root, head.files, size, entry.mod_revision, entry.author, entry.time_ms
        )


def file_of(node: Node) -> WorkspaceFile:
    """What people are shown of a node."""
    kind: Literal["file", "directory", "link"] = "link"
    if node.is_file or node.is_directory:
        kind = "file" if node.is_file else "directory"
    return WorkspaceFile(
        shown(node.path), kind, node.size, stat.S_IMODE(node.mode), shown(node.target)
    )


def _differences(first: Nodes, second: Nodes) -> tuple[FileChange, ...]:
    found = []
    for path in sorted(first.keys() | second.keys()):
        one, other = first.get(path), second.get(path)
        if one != other:
            found.append(FileChange(shown(path), _kind_of(one, other)))
    return tuple(found)


def _kind_of(one: Node | None, other: Node | None) -> Kind:
    if one is None or other is None:
        return "added" if one is None else "removed"
    return "mode" if replace(one, mode=other.mode) == other and _kinds(one, other) else "changed"


def _kinds(one: Node, other: Node) -> bool:
    return stat.S_IFMT(one.mode) == stat.S_IFMT(other.mode)
