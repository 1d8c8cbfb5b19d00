"""The known heads: how they are kept, and that nothing that happens to their file stops a board."""

import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blackboard.core.commit import Committed, Epoch, Head, Put
from blackboard.engines.sqlite.directory import DataDirectory
from blackboard.engines.sqlite.heads import (
    DAMAGED,
    FILE_NAME,
    HeadsTimer,
    KnownHead,
    KnownHeads,
    decode,
    encode,
)
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, NewerFormat, Unavailable
from blackboard.limits import DEFAULT, EPOCH_JUMP
from blackboard.wire.codec import encode_value
from tests.conformance.writer import Writer
from tests.lowered import lowered
from tests.waiting import wait_until

BOARD = "main"
SOON = lowered(known_heads_interval_ms=10)


@asynccontextmanager
async def opened(data: Path, heads: Path | None = None) -> AsyncIterator[SqliteStore]:
    """A store that writes its known heads every ten milliseconds."""
    store = await SqliteStore.at(DataDirectory(data, heads), limits=SOON)
    try:
        await store.open(BOARD)
        yield store
    finally:
        await store.aclose()


async def put(store: SqliteStore, value: int) -> int:
    """One commit; returns its revision."""
    writer = await Writer.open(store, BOARD, f"agent-{value}")
    done = await writer.commit(Put("public/a", encode_value(value)))
    assert isinstance(done, Committed)
    return done.revision


def of_a_newer_version() -> bytes:
    """A file that a version yet to come wrote."""
    body = json.dumps({"format": "blackboard heads", "version": 2, "more": 1}).encode()
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def known(path: Path) -> int:
    """The revision that a file says the board had; 0: nothing."""
    found = decode(path, path.read_bytes()).get(BOARD) if path.exists() else None
    return 0 if found is None else found.revision


def files_in(directory: Path) -> set[str]:
    """What is there."""
    return {path.name for path in directory.iterdir()}


async def until_known(path: Path, revision: int) -> None:
    """Wait until the file has caught up."""

    async def is_known() -> bool:
        return known(path) == revision

    await wait_until(is_known)


async def warnings(store: SqliteStore) -> str:
    """What the engine warns of."""
    return " ".join((await store.facts()).warnings)


async def until_warned(store: SqliteStore, text: str) -> None:
    """Wait until it warns of something ("": of nothing)."""

    async def is_warned() -> bool:
        found = await warnings(store)
        return text in found if text else not found

    await wait_until(is_warned)


async def test_the_file_follows_commits_and_ends_with_the_last(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await until_known(tmp_path / FILE_NAME, await put(store, 1))
        await put(store, 2)
        last = await put(store, 3)
    assert known(tmp_path / FILE_NAME) == last
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "something else": lambda _: b'{"version": 1}\n',
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path, what: str) -> None:
    """Boards go on. The damaged file stays for people, and is no known head of anything."""
    file = tmp_path / FILE_NAME
    async with opened(tmp_path) as store:
        await put(store, 1)
    damaged = DAMAGE[what](file.read_bytes())
    file.write_bytes(damaged)
    with pytest.raises(Corrupt):
        decode(file, damaged)
    async with opened(tmp_path) as store:
        await until_known(file, await put(store, 2))
        assert "damaged" in await warnings(store)
    assert (tmp_path / f"{FILE_NAME}{DAMAGED}").read_bytes() == damaged
    async with opened(tmp_path) as store:
        assert not await warnings(store)


def test_a_file_that_is_set_aside_or_newer_is_not_written_without_news(tmp_path: Path) -> None:
    """Every second, until the process ends: an idle directory would be synced all the time."""
    damaged, newer = tmp_path / "damaged", tmp_path / "newer"
    damaged.write_bytes(b"")
    newer.write_bytes(of_a_newer_version())
    for file in (damaged, newer):
        heads = KnownHeads(file, apart=False, heads_max=9)
        heads.read()
        assert heads.warnings
        assert HeadsTimer(heads, dict, list, print, 1_000)._written({}) is None


async def test_a_newer_file_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    async with opened(tmp_path) as store:
        await put(store, 1)
    newer = of_a_newer_version()
    file.write_bytes(newer)
    with pytest.raises(NewerFormat):
        decode(file, newer)
    async with opened(tmp_path) as store:
        await put(store, 2)
        assert "newer Blackboard" in await warnings(store)
    assert file.read_bytes() == newer


