"""A plain WebSocket to a service, for tests that speak the protocol themselves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from blackboard.wire.frames import JSON, SUBPROTOCOLS, Encoding
from tests.waiting import TIMEOUT_S

PATIENCE_S = TIMEOUT_S


class Talk:
    """Sends and receives messages of one encoding."""

    def __init__(self, socket: ClientConnection, encoding: Encoding) -> None:
        self.socket = socket
        self.encoding = encoding
        self.waiting: list[Any] = []
        """Messages that came in a frame with one that was received."""

    async def send(self, *messages: Any) -> None:
        """Send messages as one frame."""
        frame = self.encoding.join([self.encoding.pack(message) for message in messages])
        await self.send_raw(frame)

    async def send_raw(self, frame: bytes) -> None:
        """Send a frame as it is."""
        await self.socket.send(frame if self.encoding.binary else frame.decode())

    async def receive(self) -> Any:
        """The next message. Errors: ConnectionClosed; TimeoutError when none comes."""
        while not self.waiting:
            frame = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
            self.waiting = self.encoding.split(frame.encode() if isinstance(frame, str) else frame)
        return self.waiting.pop(0)

    async def ask(self, number: int, method: str, params: dict[str, Any]) -> Any:
        """Send one request and receive its answer, which must be what comes next."""
        await self.send({"id": number, "method": method, "params": params})
        answer = await self.receive()
        assert answer.get("id") == number, answer
        return answer

    async def closed(self) -> int:
        """Wait until the service closes the connection; the close code."""
        async with asyncio.timeout(PATIENCE_S):
            await self.socket.wait_closed()
        return self.socket.close_code or 0


@asynccontextmanager
async def talking(
    url: str,
    token: str | None,
    *,
    encoding: Encoding = JSON,
    greeting: dict[str, Any] | None = None,
) -> AsyncIterator[Talk]:
    """A connection that has greeted with `greeting` as params; with None it has not greeted."""
    name = next(name for name, found in SUBPROTOCOLS.items() if found is encoding)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with connect(
        f"{url}/v1",
        subprotocols=[Subprotocol(name)],
        additional_headers=headers,
        compression=None,
        max_size=None,
        proxy=None,
    ) as socket:
        talk = Talk(socket, encoding)
        if greeting is not None:
            answer = await talk.ask(0, "hello", greeting)
            assert "result" in answer, answer
        yield talk
