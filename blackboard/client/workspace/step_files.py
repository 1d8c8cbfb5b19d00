"""The files of one step of an agent: a copy of the board's tree, which the step's commit puts.

    begin      locks the directory, finishes what a killed process began, and lets the directory
               follow the board: after a crash, a restore, on another machine
    (the step) reads the directory; the first change makes a copy of it, the stage
    prepare    reads the stage, puts what does not fit into the step's commit, and returns the rest
    committed  lets the stage take the place of the directory
    end        removes a stage that was not committed, and unlocks

Invariants
- The directory only changes by a swap (swap.py), and only to a tree that is on the board.
- A step sees the tree of the board and nothing else: neither what another step left uncommitted,
  nor what ignore rules leave out. What it reads in the directory is compared with the board's ids.
- Until the step's commit, the board's present tree is the one before, and so is the directory; from
  then on it is the new one, which the next `begin` puts into the directory if this process cannot.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from blackboard.client.views import Entry, Receipt
from blackboard.client.workspace import index, scan as scanning
from blackboard.client.workspace.directory import (
    Packed,
    Present,
    Replacement,
    Seen,
    WorkspaceDirectory,
    coming,
    in_thread,
)
from blackboard.client.workspace.ignoring import Indexed
from blackboard.client.workspace.index import LastSnapshot, Rows
from blackboard.client.workspace.inside import NO_REGULAR_FILE, Inside, why_missing
from blackboard.client.workspace.objects import CommitRoom, NewSnapshot, Publication
from blackboard.client.workspace.scan import Clocked
from blackboard.client.workspace.tree import id_of, shown
from blackboard.client.workspace.within import Within
from blackboard.client.workspace.workspace import SALT_BYTES, WorkspaceFile, file_of
from blackboard.core.path import tree_head_key
from blackboard.errors import (
    BlackboardError,
    FileRefused,
    InvalidRequest,
    LimitExceeded,
    UnsavedFiles,
    WorkspaceHeld,
)
from blackboard.limits import LARGE_BYTES_MAX
from blackboard.units import Key, Milliseconds

# flock cannot wait for a limited time, and a call that blocks would keep its thread.
_POLL_S: Final = 0.02
log = logging.getLogger(__name__)


class _Ready(NamedTuple):
    """What a step's commit puts, and the tree that takes the place of the directory after it."""

    publication: Publication
    packed: Packed
    rows: Rows
    carried: list[bytes]


