"""What is promised is kept in every simulated run; a seed is all that it takes to see one again.

The seeds are the first ones, and the same each time: a run is as repeatable as any other test.
BLACKBOARD_TEST_SIMULATIONS=20000 goes on to others.
"""

import asyncio
import gc
import os
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path

import aiosqlite
import pytest

from blackboard.archive.database import Database
from blackboard.server.service import Service
from tests.simulation.loop import SimulatedLoop, StuckError, rest
from tests.simulation.nature import nature
from tests.simulation.plan import ACTS, CALLS, DEEDS, NETWORK, PAST, SYNCS, draw
from tests.simulation.planted import PLANTED, Planted
from tests.simulation.world import simulate
from tests.source_tree import ROOT
from tests.tiers import few_or_many

SIMULATIONS = int(os.environ.get("BLACKBOARD_TEST_SIMULATIONS", "500"))
PARTS = 16
"""Tests that share them, so that none takes minutes. `make test` has the first one."""
SEEDS_MAX = 200
"""Within which a planted fault must be found."""
FOUND = (
    (3460094940, "redis", False),
    (3460093442, "sqlite", True),
    (376, "redis", False),
    (800081, "sqlite", False),
)
"""Seeds that found something, once: what, is in docs/track_record.md."""
ACTED = ((75, "sqlite"), (93, "redis"))
"""Seeds of runs in which an operator does everything that there is."""
HASH_SEEDS = ("1", "2")
LEFT = (SimulatedLoop, Service, Database, aiosqlite.Connection)
"""What a run has of its own, and each of which holds something open."""


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_run_keeps_what_is_promised(part: int) -> None:
    """No finding in any of them."""
    broken, happened, commits = [], Counter[str](), 0
    seeds = range(part, SIMULATIONS, PARTS)
    for seed in seeds:
        verdict = simulate(draw(seed))
        commits += verdict.commits
        happened.update(verdict.trace.counts)
        if verdict.findings:
            broken.append(str(verdict))
    sys.stdout.write(f"{len(seeds)} runs, {commits} revisions, {dict(sorted(happened.items()))}\n")
    assert not broken, "\n\n".join(broken)


@pytest.mark.parametrize(("seed", "engine", "has_past"), FOUND)
def test_what_was_found_is_found_no_more(seed: int, engine: str, has_past: bool) -> None:
    """Each with the engine that it was found on, whatever a seed draws later on."""
    assert simulate(draw(seed, engine, has_past)).findings == {}


@pytest.mark.parametrize(("seed", "engine"), ACTED)
def test_an_operator_freezes_redacts_and_removes(seed: int, engine: str) -> None:
    """Each act keeps what it promises while a team works and services are killed."""
    plan = draw(seed, engine, has_past=True)
    verdict = simulate(plan)
    assert plan.acts == set(ACTS) <= verdict.trace.counts.keys()
    assert verdict.findings == {}


@pytest.mark.slow
def test_every_kind_of_fault_happens() -> None:
    """A fault that never comes up is not survived. Plans are drawn by the hundred, runs by few."""
    wanted = {*NETWORK, *DEEDS, *CALLS, *PAST, *SYNCS, "dropped pages"} - {"cancel"}
    for seed in count():
        plan = draw(seed)
        meant = wanted | set(SYNCS) if "dropped pages" in wanted else wanted
        if plan.faults & meant:
            wanted -= simulate(plan).trace.counts.keys()
        if not wanted:
            return
        assert seed < SEEDS_MAX, f"these never happened: {wanted}"


@few_or_many(2, 6)
def test_a_seed_tells_everything(tmp_path: Path, rounds: int) -> None:
    """Two processes write the same trace, byte for byte, whatever the seed of their hashes is."""
    traces = []
    for hash_seed in HASH_SEEDS:
        for engine, past in (("sqlite", "--no-past"), ("redis", "--no-past"), ("sqlite", "--past")):
            trace = tmp_path / f"{hash_seed} {engine} {past}"
            arguments = ["100", "--engine", engine, past, "--count", str(rounds)]
            subprocess.run(
                [sys.executable, "-m", "tests.simulation.run", *arguments, "--trace", trace],
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                cwd=ROOT,
                check=True,
                capture_output=True,
            )
            traces.append(trace.read_bytes())
    first, second = traces[: len(traces) // 2], traces[len(traces) // 2 :]
    assert first == second
    assert all(len(trace) > 10_000 for trace in first)


@pytest.mark.parametrize("engine", ["sqlite", "redis"])
def test_nothing_is_left_of_a_run(engine: str) -> None:
    """What services that were killed left open would be reported in another test, much later."""
    before = _held()
    for seed in range(8):
        simulate(draw(seed, engine, has_past=True))
        left = [name for each, name in _held().items() if each not in before]
        assert left == [], f"seed {seed}"


def _held() -> dict[int, str]:
    """What is in memory that only a run has, or that holds something open."""
    found = [each for each in gc.get_objects() if issubclass(type(each), LEFT)]
    return {id(each): type(each).__name__ for each in found}


def test_a_run_does_not_depend_on_those_before_it() -> None:
    """The same seed first and last, with another one in between."""
    plan = draw(7, "redis", has_past=False)
    first = simulate(plan).trace.lines
    simulate(draw(8, "redis", has_past=False))
    assert simulate(plan).trace.lines == first


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_found(fault: Planted) -> None:
    """The simulation sees what it is there to see."""
    with fault.planted():
        for seed in range(fault.first, fault.first + SEEDS_MAX):
            verdict = simulate(draw(seed, fault.engine, fault.has_past))
            if verdict.findings:
                sys.stdout.write(f"found by seed {seed}: {sorted(verdict.findings)}\n")
                return
    pytest.fail(f"{fault.name}: not found in {SEEDS_MAX} seeds")


# --- the loop -------------------------------------------------------------------------------------


def run(work: "asyncio._CoroutineLike[object]") -> tuple[object, float]:
    """What `work` returns, and how long it took."""
    loop = SimulatedLoop()
    try:
        with nature(1, loop):
            return loop.run_until_complete(work), loop.time()
    finally:
        loop.close()


def test_time_passes_only_when_nobody_has_anything_to_do() -> None:
    """An hour is over at once, and everybody is woken in the order of time."""
    order: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        await rest(seconds)
        order.append(name)

    async def work() -> None:
        await asyncio.gather(wait("late", 3_600.0), wait("early", 60.0))

    _, seconds = run(work())
    assert order == ["early", "late"]
    assert seconds == pytest.approx(3_600.0)


def test_waiting_for_nothing_is_refused() -> None:
    """A run in which nobody goes on ends."""

    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StuckError):
        run(work())


def test_threads_run_on_the_loop() -> None:
    """`asyncio.to_thread` needs none."""

    async def work() -> int:
        return await asyncio.to_thread(lambda: 7)

    assert run(work())[0] == 7


def test_sets_of_tasks_have_an_order() -> None:
    """They are numbered: where they lie in memory does not matter."""

    async def work() -> list[str]:
        tasks = [asyncio.create_task(rest(1.0), name=str(number)) for number in range(50)]
        names = [task.get_name() for task in set(tasks)]
        await asyncio.gather(*tasks)
        return names

    assert run(work())[0] == run(work())[0]
