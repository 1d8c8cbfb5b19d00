"""A client and a service of different versions understand each other, or say what they do not know.

What an earlier version wrote is read in test_golden.py; here is what a later one may write.
"""

from typing import Any

import pytest

from blackboard.errors import InvalidRequest, RemoteProtocolError
from blackboard.wire import answers
from blackboard.wire.errors import METHOD_NOT_FOUND, read_error
from blackboard.wire.frames import MSGPACK, Encoding
from blackboard.wire.methods import METHODS
from blackboard.wire.requests import parse
from blackboard.wire.session import Answered, HelloReceived, RequestRefused
from tests.unit.wire.pair import Pair, both
from tests.unit.wire.samples import RESULTS
from tests.unit.wire.test_golden import recorded


@both
@pytest.mark.parametrize("name", RESULTS)
def test_a_newer_service_adds_a_field_to_a_result(name: str, encoding: Encoding) -> None:
    """An older client reads the rest."""
    kind = METHODS[name].result
    for text in recorded(name, encoding):
        packed = bytes.fromhex(text) if encoding.binary else text.encode()
        (message,) = encoding.split(encoding.join([packed]))
        plain = message["result"]
        if isinstance(plain, dict):
            found = answers.read(kind, {**plain, "later": [1]}, encoding)
            assert found == answers.read(kind, plain, encoding)


@both
def test_a_newer_service_adds_a_field_to_its_welcome(encoding: Encoding) -> None:
    """The connection opens."""
    pair = Pair(encoding, greeted=False)
    pair.client.send_hello({})
    (hello,) = pair.to_server()
    assert isinstance(hello, HelloReceived)
    pair.server.welcome(hello.id, {"agent": "ada", "version": "9.0.0", "later": {"a": 1}})
    (welcome,) = pair.to_client()
    assert isinstance(welcome, Answered)


@both
def test_a_newer_client_asks_for_more(encoding: Encoding) -> None:
    """A method and a field are refused by name; the connection goes on."""
    with pytest.raises(InvalidRequest, match="teleport") as refused:
        parse("teleport", {}, encoding)
    assert refused.value.field == "method"
    for method, params in [
        ("hello", {"later": 1}),
        ("head", {"board": "b", "later": 1}),
    ]:
        with pytest.raises(InvalidRequest) as refused:
            parse(method, params, encoding)
        assert refused.value.field == "later"


@pytest.mark.parametrize("place", ["ops", "conditions"])
def test_a_newer_client_sends_another_kind_of_operation(place: str) -> None:
    """The commit is refused as a whole, and the record is named."""
    name = {"lane": 0, "incarnation": "i", "step": 1}
    params: dict[str, Any] = {"board": "b", "id": name, "epoch": "e", "ops": []}
    params[place] = [{"kind": "teleport", "key": "public/a"}]
    with pytest.raises(InvalidRequest) as refused:
        parse("commit", params, MSGPACK)
    assert refused.value.field.startswith(place)


def test_an_unknown_method_has_the_code_of_json_rpc() -> None:
    """And only it fails."""
    pair = Pair()
    packed = MSGPACK.pack({"id": 7, "method": "teleport", "params": {}})
    (refused,) = pair.server.receive(MSGPACK.join([packed]))
    assert isinstance(refused, RequestRefused)
    (frame,) = pair.server.bytes_to_send()
    (answer,) = MSGPACK.split(frame)
    assert answer["error"]["code"] == METHOD_NOT_FOUND
    assert "teleport" in answer["error"]["message"]


def test_a_newer_service_answers_with_an_unknown_error() -> None:
    """It is named, with its fields."""
    told = {"code": -32_999, "message": "?", "data": {"code": "teleported", "fields": {"to": 1}}}
    error = read_error(told)
    assert isinstance(error, RemoteProtocolError)
    assert "teleported" in error.reason
