"""A checkpoint as one file: every namespace, the signed manifest, the counters of lists.

The file is a zip archive of
    export.json      what it is, and the SHA-256 of each other member
    manifest         the manifest's exact bytes, as they were signed
    signature        their signature
    items.msgpack    [prefix, next index] of each list, one after the other
    entries.msgpack  [key, value, mod revision, create revision, author, time ms, expiry ms or null]
                     of each entry, in key order, one after the other

Its comment, the last 64 bytes, is the SHA-256 of everything before it in hexadecimal, so that a
flipped bit anywhere is detected.

Export and import work page by page, so a board may be larger than the memory.

Invariants
- The file appears complete: it is written under another name, and renamed once it is on the disk.
  Until then an existing file of that name is not changed.
- Only a regular file is ever replaced: no device, no pipe, no link.
- Only its owner may read the file, from the first byte on, because it contains private values.
- Reading returns what was written, or raises Corrupt: the file and each member have a SHA-256, and
  the importing service recomputes the digests of the manifest. The exporter does so, too, before
  the file gets its name, so every export can be imported.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import msgpack

from blackboard.client.cancellation import finish
from blackboard.client.link import Transport
from blackboard.core.checkpoints import ExportPage, ImportRequest
from blackboard.core.commit import Entry
from blackboard.engines.disk import sync, sync_path
from blackboard.errors import Corrupt, InvalidRequest, NewerFormat
from blackboard.integrity.digest_check import Sums
from blackboard.integrity.manifest import Manifest
from blackboard.limits import (
    EXPORT_ITEMS_MAX,
    LIST_ENTRIES_MAX,
    MANIFEST_BYTES_MAX,
    PAGE_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from blackboard.units import Revision

FORMAT: Final = "blackboard export"
VERSION: Final = 2
_VERSIONS: Final = (1, 2)
_HEADER, _MANIFEST, _SIGNATURE = "export.json", "manifest", "signature"
_ITEMS, _ENTRIES = "items.msgpack", "entries.msgpack"
_MEMBERS: Final = (_MANIFEST, _SIGNATURE, _ITEMS, _ENTRIES)
_SIGNATURE_BYTES_MAX: Final = 1024
_CHUNK_BYTES: Final = 64 * 1024
_SEAL_BYTES: Final = 64
_NAME_KEPT: Final = 32
"""Characters of the file's name that its draft has: with what is added, any directory takes it."""
_UNREADABLE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,  # an unknown version or kind of compression
    RuntimeError,  # an encrypted member
    OverflowError,
    UnicodeDecodeError,
    struct.error,
)
"""The errors of `zipfile` for bytes that are no archive."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The file at `path` that an export has written."""

    path: Path
    board: str
    name: str
    revision: Revision
    entries: int
    bytes: int


async def export_board(
    link: Transport, board: str, name: str, path: Path, *, overwrite: bool
) -> Exported:
    """Write checkpoint `name` of `board` into `path`. See `Board.export`."""
    check_replaceable(path, overwrite=overwrite)
    draft = path.with_name(f"{path.name[:_NAME_KEPT]}.{secrets.token_hex(4)}.part")
    page = await link.export(board, name, after=None)
    try:
        with _Writing(draft, board, name, page) as writing:
            while True:
                await asyncio.to_thread(writing.add, page)
                if page.next_key is None:
                    break
                page = await link.export(board, name, after=page.next_key)
            await writing.check()
        size = await asyncio.to_thread(_publish, draft, path, overwrite=overwrite)
    except OSError as error:
        raise InvalidRequest(field="file", reason=str(error)) from error
    finally:
        with contextlib.suppress(OSError):  # the first error matters more than a leftover draft
            await finish(asyncio.to_thread(draft.unlink, missing_ok=True))
    return Exported(path, board, name, page.revision, writing.entries, size)


def check_replaceable(path: Path, *, overwrite: bool) -> None:
    """Errors: InvalidRequest when something has that name, even a broken link; with `overwrite`,
    when that is not a regular file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # ValueError: a NUL in it
        raise InvalidRequest(field="file", reason=str(error)) from error
    if not overwrite:
        raise InvalidRequest(field="file", reason=f"{path} exists already")
    if not stat.S_ISREG(mode):
        reason = f"{path} is no regular file, and nothing else is replaced"
        raise InvalidRequest(field="file", reason=reason)


def _publish(draft: Path, path: Path, *, overwrite: bool) -> int:
    """Seal a finished file and give it its name; returns its size."""
    seal(draft)
    check_replaceable(path, overwrite=overwrite)  # another process may have been faster
    draft.replace(path)
    sync_path(path.parent)
    return path.stat().st_size


def seal(path: Path) -> None:
    """Write the SHA-256 of a file over its last bytes; then all of it is on the disk."""
    digest = _seal_of(path).encode()
    with path.open("r+b") as file:
        file.seek(-_SEAL_BYTES, os.SEEK_END)
        file.write(digest)
        file.flush()
        sync(file.fileno())


def _seal_of(path: Path) -> str:
    """The SHA-256 of a file without its last _SEAL_BYTES bytes."""
    digest, left = hashlib.sha256(), path.stat().st_size - _SEAL_BYTES
    with path.open("rb") as file:
        while chunk := file.read(min(_CHUNK_BYTES, max(left, 0))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def _end_of(path: Path) -> str:
    """The last _SEAL_BYTES bytes of a file, where its seal is."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _SEAL_BYTES))
        return file.read(_SEAL_BYTES).decode("latin-1")


