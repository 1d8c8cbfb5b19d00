"""Documents under real, unmodified Yjs clients: edits, crashes, restores, those who come late."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest

import blackboard
from blackboard.client.board import Board
from blackboard.client.documents.document import Document
from blackboard.client.remote.documents import document_token
from blackboard.engines.redis.store import RedisStore
from blackboard.integrity.tokens import new_secret
from blackboard.server.service import Service
from tests.acceptance.shell import Shell
from tests.acceptance.yjs_clients import needs_node, yjs
from tests.ports import free_port
from tests.serving import serving
from tests.waiting import wait_until

pytestmark = [needs_node, pytest.mark.slow]
BOARD, KEY = "expansion", "public/memo"
ROUNDS = int(os.environ.get("BLACKBOARD_TEST_RUSHES", "10"))
"""Times that five clients open a new document at once; 1,000 in the long form."""


class Place:
    """A service that may come and go at one port, and ways to a document of it."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token

    def room(self, *, key: str = KEY, can_edit: bool = True) -> dict[str, object]:
        """What a stock client needs to connect."""
        folder, _, room = key.rpartition("/")
        token = document_token(self.token, BOARD, key, can_edit=can_edit)
        url = f"{self.url}/v1/boards/{BOARD}/docs/{folder}"
        return {"url": url, "room": room, "params": {"token": token}}

    @asynccontextmanager
    async def board(self) -> AsyncIterator[Board]:
        """The board, as the operator."""
        async with blackboard.connect(self.url, token=self.token) as client:
            yield client.board(BOARD)


def place_of(shell: Shell, url: str) -> Place:
    """Where a service of `shell` is."""
    token = (Path(shell.environ["BLACKBOARD_DATA"]) / "token").read_text().strip()
    return Place(url.replace("http", "ws", 1) if url.startswith("http") else url, token)


async def shows(doc: Document, text: str) -> None:
    """Wait until a replica has exactly this text."""

    async def it_does() -> bool:
        return str(doc.text()) == text

    await wait_until(it_does)


async def test_yjs_and_python_edit_one_document(shell: Shell) -> None:
    with shell.service() as service:
        place = place_of(shell, service.url)
        async with place.board() as board, board.document(KEY) as doc, yjs() as js:
            doc.text().append("Préface 😀")
            await doc.synced()
            await js.do("open", name="ann", **place.room())
            await js.until("ann", text="Préface 😀", synced=True)
            await js.do("append", name="ann", text=" — fin")
            await js.do("set", name="ann", key="n", value={"i": 3, "f": 2.5})
            await shows(doc, "Préface 😀 — fin")
            doc.text().insert(9, "!")
            doc.map("facts")["m"] = 2**53 - 1
            told = await js.until("ann", text="Préface 😀! — fin")
            await doc.synced()
            assert doc.map("facts")["n"] == {"i": 3, "f": 2.5}
            told = await js.until("ann", facts={"n": {"i": 3, "f": 2.5}, "m": 2**53 - 1})
            assert told["closes"] == []


async def test_a_late_client_sees_the_present_ones_and_leaving_is_seen(shell: Shell) -> None:
    with shell.service() as service:
        place = place_of(shell, service.url)
        async with place.board() as board, board.document(KEY) as doc, yjs() as js:
            await js.do("open", name="ann", **place.room())
            await js.until("ann", synced=True)
            doc.tell({"name": "python"})
            await js.until("ann", present=["ann", "python"])
            await js.do("open", name="ben", **place.room())
            await js.until("ben", present=["ann", "ben", "python"])
            await js.do("close", name="ann")
            await js.until("ben", present=["ben", "python"])


async def test_two_services_over_one_engine_are_one_place(redis_url: str) -> None:
    """For edits, for who is there, late or gone, and for undoing what is one's own."""
    async with AsyncExitStack() as stack:
        places = []
        secret = new_secret()
        for _ in range(2):
            service = await stack.enter_async_context(Service(RedisStore.connect(redis_url)))
            served = await stack.enter_async_context(serving(service, secret=secret))
            places.append(Place(served.url, served.token()))
        js = await stack.enter_async_context(yjs())
        board = await stack.enter_async_context(places[1].board())
        doc = await stack.enter_async_context(board.document(KEY))
        await js.do("open", name="ann", **places[0].room())
        await js.until("ann", synced=True)
        doc.tell({"name": "python"})
        await js.until("ann", present=["ann", "python"])
        await js.do("open", name="ben", **places[1].room())
        await js.until("ben", present=["ann", "ben", "python"])
        await js.do("append", name="ann", text="Ann. ")
        await shows(doc, "Ann. ")
        doc.text().append("Python. ")
        for name in ("ann", "ben"):  # or he writes beside what he has not seen
            await js.until(name, text="Ann. Python. ")
        await js.do("append", name="ben", text="Ben.")
        await shows(doc, "Ann. Python. Ben.")
        assert doc.undo()
        assert not doc.undo()
        for name in ("ann", "ben"):
            await js.until(name, text="Ann. Ben.")
        await js.do("close", name="ann")
        await js.until("ben", present=["ben", "python"])


