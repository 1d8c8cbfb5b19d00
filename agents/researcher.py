"""A researcher: values a company from its filings, publishes the figure, answers questions.

It publishes a first valuation from the filings that it has, and rests. With the answer to the first
letter, in the same commit, it revises the valuation by the newest filing: an agent
that still plans on the first one will learn so from the board. A letter that is no question is
taken out of the inbox; the log and the note of the step say so.
"""

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationError

import blackboard
from blackboard import Agent, Context

# Apple Inc., USD million, fiscal years as filed (Form 10-K for 2021, 2022 and 2023): cash generated
# by operating activities; payments for property, plant and equipment.
FILED = {2021: (104_038, 11_085), 2022: (122_151, 10_708), 2023: (110_543, 10_959)}
AT_FIRST, NEWEST = (2021, 2022), (2023,)
# Gross domestic product 2022, USD trillion, current prices (World Bank).
GDP_2022 = {"China": 17.88, "Japan": 4.26, "Germany": 4.08, "India": 3.35, "United Kingdom": 3.09}
DISCOUNT_RATE, GROWTH_RATE = 0.09, 0.05
log = logging.getLogger(__name__)


class Research(BaseModel):
    """What the researcher remembers: free cash flow in USD million by fiscal year."""

    free_cash_flow: dict[int, int] = {}


class Question(BaseModel):
    """A letter: how many of the largest markets are wanted, and the id that the answer repeats."""

    id: str
    count: int = Field(ge=1)


def free_cash_flow(year: int) -> int:
    """A tool: free cash flow of a fiscal year in USD million, from its filing."""
    operating, investments = FILED[year]
    return operating - investments


def markets(count: int) -> dict[str, float]:
    """A tool: the largest economies and their product in USD trillion."""
    largest = sorted(GDP_2022, key=GDP_2022.__getitem__, reverse=True)[:count]
    return {name: GDP_2022[name] for name in largest}


def valuation(flows: Mapping[int, int]) -> dict[str, Any]:
    """Gordon growth model on the mean free cash flow: the value of a growing perpetuity."""
    mean = sum(flows.values()) / len(flows)
    value = mean * (1 + GROWTH_RATE) / (DISCOUNT_RATE - GROWTH_RATE) / 1000
    return {"usd_bn": round(value, 1), "company": "Apple Inc.", "years": sorted(flows)}


class Researcher(Agent[Research]):
    """Values a company; done when every filing is in and a question was answered."""

    async def step(self, ctx: Context[Research]) -> None:
        """Publish the first valuation; then answer a letter, and revise; else rest."""
        if not ctx.state.free_cash_flow:
            ctx.note("first valuation, from two fiscal years")
            await self.work_in(ctx, AT_FIRST)
            return
        for letter in await ctx.inbox(limit=1):
            try:
                asked = Question.model_validate(letter.value)
            except ValidationError as error:
                log.warning("a letter of %s is no question: %s", letter.sender, error)
                ctx.note(f"took out a letter of {letter.sender}, which is no question")
                return
            ctx.note("fiscal year 2023 was filed")
            await self.work_in(ctx, NEWEST)
            found = await ctx.tool(markets, asked.count)
            ctx.send(letter.sender, {"about": asked.id, "gdp_usd_tn": found})
            ctx.done("every filing is in")

    async def work_in(self, ctx: Context[Research], years: Sequence[int]) -> None:
        """Read filings, remember what is in them (private), publish what follows (public)."""
        flows = await asyncio.gather(*(ctx.tool(free_cash_flow, year) for year in years))
        ctx.state.free_cash_flow |= dict(zip(years, flows, strict=True))
        ctx.put("public/valuation", valuation(ctx.state.free_cash_flow))


async def main() -> int:
    """Work on the board that the environment names (BLACKBOARD_URL, _TOKEN, _BOARD)."""
    async with blackboard.connect() as client:
        return (await blackboard.supervise(Researcher("researcher"), client.board())).exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