async def import_board(link: Transport, path: Path, board: str, note: str) -> None:
    """Make `board` of what is in `path`. See `Client.import_board`."""
    request = secrets.token_hex(8)
    _check_ordinary(path)
    try:
        # All of the file is hashed first, however large it is.
        with await asyncio.to_thread(_Reading, path) as reading:
            spec = ImportRequest(request, reading.manifest, reading.signature, reading.items, note)
            await link.import_begin(board, spec)
            pages = reading.pages()
            number = 0
            # With a default, since StopIteration cannot be raised into a future.
            while page := await asyncio.to_thread(next, pages, ()):
                await link.import_page(board, request, number, page)
                number += 1
    except (OSError, UnicodeEncodeError) as error:  # the latter: a name that no file can have
        raise InvalidRequest(field="file", reason=str(error)) from error
    await link.import_end(board, request)


def _check_ordinary(path: Path) -> None:
    """Errors: InvalidRequest unless `path` leads to a file: a pipe would keep its reader waiting
    for good."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in it, or no Unicode
        raise InvalidRequest(field="file", reason=str(error)) from error
    if not stat.S_ISREG(mode):
        raise InvalidRequest(field="file", reason=f"{path} is no regular file")


# --- writing --------------------------------------------------------------------------------------


class _Member:
    """A member of the archive while it is written, with its SHA-256."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Add to it."""
        self._digest.update(data)
        self._target.write(data)

    def close(self) -> str:
        """End it; returns its SHA-256."""
        self._target.close()
        return self._digest.hexdigest()


class _Writing:
    """A file that is being written; the first page has what belongs to the whole.

    Errors: Corrupt when that has no sealed manifest.
    """

    def __init__(self, path: Path, board: str, name: str, first: ExportPage) -> None:
        self.entries = 0
        self._manifest = Manifest.read_signed(first.manifest, first.signature)
        self._what = f"checkpoint {name} of board {board}"
        self._sums = Sums()
        # The mode from the first byte on: before a chmod, others could open it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "w+b")
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED)
        self._header: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "board": board,
            "checkpoint": name,
            "revision": first.revision,
        }
        self._digests: dict[str, str] = {}
        items = b"".join(msgpack.packb(list(item)) for item in first.items)
        whole = {_MANIFEST: first.manifest, _SIGNATURE: first.signature, _ITEMS: items}
        try:
            for member, data in whole.items():
                self._zip.writestr(member, data)
                self._digests[member] = hashlib.sha256(data).hexdigest()
            # Its size is not known yet, and without zip64 a member may have 2 GiB at most.
            self._member = _Member(self._zip.open(_ENTRIES, "w", force_zip64=True))
        except BaseException:
            with self._closed():
                raise

    def __enter__(self) -> "_Writing":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._closed():
            self._digests[_ENTRIES] = self._member.close()
            self._header |= {"entries": self.entries, "sha256": self._digests}
            self._zip.writestr(_HEADER, json.dumps(self._header, indent=2))
            self._zip.comment = b"0" * _SEAL_BYTES  # becomes the seal
            self._zip.close()

    @contextlib.contextmanager
    def _closed(self) -> Iterator[None]:
        """Close the file at the end of the block."""
        try:
            with self._file:
                yield
        except BaseException:
            self._zip.fp = None  # or it would try to write its end when it is collected
            raise

    def add(self, page: ExportPage) -> None:
        """Write a page of entries."""
        for entry in page.entries:
            self._member.write(msgpack.packb(_packed(entry)))
            self._sums.add(entry.key, entry.value, entry.expires_at_ms)
        self.entries += len(page.entries)

    async def check(self) -> None:
        """Compare all that was written with the manifest. Errors: Corrupt."""
        await self._sums.check(self._manifest.digests, self._what)


def _packed(entry: Entry) -> list[Any]:
    return [
        entry.key,
        entry.value,
        entry.mod_revision,
        entry.create_revision,
        entry.author,
        entry.time_ms,
        entry.expires_at_ms,
        entry.first_ms,
    ]


