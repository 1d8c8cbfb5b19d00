"""Files and directories that only their owner may open, whatever the umask is.

A data directory holds private values, tokens and keys. The mode of the directory keeps other users
out, but a backup, a bind mount or a later `chmod` can expose its content. So each file is private
by itself as well.

Invariants
- What is made here has its mode from the first byte on.
- Rights are only removed, never added, and never on a file of another user or through a symbolic
  link.
"""

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TextIO

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
UMASK: Final = 0o077
_OTHERS: Final = 0o077

log = logging.getLogger(__name__)


def make_directory(path: Path) -> None:
    """Make the directory `path` and its missing parents; an existing one is closed to other users.

    Errors: OSError when it cannot be made. A directory of another user stays open, with a warning.
    """
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    _close(path, path.stat())


def make_file(path: Path) -> None:
    """Make an empty file at `path`. An existing file and its SQLite journals are closed to other
    users. Errors: OSError."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
    except FileExistsError:
        # SQLite gives a journal the mode of its file when it makes it: these may be older.
        for found in (path, *(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))):
            with contextlib.suppress(FileNotFoundError):
                _close(found, found.stat())


def read_text(path: Path) -> str:
    """The content of a file that this service wrote; its name may be a symbolic link.

    Errors: OSError, also for anything but an ordinary file: a pipe would never end. ValueError when
    it is not UTF-8.
    """
    with naming(path), os.fdopen(_open_ordinary(path), encoding="utf-8") as file:
        return file.read()


def read_bytes(path: Path) -> bytes:
    """The content of a file that this service wrote, under its own name.

    Errors: FileNotFoundError; NotOrdinaryError, also for a symbolic link; OSError.
    """
    if path.is_symlink():
        raise NotOrdinaryError(errno.EINVAL, "it is a symbolic link", str(path))
    with naming(path), os.fdopen(_open_ordinary(path), "rb") as file:
        return file.read()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of the file to an OSError in this block that has none, as that of a read."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


class NotOrdinaryError(OSError):
    """At the path is a pipe, a directory, a device or a link in place of a file."""


def _open_ordinary(path: Path) -> int:
    """Open a file to be read. Without O_NONBLOCK, a pipe that nobody writes to would never open."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    # Of what is open now: the name may lead elsewhere a moment later.
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotOrdinaryError(errno.EINVAL, "it is not an ordinary file", str(path))
    return handle


def open_new(path: Path) -> TextIO:
    """Open a new file for writing text. Errors: OSError, also when it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return os.fdopen(os.open(path, flags, FILE_MODE), "w", encoding="utf-8")


def open_new_binary(path: Path) -> BinaryIO:
    """As `open_new`, for writing bytes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def open_anew(path: Path) -> TextIO:
    """Open the file at `path` for writing text, emptied if there is one, which keeps its mode.

    Errors: OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.fdopen(os.open(path, flags, FILE_MODE), "w", encoding="utf-8")


def close_tree(top: Path) -> None:
    """Remove all rights of other users on `top` and everything in it.

    Cost: 2 us per file. Errors: OSError when `top` cannot be listed. A file of another user, or a
    directory that users share (/tmp), is not changed, with a warning.
    """
    for path, status in _exposed(top):
        _close(path, status)


def exposed(top: Path) -> list[Path]:
    """The paths in `top`, or `top` itself, on which other users of this machine have any right.

    Errors: OSError when `top` cannot be listed.
    """
    return [path for path, _ in _exposed(top)]


def _exposed(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Each directory before what is in it. On Windows, which has no such modes, nothing."""
    if os.name == "nt":
        return
    status = top.stat()
    if status.st_mode & _OTHERS:
        yield top, status
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError:
            if directory == top:
                raise
            continue  # it was removed, or this process has no access either
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(status.st_mode):
                continue
            if status.st_mode & _OTHERS:
                yield Path(entry.path), status
            if stat.S_ISDIR(status.st_mode):
                waiting.append(Path(entry.path))


def _close(path: Path, status: os.stat_result) -> None:
    if os.name == "nt" or not status.st_mode & _OTHERS:
        return
    if status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode):
        log.warning("%s is shared by its users (sticky bit) and stays open to them", path)
        return
    try:
        path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
    except FileNotFoundError:
        return
    except OSError as error:
        mode = stat.S_IMODE(status.st_mode)
        log.warning("%s stays open to other users (mode %o): %s", path, mode, error.strerror)
