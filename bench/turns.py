"""Measure fifty agents at once beside LangGraph's SQLite and PostgreSQL savers, on this machine.

    python -m bench.turns                     three rounds, 50 agents, 40 turns each
    python -m bench.turns --quick             does it run at all; figures are worthless
    python -m bench.turns --only ours         rows whose name contains one of these words

Each turn is one step that changes a few keys: it adds a note of 200 bytes to what the agent
remembers, and says in public what it does (100 bytes). Every step is on the disk before the
agent's next one begins, in all rows: LangGraph's agents are threads of one graph that loops, with
`durability="sync"` and one saver for all, as its documentation has it. Told are turns per second of
all agents together, processor time of this process per turn, and how many times the bytes of these
notes and texts the files grew by, after a clean stop. Rows run one after the other, in another
order each round; ratios are those of one round. Exit status 1 means that a row failed, not a
target.
"""

from __future__ import annotations

import argparse
import asyncio
import operator
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

from bench.agent_peers import LangGraphPostgres, LangGraphRow, LangGraphSqlite, looped
from bench.agent_rows import (
    AgentRow,
    Counted,
    OursArchived,
    OursInProcess,
    OursRedis,
    OursRow,
    OursServed,
    message,
)
from bench.figures import Figures, Results
from bench.machine import gather_facts
from bench.report import Table, cell_table, verdict_table
from bench.rows import client_module
from bench.session import (
    Measured,
    command_line,
    end_on_sigterm,
    in_rounds,
    laboratory,
    report,
    start_rows,
    wanted,
)
from bench.targets import Target, judge
from blackboard import Agent, Context, run_agent

AGENTS, TURNS = 50, 40
NOTE_BYTES, STATUS_BYTES = 200, 100
ROW_SECONDS_MAX = 600.0
CELL = "turns of fifty agents"
ROWS: tuple[type[AgentRow], ...] = (
    OursInProcess,
    OursArchived,
    OursServed,
    OursRedis,
    LangGraphSqlite,
    LangGraphPostgres,
)


class Busy(Agent[Counted]):
    """Notes something in every step, and says what it does."""

    def __init__(self, name: str, turns: int) -> None:
        super().__init__(name)
        self.turns = turns

    async def step(self, ctx: Context[Counted]) -> None:
        """One turn."""
        ctx.append(f"private/{self.name}/notes", message(ctx.state.n)[:NOTE_BYTES])
        ctx.put(f"public/status/{self.name}", message(ctx.state.n)[:STATUS_BYTES])
        ctx.state.n += 1
        if ctx.state.n == self.turns:
            ctx.done()


async def ours(row: OursRow, names: Sequence[str], turns: int) -> float:
    """All agents on one board."""
    async with row.client() as client:
        boards = [client.board("bench") for _ in names]
        began = time.monotonic()
        await asyncio.gather(
            *(run_agent(Busy(n, turns), b) for n, b in zip(names, boards, strict=True))
        )
        return time.monotonic() - began


async def theirs(row: LangGraphRow, names: Sequence[str], turns: int) -> float:
    """All agents with one saver."""
    async with row.saver() as saver:
        graph = graph_of(saver, turns)
        began = time.monotonic()
        await asyncio.gather(*(invoke(graph, name, turns) for name in names))
        return time.monotonic() - began


async def invoke(graph: Any, name: str, turns: int) -> None:
    """All turns of one agent."""
    config = {"configurable": {"thread_id": name}, "recursion_limit": turns + 10}
    await graph.ainvoke({"n": 0}, config, durability="sync")


def graph_of(saver: Any, turns: int) -> Any:
    """The agent as a graph."""
    # Made at run time, and so by a name that no type checker knows.
    made = client_module("typing").TypedDict
    state = made("Turns", {"notes": Annotated[list[Any], operator.add], "status": str, "n": int})

    async def agent(found: dict[str, Any]) -> dict[str, Any]:
        n = found.get("n", 0)
        said = message(n)
        return {"notes": [said[:NOTE_BYTES]], "status": said[:STATUS_BYTES], "n": n + 1}

    return looped(saver, state, agent, turns)


async def figures_of(row: AgentRow, turns: int, mark: str) -> Figures:
    """All turns of all agents."""
    names = [f"agent-{mark}-{number}" for number in range(AGENTS)]
    before, own = row.disk_bytes(), time.process_time()
    if isinstance(row, OursRow):
        seconds = await ours(row, names, turns)
    else:
        assert isinstance(row, LangGraphRow)
        seconds = await theirs(row, names, turns)
    own, count = time.process_time() - own, AGENTS * turns
    is_closed = not row.servers  # an open board has a journal of a size of its own
    grown = (row.disk_bytes() - before) / (count * (NOTE_BYTES + STATUS_BYTES))
    return {
        "turns/s": count / seconds,
        "client ms/turn": own * 1000 / count,
        "bytes x input": grown if is_closed else float("nan"),
    }


def targets() -> Sequence[Target]:
    """Six times the turns of each saver, as it comes by default."""
    return [
        Target(
            f"{row}: at least 6x the turns/s of {peer}",
            CELL,
            row,
            "turns/s",
            reference=peer,
            at_least=6.0,
        )
        for row in ("ours-archived", "ours-redis")
        for peer in ("langgraph-sqlite", "langgraph-postgres")
    ] + [
        Target(
            "ours-archived: at most 2x the bytes written",
            CELL,
            "ours-archived",
            "bytes x input",
            below=2.0,
        )
    ]


async def measure(
    rows: Sequence[AgentRow], rounds: int, turns: int, troubles: dict[str, str]
) -> Results:
    """Every row in every round, in a new random order each."""
    results = Results()
    results.cells = {CELL: {row.name: {} for row in rows}}

    async def work(row: AgentRow, number: int) -> None:
        results.add(CELL, row.name, number, await figures_of(row, turns, str(number)))

    await in_rounds(rows, rounds, troubles, ROW_SECONDS_MAX, work)
    return results


async def run(options: argparse.Namespace) -> int:
    """One whole run."""
    rounds, turns = (1, 3) if options.quick else (options.rounds, options.steps)
    troubles: dict[str, str] = {}
    with laboratory(fetch=options.fetch) as lab:
        rows = await start_rows(wanted(ROWS, options.only), lab, troubles)
        facts = gather_facts(lab.folder)
        results = await measure(rows, rounds, turns, troubles)
    survives = {kind.name: kind.survives for kind in ROWS}
    verdicts = verdict_table([judge(target, results) for target in targets()])
    found = [cell_table(results, CELL, survives), verdicts]

    def published() -> dict[str, Table]:
        return {"turns": found[0], "turns-targets": found[1]}

    measured = Measured(facts, troubles, rounds, results, ROWS, targets(), published)
    return report(options, found, measured)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return command_line("turns", __doc__, steps=TURNS).parse_args(arguments)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(asyncio.run(run(parse())))
