"""What the views of the team show: agents, approvals, documents, leases, the service."""

import asyncio
import contextvars
from typing import Any

import pytest
from pydantic import BaseModel

import blackboard
from blackboard import Agent, Context, RestartPolicy, RunOptions, Status, run_agent, supervise
from blackboard.errors import Unauthenticated
from tests.acceptance.shell import Running
from tests.page.browser import Readers
from tests.waiting import TIMEOUT_S

PRICE = "public/price"


class Purse(BaseModel):
    """What the buyer remembers."""

    paid: int = 0


class Buyer(Agent[Purse]):
    """Buys what a person approved."""

    async def step(self, ctx: Context[Purse]) -> None:
        """Ask, and buy."""
        decision = await ctx.approve("buy the machine?", facts=[PRICE])
        if decision:
            ctx.state.paid = decision.facts[PRICE]
        ctx.done("bought" if decision else f"not bought: {decision.reason}")


class Broken(Agent[Purse]):
    """Has a bug."""

    async def step(self, ctx: Context[Purse]) -> None:
        """Fail."""
        raise RuntimeError("no such supplier")


async def once(board: blackboard.Board, name: str = "buyer") -> Status:
    """A process of the buyer, until there is nothing to do."""
    return (await run_agent(Buyer(name), board, RunOptions(leaves=True))).status


async def typed(page: Any, text: str) -> None:
    """Type into the editor of the open document, at its end."""
    await page.click(".paper .cm-content")
    await page.keyboard.press("Control+End")
    await page.keyboard.type(text)


async def arrived(board: blackboard.Board, text: str) -> None:
    """Wait until the memo reads so."""
    async with board.document("public/memo") as memo, asyncio.timeout(TIMEOUT_S):
        changed = asyncio.Event()
        memo.text().observe(lambda _: changed.set())
        while str(memo.text()) != text:
            await changed.wait()
            changed.clear()


