"""What a client usually gets, read in one step: receipts of commits, and changes of its watches.

As `commits.py` on the other side: a frame of nothing else is read straight into the nouns; any
other frame is left to `frames.py` and `reading.py`, which know everything else, and what is wrong.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from blackboard.core.commit import Change, CommitId, Epoch, LogEntry
from blackboard.core.watch import Position
from blackboard.wire.frames import CONTAINERS_MAX, Encoding


class ReceiptNews(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """`answers.ReceiptMessage`, read."""

    revision: int
    time_ms: int
    results: tuple[int | str | tuple[str | int, ...] | None, ...]
    level: str
    duplicate: bool = False


class RevisionNews(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """`answers.RevisionMessage`, read."""

    revision: int
    time_ms: int
    author: str
    changes: tuple[Change, ...]
    digest: str
    based_on: tuple[tuple[str, int], ...] = ()
    note: str = ""
    epoch: Epoch | None = None

    def to_core(self) -> LogEntry:
        """The same in the words of the core. Errors: ValueError for a digest that is none."""
        return LogEntry(
            self.revision,
            self.time_ms,
            CommitId(self.author, 0, "", 0),
            self.changes,
            bytes.fromhex(self.digest),
            self.based_on,
            self.note,
            self.epoch,
        )


class ChangesNews(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """`answers.ChangesMessage`, read; one that goes on in the next message is not usual."""

    watch: int
    position: str
    revisions: tuple[RevisionNews, ...]

    def to_core(self) -> tuple[int, Position, tuple[LogEntry, ...]]:
        """Which watch, how far it is, and its revisions. Errors: ValueError, InvalidRequest."""
        revisions = tuple([revision.to_core() for revision in self.revisions])
        return self.watch, Position.parse(self.position), revisions


class News(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A message: an answer with `id` and `result`, or `method` and `params`."""

    id: int | None = None
    result: ReceiptNews | None = None
    method: Literal["changes"] | None = None
    params: ChangesNews | None = None


_decode: Final = msgspec.msgpack.Decoder(list[News]).decode


def read_news(frame: bytes) -> list[News]:
    """The messages of a msgpack frame of usual news; none for any other frame."""
    if len(frame) > CONTAINERS_MAX:
        return []
    try:
        return _decode(frame)
    except (msgspec.MsgspecError, ValueError):
        return []


def read_receipt(message: Any) -> ReceiptNews:
    """A receipt that was not news. Errors: ValueError."""
    try:
        return msgspec.convert(message, ReceiptNews)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def pack_changes(
    watch: int,
    position: Position,
    pieces: Sequence[bytes],
    encoding: Encoding,
    *,
    more: bool = False,
) -> list[bytes]:
    """What tells a watch of `answers.pack_revisions`; no pieces make a progress mark.

    With `more`, the last piece goes on in messages to come.
    """
    pack, join = encoding.pack, encoding.map
    params = {"watch": pack(watch), "position": pack(str(position))}
    method, messages = pack("changes"), []
    for index, piece in enumerate(pieces or [pack([])]):
        members = {**params, "revisions": piece}
        if more or index < len(pieces) - 1:
            members["more"] = pack(True)
        messages.append(join({"method": method, "params": join(members)}))
    return messages
