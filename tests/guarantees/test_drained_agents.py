"""SIGTERM to a process of agents in the middle of a step, as when its pod is replaced: the step is
finished or abandoned, the identity is given back at once, and the next process goes on with it.

Identities last longer than any test waits, so nothing here can go on because one ran out.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.integrity.tokens import issue
from blackboard.limits import AGENT_GRACE_MS
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.guarantees.team_pod import BOARD, FOLDER, HELD, LAST
from tests.source_tree import ROOT
from tests.waiting import wait_until

TTL_MS = 3_600_000
PATIENCE_S = 400
AGENTS = {"supervise": ["ada"], "run_team": ["ada", "bob"], "in_processes": ["ada", "bob"]}
IDENTITIES = "private/*/~identity"
Pod = subprocess.Popen[bytes]


@contextmanager
def pod(service: ServiceProcess, folder: Path, how: str, grace_ms: int) -> Iterator[Pod]:
    """A process of agents."""
    order = json.dumps({"how": how, "ttl_ms": TTL_MS, "grace_ms": grace_ms})
    token = issue(service.secret, access.operator(), HOUR_MS)
    command = [sys.executable, "-m", "tests.guarantees.team_pod", service.url, token, order]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {FOLDER: str(folder)}) as process:
        try:
            yield process
        finally:
            process.kill()


async def ended(process: Pod) -> int:
    """Its exit code."""
    return await anyio.to_thread.run_sync(process.wait, PATIENCE_S)


def effects(folder: Path) -> Counter[tuple[str, int]]:
    """How often each agent made each call."""
    file = folder / "effects"
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter((agent, number) for agent, number in map(json.loads, lines))


async def all_held(folder: Path, agents: list[str], times: int = 1) -> None:
    """Wait until each agent is in the middle of its step."""

    async def so() -> bool:
        return all(effects(folder)[agent, HELD] == times for agent in agents)

    await wait_until(so, timeout_s=PATIENCE_S)


async def all_queued(board: Board, agents: list[str]) -> None:
    """Wait until another process waits for each identity."""

    async def so() -> bool:
        return sum(len(lease.waiters) for lease in await board.leases(IDENTITIES)) == len(agents)

    await wait_until(so, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("how", AGENTS)
async def test_a_step_is_finished_and_the_next_process_goes_on(tmp_path: Path, how: str) -> None:
    """The next one waits for the identities already, as a pod does that is started first."""
    agents = AGENTS[how]
    async with ServiceProcess("sqlite", tmp_path / "data") as service, service.connect() as client:
        board = client.board(BOARD)
        with pod(service, tmp_path, how, PATIENCE_S * 1000) as first:
            await all_held(tmp_path, agents)
            with pod(service, tmp_path, how, AGENT_GRACE_MS) as second:
                await all_queued(board, agents)
                first.terminate()
                (tmp_path / "go").touch()
                assert await ended(first) == 0
                assert await ended(second) == 0
        await check(board, agents, tmp_path, held=1)


@pytest.mark.parametrize("how", AGENTS)
async def test_a_step_is_abandoned_and_the_next_process_takes_it(tmp_path: Path, how: str) -> None:
    """The identities are free when the first has ended; what its step did not commit is nowhere."""
    agents = AGENTS[how]
    async with ServiceProcess("sqlite", tmp_path / "data") as service, service.connect() as client:
        board = client.board(BOARD)
        with pod(service, tmp_path, how, 1) as first:
            await all_held(tmp_path, agents)
            first.terminate()
            assert await ended(first) == 0
        assert await board.leases(IDENTITIES) == ()
        assert await board.agents() == ()
        assert {await board.get(f"public/reached/{name}") for name in agents} == {HELD - 1}
        with pod(service, tmp_path, how, AGENT_GRACE_MS) as second:
            await all_held(tmp_path, agents, times=2)
            (tmp_path / "go").touch()
            assert await ended(second) == 0
        await check(board, agents, tmp_path, held=2)


async def check(board: Board, agents: list[str], folder: Path, held: int) -> None:
    """Every agent reached its end, and made each call once, but for the one that was abandoned."""
    assert {await board.get(f"public/reached/{name}") for name in agents} == {LAST}
    once = {(name, number): 1 for name in agents for number in range(1, LAST + 1)}
    assert effects(folder) == once | {(name, HELD): held for name in agents}
    assert await board.leases(IDENTITIES) == ()
