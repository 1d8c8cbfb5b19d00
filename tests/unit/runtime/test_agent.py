"""What a class of agents says of itself."""

from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from blackboard.errors import InvalidRequest
from blackboard.runtime.agent import Agent
from blackboard.runtime.context import Context


class Mind(BaseModel):
    """A state."""

    n: int = 7


class Thinker(Agent[Mind]):
    """An agent."""

    package = "thinkers 1.2"
    parameters: ClassVar[dict[str, Any]] = {"model": "m"}

    async def step(self, ctx: Context[Mind]) -> None:
        """Think."""


class Elder(Thinker):
    """Of another kind, with the same state."""

    schema_version = 3
    migrations: ClassVar[dict[int, Any]] = {1: dict, 2: dict}


def test_a_kind_is_the_class_and_a_name_is_the_kind() -> None:
    """Unless configured otherwise; a subclass is a kind of its own."""
    assert (Thinker.kind, Elder.kind, Thinker().name) == ("Thinker", "Elder", "thinker")
    assert (Elder("ada").name, repr(Elder("ada"))) == ("ada", "<Elder 'ada'>")
    renamed: Any = type("Renamed", (Thinker,), {"kind": "Thinker"})
    assert renamed.kind == "Thinker"


def test_the_state_is_what_the_class_was_given() -> None:
    """Also of a subclass."""
    assert Thinker.state_model is Elder.state_model is Mind
    assert Elder().first() == Mind()


def test_it_declares_what_everybody_may_know() -> None:
    """And what its schema is."""
    assert Elder().declared() == {
        "kind": "Elder",
        "schema_version": 3,
        "package": "thinkers 1.2",
        "parameters": {"model": "m"},
    }
    schema = Elder().schema
    assert (schema.kind, schema.version, sorted(schema.migrations)) == ("Elder", 3, [1, 2])


@pytest.mark.parametrize("known", [{1: dict}, {2: dict, 4: dict}, {3: dict}])
def test_migrations_have_no_gap(known: dict[int, Any]) -> None:
    """From the first one that is known to the version before this one."""
    with pytest.raises(TypeError, match="has migrations from"):
        type("Broken", (Thinker,), {"schema_version": 3, "migrations": known})


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 129])
def test_what_is_no_name_is_refused(name: str) -> None:
    """At once, not at the first step."""
    with pytest.raises(InvalidRequest):
        Thinker(name)


def test_an_agent_without_a_step_cannot_be_made() -> None:
    """At once, not at the first step."""
    unfinished: Any = type("Unfinished", (Agent,), {})
    with pytest.raises(TypeError, match=r"abstract method '?step"):
        unfinished()
