"""Large values, in an object store: a directory, S3, Google Cloud Storage or Azure.

Invariants
- A blob's name is the SHA-256 of its content: it is written once and never changes.
- It is stored (in a directory, durably) before anything refers to it, and checked against its name
  when it is read.
- `discard` runs only in a transaction that holds `Database.lock_blobs` alone. A transaction that
  refers to a blob shares this lock, and checks under it that the blob is still there.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from blackboard.engines.disk import sync_path
from blackboard.errors import Corrupt, InvalidRequest, Unavailable
from blackboard.integrity.private_files import (
    NotOrdinaryError,
    make_directory,
    open_new_binary,
    read_bytes,
)
from blackboard.limits import DEFAULT, Limits

if TYPE_CHECKING:
    from obstore import ObjectMeta

log = logging.getLogger(__name__)
_DRAFT: Final = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}")
"""What `_write` calls a file until it is complete."""


class Blobs:
    """An object store with blobs in it."""

    def __init__(
        self,
        store: ObjectStore,
        where: str,
        directory: Path | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._store = store
        self._where = where
        self._directory = directory
        self._grace = timedelta(milliseconds=limits.archive.blob_grace_ms)
        self._calls_max = limits.archive.blob_calls_max
        self._calls = asyncio.Semaphore(self._calls_max)
        self._doubtful: set[bytes] = set()
        """Blobs of which a sync failed."""

    @classmethod
    def at(cls, url: str, limits: Limits = DEFAULT) -> "Blobs":
        """Blobs in a directory (a path or file:///path) or below a URL (s3://bucket/path ...).

        Credentials come from the same places as for the provider's own tools (AWS_ACCESS_KEY_ID
        ...). Errors: InvalidRequest for another kind of URL; Unavailable when a directory cannot be
        made.
        """
        try:
            parts = urlsplit(url)
            if parts.scheme in ("", "file"):
                # The name of a directory may have # ? and %, which mean something in a URL. Made
                # absolute, because the program may change its working directory.
                path = (path_of(url) if parts.scheme == "file" else Path(url)).absolute()
                make_directory(path)
                return cls(LocalStore(path), str(path), path, limits)
            store, where = object_store(url, limits)
            return cls(store, where, limits=limits)
        except OSError as error:
            raise Unavailable(what=f"blobs at {url}", reason=str(error)) from error
        except (BaseError, ValueError) as error:
            raise InvalidRequest(field="blobs", reason=str(error).partition("\n")[0]) from error

    async def put(self, value: bytes) -> bytes:
        """Store a value; returns its SHA-256. Errors: Unavailable.

        A value that is already there is written again, so that its age shows when it was last
        needed.
        """
        name = hashlib.sha256(value).digest()
        try:
            async with self._calls:
                if self._directory is None:
                    await obstore.put_async(self._store, blob_path(name), value)
                else:
                    await asyncio.to_thread(_write, self._directory, blob_path(name), value)
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from error
        return name

    async def get(self, name: bytes) -> bytes:
        """The value with that SHA-256. Errors: Corrupt when it is missing or different;
        Unavailable."""
        path = blob_path(name)
        try:
            async with self._calls:
                value = await self._read(path)
        except FileNotFoundError as error:
            raise Corrupt(what=f"blob {path}", reason=f"missing from {self._where}") from error
        except NotOrdinaryError as error:
            raise Corrupt(
                what=f"blob {path}", reason=f"in {self._where}, {error.strerror}"
            ) from error
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from error
        if hashlib.sha256(value).digest() != name:
            reason = f"its {len(value)} bytes are not those that were written"
            raise Corrupt(what=f"blob {path}", reason=reason)
        return value

    async def _read(self, path: str) -> bytes:
        """The object store itself would open anything of that name, and wait forever on a pipe."""
        if self._directory is not None:
            return await asyncio.to_thread(read_bytes, self._directory / path)
        found = await obstore.get_async(self._store, path)
        return bytes(await found.bytes_async())

    async def put_all(self, values: Iterable[bytes]) -> None:
        """Store several values at once. Errors: Unavailable."""
        await asyncio.gather(*map(self.put, values))

    async def put_missing(self, values: Iterable[bytes]) -> None:
        """Store those of `values` that are not there. Errors: Unavailable."""
        for value in values:
            if not await self._holds(hashlib.sha256(value).digest()):
                await self.put(value)

    async def put_durably(self, values: Iterable[bytes]) -> None:
        """As `put_missing`, for the only writer of this place: what a killed process or a failed
        sync left does not count as there. Errors: Unavailable."""
        for value in values:
            name = hashlib.sha256(value).digest()
            was_there = await self._holds(name)
            try:
                if was_there and name not in self._doubtful:
                    await self._settle(name)
                else:
                    await self.put(value)
            except Unavailable:
                # A second sync may succeed although the first one failed: it is written again.
                self._doubtful.add(name)
                # Another process would count a new file of that name as stored. One that was there
                # may be needed. An object store has the whole object, or nothing.
                if not was_there and self._directory is not None:
                    with contextlib.suppress(Unavailable):
                        await self.discard(name)
                raise
            self._doubtful.discard(name)

    async def _holds(self, name: bytes) -> bool:
        """What is no ordinary file does not count: a blob that is put takes its place."""
        if self._directory is not None:
            file = self._directory / blob_path(name)
            return file.is_file() and not file.is_symlink()
        return await self._meta(name) is not None

    async def _meta(self, name: bytes) -> "ObjectMeta | None":
        """What the store says of a blob; None if it is missing."""
        try:
            async with self._calls:
                return await obstore.head_async(self._store, blob_path(name))
        except FileNotFoundError:
            return None
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from error

    async def _found(self, names: Iterable[bytes]) -> "AsyncIterator[tuple[bytes, ObjectMeta]]":
        """Those that are there, and what the store says of each, asked for a few at once."""
        left = iter(names)
        while few := list(islice(left, self._calls_max)):
            metas = await asyncio.gather(*map(self._meta, few))
            for name, meta in zip(few, metas, strict=True):
                if meta is not None:
                    yield name, meta

    async def _settle(self, name: bytes) -> None:
        """Make the name of a blob durable: its writer may have been killed before it did."""
        if self._directory is None:
            return
        try:
            for synced in ((self._directory / blob_path(name)).parent, self._directory):
                await asyncio.to_thread(sync_path, synced)
        except OSError as error:
            raise self._unavailable(error) from error

    async def sizes(self, names: Iterable[bytes]) -> int:
        """The bytes that these blobs take together, without those that are missing. Errors:
        Unavailable."""
        return sum([found["size"] async for _, found in self._found(names)])

    async def young(self, names: Iterable[bytes]) -> set[bytes]:
        """Those that are there and recent: a transaction may be about to refer to them. Errors:
        Unavailable."""
        now = datetime.now(UTC)
        found = self._found(names)
        return {name async for name, meta in found if now - meta["last_modified"] <= self._grace}

    async def discard_all(self, names: Iterable[bytes]) -> None:
        """As `discard`, for several, a few at once. Errors: Unavailable: the first one, when no
        call is under way any more."""
        left, folders = iter(names), set[str]()
        while few := list(islice(left, self._calls_max)):
            ends = await asyncio.gather(*map(self._remove, few), return_exceptions=True)
            for end in ends:
                if end is not None:
                    raise end
            folders |= {blob_path(name).partition("/")[0] for name in few}
        if self._directory is not None:
            await self._sync_folders(self._directory, folders)

    async def discard(self, name: bytes) -> None:
        """Remove a blob, however new it is; no error if there is none. It does not come back after
        a power loss. Errors: Unavailable."""
        await self.discard_all([name])

    async def _remove(self, name: bytes) -> None:
        try:
            async with self._calls:
                await obstore.delete_async(self._store, blob_path(name))
        except FileNotFoundError:
            return
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(error) from error

    async def _sync_folders(self, directory: Path, names: Iterable[str]) -> None:
        try:
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # none of its blobs was ever there
                    await asyncio.to_thread(sync_path, directory / name)
        except OSError as error:
            raise self._unavailable(error) from error

    async def remove_drafts(self) -> None:
        """Remove the drafts that a killed process left. No other process may be writing here.

        Nothing refers to a draft: neither a pruning nor a redaction would remove its copy of a
        value. What cannot be removed now is removed the next time.
        """
        if self._directory is None:
            return
        try:
            await asyncio.to_thread(_remove_drafts, self._directory)
        except OSError as error:
            log.warning("blobs at %s: drafts stay there: %s", self._where, error)

    def _unavailable(self, error: Exception) -> Unavailable:
        reason = str(error).partition("\n")[0]
        return Unavailable(what=f"blobs at {self._where}", reason=reason)


def path_of(url: str) -> Path:
    """The path of a file URL. Errors: ValueError for one that has more than a path."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"{url} names the host {parts.netloc}: write file:///path")
    if parts.query or parts.fragment:
        raise ValueError(f"{url} has more than a path: write ? as %3F, and # as %23")
    return Path(unquote(parts.path))


