"""The reviewer, as a pure function of its inputs."""

from typing import Any

import pytest
from blackboard.agents.reviewer import Reviewer, audit

from blackboard import Status, try_step
from blackboard.types import Inputs

VALUATION = {"usd_bn": 1000.0}
GOOD: dict[str, Any] = {"on_valuation_usd_bn": 1000.0, "budget_usd_bn": {"A": 6.0, "B": 4.0}}


def inputs(plan: dict[str, Any], valuation: Any = None, answers: Any = None) -> Inputs:
    """A board with a plan."""
    found = VALUATION if valuation is None else valuation
    return Inputs({"public/plan": plan, "public/valuation": found}, answers=answers or {})


async def test_a_good_plan_is_accepted_once() -> None:
    """Seen again, it changes nothing."""
    trial = await try_step(Reviewer("reviewer"), None, inputs(GOOD))
    assert trial.written["public/review"]["verdict"] == "accepted"
    assert trial.state.reviews == 1
    again = await try_step(Reviewer("reviewer"), trial.state, inputs(GOOD))
    assert again.stepped.idle


@pytest.mark.parametrize(
    ("plan", "finding"),
    [
        (GOOD | {"on_valuation_usd_bn": 900.0}, "based on 900.0"),
        (GOOD | {"budget_usd_bn": {"A": 21.0}}, "more than 2%"),
        (GOOD | {"budget_usd_bn": {"A": 1.0, "B": 0.0}}, "gets nothing"),
    ],
)
async def test_faults_go_to_the_author(plan: dict[str, Any], finding: str) -> None:
    """By recomputing what the plan says."""
    trial = await try_step(Reviewer("reviewer"), None, inputs(plan))
    [(to, message)] = trial.sent
    assert (to, message["review"]) == ("world", "faulty")
    assert finding in message["findings"][0]


async def test_a_plan_whose_valuation_was_removed_waits_for_the_next_one() -> None:
    """It is no crash, and the plan counts as not seen."""
    trial = await try_step(Reviewer("reviewer"), None, Inputs({"public/plan": GOOD}))
    assert trial.stepped.idle
    assert trial.state.seen == 0
    later = await try_step(Reviewer("reviewer"), trial.state, inputs(GOOD))
    assert later.written["public/review"]["verdict"] == "accepted"


@pytest.mark.parametrize(
    "plan", ["a plan", {}, GOOD | {"budget_usd_bn": {"A": "6"}}, GOOD | {"budget_usd_bn": None}]
)
async def test_what_is_no_plan_is_a_fault(plan: Any) -> None:
    """Its author gets it back; else it would be read again for ever."""
    trial = await try_step(Reviewer("reviewer"), None, inputs(plan))
    [(to, message)] = trial.sent
    assert (to, message["review"]) == ("world", "faulty")
    assert "it is no plan" in message["findings"][0]
    assert trial.state.reviews == 1


async def test_a_plan_waits_for_a_valuation_that_can_be_read() -> None:
    """Anybody may write there."""
    for valuation in ("much", {"usd_bn": "1000"}):
        trial = await try_step(Reviewer("reviewer"), None, inputs(GOOD, valuation))
        assert trial.stepped.idle


async def test_much_money_needs_a_person() -> None:
    """Yes, no, or not yet."""
    plan = {"on_valuation_usd_bn": 2000.0, "budget_usd_bn": {"A": 30.0}}
    much, question = {"usd_bn": 2000.0}, "spend 30.00 bn USD?"
    for answer, verdict in ((True, "approved"), (False, "rejected")):
        trial = await try_step(Reviewer("reviewer"), None, inputs(plan, much, {question: answer}))
        assert trial.written["public/review"]["verdict"] == verdict
    waiting = await try_step(Reviewer("reviewer"), None, inputs(plan, much))
    assert waiting.stepped.status is Status.WAITING_FOR_APPROVAL
    assert "public/review" not in waiting.written


def test_an_audit_of_a_good_plan_finds_nothing() -> None:
    """The tool alone."""
    assert audit(GOOD, VALUATION) == []
