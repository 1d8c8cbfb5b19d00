"""What a pod of agents runs: `python -m tests.guarantees.team_pod URL TOKEN ORDER`.

ORDER is JSON: `how` it runs its agents (by `supervise`, or `run_team` in this process or in their
own), the `ttl_ms` of their identities, and the `grace_ms` of a step when it ends.
Effects of the tool go to the folder POD_FOLDER; so does the file `go`, for which one call waits.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from pydantic import BaseModel

import blackboard
from blackboard import Agent, BoardAddress, Context, RestartPolicy, in_processes, run_team
from blackboard.runtime.supervisor import Supervisor
from tests.waiting import wait_until

FOLDER = "POD_FOLDER"
BOARD = "main"
HELD, LAST = 3, 5
"""The step whose call waits for `go`, and the last one."""


async def work(agent: str, number: int) -> int:
    """A tool: it notes that it was called, and takes its time once."""
    folder = Path(os.environ[FOLDER])
    descriptor = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (json.dumps([agent, number]) + "\n").encode())
    finally:
        os.close(descriptor)

    async def may_go() -> bool:
        return (folder / "go").exists()

    if number == HELD:
        await wait_until(may_go, timeout_s=600)
    return number


class Count(BaseModel):
    """How far it is."""

    number: int = 0


class Worker(Agent[Count]):
    """One call in each step."""

    async def step(self, ctx: Context[Count]) -> None:
        """Count by one."""
        ctx.state.number = await ctx.tool(work, self.name, ctx.state.number + 1)
        ctx.put(f"public/reached/{self.name}", ctx.state.number)
        if ctx.state.number == LAST:
            ctx.done()


async def main(url: str, token: str, order: str) -> int:
    """Run until the agents are done, or a signal says to stop; the exit code."""
    given = json.loads(order)
    how, policy = given.pop("how"), RestartPolicy(**given)
    async with blackboard.connect(url, token=token) as client:
        board = client.board(BOARD)
        if how == "supervise":
            return (await blackboard.supervise(Worker("ada"), board, policy)).exit_code
        make = in_processes(board, BoardAddress(url, token), policy)
        if how == "run_team":
            make = lambda agent: Supervisor(agent, board, policy)  # noqa: E731
        team = [Worker("ada"), Worker("bob")]
        ended = await run_team(board, team, make_supervisor=make, stop="on_signals")
        return max(each.exit_code for each in ended.values())


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
