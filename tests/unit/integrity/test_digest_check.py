"""An archive that was damaged behind its back: nothing of it is put out for what was sealed."""

import sqlite3
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import blackboard
from blackboard.archive.sql import SqlArchive, archive_url
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access, digest
from blackboard.core.checkpoints import Facts, Point
from blackboard.core.commit import Epoch
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt
from blackboard.integrity.digest_check import ENTRIES_AT_ONCE, Sums
from blackboard.integrity.signing import Seal
from blackboard.server.service import Service
from blackboard.wire.codec import marker_entry

SECRET = "private/ada/draft"
KEPT = "private/bob/kept"
THEN: dict[str, Any] = {"public/plan": "first", SECRET: "canary", KEPT: 7}
NOW: dict[str, Any] = {"public/plan": "second", SECRET: "another", KEPT: 7, "public/new": 1}
DAMAGE = {
    "a version is gone": "DELETE FROM version WHERE revision = 1 AND key = 'private/ada/draft'",
    "a value is another one": "UPDATE version SET content = x'ff' WHERE key = 'private/ada/draft'"
    " AND revision = 1",
    "an expiry is another one": "UPDATE version SET expires_at_ms = 9 WHERE revision = 1"
    " AND key = 'private/ada/draft'",
    "all versions are gone": "DELETE FROM version",
}
ADDED = {
    "a version was added": "INSERT INTO version SELECT board, 1, 9, 'private/ada/made', form,"
    " content, 1, author, time_ms, expires_at_ms, item, first_ms FROM version WHERE revision = 1"
    " LIMIT 1",
}
"""Then and now, so that a restore leaves it as it is: absent."""


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A data directory with a board that changed after its checkpoint "one"."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        board = client.board("main")
        for content in (THEN, NOW):
            async with board.step() as step:
                for key, value in content.items():
                    if key != KEPT or content is THEN:
                        step.put(key, value)
            await board.checkpoint("one" if content is THEN else "two")
    return tmp_path / "data"


def damage(folder: Path, statement: str) -> None:
    """Change rows of the archive."""
    with sqlite3.connect(folder / "archive.db") as connection:
        assert connection.execute(statement).rowcount
    connection.close()


def files_in(folder: Path) -> list[Path]:
    """What lies in it."""
    return list(folder.iterdir())


async def content(board: Board) -> dict[str, Any]:
    """What it holds, but for the records of the service."""
    found = (await board.list("**")).entries
    return {entry.key: entry.value for entry in found if not entry.key.startswith("system/")}


# --- restore --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", DAMAGE)
async def test_a_restore_of_damaged_content_is_refused_and_changes_nothing(
    folder: Path, what: str
) -> None:
    """The error names the namespace, and nothing that is in it."""
    damage(folder, DAMAGE[what])
    async with blackboard.open(folder, level="memory") as client:
        board = client.board("main")
        with pytest.raises(Corrupt) as refused:
            await board.restore("one")
        assert refused.value.what == "board main at revision 2"
        assert refused.value.reason == "namespace private/ada is not what was sealed"
        assert await content(board) == NOW
        assert (await board.head()).epoch.number == 1


async def test_a_restore_is_refused_if_the_present_is_damaged_in_the_archive(folder: Path) -> None:
    """What seems to be alike then is not put back; a branch is made of what was then."""
    damage(folder, "DELETE FROM version WHERE revision = 3")
    async with blackboard.open(folder, level="memory") as client:
        board = client.board("main")
        with pytest.raises(Corrupt, match="namespace private/ada"):
            await board.restore("one")
        assert await content(board) == NOW
        assert await content(await board.branch("other", "one")) == THEN


async def test_a_restore_does_not_rest_on_what_it_leaves_as_it_is(folder: Path) -> None:
    """Damage of a key that is alike then and now is in nobody's way."""
    damage(folder, f"DELETE FROM version WHERE key = '{KEPT}'")
    async with blackboard.open(folder, level="memory") as client:
        board = client.board("main")
        await board.restore("one")
        assert await content(board) == THEN


async def test_a_sum_that_is_none_is_named(folder: Path) -> None:
    """A restore is refused, not ended by an error of Python's."""
    damage(folder, "UPDATE total SET total = x'00' WHERE namespace = 'public'")
    async with blackboard.open(folder, level="memory") as client:
        with pytest.raises(Corrupt, match="archived sum of public"):
            await client.board("main").restore("one")


async def test_many_keys_come_back_from_any_number_of_namespaces(tmp_path: Path) -> None:
    """More than are taken in without a pause; some with an expiry, some that had none."""
    async with blackboard.open(tmp_path, level="memory") as client:
        board = client.board("main")
        for turn in range(3):
            async with board.step() as step:
                for number in range(2 * ENTRIES_AT_ONCE + 1):
                    ttl_ms = 3_600_000 if (number + turn) % 3 == 0 else None
                    step.put(f"inbox/a{number % 70}/{number}", turn % 2, ttl_ms=ttl_ms)
            await board.checkpoint(f"c{turn}")
        was = await content(board)
        await board.restore("c1")
        assert await content(board) == dict.fromkeys(was, 1)
        await board.restore("c2")
        assert await content(board) == was


# --- branch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", DAMAGE | ADDED)
async def test_a_branch_of_damaged_content_is_not_made(folder: Path, what: str) -> None:
    """The name stays free."""
    damage(folder, (DAMAGE | ADDED)[what])
    async with blackboard.open(folder, level="memory") as client:
        board = client.board("main")
        with pytest.raises(Corrupt, match="namespace private/ada is not what was sealed"):
            await board.branch("other", "one")
        assert await client.boards() == ["main"]


