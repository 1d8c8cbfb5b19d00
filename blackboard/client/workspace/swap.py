"""Exchanging a directory for the one that was prepared beside it, so that a crash leaves one whole.

What a workspace keeps lies beside the directory, in the same file system: for `site` that is
`.site.blackboard`, which only its owner may open:

    lock        held while a process works on the directory; says which one
    index       what was on the disk at the last snapshot (index.py)
    stage       the tree that is being prepared, later the one that was replaced
    stage.index its index
    drafts      what a step writes and removes, before it is in the stage, and after it was
    old         the tree that was replaced, where a system cannot exchange two names
    journal     exists once the stage is whole: the inode of `stage`, and what is to be carried over

Invariants
- At every moment the directory is one of the two trees, whole. Where the system cannot exchange two
  names at once (exchange), it is missing between two renames, and the next use puts it there.
- The stage becomes the directory only by a rename; so the inode of the directory says which it is.
- What ignore rules leave out of snapshots is carried over from the old tree to the new one.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from blackboard._lazy import need_posix
from blackboard.client.workspace.removing import remove_tree
from blackboard.client.workspace.within import DIRECTORY, Within
from blackboard.engines.disk import replace_file, sync_path
from blackboard.errors import WorkspaceHeld
from blackboard.integrity.private_files import make_directory

_NAME_CHARACTERS: Final = 200
_NAME_BYTES: Final = 255 - len("..blackboard")
"""The longest name of a directory that stands as it is in that of what lies beside it."""
_HOLDER_BYTES: Final = 512
"""The content of the lock file: the process, the agent and the board that hold it."""
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS
_AT_FDCWD: Final = -100
_MOUNTS: Final = Path("/proc/self/mountinfo")
_MOUNT_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")
"""How that file writes spaces, ends of lines and backslashes."""
_UNSUPPORTED: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


class _Journal(Struct, frozen=True):
    inode: int
    carried: list[bytes]


class Beside:
    """What a workspace keeps beside its directory `top`. Everything blocks, and raises OSError."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.home = top.with_name(f".{_kept(top.name)}.blackboard")
        self.index = self.home / "index"
        self.stage = self.home / "stage"
        self.stage_index = self.home / "stage.index"
        self.drafts = self.home / "drafts"
        self._old = self.home / "old"
        self._journal = self.home / "journal"

    @contextlib.contextmanager
    def locked(self, holder: str) -> Iterator[None]:
        """Work on the directory alone, as of `acquire`."""
        lock = self.acquire(holder)
        try:
            yield
        finally:
            os.close(lock)

    def acquire(self, holder: str) -> int:
        """Keep other processes, and other tasks of this one, off the directory, until the returned
        descriptor is closed everywhere; and finish what a process that was killed began.

        `holder` is named to those who come meanwhile. Errors: WorkspaceHeld when another one has
        it; ImportError on Windows.
        """
        need_posix("a workspace")
        import fcntl

        make_directory(self.home)
        lock = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                # flock belongs to the open file: child processes inherit it, and other tasks of
                # this process are kept out, too. A lock of lockf belongs to the process.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                pid, _, name = (
                    os.pread(lock, _HOLDER_BYTES, 0).decode(errors="replace").partition(" ")
                )
                raise WorkspaceHeld(
                    str(self.top), name, int(pid) if pid.isdigit() else 0
                ) from error
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()} {holder}".encode(), 0)
            self._repair()
        except BaseException:
            os.close(lock)
            raise
        return lock

    def clock_ns(self) -> int:
        """The time by the clock that stamps the files here."""
        file = os.open(self.home / "lock", os.O_RDWR)
        try:
            os.utime(file)
            return os.fstat(file).st_ctime_ns
        finally:
            os.close(file)

    def discard(self) -> None:
        """Remove a stage that came to nothing. After a swap that has begun it stays, with what is
        still to be carried over: the next use finishes."""
        if self._journal.exists():
            return
        remove_tree(self.stage)
        remove_tree(self.drafts)
        self.stage_index.unlink(missing_ok=True)

    def swap(self, carried: list[bytes]) -> None:
        """Let the stage, which is whole, be the directory; the tree before it is removed.

        `carried` are the paths that go from the old to the new one. After an error the directory is
        either of the two, and the next use of it finishes.
        """
        # Before the journal, which says that the stage is whole, also after a power cut.
        _sync_all(self.home)
        journal = _Journal(self.stage.stat().st_ino, carried)
        replace_file(self._journal, msgspec.msgpack.encode(journal))
        if not self.top.exists():
            self.stage.rename(self.top)
        elif not exchange(self.stage, self.top):
            self.top.rename(self._old)
            self.stage.rename(self.top)
        # The renames, before the old tree is removed: a power cut must not take both.
        sync_path(self.top.parent)
        self._finish(carried)

    def _repair(self) -> None:
        """Finish a swap that has begun; forget a stage that has not become the directory."""
        if not self._journal.exists():
            self.discard()
            remove_tree(self._old)
            return
        journal = msgspec.msgpack.decode(self._journal.read_bytes(), type=_Journal)
        # Killed between the two renames, where a system cannot exchange names.
        if not self.top.exists() and self.stage.exists():
            self.stage.rename(self.top)
        if self.top.exists() and self.top.stat().st_ino == journal.inode:
            self._finish(journal.carried)
        else:
            self._journal.unlink()
            self.discard()

    def _finish(self, carried: list[bytes]) -> None:
        """After the swap. Each part may have been done before."""
        old = self._old if self._old.exists() else self.stage
        if old.exists():
            _carry(old, self.top, carried)
        if self.stage_index.exists():
            self.stage_index.replace(self.index)
        remove_tree(old)
        # Last: after a kill before it, the next use does all of this again.
        self._journal.unlink()


