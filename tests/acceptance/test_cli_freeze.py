"""A board is frozen and thawed by the command line: real processes, a real service."""

import pytest

from blackboard.cli.errors import Exit
from tests.acceptance.shell import Shell
from tests.acceptance.test_cli import all_examples

OURS = [e for e in all_examples() if e.startswith(("blackboard freeze", "blackboard thaw"))]


def test_a_freeze_outlives_the_service(shell: Shell) -> None:
    """The whole incident: freeze, look, restore, thaw, with a restart in the middle of it."""
    with shell.service():
        shell.run("set", "public/plan", '"good"')
        shell.run("checkpoint", "create", "before-plan")
        shell.run("set", "public/plan", '"nonsense"', "--as", "researcher")
        frozen = shell.json("freeze", "main", "--note", "nonsense in the plan")
        freeze = {name: frozen[name] for name in ("by", "note", "since_ms", "revision")}
        assert frozen == {"board": "main", **freeze, "note": "nonsense in the plan"}
    with shell.service():
        error = shell.error("set", "public/plan", '"worse"', code=Exit.CONFLICT)
        assert error["code"] == "board_frozen"
        assert {name: error[name] for name in freeze} == freeze
        told = shell.run("set", "public/plan", '"worse"', code=Exit.CONFLICT).stderr
        assert f"frozen by {freeze['by']}" in told
        assert "nonsense in the plan" in told
        assert shell.json("get", "public/plan") == "nonsense"
        assert "frozen by" in shell.out("log")
        shell.run("restore", "before-plan", "--yes")
        assert shell.json("freeze", "main", "--note", "somebody else") == frozen
        ended = shell.json("thaw", "main", "--note", "restored")
        assert ended == {"board": "main", "ended": freeze}
        shell.run("set", "public/plan", '"better"')
        assert shell.json("thaw", "main") == {"board": "main", "ended": None}
        unknown = shell.error("freeze", "unknown", code=Exit.NOT_FOUND)
        assert unknown["code"] == "no_such_board"


@pytest.mark.parametrize("line", OURS)
def test_the_examples_in_the_help_work(shell: Shell, line: str) -> None:
    """Each is typed as it stands."""
    with shell.service():
        shell.run("set", "public/plan", '"good"')
        with shell.script(line) as script:
            code, out, said = script.end()
        assert code == 0, said
        assert "main" in "".join([*out, *said])
