"""What goes away: the token, the service, room to breathe. The page says so, and comes back."""

import json
import signal
import time

import blackboard
from tests.acceptance.shell import Running, Shell
from tests.page.browser import LONG_TASK_US_MAX, Readers
from tests.tiers import few_or_many

HEAP_GROWTH_MAX = 24 * 1024 * 1024
"""Of the page's memory after a flood: its feed is full then, and its tree is not larger."""
CHANGES_AT_ONCE = 100
"""Operations of each commit of a flood."""


async def test_a_token_that_ends_is_asked_for_again(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Expired or revoked: one sentence, and the way in again."""
    page = await readers.page()
    await page.goto(service.url.replace("ws", "http"))
    await page.fill("input[type=password]", await client.token("kim", ttl_ms=20_000))
    await page.click("text=Open")
    await page.wait_for_selector(".who:has-text('kim')")
    await page.wait_for_selector("[role=alert]:has-text('does not take this token')")
    await page.fill("input[type=password]", await client.token("kim"))
    await page.click("text=Open")
    await page.wait_for_selector(".who:has-text('kim')")
    await client.revoke(principal="kim")
    await page.wait_for_selector("[role=alert]:has-text('revoked')")
    assert await page.evaluate("sessionStorage.length") == 0


async def test_a_service_that_comes_back_is_found(
    readers: Readers, service: Running, shell: Shell
) -> None:
    """With the same board, at the same address: the page goes on without being reloaded."""
    readers.may_be_away = True
    page = await readers.open(service, "feed")
    shell.out("set", "public/plan", "buy")
    await page.wait_for_selector("[data-revision='1']")
    port = service.port
    service.end(signal.SIGTERM)
    await page.wait_for_selector(".dot:not(.is-on)")
    with shell.service("--level", "memory", port=port):
        await page.wait_for_selector(".dot.is-on")
        shell.out("set", "public/plan", "rent")
        await page.wait_for_selector("[data-revision]:has-text('rent')")
        await readers.close()


@few_or_many(2, 10)
async def test_a_flood_does_not_freeze_the_tab(
    readers: Readers, service: Running, client: blackboard.Client, rounds: int
) -> None:
    """Ten thousand changes per second for `rounds` seconds: no long task, no growing memory."""
    board = client.board("main")
    page = await readers.open(service, "feed")
    await flood(board, 0.5)
    await page.wait_for_selector("[data-revision]")
    debugger = await page.context.new_cdp_session(page)
    await debugger.send("HeapProfiler.enable")
    await debugger.send("HeapProfiler.collectGarbage")
    before = (await debugger.send("Runtime.getHeapUsage"))["usedSize"]
    await readers.browser.start_tracing(page=page, categories=["toplevel"])
    await flood(board, rounds)
    head = (await board.head()).revision
    await page.wait_for_selector(f".timebar output:has-text('{head:,}')")
    await readers.go(page, "tree")
    await page.wait_for_selector("[data-path='public/flood']")
    events = json.loads(await readers.browser.stop_tracing())["traceEvents"]
    assert max(event.get("tdur", 0) for event in events) < LONG_TASK_US_MAX
    await debugger.send("HeapProfiler.collectGarbage")
    after = (await debugger.send("Runtime.getHeapUsage"))["usedSize"]
    assert after - before < HEAP_GROWTH_MAX


async def flood(board: blackboard.Board, seconds: float) -> None:
    """Ten thousand changes per second, or as many as the service takes."""
    made, began_s = 0, time.monotonic()
    while (passed_s := time.monotonic() - began_s) < seconds:
        if made > 10_000 * passed_s:
            await board.head()  # lets the others have a turn
            continue
        ops = [
            blackboard.ops.Increment(f"public/flood/{number}", 1)
            for number in range(made % 1_000, made % 1_000 + CHANGES_AT_ONCE)
        ]
        await board.commit(ops)
        made += len(ops)
