"""Names, rows and refusals of boards."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import insert, select

from blackboard.archive.boards import out_of_turn, replace, vacant
from blackboard.archive.database import Database, rows
from blackboard.archive.history import board_row
from blackboard.archive.tables import BOARD


def test_a_vacant_board_is_a_whole_row() -> None:
    """Every column that must have a value has one."""
    row = vacant("main")
    needed = {c.name for c in BOARD.columns if not c.nullable and c.name != "id"}
    assert needed <= row.keys() <= {c.name for c in BOARD.columns}


def test_an_archiver_without_the_fence_learns_the_owner() -> None:
    """Or that there is no such board."""
    error = out_of_turn("main", 3, SimpleNamespace(fence=4, owner="b"))
    assert (error.key, error.fence, error.current) == ("archive of board main", 3, 4)
    assert error.holder == "b"
    assert out_of_turn("main", 3, None).current == 0


@pytest.mark.parametrize(
    ("fence", "expected"),
    [(None, ("service", 3, 900)), (7, (None, 7, 0))],
    ids=["the archiver stays", "a new fence"],
)
async def test_a_row_that_nothing_was_written_to_is_used_again(
    tmp_path: Path, fence: int | None, expected: tuple[str | None, int, int]
) -> None:
    """A board that begins has one, of the archiver that took it: nothing else is looked through."""
    database = await Database.open(f"sqlite:///{tmp_path}/archive.db")
    async with database.writing() as connection:
        taken = {"owner": "service", "fence": 3, "until_ms": 900, "called": "another"}
        await connection.execute(insert(BOARD), vacant("main") | taken)
        old = await board_row(connection, "main")
        assert await replace(connection, old, fence=fence) == old.id
        [row] = await rows(connection, select(BOARD))
    assert (row.owner, row.fence, row.until_ms) == expected
    assert (row.id, row.name, row.called, row.through) == (old.id, "main", "main", None)
    await database.aclose()
