"""Rules of `Client.freeze` and `Client.thaw`."""

import asyncio
from pathlib import Path

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.freeze import FROZEN_KEY
from blackboard.errors import (
    AccessDenied,
    BoardFrozen,
    Conflict,
    InvalidRequest,
    NoSuchBoard,
    StaleEpoch,
)
from blackboard.limits import FROZEN_WAIT_MS_MAX
from tests.conformance.team import PATIENCE_S, RENEWED_MS, Team, renewed_often, take
from tests.waiting import wait_until

PLAN = "public/plan"
TASK = "public/tasks/1"
WAIT_MS = int(PATIENCE_S * 1000)


class FreezeRules:
    """Nobody changes a frozen board, everybody sees it, and nobody loses what it holds."""

    @pytest.fixture
    async def admin(self, team: Team) -> Client:
        """The client of somebody who may freeze."""
        return await team.client(access.operator())

    async def test_the_refusal_has_author_note_and_time(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        await ada.put(PLAN, 1)
        freeze = await admin.freeze(team.name, note="nonsense in the plan")
        assert (freeze.by, freeze.note) == ("operator", "nonsense in the plan")
        with pytest.raises(BoardFrozen) as refused:
            await ada.put(PLAN, 2)
        assert refused.value.fields() == {
            "by": "operator",
            "note": "nonsense in the plan",
            "since_ms": freeze.since_ms,
            "revision": freeze.revision,
        }
        assert freeze.revision == (await ada.head()).revision
        assert await (await team.client_of(ada)).frozen(team.name) == freeze
        ended = await admin.thaw(team.name, note="restored")
        assert ended == freeze
        await ada.put(PLAN, 2)
        assert await admin.frozen(team.name) is None

    async def test_the_log_tells_of_both(self, team: Team, admin: Client, ada: Board) -> None:
        await ada.put(PLAN, 1)
        await admin.freeze(team.name, note="why")
        await admin.thaw(team.name)
        told = [(revised.author, revised.note) for revised in await (await team.operator()).log()]
        assert told[-2:] == [
            ("~system", "frozen by operator: why"),
            ("~system", "thawed by operator"),
        ]

    async def test_freezing_and_thawing_twice_changes_nothing(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        await ada.put(PLAN, 1)
        first = await admin.freeze(team.name, note="first")
        assert await admin.freeze(team.name, note="second") == first
        assert (await ada.head()).revision == first.revision
        assert await admin.thaw(team.name) == first
        assert await admin.thaw(team.name) is None
        assert (await ada.head()).revision == first.revision + 1

    async def test_a_request_that_comes_late_freezes_nothing(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        """A service that was stopped carries it out after others did, and the board was thawed."""
        known = (await ada.put(PLAN, 1)).revision
        freeze = await admin.freeze(team.name, note="once")
        assert await admin.link.freeze(team.name, "once", known) == freeze
        await admin.thaw(team.name)
        with pytest.raises(Conflict) as refused:
            await admin.link.freeze(team.name, "once", known)
        assert (refused.value.by, refused.value.at_revision) == ("operator", freeze.revision)
        await ada.put(PLAN, 2)
        assert (await admin.freeze(team.name, note="twice")).revision > freeze.revision

    async def test_a_request_of_before_a_restore_freezes_nothing(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        """The client asks again, as what it saw of the board is gone."""
        known = (await ada.put(PLAN, 1)).revision
        await (await team.operator()).restore(known)
        with pytest.raises(StaleEpoch):
            await admin.link.freeze(team.name, "late", known)
        assert await admin.frozen(team.name) is None
        assert (await admin.freeze(team.name)).revision > known

    async def test_a_thaw_that_comes_late_ends_no_later_freeze(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        await ada.put(PLAN, 1)
        known = (await admin.freeze(team.name, note="first")).revision
        await admin.thaw(team.name)
        second = await admin.freeze(team.name, note="second")
        with pytest.raises(Conflict) as refused:
            await admin.link.thaw(team.name, "", known)
        assert (refused.value.expected, refused.value.actual) == (known, second.revision)
        with pytest.raises(BoardFrozen):
            await ada.put(PLAN, 2)
        assert await admin.thaw(team.name) == second

    async def test_only_admins_freeze_and_thaw(self, team: Team, admin: Client, ada: Board) -> None:
        await ada.put(PLAN, 1)
        client = await team.client_of(ada)
        with pytest.raises(AccessDenied):
            await client.freeze(team.name)
        await admin.freeze(team.name)
        with pytest.raises(AccessDenied):
            await client.thaw(team.name)
        with pytest.raises(AccessDenied):
            await ada.delete(FROZEN_KEY)
        with pytest.raises(NoSuchBoard):
            await admin.freeze(f"{team.name}-none")

    async def test_looking_goes_on(
        self, team: Team, admin: Client, ada: Board, tmp_path: Path
    ) -> None:
        operator = await team.operator()
        await ada.put(PLAN, 1)
        async with ada.watch("public/**", after=0) as watch:
            await admin.freeze(team.name)
            [revised] = await take(watch, 1)
            assert revised.revision == 1
        assert await ada.get(PLAN) == 1
        assert [entry.key async for entry in ada.scan("public/**")] == [PLAN]
        assert [revised.revision for revised in await ada.log()][:1] == [1]
        checkpoint = await operator.checkpoint("during")
        assert checkpoint.revision > 1
        assert len(await operator.diff(0, "during", pattern="public/**")) == 1
        assert (await operator.verify("during")).ok
        exported = await operator.export("during", tmp_path / "during")
        assert exported.entries > 0

    async def test_a_restore_gets_in_and_the_board_stays_frozen(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        operator = await team.operator()
        await ada.put(PLAN, "good")
        good = (await ada.head()).revision
        await ada.put(PLAN, "bad")
        freeze = await admin.freeze(team.name)
        await operator.restore(good)
        assert await ada.get(PLAN) == "good"
        assert await admin.frozen(team.name) == freeze
        await ada.refresh()
        with pytest.raises(BoardFrozen):
            await ada.put(PLAN, "bad again")
        await admin.thaw(team.name)
        await ada.put(PLAN, "better")

    async def test_what_is_made_of_a_frozen_board_is_not_frozen(
        self, team: Team, admin: Client, ada: Board, tmp_path: Path
    ) -> None:
        operator = await team.operator()
        await ada.put(PLAN, 1)
        await admin.freeze(team.name)
        await operator.checkpoint("during")
        branch = await operator.branch(f"{team.name}-branch", "during")
        await branch.put(PLAN, 2)
        exported = tmp_path / "during"
        await operator.export("during", exported)
        imported = await admin.import_board(exported, f"{team.name}-copy")
        await imported.put(PLAN, 3)
        with pytest.raises(BoardFrozen):
            await ada.put(PLAN, 4)

    @renewed_often
    async def test_holders_keep_their_leases(
        self, team: Team, admin: Client, ada: Board, bob: Board
    ) -> None:
        await ada.put(TASK, "work")
        async with ada.attach(ttl_ms=RENEWED_MS) as me, me.board.lock(PLAN, ttl_ms=RENEWED_MS):
            await admin.freeze(team.name)
            until = {lease.key: lease.until_ms for lease in await ada.leases("**")}
            assert len(until) == 2

            async def renewed() -> bool:
                found = await ada.leases("**")
                return all(lease.until_ms > until[lease.key] for lease in found)

            await wait_until(renewed)
            for refused in (
                bob.lock("public/other", timeout_ms=0),
                bob.attach(),
                bob.claim("public/tasks/*"),
            ):
                with pytest.raises(BoardFrozen):
                    async with refused:
                        pass
            await admin.thaw(team.name)
            await me.board.put(PLAN, 1)
        assert await ada.leases("**") == ()

    async def test_a_lock_is_given_back_on_a_frozen_board(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        async with ada.lock(PLAN):
            await admin.freeze(team.name)
        assert await ada.leases(PLAN) == ()

    async def test_who_waits_goes_on_after_the_thaw(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        await ada.put(TASK, "work")
        patient = ada.waiting_for_thaw(WAIT_MS)
        await admin.freeze(team.name)

        async def claim() -> None:
            async with patient.claim("public/tasks/*") as task:
                task.move_to("public/done")

        async def lock() -> None:
            async with patient.lock(PLAN):
                await patient.put(PLAN, 1)

        works = (claim(), lock(), patient.put("public/a", 1))
        waiting = [asyncio.create_task(work) for work in works]
        with pytest.raises(BoardFrozen):
            await ada.put("public/b", 1)
        assert not any(task.done() for task in waiting)
        await admin.thaw(team.name)
        with anyio.fail_after(PATIENCE_S):
            await asyncio.gather(*waiting)
        assert [entry.key async for entry in ada.scan("public/**")] == [
            "public/a",
            "public/done/0000000000",
            PLAN,
        ]

    async def test_a_task_that_was_done_meanwhile_is_not_done_again(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        await ada.put(TASK, "work")
        patient = ada.waiting_for_thaw(WAIT_MS)
        begun, frozen = anyio.Event(), anyio.Event()

        async def claim() -> None:
            async with patient.claim("public/tasks/*") as task:
                begun.set()
                await frozen.wait()
                task.move_to("public/done")

        with anyio.fail_after(PATIENCE_S):
            working = asyncio.create_task(claim())
            await begun.wait()
            await admin.freeze(team.name)
            frozen.set()
            with pytest.raises(BoardFrozen):
                await ada.put(PLAN, 1)
            await admin.thaw(team.name)
            await working
        assert await ada.get("public/done/0000000000") == "work"
        assert await ada.get(TASK) is None

    async def test_the_waiting_is_bounded(self, team: Team, admin: Client, ada: Board) -> None:
        await ada.put(PLAN, 1)
        freeze = await admin.freeze(team.name)
        with pytest.raises(BoardFrozen) as refused:
            await ada.waiting_for_thaw(1).put(PLAN, 2)
        assert refused.value.revision == freeze.revision
        ada.waiting_for_thaw(FROZEN_WAIT_MS_MAX)
        for wrong in (-1, FROZEN_WAIT_MS_MAX + 1):
            with pytest.raises(InvalidRequest):
                ada.waiting_for_thaw(wrong)

    async def test_who_waits_can_be_cancelled(self, team: Team, admin: Client, ada: Board) -> None:
        await ada.put(PLAN, 1)
        patient = ada.waiting_for_thaw(FROZEN_WAIT_MS_MAX)
        await admin.freeze(team.name)
        with anyio.fail_after(PATIENCE_S):
            for block in (patient.attach(), patient.lock(PLAN), patient.claim("public/*")):
                with anyio.move_on_after(0.2) as scope:
                    async with block:
                        pass
                assert scope.cancelled_caught

    async def test_a_waiter_learns_of_a_restore(
        self, team: Team, admin: Client, ada: Board
    ) -> None:
        """What it was about to commit was made from a board that there is no more."""
        operator = await team.operator()
        await ada.put(PLAN, 1)
        patient = ada.waiting_for_thaw(WAIT_MS)
        await patient.get(PLAN)
        await patient.put(PLAN, 2)
        await admin.freeze(team.name)
        waiting = asyncio.create_task(patient.put(PLAN, 3))
        with pytest.raises(BoardFrozen):
            await ada.put(PLAN, 4)
        await operator.restore(1)
        with anyio.fail_after(PATIENCE_S), pytest.raises(StaleEpoch):
            await waiting

    async def test_an_edit_of_a_document_waits_in_its_replica(
        self, team: Team, admin: Client, ada: Board, bob: Board
    ) -> None:
        async with ada.document("public/memo") as mine, bob.document("public/memo") as other:
            mine.text().append("Buy")
            await mine.synced()
            freeze = await admin.freeze(team.name, note="look first")
            mine.text().append(" nothing")
            with pytest.raises(BoardFrozen) as refused:
                await mine.synced()
            assert (refused.value.note, refused.value.revision) == ("look first", freeze.revision)
            await other.synced()
            assert str(other.text()) == "Buy"
            await admin.thaw(team.name)

            await mine.synced()
            await other.synced()
            assert str(other.text()) == "Buy nothing"
