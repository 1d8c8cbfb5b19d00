"""The archive in PostgreSQL keeps every promise of the port."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from blackboard.archive import boards
from blackboard.archive.base import Archive
from blackboard.archive.database import Database
from blackboard.archive.history import ArchivedHistory
from blackboard.archive.prune import Pruning
from blackboard.archive.redact import Redacting
from blackboard.core.checkpoints import Point
from blackboard.core.commit import Put
from blackboard.errors import Compacted, Unavailable
from blackboard.wire.codec import encode_value
from tests.conformance.archive_suite import ArchiveSuite, Place
from tests.conformance.rules_archive import BOARD, state_at
from tests.conformance.rules_archive_redact import KEY, beside
from tests.conformance.story import Story
from tests.lowered import PATIENT
from tests.postgres import Postgres
from tests.waiting import wait_until

PATIENCE_MS = PATIENT.engine.engine_timeout_ms


def begun_in(
    step: Callable[..., Awaitable[Any]], place: Place, other: Callable[[], Coroutine[Any, Any, Any]]
) -> tuple[Callable[..., Awaitable[Any]], "list[asyncio.Task[Any]]"]:
    """`step`, and at the end of its first call `other`, until that is done or waits for a lock."""
    begun: list[asyncio.Task[Any]] = []

    async def stepped(*given: Any) -> Any:
        found = await step(*given)
        if not begun:
            begun.append(asyncio.create_task(other()))

            async def is_decided() -> bool:
                question = "SELECT count(*) AS held FROM pg_locks WHERE NOT granted"
                return begun[0].done() or (await place.ask(question))[0].held > 0

            await wait_until(is_decided)
        return found

    return stepped, begun


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

    async def test_a_branch_that_begins_during_an_append_adds_up(
        self, archive: Archive, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its sums are those of the origin's head, less what came after the branch: of one head."""
        story, other = Story(), await place.open()
        story.tell_some(20)
        await story.archive_into(archive, BOARD)
        story.tell(Put("public/k1", encode_value("later")))
        step = ArchivedHistory._newest_totals
        stepped, begun = begun_in(step, place, lambda: story.archive_into(other, BOARD))
        monkeypatch.setattr(ArchivedHistory, "_newest_totals", stepped)
        await archive.branch("two", Point(BOARD, 15))
        await begun[0]
        assert await self.findings_after(archive, story.lose(15, jump=1)) == []

    async def test_no_branch_begins_in_what_is_being_pruned(
        self, archive: Archive, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would begin with a part of the content, because the pruning does not know of it."""
        story, other = Story(), await place.open()
        story.tell_some(40)
        await story.archive_into(archive, BOARD)
        stepped, begun = begun_in(
            Pruning._keep, place, lambda: other.branch("two", Point(BOARD, 15))
        )
        monkeypatch.setattr(Pruning, "_keep", stepped)
        await archive.prune(BOARD, [], 30)
        with pytest.raises(Compacted):
            await begun[0]
        await archive.branch("two", Point(BOARD, 30))
        assert await state_at(archive, Point("two", 30)) == {
            k: e for k, e in story.held[30].items() if not k.startswith("system/")
        }

    async def test_a_branch_that_begins_during_a_redaction_adds_up(
        self, archive: Archive, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its sums are over what the redaction leaves."""
        story, other = await self.tell_secrets(archive), await place.open()
        stepped, begun = begun_in(
            Redacting._first, place, lambda: other.branch("two", Point(BOARD, 7))
        )
        monkeypatch.setattr(Redacting, "_first", stepped)
        await archive.redact(BOARD, KEY, {BOARD: 9})
        await begun[0]
        assert await self.findings_after(archive, story.lose(7, jump=1)) == []

    async def test_a_redaction_that_begins_during_a_branch_includes_it(
        self, archive: Archive, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The branch is of the family by the time that its rows can be locked."""
        story, other = await self.tell_secrets(archive), await place.open()
        step = boards.keep_totals
        stepped, begun = begun_in(step, place, lambda: other.redact(BOARD, KEY, {BOARD: 9}))
        monkeypatch.setattr(boards, "keep_totals", stepped)
        await archive.branch("two", Point(BOARD, 7))
        await begun[0]
        assert await self.findings_after(archive, story.lose(7, jump=1)) == []

    async def test_a_server_that_lets_nobody_in_is_unavailable(self, place: Place) -> None:
        """As one that begins, has too many connections, or does not know the user."""
        nobody = place.url.replace("/tester@", "/nobody_of_that_name@")
        with pytest.raises(Unavailable, match="nobody_of_that_name"):
            await Database.open(nobody, PATIENCE_MS)

    async def test_an_url_of_libpq_says_whether_to_encrypt(self, place: Place) -> None:
        """The server of the tests has no certificate."""
        await (await Database.open(f"{place.url}?sslmode=disable", PATIENCE_MS)).aclose()
        with pytest.raises(Unavailable, match="SSL"):
            await Database.open(f"{place.url}?sslmode=require", PATIENCE_MS)

    async def findings_after(self, archive: Archive, branch: Story) -> list[str]:
        """What verifying the branch "two" finds, once something was committed to it."""
        branch.tell(Put("public/mine", encode_value(1)))
        await branch.archive_into(archive, "two")
        return [finding async for finding in archive.verify(Point("two", branch.head))]
