"""The embedded service as one program has it: where its files are."""

from pathlib import Path

import pytest

import blackboard

LARGE = "x" * 300_000
"""A value that the archive keeps in a file of its own."""


def names(directory: Path) -> list[str]:
    """What is in a directory."""
    return [found.name for found in directory.iterdir()]


async def kept(where: str) -> None:
    """Errors: AssertionError unless the directory has the history of its large value."""
    async with blackboard.open(where) as client:
        assert (await client.board("main").verify()).ok
        assert await client.board("main").get("public/large", at=1) == LARGE
        assert await client.boards() == ["late", "main"]


async def test_a_program_may_change_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it keeps stays in the one directory that it named, and goes there."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    async with blackboard.open("data") as client:
        monkeypatch.chdir(other)
        await client.board("main").put("public/large", LARGE)
        await client.board("late").put("public/a", 1)
        await client.board("main").checkpoint()  # all of it is archived
    assert names(other) == []
    assert not (tmp_path / "data" / "owner.json").exists()
    await kept("../data")


async def test_a_directory_may_have_a_name_with_the_marks_of_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large values go into it, and not into one that has the beginning of its name."""
    monkeypatch.chdir(tmp_path)
    name = "team:#1?x%20y"
    async with blackboard.open(name) as client:
        await client.board("main").put("public/large", LARGE)
        await client.board("late").put("public/a", 1)
        await client.board("main").checkpoint()
    assert names(tmp_path) == [name]
    await kept(name)
