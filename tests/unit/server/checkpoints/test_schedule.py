"""Checkpoints that nobody asks for."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.checkpoints import RetentionPolicy
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.checkpoints.schedule import Automatic, AutomaticCheckpoints
from blackboard.server.service import Service


async def service_at(path: Path, automatic: Automatic | None = None) -> Service:
    """A service over the boards in `path`."""
    store, archive = await SqliteStore.at(path, "memory"), await archive_beside(path)
    return Service(store, archive=archive, automatic=automatic)


def board_of(service: Service) -> Board:
    """The board as the operator."""
    return Client(service.link(access.operator())).board("main")


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service that takes none by itself."""
    async with await service_at(tmp_path) as service:
        yield service


async def test_one_is_taken_every_so_many_revisions(service: Service) -> None:
    board = board_of(service)
    automatic = AutomaticCheckpoints(service.boards, Automatic(every_revisions=3))
    await board.put("public/n", 0)
    for number in range(8):
        await automatic.look()
        await board.put("public/n", number)
    found = await board.checkpoints()
    assert [(c.kind, c.by) for c in found] == [("automatic", "~system")] * 2
    assert [c.name for c in found] == ["auto-r3", "auto-r6"]


async def test_none_is_taken_of_a_board_on_which_nothing_happened(service: Service) -> None:
    board = board_of(service)
    await board.put("public/n", 0)
    automatic = AutomaticCheckpoints(service.boards, Automatic(every_ms=1))
    await automatic.look()
    await automatic.look()
    assert await board.checkpoints() == ()
    await board.put("public/n", 1)
    while not await board.checkpoints():
        await automatic.look()
    await automatic.look()
    assert len(await board.checkpoints()) == 1


async def test_two_services_take_each_one_once(service: Service) -> None:
    board = board_of(service)
    both = [AutomaticCheckpoints(service.boards, Automatic(every_revisions=4)) for _ in range(2)]
    await board.put("public/n", 0)
    for number in range(12):
        for automatic in both:
            await automatic.look()
        await board.put("public/n", number)
    names = [c.name for c in await board.checkpoints()]
    assert len(names) == len(set(names)) >= 2


async def test_what_is_not_kept_is_pruned(service: Service) -> None:
    board = board_of(service)
    settings = Automatic(every_revisions=2, keep=RetentionPolicy(last=1, days=0))
    automatic = AutomaticCheckpoints(service.boards, settings)
    await board.put("public/n", 0)
    for number in range(8):
        await automatic.look()
        await board.put("public/n", number)
    taken = await board.checkpoints()
    assert len(taken) > 1
    await automatic.tidy()
    assert await board.checkpoints() == taken[-1:]


async def test_the_last_one_is_taken_at_shutdown(tmp_path: Path) -> None:
    async with await service_at(tmp_path, Automatic(at_shutdown=True)) as service:
        await board_of(service).put("public/n", 1)
    async with await service_at(tmp_path) as service:
        board = board_of(service)
        [taken] = await board.checkpoints()
        assert (taken.kind, taken.revision) == ("shutdown", 2)
        assert await board.get("public/n", at=taken.name) == 1
        assert (await board.show(taken.name)).checkpoint == taken


async def test_none_is_taken_at_shutdown_of_a_board_that_was_only_read(tmp_path: Path) -> None:
    """However often the service is started again: its last checkpoint says all there is."""
    for _ in range(3):
        async with await service_at(tmp_path, Automatic(at_shutdown=True)) as service:
            board = board_of(service)
            if await board.get("public/n") is None:
                await board.put("public/n", 1)
    async with await service_at(tmp_path) as service:
        assert [c.revision for c in await board_of(service).checkpoints()] == [2]


async def test_one_is_taken_at_shutdown_of_what_was_looked_at_before(service: Service) -> None:
    """That others are not due yet does not mean that nothing happened."""
    board = board_of(service)
    settings = Automatic(every_revisions=100, at_shutdown=True)
    automatic = AutomaticCheckpoints(service.boards, settings)
    await board.put("public/n", 1)
    await automatic.look()
    await automatic.at_shutdown()
    await automatic.at_shutdown()
    assert [c.kind for c in await board.checkpoints()] == ["shutdown"]
