"""Which agent a process runs. How it runs and ends: test_processes.py."""

from typing import Any

import pytest

from blackboard.errors import InvalidRequest, Unavailable
from blackboard.runtime import child
from blackboard.runtime.child import agent_of
from blackboard.runtime.processes import Order, target_of
from blackboard.runtime.supervisor import AWAY_CODE
from tests.unit.runtime.crew import Counter


def order(target: str, name: str = "ada") -> Order:
    """What a starter tells."""
    return Order(target=target, name=name, url="http://127.0.0.1:1", board="main", policy={})


def test_the_class_that_was_named_is_made() -> None:
    """With the name that was given."""
    agent = agent_of(order(target_of(Counter)))
    assert (type(agent).__qualname__, agent.name) == ("Counter", "ada")


@pytest.mark.parametrize("target", ["json:dumps", "tests.unit.runtime.crew:Count"])
def test_what_is_no_agent_is_not_made(target: str) -> None:
    """Whatever else the module has."""
    with pytest.raises(InvalidRequest) as refused:
        agent_of(order(target))
    assert target in refused.value.reason


@pytest.mark.parametrize("target", ["no.such.module:Agent", "tests.unit.runtime.crew:Nobody"])
def test_what_is_not_there_is_an_error_of_imports(target: str) -> None:
    """So it ends the process with a trace that names it."""
    with pytest.raises((ImportError, AttributeError)):
        agent_of(order(target))


def test_a_board_that_is_away_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code tells the parent."""

    def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("the board", "it is away")

    monkeypatch.setattr(child, "connect", away)
    assert child.main(order(target_of(Counter)).model_dump_json()) == AWAY_CODE
