"""Files that are not what was written: links, pipes, directories, zeros, another format.

Each is refused at once with an error that names the file, nothing is changed, and the other boards
of the directory go on. A pipe must not keep a reader waiting: each test would then hang.
"""

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import blackboard
from blackboard.archive.blobs import Blobs
from blackboard.errors import BlackboardError, Corrupt, InvalidRequest, OlderFormat, Unavailable
from blackboard.integrity.tokens import check_secret
from blackboard.server.settings import Settings, secret_of
from tests.lowered import COPIED


def link(path: Path) -> None:
    """Keep the file elsewhere, as somebody might whose disk is full."""
    moved = path.with_name("elsewhere")
    path.rename(moved)
    path.symlink_to(moved)


def dead_link(path: Path) -> None:
    """As if the disk with the file were not mounted."""
    path.unlink()
    path.symlink_to("nowhere")


def pipe(path: Path) -> None:
    """Nobody ever writes to it."""
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    """As a container's runtime makes one for a file that is to be mounted and is missing."""
    path.unlink()
    path.mkdir()


def zeros(path: Path) -> None:
    """As some file systems leave a file that was being written when the power went."""
    path.write_bytes(bytes(path.stat().st_size))


ODD: dict[Callable[[Path], None], str] = {
    link: "is a symbolic link",
    dead_link: "is a symbolic link",
    pipe: "is a named pipe",
    directory: "is a directory",
    zeros: "file is not a database",
}
"""What is put in place of a database, and what the error says."""


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A directory with two boards."""
    path = tmp_path / "data"
    async with blackboard.open(path) as client:
        for name in ("main", "other"):
            await client.board(name).put("public/a", 1)
    return path


@pytest.mark.parametrize("spoil", ODD, ids=lambda spoil: spoil.__name__)
async def test_a_board_file_that_is_none(data: Path, spoil: Callable[[Path], None]) -> None:
    """Every call says what is there instead; what is there stays; the other board goes on."""
    file = data / "boards" / "main.db"
    spoil(file)
    before = file.lstat()
    async with blackboard.open(data) as client:
        board = client.board("main")
        for _ in range(2):
            for call in (board.get("public/a"), board.put("public/a", 2), board.head()):
                with pytest.raises(Corrupt, match=ODD[spoil]) as raised:
                    await call
                assert raised.value.what == str(file)
        await client.board("other").put("public/a", 2)
        assert await client.boards() == ["main", "other"]
    after = file.lstat()
    assert (stat.S_IFMT(before.st_mode), before.st_ino) == (
        stat.S_IFMT(after.st_mode),
        after.st_ino,
    )
    if spoil is link:
        file.unlink()
        file.with_name("elsewhere").rename(file)
        async with blackboard.open(data) as client:
            assert await client.board("main").get("public/a") == 1


async def test_a_journal_that_is_a_pipe(data: Path) -> None:
    """Nor is one opened beside a board's file."""
    os.mkfifo(data / "boards" / "main.db-wal")
    async with blackboard.open(data) as client:
        with pytest.raises(Corrupt, match=r"main\.db-wal is a named pipe"):
            await client.board("main").get("public/a")
        assert await client.board("other").get("public/a") == 1


@pytest.mark.parametrize("spoil", ODD, ids=lambda spoil: spoil.__name__)
async def test_an_archive_that_is_none(data: Path, spoil: Callable[[Path], None]) -> None:
    """The directory is not opened; put right, it is whole."""
    file, kept = data / "archive.db", data / "kept.db"
    shutil.copyfile(file, kept)
    spoil(file)
    with pytest.raises(Corrupt, match=ODD[spoil]):
        await blackboard.open(data)
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    kept.replace(file)
    async with blackboard.open(data) as client:
        assert await client.board("main").get("public/a", at=1) == 1
        assert (await client.board("main").verify()).findings == ()


async def test_an_archive_with_a_damaged_table(data: Path) -> None:
    """Commits go on; a request for the past fails at once and names the damage, not only that it
    takes long."""
    with sqlite3.connect(data / "archive.db") as database:
        page = 8 * 1024
        [root] = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'board'"
        ).fetchone()
    database.close()
    with (data / "archive.db").open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(bytes(page))
    async with blackboard.open(data) as client:
        board = client.board("main")
        await board.put("public/a", 2)
        for call in (board.get("public/a", at=1), board.verify(), board.history("public/a")):
            with pytest.raises(BlackboardError, match="malformed"):
                await call
        assert await board.get("public/a") == 2


