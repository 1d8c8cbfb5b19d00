"""The layout of a board in Redis: the names of its keys, and the format of their fields.

All keys of a board carry the hash tag `{board}`, so they share one slot and one script reaches
them. The layout is described at the top of `scripts/prelude.lua`, its twin.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgpack

from blackboard import limits
from blackboard.core.commit import Entry, Epoch, Head
from blackboard.core.path import Ranges, check_name
from blackboard.core.state import BoardUsage
from blackboard.errors import Corrupt

BOARDS: Final = "blackboard:boards"
"""The set of the names of all boards; in a cluster it lies in a slot of its own."""

FORMAT: Final = 2
"""Of this layout, as field `format` of `{board}:m`; the first boards have none. The scripts write
it (scripts/prelude.lua). A newer layout also writes field `run` in another form: so the scripts of
older programs find no open board, and open.lua refuses it."""

_PARTS = ("m", "log", "i", "n", "k", "x", "l")
_HEADER = struct.Struct(">QQQQBB")
_LARGE_VALUE = struct.Struct(">IB")
_USAGE = struct.Struct(">QQ")
_VALUE, _LARGE = ord("v"), ord("L")
_KEY_ONLY: Final = ord("k")  # in replies of read.lua only
# Ends the name of the author; the time of creation follows.
_SINCE: Final = b"\0"


@lru_cache(maxsize=4096)
def board_keys(board: str) -> tuple[str, ...]:
    """The seven keys of `board`, in the order of every script's KEYS."""
    check_name(board, "board")  # a brace would end the hash tag and spread the board over slots
    return tuple(f"{{{board}}}:{part}" for part in _PARTS)


def log_key(board: str) -> str:
    """The stream that is the board's log."""
    return board_keys(board)[1]


def pubsub_channel(board: str) -> str:
    """The channel, in the board's slot, for messages that are not stored."""
    check_name(board, "board")
    return f"{{{board}}}:w"


def index_ranges(ranges: Ranges, *, reverse: bool = False) -> list[str]:
    """The intervals of the index that hold the keys in `ranges`, in the form of ZRANGEBYLEX; with
    `reverse` the last interval first, in the form of ZREVRANGEBYLEX."""
    if reverse:
        return [bound for first, last in reversed(ranges) for bound in (f"({last}", f"[{first}")]
    return [bound for first, last in ranges for bound in (f"[{first}", f"({last}")]


def read_entry(key: bytes, field: bytes, large: bytes | None) -> Entry:
    """The entry that a field of `{board}:n` describes. Errors: Corrupt."""
    try:
        modified, created, time_ms, expires_at_ms, kind, size = _HEADER.unpack_from(field)
        start = _HEADER.size + size
        author, since, first = field[_HEADER.size : start].partition(_SINCE)
        value = field[start:] if kind == _VALUE else large
        if kind == _KEY_ONLY:
            value = b""
        elif value is None or kind not in (_VALUE, _LARGE):
            raise ValueError(f"an entry of kind {kind} without its value")
        return Entry(
            key=key.decode("ascii"),
            value=value,
            mod_revision=modified,
            create_revision=created,
            author=author.decode("ascii"),
            time_ms=time_ms,
            expires_at_ms=expires_at_ms or None,
            first_ms=int.from_bytes(first) if since else None,
        )
    except (struct.error, ValueError) as error:
        raise Corrupt(what=f"entry {key!r}", reason=str(error)) from error


def write_entry(entry: Entry) -> tuple[bytes, bytes | None]:
    """The field of `{board}:n` that describes `entry`, and its value if that is a large one."""
    is_large = len(entry.value) > limits.VALUE_INLINE_BYTES_MAX
    author = entry.author.encode("ascii")
    if entry.first_ms is not None:
        author += _SINCE + entry.first_ms.to_bytes(8)
    head = _HEADER.pack(
        entry.mod_revision,
        entry.create_revision,
        entry.time_ms,
        entry.expires_at_ms or 0,
        _LARGE if is_large else _VALUE,
        len(author),
    )
    if is_large:
        return head + author + _LARGE_VALUE.pack(len(entry.value), entry.value[0]), entry.value
    return head + author + entry.value, None


def unpack_bundle(packed: bytes) -> list[bytes]:
    """Large values of a restore, as the log has them. Errors: Corrupt."""
    try:
        values: list[bytes] = msgpack.unpackb(packed, raw=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise Corrupt(what="log", reason=str(error)) from error
    return values


def pack_epoch(epoch: Epoch) -> bytes:
    """Encode what `read_epoch` reads."""
    parts = [epoch.number, epoch.id, epoch.cause, epoch.from_revision, epoch.revision]
    # Without the `bin` type, which cmsgpack in Redis does not know.
    packed: bytes = msgpack.packb(parts, use_bin_type=False)
    return packed


def pack_usage(used: BoardUsage) -> bytes:
    """A field `u:...` of `{board}:m`."""
    return _USAGE.pack(used.keys, used.bytes)


# Every reply brings the epoch, nearly always the same bytes.
@lru_cache(maxsize=4096)
def read_epoch(packed: bytes) -> Epoch:
    """The epoch that field `e` of `{board}:m`, or of a marker in the log, describes."""
    try:
        number, name, cause, from_revision, revision = msgpack.unpackb(packed)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(what="epoch", reason=str(error)) from error
    return Epoch(number, name, cause, from_revision, revision)


def read_head(reply: Sequence[Any]) -> Head:
    """Decode the reply of `head` in scripts/prelude.lua."""
    revision, oldest, epoch, time_ms, log_entries = reply
    return Head(revision, read_epoch(epoch), oldest, time_ms, log_entries)
