"""Boards that cannot be opened, and directories that cannot be looked at."""

import json
from pathlib import Path

import pytest

import blackboard
from blackboard.cli import session
from blackboard.cli.keys import KeyListing
from blackboard.client.board import Board
from blackboard.core.commit import Head
from blackboard.errors import Unavailable
from tests.unit.cli.typed import ended


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path


def test_a_damaged_board_hides_no_other(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are listed; then its error ends the command."""
    data = ("--data", str(home / "data"))
    for name in ("broken", "main", "team"):
        assert ended("set", "public/a", "1", "-b", name, *data) == 0
    with (home / "data/boards/broken.db").open("r+b") as file:
        file.write(b"no database at all")
    capsys.readouterr()
    assert ended("boards", *data) == 1
    shown = capsys.readouterr()
    assert [line.split("\t")[0] for line in shown.out.splitlines()] == ["main", "team"]
    assert "broken.db is not what was written" in shown.err
    assert ended("boards", "--json", *data) == 1
    shown = capsys.readouterr()
    assert [board["name"] for board in json.loads(shown.out)["boards"]] == ["main", "team"]


def test_a_board_that_is_away_hides_no_other(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a failed sync, say, or while its node of a cluster is away."""
    data, head = ("--data", str(home / "data")), Board.head
    for name in ("away", "main", "team"):
        assert ended("set", "public/a", "1", "-b", name, *data) == 0

    async def told(board: Board) -> Head:
        if board.name == "away":
            raise Unavailable("board away", "a sync of its file failed")
        return await head(board)

    monkeypatch.setattr(Board, "head", told)
    capsys.readouterr()
    assert ended("boards", *data) == 6
    shown = capsys.readouterr()
    assert [line.split("\t")[0] for line in shown.out.splitlines()] == ["main", "team"]
    assert "a sync of its file failed" in shown.err


@pytest.mark.parametrize("command", [["ls"], ["doctor", "--url", "ws://127.0.0.1:1"]])
def test_a_directory_may_have_a_name_that_no_system_takes(
    home: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*command, "--data", str(home / ("long" * 100))) in (1, 3)
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err


async def test_what_was_made_is_no_failure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its revision is not known."""

    async def away(_: Board) -> None:
        raise Unavailable("ws://127.0.0.1:1", "nothing listens there")

    async with blackboard.open(home / "data") as client:
        made = client.board("main")
        await made.put("public/a", 1)
        assert await session.first_revision(made) == 1
        monkeypatch.setattr(Board, "head", away)
        assert await session.first_revision(made) is None


def test_a_branch_that_was_made_is_said_to_be_there(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if its service goes away right after it."""
    data = ("--data", str(home / "data"))
    assert ended("set", "public/a", "1", *data) == 0

    async def away(_: Board) -> None:
        raise Unavailable("ws://127.0.0.1:1", "nothing listens there")

    monkeypatch.setattr(Board, "head", away)
    assert ended("branch", "trial", *data) == 0
    assert "board trial continues from a revision that cannot be read" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(home / "config"))
    assert ended("get", "public/a", "-b", "trial", *data) == 0


def test_a_pattern_is_no_agent_to_answer(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would approve a request of anybody, which was not looked at."""
    data = ("--data", str(home / "data"))
    assert ended("set", "public/a", "1", *data) == 0
    assert ended("approve", "*", *data) == 2
    assert "'*' is not a name" in capsys.readouterr().err


async def test_a_document_is_on_one_page(home: Path) -> None:
    """Pages may end between its keys."""
    async with blackboard.open(home / "data") as client:
        board = client.board("main")
        for text in ("a", "b"):
            async with board.document("public/memo") as memo:
                memo.text("body").append(text)
        await board.put("public/next", 1)
        after, found = None, []
        while True:
            shown = KeyListing(board, "public/**", None, after)
            page = await board.list("public/**", after=after, limit=1)
            await shown.take(page)
            found += [entry.key for entry in shown.entries]
            after = page.next_key
            if after is None:
                break
        assert found == ["public/memo", "public/next"]
