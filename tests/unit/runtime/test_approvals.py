"""Requests and answers, against whoever writes what is none; and the edges of what a step takes."""

import pytest
from pydantic import BaseModel

from blackboard.core.commit import Put
from blackboard.errors import Corrupt, InvalidRequest
from blackboard.runtime.agent import Agent
from blackboard.runtime.approvals import Answer, Fact, Request
from blackboard.runtime.context import Context, Reference
from blackboard.runtime.runner import Runner
from blackboard.runtime.trial import Inputs, MemoryDesk, run_step
from blackboard.types import APPROVAL_FACTS_MAX, INBOX_TAKE_MAX
from blackboard.wire.codec import encode_value


class Nothing(BaseModel):
    """An agent that knows nothing."""


class Asker(Agent[Nothing]):
    """Asks on so many facts."""

    facts = 1

    async def step(self, ctx: Context[Nothing]) -> None:
        """Ask."""
        await ctx.approve("go on", facts=[f"public/{n}" for n in range(self.facts)])


class Reader(Agent[Nothing]):
    """Takes its letters."""

    async def step(self, ctx: Context[Nothing]) -> None:
        """All that may be taken at once."""
        ctx.put("public/taken", len(await ctx.inbox(10 * INBOX_TAKE_MAX)))


class Forgetful(Agent[Nothing]):
    """Has a reference to what it never kept."""

    async def step(self, ctx: Context[Nothing]) -> None:
        """Read it."""
        await ctx.load(Reference(digest="0" * 64, size_bytes=1))


async def test_a_request_is_based_on_so_many_facts() -> None:
    """One more is refused."""
    asker = Asker("ada")
    asker.facts = APPROVAL_FACTS_MAX
    assert (await run_step(asker)).stepped.rests
    asker.facts += 1
    with pytest.raises(InvalidRequest, match="facts"):
        await run_step(asker)


async def test_a_step_takes_so_many_letters_at_once() -> None:
    """Whatever it asks for."""
    letters = [("bob", n) for n in range(INBOX_TAKE_MAX + 1)]
    assert (await run_step(Reader("ada"), None, Inputs(inbox=letters))).written == {
        "public/taken": INBOX_TAKE_MAX
    }


async def test_what_was_never_kept_cannot_be_read() -> None:
    """And is not taken for None."""
    with pytest.raises(Corrupt):
        await run_step(Forgetful("ada"))


@pytest.mark.parametrize(
    "written",
    [
        7,
        {"approved": True},
        {"approved": "perhaps", "request": 1},
        {"approved": True, "request": 1},
    ],
)
async def test_what_is_no_answer_does_not_count(written: object) -> None:
    """Nor one to another revision than that of the request."""
    desk = MemoryDesk("ada")
    runner = Runner(Asker("ada"), desk)
    desk.seed("bob", Put("public/0", encode_value(1)))
    waiting = await runner.step()
    (decision, _) = waiting.patterns
    desk.seed("bob", Put(decision, encode_value(written)))
    assert (await runner.step()).status is waiting.status


async def test_a_request_that_somebody_else_wrote_is_none() -> None:
    """It is made by the agent itself, over that."""
    desk = MemoryDesk("ada")
    runner = Runner(Asker("ada"), desk)
    waiting = await runner.step()
    key = waiting.patterns[0].replace("~decisions", "~approvals")
    request = Request(question="go on", facts=(Fact(key="public/0", revision=0, digest="x"),))
    desk.seed("eve", Put(key, encode_value(request.model_dump(mode="json"))))
    answer = Answer(approved=True, request=desk.log[-1].revision)
    desk.seed("bob", Put(waiting.patterns[0], encode_value(answer.model_dump())))
    assert (await runner.step()).status is waiting.status
    entry = await desk.entry(key)
    assert entry is not None
    assert entry.author == "ada"
