"""Handles a SQLite file after a failed sync: nothing read from it counts until it was written
again.

The file stays as it is for the rest of the process; a mark beside it outlives the process. The next
process that opens it makes a copy, checks it, and puts it in place. If the mark could not be
written either, or the process was killed before, the journal is still there: it is emptied or
removed only after a sync of the file succeeded. So a journal that is found is written over itself
before it is read (`disk.write_over`): then the disk holds what the page cache returns.

Only the journal needs that. Pages of the file itself that a copy of the journal has not brought to
the disk are still in the journal, and SQLite reads them there and copies them again.

Invariants
- The old file and its journal stay until the copy is complete and synced, under a name of its own
  (`.whole`). From then on the copy is the file, whatever is interrupted.
- A copy never meets the journal of the old file, which is removed before the copy is put in place.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from blackboard.engines.disk import SyncError, sync_path, write_over

log = logging.getLogger(__name__)

BESIDE: Final = ("-wal", "-shm", "-journal")
"""The files that SQLite keeps beside a database. They must never meet another database than their
own."""
_MARK: Final = ".suspect"
_COPY: Final = ".copy"
_WHOLE: Final = ".whole"
_SYNC_CODES: Final = frozenset([sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC])


def is_failed_sync(error: BaseException | None) -> bool:
    """Whether an error of SQLite or of the file system says that a sync failed."""
    code = getattr(error, "sqlite_errorcode", None)
    return code in _SYNC_CODES or isinstance(error, SyncError)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


def mark(path: Path, reason: str) -> None:
    """Make a mark beside a file that a sync of it failed, and log it once.

    Raises no error: if the mark cannot be written, the journal stands in for it, as the docstring
    of this module explains.
    """
    log.error(
        "a sync of %s failed (%s): its content cannot be trusted any more, and it is closed."
        " Check the disk, then restart: the file is written again at the next start",
        path,
        reason,
    )
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    beside = _beside(path, _MARK)
    try:
        # An empty mark is enough, and so is one that is only in the page cache: after a power loss,
        # reads return what the disk holds.
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(f"{at} a sync of {path.name} failed: {reason}\n")
        sync_path(beside)
        sync_path(path.parent)
    except OSError as error:
        log.warning("the mark beside %s may not be on the disk: %s", path, error)


def is_marked(path: Path) -> bool:
    """Whether there is a mark that a sync of a file failed."""
    return _beside(path, _MARK).exists()


def forget(path: Path) -> None:
    """Remove the files beside a file that is being removed. Errors: OSError."""
    for suffix in (_MARK, _COPY, _WHOLE):
        _beside(path, suffix).unlink(missing_ok=True)


def trust_journal(path: Path) -> None:
    """Before a file is opened: make sure that the disk holds its journal as it is read.

    No connection may have it open. Errors: OSError; after a SyncError the file is marked.
    """
    journal = _beside(path, "-wal")
    if not journal.exists() or not journal.stat().st_size:
        return
    try:
        write_over(journal)
        # The name of the journal, too: its file is of no use if it is not found after a power loss.
        sync_path(path.parent)
    except SyncError as error:
        mark(path, str(error))
        raise


def write_again(
    path: Path,
    look: Callable[[sqlite3.Connection], None],
    finish: Callable[[Path], None],
) -> None:
    """Put a copy of a marked file in its place.

    `look` is called with a connection to the old file, `finish` with the copy: it checks and
    changes that, and leaves it closed, without a journal. Their errors end the call. No connection
    may have the file open. It needs as much room as the file takes. Errors: OSError, sqlite3.Error;
    the old file is as it was, and stays marked.
    """
    whole = _beside(path, _WHOLE)
    if not whole.exists():
        copy = _beside(path, _COPY)
        try:
            _remove(copy)
            _copy(path, copy, look)
            finish(copy)
            sync_path(copy)
            copy.replace(whole)
            _sync_name(whole)
        except BaseException:
            with contextlib.suppress(OSError):
                _remove(copy)
            raise
    for suffix in BESIDE:
        _beside(path, suffix).unlink(missing_ok=True)
    whole.replace(path)
    sync_path(path)
    sync_path(path.parent)
    # Last: with the mark gone and the new name not durable, a power loss would bring back the old
    # file, and it would be trusted.
    _beside(path, _MARK).unlink(missing_ok=True)
    sync_path(path.parent)
    log.warning("%s was written again, and all of it is on the disk", path)


def _sync_name(path: Path) -> None:
    """Make a file's name durable. Errors: SyncError; the name is then removed again."""
    try:
        sync_path(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _remove(copy: Path) -> None:
    for suffix in ("", *BESIDE):
        _beside(copy, suffix).unlink(missing_ok=True)


def _copy(path: Path, copy: Path, look: Callable[[sqlite3.Connection], None]) -> None:
    """Copy what SQLite reads from a file and its journal; both stay unchanged."""
    with closing(read_only(path)) as source:
        look(source)
        os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(copy, isolation_level=None)) as target:
            # Without a journal: a copy that was not finished is removed, never repaired.
            target.execute("PRAGMA journal_mode=OFF")
            source.backup(target)


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. While it is open, closing other connections leaves the
    journal unchanged; closing this one does, too. Errors: sqlite3.Error."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=0,
    )


@contextlib.contextmanager
def kept_as_it_is(path: Path) -> Iterator[None]:
    """Within this block, the connections of this process to a file can be closed. Otherwise the
    last one to be closed would sync the journal and copy it into the file."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(sqlite3.Error):
            holder = stack.enter_context(closing(read_only(path)))
            # SQLite opens the journal with the first read, so an unused connection holds nothing.
            holder.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        yield
