"""What the journal promises: a call whose result is known is never made again."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.errors import CallFailed, CallInterrupted, LimitExceeded
from blackboard.limits import (
    CALL_INLINE_BYTES,
    LARGE_BYTES_MAX,
    LARGE_PART_BYTES,
    STEP_CALLS_MAX,
    VALUE_BYTES_MAX,
)
from blackboard.runtime.calls import CallOptions, Retry
from blackboard.runtime.context import Context
from blackboard.runtime.models import Prompt, ScriptedModel
from tests.conformance.acting import Notes, Tool, keys_below, notes_of, runner
from tests.conformance.team import PATIENCE_S

JOURNAL = "private/ada/~journal/**"


class Dead(Exception):
    """Stands for the death of a process in the middle of a step."""


class JournalRules:
    """Calls, recorded before the step goes on."""

    async def test_a_call_is_recorded_before_the_step_goes_on(self, ada: Board) -> None:
        tool = Tool()

        async def step(ctx: Context[Notes]) -> None:
            found = await ctx.tool(tool.look, "a")
            if len(tool.calls) == 1 and not ctx.state.seen and not died:
                died.append(True)
                raise Dead
            ctx.state.seen.append(found)

        died: list[bool] = []
        with pytest.raises(Dead):
            await runner(ada, step).step()
        [record] = [entry.value async for entry in ada.scan(JOURNAL)]
        assert (record["name"], record["arguments"]) == ("Tool.look", ["a"])
        assert (record["outcome"], record["result"]) == ("done", "a!")
        stepped = await runner(ada, step).step()
        assert ([call for call, _ in tool.calls], (await notes_of(ada)).seen) == (["a"], ["a!"])
        assert [call.name for call in stepped.calls] == ["Tool.look"]
        assert await keys_below(ada, JOURNAL) == []

    async def test_arguments_are_passed_on_by_name(self, ada: Board) -> None:
        seen: list[object] = []

        def price(company: str, *, currency: str = "USD", idempotency_key: str) -> str:
            seen.append((company, currency, bool(idempotency_key)))
            return f"{company} in {currency}"

        async def step(ctx: Context[Notes]) -> None:
            named = {"company": "ACME", "currency": "EUR"}
            ctx.state.seen = [
                await ctx.tool(price, **named, terms=CallOptions(name="price")),
                await ctx.tool(price, "ACME", currency="CHF", terms=CallOptions(name="price")),
                await ctx.tool(price, "ACME", terms=CallOptions(name="price")),
                await ctx.tool(price, company="ACME", terms=CallOptions(name="price")),
            ]
            if not died:
                died.append(True)
                raise Dead

        died: list[bool] = []
        with pytest.raises(Dead):
            await runner(ada, step).step()
        calls = [("ACME", "EUR", True), ("ACME", "CHF", True), *[("ACME", "USD", True)] * 2]
        assert seen == calls
        await runner(ada, step).step()
        assert seen == calls
        texts = ["ACME in EUR", "ACME in CHF", "ACME in USD", "ACME in USD"]
        assert (await notes_of(ada)).seen == texts

    async def test_calls_at_once_are_each_recorded(self, ada: Board) -> None:
        tool = Tool()
        died: list[bool] = []

        async def step(ctx: Context[Notes]) -> None:
            names = ["a", "b", "c"] if died else ["c", "b", "a"]
            found = await asyncio.gather(*(ctx.tool(tool.look, name) for name in names))
            if not died:
                died.append(True)
                raise Dead
            ctx.state.seen = found

        with pytest.raises(Dead):
            await runner(ada, step).step()
        assert len(await keys_below(ada, JOURNAL)) == 3
        stepped = await runner(ada, step).step()
        assert (len(tool.calls), (await notes_of(ada)).seen) == (3, ["a!", "b!", "c!"])
        assert stepped.diverged is None  # another order is not another way

    async def test_the_same_call_twice_is_two_calls(self, ada: Board) -> None:
        tool = Tool()

        async def step(ctx: Context[Notes]) -> None:
            ctx.state.seen = [await ctx.tool(tool.look, "a"), await ctx.tool(tool.look, "a")]

        await runner(ada, step).step()
        assert len(set(tool.keys)) == 2

    async def test_the_next_step_calls_again(self, ada: Board) -> None:
        tool = Tool()

        async def step(ctx: Context[Notes]) -> None:
            await ctx.tool(tool.look, "a")

        mine = runner(ada, step)
        for _ in range(2):
            assert (await mine.step()).receipt is not None
        assert len(set(tool.keys)) == 2

    async def test_a_conflict_calls_nothing_again(self, ada: Board, bob: Board) -> None:
        tool = Tool()

        async def step(ctx: Context[Notes]) -> None:
            price = await ctx.get("public/price", 0)
            ctx.state.seen.append(await ctx.tool(tool.look, "a"))
            ctx.put("public/offer", price)
            if not price:
                await bob.put("public/price", 5)

        stepped = await runner(ada, step).step()
        assert (stepped.attempts, len(tool.calls)) == (2, 1)
        assert (await notes_of(ada)).seen == ["a!"]

    async def test_a_different_call_is_made_and_reported(self, ada: Board) -> None:
        tool = Tool()
        ways = ["a", "b"]

        async def step(ctx: Context[Notes]) -> None:
            way = ways.pop(0)
            ctx.state.seen.append(await ctx.tool(tool.look, way))
            if ways:
                raise Dead

        with pytest.raises(Dead):
            await runner(ada, step).step()
        stepped = await runner(ada, step).step()
        assert stepped.diverged is not None
        assert (stepped.diverged.number, (await notes_of(ada)).seen) == (0, ["b!"])
        assert await keys_below(ada, JOURNAL) == []

    async def test_an_idempotency_key_names_one_call(self, ada: Board) -> None:
        tool = Tool(failures=[OSError("down")])
        terms = CallOptions(retry=Retry(attempts=2, first_pause_ms=0))

        async def step(ctx: Context[Notes]) -> None:
            await ctx.tool(tool.look, "a", terms=terms)
            await ctx.tool(tool.look, "b")

        await runner(ada, step).step()
        first, again, other = tool.keys
        assert first == again
        assert other != first

    # --- failures ---------------------------------------------------------------------------------

    async def test_a_failure_that_is_handled_is_recorded(self, ada: Board) -> None:
        tool = Tool(failures=[OSError("down")])
        died: list[bool] = []

        async def step(ctx: Context[Notes]) -> None:
            try:
                await ctx.tool(tool.look, "a")
            except CallFailed as failed:
                ctx.state.seen.append(failed.reason)
            if not died:
                died.append(True)
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await runner(ada, step).step()
        await runner(ada, step).step()
        assert (len(tool.calls), (await notes_of(ada)).seen) == (1, ["OSError: down"])

    async def test_an_unhandled_failure_is_tried_again(self, ada: Board) -> None:
        tool = Tool(failures=[OSError("down")])

        async def step(ctx: Context[Notes]) -> None:
            await ctx.tool(tool.look, "a")
            ctx.state.seen.append(await ctx.tool(tool.look, "b"))

        with pytest.raises(CallFailed) as failed:
            await runner(ada, step).step()
        assert (failed.value.name, failed.value.attempts) == ("Tool.look", 1)
        await runner(ada, step).step()
        assert [call for call, _ in tool.calls] == ["a", "a", "b"]

    async def test_attempts_are_counted_over_the_death_of_a_process(self, ada: Board) -> None:
        tool = Tool(failures=[OSError(str(n)) for n in range(9)])
        hasty = CallOptions(retry=Retry(attempts=3, first_pause_ms=0))
        patient = CallOptions(retry=Retry(attempts=3, first_pause_ms=60_000, pause_ms_max=60_000))

        async def with_terms(ctx: Context[Notes], terms: CallOptions) -> None:
            try:
                await ctx.tool(tool.look, "a", terms=terms)
            except CallFailed as failed:
                ctx.state.count = failed.attempts

        with anyio.fail_after(PATIENCE_S):
            dying = asyncio.create_task(runner(ada, lambda ctx: with_terms(ctx, patient)).step())
            async with ada.watch(JOURNAL, after=0) as watch:
                await anext(watch)  # the first failure is recorded, and a minute's pause begins
            dying.cancel()
            await asyncio.wait([dying])
            await runner(ada, lambda ctx: with_terms(ctx, hasty)).step()
        assert ((await notes_of(ada)).count, len(tool.calls)) == (3, 3)

    async def test_what_succeeded_beside_a_failure_is_recorded(self, ada: Board) -> None:
        slow = anyio.Event()
        called: list[str] = []

        async def fails() -> None:
            slow.set()
            raise OSError("down")

        async def succeeds() -> str:
            await slow.wait()
            called.append("slow")
            return "done"

        async def step(ctx: Context[Notes]) -> None:
            await asyncio.gather(ctx.tool(fails), ctx.tool(succeeds))

        for _ in range(2):
            with pytest.raises(CallFailed):
                await runner(ada, step).step()
        assert called == ["slow"]

    async def test_a_call_that_may_be_made_once_is_not_made_twice(self, ada: Board) -> None:
        begun = anyio.Event()
        calls: list[str] = []

        async def pay(amount: int, *, idempotency_key: str = "") -> int:
            calls.append(idempotency_key)
            begun.set()
            await asyncio.Event().wait()
            return amount

        async def step(ctx: Context[Notes]) -> None:
            try:
                await ctx.tool(pay, 7, terms=CallOptions(at_most_once=True, name="pay"))
            except CallInterrupted as interrupted:
                ctx.state.seen.append(interrupted.idempotency_key)

        with anyio.fail_after(PATIENCE_S):
            dying = asyncio.create_task(runner(ada, step).step())
            await begun.wait()
            dying.cancel()
            await asyncio.wait([dying])
            await runner(ada, step).step()
        assert len(calls) == 1
        assert (await notes_of(ada)).seen == calls

    # --- results ----------------------------------------------------------------------------------

    async def test_a_large_result_stands_beside_its_record(self, ada: Board) -> None:
        sizes = [CALL_INLINE_BYTES + 1, 10]
        called: list[int] = []
        died: list[bool] = []

        async def fetch(size: int) -> bytes:
            called.append(size)
            return b"x" * size

        async def step(ctx: Context[Notes]) -> None:
            ctx.state.seen = [
                str(len(await ctx.tool(fetch, size, terms=CallOptions(name="fetch"))))
                for size in sizes
            ]
            if not died:
                died.append(True)
                raise Dead

        with pytest.raises(Dead):
            await runner(ada, step).step()
        assert len(await keys_below(ada, "private/ada/~journal/*/result")) == 1
        await runner(ada, step).step()
        assert (called, (await notes_of(ada)).seen) == (sizes, [str(size) for size in sizes])
        assert await keys_below(ada, JOURNAL) == []

    async def test_a_result_larger_than_a_value_stands_in_parts(self, ada: Board) -> None:
        sizes = [VALUE_BYTES_MAX - 9, 5 * LARGE_PART_BYTES + 1]
        called: list[int] = []
        died: list[bool] = []

        async def fetch(size: int) -> bytes:
            called.append(size)
            return b"xyz" * (size // 3)

        async def step(ctx: Context[Notes]) -> None:
            found = [await ctx.tool(fetch, size, terms=CallOptions(name="fetch")) for size in sizes]
            ctx.state.seen = [str(len(each)) for each in found if each == b"xyz" * (len(each) // 3)]
            if not died:
                died.append(True)
                raise Dead

        with pytest.raises(Dead):
            await runner(ada, step).step()
        assert len(await keys_below(ada, "private/ada/~journal/*/result/*")) == 6
        await runner(ada, step).step()
        assert called == sizes
        assert (await notes_of(ada)).seen == [str(size // 3 * 3) for size in sizes]
        assert await keys_below(ada, JOURNAL) == []

    async def test_a_result_that_is_too_large_is_a_failure(self, ada: Board) -> None:
        called: list[int] = []

        async def fetch() -> bytes:
            called.append(1)
            return b"x" * (LARGE_BYTES_MAX + 1)

        async def step(ctx: Context[Notes]) -> None:
            terms = CallOptions(name="fetch", retry=Retry(attempts=3, first_pause_ms=0))
            try:
                await ctx.tool(fetch, terms=terms)
            except CallFailed as failed:
                ctx.state.seen = [failed.reason]

        await runner(ada, step).step()
        [reason] = (await notes_of(ada)).seen
        assert "LARGE_BYTES_MAX" in reason
        assert called == [1]

    async def test_results_are_what_their_annotation_says(self, ada: Board) -> None:
        @dataclass
        class Quote:
            price: int
            at: datetime

        def quote() -> Quote:
            return Quote(7, datetime(2026, 1, 2, tzinfo=UTC))

        # As of a function of a module; its annotations need no look at local names.
        quote.__annotations__["return"] = Quote
        died: list[bool] = []

        async def step(ctx: Context[Notes]) -> None:
            found = await ctx.tool(quote, terms=CallOptions(name="quote"))
            assert found == Quote(7, datetime(2026, 1, 2, tzinfo=UTC))
            if not died:
                died.append(True)
                raise Dead
            ctx.state.count = found.price

        with pytest.raises(Dead):
            await runner(ada, step).step()
        await runner(ada, step).step()
        assert (await notes_of(ada)).count == 7

    async def test_a_model_is_asked_once(self, ada: Board) -> None:
        model = ScriptedModel(lambda prompt: f"{prompt.messages[0].content}, indeed")
        died: list[bool] = []

        async def step(ctx: Context[Notes]) -> None:
            reply = await ctx.model(model, Prompt.of("so", temperature=0.5, seed=7))
            if not died:
                died.append(True)
                raise Dead
            ctx.state.seen = [reply.text, reply.version, str(reply.usage.tokens)]

        with pytest.raises(Dead):
            await runner(ada, step).step()
        [record] = [entry.value async for entry in ada.scan(JOURNAL)]
        assert (record["kind"], record["result"]["seed"]) == ("model", 7)
        await runner(ada, step).step()
        assert (len(model.prompts), (await notes_of(ada)).seen) == (
            1,
            ["so, indeed", "scripted", "3"],
        )

    # --- the team's cache -------------------------------------------------------------------------

    async def test_a_result_may_be_shared_by_the_team(self, ada: Board, bob: Board) -> None:
        tool = Tool()

        async def step(ctx: Context[Notes]) -> None:
            shared = CallOptions(shared_ms=60_000)
            ctx.state.seen = [await ctx.tool(tool.look, "a", terms=shared)]

        await runner(ada, step).step()
        stepped = await runner(bob, step).step()
        assert (len(tool.calls), (await notes_of(bob)).seen) == (1, ["a!"])
        assert [call.shared for call in stepped.calls] == [True]
        [cached] = [entry async for entry in ada.scan("public/~cache/*")]
        assert cached.expires_at_ms == cached.time_ms + 60_000
        await ada.delete(cached.key)
        await runner(bob, step).step()
        assert len(tool.calls) == 2

    @pytest.mark.parametrize("size", [VALUE_BYTES_MAX - 4_000, 5 * LARGE_PART_BYTES + 1])
    async def test_a_large_result_is_shared_in_parts(
        self, ada: Board, bob: Board, size: int
    ) -> None:
        calls: list[int] = []

        async def fetch() -> str:
            calls.append(size)
            return "x" * size

        async def step(ctx: Context[Notes]) -> None:
            found = await ctx.tool(fetch, terms=CallOptions(shared_ms=60_000))
            ctx.state.seen = [str(len(found)), found[:1]]

        await runner(ada, step).step()
        stepped = await runner(bob, step).step()
        assert (len(calls), (await notes_of(bob)).seen) == (1, [str(size), "x"])
        assert [call.shared for call in stepped.calls] == [True]
        [*_, part] = parts = [entry async for entry in ada.scan("public/~cache/**")]
        assert all(entry.expires_at_ms == entry.time_ms + 60_000 for entry in parts)
        # What is not whole, or not what was shared, is nobody's result.
        await ada.put(part.key, b"y" * len(part.value))
        await runner(bob, step).step()
        assert len(calls) == 2
        await ada.delete(part.key)
        await runner(ada, step).step()
        assert len(calls) == 3

    # --- limits -----------------------------------------------------------------------------------

    async def test_a_step_makes_so_many_calls(self, ada: Board) -> None:
        async def nothing() -> None: ...

        async def step(ctx: Context[Notes]) -> None:
            calls = STEP_CALLS_MAX + ctx.state.count
            await asyncio.gather(
                *(ctx.tool(nothing, terms=CallOptions(name=str(n))) for n in range(calls))
            )
            ctx.state.count += 1

        mine = runner(ada, step)
        assert len((await mine.step()).calls) == STEP_CALLS_MAX
        with pytest.raises(LimitExceeded) as refused:
            await mine.step()
        assert refused.value.limit == "STEP_CALLS_MAX"
