"""Every result, and what a watch is sent, has the bytes that were recorded of an earlier version.

The file is never written again: a message that changes breaks programs that others wrote.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from blackboard.core.watch import Position
from blackboard.server.http.dispatch import describe
from blackboard.wire import answers
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from blackboard.wire.methods import METHODS
from blackboard.wire.session import Changed, ClientSession, pack_changes, pack_revisions
from tests.unit.wire.pair import Pair
from tests.unit.wire.samples import LOG, PRINCIPALS, RESULTS

RECORDED: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("golden.json").read_text(encoding="utf-8")
)
POSITION: Final = Position("e", 7, "00ff")
both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)


def shown(packed: bytes, encoding: Encoding) -> str:
    """Bytes as they stand in the file."""
    return packed.hex() if encoding.binary else packed.decode()


def recorded(name: str, encoding: Encoding) -> list[Any]:
    """What was recorded of a method or a notification."""
    return [each[encoding.name] for each in RECORDED[name]]


def answered(result: Any, encoding: Encoding) -> str:
    """An answer to request 1."""
    return shown(encoding.pack({"id": 1, "result": result}), encoding)


def test_every_method_that_was_recorded_is_there() -> None:
    """`hello` was not, since its result differs from one service to the next."""
    assert RECORDED.keys() - {"changes"} <= METHODS.keys()
    assert RECORDED.keys() == RESULTS.keys() | {"whoami", "watch", "changes"}


@both
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_has_the_bytes_that_it_had(name: str, encoding: Encoding) -> None:
    """With every member, and with as few as may be."""
    kind = METHODS[name].result
    written = [answered(answers.write(kind, found, encoding), encoding) for found in RESULTS[name]]
    assert written == recorded(name, encoding)


@both
@pytest.mark.parametrize("name", RESULTS)
def test_what_was_recorded_is_read(name: str, encoding: Encoding) -> None:
    """And written again, it is the same: nothing is lost but what a message never has."""
    kind = METHODS[name].result
    for text in recorded(name, encoding):
        packed = bytes.fromhex(text) if encoding.binary else text.encode()
        (message,) = encoding.split(encoding.join([packed]))
        found = answers.read(kind, message["result"], encoding)
        assert (
            kind is None
            or name == "audit"
            or answered(answers.write(kind, found, encoding), encoding) == text
        )


@both
def test_who_one_is_has_the_bytes_that_it_had(encoding: Encoding) -> None:
    """The answers to `whoami` and `refresh`, and where a watch begins."""
    written = [answered(describe(principal, "ada"), encoding) for principal in PRINCIPALS]
    assert written == recorded("whoami", encoding)
    watch = answers.write(METHODS["watch"].result, POSITION, encoding)
    assert [answered(watch, encoding)] == recorded("watch", encoding)


@both
def test_a_delivery_has_the_bytes_that_it_had(encoding: Encoding) -> None:
    """Whole, in pieces, and as a progress mark; a client joins the pieces."""
    for told, (entries, bytes_max) in zip(
        recorded("changes", encoding), [(LOG, 10**6), (LOG, 60), ((), 10**6)], strict=True
    ):
        pieces = pack_revisions(entries, encoding, bytes_max=bytes_max) if entries else []
        messages = pack_changes(3, POSITION, pieces, encoding)
        assert [shown(message, encoding) for message in messages] == told
        (event,) = _received(Pair(encoding).client, encoding.join(messages))
        assert (event.watch, event.position) == (3, POSITION)
        assert [entry.revision for entry in event.revisions] == [e.revision for e in entries]
        assert pack_revisions(event.revisions, encoding) == pack_revisions(entries, encoding)


def _received(client: ClientSession, frame: bytes) -> list[Changed]:
    return [event for event in client.receive(frame) if isinstance(event, Changed)]
