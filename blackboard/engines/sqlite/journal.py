"""The write-ahead log that SQLite keeps beside a file, and what a power loss leaves of it.

SQLite reads a write-ahead log (https://www.sqlite.org/walformat.html) up to the first frame with a
wrong checksum; so it drops a write that a power loss cut off. A flipped bit in the middle looks the
same, and SQLite would drop everything after it. The difference: a transaction is synced before the
next one begins, so a power loss leaves at most one incomplete transaction. If two transactions end
after the place where SQLite stopped, they were on the disk once.

That is so as long as nothing is left from before. An incomplete transaction may be long, with its
end on the disk. The next process would write a short one over its beginning; if that is cut off as
well, two ends are there. So a journal is cut where SQLite stopped (`cut`), and synced, before the
first transaction is written.

Damage to the last transaction, or to the end of the one before it, cannot be distinguished from a
power loss.
"""

import os
import sqlite3
import struct
from pathlib import Path
from typing import BinaryIO, Final

from blackboard.engines.disk import sync
from blackboard.errors import Corrupt, Unavailable

PAGE_BYTES: Final = 4096
"""Of a board's file."""
_HEAD_BYTES: Final = 32
_SALTS: Final = slice(16, 24)
_FRAME: Final = struct.Struct(">2I8s8x")  # page, pages after a commit (else 0), salts, checksum
_VALID: Final = struct.Struct("=16xI")
"""In the header of the journal's index, in the byte order of this machine: the number of frames
that SQLite found valid."""
_INDEX: Final = struct.Struct("=14xHI12x8s")
"""Page size (1 for 65,536), frames as in _VALID, salts."""
_LARGEST_PAGE_BYTES: Final = 65_536
CUT_OFF_MAX: Final = 1
"""Transactions that a power loss can leave incomplete."""


def journal_path(path: Path) -> Path:
    """The journal of the file at `path`."""
    return path.with_name(f"{path.name}-wal")


def open_index(path: Path) -> BinaryIO:
    """Open the index of the journal of the file at `path` for reading.

    A connection must have read the file. It must be closed after all connections of this process:
    closing it drops their locks on the index (https://www.sqlite.org/howtocorrupt.html, 2.2).
    Errors: OSError.
    """
    return path.with_name(f"{path.name}-shm").open("rb", buffering=0)


def valid_frames(index: BinaryIO) -> int:
    """How many frames of the journal SQLite found valid, or wrote. Errors: OSError."""
    index.seek(0)
    head = index.read(_VALID.size)
    return int(_VALID.unpack(head)[0]) if len(head) == _VALID.size else 0


def has_no_journal(path: Path) -> bool:
    """Whether the file at `path` has no journal with content. Errors: OSError."""
    try:
        return not journal_path(path).stat().st_size
    except FileNotFoundError:  # the last process that had it open removes it
        return True


def use_journal(connection: sqlite3.Connection, path: Path) -> None:
    """Make sure that a file has a write-ahead log. Copies by VACUUM INTO have none.

    Errors: Unavailable: on a full disk, SQLite keeps the mode as it was, and raises nothing.
    sqlite3.Error.
    """
    for statement in ("PRAGMA journal_mode", "PRAGMA journal_mode=WAL"):
        [mode] = connection.execute(statement).fetchone()
        if mode == "wal":
            return
    raise Unavailable(what=str(path), reason=f"its journal mode stays {mode!r}: is the disk full?")


def forgotten(path: Path, page_bytes: int, index: BinaryIO) -> int:
    """How many transactions end in the journal of the file at `path` after the frame where SQLite
    stopped. More than CUT_OFF_MAX are damage.

    A connection must have read the file, and still have it open. Errors: OSError.
    """
    journal = journal_path(path)
    if not journal.exists():
        return 0
    with journal.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            return 0
        # Of a journal with a damaged header SQLite reads nothing.
        valid = valid_frames(index) if _is_whole(head) else 0
        return _ends(file, _HEAD_BYTES + valid * (_FRAME.size + page_bytes), page_bytes, head)


def _ends(file: BinaryIO, at: int, page_bytes: int, head: bytes) -> int:
    """Count the frames from `at` on that end a transaction of this journal.

    Frames of an older journal may follow; they have other salts. A frame that only pads a sector
    repeats the one before it, including its page.
    """
    salts = head[_SALTS] if _is_whole(head) else None
    found, last = 0, (b"", b"")
    file.seek(at)
    while len(frame := file.read(_FRAME.size)) == _FRAME.size:
        page, pages, own = _FRAME.unpack(frame)
        this = (frame[:8], file.read(page_bytes))
        # If the header is damaged, the first frame says which salts are those of this journal.
        salts = salts or own
        found += bool(page and pages and own == salts and this != last)
        last = this
    return found


def _is_whole(head: bytes) -> bool:
    """Whether the checksum of a journal's header is right."""
    # The magic number says in which byte order the checksum was computed: big-endian if it is odd.
    # The checksum itself is always big-endian.
    order = ">" if head[3] & 1 else "<"
    first = second = 0
    for one, other in struct.iter_unpack(f"{order}2I", head[:24]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return struct.unpack(">2I", head[24:]) == (first, second)


def check_journal(path: Path, index: BinaryIO) -> None:
    """Check that the journal of the board's file at `path` has lost nothing that was synced.

    A connection must have read the file, and still have it open. Errors: Corrupt, OSError.
    """
    lost = forgotten(path, PAGE_BYTES, index)
    if lost > CUT_OFF_MAX:
        reason = f"its journal is damaged, and {lost} transactions lie behind that"
        raise Corrupt(what=str(path), reason=reason)


def look_at_journal(path: Path, connection: sqlite3.Connection) -> None:
    """Before the file at `path` is copied: check that SQLite, which reads it on `connection`,
    leaves out nothing that was on the disk. Errors: Corrupt, OSError, sqlite3.Error; nothing is
    changed.
    """
    [clean] = connection.execute("SELECT clean FROM head").fetchone()
    # A run without syncs may leave any number of incomplete transactions: that is no damage, and an
    # epoch begins after it.
    if clean:
        with open_index(path) as index:
            check_journal(path, index)


def cut(path: Path, index: BinaryIO) -> None:
    """Cut the journal of the file at `path` after its last valid frame, so that nothing is left of
    a transaction that a power loss made incomplete. Durable when it returns.

    A connection must have read the file, and nobody may be writing. SQLite does not read beyond
    that frame. If this process is killed before the sync, the next one syncs: it rewrites every
    journal that it finds (engines/sqlite/suspect.py). Errors: OSError; SyncError, after which the
    file is suspect.
    """
    if has_no_journal(path):
        return
    with journal_path(path).open("r+b", buffering=0) as file:
        end = _end(file.read(_HEAD_BYTES), index)
        # Not to 0: the valid frames may not be in the file yet.
        if end is not None and end < os.fstat(file.fileno()).st_size:
            os.ftruncate(file.fileno(), end)
            sync(file.fileno())


def _end(head: bytes, index: BinaryIO) -> int | None:
    """Where the last valid frame ends in the journal that begins with `head`. None unless the index
    is that of this journal: if SQLite rejected its header, nothing in it counts, and the next
    transaction writes a new header, with other salts."""
    index.seek(0)
    found = index.read(_INDEX.size)
    if len(found) < _INDEX.size:
        return None
    page_bytes, frames, salts = _INDEX.unpack(found)
    page_bytes = page_bytes if page_bytes > 1 else _LARGEST_PAGE_BYTES
    if salts != head[_SALTS]:
        return None
    return _HEAD_BYTES + int(frames) * (_FRAME.size + int(page_bytes))
