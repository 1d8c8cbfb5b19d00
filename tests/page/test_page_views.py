"""What the views show: the feed, the tree, values, history, the past."""

import json

import blackboard
from blackboard.wire.codec import encode_value
from tests.acceptance.shell import Running
from tests.page.browser import LONG_TASK_US_MAX, Readers
from tests.tiers import few_or_many

ONE = encode_value(1)
SCROLLED = """([top, path]) => {
  document.querySelector('.lines').scrollTop = top
  return document.querySelector(`[data-path='${path}']`) !== null
}"""
"""Scrolls as far as it goes, and says whether a key came into sight."""

COUNTED = """async change => {
  const [{ html, render }, { useHits }, { onChange, rows, take }] = await Promise.all(
    ['vendor/preact.js', 'parts.js', 'store.js'].map(name => import(`/page/${name}`)))
  let hits = -1
  function Probe () {
    hits = useHits(row => row.changes.some(({ key }) => key === change))
    return html`<i>${hits}</i>`
  }
  const place = document.createElement('div')
  render(html`<${Probe} />`, place)
  await new Promise(requestAnimationFrame)
  const told = new Promise(resolve => { const end = onChange(() => { end(); resolve(0) }) })
  const changeOf = i => ({ kind: 'put', key: `public/x${i}`, value: i })
  const changes = Array.from({ length: 20 }, (_, i) => changeOf(i))
  take({ revision: 2, time_ms: 1, author: 'ada', note: '', changes, epoch: null })
  await told
  await new Promise(requestAnimationFrame)
  const kept = rows.at(-1).changes.length
  render(null, place)
  return [hits, kept]
}"""
"""How often a view loads again that waits for a change of a key, when a revision with twenty
changes comes; and how many of these the feed keeps."""

HOSTILE = {
    "markup": "<script>document.title = 'taken'</script><img src=x onerror=alert(1)>",
    "bidi": "safe \u202e live \u2066 gone",
    "control": "a\u0000b\u001b[31mc",
}


def deep(levels: int) -> object:
    """Lists inside lists."""
    value: object = "bottom"
    for _ in range(levels):
        value = [value]
    return value


