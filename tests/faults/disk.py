"""A disk of which the power is cut: what SQLite wrote and did not sync may be lost.

A VFS of SQLite (https://www.sqlite.org/vfs.html) is laid over the one that is there. It passes
every call on, and notes each write, each truncation and each sync, and between them what the test
notes: the acknowledgements. `Power` then says what a disk would hold had the power been cut at any
of those moments: everything that was synced; and of what was not, each sector or not.

A sync can also be made to fail. Then the dirty pages are dropped, as the kernel does: some of them
have reached the disk, the others never will unless they are written again, and the next sync says
that all is well. Until they are evicted, a read still returns them.

What Python itself writes is on the disk once `os.fsync` was called for it; `os.ftruncate` is noted
as a truncation of SQLite is. Renames and removals are
there at once: file systems that have a journal keep their order.
"""

import ctypes
import errno
import os
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""
LIVES_IN_MEMORY = "-shm"
"""The index of a journal is rebuilt after a power loss."""


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes of a file."""

    path: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """A file was made so short."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything written to a file is on the disk."""

    path: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A sync of a file failed."""

    path: str


@dataclass(frozen=True, slots=True)
class Whole:
    """All of a file is on the disk, and this is what it holds."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Moved:
    """A file has another name."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A file was removed."""

    path: str


@dataclass(frozen=True, slots=True)
class Told:
    """An acknowledged commit."""

    revision: int
    digest: bytes


Event = Written | Cut | Synced | Failed | Whole | Moved | Gone | Told
Lost = Literal["all", "some", "zeros"]
"""What happens to writes that were not synced: none is there; some sectors are; zeros are there."""


# --- noting ---------------------------------------------------------------------------------------

# The name is passed on as an address: SQLite reads what it put behind the name, and keeps it.
_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    """struct sqlite3_vfs."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_bytes_max", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 14),
    )


class _Methods(ctypes.Structure):
    """struct sqlite3_io_methods."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 13),
    )


class _File(ctypes.Structure):
    """struct sqlite3_file."""

    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


@dataclass(slots=True)
class Recorder:
    """What happened on the disk since it was laid over, in order.

    `fails` says of a path whether its next sync fails; it is asked at each one.
    """

    events: list[Event] = field(default_factory=list)
    fails: Callable[[str], bool] = lambda _: False
    _paths: dict[int, str] = field(default_factory=dict)
    _methods: dict[int, _Methods] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)

    def note_open(self, name: int | None, file: int) -> None:
        """A file was opened: put our methods in front of its own."""
        opened = _File.from_address(file)
        if opened.methods and name is not None:
            self._paths[file] = ctypes.string_at(name).decode()
            opened.methods = ctypes.pointer(self._in_front_of(opened.methods.contents))

    def _in_front_of(self, methods: _Methods) -> _Methods:
        """Those methods with three of ours; one for each kind, kept for ever."""
        address = ctypes.addressof(methods)
        if address not in self._methods:
            ours = _Methods.from_buffer_copy(methods)
            self._replace(ours, methods)
            self._methods[address] = ours
        return self._methods[address]

    def _replace(self, ours: _Methods, methods: _Methods) -> None:
        below_write = ctypes.cast(methods.write, _WRITE)
        below_truncate = ctypes.cast(methods.truncate, _TRUNCATE)
        below_sync = ctypes.cast(methods.sync, _SYNC)

        def write(file: int, data: int, size: int, offset: int) -> int:
            content = ctypes.string_at(data, size)
            self.events.append(Written(self._paths[file], offset, content))
            return int(below_write(file, data, size, offset))

        def truncate(file: int, size: int) -> int:
            self.events.append(Cut(self._paths[file], size))
            return int(below_truncate(file, size))

        def sync(file: int, flags: int) -> int:
            if self.fails(self._paths[file]):
                self.events.append(Failed(self._paths[file]))
                return sqlite3.SQLITE_IOERR_FSYNC
            result = int(below_sync(file, flags))
            if result == sqlite3.SQLITE_OK:
                self.events.append(Synced(self._paths[file]))
            return result

        callbacks = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
        self._kept += callbacks
        ours.write, ours.truncate, ours.sync = (
            ctypes.cast(callback, ctypes.c_void_p).value for callback in callbacks
        )

    def sync_of_python(self, real: Callable[[int], None], file: int) -> None:
        """In place of `os.fsync`."""
        path = Path(f"/proc/self/fd/{file}").readlink()
        if self.fails(str(path)):
            self.events.append(Failed(str(path)))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(file)
        if path.is_file():
            self.events.append(Whole(str(path), path.read_bytes()))


