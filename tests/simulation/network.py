"""WebSockets between clients and services, as lines that carry messages late, or break.

A message takes its time; messages of one direction stay in their order. What breaks is the
connection, as with TCP: what was sent on it before is lost, or arrives after the client has come
back over another one. The two ends notice a break at different times.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import Any, Final

from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

from blackboard.client.remote.connect import Address
from blackboard.wire.frames import MSGPACK
from tests.simulation.loop import rest
from tests.simulation.plan import Plan
from tests.simulation.trace import Trace

_LATENCY_S: Final = 0.002
_NOTICE_S: Final = 1.0
_DELAY_S: Final = 3.0
_STALL_S: Final = 6.0
_WINDOW_BYTES: Final = 4_096
"""What is under way to a client before the service has to wait: small, so that it happens."""

Message = MutableMapping[str, Any]
"""An event of ASGI."""
Accept = Callable[["Line"], None]
"""Takes a new connection, in a service."""


class Network:
    """Everybody's lines. `doors` are the services that answer now, by name."""

    def __init__(self, plan: Plan, trace: Trace) -> None:
        self.doors: dict[str, Accept] = {}
        self.faults = plan.faults
        self.rate = plan.rate
        self.trace = trace
        self.dice = random.Random(f"network {plan.seed}")
        self._count = 0

    @contextlib.asynccontextmanager
    async def dial(self, address: Address, token: str | None) -> AsyncIterator["Line"]:
        """Connect the client that `token` names to any service. Errors: OSError."""
        await rest(self.latency())
        if not self.doors:
            raise ConnectionRefusedError("nobody answers")
        name = self.dice.choice(sorted(self.doors))
        self._count += 1
        line = Line(self, f"{token}>{name}#{self._count}", str(token))
        self.trace.note("open", line.name)
        self.doors[name](line)
        try:
            yield line
        finally:
            line.leave()

    def latency(self) -> float:
        """How long a message takes."""
        return _LATENCY_S * (0.2 + self.dice.random())

    def draw(self, *faults: str) -> str | None:
        """Which of these befalls a message, if any."""
        for fault in faults:
            if fault in self.faults and self.dice.random() < self.rate:
                return fault
        return None

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self.faults = frozenset()


