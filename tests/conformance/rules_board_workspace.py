"""Workspaces: a directory of files is part of the board's cut, on every engine and link."""

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from blackboard.client.board import Board
from blackboard.client.workspace import tree
from blackboard.client.workspace.tree import Node
from blackboard.core.path import tree_head_key, tree_objects_prefix, tree_prefix
from blackboard.errors import (
    AccessDenied,
    Conflict,
    Corrupt,
    FileRefused,
    InvalidRequest,
    UnsavedFiles,
)
from tests.conformance.team import Team

KEY = "private/ada/workspace"
MANY = 1_100
"""More files than one commit puts."""


def fill(top: Path) -> None:
    """A small directory of everything that a snapshot can have."""
    (top / "src").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "src" / "run.py").write_text("print(1)\n")
    (top / "src" / "run.py").chmod(0o755)
    (top / "large").write_bytes(bytes(range(256)) * 5_000)
    (top / "none").touch()
    (top / "to_run").symlink_to("src/run.py")
    (top / "out").symlink_to("/etc/passwd")


def seen(top: Path) -> dict[str, Any]:
    """What is in a directory: modes, contents, targets."""
    found: dict[str, Any] = {}
    for path in sorted(top.rglob("*")):
        mode, name = path.lstat().st_mode, str(path.relative_to(top))
        if stat.S_ISLNK(mode):
            found[name] = str(path.readlink())
        else:
            content = path.read_bytes() if stat.S_ISREG(mode) else None
            found[name] = (oct(mode), content)
    return found


async def objects(board: Board) -> set[str]:
    """The ids of the objects that are on the board."""
    pattern = f"{tree_objects_prefix(KEY)}/*"
    return {entry.key async for entry in board.scan(pattern, keys_only=True)}


async def craft(board: Board, *nodes: Node) -> None:
    """Put a tree by hand, as somebody with the right to write could."""
    salt = bytes(32)
    packed = tree.pack(nodes)
    ids = [tree.id_of(leaf, salt) for leaf in packed]
    root = tree.pack_root(ids)
    stored = {**dict(zip(ids, packed, strict=True)), tree.id_of(root, salt): root}
    for one, content in stored.items():
        await board.put(f"{tree_objects_prefix(KEY)}/{one.hex()}", content)
    head = {"format": 1, "root": tree.id_of(root, salt), "salt": salt, "files": 1, "size_bytes": 0}
    await board.put(tree_head_key(KEY), head)


