"""Which revisions `blackboard log` finds when it is asked for some of them."""

import asyncio
from pathlib import Path

import pytest

from blackboard import embedded
from blackboard.cli import history
from blackboard.cli.history import _Wanted
from tests.unit.cli.typed import ended


async def found(path: Path, wanted: _Wanted, limit: int) -> list[int]:
    """The newest revisions of a board on which all but the third one is about the same key."""
    async with embedded.open(path, level="memory") as client:
        board = client.board("team")
        for number in range(1, 41):
            await board.put("public/plan" if number == 3 else "public/n", number)
        return [revised.revision for revised in await wanted.newest(board, limit)]


@pytest.mark.parametrize(
    ("pattern", "limit", "expected"),
    [
        (None, 2, [39, 40]),
        ("public/n", 2, [39, 40]),
        ("public/plan", 1, [3]),
        ("public/plan", 2, [3]),
        ("public/**", 3, [38, 39, 40]),
        ("public/none", 1, []),
    ],
)
async def test_it_looks_back_until_there_are_enough(
    tmp_path: Path, pattern: str | None, limit: int, expected: list[int]
) -> None:
    assert await found(tmp_path, _Wanted(pattern, None), limit) == expected


async def test_it_looks_back_so_far_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_LOOK_BACK_MAX", 37)
    assert await found(tmp_path, _Wanted("public/plan", None), 1) == []
    monkeypatch.setattr(history, "_LOOK_BACK_MAX", 38)
    assert await found(tmp_path / "again", _Wanted("public/plan", None), 1) == [3]


@pytest.mark.parametrize(("limit", "first"), [(1_500, 200), (200, 1_500)])
async def test_the_newest_are_those_at_the_head(tmp_path: Path, limit: int, first: int) -> None:
    """However many are wanted, and although one of them cannot be seen."""
    async with embedded.open(tmp_path, level="memory") as client:
        board = client.board("team")
        await asyncio.gather(*(board.put(f"public/{n % 9}", n) for n in range(1_600)))
        await board.put("private/bob/secret", 1)
        await asyncio.gather(*(board.put(f"public/{n % 9}", n) for n in range(99)))
        seen = await _Wanted(None, None).newest(board.as_agent("ada"), limit)
    assert [revised.revision for revised in seen] == [
        revision for revision in range(first, 1_701) if revision != 1_601
    ]


def test_a_revision_may_have_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python refuses to make a number of so many digits."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path))
    assert ended("watch", "--after", "1" * 5_000, "--data", str(tmp_path)) == 2
    assert "no revision is above" in capsys.readouterr().err


def test_the_log_goes_on_where_a_watch_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the token that both say at the end."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path))
    data = ("--data", str(tmp_path / "data"))
    for value in "123":
        assert ended("set", "public/a", value, *data) == 0
    assert ended("watch", "--after", "0", "--count", "2", *data) == 0
    *_, token = capfd.readouterr().err.split()
    assert ended("log", "--after", token, *data) == 0
    assert [line[0] for line in capfd.readouterr().out.splitlines()] == ["3"]
