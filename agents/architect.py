"""An architect: plans an expansion on the researcher's valuation, and never on a stale one.

It sleeps until its subscription wakes it, reads the valuation inside a step, asks the researcher
for market figures, and commits the plan. If the valuation changed while it was thinking, the board
refuses the commit with what it needs to think again: which key, and its value now.
"""

import blackboard
from blackboard import Board, Conflict, Step

BUDGET_SHARE = 0.01
MARKETS = 3


async def first(board: Board, pattern: str) -> object:
    """Wait until something that matches `pattern` is there, and return its value."""
    async with board.watch(pattern, snapshot=True) as watch:
        for entry in watch.state.values():
            return entry.value
        async for revised in watch:
            for change in revised.changes:
                if change.kind == "put":
                    return change.value
    raise AssertionError("a watch has no end")


async def ask_for_markets(board: Board) -> dict[str, float]:
    """Ask the researcher, wait for the answer. This is the long part of a step: thinking."""
    await board.append("inbox/researcher/messages", "which markets are the largest?")
    answer = await first(board, "inbox/architect/**")
    assert isinstance(answer, dict)
    markets: dict[str, float] = answer["markets_gdp_usd_tn"]
    return markets


def plan(valuation: dict[str, float], markets: dict[str, float]) -> dict[str, object]:
    """Split a hundredth of the company's value over the largest markets, by their GDP."""
    budget = valuation["usd_bn"] * BUDGET_SHARE
    chosen = sorted(markets, key=markets.__getitem__, reverse=True)[:MARKETS]
    total = sum(markets[name] for name in chosen)
    shares = {name: round(budget * markets[name] / total, 2) for name in chosen}
    return {"on_valuation_usd_bn": valuation["usd_bn"], "budget_usd_bn": shares}


async def draw_up(step: Step, markets: dict[str, float]) -> None:
    """Read the valuation in this step and write the plan that follows from it."""
    step.put("public/plan", plan(await step.get("public/valuation"), markets))


async def work(board: Board) -> None:
    """The architect's day."""
    await first(board, "public/valuation")
    try:
        async with board.step(note="expansion plan") as step:
            valuation = await step.get("public/valuation")
            markets = await ask_for_markets(board)
            step.put("public/plan", plan(valuation, markets))
    except Conflict as conflict:
        print(f"architect: {conflict}")  # noqa: T201 - shown by whoever runs it
        print(f"architect: the value is now {conflict.current}; planning again")  # noqa: T201
        refusal = {"key": conflict.key, "by": conflict.by, "at_revision": conflict.at_revision}
        await board.put("private/architect/refused", refusal)
        await board.run_step("architect", lambda step: draw_up(step, markets))


async def main() -> None:
    """Work on the board that the environment names (BLACKBOARD_URL, _TOKEN, _BOARD)."""
    async with blackboard.connect() as client:
        await work(client.board())


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
