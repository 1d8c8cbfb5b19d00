"""Every demonstration ends well: each asserts what it shows."""

import os
import re
import subprocess
import sys

import pytest

from tests.source_tree import ROOT

STORIES = ("approval", "crash_resume", "journal_saves", "migration", "time_travel")
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


@pytest.mark.parametrize("story", STORIES)
def test_a_story_comes_true(story: str) -> None:
    """As a process, with its last line saying so."""
    kept = {name: text for name, text in os.environ.items() if "BLACKBOARD" not in name}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"blackboard.demos.{story}"],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("ok: ")
