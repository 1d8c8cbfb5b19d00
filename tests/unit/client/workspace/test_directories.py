"""Workspaces on a real directory and an embedded board: random trees, and everything that a file
system can hold against them."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import blackboard
from blackboard.client.board import Board
from blackboard.client.workspace import index, scan
from blackboard.client.workspace.within import Within
from blackboard.errors import (
    FileRefused,
    InvalidRequest,
    LimitExceeded,
    UnsavedFiles,
    WorkspaceHeld,
)
from blackboard.limits import (
    LARGE_PART_BYTES,
    UNSAVED_PATHS_MAX,
    WORKSPACE_BYTES_MAX,
    WORKSPACE_PATH_BYTES_MAX,
    WORKSPACE_READS_MAX,
)
from tests.conformance.rules_board_workspace import fill, seen

TOP = "files"


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board of its own, as Ada."""
    async with blackboard.open(tmp_path / "data") as client:
        yield client.board("main").as_agent("ada")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A directory with a bit of everything."""
    fill(tmp_path / TOP)
    return tmp_path / TOP


_name = st.binary(min_size=1, max_size=8).filter(
    lambda name: not {b"/"[0], 0} & {*name} and name not in (b".", b"..", b".gitignore")
)
_content = st.one_of(
    st.binary(max_size=20),
    st.integers(1, 3).map(lambda n: bytes([n]) * (n * LARGE_PART_BYTES // 2 + n)),
)
_entry = st.one_of(
    st.tuples(st.just("file"), _content, st.sampled_from((0o644, 0o755, 0o400))),
    st.tuples(st.just("link"), _name, st.just(0)),
    st.tuples(st.just("directory"), st.just(b""), st.sampled_from((0o755, 0o700, 0o500))),
)
_tree = st.dictionaries(st.lists(_name, min_size=1, max_size=3).map(b"/".join), _entry, max_size=12)


def write(top: Path, tree: dict[bytes, tuple[str, bytes, int]]) -> None:
    """Write as much of `tree` as fits together; directories are closed at the end."""
    top.mkdir()
    modes = dict[Path, int]()
    for path, (kind, content, mode) in sorted(tree.items()):
        target = top / os.fsdecode(path)
        with contextlib.suppress(FileExistsError, NotADirectoryError, FileNotFoundError):
            target.parent.mkdir(parents=True, exist_ok=True)
            if kind == "directory":
                target.mkdir()
            elif kind == "link":
                target.symlink_to(os.fsdecode(content))
            else:
                with target.open("xb") as file:
                    file.write(content)
            if kind != "link":
                modes[target] = mode
    for target, mode in reversed(modes.items()):
        target.chmod(mode)


def read(top: Path) -> dict[Path, Any]:
    """What is there: mode, and content or target."""
    found: dict[Path, Any] = {}
    for at, directories, files in os.walk(top):
        for path in (Path(at) / name for name in (*directories, *files)):
            mode = path.lstat().st_mode
            content = path.read_bytes() if stat.S_ISREG(mode) else None
            target = path.readlink() if stat.S_ISLNK(mode) else None
            found[path.relative_to(top)] = (mode, content, target)
    return found


async def _there_and_back(first: dict[bytes, Any], second: dict[bytes, Any]) -> None:
    with tempfile.TemporaryDirectory() as home:
        one, two = Path(home) / "one", Path(home) / "two"
        write(one, first)
        write(two, second)
        before, after = read(one), read(two)
        async with blackboard.open(Path(home) / "data") as client:
            board = client.board("main")
            files = board.workspace(one)
            taken = await files.snapshot()
            await board.workspace(two).snapshot(overwrite=True)
            await files.restore(discard=True)
            assert read(one) == after
            await files.restore(taken.revision)
            assert read(one) == before
            assert await files.diff(taken.revision) == ()


@settings(max_examples=15, deadline=None)
@given(_tree, _tree)
def test_random_trees_come_back_exactly(first: dict[bytes, Any], second: dict[bytes, Any]) -> None:
    """Names of any bytes, links to anywhere, closed directories, files of several parts."""
    asyncio.run(_there_and_back(first, second))


async def test_only_what_changed_is_read(
    board: Board, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the clock of the file system has gone on."""
    files = board.workspace(top)
    await files.snapshot()
    await asyncio.to_thread(_tick, top)
    await files.snapshot()
    opened = _counting(monkeypatch)
    (top / "none").write_text("now something")
    await files.snapshot()
    assert set(opened) == {b"none"}


