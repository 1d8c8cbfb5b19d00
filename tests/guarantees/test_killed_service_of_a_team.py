"""A team whose service is killed while the team itself asks it something: nobody is lost.

Steps of agents have tests of their own. Here it is the roster, the end of the team and the check
for a stall: what a team asks between the steps. Each service stays away for longer than a client
waits for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.errors import Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.runtime.approvals import pending
from blackboard.runtime.supervisor import AgentExit, Supervisor
from blackboard.runtime.team import ROSTER, MakeSupervisor, roster_key, run_team
from tests.guarantees.processes import ServiceProcess
from tests.unit.runtime.crew import Counter, Hopeless, Patient
from tests.unit.runtime.test_supervisor import QUICK
from tests.waiting import wait_until

pytestmark = pytest.mark.limits(commit_timeout_ms=300, request_timeout_ms=5_000)
PAUSE = "blackboard.runtime.team._AWAY_PAUSE_S"


class Outage:
    """Kills the service at a call, and starts it again once that call has failed."""

    def __init__(self, service: ServiceProcess) -> None:
        self.failures: list[str] = []
        self.is_over = asyncio.Event()
        self._service = service
        self.is_due: Callable[[Board, str], bool] = lambda board, name: False

    def wraps(self, name: str, call: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        """What is asked of a board by `name`, at which it may happen."""

        async def called(board: Board, *arguments: Any, **options: Any) -> Any:
            if self.failures or not self.is_due(board, " ".join([name, *map(str, arguments)])):
                return await call(board, *arguments, **options)
            self.failures.append(name)
            await self._service.kill()
            try:
                with pytest.raises(Unavailable) as failed:
                    await call(board, *arguments, **options)
            finally:
                await self._service.start()
                self.is_over.set()
            raise failed.value

        return called


@pytest.fixture
async def service(tmp_path: Path, limits: Limits) -> AsyncIterator[ServiceProcess]:
    """A service in a process of its own."""
    async with ServiceProcess("sqlite", tmp_path, limits=limits) as service:
        yield service


@pytest.fixture
async def client(service: ServiceProcess) -> AsyncIterator[Client]:
    """The client whose board the team gets."""
    async with service.connect() as client:
        yield client


@pytest.fixture
async def patient(service: ServiceProcess) -> AsyncIterator[Client]:
    """Another client, for what the test itself asks: only the team's gives up soon."""
    async with replace(service, limits=DEFAULT).connect() as client:
        yield client


@pytest.fixture
def outage(service: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> Outage:
    """What may befall what a team asks of its board."""
    found = Outage(service)
    for name in ("list", "refresh"):
        monkeypatch.setattr(Board, name, found.wraps(name, getattr(Board, name)))
    monkeypatch.setattr("blackboard.runtime.stall.pending", found.wraps("pending", pending))
    monkeypatch.setattr(PAUSE, 0.05)
    return found


def quick(board: Board) -> MakeSupervisor:
    """Lives with short pauses."""
    return lambda agent: Supervisor(agent, board, QUICK)


async def is_at_rest(board: Board, agent: str) -> bool:
    """Whether an agent waits for messages."""
    return any(one.agent == agent and one.state == "idle" for one in await board.agents())


async def test_when_it_asks_whether_all_have_ended(client: Client, outage: Outage) -> None:
    """The last agent has ended; the team ends as if nothing had happened."""
    board = client.board("main")
    outage.is_due = lambda asked, call: call == f"list {ROSTER}/*"
    ended = await run_team(board, [Counter("ada")], make_supervisor=quick(board))
    assert ended == {"ada": AgentExit("ada", "done", "counted to 5")}
    assert outage.failures == ["list"]


@pytest.mark.limits(commit_timeout_ms=300, team_agents_max=1)
async def test_when_it_looks_at_the_new_epoch(
    client: Client, patient: Client, outage: Outage
) -> None:
    """The board was restored since the team wrote to its roster the last time."""
    board, other = client.board("main"), patient.board("main")
    running = asyncio.create_task(run_team(board, [Patient("ada")], make_supervisor=quick(board)))
    try:
        await wait_until(lambda: is_at_rest(other, "ada"))
        outage.is_due = lambda asked, call: asked is board and call == "refresh"
        await other.restore((await other.head()).revision)
        await other.refresh()
        await other.put(roster_key("bob"), {"kind": "Patient"})  # one more than it may have
        await outage.is_over.wait()
        for _ in range(5):
            await other.append("inbox/ada/messages", "go on")
        ended = await running
        assert {name: life.how for name, life in ended.items()} == {"ada": "done", "bob": "refused"}
        assert outage.failures == ["refresh"]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_when_it_looks_for_requests_of_a_stalled_team(client: Client, outage: Outage) -> None:
    """The team is stopped because nobody can go on, once it is known that nobody asks for
    approval."""
    board = client.board("main")
    agents = [Hopeless("eve"), Patient("ada")]
    outage.is_due = lambda asked, call: call == "pending"
    ended = await run_team(board, agents, make_supervisor=quick(board), on_dead="stop")
    assert {name: life.how for name, life in ended.items()} == {
        "eve": "crash_loop",
        "ada": "stopped",
    }
    assert outage.failures == ["pending"]
