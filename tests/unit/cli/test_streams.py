"""Streams that are closed, full, or of another encoding than ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blackboard.cli import values
from tests.unit.cli.typed import ended

BAD = b"\xff\xfe"
"""No text of UTF-8."""


class Typed:
    """Runs commands as a shell does, which opens and closes their streams."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def __call__(
        self, streams: str, *arguments: str, given: bytes = b"", encoding: str = "utf-8"
    ) -> str:
        """The exit code, stdout and stderr of a command."""
        done = subprocess.run(
            ["sh", "-c", f'"$@" {streams}', "sh", sys.executable, "-m", "blackboard", *arguments],
            input=given,
            capture_output=True,
            check=False,
            cwd=self._home,
            env={**os.environ, "BLACKBOARD_CONFIG_DIR": "config", "PYTHONIOENCODING": encoding},
        )
        return f"{done.returncode} {done.stdout.decode()}{done.stderr.decode()}"


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    return Typed(tmp_path)


def test_a_closed_output_is_no_failure(typed: Typed) -> None:
    """What is done is done, and a program that closes it wants to read nothing."""
    assert typed(">&- 2>&-", "set", "public/a", "1", "--data", "d") == "0 "
    assert typed("", "get", "public/a", "--data", "d") == "0 1\n"


def test_without_buffers_an_answer_comes_before_the_notes_on_it(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containers, where a line that waits looks like a program that does."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    typed("", "set", "public/a", "1", "--data", "d")
    typed("", "checkpoint", "create", "first", "--data", "d")
    told = typed("2>&1", "restore", "first", "--yes", "--data", "d")
    assert told.startswith("0 4\nthe board is as it was at revision 2")


def test_an_output_without_room_is_said_so(typed: Typed) -> None:
    """And that the command itself may be done."""
    for arguments in (("set", "public/a", "1", "--data", "d"), ("--help",), ("get", "-h")):
        told = typed(">/dev/full", *arguments)
        assert told.startswith("1 error: the output cannot be written: No space left on device")
        assert "Traceback" not in told
    assert typed("", "get", "public/a", "--data", "d") == "0 1\n"


def test_what_was_printed_before_a_failure_has_no_room(typed: Typed) -> None:
    """The exit code is that of the command."""
    told = typed(">/dev/full", "doctor", "--url", "ws://127.0.0.1:1", "--token", "x")
    assert told.startswith("1 error: the output cannot be written")
    assert "Exception ignored" not in told


def test_a_closed_input_holds_no_value_and_answers_nothing(typed: Typed) -> None:
    assert "2 error: standard input cannot be read" in typed(
        "<&-", "set", "public/a", "-", "--data", "d"
    )
    assert "2 error: this cannot be undone" in typed("<&-", "board", "remove", "x", "--data", "d")


def test_an_encoding_may_lack_characters(typed: Typed) -> None:
    """In JSON their escapes mean the same; a raw value is the bytes that it has on the board."""
    told = typed("", "set", "public/a", "ü\U0001f600", "--data", "d", encoding="ascii")
    assert told.startswith("0 ")
    told = typed("", "get", "public/a", "--json", "--data", "d", encoding="ascii")
    assert told == '0 "\\u00fc\\ud83d\\ude00"\n'
    assert json.loads(told[2:]) == "ü\U0001f600"
    raw = typed("", "get", "public/a", "--raw", "--data", "d", encoding="ascii")
    assert raw == "0 ü\U0001f600"


@pytest.mark.parametrize(
    "arguments",
    [
        ("token", "inspect", "-"),
        ("memory", "remember", "-", "--data", "d"),
        ("context", "add", "here", "--url", "ws://127.0.0.1", "--token", "-"),
    ],
)
def test_bytes_are_no_text(typed: Typed, arguments: tuple[str, ...]) -> None:
    told = typed("", *arguments, given=BAD)
    assert told.startswith("2 error: standard input is not UTF-8 text")


def test_an_empty_input_is_no_token(typed: Typed) -> None:
    """A saved service without one would be used without."""
    told = typed("", "context", "add", "here", "--url", "ws://127.0.0.1", "--token", "-")
    assert told.startswith("2 error: standard input holds no token")


def test_an_input_that_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would fill the memory."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path))
    given = ("--file", "/dev/zero", "--data", str(tmp_path / "d"))
    assert ended("set", "public/a", *given) == 2
    assert f"more than {values.INPUT_BYTES_MAX:,} bytes" in capsys.readouterr().err
