"""The programs behind `make mutants` and `make proof` tell what happened, and nothing better."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, all_fit, copied, run_tests
from tests.proof import DIRECTORY, PLANS, Layer, collected, table
from tests.seeded.mutant import Mutant
from tests.source_tree import ROOT, sources

QUICK = "another holder releases a lease"
NAMED = "\n".join(
    source.text
    for source in sources("tests")
    if not source.path.startswith(("tests/mutants.py", "tests/seeded/"))
)
"""Where the names of tests and of their parameters stand."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_has_a_place_and_tests(mutant: Mutant) -> None:
    """The text has not moved on without it, and the tests that it names are there."""
    assert mutant.misfit(ROOT) is None
    assert mutant.new != mutant.old
    files, _, names = mutant.tests.partition(" -k ")
    assert all((ROOT / file).exists() for file in files.split())
    assert [word for word in re.findall(r"\w+", names) if word not in NAMED] == []


def test_a_mutant_that_fits_no_longer_is_reported_before_any_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Skipped in silence, it would pass for noticed."""
    (tmp_path / "moved.py").write_text("twice\ntwice\n")
    fits = Mutant("fits", "moved.py", "twice\ntwice", "once", "")
    missing, doubled = replace(fits, path="gone.py"), replace(fits, old="twice")
    assert all_fit(tmp_path, [fits])
    assert not all_fit(tmp_path, [fits, missing, doubled])
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(": fits: ")[2] for line in told] == [
        "there is no gone.py",
        "2 places to change in moved.py",
    ]
    with pytest.raises(AssertionError, match="2 places"):
        doubled.apply(tmp_path)


def test_names_of_mutants_differ() -> None:
    """So that a survivor is one of them."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_mutant_lives_in_a_copy_and_is_noticed_there(tmp_path: Path) -> None:
    """The tests pass without it, fail with it, and the checkout does not change."""
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == QUICK]
    before = (ROOT / mutant.path).read_text()
    root = copied(tmp_path)
    assert run_tests(root, mutant.tests, 120).passed
    mutant.apply(root)
    found = run_tests(root, mutant.tests, 120)
    assert not found.passed
    assert "tests/unit/core" in found.line
    assert (ROOT / mutant.path).read_text() == before
    with pytest.raises(AssertionError, match="0 places"):
        replace(mutant, old="no such text").apply(root)


def test_what_is_tried_on_a_mutant_is_noted_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its violations are wanted."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    test = f"import os\n\ndef test_it():\n    assert {DIRECTORY!r} not in os.environ\n"
    (tmp_path / "test_it.py").write_text(test)
    assert run_tests(tmp_path, "test_it.py", 120).passed


def test_a_layer_notes_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that leaves it is a violation."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with Layer("power", seeds=[7]) as layer:
        layer.operations += 3
        layer.faults["cut"] += 2
    with pytest.raises(ValueError, match="lost"), Layer("power"):
        raise ValueError("lost")
    runs = collected(tmp_path)["power"]
    told = [(run.operations, run.faults, run.seeds, run.violations) for run in runs]
    assert told == [(3, Counter(cut=2), [7], 0), (0, Counter(), [], 1)]


def test_a_layer_that_nobody_asked_notes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests of every day leave no files."""
    monkeypatch.delenv(DIRECTORY, raising=False)
    monkeypatch.chdir(tmp_path)
    with Layer("power"):
        pass
    assert not list(tmp_path.iterdir())


def test_the_table_says_what_did_not_run() -> None:
    """One row for each layer; several runs of one are added up."""
    one = Layer("power", 1_000, Counter(cut=2), [1], 0, 60)
    rows = table({"power": [one, replace(one, violations=1)]}, {"chaos": "exit 2"}).splitlines()
    assert len(rows) == 2 + len(PLANS)
    [power] = [row for row in rows if row.startswith("| power")]
    assert power.endswith("| 2,000 | 4 cut | 1 | 2.0 | 1 |")
    assert sum("did not run" in row for row in rows) == len(PLANS) - 1
    assert any("exit 2" in row for row in rows)
