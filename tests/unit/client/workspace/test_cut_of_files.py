"""Workspaces in the cut: checkpoints amid a snapshot, encryption, erasure, full disks."""

import errno
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import blackboard
from blackboard import RetentionPolicy, ops
from blackboard.client.board import Board
from blackboard.client.views import Entry, Receipt
from blackboard.client.workspace import index
from blackboard.client.workspace.workspace import Workspace
from blackboard.core.commit import Delete
from blackboard.core.path import tree_prefix
from blackboard.encryption.master_key import new_master_key
from blackboard.errors import BlackboardError, InvalidRequest, Unavailable
from blackboard.limits import OPERATIONS_MAX
from blackboard.types import WorkspaceFile
from tests.conformance.rules_board_workspace import KEY, fill, objects, seen

LARGE_BYTES = 400_000
SECRET = b"the password is swordfish, and nobody may find it "


@pytest.fixture
async def boss(tmp_path: Path) -> AsyncIterator[Board]:
    """A board of its own, as its operator."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        yield client.board("main")


@pytest.fixture
def board(boss: Board) -> Board:
    """It, as Ada."""
    return boss.as_agent("ada")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A directory with a bit of everything."""
    fill(tmp_path / "files")
    return tmp_path / "files"


class Checkpointing:
    """A board on which somebody takes a checkpoint after each commit."""

    def __init__(self, board: Board, boss: Board) -> None:
        self._board, self._boss = board, boss
        self.taken: list[str] = []

    @property
    def name(self) -> str:
        """See TreeBoard, here and below."""
        return self._board.name

    @property
    def agent(self) -> str:
        return self._board.agent

    async def entry(self, key: str, *, at: Any = None) -> Entry | None:
        return await self._board.entry(key, at=at)

    async def entries(self, keys: Sequence[str], *, at: Any = None) -> dict[str, Entry]:
        return await self._board.entries(keys, at=at)

    def scan(self, pattern: str, *, at: Any = None, keys_only: bool = False) -> Any:
        return self._board.scan(pattern, at=at, keys_only=keys_only)

    async def commit(
        self, ops: Sequence[Any], *, conditions: Sequence[Any] = (), note: str = ""
    ) -> Receipt:
        receipt = await self._board.commit(ops, conditions=conditions, note=note)
        self.taken.append(f"after-{receipt.revision}")
        await self._boss.checkpoint(self.taken[-1])
        return receipt


async def test_a_checkpoint_between_two_commits_of_a_snapshot_has_a_whole_tree(
    board: Board, boss: Board, top: Path, tmp_path: Path
) -> None:
    """The one before, until the last commit; also for the next snapshot after a restore of it."""
    files = board.workspace(top)
    await files.snapshot()
    before, small = seen(top), await objects(board)
    for number in range(12):
        (top / f"large{number}").write_bytes(os.urandom(LARGE_BYTES))
    after = seen(top)
    between = Checkpointing(board, boss)
    await Workspace(between, KEY, top).snapshot()
    found = []
    for name in between.taken:
        await board.workspace(tmp_path / name).restore(name)
        found.append(seen(tmp_path / name))
    assert len(found) > 3
    assert found == [before] * (len(found) - 1) + [after]
    await boss.restore(between.taken[1])
    await board.refresh()
    await files.restore()
    assert seen(top) == before
    (top / "none").write_text("changed")
    await files.snapshot()
    assert len(await objects(board) - small) == 3  # the part, its leaf and the root: nothing stray


class RefusingRemoval(Checkpointing):
    """A board that cannot be reached for what only removes objects."""

    async def commit(
        self, ops: Sequence[Any], *, conditions: Sequence[Any] = (), note: str = ""
    ) -> Receipt:
        if all(isinstance(one, Delete) for one in ops):
            raise Unavailable(what="the board", reason="the connection broke")
        return await self._board.commit(ops, conditions=conditions, note=note)


async def test_a_snapshot_that_is_taken_is_no_error(board: Board, boss: Board, top: Path) -> None:
    """If what it does not need any more cannot be removed: the next one removes it."""
    for number in range(OPERATIONS_MAX + 1):
        (top / f"file{number}").write_text(str(number))
    await board.workspace(top).snapshot()
    for number in range(OPERATIONS_MAX + 1):
        (top / f"file{number}").unlink()
    taken = await Workspace(RefusingRemoval(board, boss), KEY, top).snapshot()
    assert await board.workspace(top).info() == taken
    assert await board.workspace(top).diff() == ()
    (top / "none").write_text("changed")
    await board.workspace(top).snapshot()
    assert len(await objects(board)) < 20


