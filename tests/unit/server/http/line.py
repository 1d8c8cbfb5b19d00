"""A line between a client and a service that can be cut, or go silent in one direction; and an
engine that cuts it between a deed and its answer."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from blackboard.core.model import Outcome
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.wire.codec import Prepared


class Line:
    """Forwards TCP connections to `target_port`. `async with Line(port) as line: ... line.port`."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.connections = 0
        """Connections that were made so far."""
        self._target_port = target_port
        self._replies = asyncio.Event()
        self._replies.set()
        self._is_dead = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The near end, for clients."""
        return f"ws://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection; new ones work."""
        for writer in list(self._writers):
            writer.transport.abort()

    def kill(self) -> None:
        """Break every connection; new ones break too, until `revive`."""
        self._is_dead = True
        self.cut()

    def revive(self) -> None:
        """Let new connections through again."""
        self._is_dead = False

    def hush(self) -> None:
        """Hold back what the service says, until `speak`; what is sent to it still arrives."""
        self._replies.clear()

    def speak(self) -> None:
        """Let through again what the service says."""
        self._replies.set()

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
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._is_dead:
            return writer.transport.abort()
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, there_writer}
        always = asyncio.Event()
        always.set()
        self._forward(reader, there_writer, always)
        self._forward(there_reader, writer, self._replies)
        return None

    def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        task = asyncio.create_task(self._pump(reader, writer, gate))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(65_536):
                await gate.wait()
                writer.write(chunk)
                await writer.drain()
        writer.transport.abort()
        self._writers.discard(writer)


class CuttingStore(SqliteStore):
    """After a commit that begins an epoch, and before any client learns of it, `cut` is called."""

    cut: Callable[[], None] | None = None

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`."""
        outcomes = await super().commit(board, batch)
        if self.cut is not None and batch[0].commit.begins is not None:
            self.cut()
        return outcomes