async def test_everybody_ends_equal_through_kill_and_restore(shell: Shell) -> None:
    with ExitStack() as services:
        port = free_port()
        service = services.enter_context(shell.service(port=port))
        place = place_of(shell, service.url)
        async with place.board() as board, board.document(KEY) as doc, yjs() as js:
            for name in ("ann", "ben"):
                await js.do("open", name=name, **place.room())
                await js.until(name, synced=True)
            await js.do("append", name="ann", text="agreed.")
            await shows(doc, "agreed.")
            service.end(signal.SIGKILL)  # until it is gone, the next one finds its port taken
            await js.do("append", name="ben", text=" Ben offline.")
            doc.text().append(" Python offline.")
            services.enter_context(shell.service(port=port))
            await doc.synced()
            await wait_until(lambda: has(doc, "Ben"))
            text = str(doc.text())
            assert len(text) == len("agreed. Ben offline. Python offline.")
            for name in ("ann", "ben"):
                await js.until(name, text=text, synced=True)
            await board.checkpoint("agreed")
            await js.do("append", name="ann", text=" Regretted.")
            await shows(doc, text + " Regretted.")
            await js.until("ben", text=text + " Regretted.")  # or his old text passes for the new
            await board.restore("agreed")
            for name in ("ann", "ben"):
                await js.until(name, text=text, synced=True)
            await shows(doc, text)
            await js.do("append", name="ben", text=" Onwards.")
            await js.until("ann", text=text + " Onwards.")
            await shows(doc, text + " Onwards.")


async def has(doc: Document, part: str) -> bool:
    """Whether a replica's text has that part."""
    return part in str(doc.text())


async def test_a_client_with_edits_of_the_abandoned_future_is_stopped(shell: Shell) -> None:
    with shell.service() as service:
        place = place_of(shell, service.url)
        async with place.board() as board, board.document(KEY) as doc, yjs() as js:
            for name in ("ann", "ben"):
                await js.do("open", name=name, **place.room())
            await js.do("append", name="ann", text="agreed.")
            await shows(doc, "agreed.")
            await js.until("ben", text="agreed.")
            await board.checkpoint("agreed")
            await js.do("append", name="ann", text=" Regretted.")
            await js.until("ben", text="agreed. Regretted.")
            await js.do("disconnect", name="ben")
            await js.do("append", name="ben", text=" Deeply.")
            await board.restore("agreed")
            await js.until("ann", text="agreed.", synced=True)
            await js.do("connect", name="ben")
            told = await js.do("closedWith", name="ben", code=4409)
            assert (told["held"], told["stopped"]) == (True, True)
            await doc.synced()
            assert str(doc.text()) == "agreed."


async def test_a_missing_right_is_final(shell: Shell) -> None:
    with shell.service() as service:
        place = place_of(shell, service.url)
        async with place.board() as board, board.document(KEY) as doc, yjs() as js:
            doc.text().append("fine")
            await doc.synced()
            room = place.room()
            for name, params, code in (
                ("nobody", {}, 4401),
                ("nonsense", {"token": "nonsense"}, 4401),
                ("operator", {"token": place.token}, 4401),
                ("other", place.room(key="public/other")["params"], 4401),
            ):
                await js.do("open", name=name, **{**room, "params": params})
                told = await js.do("closedWith", name=name, code=code)
                assert (told["held"], told["stopped"], told["text"]) == (True, True, ""), name
            await js.do("open", name="reader", **place.room(can_edit=False))
            await js.until("reader", text="fine", synced=True)
            await js.do("append", name="reader", text=" not")
            told = await js.do("closedWith", name="reader", code=4403)
            assert told["held"]
            await doc.synced()
            assert str(doc.text()) == "fine"


async def test_five_clients_open_a_new_document_at_once(shell: Shell) -> None:
    with shell.service() as service:
        place = place_of(shell, service.url)
        async with yjs() as js:
            for number in range(ROUNDS):
                room = place.room(key=f"public/new/{number}")
                told = await js.do("rush", count=5, **room)
                assert told["held"], number
