"""What is promised to people who approve, and to the agents that ask them."""

import asyncio

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.access import parse_grant
from blackboard.core.commit import Append, Increment, Put
from blackboard.errors import AccessDenied, Conflict, InvalidRequest
from blackboard.runtime.approvals import Pending, Request, answer, pending
from blackboard.runtime.context import Context
from blackboard.runtime.run import run_agent
from blackboard.runtime.state import Status
from blackboard.wire.codec import encode_value
from tests.conformance.acting import Actor, Notes, Tool, keys_below, notes_of, runner
from tests.conformance.team import PATIENCE_S, Team

PRICE = "public/price"
APPROVE = parse_grant("public/~decisions/**=approve")


async def says_yes_in_vain(board: Board, asked: Pending, why: str) -> None:
    """Approve what one may not: it is refused, and has no effect if it is written all the same."""
    with pytest.raises(InvalidRequest, match=f"would not count: .*{why}"):
        await answer(board, asked, approved=True)
    decision = {"approved": True, "request": asked.revision, "reason": ""}
    await board.put(f"public/~decisions/{asked.agent}/{asked.id}", decision)


class ApprovalRules:
    """Ask, let the process end, go on with the answer, if what it was based on still holds."""

    async def test_a_changed_fact_asks_again(self, ada: Board, bob: Board, boss: Board) -> None:
        await bob.put(PRICE, 1200)
        tool = Tool()

        async def buy(ctx: Context[Notes]) -> None:
            decision = await ctx.approve("buy it", facts=[PRICE])
            paid = await ctx.tool(tool.look, f"pay {decision.facts[PRICE]}")
            ctx.state.seen = [str(decision.approved), decision.by, decision.reason, paid]
            ctx.done()

        stepped = await runner(ada, buy).step()
        assert (stepped.status, stepped.number) == (Status.WAITING_FOR_APPROVAL, 0)
        [asked] = await pending(bob)
        assert (asked.agent, asked.request.question) == ("ada", "buy it")
        assert [(fact.key, fact.value) for fact in asked.request.facts] == [(PRICE, 1200)]
        await answer(boss, asked, approved=True)

        await bob.put(PRICE, 1500)
        stepped = await runner(ada, buy).step()
        assert (stepped.status, tool.calls) == (Status.WAITING_FOR_APPROVAL, [])
        [again] = await pending(bob)
        [change] = again.request.changed
        assert (again.request.asked, change.was, change.now) == (2, 1200, 1500)
        assert again.answer is None

        await answer(boss, again, approved=True, reason="still cheap")
        stepped = await runner(ada, buy).step()
        assert stepped.status is Status.DONE
        assert (await notes_of(ada)).seen == ["True", "operator", "still cheap", "pay 1500!"]
        assert await keys_below(ada, "public/~approvals/**") == []
        assert await keys_below(ada, "public/~decisions/**") == []

    async def test_why_leads_to_the_approver(self, ada: Board, bob: Board, boss: Board) -> None:
        await bob.put(PRICE, 1200)

        async def buy(ctx: Context[Notes]) -> None:
            decision = await ctx.approve("buy it", facts=[PRICE])
            ctx.put("public/order", decision.facts[PRICE])
            ctx.done()

        await runner(ada, buy).step()
        [asked] = await pending(bob)
        await answer(boss, asked, approved=True)
        await bob.put(PRICE, 1300)
        await bob.put(PRICE, 1200)
        assert (await runner(ada, buy).step()).status is Status.DONE
        first, *others = await bob.why("public/order")
        assert (first.key, first.author) == ("public/order", "ada")
        told = {(cause.key.rpartition("/")[0], cause.author) for cause in others}
        assert {
            ("public/~approvals/ada", "ada"),
            ("public/~decisions/ada", "operator"),
            ("public", "bob"),
        } <= told

    async def test_a_fact_that_was_written_again_is_the_same_fact(
        self, ada: Board, bob: Board, boss: Board
    ) -> None:
        await bob.put(PRICE, 1200)

        async def buy(ctx: Context[Notes]) -> None:
            if await ctx.approve("buy it", facts=[PRICE]):
                ctx.done()

        await runner(ada, buy).step()
        [asked] = await pending(bob)
        await bob.put(PRICE, 1200)
        await answer(boss, asked, approved=True)
        assert (await runner(ada, buy).step()).status is Status.DONE

    async def test_a_rejection_is_read_by_the_agent(
        self, ada: Board, bob: Board, boss: Board
    ) -> None:
        async def buy(ctx: Context[Notes]) -> None:
            decision = await ctx.approve("buy it", details={"shop": "corner"})
            ctx.state.seen = [str(bool(decision)), decision.reason]
            ctx.done()

        await runner(ada, buy).step()
        [asked] = await pending(bob)
        assert asked.request.details == {"shop": "corner"}
        await answer(boss, asked, approved=False, reason="too dear")
        assert await pending(bob) != ()
        await runner(ada, buy).step()
        assert (await notes_of(ada)).seen == ["False", "too dear"]

    async def test_nobody_asks_in_the_name_of_another(self, ada: Board, boss: Board) -> None:
        """Anybody may write there; people are shown what an agent wrote itself."""
        request = Request(question="pay eve").model_dump(mode="json")
        await ada.put("public/~approvals/eve/made-up", request)
        await ada.put("public/~approvals/ada/own", request)
        assert [(asked.agent, asked.id) for asked in await pending(boss)] == [("ada", "own")]

    async def test_who_waits_is_not_asked_twice(self, ada: Board, bob: Board, boss: Board) -> None:
        async def buy(ctx: Context[Notes]) -> None:
            await ctx.approve("buy it")

        await runner(ada, buy).step()
        head = (await ada.head()).revision
        await runner(ada, buy).step()
        assert (await ada.head()).revision == head
        [asked] = await pending(bob)
        assert asked.request.asked == 1

    async def test_an_agent_gives_no_answers(self, ada: Board, bob: Board, boss: Board) -> None:
        """Neither to itself nor to others: that takes a right of its own."""

        async def buy(ctx: Context[Notes]) -> None:
            await ctx.approve("buy it")
            ctx.done()

        await runner(ada, buy).step()
        [asked] = await pending(ada)
        with pytest.raises(InvalidRequest, match="your own account"):
            await answer(ada, asked, approved=True)
        with pytest.raises(AccessDenied, match="approve"):
            await answer(bob, asked, approved=True)
        for board in (ada, bob):
            for op in (
                Put(f"public/~decisions/ada/{asked.id}", encode_value(1)),
                Append("public/~decisions/ada", encode_value(1)),
                Increment(f"public/~decisions/ada/{asked.id}", 1),
            ):
                with pytest.raises(AccessDenied, match="approve"):
                    await board.commit([op])
        await answer(boss, asked, approved=True)
        assert (await runner(ada, buy).step()).status is Status.DONE

    async def test_nobody_answers_what_was_asked_on_his_account(
        self, team: Team, ada: Board, boss: Board
    ) -> None:
        """Whatever name the token was narrowed to, and whichever of them asks."""

        async def buy(ctx: Context[Notes]) -> None:
            await ctx.approve("buy it")
            ctx.done()

        may = (*access.agent("ada").grants, APPROVE)
        whole = await team.account("ada", grants=may)
        mine = await team.account("ada", "ada.me", grants=may)
        await runner(ada, buy).step()
        for board in (whole, mine):
            [asked] = await pending(board, "ada")
            await says_yes_in_vain(board, asked, "your own account, ada")
            assert [one.answer for one in await pending(boss)] == [None]
            assert (await runner(ada, buy).step()).status is Status.WAITING_FOR_APPROVAL
        asker = await team.account("ada", "ada.kid", grants=(*access.agent("ada.kid").grants, *may))
        await runner(asker, buy).step()
        [asked] = await pending(whole, "ada.kid")
        await says_yes_in_vain(whole, asked, "your own account, ada")
        await says_yes_in_vain(mine, asked, "your own account, ada")
        assert (await runner(asker, buy).step()).status is Status.WAITING_FOR_APPROVAL
        [asked] = await pending(boss, "ada.kid")
        await answer(boss, asked, approved=True)
        assert (await runner(asker, buy).step()).status is Status.DONE

    @pytest.mark.parametrize(
        ("approver", "account", "name", "counts"),
        [
            ("bob", "bob", "bob", True),
            ("bob", "bob", "bob.phone", True),
            ("bob.phone", "bob", "bob.phone.x", True),
            ("bob.phone", "bob", "bob", False),
            ("bob", "bob.phone", "bob.phone", False),
            ("operator", "bob", "bob", False),
        ],
    )
    async def test_only_approvers_count(
        self, team: Team, ada: Board, approver: str, account: str, name: str, counts: bool
    ) -> None:
        """An account stands for the names that are narrowed from it, and for no other account."""

        async def buy(ctx: Context[Notes]) -> None:
            decision = await ctx.approve("buy it", approvers=[approver])
            ctx.state.seen = [decision.by]
            ctx.done()

        await runner(ada, buy).step()
        board = await team.account(account, name, grants=(*access.agent("bob").grants, APPROVE))
        [asked] = await pending(board)
        if counts:
            await answer(board, asked, approved=True)
        else:
            await says_yes_in_vain(board, asked, f"only {approver} may answer")
        [shown] = await pending(board)  # to the others, it is as open as it is to the agent
        assert (shown.answer is not None) is counts
        expected = Status.DONE if counts else Status.WAITING_FOR_APPROVAL
        assert (await runner(ada, buy).step()).status is expected
        assert (await notes_of(ada)).seen == ([name] if counts else [])

    async def test_a_request_of_the_same_name_on_another_account_is_not_ones_own(
        self, team: Team, boss: Board
    ) -> None:
        """Else an answer to what somebody else asked would count."""
        own, other = await team.account("ada.kid"), await team.account("ada", "ada.kid")

        async def buy(ctx: Context[Notes]) -> None:
            await ctx.approve("buy one")
            ctx.done()

        await runner(own, buy).step()
        [asked] = await pending(boss)
        assert (asked.agent, asked.account) == ("ada.kid", "")
        forged = asked.request.model_copy(update={"question": "look at it"})
        await other.put(f"public/~approvals/ada.kid/{asked.id}", forged.model_dump(mode="json"))
        [shown] = await pending(boss)
        assert (shown.agent, shown.account) == ("ada.kid", "ada")
        await answer(boss, shown, approved=True)
        assert (await runner(own, buy).step()).status is Status.WAITING_FOR_APPROVAL
        [again] = await pending(boss)
        assert (again.account, again.request.question) == ("", "buy one")
        await answer(boss, again, approved=True)
        assert (await runner(own, buy).step()).status is Status.DONE

    async def test_an_answer_is_to_the_request_that_was_seen(
        self, ada: Board, bob: Board, boss: Board
    ) -> None:
        await bob.put(PRICE, 1200)

        async def buy(ctx: Context[Notes]) -> None:
            await ctx.approve("buy it", facts=[PRICE])

        await runner(ada, buy).step()
        [seen] = await pending(bob)
        await bob.put(PRICE, 1500)
        await runner(ada, buy).step()
        with pytest.raises(Conflict):
            await answer(boss, seen, approved=True)

    async def test_an_answer_replaces_only_the_one_that_was_seen(
        self, team: Team, ada: Board, bob: Board, boss: Board
    ) -> None:
        """Of two people who answer at once, the second one learns of the first."""

        async def buy(ctx: Context[Notes]) -> None:
            decision = await ctx.approve("buy it")
            ctx.state.seen = [str(decision.approved), decision.by]
            ctx.done()

        await runner(ada, buy).step()
        [seen] = await pending(bob)
        other = await team.account("bob", grants=(*access.agent("bob").grants, APPROVE))
        receipt = await answer(boss, seen, approved=True)
        with pytest.raises(Conflict) as refused:
            await answer(other, seen, approved=False)
        key = f"public/~decisions/ada/{seen.id}"
        assert (refused.value.key, refused.value.actual) == (key, receipt.revision)
        [now] = await pending(other)
        assert now.answer is not None
        await answer(other, now, approved=False, reason="on reflection")
        assert (await runner(ada, buy).step()).status is Status.DONE
        assert (await notes_of(ada)).seen == ["False", "bob"]

    async def test_an_approver_need_not_read_answers_or_facts(self, team: Team, ada: Board) -> None:
        await ada.put("private/ada/budget", 3)
        await ada.put("private/ada/price", 2)

        async def buy(ctx: Context[Notes]) -> None:
            await ctx.approve("buy it", facts=["private/ada/budget", "private/ada/price"])
            ctx.done()

        await runner(ada, buy).step()
        reads = parse_grant("public/~approvals/**=read")
        board = await team.account("eve", grants=(reads, APPROVE))
        [asked] = await pending(board)
        await answer(board, asked, approved=True)
        assert (await runner(ada, buy).step()).status is Status.DONE

    async def test_a_decision_stands_for_the_rest_of_its_step(
        self, ada: Board, bob: Board, boss: Board
    ) -> None:
        await bob.put(PRICE, 1200)
        tool = Tool()
        dead: list[bool] = []

        async def buy(ctx: Context[Notes]) -> None:
            decision = await ctx.approve("buy it", facts=[PRICE])
            ctx.state.seen.append(await ctx.tool(tool.look, f"pay {decision.facts[PRICE]}"))
            if not dead:
                dead.append(True)
                await bob.put(PRICE, 1500)
                raise asyncio.CancelledError

        await runner(ada, buy).step()
        [asked] = await pending(bob)
        await answer(boss, asked, approved=True)
        with pytest.raises(asyncio.CancelledError):
            await runner(ada, buy).step()
        await runner(ada, buy).step()
        assert [call for call, _ in tool.calls] == ["pay 1200"]
        assert (await notes_of(ada)).seen == ["pay 1200!"]

    async def test_several_things_are_asked_at_once(
        self, ada: Board, bob: Board, boss: Board
    ) -> None:
        async def buy(ctx: Context[Notes]) -> None:
            async with asyncio.TaskGroup() as tasks:
                answers = [tasks.create_task(ctx.approve(name)) for name in ("tea", "milk")]
            ctx.state.seen = [str(task.result().approved) for task in answers]
            ctx.done()

        for _ in range(4):
            if (await runner(ada, buy).step()).status is Status.DONE:
                break
            for asked in await pending(bob):
                if asked.answer is None:
                    await answer(boss, asked, approved=asked.request.question == "tea")
        assert (await notes_of(ada)).seen == ["True", "False"]

    async def test_an_agent_that_waits_is_woken_by_the_answer(
        self, ada: Board, bob: Board, boss: Board
    ) -> None:
        async def buy(ctx: Context[Notes]) -> None:
            ctx.state.count = int((await ctx.approve("buy it")).approved)
            ctx.done()

        with anyio.fail_after(PATIENCE_S):
            async with bob.watch("public/~approvals/**", after=0) as watch:
                running = asyncio.create_task(run_agent(Actor("ada", buy), ada))
                await anext(watch)
            [asked] = await pending(bob)
            await answer(boss, asked, approved=True)
            await running
        assert (await notes_of(ada)).count == 1