async def test_sealed_files_are_in_no_file_and_gone_after_an_erasure(
    top: Path, tmp_path: Path
) -> None:
    """Neither contents, nor names, nor targets of links; with encryption at rest."""
    (top / "swordfish.txt").write_bytes(SECRET * 20_000)
    (top / "link").symlink_to("swordfish")
    data = tmp_path / "data"
    async with blackboard.open(data, master_key=new_master_key()) as client:
        board = client.board("main").as_agent("ada")
        files = board.workspace(top)
        taken = await files.snapshot()
        await client.board("main").checkpoint("c")
        restored = board.workspace(tmp_path / "again")
        await restored.restore(taken.revision)
        assert seen(tmp_path / "again") == seen(top)
        assert await client.erase("ada") >= 1
        for call in (files.info, files.list, restored.restore, lambda: files.list(taken.revision)):
            assert await _refusal(call)
        assert [one async for one in board.scan(f"{KEY}/**") if isinstance(one.value, bytes)] == []
        (top / "swordfish.txt").unlink()
        await board.commit([ops.DeletePrefix(tree_prefix(KEY))])  # what is left of the old one
        assert (await files.snapshot()).files == 6
    stored = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert b"swordfish" not in stored
    assert ops.encode_value("c")[1:] in stored  # the search itself works


async def _refusal(call: Any) -> bool:
    """Whether it is refused, or finds nothing."""
    try:
        return await call() is None
    except BlackboardError:
        return True


async def test_a_link_to_etc_stays_a_link(board: Board, top: Path, tmp_path: Path) -> None:
    """Nothing behind it is read, neither now nor after a restore."""
    (top / "etc").symlink_to("/etc")
    files = board.workspace(top)
    await files.snapshot()
    listed = {one.path: one for one in await files.list()}
    assert listed["etc"] == WorkspaceFile("etc", "link", 0, 0o777, "/etc")
    assert not [path for path in listed if path.startswith("etc/")]
    await board.workspace(tmp_path / "other").restore()
    assert (tmp_path / "other" / "etc").readlink() == Path("/etc")


def without_space(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The disk is full once the index was written `after` times."""
    left, real = [after], index.write

    def write(*arguments: Any) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        real(*arguments)

    monkeypatch.setattr(index, "write", write)


async def test_no_space_for_the_index_before_the_commit(
    board: Board, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typed error; the files and the board are as they were, and the next snapshot needs no
    leave."""
    files = board.workspace(top)
    first = await files.snapshot()
    (top / "none").write_text("changed")
    before = seen(top)
    with monkeypatch.context() as patched:
        without_space(patched, after=0)
        with pytest.raises(InvalidRequest, match="No space left"):
            await files.snapshot()
    assert seen(top) == before
    assert await files.info() == first
    await files.snapshot()
    assert await files.diff() == ()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_snapshot_is_taken_though_there_is_no_space_for_the_index_after_it(
    board: Board, top: Path, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """It is on the board, and the next call knows that it came from here."""
    files = board.workspace(top)
    if not is_first:
        await files.snapshot()
        (top / "none").write_text("changed")
    with monkeypatch.context() as patched:
        without_space(patched, after=1)
        taken = await files.snapshot()
    assert await files.info() == taken
    (top / "none").write_text("changed again")
    assert (await files.snapshot()).revision > taken.revision
    assert await files.diff() == ()


async def test_what_a_pruning_kept_comes_back(
    boss: Board, board: Board, top: Path, tmp_path: Path
) -> None:
    """The checkpoint is kept, and not the revision of the snapshot before it; a branch needs no
    directory to copy from."""
    files = board.workspace(top)
    before = seen(top)
    await files.snapshot()
    await boss.put("public/plan", 1)
    await boss.checkpoint("works")
    (top / "more").write_bytes(os.urandom(1_000))
    (top / "large").unlink()
    await files.snapshot()
    await boss.prune(RetentionPolicy(history_ms=1))
    assert "more" not in {one.path for one in await files.list("works")}
    await files.restore("works")
    assert seen(top) == before
    other = await boss.branch("other", "works")
    os.rename(top, tmp_path / "elsewhere")  # noqa: PTH104
    await files.branch(other.as_agent("ada"), tmp_path / "second")
    assert seen(tmp_path / "second") == before
