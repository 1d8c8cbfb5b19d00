"""An architect: plans an expansion on the researcher's valuation, and never on a stale one.

It rests until there is a valuation, reads it in a step, asks the researcher for market figures, and
commits the plan. If the valuation changed while it was thinking, the board refuses the commit, and
the step runs again on what is there now. What was asked is known from the journal: the researcher
gets the question once.
"""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

import blackboard
from blackboard import Agent, Board, Conflict, Context

BUDGET_SHARE = 0.01
MARKETS = 3
PLAN, VALUATION = "public/plan", "public/valuation"


class Refusal(BaseModel):
    """Why a plan was not accepted: the key that had changed, by whom, at which revision."""

    key: str
    by: str | None
    at_revision: int


class Planning(BaseModel):
    """What the architect remembers: the plans of its that were refused."""

    refused: list[Refusal] = []


def split(usd_bn: float, gdp: Mapping[str, float]) -> dict[str, float]:
    """A tool: a hundredth of the company's value, over the markets by their product."""
    budget, total = usd_bn * BUDGET_SHARE, sum(gdp.values())
    return {name: round(budget * share / total, 2) for name, share in gdp.items()}


def answer_to(question: str, letters: Iterable[Any]) -> dict[str, float] | None:
    """The figures in the letter that answers `question`; None while there is none."""
    for letter in letters:
        match letter:
            case {"about": about, "gdp_usd_tn": dict(figures)} if about == question:
                if figures and all(_is_amount(figure) for figure in figures.values()):
                    return figures
    return None


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


class Colleague:
    """The researcher, whom the architect asks by letter: the long part of a step, thinking."""

    def __init__(self, board: Board) -> None:
        # The answer goes to the sender of the question: with an operator's token to the operator.
        self.board = board.as_agent("architect")

    async def largest_markets(self, count: int, *, idempotency_key: str = "") -> dict[str, float]:
        """A tool: ask, unless that was answered before a crash, and wait for the answer."""
        await self.board.refresh()  # the board may have been restored since the last call
        async with self.board.watch("inbox/architect/messages/*", snapshot=True) as watch:
            found = answer_to(idempotency_key, (entry.value for entry in watch.state.values()))
            if found is None:
                question = {"question": "largest markets", "count": count, "id": idempotency_key}
                await self.board.append("inbox/researcher/messages", question)
            while found is None:
                letters = (await anext(watch)).changes
                found = answer_to(idempotency_key, (letter.value for letter in letters))
        return found


class Architect(Agent[Planning]):
    """Draws up one plan, and is done."""

    def __init__(self, name: str | None = None, *, colleague: Colleague) -> None:
        super().__init__(name)
        self.colleague = colleague

    async def step(self, ctx: Context[Planning]) -> None:
        """Plan on the valuation; rest until there is one."""
        valuation = await ctx.get(VALUATION)
        if not (isinstance(valuation, dict) and _is_amount(valuation.get("usd_bn"))):
            return
        gdp = await ctx.tool(self.colleague.largest_markets, MARKETS)
        await ctx.inbox()  # the answer was read
        budget = await ctx.tool(split, valuation["usd_bn"], gdp)
        ctx.put(PLAN, {"on_valuation_usd_bn": valuation["usd_bn"], "budget_usd_bn": budget})
        ctx.note("expansion plan")
        if isinstance(why := ctx.refused, Conflict):
            ctx.state.refused.append(Refusal(key=why.key, by=why.by, at_revision=why.at_revision))
            ctx.note(f"planned again: {why}")
        ctx.done("planned")


async def main() -> int:
    """Work on the board that the environment names (BLACKBOARD_URL, _TOKEN, _BOARD)."""
    async with blackboard.connect() as client:
        board = client.board()
        architect = Architect("architect", colleague=Colleague(board))
        return (await blackboard.supervise(architect, board)).exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
