"""Which fences a commit gets without being told, and which it must not get."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from pathlib import Path

import pytest

from blackboard.client import writer as held
from blackboard.client.leases.lock import new_holder
from blackboard.client.link import Transport
from blackboard.client.writer import Hold
from blackboard.core import access
from blackboard.core.commit import HeldFence
from blackboard.core.lease import is_holder_of
from blackboard.core.path import check_name
from blackboard.errors import LimitExceeded, LocalProtocolError
from blackboard.limits import FENCES_MAX, SEGMENT_BYTES_MAX
from blackboard.server.service import Service
from tests.unit.server.hooked import service_over

BOARD = "main"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service, for its links."""
    async with service_over(tmp_path) as (service, _):
        yield service


@pytest.fixture
async def ada(service: Service) -> Transport:
    """The way of ada."""
    return service.link(access.agent("ada"))


@pytest.fixture
async def bob(service: Service) -> Transport:
    """The way of bob."""
    return service.link(access.agent("bob"))


def fence(key: str) -> HeldFence:
    """The fence of some lease."""
    return HeldFence(key, "ada~1", 7)


def hold_of(link: Transport, *keys: str, board: str = BOARD) -> Hold:
    """What a block of `link`'s agent holds."""
    return Hold(link.origin, board, link.agent, tuple(fence(key) for key in keys))


async def test_a_commit_gets_the_fences_of_its_board_after_its_own(ada: Transport) -> None:
    first, second = hold_of(ada, "public/a"), hold_of(ada, "public/b", "private/ada/c")
    held.take(first)
    held.take(second)
    keys = [f.key for f in held.fences_of(ada, BOARD, [fence("public/z"), fence("public/b")])]
    assert keys == ["public/z", "public/b", "public/a", "private/ada/c"]
    assert held.fences_of(ada, "another") == ()
    held.let_go(first)
    assert [f.key for f in held.fences_of(ada, BOARD)] == ["public/b", "private/ada/c"]
    held.let_go(second)
    assert held.fences_of(ada, BOARD) == ()


async def test_other_agents_rely_on_public_leases_only(ada: Transport, bob: Transport) -> None:
    held.take(hold_of(ada, "public/a", "private/ada/c", "inbox/ada/d"))
    assert [f.key for f in held.fences_of(bob, BOARD)] == ["public/a"]


async def test_a_board_of_the_same_name_of_another_service_is_another(
    ada: Transport, tmp_path: Path
) -> None:
    held.take(hold_of(ada, "public/a"))
    async with service_over(tmp_path / "other") as (service, _):
        other = service.link(access.agent("ada"))
        assert held.fences_of(other, BOARD) == ()
        held.check_free(other, BOARD, ["public/a"])


async def test_tasks_inherit_what_is_held_also_beyond_its_end(ada: Transport) -> None:
    hold = hold_of(ada, "public/a")
    over = asyncio.Event()

    async def after() -> tuple[HeldFence, ...]:
        await over.wait()
        held.check_free(ada, BOARD, ["public/a"])
        return held.fences_of(ada, BOARD)

    held.take(hold)
    inside = asyncio.create_task(after())
    apart = asyncio.create_task(after(), context=Context())
    held.let_go(hold)
    over.set()
    assert await inside == hold.fences
    assert await apart == ()
    assert held.fences_of(ada, BOARD) == ()


async def test_what_is_held_cannot_be_asked_for(ada: Transport, bob: Transport) -> None:
    held.take(hold_of(ada, "public/a"))
    for link in (ada, bob):
        with pytest.raises(LocalProtocolError, match="public/a"):
            held.check_free(link, BOARD, ["public/b", "public/a"])
        held.check_free(link, BOARD, ["public/b"])
        held.check_free(link, "another", ["public/a"])


async def test_a_task_holds_no_more_than_a_commit_can_carry(ada: Transport) -> None:
    held.take(hold_of(ada, "public/a", "public/b"))
    keys = [f"public/k{number}" for number in range(FENCES_MAX - 1)]
    held.check_free(ada, BOARD, keys[1:])
    with pytest.raises(LimitExceeded) as refused:
        held.check_free(ada, BOARD, keys)
    assert (refused.value.limit, refused.value.value) == ("FENCES_MAX", FENCES_MAX + 1)


async def test_a_hold_knows_the_last_commit_of_its_own_agent(
    ada: Transport, bob: Transport
) -> None:
    hold = hold_of(ada, "public/a")
    held.take(hold)
    held.note_commit(bob, BOARD, 9)
    held.note_commit(ada, "another", 8)
    assert hold.committed == 0
    held.note_commit(ada, BOARD, 5)
    held.note_commit(ada, BOARD, 3)
    assert hold.committed == 5


@pytest.mark.parametrize("agent", ["ada", "x" * SEGMENT_BYTES_MAX])
def test_every_acquisition_has_a_name_of_its_own(agent: str) -> None:
    """One that the board accepts, however long the agent's is."""
    names = {new_holder(agent) for _ in range(1_000)}
    assert len(names) == 1_000
    for name in names:
        assert is_holder_of(agent, check_name(name))
        assert len(name.rpartition("~")[2]) == 16
