"""Checkpoints that nobody asks for."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.checkpoints import CHECKPOINTS, RetentionPolicy
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from blackboard.limits import DEFAULT
from blackboard.server.checkpoints.schedule import Automatic, AutomaticCheckpoints, Retention
from blackboard.server.service import Service
from tests.lowered import lowered
from tests.unit.server.hooked import client_of, service_over

DAY_NS = 24 * 3600 * 10**9


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


async def test_a_board_at_rest_gets_none_for_those_that_were_pruned(service: Service) -> None:
    """The removal of a checkpoint is a commit; for it, another one would be taken and removed."""
    board = board_of(service)
    keep = RetentionPolicy(last=1, days=0)
    settings = Automatic(every_ms=1, at_shutdown=True, keep=keep)
    automatic = AutomaticCheckpoints(service.boards, settings)
    await board.put("public/n", 0)
    await automatic.look()
    for number in (1, 2):
        before = await board.checkpoints()
        await board.put("public/n", number)
        while await board.checkpoints() == before:
            await automatic.look()
    await automatic.tidy()
    revision = (await board.head()).revision
    assert len(await board.checkpoints()) == 1
    for _ in range(10):
        await automatic.look()
        await automatic.tidy()
        await automatic.at_shutdown()
    assert (await board.head()).revision == revision


async def test_a_board_that_was_removed_is_forgotten(service: Service) -> None:
    board = board_of(service)
    automatic = AutomaticCheckpoints(service.boards, Automatic(every_revisions=1))
    await board.put("public/n", 0)
    await automatic.look()
    await board.put("public/n", 1)
    await automatic.look()
    assert automatic._taken
    await service.boards.remove("main")
    await automatic.tidy()
    assert not automatic._taken
    assert not automatic._last


async def test_what_is_pinned_or_taken_while_it_is_pruned_stays(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = board_of(service)
    for name in ("pinned", "again", "old", "last"):
        await board.put("public/n", name)
        await board.checkpoint(name)
    real = Retention._branched_off

    async def meanwhile(self: Retention) -> set[int]:
        found = await real(self)
        await board.pin("pinned")
        await board.put("public/n", "during")
        await board.checkpoint("during")
        await board.put("public/n", "after")
        return found

    monkeypatch.setattr(Retention, "_branched_off", meanwhile)
    policy = RetentionPolicy(last=1, days=0, named=False, history_ms=0)
    pruned = await board.prune(policy)
    assert pruned.removed == ("again", "old")
    assert [c.name for c in await board.checkpoints()] == ["pinned", "last", "during"]
    for name in ("pinned", "last", "during"):
        assert await board.get("public/n", at=name) == name


async def test_what_a_pruning_left_behind_goes_with_the_next_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended between the removal of a checkpoint and that of its manifest."""
    board = board_of(service)
    for name in ("old", "last"):
        await board.put("public/n", name)
        await board.checkpoint(name)
    archive, policy = service.host.archive, RetentionPolicy(last=1, days=0, named=False)
    assert archive is not None

    async def fail(*_: object) -> None:
        raise Unavailable("archive", "away")

    with monkeypatch.context() as broken:
        broken.setattr(archive, "forget", fail)
        with pytest.raises(Unavailable):
            await board.prune(policy)
    assert [c.name for c in await archive.checkpoints("main")] == ["old", "last"]
    assert [c.name for c in await board.checkpoints()] == ["last"]
    await board.prune(policy)
    assert [c.name for c in await archive.checkpoints("main")] == ["last"]


async def test_a_commit_of_a_clock_that_was_behind_makes_nothing_old(tmp_path: Path) -> None:
    """What was committed before it is as new as it was."""
    now_ns = time.time_ns()
    store = await SqliteStore.at(tmp_path, "memory", clock_ns=lambda: now_ns)
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        board = board_of(service)
        for number in range(5):
            await board.put("public/n", number)
        now_ns -= 400 * DAY_NS
        await board.put("public/n", "long ago")
        now_ns += 400 * DAY_NS
        await board.put("public/n", "now")
        pruned = await board.prune(RetentionPolicy(history_ms=90 * DAY_NS // 10**6))
        assert pruned.versions == 0
        assert await board.get("public/n", at=3) == 2


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


@pytest.mark.parametrize("limit", ["engine_timeout_ms", "drain_timeout_ms"])
async def test_an_archive_that_hangs_does_not_hold_up_a_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """The checkpoints are taken without what it would say, as far as there is time for them."""
    limits = lowered(DEFAULT, **{limit: 300})
    async with service_over(tmp_path, limits) as (service, store):
        service.host.archive = archive = await archive_beside(tmp_path)
        for name in "abc":
            await client_of(service).board(name).put("public/n", 1)
        monkeypatch.setattr(archive, "mark", _hang)
        await AutomaticCheckpoints(service.boards, Automatic(at_shutdown=True)).at_shutdown()
        service.host.archive = None
        found = [(await store.list(name, CHECKPOINTS, limit=9)).entries for name in "abc"]
        assert [len(each) for each in found] == [limit == "engine_timeout_ms"] * 3
    await archive.aclose()


async def _hang(_: str) -> None:
    await asyncio.Event().wait()


async def test_a_clock_that_is_put_back_puts_none_off(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, now_ns = board_of(service), time.time_ns()
    await board.put("public/n", 0)
    automatic = AutomaticCheckpoints(service.boards, Automatic(every_ms=3_600_000))
    with monkeypatch.context() as patched:
        for day in (30, 0):
            patched.setattr(time, "time_ns", lambda now_ns=now_ns + day * DAY_NS: now_ns)
            await automatic.look()
        await board.put("public/n", 1)
        patched.setattr(time, "time_ns", lambda: now_ns + DAY_NS)
        await automatic.look()
    assert [c.kind for c in await board.checkpoints()] == ["automatic"]
