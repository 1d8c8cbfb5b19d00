"""The only thing that a rule reads inside a value: whether it is an integer, and which.

Values are msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md); the first byte tells
the type. Twin: the `integer` function of engines/redis/scripts/commit.lua.
"""

import msgpack

from blackboard.types import INTEGER_MAX

_KINDS: tuple[tuple[range, str], ...] = (
    (range(0x00, 0x80), "integer"),
    (range(0x80, 0x90), "map"),
    (range(0x90, 0xA0), "list"),
    (range(0xA0, 0xC0), "string"),
    (range(0xC0, 0xC1), "null"),
    (range(0xC2, 0xC4), "boolean"),
    (range(0xC4, 0xC7), "bytes"),
    (range(0xCA, 0xCC), "float"),
    (range(0xCC, 0xD4), "integer"),
    (range(0xD9, 0xDC), "string"),
    (range(0xDC, 0xDE), "list"),
    (range(0xDE, 0xE0), "map"),
    (range(0xE0, 0x100), "integer"),
)


def kind_of(value: bytes) -> str:
    """The JSON-like type of an encoded value: "integer", "string", "map" ..."""
    first = value[0] if value else 0xC1
    return next((name for codes, name in _KINDS if first in codes), "unknown")


def read_integer(value: bytes) -> int | None:
    """The integer that `value` encodes, None if it is no integer or beyond INTEGER_MAX."""
    if kind_of(value) != "integer":
        return None
    number: int = msgpack.unpackb(value)
    return number if abs(number) <= INTEGER_MAX else None


def write_integer(number: int) -> bytes:
    """Encode `number` in the shortest form, the only one that equal integers have."""
    encoded: bytes = msgpack.packb(number)
    return encoded