@contextmanager
def _python_recorded(recorder: Recorder) -> Iterator[None]:
    """Note what Python does to files, as far as it matters."""
    fsync, replace, unlink, ftruncate = os.fsync, os.replace, os.unlink, os.ftruncate

    def moved(source: Any, target: Any, **more: Any) -> None:
        replace(source, target, **more)
        recorder.events.append(Moved(str(source), str(target)))

    def gone(path: Any, **more: Any) -> None:
        unlink(path, **more)
        recorder.events.append(Gone(str(path)))

    def cut(file: int, size: int) -> None:
        ftruncate(file, size)
        recorder.events.append(Cut(str(Path(f"/proc/self/fd/{file}").readlink()), size))

    patch = pytest.MonkeyPatch()
    patch.setattr(os, "ftruncate", cut)
    patch.setattr(os, "fsync", lambda file: recorder.sync_of_python(fsync, file))
    patch.setattr(os, "replace", moved)
    patch.setattr(os, "unlink", gone)
    try:
        yield
    finally:
        patch.undo()


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Note what SQLite does to files that are opened in this block and closed in it.

    Skips the test where the interpreter hides its SQLite from us.
    """
    library = _library()
    below = ctypes.cast(library.sqlite3_vfs_find(None), ctypes.POINTER(_Vfs))
    recorder = Recorder()
    original = _OPEN(below.contents.open)

    def open_file(vfs: int, name: int | None, file: int, flags: int, out: int | None) -> int:
        result = int(original(vfs, name, file, flags, out))
        if result == sqlite3.SQLITE_OK:
            recorder.note_open(name, file)
        return result

    delete_below = _DELETE(below.contents.delete)

    def delete_file(vfs: int, name: int, sync: int) -> int:
        # Before a new file of that name is synced, its directory is: the old one stays away.
        recorder.events.append(Gone(ctypes.string_at(name).decode()))
        return int(delete_below(vfs, name, sync))

    callbacks = _OPEN(open_file), _DELETE(delete_file)
    ours = _Vfs.from_buffer_copy(below.contents)
    ours.name = b"recorded"
    ours.open, ours.delete = (ctypes.cast(one, ctypes.c_void_p).value for one in callbacks)
    library.sqlite3_vfs_register(ctypes.byref(ours), 1)
    try:
        with _python_recorded(recorder):
            yield recorder
    finally:
        library.sqlite3_vfs_unregister(ctypes.byref(ours))
        library.sqlite3_vfs_register(below, 1)


def _library() -> Any:
    """The very SQLite that module sqlite3 uses."""
    import _sqlite3

    try:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.c_void_p
        return library
    except (AttributeError, OSError):
        pytest.skip("this interpreter hides its SQLite: a disk cannot be laid under it")


# --- the power is cut -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Image:
    """One file: what is on the disk, and what was done since, in order."""

    synced: bytearray
    pending: list[Written | Cut] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            apply(self.synced, change)
        self.pending.clear()

    def fail(self, dice: random.Random) -> None:
        """A sync failed: some sectors were written, the others are dropped."""
        for change in self.pending:
            for part in sectors(change):
                if dice.random() < 0.5:
                    apply(self.synced, part)
        self.pending.clear()

    def cached(self) -> bytes:
        """What a read returns once dropped pages are evicted."""
        found = bytearray(self.synced)
        for change in self.pending:
            apply(found, change)
        return bytes(found)

    def after_cut(self, lost: Lost, dice: random.Random) -> bytes:
        """What a disk would give back now."""
        found = bytearray(self.synced)
        if lost == "all":
            return bytes(found)
        for change in self.pending:
            for part in sectors(change):
                if dice.random() < 0.5:
                    continue
                if lost == "zeros" and isinstance(part, Written):
                    part = Written(part.path, part.offset, bytes(len(part.data)))
                    if part.offset < len(found):  # what was there before is not lost by that
                        continue
                apply(found, part)
        return bytes(found)


def sectors(change: Written | Cut) -> Iterator[Written | Cut]:
    """The parts of a change of which each is done whole or not at all."""
    if isinstance(change, Cut):
        yield change
        return
    at, end = change.offset, change.offset + len(change.data)
    while at < end:
        until = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield Written(change.path, at, change.data[at - change.offset : until - change.offset])
        at = until


def apply(content: bytearray, change: Written | Cut) -> None:
    """Do to `content` what was done to the file; a hole reads as zeros."""
    if isinstance(change, Cut):
        del content[change.size :]
        return
    end = change.offset + len(change.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[change.offset : end] = change.data


class Power:
    """Goes through the events once, and can be cut at any of them.

    `before` are the files as they were, synced, when the recording began, by path. `dice` decide
    what of a failed sync was written.
    """

    def __init__(self, before: Mapping[str, bytes], dice: random.Random | None = None) -> None:
        self._images = {path: _Image(bytearray(content)) for path, content in before.items()}
        self._dice = dice or random.Random(0)
        self.told: list[Told] = []

    def goes_on(self, event: Event) -> None:
        """One event more."""
        if isinstance(event, Told):
            self.told.append(event)
        elif isinstance(event, Moved):
            self._images[event.target] = self._images.pop(event.path, _Image(bytearray()))
        elif isinstance(event, Gone):
            self._images.pop(event.path, None)
        elif not event.path.endswith(LIVES_IN_MEMORY):
            self._change(event)

    def _change(self, event: Written | Cut | Synced | Failed | Whole) -> None:
        image = self._images.setdefault(event.path, _Image(bytearray()))
        if isinstance(event, Synced):
            image.sync()
        elif isinstance(event, Failed):
            image.fail(self._dice)
        elif isinstance(event, Whole):
            self._images[event.path] = _Image(bytearray(event.data))
        else:
            image.pending.append(event)

    def is_killed(self, target: Path) -> None:
        """Let the files in `target` be what the next process finds when this one is killed now."""
        self._make(target, {path: image.cached() for path, image in self._images.items()})

    def is_cut(self, target: Path, lost: Lost, dice: random.Random) -> None:
        """Let the files in `target` be what would be there when the power is back, by name."""
        images = self._images.items()
        self._make(target, {path: image.after_cut(lost, dice) for path, image in images})

    def _make(self, target: Path, files: Mapping[str, bytes]) -> None:
        for old in target.iterdir():
            if old.is_file():
                old.unlink()
        for path, content in files.items():
            (target / Path(path).name).write_bytes(content)

    def evicts(self) -> None:
        """Let the files be what a read returns once the kernel has dropped what it could not write.

        Nobody may have them open.
        """
        for path, image in self._images.items():
            if Path(path).is_file():
                Path(path).write_bytes(image.cached())
