"""Our own rows: the service on the embedded engine, on Redis, and the engine in-process."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from bench.peers import POWER_LOSS, serve_redis
from bench.rows import LOOPBACK, Connection, Endpoint, OnChange, Pumps, Row, client_module
from bench.servers import Lab, Server

READY_SECONDS_MAX = 60.0
BOARD = "bench"
WITHOUT_ARCHIVE = "BLACKBOARD_ARCHIVE=none"


def public(key: str) -> str:
    """Every measured key lies in the board's public namespace."""
    return f"public/{key}"


class BoardConnection(Connection):
    """One client of ours, remote or in-process: both give the same board."""

    def __init__(self, client: Any, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._board = client.board(BOARD)
        self._conflict = client_module("blackboard").Conflict
        self._pumps = Pumps()

    async def put(self, key: str, value: bytes) -> None:
        await self._board.put(public(key), value)

    async def read(self, key: str) -> tuple[bytes, int]:
        entry = await self._board.entry(public(key))
        if entry is None:
            return b"", 0
        # A counter's value is an integer; the cells compare what other systems keep: its digits.
        value = entry.value if isinstance(entry.value, bytes) else str(entry.value).encode()
        return value, entry.mod_revision

    async def swap(self, key: str, value: bytes, version: int) -> bool:
        try:
            await self._board.put(public(key), value, expected=version)
        except self._conflict:
            return False
        return True

    async def increment(self, key: str) -> None:
        await self._board.increment(public(key), 1)

    async def watch(self, folder: str, on_change: OnChange) -> None:
        live: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def pump() -> None:
            try:
                async with self._board.watch(public(f"{folder}/**")) as watch:
                    live.set_result(None)
                    async for batch in watch:
                        for change in batch.changes:
                            on_change(change.value)
            except Exception as error:
                if live.done():
                    raise
                live.set_exception(error)

        self._pumps.start(pump())
        await asyncio.wait_for(live, READY_SECONDS_MAX)

    async def close(self) -> None:
        try:
            await self._pumps.stop()
        finally:
            await self._stack.aclose()


async def connected(opening: AbstractAsyncContextManager[Any]) -> BoardConnection:
    """Enter `blackboard.connect(...)` or `blackboard.open(...)`, until the connection closes."""
    stack = AsyncExitStack()
    return BoardConnection(await stack.enter_async_context(opening), stack)


async def wait_healthy(server: Server) -> None:
    """Poll /healthz until it says 200; `TimeoutError` with the log's end if it never does."""
    deadline = asyncio.get_running_loop().time() + READY_SECONDS_MAX
    while not await _healthy(server.port):
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"{server.name} did not become healthy: {server.log_tail()}")
        await asyncio.sleep(0.05)


async def _healthy(port: int) -> bool:
    request = f"GET /healthz HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nConnection: close\r\n\r\n"
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request.encode())
        status = await asyncio.wait_for(reader.readline(), READY_SECONDS_MAX)
        writer.close()
    except OSError:
        return False
    return b" 200 " in status


async def serve_ours(
    lab: Lab, name: str, engine: Sequence[str], *, archive: Sequence[str] = (WITHOUT_ARCHIVE,)
) -> tuple[Server, Endpoint]:
    """Start our service the way a user does and read the token that it generated.

    By default it keeps no archive, since no peer keeps every version of every key for ever.
    """
    client_module("blackboard")
    folder = lab.data_folder(name)

    def command(port: int) -> Sequence[str]:
        return [
            "env",
            f"BLACKBOARD_CONFIG_DIR={folder / 'config'}",
            *archive,
            sys.executable,
            "-m",
            "blackboard",
            "serve",
            "--data",
            str(folder),
            "--host",
            LOOPBACK,
            "--port",
            str(port),
            *engine,
        ]

    server = await lab.serve(name, command)
    await wait_healthy(server)
    return server, Endpoint(server.port, (folder / "token").read_text().strip())


class OursEmbedded(Row):
    """Our service over WebSocket, embedded engine, acknowledged when the disk has it."""

    name: ClassVar[str] = "ours-embedded"
    survives: ClassVar[str] = POWER_LOSS
    cells: ClassVar[frozenset[str]] = frozenset({"put", "fan", "cas", "increment", "stall"})

    async def start(self, lab: Lab) -> None:
        server, self.endpoint = await serve_ours(lab, self.name, ())
        self.servers = [server]

    async def connect(self) -> Connection:
        url = f"ws://{LOOPBACK}:{self.endpoint.port}"
        client = client_module("blackboard").connect(url, token=self.endpoint.token)
        return await connected(client)


class OursArchived(OursEmbedded):
    """The same as it comes: with an archive, which is fed in the background."""

    name: ClassVar[str] = "ours-archived"
    cells: ClassVar[frozenset[str]] = frozenset({"put", "fan"})

    async def start(self, lab: Lab) -> None:
        server, self.endpoint = await serve_ours(lab, self.name, (), archive=())
        self.servers = [server]


class OursTeam(OursEmbedded):
    """`ours-embedded`, where each connection but the first is an agent with rights of its own.

    That is what teams are; tokens of one principal would hide what different rights cost.
    """

    name: ClassVar[str] = "ours-team"
    cells: ClassVar[frozenset[str]] = frozenset({"fan"})

    async def start(self, lab: Lab) -> None:
        await super().start(lab)
        self._agents = itertools.count()

    async def connect(self) -> Connection:
        number = next(self._agents)
        agent = f"agent{number}" if number else None
        url = f"ws://{LOOPBACK}:{self.endpoint.port}"
        connect = client_module("blackboard").connect
        return await connected(connect(url, token=self.endpoint.token, agent=agent))


class OursRedis(OursEmbedded):
    """Our service over WebSocket, state in a Redis of its own that syncs before each answer.

    The server's CPU is the service's and that Redis's together.
    """

    name: ClassVar[str] = "ours-redis"

    async def start(self, lab: Lab) -> None:
        client_module("blackboard")
        redis = await serve_redis(lab, "redis-of-ours", "always")
        engine = ("--engine", f"redis://{LOOPBACK}:{redis.port}")
        server, self.endpoint = await serve_ours(lab, self.name, engine)
        self.servers = [server, redis]


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Any]:
    """What `blackboard.open(folder)` gives, without an archive."""
    store = await client_module("blackboard.engines.sqlite.store").SqliteStore.at(folder)
    async with client_module("blackboard.server.service").Service(store) as service:
        yield service.client()


class OursInProcess(Row):
    """The embedded engine without a service: writers and engine in one process."""

    name: ClassVar[str] = "ours-in-process"
    survives: ClassVar[str] = POWER_LOSS
    cells: ClassVar[frozenset[str]] = frozenset({"put"})

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path()

    async def start(self, lab: Lab) -> None:
        client_module("blackboard")
        self._folder = lab.data_folder(self.name)

    async def connect(self) -> Connection:
        return await connected(embedded(self._folder))