async def test_a_board_that_was_made_elsewhere_can_be_chosen(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """The list is asked for when somebody is about to choose, by mouse or by keyboard."""
    await client.board("main").put("public/a", 1)
    page = await readers.open(service)
    await page.wait_for_selector("[data-revision='1']")  # by then it has asked which there are
    choice = page.locator(".board select")
    for name, turn in (("later", choice.hover), ("latest", choice.focus)):
        await client.board(name).put("public/of", name)
        assert await choice.locator(f"option:text-is('{name}')").count() == 0
        await turn()
        await choice.locator(f"option:text-is('{name}')").wait_for(state="attached")
    await choice.select_option("later")
    await page.wait_for_selector(".revision:has-text('public/of')")


async def test_a_large_revision_is_looked_through(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """A view loads again for what it waits for, and for nothing else."""
    await client.board("main").put("public/first", 1)
    page = await readers.open(service)
    await page.wait_for_selector("[data-revision='1']")
    assert await page.evaluate(COUNTED, "public/x19") == [1, 12]
    assert await page.evaluate(COUNTED, "public/other") == [0, 12]


async def test_the_feed_follows(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """A commit arrives by itself; filters and pause hold others back."""
    board = client.board("main")
    await board.put("public/first", 1)
    page = await readers.open(service)
    await page.wait_for_selector("[data-revision='1']")
    async with board.step("researcher", note="while you look") as step:
        step.put("public/second", {"usd_bn": 2900})
    await page.wait_for_selector("[data-revision='2']:has-text('while you look')")
    await page.select_option("select >> nth=1", "researcher")
    await page.wait_for_selector("[data-revision='1']", state="detached")
    await page.select_option("select >> nth=1", "")
    await page.click("text=Pause")
    await board.put("public/third", 3)
    await page.wait_for_selector(".timebar output:has-text('3')")
    assert await page.locator("[data-revision='3']").count() == 0
    await page.click("text=Go on")
    await page.wait_for_selector("[data-revision='3']")
    await readers.picture(page, "feed")


async def test_the_tree_shows_a_key_at_any_moment(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Now and then: the value, its history, what changed by words, and what it rests on."""
    board = client.board("main")
    await board.put("public/valuation", {"usd_bn": 2900})
    async with board.step("architect", note="first plan") as step:
        await step.get("public/valuation")
        step.put("public/plan", "We should buy the northern site.")
    async with board.step("architect") as step:
        await step.get("public/valuation")
        step.put("public/plan", "We should rent the northern site.")
    page = await readers.open(service, "tree/public/plan")
    await page.wait_for_selector("pre.value:has-text('rent')")
    await page.click("role=tab[name=History]")
    await page.wait_for_selector("ins:has-text('rent')")
    assert await page.inner_text("del") == "buy"
    await page.click("role=tab[name=Why]")
    await page.wait_for_selector(".why a:has-text('valuation')")
    await page.click("role=tab[name=Value]")
    await page.wait_for_selector("input[type=range][max='3']")  # as the feed comes to know it
    await page.fill("input[type=range]", "2")
    await page.wait_for_selector("pre.value:has-text('buy')")
    await page.fill("input[type=range]", "1")
    await page.wait_for_selector("text=The key was not there then")
    await page.click("text=Back to now")
    await page.wait_for_selector("pre.value:has-text('rent')")
    await board.put("public/plan", "We should wait.")
    await page.wait_for_selector("pre.value:has-text('wait')")
    await readers.picture(page, "tree")


async def test_hostile_values_are_text(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Markup, characters that turn or hide others, a megabyte, 60 levels."""
    board = client.board("main")
    values = {**HOSTILE, "long": "x" * 1_000_000, "deep": deep(60)}
    for name, value in values.items():
        await board.put(f"public/{name}", value)
    page = await readers.open(service)
    await page.wait_for_selector("[data-revision='5']")
    for name in values:
        await readers.go(page, f"tree/public/{name}")
        await page.wait_for_selector(f"[data-key='public/{name}'] pre.value")
    await page.wait_for_selector("pre.value:has-text('bottom')")
    await readers.go(page, "tree/public/bidi")
    await page.wait_for_selector("pre.value:has-text('\\\\u202e live \\\\u2066')")
    await readers.go(page, "tree/public/long")
    await page.click("text=Show all 1,000,000 characters")
    assert await page.evaluate("document.querySelector('pre.value').textContent.length") == 10**6
    assert await page.title() == "Blackboard"
    assert await page.locator("main img").count() == 0


@few_or_many(3_000, 100_000)
async def test_a_large_tree_stays_fluid(
    readers: Readers, service: Running, client: blackboard.Client, rounds: int
) -> None:
    """Only what is in sight is drawn, and only what was opened is asked for; scrolling goes on."""
    board = client.board("main")
    for start in range(0, rounds, 1_000):
        keys = [f"public/many/{number:06}" for number in range(start, start + 1_000)]
        await board.commit([blackboard.ops.Put(key, ONE) for key in keys])
    await board.put("public/zebra", 1)
    page = await readers.open(service, "tree")
    await page.wait_for_selector("[data-path='public/zebra']")
    await readers.browser.start_tracing(page=page, categories=["toplevel"])
    await page.click("[data-path='public/many'] .twist")
    await page.wait_for_selector("[data-path='public/many/000000']")
    lines = page.locator(".lines")
    for number in (400, 1_200, 2_900):
        await page.wait_for_function(SCROLLED, arg=[number * 28, f"public/many/{number:06}"])
        assert await page.locator(".line").count() < 100
    events = json.loads(await readers.browser.stop_tracing())["traceEvents"]
    assert max(event.get("tdur", 0) for event in events) < LONG_TASK_US_MAX
    await lines.focus()
    await page.keyboard.press("Home")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowLeft")
    await page.wait_for_selector("[data-path='public/many/000000']", state="detached")


async def test_search_finds_names_and_values(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Wherever the words are."""
    board = client.board("main")
    await board.put("public/northern-site", 1)
    await board.put("public/plan", {"buy": ["the Northern site"]})
    await board.put("public/other", 2)
    page = await readers.open(service, "tree")
    await page.fill("input[type=search]", "northern")
    await page.wait_for_selector("text=2 found")
    assert await page.locator(".found li").count() == 2
    await page.click(".found a >> nth=1")
    await page.wait_for_selector("pre.value:has-text('Northern')")


async def test_a_dead_link_says_so(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """A view that is not there, a board that is not, or no more: a sentence, and the way out."""
    await client.board("main").put("public/plan", "buy")
    page = await readers.open(service)
    await page.evaluate("location.hash = '#/main/nowhere'")
    await page.wait_for_selector("text=There is no view of that name")
    await page.click("text=Go to the first one")
    await page.wait_for_selector("nav a[aria-current]")
    for path in ("#/no%20name/feed", "#/%E0%A4%A/tree/%E0%A4%A", "#/other/tree/public/plan"):
        await page.evaluate("path => { location.hash = path }", path)
        await page.wait_for_selector("text=There is no board")
    assert [*await client.boards()] == ["main"]
    await client.board("other").put("public/plan", "rent")
    await page.wait_for_selector("pre.value:has-text('rent')")
    await client.remove_board("other")
    await page.wait_for_selector("text=There is no board “other”")
    await page.click("main a:text-is('main')")
    await page.wait_for_selector("nav a[href^='#/main/']")
    assert [*await client.boards()] == ["main"]
