"""A replica that the service lets in and then refuses, again and again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.commit import Reading
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import BoardFrozen
from blackboard.server.service import Service
from tests.lowered import lowered
from tests.waiting import wait_until

PATIENCE_S = 60.0
ROUNDS = 4


class NotedPauses(tuple[int, ...]):  # noqa: SLOT001 - a tuple has no slots of its own
    """Pauses that take no time; `taken` says which of them were taken."""

    taken: list[int]

    def __getitem__(self, index: Any) -> Any:
        """The pause at `index`, which is noted."""
        self.taken.append(index)
        return super().__getitem__(index)


@pytest.fixture
def pauses() -> NotedPauses:
    """More of them than a test takes."""
    noted = NotedPauses([0] * 1_000_000)
    noted.taken = []
    return noted


@pytest.fixture
async def client(tmp_path: Path, pauses: NotedPauses) -> AsyncIterator[Client]:
    """A client that pauses so before it connects again."""
    limits = lowered(connect_pauses_ms=pauses)
    async with Service(await SqliteStore.at(tmp_path, "memory"), limits=limits) as service:
        yield Client(service.link(access.operator()))


async def test_the_pauses_grow_while_a_frozen_board_refuses_its_edits(
    client: Client, pauses: NotedPauses
) -> None:
    """And they begin from the first one again as soon as the edits were taken."""

    async def refused_often() -> bool:
        return len(pauses.taken) >= ROUNDS

    async with client.board().document("public/memo") as doc:
        for edit in ("one", "two"):
            pauses.taken.clear()
            await client.freeze()
            doc.text().append(edit)
            with anyio.fail_after(PATIENCE_S), pytest.raises(BoardFrozen):
                await doc.synced()
            await wait_until(refused_often)
            assert pauses.taken[:ROUNDS] == list(range(ROUNDS)), edit
            await client.thaw()
            with anyio.fail_after(PATIENCE_S):
                await doc.synced()


async def test_a_call_that_begins_after_the_thaw_is_not_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the replica read of the board before."""
    as_ever, is_read, is_thawed = client.link.read, asyncio.Event(), asyncio.Event()

    async def slow(board: str, keys: Sequence[str]) -> Reading:
        reading = await as_ever(board, keys)
        if reading.entries:
            is_read.set()
            await is_thawed.wait()
        return reading

    async with client.board().document("public/memo") as doc:
        await doc.synced()
        await client.freeze()
        monkeypatch.setattr(client.link, "read", slow)
        doc.text().append("one")
        async with asyncio.timeout(PATIENCE_S):
            early = asyncio.create_task(doc.synced())
            await is_read.wait()
            await client.thaw()
            late = asyncio.create_task(doc.synced())
            is_thawed.set()  # it has begun when the one that reads goes on
            with pytest.raises(BoardFrozen):
                await early
            await late
