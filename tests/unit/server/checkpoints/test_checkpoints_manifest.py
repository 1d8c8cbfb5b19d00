"""A checkpoint whose manifest nobody could import is refused before it is taken."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.checkpoints import checkpoint_key
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import LimitExceeded, Unavailable
from blackboard.limits import MANIFEST_BYTES_MAX, VALUE_BYTES_MAX
from blackboard.server.checkpoints import take as checkpoints_manifest
from blackboard.server.checkpoints.take import ROOM_BYTES, Checkpoints
from blackboard.server.service import Service

BOARD = "main"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with an archive."""
    store = await SqliteStore.at(tmp_path, level="memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        yield service


@pytest.fixture
async def board(service: Service) -> Board:
    """A board on which two agents wrote, one of whom declared something; all of it archived."""
    board = Client(service.link(access.operator())).board(BOARD)
    for agent in ("ada", "bob"):
        await board.as_agent(agent).put(f"private/{agent}/draft", "ä" * 10)
    done = await board.as_agent("ada").put("public/~declared/ada", {"model": "m", "raw": b"\x00"})
    assert service.host.archiver is not None
    await service.host.archiver.reached(BOARD, done.revision)
    return board


async def size_of(service: Service, name: str) -> int:
    """Bytes of a manifest that was made."""
    _, stored = await Checkpoints(await service.boards.use(BOARD)).sealed(name)
    return len(stored.manifest)


async def test_a_manifest_has_an_edge(
    board: Board, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MANIFEST_BYTES_MAX, with some room; what is refused leaves nothing."""
    await board.checkpoint("c0")
    edge = await size_of(service, "c0") + ROOM_BYTES
    head = await board.head()
    monkeypatch.setattr(checkpoints_manifest, "MANIFEST_BYTES_MAX", edge - 2048)
    with pytest.raises(LimitExceeded) as refused:
        await board.checkpoint("c1")
    told = refused.value
    assert (told.limit, told.maximum, told.where) == ("MANIFEST_BYTES_MAX", edge - 2048, BOARD)
    assert told.value > told.maximum
    assert (await board.head()).revision == head.revision
    monkeypatch.setattr(checkpoints_manifest, "MANIFEST_BYTES_MAX", edge + 2048)
    await board.checkpoint("c1")
    assert [checkpoint.name for checkpoint in await board.checkpoints()] == ["c0", "c1"]


async def test_it_is_measured_as_it_will_be(board: Board, service: Service) -> None:
    """But for the digits of some numbers."""
    await board.checkpoint("c0")
    said = await size_of(service, "c0")
    main = await service.boards.use(BOARD)
    assert main.archive is not None
    record = (await main.read([checkpoint_key("c0")])).entries[0].value
    size = await checkpoints_manifest._size(main, main.archive, "c0", record)
    assert abs(said - size) < 64


async def test_what_is_declared_counts(board: Board) -> None:
    """Values of a megabyte each, with characters that JSON writes out."""
    count = MANIFEST_BYTES_MAX // VALUE_BYTES_MAX // 3 + 1
    for number in range(count):
        text = "ä" * (VALUE_BYTES_MAX // 2 - 8)
        await board.as_agent(f"a{number}").put(f"public/~declared/a{number}", text)
    with pytest.raises(LimitExceeded):
        await board.checkpoint("c0")
    await board.delete("public/~declared/a0")
    await board.checkpoint("c0")


async def test_nothing_prevents_a_restore(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even that the checkpoint before it could not be exported."""
    monkeypatch.setattr(checkpoints_manifest, "MANIFEST_BYTES_MAX", 1)
    before = await board.head()
    await board.put("public/a", 1)
    await board.restore(before.revision)
    assert await board.get("public/a") is None


async def test_a_manifest_of_before_a_restore_may_be_larger_and_is_read(
    board: Board, service: Service
) -> None:
    """Reading it knows no bound: else what the restore abandoned could not be brought back."""
    before = await board.head()
    for number in range(MANIFEST_BYTES_MAX // VALUE_BYTES_MAX // 3 + 1):
        text = "ä" * (VALUE_BYTES_MAX // 2 - 8)
        await board.as_agent(f"a{number}").put(f"public/~declared/a{number}", text)
    await board.restore(before.revision)
    [saved] = await board.checkpoints()
    assert await size_of(service, saved.name) > MANIFEST_BYTES_MAX
    await board.restore(saved.name)
    assert await board.get("public/~declared/a0") == text


async def test_an_archive_that_is_away_refuses_nothing(
    board: Board, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is an entry of the log; its manifest is made when the archive is back."""
    assert service.host.archive is not None

    async def away(*_: object) -> None:
        raise Unavailable(what="archive", reason="away")

    monkeypatch.setattr(checkpoints_manifest, "MANIFEST_BYTES_MAX", 1)
    monkeypatch.setattr(service.host.archive, "facts_at", away)
    await board.checkpoint("c0")
