"""The agents of tests/guarantees/test_team_chaos.py."""

import json
import os

from pydantic import BaseModel

from blackboard.runtime.agent import Agent
from blackboard.runtime.context import Context

APPROVED_EVERY = 5


class Work(BaseModel):
    """How many steps are done."""

    n: int = 0


def act(agent: str, n: int, *, idempotency_key: str = "") -> int:
    """A tool with an effect: a line in the file that EFFECTS names."""
    line = json.dumps([agent, n, idempotency_key]) + "\n"
    file = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
    return n


class Worker(Agent[Work]):
    """Acts, counts in private and in public, and asks a person now and then."""

    async def step(self, ctx: Context[Work]) -> None:
        """One action."""
        n = ctx.state.n
        if n % APPROVED_EVERY == APPROVED_EVERY - 1:
            assert await ctx.approve(f"go beyond {n}?")
        await ctx.tool(act, self.name, n)
        ctx.state.n += 1
        ctx.increment(f"public/counts/{self.name}")
        if ctx.state.n == int(os.environ["GOAL"]):
            ctx.done("worked")
