"""A lost board is recovered by the command line: real processes, a real service, a deleted file."""

from pathlib import Path

import pytest

from tests.acceptance.shell import Shell
from tests.acceptance.test_cli import all_examples


def _lose(shell: Shell) -> None:
    """What a careless cleaner leaves of board `main`, with the service stopped."""
    for file in (Path(shell.home) / "data" / "boards").glob("main.db*"):
        file.unlink()


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_in_the_help_work(shell: Shell, number: int) -> None:
    """Each is typed as it stands; afterwards everything is as it was."""
    line = [line for line in all_examples() if line.startswith("blackboard recover")][number]
    with shell.service():
        shell.run("set", "public/plan", '"good"')
        shell.run("set", "private/ada/draft", "page 1", "--as", "ada")
        shell.run("checkpoint", "create", "before-plan")
        shell.run("checkpoint", "verify", "now")  # all of it is archived then
    _lose(shell)
    with shell.service():
        with shell.script(line) as script:
            code, _, said = script.end()
        assert code == 0, said
        assert "board main has the content of revision" in said
        assert shell.json("get", "public/plan") == "good"
        assert shell.json("get", "private/ada/draft") == "page 1"
        again = shell.json("recover", "main")
        assert again["board"] == "main"
        assert shell.error("recover", "unknown", code=3)["code"] == "no_such_board"


def test_lost_boards_are_listed_with_the_way_back(shell: Shell) -> None:
    """By `boards` and by `doctor`, to who may bring them back, until that is done."""
    with shell.service():
        shell.run("set", "public/plan", '"good"')
        shell.run("checkpoint", "verify", "now")  # all of it is archived then
        assert shell.json("boards")["lost"] == []
    _lose(shell)
    with shell.service():
        [lost] = shell.json("boards")["lost"]
        assert (lost["board"], lost["survived"], lost["apart_from"]) == ("main", 0, "")
        ways = "blackboard recover main, or blackboard board remove main"
        told = f"board main is in the archive alone: {ways}"
        assert told in shell.run("boards").stderr
        found = [each for each in shell.json("doctor")["findings"] if each["check"] == "lost"]
        assert [(each["status"], each["fix"]) for each in found] == [("warn", ways)]
        assert shell.json("boards", "--as", "ada")["lost"] == []
        shell.run("recover", "main")
        assert shell.json("boards")["lost"] == []


def test_a_directory_that_has_no_boards_is_not_backed_up(shell: Shell) -> None:
    """A mistyped name, or a disk that is not mounted: nothing was copied, with success."""
    (shell.home / "empty").mkdir()
    for name in ("mistyped", "empty"):
        refused = shell.error("backup", "take", "backup", "--data", name, code=3)
        assert f"{name} is no data directory" in refused["message"]
    assert not (shell.home / "mistyped").exists()
    assert not (shell.home / "backup").exists()


def test_a_recovery_from_a_backup_takes_no_option_of_a_service(shell: Shell) -> None:
    """It was ignored, and all boards went into the engine of this machine's settings."""
    shell.run("set", "public/plan", "1", "--data", "old")
    shell.run("backup", "take", "backup", "--data", "old")
    recover = ("recover", "--from", "backup", "--data", "new")
    for option, value in (
        ("--url", "ws://127.0.0.1:1"),
        ("--context", "staging"),
        ("--token", "secret"),
        ("--as", "ada"),
        ("--ca", "ca.pem"),
    ):
        refused = shell.error(*recover, option, value, code=2)
        assert option in refused["message"]
    assert shell.run(*recover, "-b", "main", code=2).stdout == ""
    assert not (shell.home / "new").exists()
    shell.run(*recover)
    assert shell.json("get", "public/plan", "--data", "new") == 1
