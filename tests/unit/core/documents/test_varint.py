"""Numbers, strings and buffers of CRDT peers, and what is none."""

import pytest
from hypothesis import given, strategies as st

from blackboard.core.documents.update import Reader, write_buffer, write_number, write_text
from blackboard.errors import InvalidRequest
from blackboard.limits import INTEGER_MAX


@given(st.integers(0, INTEGER_MAX))
def test_a_number_comes_back(number: int) -> None:
    reader = Reader(write_number(number))
    assert (reader.number(), reader.is_empty) == (number, True)


@given(st.text(), st.binary())
def test_text_and_bytes_come_back(text: str, data: bytes) -> None:
    reader = Reader(write_text(text) + write_buffer(data))
    assert (reader.text(), reader.buffer(), reader.is_empty) == (text, data, True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        write_number(INTEGER_MAX + 1),
        b"\xff" * 100 + b"\x01",
    ],
)
def test_what_is_no_number_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Reader(data).number()


def test_the_largest_number_passes() -> None:
    assert Reader(write_number(INTEGER_MAX)).number() == INTEGER_MAX


def test_a_length_beyond_the_end_is_not_believed() -> None:
    with pytest.raises(InvalidRequest, match="announces more"):
        Reader(write_number(INTEGER_MAX) + b"abc").buffer()
    with pytest.raises(InvalidRequest, match="too early"):
        Reader(b"abc").skip(4)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="UTF-8"):
        Reader(b"\x01\xff").text()


def test_the_error_names_the_field() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Reader(b"", "frame").byte()
    assert refused.value.field == "frame"
