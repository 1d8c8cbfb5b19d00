"""The embedded service: it runs in this process, without a port or configuration, on one
directory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from blackboard import telemetry
from blackboard.archive.sql import archive_beside
from blackboard.arguments import check_argument
from blackboard.client.client import Client, Opening
from blackboard.encryption.master_key import LocalWrapper, Wrapper
from blackboard.engines.sqlite.file import Level
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import InvalidRequest
from blackboard.limits import DEFAULT, Limits
from blackboard.server.assembly import sealed
from blackboard.server.redlock_votes import masters_at
from blackboard.server.service import Service

if TYPE_CHECKING:
    from blackboard.engines.redis.redlock import LockMasters


def open(  # noqa: A001 - `blackboard.open` reads like the built-in that it resembles
    path: str | PathLike[str],
    *,
    level: Level = "disk",
    agent: str | None = None,
    lock_masters: Sequence[str] = (),
    master_key: str | None = None,
    limits: Limits = DEFAULT,
) -> Opening:
    """Open the boards kept in directory `path`, which is made if it does not exist.

    Await it, or use it as an async context manager: see `Opening`.

    `level` is what an acknowledged commit survives: "disk" (power loss; one fsync per group of
    commits) or "memory" (a crash of this process). You are the operator, or `agent` if given.
    `lock_masters` are URLs of Redis servers that vote on every lease (Redlock). With `master_key`
    (32 bytes in hexadecimal, one key per line) private values are encrypted wherever they are
    stored. `limits` are those of the service, and of its clients.

    Errors: DataDirectoryInUse, naming the process that owns the directory and how to connect to it;
    Corrupt when a file there is damaged; InvalidRequest for a URL in place of a directory, for
    invalid lock masters, and for a bad name.
    """
    directory = _directory(path)

    async def begin() -> Client:
        masters = masters_at(lock_masters, limits)
        sealing = Sealing(None if master_key is None else LocalWrapper.of(master_key))
        return await _begun(directory, level, agent, masters, sealing, limits)

    return Opening(begin)


def open_as_set(path: str, *, agent: str | None = None) -> Opening:
    """As `open`, with the encryption and the limits that the settings of a service on this
    directory name.

    Errors: also those of the settings.
    """
    directory = _directory(path)

    async def begin() -> Client:
        # Programs that open a directory have no settings, and do not load them.
        from blackboard.server.settings import limits_of, load, wrapper_of

        settings = load({"data": path})
        sealing = Sealing(await wrapper_of(settings), settings.seal_public)
        return await _begun(directory, "disk", agent, None, sealing, limits_of(settings))

    return Opening(begin)


@dataclass(frozen=True, slots=True)
class Sealing:
    """What encrypts the values of a directory: nothing without `wrapper`, and the public namespace
    only if `public`."""

    wrapper: Wrapper | None
    public: bool = False


async def _begun(
    directory: Path,
    level: Level,
    agent: str | None,
    masters: "LockMasters | None",
    sealing: Sealing,
    limits: Limits,
) -> Client:
    telemetry.start_if_asked(os.environ, "blackboard-embedded")
    store = await SqliteStore.at(directory, level, limits=limits)
    try:
        archive = await archive_beside(directory, limits, store)
    except BaseException:
        # Also after a cancellation: the directory would stay locked by this process.
        await store.aclose()
        raise
    try:
        front, beside = await sealed(
            store, archive, sealing.wrapper, public=sealing.public, limits=limits
        )
    except BaseException:
        await archive.aclose()
        await store.aclose()
        raise
    service = Service(front, lock_masters=masters, archive=beside, limits=limits)
    # If this fails, it has closed the store and the archive.
    await service.__aenter__()
    try:
        return service.client(agent=agent, close=service.aclose)
    except BaseException:
        await service.aclose()
        raise


def _directory(path: str | PathLike[str]) -> Path:
    """Errors: InvalidRequest for a URL, because a directory of that name would be created, and for
    what no directory can be called."""
    text = str(path)
    if "://" in text:
        reason = (
            f"{text.partition('://')[0]}://... is no directory. To use a Redis engine, run"
            " `blackboard serve --engine URL` and blackboard.connect() to it"
        )
        raise InvalidRequest(field="path", reason=reason)
    check_argument("path", Path(path), Path)
    return Path(path)