class StepFiles:
    """The files of an agent, in one step at a time: `begin`, the step, `end`."""

    def __init__(self, directory: WorkspaceDirectory) -> None:
        self._directory = directory
        self._before: Present | None = None
        self._salt = b""
        self._rows: Rows = {}
        self._seen: Seen | None = None
        """The directory when it was copied; None while there is no stage."""
        self._staged: Rows = {}
        self._staging = asyncio.Lock()
        self._ready: _Ready | None = None
        self.lock: int | None = None
        """The descriptor that keeps others off the directory, while this step works there."""

    @property
    def head_key(self) -> Key:
        """The entry that says which tree the files are."""
        return tree_head_key(self._directory.key)

    @property
    def head(self) -> Entry | None:
        """That entry, as of the beginning of the step; None without files."""
        return None if self._before is None else self._before[1]

    # --- the beginning ----------------------------------------------------------------------------

    async def begin(self, wait_ms: Milliseconds) -> None:
        """Lock the directory, and let it be the tree of the board. Call `end` also after an error.

        Errors: WorkspaceHeld when another process works on it for `wait_ms`. InvalidRequest when it
        is the directory of another workspace, or cannot be used. UnsavedFiles when it has changes
        that no snapshot has. FileRefused, Corrupt: as of `Workspace.restore`.
        """
        await self._acquire(asyncio.get_running_loop().time() + wait_ms / 1000)
        try:
            await self._follow()
        except OSError as error:
            raise self._directory.unusable(error) from error

    async def _acquire(self, deadline_s: float) -> None:
        beside, holder = self._directory.beside, self._directory.holder

        def acquire() -> None:
            self.lock = beside.acquire(holder)  # kept also if the caller was cancelled meanwhile

        while self.lock is None:
            try:
                await in_thread(acquire)
            except WorkspaceHeld:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                await asyncio.sleep(_POLL_S)
            except OSError as error:
                raise self._directory.unusable(error) from error

    async def _follow(self) -> None:
        """Let the directory be what the board says."""
        at = self._directory
        self._before = await at.objects.head()
        base, self._rows = await in_thread(partial(index.load, at.beside.index))
        # Before anything is restored: that would replace the files of another agent.
        if base is not None and (base.board, base.key) != (at.board.name, at.key):
            reason = f"{at.path} has the files of {base.key} on board {base.board}"
            raise InvalidRequest("workspace", f"{reason}: give each agent a directory of its own")
        if self._before is None:
            await self._follow_nothing(base)
            return
        head = self._before[0]
        self._salt = head.salt
        is_same = base is not None and (base.salt, base.root) == (head.salt, head.root)
        if not is_same or not at.path.exists():
            log.info("%s follows the board to revision %d", at.path, self._before[1].mod_revision)
            self._before = await at.restore()
            self._salt = self._before[0].salt
            _, self._rows = await at.indexed(self._salt)

    async def _follow_nothing(self, base: LastSnapshot | None) -> None:
        """The board has no files: not yet, or not any more."""
        at = self._directory
        if base is not None and base.root:
            nothing = LastSnapshot(at.board.name, at.key, base.salt, b"", 0)
            await at.replace(Replacement({}, nothing, 0))
        self._rows, self._salt = {}, secrets.token_bytes(SALT_BYTES)
        await at.check_saved(await at.present({}, self._salt), {})

    # --- the step ---------------------------------------------------------------------------------

    async def read(self, path: bytes) -> bytes:
        """The content of a file. Errors: FileRefused; UnsavedFiles when somebody changed it in the
        directory; LimitExceeded (LARGE_BYTES_MAX)."""
        if self._seen is None:
            return await in_thread(partial(self._read_present, path))
        inside = await self.inside()
        return await in_thread(partial(inside.read, path))

    def _read_present(self, path: bytes) -> bytes:
        row = self._rows.get(path)
        if row is None:
            raise FileRefused(shown(path), why_missing(path, self._rows))
        if not row.node.is_file:
            raise FileRefused(shown(path), NO_REGULAR_FILE)
        if row.node.size > LARGE_BYTES_MAX:
            raise LimitExceeded("LARGE_BYTES_MAX", row.node.size, LARGE_BYTES_MAX, shown(path))
        with contextlib.suppress(OSError), Within(self._directory.path) as within:
            with within.reading(path) as file:
                parts = [*scanning.pieces(file, row.node.size)]
            if tuple(id_of(part, self._salt) for part in parts) == row.node.parts:
                return b"".join(parts)
        raise UnsavedFiles(str(self._directory.path), [shown(path)], 1)

    async def write(self, path: bytes, content: bytes, executable: bool | None) -> None:
        """Write a file in the stage. Errors: FileRefused, LimitExceeded."""
        inside = await self.inside()
        await in_thread(partial(inside.write, path, content, executable))

    async def remove(self, path: bytes) -> None:
        """Remove a file or a directory from the stage. Errors: FileRefused."""
        inside = await self.inside()
        await in_thread(partial(inside.remove, path))

    async def list(self, below: bytes) -> tuple[WorkspaceFile, ...]:
        """What the tree has, by path, but for what is ignored. Errors: FileRefused,
        LimitExceeded."""
        rows = self._rows if self._seen is None else await in_thread(self._scan)
        prefix = below and below + b"/"
        return tuple(file_of(row.node) for path, row in rows.items() if path.startswith(prefix))

    async def inside(self) -> Inside:
        """The stage, which the first change makes. Errors: UnsavedFiles when the directory has
        changes that no snapshot has; FileRefused, as without space; Corrupt."""
        async with self._staging:
            if self._seen is None:
                await self._stage()
        return Inside(self._directory.beside.stage, self._directory.beside.drafts)

    async def _stage(self) -> None:
        at = self._directory
        seen = await at.present(self._rows, self._salt)
        nodes = index.nodes(self._rows)
        await at.check_saved(seen, nodes)
        revision = 0 if self._before is None else self._before[1].mod_revision
        base = LastSnapshot(at.board.name, at.key, self._salt, b"", revision)
        try:
            self._staged = await at.fill(Replacement(nodes, base, revision), seen)
        except BaseException:
            await in_thread(at.beside.discard)
            raise
        self._seen = seen

    async def directory(self, path: bytes) -> Path:
        """A directory of the stage, for a command. Errors: FileRefused."""
        inside = await self.inside()
        return await in_thread(partial(inside.directory, path))

    async def reset(self) -> None:
        """Forget the step's changes."""
        async with self._staging:
            self._seen = self._ready = None
            await in_thread(self._directory.beside.discard)

    # --- the end ----------------------------------------------------------------------------------

    async def prepare(self, room: CommitRoom) -> Publication | None:
        """What the step's commit has to put; None if no file changed. Nothing may change the stage
        from here on.

        Errors: FileRefused for what cannot be in a snapshot, or something that changed in the
        directory meanwhile; LimitExceeded; Conflict when the board's snapshot changed.
        """
        if self._seen is None:
            return None
        at, seen, before = self._directory, self._seen, self._before
        rows = await in_thread(self._without_ignored)
        packed = await in_thread(partial(Packed.of, rows, self._salt))
        if packed.head.root == (before[0].root if before else None) or not (before or rows):
            return None
        carried = await at.carried(seen.scan, index.nodes(rows))
        # What somebody saved in the directory meanwhile would be lost by the swap.
        await at.check_unchanged(seen, self._salt, "step")
        upload, left = await at.objects.left()
        known = left | await at.present_ids(before, self._rows)
        stale = known - packed.ids(rows)
        objects = coming(at.beside.stage, rows, packed, known)
        change = NewSnapshot(self.head, packed.head, stale, "")
        publication = await at.objects.prepare(objects, change, upload, room)
        self._ready = _Ready(publication, packed, rows, carried)
        return publication

    def _scan(self) -> Rows:
        return self._look()[1]

    def _look(self) -> tuple[scanning.Scan, Rows]:
        """What is in the stage."""
        stage, salt = self._directory.beside.stage, self._salt
        clock_ns = self._directory.beside.clock_ns()
        found = scanning.look(stage, Indexed(self._staged, salt))
        return found, scanning.read(stage, found, self._staged, Clocked(salt, clock_ns))

    def _without_ignored(self) -> Rows:
        """The rows of the stage, out of which everything is removed that is no part of the tree."""
        found, rows = self._look()
        inside = Inside(self._directory.beside.stage, self._directory.beside.drafts)
        # A step that runs again, or elsewhere, would not find them: they are in no tree.
        for path in found.ignored:
            inside.remove(path)
        return rows

    async def committed(self, receipt: Receipt) -> None:
        """Let the stage take the place of the directory, after the step's commit.

        Errors: none; what could not be done is done by the next `begin`.
        """
        ready = self._ready
        if ready is None:
            return
        at = self._directory
        try:
            base = at.base(ready.packed.head, receipt.revision)
            await in_thread(partial(index.write, at.beside.stage_index, base, ready.rows))
            await in_thread(partial(at.beside.swap, ready.carried))
            await at.objects.tidy(ready.publication, receipt)
        except (OSError, BlackboardError) as error:
            log.warning("%s will follow the board at the next step: %s", at.path, error)

    async def end(self) -> None:
        """Remove what was not committed, and let others work on the directory."""
        self._seen = self._ready = None
        if self.lock is None:
            return
        lock, self.lock = self.lock, None
        try:
            await in_thread(self._directory.beside.discard)
        except OSError as error:
            log.warning("%s: a stage is left until the next step: %s", self._directory.path, error)
        finally:
            os.close(lock)
