"""A TCP proxy on loopback that loses exactly what a test tells it to lose."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK_BYTES = 64 * 1024


class TcpProxy:
    """Forwards connections to `target_port`. `async with TcpProxy(port) as proxy: ... proxy.port`.

    Invariants
    - A request whose reply is dropped has reached the server whole, and was answered.
    - A dropped reply never arrives, not even in part: both sides of that connection are closed.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.dropped = asyncio.Event()
        """Set when a reply was dropped."""
        self._target_port = target_port
        self._drops = 0
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def drop_replies(self, count: int = 1) -> None:
        """Drop the next `count` replies, each with its connection."""
        self._drops += count
        self.dropped.clear()

    def hold(self) -> None:
        """Let new connections wait until `release`."""
        self._open.clear()

    def release(self) -> None:
        """Let connections that wait, and later ones, through."""
        self._open.set()

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
            await self._open.wait()
            await self._forward(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(
                "127.0.0.1", self._target_port
            )
            try:
                async with asyncio.TaskGroup() as tasks:
                    requests = tasks.create_task(_pump(reader, there_writer))
                    await self._pump_replies(there_reader, writer)
                    requests.cancel()
            finally:
                there_writer.close()

    async def _pump_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward replies until the server, or a drop, ends the connection.

        The driver's own greetings pass: only replies to scripts, which are arrays, are dropped.
        """
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self._drops and chunk.startswith(b"*"):
                    self._drops -= 1
                    self.dropped.set()
                    return
                writer.write(chunk)
                await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
