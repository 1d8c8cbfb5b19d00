"""Time travel: a run fails at step 20, the fault was made at 15; go back to 14, and on another way.

    python -m blackboard.demos.time_travel

A solver climbs; at step 15 its model gives bad advice, and at 20 it falls. Rewound to step 14 with
another prompt, it takes another way. What it paid for before step 15 is not paid for again.
"""

import asyncio
import tempfile

from pydantic import BaseModel

import blackboard
from blackboard import Agent, Board, Context, Prompt, RunOptions, ScriptedModel, run_agent

FAULT, FALL, TOP = 15, 20, 25


class Climb(BaseModel):
    """How high, and by which way since the fork."""

    height: int = 0
    way: str = ""


def advise(prompt: Prompt) -> str:
    """The model: unless asked for safety, it names the short way."""
    return "long way" if "safely" in prompt.messages[0].content else "short way"


class Solver(Agent[Climb]):
    """Climbs as its prompt says."""

    def __init__(self, name: str, prompt: str) -> None:
        super().__init__(name)
        self.prompt = prompt
        self.model = ScriptedModel(advise)

    async def step(self, ctx: Context[Climb]) -> None:
        """One step up; a question at the fork, and a fall on the short way."""
        ctx.state.height += 1
        if ctx.state.height == FAULT:
            ctx.state.way = (await ctx.model(self.model, Prompt.of(self.prompt))).text
        if ctx.state.height == FALL and ctx.state.way == "short way":
            ctx.done("fell")
        elif ctx.state.height == TOP:
            ctx.done("at the top")
        ctx.put("public/height", ctx.state.height)


async def story(board: Board) -> None:
    """Climb, fall, go back, climb."""
    fallen = await run_agent(Solver("solver", "which way?"), board)
    print(f"step {fallen.number}: {fallen.outcome}")
    assert (fallen.number, fallen.outcome) == (FALL, "fell")
    steps = {revised.note: revised.revision for revised in await board.log()}
    await board.restore(steps[f"step {FAULT - 1}"])
    print(f"rewound to step {FAULT - 1}, at height {await board.get('public/height')}")
    assert await board.get("public/height") == FAULT - 1
    other = Solver("solver", "which way, safely?")
    arrived = await run_agent(other, board, RunOptions())
    print(f"step {arrived.number}: {arrived.outcome}")
    assert (arrived.number, arrived.outcome) == (TOP, "at the top")
    assert len(other.model.prompts) == 1


async def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as folder:
        async with blackboard.open(folder) as client:
            await story(client.board())
    print(f"ok: {FAULT - 1} of {FALL} steps kept")


if __name__ == "__main__":
    asyncio.run(main())
