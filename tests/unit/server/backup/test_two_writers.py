"""Two processes that write to one backup in an object store: what is in it stays whole."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from blackboard.archive.sql import archive_beside
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import verify
from blackboard.backup.retain import Policy, prune
from blackboard.backup.ship import Shipper
from blackboard.core.commit import Commit, CommitId, Put
from blackboard.engines.disk import replace_file
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value, prepare
from tests.lowered import lowered
from tests.waiting import wait_until

BOARD = "main"
LEASE = "lock.json"


@dataclass
class Bucket:
    """An object store, and an engine with a board that is shipped there."""

    objects: MemoryStore
    store: SqliteStore

    def place(self, limits: Limits = DEFAULT) -> BackupPlace:
        """The backup in it, as another process opens it."""
        return BackupPlace("memory", self.objects, limits)

    def shipper(self) -> Shipper:
        """A process that ships the board."""
        return Shipper(self.place(), self.store, None)

    async def commit(self) -> None:
        """One more revision."""
        head = await self.store.open(BOARD)
        put = (Put("public/a", encode_value(head.revision)),)
        commit = Commit(CommitId("ann", 0, "writer", head.revision + 1), head.epoch.id, put)
        [outcome] = await self.store.commit(BOARD, [prepare(commit)])
        assert not isinstance(outcome, Exception), outcome

    async def ship(self, shipper: Shipper) -> None:
        """A new revision goes into the backup."""
        await self.commit()
        assert (await shipper.round([BOARD])).entries == 1

    async def newest(self) -> int:
        """The newest revision in the backup, which is read as a whole."""
        [found] = [each async for each in verify(self.place())]
        return found.last

    async def lose_lease(self) -> None:
        """As if its time were over: its holder stood still, or could not reach the store."""
        await self.place().remove(LEASE)


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[Bucket]:
    """With three revisions in three files."""
    store = await SqliteStore.at(tmp_path)
    bucket = Bucket(MemoryStore(), store)
    await bucket.commit()
    shipper = bucket.shipper()
    await shipper.begin()
    await shipper.round([BOARD])
    for _ in range(3):
        await bucket.ship(shipper)
    await shipper.end()
    yield bucket
    await store.aclose()


@asynccontextmanager
async def pruning(
    bucket: Bucket, limits: Limits = DEFAULT
) -> AsyncIterator["asyncio.Task[object]"]:
    """A pruning that has read the manifest and stands still until this ends."""
    place, reads, goes_on = bucket.place(limits), asyncio.Event(), asyncio.Event()
    get = place.get

    async def slowly(name: str) -> bytes | None:
        if name.endswith(".segment"):
            reads.set()
            await goes_on.wait()
        return await get(name)

    place.get = slowly  # type: ignore[method-assign]
    task = asyncio.create_task(prune(place, Policy(revisions=1), 0))
    await reads.wait()
    try:
        yield task
    finally:
        goes_on.set()
        await asyncio.wait([task])


async def test_a_pruning_that_was_overtaken_removes_nothing(bucket: Bucket) -> None:
    other = bucket.shipper()
    async with pruning(bucket) as task:
        await bucket.lose_lease()
        await other.begin()
        await bucket.ship(other)
        await other.end()
    with pytest.raises(Unavailable, match="another process"):
        task.result()
    assert await bucket.newest() == 5
    await prune(bucket.place(), Policy(revisions=1), 0)
    assert await bucket.newest() == 5


async def test_a_shipper_that_was_overtaken_begins_again(bucket: Bucket) -> None:
    """What it knows of the backup was pruned meanwhile."""
    shipper = bucket.shipper()
    await shipper.begin()
    await bucket.ship(shipper)
    await bucket.lose_lease()
    await prune(bucket.place(), Policy(revisions=1), 0)
    await bucket.commit()
    with pytest.raises(Unavailable, match="another process"):
        await shipper.round([BOARD])
    assert await bucket.newest() == 5
    await shipper.begin()
    await shipper.round([BOARD])
    await shipper.end()
    assert await bucket.newest() == 6


async def test_a_pruning_renews_its_lease(bucket: Bucket) -> None:
    """However long it takes. Nobody has to wait for it once it is over."""
    async with pruning(bucket, lowered(archive_lease_ms=3_000)) as task:
        first = await bucket.place().get(LEASE)

        async def is_renewed() -> bool:
            return await bucket.place().get(LEASE) not in (None, first)

        await wait_until(is_renewed)
        with pytest.raises(Unavailable, match="another process"):
            await bucket.shipper().begin()
    assert task.result()
    assert await bucket.place().get(LEASE) is None
    assert await bucket.newest() == 4


async def test_a_service_that_could_not_finish_lets_the_next_one_write(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and although its process lives on."""
    place = bucket.place()
    archive = await archive_beside(tmp_path)
    async with Service(bucket.store, archive=archive) as service:
        await service.follow(place)

        async def writes() -> bool:
            return await bucket.place().get(LEASE) is not None

        await wait_until(writes)

        async def fails() -> str:
            raise Unavailable(what="backup", reason="as a bucket says")

        monkeypatch.setattr(place, "id", fails)
    after = bucket.shipper()
    await after.begin()
    await after.end()


async def test_a_manifest_that_was_given_up_replaces_no_newer_one(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round was cancelled, as by the end of a service, while its manifest was being written."""
    begun, goes_on = threading.Event(), threading.Event()

    def slowly(path: Path, data: bytes) -> None:
        if path.name == "manifest.json" and not begun.is_set():
            begun.set()
            goes_on.wait()
        replace_file(path, data)

    monkeypatch.setattr("blackboard.backup.place.replace_file", slowly)
    place = BackupPlace.at(str(tmp_path / "backup"))
    shipper = Shipper(place, bucket.store, None)
    await shipper.begin()
    first = asyncio.create_task(shipper.round([BOARD]))
    await asyncio.to_thread(begun.wait)
    first.cancel()
    await asyncio.wait([first])
    await bucket.commit()
    second = asyncio.create_task(shipper.round([BOARD]))
    await asyncio.wait([second], timeout=0.2)  # it comes first, if it does not wait
    goes_on.set()
    await second
    await shipper.end()
    [found] = [each async for each in verify(place)]
    assert found.last == (await bucket.store.open(BOARD)).revision


DAY_MS = 24 * 3600 * 1000


async def test_a_lease_of_a_clock_that_is_ahead_says_how_to_go_on(bucket: Bucket) -> None:
    """It would lock the backup until the true time is there, and nobody would know why."""
    place = bucket.place()
    until_ms = time.time_ns() // 1_000_000 + DAY_MS
    await place.put(LEASE, json.dumps({"owner": "other", "until_ms": until_ms}).encode())
    with pytest.raises(Unavailable, match=r"clock .* ahead.*remove lock\.json"):
        await place.lock()
    await place.remove(LEASE)
    await place.lock()
    with pytest.raises(Unavailable) as refused:
        await bucket.place().lock()
    assert refused.value.reason == "another process writes to it"
    await place.unlock()


@pytest.mark.parametrize("until", ["Infinity", "1e400", "NaN", "null", "{}"])
async def test_a_lease_without_an_end_is_damaged(bucket: Bucket, until: str) -> None:
    """It keeps nobody out."""
    place = bucket.place()
    await place.put(LEASE, f'{{"owner": "other", "until_ms": {until}}}'.encode())
    await place.lock()
    await place.unlock()
