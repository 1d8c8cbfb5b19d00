"""What every archive promises, as one suite: subclass `ArchiveSuite`, provide the `place` fixture.

A place can open the archive several times, as several processes do, and be damaged behind its back.
"""

import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest
from sqlalchemy import text

from blackboard.archive.base import Archive
from blackboard.archive.database import Database
from blackboard.archive.sql import SqlArchive
from blackboard.errors import OlderFormat
from blackboard.integrity.signing import Seal
from blackboard.limits import Limits
from tests.conformance.rules_archive import ReadingRules
from tests.conformance.rules_archive_redact import RedactRules
from tests.conformance.rules_archive_verify import VerifyRules
from tests.conformance.rules_archive_write import WritingRules
from tests.lowered import PATIENT
from tests.postgres import answered

T = TypeVar("T")
SECRET = bytes(range(32))


@dataclass
class Place:
    """Where an archive is kept."""

    url: str
    blobs: Path
    _database: Database | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def open(self, secret: bytes = SECRET, limits: Limits = PATIENT) -> SqlArchive:
        """Open it, once more; it is closed at the end of the test."""
        archive = await self._reached(
            lambda: SqlArchive.open(
                self.url, blobs=str(self.blobs), sealer=Seal(secret), limits=limits
            )
        )
        self._stack.push_async_callback(archive.aclose)
        return archive

    async def change(self, statement: str, **given: Any) -> int:
        """Change rows behind its back; returns how many."""
        async with (await self._opened()).writing() as connection:
            return int((await connection.execute(text(statement), given)).rowcount)

    async def ask(self, question: str, **given: Any) -> list[Any]:
        """Look at rows."""
        async with (await self._opened()).reading() as connection:
            return list((await connection.execute(text(question), given)).all())

    async def _opened(self) -> Database:
        if self._database is None:
            self._database = await self._reached(
                lambda: Database.open(self.url, PATIENT.engine.engine_timeout_ms)
            )
            self._stack.push_async_callback(self._database.aclose)
        return self._database

    async def _reached(self, opening: Callable[[], Awaitable[T]]) -> T:
        """What `opening` opens. A server is asked until it answers: there is one, and on a busy
        machine it may take longer to let somebody in than the product waits."""
        return await (answered(opening) if self.url.startswith("postgresql") else opening())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()
        shutil.rmtree(self.blobs, ignore_errors=True)


class ArchiveSuite(ReadingRules, WritingRules, VerifyRules, RedactRules):
    """Every rule. The subclass provides `place`."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Any:
        """An empty place."""
        raise NotImplementedError

    @pytest.fixture
    async def archive(self, place: Place) -> Archive:
        """The archive, opened."""
        return await place.open()

    async def test_an_archive_of_another_version_is_named_as_that(self, place: Place) -> None:
        """It is refused when it is opened, with what it lacks and which way there is."""
        await place.open()
        await place.change("ALTER TABLE version RENAME COLUMN item TO later")
        with pytest.raises(OlderFormat, match=r"without columns .*\(version\.item\).*export"):
            await place.open()
        await place.change("ALTER TABLE version RENAME COLUMN later TO item")
        await place.open()
