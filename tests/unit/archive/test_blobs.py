"""Blobs in a directory and in a real S3 API: what comes back is what went in, or an error."""

import asyncio
import errno
import hashlib
import os
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint

from blackboard.archive.blobs import Blobs
from blackboard.archive.sql import SqlArchive
from blackboard.errors import Corrupt, InvalidRequest, Unavailable
from blackboard.integrity.signing import Seal
from tests.lowered import lowered
from tests.s3 import BUCKET, S3

VALUES = [b"", b"x" * 100_000, os.urandom(300_000)]


@pytest.fixture
def s3_blobs(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    """Blobs in a bucket; the client finds the server by the environment."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return Blobs.at(s3.url)


@pytest.fixture
def local(tmp_path: Path) -> Blobs:
    """Blobs in a directory, which is made."""
    return Blobs.at(str(tmp_path / "deep" / "blobs"))


async def check(blobs: Blobs) -> None:
    """Put, put again, get, and miss."""
    for value in VALUES:
        name = await blobs.put(value)
        assert name == hashlib.sha256(value).digest()
        assert await blobs.put(value) == name
        assert await blobs.get(name) == value
    await blobs.put_all(VALUES)
    missing = hashlib.sha256(b"never").digest()
    with pytest.raises(Corrupt, match="missing"):
        await blobs.get(missing)


async def test_a_directory(local: Blobs, tmp_path: Path) -> None:
    """By path, or by URL."""
    await check(local)
    again = Blobs.at((tmp_path / "deep" / "blobs").as_uri())
    assert await again.get(hashlib.sha256(VALUES[1]).digest()) == VALUES[1]


async def test_a_blob_in_a_directory_outlives_a_power_loss(
    local: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is synced, and so are the directories in which it was made, when `put` returns."""
    synced = set()
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    name = (await local.put(VALUES[1])).hex()
    file = tmp_path / "deep" / "blobs" / name[:2] / name
    for path in (file, file.parent, file.parent.parent):
        assert path.stat().st_ino in synced, path


async def test_a_sync_that_fails_takes_no_blob_that_was_there(
    local: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup that is already published may need it. It is written again, not only synced again:
    after a failed sync another one may succeed although nothing reached the disk."""
    await local.put_durably([VALUES[1]])
    name = hashlib.sha256(VALUES[1]).digest()
    file = tmp_path / "deep" / "blobs" / name.hex()[:2] / name.hex()
    written = file.stat().st_ino
    with monkeypatch.context() as broken:

        def fail(_: object) -> None:
            raise OSError(errno.EIO, "the disk fails")

        broken.setattr(os, "fsync", fail)
        for value in VALUES[1:]:
            with pytest.raises(Unavailable):
                await local.put_durably([value])
    assert await local.get(name) == VALUES[1]
    with pytest.raises(Corrupt, match="missing"):
        await local.get(hashlib.sha256(VALUES[2]).digest())
    assert file.stat().st_ino == written
    await local.put_durably(VALUES)
    assert file.stat().st_ino != written
    for value in VALUES:
        assert await local.get(hashlib.sha256(value).digest()) == value


async def test_s3(s3_blobs: Blobs) -> None:
    """A bucket of a server that speaks S3's API."""
    await check(s3_blobs)


async def test_a_swapped_object_is_corrupt(s3: S3, s3_blobs: Blobs) -> None:
    """Write access to the bucket can make a value unreadable, but not replace it by another."""
    name = (await s3_blobs.put(VALUES[1])).hex()
    s3.request("PUT", f"{BUCKET}/board/{name[:2]}/{name}", VALUES[1][:-1])
    with pytest.raises(Corrupt, match=name):
        await s3_blobs.get(bytes.fromhex(name))


async def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, s3: S3) -> None:
    """An object store that is away is Unavailable, soon."""
    environment = s3.environment | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Unavailable):
        await Blobs.at(s3.url).put(b"x")


@pytest.mark.parametrize("url", ["paper://desk", "s3:", "ftp://host/path", "file://host/path"])
def test_what_is_no_object_store(url: str) -> None:
    """Refused, naming the setting."""
    with pytest.raises(InvalidRequest) as refused:
        Blobs.at(url)
    assert refused.value.field == "blobs"


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A file is in the way."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable):
        Blobs.at(str(tmp_path / "file" / "blobs"))


async def test_young_blobs_stay(local: Blobs, tmp_path: Path) -> None:
    """Somebody may be about to name them; older ones go, and a missing one is no error."""
    name, never = await local.put(b"x"), hashlib.sha256(b"never").digest()
    assert await local.young([name, never]) == {name}
    hasty = Blobs.at(str(tmp_path / "deep" / "blobs"), lowered(blob_grace_ms=0))
    assert await hasty.young([name, never]) == set()
    await hasty.discard_all([name, never])
    with pytest.raises(Corrupt):
        await local.get(name)


async def test_no_more_calls_are_begun_than_run_at_once(tmp_path: Path) -> None:
    """What waits for its turn would take memory: a pruning may remove a hundred thousand blobs."""
    blobs = Blobs.at(str(tmp_path / "blobs"), lowered(blob_calls_max=2, blob_grace_ms=0))
    names = [await blobs.put(bytes([number])) for number in range(7)]
    others = len(asyncio.all_tasks())
    for work in (blobs.sizes(names), blobs.discard_all(names)):
        doing, most = asyncio.ensure_future(work), 0
        while not doing.done():
            most = max(most, len(asyncio.all_tasks()) - others)
            await checkpoint()
        assert most == 3, "itself, and two calls"
        await doing
    assert await blobs.sizes(names) == 0


async def test_a_draft_that_a_killed_process_left_goes_when_the_archive_is_opened(
    tmp_path: Path,
) -> None:
    """It has the whole value, and neither a pruning nor a redaction knows of it."""
    url, blobs = f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs"
    first = await SqlArchive.open(url, blobs=str(blobs), sealer=Seal(bytes(32)))
    kept = blob_file(blobs, await Blobs.at(str(blobs)).put(b"kept"))
    draft = kept.with_name(f"{kept.name}.{'0a' * 8}")
    draft.write_bytes(b"canary")
    (blobs / "READ.ME").write_text("a file of somebody else")
    second = await SqlArchive.open(url, blobs=str(blobs), sealer=Seal(bytes(32)))
    assert draft.exists(), "another process may be writing it"
    await first.aclose()
    await second.aclose()
    await (await SqlArchive.open(url, blobs=str(blobs), sealer=Seal(bytes(32)))).aclose()
    assert not draft.exists()
    assert kept.read_bytes() == b"kept"


@pytest.mark.parametrize("calls_max", [1, 16])
async def test_a_blob_that_was_removed_stays_away_after_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_max: int
) -> None:
    """Its directory is synced: no row names the blob any more, so nothing would remove it again."""
    blobs = Blobs.at(str(tmp_path), lowered(blob_calls_max=calls_max))
    names = [await blobs.put(bytes([number])) for number in range(3)]
    never = hashlib.sha256(b"never").digest()
    synced = set()
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    await blobs.discard_all([*names, never])
    for name in names:
        assert blob_file(tmp_path, name).parent.stat().st_ino in synced


def blob_file(directory: Path, name: bytes) -> Path:
    """Where a blob is in a directory."""
    return directory / name.hex()[:2] / name.hex()
