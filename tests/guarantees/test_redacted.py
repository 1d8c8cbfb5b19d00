"""Redacted: a value that was redacted is in no byte that a service keeps."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.client.board import Board
from blackboard.core.checkpoints import Point
from blackboard.core.commit import Put
from blackboard.core.redaction import record_key
from blackboard.encryption.archive import SealedArchive
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.errors import AccessDenied, Corrupt, InvalidRequest
from blackboard.limits import BLOB_BYTES
from blackboard.wire.codec import encode_value
from tests.canary import files_with
from tests.guarantees.losses import BOARD, Site
from tests.guarantees.processes import run_and_kill
from tests.guarantees.redact_child import STEPS
from tests.redis_process import RedisProcess, RedisSettings

KEY = "public/plan/notes"
DOCUMENT = "public/plan/memo"
OWN = "private/ada/token"
MARKER = {"$redacted": True}


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Site]:
    """A service over the embedded engine."""
    async with Site(tmp_path / "site") as site:
        yield site


@pytest.fixture
async def redis(tmp_path: Path, redis_binary: Path) -> AsyncIterator[Site]:
    """The same over a Redis whose files lie beside, and can be searched."""
    settings = RedisSettings(options={"rdbcompression": "no"})
    async with (
        RedisProcess(redis_binary, settings=settings) as server,
        Site(tmp_path / "site", server.url) as site,
    ):
        (tmp_path / "engine").symlink_to(server.directory)
        yield site


class Secret:
    """A text that is nowhere but where a board's history has it."""

    def __init__(self, site: Site, directory: Path) -> None:
        self.site = site
        self.directory = directory
        self.text = f"hush-{secrets.token_hex(12)}"

    def found(self) -> list[Path]:
        """The files that hold it."""
        engine = self.directory / "engine"
        places = [self.directory, *([engine.resolve()] if engine.exists() else [])]
        return [file for place in places for file in files_with(place, self.text.encode())]

    async def tell(self) -> None:
        """Write it in every way: small, large, with other keys, under a lease, before and after a
        checkpoint, into a branch and a document."""
        board, ada = self.site.board(), self.site.board("ada")
        await board.put("public/other", 1)
        await board.put(KEY, self.text)
        await ada.commit([Put(KEY, encode_value([self.text])), Put("private/ada/a", b"\x01")])
        await board.checkpoint("first")
        await board.put(KEY, self.text * (BLOB_BYTES // len(self.text) + 2))
        async with ada.lock("public/lock"):
            await ada.put(KEY, {"text": self.text})
        await board.put("inbox/ada/key", self.text)
        await board.delete("inbox/ada/key")
        document = await ada.document(DOCUMENT)
        document.text().append(self.text)
        await document.synced()
        await document.aclose()
        await board.checkpoint("second")
        child = await board.branch("child", "first")
        await child.put(KEY, self.text + " again")
        await board.put("public/other", 2)
        await self.site.archived()
        assert self.found(), "the search can find it"

    async def redact(self) -> None:
        """Redact all of it."""
        for key in (KEY, DOCUMENT, "inbox/ada/key"):
            done = await self.site.client().redact(key, why="pasted")
            assert done.left == ()
            assert set(done.boards) == {BOARD, "child"}

    async def check_gone(self) -> None:
        """It is nowhere, and all the rest is as it was."""
        assert self.found() == []
        for name in (BOARD, "child"):
            assert (await self.site.board(board=name).verify()).findings == ()
        board = self.site.board()
        for name in ("first", "second"):
            assert (await board.verify(name)).findings == ()
            assert await board.get(KEY, at=name) == MARKER
        assert await board.get("public/other", at="second") == 1
        assert await board.get("public/other") == 2
        assert await self.site.board("ada").get("private/ada/a", at="first") == 1


async def is_gone(secret: Secret) -> None:
    """Redact, and look everywhere: at once, after a restart, in an export, after a restore."""
    await secret.tell()
    site = secret.site
    await secret.redact()
    await secret.check_gone()
    await site.stop()
    assert secret.found() == []
    await site.start()
    await secret.check_gone()
    board = site.board()
    assert await board.get(KEY) is None
    values = [v.entry and v.entry.value for v in await board.history(KEY)]
    assert values == [None, *[MARKER] * 4]
    log = [c for r in await board.log(verify=True) for c in r.changes if c.key == KEY]
    assert [change.value for change in log] == [*[MARKER] * 4, None]
    file = secret.directory / "board.export"
    await board.export("first", file)
    imported = await site.client().import_board(file, "imported")
    assert await imported.get(KEY) == MARKER
    changed = await board.diff("first", "now")
    before = {change.key: change.before for change in changed.changes}
    assert (entry := before[KEY]) is not None
    assert entry.value == MARKER
    await board.restore("first")
    assert await board.get(KEY) == MARKER
    assert (await board.verify()).findings == ()
    assert secret.found() == []
    await site.board().put(KEY, "a key like any other")
    assert await site.board().get(KEY) == "a key like any other"


async def test_a_redacted_value_is_in_no_file_of_the_embedded_engine(
    embedded: Site, tmp_path: Path
) -> None:
    """Nor in what the archive beside it keeps."""
    await is_gone(Secret(embedded, tmp_path))


async def test_a_redacted_value_is_in_no_file_of_redis(redis: Site, tmp_path: Path) -> None:
    """Nor in the archive."""
    await is_gone(Secret(redis, tmp_path))


async def test_a_redacted_value_is_in_no_file_with_encryption(tmp_path: Path) -> None:
    """Public values are in the clear there, beside encrypted ones."""
    async with Site(tmp_path / "site", wrapper=LocalWrapper.of(new_master_key())) as site:
        await is_gone(Secret(site, tmp_path))


async def test_the_ciphertexts_of_a_redacted_value_are_in_no_file(tmp_path: Path) -> None:
    """Somebody who gets at the master key later finds nothing that it opens."""
    async with Site(tmp_path / "site", wrapper=LocalWrapper.of(new_master_key())) as site:
        ada, board = site.board("ada"), site.board()
        await ada.put(OWN, "hush")
        await ada.put("private/ada/other", "hers")
        await board.checkpoint("first")
        await ada.put(OWN, "hush" * BLOB_BYTES)
        await board.checkpoint("second")
        await site.archived()
        ciphertexts = await archived_bytes(site, OWN)
        assert len(ciphertexts) == 2
        assert all(files_with(tmp_path, each) for each in ciphertexts)
        assert (await site.client().redact(OWN)).versions == 2
        for _ in range(2):
            assert not any(files_with(tmp_path, each) for each in ciphertexts)
            await check_redacted(site)
            await site.stop()
            await site.start()
        await site.board().restore("first")
        await check_redacted(site)


async def archived_bytes(site: Site, key: str) -> list[bytes]:
    """The end of each value of a key, as it is archived."""
    archive = site.service.host.archive
    assert isinstance(archive, SealedArchive)
    head = await site.board().head()
    found = await archive.raw.history(Point(BOARD, head.revision), key, limit=10)
    return [each.entry.value[-48:] for each in found if each.entry is not None]


async def check_redacted(site: Site) -> None:
    """The owner sees the marker and her other key, and nothing is damaged."""
    ada = site.board("ada")
    for name in ("first", "second"):
        assert await ada.get(OWN, at=name) == MARKER
        assert await ada.get("private/ada/other", at=name) == "hers"
        assert (await site.board().verify(name)).findings == ()
    assert (await site.board().verify()).findings == ()


async def is_finished(secret: Secret, step: str) -> None:
    """Kill a service that redacts: the next one finishes it, without being asked."""
    await secret.tell()
    site = secret.site
    await site.stop()
    await is_killed_at(step, site)
    await site.start()
    await recorded_as_done(site.board(), KEY)
    for key in (DOCUMENT, "inbox/ada/key"):
        await site.client().redact(key)
    await secret.check_gone()


async def is_killed_at(step: str, site: Site) -> None:
    """Let a process redact the key, as far as that step, while the site is stopped."""
    arguments = [step, KEY, str(site.directory), *([site.url] if site.url else [])]
    await run_and_kill("tests.guarantees.redact_child", arguments, "there")


async def recorded_as_done(board: Board, key: str) -> None:
    """Wait until a redaction is recorded as done."""

    def is_done(value: object) -> bool:
        return isinstance(value, dict) and value["state"] == "done"

    async with board.watch(record_key(key), snapshot=True) as watch:
        if any(is_done(entry.value) for entry in watch.state.values()):
            return
        async for revised in watch:
            if any(is_done(change.value) for change in revised.changes):
                return


@pytest.mark.parametrize("step", STEPS)
async def test_a_redaction_that_is_killed_is_finished(
    embedded: Site, tmp_path: Path, step: str
) -> None:
    """At any step."""
    await is_finished(Secret(embedded, tmp_path), step)


@pytest.mark.parametrize("step", ["cut", "rewriting"])
async def test_a_redaction_of_redis_that_is_killed_is_finished(
    redis: Site, tmp_path: Path, step: str
) -> None:
    """The same over Redis."""
    await is_finished(Secret(redis, tmp_path), step)


async def test_a_damaged_board_delays_no_redaction_of_another(
    embedded: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is it said that anything was begun on it, which nobody can know."""
    secret = Secret(embedded, tmp_path)
    await secret.tell()
    await embedded.board(board="damaged").put("public/a", 1)
    await embedded.stop()
    file = embedded.directory / "data" / "boards" / "damaged.db"
    await is_killed_at("recorded", embedded)
    file.write_bytes(file.read_bytes()[:4096])
    await embedded.start()
    await recorded_as_done(embedded.board(), KEY)
    with pytest.raises(Corrupt, match="damaged"):
        await embedded.board(board="damaged").get("public/a")
    told = [record.getMessage() for record in caplog.records if "redact" in record.getMessage()]
    assert [text.partition(": corrupt")[0] for text in told] == [
        "board damaged: it cannot be read, nor what is to be redacted on it"
    ]


async def test_a_restore_in_between_brings_nothing_back(embedded: Site, tmp_path: Path) -> None:
    """One that put the value back after it was removed: the redaction begins again."""
    secret = Secret(embedded, tmp_path)
    await secret.tell()
    board = embedded.board()
    archive = embedded.service.host.archive
    assert archive is not None
    redact = archive.redact

    async def after_a_restore(*given: object) -> object:
        archive.redact = redact  # type: ignore[method-assign]
        done = await redact(*given)  # type: ignore[arg-type]
        await board.put("public/other", 2)
        await board.restore("first")
        return done

    archive.redact = after_a_restore  # type: ignore[method-assign, assignment]
    await secret.redact()
    assert await board.get(KEY) is None
    await board.put("public/other", 2)
    await secret.check_gone()


async def test_who_may_redact(embedded: Site) -> None:
    """An admin of the whole board; and nobody the records of the service."""
    board = embedded.board()
    await board.put(KEY, 1)
    with pytest.raises(AccessDenied):
        await embedded.client("ada").redact(KEY)
    with pytest.raises(InvalidRequest, match="record of the service"):
        await embedded.client().redact("system/checkpoints/one")
    with pytest.raises(InvalidRequest, match="part of document"):
        await embedded.client().redact(f"{KEY}/~doc/base")


async def test_the_audit_has_principal_and_reason(embedded: Site) -> None:
    """And which key, never the value."""
    await embedded.board().put(KEY, "hush")
    await embedded.client().redact(KEY, why="it was pasted")
    records = [r async for r in embedded.client().audit() if r.verb == "redact"]
    assert [(r.board, r.what) for r in records] == [(BOARD, f"{KEY} by operator: it was pasted")]
    assert all("hush" not in record.what for record in records)


async def test_a_watch_that_is_behind_goes_on_with_markers(embedded: Site) -> None:
    """What it has not read yet is cut from the log: it comes from the archive, without values."""
    board = embedded.board()
    async with board.watch("public/**") as watch:
        await board.put("public/other", 1)
        await anext(watch)
        await board.put(KEY, "hush")
        await embedded.client().redact(KEY)
        await board.put("public/other", 2)
        seen = [(await anext(watch)).changes[0] for _ in range(3)]
    assert [change.value for change in seen] == [MARKER, None, 2]


async def test_watchers_see_the_key_go(embedded: Site) -> None:
    """Nobody is refused or cut off: a watch goes on, with the removal of the key."""
    board = embedded.board()
    async with board.watch("public/**") as watch:
        await board.put(KEY, "hush")
        assert (await anext(watch)).changes[0].value == "hush"
        await embedded.client().redact(KEY)
        revised = await anext(watch)
        assert (revised.changes[0].key, revised.changes[0].value) == (KEY, None)
        await board.put("public/other", 1)
        assert (await anext(watch)).changes[0].key == "public/other"