async def test_a_person_approves_what_an_agent_asks(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """The facts as asked and as they are, the answer with its note, and what became of it."""
    board = client.board("main")
    await board.put(PRICE, 1_200)
    assert await once(board) is Status.WAITING_FOR_APPROVAL
    page = await readers.open(service, "approvals")
    await page.wait_for_selector("[data-request]:has-text('buy the machine?')")
    await board.put(PRICE, 1_500)
    await page.wait_for_selector("td.bad:has-text('1500')")
    await page.click("text=Approve…")
    await page.wait_for_selector("dialog:has-text('changed since it was asked')")
    await page.fill("dialog input", "within the budget")
    await page.click("dialog button.main")
    await page.wait_for_selector(".said:has-text('Approved')")
    assert await once(board) is Status.WAITING_FOR_APPROVAL  # the fact changed: it asks again
    await page.wait_for_selector("[data-request]:has-text('asked 2 times')")
    await readers.picture(page, "approvals")
    await page.click("text=Reject…")
    await page.fill("dialog input", "too expensive")
    await page.click("dialog button.harmful")
    await page.wait_for_selector(".said:has-text('Rejected')")
    assert await once(board) is Status.DONE
    await page.wait_for_selector("[data-answered]:has-text('too expensive'):has-text('went on at')")
    await page.wait_for_selector("text=No agent waits for you")


async def test_nobody_answers_without_the_right(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """An agent sees what is asked; its page says why it cannot answer."""
    board = client.board("main")
    await board.put(PRICE, 1_200)
    await once(board)
    page = await readers.open_as(service, await client.token("clerk"), "approvals")
    await page.wait_for_selector("text=Answering needs the right")
    assert await page.locator("text=Approve…").count() == 0
    await readers.go(page, "service")
    await page.wait_for_selector("dt:has-text('Durability')")
    assert await page.locator("h2").count() == 0  # neither tokens nor audit


async def test_agents_are_shown_with_what_they_wait_for(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """One waits for an answer, one is attached, one crashes in a loop; and as it was before."""
    board = client.board("main")
    await board.put(PRICE, 1_200)
    before = await board.head()
    await once(board)
    policy = RestartPolicy(crashes_max=1)
    ended = await supervise(Broken("broken"), board, policy)
    assert ended.how == "crash_loop"
    page = await readers.open(service, "agents")
    await page.wait_for_selector("[data-agent='buyer'] .badge:has-text('waiting for approval')")
    await page.wait_for_selector("[data-agent='broken'] .badge.bad:has-text('crash loop')")
    await page.wait_for_selector("[data-agent='broken'] pre:has-text('no such supplier')")
    async with board.attach("reader") as me:
        await me.report("reading", "annual <b>reports</b>")
        await page.wait_for_selector("[data-agent='reader']:has-text('annual <b>reports</b>')")
        await readers.picture(page, "agents")
    await page.fill("input[type=range]", str(before.revision))
    await page.wait_for_selector("text=No agent was attached then")


async def test_leases_are_shown_with_their_queues(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Who holds, who waits, and who held at an earlier moment; a claimed task."""
    board = client.board("main")
    await board.put("public/tasks/1", "count the chairs")
    page = await readers.open(service, "locks")
    await page.wait_for_selector("text=Nobody holds anything")
    waiting = asyncio.Event()

    async def wait() -> None:
        async with board.as_agent("second").lock("public/deploy"):
            waiting.set()

    async with board.as_agent("first").lock("public/deploy"):
        # In a context of its own: what this task holds is not the other one's.
        second = asyncio.create_task(wait(), context=contextvars.Context())
        row = "[data-lease='public/deploy']"
        await page.wait_for_selector(f"{row}:has-text('first'):has-text('second')")
        held = (await board.head()).revision
        async with board.as_agent("worker").claim("public/tasks/*"):
            await page.wait_for_selector("[data-claim='public/tasks/1']:has-text('worker')")
            await readers.picture(page, "locks")
    await waiting.wait()
    await second
    await page.wait_for_selector("text=Nobody holds anything")
    await page.fill("input[type=range]", str(held))
    await page.wait_for_selector(f"{row}:has-text('first')")
    assert "second" in await page.inner_text(row)


async def test_people_and_agents_write_one_document(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Two pages and a Python agent: one text, everybody's cursors, and the text as it was."""
    board = client.board("main")
    async with board.as_agent("drafter").document("public/memo") as memo:
        memo.text().append("We should wait.")
        await memo.synced()
    before = (await board.head()).revision
    first = await readers.open(service, "documents")
    await first.click("a:has-text('public/memo')")
    await first.wait_for_selector(".paper .cm-content:has-text('We should wait.')")
    second = await readers.page()
    await second.goto(service.url.replace("ws", "http"))
    token = await client.token("kim")
    await second.fill("input[type=password]", token)
    await second.click("text=Open")
    await second.wait_for_selector("nav")
    await readers.go(second, "documents/public/memo")
    await second.wait_for_selector(".paper .cm-content:has-text('We should wait.')")
    await typed(second, " Says Kim.")
    await first.wait_for_selector(".paper .cm-content:has-text('Says Kim.')")
    await first.wait_for_selector(".paper .other[data-agent='kim']")
    async with board.as_agent("drafter").document("public/memo") as memo:
        assert "Says Kim." in str(memo.text())
        memo.text().replace(10, 4, "act")
        await memo.synced()
        await second.wait_for_selector(".facts:has-text('drafter')")
        await second.wait_for_selector(".paper .cm-content:has-text('We should act. Says Kim.')")
    await readers.picture(first, "document")
    await second.keyboard.press("Control+z")
    await first.wait_for_selector(".paper .cm-content:has-text('We should act.')")
    await first.fill("input[type=range]", str(before))
    await first.wait_for_selector("pre.value:has-text('We should wait.')")
    assert await first.inner_text("pre.value") == "We should wait."


async def test_a_restored_document_is_opened_again(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """After a restore the page shows what the board has, and may write on."""
    board = client.board("main")
    async with board.document("public/memo") as memo:
        memo.text().append("First.")
    await board.checkpoint("first")
    page = await readers.open(service, "documents/public/memo")
    await page.wait_for_selector(".paper .cm-content:has-text('First.')")
    await typed(page, " Second.")
    await arrived(board, "First. Second.")
    await board.restore("first")
    # The copy from before may show the restored text, too, for a moment; no edit of it counts.
    begun = (await board.head()).epoch.id
    await page.wait_for_selector(f"[data-epoch='{begun}'] .paper .cm-line:text-is('First.')")
    await typed(page, " Third.")
    await page.wait_for_selector(".paper .cm-content:has-text('First. Third.')")
    assert await page.locator("[role=alert]").count() == 0


async def test_admins_see_health_tokens_and_the_audit(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """A token that works, its end, and the refusal in the audit."""
    page = await readers.open(service, "service")
    await page.wait_for_selector(".fact:has-text('Durability'):has-text('memory')")
    await page.fill("form.tools input >> nth=0", "kim")
    await page.click("text=Make a token")
    token = await page.input_value(".token input")
    async with blackboard.connect(service.url, token=token) as kim:
        await kim.board("main").put("public/note", "hello")
    await page.click("text=Revoke all of it…")
    await page.click("dialog button.harmful")
    await page.wait_for_selector(".said:has-text('every token of kim')")
    with pytest.raises(Unauthenticated):
        async with blackboard.connect(service.url, token=token):
            pass
    await page.click("text=Read the audit")
    await page.wait_for_selector("table.audit td:has-text('revoke')")
    await readers.picture(page, "service")
