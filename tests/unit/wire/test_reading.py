"""Reading answers: exactly what was written, and nothing that was not."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from blackboard.core.commit import Head, LogEntry, LogPage, Reading, Receipt
from blackboard.core.watch import Position
from blackboard.errors import RemoteProtocolError
from blackboard.wire import answers
from blackboard.wire.answers import (
    ChangesMessage,
    Greeted,
    KeysMessage,
    LogMessage,
    ReadingMessage,
    ReceiptMessage,
    RevisionMessage,
    WatchMessage,
)
from blackboard.wire.errors import read_error
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


def survives(kind: Any, found: Any, encoding: Encoding) -> bool:
    """Whether a result arrives as it was sent."""
    message = through(encoding, answers.write(kind, found, encoding))
    return bool(answers.read(kind, message, encoding) == found)


@both
@given(head=heads)
def test_a_head_survives(encoding: Encoding, head: Head) -> None:
    """All its fields."""
    assert survives(Head, head, encoding)


@both
@given(found=readings)
def test_a_reading_survives(encoding: Encoding, found: Reading) -> None:
    """All its entries, values byte for byte."""
    assert survives(ReadingMessage, found, encoding)


@both
@given(head=heads, shown=st.lists(log_entries, max_size=3), end=revisions)
def test_a_page_of_the_log_survives(
    encoding: Encoding, head: Head, shown: list[LogEntry], end: int
) -> None:
    """All that a reader may see of each entry."""
    page = LogPage(head, tuple(shown), end)
    assert survives(LogMessage, page, encoding)


@both
@given(computed=results)
def test_results_survive(encoding: Encoding, computed: tuple[Any, ...]) -> None:
    """Integers, keys, lists of keys and nothing."""
    assert survives(ReceiptMessage, Receipt(7, 9, computed, "disk"), encoding)


READERS: dict[str, tuple[Any, Encoding]] = {
    "head": (Head, MSGPACK),
    "reading": (ReadingMessage, JSON),
    "log": (LogMessage, MSGPACK),
    "receipt": (ReceiptMessage, MSGPACK),
    "revisions": (list[RevisionMessage], MSGPACK),
    "changes": (ChangesMessage, JSON),
    "position": (WatchMessage, MSGPACK),
    "keys": (KeysMessage, MSGPACK),
    "greeting": (Greeted, MSGPACK),
}


@pytest.mark.parametrize("reader", READERS)
@given(message=junk)
def test_a_reader_of_junk_blames_the_peer(reader: str, message: Any) -> None:
    """It returns something of the right kind or raises RemoteProtocolError."""
    kind, encoding = READERS[reader]
    with contextlib.suppress(RemoteProtocolError):
        answers.read(kind, message, encoding)


@given(head=heads, data=st.data())
def test_a_wrong_type_anywhere_is_noticed(head: Head, data: st.DataObject) -> None:
    """A number that is a string, or a string that is a number, does not slip through."""
    message: dict[str, Any] = answers.write(Head, head, MSGPACK)
    name = data.draw(st.sampled_from(sorted(message)))
    message[name] = data.draw(st.sampled_from(["1", 1.0, None, True, []]))
    with pytest.raises(RemoteProtocolError):
        answers.read(Head, message)


@pytest.mark.parametrize(
    "error",
    [None, 7, {}, {"data": None}, {"data": {"code": 1, "fields": {}}}, {"data": {"code": "x"}}],
)
def test_an_error_that_cannot_be_read_is_the_peers(error: object) -> None:
    """It is still an error."""
    assert isinstance(read_error(error), RemoteProtocolError)


def test_a_position_survives() -> None:
    """As its resume token."""
    assert survives(WatchMessage, Position("0123abcd", 7, "00ff"), MSGPACK)


def test_a_bad_answer_is_refused_with_path_and_reason() -> None:
    """Of the first member that is wrong."""
    entry = {"key": "public/a", "value": b"\x01", "mod_revision": 1, "create_revision": "1"}
    message = {"revision": 1, "epoch": "e", "entries": [entry]}
    with pytest.raises(RemoteProtocolError) as caught:
        answers.read(ReadingMessage, message)
    assert "bad reading" in caught.value.reason
    assert "Expected `int`, got `str` - at `$.entries[0].create_revision`" in caught.value.reason


@pytest.mark.parametrize("member", ["next_key", "revision", "entries"])
def test_null_is_not_an_absent_member(member: str) -> None:
    """The service leaves out what there is not."""
    message = {"revision": 1, "epoch": "e", "entries": [], member: None}
    with pytest.raises(RemoteProtocolError, match=member):
        answers.read(ReadingMessage, message)
