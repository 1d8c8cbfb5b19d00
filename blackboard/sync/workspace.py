"""Workspaces without async.

Written by `python -m tools.sync_client`: do not edit.
"""

from pathlib import Path
from typing import Any

from blackboard.client.workspace.scan import Progress
from blackboard.client.workspace.workspace import FileChange, Snapshot, WorkspaceFile
from blackboard.core.checkpoints import When
from blackboard.sync import asynchronous
from blackboard.sync.portal import Mirror
from blackboard.units import Key


class Workspace(Mirror[asynchronous.Workspace]):
    """The directory `path`, kept at `key` of a board. Rights: those to everything below
    `<key>/~tree`.

    One process works on a directory at a time: a second call meanwhile gets WorkspaceHeld. Programs
    may read and write the files at any time. Every method first finishes what a process that was
    killed began. Errors of all of them: InvalidRequest when the directory, or the one that it lies
    in, cannot be used, and on Windows.
    """

    @property
    def key(self) -> Key:
        """As of the asynchronous Workspace."""
        return self._inner.key

    @property
    def path(self) -> Path:
        """As of the asynchronous Workspace."""
        return self._inner.path

    def snapshot(
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
        return self._portal.run(
            lambda: self._inner.snapshot(note=note, overwrite=overwrite, progress=progress)
        )

    def restore(
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
        return self._portal.run(lambda: self._inner.restore(at, discard=discard, progress=progress))

    def branch(self, board: Mirror[Any], path: Path, *, at: When | None = None) -> "Workspace":
        """Make a second directory at `path`, which must not exist or be empty, from the snapshot of
        `board`, a branch of this board, at `at`.

        Contents that this directory has are cloned where the file system can do that, else copied;
        nothing is shared that a write could change. Errors: as of `restore`.
        """
        inner: Any = getattr(board, "_inner", board)
        return Workspace(
            self._portal, self._portal.run(lambda: self._inner.branch(inner, path, at=at))
        )

    def info(self, at: When | None = None) -> Snapshot | None:
        """The snapshot at a moment, the present one by default; None without one."""
        return self._portal.run(lambda: self._inner.info(at))

    def list(self, at: When | None = None) -> tuple[WorkspaceFile, ...]:
        """What the snapshot at a moment has, by path. Errors: InvalidRequest without one."""
        return self._portal.run(lambda: self._inner.list(at))

    def diff(self, a: When | None = None, b: When | None = None) -> tuple[FileChange, ...]:
        """What differs between the snapshots at `a` (None: the present one) and `b` (None: the
        directory as it is), by path. Errors: as of `snapshot` for the directory; InvalidRequest
        when there is no snapshot at a moment.
        """
        return self._portal.run(lambda: self._inner.diff(a, b))