async def test_a_branch_of_a_revision_without_digests_misses_what_is_gone(folder: Path) -> None:
    """They are computed from the sums of the present."""
    damage(folder, f"DELETE FROM version WHERE key = '{KEPT}'")
    damage(folder, "DELETE FROM digest WHERE revision <= 2")
    async with blackboard.open(folder, level="memory") as client:
        with pytest.raises(Corrupt, match="namespace private/bob is not what was sealed"):
            await client.board("main").branch("other", 1)
        assert await client.boards() == ["main"]


# --- export ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", DAMAGE | ADDED)
async def test_an_export_of_damaged_content_leaves_no_file(
    folder: Path, tmp_path: Path, what: str
) -> None:
    """A backup that nobody could read turns out when it is made."""
    damage(folder, (DAMAGE | ADDED)[what])
    async with blackboard.open(folder, level="memory") as client:
        with pytest.raises(Corrupt) as refused:
            await client.board("main").export("one", tmp_path / "one.bbx")
    assert refused.value.what == "checkpoint one of board main"
    assert refused.value.reason == "namespace private/ada is not what was sealed"
    assert files_in(tmp_path) == [folder]


async def test_an_export_with_a_manifest_that_nobody_signed_leaves_no_file(
    folder: Path, tmp_path: Path
) -> None:
    """The digests in it would be anybody's."""
    damage(folder, "UPDATE checkpoint SET signature = zeroblob(64)")
    async with blackboard.open(folder, level="memory") as client:
        with pytest.raises(Corrupt, match="its signature does not fit"):
            await client.board("main").export("one", tmp_path / "one.bbx")
    assert files_in(tmp_path) == [folder]


# --- recovery -------------------------------------------------------------------------------------


async def test_a_recovery_of_damaged_content_is_refused_and_changes_nothing(folder: Path) -> None:
    """The board of which the engine lost everything stays empty, and above its archive."""
    for file in (folder / "boards").glob("main.db*"):
        file.unlink()
    damage(folder, f"UPDATE version SET content = x'ff' WHERE key = '{SECRET}' AND revision = 3")
    async with blackboard.open(folder, level="memory") as client:
        board = client.board("main")
        with pytest.raises(Corrupt, match="namespace private/ada is not what was sealed"):
            await board.recover()
        assert await content(board) == {}
        assert (await board.head()).epoch.cause == "engine"


# --- what is no damage ----------------------------------------------------------------------------


class LosingArchive(SqlArchive):
    """Once, while digests are asked for, what came after revision 2 is lost."""

    owner = ""
    """Who appends; nothing is lost before somebody does."""

    async def digests_at(self, at: Point) -> Mapping[str, bytes] | None:
        """As `Archive.digests_at`, once it is lost."""
        await self._lose(at.board)
        return await super().digests_at(at)

    async def facts_at(self, at: Point) -> Facts:
        """As `Archive.facts_at`, just before it is lost."""
        facts = await super().facts_at(at)
        await self._lose(at.board)
        return facts

    async def _lose(self, board: str) -> None:
        mark = await self.mark(board)
        if not self.owner or mark is None:
            return
        fence = await self.take(board, self.owner, 60_000)
        assert fence is not None
        self.owner = ""
        epoch = Epoch(mark.epoch.number + 1, "came-back", "engine", 2, mark.revision + 1_000)
        await self.append(board, fence, mark.revision, [marker_entry(epoch, 1)])


@pytest.fixture
async def losing(folder: Path) -> AsyncIterator[Board]:
    """The board, over an archive that will lose most of its history."""
    store = await SqliteStore.at(folder, level="memory")
    archive = await LosingArchive.open(
        archive_url(folder), blobs=str(folder / "blobs"), sealer=Seal(bytes(32))
    )
    async with Service(store, archive=archive) as service:
        assert service.host.archiver is not None
        board = Client(service.link(access.operator())).board("main")
        await board.get("public/plan", at="two")
        archive.owner = service.host.archiver.owner
        yield board


async def test_a_restore_while_history_is_lost_is_whole(losing: Board) -> None:
    """What the engine lost stays in the archive: what is read of it is of one history."""
    await losing.restore("one")
    assert await content(losing) == THEN


async def test_a_branch_while_history_is_lost_is_whole(losing: Board) -> None:
    """The same."""
    assert await content(await losing.branch("other", "two")) == NOW


# --- sums -----------------------------------------------------------------------------------------


def element(key: str, value: bytes) -> bytes:
    """What stands for an entry without an expiry."""
    return digest.element(key, digest.content_of(value), None)


async def test_sums_go_on_from_others() -> None:
    """What comes and goes is added to those of the present; namespaces that are let be count by
    their digests; what holds nothing, and records of the service, do not count."""
    one = digest.add(digest.EMPTY, element("public/a", b"1"))
    public = digest.digest_of(digest.add(one, element("public/b", b"2")))
    ada = digest.digest_of(digest.add(digest.EMPTY, element("private/ada/c", b"3")))
    sums = Sums({"public": one}, {"private/ada": ada, "system": b"any"})
    sums.add("public/b", b"2", None)
    sums.add("inbox/ada/d", b"4", 5)
    sums.remove("inbox/ada/d", b"4", 5)
    await sums.check({"public": public, "private/ada": ada}, "it")
    for digests, namespace in (
        ({"public": public}, "private/ada"),
        ({"private/ada": ada}, "public"),
        ({"public": public, "private/ada": ada, "inbox/bob": ada}, "inbox/bob"),
    ):
        with pytest.raises(Corrupt, match=f"namespace {namespace} is not"):
            await sums.check(digests, "it")
    sums.add("inbox/ada/d", b"4", 6)
    with pytest.raises(Corrupt, match="namespace inbox/ada"):
        await sums.check({"public": public, "private/ada": ada}, "it")
