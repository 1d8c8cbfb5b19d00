"""A janitor: keeps the transcripts of other agents short, and loses none of it.

Whenever a conversation has grown by a page, it summarises the oldest turns and moves them, as they
are, into a page of the archive, where `Recall` finds them. With a model (BB_MODEL) the summary is
the model's; without, it is the first words of each turn.

It needs the right to read and write `private/<agent>/~transcript/**` of whom it cleans up after.
"""

import asyncio
import sys
from collections.abc import Sequence

from pydantic import BaseModel

import blackboard
from blackboard import Agent, Context, Model, Prompt, Transcript
from blackboard.types import Turn

EVERY, KEEP = 32, 32
WORDS = 8
SUMMARY_CHARACTERS_MAX = 4_000
ASK = "Merge the summary so far and the new turns into one summary of at most 300 words."


class Rounds(BaseModel):
    """What the janitor remembers: how many turns it has archived, by agent."""

    archived: dict[str, int] = {}


def first_words(before: str, turns: Sequence[Turn]) -> str:
    """A summary without a model: how each turn begins; the newest ones, if that is too much."""
    lines = [f"{turn.role}: {' '.join(turn.text.split()[:WORDS])}" for turn in turns]
    text = "\n".join([*before.splitlines(), *lines])
    return text[-SUMMARY_CHARACTERS_MAX:]


class Janitor(Agent[Rounds]):
    """Cleans up after `agents`; `model` writes the summaries."""

    def __init__(
        self,
        name: str | None = None,
        agents: Sequence[str] = (),
        model: Model | None = None,
        *,
        every: int = EVERY,
        keep: int = KEEP,
    ) -> None:
        super().__init__(name)
        self.transcripts = [Transcript(agent) for agent in agents]
        self.model = model
        self.every, self.keep = every, keep

    async def step(self, ctx: Context[Rounds]) -> None:
        """Archive a page of each conversation that has grown; rest if none has."""

        async def summarise(before: str, turns: Sequence[Turn]) -> str:
            if self.model is None:
                return first_words(before, turns)
            said = "\n".join(f"{turn.role}: {turn.text}" for turn in turns)
            prompt = Prompt.of(f"So far:\n{before}\n\nNew:\n{said}", system=ASK, temperature=0.0)
            return (await ctx.model(self.model, prompt)).text

        for transcript in self.transcripts:
            summary = await transcript.archive_in(ctx, summarise, every=self.every, keep=self.keep)
            if summary is not None:
                ctx.state.archived[transcript.agent] = summary.archived
                ctx.note(f"archived turns of {transcript.agent}")


async def main(agents: Sequence[str]) -> int:
    """Work on the board that the environment names, until stopped."""
    async with blackboard.connect() as client:
        model = blackboard.model_from_environment()
        janitor = Janitor("janitor", agents, model)
        return (await blackboard.supervise(janitor, client.board())).exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
