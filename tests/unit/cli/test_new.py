"""`blackboard new` writes a project whole or not at all, whatever comes in between."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from blackboard.cli.errors import CommandError
from blackboard.cli.first_steps.new import FILES, check, for_make, write_project
from tests.source_tree import ROOT

WHOLE = {*FILES.values(), "requirements.txt", "local.mk"}
TOUCH = ("open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.remove", "os.rmdir")
_when: list[int] = []
_where: list[str] = []


def _interrupt(event: str, arguments: tuple[Any, ...]) -> None:
    """Send Ctrl-C before the chosen one of the calls that touch the folder of a test."""
    if _when and event in TOUCH and _where[0] in os.fsdecode(str(arguments[0])):
        _when[0] -= 1
        if _when[0] == 0:
            signal.raise_signal(signal.SIGINT)


@cache
def _listen() -> None:
    """For good, there is no way to take a hook away: so only where a test needs it."""
    sys.addaudithook(_interrupt)


@contextmanager
def interrupted(folder: Path, at: int) -> Iterator[None]:
    """Ctrl-C comes before the call number `at`, from 1 on, that touches `folder`."""
    _listen()
    _where[:], _when[:] = [str(folder)], [at]
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        _was_reached.append(_when.pop() <= 0)


_was_reached: list[bool] = []


def contents(folder: Path) -> set[str]:
    """The names in a folder."""
    return {entry.name for entry in folder.iterdir()}


@pytest.mark.parametrize("is_there", [False, True])
def test_ctrl_c_at_any_moment_leaves_nothing_or_all(tmp_path: Path, is_there: bool) -> None:
    """Before each call that touches the disk; a directory that was there stays, and stays empty."""
    outcomes = set[str]()
    for at in range(1, 200):
        home = tmp_path / f"{at}-home"
        target = home / "my-team"
        (target if is_there else home).mkdir(parents=True)
        with interrupted(home, at):
            write_project(target)
        found = contents(target) if target.exists() else set()
        if found >= WHOLE:  # what it was made in may be left, if it comes while that is removed
            outcomes.add("whole")
            assert all(name.startswith(".new-project.") for name in found - WHOLE)
            assert contents(home) - {"my-team"} == set() or not is_there
        else:
            outcomes.add("nothing")
            assert contents(home) == ({"my-team"} if is_there else set())
            assert found == set()
        if not _was_reached[-1]:
            assert at > len(WHOLE)
            break
    assert outcomes == {"whole", "nothing"}


@pytest.mark.parametrize("is_there", [False, True])
def test_without_room_nothing_is_left(tmp_path: Path, is_there: bool) -> None:
    """The system lets the command write no file; the error names the cause."""
    if is_there:
        (tmp_path / "my-team").mkdir()
    script = f"ulimit -f 0; exec {sys.executable} -m blackboard new my-team"
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: my-team cannot be written: File too large\n")
    assert contents(tmp_path) == ({"my-team"} if is_there else set())
    assert not is_there or contents(tmp_path / "my-team") == set()


@pytest.mark.parametrize(
    "name",
    ["", " ", "my team", "C:\\teams\\mine", "-", ".hidden", "..", "über", "a" * 129, "x\n", "a/~"],
)
def test_odd_names_are_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be the name of a board, or would surprise in a directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="cannot be the name") as raised:
        check(name, Path(name).absolute())
    assert raised.value.exit == 2
    assert contents(tmp_path) == set()


@pytest.mark.parametrize("name", ["my-team", "my_team", "Team.2", "7", "a" * 128, "my-team/"])
def test_usual_names_are_taken(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a directory, and a board."""
    monkeypatch.chdir(tmp_path)
    target = Path(name).absolute()
    check(name, target)
    write_project(target)
    assert contents(target) == WHOLE
    assert contents(tmp_path) == {target.name}
    assert f'BOARD = "{target.name}"' in (target / "team.py").read_text()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(_as_usual(tmp_path).st_mode)


def _as_usual(folder: Path) -> os.stat_result:
    (folder / "other").mkdir()
    return (folder / "other").stat()


@pytest.mark.parametrize("path", ["/a b/python", "/a#b/python", "/a$b/$(c)/python", "/a\\b/python"])
def test_make_finds_the_python_that_was_named(tmp_path: Path, path: str) -> None:
    """Whatever is in its path that means something to make."""
    text = f"PYTHON ?= {for_make(path)}\nall:\n\t@printf %s '$(PYTHON)'\n"
    (tmp_path / "Makefile").write_text(text)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    done = subprocess.run(
        ["make", "-s"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == path


def test_every_file_of_the_template_is_written() -> None:
    """None lies there unused."""
    folder = ROOT / "blackboard/cli/first_steps/project"
    assert {path.name for path in folder.iterdir() if path.is_file()} == set(FILES)
