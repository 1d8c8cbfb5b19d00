"""Measure the steps of an agent beside LangGraph's SQLite and PostgreSQL savers, on this machine.

    python -m bench.agents                     three rounds of 800 steps
    python -m bench.agents --quick             does it run at all; figures are worthless
    python -m bench.agents --only ours         rows whose name contains one of these words

An agent takes 800 steps, one after the other; each appends a message of 1 KB that cannot be
compressed to what the agent remembers, and is on the disk before the next one begins. Every row has
told the disk to keep it (fsync) when a step is acknowledged. Told are steps per second, processor
time per step (of this process, and of the servers), and the files: bytes per step, and how many
times more they are when the steps are doubled (2 is linear). Rows run one after the other, in
another order each round; ratios are those of one round. Of ours also the time that it takes to
hydrate an agent with 10,000 private keys. Exit status 1 means that a row failed, not a target.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from bench.agent_peers import LANGGRAPH
from bench.agent_rows import OURS, AgentRow, OursRow, cpu_seconds
from bench.figures import Figures, Results, quantile
from bench.machine import gather_facts
from bench.report import Table, cell_table, verdict_table
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

STEPS = 800
ROW_SECONDS_MAX = 300.0
CELL = "steps of 1 KB"
HYDRATION = "hydration"
KEYS, HYDRATIONS = 10_000, 300


async def figures_of(row: AgentRow, steps: int, mark: str) -> Figures:
    """Half of the steps by one agent, all of them by another one."""
    sizes = [row.disk_bytes()]
    await row.take(f"half-{mark}", steps // 2)
    sizes.append(row.disk_bytes())
    served, own = sum(map(cpu_seconds, row.servers)), time.process_time()
    seconds = await row.take(f"whole-{mark}", steps)
    own, served = time.process_time() - own, sum(map(cpu_seconds, row.servers)) - served
    unknown = float("nan")
    sizes.append(row.disk_bytes())
    half, whole = sizes[1] - sizes[0], sizes[2] - sizes[1]
    return {
        "steps/s": steps / seconds,
        "client ms/step": own * 1000 / steps,
        "server ms/step": served * 1000 / steps if row.servers else unknown,
        "KB/step": whole / steps / 1000,
        "growth": whole / half if half > 0 else unknown,
    }


async def hydration_of(row: OursRow, keys: int, mark: str) -> Figures:
    """An agent with so many private keys, and its state, as a process that begins needs it."""
    found = await row.hydrations(f"elder-{mark}", keys, HYDRATIONS)
    return {f"p{q * 100:.0f} ms": quantile(found, q) for q in (0.5, 0.99)}


def kinds() -> Sequence[type[AgentRow]]:
    """Every row there is, ours first."""
    return (*OURS, *LANGGRAPH)


def targets() -> Sequence[Target]:
    """At least five times the steps of each saver, at equal durability, as it comes by default."""
    pairs = [
        ("ours-in-process", "langgraph-sqlite"),
        ("ours-in-process", "langgraph-postgres"),
        ("ours-in-process", "langgraph-sqlite-delta"),
        ("ours-in-process", "langgraph-postgres-delta"),
        ("ours-redis", "langgraph-postgres"),
    ]
    return (
        [
            Target(
                f"{row}: at least 5x the steps/s of {peer}",
                CELL,
                row,
                "steps/s",
                reference=peer,
                at_least=5.0,
            )
            for row, peer in pairs
        ]
        + [
            Target(f"{row}: files grow with the steps", CELL, row, "growth", below=2.6)
            for row in ("ours-in-process", "ours-archived", "ours-redis")
        ]
        + [
            Target(
                f"{row}: {KEYS:,} private keys, hydrated within 100 ms (p99)",
                HYDRATION,
                row,
                "p99 ms",
                below=100.0,
            )
            for row in ("ours-in-process", "ours-embedded", "ours-redis")
        ]
    )


async def measure(
    rows: Sequence[AgentRow], rounds: int, steps: int, troubles: dict[str, str]
) -> Results:
    """Every row in every round, in a new random order each."""
    results = Results()
    ours = [row for row in rows if isinstance(row, OursRow)]
    # Tables list the rows in their own order.
    results.cells = {CELL: {r.name: {} for r in rows}, HYDRATION: {r.name: {} for r in ours}}
    keys = KEYS * steps // STEPS

    async def work(row: AgentRow, number: int) -> None:
        results.add(CELL, row.name, number, await figures_of(row, steps, str(number)))
        if isinstance(row, OursRow):
            taken = await hydration_of(row, keys, str(number))
            results.add(HYDRATION, row.name, number, taken)

    await in_rounds(rows, rounds, troubles, ROW_SECONDS_MAX, work)
    return results


def tables(results: Results) -> list[Table]:
    """The table, and the verdicts."""
    survives = {kind.name: kind.survives for kind in kinds()}
    verdicts = [judge(target, results) for target in targets()]
    known = [cell for cell in results.cells if results.cells[cell]]
    return [*(cell_table(results, cell, survives) for cell in known), verdict_table(verdicts)]


async def run(options: argparse.Namespace) -> int:
    """One whole run."""
    rounds, steps = (1, 40) if options.quick else (options.rounds, options.steps)
    troubles: dict[str, str] = {}
    with laboratory(fetch=options.fetch) as lab:
        rows = await start_rows(wanted(kinds(), options.only), lab, troubles)
        facts = gather_facts(lab.folder)
        results = await measure(rows, rounds, steps, troubles)
    found = tables(results)

    def published() -> dict[str, Table]:
        return {"agents": found[0], "agents-targets": found[-1]}

    measured = Measured(facts, troubles, rounds, results, kinds(), targets(), published)
    return report(options, found, measured)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return command_line("agents", __doc__, steps=STEPS).parse_args(arguments)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(asyncio.run(run(parse())))
