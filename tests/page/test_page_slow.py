"""A slow service: what changes faster than it is loaded is shown, and nothing else in its place."""

from typing import Any

import blackboard
from tests.acceptance.shell import Running
from tests.page.browser import Readers

HELD = """async () => {
  const { Board } = await import('./page/client/board.js')
  const { diff } = Board.prototype
  window.held = []
  Board.prototype.diff = async function (a, b, options) {
    await new Promise((resolve, reject) => {
      window.held.push(resolve)
      options.signal.addEventListener('abort', () => reject(options.signal.reason))
    })
    return await diff.call(this, a, b, options)
  }
}"""
"""Holds back each comparison until the test lets it go."""
PAGED = """async () => {
  const { Board } = await import('./page/client/board.js')
  const { list } = Board.prototype
  window.held = []
  Board.prototype.list = async function (pattern, options) {
    const isHeld = options.after !== null && pattern === 'public/many/**'
    if (isHeld) await new Promise(resolve => window.held.push(resolve))
    return await list.call(this, pattern, options)
  }
}"""
"""Holds back each further page of one folder."""
ISSUED = """async () => {
  const { Client } = await import('./page/client/client.js')
  const { token } = Client.prototype
  window.held = []
  Client.prototype.token = async function (name, options) {
    await new Promise(resolve => window.held.push(resolve))
    return await token.call(this, name, options)
  }
}"""
"""Holds back each new token."""
UNCOUNTED = """async () => {
  const { Board } = await import('./page/client/board.js')
  Board.prototype.activity = async () => { throw new Error('away') }
}"""
"""From here on no activity can be read."""
COUNTED = """async count => {
  while (window.held.length < count) await new Promise(requestAnimationFrame)
}"""
SETTLED = """async revision => {
  const { settled } = await import('./page/store.js')
  while (settled.value < revision) await new Promise(requestAnimationFrame)
  await new Promise(requestAnimationFrame)
}"""
COMPARED = "#main .preview-diff [data-key='public/plan']"
TAKE_BACK = "button:has-text('Take it back…')"


async def comparing(readers: Readers, service: Running, board: blackboard.Board) -> Any:
    """The page at Act, where a comparison with the newest of two checkpoints is held back."""
    for name in ("first", "second"):
        await board.put("public/plan", name)
        await board.checkpoint(name)
    await board.put("public/plan", "third")
    page = await readers.open(service, "feed")
    await page.evaluate(HELD)
    await readers.go(page, "act")
    await page.evaluate(COUNTED, 1)
    return page


async def test_a_comparison_is_shown_though_the_board_changes_meanwhile(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Or nobody could take back a busy board. Then it is compared again."""
    board = client.board("main")
    page = await comparing(readers, service, board)
    revision = (await board.put("public/busy", 1)).revision
    await page.evaluate(SETTLED, revision)
    await page.evaluate("held[0]()")
    await page.wait_for_selector(COMPARED)
    await page.evaluate(COUNTED, 2)
    await page.evaluate("held[1]()")
    await page.wait_for_selector(f"{TAKE_BACK}:not([disabled])")


async def test_a_comparison_with_another_checkpoint_is_not_shown(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """The question would show what another act changes."""
    page = await comparing(readers, service, client.board("main"))
    await page.evaluate("held[0]()")
    await page.wait_for_selector(COMPARED)
    await page.select_option("#main .act select", "first")
    await page.evaluate(COUNTED, 2)
    assert await page.locator(f"{TAKE_BACK}[disabled]").count() == 1
    assert await page.locator(COMPARED).count() == 0
    await page.evaluate("held[1]()")
    await page.wait_for_selector(f"{COMPARED} ins:has-text('first')")


async def test_a_key_that_comes_while_its_folder_is_read_is_there(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """On a page of the folder that has been read already."""
    board = client.board("main")
    for number in range(300):
        await board.put(f"public/many/{number:03}", number)
    page = await readers.open(service, "tree")
    await page.evaluate(PAGED)
    await page.click("[data-path='public/many']")
    await page.evaluate(COUNTED, 1)
    revision = (await board.put("public/many/000a", 1)).revision
    await page.evaluate(SETTLED, revision)
    await page.evaluate("held[0]()")
    await page.wait_for_selector("[data-path='public/many/000a']")


async def test_a_token_is_not_shown_beside_another_name(readers: Readers, service: Running) -> None:
    """Who makes one and types on would hand it to somebody else."""
    page = await readers.open(service, "service")
    await page.evaluate(ISSUED)
    await page.fill("label:has-text('Agent') input", "alice")
    await page.click("text=Make a token")
    await page.evaluate(COUNTED, 1)
    await page.fill("label:has-text('Agent') input", "bob")
    await page.evaluate("held[0]()")
    await page.wait_for_selector(".said:has-text('A token for alice')")
    assert await page.locator("label.token").count() == 0


async def test_a_span_that_cannot_be_read_is_said(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    await client.board("main").put("public/plan", "buy")
    page = await readers.open(service, "lanes")
    await page.wait_for_selector(".lane-names")
    await page.evaluate(UNCOUNTED)
    await page.click("text=Last minute")
    await page.wait_for_selector(".said:has-text('away')")
