"""What the runtime promises an agent about its steps, on every engine and link."""

import asyncio
from contextvars import Context

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.views import Change
from blackboard.errors import (
    AccessDenied,
    Conflict,
    Fenced,
    InvalidState,
    LeaseHeld,
    LeaseLost,
)
from blackboard.limits import STEP_ATTEMPTS_MAX
from blackboard.runtime.context import Context as Ctx, Reference
from blackboard.runtime.run import RunOptions, run_agent
from blackboard.runtime.state import Status, declared_key, state_key
from tests.conformance.acting import Actor, Notes, keys_below, notes_of, runner
from tests.conformance.team import PATIENCE_S


async def count(ctx: Ctx[Notes]) -> None:
    """A step that only counts."""
    ctx.state.count += 1


class AgentStepRules:
    """One commit per step, on what the step read."""

    async def test_a_step_of_an_agent_is_one_commit(self, ada: Board, bob: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            ctx.state.count += 1
            ctx.put("public/count", ctx.state.count)
            ctx.append("public/log", "counted")
            ctx.send("bob", {"see": "public/count"})
            ctx.note("counting")

        stepped = await runner(ada, step).step()
        [revised] = await ada.log()
        assert stepped.receipt is not None
        assert (stepped.receipt.revision, stepped.number) == (1, 1)
        assert (revised.author, revised.note) == ("ada", "counting")
        assert {change.key for change in revised.changes} == {
            "public/count",
            "public/log/0000000000",
            state_key("ada"),
            declared_key("ada"),
        }
        assert await bob.get("inbox/bob/messages/0000000000") == {"see": "public/count"}

    async def test_a_process_that_begins_goes_on_where_the_last_one_stopped(
        self, ada: Board
    ) -> None:
        for process in range(1, 4):
            stepped = await runner(ada, count).step()
            assert (stepped.number, (await notes_of(ada)).count) == (process, process)

    async def test_a_step_that_changes_nothing_commits_nothing(self, ada: Board) -> None:
        async def look(ctx: Ctx[Notes]) -> None:
            await ctx.get("public/a")

        mine = runner(ada, look)
        await mine.step()  # the first step writes the first state
        head = (await ada.head()).revision
        stepped = await mine.step()
        assert (stepped.receipt, stepped.idle, stepped.rests) == (None, True, True)
        assert stepped.patterns == ("public/a",)
        assert (await ada.head()).revision == head

    async def test_presences_do_not_disturb_a_step_that_lists_everything(
        self, ada: Board, bob: Board
    ) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            await ctx.list("public/**")
            await me.report("busy", str(ctx.state.count))
            ctx.state.count += 1

        async with bob.attach() as me:
            mine = runner(ada, step)
            await me.report("waiting")
            stepped = await mine.step()
        assert (stepped.attempts, stepped.patterns) == (1, ("public/**",))

    async def test_what_a_step_calls_does_not_disturb_its_own_listing(self, ada: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            await ctx.list("private/ada/**")
            ctx.state.count += await ctx.tool(len, "four")

        await ada.put("private/ada/notes", "mine")
        stepped = await runner(ada, step).step()
        assert (stepped.attempts, (await notes_of(ada)).count) == (1, 4)

    async def test_a_step_that_raises_commits_nothing(self, ada: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            ctx.state.count = 7
            ctx.put("public/a", 1)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await runner(ada, step).step()
        assert (await ada.head()).revision == 0

    async def test_a_step_runs_again_on_fresh_state(self, ada: Board, bob: Board) -> None:
        await bob.put("public/price", 1200)
        told: list[object] = []

        async def step(ctx: Ctx[Notes]) -> None:
            price = await ctx.get("public/price")
            refused = ctx.refused
            told.append(refused.current if isinstance(refused, Conflict) else refused)
            ctx.state.count += 1
            ctx.put("public/offer", price)
            if price == 1200:
                await bob.put("public/price", 1500)

        stepped = await runner(ada, step).step()
        assert (stepped.attempts, told) == (2, [None, 1500])
        assert (await ada.get("public/offer"), (await notes_of(ada)).count) == (1500, 1)

    async def test_a_step_that_never_fits_is_given_up(self, ada: Board, bob: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            ctx.put("public/offer", await ctx.get("public/price", 0))
            await bob.increment("public/price")

        with pytest.raises(Conflict):
            await runner(ada, step).step()
        assert await bob.get("public/price") == STEP_ATTEMPTS_MAX
        assert await ada.get("public/offer") is None

    async def test_a_refusal_is_read_by_the_agent(self, ada: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            if isinstance(ctx.refused, AccessDenied):
                ctx.state.seen.append(ctx.refused.key)
            else:
                ctx.put("private/bob/notes", 1)

        stepped = await runner(ada, step).step()
        assert stepped.attempts == 2
        assert (await notes_of(ada)).seen == ["private/bob/notes"]

    async def test_a_refusal_that_nothing_is_done_about_is_raised(self, ada: Board) -> None:
        runs: list[int] = []

        async def step(ctx: Ctx[Notes]) -> None:
            runs.append(ctx.run.attempt)
            ctx.put("private/bob/notes", 1)

        mine = runner(ada, step)
        for _ in range(2):
            with pytest.raises(AccessDenied):
                await mine.step()
        assert (runs, (await ada.head()).revision) == ([1, 2, 1, 2], 0)

    async def test_a_step_that_was_refused_leaves_nothing_in_memory(self, ada: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            ctx.state.count += 1
            if allowed:
                return
            ctx.put("private/bob/notes", 1)

        allowed: list[bool] = []
        mine = runner(ada, step)
        with pytest.raises(AccessDenied):
            await mine.step()
        allowed.append(True)
        assert ((await mine.step()).number, (await notes_of(ada)).count) == (1, 1)

    async def test_two_processes_of_one_agent_take_turns(self, ada: Board) -> None:
        one, other = runner(ada, count), runner(ada, count)
        for mine in (one, other, one, one, other):
            await mine.step()
        assert (await notes_of(ada)).count == 5

    async def test_a_state_that_its_model_refuses_is_not_written(self, ada: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            ctx.state.count = -1
            ctx.put("public/a", 1)

        with pytest.raises(InvalidState) as refused:
            await runner(ada, step).step()
        assert "count" in refused.value.reason
        assert (await ada.head()).revision == 0

    async def test_an_agent_that_is_done_takes_no_step(self, ada: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            ctx.state.count += 1
            ctx.done("sold")

        for _ in range(2):
            stepped = await runner(ada, step).step()
            assert (stepped.status, stepped.outcome) == (Status.DONE, "sold")
        assert (await notes_of(ada)).count == 1

    async def test_what_an_agent_declares_is_written_when_it_changes(self, ada: Board) -> None:
        agent = Actor("ada", count)
        for _ in range(2):
            await runner(ada, count).step()
        [declared] = [e async for e in ada.scan("public/~declared/*")]
        assert (declared.mod_revision, declared.value) == (1, agent.declared())

    async def test_letters_are_taken_by_one_step(self, ada: Board, bob: Board) -> None:
        for text in ("one", "two"):
            await bob.append("inbox/ada/messages", text)

        async def step(ctx: Ctx[Notes]) -> None:
            letters = [*await ctx.inbox(1), *await ctx.inbox(5)]
            ctx.state.seen += [f"{letter.sender}: {letter.value}" for letter in letters]
            if ctx.run.number == 1:
                await bob.append("inbox/ada/messages", "three")  # disturbs nobody

        assert (await runner(ada, step).step()).attempts == 1
        assert (await notes_of(ada)).seen == ["bob: one", "bob: two"]
        await runner(ada, step).step()
        assert (await notes_of(ada)).seen[2:] == ["bob: three"]
        assert await keys_below(ada, "inbox/ada/**") == []

    async def test_a_large_value_is_kept_beside_the_state(self, ada: Board) -> None:
        text = "x" * 200_000

        async def keep(ctx: Ctx[Notes]) -> None:
            reference = ctx.keep(text, "a long report")
            ctx.state.seen = [reference.model_dump_json()]

        await runner(ada, keep).step()
        state = await ada.entry(state_key("ada"))
        assert state is not None
        assert len(str(state.value)) < 1_000
        assert [len(e.value) async for e in ada.scan("private/ada/~kept/*")] == [len(text)]

    async def test_a_value_larger_than_an_entry_is_kept_in_parts(self, ada: Board) -> None:
        report = {"pages": ["x" * 100_000] * 25}
        found: list[object] = []

        async def step(ctx: Ctx[Notes]) -> None:
            kept = [Reference.model_validate_json(text) for text in ctx.state.seen]
            ctx.state.count += 1
            match ctx.state.count:
                case 1 | 2:
                    reference = ctx.keep(report, "a long report")
                    assert await ctx.load(reference) == report
                    ctx.state.seen = [reference.model_dump_json()]
                case 3:
                    found.append(await ctx.load(kept[0]))
                case 4:
                    ctx.drop(kept[0])

        for _ in range(3):  # a process each
            await runner(ada, step).step()
            entries = [entry async for entry in ada.scan("private/ada/~kept/*/*")]
            assert len(entries) == 5
            assert {entry.mod_revision for entry in entries} <= {1, 2}, "what is there stays"
            assert await keys_below(ada, "private/ada/~journal/**") == []
        assert found == [report]
        await runner(ada, step).step()
        assert await keys_below(ada, "private/ada/~kept/**") == []

    async def test_parts_of_a_step_that_ended_otherwise_are_removed(
        self, ada: Board, bob: Board
    ) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            await ctx.get("public/price")
            ctx.state.count += 1
            if ctx.refused is None:
                ctx.keep("x" * 1_200_000)
                await bob.put("public/price", 1)

        stepped = await runner(ada, step).step()
        assert (stepped.attempts, (await notes_of(ada)).count) == (2, 1)
        assert any(change.key.startswith("private/ada/~kept/") for change in await changes(ada))
        assert await keys_below(ada, "private/ada/~kept/**") == []
        assert await keys_below(ada, "private/ada/~journal/**") == []

    async def test_what_was_dropped_and_kept_again_stays(self, ada: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            ctx.state.count += 1
            reference = ctx.keep("x" * 1_200_000)
            if ctx.state.count > 1:
                ctx.drop(reference)
                ctx.keep("x" * 1_200_000)
            assert len(await ctx.load(reference)) == 1_200_000

        mine = runner(ada, step)
        for _ in range(2):
            await mine.step()
            assert len(await keys_below(ada, "private/ada/~kept/**")) == 3


async def changes(board: Board) -> list[Change]:
    """All that the log tells."""
    return [change for revised in await board.log() for change in revised.changes]


class AgentLifeRules:
    """Attached, at rest, awake, taken over."""

    async def test_an_agent_sleeps_until_what_it_read_changes(self, ada: Board, bob: Board) -> None:
        rested = anyio.Event()

        async def step(ctx: Ctx[Notes]) -> None:
            price = await ctx.get("public/price")
            if price is None:
                rested.set()
                return
            ctx.state.count = price
            ctx.done()

        with anyio.fail_after(PATIENCE_S):
            running = asyncio.create_task(run_agent(Actor("ada", step), ada))
            await rested.wait()
            await bob.put("public/price", 9)
            stepped = await running
        assert (stepped.status, (await notes_of(ada)).count) == (Status.DONE, 9)
        assert await ada.agents() == ()

    async def test_an_agent_at_rest_is_woken_by_a_letter(self, ada: Board, bob: Board) -> None:
        looked = anyio.Event()

        async def step(ctx: Ctx[Notes]) -> None:
            if letters := await ctx.inbox():
                ctx.state.seen = [letter.value for letter in letters]
                ctx.done()
            looked.set()

        with anyio.fail_after(PATIENCE_S):
            running = asyncio.create_task(run_agent(Actor("ada", step), ada))
            await looked.wait()
            await bob.append("inbox/ada/messages", "wake up")
            await running
        assert (await notes_of(ada)).seen == ["wake up"]

    async def test_an_agent_waits_for_an_entry(self, ada: Board, bob: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            found = await ctx.wait("public/offers/*")
            assert found is not None
            ctx.state.seen.append(found.key)
            ctx.done()

        stepped = await run_agent(Actor("ada", step), ada, RunOptions(leaves=True))
        assert (stepped.status, stepped.patterns) == (Status.WAITING, ("public/offers/*",))
        head = (await ada.head()).revision
        await runner(ada, step).step()
        assert (await ada.head()).revision == head  # it is said already
        await bob.put("public/offers/b", 1)
        stepped = await run_agent(Actor("ada", step), ada, RunOptions(leaves=True))
        assert (stepped.status, (await notes_of(ada)).seen) == (Status.DONE, ["public/offers/b"])

    async def test_waiting_ends_after_its_time(self, ada: Board) -> None:
        async def step(ctx: Ctx[Notes]) -> None:
            found = await ctx.wait("public/offers/*", timeout_ms=50)
            ctx.state.seen.append(str(found))
            ctx.done()

        with anyio.fail_after(PATIENCE_S):
            stepped = await run_agent(Actor("ada", step), ada)
        assert (stepped.status, (await notes_of(ada)).seen) == (Status.DONE, ["None"])
        assert await keys_below(ada, "private/ada/~journal/**") == []

    async def test_an_agent_stops_after_the_step_in_which_it_is_asked_to(self, ada: Board) -> None:
        stop = asyncio.Event()

        async def step(ctx: Ctx[Notes]) -> None:
            ctx.state.count += 1
            if ctx.state.count == 3:
                stop.set()

        await run_agent(Actor("ada", step), ada, RunOptions(stop=stop))
        assert (await notes_of(ada)).count == 3
        assert await ada.leases("private/ada/**") == ()

    async def test_an_agent_at_rest_stops_when_asked_to(self, ada: Board) -> None:
        stop, looked = asyncio.Event(), anyio.Event()

        async def look(ctx: Ctx[Notes]) -> None:
            if ctx.run.number == 2:
                looked.set()

        with anyio.fail_after(PATIENCE_S):
            running = asyncio.create_task(run_agent(Actor("ada", look), ada, RunOptions(stop=stop)))
            await looked.wait()
            stop.set()
            assert (await running).idle

    async def test_an_agent_takes_so_many_steps(self, ada: Board) -> None:
        stepped = await run_agent(Actor("ada", count), ada, RunOptions(steps_max=4))
        assert (stepped.number, (await notes_of(ada)).count) == (4, 4)

    async def test_an_agent_that_was_taken_over_stops(self, ada: Board) -> None:
        begun, go_on = anyio.Event(), anyio.Event()

        async def slow(ctx: Ctx[Notes]) -> None:
            begun.set()
            await go_on.wait()
            ctx.state.count = 1_000

        with anyio.fail_after(PATIENCE_S):
            old = asyncio.create_task(run_agent(Actor("ada", slow), ada))
            await begun.wait()
            stay = RunOptions(if_taken="take_over", steps_max=2)
            await asyncio.create_task(run_agent(Actor("ada", count), ada, stay))
            go_on.set()
            with pytest.raises((LeaseLost, Fenced)):
                await old
        assert (await notes_of(ada)).count == 2

    async def test_an_agent_that_runs_elsewhere_is_not_started(self, ada: Board) -> None:
        async with ada.attach():
            start = run_agent(Actor("ada", count), ada, RunOptions(if_taken="refuse"))
            with pytest.raises(LeaseHeld):
                await asyncio.create_task(start, context=Context())