async def test_a_file_out_of_reach_is_kept_when_it_is_back(tmp_path: Path) -> None:
    """A disk that is not mounted: commits go on. When it comes back, a board that turns out to be
    an older copy begins an epoch then."""
    data, away, there = tmp_path / "data", tmp_path / "away", tmp_path / "there"
    there.mkdir()
    async with opened(data, there / "heads") as store:
        await put(store, 1)
    shutil.copytree(data, tmp_path / "copy")
    async with opened(data, there / "heads") as store:
        last = await put(store, 2)
    there.rename(away)
    async with opened(data, there / "heads") as store:
        await put(store, 3)
        assert "not kept" in await warnings(store)
        away.rename(there)
        await until_warned(store, "")
        await until_known(there / "heads", last + 1)
    there.rename(away)
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "copy", data)
    async with opened(data, there / "heads") as store:
        assert await put(store, 4) == last
        away.rename(there)

        async def is_above() -> bool:
            return (await store.open(BOARD)).revision > last + EPOCH_JUMP

        await wait_until(is_above)
        assert "an older copy" in await warnings(store)
        assert await put(store, 5) > last + EPOCH_JUMP


async def test_a_failed_sync_is_said_and_another_draft_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, failed = os.fsync, set[str]()

    def fails(handle: int) -> None:
        name = str(Path(f"/proc/self/fd/{handle}").readlink())
        if FILE_NAME in name:
            assert name not in failed, "a file was synced again after its sync failed"
            failed.add(name)
            raise OSError(5, "Input/output error")
        sync(handle)

    async with opened(tmp_path) as store:
        first = await put(store, 1)
        await until_known(tmp_path / FILE_NAME, first)
        monkeypatch.setattr(os, "fsync", fails)
        last = await put(store, 2)
        await until_warned(store, "a sync failed")
        assert known(tmp_path / FILE_NAME) == first
        monkeypatch.undo()
        await until_known(tmp_path / FILE_NAME, last)
        await until_warned(store, "")
    assert files_in(tmp_path) == {"boards", "lock", FILE_NAME}


async def test_one_process_writes_a_file_apart(tmp_path: Path) -> None:
    """The second one is refused, and its directory is free again."""
    heads = tmp_path / "heads"
    async with opened(tmp_path / "one", heads):
        with pytest.raises(Unavailable, match="another process writes it"):
            async with opened(tmp_path / "two", heads):
                pass
    async with opened(tmp_path / "two", heads) as store:
        assert await put(store, 1)


def test_at_its_bound_the_oldest_removed_boards_go(tmp_path: Path) -> None:
    """Boards that exist stay, whatever their age."""
    heads = KnownHeads(tmp_path / FILE_NAME, apart=False, heads_max=3)
    heads.read()
    for number, name in enumerate(("there", "old", "new")):
        heads.write({name: KnownHead(1, 7, number)}, lambda: ["there"])
    assert set(decode(heads.path, heads.path.read_bytes())) == {"there", "old", "new"}
    heads.write({"newest": KnownHead(1, 7, 9)}, lambda: ["there"])
    assert set(decode(heads.path, heads.path.read_bytes())) == {"there", "new", "newest"}
    assert DEFAULT.boards.known_heads_max >= 2 * DEFAULT.boards.boards_max


def test_what_is_behind_a_known_head(tmp_path: Path) -> None:
    """A lower revision, and a lower epoch at a higher one."""
    (tmp_path / FILE_NAME).write_bytes(encode({BOARD: KnownHead(2, 100, 1_000)}))
    heads = KnownHeads(tmp_path / FILE_NAME, apart=False, heads_max=9)
    heads.read()
    assert heads.ahead(BOARD, 2, 99) is not None
    assert heads.ahead(BOARD, 1, 200) is not None
    assert heads.ahead(BOARD, 2, 100) is heads.ahead(BOARD, 3, 101) is None
    assert heads.ahead("other", 1, 0) is None
    at = Head(101, Epoch(2, "e"), 1, 2_000)
    assert heads.newer({BOARD: at}) == {BOARD: KnownHead(2, 101, 2_000)}
    heads.forget(BOARD)
    assert heads.ahead(BOARD, 1, 0) is None
