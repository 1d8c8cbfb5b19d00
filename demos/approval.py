"""An approval: the process is gone while a person thinks, and what it was based on has changed.

    python -m blackboard.demos.approval

A buyer may not spend without a person. It asks at a price of 1,200, and ends. The price rises to
1,500 before the answer: the yes to 1,200 buys nothing. It asks again, and buys what was approved.
"""

import asyncio
import tempfile

from pydantic import BaseModel

import blackboard
from blackboard import Agent, Board, Context, RunOptions, Status, run_agent
from blackboard.runtime.approvals import answer, pending

PRICE = "public/price"


class Purse(BaseModel):
    """What the buyer remembers."""

    bought_at: int = 0


def buy(usd: int) -> str:
    """The tool."""
    return f"bought at {usd}"


class Buyer(Agent[Purse]):
    """Buys what a person approved."""

    async def step(self, ctx: Context[Purse]) -> None:
        """Ask, and buy."""
        decision = await ctx.approve("buy the machine?", facts=[PRICE])
        if decision:
            ctx.state.bought_at = decision.facts[PRICE]
            ctx.put("public/bought", await ctx.tool(buy, ctx.state.bought_at))
        ctx.done("bought" if decision else "refused")


async def process(board: Board) -> Status:
    """A process of the buyer: it ends as soon as there is nothing to do."""
    return (await run_agent(Buyer("buyer"), board, RunOptions(leaves=True))).status


async def story(board: Board) -> None:
    """Ask, change, approve, ask again, approve."""
    await board.put(PRICE, 1_200)
    assert await process(board) is Status.WAITING_FOR_APPROVAL
    [asked] = await pending(board)
    print(f"asked: {asked.request.question} at {asked.request.facts[0].value}; its process is gone")
    await board.put(PRICE, 1_500)
    await answer(board, asked, approved=True)
    print("the price is 1,500 now; somebody says yes to what was asked")
    assert await process(board) is Status.WAITING_FOR_APPROVAL
    assert await board.get("public/bought") is None
    [again] = await pending(board)
    [changed] = again.request.changed
    print(f"asked again: the price was {changed.was}, it is {changed.now}")
    assert (changed.was, changed.now) == (1_200, 1_500)
    await answer(board, again, approved=True)
    assert await process(board) is Status.DONE
    bought = await board.get("public/bought")
    print(f"  {bought}")
    assert bought == "bought at 1500"


async def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as folder:
        async with blackboard.open(folder) as client:
            await story(client.board())
    print("ok: nothing was bought that nobody approved")


if __name__ == "__main__":
    asyncio.run(main())
