"""Rules of `Board.attach` and `Board.agents`."""

import pytest

from blackboard.client.board import Board
from blackboard.client.leases.presence import IfTaken, presence_key
from blackboard.core.commit import Grant, Release
from blackboard.core.path import identity_key
from blackboard.errors import AccessDenied, Fenced, InvalidRequest, LeaseHeld, LeaseLost
from tests.conformance.team import RENEWED_MS, Team, renewed_often, take
from tests.conformance.workers import Block, finished, lease_of, queued, renewals

SHORT_MS = 300
"""Short enough to see it run out."""
HOUR_MS = 3_600_000
ADA = identity_key("ada")


class PresenceRules:
    """One process is an agent at a time, and everybody sees which agents are there."""

    async def test_who_is_attached_is_seen_and_then_no_more(self, ada: Board, bob: Board) -> None:
        assert await bob.agents() == ()
        async with ada.attach(ttl_ms=HOUR_MS) as me:
            assert (me.agent, me.board.agent) == ("ada", "ada")
            (seen,) = await ada.agents()
            assert (seen.agent, seen.state, seen.note, seen.alive) == ("ada", "attached", "", True)
            assert seen.since_ms == (await lease_of(ada, ADA)).until_ms - HOUR_MS
            (by_bob,) = await bob.agents()
            assert (by_bob.agent, by_bob.alive) == ("ada", None)
        assert await bob.agents() == ()
        assert await ada.leases() == ()

    async def test_an_agent_reports_what_it_does(self, ada: Board, bob: Board) -> None:
        async with ada.attach() as me:
            receipt = await ada.put("public/x", 1)
            await me.report("reading", "annual reports")
            (seen,) = await bob.agents()
            assert (seen.state, seen.note, seen.step) == (
                "reading",
                "annual reports",
                receipt.revision,
            )

    @renewed_often
    async def test_a_heartbeat_tells_what_has_changed_and_else_nothing(self, ada: Board) -> None:
        """One that has nothing to tell makes no revision."""
        async with (
            ada.watch(ADA, presence_key("ada")) as watch,
            ada.attach(ttl_ms=RENEWED_MS),
        ):
            begin = await take(watch, 2)
            head = await ada.head()
            await renewals(ada, ADA, 3)
            assert (await ada.head()).revision == head.revision
            receipt = await ada.put("public/x", 1)
            [told] = await take(watch, 1)
            await renewals(ada, ADA, 3)
            assert (await ada.head()).revision == told.revision
        kinds = [[change.kind for change in revised.changes] for revised in (*begin, told)]
        assert kinds == [["grant"], ["put"], ["renew", "put"]]
        assert told.changes[1].value["step"] == receipt.revision

    async def test_who_waits_becomes_the_agent_in_turn(self, ada: Board) -> None:
        first = Block(ada.attach())
        await first.entered()
        second = Block(ada.attach())
        await queued(ada, ADA, 1)
        await first.end()
        me = await second.entered()
        (seen,) = await ada.agents()
        assert seen.alive
        await me.report("second")
        await second.end()
        assert await ada.agents() == ()

    @pytest.mark.parametrize("terms", [("refuse", None), ("wait", 100)])
    async def test_who_is_refused_leaves_the_first_alone(
        self, ada: Board, terms: tuple[IfTaken, int | None]
    ) -> None:
        first = Block(ada.attach())
        me = await first.entered()
        if_taken, timeout_ms = terms
        second = Block(ada.attach(if_taken=if_taken, timeout_ms=timeout_ms))
        with pytest.raises(LeaseHeld) as refused:
            await second.entered()
        assert refused.value.holder == me.holder
        assert len(await ada.agents()) == 1
        await first.end()

    async def test_who_takes_over_fences_the_first(self, ada: Board) -> None:
        first = Block(ada.attach(ttl_ms=HOUR_MS))
        me = await first.entered()
        second = Block(ada.attach(if_taken="take_over"))
        other = await second.entered()
        with pytest.raises(Fenced) as fenced:
            await me.report("still here")
        assert fenced.value.holder == other.holder
        with pytest.raises(LeaseLost):
            await first.end()
        (seen,) = await ada.agents()
        assert (seen.alive, seen.state) == (True, "attached")
        await second.end()
        assert await ada.agents() == ()

    @renewed_often
    async def test_an_agent_that_is_taken_over_learns_it_while_it_waits(self, ada: Board) -> None:
        first = Block(ada.attach(ttl_ms=RENEWED_MS))
        await first.entered()
        second = Block(ada.attach(if_taken="take_over"))
        await second.entered()
        with pytest.raises(LeaseLost) as told:
            await finished(first.task)
        assert told.value.holder == second.held.holder
        await second.end()

    async def test_who_waited_when_it_was_taken_over_waits_on(self, ada: Board) -> None:
        first = Block(ada.attach(ttl_ms=HOUR_MS))
        await first.entered()
        waiting = Block(ada.attach())
        await queued(ada, ADA, 1)
        second = Block(ada.attach(if_taken="take_over"))
        await second.entered()
        await queued(ada, ADA, 1)
        await second.end()
        await waiting.entered()
        await waiting.end()
        with pytest.raises(LeaseLost):
            await first.end()

    async def test_a_free_identity_needs_no_taking_over(self, ada: Board) -> None:
        async with ada.attach(if_taken="take_over"):
            assert len(await ada.agents()) == 1

    async def test_the_presence_of_an_agent_that_died_ends_with_its_lease(
        self, ada: Board, bob: Board
    ) -> None:
        async with bob.watch(presence_key("ada")) as watch:
            await ada.put(presence_key("ada"), _told("busy"))
            await ada.commit([Grant(ADA, "ada~dead", SHORT_MS)])
            _, gone = await take(watch, 2)
        assert (gone.author, gone.changes[0].kind) == ("~system", "delete")
        assert await ada.leases() == ()

    async def test_in_the_block_the_commits_of_that_agent_rely_on_it(self, team: Team) -> None:
        operator = await team.operator()

        async def work() -> None:
            async with operator.attach("ada", ttl_ms=HOUR_MS) as me:
                lease = await lease_of(operator, ADA)
                await operator.commit([Release(ADA, lease.holder, lease.fence)])
                await operator.put("public/x", "operator")
                await operator.as_agent("bob").put("public/x", "bob")
                with pytest.raises(Fenced):
                    await me.board.put("public/x", "ada")
                with pytest.raises(Fenced):
                    await operator.as_agent("ada").put("public/x", "ada")

        with pytest.raises(LeaseLost):
            await work()
        assert await operator.get("public/x") == "bob"

    async def test_nobody_is_an_agent_without_the_right(self, ada: Board, bob: Board) -> None:
        with pytest.raises(AccessDenied):
            async with ada.attach("bob"):
                pass
        assert await bob.agents() == ()

    async def test_terms_that_nobody_knows_are_refused(self, ada: Board) -> None:
        with pytest.raises(InvalidRequest):
            ada.attach(if_taken="steal")  # type: ignore[arg-type]

    async def test_what_is_no_presence_is_not_shown_and_a_forged_one_is_not_alive(
        self, team: Team, ada: Board
    ) -> None:
        await ada.put(presence_key("bob"), "nonsense")
        await ada.put(presence_key("ada"), _told("idle"))
        await ada.put(presence_key("cyd"), _told("forged"))
        seen = {presence.agent: presence for presence in await ada.agents()}
        assert seen.keys() == {"ada", "cyd"}
        assert (seen["ada"].alive, seen["cyd"].alive) == (False, None)
        by_operator = await (await team.operator()).agents()
        assert [presence.alive for presence in by_operator] == [False, False]

    async def test_a_cancelled_agent_is_gone(self, ada: Board) -> None:
        block = Block(ada.attach())
        await block.entered()
        await block.cancel()
        assert await ada.agents() == ()
        assert await ada.leases() == ()


def _told(state: str) -> dict[str, object]:
    return {"since_ms": 1, "step": 0, "state": state, "note": ""}
