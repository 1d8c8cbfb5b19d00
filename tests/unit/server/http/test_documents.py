"""Peers of documents on their sockets: what they send is taken in order, whichever way it goes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pycrdt import Doc, Text
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from blackboard.client.link import Pipe
from blackboard.client.remote.documents import document_token
from blackboard.core import access
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unauthenticated
from blackboard.server.http import documents
from blackboard.server.overload.rate_limits import Rates
from blackboard.server.service import Service
from blackboard.wire import ysync
from blackboard.wire.ysync import Edit, Step1, Step2
from tests.serving import Served, serving
from tests.unit.server.http.conversation import PATIENCE_S
from tests.waiting import let_pass

ADA = access.agent("ada")
LARGE = "x" * (documents._SMALL_MESSAGE_BYTES + 1)


class Typist:
    """A replica behind a bare socket, whose edits are frames to be sent."""

    def __init__(self, socket: ClientConnection) -> None:
        self.doc: Doc[Text] = Doc()
        self.text = self.doc.get("text", type=Text)
        self._socket = socket

    def edit(self, text: str) -> bytes:
        """Type at the end; returns the frame."""
        before = self.doc.get_state()
        self.text += text
        return ysync.write_update(self.doc.get_update(before))

    async def greet(self) -> None:
        """Answer the question of the service, so that edits are taken as such."""
        (asked,) = ysync.read_frame(await self._frame())
        assert isinstance(asked, Step1)
        await self._socket.send(ysync.write_step2(self.doc.get_update(asked.state)))

    async def send_at_once(self, frames: list[bytes]) -> None:
        """Send messages as fast as the socket takes them."""
        for frame in frames:
            await self._socket.send(frame)

    async def synced(self) -> None:
        """Return once everything that was sent is committed."""
        await self._socket.send(ysync.write_step1(self.doc.get_state()))
        while not any(isinstance(m, Step2) for m in ysync.read_frame(await self._frame())):
            pass

    async def heard(self, length: int) -> str:
        """The text, once it is that long."""
        await self._socket.send(ysync.write_step1(self.doc.get_state()))
        while len(self.text) < length:
            for message in ysync.read_frame(await self._frame()):
                if isinstance(message, Step2 | Edit):
                    self.doc.apply_update(message.update)
        return str(self.text)

    async def _frame(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            frame = await self._socket.recv()
        assert isinstance(frame, bytes)
        return frame


@asynccontextmanager
async def typing(served: Served, token: str) -> AsyncIterator[Typist]:
    """A peer of the document."""
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{served.url}/v1/boards/main/docs/public/memo"
    async with connect(url, additional_headers=headers, proxy=None, max_size=None) as socket:
        typist = Typist(socket)
        await typist.greet()
        yield typist


@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer ", ""])
async def test_another_authorization_makes_no_url_wider(served: Served, header: str) -> None:
    """A token in a URL is for that document alone; browsers add the password of a proxy."""
    url, token = f"{served.url}/v1/boards/main/docs/public/memo", served.token(ADA)
    headers = {"Authorization": header}
    async with connect(f"{url}?token={token}", additional_headers=headers, proxy=None) as peer:
        with pytest.raises(ConnectionClosed):
            await peer.recv()
        assert peer.close_code == 4401
    narrow = document_token(token, "main", "public/memo")
    async with connect(f"{url}?token={narrow}", additional_headers=headers, proxy=None) as peer:
        await peer.recv()


async def test_edits_of_all_sizes_stay_in_order(served: Served) -> None:
    """Small ones are taken when they arrive, large ones and those beyond a turn's number by the
    reading task. Each builds on the one before: out of order, it would be refused."""
    token = served.token(ADA)
    async with typing(served, token) as one, typing(served, token) as other:
        pieces = [LARGE if n % 40 == 17 else f"{n} " for n in range(200)]
        await one.send_at_once([one.edit(piece) for piece in pieces])
        await one.synced()
        assert await other.heard(len("".join(pieces))) == "".join(pieces)


async def test_none_overtakes_one_that_has_to_wait(tmp_path: Path) -> None:
    """While the reading task waits for the account's rate, what arrives waits behind it."""
    store = await SqliteStore.at(tmp_path, "memory")
    rates = Rates(requests_per_second=200, burst_ms=20)
    async with (
        Service(store, rates=rates) as service,
        serving(service) as served,
        typing(served, served.token(ADA)) as one,
    ):
        for number in range(100):
            await one.send_at_once([one.edit(f"{number} ")])
            await let_pass(0.002)
        await one.synced()


async def test_a_small_edit_does_not_wait_for_the_reading_task(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what people type: the reading task passes on only what is larger."""
    passed: list[int] = []
    before = documents._pass

    async def noting(pipe: Pipe, frames: Sequence[bytes]) -> None:
        passed.extend(map(len, frames))
        await before(pipe, frames)

    async with typing(served, served.token(ADA)) as one:
        await one.synced()
        monkeypatch.setattr(documents, "_pass", noting)
        await one.send_at_once([one.edit("a")])
        await one.synced()
        assert not passed
        large = one.edit(LARGE)
        await one.send_at_once([large])
        await one.synced()
        assert passed[0] == len(large)


async def test_what_is_taken_at_once_is_charged(served: Served, service: Service) -> None:
    """To the account of its token, each message."""

    def charged_ms() -> float:
        accounts = service.host.charges.statistics().accounts
        return sum(account.charged_ms for account in accounts if account.name == "ada")

    async with typing(served, served.token(ADA)) as one:
        await one.synced()
        before_ms = charged_ms()
        for number in range(10):
            await one.send_at_once([one.edit(f"{number} ")])
            await one.synced()
        assert charged_ms() - before_ms >= 10 * documents._SMALL_MESSAGE_US / 1_000


async def test_a_service_that_drains_tells_its_documents(served: Served) -> None:
    """What they had sent is committed; then they are closed with a code after which Yjs clients
    connect again, and the reason. The drain waits for that."""
    url = f"{served.url}/v1/boards/main/docs/public/memo"
    headers = {"Authorization": f"Bearer {served.token(ADA)}"}
    async with connect(url, additional_headers=headers, proxy=None, max_size=None) as socket:
        one = Typist(socket)
        await one.greet()
        await one.send_at_once([one.edit("the last words")])
        await one.synced()
        await served.gate.drain()
        assert not served.gate.connections
        with pytest.raises(ConnectionClosed) as closed:
            await one.heard(1_000)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == ysync.CLOSE_RESTART
    assert "the service stops" in closed.value.rcvd.reason
    link = served.service.link(access.operator())
    async with link.document("main", "public/memo") as session:
        await session.send(ysync.write_step1(b"\0"))
        text: Doc[Text] = Doc()
        while not len(text.get("text", type=Text)):
            for message in ysync.read_frame(await session.receive()):
                if isinstance(message, Step2 | Edit):
                    text.apply_update(message.update)
        assert str(text.get("text", type=Text)) == "the last words"


async def test_nothing_is_taken_under_a_token_that_ended(service: Service) -> None:
    """`send` then says why."""
    is_over = False

    def check() -> None:
        if is_over:
            raise Unauthenticated(reason="for the test")

    principal = access.operator()
    assert service.host.documents is not None
    await service.link(principal).head("main")
    async with service.host.documents.join("main", "public/memo", principal, check) as session:
        state = ysync.write_step1(b"\0")
        assert session.take(state)
        is_over = True
        assert not session.take(state)
        with pytest.raises(Unauthenticated):
            await session.send(state)
