"""Requests and answers, against malformed ones; and the edges of what a step takes."""

from collections.abc import Mapping, Sequence

import pytest
from pydantic import BaseModel

from blackboard.client.views import Entry
from blackboard.core.commit import Put
from blackboard.core.path import DECISIONS
from blackboard.errors import Corrupt, InvalidRequest
from blackboard.limits import APPROVAL_FACTS_MAX, INBOX_TAKE_MAX, VALUE_BYTES_MAX
from blackboard.runtime.agent import Agent
from blackboard.runtime.approvals import REQUESTS, Answer, Case, Fact, Request
from blackboard.runtime.context import Context, Reference
from blackboard.runtime.runner import Runner
from blackboard.runtime.state import Status
from blackboard.runtime.trial import Inputs, MemoryBoardPort, try_step
from blackboard.units import Key
from blackboard.wire.codec import encode_value

FACT = "public/0"


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
    assert (await try_step(asker)).stepped.rests
    asker.facts += 1
    with pytest.raises(InvalidRequest, match="facts"):
        await try_step(asker)


async def test_a_step_takes_so_many_letters_at_once() -> None:
    """Whatever it asks for."""
    letters = [("bob", n) for n in range(INBOX_TAKE_MAX + 1)]
    assert (await try_step(Reader("ada"), None, Inputs(inbox=letters))).written == {
        "public/taken": INBOX_TAKE_MAX
    }


async def test_facts_that_together_exceed_a_value_are_taken_in() -> None:
    """Their values are part of the decision, also when the step runs again."""
    port, values = MemoryBoardPort("ada"), {f"public/{n}": str(n) * 600_000 for n in range(2)}
    runs: list[Mapping[Key, object]] = []

    class Buyer(Agent[Nothing]):
        async def step(self, ctx: Context[Nothing]) -> None:
            runs.append((await ctx.approve("go on", facts=list(values))).facts)
            if len(runs) == 1:
                raise TimeoutError

    for key, value in values.items():
        port.seed("bob", Put(key, encode_value(value)))
    runner = Runner(Buyer("ada"), port)
    await runner.step()
    await approve(port)
    with pytest.raises(TimeoutError):
        await runner.step()
    assert (await runner.step()).receipt is not None
    assert runs == [values] * 2
    assert (await port.list("private/ada/~journal/**")).entries == ()


async def test_facts_that_a_decision_cannot_hold_are_not_asked_about() -> None:
    """Nobody approves what could not be taken in."""
    port = MemoryBoardPort("ada")
    port.seed("bob", Put(FACT, encode_value("x" * (VALUE_BYTES_MAX - 5))))
    entry = await port.entry(FACT)
    assert entry is not None
    found = {f"public/{n}": entry for n in range(APPROVAL_FACTS_MAX)}
    with pytest.raises(InvalidRequest, match="facts"):
        Case("ada", "ada", "go on", found, tuple(found)).facts_bytes()
    assert Case("ada", "ada", "go on", found, (FACT,)).facts_bytes() == VALUE_BYTES_MAX


async def test_what_was_never_kept_cannot_be_read() -> None:
    """And is not taken for None."""
    with pytest.raises(Corrupt):
        await try_step(Forgetful("ada"))


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
    port = MemoryBoardPort("ada")
    runner = Runner(Asker("ada"), port)
    port.seed("bob", Put("public/0", encode_value(1)))
    waiting = await runner.step()
    (decision, _) = waiting.patterns
    port.seed("bob", Put(decision, encode_value(written)))
    assert (await runner.step()).status is waiting.status


async def test_a_request_that_somebody_else_wrote_is_none() -> None:
    """It is made by the agent itself, over that."""
    port = MemoryBoardPort("ada")
    runner = Runner(Asker("ada"), port)
    waiting = await runner.step()
    key = waiting.patterns[0].replace("~decisions", "~approvals")
    request = Request(question="go on", facts=(Fact(key="public/0", revision=0, digest="x"),))
    port.seed("eve", Put(key, encode_value(request.model_dump(mode="json"))))
    answer = Answer(approved=True, request=port.log[-1].revision)
    port.seed("bob", Put(waiting.patterns[0], encode_value(answer.model_dump())))
    assert (await runner.step()).status is waiting.status
    entry = await port.entry(key)
    assert entry is not None
    assert entry.author == "ada"


