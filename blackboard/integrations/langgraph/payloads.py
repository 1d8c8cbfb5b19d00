"""Bytes of any size as one entry: above INLINE_BYTES_MAX, the entry names a file of the board."""

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from blackboard import Board
from blackboard.errors import BlackboardError, Corrupt, InvalidRequest, LimitExceeded, Rejected
from blackboard.limits import COMMIT_BYTES_MAX, OPERATIONS_MAX
from blackboard.ops import Delete, HeldFence, KeyAt, Put, encode_value
from blackboard.types import Entry, Receipt

Change = Put | Delete
INLINE_BYTES_MAX: Final = 900_000
"""Larger values are files: a value has a megabyte at most, and a commit four."""
COMMIT_BYTES: Final = 3_000_000
"""Bytes after which a commit takes no further operation."""
COMMIT_OPS: Final = 500
READS_MAX: Final = 5
"""Attempts to read an entry while others replace it, or what it needs."""
T = TypeVar("T")
log = logging.getLogger(__name__)


class Payloads:
    """The values of one commit, or of a few; `place` is the prefix below which files lie."""

    def __init__(self, board: Board, place: str) -> None:
        self._board = board
        self._place = place
        self._files: dict[str, bytes] = {}
        self.large: set[str] = set()
        """The keys whose values are files."""
        self.ops: list[Change] = []
        self.size_bytes = 0

    def put(self, key: str, data: bytes) -> None:
        """Put bytes at `key`."""
        self.size_bytes += len(data)
        if len(data) > INLINE_BYTES_MAX:
            self._put_file(key, data)
        else:
            self.ops.append(Put(key, encode_value(data)))

    def put_encoded(self, key: str, value: bytes, ttl_ms: int | None) -> None:
        """Put an encoded value at `key`. Errors: ValueError for a large one with a time to live,
        which files have not."""
        if len(value) <= INLINE_BYTES_MAX:
            self.ops.append(Put(key, value, ttl_ms))
        elif ttl_ms is None:
            self._put_file(key, value)
        else:
            reason = f"has {len(value)} bytes: with a ttl, up to {INLINE_BYTES_MAX} can be stored"
            raise ValueError(f"the value at {key} {reason}")

    def _put_file(self, key: str, data: bytes) -> None:
        # A new name each time: the file that the entry names now stays whole until it is replaced.
        file = f"{self._place}/{secrets.token_hex(8)}"
        self._files[file] = data
        self.large.add(key)
        self.ops.append(Put(key, encode_value({"file": file})))

    async def commit(
        self, conditions: Sequence[KeyAt] = (), fences: Sequence[HeldFence] = ()
    ) -> Receipt:
        """Commit everything, in as few commits as there can be; `conditions` are those of the
        first. Files are put before it. Errors: as of `Board.commit`; LimitExceeded for a file above
        LARGE_BYTES_MAX; nothing is left if a file or the first commit is refused."""
        first, *others = _batches(self.ops)
        receipt = await self._commit_first(first, conditions, fences)
        for batch in others:
            receipt = await self._board.commit(batch, fences=fences)
        return receipt

    async def commit_whole(self, conditions: Sequence[KeyAt] = ()) -> Receipt:
        """As `commit`, as one commit. Errors: LimitExceeded for more than one takes, before
        anything is put."""
        size = sum(map(_weight, self.ops))
        if len(self.ops) > OPERATIONS_MAX:
            raise LimitExceeded("OPERATIONS_MAX", len(self.ops), OPERATIONS_MAX, "ops")
        if size > COMMIT_BYTES_MAX:
            raise LimitExceeded("COMMIT_BYTES_MAX", size, COMMIT_BYTES_MAX)
        return await self._commit_first(self.ops, conditions, ())

    async def _commit_first(
        self, ops: Sequence[Change], conditions: Sequence[KeyAt], fences: Sequence[HeldFence]
    ) -> Receipt:
        """Put the files, and commit `ops`."""
        try:
            for file, data in self._files.items():
                await self._board.files.put(file, data)
            return await self._board.commit(ops, conditions=conditions, fences=fences)
        except Rejected:
            # Only after a refusal: after any other error the commit may have been made.
            await drop_files(self._board, self._files)
            raise


def _weight(op: Change) -> int:
    return len(op.value) if isinstance(op, Put) else 0


def _batches(ops: Sequence[Change]) -> list[list[Change]]:
    """Operations, as many at a time as one commit takes."""
    batches: list[list[Change]] = [[]]
    size = 0
    for op in ops:
        weight = _weight(op)
        if batches[-1] and (size + weight > COMMIT_BYTES or len(batches[-1]) >= COMMIT_OPS):
            batches.append([])
            size = 0
        batches[-1].append(op)
        size += weight
    return batches


async def drop_files(board: Board, files: Iterable[str]) -> None:
    """Remove files that no entry names any more, as far as possible.

    What made them superfluous is committed, or refused: an error here must not be taken for one of
    that. It is logged.
    """
    for file in files:
        try:
            await board.files.delete(file)
        except BlackboardError as error:
            log.warning("the file %s is not used any more, and stays: %s", file, error)


def file_of(entry: Entry) -> str | None:
    """The key of the file that an entry names."""
    value = entry.value
    return value.get("file") if isinstance(value, dict) else None


async def read(board: Board, entry: Entry) -> bytes:
    """The bytes of an entry. Errors: Corrupt when it was not put by `Payloads`."""
    if (file := file_of(entry)) is not None:
        return b"".join([piece async for piece in board.files.read(file)])
    if not isinstance(entry.value, bytes):
        raise Corrupt(what=entry.key, reason="it was redacted, or put by hand")
    return entry.value


async def reread(board: Board, entry: Entry, work: Callable[[Entry], Awaitable[T]]) -> T | None:
    """What `work` makes of an entry; None when the entry is gone.

    Others may remove or replace meanwhile what it needs, a file or another record: then the entry
    is read again. Errors: those of `work`, when that does not help.
    """
    for left in reversed(range(READS_MAX)):
        try:
            return await work(entry)
        except (Corrupt, InvalidRequest):  # the latter: there is no such file
            now = await board.entry(entry.key)
            if now is None:
                return None
            if not left:
                raise
            entry = now
    raise AssertionError("the last attempt returns or raises")
