"""Single files of a stage, by the paths that a step gives.

Everything blocks. Invariants
- No path leads out of the stage: each part but the last is opened as a directory, and the last one
  is not followed if it is a link.
- A file is written beside the stage and then renamed to its place; a tree is renamed out of it
  before it is removed. So each is there as a whole or not at all, also without space.
"""

import contextlib
import os
import secrets
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from blackboard.client.workspace.index import Stat
from blackboard.client.workspace.removing import remove_tree
from blackboard.client.workspace.scan import pieces, refused
from blackboard.client.workspace.swap import movable
from blackboard.client.workspace.tree import PERMISSIONS, shown
from blackboard.client.workspace.within import Within
from blackboard.errors import FileRefused, InvalidRequest, LimitExceeded
from blackboard.limits import LARGE_BYTES_MAX, WORKSPACE_PATH_BYTES_MAX, WORKSPACE_READS_MAX

NO_FILE: Final = "there is no such file"
NO_REGULAR_FILE: Final = "it is no regular file: a directory, a link, which is not followed, a pipe"
_CHANGING: Final = "it changes while it is read"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def checked(path: str, *, top: bool = False) -> bytes:
    """A path as the file system has it; with `top`, "" is the workspace itself.

    Errors: InvalidRequest for one that leads out, or is not UTF-8; LimitExceeded.
    """
    if top and path == "":
        return b""
    try:
        found = path.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("path", f"{path!r} is not UTF-8") from error
    if len(found) > WORKSPACE_PATH_BYTES_MAX:
        raise LimitExceeded("WORKSPACE_PATH_BYTES_MAX", len(found), WORKSPACE_PATH_BYTES_MAX)
    if b"\0" in found or any(name in (b"", b".", b"..") for name in found.split(b"/")):
        reason = "is no path in the workspace, such as src/main.py"
        raise InvalidRequest("path", f"{path!r} {reason}")
    return found


def why_missing(path: bytes, names: Iterable[bytes]) -> str:
    """Why there is no file at `path`, where these `names` are."""
    return NO_FILE if _twin(path, names) is None else f"{NO_FILE}: {_TWIN}"


_TWIN: Final = "one is there whose name differs in its Unicode normal form alone"


def _twin(name: bytes, names: Iterable[bytes]) -> bytes | None:
    """One of `names` that looks the same as `name`, and is another one."""
    meant = _normal(name)
    return next((one for one in names if one != name and _normal(one) == meant), None)


def _normal(name: bytes) -> str:
    return unicodedata.normalize("NFC", name.decode("utf-8", "surrogateescape"))


class Inside:
    """The files in `top`. Errors of all methods: FileRefused, with what the file system says;
    the file, and its name, are as before."""

    def __init__(self, top: Path, drafts: Path) -> None:
        self._top = top
        self._drafts = drafts

    def read(self, path: bytes) -> bytes:
        """The content of a file that stayed as it was meanwhile. Errors: LimitExceeded."""
        with self._within(path) as within:
            self._find(within, path)
            for _ in range(WORKSPACE_READS_MAX):
                with within.reading(path) as file:
                    before = Stat.of(os.fstat(file))
                    if not stat.S_ISREG(before.mode):
                        raise FileRefused(shown(path), NO_REGULAR_FILE)
                    _check_size(path, before.size)
                    content = b"".join(pieces(file, before.size))
                    if Stat.of(os.fstat(file)) == before:
                        return content
        raise FileRefused(shown(path), _CHANGING)

    def write(self, path: bytes, content: bytes, executable: bool | None) -> None:
        """Write a file, and the directories above it. Errors: LimitExceeded."""
        _check_size(path, len(content))
        with self._within(path) as within:
            for end in range(path.count(b"/")):
                _make(within, b"/".join(path.split(b"/")[: end + 1]))
            handle, name = within.parent(path)
            mode = _mode_of(handle, name)
            if mode is not None and not stat.S_ISREG(mode):
                raise FileRefused(shown(path), NO_REGULAR_FILE)
            if mode is None:
                _check_new(path, handle, name)
            with self._draft() as draft:
                _fill(draft, content, mode, executable)
                os.rename(draft, name, dst_dir_fd=handle)

    def remove(self, path: bytes) -> None:
        """Remove a file, a link, or a directory with everything in it."""
        with self._within(path) as within, self._draft() as draft:
            self._find(within, path)
            handle, name = within.parent(path)
            with movable(handle, name):
                os.rename(name, draft, src_dir_fd=handle)

    def directory(self, path: bytes) -> Path:
        """Where a command runs."""
        if not path:
            return self._top
        with self._within(path) as within:
            # With the slash, the last part is opened as a directory, too, and never as a link.
            within.parent(path + b"/")
        return self._top / os.fsdecode(path)

    @contextlib.contextmanager
    def _within(self, path: bytes) -> Iterator[Within]:
        try:
            with Within(self._top) as within:
                yield within
        except OSError as error:
            raise refused(path, error) from error

    def _find(self, within: Within, path: bytes) -> None:
        """Errors: FileRefused when nothing is at `path`."""
        handle, name = within.parent(path)
        if _mode_of(handle, name) is None:
            raise FileRefused(shown(path), why_missing(name, _names(handle)))

    @contextlib.contextmanager
    def _draft(self) -> Iterator[Path]:
        """A name beside the stage; what is there at the end is removed."""
        self._drafts.mkdir(mode=0o700, exist_ok=True)
        draft = self._drafts / secrets.token_hex(8)
        try:
            yield draft
        finally:
            # `is_dir` follows links: what a removed link leads to must stay.
            if draft.is_dir() and not draft.is_symlink():
                remove_tree(draft)
            else:
                draft.unlink(missing_ok=True)


def _check_size(path: bytes, size: int) -> None:
    if size > LARGE_BYTES_MAX:
        raise LimitExceeded("LARGE_BYTES_MAX", size, LARGE_BYTES_MAX, shown(path))


def _mode_of(handle: int, name: bytes) -> int | None:
    try:
        return os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _names(handle: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(handle)]


def _check_new(path: bytes, handle: int, name: bytes) -> None:
    """On some systems, two names that look the same are one file."""
    if _twin(name, _names(handle)) is not None:
        raise FileRefused(shown(path), _TWIN)


def _make(within: Within, directory: bytes) -> None:
    handle, name = within.parent(directory)
    if _mode_of(handle, name) is None:
        _check_new(directory, handle, name)
        os.mkdir(name, dir_fd=handle)


def _fill(draft: Path, content: bytes, mode: int | None, executable: bool | None) -> None:
    with os.fdopen(os.open(draft, _NEW, 0o666), "wb") as file:
        # A new file has what the umask left of 0666, as if a program had made it.
        permissions = os.fstat(file.fileno()).st_mode if mode is None else mode
        if executable is not None:
            permissions &= ~0o111
            # Everyone with the right to read it gets the right to run it.
            permissions |= (permissions & 0o444) >> 2 if executable else 0
        os.fchmod(file.fileno(), permissions & PERMISSIONS)
        file.write(content)
