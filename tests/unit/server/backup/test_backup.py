"""Backups of embedded boards: what is shipped, what is noticed, what comes back."""

import asyncio
import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pytest

import blackboard
from blackboard.backup import manifest as manifests
from blackboard.backup.manifest import BackupManifest
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import backed_up, records_of, verify
from blackboard.backup.replay import Replay
from blackboard.backup.retain import Policy, prune
from blackboard.backup.ship import Shipped, Shipper
from blackboard.core.checkpoints import Moment, moment_of
from blackboard.core.commit import Commit, CommitId, Put
from blackboard.core.history import jump
from blackboard.encryption.master_key import new_master_key
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import (
    BlackboardError,
    Corrupt,
    InvalidRequest,
    NewerFormat,
    NoSuchBoard,
    StaleEpoch,
    Unavailable,
)
from blackboard.limits import DEFAULT, EPOCH_JUMP, EPOCH_JUMP_PER_SECOND, Limits
from blackboard.server.backups.once import complete, take_once
from blackboard.server.checkpoints.from_backup import BoardRecovered, Wanted, recover_from
from blackboard.server.settings import Settings, load, make_archive, make_store
from blackboard.wire.codec import encode_value, prepare

BOARD = "main"
MANIFEST = f"boards/{BOARD}/manifest.json"
LARGE = "x" * 100_000
"""Above BLOB_BYTES."""
SMALL_FILES = replace(DEFAULT, backup=replace(DEFAULT.backup, segment_bytes=2_000))


def settings_of(data: Path) -> Settings:
    """Those of the embedded engine there."""
    return load({"data": data})


async def shipped(data: Path, backup: Path, limits: Limits = DEFAULT) -> int:
    """Take a backup; returns how many log entries it added."""
    return (await take_once(settings_of(data), str(backup), limits)).entries


async def recovered(
    backup: Path, data: Path, at: Moment | None = None, *, aside: bool = False, boards: str = ""
) -> dict[str, BoardRecovered]:
    """Recover into a data directory."""
    wanted = Wanted(tuple(boards.split()), at, aside)
    found = await recover_from(settings_of(data), BackupPlace.at(str(backup)), wanted)
    return {each.board: each for each in found}


async def the_manifest(backup: Path, board: str = BOARD) -> BackupManifest:
    """What the backup has of a board."""
    [found] = [m async for m in backed_up(BackupPlace.at(str(backup))) if m.board == board]
    return found


async def story(data: Path) -> None:
    """A board with all that a board can have."""
    async with blackboard.open(data) as client:
        board = client.board(BOARD)
        for number in range(10):
            await board.put(f"public/k{number}", number)
        await board.put("private/ann/notes", "mine")
        await board.checkpoint("early")
        await board.put("public/large", LARGE)
        await board.append("public/list", "first")
        await board.delete("public/k9")
        async with board.document("public/text") as document:
            document.text().append("together")
        await board.restore("early")
        await board.put("public/k0", "last")
        branch = await board.branch("side", "early")
        await branch.put("public/k1", "aside")


async def content(data: Path, board: str = BOARD) -> dict[str, tuple[object, int, str]]:
    """Every public entry, with its revisions and author."""
    async with blackboard.open(data) as client:
        found = await client.board(board).list("public/**")
        return {
            entry.key: (entry.value, entry.mod_revision, entry.author) for entry in found.entries
        }


async def test_everything_comes_back_and_goes_on_far_above(tmp_path: Path) -> None:
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    await story(data)
    before = {name: await content(data, name) for name in (BOARD, "side")}
    await shipped(data, backup)
    found = await recovered(backup, new)
    assert {name: await content(new, name) for name in (BOARD, "side")} == before
    assert found[BOARD].revision > found[BOARD].through + EPOCH_JUMP
    async with blackboard.open(new) as client, blackboard.open(data) as old:
        board, then = client.board(BOARD), old.board(BOARD)
        assert await board.get("public/large", at="early") is None
        assert [v.revision for v in await board.history("public/k0")] == [
            v.revision for v in await then.history("public/k0")
        ]
        assert [c.name for c in await board.checkpoints()] == [
            c.name for c in await then.checkpoints()
        ]
        assert (await board.verify()).findings == ()
        await board.restore("early")
        assert await board.get("public/k0") == 0
        assert (await board.append("public/list", "next")).endswith("1")


