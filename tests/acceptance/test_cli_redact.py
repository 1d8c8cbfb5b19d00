"""A value is redacted by the command line: real processes, a real service."""

from pathlib import Path

import pytest

from tests.acceptance.shell import Shell
from tests.acceptance.test_cli import all_examples
from tests.canary import files_with


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_in_the_help_work(shell: Shell, number: int) -> None:
    """Each is typed as it stands; afterwards the value is nowhere."""
    line = [line for line in all_examples() if line.startswith("blackboard redact")][number]
    key = line.split()[2]
    with shell.service():
        shell.run("set", key, '"hush-4711"')
        shell.run("set", "public/other", "1")
        shell.run("checkpoint", "create", "before")
        with shell.script(line) as script:
            code, answer, said = script.end()
        assert code == 0, said
        assert ("1 values" in said) == ("--json" not in line)
        assert ('"versions"' in answer) == ("--json" in line)
        assert not files_with(Path(shell.home) / "data", b"hush-4711")
        assert shell.json("get", key, "--at", "before") == {"$redacted": True}
        assert shell.json("get", "public/other") == 1
        shell.run("checkpoint", "verify", "now")
        records = shell.run("audit").stdout
        assert "redact" in records
        assert "hush" not in records


def test_who_is_not_asked_says_yes(shell: Shell) -> None:
    """Nothing happens without it; an agent may not at all."""
    with shell.service():
        shell.run("set", "public/notes", '"hush"')
        assert "nobody is here" in shell.error("redact", "public/notes", code=2)["message"]
        assert shell.json("get", "public/notes") == "hush"
        refused = shell.error("redact", "public/notes", "--yes", "--as", "ada", code=5)
        assert refused["code"] == "access_denied"
        assert shell.json("redact", "public/notes", "--yes")["boards"] == ["main"]
