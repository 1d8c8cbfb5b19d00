"""Access to what lies in a directory, by relative paths that no symbolic link leads out of it.

Invariant: every part of a path but the last is opened as a directory, and never followed as a link;
the callers treat the last part so, too. Neighbours share the directory that was opened last.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

DIRECTORY: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
"""How a directory is opened, and no link to one."""
_FILE: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Without O_NONBLOCK, a pipe that took the place of a file would never open."""
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


class Within:
    """The directory `top`, open until the end of the block. Errors: OSError, of every method."""

    def __init__(self, top: Path) -> None:
        self._top = os.open(top, DIRECTORY)
        self._at, self._handle = b"", self._top

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._leave()
        os.close(self._top)

    def parent(self, path: bytes) -> tuple[int, bytes]:
        """The open directory in which `path` lies, until the next call, and its name there."""
        above, _, name = path.rpartition(b"/")
        if above != self._at:
            is_below = bool(self._at) and above.startswith(self._at + b"/")
            start = len(self._at) + 1 if is_below else 0
            handle = self._open(self._handle if is_below else self._top, above[start:])
            self._leave()
            self._handle, self._at = handle, above
        return self._handle, name

    def reading(self, path: bytes) -> AbstractContextManager[int]:
        """The file at `path`, open for reading."""
        return self._file(path, _FILE)

    def making(self, path: bytes) -> AbstractContextManager[int]:
        """A new file at `path`, open, which only its owner may read."""
        return self._file(path, _NEW)

    def writing(self, path: bytes) -> AbstractContextManager[int]:
        """The file at `path`, open for writing; none is made."""
        return self._file(path, _FILE | os.O_RDWR)

    @contextlib.contextmanager
    def _file(self, path: bytes, flags: int) -> Iterator[int]:
        handle, name = self.parent(path)
        file = os.open(name, flags, 0o600, dir_fd=handle)
        try:
            yield file
        finally:
            os.close(file)

    def _open(self, start: int, directory: bytes) -> int:
        # A duplicate, because the loop closes each directory that it has passed.
        handle = os.dup(start)
        for name in directory.split(b"/") if directory else ():
            above = handle
            try:
                handle = os.open(name, DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
        return handle

    def _leave(self) -> None:
        if self._handle != self._top:
            os.close(self._handle)
        self._at, self._handle = b"", self._top
