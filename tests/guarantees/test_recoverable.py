"""Recoverable: what is archived is never deleted because an engine has less."""

import contextlib
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from blackboard.client.board import Board
from blackboard.errors import (
    AccessDenied,
    Compacted,
    FutureRevision,
    InvalidRequest,
    NoSuchBoard,
    NoSuchCheckpoint,
)
from tests.guarantees.losses import BOARD, EMBEDDED, REDIS, Site
from tests.guarantees.processes import run_and_kill

TABLES = ("version", "commit_log", "epoch", "checkpoint")


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Site]:
    """A service over the embedded engine."""
    async with Site(tmp_path / "embedded") as site:
        yield site


@pytest.fixture
async def redis(tmp_path: Path, redis_url: str) -> AsyncIterator[Site]:
    """A service over Redis."""
    async with Site(tmp_path / "redis", redis_url) as site:
        yield site


@pytest.fixture(params=EMBEDDED)
async def lost_embedded(embedded: Site, request: pytest.FixtureRequest) -> "Lost":
    """A board whose engine lost its end, in each way."""
    return await Lost.of(embedded, request.param)


@pytest.fixture(params=REDIS)
async def lost_redis(redis: Site, request: pytest.FixtureRequest) -> "Lost":
    """The same over Redis."""
    return await Lost.of(redis, request.param)


class Lost:
    """A board of which everything after revision 10, or all, was lost by its engine."""

    def __init__(self, site: Site, how: str) -> None:
        self.site = site
        self.how = how
        self.survived = 10 if how == "older copy" else 0
        self.head = 0
        self.at_checkpoint = 0
        self.rows: dict[str, set[Any]] = {}

    @classmethod
    async def of(cls, site: Site, how: str) -> "Lost":
        """Tell a history, then lose it."""
        lost = cls(site, how)
        board = site.board()
        for number in range(1, 11):
            await board.put(f"public/k{number % 7}", number)
        if how == "older copy":
            site.copy()
        await site.board("ada").put("private/ada/plan", "hers")
        await board.append("inbox/ada", {"to": "ada"})
        for number in range(13, 31):
            await board.put(f"public/k{number % 7}", number)
        lost.at_checkpoint = (await board.checkpoint("precious", note="keep me")).revision
        for number in range(32, 41):
            await board.put(f"public/k{number % 7}", number)
        for number in range(3):
            await board.append("public/gone", number)
        await board.delete_prefix("public/gone")
        lost.head = (await board.head()).revision
        await site.archived()
        lost.rows = rows_of(site.archive_file)
        await site.lose(how)
        return lost

    @property
    def board(self) -> Board:
        """The board as it is now."""
        return self.site.board()


def rows_of(file: Path) -> dict[str, set[Any]]:
    """Every row of the archive's tables."""
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        return {name: set(database.execute(f"SELECT * FROM {name}")) for name in TABLES}


