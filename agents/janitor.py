"""A janitor: keeps the transcripts and memories of other agents short, and loses none of it.

Whenever a conversation has grown by a page, it summarises the oldest turns and moves them, as they
are, into a page of the archive, where `Recall` finds them. Whenever an agent remembers more than
the policy keeps, it exchanges the oldest memories for summaries, from which `Board.why` leads back
to them. With a model (BB_MODEL) the summaries are the model's; without, they are the first words of
each turn or memory. Summaries are embedded with the model that BB_EMBED_MODEL names: that of the
agents' memories; without it, they are found by words.

It needs the right to read and write `private/<agent>/~transcript/**` and
`private/<agent>/~memory/**` of whom it cleans up after.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from pydantic import BaseModel

import blackboard
from blackboard import Agent, Board, Context, Endpoint, Model, Prompt, Transcript
from blackboard.errors import LimitExceeded
from blackboard.types import Memory, MemoryPolicy, Remembered, Turn

EVERY, KEEP = 32, 32
POLICY = MemoryPolicy(count_max=1_000)
WORDS = 8
SUMMARY_CHARACTERS_MAX = 4_000
ASK = "Merge the summary so far and the new turns into one summary of at most 300 words."
ASK_MEMORIES = "Merge these notes into one of at most 300 words. Keep names, numbers and dates."


class Rounds(BaseModel):
    """What the janitor remembers: how many turns it has archived, by agent, and how many memories
    it has exchanged for summaries, by store."""

    archived: dict[str, int] = {}
    consolidated: dict[str, int] = {}


def first_words(before: str, turns: Sequence[Turn]) -> str:
    """A summary without a model: how each turn begins; the newest ones, if that is too much."""
    lines = [f"{turn.role}: {' '.join(turn.text.split()[:WORDS])}" for turn in turns]
    text = "\n".join([*before.splitlines(), *lines])
    return text[-SUMMARY_CHARACTERS_MAX:]


def headlines(memories: Sequence[Remembered]) -> str:
    """A summary without a model: how each memory begins."""
    text = "\n".join(" ".join(one.text.split()[:WORDS]) for one in memories)
    return text[:SUMMARY_CHARACTERS_MAX]


@dataclass(frozen=True)
class Memories:
    """The stores that are kept short, and what they keep. A policy that only counts waits until a
    whole group is too many: else each new memory would be summarised with one other."""

    stores: Sequence[Memory] = ()
    policy: MemoryPolicy = POLICY

    async def shorten(self, memory: Memory, summarise: Callable[..., Awaitable[str]]) -> int:
        """Exchange what the policy does not keep; returns how many memories that were."""
        policy = self.policy
        wanted = 0 if policy.age_ms_max else (policy.count_max or 0) + policy.group
        if await memory.count() < wanted:
            return 0
        return (await memory.consolidate(policy, summarise)).forgotten


class Janitor(Agent[Rounds]):
    """Cleans up after `agents`, and in `memories`; `model` writes the summaries."""

    def __init__(
        self,
        name: str | None = None,
        agents: Sequence[str] = (),
        model: Model | None = None,
        *,
        every: int = EVERY,
        keep: int = KEEP,
        memories: Memories | None = None,
    ) -> None:
        super().__init__(name)
        self.transcripts = [Transcript(agent) for agent in agents]
        self.model = model
        self.every, self.keep = every, keep
        self.memories = memories or Memories()

    async def step(self, ctx: Context[Rounds]) -> None:
        """Archive a page of each conversation that has grown, and consolidate memories; rest if
        there is nothing to do."""
        done = await self.archive(ctx)
        for memory in self.memories.stores:
            done += await self.consolidate(ctx, memory)
        if done or isinstance(ctx.refused, LimitExceeded):
            return
        # It rests on these: a new memory wakes it. In a step that commits they are conditions, for
        # which large stores have too many entries.
        for memory in self.memories.stores:
            await ctx.list(f"{memory.prefix}/entries/**")

    async def archive(self, ctx: Context[Rounds]) -> int:
        """Move old turns out of conversations, in the commit of the step; returns of how many
        conversations."""
        done = 0

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
                done += 1
        return done

    async def consolidate(self, ctx: Context[Rounds], memory: Memory) -> int:
        """Exchange what the policy does not keep for summaries, each in a commit of its own;
        returns how many memories that were."""

        async def summarise(group: Sequence[Remembered]) -> str:
            if self.model is None:
                return headlines(group)
            said = "\n\n".join(one.text for one in group)
            prompt = Prompt.of(said, system=ASK_MEMORIES, temperature=0.0)
            return (await ctx.model(self.model, prompt)).text

        done = await self.memories.shorten(memory, summarise)
        if done:
            before = ctx.state.consolidated.get(memory.prefix, 0)
            ctx.state.consolidated[memory.prefix] = before + done
            ctx.note(f"consolidated {done} memories")
        return done


def memory_of(board: Board, agent: str) -> Memory:
    """The memory of an agent, as the environment says how it is embedded."""
    endpoint = Endpoint.for_embeddings()
    if endpoint is None:
        return board.memory(namespace=f"private/{agent}")
    namespace = f"private/{agent}"
    return board.memory(namespace=namespace, embed=endpoint.embed, model=endpoint.model)


async def main(agents: Sequence[str]) -> int:
    """Work on the board that the environment names, until stopped."""
    async with blackboard.connect() as client, AsyncExitStack() as stack:
        board, model = client.board(), blackboard.model_from_environment()
        stores = [memory_of(board, agent) for agent in agents]
        for store in stores:
            await stack.enter_async_context(store)
        janitor = Janitor("janitor", agents, model, memories=Memories(stores))
        return (await blackboard.supervise(janitor, board)).exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
