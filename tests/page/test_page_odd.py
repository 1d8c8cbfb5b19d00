"""What is odd: hostile records of agents, what happened unseen, a reader who goes elsewhere."""

from typing import Any

import blackboard
from tests.acceptance.shell import Running
from tests.page.browser import Readers

BEYOND = 2**53 + 1
"""An integer that no number of a browser is."""


async def opened_key(readers: Readers, service: Running, key: str) -> Any:
    """The page, at a key of the board `main`."""
    page = await readers.open(service, f"tree/{key}")
    await page.wait_for_selector(f"[data-key='{key}'] .facts")
    return page


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


async def test_what_json_does_not_hold_is_not_edited_as_json(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """It would be another value afterwards, without a word."""
    board = client.board("main")
    await board.put("public/big", {"ids": [BEYOND]})
    await board.put("public/bytes", b"x")
    await board.put("public/json", {"a": [1, None, "x"]})
    page = await opened_key(readers, service, "public/json")
    await page.wait_for_selector("button:has-text('Edit')")
    for key in ("big", "bytes"):
        await readers.go(page, f"tree/public/{key}")
        await page.wait_for_selector("text=change it from a program")
        assert await page.locator("button:has-text('Edit')").count() == 0
