"""Files: values that are too large for one entry, streamed in and out.

    await board.files.put("public/report", Path("report.pdf"), media_type="application/pdf")
    async for piece in board.files.read("public/report"): ...

A file is stored in parts, which are entries (core/path.py has the layout). So cuts, restores,
branches, exports, digests, encryption, erasure and quotas include it, on every engine; the archive
keeps each part once, by its digest.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from blackboard.arguments import check_argument, checks_arguments
from blackboard.client.cancellation import finish
from blackboard.client.export import check_replaceable
from blackboard.client.views import Entry, Receipt
from blackboard.core.checkpoints import When
from blackboard.core.commit import ABSENT, Condition, Delete, DeletePrefix, KeyAt, Op, Put
from blackboard.core.path import (
    check_file,
    file_info_key,
    file_parts_prefix,
    file_prefix,
    is_prefix,
    upload_key,
)
from blackboard.engines.disk import sync_path
from blackboard.errors import BlackboardError, Conflict, Corrupt, InvalidRequest, LimitExceeded
from blackboard.integrity.private_files import open_new_binary
from blackboard.limits import LARGE_BYTES_MAX, LARGE_PART_BYTES, Limits
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import encode_value

PARTS_PER_COMMIT: Final = 4
"""Half of COMMIT_BYTES_MAX, because other commits wait meanwhile."""
_NAME_KEPT: Final = 32
"""Characters of a name that its draft has."""
_END: Final = object()

Source = bytes | Path | Iterable[bytes] | AsyncIterable[bytes]
"""Where a file's bytes come from. What is open for reading in binary mode is iterable."""
Progress = Callable[[int], None]
"""Called from time to time with the number of bytes that are done."""


class FileInfo(Struct, frozen=True):
    """The file at `key`: its size, its SHA-256 in hexadecimal, and who put it when, as `revision`.

    `media_type` is what its author said, or "".
    """

    key: Key
    size_bytes: int
    sha256: str
    media_type: str
    revision: Revision
    author: str
    time_ms: Milliseconds


class _FileRecord(Struct, frozen=True):
    """The value of the entry that says what file there is."""

    sha256: str
    size_bytes: int
    parts: str
    media_type: str = ""


class FileBoard(Protocol):
    """The part of a Board that its files use."""

    @property
    def agent(self) -> str:
        """The name under which it is changed."""

    @property
    def limits(self) -> Limits:
        """How often this process tries."""

    async def get(self, key: Key, default: Any = None, *, at: When | None = None) -> Any:
        """The value at `key`."""

    async def entry(self, key: Key, *, at: When | None = None) -> Entry | None:
        """The entry at `key`."""

    async def commit(
        self, ops: Sequence[Op], *, conditions: Sequence[Condition] = (), note: str = ""
    ) -> Receipt:
        """Carry out all of `ops` if every condition holds."""


class _Upload(Struct, frozen=True):
    """The upload of one file; its parts are put while `condition` holds."""

    id: str
    condition: KeyAt