class LossRules:
    """What holds after a loss, however it came about."""

    @pytest.fixture
    def lost(self) -> Lost:
        """The loss."""
        raise NotImplementedError

    async def test_nothing_archived_goes(self, lost: Lost) -> None:
        """Not when the archiver has looked, nor after commits, a checkpoint and another start."""
        board = lost.board
        first = await board.put("public/new", 1)
        assert first.revision > lost.head
        await board.checkpoint("precious")
        await lost.site.archived()
        await lost.site.stop()
        await lost.site.start()
        assert (await lost.site.board().put("public/new", 2)).revision > first.revision
        await lost.site.archived()
        now = rows_of(lost.site.archive_file)
        assert [name for name in TABLES if lost.rows[name] - now[name]] == []
        assert (await lost.site.board().verify()).findings == ()

    async def test_every_archived_revision_is_read_as_it_was(self, lost: Lost) -> None:
        """Before anything else is done, and after a commit; what nobody knows is an error."""
        for _ in range(2):
            for revision in range(13, 31):
                key = f"public/k{revision % 7}"
                assert await lost.board.get(key, at=revision) == revision
            assert await lost.board.get("private/ada/plan", at=lost.head) == "hers"
            assert await lost.board.get("public/k5", at="precious") == 26
            await lost.board.put("public/new", 1)
            head = await lost.board.head()
            for nowhere in (lost.head + 1, head.epoch.revision - 1):
                with pytest.raises(Compacted):
                    await lost.board.get("public/k1", at=nowhere)
        with pytest.raises(FutureRevision):
            await lost.board.get("public/k1", at=head.revision + 1)
        with pytest.raises(NoSuchCheckpoint):
            await lost.board.get("public/k1", at="never")

    async def test_lost_revisions_are_found_and_reported(self, lost: Lost) -> None:
        """Differences, the versions of a key, points in time, checkpoints and their manifests."""
        board = lost.board
        new = await board.put("public/k1", "new")
        versions = [version.revision for version in await board.history("public/k1")]
        assert versions == [new.revision, *range(36, 13, -7), 8, 1]
        diff = await board.diff("precious", new.revision)
        changed = {each.key: (each.before and each.before.value) for each in diff}
        assert changed["public/k1"] == 29
        assert changed["private/ada/plan"] == "hers"
        assert [(c.name, c.note) for c in await board.checkpoints()] == [("precious", "keep me")]
        assert (await board.show("precious")).checkpoint.revision == lost.at_checkpoint
        assert (await board.verify("precious")).findings == ()
        await board.pin("precious")
        assert [c.pinned for c in await board.checkpoints()] == [True]
        await board.checkpoint("precious")  # the name is free, and the newer one has it
        assert await board.get("public/k1", at="precious") == "new"

    async def test_what_was_lost_is_restored(self, lost: Lost) -> None:
        """By name or revision, at once after the loss; never an empty board in its place."""
        board = lost.board
        await board.restore("precious")
        assert await board.get("public/k1") == 29
        assert await board.get("private/ada/plan") == "hers"
        assert [entry.value async for entry in board.scan("inbox/ada/*")] == [{"to": "ada"}]
        await board.restore(lost.head)
        assert await board.get("public/k5") == 40
        revision = (await board.head()).revision
        with pytest.raises(Compacted):
            await board.restore(lost.head + 1)
        assert (await board.head()).revision == revision

    async def test_no_number_of_a_list_is_given_again(self, lost: Lost) -> None:
        """Neither of an item that comes back, nor of one that was taken away before."""
        board = lost.board
        await board.restore(lost.head)
        assert await board.append("inbox/ada", "again") == "inbox/ada/0000000001"
        assert await board.append("public/gone", "again") == "public/gone/0000000003"
        await board.restore("precious")
        assert await board.append("inbox/ada", "again") == "inbox/ada/0000000002"
        assert (await board.verify()).findings == ()
        await lost.site.stop()
        await lost.site.start()
        assert await lost.board.append("public/gone", "again") == "public/gone/0000000004"

    async def test_nor_after_a_recovery_to_before(self, lost: Lost) -> None:
        """Numbers that were given after the checkpoint are not given again either."""
        await lost.board.recover("precious")
        assert await lost.board.append("public/gone", 1) == "public/gone/0000000003"

    async def test_a_branch_begins_in_what_was_lost(self, lost: Lost) -> None:
        """It has that past, and its engine begins with it."""
        saved = await lost.board.branch("saved", "precious")
        assert await saved.get("public/k1") == 29
        assert await saved.get("public/k1", at=15) == 15
        assert (await saved.verify()).findings == ()

    async def test_the_whole_board_is_recovered(self, lost: Lost) -> None:
        """At its newest archived revision, every namespace as it was; and once, however often."""
        board = lost.board
        written = await board.put("public/since", "the loss")
        before = await everything(board, lost.head)
        told: list[int] = []
        done = await board.recover(progress=told.append)
        assert (done.done, done.from_revision) == (True, lost.head)
        assert done.revision > written.revision
        assert await everything(board, None) == before
        head = await board.head()
        assert (head.revision, head.epoch.cause) == (done.revision, "recover")
        again = await board.recover()
        assert (again.revision, again.from_revision) == (done.revision, lost.head)
        key = await board.append("inbox/ada", {"to": "ada", "again": True})
        assert key == "inbox/ada/0000000001"
        assert await board.get("public/since", at=written.revision) == "the loss"
        assert [(c.name, c.note) for c in await board.checkpoints()] == [("precious", "keep me")]
        assert await board.get("public/k1", at="precious") == 29
        assert (await board.verify()).findings == ()
        await lost.site.stop()
        await lost.site.start()
        assert await everything(lost.board, done.revision) == before
        assert await lost.board.get("public/k5") == 40

    async def test_it_is_recovered_at_a_checkpoint(self, lost: Lost) -> None:
        """Or at a revision; then what came after that stays readable, too."""
        board = lost.board
        before = await everything(board, lost.at_checkpoint)
        done = await board.recover("precious")
        assert done.from_revision == lost.at_checkpoint
        assert await everything(board, None) == before
        assert await board.get("public/k5", at=lost.head) == 40
        with pytest.raises(InvalidRequest, match="has all that is archived"):
            await board.recover(13)

    async def test_the_past_is_one_after_a_recovery(self, lost: Lost) -> None:
        """Writers go on, what they write is archived, and the next loss is recovered as well."""
        await lost.board.recover()
        for number in range(41, 61):
            await lost.board.put(f"public/k{number % 7}", number)
        await lost.board.checkpoint("later")
        head = (await lost.board.head()).revision
        again = "flushed" if lost.how in REDIS else "file gone"
        lost.site.forget_copy()
        await lost.site.lose(again)
        done = await lost.board.recover()
        assert done.from_revision == head
        assert await lost.board.get("public/k4") == 60
        assert await lost.board.get("public/k1", at="precious") == 29
        assert [c.name for c in await lost.board.checkpoints()] == ["precious", "later"]
        assert (await lost.board.verify()).findings == ()