async def test_an_archive_of_another_version(data: Path) -> None:
    """The error says what it lacks and which way there is; nothing in it is changed."""
    file = data / "archive.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("ALTER TABLE version RENAME COLUMN item TO later")
    before = file.read_bytes()
    for _ in range(2):
        with pytest.raises(OlderFormat, match=r"without columns .*export") as raised:
            await blackboard.open(data)
        assert "archive.db" in raised.value.what
        assert raised.value.lacks == "version.item"
    assert file.read_bytes() == before
    with closing(sqlite3.connect(file)) as database:
        database.execute("ALTER TABLE version RENAME COLUMN later TO item")
    async with blackboard.open(data) as client:
        assert (await client.board("main").verify()).findings == ()


@pytest.mark.parametrize("spoil", [dead_link, pipe, directory, zeros], ids=lambda s: s.__name__)
async def test_a_signing_key_that_is_none(data: Path, spoil: Callable[[Path], None]) -> None:
    """The service does not replace it: the manifests signed with it would no longer verify."""
    spoil(data / "signing_key")
    with pytest.raises(InvalidRequest, match="signing_key"):
        await blackboard.open(data)


async def test_a_signing_key_may_be_a_link(data: Path) -> None:
    """As secrets are mounted in a cluster."""
    link(data / "signing_key")
    async with blackboard.open(data) as client:
        assert (await client.board("main").verify()).findings == ()


@pytest.mark.parametrize("spoil", [dead_link, pipe, directory, zeros], ids=lambda s: s.__name__)
def test_a_secret_that_is_none(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """A file of zeros, too: everybody knows that secret."""
    settings = Settings(data=tmp_path)
    secret = secret_of(settings)
    assert secret_of(settings) == secret
    spoil(tmp_path / "secret")
    with pytest.raises(InvalidRequest, match="secret"):
        secret_of(settings)


def test_a_secret_of_which_a_part_was_written() -> None:
    """The rest is zeros."""
    with pytest.raises(InvalidRequest, match="cannot be printed"):
        check_secret("0123456789abcdef0123456789abcdef" + "\0" * 32)


@pytest.mark.parametrize("spoil", [pipe, directory, zeros], ids=lambda s: s.__name__)
async def test_a_record_of_a_removed_board_that_is_none(
    data: Path, spoil: Callable[[Path], None]
) -> None:
    """No board of that name begins on revisions that were given out before."""
    async with blackboard.open(data) as client:
        await client.remove_board("other")
    spoil(data / "boards" / "other.db.removed")
    async with blackboard.open(data) as client:
        with pytest.raises((Corrupt, Unavailable), match=r"other\.db\.removed"):
            await client.board("other").put("public/a", 1)
        assert await client.board("main").get("public/a") == 1


@pytest.mark.parametrize("spoil", [link, dead_link, pipe, directory], ids=lambda s: s.__name__)
async def test_a_large_archived_value_that_is_no_file(
    data: Path, spoil: Callable[[Path], None]
) -> None:
    """Reads of the past that need it fail at once; a pipe would keep each of them, and the close of
    the client, for good."""
    value = "x" * 100_000
    async with blackboard.open(data, limits=COPIED) as client:
        board = client.board("main")
        revision = (await board.put("public/large", value)).revision
        await board.put("public/large", 1)
        assert await board.get("public/large", at=revision) == value
    [file] = (path for path in (data / "blobs").rglob("*") if path.is_file())
    spoil(file)
    async with blackboard.open(data, limits=COPIED) as client:
        board = client.board("main")
        for _ in range(2):
            for call in (board.get("public/large", at=revision), board.history("public/large")):
                with pytest.raises(Corrupt, match=f"blob .*{file.name}.*(link|ordinary)"):
                    await call
        assert [finding for finding in (await board.verify()).findings if file.name in str(finding)]
        await client.board("other").put("public/large", 1)
        assert await board.get("public/a", at=1) == 1


@pytest.mark.parametrize("spoil", [link, dead_link, pipe], ids=lambda s: s.__name__)
async def test_a_blob_that_is_no_file_is_written_again(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """When its value is stored once more, as if it were missing."""
    blobs = Blobs.at(str(tmp_path / "blobs"))
    name = await blobs.put(b"value")
    spoil(tmp_path / "blobs" / name.hex()[:2] / name.hex())
    with pytest.raises(Corrupt):
        await blobs.get(name)
    await blobs.put_missing([b"value"])
    assert await blobs.get(name) == b"value"


@pytest.mark.parametrize("spoil", [pipe, directory, zeros], ids=lambda s: s.__name__)
async def test_an_export_that_is_none(data: Path, spoil: Callable[[Path], None]) -> None:
    """A pipe is not waited for."""
    file = data.parent / "export"
    async with blackboard.open(data) as client:
        await client.board("main").checkpoint("c")
        await client.board("main").export("c", file)
        spoil(file)
        with pytest.raises((Corrupt, InvalidRequest)):
            await client.import_board(file, "new")
        assert "new" not in await client.boards()
