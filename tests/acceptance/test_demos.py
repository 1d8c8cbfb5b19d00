"""Every demonstration ends well: each asserts what it shows."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

import httpx
import pytest

from blackboard.cli.first_steps import demo
from tests.acceptance.shell import Shell
from tests.source_tree import ROOT

STORIES = (
    "approval",
    "crash_resume",
    "journal_saves",
    "langgraph_team",
    "migration",
    "time_travel",
    "two_coders",
)
STARTED_BY_ANOTHER = {"drafter"}
TIMEOUT_S = 110


def test_every_story_is_listed_for_newcomers() -> None:
    runnable = {
        path.stem for path in (ROOT / "demos").glob("*.py") if "__main__" in path.read_text()
    }
    index = (ROOT / "docs" / "index.md").read_text()
    told = {name for name in runnable if f"| `{name}` |" in index}
    assert told == runnable - STARTED_BY_ANOTHER == {*STORIES, "valuation"}


def test_the_output_that_the_readme_shows_is_what_the_demonstration_checks() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^  ok     (.+)$", readme, re.MULTILINE)
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "demos").glob("*.py"))
    assert len(shown) > 5
    assert [line for line in shown if f'"{line}"' not in code] == []


def test_the_command_knows_every_story() -> None:
    """And none that is not there."""
    assert set(demo.STORIES) == {*STORIES, demo.FIRST}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_comes_true(story: str, tmp_path: Path) -> None:
    """As a process, far from any checkout, with its last line saying so."""
    kept = {name: text for name, text in os.environ.items() if "BLACKBOARD" not in name}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "blackboard", "demo", story],
        cwd=tmp_path,
        env=kept,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("ok: ")


def test_the_team_can_be_kept_alive(tmp_path: Path) -> None:
    """With its page beside it, until Ctrl-C: what is said there is the address of a page.

    Without a home that can be written, and whatever settings of other services say.
    """
    settings = {"BLACKBOARD_ENGINE": "redis://127.0.0.1:1", "BLACKBOARD_PORT": "1"}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "blackboard", "demo", "--keep"],
        cwd=tmp_path,
        env={**os.environ, **settings, "HOME": "/dev/null", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        address = after(process.stdout, "open its page beside this: ")
        assert httpx.get(address.partition("#")[0], timeout=TIMEOUT_S).status_code == 200
        assert address == after(process.stdout, "look at it: ").split()[0]
    finally:
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, rest


@pytest.mark.parametrize("begun", ["free_cash_flow(2021)", "page 1 of the architect"])
def test_ctrl_c_ends_a_story(tmp_path: Path, begun: str) -> None:
    """At once, with all of its processes, and without a word."""
    process = subprocess.Popen(
        [sys.executable, "-m", "blackboard", "demo"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert any(begun in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, said) == (130, "")
    assert list(tmp_path.iterdir()) == []


def _heeds_a_hangup() -> None:
    """Also if the tests run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_its_terminal_ends_a_story(tmp_path: Path, number: signal.Signals) -> None:
    """Nobody would stop its service then, which has nothing of a terminal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "blackboard", "demo"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heeds_a_hangup,
    )
    assert process.stdout is not None
    try:
        assert any("service at" in line for line in process.stdout)
        process.send_signal(number)
        code = process.wait(timeout=TIMEOUT_S)
        with pytest.raises(ProcessLookupError):  # none is left of its group
            os.killpg(process.pid, signal.SIGKILL)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
    assert code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_cannot_be_played_says_why(tmp_path: Path) -> None:
    """A story that there is not, and a machine without a place for temporary files."""
    shell = Shell(tmp_path)
    assert "There are: valuation, crash_resume" in shell.run("demo", "crash", code=2).stderr
    assert "--keep is for" in shell.run("demo", "approval", "--keep", code=2).stderr
    assert [line.split()[0] for line in shell.out("demo", "--list").splitlines()] == [*demo.STORIES]


def after(output: IO[str], words: str) -> str:
    """The rest of the first line that begins with those words."""
    return next(line for line in output if line.startswith(words)).removeprefix(words).strip()


def test_a_story_that_would_check_nothing_is_not_played(tmp_path: Path) -> None:
    """Without assertions one said that all was well, and others ended with tracebacks."""
    done = subprocess.run(
        [sys.executable, "-m", "blackboard", "demo", "time_travel"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONOPTIMIZE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "PYTHONOPTIMIZE" in done.stderr
