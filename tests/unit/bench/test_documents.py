"""What the benchmark of documents promises is what it measures."""

from bench.documents import CELLS, KINDS, PACED, ROWS, parse
from bench.targets import DOCUMENT_TARGETS


def test_every_target_is_about_a_cell_and_rows_that_there_are() -> None:
    rows = {row.name for row in ROWS}
    for target in DOCUMENT_TARGETS:
        assert target.cell in CELLS, target
        assert target.row in rows, target
        assert target.reference in rows | {None}, target


def test_every_cell_is_of_a_kind_that_can_be_asked_for() -> None:
    assert {settings["cell"] for settings in CELLS.values()} == set(KINDS)
    assert parse(["--cells", "load,stall"]).cells == ["load", "stall"]
    assert not PACED.keys() & {"cell", "receivers", "burst"}