class Line:
    """One connection: the client's end is an `Open` (client/remote/channel.py)."""

    def __init__(self, network: Network, name: str, client: str) -> None:
        self.name = name
        self.client = client
        self.take: Callable[[bytes], None] | None = None
        self.server = ServerEnd(self)
        self.network = network
        self._loop = asyncio.get_running_loop()
        self._is_broken = False
        self._up_s = self._down_s = 0.0
        self._stalled_until_s = 0.0
        self._received: deque[bytes] = deque()
        self._closed: Close | None = None
        self._is_closed = False
        self._news = asyncio.Event()
        self.under_way = 0
        self.room = asyncio.Event()

    # --- the client's end -------------------------------------------------------------------------

    @property
    def transport(self) -> "Line":
        """What carries it: itself."""
        return self

    def abort(self) -> None:
        """As `Transport.abort`."""
        self.leave()

    async def send(self, message: bytes) -> None:
        """As `Open.send`."""
        if self._is_closed:
            raise ConnectionClosedError(self._closed, None)
        fault = self.network.draw("lost request", "straggler", "delay")
        self._note("sent" if fault is None else fault, message)
        extra_s = 0.0 if fault in (None, "lost request") else self._drawn(_DELAY_S)
        if fault != "lost request":
            self._deliver_up(message, extra_s)
        if fault in ("lost request", "straggler"):
            self.cut()

    async def recv(self) -> bytes:
        """As `Open.recv`."""
        while not self._received:
            if self._is_closed:
                raise ConnectionClosedError(self._closed, None)
            self._news.clear()
            await self._news.wait()
        return self._received.popleft()

    def leave(self) -> None:
        """The client is gone: the service hears of it soon."""
        self._is_closed = True
        self._news.set()
        if not self._is_broken:
            self._is_broken = True
            self._deliver_up(None, 0.0)
        self.room.set()

    # --- between ----------------------------------------------------------------------------------

    def cut(self, code: Close | None = None) -> None:
        """The connection breaks. Each end notices in its own time; replies are lost."""
        if self._is_broken:
            return
        self._is_broken = True
        self._loop.call_later(self._drawn(0.05), self._close_client, code)
        self._deliver_up(None, self._drawn(_NOTICE_S))
        self.room.set()

    def down(self, message: bytes) -> None:
        """The service sent something."""
        fault = self.network.draw("lost reply", "stall", "delay")
        self._note("replied" if fault is None else fault, message)
        if fault == "lost reply":
            self.cut()
            return
        if fault == "stall":
            self._stalled_until_s = self._loop.time() + self._drawn(_STALL_S)
        extra_s = self._drawn(_DELAY_S) if fault == "delay" else 0.0
        at_s = max(self._loop.time() + self.network.latency() + extra_s, self._stalled_until_s)
        self._down_s = max(at_s, self._down_s + 1e-6)
        self.under_way += len(message)
        self._loop.call_at(self._down_s, self._arrive, message)

    @property
    def is_full(self) -> bool:
        """Whether the service has to wait before it sends more."""
        return self.under_way > _WINDOW_BYTES and not self._is_broken

    def end(self, close: Close) -> None:
        """The service closes the connection, after what it sent."""
        self._is_broken = True
        self._down_s = max(self._loop.time() + self.network.latency(), self._down_s + 1e-6)
        self._loop.call_at(self._down_s, self._close_client, close)
        self.server.deliver(None)

    @property
    def is_broken(self) -> bool:
        """Whether nothing comes through to the client any more."""
        return self._is_broken

    def _deliver_up(self, message: bytes | None, extra_s: float) -> None:
        at_s = self._loop.time() + self.network.latency() + extra_s
        self._up_s = max(at_s, self._up_s + 1e-6)
        self._loop.call_at(self._up_s, self.server.deliver, message)

    def _arrive(self, message: bytes) -> None:
        self.under_way -= len(message)
        if not self.is_full:
            self.room.set()
        if self._is_closed or self._is_broken:
            return
        if self.take is not None and not self._received:
            self.take(message)
        else:
            self._received.append(message)
            self._news.set()

    def _close_client(self, close: Close | None) -> None:
        self._is_closed, self._closed = True, close
        self._news.set()

    def _drawn(self, most_s: float) -> float:
        return self.network.dice.random() * most_s

    def _note(self, kind: str, message: bytes) -> None:
        self.network.trace.note(kind, f"{self.name} {self.network.trace.short(message)}")


class ServerEnd:
    """The service's end of a line, as a server of ASGI shows it to an application."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._received: deque[Message] = deque([{"type": "websocket.connect"}])
        self._news = asyncio.Event()
        self.is_dead = False

    @property
    def scope(self) -> Message:
        """What the application gets of the handshake."""
        return {
            "type": "websocket",
            "headers": [(b"authorization", f"Bearer {self._line.client}".encode())],
            "subprotocols": [f"blackboard.v1+{MSGPACK.name}"],
        }

    def deliver(self, message: bytes | None) -> None:
        """Something arrived; None: the client is gone."""
        if not self.is_dead:
            gone = {"type": "websocket.disconnect"}
            self._received.append(
                gone if message is None else {"type": "websocket.receive", "bytes": message}
            )
            self._news.set()

    async def receive(self) -> Message:
        """The next event."""
        while not self._received:
            self._news.clear()
            await self._news.wait()
        return self._received.popleft()

    async def send(self, message: Message) -> None:
        """What the application sends; it waits while there is too much under way."""
        if message["type"] == "websocket.close":
            if not self.is_dead and not self._line.is_broken:
                self._line.end(Close(message.get("code", 1000), message.get("reason", "")))
        elif message["type"] == "websocket.send":
            self._check()
            self._line.down(message["bytes"])
            while self._line.is_full:
                self._line.room.clear()
                await self._line.room.wait()
            self._check()

    def _check(self) -> None:
        if self.is_dead or self._line.is_broken:
            raise BrokenPipeError("the connection broke")
