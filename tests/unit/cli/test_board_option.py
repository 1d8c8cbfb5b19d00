"""`--board`, where no single board is what a command works on."""

from pathlib import Path

import pytest

from blackboard.cli.main import app
from blackboard.encryption.master_key import new_master_key
from tests.unit.cli.typed import ended

NOTE = "private/ada/note"


@pytest.mark.parametrize(
    "command",
    [
        ["audit"],
        ["boards"],
        ["board", "remove", "trial", "--yes"],
        ["checkpoint", "import", "file.bbx", "trial"],
        ["doctor"],
        ["encryption", "rewrap"],
        ["freeze", "trial"],
        ["grants"],
        ["thaw", "trial"],
        ["token", "inspect"],
        ["token", "revoke", "--all-of", "ada"],
        ["token", "show"],
    ],
    ids=" ".join,
)
def test_a_command_that_would_ignore_a_board_refuses_it(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        app([*command, "-b", "main"], prog_name="blackboard")
    assert end.value.code == 2
    assert "-b" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--only-board", "--board", "-b"])
def test_only_the_board_that_is_named_loses_its_data_keys(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
) -> None:
    """By the option that names a board elsewhere, too: every board lost its keys."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("BLACKBOARD_MASTER_KEY", new_master_key())
    data = ("--data", str(tmp_path / "data"))
    for board in ("main", "trial"):
        assert ended("set", NOTE, "dear diary", "-b", board, *data) == 0
    assert ended("encryption", "erase", "ada", "--yes", option, "trial", *data) == 0
    capsys.readouterr()
    for board, is_read in (("main", True), ("trial", False)):
        assert ended("get", NOTE, "-b", board, *data) == 0
        assert ("dear diary" in capsys.readouterr().out) == is_read
