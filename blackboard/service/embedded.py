"""The whole service inside this process: no port, no set-up, one directory."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path

from sqlalchemy import URL

from blackboard.service import access
from blackboard.service.board import Client
from blackboard.service.encryption import sealed
from blackboard.service.quorum import masters_at
from blackboard.service.seal import Seal, make_key
from blackboard.service.service import Service
from blackboard.store.archive import Archive
from blackboard.store.archive_sql import SqlArchive
from blackboard.store.master_key import LocalWrapper
from blackboard.store.sqlite import SqliteStore
from blackboard.store.sqlite_file import Level


async def archive_beside(directory: Path) -> Archive:
    """The archive of an embedded engine, its blobs and its signing key: all in its directory.

    Errors: Unavailable; Corrupt; InvalidRequest when the key cannot be used.
    """
    seal = Seal(make_key(directory / "signing_key"))
    blobs = str(directory / "blobs")
    return await SqlArchive.open(archive_url(directory), blobs=blobs, sealer=seal)


def archive_url(directory: Path) -> str:
    """Where the archive of an embedded engine is."""
    return URL.create("sqlite", database=str(directory / "archive.db")).render_as_string()


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
