"""The verdicts: at the limit, beside it, and when something was not measured."""

import pytest

from bench.catalogue import ROWS
from bench.coordination import KINDS, plan_cells
from bench.figures import Results
from bench.targets import TARGETS, Target, judge


def results_of(ours: float, etcd: float) -> Results:
    results = Results()
    results.add("put w=64", "ours", 1, {"op/s": ours})
    results.add("put w=64", "etcd", 1, {"op/s": etcd})
    return results


TWICE = Target("twice", "put w=64", "ours", "op/s", reference="etcd", at_least=2.0)
FEW = Target("few", "put w=64", "ours", "op/s", below=10.0)


@pytest.mark.parametrize(("ours", "outcome"), [(200.0, "met"), (199.0, "not met")])
def test_a_ratio_target_is_met_from_its_limit_on(ours: float, outcome: str) -> None:
    assert judge(TWICE, results_of(ours, 100.0)).outcome == outcome


@pytest.mark.parametrize(("ours", "outcome"), [(9.9, "met"), (10.0, "not met")])
def test_an_upper_limit_is_not_met_at_the_limit_itself(ours: float, outcome: str) -> None:
    assert judge(FEW, results_of(ours, 1.0)).outcome == outcome


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    results = Results()
    results.add("put w=64", "ours", 1, {"op/s": 500.0})
    verdict = judge(TWICE, results)
    assert verdict.outcome == "not measured"
    assert verdict.measured is None


@pytest.mark.parametrize("limits", [(None, None), (1.0, 1.0)])
def test_a_target_has_exactly_one_limit(limits: tuple[float | None, float | None]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Target("t", "put", "ours", "op/s", at_least=limits[0], below=limits[1])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.text)
def test_every_target_names_a_cell_and_rows_that_are_measured(target: Target) -> None:
    """A misspelt name would read "not measured" for ever."""
    kinds = {cell.name: cell.kind for cell in plan_cells(KINDS, seconds=1.0, megabytes=1)}
    cells_of = {row.name: row.cells for row in ROWS}
    for row in filter(None, (target.row, target.reference)):
        assert kinds[target.cell] in cells_of[row]


@pytest.mark.parametrize(("lost", "outcome"), [(0.0, "met"), (1.0, "not met")])
def test_a_loss_in_one_round_of_three_misses_the_target(lost: float, outcome: str) -> None:
    results = Results()
    for round_number, value in enumerate((0.0, lost, 0.0)):
        results.add("fan n=100", "ours", round_number, {"lost": value})
    target = Target("none lost", "fan n=100", "ours", "lost", below=1.0)
    assert judge(target, results).outcome == outcome
