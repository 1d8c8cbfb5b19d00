"""Two agents on one board: a scout finds out what things cost, and a planner plans with that.

Nothing is lost if this program is stopped: run it again, and both continue.
"""

import asyncio
import os
from collections.abc import Mapping

import blackboard
from blackboard import Agent, Board, Context, run_team
from blackboard.types import AgentExit
from pydantic import BaseModel

BOARD = "my-team"
WANTED = ["hall", "catering", "music"]
PRICES_EUR = {"hall": 900, "catering": 1_400, "music": 300}


class Quotes(BaseModel):
    """What the scout remembers: private, and committed with the rest of its step."""

    eur: dict[str, int] = {}


class Wishes(BaseModel):
    """What the planner remembers."""

    asked: list[str] = []


async def ask_price(item: str) -> int:
    """A tool. Yours may search, call a service or ask a model."""
    return PRICES_EUR[item]


class Scout(Agent[Quotes]):
    """Answers a letter, which is a list of things, by publishing their prices."""

    async def step(self, ctx: Context[Quotes]) -> None:
        """Read the inbox, ask, publish: one commit. Without a letter it rests."""
        for letter in await ctx.inbox():
            for item in letter.value:
                ctx.state.eur[item] = await ctx.tool(
                    ask_price, item
                )  # kept: asked once
            ctx.put("public/prices", ctx.state.eur)
            ctx.done(f"{len(ctx.state.eur)} prices")


class Planner(Agent[Wishes]):
    """Asks the scout for prices, and plans once they are there."""

    async def step(self, ctx: Context[Wishes]) -> None:
        """If the prices change before it commits, it runs again, on the new ones."""
        if not ctx.state.asked:
            ctx.state.asked = WANTED
            ctx.send("scout", WANTED)
        prices = await ctx.get("public/prices")
        if prices is not None:
            ctx.put(
                "public/plan", {"items": sorted(prices), "eur": sum(prices.values())}
            )
            ctx.done("a plan")


async def work(board: Board) -> Mapping[str, AgentExit]:
    """Let both work until they are done; one that was done before is not started."""
    return await run_team(board, [Scout("scout"), Planner("planner")])


async def main() -> None:
    """Work on the service that BLACKBOARD_URL names, or else in the directory `data`."""
    address = os.environ.get("BLACKBOARD_URL")
    async with (
        blackboard.connect(address) if address else blackboard.open("data") as client
    ):
        board = client.board(BOARD)
        for name, end in sorted((await work(board)).items()):
            print(f"{name} is {end.how}: {end.outcome}")
        print("public/plan is", await board.get("public/plan"))
        for cause in (await board.why("public/plan"))[1:]:
            print(f"  because of {cause.key}, by {cause.author}")


if __name__ == "__main__":
    asyncio.run(main())
