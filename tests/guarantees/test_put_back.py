"""An older copy of the data is put back: no revision is given out twice, and nobody is left in the
lost future. What was put back with it decides what can notice: the archive, the known heads, a
backup."""

import contextlib
import json
import shutil
from pathlib import Path
from urllib.request import urlopen

import anyio
import pytest

import blackboard
from blackboard.client.board import Board
from blackboard.core.access import ACCESS_BOARD
from blackboard.core.commit import Commit, CommitId, Put
from blackboard.encryption.master_key import new_master_key
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import (
    BlackboardError,
    Corrupt,
    RolledBack,
    StaleEpoch,
    Unavailable,
)
from blackboard.limits import EPOCH_JUMP
from blackboard.wire.codec import encode_value, prepare
from tests.guarantees.processes import ServiceProcess
from tests.lowered import COPIED
from tests.waiting import wait_until

BOARD = "main"
HISTORY = ("archive.db", "archive.db-wal", "archive.db-shm", "blobs")
PUT_BACK = {
    "the files of the boards": ("boards",),
    "boards and history": ("boards", *HISTORY),
}


def put_back(copy: Path, data: Path, names: tuple[str, ...]) -> None:
    """Replace some of a directory by what an older copy has of it."""
    for name in names:
        there, older = data / name, copy / name
        if there.is_dir():
            shutil.rmtree(there)
        else:
            there.unlink(missing_ok=True)
        if older.is_dir():
            shutil.copytree(older, there)
        elif older.exists():
            shutil.copyfile(older, there)


async def count(board: Board, numbers: range) -> tuple[int, str, str]:
    """Commit once for each number; returns the revision, the epoch, and a token to watch on."""
    for number in numbers:
        await board.put("public/n", number)
    async with board.watch("**") as watch:
        head = await board.head()
        return head.revision, head.epoch.id, watch.position


async def counted(data: Path, numbers: range) -> tuple[int, str, str]:
    """The same in a process that opens the directory."""
    async with blackboard.open(data) as client:
        return await count(client.board(BOARD), numbers)


async def check_future_is_lost(board: Board, revision: int, token: str) -> None:
    """The board is as it was, far above the lost revisions, and a watcher of those is told."""
    assert await board.get("public/n") == 4
    assert (await board.put("public/n", "new")).revision > revision + EPOCH_JUMP
    with pytest.raises(RolledBack):
        async with board.watch("**", after=token) as watch:
            await anext(watch)
    assert (await board.verify()).findings == ()


@pytest.mark.parametrize("what", PUT_BACK)
async def test_no_revision_is_given_out_twice(tmp_path: Path, what: str) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    await counted(data, range(5))
    shutil.copytree(data, copy)
    revision, lost_epoch, token = await counted(data, range(5, 12))
    put_back(copy, data, PUT_BACK[what])
    async with blackboard.open(data) as client:
        await check_future_is_lost(client.board(BOARD), revision, token)
        epoch = (await client.board(BOARD).head()).epoch
        lost = [each.board for each in await client.lost_boards()]
        assert lost == ([BOARD] if what == "the files of the boards" else [])
    store = await SqliteStore.at(data)
    try:
        assert (await store.open(BOARD)).epoch.id == epoch.id  # it is noticed once
        put = (Put("public/n", encode_value("late")),)
        late = Commit(CommitId("ann", 0, "of the lost future", 1), lost_epoch, put)
        [outcome] = await store.commit(BOARD, [prepare(late)])
        assert isinstance(outcome, StaleEpoch)
    finally:
        await store.aclose()


