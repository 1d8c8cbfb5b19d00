"""The quick way to read news gives what the long way gives, and nothing else."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from blackboard.core.commit import LogEntry, Receipt
from blackboard.core.watch import Position
from blackboard.errors import RemoteProtocolError
from blackboard.wire import answers
from blackboard.wire.answers import ReceiptMessage
from blackboard.wire.frames import CONTAINERS_MAX, MSGPACK
from blackboard.wire.session import Answered, Changed, pack_revisions, read_quickly
from tests.unit.wire.drawing import log_entries
from tests.unit.wire.pair import Pair

RECEIPT: dict[str, Any] = {"revision": 7, "time_ms": 9, "results": [None], "level": "disk"}
CHANGES: dict[str, Any] = {"watch": 1, "position": "e:7:", "revisions": []}
REVISION: dict[str, Any] = {
    "revision": 7,
    "time_ms": 9,
    "author": "ada",
    "changes": [{"kind": "put", "key": "public/a", "value": b"\x01"}],
    "digest": "00" * 32,
}


def frame(*messages: dict[str, Any]) -> bytes:
    """A frame of messages."""
    return MSGPACK.join([MSGPACK.pack(message) for message in messages])


def changes(**members: Any) -> dict[str, Any]:
    """A message of changes with some members in place of its own."""
    return {"method": "changes", "params": {**CHANGES, **members}}


@settings(max_examples=40)
@given(entries=st.lists(log_entries, max_size=2), watch=st.integers(0, 2**31))
def test_changes_are_read_as_the_long_way_reads_them(entries: list[LogEntry], watch: int) -> None:
    """Whatever a watch may be sent."""
    pair, position = Pair(MSGPACK), Position("e", 7, "0f")
    pair.server.send_changes(watch, position, pack_revisions(entries, MSGPACK))
    (sent,) = pair.server.bytes_to_send()
    assert read_quickly(sent)
    told = [Changed(watch, position, tuple(entries))]
    assert pair.client.receive(sent) == told
    unusual = frame({"jsonrpc": "2.0", **MSGPACK.split(sent)[0]})
    assert not read_quickly(unusual)
    assert pair.client.receive(unusual) == told


@pytest.mark.parametrize("results", [[], [None], [7, "public/a", ["ada", 1], []]])
def test_a_receipt_is_read_in_either_way(results: list[Any]) -> None:
    """As news, and from a map."""
    receipt = {**RECEIPT, "results": results, "duplicate": True}
    (message,) = read_quickly(frame({"id": 3, "result": receipt}))
    assert (message.id, message.result) == (3, answers.read(ReceiptMessage, receipt))
    told = tuple(tuple(result) if isinstance(result, list) else result for result in results)
    assert message.result == Receipt(7, 9, told, "disk", duplicate=True)


@pytest.mark.parametrize("member", ["revision", "time_ms", "results", "level"])
def test_a_receipt_without_a_member_is_none(member: str) -> None:
    """Nor is anything else."""
    with pytest.raises(RemoteProtocolError, match=member):
        answers.read(
            ReceiptMessage, {name: value for name, value in RECEIPT.items() if name != member}
        )
    with pytest.raises(RemoteProtocolError, match="Expected"):
        answers.read(ReceiptMessage, 7)


@pytest.mark.parametrize(
    "message",
    [
        {"id": 3, "result": {}},
        {"id": 3, "result": [1]},
        {"id": "3", "result": RECEIPT},
        {"id": 3, "error": {"code": 1, "message": "", "data": {}}},
        {"method": "draining", "params": {}},
        {"method": "cancelled", "params": CHANGES},
        changes(more=True),
        changes(watch="1"),
        changes(revisions=[{**REVISION, "note": 1}]),
        changes(revisions=[{**REVISION, "changes": [{"kind": "nonsense", "key": "public/a"}]}]),
        changes(revisions=[{**REVISION, "nonsense": 1}]),
    ],
)
def test_what_is_unusual_is_left_to_the_long_way(message: dict[str, Any]) -> None:
    """One of several is enough."""
    assert read_quickly(frame(changes(revisions=[REVISION])))
    assert not read_quickly(frame(changes(revisions=[REVISION]), message))


def test_a_large_frame_is_left_to_the_long_way() -> None:
    """It counts what it builds."""
    assert not read_quickly(frame(changes(position="e" * CONTAINERS_MAX)))


@pytest.mark.parametrize(
    "message",
    [
        {"id": 3, "result": RECEIPT},
        {"result": RECEIPT},
        {"id": None, "method": None},
        changes(position="nonsense"),
        changes(revisions=[{**REVISION, "digest": "nonsense"}]),
    ],
)
def test_bad_news_is_the_peers_fault(message: dict[str, Any]) -> None:
    """An answer to no request, to none at all, nothing, no position, no digest."""
    with pytest.raises(RemoteProtocolError):
        Pair(MSGPACK).client.receive(frame(message))


def test_an_answer_is_taken_once() -> None:
    """Twice in one frame: the second is an answer to no request."""
    pair = Pair(MSGPACK)
    number = pair.client.send_request("commit", {})
    answer = {"id": number, "result": RECEIPT}
    with pytest.raises(RemoteProtocolError, match="an answer to no request"):
        pair.client.receive(frame(answer, answer))
    pair = Pair(MSGPACK)
    number = pair.client.send_request("commit", {})
    (event,) = pair.client.receive(frame(answer))
    assert event == Answered(number, answers.read(ReceiptMessage, RECEIPT))
    assert pair.client.in_flight == 0
