"""What programs get of the commands that save services, and of a pin."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.typed import ended


def test_programs_get_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From every command that takes --json."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path))

    def told(*arguments: str) -> Any:
        assert ended(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    added = told("context", "add", "prod", "--url", "ws://127.0.0.1")
    assert added == {"context": "prod", "url": "ws://127.0.0.1", "in_use": False}
    assert told("context", "use", "prod") == {"context": "prod", "in_use": True}
    assert told("context", "rm", "prod") == {"context": "prod", "removed": True}
    data = ("--data", str(tmp_path / "data"))
    told("set", "public/a", "1", *data)
    told("checkpoint", "create", "before", *data)
    pinned = told("checkpoint", "pin", "before", *data)
    assert pinned == {"checkpoint": "before", "pinned": True}
    released = told("checkpoint", "pin", "before", "--undo", *data)
    assert released == {"checkpoint": "before", "pinned": False}
