"""Files outside SQLite: what could not be synced was not written, and is written again."""

import errno
import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blackboard.archive.blobs import Blobs
from blackboard.client.export import _publish
from blackboard.engines import disk
from blackboard.engines.disk import SyncError
from blackboard.errors import BlackboardError
from blackboard.integrity.signing import make_key
from blackboard.integrity.tokens import new_secret
from blackboard.server.settings import Settings, write_operator_token

OLD, NEW = b"old", b"new" * 1_000


class Syncs:
    """`os.fsync`, which fails the `fails`-th time, counted from 1; `inodes` are what it synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = 0
        self.done = 0
        self.inodes: set[int] = set()
        real = os.fsync

        def fsync(file: int) -> None:
            self.done += 1
            if self.done == self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(file)
            self.inodes.add(os.fstat(file).st_ino)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    """Syncs that work until one is made to fail."""
    return Syncs(monkeypatch)


def export(folder: Path) -> None:
    """Give a finished draft its name."""
    draft = folder / "draft"
    draft.write_bytes(bytes(100))
    try:
        _publish(draft, folder / "file", overwrite=True)
    finally:
        draft.unlink(missing_ok=True)


WRITERS: dict[str, Callable[[Path], object]] = {
    "file": lambda folder: disk.replace_file(folder / "file", NEW),
    "new file": lambda folder: disk.make_file(folder / "file", NEW),
    "signing key": lambda folder: make_key(folder / "file"),
    "token": lambda folder: write_operator_token(Settings(data=folder), new_secret()),
    "export": export,
}


@pytest.mark.parametrize("fails", [1, 2])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_could_not_be_synced_is_written_again(
    tmp_path: Path, syncs: Syncs, writer: str, fails: int
) -> None:
    """The file's own sync, or that of its directory. No draft is left either way."""
    syncs.fails = fails
    with pytest.raises((OSError, BlackboardError)):
        WRITERS[writer](tmp_path)
    left = [path.stat().st_ino for path in tmp_path.iterdir()]
    assert len(left) <= 1
    syncs.inodes.clear()
    WRITERS[writer](tmp_path)
    [file] = tmp_path.iterdir()
    assert file.stat().st_size
    assert {file.stat().st_ino, tmp_path.stat().st_ino} <= syncs.inodes
    assert file.stat().st_mode & 0o077 == 0 or writer == "export"


def files_below(folder: Path) -> list[Path]:
    """Those in it, and in what is in it."""
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("fails", [1, 2, 3])
async def test_a_blob_that_could_not_be_synced_is_written_again(
    tmp_path: Path, syncs: Syncs, fails: int
) -> None:
    """Under another inode: the pages of the first one may have been dropped."""
    blobs = Blobs.at(str(tmp_path))
    syncs.fails = fails
    with pytest.raises(BlackboardError):
        await blobs.put(NEW)
    before = {path.stat().st_ino for path in files_below(tmp_path)}
    syncs.inodes.clear()
    name = await blobs.put(NEW)
    [file] = files_below(tmp_path)
    assert file.stat().st_ino in syncs.inodes
    assert file.stat().st_ino not in before
    assert await blobs.get(name) == NEW


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    """By who only makes it if it is missing."""
    (tmp_path / "file").write_bytes(OLD)
    disk.make_file(tmp_path / "file", NEW)
    assert (tmp_path / "file").read_bytes() == OLD


def test_what_is_written_over_is_as_it_was(tmp_path: Path, syncs: Syncs) -> None:
    """Byte for byte, in its place, and synced; a missing file stays missing."""
    path, content = tmp_path / "file", os.urandom(700_000)
    path.write_bytes(content)
    inode = path.stat().st_ino
    disk.write_over(path)
    assert path.read_bytes() == content
    assert path.stat().st_ino == inode
    assert inode in syncs.inodes
    disk.write_over(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    syncs.fails = syncs.done + 1
    with pytest.raises(SyncError):
        disk.write_over(path)


@pytest.mark.parametrize(
    ("number", "fails"), [(errno.EIO, True), (errno.ENOTSUP, False), (errno.ENOTTY, False)]
)
def test_a_full_sync_that_fails_is_not_tried_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, fails: bool
) -> None:
    """On macOS, where fsync alone does not reach the disk; some file systems know nothing more."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setitem(vars(fcntl), "F_FULLFSYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(sys, "platform", "darwin")
    with (tmp_path / "file").open("wb") as file:
        if fails:
            with pytest.raises(SyncError):
                disk.sync(file.fileno())
        else:
            disk.sync(file.fileno())
