"""A board is removed by the command line: real processes and a real service."""

from collections.abc import Iterator

import pytest

from tests.acceptance.shell import Shell
from tests.acceptance.test_cli import all_examples


def _example(number: int) -> str:
    return [line for line in all_examples() if line.startswith("blackboard board remove")][number]


@pytest.fixture
def filled(shell: Shell) -> Iterator[Shell]:
    """A shell whose boards `main` and `trial` hold something."""
    with shell.service():
        shell.run("set", "public/plan", '"good"')
        shell.run("set", "public/plan", '"bold"', "--board", "trial")
        yield shell


def test_the_example_that_asks_needs_somebody_to_ask(filled: Shell) -> None:
    """Nothing is removed unless a person, or --yes, says so."""
    said = filled.run(*_example(0).split()[1:], code=2)
    assert "--yes" in said.stderr
    assert filled.json("get", "public/plan", "--board", "trial") == "bold"


def test_the_example_that_does_not_ask_removes_it(filled: Shell) -> None:
    """The other boards stay; it is in the audit."""
    with filled.script(_example(1)) as script:
        code, _, said = script.end()
    assert (code, "board trial is gone" in said) == (0, True)
    assert "trial" not in filled.out("boards")
    assert filled.json("board", "remove", "trial", "--yes") == {"board": "trial", "removed": True}
    assert filled.error("board", "remove", "none", "--yes", code=3)["code"] == "no_such_board"
    assert filled.json("get", "public/plan") == "good"
