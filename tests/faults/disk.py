"""A disk of which the power is cut: what SQLite wrote and did not sync may be lost.

A VFS of SQLite (https://www.sqlite.org/vfs.html) is laid over the one that is there. It passes
every call on, and notes each write, each truncation and each sync, and between them what the test
notes: the acknowledgements. `Power` then says what a disk would hold had the power been cut at any
of those moments: everything that was synced; and of what was not, each sector or not.
"""

import ctypes
import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""
LIVES_IN_MEMORY = "-shm"
"""The index of a journal is made anew when the power is back."""


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
class Told:
    """Somebody was told that a commit is done."""

    revision: int
    digest: bytes


Event = Written | Cut | Synced | Told
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
    """What happened on the disk since it was laid over, in order."""

    events: list[Event] = field(default_factory=list)
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
            result = int(below_sync(file, flags))
            if result == sqlite3.SQLITE_OK:
                self.events.append(Synced(self._paths[file]))
            return result

        callbacks = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
        self._kept += callbacks
        ours.write, ours.truncate, ours.sync = (
            ctypes.cast(callback, ctypes.c_void_p).value for callback in callbacks
        )


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
        path = ctypes.string_at(name).decode()
        # Before a new file of that name is synced, its directory is: the old one stays away.
        recorder.events += (Cut(path, 0), Synced(path))
        return int(delete_below(vfs, name, sync))

    callbacks = _OPEN(open_file), _DELETE(delete_file)
    ours = _Vfs.from_buffer_copy(below.contents)
    ours.name = b"recorded"
    ours.open, ours.delete = (ctypes.cast(one, ctypes.c_void_p).value for one in callbacks)
    library.sqlite3_vfs_register(ctypes.byref(ours), 1)
    try:
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

    `before` are the files as they were, synced, when the recording began, by path.
    """

    def __init__(self, before: Mapping[str, bytes]) -> None:
        self._images = {path: _Image(bytearray(content)) for path, content in before.items()}
        self.told: list[Told] = []

    def goes_on(self, event: Event) -> None:
        """One event more."""
        if isinstance(event, Told):
            self.told.append(event)
            return
        if event.path.endswith(LIVES_IN_MEMORY):
            return
        image = self._images.setdefault(event.path, _Image(bytearray()))
        if isinstance(event, Synced):
            image.sync()
        else:
            image.pending.append(event)

    def is_cut(self, target: Path, lost: Lost, dice: random.Random) -> None:
        """Write to `target` what would be there when the power is back, by the files' names."""
        for path, image in self._images.items():
            (target / Path(path).name).write_bytes(image.after_cut(lost, dice))
