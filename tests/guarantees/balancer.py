"""A TCP balancer in front of services: it asks each at `/readyz`, and sends connections to those
that are ready."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

import httpx

from tests.waiting import let_pass, wait_until

CHUNK_BYTES = 64 * 1024
ASK_S = 0.05
"""Between two questions; those of clouds ask every few seconds."""
PATIENCE_S = 400.0


class Balancer:
    """`async with Balancer(ports) as balancer: ... balancer.url`. Connections go in turn."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ready: set[int] = set()
        """The ports of services that answered 200."""
        self.sent: list[int] = []
        """Where each connection went."""
        self._ports = list(ports)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """For clients of the services."""
        assert self._server is not None
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def all_ready(self) -> None:
        """Wait until every service is ready."""
        await self.until(*self._ports)

    async def until(self, *ports: int) -> None:
        """Wait until exactly these are ready."""

        async def so() -> bool:
            return self.ready == set(ports)

        await wait_until(so, timeout_s=PATIENCE_S)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        for port in self._ports:
            self._add(asyncio.create_task(self._ask(port)))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _add(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, port: int) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
            while True:
                try:
                    answer = await http.get(f"http://127.0.0.1:{port}/readyz")
                    is_ready = answer.status_code == 200
                except httpx.HTTPError:
                    is_ready = False
                (self.ready.add if is_ready else self.ready.discard)(port)
                await let_pass(ASK_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._add(task)
        with suppress(OSError):
            there = await self._connected()
            if there is not None:
                await self._forward((reader, writer), there)
        writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the ready service whose last turn is the longest ago; None if there is
        none."""
        last = {port: number for number, port in enumerate(self.sent)}
        for port in sorted(self.ready, key=lambda each: last.get(each, -1)):
            with suppress(ConnectionError):
                found = await asyncio.open_connection("127.0.0.1", port)
                self.sent.append(port)
                return found
        return None

    async def _forward(
        self,
        here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        ways = [
            asyncio.ensure_future(_pump(here[0], there[1])),
            asyncio.ensure_future(_pump(there[0], here[1])),
        ]
        try:
            await asyncio.wait(ways)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            there[1].close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()