def _tick(top: Path) -> None:
    """Until a file that is changed now gets a later time than those in `top`."""
    last = max(path.lstat().st_ctime_ns for path in top.rglob("*"))
    probe = top.parent / "probe"
    while True:
        probe.touch()
        if probe.stat().st_ctime_ns > last:
            return
        os.sched_yield()


def _counting(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    opened: list[bytes] = []
    real = Within.reading

    def reading(self: Within, path: bytes) -> Any:
        opened.append(path)
        return real(self, path)

    monkeypatch.setattr(Within, "reading", reading)
    return opened


async def test_a_change_within_the_tick_is_seen(board: Board, top: Path) -> None:
    """Of the same size, with the time of the old one: what tells is that the row is not settled."""
    files = board.workspace(top)
    for number in range(20):
        (top / "none").write_text(f"{number:04}")
        os.utime(top / "none", (1, 1))
        await files.snapshot()
        path = f"{number:04}"
        assert (top / "none").read_text() == path
        (top / "none").write_text(f"{number + 5000}")
        os.utime(top / "none", (1, 1))
        assert [str(one) for one in await files.diff()] == ["~ none"]


async def test_a_file_that_keeps_changing_is_refused(
    board: Board, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After WORKSPACE_READS_MAX attempts; one that stops in time is read."""
    changes = [0, WORKSPACE_READS_MAX - 1]
    real = os.read

    def reading(file: int, size: int) -> bytes:
        if changes[0] < changes[1] and Path(f"/proc/self/fd/{file}").readlink().name == "large":
            changes[0] += 1
            with (top / "large").open("ab") as out:
                out.write(b"more")
        return real(file, size)

    monkeypatch.setattr(os, "read", reading)
    files = board.workspace(top)
    assert (await files.snapshot()).files == 5
    changes[:] = [0, 10_000]
    (top / "large").write_bytes(b"again")
    with pytest.raises(FileRefused) as refused:
        await files.snapshot()
    assert refused.value.path == "large"


async def test_no_space_leaves_the_old_tree(
    board: Board, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of the new one."""
    files = board.workspace(top)
    taken = await files.snapshot()
    (top / "large").write_bytes(b"small now")
    await files.snapshot()
    before = seen(top)
    real = os.write

    def writing(file: int, content: Any) -> int:
        if "stage" in str(Path(f"/proc/self/fd/{file}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, content)

    monkeypatch.setattr(os, "write", writing)
    with pytest.raises(FileRefused) as refused:
        await files.restore(taken.revision)
    assert "No space left" in refused.value.reason
    assert seen(top) == before
    assert not (top.parent / f".{TOP}.blackboard" / "stage").exists()
    monkeypatch.undo()
    await files.restore(taken.revision)
    assert (top / "large").stat().st_size > 1_000_000


async def test_what_no_file_is_is_refused(board: Board, top: Path) -> None:
    """A socket, a device if there are rights to make one; both by name."""
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(top):
        server.bind("socket")
        with pytest.raises(FileRefused) as refused:
            await board.workspace(top).snapshot()
    assert refused.value.path == "socket"


async def test_ten_gigabytes_are_refused_before_a_byte_is_read(board: Board, top: Path) -> None:
    """A sparse file, which takes no room here."""
    with (top / "huge").open("wb") as file:
        file.truncate(10 * 1024**3)
    with pytest.raises(LimitExceeded) as refused:
        await board.workspace(top).snapshot()
    assert (refused.value.limit, refused.value.maximum) == (
        "WORKSPACE_BYTES_MAX",
        WORKSPACE_BYTES_MAX,
    )


async def test_a_path_that_is_too_long_is_refused(board: Board, top: Path) -> None:
    """No single call can name it, but a directory can hold it."""
    handle = os.open(top, os.O_RDONLY)
    for _ in range(WORKSPACE_PATH_BYTES_MAX // 200 + 1):
        os.mkdir("d" * 200, dir_fd=handle)
        above, handle = handle, os.open("d" * 200, os.O_RDONLY, dir_fd=handle)
        os.close(above)
    os.close(handle)
    with pytest.raises(LimitExceeded) as refused:
        await board.workspace(top).snapshot()
    assert refused.value.limit == "WORKSPACE_PATH_BYTES_MAX"


async def test_hard_links_come_back_as_files_of_their_own(board: Board, top: Path) -> None:
    """Their content is stored once."""
    (top / "linked").hardlink_to(top / "large")
    files = board.workspace(top)
    await files.snapshot()
    before = seen(top)
    await files.restore()
    assert seen(top) == before
    assert (top / "linked").stat().st_ino != (top / "large").stat().st_ino


async def test_names_in_other_normal_forms_stay_apart(board: Board, top: Path) -> None:
    """As bytes: one composed, one decomposed, one that is no UTF-8."""
    for name in ("\u00e9".encode(), "e\u0301".encode(), b"\xff\xfe"):
        (top / os.fsdecode(name)).write_bytes(name)
    files = board.workspace(top)
    await files.snapshot()
    before = read(top)
    await files.restore()
    assert read(top) == before
    assert "\\xff\\xfe" in {one.path for one in await files.list()}


async def test_a_directory_that_becomes_a_link_is_not_followed(
    board: Board, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment in which it was seen and the one in which it is read."""
    secret = top.parent / "secret"
    secret.mkdir()
    (secret / "run.py").write_text("a secret")
    real = scan.read

    def read_later(*arguments: Any) -> Any:
        (top / "src").rename(top / "gone")
        (top / "src").symlink_to(secret)
        return real(*arguments)

    monkeypatch.setattr(scan, "read", read_later)
    with pytest.raises(FileRefused):
        await board.workspace(top).snapshot()
    assert await board.workspace(top).info() is None


async def test_one_works_on_a_directory_at_a_time(board: Board, top: Path) -> None:
    """The second is refused, and is let in afterwards."""
    files, others = board.workspace(top), board.workspace(top, "private/ada/other")
    met: list[BaseException | None] = []

    def progress(_: int) -> None:
        met.append(asyncio.run_coroutine_threadsafe(_refusal(others.snapshot), loop).result())

    loop = asyncio.get_running_loop()
    await files.snapshot(progress=progress)
    assert isinstance(met[0], WorkspaceHeld)
    await others.snapshot(overwrite=True)


async def _refusal(call: Callable[[], Any]) -> BaseException | None:
    try:
        await call()
    except WorkspaceHeld as error:
        return error
    return None


async def test_the_edge_of_the_paths_that_are_named(board: Board, top: Path) -> None:
    """One more is only counted."""
    files = board.workspace(top)
    await files.snapshot()
    for number in range(UNSAVED_PATHS_MAX + 1):
        (top / f"new{number:02}").touch()
    with pytest.raises(UnsavedFiles) as refused:
        await files.restore()
    assert len(refused.value.paths) == UNSAVED_PATHS_MAX
    assert refused.value.count == UNSAVED_PATHS_MAX + 1


async def test_a_damaged_index_counts_as_none(board: Board, top: Path) -> None:
    """Everything is read again; a snapshot needs no leave if the files are those of the board."""
    files = board.workspace(top)
    taken = await files.snapshot()
    (top.parent / f".{TOP}.blackboard" / "index").write_bytes(b"\x00damaged")
    assert index.load(top.parent / f".{TOP}.blackboard" / "index") == (None, {})
    assert (await files.restore()).root == taken.root
    (top / "none").write_text("more")
    assert (await files.snapshot()).revision > taken.revision


@pytest.mark.parametrize("rule", ["!", "[z-a].txt"])
async def test_a_wrong_rule_is_refused(board: Board, top: Path, rule: str) -> None:
    """By the name of its file."""
    (top / ".gitignore").write_text(f"*.log\n{rule}\n")
    with pytest.raises(InvalidRequest, match="gitignore has a wrong rule"):
        await board.workspace(top).snapshot()


async def test_nothing_is_left_after_an_erasure(tmp_path: Path, top: Path) -> None:
    """Not in the files of the engine, of the archive, nor of the index."""
    secret = b"a password that nobody may find " * 40
    (top / "src" / "run.py").write_bytes(secret)
    (top / "large").write_bytes(secret * 5_000)
    async with blackboard.open(tmp_path / "data") as client:
        board = client.board("main").as_agent("ada")
        files = board.workspace(top)
        taken = await files.snapshot()
        await client.board("main").show((await client.board("main").checkpoint()).name)
        assert _holding(tmp_path / "data", secret[:300])
        await client.redact(files.key, board="main", why="it was asked for")
        with pytest.raises(InvalidRequest):
            await files.list(taken.revision)
        (top / "src" / "run.py").write_bytes(b"no more")
        (top / "large").unlink()
    assert _holding(tmp_path, secret[:300]) == []


def _holding(top: Path, content: bytes) -> list[Path]:
    return [path for path in top.rglob("*") if path.is_file() and content in path.read_bytes()]
