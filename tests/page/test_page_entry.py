"""The way into the page: the one-time link, tokens, what is sent, and to whom."""

from typing import Any

import httpx
import pytest
import websockets

import blackboard
from blackboard.wire.frames import SUBPROTOCOLS
from tests.acceptance.shell import TIMEOUT_S, Running, Shell
from tests.page.browser import Readers, page_url


def base(service: Running) -> str:
    """The page's address without the link."""
    return page_url(service).partition("#")[0]


async def test_the_link_lets_in_once(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """A second reader is told so, and gets in with a token; leaving forgets it."""
    await client.board("main").put("public/plan", "buy")
    page = await readers.open(service, "tree/public/plan")
    await page.wait_for_selector("pre.value:has-text('buy')")
    assert "once" not in page.url
    await page.reload()
    await page.wait_for_selector("pre.value:has-text('buy')")

    readers.errors.clear()
    late = await readers.page()
    await late.goto(page_url(service))
    await late.wait_for_selector("[role=alert]:has-text('used already')")
    assert [error for error in readers.errors if "403" not in error] == []
    readers.errors.clear()
    await late.fill("input[type=password]", "no token at all")
    await late.click("text=Open")
    await late.wait_for_selector("[role=alert]:has-text('does not take this token')")
    await late.fill("input[type=password]", await client.token("kim"))
    await late.click("text=Open")
    await late.wait_for_selector(".who:has-text('kim')")
    await late.click("text=Leave")
    await late.wait_for_selector("input[type=password]")
    assert await late.evaluate("sessionStorage.length + localStorage.length") == 0


async def test_a_token_is_kept_while_the_service_does_not_answer(
    readers: Readers, service: Running
) -> None:
    """The link that brought it is used up: without the token, its reader would be locked out."""
    page = await readers.page()
    away = True

    async def reach(socket: Any) -> None:
        if away:
            await socket.close(code=1013)
        else:
            socket.connect_to_server()

    await page.route_web_socket("**/v1", reach)
    await page.goto(page_url(service))
    await page.wait_for_selector("[role=alert]:has-text('Load this page again')", timeout=60_000)
    away = False
    await page.reload()
    await page.wait_for_selector("nav")


async def test_nothing_of_another_board_is_shown(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """What came of a board just before its reader turned to another one, and was not shown yet."""
    busy = client.board("main")
    await client.board("calm").put("public/calm", 1)
    await busy.put("public/busy", 0)
    page = await readers.open(service)
    await page.wait_for_selector(".revision:has-text('public/busy')")
    shown = await page.evaluate(
        """async () => {
          const { look, rows, take } = await import('./page/store.js')
          const empty = { time_ms: 1, author: 'ann', note: '', changes: [], epoch: null }
          const seen = new Set()
          const until = async isIt => {
            do {
              await new Promise(requestAnimationFrame)
              for (const { revision } of rows) seen.add(revision)
            } while (!rows.some(isIt))
          }
          take({ revision: 77, ...empty })
          await new Promise(resolve => queueMicrotask(resolve))
          void look('calm')
          await until(row => row.changes.some(({ key }) => key === 'public/calm'))
          take({ revision: 78, ...empty }) // what still waited before it would be shown with it
          await until(row => row.revision === 78)
          return [...seen]
        }"""
    )
    assert 77 not in shown
    assert 78 in shown


async def test_a_link_is_kept_while_the_service_does_not_answer(
    readers: Readers, service: Running
) -> None:
    """Nobody has used it: its reader loads the page again."""
    page = await readers.page()
    await page.route("**/page/enter", lambda route: route.abort())
    await page.goto(page_url(service))
    await page.wait_for_selector("[role=alert]:has-text('does not answer')")
    readers.errors.clear()
    await page.unroute("**/page/enter")
    await page.reload()
    await page.wait_for_selector("nav")
    assert "once" not in page.url


async def test_a_link_that_is_opened_in_the_tab_of_another_reader_lets_in(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Only the fragment of the address changes then, and the browser loads nothing."""
    page = await readers.page()
    await page.goto(base(service))
    await page.fill("input[type=password]", await client.token("kim"))
    await page.click("text=Open")
    await page.wait_for_selector(".who:has-text('kim')")
    await page.evaluate("code => { location.hash = code }", page_url(service).partition("#")[2])
    await page.wait_for_selector(".who:has-text('operator')")
    await page.wait_for_selector("nav a[aria-current]")
    assert "once" not in page.url


async def test_nothing_is_asked_of_another_host(readers: Readers, service: Running) -> None:
    """And the browser would not allow it."""
    await readers.open(service)
    assert readers.hosts == {base(service).split("/")[2]}
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
        for path in ("", "page/app.js", "page/none.js"):
            policy = (await http.get(base(service) + path)).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy


async def test_a_foreign_page_cannot_connect(service: Running) -> None:
    """Only the origin that sent the page may."""
    for origin, is_let_in in ((base(service).rstrip("/"), True), ("http://127.0.0.1:1", False)):
        connecting = websockets.connect(
            f"{service.url}/v1",
            origin=websockets.Origin(origin),
            subprotocols=[websockets.Subprotocol(name) for name in SUBPROTOCOLS],
        )
        if is_let_in:
            await (await connecting).close()
        else:
            with pytest.raises(websockets.InvalidStatus, match="403"):
                await connecting


async def test_a_service_can_do_without(shell: Shell) -> None:
    """`--no-page`: nothing is at /, and no page may connect."""
    with shell.service("--no-page") as running:
        assert not any(line.startswith("   page ") for line in running.lines)
        http = running.url.replace("ws", "http")
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as asking:
            assert (await asking.get(http)).status_code == 404
            assert (await asking.get(f"{http}/page/app.js")).status_code == 404
        with pytest.raises(websockets.InvalidStatus, match="403"):
            await websockets.connect(f"{running.url}/v1", origin=websockets.Origin(http))


async def test_it_shows_what_the_token_may_see(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Private namespaces of others are not there: neither keys, nor values, nor changes."""
    board = client.board("main")
    await board.put("private/researcher/source", "10-K")
    await board.put("public/plan", "buy")
    page = await readers.open_as(service, await client.token("kim"), "feed")
    await page.wait_for_selector("[data-revision]:has-text('public/plan')")
    await board.put("private/researcher/source", "10-K, p. 31")
    await board.put("public/plan", "rent")
    await page.wait_for_selector("[data-revision]:has-text('rent')")
    assert "researcher" not in await page.inner_text("body")
    await readers.go(page, "tree")
    await page.wait_for_selector("[data-path='public']")
    assert await page.locator("[data-path='private']").count() == 0
