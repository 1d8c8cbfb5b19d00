"""Commands on a data directory whose private values are encrypted."""

import json
from pathlib import Path

import pytest

import blackboard.sync
from blackboard.encryption.master_key import new_master_key
from tests.unit.cli.typed import ended

NOTE = "private/ada/note"


def test_a_command_has_the_key_that_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a service on the directory: what is written there must not lie in the clear either."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path / "config"))
    data, key = str(tmp_path / "data"), tmp_path / "master_key"
    key.write_text(f"{new_master_key()}\n")
    monkeypatch.setenv("BLACKBOARD_MASTER_KEY_FILE", str(key))
    assert ended("set", NOTE, "dear diary", "--data", data) == 0
    assert b"dear diary" not in (tmp_path / "data/boards/main.db").read_bytes()
    assert ended("get", NOTE, "--data", data) == 0
    assert "dear diary" in capsys.readouterr().out
    monkeypatch.delenv("BLACKBOARD_MASTER_KEY_FILE")
    assert ended("get", NOTE, "--data", data) == 1
    assert "docs/howto/encryption.md says how to set it" in capsys.readouterr().err


def test_what_the_settings_seal_is_sealed_for_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is the same for both."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("BLACKBOARD_SEAL_PUBLIC", "true")
    master_key = new_master_key()
    monkeypatch.setenv("BLACKBOARD_MASTER_KEY", master_key)
    data = str(tmp_path / "data")
    assert ended("set", "public/a", "in the open", "--data", data) == 0
    assert b"in the open" not in (tmp_path / "data/boards/main.db").read_bytes()
    with blackboard.sync.open(data, master_key=master_key) as client:
        assert client.board("main").get("public/a") == "in the open"


@pytest.mark.parametrize("public", ["true", "false"], ids=["sealed", "plain"])
def test_a_checkpoint_shows_what_an_agent_declared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    public: str,
) -> None:
    """An encrypted declaration stays encrypted in the manifest, and the archive goes on."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("BLACKBOARD_SEAL_PUBLIC", public)
    monkeypatch.setenv("BLACKBOARD_MASTER_KEY", new_master_key())
    at = ("--data", str(tmp_path / "data"))
    assert ended("set", "public/~declared/ada", '{"model": "small"}', *at) == 0
    assert ended("checkpoint", "create", "before", *at) == 0
    capsys.readouterr()
    assert ended("checkpoint", "show", "before", *at) == 0
    assert ("$sealed" if public == "true" else "small") in capsys.readouterr().out
    assert ended("checkpoint", "show", "before", "--json", *at) == 0
    declared = json.loads(capsys.readouterr().out)["declared"]["ada"]
    assert list(declared) == (["$sealed"] if public == "true" else ["model"])
    assert ended("checkpoint", "verify", "before", *at) == 0
