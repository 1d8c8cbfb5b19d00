"""How much was replayed, in words."""

from blackboard.cli.replay import Report, summary


def test_one_of_something_is_not_many() -> None:
    """Each number has its noun."""
    ones = Report(runs=1, steps=1, checkpoints_compared=1, rewinds_compared=1)
    assert summary(ones) == "1 run, 1 step; compared 1 checkpoint and 1 rewind"
    many = Report(runs=2, steps=30, checkpoints_compared=30, rewinds_compared=0)
    assert summary(many) == "2 runs, 30 steps; compared 30 checkpoints and 0 rewinds"
