"""Services of the board's suites: many tests share one, each with a board of its own.

A test has a service of its own if it lowers limits, or if it is marked `own_service` because it
looks at the service and not at its board.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from blackboard.client.client import Client
from blackboard.core.access import Principal
from blackboard.limits import Limits
from blackboard.server.service import Service
from tests.conformance.team import Team
from tests.lowered import marked

SHARED_BY = 16
"""Tests that share a service. It looks at each of its boards every second, so that more of them
would cost more than a new service does."""


@dataclass(frozen=True, slots=True)
class Running:
    """A service, and how a principal gets a client of it."""

    service: Service
    connect: Callable[[Principal], AbstractAsyncContextManager[Client]]

    @asynccontextmanager
    async def team(self) -> AsyncIterator[Team]:
        """A board that nobody else uses; the clients of it are closed at the end."""
        async with AsyncExitStack() as clients:

            async def connect(principal: Principal) -> Client:
                return await clients.enter_async_context(self.connect(principal))

            yield Team(self.service, connect)


def in_this_process(service: Service) -> Running:
    """Clients without a socket between them and `service`."""

    @asynccontextmanager
    async def connect(principal: Principal) -> AsyncIterator[Client]:
        client = Client(service.link(principal))
        try:
            yield client
        finally:
            await client.aclose()

    return Running(service, connect)


class Services:
    """One service after the other, over what `opening` makes of an empty directory and limits.

    There is never more than one, so that `opening` may empty a server that they share.
    """

    def __init__(
        self,
        directories: pytest.TempPathFactory,
        opening: Callable[[Path, Limits], AbstractAsyncContextManager[Running]],
    ) -> None:
        self._directories = directories
        self._opening = opening
        self._open = AsyncExitStack()
        self._running: Running | None = None
        self._left = 0

    @asynccontextmanager
    async def team(self, node: pytest.Item) -> AsyncIterator[Team]:
        """The team of the test `node`."""
        is_alone = any(map(node.get_closest_marker, ("limits", "own_service")))
        if is_alone or not self._left:
            await self._close()
        if self._running is None:
            self._left = 1 if is_alone else SHARED_BY
            directory = self._directories.mktemp("service")
            opening = self._opening(directory, marked(node))
            self._running = await self._open.enter_async_context(opening)
        self._left -= 1
        async with self._running.team() as team:
            yield team

    async def _close(self) -> None:
        self._running = None
        await self._open.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()
