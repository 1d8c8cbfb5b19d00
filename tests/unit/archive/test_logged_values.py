"""The archive of an embedded engine does not repeat what the logs of its boards hold, and answers
as if it did."""

import asyncio
import random
import re
import shutil
import sqlite3
import string
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select, text

from blackboard.archive.database import _READS_AT_ONCE
from blackboard.archive.sql import SqlArchive, archive_beside, archive_url
from blackboard.archive.tables import ABSENT, BLOB, DEFLATED, LOGGED, PLAIN, VERSION
from blackboard.archive.values import ArchivedValues
from blackboard.backup.place import BackupPlace
from blackboard.backup.retain import Policy, prune
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import AUDIT_BOARD
from blackboard.core.checkpoints import BranchRequest, Point, RetentionPolicy
from blackboard.core.commit import Delete, Put
from blackboard.encryption.master_key import LocalWrapper, Wrapper, new_master_key
from blackboard.engines.disk import SyncError
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Compacted, Corrupt, Unavailable
from blackboard.limits import BLOB_BYTES, COMMIT_BYTES_MAX, DEFAULT, VALUE_BYTES_MAX, Limits
from blackboard.server.assembly import sealed
from blackboard.server.backups.once import take_once
from blackboard.server.checkpoints.branch import Branches
from blackboard.server.checkpoints.from_backup import Wanted, recover_from
from blackboard.server.service import Service
from blackboard.server.settings import load, make_archive, make_store, wrapper_of
from blackboard.server.sweeper import Sweeper
from blackboard.wire.codec import encode_value
from tests.lowered import COPIED, lowered

TRIMS = lowered(log_kept_revisions=3)


@asynccontextmanager
async def opened(
    path: Path, limits: Limits = DEFAULT, wrapper: Wrapper | None = None
) -> AsyncIterator[Service]:
    """A service on a directory, as `blackboard serve` has it."""
    raw = await SqliteStore.at(path, limits=limits)
    store, archive = await sealed(raw, await archive_beside(path, limits, raw), wrapper)
    async with Service(store, archive=archive, limits=limits) as service:
        yield service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service on a new directory."""
    async with opened(tmp_path) as service:
        yield service


def client_of(service: Service) -> Client:
    """The operator's."""
    return Client(service.link(access.operator()))


def board_of(service: Service, name: str = "main") -> Board:
    """A board, as the operator."""
    return client_of(service).board(name)


def text_of(size: int, seed: int = 0) -> str:
    """Text of that size that cannot be compressed well."""
    return "".join(random.Random(seed).choices(string.printable, k=size))


async def archived(service: Service, name: str = "main") -> None:
    """Wait until a board is archived to its end."""
    assert service.host.archiver is not None
    head = await service.host.store.open(name)
    await service.host.archiver.reached(name, head.revision)


def forms(path: Path, key: str | None = None, board: str = "main") -> list[int]:
    """The forms of the archived versions of a board, in their order."""
    with closing(sqlite3.connect(path / "archive.db")) as connection:
        rows = connection.execute(
            "SELECT form FROM version JOIN board ON board.id = version.board"
            " WHERE called = ? AND key = coalesce(?, key) ORDER BY board.id, revision, position",
            (board, key),
        )
        return [form for (form,) in rows]


