"""What a data directory shows to other users of the machine: nothing, after every operation.

Each test runs with a umask of 0, under which whatever is made without a mode is open to everybody.
"""

import asyncio
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import blackboard
from blackboard.client.client import Client
from blackboard.integrity.private_files import exposed
from tests.acceptance.shell import Shell
from tests.lowered import COPIED
from tests.redis_process import RedisProcess

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")

LARGE = "x" * 300_000


@pytest.fixture(autouse=True)
def _a_careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def check(top: Path) -> None:
    """Every directory has 0700 and every file 0600, but for what is gone meanwhile: the draft of a
    file that has got its name."""
    wrong: dict[str, str] = {}
    for path in [top, *top.rglob("*")]:
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600):
                wrong[str(path)] = oct(mode)
    assert wrong == {}
    assert exposed(top) == []


async def watched(top: Path, stop: asyncio.Event) -> set[Path]:
    """Whatever was open to others at any moment until `stop`."""
    seen: set[Path] = set()
    while not stop.is_set():
        seen |= set(await asyncio.to_thread(exposed, top))
    return seen


async def use(client: Client, top: Path) -> None:
    """Do everything that makes or replaces a file, and look after each step."""
    board = client.board("main")
    await board.put("private/ann/a", "secret")
    check(top)
    for number in range(3):
        await board.put(f"private/ann/large/{number}", LARGE + str(number))
    check(top)
    async with board.document("public/notes") as document:
        document.text("body").insert(0, "hello")
        await document.synced()
    check(top)
    await board.checkpoint("first")
    check(top)
    await board.put("private/ann/a", "changed")
    await board.restore("first")
    check(top)
    await board.branch("other", "first")
    assert any((top / "blobs").rglob("*"))
    check(top)
    await board.export("first", top / "board.bbx")
    await board.export("first", top / "board.bbx", overwrite=True)
    check(top)
    imported = await client.import_board(top / "board.bbx", "third")
    assert await imported.get("private/ann/a") == "secret"
    check(top)
    await board.files.put("private/ann/report", LARGE.encode() * 4)
    check(top)
    await board.files.save("private/ann/report", top / "report")
    await board.files.save("private/ann/report", top / "report", overwrite=True)
    check(top)
    await board.touch("private/ann/a", ttl_ms=None)
    await client.freeze(note="an incident")
    check(top)
    await client.thaw()
    await client.redact("private/ann/report", board="third")
    assert (await client.redact("private/ann/report")).done
    check(top)
    await client.remove_board("third")
    check(top)
    await board.prune()
    assert (await board.verify()).findings == ()
    check(top)


def shell_file(folder: Path) -> Path:
    """A file of a size that takes several parts."""
    path = folder / "in"
    path.write_bytes(LARGE.encode() * 4)
    return path


async def test_everything_in_a_data_directory_is_private(tmp_path: Path) -> None:
    """Boards, archive, blobs, exports, journals, locks and drafts, at every moment."""
    top, stop = tmp_path / "data", asyncio.Event()
    async with blackboard.open(top, limits=COPIED) as client:
        check(top)
        watching = asyncio.create_task(watched(top, stop))
        await use(client, top)
        stop.set()
        assert await watching == set()
    check(top)


async def test_a_directory_that_others_could_read_is_closed_when_it_is_opened(
    tmp_path: Path,
) -> None:
    """A volume, a mkdir, a copy that lost its modes: files and directories, also those of boards
    that nobody asks for."""
    top = tmp_path / "data"
    async with blackboard.open(top, limits=COPIED) as client:
        await client.board("main").put("private/ann/a", "secret")
        await client.board("quiet").put("private/ann/a", LARGE)
        await client.board("quiet").checkpoint("first")
    for path in [top, *top.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    (top / "boards" / "main.db-wal").touch()
    (top / "notes.txt").write_text("not one of ours")
    async with blackboard.open(top, limits=COPIED) as client:
        check(top)
        await use(client, top)
    check(top)


def test_a_service_closes_its_directory(tmp_path: Path) -> None:
    """The secret, the token, the lock, and the contexts of the command line: while it runs, too."""
    shell, top = Shell(tmp_path), tmp_path / "data"
    top.mkdir(mode=0o755)
    (top / "left").write_text("by an older version")
    with shell.service():
        check(top)
        shell.run("set", "private/ann/a", "secret")
        check(top)
        files = [path for path in (tmp_path / "config").iterdir() if path.is_file()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert stat.S_IMODE((tmp_path / "config").stat().st_mode) == 0o700
        shell.run("upload", "private/ann/report", str(shell_file(tmp_path)))
        shell.run("download", "private/ann/report", str(tmp_path / "out"))
        assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o600
        check(top)
    check(top)


async def test_a_service_over_redis_closes_its_directory_too(
    tmp_path: Path, redis_binary: Path
) -> None:
    """The secret and the token are there; and a server of ours keeps its files to itself."""
    shell, top = Shell(tmp_path), tmp_path / "data"
    async with RedisProcess(redis_binary, directory=tmp_path / "redis") as server:
        with shell.service("--engine", server.url):
            check(top)
        check(tmp_path / "redis")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to be root")
async def test_another_user_reads_nothing() -> None:
    """Tried by one: each file by its path."""
    with tempfile.TemporaryDirectory() as found:
        top = Path(found) / "data"
        await asyncio.to_thread(prepare, top)
        async with blackboard.open(top, limits=COPIED) as client:
            await use(client, top)
            paths = [str(path) for path in [top, *top.rglob("*")]]
            denied, read = await asyncio.to_thread(read_as_nobody, paths)
            assert (denied, read) == (len(paths), "")


def prepare(top: Path) -> None:
    """A directory that was there before, where others can get to."""
    top.parent.chmod(0o755)
    top.mkdir(mode=0o755)


def read_as_nobody(paths: list[str]) -> tuple[int, str]:
    """How many another user could not open, and what he read."""
    tried = subprocess.run(
        ["cat", *paths],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr.count("Permission denied"), tried.stdout
