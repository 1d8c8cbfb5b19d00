"""What is odd: hostile records of agents, what happened unseen, a reader who goes elsewhere."""

from typing import Any

import blackboard
from tests.acceptance.shell import Running
from tests.page.browser import Readers

NO_TEXT = {"toString": 1, "valueOf": 1}
"""A script that takes this for a text raises an error."""
NO_TIME = 10**18
BEYOND = 2**53 + 1
"""An integer that no number of a browser is."""

FOLLOWED = """async follows => {
  const store = await import('./page/store.js')
  if (follows) void store.look('main')
  else store.stop()
}"""
"""Stops following the board, or begins again."""


UNREAD = """async () => {
  const { Board } = await import('./page/client/board.js')
  Board.prototype.entry = async () => { throw new Error('away') }
}"""
"""From here on no entry can be read."""


async def opened_key(readers: Readers, service: Running, key: str) -> Any:
    """The page, at a key of the board `main`."""
    page = await readers.open(service, f"tree/{key}")
    await page.wait_for_selector(f"[data-key='{key}'] .facts")
    return page


async def test_records_of_agents_may_be_anything(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """One hostile agent does not keep people from the others."""
    board = client.board("main")
    for agent in ("ada", "bob"):
        token = await client.token(agent, grants=["**=read,write,append"])
        async with blackboard.connect(service.url, token=token) as other:
            own = other.board("main")
            odd = NO_TEXT if agent == "ada" else "fine"
            since = NO_TIME if agent == "ada" else 1
            seen = {"state": odd, "note": odd, "since_ms": since}
            await own.put(f"public/~agents/{agent}", seen)
            crash = {"state": odd, "error": odd, "at": odd, "crashes": NO_TEXT}
            await own.put(f"public/~supervision/{agent}", crash)
            state = {"status": odd, "waiting": [NO_TEXT, "public/a"], "outcome": odd}
            await own.put(f"private/{agent}/~state", state)
            fact = {"key": "public/.." if agent == "ada" else "public/n", "value": 1}
            asked = {"question": agent, "facts": [fact], "approvers": [NO_TEXT], "asked": NO_TEXT}
            await own.put(f"public/~approvals/{agent}/1", asked)
    await board.put("public/n", BEYOND)
    page = await readers.open(service, "agents")
    await page.wait_for_selector("[data-agent='ada']")
    await page.wait_for_selector("[data-agent='bob']:has-text('fine')")
    await readers.go(page, "approvals")
    await page.wait_for_selector(".card:has-text('ada')")
    await page.wait_for_selector(f".card:has-text('bob') td.bad:has-text('{BEYOND}')")


async def test_an_overlap_and_a_writer_may_be_anything(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    board = client.board("main")
    async with board.document("public/memo") as memo:
        memo.text().append("Hold.")
        await memo.synced()
        page = await readers.open(service, "documents/public/memo")
        await page.wait_for_selector(".paper .cm-content:has-text('Hold.')")
        memo.tell({"cursor": {"anchor": 1, "head": NO_TEXT}, "user": {"name": NO_TEXT}})
        odd = {"text": NO_TEXT, "start": NO_TEXT, "end": NO_TEXT, "agents": [NO_TEXT]}
        await board.put("public/memo/~doc/overlap/0000000000", odd)
        await page.wait_for_selector(".overlaps li")
        await memo.synced()


async def test_what_happened_unseen_is_shown(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """While the service was away for long, say: then the board is followed from the present."""
    board = client.board("main")
    await board.put("public/plan", "buy")
    page = await opened_key(readers, service, "public/plan")
    await page.wait_for_selector("pre.value:has-text('buy')")
    await page.evaluate(FOLLOWED, False)
    await board.put("public/plan", "rent")
    await board.put("public/price", 3)
    await page.evaluate(FOLLOWED, True)
    await page.wait_for_selector("pre.value:has-text('rent')")
    await page.wait_for_selector("[data-path='public/price']")


async def test_a_question_about_a_board_ends_when_the_reader_goes_elsewhere(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """Else what was agreed to would be done to the other board."""
    for name in ("main", "other"):
        await client.board(name).put("public/plan", name)
    page = await opened_key(readers, service, "public/plan")
    await page.click("text=Delete…")
    await page.wait_for_selector("dialog")
    await page.evaluate("location.hash = '#/other/tree/public/plan'")
    await page.wait_for_selector("pre.value:has-text('other')")
    assert await page.locator("dialog").count() == 0
    assert await client.board("other").get("public/plan") == "other"


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


async def test_a_text_that_was_empty_for_a_moment_is_a_text(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """One that is edited here, and one that is not."""
    board = client.board("main")
    async with board.document("public/memo") as memo:
        texts = [memo.text(name) for name in ("draft", "notes")]
        for text in texts:
            text.append("first")
        await memo.synced()
        page = await readers.open(service, "documents/public/memo")
        await page.select_option(".document select", "draft")
        await page.wait_for_selector(".paper .cm-content:has-text('first')")
        for text in texts:
            text.delete(0, len(text))
            await memo.synced()
        memo.map("facts")["n"] = 1
        await page.wait_for_selector(".document h3:has-text('facts')")
        for text in texts:
            text.append("second")
        await memo.synced()
        await page.wait_for_selector(".paper .cm-content:has-text('second')")
        await page.select_option(".document select", "notes")
        await page.wait_for_selector(".paper .cm-content:has-text('second')")


async def test_a_fact_that_the_reader_may_not_see_hides_no_request(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    board = client.board("main")
    await board.put("private/ada/budget", 3)
    ada = board.as_agent("ada")
    fact = {"key": "private/ada/budget", "revision": 1, "value": 3}
    await ada.put("public/~approvals/ada/1", {"question": "spend it?", "facts": [fact]})
    token = await client.token("kim", grants=["public/**=read"])
    page = await readers.open_as(service, token, "approvals")
    await page.wait_for_selector(".card:has-text('spend it?'):has-text('hidden from you')")


async def test_the_list_of_documents_follows(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """One is begun, removed, and begun again; another one stays."""
    board = client.board("main")
    await board.put("public/a", 1)
    page = await readers.open(service, "documents")
    await page.wait_for_selector("text=There is no document yet")
    for _ in range(2):
        for key in ("public/memo", "public/plan"):
            async with board.document(key) as doc:
                doc.text().append("Hold.")
        await page.wait_for_selector("ul a:has-text('public/memo')")
        await page.wait_for_selector("ul a:has-text('public/plan')")
        await board.delete_prefix("public/memo/~doc")
        await page.wait_for_selector("ul a:has-text('public/memo')", state="detached")


async def test_of_two_people_who_answer_the_second_learns_of_the_first(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    board = client.board("main")
    await blackboard.ask(board.as_agent("ada"), "1", "spend it?")
    page = await readers.open(service, "approvals")
    await page.click("text=Approve…")
    await page.wait_for_selector("dialog[open] button.main")
    [asked] = await blackboard.pending(board)
    await blackboard.answer(board, asked, approved=False, reason="no")
    await page.wait_for_selector("[data-answered]:has-text('no')")
    await page.click("dialog button.main")
    await page.wait_for_selector(".said:has-text('changed in between')")
    assert (await board.get("public/~decisions/ada/1"))["approved"] is False


async def test_a_request_with_an_answer_that_does_not_count_still_waits(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """The agent waits for its approvers, so they are shown the request."""
    board = client.board("main")
    ada = board.as_agent("ada")
    await blackboard.ask(ada, "1", "spend it?", approvers=["boss"])
    await blackboard.ask(ada, "2", "keep it?", approvers=["operator"])
    asked = {one.id: one.revision for one in await blackboard.pending(board)}
    for name, revision in asked.items():
        decision = {"approved": True, "request": revision, "reason": ""}
        await board.put(f"public/~decisions/ada/{name}", decision)
    page = await readers.open(service, "approvals")
    await page.wait_for_selector("[data-request='1']")
    await page.wait_for_selector("[data-answered='2']")
    assert await page.locator("[data-request='2']").count() == 0


async def test_what_somebody_writes_outlives_a_reading_that_fails(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    board = client.board("main")
    await board.put("public/plan", "buy")
    page = await opened_key(readers, service, "public/plan")
    await page.click(".detail >> text=Edit")
    await page.fill("textarea", '"a long text"')
    await page.evaluate(UNREAD)
    await board.put("public/plan", "rent")
    await page.wait_for_selector("[role=alert]:has-text('away')")
    assert await page.input_value("textarea") == '"a long text"'


async def test_what_was_edited_replaces_only_what_it_was_edited_from(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """It came while somebody was writing, and is shown beside that."""
    board = client.board("main")
    await board.put("public/plan", "buy")
    page = await opened_key(readers, service, "public/plan")
    await page.click(".detail >> text=Edit")
    await page.fill("textarea", '"buy two"')
    await board.put("public/plan", "rent")
    await page.wait_for_selector("pre.value:has-text('rent')")
    await page.wait_for_selector("[role=alert]:has-text('changed since you began')")
    await page.click("text=Put…")
    await page.click("dialog button.main")
    await page.wait_for_selector(".said:has-text('changed in between')")
    assert await board.get("public/plan") == "rent"


async def test_the_leases_of_a_moment_are_not_those_of_later(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    """The reader may not see every revision before that moment."""
    board = client.board("main")
    for number in range(3):
        await board.put("private/ada/a", number)
    async with board.lock("public/deploy") as lock:
        [held] = lock.fences
    token = await client.token("kim", grants=["public/**=read"])
    page = await readers.open_as(service, token, "locks")
    # The slider reaches as far as the page has come; at its end is no moment, but now.
    newest = (await board.head()).revision
    await page.wait_for_selector(f"input[type=range][max='{newest}']")
    await page.fill("input[type=range]", str(held.fence))
    await page.wait_for_selector("[data-lease='public/deploy']")


async def test_changes_of_leases_pass_their_filter(
    readers: Readers, service: Running, client: blackboard.Client
) -> None:
    board = client.board("main")
    async with board.lock("public/deploy") as lock:
        [held] = lock.fences
    page = await readers.open(service, "feed")
    await page.select_option("label:has-text('Kind') select", "lease")
    await page.wait_for_selector(f"[data-revision='{held.fence}']")


async def test_a_text_cannot_hide_another(readers: Readers, service: Running) -> None:
    """In characters that no browser draws; those of emojis stay as they are."""
    page = await readers.open(service)
    hidden = "\u00ad\u115f\u180e\u3164\U000e0041"
    shown = await page.evaluate(
        "async text => (await import('./page/values.js')).visible(text)",
        f"ok{hidden}\u2764\ufe0f😀",
    )
    assert shown == "ok\\u00ad\\u115f\\u180e\\u3164\\ue0041\u2764\ufe0f😀"