# --- reading --------------------------------------------------------------------------------------


class _Reading:
    """A file that is being read. Errors: Corrupt; NewerFormat; OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if _end_of(path) != _seal_of(path):  # before its content is parsed
            raise self._corrupt("it is not what was exported")
        try:
            self._zip = zipfile.ZipFile(path)
        except _UNREADABLE as error:
            raise self._corrupt(str(error)) from error
        self._header = self._read_header()
        self.manifest = self._whole(_MANIFEST, MANIFEST_BYTES_MAX)
        self.signature = self._whole(_SIGNATURE, _SIGNATURE_BYTES_MAX)
        self.items = tuple(self._read_items())

    def __enter__(self) -> "_Reading":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._zip.close()

    def pages(self) -> Iterator[tuple[Entry, ...]]:
        """The entries, in pages that fit into a frame."""
        page: list[Entry] = []
        size = 0
        for packed in self._unpacked(_ENTRIES):
            entry = self._entry(packed)
            page.append(entry)
            size += len(entry.value) + 2 * len(entry.key) + 100
            if size >= PAGE_BYTES_MAX // 2 or len(page) >= LIST_ENTRIES_MAX:
                yield tuple(page)
                page, size = [], 0
        if page:
            yield tuple(page)

    def _entry(self, packed: Any) -> Entry:
        try:
            key, value, mod, created, author, time_ms, expires, *rest = packed
            first_ms = rest[0] if rest else None
            shapes = [(key, str), (value, bytes), (mod, int), (created, int), (author, str)]
            shapes += [(time_ms, int), *[(n, int) for n in (expires, first_ms) if n is not None]]
            # Version 2 added the time of creation, so the version says how many parts an entry has.
            is_complete = len(rest) == self._header["version"] - 1
            if not is_complete or not all(type(found) is wanted for found, wanted in shapes):
                raise TypeError("not an entry")
            return Entry(key, value, mod, created, author, time_ms, expires, first_ms)
        except (TypeError, ValueError) as error:
            raise self._corrupt(f"{_ENTRIES}: {error}") from error

    def _read_header(self) -> dict[str, Any]:
        try:
            header = json.loads(self._bytes(_HEADER, MANIFEST_BYTES_MAX))
            version = header["version"]
            if header["format"] == FORMAT and type(version) is int and version > VERSION:
                raise NewerFormat(f"file {self.path.name}", version, VERSION)
            if header["format"] != FORMAT or type(version) is not int or version not in _VERSIONS:
                raise ValueError(f"version {header['version']!r} of {header['format']!r}")
            if header["sha256"].keys() != set(_MEMBERS):
                raise ValueError("members are missing")
        except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._corrupt(f"{_HEADER}: {error}") from error
        return dict(header)

    def _read_items(self) -> Iterator[tuple[str, int]]:
        for count, item in enumerate(self._unpacked(_ITEMS)):
            is_pair = type(item) is list and [type(part) for part in item] == [str, int]
            if count >= EXPORT_ITEMS_MAX or not is_pair:
                raise self._corrupt(f"{_ITEMS}: item {count}")
            yield item[0], item[1]

    def _unpacked(self, member: str) -> Iterator[Any]:
        """The objects of a member, one by one; its SHA-256 is checked at the end."""
        # The file may be forged: without a bound, one object could take all memory.
        unpacker = msgpack.Unpacker(max_buffer_size=4 * VALUE_BYTES_MAX)
        digest = hashlib.sha256()
        try:
            with self._open(member) as source:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    unpacker.feed(chunk)
                    yield from unpacker
        except (*_UNREADABLE, ValueError, msgpack.UnpackException) as error:
            raise self._corrupt(f"{member}: {error}") from error
        self._check(member, digest.hexdigest())

    def _whole(self, member: str, bytes_max: int) -> bytes:
        data = self._bytes(member, bytes_max)
        self._check(member, hashlib.sha256(data).hexdigest())
        return data

    def _bytes(self, member: str, bytes_max: int) -> bytes:
        try:
            with self._open(member) as source:
                data = source.read(bytes_max + 1)
        except _UNREADABLE as error:
            raise self._corrupt(f"{member}: {error}") from error
        if len(data) > bytes_max:
            raise self._corrupt(f"{member} has more than {bytes_max} bytes")
        return data

    def _open(self, member: str) -> IO[bytes]:
        try:
            return self._zip.open(member)
        except (KeyError, RuntimeError, NotImplementedError) as error:
            raise self._corrupt(str(error)) from error

    def _check(self, member: str, digest: str) -> None:
        if self._header["sha256"][member] != digest:
            raise self._corrupt(f"{member} is not what was exported")

    def _corrupt(self, reason: str) -> Corrupt:
        return Corrupt(what=f"file {self.path.name}", reason=reason)
