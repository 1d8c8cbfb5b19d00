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

import asyncio
import contextlib
import os
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from blackboard.arguments import checks_arguments
from blackboard.client.cancellation import finish
from blackboard.client.views import Entry
from blackboard.client.workspace import index, scan as scanning, stage as staging, tree as trees
from blackboard.client.workspace.ignoring import Indexed
from blackboard.client.workspace.index import LastSnapshot, Rows
from blackboard.client.workspace.objects import (
    FORMAT,
    NewSnapshot,
    Object,
    Objects,
    TreeBoard,
    TreeHead,
)
from blackboard.client.workspace.scan import Clocked, Progress, Scan
from blackboard.client.workspace.stage import Stage
from blackboard.client.workspace.swap import Beside
from blackboard.client.workspace.tree import Node, Nodes, id_of, shown
from blackboard.core.checkpoints import When
from blackboard.core.path import check_tree, tree_head_key
from blackboard.errors import Conflict, FileRefused, InvalidRequest, UnsavedFiles
from blackboard.limits import UNSAVED_PATHS_MAX
from blackboard.units import Key, Milliseconds, Revision

T = TypeVar("T")
_SALT_BYTES: Final = 32
_DISK_MS: Final = 600_000
"""Longest time that a cancelled call waits for the disk."""


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


class _Packed(NamedTuple):
    """A tree as it is stored: its head, and its leaves and root by their ids."""

    head: TreeHead
    objects: dict[bytes, bytes]

    @staticmethod
    def of(rows: Rows, salt: bytes) -> "_Packed":
        """That of the tree of `rows`."""
        nodes = [row.node for row in rows.values()]
        objects = {id_of(leaf, salt): leaf for leaf in trees.pack(nodes)}
        root = trees.pack_root([*objects])
        objects[id_of(root, salt)] = root
        files = sum(not node.is_directory for node in nodes)
        size = sum(node.size for node in nodes)
        return _Packed(TreeHead(FORMAT, id_of(root, salt), salt, files, size), objects)

    def ids(self, rows: Rows) -> set[bytes]:
        """The ids of everything that the tree needs."""
        return {*self.objects, *_parts(index.nodes(rows))}


class _Directory(NamedTuple):
    """A directory: `rows` as the index knows it, and as it is `now`."""

    rows: Rows
    scan: Scan
    now: Rows


class _Plan(NamedTuple):
    """What a restore writes: a tree, with contents of `source` if there is one."""

    nodes: Nodes
    source: Path | None
    past: bool
    progress: Progress | None


Present = tuple[TreeHead, Entry]
_SIGNS = {"added": "+", "removed": "-", "changed": "~", "mode": "x"}


