"""Hostile connections, a process of them: `python -m tests.guarantees.hostile_child <JSON>`.

The JSON holds the arguments of `run`. It prints a line once all have been started.
"""

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from blackboard.core import access
from blackboard.integrity.tokens import issue
from tests.guarantees.processes import HOUR_MS

PATIENCE_S = 150
FLOOD = 30
"""Frames of a flood, of 20 requests each."""
HUGE = "x" * 500_000


@dataclass(frozen=True)
class Enemy:
    """One hostile connection. Its token is good: strangers would not be let so far."""

    url: str
    secret: str
    number: int
    seed: int

    @property
    def port(self) -> int:
        """Where the service is."""
        return int(self.url.rpartition(":")[2])

    @property
    def headers(self) -> dict[str, str]:
        """Those of a handshake that is let in."""
        agent = access.agent(f"enemy{self.number % 20}")
        return {"Authorization": f"Bearer {issue(self.secret, agent, HOUR_MS)}"}

    @contextlib.asynccontextmanager
    async def socket(self, headers: dict[str, str]) -> AsyncIterator[ClientConnection]:
        """An open WebSocket; with a token in the headers it has greeted."""
        protocol = Subprotocol("blackboard.v1+json")
        async with connect(
            f"{self.url}/v1",
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
        reader, writer = await asyncio.open_connection("127.0.0.1", enemy.port)
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
    url = f"{enemy.url}/v1/boards/main/docs/public/memo"
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


async def _attack(enemy: Enemy, attack: Attack) -> None:
    with contextlib.suppress(*_ENDED):
        await attack(enemy)


async def run(url: str, secret: str, count: int, seed: int, kinds: Sequence[str]) -> None:
    """`count` enemies at once, of `kinds` in turn; until the service has rid itself of all."""
    attacks = [attack for attack in ATTACKS if attack.__name__ in kinds]
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            enemy = Enemy(url, secret, number, seed)
            tasks.create_task(_attack(enemy, attacks[number % len(attacks)]))
        sys.stdout.write("begun\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(run(**json.loads(sys.argv[1])))
