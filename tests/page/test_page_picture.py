"""The picture in the README: the page over a team that was taken back.

After a change of the page, `make pictures` copies it to docs/page.png.
"""

import random

import blackboard
from tests.acceptance.shell import Running
from tests.page.browser import SCREENSHOTS, Readers
from tests.source_tree import ROOT

TEAM = ("architect", "researcher", "reviewer", "critic")
PICTURE_BYTES_MAX = 200_000
SIZE = {"width": 1280, "height": 560}


async def work(board: blackboard.Board, dice: random.Random, steps: int) -> None:
    """Some steps of the team, in no particular order."""
    for number in range(steps):
        who = dice.choice(TEAM)
        agent = board.as_agent(who)
        await agent.refresh()
        await agent.put(f"public/{who}/page-{number % 5}", {"draft": number, "by": who})


async def test_the_picture_is_of_the_page(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """A checkpoint, a slip that is believed, a restore, and a better future."""
    board, dice = client.board("main"), random.Random(7)
    await work(board, dice, 22)
    await board.checkpoint("before-the-slip", note="all drafts agree")
    await board.put("public/valuation", {"usd_bn": 29})
    await work(board, dice, 14)
    await board.restore("before-the-slip", note="a decimal point had slipped")
    await work(board, dice, 16)
    await board.checkpoint("reviewed", note="with the right number")
    await work(board, dice, 5)
    page = await readers.open(service, "lanes", **SIZE)
    await page.wait_for_selector(".lane-names [data-agent='critic']")
    await page.wait_for_selector("[data-checkpoint='reviewed']")
    await page.wait_for_selector(".timebar output:has-text('now')")
    await readers.picture(page, "page")
    for picture in (SCREENSHOTS / "page.png", ROOT / "docs/page.png"):
        assert 10_000 < picture.stat().st_size < PICTURE_BYTES_MAX
    await page.emulate_media(color_scheme="dark")
    await readers.picture(page, "page-dark")
    for width, height, name in ((360, 740, "phone"), (3840, 2160, "wall")):
        await page.set_viewport_size({"width": width, "height": height})
        for view in ("lanes", "feed", "tree", "compare", "act"):
            await readers.go(page, view)
            wide = await page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{view} at {width}"
            await readers.picture(page, f"{name}-{view}")
