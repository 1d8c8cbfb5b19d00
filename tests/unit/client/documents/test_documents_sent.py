"""What a replica sends and when, what it takes over, and what its observers cannot break."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.documents.document import Document
from blackboard.client.link import Pipe, Transport
from blackboard.client.remote.connect import Address
from blackboard.client.remote.documents import open_document
from blackboard.core import access
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import DocumentRefused, InvalidRequest, LimitExceeded, Unavailable
from blackboard.limits import DOCUMENT_UPDATE_BYTES_MAX, Limits
from blackboard.server.service import Service
from blackboard.units import Key
from blackboard.wire import ysync
from blackboard.wire.ysync import Edit, Message, Met, Step1
from tests.waiting import wait_until

BOARD, KEY = "board", "public/memo"
PATIENCE_S = 60.0


@pytest.fixture
async def link(tmp_path: Path, limits: Limits) -> AsyncIterator[Transport]:
    """A way to a service."""
    async with Service(await SqliteStore.at(tmp_path, "memory"), limits=limits) as service:
        yield service.link(access.operator())


@pytest.fixture
def board(link: Transport) -> Board:
    """The same, as people use it."""
    return Client(link).board(BOARD)


class Way:
    """A transport that says what a replica sends, before it does: `sending` may raise, or wait."""

    def __init__(self, link: Transport, sending: Callable[[Message], Any]) -> None:
        self._link = link
        self._sending = sending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    @asynccontextmanager
    async def document(self, board: str, key: Key) -> AsyncIterator[Pipe]:
        """As `Transport.document`."""
        async with self._link.document(board, key) as pipe:
            send = pipe.send

            async def told(frame: bytes) -> None:
                for message in ysync.read_frame(frame):
                    await self._sending(message)
                await send(frame)

            pipe.send = told  # type: ignore[method-assign]
            yield pipe


async def shows(doc: Document, text: str) -> None:
    """Wait until a replica has exactly this text."""

    async def it_does() -> bool:
        return str(doc.text()) == text

    await wait_until(it_does)


async def test_many_large_edits_at_once_are_sent_in_several_updates(board: Board) -> None:
    """Together they are more than one update may hold."""
    part = "x" * (DOCUMENT_UPDATE_BYTES_MAX // 2)
    async with board.document(KEY) as doc:
        for _ in range(5):
            doc.text().append(part)
        await doc.synced()
    async with board.document(KEY) as again:
        assert len(again.text()) == 5 * len(part)


async def test_an_edit_that_cannot_be_sent_ends_the_replica_at_once(link: Transport) -> None:
    """Also while nothing comes from the service."""

    async def sending(message: Message) -> None:
        if isinstance(message, Edit):
            raise DocumentRefused(KEY, "too_large", "it is not sent")

    doc = await Document(Way(link, sending), BOARD, KEY)
    doc.text().append("a")
    with anyio.fail_after(PATIENCE_S), pytest.raises(DocumentRefused, match="too_large"):
        await doc.synced(timeout_ms=10**9)
    await doc.aclose()


async def test_a_bug_ends_the_replica_and_says_so(link: Transport) -> None:
    """Nobody awaits the task in which it comes up."""

    async def sending(message: Message) -> None:
        if isinstance(message, Edit):
            raise RuntimeError("a bug of ours")

    doc = await Document(Way(link, sending), BOARD, KEY)
    doc.text().append("a")
    with anyio.fail_after(PATIENCE_S), pytest.raises(DocumentRefused, match="a bug of ours"):
        await doc.synced(timeout_ms=10**9)
    with pytest.raises(DocumentRefused, match="a bug of ours"):
        doc.text()
    await doc.aclose()


async def test_a_proxy_that_is_none_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt may find another one."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "nonsense://proxy.example:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Unavailable, match="nonsense"):
        async with open_document(Address("ws://board.example:1"), BOARD, KEY, None):
            pass


class Crowded(Way):
    """Its connection breaks at the first edit; then another document takes its place, until the
    third attempt."""

    def __init__(self, link: Transport) -> None:
        super().__init__(link, self._break)
        self.attempts = 0
        self._others = AsyncExitStack()

    async def _break(self, message: Message) -> None:
        if isinstance(message, Edit):
            raise Unavailable("service", "the connection broke")

    @asynccontextmanager
    async def document(self, board: str, key: Key) -> AsyncIterator[Pipe]:
        """As `Transport.document`."""
        self.attempts += 1
        if self.attempts == 2:
            await self._others.enter_async_context(self._link.document(board, "public/other"))
        if self.attempts == 3:
            await self._others.aclose()
        async with super().document(board, key) as pipe:
            yield pipe


@pytest.mark.limits(documents_max=1)
async def test_a_replica_that_finds_no_room_keeps_its_edits(link: Transport) -> None:
    """Until others have left."""
    doc = await Document(Crowded(link), BOARD, KEY)
    doc.text().append("kept")
    with anyio.fail_after(PATIENCE_S), pytest.raises(LimitExceeded, match="DOCUMENTS_MAX"):
        await doc.synced(timeout_ms=10**9)
    async with doc:
        with anyio.fail_after(PATIENCE_S):
            await doc.synced(timeout_ms=10**9)
    async with Document(link, BOARD, KEY) as again:
        assert str(again.text()) == "kept"


@pytest.mark.limits(documents_max=1)
async def test_a_document_for_which_there_is_no_room_says_so_at_once(link: Transport) -> None:
    async with link.document(BOARD, "public/other"):
        with pytest.raises(LimitExceeded, match="DOCUMENTS_MAX"):
            await Document(link, BOARD, KEY)


async def test_synced_waits_for_edits_that_were_made_while_another_message_is_sent(
    link: Transport,
) -> None:
    sent: list[type[Message]] = []
    is_sending, go_on = asyncio.Event(), asyncio.Event()

    async def sending(message: Message) -> None:
        sent.append(type(message))
        if isinstance(message, Met):
            is_sending.set()
            await go_on.wait()

    doc = await Document(Way(link, sending), BOARD, KEY)
    async with doc:
        doc._met("text", (0, 1))
        doc._came.set()
        await is_sending.wait()
        doc.text().append("late")
        waiting = asyncio.create_task(doc.synced())

        async def waits() -> bool:
            return bool(doc._waiting)

        await wait_until(waits)
        go_on.set()
        await waiting
        after = [kind for kind in sent[sent.index(Met) :] if kind in (Edit, Step1)]
        assert after[0] is Edit


async def test_what_comes_in_a_transaction_that_awaits_waits_for_its_end(board: Board) -> None:
    """Otherwise positions of the block would be wrong, and `undo` would take it back."""
    async with board.document(KEY) as doc, board.document(KEY) as other:
        memo = doc.text()
        with doc.transaction():
            memo.append("ab")
            other.text().append("theirs")
            await other.synced()
            async with board.document(KEY) as third:
                assert str(third.text()) == "theirs"
            memo.append("cd")
        await doc.synced()
        assert str(memo) in ("abcdtheirs", "theirsabcd")
        assert doc.undo()
        assert str(memo) == "theirs"


async def test_an_observer_that_fails_ends_neither_an_edit_nor_the_replica(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    def observer(_: object) -> None:
        raise RuntimeError("a bug of the program")

    async with board.document(KEY) as doc, board.document(KEY) as other:
        nested = doc.map("facts").set_text("note")
        for shared in (doc.text(), doc.list("steps"), doc.map("facts"), nested):
            shared.observe(observer)
        with caplog.at_level(logging.ERROR):
            doc.text().append("a")
            doc.list("steps").append(1)
            doc.map("facts")["n"] = 1
            nested.append("b")
            assert len(caplog.records) == 4
            await doc.synced()
            await shows(other, "a")
            other.text().append("b")
            await shows(doc, "ab")
        assert len(caplog.records) == 5


async def test_nothing_is_kept_of_replicas_that_have_left(board: Board) -> None:
    """Each one has a number of its own."""
    async with board.document(KEY) as doc:

        async def is_there() -> bool:
            return len(doc.others()) == 2

        async def is_alone() -> bool:
            return len(doc.others()) == 1

        for _ in range(3):
            async with board.document(KEY):
                await wait_until(is_there)
            await wait_until(is_alone)
        assert len(doc._others) == 1


async def test_closing_that_is_cancelled_ends_all_calls_and_observers(link: Transport) -> None:
    """While the connection takes long to close, say."""
    is_closing, go_on = asyncio.Event(), asyncio.Event()

    class SlowlyClosed(Way):
        """Its connection is closed when `go_on` is set."""

        @asynccontextmanager
        async def document(self, board: str, key: Key) -> AsyncIterator[Pipe]:
            """As `Transport.document`."""
            async with self._link.document(board, key) as pipe:
                try:
                    yield pipe
                finally:
                    is_closing.set()
                    await go_on.wait()

    doc = await Document(SlowlyClosed(link, lambda _: None), BOARD, KEY)
    doc.text().append("a")
    waiting = asyncio.create_task(doc.synced(timeout_ms=10**9))
    closing = asyncio.create_task(doc.aclose())
    await is_closing.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with anyio.fail_after(PATIENCE_S), pytest.raises(Unavailable, match="closed"):
        await waiting
    assert not doc._observed
    go_on.set()
    await asyncio.gather(*filter(None, [doc._task]), return_exceptions=True)


@pytest.mark.parametrize(
    "edit",
    [
        lambda doc: doc.list("l").insert_text(0, "\ud800"),
        lambda doc: doc.map("m").set_text("k", "\ud800"),
        lambda doc: doc.map("m").set_text("\ud800", "x"),
        lambda doc: doc.map("m").set_list("\ud800"),
        lambda doc: doc.map("m").__setitem__("\ud800", 1),
        lambda doc: doc.map("m").__setitem__(3, 1),
        lambda doc: doc.text("\ud800"),
    ],
)
async def test_what_is_no_unicode_is_refused_and_nothing_is_left(
    board: Board, edit: Callable[[Document], object]
) -> None:
    async with board.document(KEY) as doc:
        doc.list("l"), doc.map("m")
        with pytest.raises(InvalidRequest, match="Unicode"):
            edit(doc)
        assert doc.value() in ({}, {"l": [], "m": {}})
