"""The whole service inside this process: no port, no set-up, one directory."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path

from blackboard.client.client import Client
from blackboard.core import access
from blackboard.encryption.master_key import LocalWrapper
from blackboard.engines.sqlite.file import Level
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.assembly import archive_beside, sealed
from blackboard.server.redlock_votes import masters_at
from blackboard.server.service import Service


@asynccontextmanager
async def open(  # noqa: A001 - `blackboard.open` reads like the built-in that it resembles
    path: str | PathLike[str],
    *,
    level: Level = "disk",
    agent: str | None = None,
    lock_masters: Sequence[str] = (),
    master_key: str | None = None,
) -> AsyncIterator[Client]:
    """Open the boards kept in directory `path`, which is made if it does not exist.

    `level` is what an acknowledged commit survives: "disk" (power loss; one fsync per group of
    commits) or "memory" (a crash of this process). You are the operator, or `agent` if given.
    `lock_masters` are URLs of Redis servers that vote on every lease (Redlock). With `master_key`
    (32 bytes in hexadecimal, one key a line) what is private is sealed wherever it is kept.

    Errors: DataDirectoryInUse, naming the process that owns the directory and how to connect to it;
    Corrupt when a file there is not what was written; InvalidRequest for lock masters that are
    none.
    """
    masters = masters_at(lock_masters)
    store = await SqliteStore.at(path, level)
    try:
        archive = await archive_beside(Path(path))
    except BaseException:
        await store.aclose()
        raise
    try:
        wrapper = None if master_key is None else LocalWrapper.of(master_key)
        front, sealing = await sealed(store, archive, wrapper)
    except BaseException:
        await archive.aclose()
        await store.aclose()
        raise
    async with Service(front, lock_masters=masters, archive=sealing) as service:
        link = service.link(access.acting_as(access.operator(), agent))
        client = Client(link)
        try:
            yield client
        finally:
            await client.aclose()
