"""Large messages of one account take turns; nobody else notices."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest
from websockets.asyncio.client import ClientConnection, connect

from blackboard.net.direct import DIRECT, DirectProtocol
from blackboard.net.intake import Intake, Intakes, Taker
from blackboard.types import LARGE_MESSAGE_BYTES, LARGE_MESSAGES_MAX
from tests.certificates import Authority
from tests.unit.net.test_direct import served
from tests.waiting import TIMEOUT_S

LARGE = LARGE_MESSAGE_BYTES + 1
"""With its header a message of LARGE_MESSAGE_BYTES would be large, too."""


class Noted(Intake):
    """Tells who has to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: asyncio.Queue[Taker] = asyncio.Queue()

    def enter(self, taker: Taker) -> bool:
        """As `Intake.enter`."""
        entered = super().enter(taker)
        if not entered:
            self.refused.put_nowait(taker)
        return entered


class Slow:
    """An application that looks at a message when it is told to: `intakes` by path."""

    def __init__(self, **intakes: Intake) -> None:
        self.intakes = intakes
        self.came: asyncio.Queue[bytes] = asyncio.Queue()
        self.look = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one WebSocket."""
        await receive()
        scope["extensions"][DIRECT]["trust"](self.intakes[scope["path"][1:]])
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            self.came.put_nowait(message["bytes"])
            await self.look.acquire()

    async def next(self) -> bytes:
        """The next message that came, of whomever."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.came.get()


@asynccontextmanager
async def peers(
    application: Slow, *paths: str, authority: Authority | None = None
) -> AsyncIterator[list[ClientConnection]]:
    """A connection for each path; over TLS with an authority."""
    pair = None if authority is None else authority.issue()
    trusted = None if authority is None else ssl.create_default_context(cafile=authority.ca)
    async with served(application, pair) as url, AsyncExitStack() as stack:
        opening = [connect(f"{url}/{path}", compression=None, ssl=trusted) for path in paths]
        try:
            yield [await stack.enter_async_context(peer) for peer in opening]
        finally:
            for _ in range(100):
                application.look.release()


def message_of(number: int, size: int = LARGE) -> bytes:
    """A message that is no other one's."""
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


async def _filled(application: Slow, found: list[ClientConnection]) -> None:
    """As many large messages as an account may have, each come and not looked at."""
    for number in range(LARGE_MESSAGES_MAX):
        await found[number].send(message_of(number))
        assert await application.next() == message_of(number)


@pytest.mark.parametrize("size", [LARGE, 3_000_000])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_the_edge_of_large_messages_at_once(size: int, tls: bool, tmp_path: Path) -> None:
    """One more waits until one of them was looked at, and comes whole."""
    intake = Noted()
    application = Slow(ada=intake)
    authority = Authority(tmp_path) if tls else None
    accounts = ["ada"] * (LARGE_MESSAGES_MAX + 1)
    async with peers(application, *accounts, authority=authority) as found:
        await _filled(application, found)
        assert intake.refused.empty()
        sending = asyncio.create_task(found[-1].send(message_of(9, size)))
        async with asyncio.timeout(TIMEOUT_S):
            await intake.refused.get()
        assert application.came.empty()
        application.look.release()
        assert await application.next() == message_of(9, size)
        await sending


async def test_small_messages_and_other_accounts_do_not_wait() -> None:
    application = Slow(ada=Noted(), bob=Intake())
    small = message_of(7, LARGE_MESSAGE_BYTES - 14)  # a header of 10 bytes, a mask of 4
    async with peers(application, *["ada"] * (LARGE_MESSAGES_MAX + 1), "bob") as found:
        await _filled(application, found)
        await found[-2].send(small)
        assert await application.next() == small
        await found[-1].send(message_of(8))
        assert await application.next() == message_of(8)


async def test_who_is_gone_takes_no_place() -> None:
    """In the midst of a message, or while it waited."""
    intake = Noted()
    application = Slow(ada=intake)
    async with peers(application, *["ada"] * (LARGE_MESSAGES_MAX + 3)) as found:
        await _filled(application, found)
        gone, *waiting = found[-3:]
        for number, peer in enumerate((gone, *waiting)):
            await peer.send(message_of(10 + number))
            async with asyncio.timeout(TIMEOUT_S):
                await intake.refused.get()
        gone.transport.abort()
        found[0].transport.abort()
        came = await application.next()
        while came == message_of(10):  # it had come whole before its end was noticed
            application.look.release()
            came = await application.next()
        assert came == message_of(11)
        application.look.release()
        assert await application.next() == message_of(12)


@dataclass(frozen=True)
class Turn:
    """A taker that notes when its turn comes."""

    name: str
    order: list[str] = field(compare=False)

    def go_on(self) -> None:
        """As `Taker.go_on`."""
        self.order.append(self.name)


class Shut:
    """A transport that may be told what it had read when it was paused."""

    def __init__(self) -> None:
        self.is_paused = False

    def pause_reading(self) -> None:
        """As a transport's."""
        self.is_paused = True


def test_nothing_is_lost_that_comes_while_it_waits() -> None:
    """It goes behind what is kept, and is taken in with it."""
    intake = Intake()
    for number in range(LARGE_MESSAGES_MAX):
        intake.enter(Turn(str(number), []))
    protocol = DirectProtocol.__new__(DirectProtocol)
    protocol.transport = transport = Shut()  # type: ignore[assignment]
    protocol.trust(intake)
    protocol.data_received(bytes(LARGE))
    protocol.data_received(b"more")
    assert protocol._kept == bytes(LARGE) + b"more"
    assert transport.is_paused


async def test_turns_are_in_the_order_of_coming() -> None:
    order: list[str] = []
    intake, takers = Intake(), [Turn(str(n), order) for n in range(LARGE_MESSAGES_MAX + 3)]
    assert [intake.enter(taker) for taker in takers].count(True) == LARGE_MESSAGES_MAX
    assert intake.enter(takers[0]), "who is in may go on"
    first, gone, second = takers[LARGE_MESSAGES_MAX:]
    intake.leave(gone)
    for taker in (*takers[:2], first, second):
        intake.leave(taker)
    await anyio.lowlevel.checkpoint()
    assert order == [first.name, second.name]
    assert intake.enter(gone)


def test_an_account_is_forgotten_with_its_last_connection() -> None:
    intakes = Intakes()
    held = intakes.of("ada")
    assert intakes.of("ada") is held
    assert intakes.of("bob") is not held
    del held
    assert len(intakes._found) == 0
