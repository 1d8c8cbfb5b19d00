"""What commands say of a board without commits, whose name may be mistyped."""

import signal

import pytest

from tests.acceptance.shell import Shell

WORDS = ("board expansoin has no commits yet", "Did you mean expansion?")


@pytest.mark.usefixtures("service")
def test_a_mistyped_board_is_reported_and_not_created(shell: Shell) -> None:
    """With the name that is likely meant; what is for programs keeps its shape."""
    shell.run("set", "public/a", "1", "--board", "expansion")
    shell.environ["BLACKBOARD_BOARD"] = "expansoin"
    for command, code, out in (
        ("ls --json", 0, '{"entries":[],"next_key":null}\n'),
        ("log --json", 0, ""),
        ("checkpoint list --json", 0, "[]\n"),
        ("get public/a", 3, ""),
    ):
        done = shell.run(*command.split(), code=code)
        assert all(words in done.stderr for words in WORDS), done.stderr
        assert done.stdout == out
    assert shell.out("boards").split("\t")[0::5] == ["expansion"]
    with shell.start("watch") as watch:
        for words in (*WORDS, "watching"):
            watch.wait_for_note(words)
        assert watch.end(signal.SIGINT)[0] == 130
