"""`files_killed.py HOME`: a step whose command never ends; its process id is printed."""

import asyncio
import os
import sys
from pathlib import Path

import blackboard
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.context import Context
from blackboard.runtime.runner import Runner
from tests.conformance.acting import Actor, Notes

home = Path(sys.argv[1])


class Coder(Actor):
    """Works in `theirs`."""

    def workspace(self) -> Path:
        """That directory."""
        return home / "theirs"


async def endless(ctx: Context[Notes]) -> None:
    """Print which process it is, past the pipe of the command, and write on for ever."""
    told = f"/proc/{os.getpid()}/fd/1"
    await ctx.files.run(
        ["sh", "-c", f"echo $$ > {told}; while :; do touch file; done"], timeout_ms=600_000
    )


async def main() -> None:
    """Take the step."""
    async with blackboard.open(home / "theirs_data") as client:
        board = client.board("main").as_agent("ada")
        await Runner(Coder("ada", endless), LiveBoardPort(board)).step()


asyncio.run(main())
