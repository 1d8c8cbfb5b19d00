"""Lanes: who committed when, cuts through all of them, what was abandoned; refusals in the feed."""

import asyncio
from typing import Any

import msgpack
import pytest

import blackboard
from blackboard.errors import Conflict, StaleEpoch
from tests.acceptance.shell import Running
from tests.page.browser import Readers, page_url
from tests.tiers import few_or_many

CROWD = 64
"""Commits that are on their way at once, to make a long board quickly."""


async def test_cuts_go_through_all_lanes(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """A lane per agent, a mark per commit; a checkpoint, a restore, and the future it left."""
    board = client.board("main")
    for number in range(6):
        await board.as_agent(f"agent-{number % 2}").put("public/plan", number)
    await board.checkpoint("agreed", note="by all")
    await board.put("public/plan", "a slip")
    await board.restore("agreed")
    await board.put("public/plan", "better")
    page = await readers.open(service, "lanes")
    await page.wait_for_selector(".lane-names [data-agent='agent-1']:has-text('3')")
    assert await page.locator(".lane-names li").count() == 3
    await page.wait_for_selector(
        ".cut text:has-text('agreed')", state="attached"
    )  # comes by itself
    assert await page.locator(".cut text:has-text('agreed')").count() == 1
    assert await page.locator(".cut.is-restore").count() == 1
    left = page.locator("[data-abandoned] title")
    head = await board.head()
    assert await left.text_content() == f"abandoned: revisions 8 to {head.revision - 2}"
    before = await page.locator(".marks circle").count()
    await board.as_agent("late").refresh()
    await board.as_agent("late").put("public/late", 1)
    await page.wait_for_selector(".lane-names [data-agent='late']")
    assert await page.locator(".marks circle").count() == before + 1
    await readers.picture(page, "lanes")
    await page.click("[data-checkpoint='agreed'] button")
    await page.wait_for_selector(".timebar output:has-text('7')")
    await readers.go(page, "tree/public/plan")
    await page.wait_for_selector("pre.value:text-is('5')")


async def fill(board: blackboard.Board, count: int) -> None:
    """Make `count` revisions, by three agents."""
    room = asyncio.Semaphore(CROWD)
    agents = [board.as_agent(f"agent-{number}") for number in range(3)]

    async def one(number: int) -> None:
        async with room:
            await agents[number % 3].put(f"public/{number % 100}", number)

    await asyncio.gather(*map(one, range(count)))


@few_or_many(2_000, 100_000)
async def test_a_long_board_is_counted_by_the_service(
    readers: Readers, service: Running, client: blackboard.Client, rounds: int
) -> None:
    """Each lane has a few hundred marks, however many commits; zooming in finds each of them."""
    await fill(client.board("main"), rounds)
    page = await readers.open(service, "lanes")
    total = f"{-(-rounds // 3):,}"
    await page.wait_for_selector(f".lane-names [data-agent='agent-0']:has-text('{total}')")
    assert await page.locator(".marks rect").count() <= 3 * 400
    box = await page.locator(".lanes-drawing svg").bounding_box()
    await page.mouse.move(box["x"] + 300, box["y"] + 60)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 360, box["y"] + 60)
    await page.mouse.up()
    await page.wait_for_selector(".tools:not(:has-text('revisions 1 to'))")
    for _ in range(12):
        if await page.locator(".marks circle").count():
            break
        shown = await page.inner_text(".tools .dim")
        await page.click("[aria-label='Zoom in']")
        await page.wait_for_function(
            "shown => document.querySelector('.tools .dim').innerText !== shown", arg=shown
        )
    assert 0 < await page.locator(".marks circle").count() <= 400


async def test_what_the_service_had_not_counted_yet_is_asked_for_again(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """It counts what is archived: on a busy machine that is behind, and no change may come to tell
    that it is there. Here its first answers are changed on the way."""
    await fill(client.board("main"), 10)
    page = await readers.page()
    shortened = 0

    def shorten(message: Any) -> Any:
        nonlocal shortened
        frame = msgpack.unpackb(message)
        for part in frame:
            result = part.get("result")
            if shortened < 5 and isinstance(result, dict) and "authors" in result:
                result["until"] = 4
                shortened += 1
        return msgpack.packb(frame)

    def between(socket: Any) -> None:
        service = socket.connect_to_server()
        service.on_message(lambda message: socket.send(shorten(message)))

    await page.route_web_socket("**/v1", between)
    await page.goto(page_url(service))
    await page.wait_for_selector("nav")
    await readers.go(page, "lanes")
    await page.wait_for_selector(".tools:has-text('revisions 1 to 10')")
    assert shortened == 5


async def test_the_feed_shows_what_was_refused(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Who overwrote whom, and who goes on from an abandoned future."""
    board = client.board("main")
    await board.as_agent("researcher").put("public/valuation", 2900)
    await board.checkpoint("agreed")
    page = await readers.open(service, "feed")
    stale = client.board("main").as_agent("architect")
    with pytest.raises(Conflict):
        await stale.put("public/valuation", 29, expected=0, note="a plan")
    await page.wait_for_selector("[data-refusal]:has-text('was written by researcher in between')")
    assert "a plan" in await page.inner_text("[data-refusal]")
    await board.restore("agreed")
    with pytest.raises(StaleEpoch):
        await stale.put("public/valuation", 30)
    await page.wait_for_selector("[data-refusal]:has-text('abandoned future')")
    await page.select_option("select >> nth=2", "refused")
    await page.wait_for_selector("[data-revision]", state="detached")
    assert await page.locator("[data-refusal]").count() == 2
    await readers.picture(page, "refusals")
