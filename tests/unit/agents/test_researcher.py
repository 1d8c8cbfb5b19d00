"""The researcher, as a pure function of its inputs."""

import pytest
from blackboard.agents.researcher import (
    FILED,
    Research,
    Researcher,
    free_cash_flow,
    markets,
    valuation,
)

from blackboard import Status, try_step
from blackboard.types import Inputs

KNOWN = Research(free_cash_flow={2021: 92_953, 2022: 111_443})


async def test_the_first_step_publishes_what_the_filings_say() -> None:
    """In public the figure, in private how it got there; each filing is read by a call."""
    trial = await try_step(Researcher("researcher"))
    assert trial.written == {
        "public/valuation": {"usd_bn": 2682.7, "company": "Apple Inc.", "years": [2021, 2022]}
    }
    assert trial.state == KNOWN
    assert [(call.name, call.arguments) for call in trial.calls] == [
        ("free_cash_flow", [2021]),
        ("free_cash_flow", [2022]),
    ]


async def test_it_rests_until_it_is_asked() -> None:
    """With its valuation published there is nothing to do."""
    assert (await try_step(Researcher("researcher"), KNOWN)).stepped.idle


async def test_a_letter_is_answered_in_the_commit_that_revises_the_valuation() -> None:
    """So that nobody gets the answer without the revision."""
    letter = ("architect", {"question": "largest markets", "count": 2, "id": "7"})
    trial = await try_step(Researcher("researcher"), KNOWN, Inputs(inbox=[letter]))
    assert trial.written["public/valuation"]["years"] == [2021, 2022, 2023]
    assert trial.sent == (
        ("architect", {"about": "7", "gdp_usd_tn": {"China": 17.88, "Japan": 4.26}}),
    )
    assert trial.stepped.status is Status.DONE


@pytest.mark.parametrize("letter", ["hello", {"count": 2}, {"id": "7", "count": "two"}, None])
async def test_a_letter_that_is_no_question_is_taken_out(letter: object) -> None:
    """It would be read again for ever; the next one is answered."""
    trial = await try_step(Researcher("researcher"), KNOWN, Inputs(inbox=[("bob", letter)]))
    assert (len(trial.deleted), trial.sent, trial.state) == (1, (), KNOWN)
    assert trial.stepped.status is Status.RUNNING


def test_the_tools_compute_what_they_say() -> None:
    """Cash of 2021 as filed, the largest economies first, a perpetuity that grows."""
    assert free_cash_flow(2021) == 104_038 - 11_085 == 92_953
    assert list(markets(3)) == ["China", "Japan", "Germany"]
    assert valuation({2021: 1000, 2022: 3000})["usd_bn"] == pytest.approx(52.5)
    assert sorted(FILED) == [2021, 2022, 2023]