async def everything(board: Board, at: int | None) -> dict[str, Any]:
    """Every entry that the board holds, as it is kept, but for the records of the service."""
    found = {entry.key: entry async for entry in board.scan("**", at=at)}
    return {key: entry for key, entry in found.items() if not key.startswith("system/")}


async def is_done_again(lost: Lost) -> None:
    """Recover, be killed in the middle, and let another process recover."""
    before = await everything(lost.board, lost.head)
    await lost.site.archived()
    await lost.site.stop()
    arguments = [str(lost.site.directory), *([lost.site.url] if lost.site.url else [])]
    await run_and_kill("tests.guarantees.recover_child", arguments, "making")
    await lost.site.start()
    assert (await lost.board.recover()).from_revision == lost.head
    assert await everything(lost.board, None) == before
    assert (await lost.board.verify()).findings == ()


async def test_a_recovery_that_is_killed_is_done_again(embedded: Site) -> None:
    """By another process: the board is there then, whole."""
    await is_done_again(await Lost.of(embedded, "older copy"))


async def test_a_killed_recovery_of_redis_is_done_again(redis: Site) -> None:
    """There it leaves a board that is neither there nor not."""
    await is_done_again(await Lost.of(redis, "flushed"))


async def test_a_board_that_lost_nothing_is_not_recovered(embedded: Site) -> None:
    """It is as far as its archive; of an unknown one nothing is archived."""
    board = embedded.board()
    await board.put("public/a", 1)
    await embedded.archived()
    with pytest.raises(InvalidRequest, match="has all that is archived"):
        await board.recover()
    with pytest.raises(NoSuchBoard):
        await embedded.board(board="unknown").recover()
    with pytest.raises(AccessDenied):
        await embedded.board("ada").recover()


async def misses_what_an_older_archive_never_had(site: Site) -> None:
    """Put an archive back that is older than the engine's log reaches: the board goes on, what is
    missing is an error to a reader, and `verify` says so."""
    for number in range(1, 11):
        await site.board().put("public/k", number)
    await site.archived()
    await site.stop()
    shutil.copyfile(site.archive_file, site.directory / "older.db")
    await site.start()
    for number in range(11, 21):
        await site.board().put("public/k", number)
    await site.board().checkpoint("precious")
    await site.archived()
    await site.service.host.store.compact(BOARD, 21)
    await site.stop()
    (site.directory / "older.db").replace(site.archive_file)
    for _ in range(2):
        await site.start()
        assert await site.board().get("public/k") == 20
        revision = (await site.board().put("public/new", 1)).revision
        await site.archived()
        assert await site.board().get("public/k", at=10) == 10
        assert await site.board().get("public/k", at=revision) == 20
        with pytest.raises(Compacted):
            await site.board().get("public/k", at=15)
        [finding] = (await site.board().verify()).findings
        assert re.match(r"revisions 11 to 2\d are missing", finding)
        await site.stop()
    await site.start()


async def test_an_older_archive_that_is_put_back_has_a_gap(embedded: Site) -> None:
    """Over the embedded engine."""
    await misses_what_an_older_archive_never_had(embedded)


async def test_an_older_archive_beside_redis_has_a_gap(redis: Site) -> None:
    """Over Redis."""
    await misses_what_an_older_archive_never_had(redis)


class TestEmbedded(LossRules):
    """Over the embedded engine."""

    @pytest.fixture
    def lost(self, lost_embedded: Lost) -> Lost:
        """In each way."""
        return lost_embedded


class TestRedis(LossRules):
    """Over Redis."""

    @pytest.fixture
    def lost(self, lost_redis: Lost) -> Lost:
        """In each way."""
        return lost_redis
