"""What people see of the audit."""

import json
import re
from pathlib import Path

import pytest

from blackboard.cli.audit import _read, print_records
from blackboard.cli.errors import CommandError
from blackboard.client.audit_record import AuditRecord

STYLE = re.compile("\x1b\\[[0-9;]*m")
RECORDS = [
    AuditRecord(0, "operator", "id", "read", "main", "private/ada/" + "x" * 200, "private"),
    AuditRecord(0, "ada", "id", "commit", "main", "public/plan", "access_denied", count=112),
    AuditRecord(0, "ada", "id", "restore", "main", "note=\x1b[2J\tall\nwell", "ok"),
]


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output as to a pipe, whatever runs the tests."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_a_terminal_gets_heads_and_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was asked for is shortened; who it was and how it ended is not."""
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    print_records(RECORDS)
    heads, look, refused, spec = STYLE.sub("", capsys.readouterr().out).splitlines()
    assert heads.split() == ["time", "principal", "verb", "board", "what", "outcome", "count"]
    assert re.search(r" read +main +private/ada/x+\u2026 +private +1$", look.rstrip())
    assert refused.split()[-2:] == ["access_denied", "112"]
    assert r"note=\u001b[2J" in spec
    assert max(map(len, (heads, look, refused, spec))) <= 100


def test_a_pipe_gets_one_record_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Without heads, whole, and with nothing in it that ends a field, a line or a screen."""
    print_records(RECORDS)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [len(row) for row in rows] == [7, 7, 7]
    assert [row[4] for row in rows] == [
        RECORDS[0].what,
        "public/plan",
        r"note=\u001b[2J\u0009all\u000awell",
    ]
    assert [row[6] for row in rows] == ["1", "112", "1"]


@pytest.mark.parametrize("time", ["now", None, [1]])
def test_what_is_no_earlier_audit_is_refused(tmp_path: Path, time: object) -> None:
    """Not where it is compared."""
    names = ("principal", "token", "verb", "board", "what", "outcome")
    record = {"time_ms": time, **dict.fromkeys(names, "x")}
    file = tmp_path / "audit.json"
    file.write_text(json.dumps({"records": [record]}))
    with pytest.raises(CommandError, match="no output of blackboard audit"):
        _read(file)
    file.write_text(json.dumps({"records": [{**record, "time_ms": 5}]}))
    assert [one.time_ms for one in _read(file)] == [5]
