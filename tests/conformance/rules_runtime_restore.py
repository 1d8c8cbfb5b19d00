"""Agents, checkpoints and restores: what they know is in the cut, and comes back with it."""

import asyncio
import logging

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.core.checkpoints import RetentionPolicy
from blackboard.runtime.calls import CallOptions
from blackboard.runtime.context import Context, Reference
from blackboard.runtime.run import RunOptions, run_agent
from blackboard.runtime.state import Status
from tests.conformance.acting import Actor, Notes, Tool, notes_of, runner
from tests.conformance.team import PATIENCE_S, Team

ENOUGH = 5


class Paid:
    """Steps of two calls each, one of which returns something large."""

    def __init__(self) -> None:
        self._tool = Tool()
        self._reports = 0

    @property
    def calls(self) -> int:
        """How many were made."""
        return len(self._tool.calls) + self._reports

    async def step(self, ctx: Context[Notes]) -> None:
        """Make both, and remember what came of them."""
        found = await ctx.tool(self._tool.look, "a", terms=CallOptions(name="look"))
        text = await ctx.tool(self._report, "b", terms=CallOptions(name="report"))
        ctx.state.seen.append(f"{found} {text[:3]}")
        ctx.state.count += 1

    def _report(self, topic: str) -> str:
        self._reports += 1
        return f"{topic} {self._reports} " + "x" * 100_000


