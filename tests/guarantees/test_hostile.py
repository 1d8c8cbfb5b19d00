"""A service under hostile connections of every kind, while others work.

Half of a request, a handshake and silence, floods, watches and documents that nobody reads,
garbage, huge frames: all at once, while a healthy team does its work. Then: everything that the
team did is there, memory is bounded, and the process has not gone.

`BLACKBOARD_HOSTILE_CONNECTIONS` sets how many there are, 1,000 in the long form. How long a commit
of the team took, alone and in that company, is logged (`--log-cli-level=info`); the enemies share a
process with the team, so that it is more than what the service takes.
"""

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

import blackboard
from blackboard.net.tokens import issue
from blackboard.service import access
from tests.acceptance.attack import Target
from tests.guarantees.processes import HOUR_MS, ServiceProcess

log = logging.getLogger(__name__)
CONNECTIONS = int(os.environ.get("BLACKBOARD_HOSTILE_CONNECTIONS", "70"))
COMMITS = 30
"""Of each healthy agent."""
TEAM = ("ada", "bob", "eve")
PATIENCE_S = 150
GROWTH_BYTES = 128 * 1024**2 + CONNECTIONS * 512 * 1024
"""What the process may take in that company: more than it needs for anybody, and half a megabyte
for each connection. A frame of 8 MiB that was kept for each would be found."""
FLOOD = 30
"""Frames of a flood, of 20 requests each."""
HUGE = "x" * 500_000


@dataclass(frozen=True)
class Enemy:
    """One hostile connection. Its token is good: strangers would not be let so far."""

    service: ServiceProcess
    number: int
    seed: int

    @property
    def headers(self) -> dict[str, str]:
        """Those of a handshake that is let in."""
        agent = access.agent(f"enemy{self.number % 20}")
        return {"Authorization": f"Bearer {issue(self.service.secret, agent, HOUR_MS)}"}

    @contextlib.asynccontextmanager
    async def socket(self, headers: dict[str, str]) -> AsyncIterator[ClientConnection]:
        """An open WebSocket; with a token in the headers it has greeted."""
        protocol = Subprotocol("blackboard.v1+json")
        async with connect(
            f"{self.service.url}/v1",
            subprotocols=[protocol],
            additional_headers=headers,
            compression=None,
            proxy=None,
            open_timeout=PATIENCE_S,
            close_timeout=0.1,
        ) as socket:
            if headers:
                await socket.send('[{"id":0,"method":"hello"}]')
                await socket.recv()
            yield socket


async def half_open(enemy: Enemy) -> None:
    """Half of a request, again and again: each is cut off after a while."""
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", enemy.service.port)
        try:
            writer.write(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Drip: x")
            await reader.read()
        finally:
            writer.transport.abort()


async def silent(enemy: Enemy) -> None:
    """A handshake without a token, and not a word."""
    async with enemy.socket({}) as socket:
        await socket.wait_closed()


async def flooding(enemy: Enemy) -> None:
    """As many requests as it can send, and only then a look at the answers."""
    listing = '{"id":%d,"method":"list","params":{"board":"main","pattern":"public/**"}}'
    async with enemy.socket(enemy.headers) as socket:
        for frame in range(FLOOD):
            numbers = range(1 + frame * 20, 21 + frame * 20)
            await socket.send("[" + ",".join(listing % number for number in numbers) + "]")
        async for _ in socket:
            pass


async def never_reading(enemy: Enemy) -> None:
    """Watches whose news stay in the socket."""
    watch = '{"id":%d,"method":"watch","params":{"board":"main","watch":%d,"patterns":["**"]}}'
    async with enemy.socket(enemy.headers) as socket:
        socket.transport.pause_reading()
        await socket.send("[" + ",".join(watch % (n, n) for n in range(1, 20)) + "]")
        await socket.wait_closed()


async def document_unread(enemy: Enemy) -> None:
    """A document that is joined, and never looked at."""
    url = f"{enemy.service.url}/v1/boards/main/docs/public/memo"
    async with connect(url, additional_headers=enemy.headers, proxy=None) as socket:
        socket.transport.pause_reading()
        await socket.wait_closed()


async def garbage(enemy: Enemy) -> None:
    """Frames that are none: each costs it a connection."""
    rng = random.Random(enemy.seed + enemy.number)
    for _ in range(10):
        async with enemy.socket(enemy.headers) as socket:
            await socket.send(rng.choice(["{", "[" * 5_000, "[]", '[{"id":1}]]', "\x00"]))
            await socket.wait_closed()


async def huge(enemy: Enemy) -> None:
    """Large frames that hold nothing."""
    async with enemy.socket(enemy.headers) as socket:
        for _ in range(5):
            await socket.send(f'[{{"id":1,"method":"{HUGE}"}}]')
        await socket.wait_closed()


Attack = Callable[[Enemy], Coroutine[Any, Any, None]]
ATTACKS: list[Attack] = [half_open, silent, flooding, never_reading, document_unread, garbage, huge]
_ENDED = (OSError, WebSocketException, TimeoutError)
"""How the service rids itself of them."""


async def _attack(enemy: Enemy) -> None:
    with contextlib.suppress(*_ENDED):
        await ATTACKS[enemy.number % len(ATTACKS)](enemy)


async def work(service: ServiceProcess, round_: str) -> list[float]:
    """The team does its work; how long each commit took, in seconds, sorted."""
    took: list[float] = []

    async def one(name: str) -> None:
        token = issue(service.secret, access.agent(name), HOUR_MS)
        async with blackboard.connect(service.url, token=token, patience_ms=60_000) as client:
            board = client.board("main")
            for _ in range(COMMITS):
                begun_s = time.monotonic()
                await board.increment(f"public/{round_}/{name}", 1)
                took.append(time.monotonic() - begun_s)
            assert await board.get(f"public/{round_}/{name}") == COMMITS

    await asyncio.gather(*(one(name) for name in TEAM))
    return sorted(took)


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
async def test_hostile_connections_keep_nobody_from_work(tmp_path: Path, seed: int) -> None:
    """Nothing that the team did is lost, memory is bounded, and the process goes on."""
    async with (
        asyncio.timeout(PATIENCE_S),
        ServiceProcess("sqlite", tmp_path / "data") as service,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{service.port}", trust_env=False, timeout=PATIENCE_S
        ) as http,
    ):
        alone = await work(service, "alone")
        target = Target(service.port, service.pid)
        before = target.memory_bytes()
        enemies = [
            asyncio.create_task(_attack(Enemy(service, number, seed)))
            for number in range(CONNECTIONS)
        ]
        try:
            together = await work(service, "together")
            assert (await http.get("/healthz")).status_code == 200
            grown = target.memory_bytes() - before
        finally:
            for enemy in enemies:
                enemy.cancel()
            ended = await asyncio.gather(*enemies, return_exceptions=True)
        assert [e for e in ended if not isinstance(e, asyncio.CancelledError | None)] == []
        assert grown < GROWTH_BYTES
        afterwards = await work(service, "afterwards")
        for name, took in (("alone", alone), ("together", together), ("after", afterwards)):
            middle, last = took[len(took) // 2], took[-len(took) // 100]
            log.info("%s: half of the commits in %.4f s, 99 of 100 in %.4f s", name, middle, last)
        log.info("%d MiB, and %d MiB for them", before // 1024**2, grown // 1024**2)
