"""Restore: all of an earlier moment comes back at once, and nothing that was abandoned gets in."""
# ruff: noqa: PT012 - a step is a block, and it is the end of the block that is refused

import asyncio
import os
import random
import secrets
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.step import Step
from blackboard.client.views import Entry
from blackboard.core import access
from blackboard.core.checkpoints import BranchRequest, CheckpointRequest, RestoreRequest
from blackboard.core.commit import Grant, Release
from blackboard.errors import (
    BlackboardError,
    InvalidRequest,
    LeaseHeld,
    LeaseLost,
    LimitExceeded,
    Resync,
    StaleEpoch,
)
from blackboard.limits import RESTORE_CHANGES_MAX, RESYNC_BYTES, VALUE_BYTES_MAX
from tests.conformance.team import PATIENCE_S, RENEWED_MS, Team, renewed_often, take

ROUNDS = int(os.environ.get("BLACKBOARD_TEST_RESTORES") or 12)
"""Checkpoints that are restored one after the other; 1000 in the long form."""


async def content(board: Board, at: int | str | None = None) -> dict[str, object]:
    """What the board holds, but for the records of the service."""
    found: list[Entry] = [entry async for entry in board.scan("**", at=at)]
    return {e.key: (e.value, e.expires_at_ms) for e in found if not e.key.startswith("system/")}


async def still_works(board: Board) -> None:
    """What a program does after StaleEpoch."""
    with pytest.raises(StaleEpoch):
        await board.put("public/next", 1)
    await board.refresh()
    await board.put("public/next", 1)


async def put_next(step: Step) -> None:
    """A step that can always be taken."""
    step.put("public/next", 1)


async def put_for_ada(board: Board) -> None:
    """Take that step in the name of ada."""
    async with board.step("ada") as step:
        await put_next(step)


async def restored_by_others(team: Team) -> None:
    """Let somebody else restore the board, to when it was empty."""
    await (await team.client(access.operator())).board(team.name).restore(0)


