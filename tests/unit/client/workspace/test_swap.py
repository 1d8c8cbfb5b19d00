"""A process that is killed while it restores leaves one of the two trees, whole, wherever it was.

A child is killed at one line after another of the module that swaps, three or four apart; the next
process finishes or forgets. So no place was chosen by somebody who thought of it.
"""

import asyncio
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import blackboard
from blackboard.client.workspace import swap
from tests.conformance import rules_board_workspace
from tests.conformance.rules_board_workspace import fill, seen

# Children are forked by a server that has one thread: a process with threads must not fork.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["blackboard.embedded", rules_board_workspace.__name__])


class Killed:
    """Kills this process at the n-th line of the file that it runs, in any thread."""

    def __init__(self, file: str, after: int) -> None:
        self._file, self._left = file, after
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self._left:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def restore(home: Path, revision: int, *, after: int, can_exchange: bool) -> None:
    """In a child: restore the files, and die at that line; exit with 3 if it ends before."""
    if not can_exchange:
        swap.exchange = lambda *_: False
    killed = Killed(swap.__file__, after)
    threading.settrace(killed)
    sys.settrace(killed)
    asyncio.run(_restore(home, revision))
    os._exit(3)


async def _restore(home: Path, revision: int) -> None:
    async with blackboard.open(home / "data") as client:
        await client.board("main").workspace(home / "files").restore(revision)


async def _prepare(home: Path) -> int:
    """Two snapshots; returns the revision of the first."""
    top = home / "files"
    fill(top)
    (top / ".gitignore").write_text("*.log\n")
    (top / "src" / "kept.log").write_text("in no snapshot")
    async with blackboard.open(home / "data") as client:
        files = client.board("main").workspace(top)
        first = await files.snapshot()
        (top / "src" / "run.py").write_text("print(2)\n")
        (top / "new").touch()
        (top / "empty").rmdir()
        await files.snapshot()
    return first.revision


async def _after(home: Path) -> tuple[dict[str, Any], list[str]]:
    """What the next process finds, and what the directory differs in from its two snapshots."""
    async with blackboard.open(home / "data") as client:
        files = client.board("main").workspace(home / "files")
        differences = await files.diff()
        await files.restore()
        assert await files.diff() == ()
        return seen(home / "files"), [str(one) for one in differences]


@pytest.mark.slow
@pytest.mark.parametrize("can_exchange", [True, False], ids=["exchange", "two renames"])
def test_killed_while_it_restores(tmp_path: Path, can_exchange: bool) -> None:
    """The tree is the old one or the new one; ignored files are there; the next restore works."""
    pattern = tmp_path / "pattern"
    pattern.mkdir()
    revision = asyncio.run(_prepare(pattern))
    second = seen(pattern / "files")
    first: dict[str, Any] | None = None
    met = set[str]()
    line = 0
    while first is None:
        line += 3 if can_exchange else 4
        home = tmp_path / f"at{line}"
        shutil.copytree(pattern, home, symlinks=True)
        child = CONTEXT.Process(
            target=restore,
            args=(home, revision),
            kwargs={"after": line, "can_exchange": can_exchange},
        )
        child.start()
        child.join()
        if child.exitcode == 3:
            first = seen(home / "files")
            break
        assert child.exitcode == -signal.SIGKILL
        found, differences = asyncio.run(_after(home))
        assert found == second
        met.add("new" if differences else "old")
        assert set(differences) <= {"- new", "+ empty", "~ src/run.py"}
        assert len(differences) in (0, 3)
        shutil.rmtree(home)
    assert first["src/kept.log"] == second["src/kept.log"]
    assert "new" not in first
    assert met == {"old", "new"}


def test_the_exchange_is_one_call(tmp_path: Path) -> None:
    """Where the system has it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "of_a").touch()
    done = swap.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / ("b" if done else "a") / "of_a").exists()
