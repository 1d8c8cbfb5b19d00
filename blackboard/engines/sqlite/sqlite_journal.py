"""Whether SQLite, when it read a journal after a crash, left out what had been on the disk.

A write-ahead log (https://www.sqlite.org/walformat.html) ends, for SQLite, at the first frame whose
checksum is wrong: so a write that the power cut off is forgotten. A bit that flipped in the middle
looks the same, and everything behind it would be forgotten, too. The difference: a transaction is
synced before the next one begins, so a cut leaves at most one that is not whole. Where two end
behind the place at which SQLite stopped, they were on the disk once.

What cannot be told from a cut is damage to the last transaction, or to how the one before it ends.
"""

import struct
from pathlib import Path
from typing import BinaryIO, Final

_HEAD_BYTES: Final = 32
_SALTS: Final = slice(16, 24)
_FRAME: Final = struct.Struct(">2I8s8x")  # page, pages after a commit (else 0), salts, checksum
_VALID: Final = struct.Struct("=16xI")
"""In the journal's index, in the byte order of this machine: the frames that SQLite found whole."""
CUT_OFF_MAX: Final = 1
"""Transactions that a cut of the power can leave unfinished."""


def forgotten(path: Path, page_bytes: int) -> int:
    """How many transactions end, in the journal of the file at `path`, behind the frame at which
    SQLite took it to end. More than CUT_OFF_MAX are damage.

    A connection must have read the file, and still have it open. Errors: OSError.
    """
    journal, index = (path.with_name(f"{path.name}-{part}") for part in ("wal", "shm"))
    if not journal.exists() or not index.exists():
        return 0
    with journal.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            return 0
        valid = 0
        if _is_whole(head):
            with index.open("rb") as shared:
                [valid] = _VALID.unpack(shared.read(_VALID.size))
        return _ends(file, _HEAD_BYTES + valid * (_FRAME.size + page_bytes), page_bytes, head)


def _ends(file: BinaryIO, at: int, page_bytes: int, head: bytes) -> int:
    """Frames from `at` on that end a transaction of this journal.

    Behind it may lie what an older one left, which has other salts. A frame that only fills a
    sector up repeats the one before it, page and all.
    """
    salts = head[_SALTS] if _is_whole(head) else None
    found, last = 0, (b"", b"")
    file.seek(at)
    while len(frame := file.read(_FRAME.size)) == _FRAME.size:
        page, pages, own = _FRAME.unpack(frame)
        this = (frame[:8], file.read(page_bytes))
        salts = salts or own
        found += bool(page and pages and own == salts and this != last)
        last = this
    return found


def _is_whole(head: bytes) -> bool:
    """Whether the checksum of a journal's header is right."""
    order = ">" if head[3] & 1 else "<"
    first = second = 0
    for one, other in struct.iter_unpack(f"{order}2I", head[:24]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return struct.unpack(">2I", head[24:]) == (first, second)
