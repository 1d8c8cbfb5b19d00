"""The built documentation in a real browser: complete, searchable, and fit for a phone."""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.page.browser import Readers, chromium
from tests.source_tree import ROOT
from tools import site

PAGES = ("index", "when_to_use", "quickstart/team_memory", "howto/page", "limits", "architecture")
"""With a picture, wide tables, code, a drawing."""


class Files(SimpleHTTPRequestHandler):
    """Serves a folder, and says nothing."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Leave the report of the tests alone."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which that folder is served."""
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Files, directory=folder)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_the_site_is_complete_searchable_and_fits_a_phone(
    browser: Any, tmp_path: Path
) -> None:
    """One build for all of it. Nothing is asked of another host, and no console complains."""
    chromium()
    readers = Readers(browser)
    with served(site.build(ROOT, tmp_path)) as url:
        for width, height, scheme in ((1280, 900, "light"), (360, 740, "dark")):
            page = await readers.page(width=width, height=height, color_scheme=scheme)
            for name in PAGES:
                await page.goto(f"{url}/{name}.html", wait_until="networkidle")
                wide = await page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} at {width}"
                unseen = "[...document.images].filter(one => !one.naturalWidth).length"
                assert await page.evaluate(unseen) == 0, name
                await readers.picture(page, f"site-{name.replace('/', '-')}-{width}")
        await page.set_viewport_size({"width": 1280, "height": 900})
        await page.goto(f"{url}/index.html", wait_until="networkidle")
        await page.keyboard.press("Control+k")
        await page.get_by_placeholder("Search").fill("why the fence matters")
        await page.locator("a[href*='#why-the-fence-matters']").first.click()
        await page.wait_for_url("**/howto/locks.html**")
        await readers.close()
    assert readers.errors == []
    assert readers.hosts == {url.removeprefix("http://")}
