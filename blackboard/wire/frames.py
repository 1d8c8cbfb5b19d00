"""One WebSocket message ("frame") is an array of messages, encoded as msgpack or JSON.

Invariants
- For any bytes, `split` returns a list or raises RemoteProtocolError, nothing else, and its memory
  stays within a small multiple of FRAME_BYTES_MAX.
- Only plain data is built: no extension types, no class names, string keys only. An invalid map (a
  duplicate key, bytes that are not base64) becomes a `NotAMap`, which no record of methods.py
  accepts, so that only its own message is refused.
- Values cross this module as the bytes of `codec.encode_value`: in msgpack they travel unchanged,
  as `bin`; in JSON as natural JSON, with bytes as `{"$bytes": "<base64>"}`.
- A frame is the concatenation of messages that were packed one by one, so that a message to many
  receivers is packed once.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn, Protocol

import msgpack
from msgspec import MsgspecError, Struct, to_builtins
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from blackboard.core.commit import Append, Op, Put
from blackboard.errors import InvalidRequest, LimitExceeded, Rejected, RemoteProtocolError
from blackboard.limits import FRAME_BYTES_MAX, MESSAGES_PER_FRAME_MAX, VALUE_BYTES_MAX
from blackboard.wire.codec import BYTES_KEY, decode_value, encode_value

CONTAINERS_MAX: Final = 2**18
"""Arrays and maps in one frame: an empty one takes a byte here and 64 in memory, and no operation
of a commit takes fewer than 32 bytes (FRAME_BYTES_MAX / 32)."""
MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX - 8
"""One packed message: a frame adds an array header of at most five bytes, or two brackets."""
FRAME_JOIN_BYTES: Final = 1024 * 1024
"""Messages share a frame up to this size; one larger message has a frame of its own. A full socket
holds at most one more frame, in two copies, even if its peer does not read."""

CLOSE_PROTOCOL_ERROR: Final = 1002
CLOSE_WRONG_TYPE: Final = 1003
CLOSE_INVALID_BYTES: Final = 1007
CLOSE_TOO_BIG: Final = 1009


class NotAMap:
    """Stands for a map with a duplicate key, or for `$bytes` that are not base64."""


class Encoding(Protocol):
    """How messages are encoded."""

    name: str
    """"msgpack" or "json"; the WebSocket subprotocol is `blackboard.v1+<name>`."""
    binary: bool
    """Whether frames travel as binary WebSocket messages (else as text, UTF-8)."""

    def pack(self, message: Any) -> bytes:
        """One message, or a part of one, as bytes. Values in it must have passed `value_out`.

        Errors: InvalidRequest for an integer that the encoding cannot represent.
        """

    def join(self, messages: Sequence[bytes]) -> bytes:
        """One frame (or array) of packed messages."""

    def map(self, members: dict[str, bytes]) -> bytes:
        """One map of packed members."""

    def split(self, frame: bytes) -> list[Any]:
        """The messages of a frame. Errors: RemoteProtocolError."""

    def value_out(self, value: bytes) -> Any:
        """An encoded value in the form that `pack` takes."""

    def value_in(self, value: Any) -> bytes:
        """A received value, encoded canonically. Errors: InvalidRequest, LimitExceeded."""

    def value_from_service(self, value: Any) -> bytes:
        """A value from the service, encoded. The client does not check it a second time.

        Errors: InvalidRequest, LimitExceeded.
        """


def grouped(waiting: Sequence[bytes]) -> list[list[bytes]]:
    """Packed messages grouped into frames within the limits, in their order."""
    groups: list[list[bytes]] = [[]]
    size = 0
    for packed in waiting:
        full = size + len(packed) + 1 > FRAME_JOIN_BYTES
        if groups[-1] and (full or len(groups[-1]) == MESSAGES_PER_FRAME_MAX):
            groups.append([])
            size = 0
        groups[-1].append(packed)
        size += len(packed) + 1
    return groups


_encode: Final = Encoder().encode
_decode: Final = Decoder().decode


class _Msgpack:
    name = "msgpack"
    binary = True

    def pack(self, message: Any) -> bytes:
        try:
            return _encode(message)
        except OverflowError as error:
            field = _large_in(message, "params") or "params"
            raise InvalidRequest(field=field, reason="an integer has at most 64 bits") from error

    def join(self, messages: Sequence[bytes]) -> bytes:
        return _header(0x90, 0xDC, len(messages)) + b"".join(messages)

    def map(self, members: dict[str, bytes]) -> bytes:
        parts = [_header(0x80, 0xDE, len(members))]
        for name, packed in members.items():
            parts += (_packed_name(name), packed)
        return b"".join(parts)

    def split(self, frame: bytes) -> list[Any]:
        _check_size(frame)
        # A smaller frame has no room for that many containers, so they need not be counted.
        count = _ObjectCount() if len(frame) > CONTAINERS_MAX else None
        try:
            messages = msgpack.unpackb(
                frame,
                strict_map_key=True,
                object_pairs_hook=count.take_map if count else _map,
                list_hook=count.take_list if count else None,
                timestamp=3,  # a datetime, which no record accepts, and not a number
            )
        except (ValueError, OverflowError, msgpack.UnpackException) as error:
            raise _malformed("not msgpack", error) from error
        if not isinstance(messages, list):
            raise _malformed("not an array of messages")
        return _checked(messages)

    def value_out(self, value: bytes) -> bytes:
        return value if type(value) is bytes else bytes(value)  # a decrypted value is a subclass

    def value_in(self, value: Any) -> bytes:
        if type(value) is not bytes:
            raise InvalidRequest(field="value", reason="must be bytes (msgpack `bin`)")
        if len(value) > VALUE_BYTES_MAX:
            raise LimitExceeded("VALUE_BYTES_MAX", len(value), VALUE_BYTES_MAX)
        # Values are compared and hashed as bytes, so each may have one form only.
        if _is_canonical(value):
            return value
        try:
            canonical = encode_value(
                msgpack.unpackb(value, timestamp=3, ext_hook=_refuse_extension)
            )
            if canonical != value:  # not the canonical bytes, or a duplicate key
                canonical = encode_value(msgpack.unpackb(value, object_pairs_hook=_map))
        except (ValueError, OverflowError, msgpack.UnpackException) as error:
            raise InvalidRequest(field="value", reason=f"not msgpack: {_brief(error)}") from error
        return canonical

    def value_from_service(self, value: Any) -> bytes:
        if type(value) is not bytes:
            raise InvalidRequest(field="value", reason="must be bytes (msgpack `bin`)")
        return value


class _Json:
    name = "json"
    binary = False

    def pack(self, message: Any) -> bytes:
        return _json_encoder.encode(message).encode()

    def join(self, messages: Sequence[bytes]) -> bytes:
        return b"[" + b",".join(messages) + b"]"

    def map(self, members: dict[str, bytes]) -> bytes:
        return b"{" + b",".join(b'"%s":%s' % (n.encode(), m) for n, m in members.items()) + b"}"

    def split(self, frame: bytes) -> list[Any]:
        _check_size(frame)
        # Brackets in texts count as well: this is an upper bound, known before anything is built.
        if frame.count(b"[") + frame.count(b"{") > CONTAINERS_MAX:
            raise _malformed(f"more than {CONTAINERS_MAX} arrays and objects")
        try:
            messages = _json_decoder.decode(frame.decode())
        except (ValueError, RecursionError) as error:
            raise _malformed("not JSON", error) from error
        return _checked(messages if isinstance(messages, list) else [messages])

    def value_out(self, value: bytes) -> Any:
        return decode_value(value)

    def value_in(self, value: Any) -> bytes:
        return encode_value(value)

    value_from_service = value_in


SEALED: Final = b"\xc1"
"""The first byte of ciphertext, with which no value begins. Exports contain ciphertext, in JSON as
{"$sealed": base64}."""
SEALED_BYTES_MAX: Final = VALUE_BYTES_MAX + 1024
"""A value, and what encryption adds: a header with the id of the commit, nonce and tag."""
_SEALED_KEY: Final = "$sealed"


def exported_out(value: bytes, encoding: Encoding) -> Any:
    """A value of an export: as any other value, but encrypted values stay encrypted."""
    if not value.startswith(SEALED):
        return encoding.value_out(value)
    return value if encoding.binary else {_SEALED_KEY: base64.b64encode(value).decode()}


def exported_in(value: Any, encoding: Encoding) -> bytes:
    """The inverse. Errors: InvalidRequest, LimitExceeded."""
    found = value
    if not encoding.binary and isinstance(value, dict) and value.keys() == {_SEALED_KEY}:
        try:
            found = base64.b64decode(value[_SEALED_KEY], validate=True)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(field="value", reason="$sealed is no base64") from error
    # Ciphertext is taken as it is: without the key, nothing in it can be checked.
    if type(found) is not bytes or not found.startswith(SEALED):
        return encoding.value_in(value)
    if len(found) > SEALED_BYTES_MAX:
        raise LimitExceeded("VALUE_BYTES_MAX", len(found), VALUE_BYTES_MAX)
    return found


MSGPACK: Final[Encoding] = _Msgpack()
JSON: Final[Encoding] = _Json()
SUBPROTOCOLS: Final[dict[str, Encoding]] = {
    f"blackboard.v1+{encoding.name}": encoding for encoding in (MSGPACK, JSON)
}
"""The encodings by WebSocket subprotocol, the preferred one first."""


def canonical(op: Op) -> Op:
    """An operation with its encoded value in the only form that a board keeps. A service checks
    that of what comes over a connection, and takes what comes in its own process as it is.

    Errors: InvalidRequest, LimitExceeded for bytes that are the form of no value.
    """
    if not isinstance(op, Put | Append):
        return op
    return replace(op, value=MSGPACK.value_in(op.value))


def _is_canonical(value: bytes) -> bool:
    """Whether a value is plain data in its canonical form; the usual case, so it is made quick.

    msgspec decodes twice as fast as msgpack, but it says less about what is wrong.
    """
    try:
        return encode_value(_decode(value)) == value
    # Whatever is wrong with it: the slower way says what.
    except (MsgspecError, Rejected, RecursionError, ValueError, TypeError):
        return False


def _large_in(part: Any, name: str) -> str | None:
    """The innermost name of an integer of more than 64 bits in `part`, whose own name is `name`."""
    if isinstance(part, dict):
        found = (_large_in(member, key) for key, member in part.items())
    elif isinstance(part, list | tuple):
        found = (_large_in(member, name) for member in part)
    else:
        return name if type(part) is int and not -(2**63) <= part < 2**64 else None
    return next(filter(None, found), None)


def _header(small: int, wide: int, count: int) -> bytes:
    """The msgpack header of an array or map of `count` items (fewer than 2**16)."""
    return bytes((small | count,)) if count < 16 else bytes((wide, count >> 8, count & 0xFF))


@lru_cache(maxsize=64)
def _packed_name(name: str) -> bytes:
    packed: bytes = msgpack.packb(name)
    return packed


class _ObjectCount:
    """Refuses a frame that would become too many objects while it is being decoded."""

    def __init__(self) -> None:
        self.containers = 0

    def take_list(self, items: list[Any]) -> list[Any]:
        self._add()
        return items

    def take_map(self, pairs: list[tuple[str, Any]]) -> dict[str, Any] | NotAMap:
        self._add()
        return _map(pairs)

    def _add(self) -> None:
        self.containers += 1
        if self.containers > CONTAINERS_MAX:
            raise ValueError(f"more than {CONTAINERS_MAX} arrays and maps")


def _map(pairs: list[tuple[str, Any]]) -> dict[str, Any] | NotAMap:
    found = dict(pairs)
    return found if len(found) == len(pairs) else NotAMap()


def _json_map(pairs: list[tuple[str, Any]]) -> dict[str, Any] | bytes | NotAMap:
    found = _map(pairs)
    if isinstance(found, dict) and BYTES_KEY in found:
        return _bytes_of(found)
    return found


def _bytes_of(wrapped: dict[str, Any]) -> bytes | NotAMap:
    text = wrapped[BYTES_KEY]
    if len(wrapped) != 1 or not isinstance(text, str):
        return NotAMap()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return NotAMap()


def _json_default(value: Any) -> Any:
    if isinstance(value, bytes):
        return {BYTES_KEY: base64.b64encode(value).decode()}
    if isinstance(value, Struct):
        return to_builtins(value, builtin_types=(bytes,))
    raise TypeError(f"{type(value).__name__} is not JSON")


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_json_encoder = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_json_default
)
_json_decoder = json.JSONDecoder(object_pairs_hook=_json_map, parse_constant=_not_a_number)


def _refuse_extension(code: int, _: bytes) -> NoReturn:
    raise ValueError(f"extension type {code}")


def _check_size(frame: bytes) -> None:
    if len(frame) > FRAME_BYTES_MAX:
        reason = f"frame of {len(frame)} bytes, at most {FRAME_BYTES_MAX} are allowed"
        raise RemoteProtocolError(reason, CLOSE_TOO_BIG)


def _checked(messages: list[Any]) -> list[Any]:
    if not 0 < len(messages) <= MESSAGES_PER_FRAME_MAX:
        reason = f"{len(messages)} messages in a frame, 1 to {MESSAGES_PER_FRAME_MAX} are allowed"
        raise RemoteProtocolError(reason, CLOSE_PROTOCOL_ERROR)
    return messages


def _malformed(reason: str, error: BaseException | None = None) -> RemoteProtocolError:
    detail = f": {_brief(error)}" if error is not None else ""
    return RemoteProtocolError(reason + detail, CLOSE_INVALID_BYTES)


def _brief(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:200]
