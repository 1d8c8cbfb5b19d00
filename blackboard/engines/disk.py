"""Durable files on a disk that may fail: a write here reaches the disk, or raises.

After a failed sync, the kernel marks the pages that it could not write as clean, and may drop them
at any time; a second sync then succeeds (Rebello and others, "Can Applications Recover from fsync
Failures?", USENIX ATC 2020). So nothing is synced twice: it is written again first. All functions
block.
"""

import contextlib
import errno
import os
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from blackboard.integrity.private_files import naming, open_new_binary

_CHUNK_BYTES: Final = 256 * 1024


def _numbers(*names: str) -> frozenset[int]:
    """The numbers of errors; not every system has all of them."""
    return frozenset(getattr(errno, name) for name in names if hasattr(errno, name))


_FULL: Final = _numbers("ENOSPC", "EDQUOT", "EFBIG")
_NO_FULL_SYNC: Final = _numbers("ENOTSUP", "EOPNOTSUPP", "ENOSYS", "EINVAL", "ENOTTY")


def is_full(error: OSError) -> bool:
    """Whether an error means that there is no room: the disk is full, or a quota or file size limit
    is reached."""
    return error.errno in _FULL


def files_max() -> int:
    """How many files this process may open; ordinary processes 1,024, if it cannot be found out."""
    try:
        import resource
    except ImportError:  # Windows
        return 1_024
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def has_files_left(count: int) -> bool:
    """Whether this process may open so many more files. It opens them, and closes them again."""
    # There is no portable way to ask how many files this process has open.
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    finally:
        for each in opened:
            os.close(each)
    return True


def has_room(beside: Path, size: int) -> bool:
    """Whether a file of `size` bytes can be made next to a file. It is made, and removed.

    The file system's statistics would not do: they leave out quotas and limits of this process.
    Errors: none.
    """
    probe = beside.with_name(f"{beside.name}.{secrets.token_hex(8)}.room")
    try:
        with open_new_binary(probe) as file:
            # Written, not only lengthened: a sparse file takes no room.
            file.write(bytes(size))
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return True


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The room of a file system: how many bytes may still be written, and of how many."""

    free_bytes: int
    total_bytes: int


def space_of(directory: Path) -> DiskSpace | None:
    """The room of the file system that holds a directory; None if it cannot say. It does not know
    quotas: see `has_room`."""
    try:
        found = shutil.disk_usage(directory)
    except OSError:
        return None
    return DiskSpace(found.free, found.total)


def check_readable(*paths: Path) -> None:
    """Read files to their ends; those that are not there count as empty.

    SQLite calls a page that the disk cannot read a damaged one; this tells them apart. Cost: 1 ms
    per MB. Errors: OSError, naming the file, when the disk fails to read one.
    """
    for path in paths:
        try:
            with naming(path), path.open("rb", buffering=0) as file:
                while file.read(_CHUNK_BYTES):
                    pass
        except FileNotFoundError:
            continue


class SyncError(OSError):
    """A sync failed: it is unknown which part of the file the disk holds, whatever a read
    returns."""


def sync(file: int) -> None:
    """Make what was written to an open file durable. Errors: SyncError."""
    try:
        if sys.platform == "darwin":  # fsync alone does not reach the disk there
            import fcntl

            try:
                fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            except OSError as error:
                # Some file systems do not know it. Any other error is a failed sync, and the next
                # one would succeed although nothing reached the disk.
                if error.errno not in _NO_FULL_SYNC:
                    raise
            else:
                return
        os.fsync(file)
    except OSError as error:
        raise SyncError(error.errno, f"a sync failed: {error.strerror}") from error


def sync_path(path: Path) -> None:
    """Make a file, or a rename in a directory, durable. Does nothing on Windows, where a rename
    needs no sync and directories cannot be synced.

    Errors: SyncError; OSError when it cannot be opened.
    """
    if os.name == "nt":
        return
    # Not for writing: directories cannot be opened for that, and a sync does not need it.
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def write_draft(path: Path, data: bytes) -> Path:
    """A new file beside `path` that holds `data`, synced, readable by its owner only.

    Its name is unique. Errors: OSError; the file is then removed.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with open_new_binary(draft) as file:
            file.write(data)
            file.flush()
            sync(file.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft


def replace_file(path: Path, data: bytes) -> None:
    """Atomically and durably replace the content of `path` by `data`, readable by its owner only.

    Errors: OSError. The file may then have the old or the new content, and must be written again.
    """
    # Draft, sync, rename, sync of the directory. Without the first sync the name could lead to an
    # empty file after a power loss; without the second, the old content could be back.
    draft = write_draft(path, data)
    try:
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def make_file(path: Path, data: bytes) -> None:
    """As `replace_file`, but a file that is there already is left as it is.

    Errors: OSError. A file that this call made is removed then.
    """
    if path.exists():
        return
    draft = write_draft(path, data)
    try:
        # A link fails if the name is taken; a rename would replace what another process made
        # meanwhile.
        path.hardlink_to(draft)
    except FileExistsError:  # another process was faster: its file stays
        return
    finally:
        draft.unlink(missing_ok=True)
    try:
        sync_path(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_over(path: Path) -> None:
    """Write the content of a file over itself, in place, and sync it: afterwards the disk holds
    what was read. Does nothing if there is no such file.

    After a power loss in between, each sector is as it was on the disk, or as it was read. It takes
    no room. Errors: SyncError, OSError.
    """
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return
    with file:
        if _write_over(file):
            sync(file.fileno())


def _write_over(file: BinaryIO) -> int:
    """Returns how many bytes it has."""
    at = 0
    while chunk := file.read(_CHUNK_BYTES):
        file.seek(at)
        file.write(chunk)
        file.flush()
        at += len(chunk)
    return at


def file_identity(path: Path) -> tuple[int, int]:
    """The device and the number of a file: those of another one of its name differ. Errors:
    OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino
