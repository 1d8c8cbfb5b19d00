"""docs/architecture.md is true: every file and function that it names exists."""

import ast
import re

import pytest

import blackboard
from blackboard.server.gates import GATES
from tests.source_tree import ROOT, Source
from tools import architecture_picture

PAGE = ROOT / "docs/architecture.md"
PICTURE = ROOT / "docs/architecture.svg"
_QUOTED = re.compile(r"`([^`\s]+)`")
_IN_PICTURE = re.compile(r'class="file"[^>]*>([^<]+)<')
_LISTED = re.compile(r"^ *\d\. +`([^`]+)`", re.MULTILINE)
_PATH = re.compile(r"[\w/]+(?:/|\.py|\.lua)")


def names_in(text: str) -> list[tuple[str, str]]:
    """What `text` quotes as (path, name in it): `client/board.py::Board.put`, `core/`."""
    named = (quoted.partition("::") for quoted in _QUOTED.findall(text))
    return [(path, name) for path, _, name in named if _PATH.fullmatch(path)]


def defines(source: Source, name: str) -> bool:
    """Whether `name`, perhaps dotted, is a class, a function or a method of that file; a method may
    be made by a call, `pin = _changing(...)`."""
    body: list[ast.stmt] = source.tree.body
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for part in name.split("."):
        match [node for node in body if isinstance(node, kinds) and node.name == part]:
            case [found, *_]:
                body = found.body
            case []:
                made = [node.targets for node in body if isinstance(node, ast.Assign)]
                return any(isinstance(one, ast.Name) and one.id == part for [one] in made)
    return True


def missing(names: list[tuple[str, str]]) -> list[str]:
    """Those that do not exist: paths are below blackboard/ or the repository's root."""
    offenders = []
    for path, name in names:
        places = [place for place in (ROOT / "blackboard" / path, ROOT / path) if place.exists()]
        if not places:
            offenders.append(path)
        elif name and not defines(Source(path, places[0].read_text("utf-8")), name):
            offenders.append(f"{path}::{name}")
    return offenders


def test_everything_that_the_page_names_exists() -> None:
    named = names_in(PAGE.read_text("utf-8"))
    assert len([name for _, name in named if name]) > 30
    assert missing(named) == []


def test_everything_that_newcomers_are_led_to_exists() -> None:
    """By the walks through a verb and an adapter, but for the adapter that is made there."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    text = text[text.index("## Add a verb") : text.index("## How tests are laid out")]
    named = [(path, name) for path, name in names_in(text) if "acme" not in path]
    assert len([name for _, name in named if name]) >= 6
    assert missing(named) == []


def test_everything_that_the_picture_names_exists() -> None:
    found = " ".join(_IN_PICTURE.findall(PICTURE.read_text("utf-8"))).split()
    assert len(found) > 5
    assert missing([(path, "") for path in found]) == []


def test_the_picture_is_what_the_command_draws() -> None:
    """`make pictures`; a box that is moved by hand would be moved back."""
    assert PICTURE.read_text("utf-8") == architecture_picture.drawn()


def test_the_package_names_the_same_five_files() -> None:
    section = PAGE.read_text("utf-8").partition("## Five files")[2].partition("\n## ")[0]
    five = _LISTED.findall(section)
    assert len(five) == 5
    assert _LISTED.findall(blackboard.__doc__ or "") == five


@pytest.mark.parametrize(
    ("text", "offenders"),
    [
        ("`client/board.py::Board.put` and `core/`", []),
        ("`client/board.py::Board.fly`", ["client/board.py::Board.fly"]),
        ("`client/board.py::fly.put`", ["client/board.py::fly.put"]),
        ("`client/bored.py::Board`", ["client/bored.py"]),
        ("`tests/test_layers.py`, `board.put`, `system/checkpoints/<name>`", []),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, offenders: list[str]) -> None:
    assert missing(names_in(text)) == offenders


def test_the_page_has_the_gates_of_a_commit() -> None:
    """All of them, in their order, as the code has them."""
    section = PAGE.read_text("utf-8").partition("### The gates of a commit")[2]
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    assert rows[2:] == [
        f"| {gate.name} | {gate.when.text} | {gate.refuses} | {gate.why} |" for gate in GATES
    ]
