"""What a measured system looks like to the cells: a row that starts, and its connections.

A row is one system in one setting (etcd, NATS KV with its defaults, our service on Redis ...).
Its client library is used the way its own documentation shows it; nothing is tuned by hand.
"""

from __future__ import annotations

import asyncio
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

from bench.servers import Lab, Server, UnavailableError

LOOPBACK = "127.0.0.1"
OnChange = Callable[[bytes], None]
"""Called with each watched change's value, in the order of arrival."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a started row listens (loopback only) and the secret that opens it, if any."""

    port: int
    token: str = ""


class Pumps:
    """The background readers of one connection; a reader that failed is reported at the end."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` until `stop`."""
        self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        """Cancel all; raise the first error that a reader ended with by itself."""
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


class Connection(ABC):
    """One client connection. Keys are `folder/name`, values bytes, versions positive integers."""

    @abstractmethod
    async def put(self, key: str, value: bytes) -> None:
        """Write; returns when the system acknowledged it."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the watches and hang up."""

    async def read(self, key: str) -> tuple[bytes, int]:
        """Value and version; (b"", 0) when there is none."""
        raise NotImplementedError

    async def swap(self, key: str, value: bytes, version: int) -> bool:
        """Write if the key still has that version; False when it has another."""
        raise NotImplementedError

    async def increment(self, key: str) -> None:
        """Add one to a counter at the server."""
        raise NotImplementedError

    async def watch(self, folder: str, on_change: OnChange) -> None:
        """Return once the watch on `folder/` is live; changes then go to `on_change`."""
        raise NotImplementedError


class Row(ABC):
    """One system in one setting. `servers[0]` is the process that clients talk to."""

    name: ClassVar[str]
    survives: ClassVar[str]
    cells: ClassVar[frozenset[str]]

    def __init__(self) -> None:
        self.servers: list[Server] = []
        self.endpoint = Endpoint(0)

    @abstractmethod
    async def start(self, lab: Lab) -> None:
        """Bring the system up on free loopback ports; `UnavailableError` if that cannot be."""

    @abstractmethod
    async def connect(self) -> Connection:
        """A new connection to `endpoint`."""

    def cpu_seconds(self) -> float:
        """CPU used so far by all of the row's server processes."""
        return sum(server.cpu_seconds() for server in self.servers)


def client_module(name: str) -> ModuleType:
    """Import a client library, or skip the row with the reason."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(
            f"{error}; the peers' clients are in bench/requirements.txt"
        ) from error
