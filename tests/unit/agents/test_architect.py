"""The architect: its step with a colleague of whom we know what he does, and the two of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from blackboard.agents.architect import Architect, Colleague, Planning, answer_to, split
from blackboard.agents.researcher import Researcher

import blackboard
from blackboard import Board, LiveBoardPort, Runner, Status, run_agent, try_step
from blackboard.types import Inputs

GDP = {"China": 15.0, "Japan": 5.0}
PATIENCE_S = 60.0


class Told:
    """Answers at once; `meanwhile` happens before."""

    def __init__(self, board: Board | None = None, meanwhile: Any = None) -> None:
        self.mine, self.meanwhile, self.asked = board, meanwhile, 0

    async def largest_markets(self, count: int, *, idempotency_key: str = "") -> dict[str, float]:
        """A tool."""
        self.asked += 1
        if self.mine is not None:
            await self.mine.put("public/valuation", self.meanwhile)
        return GDP


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board in this process."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        yield client.board("main")


async def test_it_rests_until_there_is_a_valuation() -> None:
    """And asks nobody."""
    colleague = Told()
    trial = await try_step(Architect("architect", colleague=colleague), Planning())
    assert (trial.stepped.idle, trial.stepped.patterns, colleague.asked) == (
        True,
        ("public/valuation",),
        0,
    )


async def test_the_plan_is_on_the_valuation_that_was_read() -> None:
    """A hundredth of it, by the size of the markets."""
    inputs = Inputs({"public/valuation": {"usd_bn": 2000.0}})
    trial = await try_step(Architect("architect", colleague=Told()), Planning(), inputs)
    plan = {"on_valuation_usd_bn": 2000.0, "budget_usd_bn": {"China": 15.0, "Japan": 5.0}}
    assert trial.written == {"public/plan": plan}
    assert (trial.stepped.status, trial.state.refused) == (Status.DONE, [])


async def test_a_plan_on_a_stale_valuation_is_made_again_and_nobody_asked_twice(
    board: Board,
) -> None:
    """It remembers who had changed what."""
    await board.put("public/valuation", {"usd_bn": 2000.0})
    colleague = Told(board.as_agent("researcher"), {"usd_bn": 1000.0})
    port = LiveBoardPort(board.as_agent("architect"))
    stepped = await Runner(Architect("architect", colleague=colleague), port).step()
    assert (stepped.attempts, colleague.asked) == (2, 1)
    assert (await board.get("public/plan"))["on_valuation_usd_bn"] == 1000.0
    [refused] = (await board.get("private/architect/~state"))["state"]["refused"]
    assert (refused["key"], refused["by"]) == ("public/valuation", "researcher")


@pytest.mark.parametrize("is_operator", [False, True])
async def test_both_together(board: Board, *, is_operator: bool) -> None:
    """The first plan is refused, whichever of them begins, and whosever token they have."""
    mine = board if is_operator else board.as_agent("architect")
    with anyio.fail_after(PATIENCE_S):
        await asyncio.gather(
            run_agent(Architect("architect", colleague=Colleague(mine)), mine),
            run_agent(Researcher("researcher"), board),
        )
    assert (await board.get("public/plan"))["on_valuation_usd_bn"] == 2659.8
    assert len((await board.get("private/architect/~state"))["state"]["refused"]) == 1
    assert not [entry async for entry in board.scan("inbox/**")]


async def test_what_was_answered_before_a_crash_is_not_asked_again(board: Board) -> None:
    """The letter is there, the journal is not."""
    answer = {"about": "7", "gdp_usd_tn": GDP}
    await board.as_agent("researcher").append("inbox/architect/messages", answer)
    asking = Colleague(board.as_agent("architect"))
    with anyio.fail_after(PATIENCE_S):
        assert await asking.largest_markets(2, idempotency_key="7") == GDP
    assert not [entry async for entry in board.scan("inbox/researcher/**")]


async def test_a_restore_between_two_questions_is_no_error(board: Board) -> None:
    """An agent goes on after it, with the same colleague."""
    asking, researcher = Colleague(board), board.as_agent("researcher")
    await board.checkpoint("before")
    with anyio.fail_after(PATIENCE_S):
        for number in ("7", "8"):
            asked = asyncio.create_task(asking.largest_markets(2, idempotency_key=number))
            async with board.watch("inbox/researcher/messages/*", snapshot=True) as watch:
                if not watch.state:
                    await anext(watch)
            answer = {"about": number, "gdp_usd_tn": GDP}
            await researcher.append("inbox/architect/messages", answer)
            assert await asked == GDP
            await board.restore("before")
            await researcher.refresh()


def test_letters_of_others_are_no_answers() -> None:
    """A reviewer writes, too."""
    assert answer_to("7", ["hello", {"review": "faulty"}, {"about": "8"}]) is None


@pytest.mark.parametrize("figures", [None, "many", {}, {"A": "2"}, {"A": 0}])
def test_an_answer_without_figures_is_none(figures: Any) -> None:
    """A later one may have them."""
    assert answer_to("7", [{"about": "7", "gdp_usd_tn": figures}, {"about": "7"}]) is None


async def test_it_rests_until_the_valuation_can_be_read() -> None:
    """Anybody may write there."""
    for valuation in ("much", {"usd_bn": "2000"}, {}):
        inputs = Inputs({"public/valuation": valuation})
        trial = await try_step(Architect("architect", colleague=Told()), Planning(), inputs)
        assert trial.stepped.idle


def test_a_budget_is_split_by_product() -> None:
    """In whole cents of a billion."""
    assert split(1000.0, {"A": 2.0, "B": 1.0}) == {"A": 6.67, "B": 3.33}
