"""What is printed for a board that has no commits yet."""

from pathlib import Path

import pytest

import blackboard
from blackboard.cli.session import absent, has_begun, tell_no_commits


async def test_similar_names_are_suggested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of boards with commits: an earlier slip may have begun another one. Asking begins none."""
    async with blackboard.open(tmp_path, level="memory") as client:
        await client.board("expansion").put("public/a", 1)
        await client.board("expansoin").head()  # begins it
        slip = client.board("expansio")
        assert not await has_begun(slip)
        assert await has_begun(client.board("expansion"))
        await tell_no_commits(client, slip)
        told = capsys.readouterr().err.splitlines()
        assert told == ["board expansio has no commits yet", "Did you mean expansion?"]
        await tell_no_commits(client, client.board("main"))
        assert capsys.readouterr().err == "board main has no commits yet\n"
        assert list(await client.boards()) == ["expansion", "expansoin"]


async def test_a_key_is_absent_or_its_board_is(tmp_path: Path) -> None:
    """Each with what helps."""
    async with blackboard.open(tmp_path, level="memory") as client:
        await client.board("expansion").put("public/a", 1)
        there, slip, other = map(client.board, ("expansion", "expansoin", "main"))
        found = [await absent(client, board, "public/b") for board in (there, slip, other)]
    assert [(error.message, error.fix) for error in found] == [
        ("public/b is absent", "See what there is with: blackboard ls"),
        (
            "public/b is absent: board expansoin has no commits yet",
            "Did you mean expansion?",
        ),
        (
            "public/b is absent: board main has no commits yet",
            "See which boards there are with: blackboard boards",
        ),
    ]