class Undecided(Agent[Nothing]):
    """Asks, or waits for something else, and then does something else."""

    async def step(self, ctx: Context[Nothing]) -> None:
        """What the board says now."""
        if await ctx.peek("public/mode") == "ask":
            await ctx.approve("buy")
            ctx.put("public/bought", True)
        else:
            await ctx.wait("public/other")
            ctx.delete("public/other")


@pytest.mark.parametrize("is_answered", [False, True])
async def test_what_is_not_asked_any_more_is_withdrawn(is_answered: bool) -> None:
    """An answer to it does not count when a later step asks the same."""
    port = MemoryBoardPort("ada")
    runner = Runner(Undecided("ada"), port)

    async def step(mode: str) -> Status:
        port.seed("bob", Put("public/mode", encode_value(mode)))
        return (await runner.step()).status

    assert await step("ask") is Status.WAITING_FOR_APPROVAL
    if is_answered:
        await approve(port)
    assert await step("wait") is Status.WAITING
    assert (await port.list(f"{REQUESTS}/**")).entries == ()
    port.seed("bob", Put("public/other", encode_value(1)))
    assert await step("wait") is Status.RUNNING
    assert await step("ask") is Status.WAITING_FOR_APPROVAL
    await approve(port)
    assert await step("ask") is Status.RUNNING
    assert await port.entry("public/bought") is not None


class Changing(MemoryBoardPort):
    """A board on which the fact changes once right after it was read with an answer."""

    async def entries(self, keys: Sequence[Key]) -> Mapping[Key, Entry]:
        """The entries of `keys`, as they were."""
        found = await super().entries(keys)
        if FACT in found and any("~decisions" in key for key in found) and found[FACT].value == 1:
            self.seed("bob", Put(FACT, encode_value(2)))
        return found


async def approve(port: MemoryBoardPort) -> None:
    """Approve the first thing that was asked, as it stands."""
    [asked] = (await port.list(f"{REQUESTS}/**")).entries
    answer = Answer(approved=True, request=asked.mod_revision)
    port.seed("bob", Put(asked.key.replace(REQUESTS, DECISIONS), encode_value(answer.model_dump())))


async def asked_again(port: MemoryBoardPort) -> Request:
    """What is asked the second time."""
    [asked] = (await port.list(f"{REQUESTS}/**")).entries
    request = Request.model_validate(asked.value)
    assert request.asked == 2
    return request


async def test_a_fact_that_changes_while_the_answer_is_taken_in_asks_again() -> None:
    """The answer is recorded in a commit in which the fact is what was shown, or not at all."""
    port = Changing("ada")
    port.seed("bob", Put(FACT, encode_value(1)))
    runner = Runner(Asker("ada"), port)
    waiting = await runner.step()
    await approve(port)
    assert (await runner.step()).status is waiting.status
    [change] = (await asked_again(port)).changed
    assert (change.key, change.was, change.now) == (FACT, 1, 2)


class Hesitant(MemoryBoardPort):
    """A board on which the person rejects right after the approval was read."""

    async def entries(self, keys: Sequence[Key]) -> Mapping[Key, Entry]:
        """The entries of `keys`, as they were."""
        found = await super().entries(keys)
        for key in found:
            if key.startswith(DECISIONS) and found[key].value["approved"]:
                no = Answer(approved=False, request=found[key].value["request"])
                self.seed("bob", Put(key, encode_value(no.model_dump())))
        return found


async def test_an_answer_that_changes_while_it_is_taken_in_is_read_again() -> None:
    """What is recorded as approved is approved in that commit."""
    port = Hesitant("ada")
    port.seed("bob", Put(FACT, encode_value(1)))
    decided: list[bool] = []

    class Buyer(Asker):
        async def step(self, ctx: Context[Nothing]) -> None:
            decided.append(bool(await ctx.approve("go on", facts=[FACT])))

    runner = Runner(Buyer("ada"), port)
    await runner.step()
    await approve(port)
    await runner.step()
    assert decided == [False]


async def test_a_fact_that_is_too_large_to_be_shown_is_compared_all_the_same() -> None:
    """By its digest: a person may have looked at it elsewhere."""
    port = MemoryBoardPort("ada")
    port.seed("bob", Put(FACT, encode_value("a" * 5_000)))
    runner = Runner(Asker("ada"), port)
    waiting = await runner.step()
    await approve(port)
    port.seed("bob", Put(FACT, encode_value("b" * 5_000)))
    assert (await runner.step()).status is waiting.status
    assert [change.key for change in (await asked_again(port)).changed] == [FACT]
