"""The whole service inside this process: no port, no set-up, one directory."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from os import PathLike

from blackboard.service import access
from blackboard.service.board import Client
from blackboard.service.quorum import masters_at
from blackboard.service.service import Service
from blackboard.store.sqlite import SqliteStore
from blackboard.store.sqlite_file import Level


@asynccontextmanager
async def open(  # noqa: A001 - `blackboard.open` reads like the built-in that it resembles
    path: str | PathLike[str],
    *,
    level: Level = "disk",
    agent: str | None = None,
    lock_masters: Sequence[str] = (),
) -> AsyncIterator[Client]:
    """Open the boards kept in directory `path`, which is made if it does not exist.

    `level` is what an acknowledged commit survives: "disk" (power loss; one fsync per group of
    commits) or "memory" (a crash of this process). You are the operator, or `agent` if given.
    `lock_masters` are URLs of Redis servers that vote on every lease (Redlock).

    Errors: DataDirectoryInUse, naming the process that owns the directory and how to connect to it;
    Corrupt when a file there is not what was written; InvalidRequest for lock masters that are
    none.
    """
    masters = masters_at(lock_masters)
    store = await SqliteStore.at(path, level)
    async with Service(store, lock_masters=masters) as service:
        link = service.link(access.acting_as(access.operator(), agent))
        client = Client(link)
        try:
            yield client
        finally:
            await client.aclose()
