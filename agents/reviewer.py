"""A reviewer: audits each plan against the valuation that it is based on, and asks for approval.

It is woken by every new plan. What it finds wrong goes to the architect; a plan without faults
above `LIMIT_USD_BN` is put before a person, with the plan and the valuation as the facts: if one of
them changes before the answer, the question is asked again.
"""

import asyncio
import sys
from typing import Any

from pydantic import BaseModel

import blackboard
from blackboard import Agent, Context

BUDGET_SHARE_MAX = 0.02
LIMIT_USD_BN = 25.0
TOLERANCE = 0.05
PLAN, VALUATION = "public/plan", "public/valuation"


class Reviews(BaseModel):
    """What the reviewer remembers: the revision of the plan it saw last, and how many it saw."""

    seen: int = 0
    reviews: int = 0


def audit(plan: dict[str, Any], valuation: dict[str, Any]) -> list[str]:
    """What is wrong with `plan`, by recomputing it: stale figures, shares, sums."""
    findings = []
    worth, spent = valuation["usd_bn"], sum(plan["budget_usd_bn"].values())
    if plan["on_valuation_usd_bn"] != worth:
        findings.append(f"it is based on {plan['on_valuation_usd_bn']}, the valuation is {worth}")
    if spent > worth * BUDGET_SHARE_MAX + TOLERANCE:
        findings.append(f"it spends {spent:.2f}, more than {BUDGET_SHARE_MAX:.0%} of {worth}")
    if any(share <= 0 for share in plan["budget_usd_bn"].values()):
        findings.append("a market gets nothing")
    return findings


class Reviewer(Agent[Reviews]):
    """Reviews plans."""

    async def step(self, ctx: Context[Reviews]) -> None:
        """Review the plan if it is a new one; else rest until there is one."""
        plan = await ctx.entry(PLAN)
        if plan is None or plan.mod_revision <= ctx.state.seen:
            return
        valuation = await ctx.get(VALUATION)
        if valuation is None:  # it was removed: the next one wakes the reviewer
            return
        findings = await ctx.tool(audit, plan.value, valuation)
        spent = sum(plan.value["budget_usd_bn"].values())
        verdict = "faulty" if findings else "accepted"
        if not findings and spent > LIMIT_USD_BN:
            decision = await ctx.approve(f"spend {spent:.2f} bn USD?", facts=[PLAN, VALUATION])
            verdict = "approved" if decision else "rejected"
        ctx.state.seen = plan.mod_revision
        ctx.state.reviews += 1
        ctx.put("public/review", {"verdict": verdict, "findings": findings, "of": PLAN})
        if findings:
            ctx.send(plan.author, {"review": verdict, "findings": findings})


async def main() -> int:
    """Work on the board that the environment names (BLACKBOARD_URL, _TOKEN, _BOARD)."""
    async with blackboard.connect() as client:
        return (await blackboard.supervise(Reviewer("reviewer"), client.board())).exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
