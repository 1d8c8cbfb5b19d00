"""Directories that are legal and odd: closed ones, those of other users, deep ones, long names."""

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import blackboard
from blackboard.client.board import Board
from blackboard.client.workspace import swap
from blackboard.client.workspace.inside import Inside
from blackboard.client.workspace.removing import remove_tree
from blackboard.errors import FileRefused, InvalidRequest
from tests.conformance.rules_board_workspace import fill, seen

TIMEOUT_S = 250


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board of its own, as Ada."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        yield client.board("main").as_agent("ada")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A directory with a bit of everything, and with one that is ignored and read-only."""
    fill(tmp_path / "files")
    modules = tmp_path / "files" / "src" / "modules"
    modules.mkdir()
    (modules / "kept.txt").write_text("in no snapshot")
    modules.chmod(0o555)
    (tmp_path / "files" / ".gitignore").write_text("modules/\n")
    return tmp_path / "files"


@pytest.fixture
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is read-only is not moved elsewhere, also if root runs the tests."""
    real = os.rename

    def rename(source: Any, target: Any, **handles: Any) -> None:
        there = handles.get("src_dir_fd")
        mode = os.stat(source, dir_fd=there, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and not mode & stat.S_IWUSR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), source)
        real(source, target, **handles)

    monkeypatch.setattr(os, "rename", rename)


@pytest.mark.usefixtures("no_root")
async def test_an_ignored_directory_that_is_read_only_is_carried_over(
    board: Board, top: Path
) -> None:
    """As the cache of modules of Go is; with its mode."""
    files = board.workspace(top)
    first = await files.snapshot()
    before = seen(top)
    (top / "none").write_text("changed")
    await files.snapshot()
    await files.restore(first.revision)
    assert seen(top) == before
    assert await files.diff(first.revision) == ()


@pytest.mark.usefixtures("no_root")
def test_a_directory_that_is_read_only_is_removed_from_a_stage(top: Path, tmp_path: Path) -> None:
    """What a command left at an ignored path may be one."""
    Inside(top, tmp_path / "drafts").remove(b"src/modules")
    assert not (top / "src" / "modules").exists()
    assert [*(tmp_path / "drafts").iterdir()] == []


@pytest.mark.parametrize("rule", ["modules/", "nothing/"], ids=["ignored", "in the tree"])
async def test_a_directory_of_another_user_is_refused_before_anything_is_done(
    board: Board, top: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """It could neither be moved nor removed, and the workspace would stay between two trees."""
    (top / ".gitignore").write_text(f"{rule}\n")
    files = board.workspace(top)
    first = await files.snapshot()
    (top / "none").write_text("changed")
    await files.snapshot()
    before, theirs = seen(top), (top / "src" / "modules").stat().st_ino
    real = os.access

    def access(path: Any, mode: int, **options: Any) -> bool:
        there = os.stat(path, dir_fd=options.get("dir_fd"))
        return there.st_ino != theirs and real(path, mode, **options)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(FileRefused, match="another user") as refused:
        await files.restore(first.revision)
    assert refused.value.path == "src/modules"
    assert seen(top) == before
    monkeypatch.undo()
    await files.restore(first.revision)
    assert (top / "none").read_text() == ""


OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
MOUNTED = """
import asyncio, subprocess, sys
from pathlib import Path
import blackboard
from blackboard.errors import FileRefused

top, volume, place = map(Path, sys.argv[1:])
subprocess.run(["mount", "--bind", volume, top / place], check=True)

async def restore():
    async with blackboard.open(top.parent / "data", level="memory") as client:
        files = client.board("main").as_agent("ada").workspace(top)
        first = await files.snapshot()
        (top / "none").write_text("changed")
        await files.snapshot()
        try:
            await files.restore(first.revision)
        except FileRefused as refused:
            assert "mounted" in refused.reason
            print(refused.path, (top / "none").read_text())
        await files.diff()