def object_store(url: str, limits: Limits) -> tuple[ObjectStore, str]:
    """The object store below a URL, and the URL as people may see it, without parameters.

    Errors: BaseError, ValueError for a URL of no store.
    """
    # Our options would override this environment variable, which a local server needs.
    plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true"
    timeout = timedelta(milliseconds=limits.engine.engine_timeout_ms)
    options = {"timeout": timeout, "connect_timeout": timeout, "allow_http": plain}
    retry_timeout = timedelta(milliseconds=limits.engine.engine_retry_ms)
    retry = {"max_retries": 3, "retry_timeout": retry_timeout}
    store: ObjectStore = from_url(  # type: ignore[call-overload]
        url, client_options=options, retry_config=retry
    )
    return store, urlsplit(url)._replace(query="").geturl()


def _write(directory: Path, path: str, value: bytes) -> None:
    """Write a file atomically, durably and readable by its owner only. Errors: OSError.

    The object store itself would only write it atomically.
    """
    file = directory / path
    # Two writers of one value must not share a draft.
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    make_directory(file.parent)
    try:
        with open_new_binary(draft) as out:
            out.write(value)
        # Before it gets its name: after a power loss that must not lead to an empty file.
        sync_path(draft)
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    # The folder may be new, so its own name has to be synced as well.
    for synced in (file.parent, directory):
        sync_path(synced)


def _remove_drafts(directory: Path) -> None:
    drafts = [file for file in directory.glob("*/*.*") if _DRAFT.fullmatch(file.name)]
    for draft in drafts:
        draft.unlink()
    for folder in {draft.parent for draft in drafts}:
        sync_path(folder)


def blob_path(name: bytes) -> str:
    """Where a blob is below its place, by its SHA-256."""
    text = name.hex()
    return f"{text[:2]}/{text}"
