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
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.agent_peers import LANGGRAPH
from bench.agent_rows import OURS, AgentRow, OursRow, cpu_seconds
from bench.coordination import explain, print_run, words
from bench.figures import Figures, Results, quantile
from bench.machine import gather_facts
from bench.published import publish
from bench.report import Table, cell_table, verdict_table
from bench.servers import Lab, UnavailableError, prepare_cache
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


async def start_rows(lab: Lab, wanted: Sequence[str], troubles: dict[str, str]) -> list[AgentRow]:
    """The rows that run here; what does not is noted with its reason."""
    rows = []
    for kind in kinds():
        if not wanted or any(word in kind.name for word in wanted):
            row = kind()
            try:
                await row.start(lab)
                rows.append(row)
            except UnavailableError as reason:
                troubles[f"skipped {row.name}"] = str(reason)
    return rows


async def measure(rows: Sequence[AgentRow], rounds: int, steps: int) -> tuple[Results, int]:
    """Every row in every round, in a new random order each; and how many failed."""
    results, failed = Results(), 0
    ours = [row for row in rows if isinstance(row, OursRow)]
    # Tables list the rows in their own order.
    results.cells = {CELL: {r.name: {} for r in rows}, HYDRATION: {r.name: {} for r in ours}}
    keys = KEYS * steps // STEPS
    for number in range(1, rounds + 1):
        for row in random.sample(rows, len(rows)):
            try:
                async with asyncio.timeout(ROW_SECONDS_MAX):
                    results.add(CELL, row.name, number, await figures_of(row, steps, str(number)))
                    if isinstance(row, OursRow):
                        taken = await hydration_of(row, keys, str(number))
                        results.add(HYDRATION, row.name, number, taken)
            except Exception as error:  # noqa: BLE001 - clients raise anything
                failed += 1
                print(f"failed {row.name}, round {number}: {explain(error)}")
    return results, failed


def tables(results: Results) -> list[Table]:
    """The table, and the verdicts."""
    survives = {kind.name: kind.survives for kind in kinds()}
    verdicts = [judge(target, results) for target in targets()]
    known = [cell for cell in results.cells if results.cells[cell]]
    return [*(cell_table(results, cell, survives) for cell in known), verdict_table(verdicts)]


@asynccontextmanager
async def laboratory(*, fetch: bool) -> AsyncIterator[Lab]:
    """A folder for the run; whatever happens, its servers are stopped and its files deleted."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=prepare_cache()))
    os.chmod(folder, 0o711)  # noqa: PTH101 - PostgreSQL runs as another user, and must get through
    lab = Lab(folder, fetch=fetch)
    try:
        yield lab
    finally:
        lab.close()
        shutil.rmtree(folder, ignore_errors=True)


async def run(options: argparse.Namespace) -> int:
    """One whole run."""
    rounds, steps = (1, 40) if options.quick else (options.rounds, options.steps)
    troubles: dict[str, str] = {}
    async with laboratory(fetch=options.fetch) as lab:
        rows = await start_rows(lab, options.only, troubles)
        facts = gather_facts(lab.folder)
        results, failed = await measure(rows, rounds, steps)
    found = tables(results)
    print_run(facts, found, troubles, as_markdown=options.markdown)
    if options.publish:
        names = ("agents", "agents-targets")
        publish(facts.conditions(rounds), dict(zip(names, (found[0], found[-1]), strict=True)))
    return 1 if failed else 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.agents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=words, default=[], help="parts of rows' names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--publish", action="store_true", help="renew docs/performance.md")
    parser.add_argument(
        "--no-fetch", dest="fetch", action="store_false", help="do not download missing servers"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
