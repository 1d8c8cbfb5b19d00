"""A variable that is not set is an empty text in a shell: `-b "$BOARD"`."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.typed import ended


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data directory, which no command changes that is refused."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    assert ended("set", "public/plan", "1", "--data", "data") == 0
    return "data"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["restore", "1", "--yes", "-b", ""], "--board"),
        (["set", "public/plan", "2", "--as", ""], "--as"),
        (["set", "public/plan", "2", "--url", ""], "--url"),
        (["freeze", ""], "BOARD"),
        (["recover", ""], "BOARD"),
        (["checkpoint", "create", ""], "NAME"),
        (["approve", "buyer", ""], "ID"),
        (["token", "revoke", ""], "TOKEN"),
        (["token", "narrow", "", "--name", "a.b"], "TOKEN"),
        (["token", "create", "a", "--board", "x", "--board", ""], "--board"),
        (["encryption", "erase", "a", "--yes", "--only-board", ""], "--only-board"),
        (["workspace", "restore", "", "--discard"], "DIR"),
        (["serve", "--data", ""], "--data"),
    ],
)
def test_an_empty_name_is_not_taken_for_none(
    data: str, arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else it is another board, token, person or directory: the usual one."""
    capsys.readouterr()
    assert ended(*arguments) == 2
    shown = capsys.readouterr()
    assert f"{name} is empty" in shown.err
    assert shown.out == ""
    assert not (Path(data) / "secret").exists()


def test_programs_learn_it_as_json(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert ended("freeze", "", "--data", data, "--json") == 2
    assert json.loads(capsys.readouterr().err)["error"]["message"] == "BOARD is empty"


def test_a_text_may_be_empty(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Values and notes name nothing."""
    assert ended("set", "public/plan", "", "--note", "", "--data", data) == 0
    capsys.readouterr()
    assert ended("get", "public/plan", "--json", "--data", data) == 0
    assert capsys.readouterr().out == '""\n'
