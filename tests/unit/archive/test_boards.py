"""Names, rows and refusals of boards."""

from types import SimpleNamespace

from blackboard.archive.boards import out_of_turn, vacant
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
