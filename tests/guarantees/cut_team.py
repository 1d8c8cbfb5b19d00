"""A team that works while somebody takes cuts of it: the run behind test_cut.py.

Agents interleave at random, from one seed: each pause is a number of turns of the event loop. The
ghost (cut_history.py) is told of every step when its commit is acknowledged.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from anyio.lowlevel import checkpoint

from blackboard import Board, StaleEpoch
from blackboard.core.commit import Op
from blackboard.ops import Append, Delete, Put, encode_value
from blackboard.types import Entry
from tests.guarantees.cut_history import Cut, Restored, Step, TeamHistory

AGENTS = ("ada", "bob", "cyd")
KEYS = tuple(f"public/{name}" for name in "abcdef")
STATE = "~state"


@dataclass(slots=True)
class Memory:
    """What an agent has in mind between its commits."""

    epoch: str = ""
    step: int = 0
    state: str = ""
    know: int = 0


@dataclass(slots=True)
class Team:
    """A board, its agents, and what they leave behind."""

    board: Board
    rng: random.Random
    history: TeamHistory = field(default_factory=TeamHistory)
    memories: dict[str, Memory] = field(default_factory=dict)
    messages: int = 0
    working: int = len(AGENTS)

    async def others_step(self, count: int) -> None:
        """Wait until `count` more steps were taken, or nobody works any more.

        Unlike a number of turns, this does not depend on how fast the engine is.
        """
        enough = len(self.history.steps) + count
        while len(self.history.steps) < enough and self.working:
            await checkpoint()

    async def pause(self, turns_max: int = 6) -> None:
        """Let others go on, for a random number of turns."""
        for _ in range(self.rng.randrange(turns_max)):
            await checkpoint()

    # --- agents -----------------------------------------------------------------------------------

    async def work(self, agent: str, steps: int) -> None:
        """Be `agent` for so many steps; after a restore, go on from the state of then."""
        board = self.board.as_agent(agent)
        await self._hydrate(board)
        for _ in range(steps):
            await self.pause()
            try:
                await self._step(board)
            except StaleEpoch:
                await board.refresh()
                await self._hydrate(board)
        self.working -= 1

    async def _hydrate(self, board: Board) -> None:
        head = await board.head()
        kept = await board.get(
            f"private/{board.agent}/{STATE}", {"step": 0, "state": "", "know": 0}
        )
        self.memories[board.agent] = Memory(head.epoch.id, **kept)

    async def _step(self, board: Board) -> None:
        agent, rng = board.agent, self.rng
        mind = self.memories[agent]
        read = list((await board.entries(rng.sample(KEYS, 2))).values())
        self._learn(mind, read)
        await self.pause()
        inbox = list((await board.list(f"inbox/{agent}/**")).entries)
        self._learn(mind, inbox)
        await self.pause()
        taken = inbox[: rng.randrange(3)]
        seen = "+".join(str(entry.value) for entry in (*read, *taken))
        state = f"{agent} {mind.step + 1} of {rng.getrandbits(32)}: {seen}"
        know, step = mind.know, mind.step + 1
        writes = self._writes(f"{agent}:{step}")
        sent = self._sent(agent)
        ops: list[Op] = [Put(f"private/{agent}/{STATE}", _packed(step, state, know))]
        ops += [Delete(k) if v is None else Put(k, encode_value(v)) for k, v in writes]
        ops += [Append(f"inbox/{to}", encode_value(name)) for to, name in sent]
        ops += [Delete(entry.key) for entry in taken]
        receipt = await board.commit(ops)
        mind.step, mind.state, mind.know = step, state, max(know, receipt.revision)
        names = tuple(name for _, name in sent)
        took = tuple(str(entry.value) for entry in taken)
        self.history.steps.append(
            Step(agent, step, mind.epoch, receipt.revision, know, state, writes, names, took)
        )

    def _learn(self, mind: Memory, entries: list[Entry]) -> None:
        mind.know = max([mind.know, *(entry.mod_revision for entry in entries)])

    def _writes(self, value: str) -> tuple[tuple[str, str | None], ...]:
        keys = self.rng.sample(KEYS, self.rng.randrange(3))
        return tuple((key, None if self.rng.random() < 0.2 else value) for key in keys)

    def _sent(self, agent: str) -> list[tuple[str, str]]:
        others = [other for other in AGENTS if other != agent and self.rng.random() < 0.4]
        found = []
        for other in others:
            self.messages += 1
            found.append((other, f"m{self.messages}"))
        return found

    # --- cuts -------------------------------------------------------------------------------------

    async def checkpoint(self, name: str) -> Cut:
        """Ours: a named revision, read at leisure while the agents go on."""
        taken = await self.board.checkpoint(name)
        cut = await self.cut_at(taken.revision)
        self.history.cuts.append(cut)
        return cut

    async def cut_at(self, revision: int) -> Cut:
        """What the board held at `revision`; it does not matter when this is asked."""
        await self.pause()
        entries = list((await self.board.list("**", at=revision)).entries)
        return self._cut(revision, entries)

    async def copy_one_after_the_other(self) -> Cut:
        """Known to be bad: each namespace as it is when its turn comes."""
        revision = (await self.board.head()).revision
        entries: list[Entry] = []
        for pattern in ("public/*", *(f"private/{agent}/*" for agent in AGENTS), "inbox/*/*"):
            entries += (await self.board.list(pattern)).entries
            await self.others_step(self.rng.randrange(3))
        cut = self._cut(revision, entries)
        self.history.cuts.append(cut)
        return cut

    async def poll_agents(self) -> Cut:
        """Known to be bad: the board as it is, then each agent is asked for what it has in mind."""
        listing = await self.board.list("**")
        cut = self._cut(listing.revision, list(listing.entries))
        steps, states, know = {}, {}, {}
        for agent in AGENTS:
            await self.others_step(self.rng.randrange(3))
            mind = self.memories[agent]
            steps[agent], states[agent], know[agent] = mind.step, mind.state, mind.know
        cut = Cut(cut.epoch, cut.revision, steps, states, know, cut.public, cut.inboxes)
        self.history.cuts.append(cut)
        return cut

    async def restore(self, name: str, source: Cut) -> None:
        """Take the team back while it works."""
        ended = self.epoch_at(10**15)
        done = await self.board.restore(name)
        cut = await self.cut_at(done.revision)
        await self.board.refresh()
        epoch = (await self.board.head()).epoch.id
        self.history.restored.append(Restored(source, ended, epoch, done.revision, cut))

    def epoch_at(self, revision: int) -> str:
        """The epoch of a revision."""
        for restored in reversed(self.history.restored):
            if restored.revision <= revision:
                return restored.epoch
        return self.first_epoch

    first_epoch: str = ""

    def _cut(self, revision: int, entries: list[Entry]) -> Cut:
        kept = {e.key.split("/")[1]: e.value for e in entries if e.key.endswith(STATE)}
        return Cut(
            epoch=self.epoch_at(revision),
            revision=revision,
            steps={agent: kept[agent]["step"] for agent in AGENTS if agent in kept},
            states={agent: kept[agent]["state"] for agent in AGENTS if agent in kept},
            know={agent: kept[agent]["know"] for agent in AGENTS if agent in kept},
            public={e.key: e.value for e in entries if e.key.startswith("public/")},
            inboxes=frozenset(e.value for e in entries if e.key.startswith("inbox/")),
        )


def _packed(step: int, state: str, know: int) -> bytes:
    return encode_value({"step": step, "state": state, "know": know})


Taker = Callable[[Team, int], Awaitable[object]]


async def run(board: Board, seed: int, take: Taker, *, cuts: int, steps: int = 8) -> TeamHistory:
    """A team of three that makes so many steps each, while `take` is called `cuts` times."""
    team = Team(board, random.Random(seed))
    team.first_epoch = (await board.head()).epoch.id
    team.memories = {agent: Memory(team.first_epoch) for agent in AGENTS}

    async def observe() -> None:
        for number in range(cuts):
            await team.others_step(team.rng.randrange(len(AGENTS) * steps // cuts))
            await team.pause()
            await take(team, number)

    async with asyncio.TaskGroup() as tasks:
        for agent in AGENTS:
            tasks.create_task(team.work(agent, steps))
        tasks.create_task(observe())
    team.history.steps.sort(key=lambda step: step.revision)
    return team.history
