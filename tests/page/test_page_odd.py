"""What is odd: hostile records of agents, what happened unseen, a reader who goes elsewhere."""

import blackboard
from tests.acceptance.shell import Running
from tests.page.browser import Readers


async def test_a_comparison_from_now_follows(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    board = client.board("main")
    await board.put("public/plan", "buy")
    await board.checkpoint("cut")
    page = await readers.open(service, "compare")
    await page.wait_for_selector("text=Nothing that you may see is different")
    await page.click("text=Swap")
    await page.wait_for_selector("text=Nothing that you may see is different")
    await board.put("public/plan", "rent")
    await page.wait_for_selector("[data-key='public/plan']")
