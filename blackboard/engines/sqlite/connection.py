"""Connections to a board's file: how one is opened, written to, and what SQLite's errors mean."""

import contextlib
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final

from blackboard.engines.disk import check_readable, has_files_left, is_full
from blackboard.engines.sqlite import suspect
from blackboard.engines.sqlite.format import distrust
from blackboard.engines.sqlite.journal import journal_path
from blackboard.engines.sqlite.rows import Row
from blackboard.errors import Corrupt, Unavailable

ROOM_BYTES: Final = 128 * 1024
"""Room for a journal and its index, with a commit or two. A file that was opened read-only for lack
of room is opened for writing again once there is this much."""
FILES_OF_A_BOARD: Final = 4
"""Its file, two of the journal, and one to read the old log."""
_TOO_MANY_FILES: Final = ": this process may open no more files (ulimit -n)"
_ROWS_PER_STATEMENT: Final = 128
"""Times 8 columns: SQLite takes 32,766 parameters."""
_CACHE_KIB: Final = 32 * 1024
_PASSING: Final = frozenset(
    [
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    ]
)
"""Result codes for a temporary condition; all others mean that the content of the file is
damaged."""
_DAMAGE: Final = frozenset([sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB])
"""What SQLite answers when it finds damage, and also when the disk cannot read a page (EIO)."""
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",  # SQLite keeps a journal beside its target
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
}
_NO_ROOM_CODES: Final = frozenset(
    [
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_WRITE,
    ]
)
"""Result codes of opening a file on a full disk, where its journal or the journal's index cannot be
made."""


def insert(connection: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Insert many rows with few statements.

    Each step of a statement releases the interpreter lock and must get it back from a busy event
    loop, which takes far longer than the step. A statement of many rows is one step. Their numbers
    are powers of two, so that the same few statements stay prepared.
    """
    at = 0
    while at < len(rows):
        size = min(_ROWS_PER_STATEMENT, 1 << (len(rows) - at).bit_length() - 1)
        values = chain.from_iterable(rows[at : at + size])
        connection.execute(_repeated(statement, size), tuple(values))
        at += size


@lru_cache(maxsize=256)
def _repeated(statement: str, times: int) -> str:
    """`INSERT ... VALUES (...)` for so many rows at once."""
    head, _, rest = statement.partition(" VALUES ")
    row, conflict, clause = rest.partition(" ON CONFLICT ")
    return f"{head} VALUES {', '.join([row] * times)}{conflict}{clause}"


def check_ordinary(path: Path) -> None:
    """Errors: Corrupt when a database, or a file that SQLite keeps beside it, is something else
    than a file: reading it could wait for ever, or miss its journal. OSError."""
    for suffix in ("", *suspect.BESIDE):
        found = path.with_name(f"{path.name}{suffix}")
        try:
            mode = found.lstat().st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "a device or a socket")
            raise Corrupt(what=str(path), reason=f"{found.name} is {kind}, and not a file")


def is_without_room(error: BaseException | None) -> bool:
    """Whether an error of SQLite or of the file system, or its cause, says that a file could not be
    made or could not grow."""
    if isinstance(error, Unavailable):
        error = error.__cause__
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return code in _NO_ROOM_CODES and not _lacks_files(error)
    return isinstance(error, OSError) and is_full(error)


def _lacks_files(error: sqlite3.Error) -> bool:
    """Whether SQLite could not open a file because this process has too many."""
    is_opening = primary_code(error) == sqlite3.SQLITE_CANTOPEN
    return is_opening and not has_files_left(FILES_OF_A_BOARD)


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection to the file of a board, for any thread. Errors: sqlite3.Error."""
    how = "mode=ro&immutable=1" if read_only else "mode=rw"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}",
        uri=True,
        # Transactions are begun and ended by us.
        isolation_level=None,
        check_same_thread=False,
        # Nobody else writes the file, so a lock that is taken is reported, and holds up no thread.
        timeout=0,
    )
    try:
        distrust(connection)
        connection.execute("PRAGMA secure_delete=ON")  # builds of SQLite differ in their default
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=0")  # it would not report errors
        connection.execute("PRAGMA fullfsync=1")  # macOS: fsync alone does not reach the disk
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system raise into our errors, naming the file."""
    try:
        yield
    except sqlite3.Error as error:
        if primary_code(error) in _PASSING:
            hint = _TOO_MANY_FILES if _lacks_files(error) else ""
            raise Unavailable(what=str(path), reason=f"{error}{hint}") from error
        check_damage(path, error, str(path))
        raise Corrupt(what=str(path), reason=str(error)) from error
    except OSError as error:
        raise Unavailable(what=str(path), reason=str(error)) from error
    except Corrupt as error:
        if error.what == str(path):
            raise
        raise Corrupt(what=str(path), reason=f"{error.what}: {error.reason}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise Corrupt(what=str(path), reason=f"a row cannot be read: {error}") from error


def check_damage(path: Path, error: BaseException | None, what: str) -> None:
    """Do nothing if `error` of SQLite is damage in the database at `path`. Blocking, as it reads
    the file. Errors: Unavailable when the disk fails to read it, or failed and does so no more."""
    if not isinstance(error, sqlite3.Error) or primary_code(error) not in _DAMAGE:
        return
    try:
        check_readable(path, journal_path(path))
    except OSError as failure:
        raise Unavailable(what=what, reason=str(failure)) from error
    if _is_sound(path):
        reason = f"a read failed that succeeds now ({error})"
        raise Unavailable(what=what, reason=reason) from error


def _is_sound(path: Path) -> bool:
    """Whether SQLite finds no damage when it reads the whole file again, on a connection that has
    cached nothing. False if it cannot look, such as while another one has the file to itself."""
    try:
        with contextlib.closing(connect(path)) as connection:
            [[found]] = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.Error:
        return False
    return bool(found == "ok")


def primary_code(error: sqlite3.Error | Corrupt) -> int:
    """SQLite's primary result code; SQLITE_ERROR if the error is the driver's own, or ours."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
