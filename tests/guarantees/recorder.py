"""A TCP proxy on loopback that keeps every byte which the service sends to one client."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK_BYTES = 64 * 1024


class Recorder:
    """Forwards connections to `target_port`: `async with Recorder(port) as tap: ... tap.port`.

    `received` is what came back, over all connections: the handshakes, frames and closing of a
    plain WebSocket. The service sends it without a mask and uncompressed, so text stands in it as
    it is.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.received = bytearray()
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError):
                await self._forward(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, there = await asyncio.open_connection("127.0.0.1", self._target_port)
        requests = asyncio.create_task(_pump(reader, there, bytearray()))
        replies = bytearray()  # of this connection: those of two at once must not mix
        try:
            await _pump(back, writer, replies)
        finally:
            self.received += replies
            requests.cancel()
            await asyncio.gather(requests, return_exceptions=True)
            there.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
) -> None:
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            kept += chunk
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
