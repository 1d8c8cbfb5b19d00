"""Files that only their owner may open: made so, and closed when they were left open."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from blackboard.integrity import private_files
from blackboard.integrity.private_files import close_tree, exposed, make_directory, make_file

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")


@pytest.fixture(autouse=True)
def _a_careless_umask() -> Iterator[None]:
    """Whatever is made without a mode is open to all."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """The rights of a file."""
    return stat.S_IMODE(path.lstat().st_mode)


def plant(top: Path) -> list[Path]:
    """A tree that is open to everybody; returns what is in it, `top` first."""
    (top / "boards" / "deep").mkdir(parents=True)
    for name in ("secret", "boards/main.db", "boards/deep/blob"):
        (top / name).write_text("x")
    return [top, *sorted(top.rglob("*"))]


def test_a_tree_that_was_left_open_is_closed(tmp_path: Path) -> None:
    """Directories keep 0700, files 0600; doctor would have named each of them."""
    planted = plant(tmp_path / "data")
    assert sorted(exposed(tmp_path / "data")) == sorted(planted)
    close_tree(tmp_path / "data")
    assert {path: mode(path) for path in planted} == {
        path: 0o700 if path.is_dir() else 0o600 for path in planted
    }
    assert exposed(tmp_path / "data") == []


def test_rights_are_only_taken_away(tmp_path: Path) -> None:
    """A file that its owner may not write stays so; a program of the owner's stays one."""
    for name, before in (("key", 0o444), ("tool", 0o755), ("none", 0o000)):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(before)
    close_tree(tmp_path)
    assert [mode(tmp_path / name) for name in ("key", "tool", "none")] == [0o400, 0o700, 0]


def test_what_a_link_points_at_is_left_alone(tmp_path: Path) -> None:
    """Neither a file nor a directory outside is touched."""
    outside = plant(tmp_path / "outside")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").symlink_to(tmp_path / "outside" / "secret")
    (tmp_path / "data" / "directory").symlink_to(tmp_path / "outside")
    (tmp_path / "data" / "nowhere").symlink_to(tmp_path / "gone")
    close_tree(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o700
    assert [mode(path) for path in outside] == [0o777 if p.is_dir() else 0o666 for p in outside]


def test_a_directory_that_users_share_is_not_taken_from_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With /tmp as a data directory, what is in it is closed, and a warning says the rest."""
    tmp_path.chmod(0o1777)
    (tmp_path / "secret").write_text("x")
    make_directory(tmp_path)
    close_tree(tmp_path)
    assert (mode(tmp_path), mode(tmp_path / "secret")) == (0o1777, 0o600)
    assert "sticky" in caplog.text


def test_what_belongs_to_somebody_else_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume's root that we may not change does not keep a service from starting."""
    plant(tmp_path / "data")

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "chmod", refuse)
    close_tree(tmp_path / "data")
    assert caplog.text.count("stays open to other users") == len(exposed(tmp_path / "data"))


def test_what_vanishes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service next to ours goes on working in the directory."""
    plant(tmp_path / "data")
    real = private_files._exposed

    def listed(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
        found = list(real(top))
        (top / "secret").unlink()
        yield from found

    with monkeypatch.context() as patched:
        patched.setattr(private_files, "_exposed", listed)
        close_tree(tmp_path / "data")
    assert exposed(tmp_path / "data") == []


def test_new_files_are_private_from_the_beginning(tmp_path: Path) -> None:
    """Made, opened or emptied: nobody else can open them, whatever the umask is."""
    make_file(tmp_path / "made")
    with private_files.open_new(tmp_path / "new") as file:
        assert mode(tmp_path / "new") == 0o600
        file.write("x")
    with private_files.open_anew(tmp_path / "anew"):
        assert mode(tmp_path / "anew") == 0o600
    make_directory(tmp_path / "deep" / "directory")
    assert mode(tmp_path / "made") == 0o600
    assert mode(tmp_path / "deep" / "directory") == 0o700
    with pytest.raises(FileExistsError):
        private_files.open_new(tmp_path / "new")


def test_a_directory_that_was_left_open_is_closed(tmp_path: Path) -> None:
    """By each writer of a file in it: a key, a blob, a board."""
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(0o755)
    make_directory(directory)
    assert mode(directory) == 0o700


def test_a_database_that_was_left_open_is_closed_with_its_journals(tmp_path: Path) -> None:
    """Its content stays."""
    for end in ("", "-wal", "-shm"):
        (tmp_path / f"archive.db{end}").write_text("x")
    make_file(tmp_path / "archive.db")
    assert {mode(path) for path in tmp_path.iterdir()} == {0o600}
    assert (tmp_path / "archive.db").read_text() == "x"
