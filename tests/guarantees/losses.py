"""Engines that come back with less than they acknowledged, in every way that is known to happen.

    async with Site(directory) as site:
        board = await site.board()
        ...
        await site.lose("older copy")

Each loss leaves the archive as it is; the service is started again, unless the loss happens to an
engine under a service that goes on.
"""

import contextlib
import shutil
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from redis import Redis

from blackboard.archive.sql import SqlArchive, archive_url
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.encryption.master_key import Wrapper
from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.integrity.signing import Seal, make_key
from blackboard.server.assembly import sealed
from blackboard.server.service import Service

BOARD: Final = "main"
EMBEDDED: Final = ("older copy", "journal gone", "file gone")
REDIS: Final = ("older copy", "flushed", "flushed while served")


class Site:
    """A service with an archive over an engine, in `directory`; over Redis at `url`, if given.

    With a `wrapper` of data keys, private values are encrypted.
    """

    def __init__(
        self,
        directory: Path,
        url: str | None = None,
        *,
        archive: type[SqlArchive] = SqlArchive,
        wrapper: Wrapper | None = None,
    ) -> None:
        self.directory = directory
        self.url = url
        self._archive = archive
        self._wrapper = wrapper
        self._service: Service | None = None
        self._dumps: dict[bytes, bytes] = {}

    @property
    def service(self) -> Service:
        """The service that runs."""
        assert self._service is not None
        return self._service

    @property
    def archive_file(self) -> Path:
        """The archive's database."""
        return self.directory / "archive.db"

    def client(self, agent: str | None = None) -> Client:
        """A client of the operator, or of an agent."""
        who = access.operator() if agent is None else access.agent(agent)
        return Client(self.service.link(who))

    def board(self, agent: str | None = None, board: str = BOARD) -> Board:
        """A board, as its operator or as an agent."""
        return self.client(agent).board(board)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start a service on what is there."""
        self.directory.mkdir(exist_ok=True)
        seal, blobs = Seal(make_key(self.directory / "signing_key")), self.directory / "blobs"
        archive = await self._archive.open(
            archive_url(self.directory), blobs=str(blobs), sealer=seal
        )
        store, front = await sealed(await self._store(), archive, self._wrapper)
        service = Service(store, archive=front)
        self._service = await service.__aenter__()

    async def stop(self) -> None:
        """Stop it."""
        service, self._service = self._service, None
        if service is not None:
            await service.__aexit__(None, None, None)

    async def _store(self) -> Store:
        if self.url is not None:
            return RedisStore.connect(self.url)
        return await SqliteStore.at(self.directory / "data")

    # --- losses -----------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self.directory / "data" / "boards" / f"{BOARD}.db"

    def copy(self) -> None:
        """Take the documented backup of the board, to which `lose("older copy")` goes back."""
        if self.url is not None:
            with Redis.from_url(self.url) as server:
                self._dumps = {key: server.dump(key) for key in server.keys("*")}
            return
        with (
            contextlib.closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(self.directory / "copy.db")) as target,
        ):
            source.backup(target)

    def forget_copy(self) -> None:
        """Have no backup any more."""
        self._dumps = {}

    async def archived(self) -> None:
        """Wait until everything is archived."""
        head = await self.board().head()
        archiver = self.service.host.archiver
        assert archiver is not None
        await archiver.reached(BOARD, head.revision, timeout_ms=60_000)

    async def lose(self, how: str) -> None:
        """Lose what the engine has, once all of it is archived."""
        await self.archived()
        if how == "journal gone":  # the file as it lies there, while the journal has the rest
            shutil.copyfile(self._file, self.directory / "copy.db")
        if how == "flushed while served":
            self._flush()
            return
        await self.stop()
        if self.url is not None:
            self._flush()
        elif how == "file gone":
            self._file.unlink()
        else:
            shutil.copyfile(self.directory / "copy.db", self._file)
        await self.start()

    def _flush(self) -> None:
        assert self.url is not None
        with Redis.from_url(self.url) as server:
            server.flushall()
            for key, dump in self._dumps.items():
                server.restore(key, 0, dump)
