"""C1 to C8 over teams that work, checkpoint and restore at random; and what is known to be bad.

BLACKBOARD_TEST_SCHEDULES sets how many random schedules `make test-all` runs.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import blackboard
from blackboard import Client
from tests.guarantees.cut_checkers import check
from tests.guarantees.cut_history import Cut
from tests.guarantees.cut_team import Taker, Team, run
from tests.tiers import few_or_many

SCHEDULES = int(os.environ.get("BLACKBOARD_TEST_SCHEDULES", "300"))


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """The embedded engine; what it survives is not the question here."""
    async with blackboard.open(tmp_path / "data", level="memory") as opened:
        yield opened


@pytest.mark.timeout(0)
@few_or_many(25, SCHEDULES)
async def test_every_checkpoint_is_a_consistent_cut(client: Client, seed: int, rounds: int) -> None:
    """In every schedule, with a restore in the middle of most."""
    for number in range(rounds):
        board = client.board(f"team-{number}")
        taken: list[Cut] = []

        async def take(team: Team, turn: int, taken: list[Cut] = taken) -> None:
            if turn == 2:
                await team.restore("cut-0", taken[0])
            else:
                taken.append(await team.checkpoint(f"cut-{turn}"))

        history = await run(board, seed + number, take, cuts=4)
        assert check(history) == {}, f"schedule {number} of seed {seed}"


async def _poll(team: Team, _: int) -> None:
    await team.poll_agents()


async def _copy(team: Team, _: int) -> None:
    await team.copy_one_after_the_other()


@pytest.mark.parametrize("take", [_poll, _copy], ids=["polling", "copying"])
@few_or_many(10, 40)
async def test_what_is_known_to_be_bad_is_found(
    client: Client, seed: int, take: Taker, rounds: int
) -> None:
    """Asking agents one by one, or copying namespaces one by one, tears most cuts."""
    violated = 0
    for number in range(rounds):
        board = client.board(f"bad-{number}")
        violated += bool(check(await run(board, seed + number, take, cuts=3)))
    assert violated > rounds // 2, f"{violated} of {rounds}, seed {seed}"
