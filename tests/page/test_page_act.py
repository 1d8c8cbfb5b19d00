"""Acting from the page: a preview, a question that names what changes, and what became of it."""

import asyncio
import os
import signal
import sys

import pytest

import blackboard
from blackboard.errors import BoardFrozen
from tests.acceptance.shell import Running
from tests.page.browser import Readers

GOES_ON = """
import asyncio, sys, blackboard
async def main():
    async with blackboard.connect(sys.argv[1], token=sys.argv[2]) as client:
        board = client.board("main")
        await board.put("public/plan", "buy everything")
        print("wrote", flush=True)
        sys.stdin.readline()
        try:
            await board.put("public/plan", "buy more")
        except blackboard.errors.StaleEpoch as error:
            print("refused:", error.cause, flush=True)
asyncio.run(main())
"""
"""An agent that writes, is held up, and goes on as if nothing had happened."""


async def test_a_team_is_taken_back_with_the_mouse(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Look back, compare, restore; a process that was frozen meanwhile is refused."""
    board = client.board("main")
    await board.put("public/plan", "rent")
    await board.checkpoint("agreed", note="by all")
    command = [sys.executable, "-c", GOES_ON, service.url, await client.token("buyer")]
    pipe = asyncio.subprocess.PIPE
    agent = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert agent.stdout is not None
    assert await agent.stdout.readline() == b"wrote\n"
    os.kill(agent.pid, signal.SIGSTOP)

    page = await readers.open(service, "tree/public/plan")
    await page.wait_for_selector("pre.value:has-text('buy everything')")
    # The slider reaches as far as the page has come, which may be less than the value tells.
    newest = (await board.head()).revision
    await page.wait_for_selector(f"input[type=range][max='{newest}']")
    await page.fill("input[type=range]", "2")
    await page.wait_for_selector("pre.value:text-is('rent')")
    await readers.go(page, "act")
    await page.wait_for_selector(".preview-diff [data-key='public/plan'] ins:has-text('rent')")
    await page.click("text=Take it back…")
    await page.wait_for_selector("dialog h2:has-text('Take board main back to revision 2?')")
    await readers.picture(page, "question")
    await page.click("dialog >> text=Cancel")
    assert await board.get("public/plan") == "buy everything"
    await page.click("text=Take it back…")
    await page.fill("dialog input", "we agreed on something else")
    await page.click("dialog >> text=Take it back to revision 2")
    await page.wait_for_selector(".said:has-text('is as of revision 2 again')")
    assert await board.get("public/plan") == "rent"

    await readers.go(page, "feed")
    await page.wait_for_selector(".is-cut:has-text('we agreed on something else')")
    os.kill(agent.pid, signal.SIGCONT)
    output, _ = await agent.communicate(b"\n")
    assert output == b"refused: restore\n"
    await page.wait_for_selector("[data-refusal]:has-text('buyer'):has-text('abandoned future')")


async def test_a_checkpoint_a_branch_and_a_freeze(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Each is asked about, done, and told."""
    board = client.board("main")
    await board.put("public/plan", "rent")
    page = await readers.open(service, "act")
    await page.fill("input[placeholder='before-the-slip']", "agreed")
    await page.click("text=Take it…")
    await page.fill("dialog input", "by all")
    await page.click("dialog >> text=Take it")
    await page.wait_for_selector(".said:has-text('Checkpoint agreed is revision 2')")
    (taken,) = await board.checkpoints()
    assert (taken.name, taken.note, taken.by) == ("agreed", "by all", "operator")

    await page.wait_for_selector("text=Nothing would change")
    await page.click("text=Freeze…")
    await page.click("dialog >> text=Freeze it")
    await page.wait_for_selector("h2:has-text('The board is frozen')")
    with pytest.raises(BoardFrozen):
        await board.put("public/plan", "buy")
    await page.click("text=Thaw…")
    await page.click("dialog >> text=Thaw it")
    await page.wait_for_selector("text=For an incident")
    await board.put("public/plan", "buy")

    await page.click("text=See what would go…")
    await page.wait_for_selector("dialog:has-text('keeps all')")
    await page.click("dialog >> text=Cancel")
    await page.fill("[aria-label='Name of the new board']", "second")
    await page.click("text=Branch…")
    await page.click("dialog >> text=Make board second")
    await page.wait_for_selector("nav a[href='#/second/lanes']")
    assert await client.board("second").get("public/plan") == "rent"


async def test_a_key_is_put_and_deleted(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Only what was shown is replaced: a change that came in between is kept."""
    board = client.board("main")
    await board.put("public/plan", {"site": "north"})
    page = await readers.open(service, "tree/public/plan")
    await page.click(".detail >> text=Edit")
    await page.fill("textarea", "{no json")
    await page.click("text=Put…")
    await page.wait_for_selector("[role=alert]:has-text('That is no JSON')")
    await page.fill("textarea", '{"site": "south"}')
    await page.click("text=Put…")
    await page.wait_for_selector("dialog ins:has-text('south')")
    await page.click("dialog button.main")
    await page.wait_for_selector(".said:has-text('public/plan is at revision 2')")
    assert await board.get("public/plan") == {"site": "south"}

    await page.click(".detail >> text=Delete…")
    await page.wait_for_selector("dialog h2:has-text('Delete public/plan?')")
    await board.put("public/plan", "another")
    await page.click("dialog button.harmful")
    await page.wait_for_selector(".said:has-text('changed in between')")
    assert await board.get("public/plan") == "another"


async def test_a_reader_can_only_look(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """What a token does not allow is not offered."""
    await client.board("main").put("public/plan", "rent")
    page = await readers.page()
    await page.goto(service.url.replace("ws", "http"))
    await page.fill("input[type=password]", await client.token("kim", grants=["public/**=read"]))
    await page.click("text=Open")
    await page.wait_for_selector(".who:has-text('kim')")
    await readers.go(page, "act")
    await page.wait_for_selector("text=Your token can read")
    await readers.go(page, "tree/public/plan")
    await page.wait_for_selector("pre.value:has-text('rent')")
    assert await page.locator("text=Edit").count() == 0
