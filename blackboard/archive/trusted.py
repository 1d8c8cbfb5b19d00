"""The SQLite file of an archive: which processes use it, and whether its content can be trusted.

As with a board's file (engines/sqlite/suspect.py), nothing counts after a failed sync. Unlike a
board's file, several processes may have it open. Each holds a shared lock on a file beside it, and
a process overwrites the journal, or replaces the file by a copy, only while no other has the lock.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

from blackboard.engines.disk import SyncError
from blackboard.engines.sqlite import suspect
from blackboard.engines.sqlite.file import check_ordinary, open_index, valid_frames
from blackboard.errors import Corrupt, Unavailable
from blackboard.integrity.private_files import FILE_MODE

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be replaced
    fcntl = None  # type: ignore[assignment]

_LOCK: Final = ".lock"
DISTRUSTED: Final = (
    "a sync of its file failed, so its content cannot be trusted: when the disk is sound,"
    " restart every service that uses it"
)


class TrustedFile:
    """The file at `path`, used from here on until `close`. Blocking.

    The constructor makes sure that the disk holds the file's content, if no other process has it
    open. Errors: Unavailable, also while other processes use the file after a failed sync; Corrupt.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._is_suspect = False
        self._is_closed = False
        self._index: BinaryIO | None = None
        lock = path.with_name(f"{path.name}{_LOCK}")
        check_ordinary(path)
        try:
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise Unavailable(what=what, reason=str(error)) from error
        try:
            if self._is_alone():
                self._make_sure()
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_SH)
            self.check()
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError | sqlite3.Error):
                raise Unavailable(what=what, reason=str(error)) from error
            raise

    def _is_alone(self) -> bool:
        """Whether no other process has the file open; none can open it until the lock is shared."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _make_sure(self) -> None:
        if not suspect.is_marked(self.path):
            try:
                suspect.trust_journal(self.path)
            except SyncError:  # then it is marked
                pass
            else:
                return
        suspect.write_again(self.path, lambda _: None, self._look_at)

    def _look_at(self, copy: Path) -> None:
        """Errors: Corrupt when a copy is damaged."""
        with closing(sqlite3.connect(copy)) as connection:
            [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise Corrupt(what=self._what, reason=f"a sync failed, and what is left: {found}")

    def check(self) -> None:
        """Errors: Unavailable once a sync failed, in this or another process."""
        if self._is_suspect or suspect.is_marked(self.path):
            self._is_suspect = True
            raise Unavailable(what=self._what, reason=DISTRUSTED)

    def note(self, error: BaseException | None) -> None:
        """Mark the file as suspect if `error` is a failed sync."""
        if suspect.is_failed_sync(error) and not self._is_suspect:
            self._is_suspect = True
            suspect.mark(self.path, str(error))

    @property
    def is_suspect(self) -> bool:
        """Whether a sync failed, as far as this process knows."""
        return self._is_suspect

    def frames(self) -> int:
        """The frames in the journal. A connection must be open. Errors: OSError."""
        if self._index is None:
            self._index = open_index(self.path)
        return valid_frames(self._index)

    def close(self) -> None:
        """Release the lock. Call it after every connection of this process was closed; it may be
        called again."""
        if self._index is not None:
            self._index.close()
        if not self._is_closed:
            self._is_closed = True
            os.close(self._lock)
