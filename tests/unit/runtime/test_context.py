"""What a step is given, beside the rules of the conformance suite: edges and limits."""

import pytest

from blackboard.core.commit import Append, Put
from blackboard.errors import Corrupt, LimitExceeded
from blackboard.limits import INBOX_TAKE_MAX, LARGE_PART_BYTES, OPERATIONS_MAX, STEP_PARTS_MAX
from blackboard.runtime.context import Context, Reference
from blackboard.runtime.runner import Runner
from blackboard.runtime.state import Status
from blackboard.runtime.trial import Inputs, MemoryBoardPort, try_step
from blackboard.wire.codec import encode_value
from tests.conformance.acting import Actor, Body, Notes


async def seen_by(body: Body, inputs: Inputs | None = None) -> list[str]:
    """What a step noted in its state."""
    return (await try_step(Actor("ada", body), None, inputs)).state.seen


async def test_entries_are_counted_with_those_that_the_step_puts() -> None:
    """Each once; others do not matter."""

    async def step(ctx: Context[Notes]) -> None:
        for key in ("public/a/1", "public/a/2", "public/a/2", "public/b/1", "public/a/1/x"):
            ctx.put(key, 1)
        ctx.state.seen = [str(await ctx.count("public/a/*")), str(await ctx.count("public/*"))]

    assert await seen_by(step, Inputs({"public/a/0": 1, "public/a/1": 1})) == ["3", "0"]


async def test_a_count_is_no_condition() -> None:
    """The step is taken, whatever becomes of what it counted."""
    port = MemoryBoardPort("ada")

    async def step(ctx: Context[Notes]) -> None:
        ctx.state.count += 1 + await ctx.count("public/*")
        port.seed("bob", Put(f"public/{ctx.run.attempt}", encode_value(1)))

    stepped = await Runner(Actor("ada", step), port).step()
    assert (stepped.attempts, stepped.patterns) == (1, ())


async def test_letters_are_taken_page_by_page() -> None:
    """INBOX_TAKE_MAX at most, however many are asked for; asked again, those that follow."""

    async def step(ctx: Context[Notes]) -> None:
        first, second = await ctx.inbox(limit=10_000), await ctx.inbox(limit=1)
        ctx.state.seen = [str(len(first)), *(letter.value for letter in second)]

    letters = [("bob", str(number)) for number in range(INBOX_TAKE_MAX + 2)]
    assert await seen_by(step, Inputs(inbox=letters)) == [str(INBOX_TAKE_MAX), str(INBOX_TAKE_MAX)]


@pytest.mark.parametrize("read", [0, OPERATIONS_MAX - 10])
async def test_letters_are_taken_while_the_commit_has_room(read: int) -> None:
    """An inbox that is emptied in a loop is emptied by several steps, each with its effects."""

    async def step(ctx: Context[Notes]) -> None:
        for number in range(read):
            await ctx.get(f"public/{number}")
        while letters := await ctx.inbox():
            for letter in letters:
                ctx.put(f"public/letters/{letter.value}", 1)
                ctx.state.count += 1

    port = MemoryBoardPort("ada")
    for number in range(OPERATIONS_MAX + 1):
        port.seed("bob", Append("inbox/ada/messages", encode_value(number)))
    acting, taken = Runner(Actor("ada", step), port), 0
    while not (await acting.step()).idle:
        now = (await acting.hydrate())[0].count
        assert now > taken
        taken = now
        if read:
            break
    assert read or (await port.list("inbox/ada/messages/*")).entries == ()


async def test_what_a_listing_covers_leaves_room_for_letters() -> None:
    """It is one condition, however many entries it has."""
    entries = {f"public/{number}": 1 for number in range(OPERATIONS_MAX)}

    async def step(ctx: Context[Notes]) -> None:
        await ctx.list("public/**")
        ctx.state.seen = [str(len(await ctx.inbox()))]

    letters = [("bob", str(number)) for number in range(INBOX_TAKE_MAX)]
    assert await seen_by(step, Inputs(entries, letters)) == [str(INBOX_TAKE_MAX)]


@pytest.mark.parametrize("pattern", ["public/**", "public/*/ada"])
async def test_a_wait_does_not_end_by_what_the_runtime_writes(pattern: str) -> None:
    """An agent's own presence is written after each of its commits."""
    port = MemoryBoardPort("ada")
    port.seed("ada", Put("public/~agents/ada", encode_value("waiting")))

    async def step(ctx: Context[Notes]) -> None:
        found = await ctx.wait(pattern)
        ctx.state.seen = [found.key if found else ""]

    acting = Runner(Actor("ada", step), port)
    assert (await acting.step()).status is Status.WAITING
    port.seed("bob", Put("public/plan/ada", encode_value(1)))
    await acting.step()
    assert (await acting.hydrate())[0].seen == ["public/plan/ada"]


async def test_a_wait_for_what_the_runtime_writes_names_it() -> None:
    """Then it ends by that."""
    key = "public/~agents/bob"
    seen = Inputs({key: "idle"})

    async def step(ctx: Context[Notes]) -> None:
        found = await ctx.wait("public/~agents/*")
        ctx.state.seen = [found.key if found else ""]

    assert await seen_by(step, seen) == [key]


async def test_a_step_keeps_so_much() -> None:
    """STEP_PARTS_MAX; what it calls for counts, too."""

    async def step(ctx: Context[Notes]) -> None:
        for _ in range(STEP_PARTS_MAX // 64):
            ctx.keep(b"x" * (64 * LARGE_PART_BYTES - 5))
        with pytest.raises(LimitExceeded) as refused:
            ctx.keep(b"y" * (3 * LARGE_PART_BYTES))
        ctx.state.seen = [refused.value.limit]
        ctx.keeping.kept.clear()

    assert await seen_by(step) == ["STEP_PARTS_MAX"]


@pytest.mark.parametrize("size_bytes", [3, 2_000_000])
async def test_a_reference_to_what_is_not_there_is_corrupt(size_bytes: int) -> None:
    """In one entry or in parts."""

    async def step(ctx: Context[Notes]) -> None:
        await ctx.load(Reference(digest="0" * 64, size_bytes=size_bytes))

    with pytest.raises(Corrupt) as found:
        await try_step(Actor("ada", step))
    assert found.value.what == f"private/ada/~kept/{'0' * 64}"


async def test_an_outcome_and_a_note_are_recorded() -> None:
    """In the stored state, and in the log."""
    port = MemoryBoardPort("ada")

    async def step(ctx: Context[Notes]) -> None:
        assert (ctx.agent, ctx.refused, ctx.run.number) == ("ada", None, 1)
        ctx.note("that was it")
        ctx.done("well")

    stepped = await Runner(Actor("ada", step), port).step()
    assert (stepped.outcome, [entry.note for entry in port.log]) == ("well", ["that was it"])
