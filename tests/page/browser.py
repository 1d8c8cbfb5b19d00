"""A real browser for the tests of the page: one for a module, a new context for each reader."""

import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from tests.acceptance.shell import Running
from tests.source_tree import ROOT

SCREENSHOTS = ROOT / "build/screenshots"
PATIENCE_MS = 60_000
"""How long the browser waits for what a page shall show, on a machine that does other things."""
LONG_TASK_US_MAX = 200_000
"""The longest task of the tab, of processor time: the machine has other things to do."""
_LOST = re.compile(r"WebSocket connection to .* failed|net::ERR_CONNECTION_REFUSED")
"""What Chromium itself writes while a service is away: no page can keep it from that."""


@cache
def chromium() -> str:
    """The path of a browser; skips the test where none can be had, with the reason."""
    if os.name != "posix":
        pytest.skip("the tests of the page need bash")
    command = [ROOT / "tools/get_browser.sh"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    found = done.stdout.strip()
    if done.returncode != 0 or not found:
        pytest.skip(f"no browser: {done.stderr.strip()[-300:]}")
    return found


def page_url(service: Running) -> str:
    """The page's address in a service's banner, with the one-time link."""
    return next(line.split()[1] for line in service.lines if line.startswith("   page "))


@dataclass
class Readers:
    """People at pages of one browser. `errors` is what their consoles complained of."""

    browser: Any
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    may_be_away: bool = False
    """Whether the service goes away during the test."""

    async def page(self, *, width: int = 1280, height: int = 800, **options: Any) -> Any:
        """A new page of a new reader, who has no cookies and no storage."""
        context = await self.browser.new_context(
            viewport={"width": width, "height": height}, **options
        )
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.errors.append(f"{error}\n{error.stack}"))
        page.on("console", self._heard)
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        return page

    async def open(self, service: Running, view: str = "feed", **options: Any) -> Any:
        """The page, let in by the link of the banner, at a view of the board `main`."""
        page = await self.page(**options)
        await page.goto(page_url(service))
        await page.wait_for_selector("nav")
        await self.go(page, view)
        return page

    async def open_as(self, service: Running, token: str, view: str) -> Any:
        """The page, let in by a token that was entered, at a view of the board `main`."""
        page = await self.page()
        await page.goto(service.url.replace("ws", "http"))
        await page.fill("input[type=password]", token)
        await page.click("text=Open")
        await page.wait_for_selector("nav")
        await self.go(page, view)
        return page

    async def go(self, page: Any, view: str, board: str = "main") -> None:
        """Follow the link to a view."""
        await page.evaluate("path => { location.hash = path }", f"#/{board}/{view}")
        await page.wait_for_selector(f"nav a[aria-current][href='#/{board}/{view.split('/')[0]}']")

    async def picture(self, page: Any, name: str) -> None:
        """Keep a screenshot, for people to look at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=SCREENSHOTS / f"{name}.png")

    async def close(self) -> None:
        """Everybody leaves."""
        for context in self.browser.contexts:
            await context.close()

    def _heard(self, message: Any) -> None:
        is_bad = message.type in ("error", "warning")
        if is_bad and not (self.may_be_away and _LOST.search(message.text)):
            self.errors.append(f"{message.type}: {message.text}")


@asynccontextmanager
async def launched() -> AsyncIterator[Any]:
    """A browser, until the block ends."""
    path = chromium()
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        # The sandbox needs rights that a test in a container does not have; it opens only our page.
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()
