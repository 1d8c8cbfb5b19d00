"""What one transaction writes: what it takes, and what becomes of it when a rule raises."""

import asyncio

import pytest

from blackboard import limits
from blackboard.core.commit import Committed
from blackboard.engines.sqlite import group as sqlite_group
from blackboard.errors import Unavailable
from tests.unit.engines.sqlite.opened import NAME, Opened, broken, turn


async def test_a_refusal_alone_is_not_written(opened: Opened) -> None:
    """It costs no transaction."""
    step = opened.step()
    await opened.board.commit([step])
    [again] = await opened.board.commit([step])
    assert isinstance(again, Committed)
    assert again.duplicate
    assert opened.gate.writes == 1


async def written_in_three(opened: Opened, calls: int, each: int) -> None:
    """So many calls at once, of so many commits each, take three transactions."""
    opened.gate.open.clear()
    steps = [[opened.step(240) for _ in range(each)] for _ in range(calls)]
    tasks = [asyncio.create_task(opened.board.commit(batch)) for batch in steps]
    await turn()
    opened.gate.open.set()
    outcomes = [outcome for task in tasks for outcome in await task]
    revisions = [outcome.revision for outcome in outcomes if isinstance(outcome, Committed)]
    assert revisions == list(range(1, calls * each + 1))
    assert opened.gate.writes == 3


async def test_a_transaction_takes_only_so_many_commits(opened: Opened) -> None:
    """What comes when it is full waits for the next one, in order."""
    await written_in_three(opened, calls=3, each=limits.BATCH_COMMITS_MAX)


@pytest.mark.limits(batch_bytes_max=1_000)
async def test_a_transaction_takes_only_so_many_bytes(opened: Opened) -> None:
    """What comes when it is full waits for the next one, in order."""
    await written_in_three(opened, calls=12, each=1)


async def test_a_rule_that_raises_takes_nothing_with_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The board is given up before anything of a half applied commit could be written."""
    await opened.commit()
    monkeypatch.setattr(sqlite_group, "evolve", broken)
    with pytest.raises(ZeroDivisionError):
        await opened.board.commit([opened.step()])
    with pytest.raises(Unavailable):
        await opened.commit()
    with pytest.raises(Unavailable):
        await opened.board.read(["public/n"])
    with pytest.raises(Unavailable):
        await opened.board.compact(1)
    assert opened.file.load(NAME).state.revision == 1