def _kept(name: str) -> str:
    """The name of a directory, as far as there is room for it. Two that differ only further on may
    lie beside each other."""
    whole = os.fsencode(name)
    if len(name) <= _NAME_CHARACTERS and len(whole) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(whole).hexdigest()[:16]
    return f"{whole[:_NAME_CHARACTERS].decode(errors='ignore')}-{digest}"


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names at once; False if the system, or this file system, cannot.

    Errors: OSError.
    """
    call = _exchanging()
    if call is None:
        return False
    if call(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _exchanging() -> Callable[[bytes, bytes], int] | None:
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        swap: Any = getattr(library, "renamex_np", None)
        return None if swap is None else lambda a, b: int(swap(a, b, _EXCHANGE))
    rename: Any = getattr(library, "renameat2", None)
    if rename is None:
        return None
    return lambda a, b: int(rename(_AT_FDCWD, a, _AT_FDCWD, b, _EXCHANGE))


def _sync_all(beside: Path) -> None:
    """Make everything that was written to the file system durable, at once: a sync for each of
    100,000 files would take minutes."""
    library = ctypes.CDLL(None, use_errno=True)
    sync = getattr(library, "syncfs", None)
    if sync is None:
        os.sync()
        return
    handle = os.open(beside, os.O_RDONLY)
    try:
        if sync(handle) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(beside))
    finally:
        os.close(handle)


def _carry(old: Path, new: Path, carried: list[bytes]) -> None:
    """Move what is still in the old tree; what has the place in the new one by now stays there."""
    with Within(old) as source, Within(new) as target:
        for path in carried:
            with contextlib.suppress(FileNotFoundError):  # it was moved before, or is gone
                there, name = source.parent(path)
                if not _stands(there, name):
                    continue
                here = _made(target, source, path)
                if _stands(here, name):
                    continue
                # Again: `_made` may have opened another directory of `source`.
                there, name = source.parent(path)
                with _writable(there), _writable(here), movable(there, name):
                    os.rename(name, name, src_dir_fd=there, dst_dir_fd=here)


def _stands(directory: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _made(target: Within, source: Within, path: bytes) -> int:
    """The directory of `path`, made as it was with its parents if it is not there."""
    missing = [path]
    while True:
        try:
            target.parent(missing[-1])
            break
        except FileNotFoundError:
            missing.append(missing[-1].rpartition(b"/")[0])
    for directory in reversed(missing[1:]):
        there, name = source.parent(directory)
        mode = os.stat(name, dir_fd=there, follow_symlinks=False).st_mode
        here, name = target.parent(directory)
        with _writable(here):
            os.mkdir(name, mode & 0o777, dir_fd=here)
    return target.parent(path)[0]


@contextlib.contextmanager
def _writable(directory: int) -> Iterator[None]:
    """Let this process change an open directory that is read-only."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if mode & stat.S_IWUSR:
        yield
        return
    os.fchmod(directory, mode | stat.S_IRWXU)
    try:
        yield
    finally:
        os.fchmod(directory, mode)


def others_among(top: Path, paths: Iterable[bytes]) -> bytes | None:
    """The first of the directories at `paths` below `top` that belongs to another user, and that
    this process may not write into: neither it nor what is in it can be moved or removed."""
    with Within(top) as within:
        for path in paths:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it is gone
                there, name = within.parent(path)
                found = os.stat(name, dir_fd=there, follow_symlinks=False)
                is_ours = not stat.S_ISDIR(found.st_mode) or found.st_uid == os.geteuid()
                if not is_ours and not os.access(name, os.W_OK, dir_fd=there, effective_ids=True):
                    return path
    return None


def mount_among(top: Path, paths: Iterable[bytes], carried: Iterable[bytes]) -> bytes | None:
    """The first of the directories and files below `top` on which something is mounted, which can
    neither be moved nor removed; `paths` are those that can be one. What is mounted inside a
    directory that is `carried` over moves with it."""
    try:
        mounts = mounts_below(os.fsencode(top), _MOUNTS.read_bytes())
    except OSError:  # not Linux, or a closed /proc
        mounts = _other_devices(top, paths)
    for path in mounts:
        if not any(path.startswith(one + b"/") for one in carried):
            return path
    return None


def mounts_below(top: bytes, table: bytes) -> Iterator[bytes]:
    """The paths below `top` on which something is mounted, also of the same device, by a `table` of
    Linux (proc(5), mountinfo)."""
    for line in table.splitlines():
        point = _MOUNT_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), line.split(b" ")[4])
        if point.startswith(top + b"/"):
            yield point[len(top) + 1 :]


def _other_devices(top: Path, paths: Iterable[bytes]) -> Iterator[bytes]:
    """Those of the directories at `paths` that are of another file system than `top`."""
    with Within(top) as within:
        ours = top.stat().st_dev
        for path in paths:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it is gone
                there, name = within.parent(path)
                found = os.stat(name, dir_fd=there, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and found.st_dev != ours:
                    yield path


@contextlib.contextmanager
def movable(directory: int, name: bytes) -> Iterator[None]:
    """Let this process move what is at `name` out of an open directory. A directory that is
    read-only could not be moved, because its entry `..` changes."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(found) or found & stat.S_IWUSR:
        yield
        return
    # Readable, too, so that it can be opened: its name is another one afterwards.
    os.chmod(name, stat.S_IMODE(found) | stat.S_IRWXU, dir_fd=directory)
    try:
        handle = os.open(name, DIRECTORY, dir_fd=directory)
    except OSError:
        os.chmod(name, stat.S_IMODE(found), dir_fd=directory)
        raise
    try:
        yield
    finally:
        os.fchmod(handle, stat.S_IMODE(found))
        os.close(handle)