class WorkspaceRules:
    """What `Board.workspace` promises."""

    async def test_a_directory_comes_back_exactly(self, ada: Board, tmp_path: Path) -> None:
        top = tmp_path / "files"
        fill(top)
        before = seen(top)
        files = ada.workspace(top)
        taken = await files.snapshot(note="everything")
        assert (taken.files, taken.key) == (5, KEY)
        assert (await ada.log(after=taken.revision - 1))[0].note == "everything"
        (top / "src" / "run.py").write_text("print(2)\n")
        (top / "to_run").unlink()
        (top / "more").mkdir()
        (top / "none").chmod(0o600)
        changes = {str(change) for change in await files.diff()}
        assert changes == {"~ src/run.py", "- to_run", "+ more", "x none"}
        await files.snapshot()
        assert await files.diff() == ()
        assert {str(one) for one in await files.diff(taken.revision)} == changes
        assert (await files.restore(taken.revision)).root == taken.root
        assert seen(top) == before
        assert {one.path: one.kind for one in await files.list()}["more"] == "directory"

    async def test_board_and_files_go_back_together(
        self, ada: Board, boss: Board, tmp_path: Path
    ) -> None:
        top = tmp_path / "files"
        fill(top)
        before = seen(top)
        files = ada.workspace(top)
        await files.snapshot()
        await ada.put("private/ada/plan", "first")
        await boss.checkpoint("good")
        (top / "src" / "run.py").write_text("broken")
        (top / "large").unlink()
        await files.snapshot()
        await ada.put("private/ada/plan", "second")
        await boss.restore("good")
        await ada.refresh()
        with pytest.raises(Conflict) as stale:
            await files.snapshot()
        assert stale.value.key == tree_head_key(KEY)
        await files.restore()
        assert seen(top) == before
        assert await ada.get("private/ada/plan") == "first"
        (top / "next").touch()
        assert (await files.snapshot()).files == 6

    async def test_a_branch_has_a_second_directory(
        self, team: Team, ada: Board, boss: Board, tmp_path: Path
    ) -> None:
        top, second = tmp_path / "files", tmp_path / "second"
        fill(top)
        files = ada.workspace(top)
        taken = await files.snapshot()
        name = f"{boss.name}-two"
        await boss.branch(name)
        other = (await team.client_of(ada)).board(name)
        beside = await files.branch(other, second)
        assert seen(second) == seen(top)
        (second / "src" / "run.py").write_text("print(3)\n")
        assert (top / "src" / "run.py").read_text() == "print(1)\n"
        assert (await beside.snapshot()).root != taken.root
        assert await files.info() == taken
        with pytest.raises(UnsavedFiles):
            await files.branch(other, top)

    async def test_nothing_changed_is_no_commit(self, ada: Board, tmp_path: Path) -> None:
        fill(tmp_path / "files")
        files = ada.workspace(tmp_path / "files")
        taken = await files.snapshot()
        assert await files.snapshot(note="again") == taken
        os.utime(tmp_path / "files" / "large", (1, 1))
        assert await files.snapshot() == taken
        assert (await ada.head()).revision == taken.revision

    async def test_a_second_directory_does_not_overwrite(self, ada: Board, tmp_path: Path) -> None:
        fill(tmp_path / "one")
        fill(tmp_path / "two")
        (tmp_path / "two" / "own").touch()
        first, second = ada.workspace(tmp_path / "one"), ada.workspace(tmp_path / "two")
        taken = await first.snapshot()
        with pytest.raises(Conflict):
            await second.snapshot()
        assert await second.info() == taken
        with pytest.raises(UnsavedFiles) as refused:
            await second.restore()
        assert (refused.value.paths, refused.value.count) == (["own"], 1)
        await second.snapshot(overwrite=True)
        (tmp_path / "one" / "own").touch()
        with pytest.raises(Conflict):
            await first.snapshot()

    async def test_changes_that_no_snapshot_has_are_named(self, ada: Board, tmp_path: Path) -> None:
        top = tmp_path / "files"
        fill(top)
        files = ada.workspace(top)
        await files.snapshot()
        before = seen(top)
        (top / "new").touch()
        (top / "src" / "run.py").write_text("print(2)\n")
        changed = seen(top)
        with pytest.raises(UnsavedFiles) as refused:
            await files.restore()
        assert refused.value.paths == ["new", "src/run.py"]
        assert seen(top) == changed
        await files.restore(discard=True)
        assert seen(top) == before

    async def test_ignored_files_stay_where_they_are(self, ada: Board, tmp_path: Path) -> None:
        top = tmp_path / "files"
        fill(top)
        (top / ".gitignore").write_text("*.log\n/build/\n")
        (top / "src" / ".gitignore").write_text("!keep.log\n")
        for name in ("a.log", "src/b.log", "src/keep.log", "build/out", "src/build"):
            (top / name).parent.mkdir(exist_ok=True)
            (top / name).write_text(name)
        files = ada.workspace(top)
        await files.snapshot()
        listed = {one.path for one in await files.list()}
        assert {"src/keep.log", "src/build", ".gitignore"} <= listed
        assert listed.isdisjoint({"a.log", "src/b.log", "build", "build/out"})
        (top / "src" / "run.py").unlink()
        (top / "a.log").write_text("longer")
        await files.restore(discard=True)
        assert (top / "a.log").read_text() == "longer"
        assert (top / "build" / "out").read_text() == "build/out"
        assert (top / "src" / "b.log").exists()
        assert (top / "src" / "run.py").exists()
        assert await files.diff() == ()

    async def test_an_ignored_file_in_the_way_is_named(self, ada: Board, tmp_path: Path) -> None:
        top = tmp_path / "files"
        fill(top)
        files = ada.workspace(top)
        first = await files.snapshot()
        (top / "none").unlink()
        (top / ".gitignore").write_text("none\n")
        await files.snapshot()
        (top / "none").write_text("not in any snapshot")
        with pytest.raises(FileRefused) as refused:
            await files.restore(first.revision)
        assert refused.value.path == "none"
        assert (top / "none").read_text() == "not in any snapshot"
        await files.restore(first.revision, discard=True)
        assert (top / "none").read_text() == ""

    async def test_others_do_not_see_private_files(
        self, ada: Board, bob: Board, tmp_path: Path
    ) -> None:
        fill(tmp_path / "files")
        taken = await ada.workspace(tmp_path / "files").snapshot()
        foreign = bob.workspace(tmp_path / "stolen", KEY)
        for call in (
            foreign.info,
            foreign.list,
            foreign.restore,
            lambda: foreign.restore(taken.revision),
            lambda: foreign.diff(taken.revision, taken.revision),
        ):
            with pytest.raises(AccessDenied):
                await call()
        assert not await asyncio.to_thread((tmp_path / "stolen").exists)
        listing = await bob.list("**")
        assert not [entry for entry in listing.entries if "~tree" in entry.key]

    async def test_objects_follow_the_tree(self, ada: Board, tmp_path: Path) -> None:
        """The present has what the present tree needs; the history has the rest."""
        top = tmp_path / "files"
        fill(top)
        files = ada.workspace(top)
        first = await files.snapshot()
        small = await objects(ada)
        for number in range(MANY):
            (top / f"file{number}").write_text(str(number))
        await files.snapshot()
        assert len(await objects(ada)) > MANY
        await files.restore(first.revision)
        await files.snapshot()
        assert await objects(ada) == small
        prefix = tree_prefix(KEY)
        left = {entry.key async for entry in ada.scan(f"{prefix}/**", keys_only=True)}
        assert left - small == {tree_head_key(KEY)}

    async def test_what_a_killed_snapshot_left_is_removed(self, ada: Board, tmp_path: Path) -> None:
        top = tmp_path / "files"
        fill(top)
        files = ada.workspace(top)
        await files.snapshot()
        small = await objects(ada)
        stray = f"{tree_objects_prefix(KEY)}/{'ab' * 32}"
        await ada.put(stray, b"of no tree")
        await ada.put(f"{tree_prefix(KEY)}/upload", {"upload": "1"})
        (top / "none").write_text("changed")
        await files.snapshot()
        now = await objects(ada)
        assert stray not in now
        assert len(now - small) == 3
        assert await ada.get(f"{tree_prefix(KEY)}/upload") is None

    async def test_a_pipe_is_refused_by_name(self, ada: Board, tmp_path: Path) -> None:
        top = tmp_path / "files"
        fill(top)
        await asyncio.to_thread(os.mkfifo, top / "src" / "pipe")
        with pytest.raises(FileRefused) as refused:
            await ada.workspace(top).snapshot()
        assert refused.value.path == "src/pipe"
        assert await ada.workspace(top).info() is None
        (top / ".blackboardignore").write_text("pipe\n")
        assert (await ada.workspace(top).snapshot()).files == 6

    @pytest.mark.parametrize(
        "nodes",
        [
            [Node(b"../out", stat.S_IFREG | 0o644)],
            [Node(b"/etc/cron.d/out", stat.S_IFREG | 0o644)],
            [Node(b"a", stat.S_IFDIR | 0o755), Node(b"a/../../out", stat.S_IFREG | 0o644)],
            [Node(b"a", stat.S_IFLNK | 0o777, target=b".."), Node(b"a/out", stat.S_IFREG | 0o644)],
            [Node(b"a/out", stat.S_IFREG | 0o644)],
            [Node(b"a//out", stat.S_IFREG | 0o644)],
            [Node(b"out", stat.S_IFREG | 0o644), Node(b"out", stat.S_IFREG | 0o644)],
            [Node(b"out", stat.S_IFREG | stat.S_ISUID | 0o755)],
            [Node(b"out", stat.S_IFIFO | 0o644)],
            [Node(b"out\0", stat.S_IFREG | 0o644)],
            [Node(b"out", stat.S_IFREG | 0o644, size=1)],
        ],
        ids=lambda nodes: nodes[-1].path.decode().replace("\0", "NUL") + oct(nodes[-1].mode),
    )
    async def test_a_crafted_tree_leads_nowhere(
        self, ada: Board, tmp_path: Path, nodes: list[Node]
    ) -> None:
        await craft(ada, *nodes)
        top = tmp_path / "in" / "files"
        await asyncio.to_thread(top.parent.mkdir)
        with pytest.raises(Corrupt):
            await ada.workspace(top).restore()
        assert not await asyncio.to_thread(top.exists)
        assert await asyncio.to_thread(lambda: [*tmp_path.rglob("*out*")]) == []

    async def test_a_changed_object_is_noticed(self, ada: Board, tmp_path: Path) -> None:
        top = tmp_path / "files"
        fill(top)
        await ada.workspace(top).snapshot()
        for key in await objects(ada):
            await ada.put(key, b"something else")
        with pytest.raises(Corrupt):
            await ada.workspace(tmp_path / "other").restore()
        assert not await asyncio.to_thread((tmp_path / "other").exists)

    async def test_a_redaction_removes_it(
        self, ada: Board, boss: Board, team: Team, tmp_path: Path
    ) -> None:
        top = tmp_path / "files"
        fill(top)
        taken = await ada.workspace(top).snapshot()
        client = await team.client_of(boss)
        await client.redact(KEY, board=team.name, why="a person asked")
        assert await ada.workspace(top).info() is None
        with pytest.raises(InvalidRequest):
            await ada.workspace(tmp_path / "again").restore(taken.revision)

    async def test_a_path_that_is_no_directory_is_refused(self, ada: Board, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path)
        with pytest.raises(InvalidRequest):
            ada.workspace(tmp_path / "link")
        (tmp_path / "file").touch()
        with pytest.raises((FileRefused, InvalidRequest)):
            await ada.workspace(tmp_path / "file").snapshot()
        with pytest.raises(InvalidRequest):
            await ada.workspace(tmp_path / "none").restore()