class RestoreRules:
    """What a restore does, and to whom."""

    async def test_everything_comes_back_at_once(self, team: Team, ada: Board, bob: Board) -> None:
        await ada.put("public/plan", "first")
        await ada.put("public/gone", 1)
        await ada.put("private/ada/draft", "mine")
        await bob.append("inbox/ada/messages", "hello")
        board = await team.operator()
        await board.checkpoint("plan")
        was = await content(board)
        await ada.put("public/plan", "second")
        await ada.delete("public/gone")
        await ada.put("public/new", 1)
        await ada.put("private/ada/draft", "yours")
        await ada.delete_prefix("inbox/ada")
        head = (await board.head()).revision
        restored = await board.restore("plan", note="a decimal point")
        assert await content(board) == was
        assert (restored.from_revision, restored.revision) == (5, head + 2)
        assert (restored.put_back, restored.removed) == (4, 1)
        assert (restored.epoch.number, restored.epoch.cause) == (2, "restore")
        assert (await board.head()).epoch == restored.epoch

    async def test_why_walks_back_through_it(self, team: Team, ada: Board) -> None:
        """To what was put back, and on to its grounds; those that may not be read are left out."""
        board = await team.operator()
        async with ada.step() as step:
            step.put("private/ada/figure", 40)
        async with ada.step() as step:
            figure = await step.get("private/ada/figure")
            step.put("public/plan", figure)
        await ada.put("public/plan", 41)
        restored = await board.restore(2)
        causes = await board.why("public/plan")
        assert [(cause.key, cause.revision, cause.author) for cause in causes] == [
            ("public/plan", restored.revision, "~system"),
            ("public/plan", 2, "ada"),
            ("private/ada/figure", 1, "ada"),
        ]
        bob = await team.board("bob")
        assert [cause.revision for cause in await bob.why("public/plan")] == [restored.revision, 2]

    async def test_it_is_one_revision_with_exactly_the_difference(
        self, team: Team, ada: Board
    ) -> None:
        board = await team.operator()
        await ada.put("public/plan", 1)
        await ada.put("public/same", 1)
        await board.checkpoint("plan")
        await ada.put("public/plan", 2)
        await ada.put("public/new", 2)
        await ada.put("public/same", 2)
        await ada.put("public/same", 1)
        async with ada.watch("public/**", after=3) as watch:
            restored = await board.restore("plan")
            seen = await take(watch, 5)
        assert seen[-1].revision == restored.revision
        assert seen[-1].epoch == restored.epoch
        changes = {change.key: (change.kind, change.value) for change in seen[-1].changes}
        assert changes == {"public/plan": ("put", 1), "public/new": ("delete", None)}

    async def test_the_abandoned_future_stays_and_can_come_back(
        self, team: Team, ada: Board
    ) -> None:
        board = await team.operator()
        await ada.put("public/plan", "first")
        await board.checkpoint("plan")
        await ada.put("public/plan", "second")
        restored = await board.restore("plan")
        assert await board.get("public/plan", at=restored.before) == "second"
        assert [v.value for v in await board.history("public/plan")] == ["first", "second", "first"]
        assert (await board.show(restored.before)).checkpoint.kind == "before-restore"
        again = await board.restore(restored.before)
        assert await board.get("public/plan") == "second"
        assert again.epoch.number == 3
        assert (await board.verify()).ok

    async def test_moments_of_all_kinds_are_restored(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        first = await ada.put("public/n", 1)
        for number in range(2, 5):
            await ada.put("public/n", number)
        await board.rewind(to=3)
        assert await board.get("public/n") == 3
        await board.rewind(before=3)
        assert await board.get("public/n") == 2
        at = datetime.fromtimestamp(first.time_ms / 1000, UTC)
        then = await board.get("public/n", at=at)
        await board.rewind(at=at)
        assert await board.get("public/n") == then
        await board.restore(0)
        assert await board.get("public/n") is None
        with pytest.raises(InvalidRequest):
            await board.rewind()
        with pytest.raises(InvalidRequest):
            await board.rewind(to=1, before=2)

    async def test_writers_of_the_old_epoch_are_refused_and_can_go_on(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        board = await team.operator()
        await ada.put("public/a", 1)
        await bob.put("public/b", 1)
        await board.checkpoint("plan")
        await board.restore("plan")
        for who in (ada, bob):
            with pytest.raises(StaleEpoch) as refused:
                await who.put("public/old", 1)
            assert refused.value.cause == "restore"
            assert refused.value.from_revision == 3
        assert await board.get("public/old") is None
        for who in (ada, bob):
            await still_works(who)
        await board.put("public/mine", 1)

    @renewed_often
    async def test_leases_end_and_their_blocks_are_cancelled(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        board = await team.operator()
        await ada.put("public/a", 1)
        await board.checkpoint("plan")

        async def hold() -> None:
            async with ada.lock("public/lock", ttl_ms=RENEWED_MS):
                await board.restore("plan")
                await anyio.sleep_forever()

        with anyio.fail_after(PATIENCE_S), pytest.raises(LeaseLost):
            await hold()
        assert await board.leases() == ()
        await bob.refresh()
        async with bob.lock("public/lock", timeout_ms=0):
            await bob.put("public/a", 2)

    async def test_who_waits_for_a_lease_does_not_wait_for_ever(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        board = await team.operator()
        await ada.commit([Grant("public/lock", "ada", 60_000)])
        await bob.put("public/b", 1)
        await board.checkpoint("plan")

        async def queue() -> object:
            try:
                async with bob.lock("public/lock", ttl_ms=10_000):
                    return "held"
            except BlackboardError as error:
                return error

        waiting = asyncio.create_task(queue())
        free = asyncio.create_task(bob.wait_free("public/lock"))
        async with board.watch("public/lock", after=3) as watch:
            [queued] = await take(watch, 1)
            assert queued.changes[0].lease is not None
        restored = await board.restore("plan")
        with anyio.fail_after(PATIENCE_S):
            assert isinstance(await waiting, StaleEpoch)
            assert await free == restored.revision

    async def test_lease_operations_of_the_old_epoch_are_refused(
        self, team: Team, ada: Board
    ) -> None:
        board = await team.operator()
        fence = (await ada.commit([Grant("public/lock", "ada", 60_000)])).revision
        await board.checkpoint("plan")
        await board.restore("plan")
        for op in (Release("public/lock", "ada", fence), Grant("public/x", "ada", 60_000)):
            with pytest.raises(StaleEpoch):
                await ada.commit([op])
        await ada.refresh()
        await ada.commit([Grant("public/lock", "ada~other", 60_000)])
        with pytest.raises(LeaseHeld):
            await ada.commit([Grant("public/lock", "ada~third", 60_000)])

    async def test_the_same_request_restores_once(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        link = (await team.client(access.operator())).link
        await ada.put("public/a", 1)
        await board.checkpoint("plan")
        await ada.put("public/a", 2)
        spec = RestoreRequest("plan", secrets.token_hex(8), "once")
        found = await asyncio.gather(*(link.restore(board.name, spec) for _ in range(4)))
        assert len({each.revision for each in found}) == 1
        await ada.refresh()
        await ada.put("public/a", 3)
        assert await link.restore(board.name, spec) == found[0]
        assert await ada.get("public/a") == 3
        assert len([r for r in await board.log() if r.epoch]) == 1

    @pytest.mark.parametrize("request_id", ["x", "step 7, of 9", "é/\u2028" * 8, "-" * 64])
    async def test_a_request_id_is_any_text(self, team: Team, ada: Board, request_id: str) -> None:
        """It is that of one restore: somebody else's with the same one is refused."""
        board = await team.operator()
        link = (await team.client(access.operator())).link
        await ada.put("public/a", 1)
        await board.checkpoint("plan")
        await ada.put("public/a", 2)
        await link.checkpoint(board.name, CheckpointRequest("two", request_id))
        again = await link.checkpoint(board.name, CheckpointRequest("two", request_id))
        assert again == (await board.checkpoints())[-1]
        spec = RestoreRequest("plan", request_id, "once")
        found = await link.restore(board.name, spec)
        assert await link.restore(board.name, spec) == found
        assert await ada.get("public/a") == 1
        branch = BranchRequest(f"{board.name}-b", "plan", request_id)
        first = await link.branch(board.name, branch)
        assert (await link.branch(board.name, branch)).epoch == first.epoch
        other = (await team.client(replace(access.operator(), name="other"))).link
        with pytest.raises(InvalidRequest, match="the request of another restore"):
            await other.restore(board.name, spec)

    @pytest.mark.parametrize("request_id", ["", "a\0b", "-" * 65])
    async def test_a_request_id_that_is_none_is_refused(
        self, team: Team, ada: Board, request_id: str
    ) -> None:
        await ada.put("public/a", 1)
        link = (await team.client(access.operator())).link
        for call in (
            lambda: link.restore(team.name, RestoreRequest(0, request_id)),
            lambda: link.branch(team.name, BranchRequest(f"{team.name}-b", 0, request_id)),
        ):
            with pytest.raises((InvalidRequest, LimitExceeded)) as refused:
                await call()
            assert "request" in str(refused.value).lower()

    async def test_counters_of_lists_go_on(self, team: Team, ada: Board) -> None:
        """An index never names two items, not even in two futures."""
        board = await team.operator()
        await ada.append("public/list", "a")
        await board.checkpoint("plan")
        abandoned = await ada.append("public/list", "b")
        await board.restore("plan")
        await ada.refresh()
        after = await ada.append("public/list", "c")
        assert after > abandoned

    async def test_checkpoints_are_not_undone(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        await ada.put("public/a", 1)
        await board.checkpoint("one")
        await board.checkpoint("two")
        restored = await board.restore("one")
        assert [c.name for c in await board.checkpoints()] == ["one", "two", restored.before]

    async def test_what_expires_comes_back_with_its_time(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        await ada.put("public/a", 1, ttl_ms=3_600_000)
        before = await ada.entry("public/a")
        await board.checkpoint("plan")
        await ada.put("public/a", 1)
        restored = await board.restore("plan")
        after = await ada.entry("public/a")
        assert before is not None
        assert after is not None
        assert after.expires_at_ms == before.expires_at_ms
        assert restored.put_back == 1

    # --- going on ---------------------------------------------------------------------------------

    async def test_an_operator_goes_on_as_agents_once_the_board_is_refreshed(
        self, team: Team, ada: Board
    ) -> None:
        """By steps in their names, by steps that are run again, and attached as one of them."""
        board = await team.operator()
        await put_for_ada(board)
        await restored_by_others(team)
        with pytest.raises(StaleEpoch):
            await put_for_ada(board)
        await board.refresh()
        await put_for_ada(board)
        await board.run_step("ada", put_next)
        async with board.attach("ada") as me:
            await me.board.put("public/next", 3)
        await restored_by_others(team)
        await board.refresh()
        async with board.attach("ada") as me:
            await me.board.put("public/next", 4)

    async def test_the_restoring_operator_acts_as_agents_at_once(
        self, team: Team, ada: Board
    ) -> None:
        board = await team.operator()
        await put_for_ada(board)
        await board.restore(0)
        await put_for_ada(board)
        assert await board.get("public/next") == 1

    @pytest.mark.parametrize("agent", [None, "ada"])
    @pytest.mark.parametrize("by_others", [True, False])
    async def test_a_step_of_before_a_restore_is_refused_after_its_board_was_refreshed(
        self, team: Team, agent: str | None, by_others: bool
    ) -> None:
        """Also one that relies on nothing that it read."""
        board = await team.operator()
        for name in (None, "ada"):
            async with board.step(name) as first:
                first.put("public/a", 1)
        with pytest.raises(StaleEpoch) as refused:
            async with board.step(agent, validate=False) as step:
                step.put("public/decided", await step.get("public/a"))
                if by_others:
                    await restored_by_others(team)
                    await board.refresh()
                else:
                    await board.restore(0)
        assert (refused.value.cause, refused.value.from_revision) == ("restore", 0)
        assert await board.get("public/decided") is None
        await put_for_ada(board)

    async def test_a_board_of_as_agent_gets_the_error_though_its_parent_was_refreshed(
        self, team: Team, ada: Board
    ) -> None:
        """Somebody else may have it, and rely on what was read before."""
        board = await team.operator()
        theirs = board.as_agent("ada")
        await theirs.put("public/a", 1)
        await board.restore(0)
        await board.refresh()
        await put_for_ada(board)
        await still_works(theirs)

    # --- while others work ------------------------------------------------------------------------

    async def test_restoring_under_writers_and_watchers(
        self, team: Team, ada: Board, bob: Board, seed: int
    ) -> None:
        """Nobody sees a mixture, and the state is the checkpoint's, digest for digest."""
        board = await team.operator()
        for number in range(20):
            await ada.put(f"public/k{number}", 0)
        await board.checkpoint("plan")
        was = await content(board)
        wanted = (await board.show("plan")).digests
        stale: list[str] = []

        async def write(who: Board) -> None:
            draw = random.Random(f"{seed} {who.agent}")
            try:
                while True:
                    async with who.step() as step:
                        for key in draw.sample(range(20), 3):
                            step.put(f"public/k{key}", draw.random())
            except StaleEpoch:
                stale.append(who.agent)

        async with (
            bob.watch("public/**", snapshot=True) as watch,
            anyio.create_task_group() as all_,
        ):
            state = {key: entry.value for key, entry in watch.state.items()}
            all_.start_soon(write, ada)
            all_.start_soon(write, bob)
            for revised in await take(watch, 5):
                state |= {change.key: change.value for change in revised.changes}
            with anyio.fail_after(PATIENCE_S):
                restored = await board.restore("plan")
            for revised in await watch.wait_for(restored.revision):
                for change in revised.changes:
                    if change.kind == "put":
                        state[change.key] = change.value
                    else:
                        del state[change.key]
        assert sorted(stale) == ["ada", "bob"]
        assert await content(board) == was
        assert state == {f"public/k{number}": 0 for number in range(20)}
        await board.checkpoint("after")
        assert (await board.show("after")).digests["public"] == wanted["public"]
        assert (await board.head()).revision == restored.revision + 1

    async def test_a_request_of_the_old_epoch_that_is_under_way_is_refused(
        self, team: Team, ada: Board
    ) -> None:
        """However the commits and the restore are interleaved: what was not before it is not."""
        board = await team.operator()
        await ada.put("public/n", 0)
        await board.checkpoint("plan")
        outcomes: list[int | None] = []

        async def write(number: int) -> None:
            try:
                outcomes.append((await ada.put(f"public/{number}", number)).revision)
            except StaleEpoch:
                outcomes.append(None)

        async with anyio.create_task_group() as all_:
            for number in range(30):
                all_.start_soon(write, number)
            restored = await board.restore("plan")
        assert len(outcomes) == 30
        assert all(at is None or at < restored.revision for at in outcomes)
        assert set(await content(board)) == {"public/n"}

    async def test_many_restores_each_bring_back_their_checkpoint(
        self, team: Team, ada: Board, seed: int
    ) -> None:
        draw = random.Random(seed)
        board = await team.operator()
        states: dict[str, dict[str, object]] = {}
        for number in range(ROUNDS):
            async with ada.step() as step:
                for _ in range(3):
                    space = draw.choice(["public", "private/ada"])
                    key = f"{space}/k{draw.randrange(12)}"
                    if draw.random() < 0.3:
                        step.delete(key)
                    else:
                        step.put(key, draw.randbytes(draw.randrange(40)))
            name = f"c{number}"
            await board.checkpoint(name)
            states[name] = await content(board)
        order = list(states)
        draw.shuffle(order)
        for name in order:
            await board.restore(name)
            assert await content(board) == states[name], name
        assert (await board.verify()).ok

    # --- limits -----------------------------------------------------------------------------------

    async def test_a_watcher_has_to_resync_when_too_much_changes(
        self, team: Team, ada: Board
    ) -> None:
        board = await team.operator()
        blob = "x" * (VALUE_BYTES_MAX // 2)
        count = RESYNC_BYTES // len(blob) + 1
        for number in range(count):
            await ada.put(f"public/big/{number}", blob)
        await board.checkpoint("plan")
        await ada.delete_prefix("public/big")
        async with (
            ada.watch("public/**") as plain,
            ada.watch("public/**", snapshot=True) as whole,
            ada.watch("public/other/**") as other,
        ):
            assert whole.state == {}
            restored = await board.restore("plan")
            with anyio.fail_after(PATIENCE_S):
                with pytest.raises(Resync) as ordered:
                    await anext(plain)
                again = await anext(whole)
                untouched = await anext(other)
            assert (ordered.value.revision, ordered.value.from_revision) == (
                restored.revision,
                restored.from_revision,
            )
            assert (again.changes, again.epoch) == ((), restored.epoch)
            assert whole.revision == restored.revision == untouched.revision
            assert sorted(whole.state) == [f"public/big/{number}" for number in range(count)]
            await ada.refresh()
            put = await ada.put("public/next", 1)
            assert [r.revision for r in await take(whole, 1)] == [put.revision]
        with pytest.raises(Resync):
            await ada.log(after=restored.revision - 1)
        assert [r.revision for r in await ada.log(after=restored.revision)] == [put.revision]

    async def test_too_much_for_one_restore_is_refused_and_can_be_branched(
        self, team: Team, monkeypatch: pytest.MonkeyPatch, ada: Board
    ) -> None:
        monkeypatch.setattr("blackboard.server.checkpoints.restore.RESTORE_CHANGES_MAX", 4)
        board = await team.operator()
        for number in range(3):
            await ada.put(f"public/{number}", 1)
        restored = await board.restore(0)
        assert restored.removed == 3
        await ada.refresh()
        for number in range(4):
            await ada.put(f"public/{number}", 1)
        with pytest.raises(LimitExceeded) as refused:
            await board.restore(0)
        assert refused.value.limit == "RESTORE_CHANGES_MAX"
        assert len(await content(board)) == 4
        assert RESTORE_CHANGES_MAX > 4
