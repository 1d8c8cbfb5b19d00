"""Reading answers: exactly what was written, and nothing that was not."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from blackboard.core.commit import Head, LogEntry, LogPage, Reading
from blackboard.core.watch import Position
from blackboard.errors import RemoteProtocolError
from blackboard.wire import answers, reading
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from tests.unit.wire.drawing import entries, epochs, keys, log_entries, names, revisions
from tests.unit.wire.test_messages import junk

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)
heads = st.builds(Head, revisions, epochs, revisions, revisions, revisions)
readings = st.builds(
    Reading, revisions, names, st.lists(entries, max_size=3).map(tuple), st.none() | keys
)
results = st.lists(
    st.none() | st.integers(-(2**53), 2**53) | keys | st.lists(keys, max_size=3).map(tuple),
    max_size=4,
).map(tuple)


def through(encoding: Encoding, message: Any) -> Any:
    """What comes out at the other end."""
    (found,) = encoding.split(encoding.join([encoding.pack(message)]))
    return found


@both
@given(head=heads)
def test_a_head_survives(encoding: Encoding, head: Head) -> None:
    """All its fields."""
    assert reading.read_as(Head, through(encoding, answers.write_noun(head))) == head


@both
@given(found=readings)
def test_a_reading_survives(encoding: Encoding, found: Reading) -> None:
    """All its entries, values byte for byte."""
    message = through(encoding, answers.write_reading(found, encoding))
    assert reading.read_reading(message, encoding) == found


@both
@given(head=heads, shown=st.lists(log_entries, max_size=3), end=revisions)
def test_a_page_of_the_log_survives(
    encoding: Encoding, head: Head, shown: list[LogEntry], end: int
) -> None:
    """All that a reader may see of each entry."""
    page = LogPage(head, tuple(shown), end)
    assert reading.read_log(through(encoding, answers.write_log(page, encoding)), encoding) == page


@both
@given(computed=results)
def test_results_survive(encoding: Encoding, computed: tuple[Any, ...]) -> None:
    """Integers, keys, lists of keys and nothing."""
    message = {"results": answers.write_results(computed)}
    assert reading.read_results(through(encoding, message)) == computed


READERS: dict[str, Any] = {
    "head": lambda message: reading.read_as(Head, message),
    "reading": lambda message: reading.read_reading(message, JSON),
    "log": lambda message: reading.read_log(message, MSGPACK),
    "results": reading.read_results,
    "revisions": lambda message: reading.read_revisions(message, MSGPACK),
    "position": reading.read_position,
    "int": lambda message: reading.read_int(message, "a"),
    "str": lambda message: reading.read_str(message, "a"),
    "grounds": reading.read_grounds,
}


@pytest.mark.parametrize("reader", READERS)
@given(message=junk)
def test_a_reader_of_junk_blames_the_peer(reader: str, message: Any) -> None:
    """It returns something of the right kind or raises RemoteProtocolError."""
    with contextlib.suppress(RemoteProtocolError):
        READERS[reader](message)


@given(head=heads, data=st.data())
def test_a_wrong_type_anywhere_is_noticed(head: Head, data: st.DataObject) -> None:
    """A number that is a string, or a string that is a number, does not slip through."""
    message: dict[str, Any] = dict(answers.write_noun(head))
    name = data.draw(st.sampled_from(sorted(message)))
    message[name] = data.draw(st.sampled_from(["1", 1.0, None, True, []]))
    with pytest.raises(RemoteProtocolError):
        reading.read_as(Head, message)


@pytest.mark.parametrize(
    "error",
    [None, 7, {}, {"data": None}, {"data": {"code": 1, "fields": {}}}, {"data": {"code": "x"}}],
)
def test_an_error_that_cannot_be_read_is_the_peers(error: object) -> None:
    """It is still an error."""
    assert isinstance(reading.read_error(error), RemoteProtocolError)


def test_a_position_survives() -> None:
    """As its resume token."""
    position = Position("0123abcd", 7, "00ff")
    assert reading.read_position(str(position)) == position
