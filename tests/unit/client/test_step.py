"""What exactly a step conditions its commit on."""
# ruff: noqa: PT012 - a step is a block, and it is the end of the block that is refused

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from blackboard.client.board import Board
from blackboard.client.views import Receipt
from blackboard.core.commit import (
    ABSENT,
    Condition,
    HeldFence,
    KeyAt,
    Op,
    PrefixUnchanged,
    Put,
)
from blackboard.errors import Conflict
from blackboard.limits import BASED_ON_MAX
from blackboard.units import Key, Revision
from blackboard.wire.codec import encode_value
from tests.unit.server.hooked import client_of, service_over

ONE = encode_value(1)


class NotingBoard(Board):
    """A board that notes what each commit is conditioned on."""

    def noted(self) -> list[Condition]:
        """The conditions of the last commit."""
        found: list[Condition] = self.__dict__.setdefault("_noted", [])
        return found

    async def commit(
        self,
        ops: Sequence[Op],
        *,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        based_on: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Receipt:
        """As `Board.commit`."""
        self.noted()[:] = conditions
        return await super().commit(
            ops, conditions=conditions, fences=fences, based_on=based_on, note=note
        )


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[NotingBoard]:
    """A board with three tasks, all of revision 1."""
    async with service_over(tmp_path) as (service, _):
        board = NotingBoard(client_of(service).link, "main")
        await board.commit([Put(f"public/tasks/{number}", ONE) for number in range(3)])
        yield board


async def test_keys_are_tracked_as_they_were_read_first(board: NotingBoard) -> None:
    with pytest.raises(Conflict):
        async with board.step() as step:
            await step.get("public/tasks/0")
            await board.put("public/tasks/0", 2)
            await step.get("public/tasks/0")
            await step.get("public/absent")
            step.put("public/plan", 1)
    assert board.noted() == [KeyAt("public/tasks/0", 1), KeyAt("public/absent", ABSENT)]


async def test_a_listed_subtree_is_one_condition(board: NotingBoard) -> None:
    async with board.step() as step:
        await step.list("public/tasks/**")
        await step.get("public/tasks/1")
        step.put("public/plan", 1)
    assert board.noted() == [PrefixUnchanged("public/tasks", 1)]


async def test_a_key_read_before_its_subtree_was_listed_keeps_its_own_condition_if_it_changed(
    board: NotingBoard,
) -> None:
    with pytest.raises(Conflict):
        async with board.step() as step:
            for number in (0, 1):
                await step.get(f"public/tasks/{number}")
            await board.put("public/tasks/0", 2)
            await step.list("public/tasks/**")
            step.put("public/plan", 1)
    assert board.noted() == [PrefixUnchanged("public/tasks", 2), KeyAt("public/tasks/0", 1)]


async def test_grounds_are_what_was_there_and_are_bounded(board: NotingBoard) -> None:
    many: list[Op] = [Put(f"public/many/{i:04}", ONE) for i in range(BASED_ON_MAX + 5)]
    await board.commit(many)
    async with board.step() as step:
        await step.get("public/absent")
        await step.list("public/many/**")
        step.put("public/plan", 1)
    [revised] = await board.log(after=2)
    assert len(revised.based_on) == BASED_ON_MAX
    assert ("public/absent", 0) not in revised.based_on