async def test_a_board_that_a_copy_does_not_have_yet(tmp_path: Path) -> None:
    """Not even its file: the next board of that name begins above it."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with blackboard.open(data) as client:
        await client.board("other").put("public/a", 1)
    shutil.copytree(data, copy)
    revision, _, _ = await counted(data, range(5))
    put_back(copy, data, PUT_BACK["boards and history"])
    async with blackboard.open(data) as client:
        receipt = await client.board(BOARD).put("public/n", 1)
        assert receipt.revision > revision + EPOCH_JUMP
        assert (await client.board("other").head()).epoch.number == 1


async def test_a_removed_board_that_a_copy_still_has(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    await counted(data, range(5))
    shutil.copytree(data, copy)
    revision, _, token = await counted(data, range(5, 12))
    async with blackboard.open(data) as client:
        await client.remove_board(BOARD)
    put_back(copy, data, PUT_BACK["boards and history"])
    async with blackboard.open(data) as client:
        await check_future_is_lost(client.board(BOARD), revision, token)


# --- a service, and where the whole directory is put back -----------------------------------------


def readiness(service: ServiceProcess) -> dict[str, object]:
    """What /readyz says."""
    with urlopen(f"http://127.0.0.1:{service.port}/readyz") as answer:
        return dict(json.loads(answer.read()))


def revision_in(heads: Path) -> int:
    """What the file of known heads says of the board; 0: nothing."""
    with contextlib.suppress(FileNotFoundError):
        found = json.loads(heads.read_text().partition("\n")[0])["boards"].get(BOARD)
        return 0 if found is None else int(found[1])
    return 0


async def test_a_whole_directory_is_noticed_from_apart(tmp_path: Path) -> None:
    """After kill -9, with the known heads on another disk."""
    data, copy, heads = tmp_path / "data", tmp_path / "copy", tmp_path / "apart" / "heads"
    heads.parent.mkdir()
    await counted(data, range(5))
    shutil.copytree(data, copy)
    service = ServiceProcess("sqlite", data, more={"heads_file": str(heads)})
    service.log = tmp_path / "log"
    async with service, service.connect() as client:
        revision, _, token = await count(client.board(BOARD), range(5, 12))
        assert "warnings" not in await anyio.to_thread.run_sync(readiness, service)

        async def is_known() -> bool:
            return revision_in(heads) == revision

        await wait_until(is_known)
        await service.kill()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    async with service, service.connect() as client:
        await check_future_is_lost(client.board(BOARD), revision, token)
        await service.stop()
        await service.start()  # it looks at the engine, and finds nothing more
        assert (await client.board(BOARD).head()).epoch.number == 2
    assert service.log.read_text().count(f"board {BOARD}: an older copy of its file") == 1


async def test_a_whole_directory_is_noticed_by_its_backup(tmp_path: Path) -> None:
    """Before the first commit is accepted. Nothing in the directory could notice."""
    data, copy, backup = tmp_path / "data", tmp_path / "copy", tmp_path / "backup"
    await counted(data, range(5))
    shutil.copytree(data, copy)
    service = ServiceProcess("sqlite", data, more={"backup": str(backup)})
    async with service, service.connect() as client:
        revision, _, token = await count(client.board(BOARD), range(5, 12))
        await client.board("later").put("public/a", 1)
        later = (await client.board("later").put("public/a", 2)).revision
        assert await service.stop() == 0
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    async with service, service.connect() as client:
        ready = await anyio.to_thread.run_sync(readiness, service)
        assert ready["warnings"] == 1
        await check_future_is_lost(client.board(BOARD), revision, token)
        assert (await client.board("later").put("public/a", 3)).revision > later + EPOCH_JUMP


# --- its siblings ---------------------------------------------------------------------------------


async def test_revocations_that_went_back_are_announced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What nothing has any more cannot come back, but it is said. (What the archive has comes back:
    test_own_boards_come_back.py.)"""
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with blackboard.open(data) as client:
        await client.revoke(principal="ann")
    shutil.copytree(data, copy)
    async with blackboard.open(data) as client:
        await client.revoke(principal="ben")
    put_back(copy, data, PUT_BACK["boards and history"])
    async with blackboard.open(data) as client:
        await client.revoke(principal="cleo")
    store = await SqliteStore.at(data)
    try:
        assert len((await store.list(ACCESS_BOARD, "", limit=9)).entries) == 2
    finally:
        await store.aclose()
    assert f"board {ACCESS_BOARD}: an older copy of its file was put back" in caplog.text


async def test_data_keys_that_went_back_are_announced_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Values that were encrypted with newer ones are an error, never something else."""
    data, copy, key = tmp_path / "data", tmp_path / "copy", new_master_key()
    async with blackboard.open(data, master_key=key) as client:
        await client.board(BOARD).put("private/ann/a", 1)
    shutil.copytree(data, copy)
    async with blackboard.open(data, master_key=key) as client:
        await client.board(BOARD).put("private/ben/a", "hers")
    put_back(copy, data, ("boards/~keys.db",))
    async with blackboard.open(data, master_key=key) as client:
        assert await client.board(BOARD).get("private/ann/a") == 1
        with pytest.raises(BlackboardError):
            await client.board(BOARD).get("private/ben/a")
    assert "board ~keys: an older copy of its file was put back" in caplog.text


async def test_blobs_that_went_back_are_named(tmp_path: Path) -> None:
    """The history says which value is missing; the present does not need it."""
    data, copy, large = tmp_path / "data", tmp_path / "copy", "x" * 100_000
    async with blackboard.open(data, limits=COPIED) as client:
        await client.board(BOARD).put("public/large", "small")
    shutil.copytree(data, copy)
    async with blackboard.open(data, limits=COPIED) as client:
        board = client.board(BOARD)
        revision = (await board.put("public/large", large)).revision
        await board.put("public/large", "small again")
    put_back(copy, data, ("blobs",))
    async with blackboard.open(data, limits=COPIED) as client:
        board = client.board(BOARD)
        assert await board.get("public/large") == "small again"
        with pytest.raises((Corrupt, Unavailable), match="blob"):
            await board.get("public/large", at=revision)
        assert (await board.verify()).findings
