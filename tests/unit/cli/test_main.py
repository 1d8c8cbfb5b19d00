"""The command as a whole: what it imports, what its help says, and that the docs say the same."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from blackboard import __main__ as process
from blackboard.cli.errors import MEANING, Exit
from blackboard.cli.main import app
from blackboard.server.settings import Settings
from tests.source_tree import ROOT

HEAVY = {
    "anyio",
    "asyncio",
    "filelock",
    "jwt",
    "msgpack",
    "prometheus_client",
    "pydantic_settings",
    "redis",
    "sqlite3",
    "starlette",
    "uvicorn",
    "websockets",
}
DOCS = (ROOT / "docs/cli.md").read_text(encoding="utf-8")


def commands(group: Any, path: tuple[str, ...] = ("blackboard",)) -> Iterator[Any]:
    """Every command below a group, with its name as typed."""
    for name, inner in group.commands.items():
        if hasattr(inner, "commands"):
            yield from commands(inner, (*path, name))
        else:
            yield pytest.param(inner, " ".join((*path, name)), id=" ".join((*path[1:], name)))


COMMANDS = list(commands(get_command(app)))


def modules_of(*arguments: str) -> set[str]:
    """The packages that a run of the command imports."""
    command = [sys.executable, "-X", "importtime", "-m", "blackboard", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, re.MULTILINE)
    return {line.partition(".")[0] for line in lines}


def test_ctrl_c_while_its_modules_are_loaded_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading takes a third of a second, and nothing of the command has begun then."""

    def interrupted(*_: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "whole", interrupted)
    with pytest.raises(SystemExit) as ended:
        process.main()
    assert ended.value.code == Exit.INTERRUPTED


@pytest.mark.parametrize("arguments", [("--help",), ("set", "--help"), ("--version",)])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    """People ask for help often; half a second would make it feel slow."""
    found = modules_of(*arguments)
    assert "typer" in found
    assert found & HEAVY == set()


LOADING = """
import atexit, gc, runpy, sys
atexit.register(lambda: print(" searches:", sum(each["collections"] for each in gc.get_stats())))
sys.argv[1:] = ["--version"]
runpy.run_module("blackboard", run_name="__main__")
"""


def test_what_a_command_loads_is_not_searched_for_garbage() -> None:
    """It is all in use, and it is much: with Python's thresholds there are a hundred searches."""
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, check=True)
    *_, word, searches = done.stdout.split()
    assert word == b"searches:"
    assert int(searches) < 40


@pytest.mark.parametrize(("command", "typed"), COMMANDS)
def test_every_command_has_help_and_examples(command: Any, typed: str) -> None:
    """One line of at most 60 characters that the overview shows whole, and examples of its own."""
    first = command.help.splitlines()[0]
    assert first.endswith(".")
    assert len(first) <= 60
    lines = command.epilog.splitlines()
    assert lines
    assert all(typed in line for line in lines)


@pytest.mark.parametrize(("command", "typed"), COMMANDS)
def test_no_option_of_a_command_hides_a_shared_one(command: Any, typed: str) -> None:
    """Two parameters of one name would be one value; two options of one spelling, one option."""
    both = [*command.params, *command.shared]
    names = [param.name for param in both]
    spellings = [option for param in both for option in (*param.opts, *param.secondary_opts)]
    assert len(set(names)) == len(names), typed
    assert len(set(spellings)) == len(spellings), typed


@pytest.mark.parametrize(("command", "typed"), COMMANDS)
def test_the_documentation_tells_every_command_and_option(command: Any, typed: str) -> None:
    """docs/cli.md has a line for the command that names each option of its own."""
    [line] = [line for line in DOCS.splitlines() if line.startswith(f"| `{typed}")]
    own = {name for param in command.params for name in param.opts if name.startswith("--")}
    shared = {name for param in command.shared for name in param.opts if name.startswith("--")}
    if typed == "blackboard serve":
        own |= shared
    missing = [name for name in own - {"--help"} if f"`{name}" not in line]
    assert missing == []


def test_the_documentation_tells_the_shared_options() -> None:
    """Those that a command does not declare itself."""
    shared = {name for case in COMMANDS for p in case.values[0].shared for name in p.opts}
    assert [name for name in shared if name not in DOCS] == []


def test_the_documentation_tells_the_exit_codes() -> None:
    """Number and meaning, as the help prints them."""
    assert [f"| {code:d} | {text} |" for code, text in MEANING.items()] == [
        line for line in DOCS.splitlines() if re.match(r"\| \d+ \|", line)
    ]


def test_the_documentation_tells_every_setting() -> None:
    """A row for each field of the settings, with the variable that sets it."""
    told = set(re.findall(r"\| `(BLACKBOARD_\w+)` \| `(\w+)` \|", DOCS))
    assert {(f"BLACKBOARD_{name.upper()}", name) for name in Settings.model_fields} == told
