"""A step as a pure function, and its replay."""

from typing import Any

import pytest
from pydantic import BaseModel

from blackboard.errors import Diverged, InvalidRequest
from blackboard.runtime.agent import Agent
from blackboard.runtime.context import Context
from blackboard.runtime.state import Status
from blackboard.runtime.trial import Inputs, try_step

called: list[str] = []


class Notes(BaseModel):
    """What the buyer knows."""

    spent: int = 0


def pay(amount: int) -> str:
    """A tool."""
    called.append("pay")
    return f"paid {amount}"


class Buyer(Agent[Notes]):
    """Reads, gets a message, asks, pays, writes."""

    factor = 1

    async def step(self, ctx: Context[Notes]) -> None:
        """All of it."""
        price = await ctx.get("public/price") * self.factor
        for letter in await ctx.inbox():
            ctx.send(letter.sender, f"thanks for {letter.value}")
        if await ctx.approve("buy"):
            ctx.put("public/receipt", await ctx.tool(pay, price))
            ctx.delete("public/price")
            ctx.state.spent += price
            ctx.done("bought")


INPUTS = Inputs({"public/price": 7}, inbox=[("bob", "the tip")], answers={"buy": True}, step=4)


async def test_a_step_is_a_function_of_state_and_inputs() -> None:
    """Twice the same."""
    one = await try_step(Buyer("ada"), Notes(spent=3), INPUTS)
    other = await try_step(Buyer("ada"), Notes(spent=3), INPUTS)
    assert (one.state, one.written, one.sent) == (other.state, other.written, other.sent)
    assert one.state == Notes(spent=10)
    assert one.written == {"public/receipt": "paid 7"}
    assert one.deleted == ("inbox/ada/messages/0000000000", "public/price")
    assert one.sent == (("bob", "thanks for the tip"),)
    assert (one.stepped.number, one.stepped.outcome) == (5, "bought")
    assert [call.name for call in one.calls] == ["buy", "pay"]


async def test_a_step_that_waits_for_an_answer_has_done_nothing() -> None:
    """Without the answer among its inputs."""
    trial = await try_step(Buyer("ada"), None, Inputs({"public/price": 7}))
    assert trial.stepped.status is Status.WAITING_FOR_APPROVAL
    assert (trial.state, trial.written, trial.sent) == (Notes(), {}, ())


async def test_a_replay_calls_nothing() -> None:
    """Every call is answered from what was recorded."""
    first = await try_step(Buyer("ada"), None, INPUTS)
    called.clear()
    inputs = Inputs(INPUTS.entries, INPUTS.inbox, calls=first.calls, step=4)
    replayed = await try_step(Buyer("ada"), None, inputs)
    assert (called, replayed.state, replayed.written) == ([], first.state, first.written)


class Shelf(BaseModel):
    """A state that is false while it is empty."""

    items: list[int] = []

    def __len__(self) -> int:
        return len(self.items)


def look() -> Any:
    """A tool that says nothing of what it returns."""
    return [1]


class Keeper(Agent[Shelf]):
    """Changes what it got from a tool."""

    def first(self) -> Shelf:
        """Not empty."""
        return Shelf(items=[7])

    async def step(self, ctx: Context[Shelf]) -> None:
        """Add to it."""
        found = await ctx.tool(look)
        found += [2, *ctx.state.items]
        ctx.state.items = found


async def test_a_step_does_not_change_what_was_recorded() -> None:
    """What a tool returned belongs to the step; its record says what it returned."""
    first = await try_step(Keeper("ada"))
    assert (first.state.items, first.calls[0].result) == ([1, 2, 7], [1])
    again = await try_step(Keeper("ada"), None, Inputs(calls=first.calls))
    assert (again.state.items, again.calls[0].result) == ([1, 2, 7], [1])


async def test_a_state_that_is_false_is_a_state() -> None:
    """It is not that of a new agent."""
    assert (await try_step(Keeper("ada"), Shelf())).state.items == [1, 2]


async def test_a_replay_tells_the_first_call_that_is_another_one() -> None:
    """With its number, and both names."""

    class Greedy(Buyer):
        kind = "Buyer"
        factor = 2

    first = await try_step(Buyer("ada"), None, INPUTS)
    inputs = Inputs(INPUTS.entries, INPUTS.inbox, calls=first.calls, step=4)
    with pytest.raises(Diverged) as diverged:
        await try_step(Greedy("ada"), None, inputs)
    expected, found = diverged.value.expected, diverged.value.found
    assert (diverged.value.number, expected, found) == (1, "pay [7]", "pay [14]")
    apart = first.calls[1].model_copy(update={"apart": True})
    with pytest.raises(InvalidRequest):
        await try_step(Buyer("ada"), None, Inputs(INPUTS.entries, calls=[apart]))
