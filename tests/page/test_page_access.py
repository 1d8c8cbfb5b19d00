"""The page for everybody: screen readers, keyboards, narrow windows, dark rooms."""

from pathlib import Path
from typing import Any

import pytest

import blackboard
from tests.acceptance.shell import Running
from tests.page.browser import Readers, chromium

VIEWS = (
    "lanes",
    "feed",
    "tree/public/plan",
    "compare",
    "documents/public/memo",
    "agents",
    "approvals",
    "locks",
    "service",
    "act",
)
QUESTION = {"question": "buy it?", "facts": [{"key": "public/plan", "revision": 1, "value": "buy"}]}


async def violations(page: Any) -> list[str]:
    """What axe-core complains of: the rule, and the elements."""
    chromium()  # the package with axe-core is there from now on
    import axe_playwright_python

    await page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text())
    found = await page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


async def shown(readers: Readers, page: Any, view: str) -> None:
    """Go to a view, and wait until it is there: a document, until it is open."""
    await readers.go(page, view)
    await page.wait_for_selector("main .view")
    if view.startswith("documents/"):
        await page.wait_for_selector(".paper .cm-content")


async def fill(board: blackboard.Board) -> None:
    """Something for each view to show."""
    async with board.step("buyer", note="first plan") as step:
        step.put("public/plan", "buy")
        step.put("private/buyer/notes", {"why": "cheap"})
        step.put("public/~approvals/buyer/1", QUESTION)
        step.put("public/~supervision/buyer", {"state": "crash_loop", "crashes": 2, "error": "E"})
    async with board.document("public/memo") as memo:
        memo.text().append("We should wait.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing(
    readers: Readers, service: Running, client: blackboard.Client, scheme: str
) -> None:
    """In each view, in both schemes; now and in the past."""
    board = client.board("main")
    await fill(board)
    page = await readers.open(service, color_scheme=scheme)
    async with board.lock("public/deploy"):
        for view in VIEWS:
            await shown(readers, page, view)
            await page.wait_for_load_state("networkidle")
            assert await violations(page) == [], view
            await readers.picture(page, f"{view.split('/')[0]}-{scheme}")
    await page.fill("input[type=range]", "1")
    await page.wait_for_selector(".is-past")
    assert await violations(page) == []
    await page.click("text=Leave")
    await page.wait_for_selector("input[type=password]")
    assert await violations(page) == []


@pytest.mark.parametrize(("width", "height"), [(360, 640), (1280, 800), (3840, 2160)])
async def test_nothing_hangs_over(
    readers: Readers, service: Running, client: blackboard.Client, width: int, height: int
) -> None:
    """From a telephone to a wall: the page never scrolls sideways, and each view is reached."""
    await fill(client.board("main"))
    page = await readers.open(service, width=width, height=height)
    for view in VIEWS:
        await shown(readers, page, view)
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, view
        assert await page.locator("nav a[aria-current]").is_visible()
        await readers.picture(page, f"{view.split('/')[0]}-{width}")


async def test_a_keyboard_is_enough(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """From the skip link to an answer: reject what an agent asked, with Tab and Enter alone."""
    board = client.board("main")
    await fill(board)
    page = await readers.open(service, "approvals")
    await page.wait_for_selector("[data-request]")
    await page.keyboard.press("Tab")
    assert "Skip" in await page.inner_text(":focus")
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"
    for _ in range(10):
        await page.keyboard.press("Tab")
        if "Reject" in await page.inner_text(":focus"):
            break
    await page.keyboard.press("Enter")
    await page.wait_for_selector("dialog[open] input")
    await page.focus("dialog input")
    await page.keyboard.type("not now")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".said:has-text('Rejected')")
    answer = await board.get("public/~decisions/buyer/1")
    assert answer == {"approved": False, "request": 1, "reason": "not now"}
    await page.emulate_media(reduced_motion="reduce")
    assert (
        await page.evaluate("getComputedStyle(document.querySelector('.said p')).animationName")
        == "none"
    )
