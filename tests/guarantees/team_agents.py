"""The agents of tests/guarantees/test_team_chaos.py.

Each acts, tells everybody and its neighbour, reads its messages, and asks a person now and
then. What a run of a step could have known, and what it took and sent, it writes into a file beside
the board before it commits, under a mark that no other run has: the ghost history of cut_history.
"""

import json
import os
import secrets

from pydantic import BaseModel

from blackboard.runtime.agent import Agent
from blackboard.runtime.context import Context

APPROVED_EVERY = 5
TOLD_EVERY = 2


class Work(BaseModel):
    """How many steps are done, the mark of the last one, and the newest revision it knew."""

    n: int = 0
    mark: str = ""
    know: int = 0


class Ghost(BaseModel):
    """What one run of a step did, if it was committed."""

    mark: str
    agent: str
    n: int
    know: int
    sent: list[str]
    taken: list[str]


def note(variable: str, line: str) -> None:
    """Add a line to the file that the environment names."""
    file = os.open(os.environ[variable], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)


def act(agent: str, n: int, *, idempotency_key: str = "") -> int:
    """A tool with an effect: a line in the file that EFFECTS names."""
    note("EFFECTS", json.dumps([agent, n, idempotency_key]))
    return n


class Worker(Agent[Work]):
    """Acts, counts in private and in public, and asks a person now and then."""

    async def step(self, ctx: Context[Work]) -> None:
        """One action."""
        n = ctx.state.n
        if n % APPROVED_EVERY == APPROVED_EVERY - 1:
            assert await ctx.approve(f"go beyond {n}?")
        await ctx.tool(act, self.name, n)
        mark = secrets.token_hex(8)
        know, taken = await self.hear(ctx)
        sent = self.tell(ctx, mark) if n % TOLD_EVERY == 0 else []
        ctx.state = Work(n=n + 1, mark=mark, know=know)
        ctx.increment(f"public/counts/{self.name}")
        if ctx.state.n == int(os.environ["GOAL"]):
            ctx.done("worked")
        ghost = Ghost(mark=mark, agent=self.name, n=n + 1, know=know, sent=sent, taken=taken)
        note("GHOSTS", ghost.model_dump_json())

    async def hear(self, ctx: Context[Work]) -> tuple[int, list[str]]:
        """The newest revision known after reading the neighbour's word, and the letters."""
        word = await ctx.entry(f"public/words/{self.neighbour()}")
        letters = await ctx.inbox()
        return max(ctx.state.know, word.mod_revision if word else 0), [x.value for x in letters]

    def tell(self, ctx: Context[Work], mark: str) -> list[str]:
        """The mark to everybody, and in a letter to the neighbour."""
        ctx.put(f"public/words/{self.name}", mark)
        ctx.send(self.neighbour(), f"letter of {mark}")
        return [f"letter of {mark}"]

    def neighbour(self) -> str:
        """Who comes after it, in a ring."""
        names = os.environ["NAMES"].split()
        return names[(names.index(self.name) + 1) % len(names)]
