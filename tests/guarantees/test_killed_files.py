"""kill -9 of an agent with files, at every point: its files are those of its step on the board.

At each call to the file system that the workspace makes, before and after each commit, and while
the process after it repairs what it left. `make test` takes a few of these points, and
`make test-all` many, beginning at one that the seed says; BLACKBOARD_FILES_KILLS=1000 takes all.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blackboard import embedded
from tests.guarantees.files_child import BOARD, FILES
from tests.source_tree import ROOT
from tests.tiers import few_or_many

FEW, MANY = 4, int(os.environ.get("BLACKBOARD_FILES_KILLS", "16"))
AT_REPAIR = 25
"""The second process is killed at a point up to this one: that is while it repairs."""
Tree = dict[str, str | None]


def tree_of(top: Path) -> Tree:
    """The files of a directory, and (None) its directories."""
    return {
        str(path.relative_to(top)): path.read_text() if path.is_file() else None
        for path in sorted(top.rglob("*"))
    }


@dataclass
class Home:
    """Where agents live and die."""

    directory: Path
    process: "subprocess.Popen[str]"

    def live(self, name: str, at: int = 0) -> int:
        """One life, which ends at a point; returns how many points there were."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"name": name, "at": at}) + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        assert told["status"] in (0, signal.SIGKILL), told
        passed: int = told["passed"]
        return passed

    def found(self, name: str) -> dict[int, Tree]:
        """What each step of an agent found, which was the same in all its runs."""
        found: dict[int, Tree] = {}
        for line in (self.directory / "found").read_text().splitlines():
            agent, step, tree = json.loads(line)
            if agent == name:
                assert found.setdefault(step, tree) == tree, (name, step)
        return found


@contextmanager
def home_at(directory: Path) -> Iterator[Home]:
    """A process that forks agents."""
    command = [sys.executable, "-m", "tests.guarantees.files_child", str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        yield Home(directory, process)
        assert process.stdin is not None
        process.stdin.close()


async def board_says(directory: Path, names: list[str]) -> dict[str, Any]:
    """What the board has of each agent; its directory is what its workspace is."""
    said = {}
    async with embedded.open(directory / "data") as client:
        for name in names:
            board = client.board(BOARD).as_agent(name)
            files = board.workspace(directory / name)
            assert await files.diff() == (), name
            head = await files.info()
            assert head is not None
            counted = [
                await board.get(f"public/{what}/{name}") for what in ("steps", "filler", "said")
            ]
            left = [entry.key async for entry in board.scan(f"private/{name}/**", keys_only=True)]
            said[name] = (counted, head.files, len(left))
    return said


@pytest.mark.slow
@few_or_many(FEW, MANY)
def test_files_are_those_of_the_board(tmp_path: Path, seed: int, rounds: int) -> None:
    """Of the step before or after the kill, whole; then each step's effect is there once, and each
    run of a step found the same files."""
    with home_at(tmp_path) as home:
        points = home.live("calm")
        calm = home.found("calm")
        trees = [{}, calm[2], tree_of(tmp_path / "calm")]
        assert trees[2]["src/0"] == "0\nmore\n"
        assert len(trees[2]) == FILES + 3
        every = max(1, points // rounds)
        first = 1 + random.Random(seed).randrange(every)
        names, seen = ["calm"], Counter[int]()
        for at in range(first, points + 1, every):
            names.append(name := f"at{at}")
            home.live(name, at)
            top = tmp_path / name
            before = tree_of(top) if top.exists() else {}
            assert before in trees, at
            seen[trees.index(before)] += 1
            home.live(name, 1 + at % AT_REPAIR)
            home.live(name)
            assert home.found(name) == calm, at
            assert tree_of(top) == trees[2], at
        assert set(seen) == {0, 1, 2} or rounds == FEW
    said = asyncio.run(board_says(tmp_path, names))
    assert said == dict.fromkeys(names, said["calm"])
