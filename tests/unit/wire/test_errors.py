"""Errors on the wire keep their code and fields, and each has a number."""

import pytest

from blackboard.errors import BY_CODE, BlackboardError, Conflict, InvalidRequest, from_fields
from blackboard.wire import errors
from blackboard.wire.frames import JSON, MSGPACK, Encoding

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)


def test_every_error_has_a_number_of_its_own() -> None:
    """The table is complete and no number stands twice."""
    assert errors.RPC_CODES.keys() == BY_CODE.keys()
    numbers = [*errors.RPC_CODES.values(), errors.METHOD_NOT_FOUND]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("code", BY_CODE)
@both
def test_every_error_survives(encoding: Encoding, code: str) -> None:
    """Written, packed, split and read it has the same type and the same fields."""
    kind = BY_CODE[code]
    names = kind.__dataclass_fields__
    error = from_fields(code, {name: f"{name}-1" for name in names})
    (message,) = encoding.split(encoding.join([encoding.pack(errors.write_error(error))]))
    found = errors.read_error(message)
    assert type(found) is type(error)
    assert found.fields() == error.fields()
    assert message["code"] == errors.RPC_CODES[code]


def test_an_unknown_method_has_json_rpcs_number() -> None:
    """-32601, as every JSON-RPC client expects."""
    error = errors.write_error(InvalidRequest(field="method", reason="there is no method x"))
    assert (error["code"], error["data"]["code"]) == (-32601, "invalid_request")


def test_the_value_in_a_conflict_survives() -> None:
    """Any value, so that an agent can plan again without another read."""
    conflict = Conflict("public/a", 3, 5, "bob", 5, 9, {"n": [1, b"x", None]})
    for encoding in (MSGPACK, JSON):
        packed = encoding.pack(errors.write_error(conflict))
        (message,) = encoding.split(encoding.join([packed]))
        found = errors.read_error(message)
        assert isinstance(found, BlackboardError)
        assert found.fields() == conflict.fields()
