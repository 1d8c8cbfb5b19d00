"""Agents on a frozen board: they wait, lose nothing, and pay for nothing twice."""

import asyncio

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.errors import BoardFrozen
from blackboard.runtime.context import Context
from blackboard.runtime.run import RunOptions, run_agent
from blackboard.runtime.state import Status
from blackboard.runtime.supervisor import AgentExit, Supervisor
from blackboard.runtime.team import run_team
from tests.conformance.acting import Actor, Notes, Tool, notes_of
from tests.conformance.team import PATIENCE_S, RENEWED_MS, Team, renewed_often
from tests.waiting import wait_until


class AgentFreezeRules:
    """To be refused by a frozen board is no crash."""

    @pytest.fixture
    async def admin(self, team: Team) -> Client:
        """The client of somebody who may freeze."""
        return await team.client(access.operator())

    @renewed_often
    @pytest.mark.parametrize("when", ["before the call", "after the call"])
    async def test_a_step_goes_on_after_the_thaw_and_calls_once(
        self,
        team: Team,
        admin: Client,
        ada: Board,
        when: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Frozen in the middle of a step: its next commit waits, while its lease is kept."""
        begun, go_on = anyio.Event(), anyio.Event()
        tool, runs = Tool(), []

        async def step(ctx: Context[Notes]) -> None:
            runs.append(ctx.state.count)
            if when == "after the call":
                ctx.state.seen.append(await ctx.tool(tool.look, "a"))
            begun.set()
            await go_on.wait()
            if when == "before the call":
                ctx.state.seen.append(await ctx.tool(tool.look, "a"))
            ctx.put("public/seen", ctx.state.seen)
            ctx.done()

        stay = RunOptions(ttl_ms=RENEWED_MS)
        life = asyncio.create_task(run_agent(Actor("ada", step), ada, stay))
        with anyio.fail_after(PATIENCE_S):
            await begun.wait()
            freeze = await admin.freeze(team.name, note="look first")
            go_on.set()

            async def waits() -> bool:
                return any("waits on board" in record.message for record in caplog.records)

            await wait_until(waits)
            [lease] = await ada.leases("private/ada/**")

            async def renewed() -> bool:
                return (await ada.leases("private/ada/**"))[0].until_ms > lease.until_ms

            await wait_until(renewed)
            assert (await ada.head()).revision == freeze.revision
            assert not life.done()
            await admin.thaw(team.name)
            stepped = await life
        assert stepped.status is Status.DONE
        assert (runs, len(tool.calls)) == ([0], 1)
        assert (await notes_of(ada)).seen == await ada.get("public/seen") == ["a!"]

    async def test_a_life_counts_no_crash(self, team: Team, admin: Client, ada: Board) -> None:
        begun, go_on = anyio.Event(), anyio.Event()

        async def step(ctx: Context[Notes]) -> None:
            begun.set()
            await go_on.wait()
            ctx.done("well")

        life = asyncio.create_task(Supervisor(Actor("ada", step), ada).run())
        with anyio.fail_after(PATIENCE_S):
            await begun.wait()
            await admin.freeze(team.name)
            go_on.set()
            with pytest.raises(BoardFrozen):
                await ada.put("public/a", 1)
            await admin.thaw(team.name)
            assert await life == AgentExit("ada", "done", "well")

    async def test_a_team_that_begins_on_a_frozen_board_waits(
        self, team: Team, admin: Client, ada: Board, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def step(ctx: Context[Notes]) -> None:
            ctx.done("well")

        await ada.put("public/a", 1)
        freeze = await admin.freeze(team.name)
        running = asyncio.create_task(run_team(await team.operator(), [Actor("ada", step)]))

        async def waits() -> bool:
            return any("waits on board" in record.message for record in caplog.records)

        with anyio.fail_after(PATIENCE_S):
            await wait_until(waits)
            assert (await ada.head()).revision == freeze.revision
            await admin.thaw(team.name)
            assert await running == {"ada": AgentExit("ada", "done", "well")}

    async def test_an_agent_that_waits_for_its_identity_can_be_stopped(
        self, team: Team, admin: Client, ada: Board, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def step(ctx: Context[Notes]) -> None:
            raise AssertionError("it is not attached")

        await ada.put("public/a", 1)
        await admin.freeze(team.name)
        life = Supervisor(Actor("ada", step), ada)
        running = asyncio.create_task(life.run())

        async def waits() -> bool:
            return any("waits on board" in record.message for record in caplog.records)

        with anyio.fail_after(PATIENCE_S):
            await wait_until(waits)
            life.stop()
            assert await running == AgentExit("ada", "stopped")

    async def test_a_restore_of_a_frozen_board_lets_the_agent_go_on_from_it(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        """The whole incident: freeze, restore, thaw."""
        operator = await team.operator()
        begun, go_on = anyio.Event(), anyio.Event()
        counts: list[int] = []

        async def step(ctx: Context[Notes]) -> None:
            counts.append(ctx.state.count)
            if ctx.state.count == 2:
                if len(counts) > 3:
                    ctx.done()
                    return
                begun.set()
                await go_on.wait()
            ctx.state.count += 1
            ctx.put("public/count", ctx.state.count)

        await run_agent(Actor("ada", step), ada, RunOptions(steps_max=1))
        then = (await ada.head()).revision
        with anyio.fail_after(PATIENCE_S):
            running = asyncio.create_task(run_agent(Actor("ada", step), ada))
            await begun.wait()
            await admin.freeze(team.name)
            go_on.set()
            await operator.restore(then)
            assert await ada.get("public/count") == 1
            await admin.thaw(team.name)
            stepped = await running
        assert stepped.status is Status.DONE
        assert counts == [0, 1, 2, 1, 2]
