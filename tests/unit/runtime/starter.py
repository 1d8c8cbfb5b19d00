"""Starts an agent in a process of its own, and waits for it: to be killed by a test.

`python -m tests.unit.runtime.starter URL TOKEN`
"""

import asyncio
import sys

import blackboard
from blackboard.runtime.processes import BoardAddress, in_processes
from blackboard.runtime.team import run_team
from tests.unit.runtime.crew import Patient


async def main(url: str, token: str) -> None:
    """Run a team of one."""
    async with blackboard.connect(url, token=token) as client:
        board = client.board("main")
        await run_team(
            board, [Patient("ada")], make_supervisor=in_processes(board, BoardAddress(url, token))
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
