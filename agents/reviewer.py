"""A reviewer: audits each plan against the valuation that it is based on, and asks for approval.

It is woken by every new plan. What it finds wrong goes to the author; a plan without faults
above `LIMIT_USD_BN` is put before a person, with the plan and the valuation as the facts: if one of
them changes before the answer, the question is asked again.
"""

import asyncio
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

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


class Plan(BaseModel):
    """A plan: the valuation that it is based on, and what each market gets."""

    model_config = ConfigDict(strict=True)

    on_valuation_usd_bn: float
    budget_usd_bn: dict[str, float]


class Valuation(BaseModel):
    """The part of a valuation that a plan rests on."""

    model_config = ConfigDict(strict=True)

    usd_bn: float


def audit(plan: dict[str, Any], valuation: dict[str, Any]) -> list[str]:
    """What is wrong with `plan`, by recomputing it: stale figures, shares, sums."""
    findings = []
    try:
        read = Plan.model_validate(plan)
    except ValidationError as error:
        first = error.errors()[0]
        return [f"it is no plan: {'.'.join(map(str, first['loc']))}: {first['msg']}"]
    worth, spent = valuation["usd_bn"], sum(read.budget_usd_bn.values())
    if read.on_valuation_usd_bn != worth:
        findings.append(f"it is based on {read.on_valuation_usd_bn}, the valuation is {worth}")
    if spent > worth * BUDGET_SHARE_MAX + TOLERANCE:
        findings.append(f"it spends {spent:.2f}, more than {BUDGET_SHARE_MAX:.0%} of {worth}")
    if any(share <= 0 for share in read.budget_usd_bn.values()):
        findings.append("a market gets nothing")
    return findings


def _is_valuation(value: Any) -> bool:
    try:
        Valuation.model_validate(value)
    except ValidationError:
        return False
    return True


class Reviewer(Agent[Reviews]):
    """Reviews plans."""

    async def step(self, ctx: Context[Reviews]) -> None:
        """Review the plan if it is a new one; else rest until there is one."""
        plan = await ctx.entry(PLAN)
        if plan is None or plan.mod_revision <= ctx.state.seen:
            return
        valuation = await ctx.get(VALUATION)
        if not _is_valuation(valuation):  # it was removed, say: the next one wakes the reviewer
            return
        findings = await ctx.tool(audit, plan.value, valuation)
        spent = 0.0 if findings else sum(plan.value["budget_usd_bn"].values())
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
