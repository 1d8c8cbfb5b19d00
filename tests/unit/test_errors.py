"""The error tree: stable codes, plain fields, the same error on the other side of a wire."""

import copy
import dataclasses
import inspect
from typing import Any

import pytest

from blackboard import errors
from blackboard.errors import (
    BY_CODE,
    BlackboardError,
    Conflict,
    Corrupt,
    DataDirectoryInUse,
    InvalidRequest,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    Rejected,
    RemoteProtocolError,
    Unavailable,
    from_fields,
)

KINDS = [*BY_CODE.values()]
SAMPLES: dict[str, Any] = {
    "bool": True,
    "str": "x",
    "int": 7,
    "str | None": "y",
    "int | None": 8,
    "list[str]": ["z"],
    "Any": b"z",
}


def sample(kind: type[BlackboardError]) -> BlackboardError:
    """An error of that kind with every field set."""
    values = [SAMPLES[_type_of(field)] for field in dataclasses.fields(kind)]
    return kind(*values)


def _type_of(field: "dataclasses.Field[Any]") -> str:
    if field.type is Any:
        return "Any"
    return field.type.__name__ if isinstance(field.type, type) else str(field.type)


def test_every_kind_has_a_code_of_its_own() -> None:
    """And every class of the module stands in the tree."""
    found = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, BlackboardError)
    }
    assert {*KINDS, BlackboardError} == found
    assert len({kind.code for kind in found}) == len(found)
    assert all(BY_CODE[kind.code] is kind for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_an_error_crosses_a_wire(kind: type[BlackboardError]) -> None:
    """By its code and its fields, all of them primitives or lists of names."""
    error = sample(kind)
    again = from_fields(error.code, error.fields())
    assert type(again) is kind
    assert again.fields() == error.fields()
    assert str(again) == str(error)
    assert all(
        isinstance(value, (str, int, bytes, list, type(None))) for value in error.fields().values()
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_an_error_can_be_copied(kind: type[BlackboardError]) -> None:
    """So that two tasks never share one traceback; also between processes."""
    error = sample(kind)
    again = copy.copy(error)
    assert again is not error
    assert again.fields() == error.fields()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_a_message_names_the_code_and_is_one_line(kind: type[BlackboardError]) -> None:
    """Or the words of it."""
    text = str(sample(kind))
    assert kind.code.split("_")[0] in text
    assert "\n" not in text


def test_what_may_be_tried_again() -> None:
    """Only what may not have been done at all, or can be asked for again."""
    later = {Overloaded, RateLimited}
    assert {kind for kind in KINDS if kind.retryable} == {Unavailable, OutcomeUnknown} | later
    assert not any(kind.retryable for kind in KINDS if issubclass(kind, Rejected))


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("no_such_code", {}),
        ("corrupt", {"what": "x"}),
        ("error", {}),
    ],
)
def test_what_is_no_error_of_ours_is_a_fault_of_the_peer(code: str, fields: dict[str, Any]) -> None:
    """Unknown codes and missing fields; never an exception of another kind."""
    assert isinstance(from_fields(code, fields), RemoteProtocolError)


def test_fields_of_a_later_version_are_ignored() -> None:
    """A peer may know more than we do."""
    error = from_fields("corrupt", {"what": "x", "reason": "y", "later": 1})
    assert error.fields() == {"what": "x", "reason": "y"}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            Conflict("public/a", 3, 5, by="bob", at_revision=5),
            "conflict: public/a is at revision 5, expected at revision 3, "
            "last written by bob at revision 5",
        ),
        (Conflict("public/a", 0, 5), "conflict: public/a is at revision 5, expected absent"),
        (Conflict("public/a", -1, 0), "conflict: public/a is absent, expected present"),
        (InvalidRequest("ops", "too few"), "invalid request: ops: too few"),
        (Corrupt("file", "damaged"), "corrupt: what='file' reason='damaged'"),
        (
            DataDirectoryInUse("here", 12, "ws://there"),
            "data directory here is in use by process 12; "
            "connect to it: blackboard.connect('ws://there')",
        ),
        (
            DataDirectoryInUse("here", 12, None),
            "data directory here is in use by process 12; stop it first",
        ),
    ],
)
def test_messages_are_derived_from_the_fields(error: BlackboardError, text: str) -> None:
    """For people; programs read the fields."""
    assert str(error) == text
