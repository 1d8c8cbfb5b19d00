"""kill -9 of an agent, anywhere: it goes on from the journal, and ends as one that nobody killed.

Once at every point of the run that there is (in `make test` over Redis at some of them), and at
random moments: BLACKBOARD_AGENT_KILLS=1000 makes that long.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from blackboard.client.views import Entry
from blackboard.runtime.journal import StepPoint
from tests.guarantees.agent_child import BOARD, STEPS, opened
from tests.source_tree import ROOT
from tests.tiers import few_or_many

KILLS = int(os.environ.get("BLACKBOARD_AGENT_KILLS", "50"))
FEW_KILLS = 12
"""At random moments, in `make test`."""
FEW_POINTS, POINTS = 8, 1_000
"""At which an agent over Redis is killed, if there are as many."""
LIVES_MAX = 60
CALLS = {"price": 2 * STEPS, "pay": STEPS, "mail": STEPS}
UNRECORDED = {StepPoint.CALL_RETURNED.value, StepPoint.RECORDING.value}
"""Points at which a tool has acted and the journal does not know."""


@dataclass
class Nursery:
    """Where agents live and die: one board, one log of effects."""

    engine: str
    directory: Path
    process: "subprocess.Popen[str]"
    lives: Counter[str] = field(default_factory=Counter)

    def live(self, name: str, **order: int) -> dict[str, Any]:
        """One life of agent `name`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"name": name, **order}) + "\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert told["status"] in (0, signal.SIGKILL, signal.SIGALRM), told
        self.lives[name] += 1
        assert self.lives[name] <= LIVES_MAX
        return told

    def effects(self, name: str) -> list[tuple[str, str, str]]:
        """What the tools did for agent `name`: tool, what, idempotency key."""
        lines = map(json.loads, (self.directory / "effects").read_text().splitlines())
        return [(tool, what, key) for tool, agent, what, key in lines if agent == name]

    def read(self) -> dict[str, Any]:
        """All that is on the board."""

        async def entries() -> list[Entry]:
            async with opened(self.engine, self.directory) as client:
                return [entry async for entry in client.board(BOARD).scan("**")]

        return {entry.key: entry.value for entry in asyncio.run(entries())}


def of_agent(found: dict[str, Any], name: str) -> dict[str, Any]:
    """What a board has of agent `name`, with its name left out."""
    mine = {
        key.replace(name, "*"): value
        for key, value in found.items()
        if name in key.split("/") and not key.startswith("public/~agents/")
    }
    letters = [
        {**value, "from": "*"}
        for value in found.values()
        if isinstance(value, dict) and value.get("from") == name
    ]
    return {**mine, "letters": letters}


@contextmanager
def nursery(engine: str, directory: Path) -> Iterator[Nursery]:
    """A process that forks agents."""
    command = [sys.executable, "-m", "tests.guarantees.agent_child", engine, str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        yield Nursery(engine, directory, process)
        assert process.stdin is not None
        process.stdin.close()


def to_the_end(home: Nursery, name: str) -> None:
    """Let the agent live until it is done."""
    assert home.live(name)["status"] == 0


def check(home: Nursery, name: str, again: Counter[str]) -> None:
    """The agent ended as if nobody had killed it; each effect is there once, by its key.

    `again` says which tools acted without the journal knowing, and so were called again.
    """
    effects = home.effects(name)
    by_tool = Counter(tool for tool, _, _ in effects)
    keys = {key: tool for tool, _, key in effects}
    assert Counter(keys.values()) == CALLS, "one key per call, and every call was made"
    for tool, calls in CALLS.items():
        # Of two calls at once one may be recorded, though nobody lived to be told.
        least = calls if tool == "price" else calls + again[tool]
        assert least <= by_tool[tool] <= calls + again[tool], (name, tool, by_tool, again)


def run_at_points(home: Nursery, count: int = POINTS) -> None:
    """Kill an agent of its own at each point of an undisturbed run, or at `count` of them."""
    to_the_end(home, "calm")
    expected = of_agent(home.read(), "calm")
    assert expected["private/*/~state"]["state"]["spent"] == STEPS * (5 + len("receipt 1"))
    undisturbed = home.live("other")["passed"]
    check(home, "other", Counter())
    points = range(1, len(undisturbed) + 1, max(1, len(undisturbed) // count))
    for at in points:
        name = f"at{at}"
        told = home.live(name, at=at)
        assert told["status"] == signal.SIGKILL
        assert len(told["passed"]) == at
        to_the_end(home, name)
        check(home, name, _called_again(told["passed"]))
    found = home.read()
    for at in points:
        assert of_agent(found, f"at{at}") == expected, undisturbed[at - 1]


def _called_again(passed: list[list[str]]) -> Counter[str]:
    """The tools that acted in the step that was killed, and are not in its journal."""
    acted: Counter[str] = Counter()
    for point, about in passed:
        if point == StepPoint.STEP_BEGUN:
            acted.clear()
        elif point == StepPoint.CALL_RETURNED:
            acted[about] += 1
        elif point == StepPoint.RECORDED:
            acted[about] -= 1
    return +acted


def run_at_random(home: Nursery, dice: random.Random, least: int) -> None:
    """Kill agents at random moments until they are done all the same, so often at least."""
    to_the_end(home, "calm")
    kills = number = 0
    while kills < least:
        name, number = f"random{number}", number + 1
        died = 0
        while home.live(name, microseconds=dice.randrange(1_000, 120_000))["status"]:
            died += 1
            if home.lives[name] == LIVES_MAX - 1:
                to_the_end(home, name)
                break
        kills += died
        effects = home.effects(name)
        keys = {key: tool for tool, _, key in effects}
        assert Counter(keys.values()) == CALLS
        # Two prices are looked up at once: a death can cost two calls at most.
        assert len(effects) - sum(CALLS.values()) <= 2 * died
    found = home.read()
    for one in range(number):
        assert of_agent(found, f"random{one}") == of_agent(found, "calm"), one


def test_an_agent_killed_at_any_point_goes_on_embedded(tmp_path: Path) -> None:
    """Over the embedded engine, which dies with it."""
    with nursery("sqlite", tmp_path) as home:
        run_at_points(home)


@few_or_many(FEW_POINTS, POINTS)
def test_an_agent_killed_at_any_point_goes_on_redis(
    redis_url: str, tmp_path: Path, rounds: int
) -> None:
    """Over a server that lives on."""
    with nursery(redis_url, tmp_path) as home:
        run_at_points(home, rounds)


@few_or_many(FEW_KILLS, KILLS)
def test_an_agent_killed_at_random_goes_on_embedded(tmp_path: Path, seed: int, rounds: int) -> None:
    """Between any two instructions."""
    with nursery("sqlite", tmp_path) as home:
        run_at_random(home, random.Random(seed), rounds)


@few_or_many(FEW_KILLS, KILLS)
def test_an_agent_killed_at_random_goes_on_redis(
    redis_url: str, tmp_path: Path, seed: int, rounds: int
) -> None:
    """Between any two instructions, and any two packets."""
    with nursery(redis_url, tmp_path) as home:
        run_at_random(home, random.Random(seed), rounds)


def test_the_check_finds_a_call_too_many(tmp_path: Path) -> None:
    """Two effects under two keys are no longer what was promised."""
    with nursery("sqlite", tmp_path) as home:
        to_the_end(home, "ann")
        check(home, "ann", Counter())
        with (tmp_path / "effects").open("a") as log:
            log.write(json.dumps(["pay", "ann", "1:5", "another key"]) + "\n")
        with pytest.raises(AssertionError):
            check(home, "ann", Counter())
