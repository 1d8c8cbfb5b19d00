"""The benchmark of agents: its targets are of rows that exist, and a step is measured."""

from pathlib import Path
from typing import ClassVar

from bench.agent_peers import LANGGRAPH
from bench.agent_rows import MESSAGE_BYTES, OURS, AgentRow, OursInProcess, message, size_of
from bench.agents import (
    CELL,
    HYDRATION,
    figures_of,
    hydration_of,
    kinds,
    measure,
    parse,
    tables,
    targets,
)
from bench.peers import POWER_LOSS
from bench.servers import Lab
from bench.session import has_failed


class Growing(AgentRow):
    """Takes no time, and writes all that was said so far at each step."""

    name: ClassVar[str] = "growing"

    def __init__(self) -> None:
        self.size = 0

    async def start(self, lab: Lab) -> None:
        """Nothing to start."""

    async def take(self, name: str, steps: int) -> float:
        self.size += 500 * steps * (steps + 1)
        return 0.5

    def disk_bytes(self) -> int:
        return self.size


class Broken(Growing):
    """Never gets anywhere."""

    name: ClassVar[str] = "broken"

    async def take(self, name: str, steps: int) -> float:
        raise OSError("no disk")


def test_targets_name_cells_and_rows_that_exist() -> None:
    """And each row once; all of them acknowledge what is on the disk."""
    names = [kind.name for kind in kinds()]
    assert len(set(names)) == len(names) == len(OURS) + len(LANGGRAPH)
    assert {kind.survives for kind in kinds()} == {POWER_LOSS}
    for target in targets():
        assert target.cell in (CELL, HYDRATION)
        assert {target.row, target.reference or target.row} <= set(names)


def test_messages_are_of_a_kilobyte_and_all_different() -> None:
    """The same in every run."""
    assert {len(message(number)) for number in range(50)} == {MESSAGE_BYTES}
    assert len({message(number) for number in range(50)}) == 50
    assert message(3) == message(3)


async def test_growth_tells_the_square_from_the_line() -> None:
    """Twice the steps, four times the bytes."""
    figures = await figures_of(Growing(), 800, "1")
    assert 3.9 < figures["growth"] < 4
    assert (figures["steps/s"], round(figures["KB/step"])) == (1600, 400)


async def test_our_steps_are_measured_on_a_real_board(tmp_path: Path) -> None:
    """And how an agent is hydrated."""
    lab = Lab(tmp_path / "lab", fetch=False)
    (tmp_path / "lab").mkdir()
    row = OursInProcess()
    await row.start(lab)
    figures = await figures_of(row, 6, "1")
    assert figures["steps/s"] > 0
    assert row.disk_bytes() == size_of(tmp_path / "lab/agents-ours-in-process") > 6 * MESSAGE_BYTES
    hydrated = await hydration_of(row, 1_500, "1")
    assert 0 < hydrated["p50 ms"] <= hydrated["p99 ms"]


async def test_a_row_that_fails_is_reported_and_the_others_are_measured() -> None:
    """With exit status 1, which `run` makes of its troubles."""
    troubles: dict[str, str] = {}
    results = await measure([Broken(), Growing()], 2, 8, troubles)
    assert has_failed(troubles)
    assert (len(troubles), sorted(results.rounds_of(CELL, "growing"))) == (2, [1, 2])
    assert [table.title for table in tables(results)] == [CELL, "targets"]


def test_the_command_line_has_defaults() -> None:
    """Three rounds of all rows."""
    options = parse([])
    assert (options.rounds, options.steps, options.only, options.quick) == (3, 800, [], False)
    assert parse(["--only", "ours,sqlite"]).only == ["ours", "sqlite"]
