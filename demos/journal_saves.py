"""What the journal saves: the same crashes, with it and without it; calls and cost of each.

    python -m blackboard.demos.journal_saves

An analyst asks a model ten questions in one step, and its process fails after each third of them.
A step runs from its beginning again; with the journal no question is asked twice.
"""

import asyncio
import tempfile

from pydantic import BaseModel

import blackboard
from blackboard import Agent, Context, Prompt, ScriptedModel, run_agent
from blackboard.types import Prices

QUESTIONS = 10
FAILURES = (3, 6, 9)
PRICES = Prices(prompt_usd=2_500, completion_usd=10_000)


class Report(BaseModel):
    """What the analyst found out."""

    answers: list[str] = []


class Analyst(Agent[Report]):
    """Asks, and fails now and then; `journaled` says whether it asks through its context."""

    def __init__(self, name: str, *, journaled: bool) -> None:
        super().__init__(name)
        self.journaled = journaled
        self.model = ScriptedModel(lambda p: f"answer to: {p.messages[0].content}", prices=PRICES)
        self.failures = list(FAILURES)
        self.spent = 0

    async def ask(self, ctx: Context[Report], text: str) -> str:
        """Ask the model: from the journal if it was asked before, or again."""
        asked = len(self.model.prompts)
        prompt = Prompt.of(text)
        asking = ctx.model(self.model, prompt) if self.journaled else self.model.complete(prompt)
        reply = await asking
        if len(self.model.prompts) > asked:
            self.spent += reply.usage.cost_microusd or 0
        return reply.text

    async def step(self, ctx: Context[Report]) -> None:
        """Ask all questions."""
        for number in range(QUESTIONS):
            if self.failures and number == self.failures[0]:
                self.failures.pop(0)
                raise ConnectionError("the process died here")
            ctx.state.answers.append(await self.ask(ctx, f"question {number}"))
        ctx.done("reported")


async def analyse(folder: str, *, journaled: bool) -> Analyst:
    """Start the analyst again until it is done."""
    analyst = Analyst("analyst", journaled=journaled)
    async with blackboard.open(folder) as client:
        while True:
            try:
                await run_agent(analyst, client.board())
            except ConnectionError:
                continue
            return analyst


async def main() -> None:
    """Tell the story."""
    print(f"{QUESTIONS} questions, {len(FAILURES)} crashes")
    found = {}
    for journaled in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            found[journaled] = analyst = await analyse(folder, journaled=journaled)
        how = "with the journal" if journaled else "without it"
        calls = len(analyst.model.prompts)
        print(f"  {how:<17}{calls:>3} calls  {analyst.spent / 1e6:.4f} USD")
    assert len(found[False].model.prompts) == QUESTIONS + sum(FAILURES)
    assert len(found[True].model.prompts) == QUESTIONS
    assert found[True].spent < found[False].spent / 2
    print(f"ok: {1 - found[True].spent / found[False].spent:.0%} saved")


if __name__ == "__main__":
    asyncio.run(main())
