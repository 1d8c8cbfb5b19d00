"""What the benchmark of documents promises is what it measures."""

from bench import typing_model
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


def test_the_recorded_session_is_the_same_everywhere_and_can_be_replayed() -> None:
    """It is made from a seed, and a replay that waits for what each writer had seen never waits
    for what that one could not have written yet."""
    edits = typing_model.recording(2_000)
    assert edits == typing_model.recording(2_000) != typing_model.recording(2_000, seed=1)
    typed = [0] * typing_model.WRITERS
    for writer, seen, move, removed, text in edits:
        assert seen <= typed[1 - writer]
        assert move >= typing_model.STAY
        assert removed >= 0
        typed[writer] += len(text)
    assert {edit[0] for edit in edits} == {0, 1}
    assert any(edit[3] for edit in edits)
    assert any(edit[2] != typing_model.STAY for edit in edits)
