"""A directory is kept by the command line: real processes, a real service."""

from pathlib import Path

import pytest

from blackboard.cli.errors import Exit
from tests.acceptance.shell import Shell
from tests.acceptance.test_cli import all_examples

OURS = [line for line in all_examples() if line.startswith("blackboard workspace")]


def _fill(home: Path) -> None:
    for name in ("src", "site"):
        (home / name).mkdir()
        (home / name / "main.py").write_text("print(1)\n")


def test_files_go_back_with_the_board(shell: Shell) -> None:
    """Snapshot, change, refusal, restore; each as a person and as a program sees it."""
    home = Path(shell.home)
    _fill(home)
    with shell.service():
        taken = shell.json("workspace", "snapshot", "src", "--note", "it works")
        assert (taken["files"], taken["key"]) == (1, "private/operator/workspace")
        shell.run("checkpoint", "create", "works")
        (home / "src" / "main.py").write_text("print(2)\n")
        (home / "src" / "more").mkdir()
        assert shell.out("workspace", "diff", "src").split() == ["~", "main.py", "+", "more"]
        error = shell.error("workspace", "restore", "src", code=Exit.CONFLICT)
        assert (error["code"], error["paths"]) == ("unsaved_files", ["main.py"])
        shell.run("workspace", "snapshot", "src")
        shell.run("restore", "works", "--yes")
        refused = shell.run("workspace", "snapshot", "src", code=Exit.CONFLICT).stderr
        assert "blackboard workspace restore" in refused
        assert shell.json("workspace", "restore", "src")["root"] == taken["root"]
        assert (home / "src" / "main.py").read_text() == "print(1)\n"
        assert [one["path"] for one in shell.json("workspace", "ls", "src")] == ["main.py"]
        assert shell.json("workspace", "diff", "src", "works", "now") == []
        (home / "src" / "main.py").unlink()
        (home / "src" / "main.py").symlink_to("/etc/passwd")
        assert shell.out("workspace", "diff", "src") == "~ main.py\n"


def test_a_name_with_a_line_break_is_one_line(shell: Shell) -> None:
    """A file cannot pretend to be another one, or none."""
    top = Path(shell.home) / "src"
    top.mkdir()
    with shell.service():
        shell.run("workspace", "snapshot", "src")
        (top / "a\n- main.py").touch()
        assert shell.out("workspace", "diff", "src").splitlines() == ["+ a\\u000a- main.py"]
        shell.run("workspace", "snapshot", "src")
        [line] = shell.out("workspace", "ls", "src").splitlines()
        assert line.endswith(" a\\u000a- main.py")
        assert shell.json("workspace", "ls", "src")[0]["path"] == "a\n- main.py"


@pytest.mark.parametrize("line", OURS)
def test_the_examples_in_the_help_work(shell: Shell, line: str) -> None:
    """Each is typed as it stands."""
    _fill(Path(shell.home))
    with shell.service():
        shell.run("workspace", "snapshot", "src")
        shell.run("checkpoint", "create", "before-plan")
        shell.run("branch", "other-board")
        with shell.script(line) as script:
            code, out, said = script.end()
        assert (code, "Traceback" in said) == (0, False), f"{out}{said}"
