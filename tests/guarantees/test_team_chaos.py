"""A team of processes under random kills, restores and approvals ends where it would have ended.

At the end, private state and public count of each agent agree, and of every action there is one
idempotency key, however often it was tried. BLACKBOARD_TEAM_AGENTS=8 BLACKBOARD_TEAM_STEPS=200
BLACKBOARD_TEAM_KILLS=100 make it long.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from blackboard import Board, Conflict, StaleEpoch
from blackboard.net.tokens import issue
from blackboard.runtime.agent import Agent
from blackboard.runtime.approvals import answer, pending
from blackboard.runtime.processes import Place, ProcessLife
from blackboard.runtime.supervisor import Care
from blackboard.runtime.team import run_team
from blackboard.service import access
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.guarantees.team_agents import Worker
from tests.source_tree import ROOT

AGENTS = int(os.environ.get("BLACKBOARD_TEAM_AGENTS", "3"))
STEPS = int(os.environ.get("BLACKBOARD_TEAM_STEPS", "12"))
KILLS = int(os.environ.get("BLACKBOARD_TEAM_KILLS", "4"))
RESTORES = 2
CARE = Care(ttl_ms=1_000, pause_ms=1, pause_ms_max=50, crashes_max=1_000)


class Fate:
    """Kills and restores at random, by the revisions that go by."""

    def __init__(self, board: Board, seed: int) -> None:
        self.lives: dict[str, ProcessLife] = {}
        self.kills = self.restores = 0
        self._board = board
        self._random = random.Random(seed)

    async def reign(self) -> None:
        """Until there were enough of both."""
        async with self._board.watch("private/*/~state") as watch:
            async for revised in watch:
                if self._random.random() < 0.2 and self.kills < KILLS:
                    self._kill()
                elif self._random.random() < 0.1 and self.restores < RESTORES:
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
            await self._board.restore(self._random.randint(first, revision - 1))
            self.restores += 1


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


@pytest.fixture
async def service(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServiceProcess]:
    """A service; child processes find our modules, their goal, and where effects go."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects"))
    monkeypatch.setenv("GOAL", str(STEPS))
    async with ServiceProcess("sqlite", tmp_path / "data") as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_team_ends_as_an_undisturbed_one(
    service: ServiceProcess, tmp_path: Path, seed: int
) -> None:
    """Nothing is lost, nothing is done twice, private and public agree."""
    async with service.connect() as client, service.connect() as other:
        board, fate = client.board("main"), Fate(other.board("main"), seed)
        place = Place(service.url, lambda name: issue(service.secret, access.agent(name), HOUR_MS))

        def make(agent: Agent[Any]) -> ProcessLife:
            fate.lives[agent.name] = ProcessLife(agent, board, place, CARE)
            return fate.lives[agent.name]

        names = [f"worker{number}" for number in range(AGENTS)]
        person = approve_all(other.board("main").as_agent("person"))
        others = [asyncio.create_task(work) for work in (fate.reign(), person)]
        try:
            with anyio.fail_after(500):
                ended = await run_team(board, [Worker(name) for name in names], make_life=make)
        finally:
            for task in others:
                task.cancel()
            told = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in told), told
        assert {life.how for life in ended.values()} == {"done"}
        for name in names:
            stored = await board.as_agent(name).get(f"private/{name}/~state")
            assert stored["state"]["n"] == stored["step"] == STEPS
            assert await board.get(f"public/counts/{name}") == STEPS
    lines = map(json.loads, (tmp_path / "effects").read_text().splitlines())
    keys: dict[tuple[str, int], set[str]] = {}
    for name, n, key in lines:
        keys.setdefault((name, n), set()).add(key)
    assert keys.keys() == {(name, n) for name in names for n in range(STEPS)}
    assert {len(found) for found in keys.values()} == {1}
    assert (fate.kills > 0, fate.restores > 0) == (True, True)