class AgentRestoreRules:
    """They are asked nothing that they have not told already, and go on from what came back."""

    async def test_an_agent_goes_on_in_place_from_what_came_back(
        self, team: Team, ada: Board, bob: Board, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A restore takes its leases, as was to be expected: the log has no warning of it."""
        counts: list[int] = []
        rests: list[int] = []
        rested = asyncio.Condition()

        async def step(ctx: Context[Notes]) -> None:
            if await ctx.get("public/stop"):
                ctx.done()
            elif ctx.state.count < ENOUGH:
                ctx.state.count += 1
                counts.append(ctx.state.count)
            else:
                rests.append(len(counts))
                async with rested:
                    rested.notify_all()

        async def times(number: int) -> None:
            async with rested:
                await rested.wait_for(lambda: len(set(rests)) == number)

        await run_agent(Actor("ada", step), ada, RunOptions(steps_max=2))
        then = (await ada.head()).revision
        operator = await team.operator()
        with anyio.fail_after(PATIENCE_S):
            running = asyncio.create_task(run_agent(Actor("ada", step), ada))
            await times(1)
            await operator.restore(then)
            await times(2)
            await bob.refresh()
            await bob.put("public/stop", True)
            stepped = await running
        # Those of the runtime: tests share a service, which may have its own to say.
        said = [found for found in caplog.records if found.name.startswith("blackboard.runtime")]
        assert [record for record in said if record.levelno > logging.INFO] == []
        assert stepped.status is Status.DONE
        assert counts == [1, 2, 3, 4, 5, 3, 4, 5]
        assert (await notes_of(ada)).count == ENOUGH

    async def test_a_step_under_way_does_not_survive_a_restore(
        self, team: Team, ada: Board
    ) -> None:
        begun, go_on = anyio.Event(), anyio.Event()

        async def step(ctx: Context[Notes]) -> None:
            seen.append(ctx.state.count)
            if ctx.state.count == 1 and not begun.is_set():
                begun.set()
                await go_on.wait()
            ctx.state.count += 1
            ctx.put("public/count", ctx.state.count)

        seen: list[int] = []
        mine, operator = runner(ada, step), await team.operator()
        await operator.put("public/other", 1)
        empty = (await ada.head()).revision
        await mine.step()
        with anyio.fail_after(PATIENCE_S):
            stepping = asyncio.create_task(mine.step())
            await begun.wait()
            await operator.restore(empty)
            go_on.set()
            await stepping
        assert seen == [0, 1, 0]
        assert ((await notes_of(ada)).count, await ada.get("public/count")) == (1, 1)

    async def test_a_checkpoint_waits_for_no_step(self, team: Team, ada: Board) -> None:
        begun, go_on = anyio.Event(), anyio.Event()
        tool = Tool()

        async def think() -> None:
            begun.set()
            await go_on.wait()

        async def step(ctx: Context[Notes]) -> None:
            ctx.state.seen.append(await ctx.tool(tool.look, "a"))
            await ctx.tool(think, terms=CallOptions(name="think"))
            ctx.done()

        operator = await team.operator()
        with anyio.fail_after(PATIENCE_S):
            running = asyncio.create_task(run_agent(Actor("ada", step), ada))
            await begun.wait()
            taken = await operator.checkpoint("middle", barrier_ms=10_000)
            go_on.set()
            await running
        assert taken.revision < (await ada.head()).revision
        assert (len(tool.calls), (await notes_of(ada)).seen) == (1, ["a!"])

    async def test_what_was_called_before_a_cut_is_known_after_its_restore(
        self, team: Team, ada: Board
    ) -> None:
        tool = Tool()
        died: list[bool] = []

        async def step(ctx: Context[Notes]) -> None:
            ctx.state.seen.append(await ctx.tool(tool.look, "a"))
            if not died:
                died.append(True)
                raise asyncio.CancelledError

        operator = await team.operator()
        mine = runner(ada, step)
        task = asyncio.create_task(mine.step())
        await asyncio.wait([task])
        cut = (await ada.head()).revision
        await mine.step()
        await operator.restore(cut)
        await ada.refresh()
        await runner(ada, step).step()
        assert (len(tool.calls), (await notes_of(ada)).seen) == (1, ["a!"])

    @pytest.mark.parametrize("keep_calls", [False, True])
    async def test_what_was_called_after_a_cut_is_paid_again_unless_it_is_kept(
        self, team: Team, ada: Board, bob: Board, *, keep_calls: bool
    ) -> None:
        """Also calls of a process that starts again; the preview lists them before."""
        paid = Paid()
        operator = await team.operator()
        await runner(ada, paid.step).step()
        cut = (await operator.checkpoint("cut")).revision
        for _ in range(2):
            await runner(ada, paid.step).step()
        future = (await notes_of(ada)).seen
        preview = await operator.preview_restore("cut")
        told = [(call.agent, call.kind, call.name) for call in preview.calls]
        assert told == [("ada", "tool", "look"), ("ada", "tool", "report")] * 2
        assert all(call.revision > cut and call.time_ms for call in preview.calls)
        assert (await bob.preview_restore("cut")).calls == []
        made = paid.calls
        await operator.restore("cut", keep_calls=keep_calls)
        await ada.refresh()
        for _ in range(2):
            await runner(ada, paid.step).step()
        again = paid.calls - made
        assert again == (0 if keep_calls else 4)
        assert ((await notes_of(ada)).seen == future) is keep_calls
        await runner(ada, paid.step).step()  # what was never called is
        assert paid.calls == made + again + 2

    @pytest.mark.parametrize("history_ms", [None, 0], ids=["checkpoints", "history"])
    async def test_kept_calls_go_with_their_history(
        self, team: Team, ada: Board, history_ms: int | None
    ) -> None:
        """A pruning of checkpoints leaves them; one of history takes them along, and they are made
        again."""
        paid = Paid()
        operator = await team.operator()
        await runner(ada, paid.step).step()
        await operator.checkpoint("cut")
        await runner(ada, paid.step).step()
        future = (await notes_of(ada)).seen
        await operator.restore("cut", keep_calls=True)
        await operator.prune(RetentionPolicy(last=0, days=0, history_ms=history_ms))
        await ada.refresh()
        assert len((await operator.preview_restore("cut")).calls) == 2
        made = paid.calls
        await runner(ada, paid.step).step()
        again = paid.calls - made
        assert again == (0 if history_ms is None else 2)
        assert ((await notes_of(ada)).seen == future) is (history_ms is None)

    async def test_another_restore_forgets_what_was_kept(self, team: Team, ada: Board) -> None:
        tool = Tool()

        async def step(ctx: Context[Notes]) -> None:
            ctx.state.seen.append(await ctx.tool(tool.look, "a"))

        operator = await team.operator()
        await operator.put("public/begun", 1)
        start = (await operator.checkpoint("start")).revision
        await runner(ada, step).step()
        await operator.restore(start, keep_calls=True)
        await operator.restore(start)
        await ada.refresh()
        assert await operator.get("system/kept_calls") is None
        await runner(ada, step).step()
        assert len(tool.calls) == 2

    async def test_large_values_that_were_dropped_come_back(self, team: Team, ada: Board) -> None:
        found: list[object] = []

        async def step(ctx: Context[Notes]) -> None:
            ctx.state.count += 1
            if not ctx.state.seen:
                ctx.state.seen = [ctx.keep("x" * 1_300_000, "a report").model_dump_json()]
                return
            reference = Reference.model_validate_json(ctx.state.seen[0])
            found.append(await ctx.load(reference))
            ctx.drop(reference)
            ctx.state.seen = []

        await runner(ada, step).step()
        then = (await ada.head()).revision
        await runner(ada, step).step()
        await (await team.operator()).restore(then)
        await ada.refresh()
        await runner(ada, step).step()
        assert found == ["x" * 1_300_000] * 2

    async def test_an_agent_begins_where_the_board_is_though_its_process_saw_more(
        self, team: Team, ada: Board
    ) -> None:
        async def step(ctx: Context[Notes]) -> None:
            ctx.state.count += 1

        await run_agent(Actor("ada", step), ada, RunOptions(steps_max=1))
        then = (await ada.head()).revision
        await run_agent(Actor("ada", step), ada, RunOptions(steps_max=1))
        operator = await team.operator()
        await operator.restore(then)
        with anyio.fail_after(PATIENCE_S):
            stepped = await run_agent(Actor("ada", step), ada, RunOptions(steps_max=1))
        assert (stepped.number, (await notes_of(ada)).count) == (2, 2)