@checks_arguments
class Files:
    """The files of one board: `board.files`.

    Rights: those to everything below `<key>/~file`.
    """

    def __init__(self, board: FileBoard) -> None:
        self._board = board

    async def put(
        self,
        key: Key,
        source: Source,
        *,
        expected: Revision | None = None,
        media_type: str = "",
        note: str = "",
        progress: Progress | None = None,
    ) -> FileInfo:
        """Put a file of up to LARGE_BYTES_MAX at `key`, in place of the one that is there.

        `source` is bytes, the path of a regular file, or an iterable of bytes, with or without
        async. At most 2 MiB of it are in memory here. Others see the file when it is whole; `note`
        stands in the log with it. With `expected` only if the file there has that revision (0 = if
        there is none), else Conflict. Errors: Conflict also when another `put` of this key began
        meanwhile, or the file was deleted; LimitExceeded; InvalidRequest when `source` cannot be
        read; as of `Board.commit`. After any of them, and after a cancellation, the file is as it
        was, or, after OutcomeUnknown or a cancellation, perhaps the new one.
        """
        upload_id = secrets.token_hex(8)
        try:
            # Not cancelled halfway: `_give_up` must find what was announced.
            upload = await finish(self._begin(check_file(key), upload_id))
            stored = await self._put_parts(key, upload, source, progress)
            stored = replace(stored, media_type=media_type)
            return await self._publish(key, upload, stored, expected, note)
        except BaseException:
            await finish(self._give_up(key, upload_id))
            raise

    async def info(self, key: Key, *, at: When | None = None) -> FileInfo | None:
        """The file at `key`, now or at the moment `at`; None without one."""
        found = await self._stored(key, at)
        if found is None:
            return None
        stored, entry = found
        return _info(key, stored, entry.mod_revision, entry.author, entry.time_ms)

    def read(self, key: Key, *, at: When | None = None) -> AsyncIterator[bytes]:
        """The bytes of the file at `key`, or of the one that was there at `at`, in pieces.

        It is the file that is there when the iteration begins, also if that is replaced meanwhile.
        Errors: InvalidRequest when there is none; Corrupt after the last piece when the bytes are
        not those that were put.
        """
        return self._read(key, at)

    async def _read(self, key: Key, at: When | None) -> AsyncGenerator[bytes, None]:
        stored, entry = await self._there(key, at)
        async with contextlib.aclosing(self._bytes_of(key, stored, entry, at)) as pieces:
            async for piece in pieces:
                yield piece

    async def _bytes_of(
        self, key: Key, stored: _FileRecord, entry: Entry, at: When | None
    ) -> AsyncGenerator[bytes, None]:
        digest, size = hashlib.sha256(), 0
        for number in range(_parts_of(stored.size_bytes)):
            part = _part_key(key, stored.parts, number)
            piece = await self._board.get(part, at=at)
            # The file was replaced, and `at` is a moment that moves, as "now" does: the history
            # has the part.
            if piece is None:
                piece = await self._board.get(part, at=entry.mod_revision)
            if not isinstance(piece, bytes):
                break
            digest.update(piece)
            size += len(piece)
            yield piece
        if (digest.hexdigest(), size) != (stored.sha256, stored.size_bytes):
            raise Corrupt(what=f"file {key}", reason="its parts are not those that were put")

    async def save(
        self,
        key: Key,
        path: Path,
        *,
        at: When | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> FileInfo:
        """Write the file at `key` to `path`, which appears when it is whole and on the disk.

        Only its owner may read it. Errors: as of `read`; InvalidRequest when `path` cannot be
        written, or exists, unless with `overwrite`: then a regular file is replaced.
        """
        stored, entry = await self._there(key, at)
        check_replaceable(path, overwrite=overwrite)
        draft = path.with_name(f"{path.name[:_NAME_KEPT]}.{secrets.token_hex(4)}.part")
        try:
            # Not in a thread: after a cancellation, that would make it once it was removed.
            with open_new_binary(draft) as out:
                async with contextlib.aclosing(self._bytes_of(key, stored, entry, at)) as pieces:
                    async for piece in pieces:
                        await asyncio.to_thread(out.write, piece)
                        if progress is not None:
                            progress(out.tell())
            await asyncio.to_thread(_place, draft, path, overwrite)
        except OSError as error:
            raise InvalidRequest(field="path", reason=str(error)) from error
        finally:
            with contextlib.suppress(OSError):  # the first error matters more
                await finish(asyncio.to_thread(draft.unlink, missing_ok=True))
        return _info(key, stored, entry.mod_revision, entry.author, entry.time_ms)

    async def delete(self, key: Key, *, expected: Revision | None = None) -> bool:
        """Remove the file at `key`; False when there was none. `expected` as in `put`. Its history
        stays."""
        conditions = () if expected is None else (KeyAt(file_info_key(check_file(key)), expected),)
        # The first one answers whether there was a file; the second also removes what an unfinished
        # upload left.
        ops: list[Op] = [Delete(file_info_key(check_file(key))), DeletePrefix(file_prefix(key))]
        receipt = await self._board.commit(ops, conditions=conditions)
        return bool(receipt.results[0])

    # --- in -----------------------------------------------------------------------------------

    async def _begin(self, key: Key, upload_id: str) -> _Upload:
        """Announce an upload, and remove what one before it left."""
        for left in reversed(range(self._board.limits.client.merge_attempts_max)):
            place = upload_key(key)
            before = await self._board.entry(place)
            ops: list[Op] = [Put(place, encode_value({"parts": upload_id}))]
            if before is not None:
                ops.append(DeletePrefix(file_parts_prefix(key, _upload_id(before))))
            condition = KeyAt(place, ABSENT if before is None else before.mod_revision)
            try:
                receipt = await self._board.commit(ops, conditions=[condition])
            except Conflict:
                if not left:
                    raise
                continue
            return _Upload(upload_id, KeyAt(place, receipt.revision))
        raise AssertionError("the last attempt returns or raises")

    async def _put_parts(
        self, key: Key, upload: _Upload, source: Source, progress: Progress | None
    ) -> _FileRecord:
        digest, size, number = hashlib.sha256(), 0, 0
        async with contextlib.aclosing(_parts(source)) as parts:
            async for batch in _batches(parts):
                size += sum(map(len, batch))
                if size > LARGE_BYTES_MAX:
                    raise LimitExceeded("LARGE_BYTES_MAX", size, LARGE_BYTES_MAX)
                ops = []
                for part in batch:
                    digest.update(part)
                    ops.append(Put(_part_key(key, upload.id, number), encode_value(part)))
                    number += 1
                await self._board.commit(ops, conditions=[upload.condition])
                if progress is not None:
                    progress(size)
        return _FileRecord(digest.hexdigest(), size, upload.id)

    async def _publish(
        self, key: Key, upload: _Upload, stored: _FileRecord, expected: Revision | None, note: str
    ) -> FileInfo:
        """Make the uploaded parts the file."""
        for left in reversed(range(self._board.limits.client.merge_attempts_max)):
            before = await self._stored(key, None)
            ops: list[Op] = [Put(file_info_key(key), encode_value(msgspec.to_builtins(stored)))]
            ops.append(Delete(upload_key(key)))
            if before is not None:
                ops.append(DeletePrefix(file_parts_prefix(key, before[0].parts)))
            present = ABSENT if before is None else before[1].mod_revision
            at = KeyAt(file_info_key(key), present if expected is None else expected)
            try:
                receipt = await self._board.commit(
                    ops, conditions=[upload.condition, at], note=note
                )
            except Conflict as conflict:
                # Another file was put meanwhile: without `expected`, this one takes its place.
                if expected is not None or conflict.key != at.key or not left:
                    raise
                continue
            return _info(key, stored, receipt.revision, self._board.agent, receipt.time_ms)
        raise AssertionError("the last attempt returns or raises")

    async def _give_up(self, key: Key, upload_id: str) -> None:
        """Remove the parts of an upload that came to nothing, as far as possible: the next upload
        removes them, too."""
        ops: list[Op] = [Delete(upload_key(key)), DeletePrefix(file_parts_prefix(key, upload_id))]
        with contextlib.suppress(BlackboardError):
            entry = await self._board.entry(upload_key(key))
            if entry is not None and _upload_id(entry) == upload_id:
                # Another upload may begin between the read and this commit.
                ours = KeyAt(entry.key, entry.mod_revision)
                await self._board.commit(ops, conditions=[ours])

    async def _there(self, key: Key, at: When | None) -> tuple[_FileRecord, Entry]:
        """As `_stored`. Errors: InvalidRequest when there is none."""
        found = await self._stored(key, at)
        if found is None:
            raise InvalidRequest("key", f"there is no file at {key}")
        return found

    async def _stored(self, key: Key, at: When | None) -> tuple[_FileRecord, Entry] | None:
        entry = await self._board.entry(file_info_key(check_file(key)), at=at)
        if entry is None:
            return None
        try:
            return msgspec.convert(entry.value, _FileRecord), entry
        except msgspec.ValidationError as error:
            reason = "it says nothing about a file: it was redacted, or put by hand"
            raise InvalidRequest("key", f"{entry.key}: {reason}") from error


# --- what stands where ----------------------------------------------------------------------------


def _info(
    key: Key, stored: _FileRecord, revision: Revision, author: str, time_ms: Milliseconds
) -> FileInfo:
    size, digest, kind = stored.size_bytes, stored.sha256, stored.media_type
    return FileInfo(key, size, digest, kind, revision, author, time_ms)


def _part_key(key: Key, upload: str, number: int) -> Key:
    return f"{file_parts_prefix(key, upload)}/{number:04}"


def _parts_of(size_bytes: int) -> int:
    return -(-size_bytes // LARGE_PART_BYTES)


def _upload_id(entry: Entry) -> str:
    """Whose parts an upload that was not finished put; anything else there names none."""
    found = entry.value.get("parts") if isinstance(entry.value, dict) else None
    return found if isinstance(found, str) and is_prefix(f"public/{found}") else "none"


# --- where the bytes come from, and go ------------------------------------------------------------


async def _parts(source: Source) -> AsyncGenerator[bytes, None]:
    """The bytes of `source` in parts of LARGE_PART_BYTES, the last of which may be shorter."""
    waiting = bytearray()
    async with contextlib.aclosing(_pieces(source)) as pieces:
        async for piece in pieces:
            waiting += piece
            while len(waiting) >= LARGE_PART_BYTES:
                yield bytes(waiting[:LARGE_PART_BYTES])
                del waiting[:LARGE_PART_BYTES]
    if waiting:
        yield bytes(waiting)


async def _batches(parts: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Parts, as many at a time as one commit has."""
    batch: list[bytes] = []
    async for part in parts:
        batch.append(part)
        if len(batch) == PARTS_PER_COMMIT:
            yield batch
            batch = []
    if batch:
        yield batch


async def _pieces(source: Source) -> AsyncGenerator[bytes, None]:
    """The content of `source`. Errors: InvalidRequest."""
    if isinstance(source, bytes):
        for at in range(0, len(source), LARGE_PART_BYTES):
            yield source[at : at + LARGE_PART_BYTES]
    elif isinstance(source, AsyncIterable):
        async for piece in source:
            yield _checked(piece)
    else:
        if isinstance(source, Path):
            check_argument("source", source, Path)
        pieces = _of_file(source) if isinstance(source, Path) else iter(source)
        try:
            # `_END`, because StopIteration cannot be raised into a future.
            while (found := await asyncio.to_thread(_next_of, pieces)) is not _END:
                yield _checked(found)
        except OSError as error:
            raise InvalidRequest(field="source", reason=str(error)) from error


def _next_of(pieces: Iterator[object]) -> object:
    return next(pieces, _END)


def _checked(piece: object) -> bytes:
    if not isinstance(piece, bytes):
        reason = f"a {type(piece).__name__} came from it: pass bytes, a Path, or what yields bytes"
        raise InvalidRequest(field="source", reason=reason)
    return piece


def _of_file(path: Path) -> Iterator[bytes]:
    """The content of a regular file: a pipe could keep its reader waiting for good."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidRequest(field="source", reason=f"{path} is not a file")
        while piece := file.read(LARGE_PART_BYTES):
            yield piece


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _place(draft: Path, path: Path, overwrite: bool) -> None:
    """Give a written file its name, durably."""
    # Before the rename: the name must not lead to bytes that a power cut takes away.
    sync_path(draft)
    check_replaceable(path, overwrite=overwrite)  # another process may have been faster
    draft.replace(path)
    sync_path(path.parent)