def before_the_first_look(
    store: SqliteStore, step: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Do `step` after rows of the archive were read, before values are looked up in a log for the
    first time; returns the boards that were looked at."""
    values, looks = store.values, list[str]()

    async def look(board: str, wanted: Any) -> Any:
        looks.append(board)
        if len(looks) == 1:
            await step()
        return await values(board, wanted)

    monkeypatch.setattr(store, "values", look)
    return looks


class LongStory:
    """A board with a random history, and what it held at each revision."""

    def __init__(self, board: Board, seed: int) -> None:
        self.board = board
        self.random = random.Random(seed)
        self.held: dict[int, dict[str, Any]] = {0: {}}
        self.now: dict[str, Any] = {}

    async def tell(self, steps: int) -> None:
        """Go on for so many commits."""
        for _ in range(steps):
            key = f"public/k{self.random.randrange(9)}"
            size = self.random.choice([1, 255, 512, 600, 3_000, 9_000, BLOB_BYTES + 1])
            if self.random.random() < 0.2 and key in self.now:
                receipt = await self.board.commit([Delete(key)])
                self.now = {k: v for k, v in self.now.items() if k != key}
            else:
                value = text_of(size, self.random.randrange(10**6))
                new = {key: value, f"{key}x": [value[:300], 7]}
                ops = [Put(name, encode_value(each)) for name, each in new.items()]
                receipt = await self.board.commit(ops)
                self.now = self.now | new
            self.held[receipt.revision] = self.now

    async def check(self, first: int = 1) -> None:
        """Compare what the archive says of every revision from `first` on."""
        for revision, held in self.held.items():
            if revision >= first:
                found = {e.key: e.value async for e in self.board.scan("public/**", at=revision)}
                assert found == held, revision
                one = self.random.choice([*held, "public/none"])
                assert await self.board.get(one, at=revision) == held.get(one)
        assert (await self.board.verify("now")).findings == ()


async def test_a_longer_value_is_stored_once(tmp_path: Path) -> None:
    """The archive says where in the log it is; a short one it copies, for which that saves
    little."""
    async with opened(tmp_path) as service:
        board = board_of(service)
        for number in range(50):
            await board.put(f"public/k{number}", text_of(4_000, number))
        await board.put("public/short", "s" * 100)
        edge = DEFAULT.archive.archive_copy_bytes_max - len(encode_value("x" * 400)) + 400
        await board.put("public/edge", text_of(edge))
        await board.put("public/above", text_of(edge + 1))
        await board.delete("public/k0")
        await archived(service)
        assert forms(tmp_path) == [*[LOGGED] * 50, PLAIN, PLAIN, LOGGED, ABSENT]
    assert (tmp_path / "archive.db").stat().st_size < 50 * 4_000


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_the_past_is_read_as_it_was(tmp_path: Path, seed: int, is_sealed: bool) -> None:
    """At every revision, whatever the log still has of it; also after a restart, and encrypted."""
    wrapper = LocalWrapper.of(new_master_key()) if is_sealed else None
    async with opened(tmp_path, wrapper=wrapper) as service:
        told = LongStory(board_of(service), seed)
        await told.tell(40)
        await told.check()
        assert LOGGED in forms(tmp_path)
        assert BLOB not in forms(tmp_path)
    async with opened(tmp_path, TRIMS, wrapper) as service:
        told.board = board_of(service)
        await told.tell(10)
        await archived(service)
        await Sweeper(service.boards, "ab").trim(3)
        head = await service.host.store.open("main")
        assert head.log_entries <= 3 + 1
        assert LOGGED not in forms(tmp_path)[:-9]
        assert BLOB in forms(tmp_path)
        await told.check()
        await told.tell(10)
        await told.check()


async def test_what_is_restored_and_compared_is_the_same(service: Service) -> None:
    """A restore puts back values from the log, and what is alike again is no difference."""
    board = board_of(service)
    for number in range(5):
        await board.put(f"public/k{number}", text_of(2_000, number))
    await board.checkpoint("before")
    for number in range(4):
        await board.put(f"public/k{number}", text_of(2_000, 100 + number))
    changed = (await board.diff("before", "now", pattern="public/**")).changes
    assert [each.key for each in changed] == [f"public/k{number}" for number in range(4)]
    after = [each.after.value for each in changed if each.after is not None]
    assert after == [text_of(2_000, 100 + number) for number in range(4)]
    await board.restore("before")
    assert not (await board.diff("before", "now", pattern="public/**")).changes
    seeds = [0, 100, 0]
    versions = await board.history("public/k0")
    assert [each.value for each in versions] == [text_of(2_000, seed) for seed in seeds]
    assert (await board.verify("now")).ok


async def test_a_log_that_is_cut_while_it_is_looked_up(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row was read before, and says that the value is in the log; it has it itself by then."""
    board, store = board_of(service), service.host.store
    assert isinstance(store, SqliteStore)
    revision = (await board.put("public/plan", text_of(1_000))).revision
    await board.put("public/plan", 2)
    await archived(service)

    async def cut() -> None:
        assert service.host.archive is not None
        await service.host.archive.copy_values("main")
        await store.compact("main", revision + 2)

    looks = before_the_first_look(store, cut, monkeypatch)
    assert await board.get("public/plan", at=revision) == text_of(1_000)
    assert looks


async def test_a_damaged_value_is_named(tmp_path: Path) -> None:
    """Its bytes are compared with the hash that the archive has; others are read."""
    async with opened(tmp_path) as service:
        board = board_of(service)
        first = (await board.put("public/a", text_of(1_000, 1))).revision
        await board.put("public/b", text_of(1_000, 2))
        await board.put("public/a", 1)
        await archived(service)
    with closing(sqlite3.connect(tmp_path / "boards/main.db")) as connection, connection:
        [body] = connection.execute("SELECT body FROM log WHERE revision = ?", (first,)).fetchone()
        at = body.index(text_of(1_000, 1).encode()[:50])
        wrong = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        connection.execute("UPDATE log SET body = ? WHERE revision = ?", (wrong, first))
    async with opened(tmp_path) as service:
        board = board_of(service)
        with pytest.raises(Corrupt, match=f"archived public/a at revision {first}.*log of board"):
            await board.get("public/a", at=first)
        assert await board.get("public/b", at=first + 1) == text_of(1_000, 2)
        findings = (await board.verify("now")).findings
        assert any(f"public/a at revision {first}" in each for each in findings)


async def test_what_an_engine_lost_is_lost_in_the_archive_too(tmp_path: Path) -> None:
    """But for short values. It says so, and names the way; nothing else is taken for it."""
    async with opened(tmp_path) as service:
        board = board_of(service)
        lost = (await board.put("public/plan", text_of(1_000))).revision
        short = (await board.put("public/short", 1)).revision
        await archived(service)
    for file in (tmp_path / "boards").glob("main.db*"):
        file.unlink()
    async with opened(tmp_path) as service:
        board = board_of(service)
        await board.put("public/plan", text_of(1_000, 9))
        assert (await board.head()).revision > short
        assert await board.get("public/short", at=short) == 1
        with pytest.raises(Corrupt, match=re.escape("docs/howto/backup.md")):
            await board.get("public/plan", at=lost)
        with pytest.raises(Corrupt, match="public/plan"):
            await board.recover()
        assert (await board.get("public/plan")) == text_of(1_000, 9)
        assert not (await board.verify("now")).ok


async def test_the_origin_of_a_branch_is_removed(service: Service) -> None:
    """The branch goes on with the past that it shares; without a branch nothing is copied."""
    client = client_of(service)
    for name in ("main", "alone"):
        board = client.board(name)
        first = (await board.put("public/plan", text_of(1_000, 1))).revision
        await board.put("public/plan", text_of(1_000, 2))
        await archived(service, name)
    branch = await client.board("main").branch("other")
    assert isinstance(service.host.store, SqliteStore)
    path = service.host.store.directory
    await client.remove_board("alone")
    await client.remove_board("main")
    again = client.board("main")
    await again.put("public/plan", text_of(1_000, 3))
    await archived(service)
    assert LOGGED not in forms(path, "public/plan")[:2]
    assert await branch.get("public/plan", at=first) == text_of(1_000, 1)
    assert (await branch.verify("now")).ok


async def test_a_removed_board_that_begins_again_is_not_taken_for_the_old_one(
    service: Service,
) -> None:
    """Even if its log had the same revision."""
    archive = service.host.archive
    assert isinstance(archive, SqlArchive)
    values = ArchivedValues(archive._database, archive._blobs, archive._values.logs)
    client = client_of(service)
    await client.board("main").put("public/plan", text_of(1_000, 1))
    await archived(service)
    async with archive._database.reading() as connection:
        [row] = (await connection.execute(select(VERSION).where(VERSION.c.form == LOGGED))).all()
        assert await values.of(connection, row) is not None
        other = {**row._mapping, "content": bytes(32) + bytes(row.content[32:])}
        [wrong] = [type("Row", (), other)()]
        [found] = await values.found(connection, [wrong], is_new=True)
        assert isinstance(found, Corrupt)
        assert "does not have it" in str(found)


async def test_records_of_the_service_are_copied(tmp_path: Path) -> None:
    """They come back from the archive, so they are not left in the log."""
    async with opened(tmp_path) as service:
        service.host.audit.note_service("test", "main", "w" * 2_000)
        await service.host.audit.settle()
        await archived(service, AUDIT_BOARD)
        assert LOGGED not in forms(tmp_path, board=AUDIT_BOARD)


async def test_every_value_is_copied_if_one_wants_that(tmp_path: Path) -> None:
    """Then the archive alone brings back what an engine lost."""
    async with opened(tmp_path, COPIED) as service:
        await board_of(service).put("public/plan", text_of(1_000))
        await archived(service)
        assert LOGGED not in forms(tmp_path)
    for file in (tmp_path / "boards").glob("main.db*"):
        file.unlink()
    async with opened(tmp_path, COPIED) as service:
        await board_of(service).recover()
        assert await board_of(service).get("public/plan") == text_of(1_000)


async def test_pruned_values_go_with_the_log(service: Service) -> None:
    """They are counted wherever they lie. Only what is kept of the past is copied before the log is
    cut."""
    board = board_of(service)
    for number in range(10):
        await board.put(f"public/k{number % 2}", text_of(1_000, number))
    await board.checkpoint("kept")
    for number in range(10):
        await board.put(f"public/k{number % 2}", text_of(1_000, 10 + number))
    policy = RetentionPolicy(last=1, history_ms=0)
    gone = await board.prune(policy, dry_run=True)
    assert gone.versions == 16
    assert 16_000 < (gone.value_bytes or 0) < 17_000
    assert await board.prune(policy) == gone
    await Sweeper(service.boards, "ab").trim(1)
    assert isinstance(service.host.store, SqliteStore)
    found = forms(service.host.store.directory)
    assert found.count(PLAIN) + found.count(DEFLATED) < 8
    assert await board.get("public/k1", at="kept") == text_of(1_000, 9)
    assert await board.get("public/k1") == text_of(1_000, 19)
    # What happened since is not known any more; going back is possible all the same.
    preview = await board.preview_restore("kept")
    assert [each.key for each in preview.diff.changes] == ["public/k0", "public/k1"]
    with pytest.raises(Compacted):
        await board.get("public/k1", at=5)
    assert (await board.verify("now")).ok


async def test_only_the_row_of_that_commit_is_referred_to(service: Service) -> None:
    """A log of another history may have the same revision."""
    store = service.host.store
    assert isinstance(store, SqliteStore)
    revision = (await board_of(service).put("public/plan", text_of(1_000))).revision
    [entry] = (await store.log("main", revision - 1, limit=1)).entries
    [found] = await store.places("main", [entry])
    assert await store.values("main", [found["public/plan"]]) == [encode_value(text_of(1_000))]
    assert await store.places("main", [replace(entry, digest=bytes(32))]) == [{}]
    assert await store.places("none", [entry]) == [{}]
    store._boards["main"].tail.forget(revision + 1)
    assert await store.places("main", [entry]) == [found]
    assert await store.places("main", [replace(entry, digest=bytes(32))]) == [{}]
    beyond = found["public/plan"]._replace(size=10**6)
    assert await store.values("main", [beyond]) == [None]
    assert await store.values("none", [found["public/plan"]]) == [None]


async def test_an_archive_elsewhere_copies_every_value(tmp_path: Path) -> None:
    """It is complete by itself; what it left in the logs when it was beside them is read there."""
    data, moved = tmp_path / "data", tmp_path / "moved"
    async with opened(data) as service:
        first = (await board_of(service).put("public/plan", text_of(1_000, 1))).revision
        await archived(service)
    moved.mkdir()
    shutil.move(data / "archive.db", moved / "archive.db")
    url = archive_url(moved)
    settings = load({"data": data, "archive": url, "blobs": str(data / "blobs")})
    store = await make_store(settings)
    async with Service(store, archive=await make_archive(settings, store=store)) as service:
        board = board_of(service)
        await board.put("public/plan", text_of(1_000, 2))
        await archived(service)
        assert await board.get("public/plan", at=first) == text_of(1_000, 1)
        assert [form == LOGGED for form in forms(moved, "public/plan")] == [True, False]
        assert service.host.archive is not None
        assert not service.host.archive.leaves_values


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_a_lost_file_is_recovered_from_a_backup(tmp_path: Path, is_sealed: bool) -> None:
    """With its history: what the archive left in that file, the backup has."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    given: dict[str, object] = {"data": data}
    if is_sealed:
        given["master_key"] = new_master_key()
    settings = load(given)
    wrapper = await wrapper_of(settings)
    async with opened(data, wrapper=wrapper) as service:
        board = board_of(service)
        first = (await board.put("private/ada/plan", text_of(1_000, 1))).revision
        await board.put("private/ada/plan", text_of(BLOB_BYTES + 9, 2))
        await board.put("public/short", 1)
    await take_once(settings, str(backup))
    for file in (data / "boards").glob("main.db*"):
        file.unlink()
    [found] = await recover_from(settings, BackupPlace.at(str(backup)), Wanted(["main"]))
    assert found.board == "main"
    async with opened(data, wrapper=wrapper) as service:
        board = board_of(service)
        assert await board.get("private/ada/plan") == text_of(BLOB_BYTES + 9, 2)
        assert await board.get("private/ada/plan", at=first) == text_of(1_000, 1)
        assert (await board.verify("now")).findings == ()


async def test_what_a_backup_has_only_in_a_base_comes_back(tmp_path: Path) -> None:
    """After its older files were merged into one, and for a branch whose origin is lost as well."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    settings, place = load({"data": data}), BackupPlace.at(str(backup))
    async with opened(data) as service:
        board = board_of(service)
        await board.put("public/plan", text_of(1_000, 1))
        await board.branch("other")
    await take_once(settings, str(backup))
    async with opened(data) as service:
        for name in ("main", "other"):
            for number in range(3):
                await board_of(service, name).put("public/more", number)
    await take_once(settings, str(backup))
    await prune(place, Policy(revisions=1), now_ms=0)
    for file in (data / "boards").glob("[mo]*.db*"):
        file.unlink()
    for name in ("other", "main"):
        await recover_from(settings, place, Wanted([name]))
    async with opened(data) as service:
        for name in ("main", "other"):
            assert await board_of(service, name).get("public/plan") == text_of(1_000, 1)
            assert (await board_of(service, name).verify("now")).findings == ()


async def test_a_sealed_value_of_the_largest_size_is_copied_too(tmp_path: Path) -> None:
    """Encryption makes it longer than any value; if all are copied, so is this one."""
    wrapper = LocalWrapper.of(new_master_key())
    async with opened(tmp_path, COPIED, wrapper) as service:
        await board_of(service).put("private/ada/plan", text_of(VALUE_BYTES_MAX - 5))
        await archived(service)
        assert forms(tmp_path, "private/ada/plan") == [BLOB]


async def test_one_damaged_value_does_not_keep_others_from_being_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those beside it are read one by one, and what is lost is in the log of the service."""
    async with opened(tmp_path) as service:
        board, store = board_of(service), service.host.store
        for number in range(5):
            await board.put(f"public/k{number}", text_of(1_000, number))
        await archived(service)
        assert isinstance(store, SqliteStore)
        assert isinstance(service.host.archive, SqlArchive)
        values = store.values

        async def damaged(name: str, wanted: Any) -> Any:
            if any(each.revision == 2 for each in wanted):
                raise Corrupt("a page", "it is damaged")
            return await values(name, wanted)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "values", damaged)
            await service.host.archive.copy_values("main")
        assert [form == LOGGED for form in forms(tmp_path)] == [n == 1 for n in range(5)]
        assert "1 values are not in the log that had them" in caplog.text


@pytest.mark.parametrize("how", ["pruned", "redacted"])
async def test_what_goes_while_it_is_read_is_no_damage(
    service: Service, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A reader of a moment that is pruned, or of a value that is redacted, is sent away."""
    board, store = board_of(service), service.host.store
    assert isinstance(store, SqliteStore)
    revision = (await board.put("public/plan", text_of(1_000))).revision
    await board.put("public/plan", 2)
    await archived(service)

    async def let_go() -> None:
        if how == "pruned":
            await board.prune(RetentionPolicy(history_ms=0))
            await Sweeper(service.boards, "ab").trim(1)
        else:
            await client_of(service).redact("public/plan", board="main")

    before_the_first_look(store, let_go, monkeypatch)
    assert service.host.archive is not None
    with pytest.raises(Unavailable, match="pruned or redacted while it was read"):
        await service.host.archive.read(Point("main", revision), ["public/plan"])


async def test_a_failed_sync_of_a_board_is_not_one_of_the_archive(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive goes on: what it has itself is read and written."""
    board, store = board_of(service), service.host.store
    assert isinstance(store, SqliteStore)
    revision = (await board.put("public/plan", text_of(1_000))).revision
    await board.put("public/plan", 2)
    await archived(service)

    async def fails(name: str, wanted: Any) -> Any:
        raise Unavailable(f"board {name}", "a sync failed") from SyncError(5, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(store, "values", fails)
        with pytest.raises(Unavailable, match="a sync failed"):
            await board.get("public/plan", at=revision)
    assert await board.get("public/plan", at=revision) == text_of(1_000)
    await board.put("public/plan", text_of(1_000, 3))
    await archived(service)
    assert not list(store.directory.glob("*.suspect"))


async def test_reads_that_go_on_hold_up_neither_appends_nor_one_another(tmp_path: Path) -> None:
    """As many as there may be; each that looks a second time does not wait for another one."""
    async with opened(tmp_path) as service:
        board, archive = board_of(service), service.host.archive
        assert isinstance(archive, SqlArchive)
        lost = (await board.put("public/plan", text_of(1_000))).revision
        await archived(service)
        async with AsyncExitStack() as reads:
            for _ in range(_READS_AT_ONCE):
                await reads.enter_async_context(archive._database.reading())
            await board.put("public/plan", text_of(1_000, 2))
            await archived(service)
    for file in (tmp_path / "boards").glob("main.db*"):
        file.unlink()
    async with opened(tmp_path) as service:
        board = board_of(service)
        reads_of_it = (board.get("public/plan", at=lost) for _ in range(2 * _READS_AT_ONCE))
        found = await asyncio.gather(*reads_of_it, return_exceptions=True)
        assert {type(each) for each in found} == {Corrupt}


async def test_what_is_copied_is_found_by_an_index(service: Service) -> None:
    """However long the history is of which nothing lies in a log any more."""
    archive = service.host.archive
    assert isinstance(archive, SqlArchive)
    where = "board = 1 AND form = 4 AND (revision, position) > (3, 4) AND revision < 9"
    plan = f"EXPLAIN QUERY PLAN SELECT * FROM version WHERE {where} ORDER BY revision, position"
    async with archive._database.reading() as connection:
        found = str((await connection.execute(text(plan))).all())
    assert "version_in_log" in found
    assert "TEMP" not in found


async def test_values_of_a_restore_that_is_larger_than_a_commit_are_copied(
    tmp_path: Path,
) -> None:
    """To look up one of them, all of its row would be read."""
    async with opened(tmp_path) as service:
        board = board_of(service)
        count = COMMIT_BYTES_MAX // 1_000_000 + 1
        for number in range(count):
            await board.put(f"public/k{number}", text_of(1_000_000, number))
        await board.checkpoint("before")
        for number in range(count):
            await board.put(f"public/k{number}", number)
        await board.restore("before")
        await archived(service)
        assert forms(tmp_path, "public/k1") == [LOGGED, PLAIN, BLOB]
        assert await board.get("public/k1", at="before") == text_of(1_000_000, 1)
        assert await board.get("public/k1") == text_of(1_000_000, 1)


async def test_no_branch_begins_on_a_board_that_is_being_removed(service: Service) -> None:
    """The removal may have looked for branches already, and what it shares would be lost."""
    board = board_of(service)
    await board.put("public/plan", text_of(1_000))
    await archived(service)
    service.host.removing.add("main")
    with pytest.raises(Unavailable, match="being removed"):
        await Branches(await service.boards.use("main")).branch(
            BranchRequest("other", "now", "a request"), "ada"
        )
    assert service.host.archive is not None
    assert await service.host.archive.mark("other") is None
    service.host.removing.clear()
    assert await (await board.branch("other")).get("public/plan") == text_of(1_000)
