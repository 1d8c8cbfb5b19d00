"""Every operation and condition of the core has its form on the wire, and comes out as itself."""

import typing

import pytest

from blackboard.core import commit as core
from blackboard.wire import parts

SAMPLES: dict[str, object] = {
    "key": "public/a",
    "prefix": "public/a",
    "holder": "ada",
    "fence": 3,
    "ttl_ms": 1_000,
    "by": 2,
    "revision": 1,
    "since": 1,
    "wait": True,
}


def kinds(union: object) -> list[type[parts.WireModel]]:
    """The members of a discriminated union."""
    return list(typing.get_args(typing.get_args(union)[0]))


@pytest.mark.parametrize(
    ("union", "nouns"),
    [(parts.Operation, core.Op), (parts.Condition, core.Condition)],
    ids=["operations", "conditions"],
)
def test_every_noun_has_its_part(union: object, nouns: object) -> None:
    """But for the one that only a restore has, which the service computes."""
    named = {noun.__name__ for noun in typing.get_args(nouns)} - {core.PutBack.__name__}
    assert {kind.__name__ for kind in kinds(union)} == named


@pytest.mark.parametrize(
    "kind",
    [k for k in kinds(parts.Operation) + kinds(parts.Condition) if k.__name__ not in "PutAppend"],
)
def test_a_part_keeps_every_field(kind: type[parts.WireModel]) -> None:
    """`Put` and `Append` hold a value, whose form depends on the encoding: see test_messages.py."""
    fields = {name: SAMPLES[name] for name in kind.model_fields if name != "kind"}
    tag = typing.get_args(kind.model_fields["kind"].annotation)[0]
    noun = kind.model_validate({"kind": tag, **fields}).to_core()  # type: ignore[attr-defined]
    assert type(noun).__name__ == kind.__name__
    assert {name: getattr(noun, name) for name in fields} == fields
