"""A team of processes under random kills, restores and approvals ends where it would have ended.

After each restore everybody comes back before anything else breaks. At the end, private state and
public count of each agent agree, of every action there is one
idempotency key, however often it was tried, and C1 to C8 hold of the restores and of revisions at
random, by what the agents noted beside the board. BLACKBOARD_TEAM_AGENTS=8,
BLACKBOARD_TEAM_STEPS=200, BLACKBOARD_TEAM_KILLS=100, BLACKBOARD_TEAM_RESTORES=10 make it long.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from pydantic import BaseModel

import blackboard
from blackboard import Board, Conflict, StaleEpoch
from blackboard.core import access
from blackboard.integrity.tokens import issue
from blackboard.runtime.agent import Agent
from blackboard.runtime.approvals import answer, pending
from blackboard.runtime.context import Context
from blackboard.runtime.processes import BoardAddress, ProcessSupervisor
from blackboard.runtime.supervisor import RestartPolicy, Supervisor
from blackboard.runtime.team import run_team
from blackboard.types import RevisionEvent
from tests.guarantees.cut_checkers import check
from tests.guarantees.cut_history import Cut, Restored, Step, TeamHistory
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.guarantees.team_agents import Ghost, Worker
from tests.redis_process import RedisProcess
from tests.source_tree import ROOT
from tests.waiting import let_pass, wait_until

AGENTS = int(os.environ.get("BLACKBOARD_TEAM_AGENTS", "3"))
STEPS = int(os.environ.get("BLACKBOARD_TEAM_STEPS", "12"))
KILLS = int(os.environ.get("BLACKBOARD_TEAM_KILLS", "4"))
RESTORES = int(os.environ.get("BLACKBOARD_TEAM_RESTORES", "2"))
CUTS = 20
"""Revisions at random at which the board is looked at afterwards."""
PATIENCE_S = 500 + AGENTS * STEPS
CARE = RestartPolicy(ttl_ms=1_000, pause_ms=1, pause_ms_max=50, crashes_max=1_000)
NAMES = [f"worker{number}" for number in range(AGENTS)]
LETTERS, STATES, WORDS = "inbox/*/messages/*", "private/*/~state", "public/words/*"


TEAM, IN_PLACE_RESTORES = 8, 6


class Thoughts(BaseModel):
    """How many there were."""

    count: int = 0


class Back(NamedTuple):
    """A restore that was made: to which revision, which epochs it ended and began, and where."""

    to: int
    ended: str
    epoch: str
    revision: int


class Fate:
    """Kills and restores, at steps that were drawn before."""

    def __init__(self, board: Board, seed: int) -> None:
        self.lives: dict[str, ProcessSupervisor] = {}
        self.kills = 0
        self.restored: list[Back] = []
        self._board = board
        self._random = random.Random(seed)
        steps = range(1, AGENTS * STEPS // 2)
        self._kill_at = self._drawn(steps, KILLS)
        self._restore_at = self._drawn(steps, RESTORES)

    def _drawn(self, steps: Iterable[int], count: int) -> list[int]:
        return sorted(self._random.choices(list(steps), k=count))

    async def reign(self) -> None:
        """Until there were enough of both."""
        seen = 0
        async with self._board.watch(STATES) as watch:
            async for revised in watch:
                seen += 1
                if is_due(self._kill_at, self.kills, seen):
                    self._kill()
                elif is_due(self._restore_at, len(self.restored), seen):
                    await self._restore(revised.revision)

    def _kill(self) -> None:
        life = self._random.choice(sorted(self.lives.values(), key=lambda life: life.agent.name))
        if life.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(life.pid, signal.SIGKILL)
                self.kills += 1

    async def _restore(self, revision: int) -> None:
        """Back to any revision at which everybody was in the roster."""
        await self._board.refresh()
        entries = [entry async for entry in self._board.scan("public/~roster/*")]
        first = max(entry.create_revision for entry in entries)
        if len(entries) == AGENTS and first < revision:
            ended = (await self._board.head()).epoch.id
            to = self._random.randint(first, revision - 1)
            done = await self._board.restore(to)
            self.restored.append(Back(to, ended, done.epoch.id, done.revision))
            await wait_until(lambda: is_everybody_back(self._board, NAMES), timeout_s=PATIENCE_S)


async def is_everybody_back(board: Board, names: Sequence[str]) -> bool:
    """Whether each agent is attached, in the present epoch, or done."""
    here = {one.agent for one in await board.agents() if one.alive}
    for name in set(names) - here:
        stored = await board.as_agent(name).get(f"private/{name}/~state")
        if stored is None or stored["status"] != "done":
            return False
    return True


def is_due(times: Sequence[int], done: int, now: int) -> bool:
    """Whether there is another of `times`, and it has come."""
    return done < len(times) and times[done] <= now


async def approve_all(board: Board) -> None:
    """A person who says yes to everything."""
    async with board.watch("public/~approvals/**", snapshot=True) as watch:
        while True:
            for asked in await pending(board):
                if asked.answer is None:
                    await board.refresh()
                    with suppress(Conflict, StaleEpoch):
                        await answer(board, asked, approved=True)
            await anext(watch)


# --- what there was -------------------------------------------------------------------------------


class Witness:
    """Puts together what the log has of a run, and what the agents noted beside the board."""

    def __init__(self, board: Board, ghosts: Path, restored: list[Back]) -> None:
        self._board = board
        lines = ghosts.read_text().splitlines()
        self._ghosts = {ghost.mark: ghost for ghost in map(Ghost.model_validate_json, lines)}
        self._restored = restored

    async def history(self, rng: random.Random) -> TeamHistory:
        """Every committed step, every restore, and cuts at random revisions."""
        found, marks = TeamHistory(), set[str]()
        head = await self._board.head()
        after = 0
        while page := await self._board.log(after=after):
            for revised in page:
                step = self._step(revised)
                if step is not None and step.state not in marks:
                    marks.add(step.state)
                    found.steps.append(step)
            after = page[-1].revision
        revisions = rng.sample(range(1, head.revision), min(CUTS, head.revision - 1))
        found.cuts = [await self._cut(revision) for revision in revisions]
        for back in self._restored:
            source, cut = await self._cut(back.to), await self._cut(back.revision)
            found.restored.append(Restored(source, back.ended, back.epoch, back.revision, cut))
        return found

    def _step(self, revised: RevisionEvent) -> Step | None:
        """The step that a revision is, if it is one; also what only says that an agent waits."""
        key = f"private/{revised.author}/~state"
        puts = [c.value for c in revised.changes if c.key == key and c.kind == "put"]
        mark = puts[0]["state"]["mark"] if puts else ""
        if not mark:
            return None
        ghost = self._ghosts[mark]
        written = {c.key: c.value for c in revised.changes if c.key.startswith("public/words/")}
        return Step(
            agent=ghost.agent,
            number=ghost.n,
            epoch=self._epoch(revised.revision),
            revision=revised.revision,
            know=ghost.know,
            state=mark,
            writes=tuple(written.items()),
            sent=tuple(ghost.sent),
            taken=tuple(ghost.taken),
        )

    def _epoch(self, revision: int) -> str:
        begun = [back.epoch for back in self._restored if back.revision <= revision]
        return begun[-1] if begun else self._restored[0].ended

    async def _cut(self, revision: int) -> Cut:
        states = {
            entry.key.split("/")[1]: entry.value["state"]
            async for entry in self._board.scan(STATES, at=revision)
        }
        begun = {agent: state for agent, state in states.items() if state["n"]}
        return Cut(
            epoch=self._epoch(revision),
            revision=revision,
            steps={agent: state["n"] for agent, state in begun.items()},
            states={agent: state["mark"] for agent, state in begun.items()},
            know={agent: state["know"] for agent, state in begun.items()},
            public={e.key: e.value async for e in self._board.scan(WORDS, at=revision)},
            inboxes=frozenset([e.value async for e in self._board.scan(LETTERS, at=revision)]),
        )


def check_effects(lines: Iterable[str]) -> None:
    """Every action took effect, each with one idempotency key, however often it was tried."""
    keys: dict[tuple[str, int], set[str]] = {}
    for name, n, key in map(json.loads, lines):
        keys.setdefault((name, n), set()).add(key)
    assert keys.keys() == {(name, n) for name in NAMES for n in range(STEPS)}
    assert {len(found) for found in keys.values()} == {1}


class Thinker(Agent[Thoughts]):
    """Thinks a while in each step, so that most restores come in the middle of one."""

    async def step(self, ctx: Context[Thoughts]) -> None:
        """Think once more."""
        await let_pass(random.random() / 10)
        ctx.state.count += 1


async def test_nobody_is_lost_by_restores(tmp_path: Path) -> None:
    """A restore ends every identity, in the middle of renewals and steps: all come back, each time,
    and nobody counts that as a crash."""
    names = [f"thinker{number}" for number in range(TEAM)]
    policy = RestartPolicy(ttl_ms=1_000)
    async with blackboard.open(tmp_path, level="memory") as client:
        board, stop = client.board("main"), asyncio.Event()
        agents = [Thinker(name) for name in names]
        team = asyncio.create_task(
            run_team(
                board, agents, make_supervisor=lambda one: Supervisor(one, board, policy), stop=stop
            )
        )
        await wait_until(lambda: is_everybody_back(board, names))
        start = (await board.checkpoint("start")).revision
        for _ in range(IN_PLACE_RESTORES):
            await let_pass(random.random() / 5)
            await board.restore(start)
            await wait_until(lambda: is_everybody_back(board, names))
        stop.set()
        ended = await team
    assert {life.how for life in ended.values()} == {"stopped"}
    assert [life.error for life in ended.values() if life.crashes] == []
    assert ended.keys() == set(names)


# --- the run --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes find our modules, their goal, each other, and where effects go."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects"))
    monkeypatch.setenv("GHOSTS", str(tmp_path / "ghosts"))
    monkeypatch.setenv("GOAL", str(STEPS))
    monkeypatch.setenv("NAMES", " ".join(NAMES))


async def live(service: ServiceProcess, fate: Fate, board: Board, other: Board) -> None:
    """Let the team work to its end, while fate reigns and a person answers."""
    place = BoardAddress(
        service.url, lambda name: issue(service.secret, access.agent(name), HOUR_MS)
    )

    def make(agent: Agent[Any]) -> ProcessSupervisor:
        fate.lives[agent.name] = ProcessSupervisor(agent, board, place, CARE)
        return fate.lives[agent.name]

    person = approve_all(other)
    others = [asyncio.create_task(work) for work in (fate.reign(), person)]
    try:
        with anyio.fail_after(PATIENCE_S):
            ended = await run_team(board, [Worker(name) for name in NAMES], make_supervisor=make)
    finally:
        for task in others:
            task.cancel()
        told = await asyncio.gather(*others, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in told), told
    assert {life.how for life in ended.values()} == {"done"}


async def story(service: ServiceProcess, path: Path, seed: int) -> None:
    """Nothing is lost, nothing is done twice, private and public agree, at every revision."""
    async with service.connect() as client, service.connect() as another:
        board, other = client.board("main"), another.board("main")
        fate = Fate(other, seed)
        await live(service, fate, board, other)
        await board.refresh()
        for name in NAMES:
            stored = await board.as_agent(name).get(f"private/{name}/~state")
            assert stored["state"]["n"] == stored["step"] == STEPS
            assert await board.get(f"public/counts/{name}") == STEPS
        assert (fate.kills > 0, len(fate.restored) > 0) == (True, True)
        witness = Witness(board, path / "ghosts", fate.restored)
        history = await witness.history(random.Random(seed))
        assert check(history) == {}
        assert len({step.state for step in history.steps}) >= AGENTS * STEPS
    check_effects((path / "effects").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 100)
async def test_a_team_ends_as_an_undisturbed_one(tmp_path: Path, seed: int) -> None:
    """On the embedded engine."""
    async with ServiceProcess("sqlite", tmp_path / "data") as service:
        await story(service, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 100)
async def test_a_team_ends_as_an_undisturbed_one_over_redis(
    redis_binary: Path, tmp_path: Path, seed: int
) -> None:
    """On Redis, with an archive."""
    async with (
        RedisProcess(redis_binary) as redis,
        ServiceProcess(redis.url, tmp_path / "data", archived=True) as service,
    ):
        await story(service, tmp_path, seed)