@checks_arguments
class Workspace:
    """The directory `path`, kept at `key` of a board. Rights: those to everything below
    `<key>/~tree`.

    One process works on a directory at a time: a second call meanwhile gets FileRefused. Programs
    may read and write the files at any time. Every method first finishes what a process that was
    killed began. Errors of all of them: InvalidRequest when the directory, or the one that it lies
    in, cannot be used, and on Windows.
    """

    def __init__(self, board: TreeBoard, key: Key, path: Path) -> None:
        if os.name == "nt":
            raise InvalidRequest("path", "workspaces need a POSIX file system")
        self.key = check_tree(key)
        self.path = path.parent.resolve() / path.name
        if self.path.name in ("", "..") or self.path.is_symlink():
            raise InvalidRequest(
                "path", f"{path} is not a directory of its own: a link, or the top"
            )
        self._board = board
        self._objects = Objects(board, key)
        self._beside = Beside(self.path)

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
        changing. LimitExceeded: WORKSPACE_ENTRIES_MAX, WORKSPACE_BYTES_MAX, quotas. After any of
        them, and after a cancellation, the snapshot is the one before it, or, after OutcomeUnknown
        or a cancellation, perhaps the new one.
        """
        async with self._locked():
            before = await self._objects.head()
            salt = before[0].salt if before else secrets.token_bytes(_SALT_BYTES)
            base, rows = await self._indexed(salt)
            if not overwrite:
                self._check_base(before, base)
            seen = await self._present(rows, salt, progress)
            packed = await _thread(lambda: _Packed.of(seen.now, salt))
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
        meanwhile. InvalidRequest without a snapshot at that moment. Corrupt when a part is missing,
        as after a redaction. Cancellation: the old tree, or the new one.
        """
        return await self._restore(at, None, discard, progress)

    async def branch(self, board: TreeBoard, path: Path, *, at: When | None = None) -> "Workspace":
        """Make a second directory at `path`, which must not exist or be empty, from the snapshot of
        `board`, a branch of this board, at `at`.

        Contents that this directory has are cloned where the file system can do that, else copied;
        nothing is shared that a write could change. Errors: as of `restore`.
        """
        other = Workspace(board, self.key, path)
        await other._restore(at, self.path, False, None)
        return other

    # --- looking ----------------------------------------------------------------------------------

    async def info(self, at: When | None = None) -> Snapshot | None:
        """The snapshot at a moment, the present one by default; None without one."""
        found = await self._objects.head(at)
        return None if found is None else self._snapshot(*found)

    async def list(self, at: When | None = None) -> tuple[WorkspaceFile, ...]:
        """What the snapshot at a moment has, by path. Errors: InvalidRequest without one."""
        nodes, _ = await self._tree(at)
        return tuple(map(_file_of, nodes.values()))

    async def diff(self, a: When | None = None, b: When | None = None) -> tuple[FileChange, ...]:
        """What differs between the snapshots at `a` (None: the present one) and `b` (None: the
        directory as it is), by path. Errors: as of `snapshot` for the directory; InvalidRequest
        when there is no snapshot at a moment."""
        first, salt = await self._tree(a)
        if b is not None:
            second, _ = await self._tree(b)
            return _differences(first, second)
        async with self._locked():
            _, rows = await self._indexed(salt)
            seen = await self._present(rows, salt)
            return _differences(first, index.nodes(seen.now))

    # --- the directory ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Work on the directory, alone."""
        lock = self._beside.locked()
        try:
            await _thread(lock.__enter__)
            try:
                yield
            finally:
                await _thread(lambda: lock.__exit__(None, None, None))
        except OSError as error:
            raise InvalidRequest("path", f"{self.path}: {error}") from error

    async def _indexed(self, salt: bytes) -> tuple[LastSnapshot | None, Rows]:
        """What the index says of this workspace; nothing if it is that of another one."""
        base, rows = await _thread(lambda: index.load(self._beside.index))
        of_this = base is not None and (base.board, base.key) == (self._board.name, self.key)
        return (base, rows) if base is not None and of_this and base.salt == salt else (None, {})

    async def _look(self, rows: Rows, salt: bytes) -> Scan:
        return await _thread(lambda: scanning.look(self.path, Indexed(rows, salt)))

    async def _tree(self, at: When | None) -> tuple[Nodes, bytes]:
        head, entry = await self._head_at(at)
        past = at is not None
        return await self._objects.tree(head, entry.mod_revision, past=past), head.salt

    async def _head_at(self, at: When | None) -> tuple[TreeHead, Entry]:
        found = await self._objects.head(at)
        if found is None:
            raise InvalidRequest("at", f"there is no snapshot at {self.key} at that moment")
        return found

    def _base(self, head: TreeHead, revision: Revision) -> LastSnapshot:
        return LastSnapshot(self._board.name, self.key, head.salt, head.root, revision)

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
        seen: _Directory,
        packed: _Packed,
        note: str,
    ) -> Snapshot:
        """Commit a tree that differs from the present one."""
        upload, left = await self._objects.left()
        is_base = base is not None and before is not None and base.root == before[0].root
        known = left | await self._present_ids(before, seen.rows if is_base else {})
        stale = known - packed.ids(seen.now)
        objects = self._coming(seen, packed, known, seen.rows if is_base else {})
        await self._mark(base, packed.head, seen)
        change = NewSnapshot(None if before is None else before[1], packed.head, stale, note)
        receipt = await self._objects.publish(objects, change, upload)
        by, at_ms = self._board.agent, receipt.time_ms
        made = Entry(tree_head_key(self.key), None, receipt.revision, 0, by, at_ms)
        await self._record(packed.head, made, seen)
        return self._snapshot(packed.head, made)

    async def _mark(self, base: LastSnapshot | None, head: TreeHead, seen: _Directory) -> None:
        """Write down that `head` may be committed."""
        new = replace(self._base(head, 0), root=b"") if base is None else base
        marked = replace(new, coming=head.root)
        rows = {} if base is None else seen.rows
        await _thread(lambda: index.write(self._beside.index, marked, rows))

    async def _present_ids(self, before: Present | None, rows: Rows) -> set[bytes]:
        """The ids of all objects of the present snapshot; `rows` is its tree, unless empty."""
        if before is None:
            return set()
        head, entry = before
        nodes = index.nodes(rows) or await self._objects.tree(head, entry.mod_revision)
        leaves = await self._objects.leaves(head, entry.mod_revision)
        return {head.root, *leaves, *_parts(nodes)}

    def _coming(
        self, seen: _Directory, packed: _Packed, known: set[bytes], base: Rows
    ) -> Iterator[Object]:
        """What is not on the board yet: parts of files, then leaves and the root. `base` is the
        present snapshot: a row that it has is the same object in `seen`, and not looked at."""
        there = set(known)
        nodes = (row.node for path, row in seen.now.items() if base.get(path) is not row)
        yield from scanning.contents(self.path, nodes, there, packed.head.salt)
        for one, content in packed.objects.items():
            if one not in there:
                yield one, content

    async def _record(self, head: TreeHead, entry: Entry, seen: _Directory) -> None:
        base = self._base(head, entry.mod_revision)
        await _thread(lambda: index.write(self._beside.index, base, seen.now))

    # --- restores ---------------------------------------------------------------------------------

    async def _restore(
        self, at: When | None, source: Path | None, discard: bool, progress: Progress | None
    ) -> Snapshot:
        async with self._locked():
            head, entry = await self._head_at(at)
            past = at is not None
            nodes = await self._objects.tree(head, entry.mod_revision, past=past)
            _, rows = await self._indexed(head.salt)
            seen = await self._present(rows, head.salt)
            await self._check_saved(seen, nodes, discard=discard)
            carried = _carried(seen.scan, nodes, discard=discard)
            await self._stage(head, entry, seen, _Plan(nodes, source, past, progress))
            await _thread(lambda: self._beside.swap(carried))
            return self._snapshot(head, entry)

    async def _present(
        self, rows: Rows, salt: bytes, progress: Progress | None = None
    ) -> _Directory:
        """What is in the directory now; `rows` is what the index says of it."""
        if not self.path.exists():
            return _Directory(rows, Scan(), {})
        clock_ns = await _thread(self._beside.clock_ns)
        found = await self._look(rows, salt)
        now = await _thread(
            lambda: scanning.read(self.path, found, rows, Clocked(salt, clock_ns), progress)
        )
        return _Directory(rows, found, now)

    async def _check_saved(self, seen: _Directory, nodes: Nodes, *, discard: bool) -> None:
        """Errors: UnsavedFiles for what only the directory has."""
        if discard:
            return
        lost = [
            path
            for path, row in seen.now.items()
            if not row.node.is_directory
            and row.node != nodes.get(path)
            and (path not in seen.rows or seen.rows[path].node != row.node)
        ]
        if not lost:
            return
        present = await self._objects.head()
        if present is None or _Packed.of(seen.now, present[0].salt).head.root != present[0].root:
            paths = [*map(shown, lost[:UNSAVED_PATHS_MAX])]
            raise UnsavedFiles(str(self.path), paths, len(lost))

    async def _stage(self, head: TreeHead, entry: Entry, seen: _Directory, wanted: _Plan) -> None:
        """Prepare everything for the swap; nothing is left of it after an error."""
        try:
            stage = await _thread(lambda: Stage(self._beside.stage, wanted.nodes, head.salt))
            await self._write(stage, entry.mod_revision, seen, wanted)
            fresh = await _thread(stage.finish)
            await _thread(lambda: _take_mode(self.path, self._beside.stage))
            if self.path.exists() and await self._look(seen.rows, head.salt) != seen.scan:
                raise FileRefused(str(self.path), "something changed in it during the restore")
            clock_ns = await _thread(self._beside.clock_ns)
            rows = staging.settled(fresh, clock_ns)
            # The next snapshot follows the present one, also after the restore of an earlier one.
            present = await self._objects.head()
            base = self._base(head, 0 if present is None else present[1].mod_revision)
            await _thread(lambda: index.write(self._beside.stage_index, base, rows))
        except BaseException:
            await _thread(self._beside.discard)
            raise

    async def _write(
        self, stage: Stage, revision: Revision, seen: _Directory, wanted: _Plan
    ) -> None:
        source, has = self.path, index.nodes(seen.now)
        if wanted.source is not None:
            source = wanted.source
            _, rows = await _thread(lambda: index.load(Beside(source).index))
            has = index.nodes(rows)
        missing = await _thread(lambda: stage.begin(source, has, wanted.progress))
        for batch in staging.batches(missing):
            ids = {node.parts[number] for node, number in batch}
            contents = await self._objects.read(ids, revision, past=wanted.past)
            await _thread(partial(stage.fill, batch, contents))

    def _snapshot(self, head: TreeHead, entry: Entry) -> Snapshot:
        size, root = head.size_bytes, head.root.hex()
        return Snapshot(
            self.key, root, head.files, size, entry.mod_revision, entry.author, entry.time_ms
        )


# --- what the methods hand to each other ----------------------------------------------------------


def _parts(nodes: Nodes) -> Iterator[bytes]:
    for node in nodes.values():
        yield from node.parts


def _carried(found: Scan, nodes: Nodes, *, discard: bool) -> list[bytes]:
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


def _take_mode(top: Path, stage: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        stage.chmod(stat.S_IMODE(top.stat().st_mode))


def _file_of(node: Node) -> WorkspaceFile:
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


async def _thread(work: Callable[[], T]) -> T:
    """Run `work`, which blocks, to its end: what it writes is not left to run on."""
    return await finish(asyncio.to_thread(work), _DISK_MS)
