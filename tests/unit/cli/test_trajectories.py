"""The file that trajectories are exported to."""

from pathlib import Path

import pytest

from blackboard.cli.errors import CommandError
from blackboard.cli.trajectories import _opened


class Away(Exception):
    """Ends an export."""


def fail(file: Path) -> None:
    """Export one line, and no more."""
    with _opened(file) as out:
        out.write("new\n")
        raise Away


def test_a_file_is_replaced_when_all_is_written(tmp_path: Path) -> None:
    """What is new is for its owner only; what was there keeps its mode."""
    file = tmp_path / "runs.jsonl"
    for mode in (0o600, 0o640):
        with _opened(file) as out:
            out.write(f"{mode}\n")
        assert file.read_text() == f"{mode}\n"
        assert file.stat().st_mode & 0o777 == mode
        file.chmod(0o640)


def test_an_export_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """Half of the trajectories look like all of them."""
    file = tmp_path / "runs.jsonl"
    file.write_text("old\n")
    with pytest.raises(Away):
        fail(file)
    assert file.read_text() == "old\n"
    assert [each.name for each in tmp_path.iterdir()] == ["runs.jsonl"]


def test_without_room_it_is_said_so() -> None:
    with pytest.raises(CommandError) as refused, _opened(Path("/dev/full")) as out:
        out.write("new\n")
    assert refused.value.message == "/dev/full cannot be written: No space left on device"
    assert Path("/dev/full").is_char_device()


def test_a_file_may_have_the_longest_name_that_there_is(tmp_path: Path) -> None:
    """A name has 255 bytes, and such a letter has four."""
    file = tmp_path / ("\N{SNAKE}" * 63)
    with _opened(file) as out:
        out.write("new\n")
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
