"""Values of a program's own types: dataclasses, structs and models, there and back."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct
from pydantic import BaseModel

from blackboard.errors import InvalidRequest, LimitExceeded, TypeMismatch
from blackboard.limits import VALUE_BYTES_MAX
from blackboard.wire.codec import as_type, decode_value, encode_value


class Mood(Enum):
    CALM = "calm"


@dataclass
class Source:
    title: str
    seen: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    raw: bytes = b"\x00\xff"


@dataclass
class Report:
    usd_bn: float
    sources: list[Source] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)


class Point(Struct):
    x: int
    y: int | None = None


class Inner(BaseModel):
    id: UUID
    price: Decimal


class Valuation(BaseModel):
    usd_bn: int
    mood: Mood = Mood.CALM
    raw: bytes = b"\xfe"
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    parts: list[Inner] = []


@dataclass
class Mixed:
    valuation: Valuation
    point: Point


INNER = Inner(id=UUID(int=7), price=Decimal("1.10"))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Source("10-K"), Source),
        (Report(2.5, [Source("a"), Source("b")], {"x"}), Report),
        (Point(1), Point),
        (Valuation(usd_bn=7, parts=[INNER]), Valuation),
        (Mixed(Valuation(usd_bn=1), Point(2, 3)), Mixed),
        ([Valuation(usd_bn=1), Valuation(usd_bn=2)], list[Valuation]),
        ({"a": Source("10-K")}, dict[str, Source]),
        ([1, 2], list[int]),
        (7, int),
    ],
    ids=str,
)
def test_a_record_comes_back(value: Any, kind: Any) -> None:
    assert as_type(decode_value(encode_value(value)), kind, "public/a") == value


@pytest.mark.parametrize(
    ("value", "kind", "place"),
    [
        ({"usd_bn": "much"}, Report, "$.usd_bn: Expected `float`, got `str`"),
        ({"usd_bn": 1, "sources": [{}]}, Report, "$.sources[0]: "),
        ({"usd_bn": "much"}, Valuation, "$.usd_bn: "),
        ({"usd_bn": 1, "parts": [{"id": 1, "price": 2}]}, Valuation, "$.parts.0.id: "),
        ([{"usd_bn": 1}, {}], list[Valuation], "$[1]"),
        (None, Valuation, "$"),
        ("text", int, "$: Expected `int`, got `str`"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(value: Any, kind: Any, place: str) -> None:
    with pytest.raises(TypeMismatch) as refused:
        as_type(value, kind, "public/a")
    assert refused.value.key == "public/a"
    assert refused.value.found.startswith(place)


@dataclass
class Odd:
    value: Any


@pytest.mark.parametrize("value", [Odd(object()), Odd({1: 2}), Odd(float("nan")), {"a": object()}])
def test_what_cannot_be_encoded_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        encode_value(value)


def test_what_is_too_large_or_too_deep_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        encode_value(Odd("x" * VALUE_BYTES_MAX))
    endless = Odd(None)
    endless.value = endless
    with pytest.raises((InvalidRequest, LimitExceeded)):
        encode_value(endless)


@pytest.mark.parametrize("kind", [object.__init__, Path, list[complex]], ids=str)
def test_a_type_of_no_value_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="as_type"):
        as_type([{}], kind, "public/a")
