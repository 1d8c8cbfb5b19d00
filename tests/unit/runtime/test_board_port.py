"""A desk on a real board: what it adds is the answer to checkpoints, and a renewal."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import blackboard
from blackboard.client.board import Board
from blackboard.core.commit import Delete, Put
from blackboard.core.path import barrier_key
from blackboard.errors import StaleEpoch
from blackboard.runtime.board_port import BoardPort, LiveBoardPort
from blackboard.runtime.trial import MemoryBoardPort
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.unit.server.hooked import client_of, service_over

ONE = encode_value(1)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service."""
    async with service_over(tmp_path) as (service, _):
        yield service


@pytest.fixture
def board(service: Service) -> Board:
    """The board as its operator has it."""
    return client_of(service).board("main")


async def test_both_desks_answer_alike(board: Board) -> None:
    """The one in memory, for tests and replays, and the one on a board."""
    for port in (LiveBoardPort(board.as_agent("ada")), MemoryBoardPort("ada", "main")):
        mine: BoardPort = port
        assert (mine.agent, mine.name) == ("ada", "main")
        for number in range(3):
            await mine.commit([Put(f"public/{number}", encode_value(number))], note="put")
        await mine.commit([Delete("public/0")])
        assert await mine.entry("public/0") is None
        entry = await mine.entry("public/1")
        assert entry is not None
        assert (entry.value, entry.author, entry.mod_revision) == (1, "ada", 2)
        assert list(await mine.entries(["public/2", "public/9"])) == ["public/2"]
        page = await mine.list("public/*", limit=1)
        assert ([e.key for e in page.entries], page.next_key) == (["public/1"], "public/1")
        page = await mine.list("public/*", after=page.next_key)
        assert ([e.key for e in page.entries], page.next_key) == (["public/2"], None)


async def test_a_checkpoint_is_answered_by_the_commit(service: Service, board: Board) -> None:
    """By deleting what asks for it, at once with all that the agent has to bring."""
    ada = board.as_agent("ada")
    await (await service.boards.use("main")).commit_as_system([Put(barrier_key("ada"), ONE)])
    await LiveBoardPort(ada).commit([Put("public/a", ONE)])
    assert await board.entry(barrier_key("ada")) is None
    [only] = await board.log(after=1)
    assert {change.key for change in only.changes} == {"public/a", barrier_key("ada")}


async def test_a_desk_goes_on_after_a_restore_when_it_is_renewed(tmp_path: Path) -> None:
    """Not before: what it wants to write is of another past."""
    async with blackboard.open(tmp_path, level="memory") as client:
        board = client.board("main")
        port = LiveBoardPort(board.as_agent("ada"))
        await port.commit([Put("public/a", ONE)])
        await board.restore(1)
        with pytest.raises(StaleEpoch) as refused:
            await port.commit([Put("public/b", ONE)])
        await port.renew(refused.value)
        await port.commit([Put("public/b", ONE)])
    with pytest.raises(StaleEpoch):
        await MemoryBoardPort("ada").renew(refused.value)