asyncio.run(restore())
"""


def mounts_are_permitted() -> bool:
    """Whether a process here may have mounts of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("rule", "place", "refused"),
    [
        ("volume/", "volume", "volume changed"),
        ("nothing/", "volume", "volume changed"),
        ("none.txt", "none.txt", "none.txt changed"),
        ("volume/", "volume/inside", ""),
    ],
    ids=["ignored", "in the tree", "a file", "inside of what is ignored"],
)
def test_a_mount_is_refused_before_anything_is_done(
    tmp_path: Path, rule: str, place: str, refused: str
) -> None:
    """Its place could neither be moved nor removed: the workspace would stay between two trees, and
    the volume be emptied. What is mounted inside an ignored directory moves with it."""
    if not mounts_are_permitted():
        pytest.skip("a process here may have no mounts of its own")
    fill(tmp_path / "files")
    (tmp_path / "files" / ".gitignore").write_text(f"{rule}\n")
    (tmp_path / "files" / "volume" / "inside").mkdir(parents=True)
    (tmp_path / "files" / "none.txt").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_text("of the volume")
    source = tmp_path / "other"
    command: list[str | Path] = [sys.executable, "-c", MOUNTED, tmp_path / "files", source, place]
    if place == "none.txt":
        command[-2] = source / "kept"
    done = subprocess.run(
        [*OWN_MOUNTS, *command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == refused
    assert (tmp_path / "other" / "kept").read_text() == "of the volume"


def test_mounts_are_read_as_linux_writes_them() -> None:
    """With spaces and backslashes in their names; not those of a neighbour, nor the top itself."""
    table = rb"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 254:0 /volume /srv/a\040team rw,relatime - ext4 /dev/vda rw
31 22 254:0 /volume /srv/a\040team/node\134modules rw,relatime shared:2 master:1 - ext4 /dev/vda rw
32 22 254:0 /volume /srv/a\040team.old/x rw,relatime - ext4 /dev/vda rw
"""
    assert [*swap.mounts_below(b"/srv/a team", table)] == [rb"node\modules"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="it is the mount that is looked for")
def test_a_mount_of_another_device_is_found_without_a_table_of_them() -> None:
    """As on macOS; what is gone by then counts for nothing."""
    assert [*swap._other_devices(Path("/"), [b"nothing", b"nothing/x", b"proc"])] == [b"proc"]


def test_a_deep_tree_is_moved_and_removed(tmp_path: Path) -> None:
    """With fewer calls inside each other than it has levels."""
    calls, levels = sys.getrecursionlimit(), 300
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    (old / "/".join("d" * levels)).mkdir(parents=True)
    (old / "/".join("d" * levels) / "kept.log").touch()
    sys.setrecursionlimit(levels - 50)
    try:
        swap._carry(old, new, [b"d/" * levels + b"kept.log"])
        remove_tree(old)
    finally:
        sys.setrecursionlimit(calls)
    assert not old.exists()
    assert (new / "/".join("d" * levels) / "kept.log").exists()


@pytest.mark.parametrize("name", ["\u00e9" * 127, "d" * 255], ids=["of two bytes", "of one"])
async def test_a_directory_has_the_longest_name_that_there_is(
    board: Board, tmp_path: Path, name: str
) -> None:
    """What lies beside it has a name as well; a twin that differs at the end has another one."""
    paths = [tmp_path / name, tmp_path / (name[:-1] + "x")]
    for number, path in enumerate(paths):
        path.mkdir()
        (path / "file").write_text(str(number))
    tops = [board.workspace(path, f"private/ada/{n}") for n, path in enumerate(paths)]
    for files in tops:
        await files.snapshot()
    for number, files in enumerate(tops):
        (paths[number] / "file").write_text("changed")
        await files.restore(discard=True)
        assert (paths[number] / "file").read_text() == str(number)
    assert len({str(files._directory.beside.home) for files in tops}) == 2


async def test_a_directory_that_is_not_there_is_not_an_empty_one(
    board: Board, top: Path, tmp_path: Path
) -> None:
    """Its snapshot stays the present one; the restore makes it again."""
    with pytest.raises(InvalidRequest, match="there is no directory"):
        await board.workspace(tmp_path / "slip").snapshot()
    assert await board.workspace(top).info() is None
    files, before = board.workspace(top), seen(top)
    taken = await files.snapshot()
    await asyncio.to_thread(top.rename, tmp_path / "elsewhere")
    for overwrite in (False, True):
        with pytest.raises(InvalidRequest, match="there is no directory"):
            await files.snapshot(overwrite=overwrite)
    assert await files.info() == taken
    await files.restore()
    ignored = {"src/modules": None, "src/modules/kept.txt": None}
    assert {**seen(top), **ignored} == {**before, **ignored}


async def test_rules_are_read_as_git_reads_them(board: Board, tmp_path: Path) -> None:
    """With the mark that editors on Windows put first, their ends of lines, and odd names."""
    top = tmp_path / "files"
    top.mkdir()
    rules = "\ufeffsecret.txt\r\n*.key\r\na\u2028b\n"
    (top / ".gitignore").write_bytes(rules.encode())
    for name in ("secret.txt", "my.key", "a\u2028b", "b"):
        (top / name).write_text("a password")
    await board.workspace(top).snapshot()
    assert [one.path for one in await board.workspace(top).list()] == [".gitignore", "b"]


async def test_a_file_of_rules_that_is_a_link_or_a_directory_has_none(
    board: Board, tmp_path: Path
) -> None:
    """As for git; such a `.blackboardignore` does not take the place of a `.gitignore` either."""
    top = tmp_path / "files"
    for name in ("linked", "directory", "beside"):
        (top / name).mkdir(parents=True)
        (top / name / "my.key").touch()
    (top / "rules").write_text("*.key\n")
    (top / "linked" / ".gitignore").symlink_to("../rules")
    (top / "directory" / ".gitignore").mkdir()
    (top / "beside" / ".gitignore").write_text("*.key\n")
    (top / "beside" / ".blackboardignore").symlink_to("/dev/null")
    files, found = board.workspace(top), {"linked/my.key", "directory/my.key"}
    for name in ("first", "second"):
        (top / "linked" / name).touch()
        await files.snapshot()
        listed = {one.path for one in await files.list()}
        assert {path for path in listed if path.endswith(".key")} == found
    (top / "linked" / ".gitignore").unlink()
    (top / "linked" / ".gitignore").write_text("other.key\n")
    (top / "linked" / "other.key").touch()
    await files.snapshot()
    listed = {one.path for one in await files.list()}
    assert {path for path in listed if path.endswith(".key")} == found
