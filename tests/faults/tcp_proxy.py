"""A TCP proxy on loopback that loses exactly what a test tells it to lose."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.waiting import let_pass

CHUNK_BYTES = 64 * 1024
CLOSING_S = 5.0
"""Time for connections to notice that they were cut."""
SCRIPT_REPLY = b"*"
"""How Redis answers a script: with an array. Its greetings begin otherwise."""
FRAME = b"\x82"
"""How a WebSocket's binary message begins, on its way to the client."""


class TcpProxy:
    """Forwards connections to `target_port`. `async with TcpProxy(port) as proxy: ... proxy.port`.

    `reply` is how a reply begins that may be dropped: by default that of a Redis script.

    Invariants
    - A request whose reply is dropped has reached the server whole, and was answered.
    - A dropped reply never arrives, not even in part: both sides of that connection are closed.
    """

    def __init__(self, target_port: int, reply: bytes = SCRIPT_REPLY) -> None:
        self.port = 0
        self.dropped = asyncio.Event()
        """Set when a reply was dropped."""
        self.delay_s = 0.0
        """So long each piece of what passes is kept back, in both directions."""
        self._target_port = target_port
        self._reply = reply
        self._drops = 0
        self.kept = asyncio.Event()
        """Set when a request was kept back."""
        self._keeps = False
        self._delivers = asyncio.Event()
        self._open, self._flows = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def drop_replies(self, count: int = 1) -> None:
        """Drop the next `count` replies, each with its connection."""
        self._drops += count
        self.dropped.clear()

    def keep_back(self) -> None:
        """Let the next request wait until `deliver`, even when its client has gone; those of other
        connections pass."""
        self._keeps = True
        self.kept.clear()
        self._delivers.clear()

    def deliver(self) -> None:
        """Let the request that was kept back arrive."""
        self._delivers.set()

    def hold(self) -> None:
        """Let new connections wait until `release`."""
        self._open.clear()

    def release(self) -> None:
        """Let connections that wait, and later ones, through."""
        self._open.set()

    def swallow(self) -> None:
        """Let nothing pass any more, and close nothing, until `flow`: a black hole."""
        self._flows.clear()

    def flow(self) -> None:
        """Let pass what was kept back, and all that comes."""
        self._flows.set()

    def cut(self) -> None:
        """Break every connection that there is."""
        for writer in self._writers:
            writer.transport.abort()

    def lead_to(self, port: int) -> None:
        """Break every connection; later ones go to `port`."""
        self._target_port = port
        self.cut()

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
        self.release()
        self.flow()
        self.deliver()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._open.wait()
            await self._forward(reader, writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(
                "127.0.0.1", self._target_port
            )
            self._writers.add(there_writer)
            try:
                async with asyncio.TaskGroup() as tasks:
                    requests = tasks.create_task(self._pump_requests(reader, there_writer))
                    await self._pump_replies(there_reader, writer)
                    requests.cancel()
            finally:
                self._writers.discard(there_writer)
                there_writer.close()

    async def _pump_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward replies until the server, or a drop, ends the connection.

        The driver's own greetings pass: only what begins like a reply is dropped.
        """
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self._drops and chunk.startswith(self._reply):
                    self._drops -= 1
                    self.dropped.set()
                    return
                await self._pass(chunk, writer)

    async def _pump_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self._keeps:
                    self._keeps = False
                    self.kept.set()
                    await self._delivers.wait()
                await self._pass(chunk, writer)
            writer.write_eof()

    async def _pass(self, chunk: bytes, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        if self.delay_s:
            await let_pass(self.delay_s)
        writer.write(chunk)
        await writer.drain()
