"""Where a backup is: a directory, or what lies below a URL of an object store (S3, Google Cloud
Storage, Azure).

Invariants
- `put` leaves the old or the new content under a name, never a part of it, also after `kill -9` or
  a power loss. After a failed sync the draft is removed and nothing refers to it; the next attempt
  writes another file.
- One writer at a time: a lock of the operating system on a directory, in an object store a lease
  (backup/lease.py), which is confirmed before a manifest is written and before files are removed.
- Only its owner can read a directory, because private values are in it.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import obstore
from filelock import FileLock, Timeout
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from blackboard.archive.blobs import Blobs, blob_path, object_store, path_of
from blackboard.backup.lease import LEASE, WriterLease
from blackboard.engines.disk import file_identity, replace_file, sync_path
from blackboard.errors import Corrupt, InvalidRequest, NewerFormat, Unavailable
from blackboard.integrity.private_files import (
    FILE_MODE,
    NotOrdinaryError,
    make_directory,
    read_bytes,
)
from blackboard.limits import DEFAULT, Limits

FORMAT: Final = "blackboard backup"
VERSION: Final = 1
_MARK: Final = "backup.json"
_MARK_DRAFT: Final = re.compile(r"backup\.json\.[0-9a-f]{16}$")
"""What the mark is called while it is written: a process that was killed then leaves it."""
_STORES: Final = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https")
"""What begins with one of these is no path, also if its slashes were forgotten."""
_LOCK: Final = "lock"
_BLOBS: Final = "blobs"
_ID_BYTES: Final = 8


class BackupPlace:
    """The files of one backup, by name. Errors of every method: Unavailable, naming the backup."""

    def __init__(
        self,
        where: str,
        place: Path | ObjectStore,
        limits: Limits,
    ) -> None:
        self.where = where
        self._directory = place if isinstance(place, Path) else None
        self._store = None if isinstance(place, Path) else place
        self._limits = limits
        self._lock: FileLock | None = None
        self._locked: tuple[int, int] | None = None
        """The file that is locked: its device and number."""
        self._synced: set[Path] = set()
        """The directories whose names this process has made durable."""
        self._lease = WriterLease(self, limits)
        self._abandoned: set[asyncio.Future[None]] = set()
        """Writes that go on although their callers were cancelled."""

    @classmethod
    def at(cls, url: str, limits: Limits = DEFAULT) -> "BackupPlace":
        """A directory (a path or file:///path), or what lies below a URL (s3://bucket/path ...).

        Nothing is made. Credentials come from where the provider's own tools look for them. Errors:
        InvalidRequest for another kind of URL.
        """
        try:
            scheme = urlsplit(url).scheme
            if scheme == "file" or ("://" not in url and scheme not in _STORES):
                # A plain path is not decoded: # ? and % may stand in the name of a directory.
                path = path_of(url) if scheme == "file" else Path(url)
                # Absolute, because the program may change its working directory.
                return cls(str(path), path.absolute(), limits)
            store, where = object_store(url, limits)
        except (BaseError, ValueError) as error:
            raise InvalidRequest(field="backup", reason=str(error).partition("\n")[0]) from error
        return cls(where, store, limits)

    @staticmethod
    def blob(name: bytes) -> str:
        """The name of the file that holds the large value with that SHA-256."""
        return f"{_BLOBS}/{blob_path(name)}"

    @cached_property
    def blobs(self) -> Blobs:
        """Large values, each once. Errors: Unavailable."""
        if self._directory is not None:
            return Blobs.at(str(self._directory / _BLOBS), self._limits)
        return Blobs.at(f"{self.where.rstrip('/')}/{_BLOBS}", self._limits)

    # --- what it is -------------------------------------------------------------------------------

    async def begin(self) -> str:
        """Make an empty place a backup, if it is none yet; returns its id.

        Errors: InvalidRequest when something else is there; NewerFormat; Corrupt; Unavailable, also
        while another process makes it.
        """
        self._synced.clear()  # another directory may be there now
        if self._directory is not None:
            try:
                await asyncio.to_thread(make_directory, self._directory)
            except (OSError, ValueError) as error:
                raise self._unavailable(error) from error
        found = await self.get(_MARK)
        if found is not None:
            name = self._id_in(found)
            await self._settle()
            return name
        # What a process leaves that was killed before the mark was there.
        ours = (_LOCK, LEASE)
        others = [n for n in await self.names() if n not in ours and not _MARK_DRAFT.match(n)]
        if others:
            reason = f"{self.where} is no backup, and not empty: {others[0]} is there"
            raise InvalidRequest(field="backup", reason=reason)
        # Two that made it at once would write different ids, and one would not notice.
        await self.lock()
        try:
            # Looked for again: another process may have made it just before this one got the lock.
            found = await self.get(_MARK) or await self._mark()
            name = self._id_in(found)
            await self._settle()
        except BaseException:
            # Also for a cancellation: nobody else would release it.
            await self.unlock()
            raise
        return name

    async def _mark(self) -> bytes:
        mark = {"format": FORMAT, "version": VERSION, "id": secrets.token_hex(_ID_BYTES)}
        data = json.dumps(mark).encode()
        await self.put(_MARK, data)
        return data

    async def _settle(self) -> None:
        """Make the names of its own directories durable: who made them may have been killed."""
        if self._directory is None:
            return
        blobs = self._directory / _BLOBS
        try:
            await asyncio.to_thread(self._make_durable, blobs, self._directory.parent)
        except OSError as error:
            raise self._unavailable(error) from error

    async def id(self) -> str:
        """The id of the backup that is there. Errors: InvalidRequest when there is none;
        NewerFormat; Corrupt."""
        found = await self.get(_MARK)
        if found is None:
            raise InvalidRequest(field="backup", reason=f"there is no backup at {self.where}")
        return self._id_in(found)

    def _id_in(self, data: bytes) -> str:
        try:
            found = json.loads(data)
            self.check_format(found)
            return str(found["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise self.corrupt(_MARK, str(error)) from error

    def check_format(self, found: Mapping[str, Any]) -> None:
        """Errors: NewerFormat; ValueError unless it is the head of one of our files."""
        version = found["version"]
        if found["format"] != FORMAT or type(version) is not int:
            raise ValueError(f"version {version!r} of {found['format']!r}")
        if version > VERSION:
            raise NewerFormat(f"backup {self.where}", version, VERSION)

    # --- one writer -------------------------------------------------------------------------------

    async def lock(self) -> None:
        """Become its only writer, until `unlock`. Errors: Unavailable while there is another."""
        if self._directory is None:
            await self._lease.take()
            return
        # The lock on a directory that was moved away keeps nobody from the one that is there now.
        if self._lock is not None and not await asyncio.to_thread(self._is_locked_there):
            await self.unlock()
        if self._lock is None:
            await asyncio.to_thread(self._take_lock, self._directory)

    async def confirm(self) -> None:
        """Errors: Unavailable when another process may have written to it since `lock`: nothing may
        be written that follows from what was read before."""
        await self._landed()
        if self._directory is None:
            await self._lease.confirm()
        elif self._lock is not None and not await asyncio.to_thread(self._is_locked_there):
            reason = "another directory is there than the one that was locked"
            raise Unavailable(what=f"backup {self.where}", reason=reason)

    def _is_locked_there(self) -> bool:
        """Whether the locked file is still the one of its name: the directory may have been moved
        away, and another one made."""
        assert self._directory is not None
        try:
            return file_identity(self._directory / _LOCK) == self._locked
        except OSError:
            return False

    def _take_lock(self, directory: Path) -> None:
        # It is taken in a thread, and released in another one.
        lock = FileLock(directory / _LOCK, mode=FILE_MODE, thread_local=False)
        try:
            # Without waiting: a service tries again by itself, and a command says why it cannot.
            lock.acquire(timeout=0)
            self._locked = file_identity(directory / _LOCK)
        except Timeout as error:
            reason = "another process writes to it"
            raise Unavailable(what=f"backup {self.where}", reason=reason) from error
        except OSError as error:
            raise self._unavailable(error) from error
        self._lock = lock

    async def unlock(self) -> None:
        """Let another process write to it. Cancellation: it may stay locked while a write that was
        given up goes on."""
        # First: if the wait below is cancelled, the lease must still run out.
        self._lease.end_renewals()
        # A write that was given up would otherwise arrive when another process writes.
        await self._landed()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        elif self._directory is None:
            await self._lease.give_up()

    # --- files ------------------------------------------------------------------------------------

    async def put(self, name: str, data: bytes) -> None:
        """Write a file, atomically and durably, in place of one of that name.

        Cancellation: it may still be written, but before the next `confirm` or `unlock` returns.
        """
        putting = asyncio.ensure_future(self._put(name, data))
        try:
            # Neither a thread nor a request that is on its way can be called back.
            await asyncio.shield(putting)
        except asyncio.CancelledError:
            self._abandoned.add(putting)
            putting.add_done_callback(self._abandoned.discard)
            # Its error is read: asyncio logs one that nobody has read.
            putting.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def _landed(self) -> None:
        """Wait for the writes that were given up: a manifest among them would replace a newer
        one."""
        if self._abandoned:
            await asyncio.wait(self._abandoned)

    async def _put(self, name: str, data: bytes) -> None:
        try:
            if self._directory is not None:
                await asyncio.to_thread(self._write, self._directory, name, data)
            else:
                assert self._store is not None
                await obstore.put_async(self._store, name, data)
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from error

    def _write(self, directory: Path, name: str, data: bytes) -> None:
        path = directory / name
        self._make_durable(path.parent, directory)
        replace_file(path, data)

    def _make_durable(self, path: Path, top: Path) -> None:
        """Make a directory, and its name and those between it and `top` durable: once in each
        process, because one that is there may be left from a process that was killed."""
        # A directory that was removed meanwhile has to be made, and made durable, once more.
        if path in self._synced and path.is_dir():
            return
        make_directory(path)
        for parent in (each for each in path.parents if each == top or top in each.parents):
            if os.access(parent, os.R_OK):  # the one above a backup may be closed to us
                sync_path(parent)
        self._synced.add(path)

    async def get(self, name: str) -> bytes | None:
        """A file; None if there is none. Errors: Corrupt for anything but an ordinary file."""
        try:
            if self._directory is not None:
                return await asyncio.to_thread(read_bytes, self._directory / name)
            assert self._store is not None
            found = await obstore.get_async(self._store, name)
            return bytes(await found.bytes_async())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotOrdinaryError as error:
            raise self.corrupt(name, str(error.strerror)) from error
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from error

    async def names(self, below: str = "") -> Sequence[str]:
        """The names of the files below a prefix, sorted."""
        return sorted(await self.sizes(below))

    async def sizes(self, below: str = "") -> Mapping[str, int]:
        """The bytes of each file below a prefix."""
        try:
            if self._directory is not None:
                return await asyncio.to_thread(_sizes, self._directory, below)
            found: dict[str, int] = {}
            assert self._store is not None
            async for chunk in obstore.list(self._store, prefix=below or None):
                found.update((str(each["path"]), each["size"]) for each in chunk)
            return found
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from error

    async def remove(self, name: str) -> None:
        """Remove a file; no error if there is none."""
        try:
            if self._directory is not None:
                await asyncio.to_thread((self._directory / name).unlink, missing_ok=True)
            else:
                assert self._store is not None
                await obstore.delete_async(self._store, name)
        except FileNotFoundError:
            return
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from error

    async def remove_needless(self, names: Iterable[str]) -> None:
        """Remove files that no manifest names. Errors: as `confirm`; then the rest stays."""
        await self.confirm()
        for name in names:
            # By the clock before each file, as a long list may outlast the lease; to ask the store
            # each time would double the requests.
            if self._directory is None:
                self._lease.check()
            await self.remove(name)

    def corrupt(self, name: str, reason: str) -> Corrupt:
        """The error for a file of this backup."""
        return Corrupt(what=f"{name} of backup {self.where}", reason=reason)

    def _unavailable(self, error: Exception) -> Unavailable:
        reason = str(error).partition("\n")[0]
        return Unavailable(what=f"backup {self.where}", reason=reason)


def _sizes(directory: Path, below: str) -> dict[str, int]:
    """A draft may be renamed, and a file removed, by its writer meanwhile."""
    top = directory / below
    found: dict[str, int] = {}
    for path in top.rglob("*") if top.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[path.relative_to(directory).as_posix()] = path.stat().st_size
    return found
