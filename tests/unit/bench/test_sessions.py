"""The benchmark of sessions: its targets are of rows that exist, and a loss is found."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.figures import WORST_ROUND_COUNTS
from bench.published import load
from bench.servers import Lab, UnavailableError
from bench.session import has_failed
from bench.session_worker import HistoryItems, TurnsKept, out_of_turn
from bench.sessions import (
    CELLS,
    ROWS,
    OpenAISqlite,
    SessionRow,
    environment,
    measure,
    parse,
    tables,
    targets,
)
from tests.source_tree import ROOT


class Listed:
    """A session of the SDK, of items that are given."""

    def __init__(self, items: Sequence[dict[str, str]]) -> None:
        self._items = items

    async def get_items(self) -> Sequence[dict[str, str]]:
        return self._items


def question(name: str) -> dict[str, str]:
    return {"role": "user", "content": name}


def answer(name: str) -> dict[str, str]:
    return {"role": "assistant", "content": "text", "id": name}


def test_targets_name_rows_that_exist() -> None:
    """Each row once, and each framework with a row of ours and one of its own."""
    cells = {kind.name: kind.extra for kind in ROWS}
    assert len(cells) == len(ROWS)
    for cell in CELLS:
        assert {name.endswith(("-board", "-memory")) for name in cells if cells[name] == cell} == {
            True,
            False,
        }
    for target in targets():
        assert cells[target.row] == target.cell
        assert cells[target.reference or target.row] == target.cell


def test_a_speed_is_compared_at_equal_durability() -> None:
    survives = {kind.name: kind.survives for kind in ROWS}
    compared = [(target.row, target.reference) for target in targets() if target.reference]
    assert len(compared) == len({peer for _, peer in compared})
    for row, peer in compared:
        assert survives[row] == survives[str(peer)]


def test_each_framework_is_one_that_is_tested_and_published() -> None:
    """Its environment is made from what its tests are pinned to."""
    for cell in CELLS:
        assert (ROOT / "tests/frameworks" / cell / "requirements.txt").exists()
        assert {row[0] for row in load()[f"sessions-{cell}"].rows} == {
            kind.name for kind in ROWS if kind.extra == cell
        }


def test_a_missing_environment_is_named() -> None:
    with pytest.raises(UnavailableError, match=r"no \.frameworks/no-such"):
        environment("no-such", fetch=False)


def test_an_environment_that_cannot_be_made_is_named() -> None:
    with pytest.raises(
        UnavailableError, match=r"no-such cannot be installed: .*tests/frameworks/no-such"
    ):
        environment("no-such", fetch=True)


@pytest.mark.parametrize(
    ("names", "wrong"),
    [(["0.0", "1.0", "0.1", "1.1"], 0), (["0.1", "1.0", "0.0"], 1), (["0.9", "0.10"], 0)],
)
def test_turns_out_of_order_are_counted(names: Sequence[str], wrong: int) -> None:
    """Those of different workers may stand in any order."""
    assert out_of_turn(names) == wrong


ALL = ["0.0", "1.0"]
QUESTIONS = [question(name) for name in ALL]


@pytest.mark.parametrize(
    ("items", "kept"),
    [
        ([QUESTIONS[0], answer("0.0"), QUESTIONS[1], answer("1.0")], TurnsKept(0, 0)),
        ([QUESTIONS[0], answer("0.0")], TurnsKept(1, 0)),
        ([*QUESTIONS, answer("0.0"), answer("1.0")], TurnsKept(0, 2)),
    ],
    ids=["whole", "one is lost", "questions first"],
)
async def test_lost_and_torn_turns_are_found(items: Any, kept: TurnsKept) -> None:
    assert await HistoryItems(Listed(items)).kept(ALL) == kept


def test_losses_are_those_of_the_worst_round() -> None:
    assert {"lost", "out of order"} <= WORST_ROUND_COUNTS


async def test_a_worker_that_fails_is_reported_with_its_last_words(tmp_path: Path) -> None:
    """Here, because the framework is not in the environment."""
    row, troubles = OpenAISqlite(), dict[str, str]()
    row.lab, row.python = Lab(tmp_path, fetch=False), Path(sys.executable)
    results = await measure([row], 1, (2, 2), troubles)
    assert has_failed(troubles)
    [reason] = troubles.values()
    assert "a worker ended early" in reason
    assert "agents.memory" in reason
    assert list(tables(results)) == ["sessions-targets"]


def test_the_command_line_has_defaults() -> None:
    options = parse([])
    assert (options.rounds, options.steps, options.only, options.quick) == (3, 200, [], False)
    assert issubclass(ROWS[0], SessionRow)
