"""A backup that is taken once, of boards of which one cannot be archived or is gone."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import blackboard
from blackboard.archive.sql import archive_beside
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import verify
from blackboard.backup.ship import Shipper
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt
from blackboard.limits import DEFAULT
from blackboard.server.backups.once import complete, take_once
from blackboard.server.checkpoints.from_backup import Wanted, recover_from
from blackboard.server.settings import load
from blackboard.units import Revision


async def put(data: Path, *boards: str) -> None:
    """One commit on each of these boards."""
    async with blackboard.open(data) as client:
        for board in boards:
            await client.board(board).append("public/list", 1)


async def ends(backup: Path) -> dict[str, Revision]:
    """The newest revision of each board in a backup that was read as a whole."""
    return {each.board: each.last async for each in verify(BackupPlace.at(str(backup)))}


async def test_a_damaged_board_keeps_no_other_out_of_the_backup(tmp_path: Path) -> None:
    """It is named at the end. A recovery, which changes the target, stops before it does."""
    settings, backup = load({"data": tmp_path / "data"}), tmp_path / "backup"
    await put(settings.data, "damaged", "main")
    await take_once(settings, str(backup))
    before = (await ends(backup))["main"]
    await put(settings.data, "damaged", "main")
    (settings.data / "boards" / "damaged.db").write_bytes(b"no database at all")
    with pytest.raises(Corrupt, match="damaged"):
        await take_once(settings, str(backup))
    assert (await ends(backup))["main"] > before
    with pytest.raises(Corrupt, match="damaged"):
        await recover_from(settings, BackupPlace.at(str(backup)), Wanted())


async def test_a_board_that_is_removed_meanwhile_is_left_out(tmp_path: Path) -> None:
    """Between the list of boards and its turn: on Redis, another process may do that."""
    await put(tmp_path / "data", "gone", "main")
    store = await SqliteStore.at(tmp_path / "data")
    archive = await archive_beside(tmp_path / "new", DEFAULT)
    boards, exists = store.boards, store.exists

    async def listed() -> Sequence[str]:
        found = await boards()
        await store.remove("gone")
        return found

    async def existed(board: str) -> bool:
        return board == "gone" or await exists(board)

    store.boards = listed  # type: ignore[method-assign]
    await complete(store, archive, DEFAULT)
    assert await archive.holds("main")
    store.exists = existed  # type: ignore[method-assign]
    shipper = Shipper(BackupPlace.at(str(tmp_path / "backup")), store, None)
    await shipper.begin()
    shipped = await shipper.round(["gone", "main"])
    assert shipped.boards == 1
    await shipper.end()
    await archive.aclose()
    await store.aclose()
