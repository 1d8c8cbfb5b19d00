"""Everything at once: a short form of `make chaos` (run_chaos.py), and checkers that can see.

BLACKBOARD_CHAOS_SECONDS sets how long each engine is broken.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.guarantees.chaos import Round
from tests.guarantees.history import Entry, History, Mark, Watched, Write
from tests.guarantees.planting import Faults
from tests.guarantees.rollback import TOLD, announced, explained, surviving
from tests.guarantees.stage import CLUSTER, EMBEDDED, REDIS, Scene
from tests.servers import server_binaries

SECONDS = float(os.environ.get("BLACKBOARD_CHAOS_SECONDS") or 6)
PATIENCE_S = 300
KEPT, LOST = 5, 7
"""In the hand-made history: the last revision that survived, and one that did not."""


def say(text: str) -> None:
    """For the report of a test that fails."""
    sys.stdout.write(text + "\n")


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.timeout(PATIENCE_S + 2 * SECONDS)
@pytest.mark.parametrize(
    ("engine", "kinds"),
    [(REDIS, ()), (EMBEDDED, ()), (CLUSTER, ("move slot", "fail over"))],
    ids=[REDIS, EMBEDDED, CLUSTER],
)
async def test_every_promise_holds_whatever_breaks(
    engine: str, kinds: tuple[str, ...], tmp_path: Path, seed: int
) -> None:
    """Of processes, ways, memory, disk, replicas and time; the faults come from the seed."""
    played = Round(Scene(engine, server_binaries()[0].path, tmp_path, kinds), seed, SECONDS)
    await played.play(say)
    assert played.violations == {}
    assert sum(played.faults.values()) > 0
    assert played.commits > 0


# --- what was rolled back -------------------------------------------------------------------------


def good() -> History:
    """Two writers, a promotion that loses what ada wrote last, and both are confronted with what
    they knew."""
    log = [
        Entry(1, (("public/a", "ada-0"),)),
        Entry(100, (), KEPT),
        Entry(101, (("public/b", "bob-1"),)),
        Entry(102, (("public/a", "ada-3"),)),
    ]
    writes = [
        Write("ada-0", ("public/a",), 0, 1, "done", 1),
        Write("ada-1", ("public/a",), 2, 3, "done", LOST),
        Write("bob-1", ("public/b",), 4, 5, "done", 101),
        Write("ada-2", ("public/a",), 6, 7, TOLD),
        Write("ada-3", ("public/a",), 8, 9, "done", 102),
    ]
    lost = Entry(LOST, (("public/a", "ada-1"),))
    misled = [Watched("public/", 0, [log[0], lost])]
    after = [Watched("public/", KEPT, [*log[1:3], Mark(102)])]
    unharmed = [Watched("public/b", 0, [Mark(1), *log[1:3]])]
    return History(log, writes, [], [misled, after, unharmed])


fault: Faults[History] = Faults()


@fault("announced")
def a_writer_is_not_told(history: History) -> None:
    history.writes[3] = replace(history.writes[3], outcome="refused")


@fault("announced")
def a_watcher_is_not_told(history: History) -> None:
    history.watches[0][0].told.append(history.log[1])


@fault("announced")
def a_watcher_that_goes_on_is_not_told(history: History) -> None:
    history.watches[0].append(history.watches[1][0])


@fault("explained")
def something_else_is_gone(history: History) -> None:
    history.log[1] = Entry(100, (), KEPT + 1)


def findings(history: History) -> dict[str, list[str]]:
    """What the checkers of a rollback say."""
    found = {"announced": announced(history), "explained": explained(history, [KEPT])}
    return {name: sentences for name, sentences in found.items() if sentences}


def test_a_rollback_that_was_announced_to_all_is_fine() -> None:
    assert findings(good()) == {}


def test_what_counts_is_kept_and_what_was_rolled_back_is_not() -> None:
    kept = surviving(good())
    assert [write.value for write in kept.writes] == ["ada-0", "bob-1", "ada-2", "ada-3"]
    assert [write.outcome for write in kept.writes] == ["done", "done", "refused", "done"]
    assert [one.position for watches in kept.watches for one in watches] == [1, 102, 101]


@pytest.mark.parametrize("name", fault.planted)
def test_each_fault_is_found(name: str) -> None:
    guarantee, plant = fault.planted[name]
    history = good()
    plant(history)
    assert list(findings(history)) == [guarantee]
