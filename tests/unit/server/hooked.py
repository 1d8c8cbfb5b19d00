"""The embedded engine with places to break it: real but for what a test does in between."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.commit import Head, LogPage, Reading
from blackboard.core.model import Outcome
from blackboard.core.path import Ranges
from blackboard.engines.base import BatchAnswer, EngineFacts
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import DEFAULT, Limits
from blackboard.server.service import Service
from blackboard.units import Milliseconds, Prefix, Revision
from blackboard.wire.codec import Prepared
from tests.lowered import lowered

Hook = Callable[[], Awaitable[None]]


class HookedStore(SqliteStore):
    """`hooks["before commit"]` is awaited before each commit, `"after log"` after each read of the
    log, and so on; what it raises is what the call raises."""

    def hook(self, place: str, hook: Hook) -> None:
        """Call `hook` at `place` from now on."""
        self.hooks[place] = hook

    @property
    def hooks(self) -> dict[str, Hook]:
        """What is called where."""
        found: dict[str, Hook] = self.__dict__.setdefault("_hooks", {})
        return found

    async def _at(self, place: str) -> None:
        if place in self.hooks:
            await self.hooks[place]()

    async def facts(self) -> EngineFacts:
        """As `Store.facts`, with hooks."""
        await self._at("before facts")
        return await super().facts()

    async def open(self, board: str, *, again: bool = False) -> Head:
        """As `Store.open`, with hooks."""
        await self._at("before open")
        return await super().open(board, again=again)

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`, with hooks."""
        await self._at("before commit")
        outcomes = await super().commit(board, batch)
        await self._at("after commit")
        return outcomes

    def begin(self, board: str, batch: Sequence[Prepared], answer: BatchAnswer) -> bool:
        """As `Begins.begin`, without hooks; with some, `commit` is called."""
        return not self.hooks and super().begin(board, batch, answer)

    async def list(self, board: str, within: Prefix | Ranges, **page: Any) -> Reading:
        """As `Store.list`, with hooks."""
        reading = await super().list(board, within, **page)
        await self._at("after list")
        return reading

    async def leases(self, board: str, *, due: bool = False) -> Reading:
        """As `Store.leases`, with hooks."""
        reading = await super().leases(board, due=due)
        await self._at("after leases")
        return reading

    async def log(
        self, board: str, after: Revision, *, limit: int, wait_ms: Milliseconds = 0
    ) -> LogPage:
        """As `Store.log`, with hooks."""
        await self._at("before log")
        page = await super().log(board, after, limit=limit, wait_ms=wait_ms)
        await self._at("after log")
        return page


@asynccontextmanager
async def service_over(
    path: Path, limits: Limits = DEFAULT
) -> AsyncIterator[tuple[Service, HookedStore]]:
    """A service over a hooked engine.

    It does not sweep: that would set off hooks that are meant for others, and end what a test wants
    to end itself.
    """
    store = await HookedStore.at(path, "memory")
    async with Service(store, limits=lowered(limits, sweep_interval_ms=3_600_000)) as service:
        yield service, store


def client_of(service: Service, agent: str | None = None) -> Client:
    """A client in process, as `agent` or as the operator."""
    return Client(service.link(access.acting_as(access.operator(), agent)))
