"""An agent with files that is killed: `files_child.py DIRECTORY`, then a line of orders per life.

An order is JSON: the `name` of the agent, and `at` which point its life ends (0: at none). Points
are each call to the file system that the workspace makes, each commit, before and after it, and
each StepPoint. For each order a process is forked, as in agent_child.py; the answer is a line with
the signal that ended it (0: the agent was done) and how many points it passed.

What a step finds is written to DIRECTORY/found, a line for each run of a step: the agent, the step,
and its files with their contents.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from blackboard import embedded
from blackboard.client.views import Receipt
from blackboard.client.workspace import step_files
from blackboard.core.commit import Op
from blackboard.limits import OPERATIONS_MAX
from blackboard.runtime.agent import Agent
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.context import Context
from blackboard.runtime.runner import Runner
from blackboard.runtime.state import Status

BOARD = "shop"
FILLER = OPERATIONS_MAX - 132
"""Operations of a step that leave no room for its files in the commit: they are put ahead of it."""
FILES = 6
SCRIPT = "cat 0; echo more >> 0; touch a.log; mkdir -p ../d/e"
AUDITED = ("open", "os.", "shutil.", "fcntl.", "subprocess.")
WORKSPACE = str(Path(step_files.__file__).parent)
FRAMES = 8
"""Calls between the workspace and the file system: pathlib, shutil."""
home = Path()


class Work(BaseModel):
    """How many steps were taken."""

    steps: int = 0


class Coder(Agent[Work]):
    """Writes, runs and removes; leaves what is ignored, too."""

    def workspace(self) -> Path:
        """A directory of its own."""
        return home / self.name

    async def step(self, ctx: Context[Work]) -> None:
        """One step of two."""
        found = {one.path: await self._content(ctx, one) for one in await ctx.files.list()}
        _append(home / "found", [self.name, ctx.run.number, found])
        ctx.state.steps += 1
        ctx.increment(f"public/steps/{self.name}")
        if ctx.run.number == 1:
            for number in range(FILES):
                await ctx.files.write(f"src/{number}", f"{number}\n")
            await ctx.files.write(".gitignore", "*.log\n")
            for _ in range(FILLER):
                ctx.increment(f"public/filler/{self.name}")
        else:
            ran = await ctx.files.run(["sh", "-c", SCRIPT], directory="src")
            ctx.put(f"public/said/{self.name}", ran.stdout)
            await ctx.files.remove("src/1")
            ctx.done()

    async def _content(self, ctx: Context[Work], one: Any) -> str | None:
        if one.kind != "file":
            return None
        return (await ctx.files.read(one.path)).decode()


def _append(path: Path, line: object) -> None:
    """One line, in the file before this returns: no buffer dies with the process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


class Points:
    """Counts the points of a life, and ends it at one of them."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.passed = 0

    def here(self, *_: object) -> None:
        """A point."""
        self.passed += 1
        if self.passed == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, _: object) -> None:
        """A call to the file system that the workspace makes is a point."""
        if not event.startswith(AUDITED):
            return
        frame = sys._getframe(1)
        for _each in range(FRAMES):
            if frame.f_code.co_filename.startswith(WORKSPACE):
                self.here()
                return
            if frame.f_back is None:
                return
            frame = frame.f_back


class Port(LiveBoardPort):
    """A board on which each commit has a point before it, and one after it."""

    def __init__(self, board: Any, points: Points) -> None:
        super().__init__(board)
        self._points = points

    async def commit(self, ops: Sequence[Op], **more: Any) -> Receipt:
        """Commit, and pass two points."""
        self._points.here()
        receipt = await super().commit(ops, **more)
        self._points.here()
        return receipt


async def live(name: str, points: Points) -> None:
    """Take the steps that are left; die at the point that is ordered."""
    async with embedded.open(home / "data") as client:
        port = Port(client.board(BOARD).as_agent(name), points)
        runner = Runner(Coder(name), port, observe=points.here)
        sys.addaudithook(points.audit)
        while (await runner.step()).status is not Status.DONE:
            pass


def one_life(order: dict[str, Any]) -> dict[str, Any]:
    """Fork, let it live, and say how it ended."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        points = Points(order["at"])
        try:
            asyncio.run(live(order["name"], points))
        except BaseException as error:  # noqa: BLE001 - told, and nothing of the parent's is run
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os._exit(1)
        os.write(theirs, str(points.passed).encode())
        os._exit(0)
    os.close(theirs)
    _, status = os.waitpid(child, 0)
    passed = os.read(ours, 100)
    os.close(ours)
    return {"status": status, "passed": int(passed or 0)}


if __name__ == "__main__":
    home = Path(sys.argv[1])
    for given in sys.stdin:
        sys.stdout.write(json.dumps(one_life(json.loads(given))) + "\n")
        sys.stdout.flush()