async def test_only_what_is_new_is_added(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await story(data)
    assert await shipped(data, backup) > 0
    files = {path: path.read_bytes() for path in backup.rglob("*.segment")}
    assert await shipped(data, backup) == 0
    async with blackboard.open(data) as client:
        await client.board(BOARD).put("public/new", LARGE)
    assert await shipped(data, backup) == 1
    assert {path: path.read_bytes() for path in files} == files
    blobs = [path for path in (backup / "blobs").rglob("*") if path.is_file()]
    assert len(blobs) == 1  # the same value as before, which is there once


@pytest.mark.parametrize("moment", ["checkpoint", "time", "revision"])
async def test_any_moment_can_be_recovered(tmp_path: Path, moment: str) -> None:
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    async with blackboard.open(data) as client:
        board = client.board(BOARD)
        await board.put("public/a", "then")
        info = await board.checkpoint("here")
        while (await board.head()).time_ms <= info.time_ms:
            pass  # a time stands for the last revision of its millisecond
        await board.put("public/a", "now")
        log = (await board.log(after=info.revision - 1, limit=1))[0]
    await shipped(data, backup)
    moments: dict[str, Moment] = {
        "checkpoint": "here",
        "revision": info.revision,
        "time": moment_of(datetime.fromtimestamp(log.time_ms / 1000, UTC)),
    }
    found = await recovered(backup, new, moments[moment], boards=BOARD)
    assert found[BOARD].from_revision == info.revision
    async with blackboard.open(new) as client:
        board = client.board(BOARD)
        assert await board.get("public/a") == "then"
        assert await board.get("public/a", at=found[BOARD].through) == "now"  # it stays readable


async def test_a_process_from_the_lost_future_is_refused(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    async with blackboard.open(data) as client:
        board = client.board(BOARD)
        await board.put("public/a", 1)
    await shipped(data, backup)
    async with blackboard.open(data) as client:
        board = client.board(BOARD)
        last = (await board.put("public/a", 2)).revision
        old = (await board.head()).epoch
    for path in [*(data / "boards").iterdir(), data / "archive.db"]:
        path.unlink()
    found = await recovered(backup, data)
    assert found[BOARD].revision > last
    assert (await content(data))["public/a"][0] == 1
    store = await SqliteStore.at(data)
    try:
        put = (Put("public/a", encode_value(3)),)
        late = Commit(CommitId("ann", 0, "of the lost future", 1), old.id, put)
        [outcome] = await store.commit(BOARD, [prepare(late)])
        assert isinstance(outcome, StaleEpoch)
    finally:
        await store.aclose()


def test_the_jump_grows_with_the_age_of_the_backup() -> None:
    day_ms = 24 * 3600 * 1000
    assert jump(7, 1, 1) == 7 + EPOCH_JUMP
    assert jump(7, 1, 1 + day_ms) == 7 + EPOCH_JUMP + EPOCH_JUMP_PER_SECOND * 24 * 3600
    assert jump(7, day_ms, 1) == 7 + EPOCH_JUMP  # a clock that was set back


async def test_a_target_with_newer_data_is_refused_and_stays(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await story(data)
    await shipped(data, backup)
    async with blackboard.open(data) as client:
        await client.board(BOARD).put("public/newer", 1)
    with pytest.raises(InvalidRequest, match="newer board main"):
        await recovered(backup, data)
    assert "public/newer" in await content(data)
    found = await recovered(backup, data, aside=True)
    assert "public/newer" not in await content(data)
    async with blackboard.open(data) as client:
        assert [lost.board for lost in await client.lost_boards()] == ["main~1"]
    assert found[BOARD].revision > found[BOARD].through


async def test_a_recovery_can_be_repeated_after_a_part_of_it(tmp_path: Path) -> None:
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    await story(data)
    before = await content(data)
    await shipped(data, backup, SMALL_FILES)
    steps = 0

    class Stop(Exception):
        pass

    def stop(_: int) -> None:
        raise Stop

    for at in range(4):

        def count(_: int, at: int = at) -> None:
            nonlocal steps
            steps += 1
            if steps > at:
                raise Stop

        steps = 0
        with pytest.raises(Stop):
            await recover_from(
                settings_of(new), BackupPlace.at(str(backup)), Wanted(), progress=count
            )
    await recovered(backup, new)
    assert await content(new) == before


async def test_private_values_stay_sealed_and_need_the_master_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    key = new_master_key()
    async with blackboard.open(data, master_key=key) as client:
        await client.board(BOARD).put("private/ann/secret", "rosebud" * 20_000)
        await client.board(BOARD).put("private/ann/short", "rosebud")
    monkeypatch.setenv("BLACKBOARD_MASTER_KEY", key)
    await shipped(data, backup)
    assert {m.board async for m in backed_up(BackupPlace.at(str(backup)))} >= {BOARD, "~keys"}
    import zlib

    for path in backup.rglob("*"):
        if path.is_file():
            held = path.read_bytes()
            _, _, packed = held.partition(b"segment 1\n")
            assert b"rosebud" not in held + (zlib.decompress(packed) if packed else b"")
    await recovered(backup, new)
    async with blackboard.open(new, master_key=key) as client:
        assert await client.board(BOARD).get("private/ann/short") == "rosebud"
    with pytest.raises(BlackboardError):
        async with blackboard.open(new):
            pass


# --- damage ---------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def first(backup: Path, pattern: str) -> Path:
    """The first file of that name."""
    return min(backup.rglob(pattern))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit in a segment": lambda backup: flip(first(backup, "*.segment")),
    "a flipped bit in a manifest": lambda backup: flip(first(backup, "manifest.json")),
    "a flipped bit in a blob": lambda backup: flip(
        min(path for path in (backup / "blobs").rglob("*") if path.is_file())
    ),
    "a missing segment": lambda backup: first(backup, "*.segment").unlink(),
    "a half-copied segment": lambda backup: first(backup, "*.segment").write_bytes(
        first(backup, "*.segment").read_bytes()[:50]
    ),
    "a missing blob": lambda backup: min(
        path for path in (backup / "blobs").rglob("*") if path.is_file()
    ).unlink(),
    "the files of another board": lambda backup: (backup / "boards" / BOARD).rename(
        backup / "boards" / "other"
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_is_named_and_nothing_is_recovered(tmp_path: Path, what: str) -> None:
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    async with blackboard.open(data) as client:
        await client.board(BOARD).put("public/large", LARGE)
    await shipped(data, backup)
    DAMAGE[what](backup)
    with pytest.raises(Corrupt) as caught:
        _ = [each async for each in verify(BackupPlace.at(str(backup)))]
    assert BOARD in caught.value.what or "blob" in caught.value.what or "other" in caught.value.what
    with pytest.raises(Corrupt):
        await recovered(backup, new)


async def test_manifests_of_another_backup_are_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for name, backup in (("d1", one), ("d2", other)):
        async with blackboard.open(tmp_path / name) as client:
            await client.board(BOARD).put("public/a", name)
        await shipped(tmp_path / name, backup)
    (one / "boards" / BOARD / "manifest.json").write_bytes(
        (other / "boards" / BOARD / "manifest.json").read_bytes()
    )
    with pytest.raises(Corrupt, match="belongs to backup"):
        _ = [each async for each in verify(BackupPlace.at(str(one)))]


async def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await story(data)
    await shipped(data, backup)
    mark = backup / "backup.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"version": 2}))
    with pytest.raises(NewerFormat):
        _ = [each async for each in verify(BackupPlace.at(str(backup)))]
    with pytest.raises(NewerFormat):
        await shipped(data, backup)


async def test_a_directory_with_something_else_is_refused_and_unchanged(tmp_path: Path) -> None:
    data, ours = tmp_path / "data", tmp_path / "home"
    await story(data)
    ours.mkdir()
    (ours / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"thesis\.txt"):
        await shipped(data, ours)
    assert [path.name for path in ours.iterdir()] == ["thesis.txt"]
    with pytest.raises(InvalidRequest, match="no backup"):
        await recovered(ours, tmp_path / "new")


async def test_two_writers_take_turns(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await story(data)
    other = BackupPlace.at(str(backup))
    await other.begin()
    await other.lock()
    with pytest.raises(Unavailable, match="another process writes"):
        await shipped(data, backup)
    await other.unlock()
    assert await shipped(data, backup) > 0


async def test_an_unknown_board_and_a_name_for_several_are_refused(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await story(data)
    await shipped(data, backup)
    with pytest.raises(NoSuchBoard):
        await recovered(backup, tmp_path / "new", boards="nothing")
    with pytest.raises(InvalidRequest, match="one board"):
        await recovered(backup, tmp_path / "new", "early")


async def test_a_removed_board_does_not_come_back(tmp_path: Path) -> None:
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    await story(data)
    await shipped(data, backup)
    async with blackboard.open(data) as client:
        await client.remove_board("side")
    await shipped(data, backup)
    assert (await the_manifest(backup, "side")).removed
    assert list(await recovered(backup, new)) == [BOARD]


# --- small files, and old ones --------------------------------------------------------------------


async def test_small_files_are_merged(tmp_path: Path) -> None:
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    few = replace(DEFAULT, backup=replace(DEFAULT.backup, segments_merged=3))
    for number in range(12):
        async with blackboard.open(data) as client:
            await client.board(BOARD).put(f"public/k{number}", number)
        await shipped(data, backup, few)
    manifest = await the_manifest(backup)
    assert len(manifest.segments) <= 6
    assert {path.name for path in (backup / "boards" / BOARD).glob("*.segment")} == {
        Path(segment.name).name for segment in manifest.segments
    }
    assert [each.board async for each in verify(BackupPlace.at(str(backup)))] == [BOARD]
    await recovered(backup, new)
    assert await content(new) == await content(data)


FEW: Final = replace(DEFAULT, backup=replace(DEFAULT.backup, segments_merged=3))


async def grown(data: Path, backup: Path, keys: range) -> None:
    """A board with one more key for each backup, of which three are merged, and three of these."""
    for number in keys:
        async with blackboard.open(data) as client:
            await client.board(BOARD).put(f"public/k{number}", f"{number}{LARGE}")
        await shipped(data, backup, FEW)


async def test_a_reader_sees_the_same_while_files_are_merged(tmp_path: Path) -> None:
    """A file may have been merged twice since its name was read."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    await grown(data, backup, range(8))
    place, old = BackupPlace.at(str(backup)), await the_manifest(backup)
    before = [[r async for r in records_of(place, each)] for each in old.segments]
    await grown(data, backup, range(8, 16))
    now = {segment.name for segment in (await the_manifest(backup)).segments}
    assert len([each for each in old.segments if each.name not in now]) > 2
    assert [[r async for r in records_of(place, each)] for each in old.segments] == before


async def test_a_merged_file_with_other_records_is_noticed(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await grown(data, backup, range(2))
    place, old = BackupPlace.at(str(backup)), (await the_manifest(backup)).segments[-1]
    await grown(data, backup, range(2, 5))
    other = msgspec.structs.replace(old, chain=bytes(32))
    with pytest.raises(Corrupt, match="does not have what"):
        [_ async for _ in records_of(place, other)]


@pytest.mark.parametrize("what", ["base", "log", "large"])
async def test_what_was_pruned_under_a_reader_is_not_called_damage(
    tmp_path: Path, what: str
) -> None:
    """The next reading finds what is there now."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    for value in ("1", "2", "3"):
        async with blackboard.open(data) as client:
            await client.board(BOARD).put("public/large", f"{value}{LARGE}")
        await shipped(data, backup)
    place, old = BackupPlace.at(str(backup)), await the_manifest(backup)
    segment = old.segments[0 if what == "base" else 1]
    kept = (backup / segment.name).read_bytes()
    await prune(place, Policy(revisions=0), 0)
    if what == "large":  # as if the file had been read just before
        (backup / segment.name).write_bytes(kept)
    with pytest.raises(Unavailable, match="pruned"):
        [_ async for _ in records_of(place, segment)]
    assert [each.board async for each in verify(place)] == [BOARD]


async def test_a_list_of_files_that_come_and_go_is_no_error(tmp_path: Path) -> None:
    """A draft is renamed between its being listed and being looked at."""
    place, is_over = BackupPlace.at(str(tmp_path)), threading.Event()
    (tmp_path / "boards").mkdir()

    def write() -> None:
        while not is_over.is_set():
            for number in range(50):
                (tmp_path / f"boards/draft{number}").touch()
            for number in range(50):
                (tmp_path / f"boards/draft{number}").replace(tmp_path / "boards/whole")

    writer = asyncio.create_task(asyncio.to_thread(write))
    try:
        for _ in range(300):
            await place.names("boards/")
    finally:
        is_over.set()
        await writer


def size_on_disk(top: Path) -> int:
    """What its files take, according to the file system."""
    return sum(path.stat().st_blocks * 512 for path in top.rglob("*") if path.is_file())


async def rewritten(data: Path, backup: Path, times: int) -> None:
    """A key with a value that does not compress, written over and over; a backup each time."""
    import secrets

    for _ in range(times):
        async with blackboard.open(data) as client:
            await client.board(BOARD).put("public/a", secrets.token_hex(20_000))
        await shipped(data, backup)


async def test_retention_gives_room_back_to_the_file_system(tmp_path: Path) -> None:
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    await rewritten(data, backup, 12)
    place, policy = BackupPlace.at(str(backup)), Policy(revisions=2)
    before, files = size_on_disk(backup), sorted(backup.rglob("*"))
    planned = await prune(place, policy, 0, dry_run=True)
    assert sorted(backup.rglob("*")) == files
    done = await prune(place, policy, 0)
    assert done == planned
    assert [each.below for each in done.boards] == [10]
    assert size_on_disk(backup) < before / 2
    assert (await prune(place, policy, 0)).bytes == 0
    assert [each.first async for each in verify(BackupPlace.at(str(backup)))] == [10]
    await rewritten(data, backup, 1)  # it goes on
    found = await recovered(backup, new, 11, boards=BOARD)
    assert found[BOARD].from_revision == 11
    with pytest.raises(BlackboardError):
        await recovered(backup, tmp_path / "too-early", 9, boards=BOARD)


def bytes_of(top: Path, pattern: str) -> int:
    """The sizes of its files."""
    return sum(path.stat().st_size for path in top.rglob(pattern) if path.is_file())


async def test_large_values_that_nothing_needs_go(tmp_path: Path) -> None:
    """One that another board has, too, stays, and so does the newest of each key. What a dry run
    says is what the file system gets back."""
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    for number in range(4):
        async with blackboard.open(data) as client:
            await client.board(BOARD).put("public/a", f"{number}" * 100_000)
            await client.board("side").put(f"public/{number}", "1" * 100_000)
        await shipped(data, backup)
    place, before = BackupPlace.at(str(backup)), bytes_of(backup, "*")
    before -= bytes_of(backup, "manifest.json")
    planned = await prune(place, Policy(revisions=1), 0, dry_run=True)
    done = await prune(place, Policy(revisions=1), 0)
    assert done == planned
    assert done.others == 1
    assert before - done.bytes == bytes_of(backup, "*") - bytes_of(backup, "manifest.json")
    assert len([each async for each in verify(place)]) == 2
    await recovered(backup, new)
    for board in (BOARD, "side"):
        assert await content(new, board) == await content(data, board)
    found = await recovered(backup, tmp_path / "before", done.boards[0].below, boards=BOARD)
    assert found[BOARD].from_revision == 3


async def test_a_policy_keeps_what_it_says(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await rewritten(data, backup, 4)
    segments = (await the_manifest(backup)).segments
    assert len(segments) == 5
    last_ms, size = segments[-1].time_ms, segments[-1].file_bytes
    assert Policy(age_ms=0).count(segments, last_ms) == 5
    assert Policy(age_ms=10**9).count(segments, last_ms) == 0
    assert Policy(revisions=4).count(segments, last_ms) == 0
    assert Policy(revisions=3).count(segments, last_ms) == 2
    assert Policy(revisions=0, age_ms=10**9).count(segments, last_ms) == 0
    assert Policy(bytes_max=size).count(segments, last_ms) >= 4
    assert Policy(bytes_max=10**9).count(segments, last_ms) == 0
    with pytest.raises(InvalidRequest):
        Policy()


async def test_files_that_a_crash_left_go_with_the_next_pruning(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await rewritten(data, backup, 3)
    left = backup / "boards" / BOARD / "0000000000000001-left.segment"
    left.write_bytes(b"a part")
    assert [each.board async for each in verify(BackupPlace.at(str(backup)))] == [BOARD]
    await prune(BackupPlace.at(str(backup)), Policy(revisions=1), 0)
    assert not left.exists()


async def test_a_board_that_began_again_gets_a_new_base(tmp_path: Path) -> None:
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    await story(data)
    await shipped(data, backup)
    async with blackboard.open(data) as client:
        await client.remove_board(BOARD)
        await client.board(BOARD).put("public/again", 1)
    await shipped(data, backup)
    assert len((await the_manifest(backup)).bases) == 2
    await recovered(backup, new)
    assert set(await content(new)) == {"public/again"}


async def test_what_was_recovered_is_backed_up_in_turn(tmp_path: Path) -> None:
    data, backup, new, last = (tmp_path / name for name in ("data", "backup", "new", "last"))
    await story(data)
    await shipped(data, backup)
    await recovered(backup, new)
    async with blackboard.open(new) as client:
        await client.board(BOARD).put("public/later", 1)
    await shipped(new, backup)
    await shipped(new, tmp_path / "fresh")
    for source in (backup, tmp_path / "fresh"):
        await recovered(source, last / source.name)
        assert await content(last / source.name) == await content(new)


async def test_a_manifest_with_a_hole_is_refused(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await rewritten(data, backup, 4)
    manifest = await the_manifest(backup)
    hole = msgspec.structs.replace(
        manifest, segments=(*manifest.segments[:2], *manifest.segments[3:])
    )
    await manifests.write(BackupPlace.at(str(backup)), hole)
    with pytest.raises(Corrupt, match="does not follow"):
        await the_manifest(backup)


@pytest.mark.parametrize("began", ["just now", "long ago"])
async def test_a_board_that_held_nothing_holds_up_no_other(tmp_path: Path, began: str) -> None:
    """Only its beginning was shipped, or what it held was removed, and its log pruned."""
    data, backup, new = (tmp_path / name for name in ("data", "backup", "new"))
    async with blackboard.open(data) as client:
        await client.board("empty").put("public/a", 1)
        await client.board("empty").delete("public/a")
        await client.board(BOARD).put("public/b", 2)
    await shipped(data, backup)
    place = BackupPlace.at(str(backup))
    if began == "just now":
        manifest = await the_manifest(backup, "empty")
        await manifests.write(
            place, msgspec.structs.replace(manifest, segments=manifest.segments[:1])
        )
    else:
        assert len((await prune(place, Policy(revisions=0), 0)).boards) == 2
    for _ in range(2):
        found = await recovered(backup, new)
        assert found["empty"].revision > found["empty"].through + EPOCH_JUMP
        assert await content(new) == await content(data)
        assert await content(new, "empty") == {}
    async with blackboard.open(new) as client:
        put = await client.board("empty").put("public/a", 3)
        assert put.revision > found["empty"].revision


async def test_a_manifest_whose_name_was_not_synced_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be read, and may be gone after a power cut."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    await rewritten(data, backup, 1)
    async with blackboard.open(data) as client:
        await client.board(BOARD).put("public/b", 1)
    store, archive = await make_store(settings_of(data)), await make_archive(settings_of(data))
    assert archive is not None
    await complete(store, archive, DEFAULT)
    shipper, manifest = Shipper(BackupPlace.at(str(backup)), store, archive), backup / MANIFEST
    before, fsync = manifest.stat().st_ino, os.fsync

    def fails(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path == manifest.parent and manifest.stat().st_ino != before:
            raise OSError(errno.EIO, "as a disk says")
        fsync(file)

    monkeypatch.setattr(os, "fsync", fails)
    await shipper.begin()
    with pytest.raises(Unavailable):
        await shipper.round([BOARD])
    monkeypatch.undo()
    content, written = manifest.read_bytes(), manifest.stat().st_ino
    await shipper.begin()
    assert await shipper.round([BOARD]) == Shipped()
    assert manifest.read_bytes() == content
    assert manifest.stat().st_ino != written
    await shipper.end()
    await archive.aclose()
    await store.aclose()


async def fill(data: Path, value: str, count: int) -> None:
    """A board with so many commits."""
    async with blackboard.open(data) as client:
        for number in range(count):
            await client.board(BOARD).put(f"public/k{number}", value)


@pytest.mark.parametrize(("before", "after"), [(20, 10), (10, 20)])
async def test_of_two_histories_of_one_name_the_newer_comes_back(
    tmp_path: Path, before: int, after: int
) -> None:
    old, new, backup = (tmp_path / name for name in ("old", "new", "backup"))
    for data, count in ((old, before), (new, after)):
        await fill(data, data.name, count)
        await shipped(data, backup, SMALL_FILES)
    await recovered(backup, tmp_path / "back")
    assert await content(tmp_path / "back") == await content(new)
    async with blackboard.open(tmp_path / "back") as client:
        await client.board(f"{BOARD}~1").recover()
    assert await content(tmp_path / "back", f"{BOARD}~1") == await content(old)
    place = BackupPlace.at(str(backup))
    await prune(place, Policy(revisions=3), now_ms=0)
    await recovered(backup, tmp_path / "pruned")
    assert await content(tmp_path / "pruned") == await content(new)


async def test_a_recovery_of_two_histories_can_be_repeated(tmp_path: Path) -> None:
    old, new, backup = (tmp_path / name for name in ("old", "new", "backup"))
    for data in (old, new):
        await fill(data, data.name, 20)
        await shipped(data, backup, SMALL_FILES)
    manifest = await the_manifest(backup)
    part = msgspec.structs.replace(manifest, segments=manifest.segments[:-1])
    assert part.segments[-1].kind == "log"
    settings = settings_of(tmp_path / "back")
    archive = await make_archive(settings, DEFAULT)
    assert archive is not None
    await Replay(BackupPlace.at(str(backup)), archive, part).run()
    await archive.aclose()
    for _ in range(2):
        await recovered(backup, tmp_path / "back")
        assert await content(tmp_path / "back") == await content(new)


async def test_an_older_copy_that_went_on_comes_back(tmp_path: Path) -> None:
    data, copy, backup = (tmp_path / name for name in ("data", "copy", "backup"))
    await fill(data, "both", 10)
    shutil.copytree(data, copy)
    await fill(data, "lost", 5)
    await fill(copy, "kept", 3)
    for each in (data, copy):
        await shipped(each, backup)
    await recovered(backup, tmp_path / "back")
    assert await content(tmp_path / "back") == await content(copy)


@pytest.mark.parametrize("counts", [(10, 20), (20, 10), (10, 10)])
async def test_two_histories_without_an_archive_are_not_mixed(
    tmp_path: Path, counts: tuple[int, int]
) -> None:
    backup, back = tmp_path / "backup", tmp_path / "back"
    for name, count in zip(("old", "new"), counts, strict=True):
        await fill(tmp_path / name, name, count)
        settings = load({"data": tmp_path / name, "archive": "none"})
        await take_once(settings, str(backup))
    await recovered(backup, back)
    assert await content(back) == await content(tmp_path / "new")


async def test_a_backup_whose_first_file_was_not_finished_is_begun(tmp_path: Path) -> None:
    """The process was killed before the draft of that file had its name."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    backup.mkdir()
    (backup / "backup.json.0123456789abcdef").write_bytes(b"{")
    await fill(data, "a", 1)
    assert await shipped(data, backup) == 1
    await prune(BackupPlace.at(str(backup)), Policy(revisions=1), 0)
    assert not list(backup.glob("backup.json.*"))


async def test_a_directory_that_took_the_place_is_locked_in_its_turn(tmp_path: Path) -> None:
    data, backup, away = (tmp_path / name for name in ("data", "backup", "away"))
    await fill(data, "a", 1)
    store = await make_store(settings_of(data))
    shipper, other = (Shipper(BackupPlace.at(str(backup)), store, None) for _ in range(2))
    await shipper.begin()
    await shipper.round([BOARD])
    shutil.copytree(backup, away)
    backup.rename(tmp_path / "moved")
    away.rename(backup)
    await other.begin()
    with pytest.raises(Unavailable, match="another directory"):
        await shipper.round([BOARD])
    with pytest.raises(Unavailable, match="another process"):
        await shipper.begin()
    await other.end()
    await shipper.begin()
    with pytest.raises(Unavailable, match="another process"):
        await other.begin()
    assert await shipper.round([BOARD]) == Shipped()
    await shipper.end()
    await store.aclose()


async def test_of_two_that_begin_a_backup_at_once_one_makes_it(tmp_path: Path) -> None:
    late, first = (BackupPlace.at(str(tmp_path / "backup")) for _ in range(2))
    names, has_looked, goes_on = late.names, asyncio.Event(), asyncio.Event()

    async def slowly(below: str = "") -> Sequence[str]:
        found = await names(below)
        has_looked.set()
        await goes_on.wait()
        return found

    late.names = slowly  # type: ignore[method-assign]
    beginning = asyncio.create_task(late.begin())
    await has_looked.wait()
    name = await first.begin()
    goes_on.set()
    with pytest.raises(Unavailable, match="another process"):
        await beginning
    assert await first.id() == name
    await first.unlock()
    assert await late.begin() == name
