"""Every operation and condition of the core has its form on the wire, and comes out as itself."""

import typing

import msgspec
import pytest
from msgspec import Struct

from blackboard.core import commit as core
from blackboard.core.fields import checks_of
from blackboard.errors import LocalProtocolError
from blackboard.wire.frames import MSGPACK
from blackboard.wire.requests import write_commit

SAMPLES: dict[str, object] = {
    "key": "public/a",
    "prefix": "public/a",
    "value": b"\x01",
    "holder": "ada",
    "fence": 3,
    "ttl_ms": 1_000,
    "by": 2,
    "revision": 1,
    "since": 1,
    "wait": True,
}
NOUNS: list[type[Struct]] = [*typing.get_args(core.AskedOp), *typing.get_args(core.Condition)]


def test_every_operation_may_be_asked_for() -> None:
    """But for the one that only a restore has, which the service computes."""
    assert {*typing.get_args(core.AskedOp), core.PutBack} == {*typing.get_args(core.Op)}
    part = core.Commit(core.CommitId("ada", 0, "i", 1), "e", (core.PutBack("public/a", None),))
    with pytest.raises(LocalProtocolError):
        write_commit("b", part, MSGPACK)


@pytest.mark.parametrize("kind", NOUNS)
def test_a_part_keeps_every_field(kind: type[Struct]) -> None:
    """And its text is checked: keys, prefixes, holders."""
    fields = {name: SAMPLES[name] for name in kind.__struct_fields__}
    tag = kind.__struct_config__.tag
    union = typing.Union[core.AskedOp, core.Condition]  # noqa: UP007 - of two unions
    noun = msgspec.convert({"kind": tag, **fields}, union, builtin_types=(bytes,))
    assert type(noun) is kind
    assert {name: getattr(noun, name) for name in fields} == fields
    checks_of(kind)(noun)
    for name in {"key", "prefix", "holder"} & fields.keys():
        with pytest.raises(Exception, match=name):
            checks_of(kind)(kind(**{**fields, name: "a b"}))
