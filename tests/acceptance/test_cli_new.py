"""`blackboard new`: what it writes runs at once, and is code as we would write it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blackboard.cli.first_steps.new import write_project
from tests.acceptance.shell import TIMEOUT_S, Shell
from tests.source_tree import ROOT


def ran(shell: Shell, folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """A program that was run in a folder, to a good end."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**shell.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


PLAN = """\
planner is done: a plan
scout is done: 3 prices
public/plan is {'items': ['catering', 'hall', 'music'], 'eur': 2600}
  because of public/prices, by scout
  because of inbox/scout/messages/0000000000, by planner
"""


def test_a_new_project_runs_and_its_tests_pass(shell: Shell) -> None:
    """Without a service; a second run continues where the first one ended; then it forgets."""
    told = shell.out("new", "my-team")
    assert "cd my-team" in told
    assert "\x1b" not in told
    folder = shell.home / "my-team"
    assert ran(shell, folder, "make").stdout == PLAN
    assert ran(shell, folder, "make").stdout == PLAN
    assert (
        shell.json("get", "public/plan", "-b", "my-team", "--data", "my-team/data")["eur"] == 2600
    )
    assert "\nOK\n" in ran(shell, folder, "make", "test").stderr
    ran(shell, folder, "make", "clean")
    assert not (folder / "data").exists()
    again = shell.run("new", "my-team", code=2)
    assert again.stderr.startswith("error: my-team exists, and is not empty\n")


def test_a_new_project_is_clean_code(shell: Shell) -> None:
    """For ruff as it comes, and for git. `make types` reads it where it lies here."""
    (shell.home / "empty").mkdir()
    shell.home /= "empty"
    shell.run("new", ".", code=0)
    ran(shell, shell.home, sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,I")
    ran(shell, shell.home, sys.executable, "-m", "ruff", "format", "--isolated", "--check", ".")
    ran(shell, shell.home, "git", "init", "-q")
    ran(shell, shell.home, "git", "add", ".")
    assert "local.mk" not in ran(shell, shell.home, "git", "ls-files").stdout


def test_a_project_for_programs(shell: Shell) -> None:
    """With --json, one document; errors too."""
    (shell.home / "teams").mkdir()
    made = shell.json("new", "teams/offsite")
    assert made["directory"] == str(shell.home / "teams/offsite")
    assert "team.py" in made["files"]
    assert 'BOARD = "offsite"' in (shell.home / "teams/offsite/team.py").read_text()
    assert shell.error("new", "teams", code=2)["code"] == "usage"
    assert shell.error("new", "no/such/place", code=3)["code"] == "not_found"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_said(shell: Shell) -> None:
    """In words."""
    closed = shell.home / "closed"
    closed.mkdir(mode=0o500)
    assert "cannot be written" in shell.error("new", "closed/x", code=1)["message"]


def test_without_make_it_names_the_programs(shell: Shell) -> None:
    """As on a machine that has no make."""
    shell.environ["PATH"] = str(shell.home)
    assert "python team.py" in shell.out("new", "my-team")
    assert shutil.which("make", path=shell.environ["PATH"]) is None
    assert (ROOT / "Makefile").exists()


def test_a_project_may_have_the_longest_name_that_there_is(tmp_path: Path) -> None:
    """A name has 255 bytes, and such a letter has four."""
    target = tmp_path / ("\N{SNAKE}" * 63)
    write_project(target)
    assert (target / "Makefile").exists()
    assert list(tmp_path.iterdir()) == [target]
