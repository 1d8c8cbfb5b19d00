"""The archive in PostgreSQL keeps every promise of the port."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.archive.base import Archive
from tests.conformance.archive_suite import ArchiveSuite, Place
from tests.conformance.rules_archive_redact import KEY, beside
from tests.postgres import Postgres
from tests.waiting import wait_until


class TestPostgresArchive(ArchiveSuite):
    """A database of a real server, and a directory."""

    @pytest.fixture
    async def place(self, postgres: Postgres, tmp_path: Path) -> AsyncIterator[Place]:
        """An empty database."""
        async with Place(await postgres.empty(), tmp_path / "blobs") as place:
            yield place

    async def test_a_large_value_that_is_being_named_is_not_discarded(
        self, archive: Archive, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other board's transaction has the blob, and its rows are not committed yet."""
        await self.tell_secrets(archive)
        other = await place.open()
        put_missing = other._blobs.put_missing
        redacting: list[asyncio.Task[object]] = []

        async def and_redact(values: list[bytes]) -> None:
            await put_missing(values)
            redacting.append(asyncio.create_task(self.redact(archive, KEY, 9)))

            async def is_decided() -> bool:
                question = "SELECT count(*) AS held FROM pg_locks WHERE NOT granted"
                return redacting[0].done() or (await place.ask(question))[0].held > 0

            await wait_until(is_decided)

        monkeypatch.setattr(other._blobs, "put_missing", and_redact)
        await beside().archive_into(other, "beside")
        await asyncio.gather(*redacting)
        await self.check_shared(archive)
