"""What a rule may know of a value: its type, and which integer it is."""

import msgpack
import pytest
from hypothesis import given, strategies as st

from blackboard.core.commit import kind_of, read_integer, write_integer
from blackboard.limits import INTEGER_MAX


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "boolean"),
        (False, "boolean"),
        (0, "integer"),
        (-1, "integer"),
        (-33, "integer"),
        (2**63, "integer"),
        (1.5, "float"),
        ("", "string"),
        ("x" * 40, "string"),
        ("x" * 70_000, "string"),
        (b"", "bytes"),
        (b"x" * 300, "bytes"),
        ([], "list"),
        ([0] * 20, "list"),
        ([0] * 70_000, "list"),
        ({}, "map"),
        ({str(i): i for i in range(20)}, "map"),
    ],
)
def test_the_first_byte_tells_the_type(value: object, kind: str) -> None:
    """Of every type and size class."""
    assert kind_of(msgpack.packb(value)) == kind


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\xc7", b"\xd4"])
def test_what_no_value_begins_with_is_unknown(value: bytes) -> None:
    """Nothing, the byte that is never used, extension types."""
    assert kind_of(value) == "unknown"


def test_every_first_byte_has_the_type_that_msgpack_gives_it() -> None:
    """The table against the library, for all 256 bytes."""
    names = {int: "integer", dict: "map", list: "list", str: "string", bytes: "bytes"}
    names |= {bool: "boolean", float: "float", type(None): "null", msgpack.ExtType: "unknown"}
    for first in range(256):
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(bytes([first]) + bytes(2**8) * 3)
        try:
            found = names[type(unpacker.unpack())]
        except (msgpack.OutOfData, ValueError, msgpack.UnpackException):
            found = None  # longer than what was fed, or no value at all
        assert found in (None, kind_of(bytes([first]))), hex(first)


@given(st.integers(-INTEGER_MAX, INTEGER_MAX))
def test_integers_come_back(number: int) -> None:
    """Written in the one form that the codec writes, too."""
    assert read_integer(write_integer(number)) == number
    assert write_integer(number) == msgpack.packb(number)


@pytest.mark.parametrize("number", [INTEGER_MAX + 1, -INTEGER_MAX - 1, 2**64 - 1])
def test_what_lua_cannot_count_is_no_integer(number: int) -> None:
    """Beyond 2**53 a double skips integers."""
    assert read_integer(msgpack.packb(number)) is None


@pytest.mark.parametrize("value", [None, True, 1.0, "1", b"1", [1], {"a": 1}])
def test_other_types_are_no_integers(value: object) -> None:
    """Not even those that compare equal to one."""
    assert read_integer(msgpack.packb(value)) is None
