"""Answers that people give on the page: those that count are taken, and the newest are shown."""

import blackboard
from blackboard.core.access import Narrowing
from blackboard.integrity import tokens
from tests.acceptance.shell import Running
from tests.page.browser import Readers

ANSWERS = 1030
"""More than one page of the log has."""


async def test_an_odd_request_can_be_answered(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Half of a character in a note, what is no key, or a hidden fact, would be refused."""
    board = client.board("main")
    await board.put("private/ada/budget", 3)
    keys = ["public/..", "private/ada/budget", "public/\u202ea"]
    facts = [{"key": key, "revision": 1, "value": 3} for key in keys]
    question = "x" * 189 + "😀?"
    value = {"question": question, "facts": [*facts, {"key": "public/n", "revision": 1.5}]}
    await board.as_agent("ada").put("public/~approvals/ada/1", value)
    token = await client.token("kim", grants=["public/**=read,approve"])
    page = await readers.open_as(service, token, "approvals")
    await page.wait_for_selector("[data-request] a:has-text('public/\\\\u202ea')")
    await page.click("text=Approve…")
    await page.click("dialog button.main")
    await page.wait_for_selector(".said:has-text('Approved at revision')")
    assert (await board.log())[-1].note == f"approved: {'x' * 189}😀"


async def test_who_cannot_answer_is_not_asked(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """A name on the account of the agent, and somebody who is not among the approvers."""
    token = await client.token("ada", grants=["public/**=read,write,append,approve"])
    async with blackboard.connect(service.url, token=token) as other:
        for name, approvers in (("own", []), ("other", ["boss"])):
            await blackboard.ask(other.board("main"), name, "spend it?", approvers=approvers)
    page = await readers.open_as(
        service, tokens.attenuate(token, Narrowing("ada.page")), "approvals"
    )
    await page.wait_for_selector("[data-request='own']:has-text('their own request')")
    token = await client.token("kim", grants=["public/**=read,approve"])
    page = await readers.open_as(service, token, "approvals")
    await page.wait_for_selector("[data-request='other']:has-text('would not count')")
    await page.wait_for_selector("[data-request='own'] button.main")


async def test_the_newest_of_many_answers_are_shown(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    board = client.board("main")
    for number in range(ANSWERS):
        decision = {"approved": True, "request": 1, "reason": f"reason {number}"}
        await board.put("public/~decisions/ada/1", decision)
    page = await readers.open(service, "approvals")
    await page.wait_for_selector(f"[data-answered]:has-text('reason {ANSWERS - 1}')")
